"""Local processes started together: their output passed on, one Ctrl-C for all, and the first failure told once.

This process knows no JAX. Each started one reports through a pipe (`reporting.report`), and ends when this one does.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO

from shardwise.distributed import jobs, reporting
from shardwise.distributed.differences import named
from shardwise.distributed.reporting import Failure, read_failure
from shardwise.distributed.rollcall import LOOPBACK, check_free
from shardwise.distributed.watching import FAILED

LIFELINE = "SHARDWISE_LIFELINE_FD"  # a pipe that closes when the launcher ends, however it ends
POLL_SECONDS = 0.02
GRACE_SECONDS = 1.0  # for the others, once one has failed, to fail by themselves
STOP_SECONDS = 1.0  # between asking a process to end and ending it
KEPT_LINES = 200  # of what a process said that did not speak
INTERRUPTED = 130
RAISED = 1  # as Python ends on an error


@dataclass(frozen=True, slots=True)
class Launch:
    """What to start.

    Attributes:
        command: the command line of each process.
        environment: what each finds beside this process's own environment.
        all_speak: pass on what every process prints, a prefix before each line; else what process 0 prints, as it is.
        is_noise: whether a line is of a library that starts, and is left out.
    """

    command: Sequence[str]
    processes: int
    environment: Mapping[str, str] = field(default_factory=dict)
    port: int | None = None
    all_speak: bool = False
    is_noise: Callable[[bytes], bool] = lambda line: False


@dataclass(slots=True, eq=False)
class _Member:
    """A started process: what it reported, the last lines of its stderr, when it ended, and what was done to end it."""

    number: int
    process: subprocess.Popen[bytes]
    kept: deque[bytes] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))
    failure: Failure | None = None
    consequence: bool = False
    blames: Failure | None = None
    doing: str = "starting"
    ended_at: float | None = None
    signalled: bool = False
    stood: bool = False  # stopped by a signal, when it was ended
    threads: list[threading.Thread] = field(default_factory=list)


def launch(what: Launch) -> int:
    """Start the processes and wait for all; the exit status is 0, or that of the first that failed.

    Raises:
        DistributedError: the port is taken.
    """
    port = free_port() if what.port is None else what.port
    check_free(port)
    reading, writing = os.pipe()
    members: list[_Member] = []
    stopped_by: list[int] = []
    with _interrupts(stopped_by):
        try:
            for number in range(what.processes):
                members.append(_started(what, number, port, reading))
            _wait(members, stopped_by)
        finally:
            try:
                _end(members)
            finally:  # not before: whom the pipe's end finds alive ends at once, as if something else had ended it
                os.close(writing)
                os.close(reading)
    if stopped_by:
        print(f"shardwise launch: stopped {named(range(what.processes))}", file=sys.stderr)
        return 128 + stopped_by[0]
    return _verdict(members, what)


def free_port() -> int:
    """A port of this machine that nobody listens on now."""
    with socket.socket() as listening:
        listening.bind(("", 0))
        return listening.getsockname()[1]


def _started(what: Launch, number: int, port: int, lifeline: int) -> _Member:
    heard, told = os.pipe()
    environment = {
        **os.environ, **what.environment, jobs.COORDINATOR: f"{LOOPBACK}:{port}",
        "JAX_COORDINATOR_BIND_ADDRESS": f"{LOOPBACK}:{port}", jobs.PROCESSES: str(what.processes),
        jobs.PROCESS: str(number), reporting.PIPE: str(told), LIFELINE: str(lifeline), "PYTHONUNBUFFERED": "1",
    }  # fmt: skip
    try:
        process = subprocess.Popen(
            what.command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            pass_fds=[told, lifeline], start_new_session=True,
        )  # fmt: skip
    finally:
        os.close(told)
    member = _Member(number, process)
    assert process.stdout is not None
    assert process.stderr is not None
    for target, *given in (
        (_pass_on, process.stdout, sys.stdout, member, what, False),
        (_pass_on, process.stderr, sys.stderr, member, what, True),
        (_hear, os.fdopen(heard, "rb"), member),
    ):
        thread = threading.Thread(target=target, args=given, daemon=True)
        thread.start()
        member.threads.append(thread)
    return member


def _pass_on(lines: IO[bytes], to: IO[str], member: _Member, what: Launch, keep: bool) -> None:
    """Pass on what a process prints, line by line, or keep the last of it."""
    prefix = f"[{member.number}] ".encode() if what.all_speak else b""
    speaks = what.all_speak or member.number == 0
    with lines:
        for line in lines:
            if what.is_noise(line):
                continue
            if speaks:
                with contextlib.suppress(OSError, ValueError):  # nobody reads any more
                    _write(to, prefix + line)
            if keep:
                member.kept.append(line)


_printing = threading.Lock()


def _write(to: IO[str], line: bytes) -> None:
    with _printing:
        to.write(line.decode("utf-8", "backslashreplace"))
        to.flush()


def _hear(lines: IO[bytes], member: _Member) -> None:
    """Remember what a process reports."""
    with lines:
        for line in lines:
            said = json.loads(line)
            match said["event"]:
                case "failed":
                    member.failure, member.consequence = read_failure(said["failure"]), said["consequence"]
                case "stopped":
                    member.blames = read_failure(said["failure"])
                case "doing":
                    member.doing = said["what"]


# Waiting and ending.


@contextlib.contextmanager
def _interrupts(stopped_by: list[int]) -> Iterator[None]:
    """While processes run, Ctrl-C and a request to end are noted, for the loop that waits."""

    def note(number: int, frame: object) -> None:
        stopped_by.append(number)

    noted = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.signal(number, note) for number in noted}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait(members: list[_Member], stopped_by: list[int]) -> None:
    """Until all have ended well, or one has failed and the others have had their grace."""
    deadline: float | None = None
    while not stopped_by:
        now = time.monotonic()
        for member in members:
            if member.ended_at is None and member.process.poll() is not None:
                member.ended_at = now
        if all(member.ended_at is not None for member in members):
            return
        failed = any(member.process.returncode for member in members)
        if failed and deadline is None:
            deadline = now + GRACE_SECONDS
        if deadline is not None and now > deadline:
            return
        time.sleep(POLL_SECONDS)


def _end(members: list[_Member]) -> None:
    """End what still runs, with all that it has started: ask first, and then not."""
    for number, seconds in ((signal.SIGTERM, STOP_SECONDS), (signal.SIGKILL, 10.0)):
        running = [member for member in members if member.process.poll() is None]
        for member in running:
            member.stood = member.stood or _is_stopped(member.process.pid)
            member.signalled = True
            with contextlib.suppress(ProcessLookupError):
                os.killpg(member.process.pid, number)
                os.killpg(member.process.pid, signal.SIGCONT)  # one that is stopped hears nothing else
        until = time.monotonic() + seconds
        while any(member.process.poll() is None for member in running) and time.monotonic() < until:
            time.sleep(POLL_SECONDS)
    for member in members:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(member.process.pid, signal.SIGKILL)  # what it has left behind
        for thread in member.threads:
            thread.join(1.0)


def _is_stopped(pid: int) -> bool:
    """Whether a process stands still by a signal (SIGSTOP, Ctrl-Z); False where the system does not tell."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()[0] == b"T"
    except OSError:
        return False


# What is said at the end.


def _verdict(members: list[_Member], what: Launch) -> int:
    if not any(member.process.returncode for member in members):
        return 0
    first = _first_failed(members)
    failure = _blamed(first, members)
    member = members[failure.process] if failure else first
    status = _status(member)
    _show(member, failure, status, members, what)
    return status


def _first_failed(members: list[_Member]) -> _Member:
    """The process that failed first by itself: not because another had, and not by this launcher's hand."""

    def order(member: _Member) -> tuple[int, float]:
        code = member.process.returncode
        if member.failure is not None:
            return (1 if member.consequence else 0), member.failure.at
        by_itself = not member.signalled and code not in (0, FAILED, -signal.SIGABRT) and member.blames is None
        if by_itself:
            return 0, member.ended_at or 0.0
        return (2 if code == -signal.SIGABRT and not member.signalled else 3 if code else 4), member.ended_at or 0.0

    return min(members, key=order)


def _blamed(first: _Member, members: list[_Member]) -> Failure | None:
    """The failure that the others name, where none failed by itself: one that is silent."""
    if first.failure is not None and not first.consequence:
        return first.failure
    if first.process.returncode not in (0, FAILED, -signal.SIGABRT) and not first.signalled and first.failure is None:
        return None
    named_ones = [member.blames for member in members if member.blames is not None]
    return min(named_ones, key=lambda failure: failure.at) if named_ones else first.failure


def _status(member: _Member) -> int:
    code = member.process.returncode
    if member.signalled or not code:  # it was silent, and had to be ended
        return FAILED
    if code == -signal.SIGABRT and member.failure is not None and member.failure.kind == "raised":
        return RAISED  # JAX's client aborts on the way out where the process that coordinates has gone already
    return code if code > 0 else 128 - code


def _show(member: _Member, failure: Failure | None, status: int, members: list[_Member], what: Launch) -> None:
    """The first failure: its traceback once, and a line that says which process it was, and what it was doing."""
    lines = []
    if failure is not None and failure.trace:
        lines.append(failure.trace.rstrip())
    elif not what.all_speak and (told := b"".join(member.kept)) not in b"".join(members[0].kept):
        lines.append(told.decode("utf-8", "backslashreplace").rstrip())
    said = str(failure) if failure is not None else f"process {member.number} {_ended(member)}; it was {member.doing}"
    said += "; it was stopped by a signal (SIGSTOP, or Ctrl-Z)" if member.stood else ""
    others = [other.number for other in members if other is not member]
    lines.append(f"shardwise launch: {said}{f'; {named(others)} ended with it' if others else ''}")
    _write(sys.stderr, ("\n".join(lines) + "\n").encode())


def _ended(member: _Member) -> str:
    code = member.process.returncode
    if code >= 0:
        return f"ended with exit status {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    why = ", which the system also sends where memory runs out" if -code == signal.SIGKILL else ""
    return f"was killed ({name}{why})"
