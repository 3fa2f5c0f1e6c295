"""What steps cost where they stand: TPU compilers copy an array, or do not, by what made it and by what reads it.

- A matmul reads a slice, and the blocks of a gather, where they are; for others a slice is copied, and the blocks are put
  together first.
- A matmul that starts a program waits until its inputs are fetched to the chip's own memory.
- A matmul whose result an all-to-all cuts at once has an input turned: one of two dimensions, the fastest of which is cut.

Read off some 400 compiled programs of random shapes on five chips (libtpu 0.0.50).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from shardwise.layout import Layout
from shardwise.planning.prices import FETCHED, Costs, StepCost
from shardwise.planning.tiles import Blocks, Order
from shardwise.program import Program
from shardwise.steps import (
    AllGather,
    AllToAll,
    Einsum,
    Fused,
    Slice,
    Step,
    collectives_of,
    consumed,
    product_of,
    touched,
)


class Moved(NamedTuple):
    """The bytes that a step takes and makes on a device, and how its blocks lie in memory."""

    took: float
    made: float
    blocks: Blocks


def with_copies(
    program: Program, states: Sequence[Mapping[str, Layout]], found: Sequence[StepCost], moved: Sequence[Moved],
    inputs: Mapping[str, tuple[float, Order | None]], costs: Costs,
) -> list[StepCost]:  # fmt: skip
    """The cost of each step where it stands, from what it would be anywhere.

    Args:
        states: the layouts before each step.
        found: the cost of each step alone; `moved` are the bytes of each.
        inputs: of each input its bytes on a device, and the order of its dimensions in memory.
    """
    if costs.hardware.compiler is None:
        return list(found)
    known = []
    for number, (step, cost, bytes_) in enumerate(zip(program.steps, found, moved, strict=True)):
        match step:
            case Slice():
                known.append(_instead(cost, _cut_out(step, _reader(program, number), bytes_, costs)))
            case AllGather():
                seconds = _put_together(_reader(program, number), bytes_, costs)
                known.append(_beside(cost, seconds, "blocks put together", costs))
            case Einsum():
                made = {touched(each) for each in program.steps[:number]}
                waits = all(isinstance(each, Slice) for each in program.steps[:number])
                cost = _fetched(cost, [inputs[name][0] for name in step.operands], bytes_, costs) if waits else cost
                operand = _turned(program, number, states[number], {k: v[1] for k, v in inputs.items() if k not in made})
                seconds = (
                    costs.turned(costs.arithmetic.name("S", inputs[operand][0], "B", "bytes of a shard")) if operand else 0.0
                )
                known.append(_beside(cost, seconds, f"{operand} turned for the all-to-all", costs))
            case _:
                known.append(cost)
    return known


def _instead(cost: StepCost, seconds: float) -> StepCost:
    """The cost of a step that takes other seconds than alone."""
    return replace(cost, seconds=seconds, saved_seconds=cost.saved_seconds + float(cost.seconds - seconds))


def _beside(cost: StepCost, seconds: float, label: str, costs: Costs) -> StepCost:
    """The cost of a step with a copy beside."""
    return _instead(cost, cost.seconds + costs.arithmetic.name("", seconds, "s", label)) if seconds else cost


def _reader(program: Program, number: int) -> Step | None:
    """The next step that takes what a step makes; None where it is the result."""
    name = touched(program.steps[number])
    return next((each for each in program.steps[number + 1 :] if name in (*consumed(each), touched(each))), None)


def _cut_out(step: Slice, reader: Step | None, bytes_: Moved, costs: Costs) -> float:
    """Seconds of a slice: none where a matmul or another slice reads what is kept."""
    sent = {part.array for part in collectives_of(reader)} if isinstance(reader, Fused) else set()
    if isinstance(reader, Slice | Einsum) or (isinstance(reader, Fused) and step.array not in sent):
        return 0.0
    return costs.cut_out(bytes_.made, bytes_.blocks)


def _put_together(reader: Step | None, bytes_: Moved, costs: Costs) -> float:
    """Seconds in which the blocks of a gather are put together; those of a result are where it is copied to its place."""
    if reader is None or product_of(reader) is not None:
        return 0.0
    return costs.put_together(bytes_.made, bytes_.blocks)


def _fetched(cost: StepCost, inputs: Sequence[float], bytes_: Moved, costs: Costs) -> StepCost:
    """The cost of a matmul that starts a program."""
    fetched, waited = costs.fetched(inputs)
    if not fetched:
        return cost
    near = min(1.0, fetched / sum(inputs))
    flops = costs.arithmetic.name("FLOPs", cost.flops, "FLOPs")
    seconds = costs.einsum(flops, bytes_.took * (1 - near * (1 - FETCHED)), bytes_.made)
    return _instead(cost, seconds + costs.arithmetic.name("", waited, "s", "inputs fetched"))


def _turned(
    program: Program, number: int, before: Mapping[str, Layout], orders: Mapping[str, Order | None]
) -> str | None:  # fmt: skip
    """The input that is turned for a matmul, by the orders in which inputs lie in memory that are as they came."""
    step, following = program.steps[number], next(iter(program.steps[number + 1 :]), None)
    if not isinstance(following, AllToAll) or following.array != touched(step):
        return None
    for operand in consumed(step):
        order = orders.get(operand)
        if order is not None and len(order) == 2 and before[operand].names[order[-1]] == following.target_dim:
            return operand
    return None
