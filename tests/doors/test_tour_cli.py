"""`shardwise tour`: the list, one tour on any hardware, documents, and mistakes told with their way out."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from shardwise.cli import main
from shardwise.pictures.tours.all import TOURS

OWN = ["A[I, J_x] · B[J_x, K] -> C[I, K]", "--sizes", "I=4,J=4,K=4", "--mesh", "x=4"]


def test_alone_it_lists_the_tours(capsys):
    assert main(["tour"]) == 0
    said = capsys.readouterr().out

    assert set(TOURS) == set(re.findall(r"^  ([\w-]+)  +\w", said, re.MULTILINE)) - {"shardwise"}
    assert "shardwise tour all-gather" in said


@pytest.mark.parametrize("name", TOURS)
def test_each_is_printed_where_nobody_types(name, capsys):
    assert main(["tour", name]) == 0
    said = capsys.readouterr().out

    titles = re.findall(rf"^{name} (\d+)/(\d+): ", said, re.MULTILINE)
    assert [int(number) for number, _ in titles] == list(range(1, int(titles[0][1]) + 1))


@pytest.mark.parametrize("name", ["cpu", "h100", "v5e:2x4", "tpu-v7x"])
def test_costs_are_told_for_the_hardware_that_is_named(name, capsys):
    assert main(["tour", "case-2", "--hardware", name]) == 0
    title = {"cpu": "CPU", "h100": "H100", "v5e:2x4": "TPU v5e", "tpu-v7x": "TPU v7x"}[name]
    assert re.search(rf"mesh x=2, on .*{title}", capsys.readouterr().out)


def test_ones_own_equation(capsys):
    assert main(["tour", *OWN]) == 0
    said = capsys.readouterr().out

    assert "device 0 alone would say C[0, 0] = 0; it is 56" in said
    assert "The parts make what np.einsum makes of the whole arrays." in said


def test_documents(tmp_path, capsys):
    for suffix in ("svg", "html"):
        file = tmp_path / f"tour.{suffix}"
        assert main(["tour", "case-3", "-o", str(file)]) == 0
        assert capsys.readouterr().out == f"wrote {file}\n"
        text = file.read_text(encoding="utf-8")
        assert "8. the cost" in text
        assert text.count('data-source="') == 2  # wires of the all-reduce
        assert "<details>" not in text
    tree = ET.fromstring((tmp_path / "tour.svg").read_text(encoding="utf-8"))
    assert tree[0].text == "case-3: both operands are split along the sum: multiply, then add the partial sums"


def test_numbers_keep_their_columns_in_a_document(tmp_path):
    assert main(["tour", "case-2", "-o", str(tmp_path / "a.svg")]) == 0
    text = (tmp_path / "a.svg").read_text(encoding="utf-8")
    found = re.findall(r"(<text[^>]*>) 0  1</text>", text)
    assert found
    assert all('xml:space="preserve"' in tag for tag in found)


REFUSED = [
    (["al-gather"], "there is no tour 'al-gather' (did you mean 'all-gather'?)"),
    (["all-gather", "--mesh", "x=2"], "has its own numbers and mesh"),
    (["all-gather", "-o", "a.png"], "a.png: pictures are written as .svg or .html"),
    (["-o", "a.svg"], "a tour of what? name one"),
    (["all-gather", "--hardware", "tpu-v5"], "unknown hardware 'tpu-v5'"),
    (["case-1", "--hardware", "v5e:1x1"], "needs 4 devices"),
    ([OWN[0]], "a tour of an equation needs sizes and a mesh, as in"),
    ([OWN[0], "--sizes", "I=4,J=4", "--mesh", "x=4"], "no size is given for dimension K"),
    ([OWN[0], "--sizes", "I=4096,J=4,K=4", "--mesh", "x=4"], "has 16,384, more than 1,024: use smaller sizes"),
    ([OWN[0], "--sizes", "I=4,J=3,K=4", "--mesh", "x=4"], "dimension J has size 3"),
    (["A[I, J_x] · B[J_x -> C", "--sizes", "I=4", "--mesh", "x=4"], "close the bracket"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "reason"), REFUSED, ids=[reason for _, reason in REFUSED])
def test_a_mistake_is_told_with_its_way_out(arguments, reason, capsys):
    assert main(["tour", *arguments]) == 2
    told = capsys.readouterr().err
    assert reason in told
    assert "Traceback" not in told
