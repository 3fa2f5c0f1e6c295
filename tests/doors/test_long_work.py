"""Long work of commands, and its end: what is told of it, by a clock of the test, and what is left where it is cut short."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from shardwise.commands import session


class AtOnce(threading.Timer):
    """A timer that does not wait."""

    def start(self) -> None:
        self.function()

    def join(self, timeout: float | None = None) -> None:
        pass


def a_clock(monkeypatch, *seconds: float) -> None:
    """What progress reads of a clock, one after the other."""
    monkeypatch.setattr(session, "time", SimpleNamespace(perf_counter=iter(seconds).__next__))


def test_what_takes_over_a_second_is_told_on_stderr(capsys, monkeypatch):
    waits = []

    class Noted(AtOnce):
        def __init__(self, interval, function):
            waits.append(interval)
            super().__init__(interval, function)

    monkeypatch.setattr(session.threading, "Timer", Noted)
    a_clock(monkeypatch, 100.0, 103.42)
    with session.progress("counting sheep"):
        pass
    captured = capsys.readouterr()
    assert waits == [1.0]
    assert captured.err == "counting sheep ...\ncounting sheep: 3.4 s\n"
    assert captured.out == ""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("rich", [True, False], ids=["rich", "no rich"])
def test_in_a_terminal_a_bar_runs_meanwhile(rich, monkeypatch, capsys):
    monkeypatch.setattr(session.threading, "Timer", AtOnce)
    a_clock(monkeypatch, 100.0, 103.42)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", shown := Terminal())
    if not rich:
        monkeypatch.setitem(sys.modules, "rich.progress", None)
    with session.progress("counting [sheep]"):
        print("data")
    assert capsys.readouterr().out == "data\n"
    assert ("━" in shown.getvalue()) == rich
    assert ("counting [sheep] ..." in shown.getvalue()) == (not rich)
    assert shown.getvalue().endswith("counting [sheep]: 3.4 s\n")


def test_what_takes_less_is_not_told(capsys):
    with session.progress("counting sheep"):
        pass
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_ctrl_c_ends_a_process_with_130(tmp_path, monkeypatch):
    """Sent once the plan is printed, while the check runs; no half-written output stays."""
    monkeypatch.chdir(tmp_path)
    equation = "A[I_x, J] · B[J, K] -> C[I, K]"
    command = [sys.executable, "-u", "-m", "shardwise.cli", "run", equation, "--sizes", "I=8192,J=2048,K=2048", "--mesh", "x=2"]
    with subprocess.Popen(
        [*command, "--output", "c.npy"], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "JAX_NUM_CPU_DEVICES": "2"},
    ) as child:  # fmt: skip
        try:
            assert child.stdout is not None
            while not child.stdout.readline().startswith("The best"):
                assert child.poll() is None
            child.send_signal(signal.SIGINT)
            _, told = child.communicate(timeout=60)
        finally:
            child.kill()
    assert child.returncode == 130, told
    assert told.splitlines()[-1] == "shardwise: interrupted"
    assert "Traceback" not in told
    assert list(Path().iterdir()) == []


def test_a_reader_that_leaves_early_is_no_error():
    command = f"{sys.executable} -m shardwise.cli hardware | head -1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)

    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 1
    assert done.stderr == ""
