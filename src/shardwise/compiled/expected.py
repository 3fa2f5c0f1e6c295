"""What a plan's program sends, as a compiler is to compile it: the planned side of the certificate."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, assert_never

import jax

from shardwise.chips.links import wire_bytes
from shardwise.compiled.text.groups import axes_of_pairs
from shardwise.errors import ShardwiseError
from shardwise.layout import Axes, Layout
from shardwise.mesh import Mesh
from shardwise.planning.paths import Grid, Pairs, Span, gathering, neighbours, on_devices, scattering
from shardwise.planning.plan import Candidate, Ranking
from shardwise.planning.prices import ITEM_BYTES
from shardwise.planning.problem import Problem
from shardwise.program import Program
from shardwise.runtime.ring_paths import Ring, Schedule
from shardwise.runtime.ring_products import Numbers, Product
from shardwise.runtime.ring_scatter import Scatter
from shardwise.runtime.ring_scatter import split_of as scattered_along
from shardwise.runtime.ring_spread import Spread
from shardwise.runtime.ring_spread import split_of as spread_along
from shardwise.steps import (
    AllGather,
    AllReduce,
    AllToAll,
    Automatic,
    CollectivePermute,
    Einsum,
    EinsumGather,
    EinsumScatter,
    GatherEinsum,
    ReduceScatter,
    RotateEinsum,
    Slice,
    Step,
    kind,
    product_of,
    touched,
)

Part = tuple[int, Span, int]  # of every block, what travels on its own: up or down, from where to where, how many hops


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


def planned_collectives(plan: Any) -> list[Planned]:
    """The collectives of a plan's best program, or of one candidate as `(plan, candidate)`, that send anything.

    >>> import shardwise as sw
    >>> plan = sw.plan("A[I, J_x] · B[J_x, K] -> C[I, K]", sizes={"I": 8, "J": 8, "K": 8}, mesh="x=4", dtype="float32")
    >>> planned_collectives(plan)
    [Planned(kind='all-reduce', axes=('x',), elements=64, dtype='float32', wire_bytes=384.0, pairs=())]

    Raises:
        ShardwiseError: it is no plan; or the compiler's own choice, which plans no collectives.
    """
    ranking, candidate = plan if isinstance(plan, tuple) and len(plan) == 2 else (plan, None)
    if not isinstance(ranking, Ranking) or not (candidate is None or isinstance(candidate, Candidate)):
        kind_given = type(ranking).__name__
        raise ShardwiseError(f"assert_matches takes a plan of sw.plan, or (plan, candidate), and {kind_given} is none")
    return list(_of_program((candidate or ranking.best).program, ranking.task))


def _of_program(program: Program, task: Problem) -> Iterator[Planned]:
    products: set[str] = set()  # made so far: their dtype may be another
    states = program.states()
    for step, before, after in zip(program.steps, states, states[1:], strict=False):
        look = _Look(task, before, after, frozenset(products))
        yield from (found for found in look.sent(step) if found.elements and found.axes)
        if product_of(step) is not None:
            products.add(touched(step))


@dataclass(frozen=True, slots=True)
class _Look:
    """One step of a program: the layouts of all live arrays before it and after, and which of them are products."""

    task: Problem
    before: Mapping[str, Layout]
    after: Mapping[str, Layout]
    products: frozenset[str]

    def sent(self, step: Step) -> Iterator[Planned]:
        """The collectives that a step asks for."""
        match step:
            case AllGather() | ReduceScatter() | AllReduce() | AllToAll():
                held, made = (self.elements(layouts[step.array]) for layouts in (self.before, self.after))
                yield self.planned(kind(step), step.axes, held, made, self.dtype(step.array))
            case CollectivePermute(array, axes, pairs, _):
                yield from self.permute(pairs, axes, self.elements(self.before[array]), self.dtype(array))
            case GatherEinsum(gather, _, way, chunks):
                block = self.before[gather.array]
                width = block.shard_shape(self.task.sizes, self.mesh)[block.names.index(gather.dim)]
                strands = gathering(self.mesh.extent(gather.axes), way, chunks, width)
                parts = [(each.way, each.span, each.hops) for each in strands]
                yield from self.ring(gather.axes, parts, self.elements(block), width, self.dtype(gather.array))
            case EinsumScatter(einsum, scatter, way, chunks):
                yield from self.scattered(einsum, scatter, Schedule(way, chunks))
            case EinsumGather(einsum, gather, way, chunks):
                yield from self.spread(einsum, gather, Schedule(way, chunks))
            case RotateEinsum(gathers, einsum):
                yield from self.rotated(gathers, einsum)
            case Slice() | Einsum():
                return
            case Automatic():
                raise ShardwiseError("the compiler's own choice was never planned: there is nothing to hold it against")
            case _:
                assert_never(step)

    def scattered(self, einsum: Einsum, scatter: ReduceScatter, schedule: Schedule) -> Iterator[Planned]:
        wanted, operands, sizes = self.local(einsum, scatter.dim)
        n = self.mesh.extent(scatter.axes)
        sizes[scatter.dim] //= n
        job = Scatter(Ring(scatter.axes, n), scatter.dim, (wanted,), schedule, Numbers())
        width = sizes[scattered_along(job, [operands], sizes)]
        parts = [(way, span, n - 1) for way, span in scattering(schedule.way, schedule.chunks, width)]
        block = math.prod(sizes[dim] for dim in einsum.dims)
        yield from self.ring(scatter.axes, parts, block, width, self.dtype_of_products)

    def spread(self, einsum: Einsum, gather: AllGather, schedule: Schedule) -> Iterator[Planned]:
        wanted, operands, sizes = self.local(einsum, gather.dim)
        n = self.mesh.extent(gather.axes)
        job = Spread(Ring(gather.axes, n), gather.dim, (wanted,), schedule, Numbers())
        width = sizes[spread_along(job, [operands])]
        strands = gathering(n, schedule.way, schedule.chunks, width)
        parts = [(each.way, each.span, each.hops) for each in strands]
        block = math.prod(sizes[dim] for dim in einsum.dims)
        yield from self.ring(gather.axes, parts, block, width, self.dtype_of_products)

    def rotated(self, gathers: tuple[AllGather, AllGather], einsum: Einsum) -> Iterator[Planned]:
        first, second = sorted(gathers, key=lambda gather: einsum.operands.index(gather.array))
        grid = Grid((self.mesh.extent(first.axes), self.mesh.extent(second.axes)))
        for k, gather in enumerate((first, second)):
            elements, dtype = self.elements(self.before[gather.array]), self.dtype(gather.array)
            for pairs in grid.moves(k):
                yield from self.permute(pairs, (*first.axes, *second.axes), elements, dtype)

    def ring(self, axes: Axes, parts: Iterable[Part], block: int, width: int, dtype: str) -> Iterator[Planned]:
        """The permutes of a ring: on every hop each strand sends its part of a block, which is cut along so many elements."""
        for way, (start, stop), hops in parts:
            for _ in range(hops):
                yield from self.permute(neighbours(self.mesh.extent(axes), way), axes, block * (stop - start) // width, dtype)

    def permute(self, pairs: Pairs, axes: Axes, elements: int, dtype: str) -> Iterator[Planned]:
        """A permute, over the axes along which something moves; none where every device keeps what it has."""
        moving = on_devices(pairs, axes, self.mesh)
        if moving:
            over = axes_of_pairs(moving, self.mesh) or ()
            yield Planned("collective-permute", over, elements, dtype, float(elements * ITEM_BYTES[dtype]), moving)

    def planned(self, name: str, axes: Axes, held: int, made: int, dtype: str) -> Planned:
        over = tuple(axis for axis, size in self.mesh.axes if axis in axes and size > 1)
        item = ITEM_BYTES[dtype]
        return Planned(name, over, held, dtype, float(wire_bytes(name, self.mesh, over, held * item, made * item)))

    def local(self, einsum: Einsum, moved: str) -> tuple[Product, list[Any], dict[str, int]]:
        """The product of the local shards, and their sizes; what one operand alone has is summed before (see `rings`)."""
        layouts = [self.before[name] for name in einsum.operands]
        shapes = [zip(layout.names, layout.shard_shape(self.task.sizes, self.mesh), strict=True) for layout in layouts]
        sizes = {dim: size for shape in shapes for dim, size in shape}
        counts = Counter(dim for layout in layouts for dim in layout.names)
        kept = {moved, *einsum.dims, *(dim for dim, count in counts.items() if count > 1)}
        terms = tuple(tuple(dim for dim in layout.names if dim in kept) for layout in layouts)
        operands = [jax.ShapeDtypeStruct(tuple(sizes[dim] for dim in term), "float32") for term in terms]
        return Product(terms, einsum.dims), operands, sizes

    @property
    def mesh(self) -> Mesh:
        return self.task.mesh

    def elements(self, layout: Layout) -> int:
        return math.prod(layout.shard_shape(self.task.sizes, self.mesh))

    def dtype(self, array: str) -> str:
        return self.dtype_of_products if array in self.products else self.task.dtype

    @property
    def dtype_of_products(self) -> str:
        return self.task.accumulated or self.task.dtype
