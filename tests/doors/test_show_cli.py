"""`shardwise show`: prints, writes SVG and HTML, draws every layout, and knows no JAX; and what notebooks ask of a plan."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import xml.etree.ElementTree as ET

import jax.numpy as jnp
import numpy as np
import pytest

import shardwise as sw
from shardwise.cli import main

ON = ["--mesh", "x=2,y=2"]
SIZES = ["--sizes", "I=8192,J=8192"]


def test_it_prints_where_every_shard_is(capsys):
    assert main(["show", "A[I_y, J_x]", *SIZES, *ON]) == 0

    assert capsys.readouterr().out.splitlines() == [
        "A[I_y, J_x], 8192 x 8192, on mesh x=2, y=2",
        "+-----+-----+", "|  0  |  2  |", "+-----+-----+", "|  1  |  3  |", "+-----+-----+",
        "device  holds                 shard",
        "0       0:4096, 0:4096        4096 x 4096",
        "1       4096:8192, 0:4096     4096 x 4096",
        "2       0:4096, 4096:8192     4096 x 4096",
        "3       4096:8192, 4096:8192  4096 x 4096",
    ]  # fmt: skip


def test_it_writes_an_svg(tmp_path, capsys):
    file = tmp_path / "<script>🚀.svg"

    assert main(["show", "A[I_x, J]{U_y}", *SIZES, *ON, "-o", str(file)]) == 0
    assert capsys.readouterr().out == f"wrote {file}\n"
    tree = ET.fromstring(file.read_text(encoding="utf-8"))
    assert tree[0].text == "A[I_x, J]{U_y}"
    assert {group.attrib.get("data-devices") for group in tree.iter("{http://www.w3.org/2000/svg}g")} >= {"0+1", "2+3"}


def test_it_writes_a_page(tmp_path):
    file = tmp_path / "a.html"

    assert main(["show", "A[I_x, J]", *SIZES, *ON, "-o", str(file)]) == 0
    assert file.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_all_layouts_on_one_sheet(capsys, tmp_path):
    assert main(["show", "--all", "A[I, J]", *ON]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("11 layouts of A[I, J], 4 x 4, on mesh x=2, y=2\n")
    assert len(re.findall(r"A\[I", printed)) == 12
    assert main(["show", "--all", "A[I, J]", *ON, "-o", str(tmp_path / "all.svg")]) == 0


def test_padding_is_drawn_when_it_is_asked_for(capsys):
    assert main(["show", "A[I_x]", "--sizes", "I=3", *ON]) == 2
    assert "--pad pads it to 4" in capsys.readouterr().err
    assert main(["show", "A[I_x]", "--sizes", "I=3", *ON, "--pad"]) == 0
    assert "2:3 +1 padding" in capsys.readouterr().out


REFUSED = [
    (["A[I_x]", *ON, "-o", "a.png"], "a.png: pictures are written as .svg or .html"),
    (["A[I_x]", *ON, "-o", "/nowhere/a.svg"], "/nowhere/a.svg: there is no folder nowhere in /: make it, or name another"),
    (["A[I_x]", *ON, "--sizes", "Q=3"], "the array has no dimension Q"),
    (["A[I_x, J]", *ON, "--sizes", "I=4"], "no size is given for dimension J"),
    (["A[I_q]", *ON], "the mesh has no axis 'q'"),
    (["A[I_x", *ON], "close the bracket"),
]


@pytest.mark.parametrize(("arguments", "reason"), REFUSED, ids=[reason for _, reason in REFUSED])
def test_a_mistake_is_told_with_its_way_out(arguments, reason, capsys):
    assert main(["show", *arguments]) == 2
    assert reason in capsys.readouterr().err


def test_the_examples_of_the_help_work(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["show", "--help"]) == 0
    examples = re.findall(r"shardwise (show .*?)(?:  +\S.*)?$", capsys.readouterr().out.split("examples:")[1], re.MULTILINE)

    assert len(examples) == 3
    for example in examples:
        assert main(shlex.split(example)) == 0
    assert (tmp_path / "placement.svg").exists()


def test_it_knows_no_jax():
    code = (
        "import sys\nfrom shardwise.cli import main\n"
        f"assert main({['show', 'A[I_x, J_y]', *SIZES, *ON]!r}) == 0\n"
        "assert main(['show', '--all', 'A[I]', '--mesh', 'x=2']) == 0\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('jax', 'jaxlib')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines()[-1] == "[]"


def test_a_plan_an_audit_and_a_timeline_draw_themselves_in_a_notebook():
    mesh = sw.make_mesh("x=4")
    plan = sw.plan("A[I_x, J] · B[J, K] -> C[I, K]", sizes={"I": 64, "J": 64, "K": 64}, mesh="x=4", hardware="tpu-v5e")
    a = sw.put(np.zeros((64, 64), np.float32), "A[I_x, J]", mesh)
    audit = sw.audit(lambda a: jnp.sum(a, axis=0), a)
    things = {"A[I_x, J] · B[J, K] -&gt; C[I, K]": plan, "all-reduce": audit, "<svg": audit.timeline("tpu-v5e")}
    for told, thing in {**things, "[I_x, J]": sw.show({"a": a})}.items():
        html = thing._repr_html_()
        assert told in html
        assert html.count("<div") == html.count("</div>")
