"""The cost of fused steps: a matmul and a collective block by block, transfers behind matmuls."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import assert_never

from shardwise.chips import Memory
from shardwise.layout import Layout
from shardwise.mesh import Sides
from shardwise.planning.fused_layouts import (
    are_made_across,
    lanes_of,
    lanes_of_block,
    shard_bytes,
    splits_lanes,
    telling_seconds,
    transposing_seconds,
)
from shardwise.planning.prices import FETCHED, Costs
from shardwise.planning.step_cost import einsum_flops
from shardwise.planning.tiles import LANES
from shardwise.schedule.along_sides import most_held, rounds_of
from shardwise.schedule.events import Events, Matmul, Send
from shardwise.schedule.fused import cut_along
from shardwise.schedule.makers import UNROLL, gather_matmul, matmul_gather, matmul_scatter, parts_of, rotate_matmul
from shardwise.schedule.places import Grid
from shardwise.schedule.play import Links, MatmulSeconds, Played, Seconds, play
from shardwise.schedule.strands import is_one_matmul
from shardwise.steps import (
    AllGather,
    Einsum,
    EinsumGather,
    EinsumScatter,
    Fused,
    GatherEinsum,
    RotateEinsum,
    Way,
)


@dataclass(frozen=True, slots=True)
class _LocalMatmul:
    """A matmul on one device as if nothing were split over the ring: its FLOPs, the dimensions and bytes of its arrays."""

    flops: float
    operands: tuple[tuple[frozenset[str], float], ...]
    out: tuple[frozenset[str], float]
    near: frozenset[int] = frozenset()  # the operands that the chip fetched before, and reads again and again
    largest: float = 0.0  # bytes of the largest operand that lies in memory, of which the ring's matmuls read parts

    def seconds(
        self, costs: Costs, shares: Mapping[str, float], adds: bool, is_next: bool = True, padded: float = 1.0,
        reads: Mapping[int, float] = MappingProxyType({}),
    ) -> float:  # fmt: skip
        """Seconds of the part of the matmul that takes so much of each dimension; `adds` where it is added to a sum.

        `padded` is how many times as many lanes it takes, where it ends within a tile; `reads` the same of what it reads, by
        operand.
        """

        def moved(array: tuple[frozenset[str], float]) -> float:
            return array[1] * math.prod([share for dim, share in shares.items() if dim in array[0]])

        read = sum(
            moved(array) * (FETCHED if place in self.near else 1) * reads.get(place, 1.0)
            for place, array in enumerate(self.operands)
        )
        made = moved(self.out)
        held = adds and costs.holds(made, sum(self.operands[place][1] for place in self.near))
        done = math.prod(shares.values())
        leaves = made * done if held else made  # a sum that the chip keeps leaves it once
        seconds = costs.einsum(padded * self.flops * done, read, made, is_next, held, leaves, self.largest)
        seconds = seconds + costs.read(made) if adds and not held else seconds
        return costs.arithmetic.name("T", seconds, "s", "a matmul, its arrays by their bytes")

    @property
    def is_batched(self) -> bool:
        """Whether a dimension of all arrays is multiplied one by one."""
        return len(self.operands) > 1 and bool(frozenset.intersection(self.out[0], *(dims for dims, _ in self.operands)))

    def cut_bytes(self, dim: str, share: float, gathered: int) -> float:
        """Bytes of what one share of `dim` meets in the other operands than the one that is gathered along it."""
        return sum(bytes_ * share for place, (dims, bytes_) in enumerate(self.operands) if place != gathered and dim in dims)


@dataclass(frozen=True, slots=True)
class Priced:
    """A fused step's schedule with what its events take: ready to be played.

    `lanes` name the links of each lane that the events have; `moving` is how long all transfers take, as if alone. Devices that
    share one host's cores hide none of it, nor do those that wait for each transfer: it is paid after the work.
    """

    events: Events
    width: int
    links: Links
    matmul: MatmulSeconds
    copy: Seconds | None
    lanes: Mapping[int, str]
    moving: float
    flops: float
    wire_bytes: float
    held_bytes: float
    laid: float = 0.0  # seconds before its schedule, in which an operand is laid out for it

    @property
    def hides(self) -> bool:
        return self.links is not ASIDE

    def played(self, *, ahead: float = 0.0, record: bool = False) -> Played:
        found = play(self.events, self.width, self.links, self.matmul, self.copy, ahead=ahead, record=record)
        if self.hides and not self.laid:
            return found
        seconds = found.seconds if self.hides else found.busy_seconds + self.moving
        return replace(found, seconds=seconds + self.laid, busy_seconds=found.busy_seconds + self.laid)


ADDED = 0.25  # of a copy: to add a sum to a batched matmul's; of 46 compiled rings 34 are within 10%, with a whole one 25
AT_ONCE = 5  # permutes that TPU compilers have on their way (XLA's kMaxConcurrentAsyncCollectivePermutes)
ASIDE = Links(lambda share, send: 0.0)
Standing = tuple[Mapping[str, Layout], frozenset[str]]


@dataclass(frozen=True, slots=True)
class Forms:
    """What all forms of a fused step have in common where it stands, and what makes one; `moving` of a way, in seconds.

    None has less of its matmul than `least` seconds; in one chunk it is that of so many `blocks`.
    """

    make: Callable[[Way, int], Priced]
    moving: Callable[[Way], float]
    least: float = 0.0
    blocks: int = 1

    def priced(self, step: Fused) -> Priced:
        """The schedule of a step in its own form, with its prices."""
        return self.make("ring", 1) if isinstance(step, RotateEinsum) else self.make(step.way, step.chunks)

    def at_least(self, step: Fused, slowdown: float) -> float:
        """Seconds that a form takes at least: all transfers, and the matmul of a part that is sent first, or comes last.

        Or the matmul, which transfers slow down by so much where both run.
        """
        if isinstance(step, RotateEinsum):
            return 0.0
        moving, parts = self.moving(step.way), self.blocks * parts_of(step.way, step.chunks, 2)
        return max(moving + self.least / parts, self.least + moving * (1 - 1 / slowdown))


def forms_at(step: Fused, costs: Costs, sizes: Mapping[str, int], here: Standing) -> Forms:
    """The forms of a fused step where it stands; widths are counted in chunks, all equal."""
    match step:
        case GatherEinsum():
            return _gathering(step, costs, sizes, *here)
        case EinsumScatter():
            return _scattering(step, costs, sizes, *here)
        case EinsumGather():
            return _pipelined(step, costs, sizes, *here)
        case RotateEinsum():
            return _rotating(step, costs, sizes, here[0])
        case _:
            assert_never(step)


def _gathering(
    step: GatherEinsum, costs: Costs, sizes: Mapping[str, int], before: Mapping[str, Layout], near: frozenset[str]
) -> Forms:  # fmt: skip
    """Blocks of an operand that are multiplied as they come."""
    gather, einsum, n = step.gather, step.einsum, costs.mesh.extent(step.gather.axes)
    whole = {**before, gather.array: _gathered(before[gather.array], gather)}
    local = _local_matmul(einsum, costs, sizes, whole, near, {gather.array})
    block = shard_bytes(gather.array, before, sizes, costs)
    adds, which = gather.dim not in einsum.dims, einsum.operands.index(gather.array)
    lanes = 0 if adds else lanes_of_block(gather, einsum, costs, sizes, before)
    laid = telling_seconds([name for name in einsum.operands if name != gather.array], gather.dim, costs, sizes, before)

    def make(way: Way, chunks: int) -> Priced:
        """A ring of so many chunks to a block: matmuls of what has arrived, added up or each laid in its part."""
        width = parts_of(way, chunks)
        events = gather_matmul(n, way, chunks, width)
        cut = local.cut_bytes(gather.dim, _together(events) / width / n, which) / costs.item_bytes
        joined = adds and is_one_matmul(cut, local.out[1] / costs.made_item_bytes)

        def multiply(share: float, parts: int = 1) -> float:
            if parts > 1 and not joined:
                return parts * multiply(share / parts)
            copied = costs.cut(local.cut_bytes(gather.dim, share / n, which)) if parts > 1 else 0.0
            padded = LANES * math.ceil(share * lanes / LANES) / (share * lanes) if lanes else 1.0
            put = _put(share * local.out[1] / n, costs) if padded > 1 and len(einsum.dims) > 2 else 0.0
            return local.seconds(costs, {gather.dim: share / n}, adds, padded=padded) + copied + put

        ring = _ring(events, width, costs, gather.axes, way, block, local.flops, multiply, n, joins=joined)
        return replace(ring, laid=laid + (_sliced(block, costs) if width > 1 else 0.0))

    return _forms(make, gather.axes, block, local, costs, n)


def _scattering(
    step: EinsumScatter, costs: Costs, sizes: Mapping[str, int], before: Mapping[str, Layout], near: frozenset[str]
) -> Forms:  # fmt: skip
    """Blocks of a sum that go on as they are made."""
    einsum, scatter, n = step.einsum, step.scatter, costs.mesh.extent(step.scatter.axes)
    local = _local_matmul(einsum, costs, sizes, before, near)
    ragged = [place for place, dim in enumerate(lanes_of(einsum.operands, costs, sizes, before)) if dim == scatter.dim]
    added = local.is_batched and costs.hardware.compiler is not None

    def make(way: Way, chunks: int) -> Priced:
        """A ring of so many chunks to a block: matmuls of the part that is sent on next."""
        along, widths = cut_along(replace(step, way=way, chunks=chunks), before, sizes, costs.mesh)

        def multiply(share: float, parts: int = 1) -> float:
            width = widths[scatter.dim] * (share if along == scatter.dim else 1)
            reads = dict.fromkeys(ragged, LANES * math.ceil(width / LANES) / width)
            beside = ADDED * costs.copy(local.out[1] * share / n) if added else 0.0
            shares = {scatter.dim: share / n} if along == scatter.dim else {scatter.dim: 1 / n, along: share}
            return local.seconds(costs, shares, adds=True, reads=reads) + beside

        width = parts_of(way, chunks, 2)
        events = matmul_scatter(n, way, chunks, width)
        ring = _ring(events, width, costs, scatter.axes, way, local.out[1] / n, local.flops, multiply, n)
        parts = n * parts_of(way, chunks, 2 if way == "bidirectional" else 1)
        laid = transposing_seconds(einsum, scatter.dim, costs, sizes, before, parts)
        return replace(ring, laid=laid + telling_seconds(einsum.operands, along, costs, sizes, before))

    return _forms(make, scatter.axes, local.out[1] / n, local, costs, n)


def _pipelined(
    step: EinsumGather, costs: Costs, sizes: Mapping[str, int], before: Mapping[str, Layout], near: frozenset[str]
) -> Forms:  # fmt: skip
    """A matmul whose result is gathered part by part, each laid where it belongs."""
    einsum, gather, n = step.einsum, step.gather, costs.mesh.extent(step.gather.axes)
    local = _local_matmul(einsum, costs, sizes, before, near)
    block = local.out[1]

    def make(way: Way, chunks: int) -> Priced:
        """A ring of so many chunks to a result: each part is sent as soon as it is made."""
        form = replace(step, way=way, chunks=chunks)
        along, _ = cut_along(form, before, sizes, costs.mesh)
        splits, across = splits_lanes(form, along, costs, sizes, before), are_made_across(form, along, costs, sizes, before)

        def multiply(share: float, parts: int = 1) -> float:
            return local.seconds(costs, {along: share}, adds=False, is_next=False)

        def put(share: float) -> float:
            laid = costs.laid(share * block, splits)
            return laid + costs.transposed_part(share * block) if across else laid

        width = parts_of(way, chunks)
        ring = _ring(matmul_gather(n, way, chunks, width), width, costs, gather.axes, way, block, local.flops, multiply, 1)
        laid = transposing_seconds(einsum, along, costs, sizes, before, parts=1)
        if n > UNROLL and splits and not isinstance(way, Sides):
            laid += costs.transposed(costs.arithmetic.name("V", n * block, "B", "bytes when gathered"))
        return replace(ring, copy=put, held_bytes=max(3 * block, ring.held_bytes), laid=laid)

    return _forms(make, gather.axes, block, local, costs, 1)


def _forms(
    make: Callable[[Way, int], Priced], axes: tuple[str, ...], block: float, local: _LocalMatmul, costs: Costs, blocks: int
) -> Forms:  # fmt: skip
    """The forms of a ring: parts of its matmul may start one behind the other, and read what was fetched."""
    compiler = costs.hardware.compiler
    if compiler is None:
        least = costs.einsum(local.flops, sum(bytes_ for _, bytes_ in local.operands), local.out[1])
    else:
        start = max(compiler.start_seconds.value, compiler.least_seconds.value)
        least = max(0.0, costs.einsum(local.flops, 0.0, 0.0) - start)
    return Forms(make, lambda way: moving_seconds(costs, axes, way, block), float(least), blocks)


def _ring(
    events: Events, width: int, costs: Costs, axes: tuple[str, ...], way: Way, block: float, flops: float,
    multiply: MatmulSeconds, blocks: int, *, joins: bool = True,
) -> Priced:  # fmt: skip
    """A ring whose blocks have so many bytes, the matmul that of so many blocks; hops take no account of who sends."""
    hop, n = costs.interconnect.hop(axes, way), costs.mesh.extent(axes)

    def moved(share: float, _: Send | None = None) -> float:
        return costs.arithmetic.name("H", hop.seconds(share * block), "s", "a hop")

    moving = moving_seconds(costs, axes, way, block)
    cover = costs.cover * block / (flops / blocks) if flops else math.inf
    links = Links(moved, hop.both_ways, cover, joins, AT_ONCE if costs.hardware.compiler else 0, costs.hardware.slowdown)
    if isinstance(costs.hardware.links, Memory) or not hop.asynchronous:
        links = ASIDE
    over, held = ",".join(axes), 2.0
    lanes = {1: f"{over} up", -1: f"{over} down"} if hop.both_ways else {1: over, -1: over}
    if isinstance(way, Sides):
        sides, held = range(1, 1 + len(way.sizes)), most_held(events) / width
        lanes = {ways * side: f"{over} side {side} {said}" for side in sides for ways, said in ((1, "up"), (-1, "down"))}
    return Priced(events, width, links, multiply, None, lanes, moving, flops, (n - 1) * block, held * block)


def moving_seconds(costs: Costs, axes: tuple[str, ...], way: Way, block: float) -> float:
    """How long blocks of so many bytes take to go round a ring, if nothing holds them up."""
    hop = costs.interconnect.hop(axes, way)
    if isinstance(way, Sides):  # a part for each side, in as many rounds as it takes
        parts = len(way.sizes)
        return rounds_of(way.sizes) * costs.arithmetic.name("H", hop.seconds(block / parts), "s", "a hop of a part")
    one = costs.arithmetic.name("H", hop.seconds(block), "s", "a hop")
    return (costs.mesh.extent(axes) - 1) * one / (2 if way == "bidirectional" and hop.both_ways and hop.asynchronous else 1)


def _rotating(step: RotateEinsum, costs: Costs, sizes: Mapping[str, int], before: Mapping[str, Layout]) -> Forms:
    """Both operands rotate at once, each along links of its own; nothing hides that they first move to where they meet."""
    whole = dict(before)
    for gather in step.gathers:
        whole[gather.array] = _gathered(before[gather.array], gather)
    local = _local_matmul(step.einsum, costs, sizes, whole, sent=whole)
    gathers = [next(g for g in step.gathers if g.array == name) for name in step.einsum.operands]
    blocks = [shard_bytes(gather.array, before, sizes, costs) for gather in gathers]
    grid = Grid((costs.mesh.extent(gathers[0].axes), costs.mesh.extent(gathers[1].axes)))
    hops = [costs.interconnect.hop(gather.axes) for gather in gathers]
    lanes = {1: ",".join(gathers[0].axes), -1: ",".join(gathers[1].axes)}

    def moved(_: float, send: Send) -> float:
        k = send.transfer
        assert send.turn is not None
        return send.turn.hops(k) * costs.arithmetic.name("H", hops[k].seconds(blocks[k]), "s", f"a hop over {lanes[1 - 2 * k]}")

    events = rotate_matmul(grid.sizes)
    one = local.seconds(costs, {gathers[0].dim: 1 / grid.steps}, adds=True)
    moving = costs.arithmetic.total(moved(1.0, event) for event in events if isinstance(event, Send))
    hidden = all(hop.asynchronous for hop in hops) and not isinstance(costs.hardware.links, Memory)
    links = Links(moved, slowdown=costs.hardware.slowdown) if hidden else ASIDE
    sent = sum(block * (n - 1) for block, n in zip(blocks, grid.sizes, strict=True))
    ring = Priced(events, 1, links, lambda share, parts: one, None, lanes, moving, local.flops, sent, 2 * sum(blocks))
    return Forms(lambda way, chunks: ring, lambda way: moving)


def _together(events: Events) -> int:
    """How wide what arrived together is, at most, that is multiplied together."""
    return max(
        (sum(part.width for part in event.parts) for event in events if isinstance(event, Matmul) and event.transfers),
        default=0,
    )


def _local_matmul(
    einsum: Einsum, costs: Costs, sizes: Mapping[str, int], before: Mapping[str, Layout], near: frozenset[str] = frozenset(),
    sent: Container[str] = (),
) -> _LocalMatmul:  # fmt: skip
    """A local matmul of operands with these layouts, of which some are `sent` and never lie in memory whole."""
    name = costs.arithmetic.name
    local = {d: sizes[d] // costs.mesh.extent(axes) for name in einsum.operands for d, axes in before[name].dims}
    terms: Sequence[tuple[str, ...]] = [before[name].names for name in einsum.operands]

    def sized(array: str, dims: Sequence[str], item: int) -> tuple[frozenset[str], float]:
        return frozenset(dims), name(array, item * math.prod(local[dim] for dim in dims), "B")

    operands = tuple(sized(array, term, costs.item_bytes) for array, term in zip(einsum.operands, terms, strict=True))
    return _LocalMatmul(
        name("FLOPs", einsum_flops(terms, einsum.dims, local), "FLOPs"),
        operands,
        sized(einsum.result, einsum.dims, costs.made_item_bytes),
        frozenset(place for place, array in enumerate(einsum.operands) if array in near),
        max((bytes_ for array, (_, bytes_) in zip(einsum.operands, operands, strict=True) if array not in sent), default=0.0),
    )


def _sliced(block: float, costs: Costs) -> float:
    """Seconds to slice a device's own block into chunks that are sent one by one.

    TPU compilers copy them: of 67 compiled rings of random shapes on five chips they take 0.9 to 2 times as long as this mean.
    """
    return 0.0 if costs.hardware.compiler is None else (costs.slice(block) + costs.copy(block)) / 2


def _put(part_bytes: float, costs: Costs) -> float:
    """Seconds to put a part that a matmul made where it belongs: read and written, or only written where the chip keeps it."""
    compiler = costs.hardware.compiler
    kept = compiler is not None and part_bytes <= compiler.kept_bytes.value
    return costs.read(part_bytes if kept else 2 * part_bytes)


def _gathered(layout: Layout, gather: AllGather) -> Layout:
    held = layout.axes_of(gather.dim)
    return layout.with_axes(gather.dim, held[: len(held) - len(gather.axes)])
