"""What steps cost where they stand: TPU compilers copy an array, or do not, by what made it and by what reads it.

- A matmul reads a slice, and the whole tiles of a gather, where they are; for others a slice is copied, and blocks that end
  within a tile are put together first, for a matmul as far as the chip's own memory has no room.
- Where a collective takes the result of a matmul, the chip keeps it, as far as there is room: it is made sooner.
- Inputs that the chip's own memory has room for are fetched there from the start on, whole, one after the other: a matmul
  or a slice waits for its own.

Read off some 400 compiled programs of random shapes on five chips (libtpu 0.0.50).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from shardwise.dataflow import reader, untouched_until
from shardwise.planning.prices import FETCHED, Costs
from shardwise.planning.step_cost import StepCost
from shardwise.planning.tiles import Blocks
from shardwise.planning.told import summed_as_one
from shardwise.program import Program
from shardwise.steps import (
    AllGather,
    AllToAll,
    Collective,
    CollectivePermute,
    Einsum,
    EinsumGather,
    EinsumScatter,
    Fused,
    Slice,
    Step,
    collectives_of,
    consumed,
    einsum_of,
    touched,
    unsent,
)


class Footprint(NamedTuple):
    """The bytes that a step takes and makes on a device, and how its blocks lie in memory."""

    took: float
    made: float
    blocks: Blocks


def with_copies(
    program: Program, found: Sequence[StepCost], moved: Sequence[Footprint], inputs: Mapping[str, float], costs: Costs,
    sizes: Mapping[str, int],
) -> list[StepCost]:  # fmt: skip
    """The cost of each step where it stands, from what it would be anywhere.

    Args:
        found: the cost of each step alone; `moved` are the bytes of each.
        inputs: of each input its bytes on a device.
    """
    if costs.hardware.compiler is None:
        return list(found)
    known, fetching = [], _Fetching(costs, inputs)
    steps = zip(program.steps, found, moved, untouched_until(program), strict=False)
    for number, (step, cost, bytes_, given_still) in enumerate(steps):
        fetching.given = given_still
        match step:
            case Slice():
                taker, given = reader(program, number), step.array in fetching.given
                joined = isinstance(taker, EinsumScatter | EinsumGather) and _is_joined(step, taker, program, sizes)
                seconds = _cut_out(step, taker, bytes_, costs, given=given, joined=joined)
                cost = fetching.read([step.array] if seconds else [], _instead(cost, seconds))
            case AllGather():
                seconds = _put_together(reader(program, number), bytes_, costs)
                cost = _beside(cost, seconds, "blocks put together", costs)
            case CollectivePermute() if bytes_.made < bytes_.took:  # it sends a slice
                cost = fetching.read([step.array], cost)
            case AllToAll():
                cost = _beside(cost, _exchanged(program, number, bytes_, costs), "copies beside a matmul", costs)
            case Einsum():
                cost = _multiplied(
                    cost, step, bytes_, inputs, fetching, costs, is_kept=isinstance(reader(program, number), Collective)
                )
                cost = fetching.read(step.operands, cost)
            case _ if isinstance(step, Fused):
                cost = fetching.read([name for name in consumed(step) if name in unsent(step)], cost)
            case _:
                pass
        fetching.clock += float(cost.seconds)
        known.append(cost)
    return known


def fetched_bytes(program: Program, inputs: Mapping[str, float], costs: Costs) -> float:
    """Of the inputs that a chip fetches the largest, in bytes: it is fetched for the next run as well, so its room is taken.

    Of gathers on v5e and v6e (80 compiled, with and without a slice or a matmul before) the result is kept as long as both have
    room together: up to 117.4 and 99.9 MB it is, from 118.0 and 100.7 MB on it is not.
    """
    read = (
        name
        for step, given in zip(program.steps, untouched_until(program), strict=False)
        if not isinstance(step, Collective)
        for name in (unsent(step) if isinstance(step, Fused) else consumed(step))
        if name in given
    )
    return max((inputs[name] for name in read if costs.is_fetched(inputs[name])), default=0.0)


@dataclass(slots=True)
class _Fetching:
    """What is fetched of the inputs, from the start of a program on, and the clock beside it.

    `inputs` are their bytes; `given` those that nothing but slices took so far.
    """

    costs: Costs
    inputs: Mapping[str, float]
    given: frozenset[str] = frozenset()
    clock: float = 0.0
    done: float = 0.0
    fetched: set[str] = field(default_factory=set)

    def read(self, names: Sequence[str], cost: StepCost) -> StepCost:
        """The cost of a step that reads arrays, once those of them that are inputs are there."""
        sizes = [self.inputs[name] for name in names if name in self.given and name not in self.fetched]
        self.fetched.update(names)
        taken, seconds = self.costs.fetched(sizes)
        if not taken:
            return cost
        self.done += float(seconds)
        waited = min(float(seconds), self.done - self.clock)
        if waited <= 0:
            return cost
        if waited < float(seconds):
            seconds = self.costs.arithmetic.name("waited", waited, "s", "what of it no step before overlaps")
        return _beside(cost, seconds, "inputs fetched", self.costs)._replace(fetched_seconds=float(seconds))


def _instead(cost: StepCost, seconds: float) -> StepCost:
    """The cost of a step that takes other seconds than alone."""
    return cost._replace(seconds=seconds, saved_seconds=cost.saved_seconds + float(cost.seconds - seconds))


def _beside(cost: StepCost, seconds: float, label: str, costs: Costs) -> StepCost:
    """The cost of a step with a copy beside."""
    return _instead(cost, cost.seconds + costs.arithmetic.name("", seconds, "s", label)) if seconds else cost


def _is_joined(step: Slice, taker: EinsumScatter | EinsumGather, program: Program, sizes: Mapping[str, int]) -> bool:
    """Whether a ring takes several dimensions of what a slice keeps as one."""
    before = program.states()[program.steps.index(taker)]
    terms = [before[name].names for name in taker.einsum.operands]
    shapes = [before[name].shard_shape(sizes, program.mesh) for name in taker.einsum.operands]
    return any(run[0] in before[step.array].names for run in summed_as_one(terms, taker.einsum.dims, shapes))


def _cut_out(step: Slice, taker: Step | None, bytes_: Footprint, costs: Costs, *, given: bool, joined: bool) -> float:
    """Seconds of a slice: none where a matmul or another slice reads what is kept.

    Through the rows of tiles it is copied for a matmul too: where the first dimension of three lies there in memory. Many
    matmuls of a ring would cut it out of three dimensions again and again; so it is copied once, but along the first unless the
    ring takes several dimensions as one (`joined`). And for a ring that gathers its result out of what is no input.
    """
    sent = {part.array for part in collectives_of(taker)} if isinstance(taker, Fused) else set()
    if bytes_.blocks.tiles == "rows" and not isinstance(taker, Slice):
        return costs.cut_out(bytes_.made, bytes_.blocks)
    if isinstance(taker, Slice | Einsum):
        return 0.0
    in_parts = joined or (bytes_.blocks.deep and not bytes_.blocks.first) or (isinstance(taker, EinsumGather) and not given)
    if isinstance(taker, Fused) and step.array not in sent and not in_parts:
        return 0.0
    return costs.cut_out(bytes_.made, bytes_.blocks)


def _maker(program: Program, number: int) -> Step | None:
    """The step before that made what a step takes; None where it is an input."""
    taken = consumed(program.steps[number])
    return next((each for each in reversed(program.steps[:number]) if touched(each) in taken), None)


def _exchanged(program: Program, number: int, bytes_: Footprint, costs: Costs) -> float:
    """Seconds of copies that an all-to-all takes beyond those it takes within collectives: a matmul stands beside it.

    One that ends a program has those of its result already.
    """
    maker, taker = _maker(program, number), reader(program, number)
    made = maker is not None and einsum_of(maker) is not None
    read = taker is not None and einsum_of(taker) is not None
    if taker is None or made == read:
        return 0.0
    beside = costs.exchanged(bytes_.took, bytes_.blocks, "made" if made else "read")
    return beside - costs.exchanged_within(bytes_.took, bytes_.blocks)


def _put_together(taker: Step | None, bytes_: Footprint, costs: Costs) -> float:
    """Seconds in which the blocks of a gather are put together; those of a result are where it is copied to its place."""
    if taker is None:
        return 0.0
    if einsum_of(taker) is not None:
        return costs.made_readable(bytes_.took, bytes_.made, bytes_.blocks)
    return costs.put_together(bytes_.made, bytes_.blocks)


def _multiplied(
    cost: StepCost, step: Einsum, bytes_: Footprint, inputs: Mapping[str, float], fetching: _Fetching,
    costs: Costs, *, is_kept: bool,
) -> StepCost:  # fmt: skip
    """The cost of a matmul of inputs that have been fetched, or of one whose result the chip keeps for a collective."""
    mine = [inputs[name] for name in step.operands if name in fetching.given]
    fetched, _ = costs.fetched(mine)
    near = fetched / sum(mine) if fetched and len(mine) == len(step.operands) else 0.0
    if not near and not is_kept:
        return cost
    flops = costs.arithmetic.name("FLOPs", cost.flops, "FLOPs")
    read = costs.arithmetic.name("read", float(bytes_.took) * (1 - near * (1 - FETCHED)), "B")
    return _instead(cost, costs.einsum(flops, read, bytes_.made, is_kept=is_kept))
