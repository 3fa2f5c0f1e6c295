"""The layouts of one value: their bytes, and the priced moves between them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from shardwise.layout import Axes
from shardwise.planning.graph import Move, Scope, State, arrangements, moves, moves_into, permute
from shardwise.planning.prices import PLAIN, Blocks, Costs, blocks_of

# Added to every step: of two programs with the same estimate the one with fewer steps is found first. Far below what one
# byte takes in the fastest memory (1e-13 s), so that it never decides between programs whose estimates differ.
STEP_SECONDS = 1e-15

Edge = tuple[float, float, State, Move]  # seconds, live temporary bytes, the state on the other side, the move


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
    _extents: dict[Axes, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.mesh_axes = tuple((name, size) for name, size in self.costs.mesh.axes if size > 1)
        self.couples = tuple(itertools.combinations((name for name, _ in self.mesh_axes), 2))

    def look(self, count: int) -> None:
        """Count moves and einsums that are looked at.

        Raises:
            TooMany: there were more than there may be.
        """
        self.looked += count
        if self.looked > self.most:
            raise TooMany

    def extent(self, axes: Axes) -> int:
        known = self._extents.get(axes)
        if known is None:
            known = self._extents[axes] = self.costs.mesh.extent(axes)
        return known

    def move_seconds(self, move: Move, took: float, made: float, blocks: Blocks) -> float:
        """Seconds of a move; it depends on its kind and axes, on the shard's bytes and on how its blocks lie, alone."""
        if move.kind == "slice":
            return self.costs.slice(made, blocks.minor) + STEP_SECONDS
        return self.costs.collective(move.kind, move.axes, took, made, blocks) + STEP_SECONDS


@dataclass(slots=True)
class Space:
    """The layouts of one value: their bytes, which are legal for its sizes, and the priced moves between them."""

    ground: Ground
    names: tuple[str, ...]
    item_bytes: int
    given: State | None = None
    scope: Scope | None = None
    _edges: dict[State, list[Edge]] = field(default_factory=dict)
    _bytes: dict[State, float] = field(default_factory=dict)
    _shapes: dict[State, tuple[int, ...]] = field(default_factory=dict)
    _least: dict[float, float] = field(default_factory=dict)
    _prices: dict[Any, dict[Any, float]] = field(default_factory=dict)  # by the shard's bytes or shape, and what else counts

    def bytes_of(self, state: State) -> float:
        """Bytes of one shard; 0 marks a layout that the sizes do not allow."""
        known = self._bytes.get(state)
        if known is None:
            known = float(self.item_bytes)
            for name, axes in zip(self.names, state[0], strict=True):
                if axes:
                    whole, rest = divmod(self.ground.sizes[name], self.ground.extent(axes))
                    known *= 0 if rest else whole
                else:
                    known *= self.ground.sizes[name]
            self._bytes[state] = known
        return known

    def blocks(self, move: Move, before: State) -> Blocks:
        """How the blocks lie that a move joins or cuts."""
        return blocks_of(move.kind, (move.dim, move.target), self._shape(before), self._shape(move.after))

    def _shape(self, state: State) -> tuple[int, ...]:
        known = self._shapes.get(state)
        if known is None:
            sizes, extent = self.ground.sizes, self.ground.extent
            shape = (sizes[name] // extent(axes) for name, axes in zip(self.names, state[0], strict=True))
            known = self._shapes[state] = tuple(shape)
        return known

    def leaving(self, move: Move, before: State) -> float:
        """Seconds to copy what a program's last move made to where the result must stand."""
        return self.ground.costs.leaving(move.kind, move.axes, self.bytes_of(move.after), self.blocks(move, before))

    def temp_of(self, state: State) -> float:
        """Bytes that a shard in this layout takes beyond the inputs, which the caller holds anyway."""
        return 0.0 if state == self.given else self.bytes_of(state)

    def edges(self, state: State) -> list[Edge]:
        """Legal moves from a state but permutes, and the states that they lead to."""
        known = self._edges.get(state)
        if known is None:
            known = self._edges[state] = self._priced(state, moves(state, self.ground.mesh_axes, self.scope))
        return known

    def _priced(self, state: State, found: Iterable[Move]) -> list[Edge]:
        held, sizes = self.temp_of(state), self._bytes
        prices = self._prices.setdefault(self._shape(state), {})
        edges: list[Edge] = []
        for move in found:
            kind, axes, dim, target, after = move
            made = sizes.get(after)
            if made is None:
                made = self.bytes_of(after)
            if made:
                seconds = prices.get((kind, axes, dim, target))
                if seconds is None:
                    seconds = prices[kind, axes, dim, target] = self._seconds(move, state)
                edges.append((seconds, held + made, after, move))
        self.ground.look(len(edges))
        return edges

    def _seconds(self, move: Move, before: State) -> float:
        took, made, blocks = self.bytes_of(before), self.bytes_of(move.after), self.blocks(move, before)
        prices = self._prices.setdefault(took, {})
        seconds = prices.get((move.kind, move.axes, blocks))
        if seconds is None:
            seconds = prices[move.kind, move.axes, blocks] = self.ground.move_seconds(move, took, made, blocks)
        return seconds

    def into(self, state: State, partial: Axes) -> Iterator[Edge]:
        """Legal moves that lead to a state but permutes, and the states that they leave, unreduced over axes of `partial`."""
        made, sizes, looked = self.bytes_of(state), self._bytes, 0
        prices = self._prices.setdefault(("into", self._shape(state)), {})
        for move, before in moves_into(state, self.ground.mesh_axes, self.scope, partial):
            took = sizes.get(before)
            if took is None:
                took = self.bytes_of(before)
            if took:
                kind, axes, dim, target, _ = move
                seconds = prices.get((kind, axes, dim, target))
                if seconds is None:
                    seconds = prices[kind, axes, dim, target] = self._seconds(move, before)
                looked += 1
                yield seconds, self.temp_of(before) + made, before, move
        self.ground.look(looked)

    def permutes(self, state: State, known: Container[State], backward: bool = False) -> Iterator[Edge]:
        """Permutes from a state, or into one, and the states on the other side, but those that are known."""
        bytes_, unreduced = self.bytes_of(state), state[1]
        prices, looked = self._prices.setdefault(bytes_, {}), 0
        for dims in arrangements(state, self.ground.mesh_axes, self.scope):
            other = (dims, unreduced)
            if other in known or dims == state[0]:
                continue
            before, after = (dims, state) if backward else (state[0], other)
            move = permute(before, after, self.ground.mesh_axes)
            seconds = prices.get(move.axes)
            if seconds is None:
                seconds = prices[move.axes] = self.ground.move_seconds(move, bytes_, bytes_, PLAIN)
            looked += 1
            yield seconds, self.temp_of(other if backward else state) + bytes_, other, move
        self.ground.look(looked)

    def least_permute(self, state: State) -> float:
        """Seconds that no permute from a state is faster than."""
        bytes_ = self.bytes_of(state)
        known = self._least.get(bytes_)
        if known is None:
            price, couples = self.ground.costs.collective, self.ground.couples
            known = min((price("collective-permute", axes, bytes_, bytes_) for axes in couples), default=0.0)
            self._least[bytes_] = known
        return known
