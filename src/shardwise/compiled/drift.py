"""What differs between a locked entry and the program as it compiles now, in lines that name source and bytes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from shardwise.compiled.lockfile import MEMORY_TOLERANCE, Entry, Laid, Row, row_order
from shardwise.errors import counted, leading, one_line
from shardwise.layout import Axes
from shardwise.units import bytes_text, seconds_text

MOST_SOURCES = 3
SECONDS_TOLERANCE = 0.01  # the part by which modelled seconds may change: schedules differ a little from compiler to compiler
Key = tuple[str, Axes, str, bool]


@dataclass(frozen=True, slots=True)
class Difference:
    """What differs: `drift` fails a check; `moved` is the same collectives on other lines of the source, which does not."""

    drift: tuple[str, ...]
    moved: tuple[str, ...]


def drift(old: Entry, new: Entry, memory_tolerance: float = MEMORY_TOLERANCE) -> list[str]:
    """Say what drifted since an entry was locked; nothing, where it is the same.

    >>> locked = Entry("step", "v5e:2x4", "x=8", (Row("all-gather", ("x",), "bfloat16", "layer.py:14", 1, 14.7e6),))
    >>> again = Row("all-gather", ("x",), "bfloat16", "layer.py:31", 1, 14.7e6)
    >>> print(*drift(locked, Entry("step", "v5e:2x4", "x=8", (*locked.rows, again))), sep="\\n")
    - all-gather over x, 1 x 14.7 MB bfloat16, layer.py:14
    + all-gather over x, 2 x 14.7 MB bfloat16, layer.py:31, layer.py:14: 14.7 MB more on the wire
    """
    return list(difference(old, new, memory_tolerance).drift)


def difference(old: Entry, new: Entry, memory_tolerance: float = MEMORY_TOLERANCE) -> Difference:
    """Compare two entries of one program."""
    lines, moved = [], []
    if old.mesh != new.mesh:
        lines += [f"- mesh {one_line(old.mesh)}", f"+ mesh {one_line(new.mesh)}"]
    for before, after in paired(old, new):
        if sums(before) != sums(after):
            lines += _group_lines(before, after)
        elif before and after and before != after:  # one side alone: loops without a trip
            moved.append(_moved_line(before, after))
    lines += _memory_lines(old, new, memory_tolerance)
    lines += _seconds_lines(old, new)
    lines += _layout_lines("argument", old.arguments, new.arguments)
    lines += _layout_lines("result", old.results, new.results)
    if new.unread != old.unread:
        now, then = (counted(entry.unread, "thing") for entry in (new, old))
        lines.append(f"! {now} of the compiled text could not be read, {then} when it was locked")
    return Difference(tuple(lines), tuple(moved))


def paired(old: Entry, new: Entry) -> Iterator[tuple[list[Row], list[Row]]]:
    """The collectives of two entries by what they are (kind, axes, dtype), wherever they stand in the source."""
    for key in dict.fromkeys(_key(row) for row in (*old.rows, *new.rows)):
        before, after = ([row for row in entry.rows if _key(row) == key] for entry in (old, new))
        yield before, after


def report(old: Entry, new: Entry, memory_tolerance: float = MEMORY_TOLERANCE) -> str:
    """The drift of one program as a text with its name and, where they differ, the versions; empty without drift."""
    lines = drift(old, new, memory_tolerance)
    if not lines:
        return ""
    total = f"{bytes_text(new.wire_bytes)} on the wire, {bytes_text(old.wire_bytes)} locked"
    head = f"{leading(new.key)} is not what was locked: {total}"
    return "\n".join([head, *(f"  {line}" for line in (*lines, *versions_lines(old, new)))])


def versions_lines(old: Entry, new: Entry) -> list[str]:
    """Other versions than those locked, which alone are no drift.

    >>> old, new = (Entry("f", "cpu:8", "x=8", (), versions=(("jax", v),)) for v in ("0.10.2", "0.12.0.1"))
    >>> versions_lines(old, new)
    ['compiled with jax 0.12.0.1, locked with 0.10.2']
    """
    then = dict(old.versions)
    changed = [(name, now) for name, now in new.versions if then.get(name) != now]
    return [
        f"compiled with {one_line(name)} {one_line(now)}, locked with {one_line(then.get(name, 'none'))}"
        for name, now in changed
    ]


def _key(row: Row) -> Key:
    return row.kind, row.axes, row.dtype, row.trips_known


def sums(rows: Iterable[Row]) -> tuple[int, float]:
    """How many run in one call, and the bytes that they send together."""
    held = list(rows)
    return sum(row.count for row in held), round(math.fsum(row.wire_bytes for row in held), 3)


def _group_lines(before: list[Row], after: list[Row]) -> Iterator[str]:
    more = sums(after)[1] - sums(before)[1]
    change = f"{bytes_text(abs(more))} {'more' if more > 0 else 'less'} on the wire" if more else "as much on the wire"
    if before:
        yield f"- {_said(before, after)}" + ("" if after else f": {change}")
    if after:
        yield f"+ {_said(after, before)}: {change}"


def _said(rows: list[Row], others: list[Row]) -> str:
    """One line for collectives of one kind, axes and dtype; the source lines that the other side lacks come first."""
    *_, dtype, trips_known = _key(rows[0])
    count, sent = sums(rows)
    alike = len({row.wire_bytes / max(row.count, 1) for row in rows}) == 1
    each = f"{count} x {bytes_text(sent / max(count, 1))} {dtype}" if alike else f"{count} of {dtype} with {bytes_text(sent)}"
    there = {(row.source, row.count, row.wire_bytes) for row in others}
    ordered = sorted(rows, key=lambda row: ((row.source, row.count, row.wire_bytes) in there, row_order(row)))
    trips = "" if trips_known else ", in a loop of unknown trips"
    return one_line(f"{over_text(rows[0])}, {each}{trips}, {sources_text(row.source for row in ordered)}")


def sources_text(sources: Iterable[str]) -> str:
    """The first source lines, and how many more there are."""
    names = list(dict.fromkeys(sources))
    left = len(names) - MOST_SOURCES
    return ", ".join(names[:MOST_SOURCES]) + (f" and {counted(left, 'line')} more" if left > 0 else "")


def _moved_line(before: list[Row], after: list[Row]) -> str:
    left, came = ([row.source for row in rows if row not in others] for rows, others in ((before, after), (after, before)))
    return one_line(f"{over_text(after[0])} moved from {sources_text(left)} to {sources_text(came)}")


def over_text(row: Row) -> str:
    """A collective and its axes: `all-gather over x`."""
    return f"{row.kind} over {', '.join(row.axes) or 'no axis that is known'}"


def _memory_lines(old: Entry, new: Entry, tolerance: float) -> Iterator[str]:
    if old.memory is None:
        return
    if new.memory is None:
        yield f"! memory is not known now, and {bytes_text(old.memory.peak)} at the peak when it was locked"
        return
    for name in ("peak", "temporaries", "arguments", "outputs"):
        then, now = getattr(old.memory, name), getattr(new.memory, name)
        if abs(now - then) > tolerance * then:
            change = f" ({now / then - 1:+.0%})" if then else ""
            yield f"! memory, {name}: {bytes_text(now)}, locked {bytes_text(then)}{change}"


def _seconds_lines(old: Entry, new: Entry) -> Iterator[str]:
    then, now = old.seconds, new.seconds
    if then is None:
        return
    if now is None:
        yield f"! the modelled time is not known now, and was {seconds_text(then)} when it was locked"
    elif abs(now - then) > SECONDS_TOLERANCE * then:
        change = f" ({now / then - 1:+.0%})" if then else ""
        yield f"! modelled time: {seconds_text(now)}, locked {seconds_text(then)}{change}"


def _layout_lines(what: str, old: Sequence[Laid] | None, new: Sequence[Laid] | None) -> Iterator[str]:
    """Each argument or result that lies otherwise than locked, that is new, or that is gone."""
    if old is None:
        return
    if new is None:
        yield f"! layouts of {what}s are not known now, and were when they were locked"
        return
    then, now = (_by_name(laid) for laid in (old, new))
    for name in dict.fromkeys((*then, *now)):
        if name not in now:
            yield one_line(f"- {what} {name}, {then[name]}")
        elif name not in then:
            yield one_line(f"+ {what} {name}, {now[name]}")
        elif then[name] != now[name]:
            yield one_line(f"! {what} {name}: {now[name]}, locked {then[name]}")


def _by_name(laid: Sequence[Laid]) -> dict[str, str]:
    """Layouts by name; what has a name that stands already is told with its place."""
    found: dict[str, str] = {}
    for place, each in enumerate(laid):
        found[each.name if each.name and each.name not in found else f"{each.name} (number {place})"] = each.layout
    return found
