"""A planned program event by event: what its estimate says beside what its compiled schedule does."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shardwise.schedule.timeline import Span, Timeline
from shardwise.steps import Step, describe, step_of
from shardwise.units import seconds_text

NONE = "-"
KINDS = {
    "matmul": "matmul", "transfer": "transfer", "wait": "wait", "compute": "other work", "copy": "memory copy",
    "loop": "trips not shown",
}  # fmt: skip
EACH = ("matmul", "transfer")  # told one by one; of the others the sum
HEAD = ("step", "event", "estimated", "compiled")


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a step, or all of a kind together: its seconds as estimated and as compiled, None where it is not there.

    `step` counts from 1; 0 are those of no step, as copies in front of the first one. `number` counts those of a kind.
    """

    step: int
    kind: str
    number: int | None
    estimated: float | None
    compiled: float | None

    def __str__(self) -> str:
        return self.kind if self.number is None else f"{self.kind} {self.number}"


@dataclass(frozen=True, slots=True)
class Stepwise:
    """Both timelines of a program, event by event; prints as a table, iterates over its events."""

    steps: tuple[str, ...]
    events: tuple[Event, ...]
    estimated_seconds: float
    compiled_seconds: float

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)

    def __str__(self) -> str:
        rows = [HEAD, *self._rows(), ("", "all", seconds_text(self.estimated_seconds), seconds_text(self.compiled_seconds))]
        widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
        return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)

    def _rows(self) -> Iterator[tuple[str, ...]]:
        said = [(event, _text(event.estimated), _text(event.compiled)) for event in self.events]
        named = None
        for (step, _kind, *seconds), alike in itertools.groupby(said, lambda row: (row[0].step, row[0].kind, *row[1:])):
            first, *others = (event for event, *_ in alike)
            name = f"{first} to {others[-1].number}, each" if others else str(first)
            title = "" if step == named else f"{step} {self.steps[step - 1]}" if step else "of no step"
            named = step
            yield (title, name, *seconds)


def stepwise(estimated: Timeline, compiled: Timeline, steps: Sequence[Step]) -> Stepwise:
    """Lay the events of both timelines side by side, those of each step in their order.

    A compiled operation belongs to the step whose scope its name holds (`steps.scope`).
    """
    before, after = _events(estimated), _events(compiled)
    found = []
    for place in [*range(1, len(steps) + 1), 0]:
        for kind, name in KINDS.items():
            left, right = before[place, kind], after[place, kind]
            if kind not in EACH:
                left, right = [sum(left)] * bool(left), [sum(right)] * bool(right)
            several = max(len(left), len(right)) > 1
            for number, (one, other) in enumerate(itertools.zip_longest(left, right), 1):
                found.append(Event(place, name, number if several else None, one, other))
    return Stepwise(tuple(map(describe, steps)), tuple(found), estimated.step_seconds, compiled.step_seconds)


def _events(timeline: Timeline) -> dict[tuple[int, str], list[float]]:
    """The seconds of each kind of event of each step, in order; a transfer over several lanes once."""
    found: dict[tuple[int, str], list[float]] = defaultdict(list)
    seen: set[tuple[str, float, int | None]] = set()
    for span in timeline.spans:
        if span.kind in ("transfer", "copy"):
            once = (span.name, span.start_seconds, span.trip)
            if once in seen:
                continue
            seen.add(once)
        found[_step(span), span.kind].append(span.seconds)
    return found


def _step(span: Span) -> int:
    return step_of(span.op_name) or 0


def _text(seconds: float | None) -> str:
    return NONE if seconds is None else seconds_text(seconds)
