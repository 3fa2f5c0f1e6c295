"""Timelines as Chrome's trace events, for ui.perfetto.dev and chrome://tracing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shardwise.schedule.timeline import Span, Timeline


def trace(*timelines: Timeline) -> dict[str, Any]:
    """The trace: a process for each timeline, a thread for each lane, a complete event for each span; times in microseconds.

    The format is Google's "Trace Event Format": `ph` is X for an event with a duration and M for names.
    """
    events = [event for number, timeline in enumerate(timelines, start=1) for event in _process(number, timeline)]
    notes = [note for timeline in timelines for note in timeline.notes]
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"notes": notes}}


def _process(process: int, timeline: Timeline) -> Iterator[dict[str, Any]]:
    threads = {lane: number for number, (lane, _) in enumerate(timeline.lanes, start=1)}
    for span in timeline.spans:
        threads.setdefault(span.lane, len(threads) + 1)
    title = f"{timeline.name} on {timeline.hardware}: {timeline.origin}"
    yield {"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": title}}
    for lane, number in threads.items():
        yield {"ph": "M", "name": "thread_name", "pid": process, "tid": number, "args": {"name": lane}}
        yield {"ph": "M", "name": "thread_sort_index", "pid": process, "tid": number, "args": {"sort_index": number}}
    yield from (_event(span, process, threads[span.lane]) for span in timeline.spans)


def _event(span: Span, process: int, thread: int) -> dict[str, Any]:
    args: dict[str, Any] = {}
    if span.moved_bytes:
        args["bytes"] = span.moved_bytes
    if span.line:
        args["line"] = span.line
    if span.trip is not None:
        args["trip"] = span.trip
    if span.collective is not None:
        args |= {"kind": span.collective.kind, "axes": ", ".join(span.collective.axes), "op_name": span.collective.op_name}
    micro = {"ts": span.start_seconds * 1e6, "dur": span.seconds * 1e6}
    return {"ph": "X", "name": span.name, "cat": span.kind, "pid": process, "tid": thread, **micro, "args": args}
