"""A timeline drawn with characters: a row for each lane, a scale, and the totals."""

from __future__ import annotations

import textwrap

from shardwise.errors import one_line
from shardwise.schedule.timeline import MEASURED, Span, Timeline
from shardwise.units import round_step

MARKS = {"compute": "#", "matmul": "M", "wait": ".", "transfer": "=", "copy": "-", "loop": "~"}
LEGEND = "M matmuls, # other work, . waiting, = collectives, - copies between memories"


def drawn(timeline: Timeline, width: int = 100) -> str:
    """The timeline for a terminal, in ASCII.

    Each character stands for what takes the most of its time on the lane; a blank is idle.
    """
    rows = [lane for lane, _ in timeline.lanes]
    margin = max([len(lane) for lane in rows] + [7]) + 2
    columns = max(width - margin, 10)
    lines = [f"{timeline.name} on {timeline.hardware}: {timeline.origin}"]
    for lane in rows:
        lines.append(f"{lane:<{margin}}" + _row([s for s in timeline.spans if s.lane == lane], timeline.step_seconds, columns))
    lines += _scale(timeline.step_seconds, margin, columns)
    legend = LEGEND + (", ~ trips not shown" if any(s.kind == "loop" for s in timeline.spans) else "")
    lines += [f"{'':<{margin}}{legend}", *textwrap.wrap(totals(timeline), width, subsequent_indent="  ")]
    for note in timeline.notes:
        lines += textwrap.wrap(told(note, timeline), width, subsequent_indent="  ")
    return "\n".join(one_line(line).rstrip() for line in lines)


def told(note: str, timeline: Timeline) -> str:
    """A note; the first of what is modelled says what is assumed."""
    return f"assumed: {note}" if note == timeline.notes[0] and timeline.origin != MEASURED else note


def totals(timeline: Timeline) -> str:
    """The sums in one line."""
    micro = {
        "step": timeline.step_seconds,
        "compute": timeline.compute_seconds,
        "collectives": timeline.transfer_seconds,
        "exposed": timeline.exposed_seconds,
    }
    if timeline.origin == MEASURED:
        micro["idle"] = max(timeline.step_seconds - timeline.compute_seconds - timeline.exposed_seconds, 0.0)
    if timeline.copy_wait_seconds:
        micro["waiting for copies"] = timeline.copy_wait_seconds
    said = ", ".join(f"{name} {seconds * 1e6:,.1f} us" for name, seconds in micro.items())
    return said + (f"; matmuls at {timeline.utilisation:.0%} of the peak" if timeline.origin != MEASURED else "")


def _row(spans: list[Span], step_seconds: float, columns: int) -> str:
    """The characters of one lane."""
    if not step_seconds:
        return ""
    filled: list[dict[str, float]] = [{} for _ in range(columns)]
    for span in spans:
        low, high = span.start_seconds / step_seconds * columns, span.end_seconds / step_seconds * columns
        for column in range(max(int(low), 0), min(int(high) + 1, columns)):
            part = min(high, column + 1) - max(low, column)
            if part > 0:
                filled[column][span.kind] = filled[column].get(span.kind, 0.0) + part
    return "".join(_mark(column) for column in filled)


def _mark(column: dict[str, float]) -> str:
    if not column or sum(column.values()) < 0.05:
        return " "
    return MARKS[max(column, key=lambda kind: column[kind])]


def _scale(step_seconds: float, margin: int, columns: int) -> list[str]:
    """A ruler in microseconds: a tick at round numbers."""
    whole = step_seconds * 1e6
    if not whole:
        return []
    step = round_step(whole)
    ruler, numbers = [" "] * columns, [" "] * (columns + 12)
    ticks = 0
    while (place := int(ticks * step / whole * columns)) < columns:
        ruler[place] = "|"
        text = f"{ticks * step:.6g}" + (" us" if not ticks else "")
        if place + len(text) <= columns:
            numbers[place : place + len(text)] = text
        ticks += 1
    return [" " * margin + "".join(ruler), " " * margin + "".join(numbers)[: columns + 2]]
