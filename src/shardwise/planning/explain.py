"""A plan in words: every candidate with its cost, and what the ones not chosen lose."""

from __future__ import annotations

from typing import Any

from shardwise.errors import counted, one_line
from shardwise.planning.agreement import CLOSE, held_out, long, notes, short
from shardwise.planning.cost import Estimate
from shardwise.planning.problem import Problem, assumed_of
from shardwise.planning.ranking import Candidate, Ranking
from shardwise.planning.step_cost import StepCost
from shardwise.program import Program
from shardwise.steps import (
    AllGather,
    Automatic,
    Einsum,
    Fused,
    ReduceScatter,
    Slice,
    consumed,
    describe,
    kind,
    moved_axes,
    touched,
)
from shardwise.units import bytes_text, seconds_text


def summary(program: Program) -> str:
    """A program in one line.

    >>> from shardwise.layout import Layout; from shardwise.mesh import Mesh; from shardwise.steps import AllGather
    >>> summary(Program(Mesh.parse("x=2"), (("A", Layout.parse("I_x")),), (AllGather("A", "I", ("x",)),), "A"))
    'all-gather A over x (I)'
    """
    words = []
    for step in program.steps:
        if isinstance(step, Einsum):
            words.append("multiply" if len(step.operands) > 1 else "sum")
        elif isinstance(step, Fused | Automatic):
            words.append(describe(step))
        else:
            dims = f" ({step.dim})" if isinstance(step, AllGather | ReduceScatter | Slice) else ""
            words.append(f"{kind(step)} {step.array} over {','.join(step.axes)}{dims}")
    return ", then ".join(words) or "nothing to do"


def loses(best: Estimate, other: Estimate) -> str:
    """What a candidate costs beyond the best one, and where that comes from."""
    ratio = other.seconds / best.seconds if best.seconds else 1.0
    if other.seconds < best.seconds * 0.9995:  # it is not what was asked for first
        return f"{ratio:.2f}x the time" + _memory_said(best, other)
    if other.seconds <= best.seconds * 1.0005:
        return "as fast" + _memory_said(best, other)
    parts = []
    extra_moving = other.exposed_seconds - best.exposed_seconds
    extra_compute = other.compute_seconds - best.compute_seconds
    if other.redundancy > best.redundancy * 1.01:
        parts.append(f"every matmul is computed {other.redundancy:.3g} times (+{seconds_text(extra_compute)})")
    elif extra_compute > 0.01 * best.seconds:
        parts.append(f"slower local work (+{seconds_text(extra_compute)})")
    if extra_moving > 0.001 * best.seconds:
        more = other.total_wire_bytes - best.total_wire_bytes
        plain = "transfers that nothing hides" if best.exposed_fraction < 1 else "slower collectives"
        what = f"{bytes_text(more)} more on the wire" if more > 0 else plain
        parts.append(f"{what} (+{seconds_text(extra_moving)})")
    if not parts:
        parts.append("more steps")
    return f"{ratio:.2f}x the time: " + ", ".join(parts) + _memory_said(best, other)


def _memory_said(best: Estimate, other: Estimate) -> str:
    if other.peak_memory_bytes < 0.95 * best.peak_memory_bytes:
        return f"; needs {bytes_text(best.peak_memory_bytes - other.peak_memory_bytes)} less memory"
    return ""


def explain(ranked: Ranking) -> str:
    """The whole plan as text: the problem, the assumptions, the ranking, and the best program step by step."""
    task, candidates = ranked.task, ranked.candidates
    sizes = ", ".join(f"{dim}={size}" for dim, size in task.sizes.items())
    best = candidates[0]
    estimated = "" if best.measured_seconds is None else " estimated"
    lines = [
        f"{task.equation}",
        f"  {sizes}; {task.dtype}; {task.mesh.told}; {task.hardware.title}{'; exact' if task.exact else ''}",
        f"  {assumed_of(task)}",
        "",
        *_ranking(ranked),
        *(f"  {line}" for line in left_out(ranked)),
        *(f"  {line}" for line in notes(ranked)),
        "",
        f"The best, step by step ({seconds_text(best.estimate.seconds)}{estimated}{long(task, best)}; of it "
        f"{seconds_text(best.estimate.exposed_seconds)} of exposed transfers; "
        f"{bytes_text(best.estimate.peak_memory_bytes)} of memory on each device):",
        *steps_text(best),
    ]
    return "\n".join(map(one_line, lines))


def left_out(ranked: Ranking) -> list[str]:
    """What to say of a search that left programs out: why, and how much faster one of them could be; else nothing."""
    if ranked.searched_all:
        return []
    task, best = ranked.task, ranked.best.estimate.seconds
    axes = sum(size > 1 for _, size in task.mesh.axes)
    counts = [f"{axes} mesh axes", counted(len(task.equation.dims), "dimension")]
    if len(task.equation.operands) > 1:
        counts.append(counted(len(task.equation.operands), "operand"))
    said = [f"not all programs were searched: {', '.join(counts[:-1])} and {counts[-1]} make too many layouts"]
    if ranked.floor_seconds:
        times = f"{best / ranked.floor_seconds:.3g} times that"
        said.append(f"no program takes less than {seconds_text(ranked.floor_seconds)}; the best found takes {times}")
    return said


def ranking_rows(ranked: Ranking) -> list[tuple[str, ...]]:
    """The ranking as a table: its head, and a row for each candidate; the last column says what it loses.

    Behind an estimate stands how near those of its kind came (`shardwise.planning.agreement`).
    """
    candidates = ranked.candidates
    time = "modelled" if ranked.best.measured_seconds is None else "measured"
    rows: list[tuple[str, ...]] = [("", time, "exposed", "FLOPs/device", "wire/device", "memory", "program", "")]
    for number, candidate in enumerate(candidates, 1):
        cost = candidate.estimate
        rows.append(
            (
                f"{'>' if number == 1 else ' '}{number}",
                seconds_text(candidate.seconds) + short(ranked.task, candidate),
                seconds_text(cost.exposed_seconds),
                f"{cost.flops:.3g}",
                bytes_text(cost.total_wire_bytes),
                bytes_text(cost.peak_memory_bytes),
                summary(candidate.program),
                "chosen" if number == 1 else _said(candidates[0], candidate),
            )
        )
    return rows


def _ranking(ranked: Ranking) -> list[str]:
    rows = ranking_rows(ranked)
    widths = [max(len(row[column]) for row in rows) for column in range(6)]
    lines = []
    for row in rows:
        figures = "  ".join(cell.rjust(width) for cell, width in zip(row[:6], widths, strict=True))
        lines.append(f"{figures}  {row[6]}".rstrip())
        if row[7] and row[7] != "chosen":
            lines.append(f"{' ' * (sum(widths) + 2 * len(widths))}  {row[7]}")
    return lines


def _said(best: Candidate, other: Candidate) -> str:
    """What a candidate loses: by runs or compiled schedules where both are known, else by the estimates."""
    ratio = other.estimate.seconds / best.estimate.seconds if best.estimate.seconds else 1.0
    if best.is_estimated and ratio < 0.9995 and other.program.overlaps > best.program.overlaps:
        return f"{ratio:.2f}x the time by overlapping: such estimates err by more"
    if best.is_estimated:
        return loses(best.estimate, other.estimate)
    measured = best.measured_seconds is not None
    if other.is_estimated:
        return f"not {'measured' if measured else 'compiled'}: an estimate"
    return f"{other.seconds / best.seconds:.3g}x the time of the best, as {'measured' if measured else 'compiled'}"


def steps(candidate: Candidate) -> str:
    """The steps of a candidate, a line for each."""
    return "\n".join(map(one_line, steps_text(candidate)))


def steps_text(candidate: Candidate) -> list[str]:
    """The steps of a candidate with layouts before and after, and the seconds and bytes of each."""
    program = candidate.program
    states = program.states()
    if not program.steps:
        return ["  the array already lies as wanted: nothing moves"]
    lines = []
    for step, cost, before, after in zip(program.steps, candidate.estimate.steps, states, states[1:], strict=False):
        left = " · ".join(f"{name}{before[name]}" for name in consumed(step))
        right = f"{touched(step)}{after[touched(step)]}"
        wire = f", {sent_text(cost)}" if moved_axes(step) else ""
        lines.append(
            f"  {seconds_text(cost.seconds):>8}  {left} -> {right}   {_words(describe(step))}{wire}{_neighbours(cost)}"
        )
    return lines


def _neighbours(cost: StepCost) -> str:
    """What of a step's transfer runs while others do."""
    if cost.saved_seconds <= 0:  # a step that waits until inputs are fetched takes longer than alone
        return ""
    where = "the steps before" if cost.beside is None else f"step {cost.beside.number + 1}"
    return f", {seconds_text(cost.saved_seconds)} of it beside {where}"


def sent_text(cost: StepCost) -> str:
    """What a device sends in a step: `58.7 MB sent`, and what of it leaves its node or slice."""
    slow = f", {bytes_text(cost.network_bytes)} of it over the network" if cost.network_bytes else ""
    return f"{bytes_text(cost.wire_bytes)} sent{slow}"


def _words(text: str) -> str:
    return "local einsum" if text.startswith("einsum") else text.split(" to [")[0]


def _held_out(task: Problem, candidate: Candidate) -> dict[str, float] | None:
    """How near estimates of a candidate's kind came."""
    found = held_out(task, candidate)
    return None if found is None else {"within": CLOSE, "near": found[0], "of": found[1]}


def facts(ranked: Ranking) -> dict[str, Any]:
    """A plan as plain data: seconds, bytes and FLOPs of each candidate, and its steps in words."""
    task = ranked.task
    return {
        "equation": str(task.equation),
        "sizes": dict(task.sizes),
        "mesh": dict(task.mesh.axes),
        "hardware": task.hardware.name,
        "topology": None if task.topology is None else str(task.topology),
        "topology_assumed": task.is_assumed,
        "dtype": task.dtype,
        "searched_all": ranked.searched_all,
        "floor_seconds": ranked.floor_seconds,
        "notes": list(notes(ranked)),
        "candidates": [
            {
                "steps": [describe(step) for step in candidate.program.steps],
                "result": str(candidate.program.result),
                "seconds": candidate.estimate.seconds,
                "confirmed_seconds": None if candidate.is_estimated else candidate.seconds,
                "compiler_options": dict(candidate.options),
                "held_out_cases": _held_out(task, candidate),
                "communication_seconds": candidate.estimate.communication_seconds,
                "flops": candidate.estimate.flops,
                "redundancy": candidate.estimate.redundancy,
                "wire_bytes": {f"{kind} {','.join(axes)}": n for (kind, axes), n in candidate.estimate.wire_bytes.items()},
                "network_bytes": candidate.estimate.network_bytes,
                "peak_memory_bytes": candidate.estimate.peak_memory_bytes,
            }
            for candidate in ranked
        ],
    }
