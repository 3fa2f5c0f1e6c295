"""What a comparison found: each way with its time, and what its compiled program holds; a table, and who is fastest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from shardwise import views
from shardwise.compiled.audit import Audit
from shardwise.compiled.findings import REPEATED
from shardwise.errors import counted, leading, one_line
from shardwise.measure.intervals import CONFIDENCE, Timing
from shardwise.units import bytes_text, flops_text, seconds_text

HEAD = ("way", "time", "95% interval", "runs", "times", "predicted", "sends", "multiplies", "memory", "collectives")
PLAINLY = 1.5  # times the fastest: then what makes a way slow is said, however few the runs
NUMBERS = frozenset(range(1, len(HEAD) - 1))


@dataclass(frozen=True, slots=True)
class Measured:
    """One way: how long it takes, what its compiled program holds, and what a plan predicted of it.

    Attributes:
        says: what it is, in words.
        estimate_seconds: what the planner predicted; None of what is no program of a plan.
        differs: how its result differs from that of the first way; empty where it does not.
    """

    name: str
    timing: Timing
    audit: Audit
    says: str = ""
    estimate_seconds: float | None = None
    differs: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Several ways side by side, measured in turn; prints as a table, iterable in the order given.

    Attributes:
        what: the equation, or what is compared.
        where: the devices.
        notes: what was left out, and why.
        needed_flops: of an equation, over all devices, each matmul once.
    """

    what: str
    where: str
    ways: tuple[Measured, ...]
    notes: tuple[str, ...] = ()
    needed_flops: float | None = None

    def __iter__(self) -> Iterator[Measured]:
        return iter(self.ways)

    def __getitem__(self, name: str) -> Measured:
        return {way.name: way for way in self.ways}[name]

    @property
    def fastest(self) -> tuple[Measured, ...]:
        """The way of the smallest median first, and those that cannot be told from it."""
        first = min(self.ways, key=lambda way: way.timing.median_seconds)
        return (first, *(way for way in self.ways if way is not first and way.timing.overlaps(first.timing)))

    @property
    def is_certain(self) -> bool:
        """Whether the fastest way's interval lies below all others."""
        return len(self.fastest) == 1

    def repeated(self, way: Measured) -> float | None:
        """How often a way does what is asked for; None where that is not known."""
        work = way.audit.work
        return work.flops_per_device * work.devices / self.needed_flops if self.needed_flops else work.repeated

    @property
    def agrees(self) -> bool:
        """Whether all ways have the result of the first."""
        return not any(way.differs for way in self.ways)

    def __str__(self) -> str:
        rows = [HEAD, *(row(way, self) for way in self.ways)]
        widths = [max(len(cells[column]) for cells in rows) for column in range(len(HEAD))]
        listed = [
            "  " + "  ".join(
                cell.rjust(width) if column in NUMBERS else cell.ljust(width)
                for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
            ).rstrip()
            for cells in rows
        ]  # fmt: skip
        return "\n".join(map(one_line, [leading(f"{self.what} {self.where}"), *listed, *said(self)]))

    _repr_html_ = views.html


def row(way: Measured, comparison: Comparison) -> tuple[str, ...]:
    """The cells of one way, below `HEAD`; bytes, FLOPs and memory are those of one device."""
    timing, audit = way.timing, way.audit
    interval = timing.interval_seconds
    repeated = comparison.repeated(way)
    again = f" (x{repeated:.3g})" if repeated is not None and repeated >= REPEATED else ""
    return (
        way.name,
        seconds_text(timing.median_seconds),
        "too few runs" if interval is None else f"{seconds_text(interval[0])} - {seconds_text(interval[1])}",
        str(len(timing.seconds)),
        f"{timing.median_seconds / comparison.fastest[0].timing.median_seconds:.2f}",
        "" if way.estimate_seconds is None else seconds_text(way.estimate_seconds),
        bytes_text(audit.total_wire_bytes),
        flops_text(audit.work.flops_per_device) + again if audit.work.flops_per_device else "",
        "" if audit.memory is None else bytes_text(audit.memory.peak),
        collectives(audit),
    )


def collectives(audit: Audit) -> str:
    """The collectives of a compiled program, alike ones together.

    `2 all-gather over x, all-reduce over y`
    """
    found: dict[tuple[str, str], int] = {}
    for each in audit.collectives:
        key = each.kind, ",".join(each.axes) or "?"
        found[key] = found.get(key, 0) + (each.trips or 1)
    return ", ".join(f"{f'{count} ' if count > 1 else ''}{kind} over {axes}" for (kind, axes), count in found.items()) or "none"


def said(comparison: Comparison) -> Iterator[str]:
    """What stands below the table: who is fastest, why others are not, what each is, and what was left out."""
    yield verdict(comparison)
    first = comparison.fastest[0]
    for way in comparison.ways:
        if way not in comparison.fastest or way.timing.median_seconds > PLAINLY * first.timing.median_seconds:
            yield f"  {why(way, first, comparison.repeated(way))}"
    for way in comparison.ways:
        if way.differs:
            yield f"differs  {way.name} gives another result than {comparison.ways[0].name}: {way.differs}"
    for way in comparison.ways:
        if way.says:
            yield f"{way.name}: {way.says}"
    yield from (f"note  {note}" for note in comparison.notes)


def verdict(comparison: Comparison) -> str:
    """Who is fastest; several ways where their intervals meet."""
    first, *others = comparison.fastest
    if not others:
        alone = (
            f"its {CONFIDENCE:.0%} interval lies below all others" if len(comparison.ways) > 1 else "nothing stands beside it"
        )
        return f"fastest: {first.name} ({alone})"
    names = " and ".join(way.name for way in (first, *others))
    if any(way.timing.interval_seconds is None for way in comparison.ways):
        runs = counted(min(len(way.timing.seconds) for way in comparison.ways), "run")
        return f"fastest: not settled; with {runs} of each there is no interval yet: allow more seconds"
    return f"fastest: not settled between {names}, whose intervals overlap"


def why(way: Measured, first: Measured, repeated: float | None) -> str:
    """What a slower way does more than the fastest, by their compiled programs."""
    mine, best = way.audit, first.audit
    parts = []
    flops, fewer = mine.work.flops_per_device, best.work.flops_per_device
    if flops > REPEATED * fewer:
        again = f", every matmul {repeated:.3g} times over" if repeated is not None and repeated >= REPEATED else ""
        parts.append(f"each device multiplies {_times(flops, fewer)}{again}")
    if mine.total_wire_bytes > 1.01 * best.total_wire_bytes:
        parts.append(f"sends {bytes_text(mine.total_wire_bytes)}, not {bytes_text(best.total_wire_bytes)}")
    many, few = (sum(each.trips or 1 for each in audit.collectives) for audit in (mine, best))
    if many > few:
        parts.append(f"runs {counted(many, 'collective')}, not {few}")
    if mine.memory is not None and best.memory is not None and mine.memory.temporaries > 1.01 * best.memory.temporaries:
        parts.append(f"holds {bytes_text(mine.memory.temporaries)} of temporaries, not {bytes_text(best.memory.temporaries)}")
    if not parts:
        parts.append("multiplies and sends no more: the rest is how the program is made and called")
    slower = way.timing.median_seconds / first.timing.median_seconds
    return f"{way.name} takes {slower:.3g} times as long as {first.name}: {'; '.join(parts)}"


def _times(more: float, less: float) -> str:
    return f"{more / less:.3g} times as much" if less else f"{flops_text(more)}, not none"


def facts(comparison: Comparison) -> dict[str, Any]:
    """The comparison for JSON; the keys are stable. All bytes and FLOPs are those of one device in one call."""
    return {
        "what": comparison.what,
        "where": comparison.where,
        "ways": [_facts(way, comparison.repeated(way)) for way in comparison.ways],
        "fastest": [way.name for way in comparison.fastest],
        "certain": comparison.is_certain,
        "confidence": CONFIDENCE,
        "notes": list(comparison.notes),
    }


def _facts(way: Measured, repeated: float | None) -> dict[str, Any]:
    audit, interval = way.audit, way.timing.interval_seconds
    return {
        "name": way.name,
        "says": way.says,
        "median_seconds": way.timing.median_seconds,
        "interval_seconds": None if interval is None else list(interval),
        "seconds": list(way.timing.seconds),
        "estimate_seconds": way.estimate_seconds,
        "collectives": [
            {"kind": each.kind, "axes": list(each.axes), "trips": each.trips, "wire_bytes": each.wire_bytes}
            for each in audit.collectives
        ],
        "wire_bytes": audit.total_wire_bytes,
        "flops_per_device": audit.work.flops_per_device,
        "repeated": repeated,
        "memory_bytes": None if audit.memory is None else audit.memory.peak,
        "differs": way.differs,
    }


def unread(ways: Sequence[Measured]) -> Iterator[str]:
    """A note for each way of whose compiled text something could not be read."""
    for way in ways:
        if way.audit.unread:
            lines = counted(len(way.audit.unread), "line")
            yield f"{way.name}: {lines} of its compiled text could not be read: it may send and multiply more than is said"
