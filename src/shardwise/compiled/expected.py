"""What a plan's program sends, as a compiler is to compile it: the planned side of the certificate."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, assert_never

from shardwise.chips.links import wire_bytes
from shardwise.compiled.text.groups import axes_of_pairs
from shardwise.compiled.text.slices import levels
from shardwise.errors import ShardwiseError
from shardwise.layout import Axes, Layout
from shardwise.mesh import Mesh
from shardwise.planning.prices import ITEM_BYTES
from shardwise.planning.problem import Problem
from shardwise.planning.ranking import Candidate, Ranking
from shardwise.program import Program
from shardwise.schedule.events import Send, unrolled
from shardwise.schedule.fused import scheduled
from shardwise.schedule.makers import rotate_matmul
from shardwise.schedule.places import Pairs, on_devices
from shardwise.steps import (
    AllGather,
    AllReduce,
    AllToAll,
    Automatic,
    CollectiveKind,
    CollectivePermute,
    Einsum,
    EinsumGather,
    EinsumScatter,
    GatherEinsum,
    ReduceScatter,
    RotateEinsum,
    Slice,
    Step,
    einsum_of,
    kind,
    moved_axes,
    touched,
)


@dataclass(frozen=True, slots=True)
class Planned:
    """A collective of a plan: the elements that one device holds before, the bytes it sends; of a permute who sends to whom.

    `pairs` are device numbers in mesh order, without those that would send to themselves; `axes` in mesh order.
    """

    kind: str
    axes: Axes
    elements: int
    dtype: str
    wire_bytes: float
    pairs: Pairs = ()


def chosen(plan: Any) -> tuple[Problem, Candidate]:
    """The problem and the program that are meant by a plan (its best), or by `(plan, candidate)`.

    Raises:
        ShardwiseError: it is neither.
    """
    ranking, candidate = plan if isinstance(plan, tuple) and len(plan) == 2 else (plan, None)
    if not isinstance(ranking, Ranking) or not (candidate is None or isinstance(candidate, Candidate)):
        kind_given = type(ranking).__name__
        raise ShardwiseError(f"a plan of sw.plan is needed here, or (plan, candidate), and {kind_given} is none")
    return ranking.task, candidate or ranking.best


def planned_collectives(plan: Any) -> list[Planned]:
    """The collectives of a plan's best program, or of one candidate as `(plan, candidate)`, that send anything.

    >>> import shardwise as sw
    >>> plan = sw.plan("A[I, J_x] · B[J_x, K] -> C[I, K]", sizes={"I": 8, "J": 8, "K": 8}, mesh="x=4", dtype="float32")
    >>> planned_collectives(plan)
    [Planned(kind='all-reduce', axes=('x',), elements=64, dtype='float32', wire_bytes=384.0, pairs=())]

    Raises:
        ShardwiseError: it is no plan; or the compiler's own choice, which plans no collectives.
    """
    task, candidate = chosen(plan)
    return list(_of_program(candidate.program, task))


def _of_program(program: Program, task: Problem) -> Iterator[Planned]:
    results: set[str] = set()  # of matmuls so far: their dtype may be another
    states = program.states()
    for step, before, after in zip(program.steps, states, states[1:], strict=False):
        look = _Look(task, before, after, frozenset(results))
        sent = (found for found in look.sent(step) if found.elements and found.axes)
        yield from (part for found in sent for part in _over_slices(found, task))
        if einsum_of(step) is not None:
            results.add(touched(step))


def _over_slices(found: Planned, task: Problem) -> Iterator[Planned]:
    """A collective over several slices as compilers make it: gathered over the network first, and summed over it last."""
    (outer, slices), (inner, devices) = levels(task.topology, task.mesh, found.axes)
    if slices == 1 or found.kind in ("collective-permute", "all-to-all"):
        yield found
        return
    item = ITEM_BYTES[found.dtype]

    def part(kind_: CollectiveKind, axes: Axes, n: int, held: int) -> Iterator[Planned]:
        if n > 1:
            sent = {"all-gather": held * (n - 1), "reduce-scatter": held * (n - 1) / n}.get(kind_, 2 * held * (n - 1) / n)
            yield Planned(kind_, axes, held, found.dtype, float(sent * item))

    if found.kind == "all-gather":
        yield from part("all-gather", outer, slices, found.elements)
        yield from part("all-gather", inner, devices, found.elements * slices)
        return
    yield from part("reduce-scatter", inner, devices, found.elements)
    if found.kind == "reduce-scatter":
        yield from part("reduce-scatter", outer, slices, found.elements // devices)
        return
    yield from part("all-reduce", outer, slices, found.elements // devices)
    yield from part("all-gather", inner, devices, found.elements // devices)


@dataclass(frozen=True, slots=True)
class _Look:
    """One step of a program: the layouts of all live arrays before it and after, and which of them are results of matmuls."""

    task: Problem
    before: Mapping[str, Layout]
    after: Mapping[str, Layout]
    results: frozenset[str]

    def sent(self, step: Step) -> Iterator[Planned]:
        """The collectives that a step asks for."""
        match step:
            case AllGather() | ReduceScatter() | AllReduce() | AllToAll():
                held, made = (self.elements(layouts[step.array]) for layouts in (self.before, self.after))
                yield self.planned(kind(step), step.axes, held, made, self.dtype(step.array))
            case CollectivePermute(array, axes, pairs, _):
                yield from self.permute(pairs, axes, self.elements(self.after[array]), self.dtype(array))
            case GatherEinsum() | EinsumScatter() | EinsumGather():
                yield from self.ring(step)
            case RotateEinsum(gathers, einsum):
                yield from self.rotated(gathers, einsum)
            case Slice() | Einsum():
                return
            case Automatic():
                raise ShardwiseError("the compiler's own choice was never planned: there is nothing to hold it against")
            case _:
                assert_never(step)

    def rotated(self, gathers: tuple[AllGather, AllGather], einsum: Einsum) -> Iterator[Planned]:
        first, second = sorted(gathers, key=lambda gather: einsum.operands.index(gather.array))
        events = rotate_matmul((self.mesh.extent(first.axes), self.mesh.extent(second.axes)))
        sends = [event for event in events if isinstance(event, Send)]
        for k, gather in enumerate((first, second)):
            elements, dtype = self.elements(self.before[gather.array]), self.dtype(gather.array)
            for pairs in (event.pairs for event in sends if event.transfer == k):
                yield from self.permute(pairs, (*first.axes, *second.axes), elements, dtype)

    def ring(self, step: GatherEinsum | EinsumScatter | EinsumGather) -> Iterator[Planned]:
        """The sends of a ring's schedule."""
        ring = scheduled(step, self.before, self.task.sizes, self.mesh)
        dtype = self.dtype(step.gather.array) if isinstance(step, GatherEinsum) else self.dtype_of_results
        for event in unrolled(ring.events):
            if isinstance(event, Send):
                yield from self.permute(event.pairs, moved_axes(step), ring.elements * event.part.width // ring.width, dtype)

    def permute(self, pairs: Pairs, axes: Axes, elements: int, dtype: str) -> Iterator[Planned]:
        """A permute, over the axes along which something moves; none where every device keeps what it has."""
        moving = on_devices(pairs, axes, self.mesh)
        if moving:
            over = axes_of_pairs(moving, self.mesh) or ()
            yield Planned("collective-permute", over, elements, dtype, float(elements * ITEM_BYTES[dtype]), moving)

    def planned(self, name: CollectiveKind, axes: Axes, held: int, made: int, dtype: str) -> Planned:
        over = tuple(axis for axis, size in self.mesh.axes if axis in axes and size > 1)
        item = ITEM_BYTES[dtype]
        return Planned(name, over, held, dtype, float(wire_bytes(name, self.mesh, over, held * item, made * item)))

    @property
    def mesh(self) -> Mesh:
        return self.task.mesh

    def elements(self, layout: Layout) -> int:
        return math.prod(layout.shard_shape(self.task.sizes, self.mesh))

    def dtype(self, array: str) -> str:
        return self.dtype_of_results if array in self.results else self.task.dtype

    @property
    def dtype_of_results(self) -> str:
        return self.task.accumulated or self.task.dtype
