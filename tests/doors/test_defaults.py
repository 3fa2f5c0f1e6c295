"""What every door takes where nothing is said, and the names that it knows: the same at each of them."""

from __future__ import annotations

import inspect
import json
import re

import numpy as np
import pytest

import shardwise as sw
from shardwise.cli import main
from shardwise.planning.problem import DTYPE, problem
from shardwise.steps import EinsumGather, GatherEinsum

EQUATION = "A[I_x, J] · B[J, K] -> C[I, K]"
SIZES = {"I": 64, "J": 64, "K": 64}
PROBLEM = (EQUATION, "--sizes", "I=64,J=64,K=64", "--mesh", "x=4")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_plans_are_made_for_one_dtype_where_no_data_says_otherwise(capsys, folder):
    assert DTYPE == "bfloat16"
    assert inspect.signature(problem).parameters["dtype"].default == DTYPE
    assert sw.plan(EQUATION, sizes=SIZES, mesh="x=4").task.dtype == DTYPE
    assert main(["plan", *PROBLEM, "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert planned["dtype"] == DTYPE
    assert [each["seconds"] for each in planned["candidates"]] == [
        candidate.seconds for candidate in sw.plan(EQUATION, sizes=SIZES, mesh="x=4")
    ]
    assert main(["report", *PROBLEM, "-o", "report.html"]) == 0
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert set(re.findall(r"\bb?float\d+\b", page)) == {DTYPE}
    assert main(["tour", EQUATION, "--sizes", "I=8,J=8,K=8", "--mesh", "x=4"]) == 0
    assert "float32" not in capsys.readouterr().out
    for command in ("plan", "report", "rehearse"):
        assert main([command, "--help"]) == 0
        assert re.search(rf"dtype \(default:? {DTYPE}\)", " ".join(capsys.readouterr().out.split()))


def test_what_runs_has_the_dtype_of_its_data(capsys, folder):
    run = ["run", *PROBLEM, "--json"]
    assert main(run) == 0
    assert json.loads(capsys.readouterr().out)["dtype"] == "float32"
    np.save("a.npy", np.ones((64, 64), np.int16))
    assert main([*run, "--input", "A=a.npy"]) == 0
    assert json.loads(capsys.readouterr().out)["dtype"] == "int16"
    assert main([*run, "--dtype", "bfloat16"]) == 0
    assert json.loads(capsys.readouterr().out)["dtype"] == "bfloat16"


@pytest.mark.parametrize(("name", "canonical"), [("v5e", "tpu-v5e"), ("tpu-v5e", "tpu-v5e"), ("v5p", "tpu-v5p"),
                                                 ("tpu7x", "tpu-v7x"), ("h100", "h100"), ("cpu", "cpu")])  # fmt: skip
def test_a_chip_goes_by_its_names_at_every_door(capsys, folder, name, canonical):
    assert sw.hardware(name) is sw.hardware(canonical)
    assert canonical in sw.hardware.names()
    assert sw.plan(EQUATION, sizes=SIZES, mesh="x=4", hardware=name).task.hardware.name == canonical
    a = np.ones((8, 8), np.float32)
    sw.einsum(EQUATION, a, a, mesh="x=4", hardware=name)
    sw.reshard(a, "A[I_x, J] -> A[I, J_x]", "x=4", hardware=name)
    audit = sw.audit(lambda a: sw.einsum("A[I_x] -> A[I]", a, mesh="x=4"), sw.put(np.arange(8.0), "A[I_x]", "x=4"))
    assert audit.timeline(name).hardware == canonical
    audit.assert_fits(name)
    assert main(["plan", *PROBLEM, "--hardware", name, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["hardware"] == canonical
    assert main(["hardware", name, "--json"]) == 0
    assert [each["name"] for each in json.loads(capsys.readouterr().out)] == [canonical]
    assert main(["report", *PROBLEM, "--hardware", name, "-o", "report.html"]) == 0


def test_the_catalogue_lists_each_chip_once():
    assert len(set(sw.hardware.names())) == len(sw.hardware.names())
    assert not {"v5e", "tpu7x", "v4"} & set(sw.hardware.names())
    with pytest.raises(sw.ShardwiseError, match="unknown hardware 'v5x'"):
        sw.hardware("v5x")


@pytest.mark.parametrize("way", ["ring", "bidirectional", "folded"])
def test_asked_for_a_ring_simulated_devices_gather_and_multiply(way):
    """Both hide nothing there, and who asks for a ring is shown the one that guides draw first."""
    sizes = {"I": 2048, "J": 2048, "K": 2048}
    plan = sw.plan(EQUATION, sizes=sizes, mesh="x=4", hardware="cpu", overlap=way)
    assert [type(step) for step in plan.best.program.steps] == [GatherEinsum]
    assert any(isinstance(step, EinsumGather) for each in plan for step in each.program.steps)
    assert re.search(r"0\.\d\dx the time", str(plan))  # the other is told to be faster, and by how much
    for chip in ("v5e", "h100"):
        others = sw.plan(EQUATION, sizes=sizes, mesh="x=4", hardware=chip, overlap=way)
        assert [each.seconds for each in others] == sorted(each.seconds for each in others)


def test_run_says_what_is_padding_and_writes_none_of_it(capsys, folder):
    line = ["run", "A[I_x, J] · B[J, K] -> C[I_x, K]", "--sizes", "I=7,J=6,K=4", "--mesh", "x=4", "--pad"]
    assert main([*line, "--output", "c.npy", "--exact"]) == 0
    printed = capsys.readouterr().out
    assert "A[I_x, J], 7 x 6, on mesh x=4; padded to 8 x 6" in printed
    assert "C[I_x, K], 7 x 4, on mesh x=4; padded to 8 x 4" in printed
    assert "6:7 +1 padding" in printed
    assert np.load("c.npy").shape == (7, 4)
