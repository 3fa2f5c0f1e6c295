"""`shardwise trace`: the timelines printed, as JSON, as files, and what it says about mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import pytest
from commands import in_a_folder as in_a_folder
from commands import module_of, said

from shardwise.cli import main
from shardwise.measure import profiling

EQUATION = "A[I, J_x] · B[J_x, K] -> C[I_x, K]"
PROBLEM = (EQUATION, "--sizes", "I=16,J=8,K=4", "--mesh", "x=4")
DEVICES = jax.devices()  # JAX starts here with the eight of the tests
MODULE = """\
def step(a, b):
    return a @ b

def torn(a, b):
    raise ValueError("nobody is home")
"""
ARGS = ("--args", "float32[16@x,8] float32[8,4]", "--mesh", "x=4")


def test_a_plan_is_traced_beside_its_estimate(capsys):
    assert main(["trace", *PROBLEM]) == 0
    printed = capsys.readouterr().out
    assert f"{EQUATION} on cpu: as estimated, nothing compiled" in printed
    assert f"{EQUATION} on cpu:4: measured" in printed
    assert "  reduce-scatter over x: " in printed


def test_a_function_as_json_and_for_perfetto(capsys, tmp_path):
    module = module_of(tmp_path, MODULE)
    assert main(["trace", f"{module}:step", *ARGS, "--json", "-o", "step.json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [timeline["origin"] for timeline in found] == ["modelled from the compiled schedule", "measured"]
    assert found[1]["collectives"] == []
    events = json.loads(Path("step.json").read_text(encoding="utf-8"))["traceEvents"]
    assert {event["pid"] for event in events} == {1, 2}


def test_a_picture_and_a_trace_that_is_kept(capsys):
    assert main(["trace", *PROBLEM, "--keep", "kept", "-o", "both.svg"]) == 0
    picture = Path("both.svg").read_text(encoding="utf-8")
    assert 'data-lane="estimated: compute"' in picture
    assert 'data-lane="measured: 3 transfers"' in picture
    capsys.readouterr()
    assert main(["trace", "kept", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert [each["kind"] for each in found["collectives"]] == ["reduce-scatter"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((EQUATION, "--sizes", "I=16,J=8,K=4"), "an equation has --sizes, --dtype, --input and --mesh"),
        ((*PROBLEM, "-o", "step.png"), "timelines are written as .json, .svg or .html"),
        ((*PROBLEM, "-o", "nowhere/step.json"), "there is no folder nowhere"),
        ((*PROBLEM, "--keep", "/proc/kept"), "no trace can be written to /proc/kept"),
        (("MODULE:step", *ARGS, "--sizes", "I=4"), "--sizes, --input and --dtype belong to an equation"),
        (("MODULE:torn", *ARGS), "torn cannot be traced"),
        (("MODULE:step",), "takes (a, b), and --args gives 0"),
        (("empty",), "empty holds no trace"),
        (("empty", "--mesh", "x=4"), "--mesh belongs to what is run, and empty is a trace that is there"),
        (("nowhere",), "'nowhere' names no function"),
    ],
)
def test_mistakes_are_told_in_one_error(words, message, capsys, tmp_path):
    Path("empty").mkdir()
    module = module_of(tmp_path, MODULE)
    assert main(["trace", *(word.replace("MODULE", module) for word in words)]) == 2
    assert message in said(capsys)


def test_an_interrupt_ends_with_130_and_the_profiler(capsys, monkeypatch):
    calls = []

    def interrupted(name, function):
        calls.append(name)
        if len(calls) > 1:
            raise KeyboardInterrupt
        return function()

    with monkeypatch.context() as patched:
        patched.setattr(profiling, "done", interrupted)
        assert main(["trace", *PROBLEM, "-o", "step.json"]) == 130
    assert said(capsys).endswith("shardwise: interrupted\n")
    assert list(Path().iterdir()) == []
    assert main(["trace", *PROBLEM]) == 0
