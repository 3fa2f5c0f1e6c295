"""The layouts of one value: their bytes, and the priced moves between them."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field

from shardwise.layout import Axes
from shardwise.planning.graph import Graph, Kind, Move, Scope, State, Vertex, arrangements, graph_of
from shardwise.planning.prices import Costs
from shardwise.planning.tiles import PLAIN, Blocks, Order, blocks_of
from shardwise.steps import MoveKind

# Added to every step: of two programs with the same estimate the one with fewer steps is found first. Far below what one
# byte takes in the fastest memory (1e-13 s), so that it never decides between programs whose estimates differ.
STEP_SECONDS = 1e-15

Edge = tuple[float, float, Vertex, Move]  # seconds, live temporary bytes, the state on the other side, the move


class TooMany(Exception):
    """A search has looked at as many moves and einsums as it may, and is not done."""


@dataclass(slots=True)
class Ground:
    """What all values of a search share: sizes, prices, and the count of what is looked at; it may be so much at `most`."""

    costs: Costs
    sizes: Mapping[str, int]
    most: float = math.inf
    looked: int = 0
    mesh_axes: tuple[tuple[str, int], ...] = ()
    couples: tuple[Axes, ...] = ()  # of axes: what a permute moves at least
    graph: Graph = field(init=False)

    def __post_init__(self) -> None:
        self.mesh_axes = tuple((name, size) for name, size in self.costs.mesh.axes if size > 1)
        self.couples = tuple(itertools.combinations((name for name, _ in self.mesh_axes), 2))
        self.graph = graph_of(tuple([name for name, _ in self.mesh_axes]))

    def look(self, count: int) -> None:
        """Count moves and einsums that are looked at.

        Raises:
            TooMany: there were more than there may be.
        """
        self.looked += count
        if self.looked > self.most:
            raise TooMany

    def cut(self, dim: str, axes: Axes) -> int:
        """The elements of a dimension that each device has; 0 where the axes do not divide it."""
        whole, rest = divmod(self.sizes[dim], self.costs.mesh.extent(axes))
        return 0 if rest else whole

    def move_seconds(self, name: MoveKind, axes: Axes, took: float, made: float, blocks: Blocks) -> float:
        """Seconds of a move; it depends on its name and axes, on the shard's bytes and on how its blocks lie, alone."""
        if name == "slice":
            return self.costs.slice(made, blocks) + STEP_SECONDS
        return self.costs.collective(name, axes, took, made, blocks) + STEP_SECONDS


@dataclass(slots=True, eq=False)
class Shard:
    """One device's part of a value: its shape and bytes, none for a layout that the sizes do not allow.

    All layouts with this shape have it, and the prices of moves that leave it or make it.
    """

    shape: tuple[int, ...]
    bytes: float
    leaving: dict[Kind, float] = field(default_factory=dict)
    making: dict[Kind, float] = field(default_factory=dict)
    least_permute: float | None = None


@dataclass(slots=True)
class Space:
    """The layouts of one value: their shards, which are legal for its sizes, and the priced moves between them."""

    ground: Ground
    names: tuple[str, ...]
    item_bytes: int
    given_state: State | None = None
    scope: Scope | None = None
    order: Order | None = None  # of its dimensions in memory
    graph: Graph = field(init=False)
    given: Vertex | None = field(init=False, default=None)
    _cuts: list[Callable[[Axes], int]] = field(init=False)
    _shards: dict[Vertex, Shard] = field(default_factory=dict)
    _of_shape: dict[tuple[int, ...], Shard] = field(default_factory=dict)
    _edges: dict[Vertex, list[Edge]] = field(default_factory=dict)
    _arranged: dict[Vertex, tuple[Vertex, ...]] = field(init=False)

    def __post_init__(self) -> None:
        self.graph = self.ground.graph if self.scope is None else Graph(self.ground.graph.mesh_axes, self.scope)
        if self.given_state is not None:
            self.given = self.graph.vertex(self.given_state)
        self._arranged = self.graph.arranged.setdefault(self.ground.mesh_axes, {})
        self._cuts = [functools.cache(functools.partial(self.ground.cut, name)) for name in self.names]

    def shard(self, vertex: Vertex) -> Shard:
        """One device's part in a layout; all layouts with its shape share it."""
        known = self._shards.get(vertex)
        if known is None:
            shape = tuple([cut(axes) for cut, axes in zip(self._cuts, vertex.dims, strict=True)])
            known = self._of_shape.get(shape)
            if known is None:
                known = self._of_shape[shape] = Shard(shape, float(self.item_bytes * math.prod(shape)))
            self._shards[vertex] = known
        return known

    def leaving(self, move: Move, before: Vertex) -> float:
        """Seconds to copy what a program's last move made to where the result must stand."""
        made = self.shard(self.graph.vertex(move.after))
        took = self.shard(before)
        blocks = self._blocks(move.kind, (move.dim, move.target), took, made)
        return self.ground.costs.leaving(move.kind, move.axes, made.bytes, blocks, before is self.given)

    def temp_of(self, vertex: Vertex) -> float:
        """Bytes that a shard in this layout takes beyond the inputs, which the caller holds anyway."""
        return 0.0 if vertex is self.given else self.shard(vertex).bytes

    def every_edge(self, vertex: Vertex) -> list[Edge]:
        """All legal moves from a state but permutes, and the states that they lead to."""
        known = self._edges.get(vertex)
        if known is None:
            known = self._edges[vertex] = list(self.edges(vertex, ()))
        return known

    def edges(self, vertex: Vertex, known: Container[Vertex]) -> Iterator[Edge]:
        """Legal moves from a state but permutes, and the states that they lead to, but those that are known."""
        before, held, shards, looked = self.shard(vertex), self.temp_of(vertex), self._shards, 0
        prices = before.leaving
        for after, kind, move in self.graph.arcs(vertex):
            if after in known:
                looked += 1
                continue
            made = shards.get(after) or self.shard(after)
            if made.bytes:
                looked += 1
                seconds = prices.get(kind)
                if seconds is None:
                    seconds = prices[kind] = self._seconds(kind, before, made)
                yield seconds, held + made.bytes, after, move
        self.ground.look(looked)

    def into(self, vertex: Vertex, partial: Axes, known: Container[Vertex]) -> Iterator[Edge]:
        """Legal moves that lead to a state but permutes, and the states that they leave, but those that are known.

        These are unreduced over axes of `partial`.
        """
        made, shards, looked = self.shard(vertex), self._shards, 0
        prices = made.making
        for before, kind, move in self.graph.arcs_into(vertex, partial):
            if before in known:
                looked += 1
                continue
            took = shards.get(before) or self.shard(before)
            if took.bytes:
                looked += 1
                seconds = prices.get(kind)
                if seconds is None:
                    seconds = prices[kind] = self._seconds(kind, took, made)
                yield seconds, (0.0 if before is self.given else took.bytes) + made.bytes, before, move
        self.ground.look(looked)

    def _seconds(self, kind: Kind, took: Shard, made: Shard) -> float:
        blocks = self._blocks(kind.name, (kind.dim, kind.target), took, made)
        return self.ground.move_seconds(kind.name, kind.axes, took.bytes, made.bytes, blocks)

    def _blocks(self, kind: MoveKind, dims: tuple[int, int], took: Shard, made: Shard) -> Blocks:
        if kind in ("all-reduce", "collective-permute"):
            return PLAIN
        tiled = self.ground.costs.hardware.compiler is not None
        return blocks_of(kind, dims, took.shape, made.shape, self.order, self.item_bytes, tiled)

    def permutes(self, vertex: Vertex, known: Container[Vertex], backward: bool = False) -> Iterator[Edge]:
        """Permutes from a state, or into one, and the states on the other side, but those that are known."""
        shard, permute, looked = self.shard(vertex), self.graph.permute, 0
        for other in self.arranged(vertex):
            if other in known or other is vertex:
                continue
            before = other if backward else vertex
            _, kind, move = permute(other, vertex) if backward else permute(vertex, other)
            seconds = shard.leaving.get(kind)
            if seconds is None:
                seconds = shard.leaving[kind] = self._seconds(kind, shard, shard)
            looked += 1
            yield seconds, self.temp_of(before) + shard.bytes, other, move
        self.ground.look(looked)

    def arranged(self, vertex: Vertex) -> tuple[Vertex, ...]:
        """The states that permutes lead to, and the state itself; none where nothing but one axis splits it."""
        known = self._arranged.get(vertex)
        if known is None:
            found = arrangements(vertex.state, self.ground.mesh_axes, self.scope)
            known = tuple([self.graph.vertex((dims, vertex.unreduced)) for dims in found])
            self._arranged[vertex] = known
            self.graph.kept += 1 + len(known)
            self._arranged.update(dict.fromkeys(known, known))  # those of each are those of all
        return known

    def least_permute(self, vertex: Vertex) -> float:
        """Seconds that no permute from a state is faster than."""
        shard = self.shard(vertex)
        if shard.least_permute is None:
            price, couples, bytes_ = self.ground.costs.collective, self.ground.couples, shard.bytes
            shard.least_permute = min((price("collective-permute", axes, bytes_, bytes_) for axes in couples), default=0.0)
        return shard.least_permute
