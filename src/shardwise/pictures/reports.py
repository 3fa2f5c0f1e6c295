"""What a report holds, as plain facts: figures, placements, scenes, charts, ranking, memory, and what was compiled."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardwise.errors import AuditMismatchError, counted
from shardwise.pictures.boards import board
from shardwise.pictures.estimates import memory_steps, wire_table
from shardwise.pictures.lanes import timeline_lanes
from shardwise.pictures.picture import Board, Lanes, Table
from shardwise.pictures.placement import Placement
from shardwise.pictures.scenes import Play, play
from shardwise.planning.agreement import long, notes
from shardwise.planning.explain import ranking_rows, steps_text, summary
from shardwise.planning.prices import ITEM_BYTES
from shardwise.planning.problem import assumed_of
from shardwise.planning.ranking import Ranking
from shardwise.units import bytes_text, flops_text, seconds_text

if TYPE_CHECKING:
    from shardwise.compiled.audit import Audit
    from shardwise.schedule.timeline import Timeline

MOST_BLOCKS = 8  # rows and columns of the blocks of a placement


@dataclass(frozen=True, slots=True)
class Figure:
    """A number that counts: what it is, itself, a word beside it, and where it is a share of something, which."""

    name: str
    value: str
    note: str = ""
    share: float | None = None


@dataclass(frozen=True, slots=True)
class Rank:
    """A candidate: its row of the ranking, and its time and wait as shares of the slowest one's."""

    row: tuple[str, ...]
    share: float
    exposed: float
    steps: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """Lanes over so many seconds, that can be looked at closely."""

    name: str
    lanes: Lanes
    seconds: float


@dataclass(frozen=True, slots=True)
class Compiled:
    """What the compiler made: whether it is as planned (or how it differs), its collectives, and what else there is."""

    headline: str
    differs: str
    collectives: Table | None
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Sheet:
    """A whole report.

    Attributes:
        title: the equation.
        facts: what was given, by name.
        verdict: what was chosen, and by how much.
        stages: the estimate, and beside it what was compiled and what was measured, where there is one of them.
        memory: the bytes that one device holds, moment by moment; `room` how many it has, where that is known.
    """

    title: str
    facts: tuple[tuple[str, str], ...]
    verdict: str
    figures: tuple[Figure, ...]
    stages: Table | None
    placements: tuple[Board, ...]
    play: Play
    charts: tuple[Chart, ...]
    ranks: tuple[Rank, ...]
    memory: tuple[tuple[str, float], ...]
    room: float | None
    wire: Table
    compiled: Compiled | None
    code: str
    assumed: tuple[str, ...]


def sheet(ranked: Ranking, code: str, audit: Audit | None = None, measured: Timeline | None = None) -> Sheet:
    """Everything that a plan says, and where there is one an audit, and a run.

    Args:
        code: the best program as source to copy.
    """
    task, best = ranked.task, ranked.best
    room = None if task.hardware.shared else task.hardware.memory_bytes.value / task.hardware.devices_per_chip
    inputs = ITEM_BYTES[task.dtype] * sum(
        math.prod(layout.shard_shape(task.sizes, task.mesh)) for _, layout in best.program.inputs
    )
    facts = (
        ("sizes", ", ".join(f"{dim}={size}" for dim, size in task.sizes.items())),
        ("numbers", task.dtype),
        ("mesh", f"{task.mesh} ({counted(task.mesh.size, 'device')})"),
        ("hardware", task.hardware.title),
    )
    return Sheet(
        title=str(task.equation),
        facts=facts,
        verdict=_verdict(ranked),
        figures=tuple(_figures(ranked, room)),
        stages=_stages(ranked, audit, measured),
        placements=tuple(_placements(ranked)),
        play=play(best.program, task.sizes, best.estimate.steps),
        charts=tuple(_charts(ranked, audit, measured)),
        ranks=tuple(_ranks(ranked)),
        memory=memory_steps(best, inputs) if best.estimate.steps else (),
        room=room,
        wire=wire_table(best),
        compiled=None if audit is None else _compiled(audit, ranked),
        code=code,
        assumed=(assumed_of(task), *notes(ranked)),
    )


def _verdict(ranked: Ranking) -> str:
    said = f"Of {counted(len(ranked), 'program')} the fastest is: {summary(ranked.best.program)}."
    others = [candidate for candidate in ranked if candidate is not ranked.best]
    if not others or not ranked.best.seconds:
        return said
    ratio = others[0].seconds / ranked.best.seconds
    if ratio < 1.005:
        return f"{said} The next one is as fast."
    return f"{said} The next one takes {ratio:.2f} times as long."


def _figures(ranked: Ranking, room: float | None) -> Iterator[Figure]:
    best = ranked.best
    cost, whole = best.estimate, best.seconds
    known = best.confirmed
    how = f"estimated{long(ranked.task, best)}" if known is None else "modelled from what was compiled"
    yield Figure("time", seconds_text(whole), how if best.measured_seconds is None else "measured, a median of runs")
    exposed, of_all = (cost.exposed_seconds, cost.seconds) if known is None else (known.exposed_seconds, whole)
    yield Figure("waiting for transfers", seconds_text(exposed), "exposed", exposed / of_all if of_all else None)
    yield Figure("each device sends", bytes_text(cost.total_wire_bytes), "nothing moves" if not cost.total_wire_bytes else "")
    of = f"of {bytes_text(room)}" if room else ""
    yield Figure("memory of a device", bytes_text(cost.peak_memory_bytes), of, cost.peak_memory_bytes / room if room else None)
    if cost.flops:
        again = "nothing twice" if cost.redundancy < 1.01 else f"every matmul {cost.redundancy:.3g} times"
        yield Figure("FLOPs of a device", flops_text(cost.flops).removesuffix("FLOPs"), again)


def _placements(ranked: Ranking) -> Iterator[Board]:
    program, task = ranked.best.program, ranked.task
    for name, layout in (*program.inputs, (program.output, program.result)):
        yield board(Placement.of(name, layout.on(task.mesh), task.sizes, task.mesh), MOST_BLOCKS, MOST_BLOCKS)


def _stages(ranked: Ranking, audit: Audit | None, measured: Timeline | None) -> Table | None:
    """One figure to a row, and a column for each way in which it is known; None where the estimate stands alone."""
    modelled = _modelled(ranked, audit)
    if audit is None and modelled is None and measured is None:
        return None
    cost, flops = ranked.best.estimate, audit.work.flops_per_device if audit is not None else None
    sent = None if audit is None else audit.total_wire_bytes
    memory = None if audit is None or audit.memory is None else audit.memory.peak
    times = [None if line is None else line.step_seconds for line in (modelled, measured)]
    waits = [None if line is None else line.exposed_seconds for line in (modelled, measured)]
    rows: tuple[tuple[str, Callable[[float], str], tuple[float | None, ...]], ...] = (
        ("time of a call", seconds_text, (cost.seconds, *times)),
        ("waiting for transfers", seconds_text, (cost.exposed_seconds, *waits)),
        ("each device sends", bytes_text, (cost.total_wire_bytes, sent, None)),
        ("memory of a device", bytes_text, (cost.peak_memory_bytes, memory, None)),
        ("FLOPs of a device", flops_text, (cost.flops, flops, None)),
    )
    said = tuple((name, *("-" if value is None else form(value) for value in values)) for name, form, values in rows)
    compiled_on = f"compiled for {audit.target}" if audit is not None else "compiled"
    notes = ["The time of the compiled program is modelled from its schedule."] if modelled is not None else []
    notes += [f"Measured on {measured.hardware}."] if measured is not None else []
    return Table("", ("", "estimated", compiled_on, "measured"), said, frozenset({1, 2, 3}), tuple(notes))


def _modelled(ranked: Ranking, audit: Audit | None) -> Timeline | None:
    """The replay of what was compiled: of the audit, or of the plan where it was confirmed."""
    if audit is None:
        return ranked.best.confirmed
    from shardwise.compiled.table import replayed

    return replayed(audit)


def _charts(ranked: Ranking, audit: Audit | None, measured: Timeline | None) -> Iterator[Chart]:
    best, modelled = ranked.best, _modelled(ranked, audit)
    if best.estimate.steps and not best.is_compilers_own:
        yield Chart("The estimate", timeline_lanes(best.timeline()), best.estimate.seconds)
    if modelled is not None:
        yield Chart(f"The compiled program on {modelled.hardware}", timeline_lanes(modelled), modelled.step_seconds)
    if measured is not None:
        yield Chart(f"Measured on {measured.hardware}", timeline_lanes(measured), measured.step_seconds)


def _ranks(ranked: Ranking) -> Iterator[Rank]:
    slowest = max(candidate.seconds for candidate in ranked) or 1.0
    for row, candidate in zip(ranking_rows(ranked)[1:], ranked, strict=True):
        exposed = candidate.estimate.exposed_seconds if candidate.confirmed is None else candidate.confirmed.exposed_seconds
        yield Rank(row, candidate.seconds / slowest, exposed / slowest, tuple(line.strip() for line in steps_text(candidate)))


def _compiled(audit: Audit, ranked: Ranking) -> Compiled:
    from shardwise.compiled.table import HEAD, below, headline, replayed, rows

    timeline = replayed(audit)
    listed, left_out = rows(audit, timeline)
    notes = (f"... and {left_out} more rows",) if left_out else ()
    table = Table("", HEAD, tuple(listed), frozenset({2, 3, 5}), notes) if listed else None
    differs = ""
    try:
        audit.assert_matches(ranked)
    except AuditMismatchError as error:
        differs = str(error)
    return Compiled(headline(audit), differs, table, tuple(below(audit, timeline)))
