"""Keys from a terminal, one at a time, on a screen of its own; whatever happens, the terminal is left as it was found."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

ENTER_SCREEN, LEAVE_SCREEN = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"  # its own screen, and no cursor
SEQUENCES = {
    b"\x1b[A": "up", b"\x1b[B": "down", b"\x1b[C": "right", b"\x1b[D": "left", b"\x1b[H": "home", b"\x1b[F": "end",
    b"\x1bOA": "up", b"\x1bOB": "down", b"\x1bOC": "right", b"\x1bOD": "left", b"\x1bOH": "home", b"\x1bOF": "end",
    b"\x1b[5~": "left", b"\x1b[6~": "right", b"\x1b[1~": "home", b"\x1b[4~": "end",
}  # fmt: skip
NAMED = {b" ": "space", b"\r": "enter", b"\n": "enter", b"\x7f": "back", b"\x08": "back", b"\x03": "interrupt", b"\x04": "q"}


def can_step() -> bool:
    """Whether keys can be read one at a time: both ends are a terminal that can do it, on a system that knows how."""
    try:
        import termios  # noqa: F401
    except ImportError:  # Windows
        return False
    return os.environ.get("TERM") != "dumb" and is_terminal()


def is_terminal() -> bool:
    """Whether somebody looks and types."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def decoded(typed: bytes) -> list[str]:
    """The keys in what a terminal sent; sequences that have no name here are left out.

    >>> decoded(b" \\x1b[Cb12\\x1b[99~q")
    ['space', 'right', 'b', '1', '2', 'q']
    """
    keys, at = [], 0
    while at < len(typed):
        if typed[at : at + 1] == b"\x1b":
            end = _sequence_end(typed, at)
            keys.append(SEQUENCES.get(typed[at:end], ""))
            at = end
            continue
        one = typed[at : at + 1]
        keys.append(NAMED.get(one) or (one.decode("ascii", "ignore") if one.isalnum() or one == b"?" else ""))
        at += 1
    return [key for key in keys if key]


def _sequence_end(typed: bytes, at: int) -> int:
    """Where an escape sequence ends: `ESC [ ... letter or ~`, `ESC O letter`, or a lone ESC."""
    kind = typed[at + 1 : at + 2]
    if kind == b"O":
        return min(at + 3, len(typed))
    if kind != b"[":
        return at + 1
    end = at + 2
    while end < len(typed) and not 0x40 <= typed[end] <= 0x7E:
        end += 1
    return min(end + 1, len(typed))


class Keyboard:
    """Reads keys; `redrawn` says that somebody else wrote on the screen, as a shell does after Ctrl-Z."""

    def __init__(self, stdin: int) -> None:
        self.stdin = stdin
        self.redrawn = False

    def read(self, seconds: float) -> list[str]:
        """The keys typed within so many seconds, as soon as there are some; none if nobody types.

        Raises:
            KeyboardInterrupt: Ctrl-C.
            EOFError: the terminal is gone.
        """
        if not select.select([self.stdin], [], [], seconds)[0]:
            return []
        typed = os.read(self.stdin, 256)
        if not typed:
            raise EOFError
        while typed[-1:] == b"\x1b" and select.select([self.stdin], [], [], 0.05)[0]:  # the rest of a sequence is coming
            typed += os.read(self.stdin, 256)
        keys = decoded(typed)
        if "interrupt" in keys:
            raise KeyboardInterrupt
        return keys


@contextmanager
def keyboard() -> Iterator[Keyboard]:
    """A screen of one's own and keys without Enter; on the way out, by whatever way, both are as they were."""
    import termios
    import tty

    stdin = sys.stdin.fileno()
    before = termios.tcgetattr(stdin)
    keys = Keyboard(stdin)

    def enter() -> None:
        tty.setcbreak(stdin)
        _tell(ENTER_SCREEN)

    def leave() -> None:
        _tell(LEAVE_SCREEN)
        termios.tcsetattr(stdin, termios.TCSANOW, before)

    def stop(*_: Any) -> None:
        leave()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)  # here we sleep until somebody says fg
        signal.signal(signal.SIGTSTP, stop)
        enter()
        keys.redrawn = True

    def end(number: int, _: Any) -> None:
        raise SystemExit(128 + number)

    handlers = {signal.SIGTSTP: stop, signal.SIGTERM: end, signal.SIGHUP: end}
    old = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        enter()
        yield keys
    finally:
        leave()
        for number, handler in old.items():
            signal.signal(number, handler)


def _tell(codes: str) -> None:
    try:
        sys.stdout.write(codes)
        sys.stdout.flush()
    except OSError:  # the terminal is gone: there is nothing to restore
        pass
