"""A timeline as Chrome's trace events, for ui.perfetto.dev and chrome://tracing."""

from __future__ import annotations

from typing import Any

from shardwise.schedule.timeline import Span, Timeline


def trace(timeline: Timeline) -> dict[str, Any]:
    """The trace: one process, a thread for each lane, a complete event for each span; times in microseconds.

    The format is Google's "Trace Event Format": `ph` is X for an event with a duration and M for names.
    """
    threads = {lane: number for number, (lane, _) in enumerate(timeline.lanes, start=1)}
    for span in timeline.spans:
        threads.setdefault(span.lane, len(threads) + 1)
    title = f"{timeline.name}, modelled for {timeline.hardware}"
    events: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": title}}]
    for lane, number in threads.items():
        events.append({"ph": "M", "name": "thread_name", "pid": 1, "tid": number, "args": {"name": lane}})
        events.append({"ph": "M", "name": "thread_sort_index", "pid": 1, "tid": number, "args": {"sort_index": number}})
    events += [_event(span, threads[span.lane]) for span in timeline.spans]
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"notes": list(timeline.notes)}}


def _event(span: Span, thread: int) -> dict[str, Any]:
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
    return {"ph": "X", "name": span.name, "cat": span.kind, "pid": 1, "tid": thread, **micro, "args": args}
