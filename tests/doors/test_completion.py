"""`shardwise completion`, and errors on one line where JSON is asked for."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from commands import in_a_folder as in_a_folder

from shardwise.cli import main
from shardwise.commands.completion import SHELLS

PROBLEM = ["A[I_x, J] · B[J, K] -> C[I, K]", "--sizes", "I=64,J=64,K=64", "--mesh"]


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_has_what_it_loads(shell, capsys):
    assert main(["completion", shell]) == 0
    loaded = capsys.readouterr().out
    assert "shardwise" in loaded
    assert "_ARGCOMPLETE" in loaded


@pytest.mark.parametrize(
    ("line", "wanted"),
    [("shardwise re", {"rehearse", "report"}), ("shardwise plan --mem", {"--memory-limit"}),
     ("shardwise hardware tpu-v5", {"tpu-v5e", "tpu-v5p"}), ("shardwise audit a:b --platform t", {"tpu"})],
)  # fmt: skip
def test_commands_options_and_hardware_are_completed(line, wanted, tmp_path):
    answer = tmp_path / "answer"
    asked = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_SHELL": "fish", "COMP_LINE": line, "COMP_POINT": str(len(line))}
    asked |= {"_ARGCOMPLETE_STDOUT_FILENAME": str(answer), "_ARGCOMPLETE_IFS": "\n"}
    subprocess.run([sys.executable, "-m", "shardwise"], env=os.environ | asked, check=True, timeout=60)
    assert {each.split("\t")[0].strip() for each in answer.read_text().splitlines()} == wanted


def test_without_the_library_the_extra_is_named(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "argcomplete", None)
    assert main(["completion", "zsh"]) == 2
    said = capsys.readouterr().err
    assert said == "shardwise: completion is made by the library argcomplete: pip install 'shardwise[shell]'\n"


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (["plan", *PROBLEM, "x=3", "--json"], "LayoutError", "dimension I has size 64, which mesh axis x=3 does not divide"),
        (["plan", "--json"], "UsageError", "the following arguments are required: equation, --mesh"),
        (["hardware", "tpu-v5f", "--json"], "HardwareError", "tpu-v5f"),
        (["plan", "A[I_x, J", "--mesh", "x=2", "--json"], "NotationError", "A[I_x, J"),
    ],
)
def test_errors_are_one_line_where_json_is_asked_for(arguments, kind, message, capsys):
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    told = json.loads(printed.err)
    assert told["error"] == kind
    assert message in told["message"]


def test_without_json_errors_keep_their_lines(capsys):
    assert main(["plan", *PROBLEM, "x=3"]) == 2
    assert capsys.readouterr().err.startswith("shardwise: dimension I has size 64")
    assert main(["plan"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("usage: shardwise plan [-h]")
    assert said.endswith("shardwise plan: error: the following arguments are required: equation, --mesh\n")
