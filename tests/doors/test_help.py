"""First steps: what `shardwise` alone says, and the examples of every command's help, each of them run."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import jax
import pytest
from commands import in_a_folder as in_a_folder

from shardwise.chips.interconnect import Interconnect
from shardwise.cli import _parser, main

# These compile for devices that are not attached, or need a lock file: here they are only read.
NEED_A_COMPILER = re.compile(r"--on |--confirm|^lock ")
EIGHT = len(jax.devices())  # started here: an example would start as many as it needs, and other tests need eight
TRAIN = "def step(a, b):\n    return a @ b\n"


def helped(capsys, *arguments: str) -> str:
    assert main([*arguments, "--help"]) == 0
    return capsys.readouterr().out


def commands() -> list[str]:
    """The names that the help lists, each on a line of its own."""
    listed = _parser().format_help().partition("commands:")[2].partition("\n\n")[0]
    return re.findall(r"^    (\S+)", listed, re.MULTILINE)


def examples(text: str) -> list[str]:
    """Lines that begin with `shardwise`, without what is said behind them."""
    return re.findall(r"^ +shardwise ?(.*?)(?:  +\S.*)?$", text, re.MULTILINE)


def test_there_are_commands():
    assert {"plan", "run", "show", "tour", "audit", "hardware"} <= set(commands())
    assert EIGHT == 8


def test_shardwise_alone_says_what_to_do_next(capsys):
    assert main([]) == 0
    said = capsys.readouterr().out

    assert [line.split()[0] for line in said.split("\n")[2:6]] == ["look", "learn", "plan", "run"]
    listed = re.findall(r"^    (\S+)", said.partition("commands:")[2], re.MULTILINE)
    assert listed == commands()
    for line in said.split("\n")[2:6]:
        assert main(shlex.split(line.partition("shardwise ")[2])) == 0, line


def unmeasured(monkeypatch, tmp_path) -> None:
    """Programs take what the catalogue says, and a log is there: a machine that runs tests is too busy to be measured."""
    from shardwise.chips import hardware
    from shardwise.measure import calibrating
    from shardwise.measure.rounds import Rounds
    from shardwise.planning.cost import estimate
    from shardwise.planning.prices import Costs

    def modelled(trials, *_) -> Rounds:
        prices = (Costs(Interconnect(hardware("cpu"), each.program.mesh), each.dtype) for each in trials)
        times = (estimate(each.program, costs, each.sizes).seconds for each, costs in zip(trials, prices, strict=True))
        return Rounds(tuple(times), (), 1.0, 0.01)

    monkeypatch.setattr(calibrating, "measured", modelled)
    monkeypatch.setenv("SHARDWISE_CACHE", str(tmp_path / "cache"))
    rows = "".join(f"{size} 1 float none -1 {20 + size / 4e5} 0 0 0\n" for size in (2**20, 2**24, 2**28))
    head = "# nThread 1 nGpus 8\n# size count type redop root time algbw busbw #wrong\n"
    Path("all_gather_perf.txt").write_text(head + rows, encoding="utf-8")


def _files(capsys) -> None:
    """What the examples read: functions, a plan as it was kept, and two lock files."""
    Path("train.py").write_text(TRAIN, encoding="utf-8")
    assert main(["plan", "A[I_x] -> A[I]", "--sizes", "I=64", "--mesh", "x=4", "--json"]) == 0
    Path("plan.json").write_text(capsys.readouterr().out, encoding="utf-8")
    for name in ("old.lock", "comms.lock"):
        Path(name).write_text("version = 1\n", encoding="utf-8")


@pytest.mark.parametrize("command", commands())
def test_every_example_of_a_help_works(command, capsys, monkeypatch, tmp_path):
    if command == "calibrate":
        unmeasured(monkeypatch, tmp_path)
    text = helped(capsys, command)
    found = examples(text.partition("example")[2])

    assert found, f"{command} --help has no example"
    _files(capsys)
    for example in found:
        words = shlex.split(example)
        assert words[0] == command
        assert _parser().parse_args(words).command is not None
        if "--platform" in words:  # it starts as many devices as it needs, in a process of its own
            done = subprocess.run([sys.executable, "-m", "shardwise.cli", *words], capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
        elif not NEED_A_COMPILER.search(example):
            assert main(words) == 0, example


def test_the_example_of_the_main_help_works(capsys):
    (example,) = examples(helped(capsys).partition("Start here")[2])

    assert main(shlex.split(example)) == 0
