"""The schedule of a fused step on arrays of known sizes: along which dimension its blocks are cut, and its events."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardwise.layout import Layout
from shardwise.mesh import Mesh
from shardwise.schedule.events import Events
from shardwise.schedule.makers import gather_matmul, matmul_gather, matmul_scatter, parts_of
from shardwise.schedule.strands import ROWS
from shardwise.steps import Einsum, EinsumGather, EinsumScatter, GatherEinsum, Way

LANES = 128
ENOUGH = 512  # rows: what a matmul of so many reads again takes no longer than its multiplications

Term = Sequence[Any]  # an array's dimensions, by name or number


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A ring's events; a block of what goes round has so many `elements`, and is cut `along` a dimension of this `width`."""

    events: Events
    along: str
    width: int
    elements: int


def scheduled(
    step: GatherEinsum | EinsumScatter | EinsumGather, layouts: Mapping[str, Layout], sizes: Mapping[str, int], mesh: Mesh
) -> Scheduled:  # fmt: skip
    """The schedule of a ring.

    >>> from shardwise.steps import ReduceScatter
    >>> step = EinsumScatter(Einsum(("A", "B"), "C", ("I", "K")), ReduceScatter("C", "I", ("x",)), "ring")
    >>> layouts = {"A": Layout.parse("I, J_x"), "B": Layout.parse("J_x, K")}
    >>> found = scheduled(step, layouts, {"I": 8, "J": 8, "K": 8}, Mesh.parse("x=2"))
    >>> found.along, found.width, found.elements, len(found.events)
    ('I', 4, 32, 4)

    Args:
        layouts: of the arrays before the step; `sizes` of every dimension, in elements.
    """
    if isinstance(step, GatherEinsum):
        gather, n = step.gather, mesh.extent(step.gather.axes)
        block = layouts[gather.array]
        shape = block.shard_shape(sizes, mesh)
        width = shape[block.names.index(gather.dim)]
        return Scheduled(gather_matmul(n, step.way, step.chunks, width), gather.dim, width, math.prod(shape))
    moved, make = (step.scatter, matmul_scatter) if isinstance(step, EinsumScatter) else (step.gather, matmul_gather)
    along, block_sizes = cut_along(step, layouts, sizes, mesh)
    events = make(mesh.extent(moved.axes), step.way, step.chunks, block_sizes[along])
    return Scheduled(events, along, block_sizes[along], math.prod(block_sizes[dim] for dim in step.einsum.dims))


def cut_along(
    step: EinsumScatter | EinsumGather, layouts: Mapping[str, Layout], sizes: Mapping[str, int], mesh: Mesh
) -> tuple[str, dict[str, int]]:  # fmt: skip
    """Along which dimension the blocks of a ring are cut that makes what it sends, and a block's sizes."""
    moved = step.scatter if isinstance(step, EinsumScatter) else step.gather
    terms, block_sizes = _local(step.einsum, moved.dim, layouts, sizes, mesh)
    if isinstance(step, EinsumGather):
        return least_read_again(step.einsum.dims, [terms], block_sizes, moved.dim, parts_of(step.way, step.chunks)), block_sizes
    block_sizes[moved.dim] //= mesh.extent(moved.axes)
    return scattered_along(step.einsum.dims, [terms], block_sizes, moved.dim, step.way, step.chunks), block_sizes


def scattered_along(
    out: Term, terms: Sequence[Sequence[Term]], sizes: Mapping[Any, int], dim: Any, way: Way, chunks: int
) -> Any:  # fmt: skip
    """Along which dimension of the result a block, of these sizes, is cut into the strands of a reduce-scatter.

    Every strand's matmul reads whatever operand lacks that dimension once more. Where parts of the scattered dimension
    are too small for that, it is the one that costs the least.
    """
    parts = parts_of(way, chunks, 2 if way == "bidirectional" else 1)
    return dim if sizes[dim] >= parts * ENOUGH else least_read_again(out, terms, sizes, dim, parts)


def least_read_again(out: Term, terms: Sequence[Sequence[Term]], sizes: Mapping[Any, int], dim: Any, parts: int) -> Any:
    """The dimension along which a block of a partial sum is best cut: every part reads again what lacks it.

    First comes what gives parts wide enough, multiples of a register's lanes unless it is `dim`, else of its rows, else any;
    then `dim`, if it is long enough; then what gives whole rows, or parts of one size. A part is wide enough that fills a
    register's lanes; or its rows, and has as many in all. `terms` are of each matmul's operands, `sizes` those of the block.
    """
    rows = math.prod(sizes[each] for each in out[:-1])

    def cost(each: Any) -> tuple[int, int, bool, int]:
        """The first of these that holds, what is read again, and of what is equal in both `dim`, or the last."""
        size, place, is_own = sizes[each], out.index(each), each == dim
        least = LANES if place == len(out) - 1 else ROWS if place == len(out) - 2 else 1
        is_wide, fits = size >= parts * least and (least == LANES or rows >= parts * LANES), size >= parts
        whole = {unit: size % (parts * unit) == 0 for unit in (LANES, ROWS, 1)}
        whole[LANES] |= size % LANES == 0 and size >= parts * ENOUGH  # then `cuts` cuts between them
        wide = (is_wide and (is_own or whole[LANES]), is_wide and whole[ROWS], is_wide)
        narrow = (is_own and fits, fits and whole[ROWS], fits and whole[1], is_own)
        read_again = sum(math.prod(sizes[d] for d in term) for operands in terms for term in operands if each not in term)
        return (*wide, *narrow, True).index(True), read_again, not is_own, -place

    return min(out, key=cost)


def _local(
    einsum: Einsum, moved: str, layouts: Mapping[str, Layout], sizes: Mapping[str, int], mesh: Mesh
) -> tuple[list[Term], dict[str, int]]:
    """The terms of the local matmul, and its sizes; what one operand alone has is summed before."""
    given = [layouts[name] for name in einsum.operands]
    shapes = [zip(layout.names, layout.shard_shape(sizes, mesh), strict=True) for layout in given]
    counts = Counter(dim for layout in given for dim in layout.names)
    kept = {moved, *einsum.dims, *(dim for dim, count in counts.items() if count > 1)}
    return [[dim for dim in layout.names if dim in kept] for layout in given], {
        dim: size for shape in shapes for dim, size in shape
    }
