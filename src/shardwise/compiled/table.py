"""An audit as a table that a person acts on."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from shardwise.compiled.audit import Audit
from shardwise.compiled.facts import MADE_BY_A_PLAN, MADE_BY_THE_COMPILER, Collective
from shardwise.compiled.findings import REPEATED, Finding
from shardwise.errors import counted, leading, one_line
from shardwise.schedule.timeline import Timeline
from shardwise.units import bytes_text, flops_text, seconds_text

MOST_ROWS = 40
WIDTH = 160  # columns of what is told in words
MOST_FINDINGS = 10
MOST_LINES = 3  # of one row
RETURNS_NOTHING = "the function returns no array"  # how a note begins that stands first, since nothing below it counts
HEAD = ("collective", "over", "times", "sends", "array", "overlapped", "from")


def table(audit: Audit) -> str:
    """The whole audit as text."""
    timeline = replayed(audit)
    return "\n".join(map(one_line, [leading(headline(audit)), *_rows(audit, timeline), *below(audit, timeline)]))


def replayed(audit: Audit) -> Timeline | None:
    """The timeline of the hardware that was compiled for; None of one host that plays all devices.

    And none of a text that was not read whole: what is missing may be what takes the time.
    """
    known = audit.hardware is not None and not audit.hardware.shared and not audit.unread
    return audit.timeline() if known else None


def below(audit: Audit, timeline: Timeline | None) -> Iterator[str]:
    """What stands below the collectives: memory, work, time, what stands out, what could not be read, notes."""
    first = [note for note in audit.notes if note.startswith(RETURNS_NOTHING)]
    yield from (f"note    {note}" for note in first)
    yield from (*_memory(audit), *_work(audit), *_time(timeline))
    yield from standing_out(audit.findings)
    yield from _listed("unread", [one_line(str(unread)) for unread in audit.unread])
    yield from (f"note    {note}" for note in audit.notes if note not in first)


def headline(audit: Audit) -> str:
    """What was compiled, for what, and what it sends.

    `step on v5e:2x4, mesh x=8: 2 collectives, each device sends 22.0 MB a call`
    """
    ran = sum(collective.trips or 1 for collective in audit.collectives)
    least = "at least " if audit.unread else ""
    slow = f", {bytes_text(audit.total_network_bytes)} of it over the network" if audit.total_network_bytes else ""
    sends = f"each device sends {least}{bytes_text(audit.total_wire_bytes)} a call{slow}" if ran or least else "nothing is sent"
    return f"{audit.name} on {audit.target}, mesh {audit.mesh}: {least}{counted(ran, 'collective')}, {sends}"


def rows(audit: Audit, timeline: Timeline | None) -> tuple[list[tuple[str, ...]], int]:
    """A row for each kind of collective, alike ones together, below `HEAD`; and how many rows are left out."""
    groups: dict[tuple[object, ...], list[Collective]] = {}
    for c in audit.collectives:
        groups.setdefault((c.kind, c.axes, c.dtype, c.shape, where(c), c.trips), []).append(c)
    return [_row(them, timeline) for them in list(groups.values())[:MOST_ROWS]], max(len(groups) - MOST_ROWS, 0)


def _rows(audit: Audit, timeline: Timeline | None) -> Iterator[str]:
    found, left_out = rows(audit, timeline)
    if not found:
        return
    listed = [HEAD, *found]
    widths = [max(len(row[column]) for row in listed) for column in range(len(HEAD))]
    for row in listed:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    if left_out:
        yield f"  ... and {left_out} more rows"


def _row(them: Sequence[Collective], timeline: Timeline | None) -> tuple[str, ...]:
    first = them[0]
    times = str(sum(c.trips for c in them if c.trips)) if first.trips is not None else f"{len(them)} x ?"
    array = f"{first.dtype}[{','.join(map(str, first.shape))}]" + (f" and {first.arrays - 1} more" if first.arrays > 1 else "")
    sends = bytes_text(sum(c.wire_bytes for c in them))
    return (first.kind, ", ".join(first.axes) or "?", times, sends, array, _hidden(them, timeline), where(first))


def _hidden(them: Sequence[Collective], timeline: Timeline | None) -> str:
    if timeline is not None:
        shares = [share for share in map(timeline.share, them) if share is not None]
        moving = sum(share.transfer_seconds for share in shares)
        return f"{100 * (1 - sum(share.exposed_seconds for share in shares) / moving):.0f}%" if moving else ""
    behind = sum(bool(c.hidden_by) for c in them)
    return "no" if not behind else f"{behind} of {len(them)}"


def where(collective: Collective) -> str:
    """The source lines, with the files' names alone; of collectives that the compiler joined, those of all arrays."""
    if collective.source in (MADE_BY_THE_COMPILER, MADE_BY_A_PLAN):
        return collective.source
    lines = list(dict.fromkeys(line.short for line in collective.lines or (collective.line,)))
    more = f" and {len(lines) - MOST_LINES} more" if len(lines) > MOST_LINES else ""
    return ", ".join(lines[:MOST_LINES]) + more + (" (nearby)" if collective.inferred else "")


def _memory(audit: Audit) -> Iterator[str]:
    memory = audit.memory
    if memory is None:
        return
    have = ""
    if audit.room is not None and audit.hardware is not None and not audit.hardware.shared:
        have = f" of {bytes_text(audit.room)}" + (", which it does not fit" if audit.fits is False else "")
    parts = f"arguments {bytes_text(memory.arguments)}, outputs {bytes_text(memory.outputs)}, "
    parts += f"temporaries {bytes_text(memory.temporaries)}"
    yield f"memory  {bytes_text(memory.peak)} a device{have}: {parts}"
    if memory.host:
        yield f"host    {bytes_text(memory.host)} of the host's memory for each device"


def _work(audit: Audit) -> Iterator[str]:
    work = audit.work
    if work.flops_per_device or work.silent:
        repeated = work.repeated
        said = "" if repeated is None else ", nothing twice" if abs(repeated - 1) < REPEATED - 1 else (
            f", {repeated:.3g} times what the function asks for")  # fmt: skip
        without = f"; {counted(work.silent, 'kernel')} not counted, whose FLOPs are not stated" if work.silent else ""
        yield f"work    {flops_text(work.flops_per_device)} of matmuls a device{said}{without}"


def _time(timeline: Timeline | None) -> Iterator[str]:
    if timeline is not None:
        exposed = f"{seconds_text(timeline.exposed_seconds)} of it waiting for transfers"
        yield f"time    {seconds_text(timeline.step_seconds)} a call, {exposed} (modelled from the compiled schedule)"


def standing_out(found: Sequence[Finding]) -> Iterator[str]:
    """The findings of the most bytes; the rest in one line."""
    yield from _listed("stands out", [str(finding) for finding in found[:MOST_FINDINGS]])
    if rest := found[MOST_FINDINGS:]:
        wire, memory = sum(each.wire_bytes for each in rest), sum(each.memory_bytes for each in rest)
        held = f", {bytes_text(memory)} of memory" if memory else ""
        yield f"  ... and {len(rest)} more, {bytes_text(wire)} on the wire{held} (audit.findings, --json)"


def _listed(name: str, entries: Sequence[str]) -> Iterator[str]:
    if entries:
        yield name
        for number, entry in enumerate(entries[:MOST_ROWS], 1):
            first, *rest = entry.split("\n")
            yield from _folded(f"  {number}. ", first)
            yield from (folded for line in rest for folded in _folded("       ", line.strip()))
        if len(entries) > MOST_ROWS:
            yield f"  ... and {len(entries) - MOST_ROWS} more"


def _folded(before: str, text: str) -> list[str]:
    """A line, on several where it is long: below its own beginning."""
    wrapped = textwrap.wrap(text, WIDTH - len(before), break_long_words=False, break_on_hyphens=False)
    return [f"{' ' * len(before) if number else before}{line}" for number, line in enumerate(wrapped)]
