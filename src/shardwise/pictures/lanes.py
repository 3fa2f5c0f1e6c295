"""A timeline as lanes: compute, each direction of the links, and what waits for what."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from shardwise.pictures.picture import Bar, Lane, Lanes, Picture, Table
from shardwise.schedule.timeline import COMPILED, ESTIMATED, MEASURED, Span, Timeline
from shardwise.schedule.timeline_text import told, totals
from shardwise.units import bytes_text, round_step, seconds_text

WORDS = {
    "matmul": "matmuls", "compute": "other work", "wait": "waiting for transfers: exposed",
    "stall": "waiting for copies", "transfer": "collectives", "copy": "copies between memories",
    "loop": "trips that are not shown",
}  # fmt: skip
SHORT = {COMPILED: "modelled", ESTIMATED: "estimated", MEASURED: "measured"}


def timeline_picture(timeline: Timeline) -> Picture:
    """A timeline with its sums, its lanes, and how much of each collective is overlapped."""
    title = f"{timeline.name} on {timeline.hardware}"
    chart = timeline_lanes(timeline)
    parts = (chart, _shares(timeline)) if timeline.shares else (chart,)
    return Picture(title, totals(timeline), parts)


def beside(timelines: Sequence[Timeline]) -> Picture:
    """Several timelines of one program on one scale, as the modelled one and the measured one, and their collectives."""
    whole = max(timeline.step_seconds for timeline in timelines)
    lanes, notes = [], []
    for timeline in timelines:
        words = SHORT[timeline.origin]
        lanes += [
            Lane(f"{words}: {name}", tuple(_bars(timeline, name, whole)), f"{name}: busy {seconds_text(busy)}")
            for name, busy in timeline.lanes
        ]
        notes += [f"{timeline.origin}: {totals(timeline)}", *(told(note, timeline) for note in timeline.notes)]
    title = f"{timelines[0].name}: {' and '.join(SHORT[timeline.origin] for timeline in timelines)}"
    chart = Lanes(title, tuple(lanes), tuple(ticks(whole)), _legend(timelines), tuple(notes))
    shares = [
        dataclasses.replace(_shares(timeline), title=f"Each collective, all its trips: {SHORT[timeline.origin]}")
        for timeline in timelines
        if timeline.shares
    ]
    return Picture(title, totals(timelines[-1]), (chart, *shares))


def _legend(timelines: Sequence[Timeline]) -> tuple[tuple[str, str], ...]:
    seen = {_kind(span) for timeline in timelines for span in timeline.spans}
    return tuple((kind, words) for kind, words in WORDS.items() if kind in seen)


def timeline_lanes(timeline: Timeline) -> Lanes:
    """The lanes alone, with their sums and what was assumed."""
    whole = timeline.step_seconds
    lanes = tuple(
        Lane(name, tuple(_bars(timeline, name, whole)), f"{name}: busy {seconds_text(busy)} of {seconds_text(whole)}")
        for name, busy in timeline.lanes
    )
    notes = tuple(told(note, timeline) for note in timeline.notes)
    return Lanes(timeline.origin, lanes, tuple(ticks(whole)), _legend([timeline]), (totals(timeline), *notes))


def _bars(timeline: Timeline, lane: str, seconds: float) -> Iterator[Bar]:
    whole = seconds or 1.0
    for span in timeline.spans:
        if span.lane == lane:
            kind = _kind(span)
            yield Bar(span.start_seconds / whole, span.end_seconds / whole, kind, _told(span), exposed=kind == "wait")


def _kind(span: Span) -> str:
    """The kind of a bar: waiting for a copy between memories is no exposed transfer."""
    return "stall" if span.kind == "wait" and span.collective is None else span.kind


def _told(span: Span) -> str:
    said = f"{span.name}: {seconds_text(span.seconds)} from {seconds_text(span.start_seconds)}"
    if span.moved_bytes:
        said += f", {bytes_text(span.moved_bytes)}"
    if span.trip is not None:
        said += f", trip {span.trip}"
    return said + (f" ({span.line})" if span.line else "")


def ticks(seconds: float, most: int = 6) -> Iterator[tuple[float, str]]:
    """Round times, as shares of the whole.

    >>> list(ticks(2e-6))
    [(0.0, '0'), (0.25, '500 ns'), (0.5, '1 us'), (0.75, '1.5 us'), (1.0, '2 us')]
    """
    if seconds <= 0:
        return
    step = round_step(seconds, most)
    for number in range(int(seconds / step * (1 + 1e-9)) + 1):
        yield round(number * step / seconds, 9), seconds_text(number * step) if number else "0"


def _shares(timeline: Timeline) -> Table:
    rows = [
        (
            share.collective.kind, ", ".join(share.collective.axes) or "?", seconds_text(share.transfer_seconds),
            seconds_text(share.exposed_seconds), f"{share.hidden:.0%}", share.collective.source,
        )
        for share in timeline.shares[:40]
    ]  # fmt: skip
    left = len(timeline.shares) - len(rows)
    notes = (f"... and {left} more",) if left else ()
    head = ("collective", "over", "travels", "exposed", "overlapped", "from")
    return Table("Each collective, all its trips", head, tuple(rows), frozenset({2, 3, 4}), notes)
