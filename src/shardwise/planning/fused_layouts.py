"""How the arrays of a fused step lie in memory, and what TPU compilers copy for it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from shardwise.layout import Layout
from shardwise.mesh import Sides
from shardwise.planning.prices import Costs
from shardwise.planning.tiles import LANES, is_made_across
from shardwise.planning.told import operand_orders, summed_as_one
from shardwise.schedule.makers import parts_of
from shardwise.steps import AllGather, Einsum, EinsumGather


def transposing_seconds(
    einsum: Einsum, dim: str, costs: Costs, sizes: Mapping[str, int], before: Mapping[str, Layout], parts: int
) -> float:  # fmt: skip
    """Seconds to transpose operands whose lanes a ring cuts along `dim`, where several dimensions are summed that are not one.

    Compilers do, unless the chip keeps what it works on: the smallest operand, which waits for its turn, anew for about every
    second of the `parts`, others once (83 % of 109 compiled rings of random shapes are within 20 % so, 79 % without).
    """
    compiler = costs.hardware.compiler
    if compiler is None or compiler.kept_bytes.value or len(einsum.operands) < 2:
        return 0.0
    terms = [before[name].names for name in einsum.operands]
    summed = [name for name in terms[0] if name not in einsum.dims and all(name in term for term in terms)]
    shapes = [before[name].shard_shape(sizes, costs.mesh) for name in einsum.operands]
    if len(summed) < 2 or summed_as_one(terms, einsum.dims, shapes):
        return 0.0
    bytes_ = [shard_bytes(name, before, sizes, costs) for name in einsum.operands]
    cut = [k for k, term in enumerate(terms) if term[-1] == dim and costs.order(shapes[k]) == tuple(range(len(term)))]
    times = [parts / 2 if bytes_[k] == min(bytes_) else 1 for k in cut]
    return costs.arithmetic.total(count * costs.transposed(bytes_[k]) for count, k in zip(times, cut, strict=True))


def telling_seconds(
    arrays: Sequence[str], along: str, costs: Costs, sizes: Mapping[str, int], before: Mapping[str, Layout]
) -> float:
    """Seconds to transpose operands that a compiler is told to lay out in another order than they lie in (`planning.told`)."""
    if costs.hardware.compiler is None:
        return 0.0
    shapes = [before[name].shard_shape(sizes, costs.mesh) for name in arrays]
    orders = operand_orders([before[name].names for name in arrays], shapes, along)
    moved = [name for name, shape, order in zip(arrays, shapes, orders, strict=True) if order not in (None, costs.order(shape))]
    return costs.arithmetic.total(costs.transposed(shard_bytes(name, before, sizes, costs)) for name in moved)


def lanes_of(arrays: Sequence[str], costs: Costs, sizes: Mapping[str, int], before: Mapping[str, Layout]) -> list[str | None]:
    """The dimension of each array that runs fastest in memory; None where no compiler is known."""
    orders = [costs.order(before[name].shard_shape(sizes, costs.mesh)) for name in arrays]
    return [before[name].names[order[-1]] if order else None for name, order in zip(arrays, orders, strict=True)]


def lanes_of_block(
    gather: AllGather, einsum: Einsum, costs: Costs, sizes: Mapping[str, int], before: Mapping[str, Layout]
) -> int:  # fmt: skip
    """How many lanes of the result a block of a gathering ring takes; none where its dimension does not run fastest.

    A part that ends within a tile takes all its lanes of the multipliers; one of three dimensions is put where it belongs by a
    copy of its own. Of 79 compiled rings of random shapes on five chips 69 are within a quarter so, and 51 without.
    """
    blocks = {dim: sizes[dim] // costs.mesh.extent(axes) for name in einsum.operands for dim, axes in before[name].dims}
    n, block = costs.mesh.extent(gather.axes), dict(before[gather.array].dims)
    size = sizes[gather.dim] // costs.mesh.extent(block[gather.dim])
    order = costs.order([n * size if dim == gather.dim else blocks[dim] for dim in einsum.dims])
    return size if order is not None and einsum.dims[order[-1]] == gather.dim else 0


def splits_lanes(
    step: EinsumGather, along: str, costs: Costs, sizes: Mapping[str, int], before: Mapping[str, Layout]
) -> bool:  # fmt: skip
    """Whether the parts of a result, as it lies in memory when all are there, end within the lanes of a tile.

    A ring of more devices than are unrolled transposes it at last.
    """
    einsum, gather = step.einsum, step.gather
    local, whole = _made(step, costs, sizes, before)
    order = costs.order([whole[dim] for dim in einsum.dims])
    lanes = None if order is None else einsum.dims[order[-1]]
    parts = parts_of(step.way, step.chunks) if along == lanes else 1
    return lanes is not None and lanes in (along, gather.dim) and local[lanes] // parts % LANES > 0


def are_made_across(
    step: EinsumGather, along: str, costs: Costs, sizes: Mapping[str, int], before: Mapping[str, Layout]
) -> bool:  # fmt: skip
    """Whether the parts of a torus are transposed, each where it arrives, to lie as the result does."""
    if not isinstance(step.way, Sides) or costs.hardware.compiler is None:
        return False
    local, whole = _made(step, costs, sizes, before)
    part = local | {along: local[along] // parts_of(step.way, step.chunks)}
    dims = step.einsum.dims
    return is_made_across(tuple(part[dim] for dim in dims), tuple(whole[dim] for dim in dims))


def _made(
    step: EinsumGather, costs: Costs, sizes: Mapping[str, int], before: Mapping[str, Layout]
) -> tuple[dict[str, int], dict[str, int]]:  # fmt: skip
    """The sizes of the dimensions on one device, before what a matmul made is gathered and after."""
    local = {dim: sizes[dim] // costs.mesh.extent(axes) for name in step.einsum.operands for dim, axes in before[name].dims}
    return local, local | {step.gather.dim: local[step.gather.dim] * costs.mesh.extent(step.gather.axes)}


def shard_bytes(array: str, before: Mapping[str, Layout], sizes: Mapping[str, int], costs: Costs) -> float:
    shard = costs.item_bytes * math.prod(before[array].shard_shape(sizes, costs.mesh))
    return costs.arithmetic.name("S", shard, "B", f"bytes of a shard of {array}")
