"""Neighbouring steps on one clock: the transfer of one runs while another computes, where the compiler lets it.

TPU compilers schedule a program by what needs what, not in the order in which it is written. The first hops of a ring start
as soon as the array is there and its links are free, beside whatever runs then, a collective over other axes too. On some
chips (`Compiler.gathers_ahead`) an all-gather runs beside the matmuls that need none of it; collectives that nothing but the
cores could wait for run one after the other. On chips of two cores, whose sparse cores gather, two gathers over other axes run
at once: so did 22 of 22 random ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardwise.planning.prices import Costs
from shardwise.planning.step_cost import Beside, StepCost
from shardwise.planning.step_prices import StepPrices
from shardwise.program import Program
from shardwise.steps import AllGather, Fused, GatherEinsum, Step, consumed, moved_axes, touched


def on_one_clock(program: Program, found: Sequence[StepCost], prices: StepPrices) -> list[StepCost]:
    """What each step takes of the clock, given what it would take alone.

    Args:
        found: the cost of each step, one after the other.
    """
    known, costs = list(found), prices.costs
    compiler = costs.hardware.compiler
    if compiler is None or len(known) < 2:
        return known
    if compiler.gathers_ahead.value:
        room = [float(cost.seconds) for cost in known]
        for number, step in enumerate(program.steps):
            if isinstance(step, AllGather):
                known[number] = _gathered_beside(program, number, known, room, costs)
    for number, step in enumerate(program.steps):
        if isinstance(step, GatherEinsum) and known[number].exposed_seconds:
            known[number] = _begun_ahead(program, number, step, known, prices)
    return known


def _gathered_beside(
    program: Program, number: int, known: Sequence[StepCost], room: list[float], costs: Costs
) -> StepCost:  # fmt: skip
    """The cost of a gather beside the steps that take the longest at a stretch, between what makes its array and what needs it.

    `room` is what is left of each step's seconds, beside which no other gather runs; it is taken.
    """
    cost = known[number]
    best = max(_stretches(program, number, known, costs), key=lambda stretch: sum(room[each] for each in stretch))
    hidden = left = min(cost.exposed_seconds, room[number], sum(room[each] for each in best))
    if not hidden:
        return cost
    room[number] -= hidden  # what runs beside others has no room for these
    first = next(each for each in best if room[each])
    after = known[first].seconds - room[first]
    for each in best:
        taken = min(left, room[each])
        room[each] -= taken
        left -= taken
    name = costs.arithmetic.name
    overlapped = -1.0 * name("overlapped", float(hidden), "s")
    return cost._replace(
        seconds=cost.seconds + name("", overlapped, "s", f"beside step {first + 1}"),
        exposed_seconds=cost.exposed_seconds - hidden,
        saved_seconds=cost.saved_seconds + float(hidden),
        beside=Beside(first, after, float(hidden)),
    )


def _stretches(program: Program, number: int, known: Sequence[StepCost], costs: Costs) -> list[list[int]]:
    """The steps beside which a gather may run: matmuls, and rings over other axes; no other collective in between."""
    step, found = program.steps[number], [list[int]()]
    others = (Fused, AllGather) if costs.hardware.devices_per_chip > 1 else Fused
    for other in _independent(program, number):
        mine = program.steps[other]
        if isinstance(mine, others) and not set(moved_axes(mine)) & set(moved_axes(step)):
            found[-1].append(other)
        elif known[other].transfer_seconds:
            found.append([])
        else:
            found[-1].append(other)
    return found


def _independent(program: Program, number: int) -> list[int]:
    """The steps around one that neither make its array nor need what it makes, in order."""
    name = touched(program.steps[number])
    before = next((k for k in reversed(range(number)) if name in _uses(program.steps[k])), -1)
    after = next((k for k in range(number + 1, len(program.steps)) if name in _uses(program.steps[k])), number + 1)
    return [k for k in range(before + 1, after) if k != number]


def _uses(step: Step) -> set[str]:
    return {*consumed(step), touched(step)}


def _begun_ahead(
    program: Program, number: int, step: GatherEinsum, known: Sequence[StepCost], prices: StepPrices
) -> StepCost:  # fmt: skip
    """The cost of a ring whose first hops start beside the steps before, back to one that makes its array or has its links."""
    ahead, cost = 0.0, known[number]
    for other in reversed(range(number)):
        earlier = program.steps[other]
        if step.gather.array in _uses(earlier) or set(moved_axes(earlier)) & set(moved_axes(step)):
            break
        ahead += float(known[other].seconds)
    ring, name = prices.at(program, number), prices.costs.arithmetic.name
    if not ahead or not ring.hides:
        return cost
    played = ring.played(ahead=name("ahead", ahead, "s", "of the steps before"))
    seconds = played.seconds
    if cost.fetched_seconds:
        seconds = seconds + name("", cost.fetched_seconds, "s", "inputs fetched")
    saved, exposed = cost.saved_seconds + float(cost.seconds - seconds), min(played.exposed_seconds, ring.moving)
    return cost._replace(seconds=seconds, exposed_seconds=exposed, saved_seconds=saved, ahead_seconds=ahead)
