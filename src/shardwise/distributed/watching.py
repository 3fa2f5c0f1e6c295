"""The watch that the processes of a run keep on each other: the first failure ends all of them, with one message that names it.

Each process says that it lives by a beat in the coordination service's store, and what it is doing. Process 0 looks for those
that are silent; all others for process 0. Whoever fails says so there, and all hear it at once. JAX's own heartbeat ends what
is left, later (`BACKSTOP_SECONDS`), with a stack trace of C++.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from shardwise.distributed import reporting
from shardwise.distributed.reporting import Failure, as_text, read_failure
from shardwise.distributed.service import Store
from shardwise.errors import one_line, shortened

BACKSTOP_SECONDS = 10  # by which JAX's own heartbeat is later than this watch
GRACE_SECONDS = 1.0  # for a process to say itself why it fails, once another has failed
FAILED = 70  # the exit status of a process that ends because another failed
JOIN_SECONDS = 5.0
LISTEN_SECONDS = 0.5  # between two looks for the failure of another
LINGER_SECONDS = GRACE_SECONDS + 3 * LISTEN_SECONDS  # until the others have ended: process 0 takes the store with it
MOST_SAID = 300

_ends = threading.Event()  # of this process: whatever comes now is no failure
_threads: list[threading.Thread] = []
_silence: list[float] = [0.0]  # seconds after which the watch names a silent process


@dataclass(slots=True, eq=False)
class _Heard:
    """What process 0 has last heard of another: its beat, what it was doing, and when."""

    beat: int = -1
    doing: str = ""
    at: float = 0.0


def keep_watch(store: Store, silence_seconds: float) -> None:
    """Start to watch the other processes, and to be watched, until this process ends."""
    answered = [time.monotonic()]
    _silence[0] = silence_seconds
    judge = _judge_all if store.process == 0 else _judge_coordinator
    for role in (_beat, judge):
        thread = threading.Thread(target=role, args=(store, silence_seconds, answered), daemon=True, name="shardwise-watch")
        thread.start()
        _threads.append(thread)
    _hook(store)


def end_watch(store: Store | None) -> None:
    """Say that this process ends, and well."""
    if _ends.is_set():
        return
    _ends.set()
    for thread in _threads:
        thread.join(JOIN_SECONDS)  # one that still waited for an answer as the interpreter ends would abort it
    if store is not None:
        with contextlib.suppress(Exception):
            store.put(f"beat/{store.process}", json.dumps({"beat": -1, "doing": "ended"}))


def fail(store: Store | None, failure: Failure) -> None:
    """Have all processes hear of a failure of this one, before it ends."""
    if store is not None:
        _announced(store, failure)
        _linger(store)


def _linger(store: Store) -> None:
    """Let the others hear what process 0 has to say before it ends, and the store with it; a launcher tells them itself."""
    if store.process == 0 and not reporting.launched():
        time.sleep(LINGER_SECONDS)


def _announced(store: Store, failure: Failure) -> Failure:
    """Have all processes hear of a failure; returns the first one of the run, which may be another."""
    with contextlib.suppress(Exception):
        if not store.put("failure", as_text(failure), overwrite=False):
            return read_failure(store.wait("failure", 1.0) or as_text(failure))
    return failure


def _period(silence_seconds: float) -> float:
    return min(LISTEN_SECONDS, max(0.05, silence_seconds / 8))


def _beat(store: Store, silence_seconds: float, answered: list[float]) -> None:
    """Say that this process lives, and listen for the failure of another."""
    count = 0
    while not _ends.is_set():
        count += 1
        text = None
        with contextlib.suppress(Exception):  # whether it answers is judged elsewhere
            store.put(f"beat/{store.process}", json.dumps({"beat": count, "doing": reporting.doing()}))
            text = store.look("failure")
            answered[0] = time.monotonic()
        if text is not None and not _ends.is_set():
            failure = read_failure(text)
            if failure.process != store.process or failure.kind == "silent":
                _stop(store, failure)
                return
        _ends.wait(_period(silence_seconds))


def _ticks(silence_seconds: float) -> Iterator[tuple[float, bool]]:
    """The times at which to judge, each with whether this process itself stood still before it, as a laptop that slept."""
    last = time.monotonic()
    while not _ends.wait(_period(silence_seconds)):
        now = time.monotonic()
        yield now, now - last > silence_seconds / 2
        last = now


def _judge_coordinator(store: Store, silence_seconds: float, answered: list[float]) -> None:
    for now, stood_still in _ticks(silence_seconds):
        if stood_still:
            answered[0] = now
        if now - answered[0] > silence_seconds:
            _stop(store, Failure(0, "gone", f"{silence_seconds:g} seconds", at=answered[0]))
            return


def _judge_all(store: Store, silence_seconds: float, answered: list[float]) -> None:
    heard = {process: _Heard(at=time.monotonic()) for process in range(1, store.processes)}
    for now, stood_still in _ticks(silence_seconds):
        if stood_still:  # it has heard nobody
            for other in heard.values():
                other.at = now
        with contextlib.suppress(Exception):
            for process, text in store.listed("beat").items():
                said = json.loads(text)
                if process in heard and said["beat"] != heard[process].beat:
                    heard[process] = _Heard(said["beat"], said["doing"], now)
        for process, other in heard.items():
            if other.doing != "ended" and now - other.at > silence_seconds:
                failure = Failure(process, "silent", f"{silence_seconds:g} seconds", other.doing, at=other.at)
                _stop(store, _announced(store, failure))
                return


def _stop(store: Store, failure: Failure) -> None:
    """End this process because of a failure of another, once it has had the time to fail by itself."""
    if failure.kind not in ("silent", "gone") and _ends.wait(GRACE_SECONDS):
        return
    reporting.report("stopped", failure=as_text(failure))
    if not reporting.launched():
        _say(f"shardwise: process {store.process} ends, because {failure}{_way_out(failure)}")
    _linger(store)
    _leave(FAILED)


def _way_out(failure: Failure) -> str:
    match failure.kind:
        case "silent" | "gone":
            return (
                "; it may be stopped, killed, or out of memory, or its host or network be down: see its log and its host; "
                "if it was only slow, allow more: sw.distributed.start(silence_seconds=...)"
            )
        case _:
            return "; see its log for the traceback"


def _hook(store: Store) -> None:
    """Have an error that nobody catches told to all, and end this process at once: JAX would wait minutes for the others."""
    previous = sys.excepthook

    def told(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        if issubclass(kind, KeyboardInterrupt):
            previous(kind, error, trace)
            _leave(130)
        raised(store, error, show=lambda: previous(kind, error, trace))

    sys.excepthook = told


def raised(store: Store | None, error: BaseException, show: Any) -> None:
    """End this process because of an error: tell all, and show it, unless a launcher does."""
    consequence = is_consequence(error)
    failure = failure_of(error, 0 if store is None else store.process)
    reporting.report("failed", failure=as_text(failure), consequence=consequence)
    if not reporting.launched():
        show()
        if consequence and store is not None:
            time.sleep(_silence[0] + LINGER_SECONDS)  # until the watch names the process that was lost, and ends this one
    _ends.set()
    if not consequence:
        fail(store, failure)
    _leave(1)


def trimmed(error: BaseException, *files: str) -> BaseException:
    """An error whose traceback begins where the user's code does: without the frames of these files, and of `runpy`."""
    frame = error.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename in (*files, "<frozen runpy>"):
        frame = frame.tb_next
    return error.with_traceback(frame or error.__traceback__)


def failure_of(error: BaseException, process: int) -> Failure:
    """What there is to say of an error."""
    first = next(filter(str.strip, str(error).splitlines()), "")
    said = f"{type(error).__name__}: {shortened(one_line(first), MOST_SAID).removesuffix(':')}"
    trace = "".join(traceback.format_exception(error))
    return Failure(process, "raised", said.removesuffix(": "), reporting.doing(), trace, time.monotonic())


def is_consequence(error: BaseException) -> bool:
    """Whether an error is what the failure of another process looks like here: a collective that has lost its peer."""
    said = str(error)
    return type(error).__module__.startswith(("jax", "builtins")) and any(
        sign in said for sign in ("Gloo", "NCCL", "coordination service", "CoordinationService", "Connection reset by peer")
    )


def _say(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)


def _leave(status: int) -> None:
    """End now: what JAX does at the end waits for the other processes."""
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)
