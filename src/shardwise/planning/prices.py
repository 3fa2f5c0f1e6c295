"""The prices of single steps on a hardware: collectives, local matmuls, and what they compute, send and hold."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from shardwise.chips import Hardware, Memory
from shardwise.chips.algorithms import CUBE, Ground, goes_round, is_foldable, is_summed
from shardwise.chips.crowds import sides_of
from shardwise.chips.interconnect import Interconnect
from shardwise.chips.links import Arithmetic, memory_seconds
from shardwise.layout import Axes
from shardwise.mesh import Mesh, Sides
from shardwise.planning.exchanges import Around, copies_of, ragged_copies, transposed_copies
from shardwise.planning.gathers import along_lanes
from shardwise.planning.tiles import PLAIN, SUMMED_FROM, Blocks, Order, memory_order, scattered_rows, transposed_bytes
from shardwise.schedule.along_sides import MOST_PLACES
from shardwise.steps import CollectiveKind, MoveKind, Way

ITEM_BYTES = {
    "bool": 1, "int8": 1, "uint8": 1, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "int16": 2, "uint16": 2, "float16": 2, "bfloat16": 2,
    "int32": 4, "uint32": 4, "float32": 4,
    "int64": 8, "uint64": 8, "float64": 8, "complex64": 8,
    "complex128": 16,
}  # fmt: skip

# Beside some of these stands what libtpu 0.0.50 makes of a small program on v5e:2x2.
AMONG_ZEROS = 1.3  # copies of a gathered array that zeros and the block among them take: 0.9 on v7x, 1.8 on v5p
LEAST_NEXT = 0.8  # of the least that a matmul takes, where it follows one like it: 0.65 on v6e, 0.9 on v4
HELD = 2.0  # times a sum that a chip keeps: 1.3 to 4 fit 83 compiled rings as well
FETCHED = 0.25  # of the time that reading it takes otherwise: reading what has been fetched
SMALL = 4e5  # bytes: matmuls of less than 0.2 to 0.6 MB wait for nothing, and copies take their least
STARTING = 3  # times as long as the rest of a matmul its start takes at most
NEXT = 0.4  # of that start for a matmul that follows one like it, where a chip holds arrays
# Blocks of an all-to-all that are spread over an outer dimension are transposed at full speed from so many on; of what a chip
# keeps from so many on: 180 and 315 GB/s of 2 and 4 on v5p, where others are at 290; 43 and 86 on v6e, where they are at 333.
FEW, FEW_KEPT = 3.3, 16.0
ROUNDED = 1e-9  # less of a block is the rounding of sums
TAKEN_APART = 3.0  # copies that transpose, of a gather that ends a program and is taken apart: a median of compiled ones
SUMMED = {  # why a collective is priced as an all-reduce
    "all-gather": "this compiler makes it an all-reduce of blocks among zeros",
    "reduce-scatter": "this compiler makes it an all-reduce and a slice",
}


@dataclass(frozen=True, slots=True)
class Costs:
    """The prices of steps for one problem: the interconnect that its mesh has, and its dtype, are fixed.

    `accumulated` is the dtype of matmuls, where it is another (`preferred_element_type`).
    """

    interconnect: Interconnect
    dtype: str
    accumulated: str | None = None
    hardware: Hardware = field(init=False, compare=False, repr=False)  # this and what follows: those of the interconnect
    mesh: Mesh = field(init=False, compare=False, repr=False)
    ground: Ground | None = field(init=False, compare=False, repr=False)
    arithmetic: Arithmetic = field(init=False, compare=False, repr=False)
    sharers: int = field(init=False, compare=False, repr=False)  # devices that share a chip's figures
    flops_per_s: float = field(init=False, compare=False, repr=False)  # the peak of one device, and its share of the memory
    memory_bytes_per_s: float = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("hardware", "mesh", "ground", "arithmetic"):
            object.__setattr__(self, name, getattr(self.interconnect, name))
        object.__setattr__(self, "sharers", self.hardware.sharers(self.mesh))
        object.__setattr__(self, "flops_per_s", self.hardware.flops(self.dtype, self.mesh))
        object.__setattr__(self, "memory_bytes_per_s", self.hardware.memory_speed(self.mesh))

    @property
    def item_bytes(self) -> int:
        return ITEM_BYTES[self.dtype]

    def order(self, shard: Sequence[int]) -> Order | None:
        """In which order the dimensions of a program's inputs and result lie in memory; None where they are as written."""
        return None if self.hardware.compiler is None else memory_order(tuple(map(int, shard)))

    @property
    def made_item_bytes(self) -> int:
        return ITEM_BYTES[self.accumulated or self.dtype]

    def collective(self, kind: CollectiveKind, axes: Axes, in_bytes: float, out_bytes: float, blocks: Blocks = PLAIN) -> float:
        """Seconds of a collective that makes shards of `out_bytes` from shards of `in_bytes`, whose blocks lie so."""
        summed = self.hardware.compiler is not None and self.is_summed(kind, axes, out_bytes, blocks)
        if summed:
            whole = max(in_bytes, out_bytes)
            seconds = self.arithmetic.name("", self.interconnect.price("all-reduce", axes)(whole, whole), "s", SUMMED[kind])
        elif kind == "reduce-scatter" and self.hardware.compiler is not None:
            seconds = self._scatter(axes, in_bytes, out_bytes, blocks)
        else:
            large = kind == "all-gather" and self.ground is not None and goes_round(axes, out_bytes, self.ground)
            seconds = self.interconnect.price(kind, axes, blocks.splits_rows, large)(in_bytes, out_bytes)
        laid = self._laying(kind, in_bytes, out_bytes, blocks, summed)
        return seconds + self.arithmetic.name("", laid, "s", "blocks laid out in memory") if laid else seconds

    def _scattered(self, axes: Axes, blocks: Blocks) -> float:
        """How many times its size a chip's compiler pads each block of a scatter to, so that equal chunks make it up."""
        compiler = self.hardware.compiler
        if compiler is None or not blocks.rows or self.interconnect.shape is None or self.hardware.devices_per_chip > 1:
            return 1.0
        most = max(1, int(compiler.scattered_tiles.value / (self.mesh.extent(axes) + 4)))
        return scattered_rows(blocks.rows, blocks.columns, most) / blocks.rows

    def _scatter(self, axes: Axes, in_bytes: float, out_bytes: float, blocks: Blocks) -> float:
        """Seconds of a scatter as chips' compilers make it.

        Blocks padded to equal chunks end up as many pads away from their place as blocks are before them: `_to_their_place`
        moves them. Blocks that stand apart are laid out one after the other before, if more than a tile wide.
        """
        price, padded = self.interconnect.price("reduce-scatter", axes, blocks.count % CUBE > 0), self._scattered(axes, blocks)
        if blocks.stands_apart(self.hardware.devices_per_chip):
            if blocks.rows:  # what a matmul made, and the chip holds beside an operand, is laid out there
                laid = 0.0 if self.is_fetched(2 * in_bytes) else self._memory(in_bytes, in_bytes)
                return price(in_bytes, out_bytes) + laid
            room = self._room(in_bytes, blocks)
            return price(room, self._room(out_bytes, blocks)) + (self.copy(room) if blocks.columns > 1 else 0.0)
        if padded == 1:
            return price(in_bytes, out_bytes)
        times = self.arithmetic.name("p", padded, "", "times its size, padded to equal chunks")
        return price(times * in_bytes, times * out_bytes) + self._to_their_place(axes, padded, times * out_bytes, out_bytes)

    def _to_their_place(self, axes: Axes, padded: float, block: float, out_bytes: float) -> float:
        """Seconds to move the blocks of a scatter, `padded` times as large as their content, to the devices that they are for.

        The pads of all lie behind the last block, so that a device's own is up to `far` devices before it: all send theirs to
        the next, then to the one behind that, and so on, and each puts together what is its own.
        """
        far = self.mesh.extent(axes) * (1 - 1 / padded)
        parts = [min(1.0, far - distance) for distance in range(math.ceil(far - ROUNDED))]  # of a block, by how far it goes
        shifts = [self.interconnect.shift(axes, distance) for distance in range(1, len(parts) + 1)]
        crowd = sum(crowd * part for (crowd, _), part in zip(shifts, parts, strict=True))
        moved = self.interconnect.over_links(
            crowd, sum(hops for _, hops in shifts), block, "blocks share a link, one after the other"
        )
        return moved + self.copy(min(far, 1.0) * block) + self.copy(out_bytes)

    def is_summed(self, kind: CollectiveKind, axes: Axes, out_bytes: float, blocks: Blocks) -> bool:
        """Whether a chip's compiler makes a gather an all-reduce of blocks among zeros, or a scatter one that it slices."""
        compiler = self.hardware.compiler
        if compiler is None or self.ground is None:
            return False
        uncut = kind == "reduce-scatter" and (blocks.tiles == "rows" or self._scattered(axes, blocks) > SUMMED_FROM)
        return is_summed(kind, axes, out_bytes, uncut, compiler, self.ground)

    def _laying(self, kind: CollectiveKind, in_bytes: float, out_bytes: float, blocks: Blocks, summed: bool) -> float:
        """Seconds in which a collective's blocks are laid out in memory, beside their transfer."""
        links, compiler = self.hardware.links, self.hardware.compiler
        if isinstance(links, Memory):
            moved = transposed_bytes(kind, blocks, in_bytes, out_bytes)
            return self.mesh.size * moved / links.transposed_bytes_per_s.value + memory_seconds(links, self.mesh, 0.0, moved)
        if compiler is None or self.ground is None:
            return 0.0
        match kind:
            case "all-to-all":
                return self.exchanged_within(in_bytes, blocks)
            case "all-gather" if summed:
                near = out_bytes <= compiler.kept_bytes.value
                return AMONG_ZEROS * (self._memory(out_bytes, out_bytes) if near else self.copy(out_bytes))
            case "all-gather" if blocks.is_ragged and out_bytes < SMALL:
                return self._memory(0.0, out_bytes)  # of programs that take as long, one with less to put together
            case "all-reduce" if self.hardware.devices_per_chip > 1 and self.interconnect.shape is not None:
                return self.copy(in_bytes)  # to where the sparse cores take it
            case _:
                return 0.0

    def exchanged(self, array_bytes: float, blocks: Blocks, around: Around) -> float:
        """Seconds to copy what an all-to-all takes or makes, by what stands around it.

        What the chip's own memory has room for is only written once instead of copied, and transposed once less where a matmul
        stands beside it, or where it is a matrix; its blocks are spread the more slowly the fewer they are. What a chip of two
        cores has no room for its sparse cores exchange, which copy nothing.
        """
        compiler = self.hardware.compiler
        if compiler is None:
            return 0.0
        if blocks.is_ragged:
            plain, transposed = ragged_copies(blocks.deep, around)
            seconds = plain * self.copy(array_bytes) + transposed * self.transposed(array_bytes)
            return self.arithmetic.longest(seconds, (1 if plain else 2) * compiler.least_copy_seconds.value)
        if self.hardware.devices_per_chip > 1 and array_bytes > compiler.near_bytes.value:
            return 0.0
        room = compiler.near_bytes.value / 2 if self.hardware.devices_per_chip > 1 else compiler.kept_bytes.value
        kept = array_bytes <= room
        if blocks.are_transposed(array_bytes, compiler, around == "read"):
            plain, transposed, _ = transposed_copies(blocks.cuts, blocks.narrow, kept, around)
            seconds = plain * self.copy(array_bytes) + transposed * self.transposed(array_bytes)
            return self.arithmetic.longest(seconds, compiler.least_copy_seconds.value)
        plain, transposed, spread = copies_of(blocks.joins, blocks.cuts, blocks.deep, blocks.narrow, around)
        written, slow = 0.0, max(1.0, FEW / blocks.parts)
        if kept and plain > 1:
            plain, written = plain - 1, self._memory(0.0, array_bytes)
        if array_bytes <= room / (2 if blocks.deep else 1):
            transposed -= 1 if transposed > 1 and not (blocks.deep and around == "alone") else 0
            transposed -= 1 if transposed == 1 and around == "read" and not blocks.deep and blocks.joins == "lanes" else 0
            slow = max(1.0, FEW_KEPT / blocks.parts)
        seconds = plain * self.copy(array_bytes) + (transposed + spread * slow) * self.transposed(array_bytes) + written
        return self.arithmetic.longest(seconds, compiler.least_copy_seconds.value)

    def exchanged_within(self, array_bytes: float, blocks: Blocks) -> float:
        """Seconds of the copies of an all-to-all within other collectives: of whole tiles as few as beside a matmul."""
        made, read = self.exchanged(array_bytes, blocks, "made"), self.exchanged(array_bytes, blocks, "read")
        return read if read < made and not blocks.is_ragged else made

    def holds(self, sum_bytes: float, near_bytes: float) -> bool:
        """Whether a chip keeps a sum while matmuls add to it, beside operands that it has fetched."""
        compiler = self.hardware.compiler
        return compiler is not None and HELD * sum_bytes + near_bytes <= compiler.kept_bytes.value

    def read(self, sum_bytes: float) -> float:
        """Seconds to read a sum that a matmul adds to, tile by tile as it ends: nothing overlaps that."""
        return self._memory(sum_bytes, 0.0)

    def laid(self, part_bytes: float, splits_lanes: bool) -> float:
        """Seconds to lay a part of a result where it belongs: only written, if it ends within lanes and the chip keeps it."""
        compiler = self.hardware.compiler
        if compiler is None:
            return self.copy(part_bytes)
        kept = splits_lanes and part_bytes <= compiler.kept_bytes.value
        seconds = self._memory(0.0, part_bytes) if kept else self.copy(part_bytes)
        return self.arithmetic.longest(seconds, compiler.least_copy_seconds.value)

    def copy(self, array_bytes: float) -> float:
        """Seconds to copy an array in memory."""
        compiler = self.hardware.compiler
        if compiler is None:
            return self._memory(array_bytes, array_bytes)
        return array_bytes * self.sharers / compiler.copied_bytes_per_s.value

    def transposed(self, array_bytes: float) -> float:
        """Seconds to copy an array so that another dimension runs fastest."""
        compiler = self.hardware.compiler
        return 0.0 if compiler is None else array_bytes * self.sharers / compiler.transposes(array_bytes)

    def transposed_part(self, part_bytes: float) -> float:
        """Seconds to copy one of many parts so that another dimension runs fastest."""
        compiler = self.hardware.compiler
        least = 0.0 if compiler is None else compiler.least_copy_seconds.value
        return self.arithmetic.longest(self.transposed(part_bytes), least)

    def leaving(
        self, kind: MoveKind, axes: Axes, out_bytes: float, blocks: Blocks = PLAIN, given: bool = False, beside: float = 0.0
    ) -> float:
        """Seconds to copy what a collective made to where a program's result must stand; TPU compilers do.

        What the chip holds, `beside` so many bytes, leaves it as fast as memory takes it, unless `transposed`; blocks that
        a copy laid out stand there already. What was `given`, and not made, lies as it was: more of it is transposed.
        """
        compiler, blocks = self.hardware.compiler, PLAIN if blocks.padded * out_bytes < SMALL else blocks
        if compiler is None or kind not in ("all-gather", "all-to-all", "collective-permute"):
            return 0.0
        room, summed = self._room(out_bytes, blocks), self.is_summed(kind, axes, out_bytes, blocks)
        sparse = kind == "collective-permute" and self.hardware.devices_per_chip > 1
        held = sparse or out_bytes + beside <= compiler.kept_bytes.value
        match kind, blocks.tiles:
            case ("all-gather", _) if summed:
                return 0.0
            case ("all-gather", "lanes" | "torn") | (_, "rows" | "torn") if blocks.deep or kind == "all-to-all":
                return self.transposed(room)
            case "all-gather", "lanes" if given and self.hardware.devices_per_chip == 1:
                return room * self.sharers / along_lanes(room, blocks, compiler)
            case "all-gather", "torn" if given:
                return TAKEN_APART * room * self.sharers / compiler.transposed_bytes_per_s.value
            case "all-gather", "lanes" | "torn":
                return self.transposed(room)
            case _, "rows" if blocks.transposed:  # put together first: the chip's own memory has to have room for both
                speed = compiler.transposes(2 * room)
                return room * self.sharers / speed + self._memory(0.0, room)
            case _ if blocks.transposed:
                return self.transposed(room)
            case "all-to-all", _:
                around = "alone" if given else "made"
                return max(0.0, self.exchanged(out_bytes, blocks, around) - self.exchanged_within(out_bytes, blocks))
            case _, "rows":
                return self._memory(0.0 if held else out_bytes, out_bytes)
            case _:
                return self._memory(0.0, out_bytes) if held else self.copy(out_bytes)

    def _room(self, array_bytes: float, blocks: Blocks) -> float:
        """The bytes that an array takes in memory."""
        if blocks.padded == 1:
            return array_bytes
        return self.arithmetic.name("p", blocks.padded, "", "times its size, padded to whole tiles") * array_bytes

    def put_together(self, out_bytes: float, blocks: Blocks) -> float:
        """Seconds to put blocks of a gather together that end within a tile, for what is no matmul."""
        if self.hardware.compiler is None or not blocks.is_ragged:
            return 0.0
        room = self._room(out_bytes, blocks)
        easy = room < SMALL or (blocks.tiles == "rows" and not blocks.deep)
        return self._memory(0.0, room) if easy else self.transposed(room)

    def made_readable(self, in_bytes: float, out_bytes: float, blocks: Blocks) -> float:
        """Seconds to lay out for a matmul the blocks of a gather that end within a tile.

        Those that end within its lanes are transposed before they are sent; those that end within its rows are put together
        when they have arrived: in the chip's own memory, or read or written, or both, where that has no room.
        """
        compiler = self.hardware.compiler
        if compiler is None or not blocks.is_ragged:
            return 0.0
        sent = self.transposed(in_bytes) if blocks.tiles in ("lanes", "torn") else 0.0
        if not blocks.splits_rows or 2 * out_bytes <= compiler.near_bytes.value:
            return sent
        return sent + self._memory(out_bytes if out_bytes > compiler.near_bytes.value else 0.0, out_bytes)

    @property
    def cover(self) -> float:
        """The FLOPs of matmuls behind which a permute is left, for each byte; those there are, by default."""
        return math.inf if self.hardware.compiler is None else self.hardware.compiler.cover_flops_per_byte.value

    def cut(self, cut_bytes: float) -> float:
        """Seconds to copy cuts of an array that one matmul needs together; nothing where no compiler is known."""
        compiler = self.hardware.compiler
        return 0.0 if compiler is None else cut_bytes * self.sharers / compiler.cut_bytes_per_s.value

    def ways(self, axes: Axes) -> tuple[Way, ...]:
        """The ways that a ring over mesh axes may go that are worth a look: behind a switch both ways are two chunks of one."""
        if self.ground is None:
            return ("ring",)
        return ("folded", "ring") if is_foldable(axes, self.ground) else ("ring", "bidirectional", *self.sides(axes))

    def sides(self, axes: Axes) -> tuple[Sides, ...]:
        """The torus that the devices along mesh axes fill, if any; of no more than schedules are written out for."""
        site = self.interconnect.site
        return () if site is None or self.mesh.extent(axes) > MOST_PLACES else sides_of(axes, self.mesh, site)

    def slice(self, out_bytes: float, blocks: Blocks = PLAIN) -> float:
        """Seconds to read and write the kept part, or, through the rows of tiles, to copy it; matmuls read it in place."""
        if blocks.tiles == "rows":
            return self.cut_out(out_bytes, blocks)
        if self.hardware.compiler is not None:
            return max(self._memory(out_bytes, out_bytes), self.hardware.compiler.slice_seconds.value)
        return self._launch() + self._memory(out_bytes, out_bytes)

    def cut_out(self, out_bytes: float, blocks: Blocks) -> float:
        """Seconds to copy the kept part to where a collective takes it, or a program's result stands."""
        least = 0.0 if self.hardware.compiler is None else self.hardware.compiler.slice_seconds.value
        return max(self.copy(self._room(out_bytes, blocks)), least)

    def is_fetched(self, array_bytes: float) -> bool:
        """Whether a chip fetches an input before it works on it."""
        compiler = self.hardware.compiler
        return compiler is not None and SMALL <= array_bytes <= compiler.near_bytes.value

    def fetched(self, sizes: Iterable[float]) -> tuple[float, float]:
        """Of inputs of so many bytes each, those that a chip fetches before it multiplies; and the seconds that takes."""
        taken = sum(size for size in sizes if self.is_fetched(size))
        return taken, self._memory(self.arithmetic.name("inputs", taken, "B"), 0.0)

    def einsum(
        self, flops: float, in_bytes: float, out_bytes: float, is_next: bool = False, is_kept: bool = False,
        leaves: float | None = None, part_of: float = 0.0,
    ) -> float:  # fmt: skip
        """Seconds of a local einsum: the roofline, max(FLOPs / peak, bytes / memory bandwidth); their sum on what packs.

        Where the catalogue knows what a chip's compiler makes of matmuls, of the peak only the share that large ones
        reach, and no more results a second than leave the multipliers; of the memory's speed, after the least that a matmul
        takes, that at which they read what is too large to be fetched, all or as `part_of` it. One that `is_next` in a row of
        like ones starts sooner on a chip that holds arrays, which fetches meanwhile what it needs. One whose result `is_kept`
        for a collective multiplies in passes over its sums, and results leave faster. Of the result so many bytes `leave`.
        """
        written, waits = out_bytes if leaves is None else leaves, 0.0
        arithmetic = flops / self.flops_per_s
        compiler = self.hardware.compiler
        if compiler is not None and flops:
            arithmetic /= compiler.efficiency.value
            results = out_bytes / self.made_item_bytes
            is_kept = is_kept and out_bytes <= compiler.kept_bytes.value
            leaving = compiler.kept_results_per_s if is_kept else compiler.results_per_s
            if is_kept and (passes := unfilled(flops / 2 / results, compiler.pass_elements.value)) > 1:
                arithmetic = self.arithmetic.name("passes", passes, "", "the last is not filled") * arithmetic
            arithmetic = max(arithmetic, results / (leaving.value / self.sharers))
            least = compiler.least_seconds.value * (LEAST_NEXT if is_next or is_kept else 1.0)
            sooner = NEXT if is_kept or (is_next and compiler.kept_bytes.value) else 1.0
            arithmetic, waits = started(arithmetic, compiler.start_seconds.value, least, sooner), least
            if max(in_bytes, part_of) > compiler.near_bytes.value:
                in_bytes = in_bytes / self.arithmetic.name("m", compiler.read_share.value, "", "of the memory's speed")
        if self.hardware.packs:
            return self._launch() + arithmetic + self._memory(in_bytes, written)
        return self.arithmetic.longest(arithmetic, waits + self._memory(in_bytes, written))

    @property
    def dispatch(self) -> float:
        """Seconds to start a program on every device, before its steps; simulated devices are started one after another."""
        links = self.hardware.links
        return self.mesh.size * links.dispatch_seconds.value if isinstance(links, Memory) else 0.0

    def _launch(self) -> float:
        links = self.hardware.links
        return self.mesh.size * links.local_seconds.value if isinstance(links, Memory) else 0.0

    def _memory(self, read_bytes: float, written_bytes: float) -> float:
        match self.hardware.links:
            case Memory() as memory:
                return memory_seconds(memory, self.mesh, read_bytes, written_bytes)
            case _:
                return (read_bytes + written_bytes) / self.memory_bytes_per_s


def unfilled(summed: float, pass_elements: float) -> float:
    """How many times as long as its sums, of so many elements each, a matmul's passes over them take: the last is not filled.

    >>> unfilled(384, 256.0)
    1.3333333333333333
    """
    passes = float(summed) / pass_elements
    return math.ceil(passes) / passes


def started(arithmetic: float, start: float, least: float, sooner: float = 1.0) -> float:
    """Seconds of a matmul with its start: `start`, of which a small one has less, or `sooner` times that; at least `least`.

    >>> [round(started(each, start=5.0, least=2.0), 1) for each in (0.1, 1.0, 10.0)]
    [2.1, 4.0, 15.0]
    """
    return arithmetic + max(min(STARTING * arithmetic, start) * sooner, least)
