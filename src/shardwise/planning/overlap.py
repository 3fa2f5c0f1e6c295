"""The cost of fused steps: a product and a collective block by block, transfers behind products."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

from shardwise.chips import Memory
from shardwise.layout import Layout
from shardwise.planning.prices import Costs, StepCost, einsum_flops
from shardwise.schedule.events import Events, Send
from shardwise.schedule.play import Links, MatmulSeconds, Played, Seconds, play
from shardwise.schedule.rings import Grid, gather_matmul, matmul_gather, matmul_scatter, rotate_matmul
from shardwise.schedule.strands import is_one_product
from shardwise.steps import AllGather, Einsum, EinsumGather, EinsumScatter, Fused, GatherEinsum, RotateEinsum


@dataclass(frozen=True, slots=True)
class _Product:
    """A product on one device as if nothing were split over the ring: its FLOPs, the dimensions and bytes of its arrays."""

    flops: float
    operands: tuple[tuple[frozenset[str], float], ...]
    out: tuple[frozenset[str], float]

    def seconds(self, costs: Costs, dim: str, share: float, adds: bool, is_next: bool = True) -> float:
        """Seconds of the part of the product that one share of `dim` takes; `adds` where it is added to a sum."""

        def moved(array: tuple[frozenset[str], float]) -> float:
            return array[1] * (share if dim in array[0] else 1.0)

        read, made = sum(map(moved, self.operands)), moved(self.out)
        added = made if adds and not costs.holds(made) else 0.0
        return costs.einsum(self.flops * share, read + added, made, is_next)

    def cut_bytes(self, dim: str, share: float, gathered: int) -> float:
        """Bytes of what one share of `dim` meets in the other operands than the one that is gathered along it."""
        return sum(bytes_ * share for place, (dims, bytes_) in enumerate(self.operands) if place != gathered and dim in dims)


def ring_cost(step: Fused, costs: Costs, sizes: Mapping[str, int], before: Mapping[str, Layout], live: float) -> StepCost:
    """Price a fused step by its schedule; `live` are the bytes held beside what it gathers or sums."""
    match step:
        case GatherEinsum(gather, einsum, way, chunks):
            n = costs.mesh.extent(gather.axes)
            product = _product(einsum, costs, sizes, {**before, gather.array: _gathered(before[gather.array], gather)})
            block = _bytes(before[gather.array], sizes, costs)
            adds = gather.dim not in einsum.dims
            which = einsum.operands.index(gather.array)
            cut = product.cut_bytes(gather.dim, 2 / n / chunks, which) / costs.item_bytes
            joined = adds and is_one_product(cut, product.out[1] / costs.product_bytes)

            def multiply(share: float, parts: int = 1) -> float:
                if parts > 1 and not joined:
                    return parts * multiply(share / parts)
                copied = costs.cut(product.cut_bytes(gather.dim, share / n, which)) if parts > 1 else 0.0
                return product.seconds(costs, gather.dim, share / n, adds) + copied

            events = gather_matmul(n, way, chunks, chunks)
            time = _played(events, chunks, costs, way, gather.axes, n, block, product.flops / n, multiply)
            return _cost(time, product.flops, (n - 1) * block, live + 2 * block)
        case EinsumScatter(einsum, scatter, way, chunks):
            n = costs.mesh.extent(scatter.axes)
            product = _product(einsum, costs, sizes, before)
            block = product.out[1] / n

            def multiply(share: float, parts: int = 1) -> float:
                return product.seconds(costs, scatter.dim, share / n, adds=True)

            events = matmul_scatter(n, way, chunks, 2 * chunks)
            time = _played(events, 2 * chunks, costs, way, scatter.axes, n, block, product.flops / n, multiply)
            return _cost(time, product.flops, (n - 1) * block, live + 2 * block)
        case EinsumGather(einsum, gather, way, chunks):
            n = costs.mesh.extent(gather.axes)
            product = _product(einsum, costs, sizes, before)
            block = product.out[1]

            def multiply(share: float, parts: int = 1) -> float:  # cut where the least is read again
                return min(product.seconds(costs, dim, share, adds=False, is_next=False) for dim in einsum.dims)

            events = matmul_gather(n, way, chunks, chunks)
            written = lambda share: costs.copy(share * block)  # noqa: E731
            time = _played(events, chunks, costs, way, gather.axes, n, block, product.flops, multiply, written)
            return _cost(time, product.flops, (n - 1) * block, live + 3 * block)
        case RotateEinsum(gathers, einsum):
            whole = dict(before)
            for gather in gathers:
                whole[gather.array] = _gathered(before[gather.array], gather)
            product = _product(einsum, costs, sizes, whole)
            first, second = (next(g for g in gathers if g.array == name) for name in einsum.operands)
            blocks = [_bytes(before[g.array], sizes, costs) for g in (first, second)]
            return _rotated((first, second), costs, product, blocks, live)
        case _:
            assert_never(step)


def _rotated(
    gathers: Sequence[AllGather], costs: Costs, product: _Product, blocks: Sequence[float], live: float
) -> StepCost:  # fmt: skip
    """Both operands rotate at once, each along links of its own; nothing hides that they first move to where they meet."""
    grid = Grid((costs.mesh.extent(gathers[0].axes), costs.mesh.extent(gathers[1].axes)))
    hops = [costs.hop(gather.axes) for gather in gathers]

    def moved(_: float, send: Send) -> float:
        k = send.transfer
        return grid.hops(k, send.pairs) * hops[k].seconds(blocks[k])

    events = rotate_matmul(grid.sizes)
    one = product.seconds(costs, gathers[0].dim, 1 / grid.steps, adds=True)
    moving = math.fsum(moved(1.0, event) for event in events if isinstance(event, Send))
    if isinstance(costs.hardware.links, Memory):
        seconds = grid.steps * one + moving
    else:
        seconds = play(events, 1, Links(moved), lambda share, parts: one).seconds
    sent = sum(block * (n - 1) for block, n in zip(blocks, grid.sizes, strict=True))
    exposed = min(seconds - grid.steps * one, moving)
    return StepCost(seconds, product.flops, sent, live + 2 * sum(blocks), moving, max(0.0, exposed))


def _played(
    events: Events, width: int, costs: Costs, way: str, axes: tuple[str, ...], n: int, block: float, flops: float,
    multiply: MatmulSeconds, written: Seconds | None = None,
) -> tuple[Played, float]:  # fmt: skip
    """The ring's time, and how long its transfers take in all; devices that share one host's cores hide nothing.

    A block has so many bytes, and its product so many FLOPs.
    """
    hop = costs.hop(axes)
    moving = (n - 1) * hop.seconds(block) / (2 if way == "bidirectional" and hop.both_ways else 1)
    if isinstance(costs.hardware.links, Memory):
        busy = play(events, width, Links(lambda share, _: 0.0), multiply, written).busy_seconds
        return Played(busy + moving, busy), moving
    cover = costs.cover * block / flops if flops else math.inf
    links = Links(lambda share, _: hop.seconds(share * block), hop.both_ways, cover)
    return play(events, width, links, multiply, written), moving


def _cost(time: tuple[Played, float], flops: float, sent: float, live: float) -> StepCost:
    ring, moving = time
    return StepCost(ring.seconds, flops, sent, live, moving, min(ring.exposed_seconds, moving))


def _product(einsum: Einsum, costs: Costs, sizes: Mapping[str, int], before: Mapping[str, Layout]) -> _Product:
    """A local product of operands with these layouts."""
    local = {d: sizes[d] // costs.mesh.extent(axes) for name in einsum.operands for d, axes in before[name].dims}
    terms: Sequence[tuple[str, ...]] = [before[name].names for name in einsum.operands]

    def bytes_of(dims: Sequence[str], item: int) -> float:
        return item * math.prod(local[dim] for dim in dims)

    return _Product(
        einsum_flops(terms, einsum.dims, local),
        tuple((frozenset(term), bytes_of(term, costs.item_bytes)) for term in terms),
        (frozenset(einsum.dims), bytes_of(einsum.dims, costs.product_bytes)),
    )


def _gathered(layout: Layout, gather: AllGather) -> Layout:
    held = layout.axes_of(gather.dim)
    return layout.with_axes(gather.dim, held[: len(held) - len(gather.axes)])


def _bytes(layout: Layout, sizes: Mapping[str, int], costs: Costs) -> float:
    return costs.item_bytes * math.prod(layout.shard_shape(sizes, costs.mesh))
