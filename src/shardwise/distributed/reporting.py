"""What a process of a run reports of itself: to the launcher through a pipe, where there is one, and to itself for messages."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from dataclasses import asdict, dataclass
from typing import Any

PIPE = "SHARDWISE_REPORT_FD"  # in the environment of a launched process: the descriptor to write to

_doing = "starting"
_pipe: int | None = None
_writing = threading.Lock()


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a process of a run failed: `kind` is "raised", "silent", "gone" or "ended"; `at` is of a clock without jumps."""

    process: int
    kind: str
    said: str
    doing: str = ""
    trace: str = ""
    at: float = 0.0

    def __str__(self) -> str:
        doing = f"; it was {self.doing}" if self.doing else ""
        match self.kind:
            case "silent":
                return f"process {self.process} has not answered for {self.said}{doing}"
            case "gone":
                return f"process {self.process}, which coordinates the run, has not answered for {self.said}"
            case _:
                return f"process {self.process} failed: {self.said}{doing}"


def as_text(failure: Failure) -> str:
    return json.dumps(asdict(failure))


def read_failure(text: str) -> Failure:
    return Failure(**json.loads(text))


def now_doing(what: str) -> None:
    """Remember what this process is doing, for the message that somebody has to write when it is never done."""
    global _doing
    _doing = what


def doing() -> str:
    return _doing


def find_launcher() -> None:
    """Take up the pipe to the launcher, if there is one; what this process starts itself does not find it."""
    global _pipe
    descriptor = os.environ.pop(PIPE, None)
    _pipe = None if descriptor is None else int(descriptor)


def launched() -> bool:
    """Whether a launcher listens, which tells the user."""
    return _pipe is not None


def report(event: str, **facts: Any) -> None:
    """Tell the launcher, if there is one that still listens."""
    if _pipe is None:
        return
    line = json.dumps({"event": event, "at": time.monotonic(), **facts}) + "\n"
    with contextlib.suppress(OSError), _writing:
        os.write(_pipe, line.encode())
