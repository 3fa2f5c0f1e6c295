"""The command line with malformed and extreme options: a code, one message, no traceback, nothing that a terminal obeys."""

from __future__ import annotations

import io
import json
import os
import random
import sys

import numpy as np
import pytest
from commands import in_a_folder, module_of, said  # noqa: F401
from malformed import PIECES, UNSEEN, VALID, malformed

from shardwise.cli import main

# Of each command its first argument, and options with what they take: a kind of text, any text, or nothing.
COMMANDS = {
    "plan": ("equation", {"--sizes": "sizes", "--mesh": "mesh", "--hardware": "hardware", "--dtype": "", "--memory-limit": ""}),
    "show": ("layout", {"--sizes": "sizes", "--mesh": "mesh", "-o": ""}),
    "tour": ("equation", {"--sizes": "sizes", "--mesh": "mesh", "--hardware": "hardware", "-o": ""}),
    "hardware": ("hardware", {}),
    "report": ("equation", {"--sizes": "sizes", "--mesh": "mesh", "--hardware": "hardware", "-o": ""}),
    "run": ("equation", {"--sizes": "sizes", "--mesh": "mesh", "--dtype": "", "--input": "", "--seed": "", "--overlap": ""}),
    "compare": ("equation", {"--sizes": "sizes", "--mesh": "mesh", "--ways": "", "--args": "types", "--seconds": "", "-o": ""}),
    "trace": ("equation", {"--sizes": "sizes", "--mesh": "mesh", "--args": "types", "--hardware": "hardware", "-o": ""}),
    "audit": ("", {"--args": "types", "--mesh": "mesh", "--trace": ""}),
    "rehearse": ("", {"--args": "types", "--mesh": "mesh", "--on": "topology", "--trace": ""}),
    "lock": ("", {"--args": "types", "--mesh": "mesh", "--on": "topology", "--name": "", "-o": ""}),
    "bench-overlap": ("", {"--on": "topology", "--kinds": "", "--sizes": "", "--json": ""}),
}


def calls(command: str, count: int, seed: int) -> list[list[str]]:
    """Calls of a command, each with at least one option that is malformed."""
    draw = random.Random(f"{command} {seed}")

    def given(kind: str) -> str:
        if not kind:
            piece = draw.choice(PIECES)
            return draw.choice([piece, f"a{piece}", f"{piece}.npy", f"x{piece}.html", f"m.py:{piece}", f"{piece}:f"])
        return next(malformed(kind, 1, draw.randrange(10**9))) if draw.random() < 0.6 else draw.choice(VALID[kind])

    first, options = COMMANDS[command]
    return [
        [command, given(first), *(f"{name}={given(kind)}" for name, kind in options.items() if draw.random() < 0.8)]
        for _ in range(count)
    ]


@pytest.mark.parametrize("command", COMMANDS)
def test_whatever_the_options_a_message_and_a_code_come_out(command: str, capsys):
    codes = set()
    for call in calls(command, 25, seed=1):
        codes.add(code := main(call))
        out, err = capsys.readouterr()
        assert code == 0 or err.strip(), call
        for line in (out + err).split("\n"):
            assert line.isprintable(), (call, line)
            assert not line.lstrip().startswith(("::", "Traceback")), (call, line)
    assert codes <= {0, 2}
    assert 2 in codes


@pytest.mark.parametrize("piece", UNSEEN)
def test_names_of_files_reach_the_terminal_on_one_line(piece: str, capsys):
    call = ["run", "A[I] -> A[I]", "--mesh", "x=1", "--input", f"A=a{piece}.npy"]
    assert main(call) == 2
    told = said(capsys)
    assert told.count("\n") == 1
    assert told[:-1].isprintable()
    assert "there is no" in told


def test_an_equation_that_a_ci_would_obey_does_not_begin_a_line(capsys):
    assert main(["plan", "::warning::x", "--mesh", "x=1"]) == 2
    told = said(capsys).split("\n")
    assert told[0].startswith("shardwise: ::warning::x: expected an array")
    assert told[1].index("^") == len("shardwise: ")


def test_json_has_what_does_not_show_by_its_number(capsys, monkeypatch):
    from shardwise.errors import as_json

    facts = {"a\u202e\x9b\n": ["\ud800", "A²", "軸"]}
    text = as_json(facts)
    assert all(line.isprintable() for line in text.split("\n"))
    assert json.loads(text) == facts
    assert "A²" in text


def test_where_the_terminal_lacks_a_character_its_number_stands(monkeypatch):
    written = io.TextIOWrapper(io.BytesIO(), "ascii")
    monkeypatch.setattr(sys, "stdout", written)
    assert main(["plan", "A[I_x] · B[I_x] -> C[]", "--sizes", "I=8", "--mesh", "x=2"]) == 0
    written.flush()
    assert rb"A[I_x] \xb7 B[I_x] -> C[]" in written.buffer.getvalue()


@pytest.mark.parametrize("mesh", ["x=1000000000", "x=100000"])
def test_more_devices_than_a_picture_or_a_host_has(mesh: str, capsys):
    assert main(["show", "A[I_x]", "--mesh", mesh]) == 2
    assert "a placement has every device, and mesh x=" in said(capsys)
    assert main(["run", "A[I_x] -> A[I]", "--sizes", "I=1000000000", "--mesh", mesh, "--platform", "cpu"]) == 2
    assert "a host is at most 2,048 devices: use a smaller mesh" in said(capsys)
    assert main(["plan", "A[I_x] -> A[I]", "--sizes", "I=1000000000", "--mesh", mesh]) == 0


def test_a_link_to_itself_is_said_to_be_one(capsys):
    os.symlink("loop.npy", "loop.npy")
    os.symlink("loop.py", "loop.py")
    assert main(["run", "A[I] -> A[I]", "--mesh", "x=1", "--input", "A=loop.npy"]) == 2
    assert said(capsys) == "shardwise: loop.npy: this is a link to nothing, or to itself; check where it points\n"
    assert main(["audit", "loop.py:f", "--mesh", "x=1"]) == 2
    assert said(capsys).endswith("shardwise: there is no file loop.py\n")


def test_a_name_that_is_too_long_is_no_traceback(capsys, tmp_path):
    name = module_of(tmp_path, "def f(a):\n    return a\n")
    assert main(["lock", f"{name}:f", "-o", "a" * 5000]) == 2
    assert "File name too long" in said(capsys)


def test_a_plug_in_that_cannot_start_is_one_line(capsys):
    import logging

    from shardwise.commands.session import _logged_in_lines

    with _logged_in_lines():
        try:
            raise RuntimeError("Unable to load cuDNN.\nIs it installed?")
        except RuntimeError:
            logging.getLogger("jax._src.xla_bridge").exception("Jax plugin configuration error: %s", "xla_cuda13")
    assert said(capsys) == "JAX: Jax plugin configuration error: xla_cuda13: Unable to load cuDNN. Is it installed?\n"


def test_a_compressed_input_is_read_for_every_shard(capsys):
    np.savez_compressed("a.npz", W=np.arange(64.0, dtype=np.float32).reshape(16, 4))
    assert main(["run", "A[I_x, J] -> A[I, J]", "--mesh", "x=8", "--input", "A=a.npz:W"]) == 0
    assert "check against the unsharded result: ok" in capsys.readouterr().out
