"""A terminal of our own for a command: what it writes, the keys that are typed, its size, and the modes that it is left in."""

from __future__ import annotations

import fcntl
import os
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE = 20.0  # seconds


class Terminal:
    """A command in a pseudo-terminal. `text` is all that it has written."""

    def __init__(self, code: str, environment: dict[str, str], columns: int, rows: int) -> None:
        self.ours, self.theirs = os.openpty()
        self.resize(columns, rows)
        self.before = termios.tcgetattr(self.theirs)
        self.text = ""
        told = f"import fcntl, sys, termios\nfcntl.ioctl(0, termios.TIOCSCTTY, 0)\n{code}"
        self.process = subprocess.Popen(
            [sys.executable, "-c", told], stdin=self.theirs, stdout=self.theirs, stderr=self.theirs,
            start_new_session=True, env=environment,
        )  # fmt: skip

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, keys: str) -> None:
        os.write(self.ours, keys.encode())

    def sees(self, wanted: str) -> str:
        """Wait until something is written that was not there at the last look; returns what is new up to now."""
        new, end = "", time.monotonic() + PATIENCE
        while wanted not in new:
            assert time.monotonic() < end, f"{wanted!r} is not in {new!r}"
            new += self._written(0.1)
        return new

    def ends(self) -> int:
        """Wait for the end; the exit code."""
        end = time.monotonic() + PATIENCE
        while self.process.poll() is None:
            assert time.monotonic() < end, "it does not end"
            self._written(0.05)
        while self._written(0.0):
            pass
        return self.process.returncode

    def _written(self, seconds: float) -> str:
        if not select.select([self.ours], [], [], seconds)[0]:
            return ""
        try:
            new = os.read(self.ours, 65536).decode("utf-8", "replace")
        except OSError:  # Linux says so when nobody is at the other end
            new = ""
        self.text += new
        return new

    @property
    def restored(self) -> bool:
        """Whether the modes are those of before, the cursor is shown, and the screen is the shell's."""
        modes = termios.tcgetattr(self.theirs) == self.before
        return modes and self.text.rfind("\x1b[?1049l") > self.text.rfind("\x1b[?1049h") and "\x1b[?25h" in self.text


@contextmanager
def terminal(code: str, columns: int = 80, rows: int = 24, **environment: str) -> Iterator[Terminal]:
    """A terminal that is closed, and its command ended, whatever happens."""
    inherited = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
    opened = Terminal(code, {**inherited, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8", **environment}, columns, rows)
    try:
        yield opened
    finally:
        if opened.process.poll() is None:
            opened.process.kill()
        opened.process.wait()
        os.close(opened.ours)
        os.close(opened.theirs)
