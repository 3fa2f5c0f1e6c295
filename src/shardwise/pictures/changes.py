"""What changed between two plans, audits or lock files, as a picture of words and tables: before, now, and by how much."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from shardwise.compiled.drift import Difference, difference, over_text, paired, sources_text, sums
from shardwise.compiled.lockfile import Entry, Lock
from shardwise.compiled.records import Choice, PlanRecord, Record
from shardwise.errors import PlanError, counted
from shardwise.pictures.picture import Part, Picture, Table, Words
from shardwise.units import bytes_text, flops_text, seconds_text

CHANGE = ("before", "now", "change")
MEMORY = ("peak", "temporaries", "arguments", "outputs")
MOST_PROGRAMS = 12


def changed(old: Record, new: Record) -> Picture:
    """What changed, the verdict first.

    Raises:
        PlanError: they are of two kinds.
    """
    if isinstance(old, PlanRecord) and isinstance(new, PlanRecord):
        title, parts = f"What changed: {new.equation}", tuple(_plans(old, new))
    elif isinstance(old, Lock) and isinstance(new, Lock):
        names = {entry.key for entry in (*old.entries, *new.entries)}
        title = f"What changed: {names.pop() if len(names) == 1 else counted(len(names), 'program')}"
        parts = tuple(_locks(old, new))
    else:
        raise PlanError("a plan cannot be compared with what was compiled: give two plans, two audits or two lock files")
    return Picture(title, " ".join(_verdict(parts)), parts)


def _verdict(parts: Iterable[Part]) -> tuple[str, ...]:
    """The first words of a page."""
    return next(part.lines for part in parts if isinstance(part, Words))


# Plans.


def _plans(old: PlanRecord, new: PlanRecord) -> Iterator[Part]:
    before, now = old.choices[0], new.choices[0]
    same = before.steps == now.steps
    time = f"The estimate was {seconds_text(before.seconds)} and is {seconds_text(now.seconds)}"
    yield Words((
        f"The chosen program is {'the same' if same else 'another one'}.",
        f"{time}: {_by(before.seconds, now.seconds)}.",
    ))  # fmt: skip
    asked = [("equation", old.equation, new.equation)]
    asked += [(name, dict(old.given).get(name, ""), value) for name, value in new.given]
    differs = tuple(row for row in asked if row[1] != row[2])
    if differs:
        yield Table("What was asked", ("", "before", "now"), differs)
    else:
        told = "; ".join(f"{name} {value}" for name, value in new.given)
        yield Words((told,), title="Asked as before")
    yield Table("The chosen program", ("", *CHANGE), tuple(_figures(before, now)), frozenset({1, 2, 3}))
    if not same:
        yield Words(before.steps, title="Steps before")
    yield Words(now.steps, title="Steps, as before" if same else "Steps now")
    if sent := tuple(_sent(dict(before.wire), dict(now.wire))):
        yield Table("What one device sends", ("collective", *CHANGE), sent, frozenset({1, 2, 3}))
    yield _ranks(old, new)


def _figures(before: Choice, now: Choice) -> Iterator[tuple[str, ...]]:
    forms: tuple[tuple[str, Callable[[float], str], Callable[[Choice], float]], ...] = (
        ("time, estimated", seconds_text, lambda choice: choice.seconds),
        ("all transfers", seconds_text, lambda choice: choice.transfers),
        ("sent by a device", bytes_text, lambda choice: choice.wire_bytes),
        ("memory of a device", bytes_text, lambda choice: choice.memory_bytes),
        ("FLOPs of a device", flops_text, lambda choice: choice.flops),
    )
    for name, form, of in forms:
        yield name, form(of(before)), form(of(now)), _by(of(before), of(now))


def _sent(before: Mapping[str, float], now: Mapping[str, float]) -> Iterator[tuple[str, ...]]:
    for name in dict.fromkeys((*before, *now)):
        then, sent = before.get(name, 0.0), now.get(name, 0.0)
        yield name, bytes_text(then), bytes_text(sent), _by(then, sent)


def _ranks(old: PlanRecord, new: PlanRecord) -> Table:
    """Every program with its place and time before and now; those that one side lacks have a dash."""
    then = {choice.steps: (place, choice) for place, choice in enumerate(old.choices, 1)}
    now = {choice.steps: (place, choice) for place, choice in enumerate(new.choices, 1)}
    rows = []
    for steps in dict.fromkeys((*now, *then)):
        sides = [found.get(steps) for found in (then, now)]
        said = [f"{side[0]}: {seconds_text(side[1].seconds)}" if side else "-" for side in sides]
        one, other = sides
        change = _by(one[1].seconds, other[1].seconds) if one and other else "new" if other else "gone"
        rows.append((", then ".join(steps), *said, change))
    left = len(rows) - MOST_PROGRAMS
    notes = (f"and {counted(left, 'program')} more",) if left > 0 else ()
    return Table("All programs, by place", ("program", *CHANGE), tuple(rows[:MOST_PROGRAMS]), frozenset({1, 2, 3}), notes)


# Lock files and audits.


def _locks(old: Lock, new: Lock) -> Iterator[Part]:
    then, now = ({entry.key: entry for entry in lock.entries} for lock in (old, new))
    both = [(then[key], entry) for key, entry in now.items() if key in then]
    differences = [(before, entry, difference(before, entry, new.memory_tolerance)) for before, entry in both]
    drifted = [found for found in differences if found[2].drift]
    added, gone = ([one[key] for key in one if key not in other] for one, other in ((now, then), (then, now)))
    counts = ((len(drifted), "changed"), (len(added), "new"), (len(gone), "gone"), (len(both) - len(drifted), "as before"))
    told = ", ".join(f"{count} {word}" for count, word in counts if count)
    yield Words((f"Of {counted(len(both) + len(added) + len(gone), 'program')}: {told or 'nothing to compare'}.",))
    rows = [_row(before, entry) for before, entry in both] + [_row(None, entry) for entry in added]
    rows += [_row(entry, None) for entry in gone]
    head = ("program", "sends before", "now", "change", "memory before", "now", "change")
    yield Table("One device, in one call", head, tuple(rows), frozenset(range(1, 7)))
    for before, entry, found in drifted:
        yield from _program(before, entry, found)
    moved = [f"{entry.key}: {line}" for _, entry, found in differences for line in found.moved]
    if moved:
        yield Words(tuple(moved), title="On other lines of the source, and the same collectives")


def _row(before: Entry | None, now: Entry | None) -> tuple[str, ...]:
    entry = now or before
    assert entry is not None
    cells = [entry.key]
    for of in (lambda side: side.wire_bytes, lambda side: side.memory.peak if side.memory else None):
        then, is_now = (None if side is None else of(side) for side in (before, now))
        said = ["-" if value is None else bytes_text(value) for value in (then, is_now)]
        cells += [*said, "-" if then is None or is_now is None else _by(then, is_now)]
    return tuple(cells)


def _program(before: Entry, now: Entry, found: Difference) -> Iterator[Part]:
    rows = []
    for old, new in paired(before, now):
        if sums(old) == sums(new):
            continue
        (then, sent_then), (count, sent) = sums(old), sums(new)
        row = (new or old)[0]
        said = [f"{n} x, {bytes_text(sent)}" if n else "-" for n, sent in ((then, sent_then), (count, sent))]
        lines = sources_text(each.source for each in (new or old))
        rows.append((f"{over_text(row)}, {row.dtype}", *said, _by(sent_then, sent), lines))
    if rows:
        yield Table(now.key, ("collective", *CHANGE, "from"), tuple(rows), frozenset({1, 2, 3}))
    if before.memory is not None and now.memory is not None and before.memory != now.memory:
        parts = [(name, getattr(before.memory, name), getattr(now.memory, name)) for name in MEMORY]
        held = tuple((name, bytes_text(then), bytes_text(held_now), _by(then, held_now)) for name, then, held_now in parts)
        yield Table(f"Memory of {now.key}", ("", *CHANGE), held, frozenset({1, 2, 3}))
    others = tuple(line for line in found.drift if line.startswith(_OTHERS) and "! memory," not in line)
    if others:
        yield Words(others, code=True, title=f"Also of {now.key}")


_OTHERS = ("! ", *(f"{sign} {what} " for sign in "-+" for what in ("mesh", "argument", "result")))


def _by(before: float, now: float) -> str:
    """How much more or less.

    >>> _by(2.0, 3.0), _by(2.0, 1.0), _by(0.0, 1.0), _by(2.0, 2.0), _by(1.0, 5.0)
    ('50 % more', '50 % less', 'new', 'as before', '5.0 times')
    """
    if before == now:
        return "as before"
    if not before or not now:
        return "new" if now else "gone"
    ratio = now / before
    if ratio >= 2:
        return f"{ratio:.1f} times"
    percent = f"{100 * abs(ratio - 1):.0f} %"
    return f"{'under 1 %' if percent == '0 %' else percent} {'more' if ratio > 1 else 'less'}"
