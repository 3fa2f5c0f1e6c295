"""Small programs for the compiler of one chip, and what it makes of them; nothing runs.

Each is compiled for a slice that is not attached, and read as a `Found`: what the cores and links do, in order. Steps are
given, so that no price says what is compiled. Sizes are fixed, or drawn with a fixed seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from random import Random
from typing import Any

from shardwise import api
from shardwise.chips import Hardware, Torus
from shardwise.chips.topology import Topology
from shardwise.mesh import Mesh
from shardwise.planning.tiles import blocks_of, memory_order
from shardwise.steps import AllGather, AllReduce, AllToAll, Einsum, GatherEinsum, ReduceScatter, Slice, Step

ITEM_BYTES = 2  # bfloat16
SIDE = 1024  # of the matmuls beside a permute
# Slices by the dimensions of the torus: of 4 chips, some of up to 64, and some whose links may be routed by tables.
FOUR = {2: "2x2", 3: "2x2x1"}
SUMMING = {2: ("2x2", "2x4", "4x4", "4x8", "8x8"), 3: ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4")}
ROUTED = {2: ("2x4", "4x4", "4x8", "8x8", "8x16"), 3: ("2x2x4", "2x4x4", "4x4x4", "4x4x8")}
X = ("x",)
GATHER, SLICE, EXCHANGE = AllGather("A", "I", X), Slice("A", "I", X), AllToAll("A", "I", "J", X)
MATMUL = Einsum(("A", "B"), "C", ("I", "K"))


@dataclass(frozen=True, slots=True)
class Piece:
    """Something that a core or a link does: `matmul`, `compute`, `copy`, `wait` or `transfer`."""

    kind: str
    name: str
    start_seconds: float
    seconds: float
    moves: str = ""  # the kind of the collective

    @property
    def end_seconds(self) -> float:
        return self.start_seconds + self.seconds

    @property
    def is_work(self) -> bool:
        """Whether a core lays out or copies something, and multiplies nothing; numbers alone take nothing."""
        return self.kind == "compute" and self.seconds > 0 and not self.moves


@dataclass(frozen=True, slots=True)
class Found:
    """A compiled program: its pieces by start, what it fetches before it is used, and its collectives' kinds and shapes."""

    pieces: tuple[Piece, ...]
    fetched: tuple[str, ...]
    opcodes: tuple[tuple[str, str], ...]  # name and opcode of each instruction, in the order of the schedule
    collectives: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @property
    def matmul_seconds(self) -> float:
        return sum(piece.seconds for piece in self.pieces if piece.kind == "matmul")

    @property
    def is_overlapped(self) -> bool:
        """Whether a transfer and a matmul run at the same time."""
        moves = [piece for piece in self.pieces if piece.kind == "transfer"]
        return any(
            min(piece.end_seconds, move.end_seconds) - max(piece.start_seconds, move.start_seconds) > move.seconds / 100
            for move in moves
            for piece in self.pieces
            if piece.kind == "matmul"
        )

    def work_seconds(self, when: str = "") -> float:
        return sum(piece.seconds for piece in self.work(when))

    def work(self, when: str = "") -> list[Piece]:
        """What lays out or copies: all of it, or what starts `before` the collective's data is on its way, or `after`."""
        moved = [piece.start_seconds for piece in self.pieces if piece.kind in ("transfer", "wait") and piece.moves]
        chosen = [piece for piece in self.pieces if piece.is_work]
        if when and moved:
            chosen = [piece for piece in chosen if (piece.start_seconds <= max(moved)) == (when == "before")]
        return chosen


@dataclass(frozen=True)
class Prober:
    """Compiles programs for one chip."""

    chip: Hardware

    @property
    def family(self) -> str:
        return self.chip.name.removeprefix("tpu-")

    @property
    def dimensions(self) -> int:
        assert isinstance(self.chip.links, Torus)
        return int(self.chip.links.dimensions.value)

    @cached_property
    def four(self) -> Topology:
        return self.slice(FOUR[self.dimensions])

    def slice(self, shape: str) -> Topology:
        return Topology.parse(f"{self.family}:{shape}")

    def steps(self, equation: str, sizes: dict[str, int], *steps: Step, on: Topology | None = None) -> Found:
        """What is made of a program of these steps, on a mesh of one axis `x` over a slice: by default of 4 chips."""
        from shardwise.compiled.confirming import rehearsed

        on = on or self.four
        plan = api.plan(equation, sizes=sizes, mesh=f"x={on.size}", hardware=str(on))
        return found(rehearsed(plan.task, replace(plan.best.program, steps=steps), on))

    def matmul(self, i: int, j: int, k: int) -> Found:
        return self.steps("A[I, J] · B[J, K] -> C[I, K]", {"I": i, "J": j, "K": k}, MATMUL)

    def kept_matmul(self, i: int, j: int, k: int) -> Found:
        """A matmul whose result the chip keeps for an all-reduce."""
        sizes = {"I": i, "J": self.four.size * j, "K": k}
        return self.steps("A[I, J_x] · B[J_x, K] -> C[I, K]", sizes, MATMUL, AllReduce("C", X))

    def gather(self, rows: int, columns: int, on: Topology | None = None) -> Found:
        """An all-gather of so many rows of each device, which ends a program."""
        rows *= (on or self.four).size
        return self.steps("A[I_x, J] -> A[I, J]", {"I": rows, "J": columns}, GATHER, on=on)

    def scatter(self, rows: int, columns: int, on: Topology) -> Found:
        sizes = {"I": rows * on.size, "J": columns}
        return self.steps("A[I, J]{U_x} -> A[I_x, J]", sizes, ReduceScatter("A", "I", X), on=on)

    def kept(self, rows: int, columns: int) -> Found:
        """A slice of which each device keeps so many rows, which ends a program."""
        return self.steps("A[I, J] -> A[I_x, J]", {"I": rows * self.four.size, "J": columns}, SLICE)

    def exchange(self, i: int, j: int) -> Found:
        """An all-to-all that is all of a program."""
        return self.steps("A[I_x, J] -> A[I, J_x]", {"I": i, "J": j}, EXCHANGE)

    def ring(self, i: int, block: int, k: int) -> Found:
        """A ring both ways that gathers what is summed over: blocks of so many of both sides are multiplied at once."""
        step = GatherEinsum(AllGather("A", "J", X), MATMUL, "bidirectional", 1)
        sizes = {"I": i, "J": block * self.four.size, "K": k}
        return self.steps("A[I, J_x] · B[J, K] -> C[I, K]", sizes, step)

    def passing(self, rows: int, summed: int, columns: int) -> Found:
        """A ring both ways in two chunks a block, whose parts are multiplied one by one: it gathers so many columns of each."""
        step = GatherEinsum(AllGather("B", "K", X), MATMUL, "bidirectional", 2)
        sizes = {"I": rows, "J": summed, "K": columns * self.four.size}
        return self.steps("A[I, J] · B[J, K_x] -> C[I, K]", sizes, step)

    def permute(self, rows: int, matmuls: int, on: Topology | None = None, mesh: str = "") -> Found:
        """A permute round the mesh's first axis, of so many rows of 1024, beside matmuls that do not need it."""
        import jax

        on = on or self.four
        grid = Mesh.parse(mesh or f"x={on.size}")
        n = grid.extent(X)

        def function(moved: Any, a: Any, b: Any) -> Any:
            moved = jax.lax.ppermute(moved, "x", [(i, (i + 1) % n) for i in range(n)])
            for _ in range(matmuls):
                a = a @ b
            return moved[:SIDE] @ a

        return self.function(function, [(rows, SIDE), (SIDE, SIDE), (SIDE, SIDE)], [False] * 3, on, grid)

    def gather_beside(self, rows: int, columns: int) -> Found:
        """An all-gather to so many rows, which the second of two matmuls needs, and the first does not."""
        import jax

        on = self.four

        def function(weights: Any, a: Any, b: Any) -> Any:
            return (a @ b) @ jax.lax.all_gather(weights, "x", tiled=True)

        shapes = [(rows, columns), (2048, rows), (rows, rows)]
        return self.function(function, shapes, [True, False, False], on, Mesh.parse(f"x={on.size}"))

    def function(
        self, of: Callable[..., Any], shapes: Sequence[tuple[int, ...]], split: Sequence[bool], on: Topology, grid: Mesh
    ) -> Found:  # fmt: skip
        """What is made of a function of shards: arrays whose rows are `split` over `x`, or that each device has."""
        import jax
        from jax.sharding import NamedSharding, PartitionSpec

        from shardwise.compiled.compiling import rehearse
        from shardwise.compiled.targets.unattached import target_mesh

        mesh = target_mesh(on, grid)
        specs = tuple(PartitionSpec("x") if each else PartitionSpec() for each in split)
        mapped = jax.shard_map(of, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(), check_vma=False)
        args = [
            jax.ShapeDtypeStruct(shape, "bfloat16", sharding=NamedSharding(mesh, spec))
            for shape, spec in zip(shapes, specs, strict=True)
        ]
        return found(rehearse(jax.jit(mapped), *args, on=on, mesh=mesh))


def found(audit: Any) -> Found:
    """A compiled program as a value."""
    pieces = tuple(
        Piece(span.kind, span.name, span.start_seconds, span.seconds, "" if span.collective is None else span.collective.kind)
        for span in audit.timeline().spans
    )
    instructions = audit.module.entry.instructions
    fetched = tuple(each.shape.lstrip("(").split("{")[0] for each in instructions if each.opcode == "copy-start")
    opcodes = tuple((each.name, each.opcode) for each in instructions)
    shapes = tuple(each.shape for each in audit.collectives)
    return Found(pieces, fetched, opcodes, tuple(each.kind for each in audit.collectives), shapes)


def transposing_shards(devices: int, least: float, most: float, seed: str) -> Iterator[tuple[int, int]]:
    """Shards, without end, that lie by rows and that gathered along them lie by columns; `least` to `most` bytes then."""
    random = Random(f"transposing {seed}")
    while True:
        columns = 8 * random.randint(40, 800)
        whole = math.exp(random.uniform(math.log(least), math.log(most)))
        rows = 8 * max(1, round(whole / ITEM_BYTES / columns / devices / 8))
        gathered = rows * devices
        fits = least <= ITEM_BYTES * gathered * columns <= most
        if fits and memory_order((rows, columns)) == (0, 1) and memory_order((gathered, columns)) == (1, 0):
            yield rows, columns


def spread_shards(devices: int, least: float, most: float) -> Iterator[tuple[int, int]]:
    """Shards, without end, that lie by columns, and whose blocks are spread when gathered; `least` to `most` bytes then."""
    random = Random("spread")
    while True:
        columns = 8 * random.randint(23, 130)
        rows = 8 * round(math.exp(random.uniform(math.log(least), math.log(most))) / ITEM_BYTES / columns / devices / 8)
        shard, whole = (rows, columns), (rows * devices, columns)
        fits = least <= ITEM_BYTES * math.prod(whole) <= 0.9 * most  # when it is padded, too
        if fits and blocks_of("all-gather", (0, 0), shard, whole, memory_order(shard)).spread:
            yield shard


def scatters(count: int) -> Iterator[tuple[int, int]]:
    """Rows and columns of what is left of random scatters: whole tiles, of up to 48 MB."""
    random = Random("scatters")
    for _ in range(count):
        columns = 128 * int(2 ** random.uniform(0, 7))
        yield 8 * random.randint(8, max(9, min(300, 24_000_000 // columns // 8))), columns


def small_exchanges(devices: int, count: int) -> Iterator[tuple[int, int]]:
    """Sizes of all-to-alls of less than 100 kB on each device, in parts that mostly end within a tile."""
    random = Random("small exchanges")
    while count:
        i, j = devices * random.randint(4, 256), devices * random.randint(4, 256)
        if ITEM_BYTES * i * j / devices < 1e5:
            count -= 1
            yield i, j
