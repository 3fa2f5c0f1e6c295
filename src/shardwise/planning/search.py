"""Uniform-cost search: the cheapest program from the given layouts to the wanted one, and the runners-up.

The state of a whole program is the layouts of all live arrays. Because an array's moves cost the same whatever the
other arrays do, the search runs over one array at a time: forward from each operand, backward from the wanted layouts, and
joins them at every local einsum that the axes allow. A candidate is the cheapest program for one way to do the last
einsum (or, where there is none, through one intermediate layout). A memory limit keeps, for every layout, the labels
that no other beats in both seconds and peak memory, and drops those over the limit; without one, only the fastest.
Operands are prepared one after the other: programs that take turns between them are not looked for.

What it looks at may be less than all: a bound on the seconds leaves out what cannot be part of a faster program, a scope
leaves out layouts, and a search that has looked at more moves and einsums than it may raises `TooMany`. What is left out
depends on the problem alone, never on the clock.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from shardwise.planning.bounds import LowerBound
from shardwise.planning.graph import Move, Scope, State, Vertex
from shardwise.planning.joins import Sides, every_pair, few_pairs
from shardwise.planning.orders import Join, Leaf, Node
from shardwise.planning.prices import Costs
from shardwise.planning.spaces import STEP_SECONDS, Ground, Shard, Space
from shardwise.planning.tiles import Order

ENOUGH = 10  # programs are ranked
NEVER = (math.inf, math.inf)
UNBOUNDED = LowerBound()
LONGEST = 6  # layouts that one program passes through: it is found by way of each


class Label(NamedTuple):
    """A way to reach a layout: seconds so far, peak of temporary bytes, bytes it holds now, and how it was reached."""

    seconds: float
    peak: float
    temp: float
    link: Any


class Joined(NamedTuple):
    """How an einsum's result came to be: the values it took with their states and labels, and which was prepared first."""

    names: tuple[str, ...]
    way: tuple[Node, ...]
    states: tuple[Vertex, ...]
    labels: tuple[Label, ...]
    first: int


class Moved(NamedTuple):
    """One move from a state and the label there."""

    move: Move
    before: Vertex
    label: Label


class Found(NamedTuple):
    """A program in the search's own terms: the label at some state of the root, and the way on from there."""

    seconds: float
    peak: float
    state: Vertex
    forward: Label
    backward: Label


Table = dict[Vertex, list[Label]]
# What is to be looked at next: the rank, a number that tells equals apart, whether a label's permutes are meant, the state, and
# the label itself, or how its state was reached.
Heap = list[tuple[float, float, int, bool, Vertex, Any]]


@dataclass(slots=True)
class Search:
    """The search for the programs of one equation on one mesh: from operands to the value at the `root`, in a layout `wanted`.

    `budget` is the temporary bytes allowed on each device: the limit less the inputs, or infinity. `frontier` keeps
    slower labels that need less memory, and `lean` looks for the programs that need least instead of the fastest.

    Programs of more than `bound` seconds may be left out, by the `lower_bound` of all.
    `scope_of` gives the layouts of a value that are looked at, None for all. Of pairs of layouts that go into an einsum about
    so many as `pairs` are looked at; by default all, in an order that does not depend on what a bound leaves out. `most` is
    how many moves and einsums may be looked at in all. `exact` leaves out every einsum that makes partial sums.
    """

    costs: Costs
    sizes: Mapping[str, int]
    root: Node
    wanted: Sequence[State]
    budget: float = math.inf
    frontier: bool = False
    lean: bool = False
    bound: float = math.inf
    lower_bound: LowerBound = UNBOUNDED
    scope_of: Callable[[Node], Scope] | None = None
    pairs: int = 0
    most: float = math.inf
    exact: bool = False
    ground: Ground = field(init=False)
    _spaces: dict[Node, Space] = field(default_factory=dict)
    _tables: dict[Node, Table] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ground = Ground(self.costs, self.sizes, self.most)

    def space(self, node: Node) -> Space:
        known = self._spaces.get(node)
        if known is None:
            scope = None if self.scope_of is None else self.scope_of(node)
            item, given = (self.costs.item_bytes, node.state) if isinstance(node, Leaf) else (self.costs.made_item_bytes, None)
            known = self._spaces[node] = Space(self.ground, node.names, item, given, scope, self._order(node))
        return known

    def _order(self, node: Node) -> Order | None:
        """In which order a value's dimensions lie in memory: an input as it comes, and the result as it must stand."""
        state = node.state if isinstance(node, Leaf) else next(iter(self.wanted), None) if node is self.root else None
        if state is None:
            return None
        shape = [self.ground.cut(name, axes) for name, axes in zip(node.names, state[0], strict=True)]
        return self.costs.order(shape)

    # Forward: every layout that a value can reach, with its labels.

    def table(self, node: Node) -> Table:
        """Every layout that a value can take, each with its labels, fastest first."""
        known = self._tables.get(node)
        if known is None:
            known = self._tables[node] = self._spread(self.space(node), self._starts(node))
        return known

    def _starts(self, node: Node) -> Table:
        if isinstance(node, Leaf):
            space, given = self.space(node), self.space(node).graph.vertex(node.state)
            return {given: [Label(0.0, 0.0, 0.0, None)]} if space.shard(given).bytes else {}
        starts: Table = {}
        for way in node.ways:
            for state, label in self.joins(node, way):
                known = starts.setdefault(state, [])
                if self.frontier or not known:
                    known.append(label)
                elif self._rank(label.seconds, label.peak) < self._rank(known[0].seconds, known[0].peak):
                    known[0] = label
        return starts

    def _spread(self, space: Space, starts: Table) -> Table:
        """Uniform-cost search over one value's layouts."""
        count, lean = itertools.count(), self.lean
        heap: Heap = [
            (*self._rank(label.seconds, label.peak), next(count), False, state, label.link)
            for state, found in starts.items() for label in found
        ]  # fmt: skip
        heapq.heapify(heap)
        settled: Table = {}
        nearest: dict[Vertex, tuple[float, float]] = {}
        # What is left of a program beside this value: its einsums, unless one has made the value.
        to_go = self.lower_bound.to_go
        furthest = self.bound - (self.lower_bound.seconds if space.given is not None and to_go is None else 0.0)
        while heap:
            *rank, _, permuting, state, link = heapq.heappop(heap)
            if permuting:
                label = link
                edges = space.permutes(state, () if self.frontier else settled)
            else:
                seconds, peak = reversed(rank) if lean else rank
                if state in settled and not (self.frontier and peak < settled[state][-1].peak):
                    continue  # a label that came before is faster and needs no more memory
                label = Label(seconds, peak, space.temp_of(state), link)
                settled.setdefault(state, []).append(label)
                if to_go is not None and seconds + to_go[0](state.state) > self.bound:
                    continue
                edges = space.every_edge(state) if self.frontier else space.edges(state, settled)
                self._defer(heap, count, space, state, label)
            for seconds, live, after, move in edges:
                total = label.seconds + seconds
                if total > furthest:
                    continue
                peak = live if live > label.peak else label.peak
                least = (peak, total) if lean else (total, peak)
                if not self.frontier:
                    if least >= nearest.get(after, NEVER):
                        continue
                    nearest[after] = least
                if peak <= self.budget:
                    heapq.heappush(heap, (*least, next(count), False, after, Moved(move, state, label)))
        return settled

    def _rank(self, seconds: float, peak: float) -> tuple[float, float]:
        """What the search goes by, least first; of that again the seconds and the peak."""
        return (peak, seconds) if self.lean else (seconds, peak)

    def _defer(self, heap: Heap, count: Iterator[int], space: Space, state: Vertex, label: Label) -> None:
        """Look at a label's permutes no sooner than one of them may be next: by then most layouts are reached otherwise."""
        if isinstance(label.link, Moved) and label.link.move.kind == "collective-permute":
            return  # two permutes are one that costs no more
        if len(space.arranged(state)) > 1:
            rank = self._rank(label.seconds + space.least_permute(state), label.peak)
            heapq.heappush(heap, (*rank, next(count), True, state, label))

    # Joins: every local einsum that the axes allow.

    def joins(self, node: Join, way: tuple[Node, ...]) -> Iterator[tuple[Vertex, Label]]:
        """Every state and label that a local einsum of some values can give, over all their layouts."""
        tables: list[Table] = []
        for child in way:
            tables.append(self.table(child))
            if not tables[-1]:
                return
        space, spaces = self.space(node), [self.space(child) for child in way]
        sides = Sides(node.names, tuple(child.names for child in way))
        graph = space.graph
        pairs = few_pairs(graph, sides, tables, self.pairs) if self.pairs else every_pair(graph, sides, tables)
        prices: dict[tuple[Shard, ...], float] = {}
        for states, after in pairs:
            if (self.exact and after.unreduced) or (space.scope is not None and not space.scope.holds_all(after.state)):
                continue
            made = space.shard(after).bytes
            shards = tuple([side.shard(state) for side, state in zip(spaces, states, strict=True)])
            seconds = prices.get(shards)
            if seconds is None:
                flops = sides.flops([shard.shape for shard in shards])
                seconds = self.costs.einsum(flops, sum([shard.bytes for shard in shards]), made) + STEP_SECONDS
                prices[shards] = seconds
            found = [table[state] for table, state in zip(tables, states, strict=True)]
            for total, peak, first, labels in self._combined(found, seconds, made):
                yield after, Label(total, peak, made, Joined(node.names, way, states, labels, first))

    def _combined(
        self, found: list[list[Label]], seconds: float, made: float
    ) -> Iterator[tuple[float, float, int, tuple[Label, ...]]]:
        """Seconds and peak of an einsum of labelled values, and which of these is prepared first."""
        self.ground.look(math.prod(map(len, found)))
        for labels in itertools.product(*found):
            total = math.fsum([seconds, *[label.seconds for label in labels]])
            if total <= self.bound:
                first, peak = _in_turn(labels)
                peak = max(peak, sum([label.temp for label in labels]) + made)
                if peak <= self.budget:
                    yield total, peak, first, labels

    # Backward: from the wanted layouts, every layout from which one can be reached.

    def backward(self, space: Space, sources: Mapping[Vertex, float], enough: int) -> Table:
        """For layouts from which a wanted one can be reached: labels of the way there.

        `sources` gives the seconds in which layouts are reached. It ends when no other leads to one of the `enough` fastest
        programs.
        """
        owed = dict(sources)
        nearest_source = min(sources.values(), default=math.inf)
        totals: list[float] = []  # those of the fastest, slowest first, negated
        partial = tuple(sorted({axis for state in owed for axis in state.unreduced}))
        count, lean = itertools.count(), self.lean
        heap: Heap = [(0.0, 0.0, next(count), False, space.graph.vertex(state), None) for state in self.wanted]
        settled: Table = {}
        nearest: dict[Vertex, tuple[float, float]] = {}
        fastest, to_go = not self.frontier and not lean, self.lower_bound.to_go
        furthest = self.bound - (self.lower_bound.seconds if to_go is None else 0.0)
        while heap and (owed or not fastest):
            *rank, _, permuting, state, link = heapq.heappop(heap)
            if len(totals) == enough and nearest_source + rank[0] > -totals[0] and fastest:
                break
            if permuting:
                label = link
                edges = space.permutes(state, () if self.frontier else settled, backward=True)
            else:
                seconds, peak = reversed(rank) if lean else rank
                if state in settled and not (self.frontier and peak < settled[state][-1].peak):
                    continue  # a label that came before is faster and needs no more memory
                label = Label(seconds, peak, 0.0, link)
                settled.setdefault(state, []).append(label)
                if state in owed:
                    heapq.heappush(totals, -owed.pop(state) - seconds)
                    if len(totals) > enough:
                        heapq.heappop(totals)
                if to_go is not None and seconds + to_go[1](state.state) > self.bound:
                    continue
                edges = space.into(state, partial, () if self.frontier else settled)
                self._defer(heap, count, space, state, label)
            if len(totals) == enough and fastest:
                furthest = min(furthest, -totals[0] - nearest_source)
            for seconds, live, before, move in edges:
                total = label.seconds + seconds
                if label.link is None:  # the last move of all
                    total += space.leaving(move, before)
                if total > furthest:
                    continue
                peak = live if live > label.peak else label.peak
                least = (peak, total) if lean else (total, peak)
                if not self.frontier:
                    if least >= nearest.get(before, NEVER):
                        continue
                    nearest[before] = least
                if peak <= self.budget:
                    heapq.heappush(heap, (*least, next(count), False, before, Moved(move, before, label)))
        return settled

    def candidates(self) -> list[Found]:
        """The cheapest program through each last einsum, or each layout where there is none; cheapest first."""
        ways, onward = self._ways()
        best: dict[Any, Found] = {}
        for state, label in ways:
            for rest in onward.get(state, ()):
                total, peak = label.seconds + rest.seconds, max(label.peak, rest.peak)
                if rest.link is None and isinstance(label.link, Moved):
                    total += self.space(self.root).leaving(label.link.move, label.link.before)
                key = (label.link.way, label.link.states) if isinstance(label.link, Joined) else state
                if peak <= self.budget and (key not in best or total < best[key].seconds):
                    best[key] = Found(total, peak, state, label, rest)
        return sorted(best.values(), key=lambda found: found.seconds)

    def _ways(self) -> tuple[list[tuple[Vertex, Label]], Table]:
        """Every state and label of the root's value as made, and the ways on from there."""
        root = self.root
        if isinstance(root, Leaf):
            ways = [(state, label) for state, found in self.table(root).items() for label in found]
        else:
            ways = [each for way in root.ways for each in self.joins(root, way)]
        sources: dict[Vertex, float] = {}
        for state, label in ways:
            sources[state] = min(label.seconds, sources.get(state, math.inf))
        return ways, self.backward(self.space(root), sources, enough_of(root))

    def least_memory(self) -> float:
        """The smallest peak of temporary bytes that any program has; needs `lean`."""
        ways, onward = self._ways()
        peaks = (max(label.peak, rest.peak) for state, label in ways for rest in onward.get(state, ()))
        return min(peaks, default=math.inf)


def _in_turn(labels: tuple[Label, ...]) -> tuple[int, float]:
    """Values are prepared one after the other: which is first, so that less memory is needed, and the peak of that."""
    if len(labels) == 1:
        return 0, labels[0].peak
    one, other = labels
    forth, back = max(one.peak, one.temp + other.peak), max(other.peak, other.temp + one.peak)
    return (0, forth) if forth <= back else (1, back)


def enough_of(root: Node) -> int:
    """How many of what a search finds are sure to hold the first programs."""
    return ENOUGH * (LONGEST if isinstance(root, Leaf) else 1)
