"""Uniform-cost search: the cheapest program from the given layouts to the wanted one, and the runners-up.

The state of a whole program is the layouts of all live arrays. Because an array's moves cost the same whatever the
other arrays do, the search runs over one array at a time: forward from each operand, backward from the result, and
joins them at every local einsum that the axes allow. A candidate is the cheapest program for one way to do the last
einsum (or, where there is none, through one intermediate layout). A memory limit keeps, for every layout, the labels
that no other beats in both seconds and peak memory, and drops those over the limit; without one, only the fastest.
Operands are prepared one after the other: programs that take turns between them are not looked for.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from shardwise.layout import Axes, splits
from shardwise.mesh import Mesh
from shardwise.planning.graph import Move, State, moves
from shardwise.planning.prices import Costs, einsum_flops, turned_bytes

# Added to every step: of two programs with the same estimate the one with fewer steps is found first. Far below what one
# byte takes in the fastest memory (1e-13 s), so that it never decides between programs whose estimates differ.
STEP_SECONDS = 1e-15


@dataclass(frozen=True, slots=True)
class Leaf:
    """An operand as the caller gives it."""

    index: int
    names: tuple[str, ...]
    state: State


@dataclass(frozen=True, slots=True)
class Join:
    """A local einsum of one or two values."""

    children: tuple[Leaf | Join, ...]
    names: tuple[str, ...]


Node = Leaf | Join


class Label(NamedTuple):
    """A way to reach a layout: seconds so far, peak of temporary bytes, bytes it holds now, and how it was reached."""

    seconds: float
    peak: float
    temp: float
    link: Any


class Joined(NamedTuple):
    """How an einsum's result came to be: the node, its children's states and labels, and which was prepared first."""

    node: Join
    states: tuple[State, ...]
    labels: tuple[Label, ...]
    first: int


class Moved(NamedTuple):
    """One move from a state and the label there."""

    move: Move
    before: State
    label: Label


class Found(NamedTuple):
    """A program in the search's own terms: the label at some state of the root, and the way on from there."""

    seconds: float
    peak: float
    state: State
    forward: Label
    backward: Label


@dataclass(slots=True)
class Space:
    """The layouts of one value: their bytes, which are legal for its sizes, and the priced moves between them."""

    search: Search
    names: tuple[str, ...]
    item_bytes: int
    given: State | None = None
    _edges: dict[State, list[tuple[float, float, State, Move]]] = field(default_factory=dict)
    _bytes: dict[State, float] = field(default_factory=dict)
    _prices: dict[float, dict[Any, float]] = field(default_factory=dict)  # by the shard's bytes, then Move.price

    def bytes_of(self, state: State) -> float:
        """Bytes of one shard; 0 marks a layout that the sizes do not allow."""
        known = self._bytes.get(state)
        if known is None:
            known = float(self.item_bytes)
            for name, axes in zip(self.names, state[0], strict=True):
                whole, rest = divmod(self.search.sizes[name], self.search.extent(axes))
                known *= 0 if rest else whole
            self._bytes[state] = known
        return known

    def temp_of(self, state: State) -> float:
        """Bytes that a shard in this layout takes beyond the inputs, which the caller holds anyway."""
        return 0.0 if state == self.given else self.bytes_of(state)

    def edges(self, state: State) -> list[tuple[float, float, State, Move]]:
        """Legal moves from a state: seconds, live temporary bytes, the state after, the move."""
        known = self._edges.get(state)
        if known is None:
            known = []
            took, held = self.bytes_of(state), self.temp_of(state)
            prices = self._prices.setdefault(took, {})
            sizes = self._bytes
            for move in moves(state, self.search.mesh_axes):
                after, price = move.after, move.price
                made = sizes.get(after)
                if made is None:
                    made = self.bytes_of(after)
                if made:
                    seconds = prices.get(price)
                    if seconds is None:
                        seconds = prices[price] = self.search.move_seconds(move, took, made)
                    known.append((seconds, held + made, after, move))
            self._edges[state] = known
        return known


@dataclass(slots=True)
class Search:
    """The search for one tree of einsums on one mesh.

    `budget` is the temporary bytes allowed on each device: the limit less the inputs, or infinity. `frontier` keeps
    slower labels that need less memory. `exact` leaves out every einsum that makes partial sums.
    """

    costs: Costs
    sizes: Mapping[str, int]
    budget: float = math.inf
    frontier: bool = False
    exact: bool = False
    mesh_axes: tuple[tuple[str, int], ...] = ()
    _extents: dict[Axes, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.mesh_axes = tuple((name, size) for name, size in self.costs.mesh.axes if size > 1)

    def extent(self, axes: Axes) -> int:
        known = self._extents.get(axes)
        if known is None:
            known = self._extents[axes] = self.costs.mesh.extent(axes)
        return known

    def move_seconds(self, move: Move, took: float, made: float) -> float:
        """Seconds of a move; it depends on the shard's bytes and on `Move.price` alone."""
        if move.kind == "slice":
            return self.costs.slice(made) + STEP_SECONDS
        turned = turned_bytes(move.kind, move.dim, move.target, took, made)
        return self.costs.collective(move.kind, move.axes, took, made, turned) + STEP_SECONDS

    # Forward: every layout that a value can reach, with its labels.

    def table(self, node: Node) -> dict[State, list[Label]]:
        """Every layout that a node's value can take, each with its labels, fastest first."""
        space = self.space(node)
        if isinstance(node, Leaf):
            starts = {node.state: [Label(0.0, 0.0, 0.0, None)]} if space.bytes_of(node.state) else {}
        else:
            starts = {}
            for state, label in self.joins(node, [self.table(child) for child in node.children]):
                starts.setdefault(state, []).append(label)
        return self.spread(space, starts)

    def space(self, node: Node) -> Space:
        if isinstance(node, Leaf):
            return Space(self, node.names, self.costs.item_bytes, node.state)
        return Space(self, node.names, self.costs.product_bytes)

    def spread(self, space: Space, starts: Mapping[State, list[Label]]) -> dict[State, list[Label]]:
        """Uniform-cost search over one value's layouts."""
        count = itertools.count()
        heap = [(label.seconds, label.peak, next(count), state, label) for state, found in starts.items() for label in found]
        heapq.heapify(heap)
        settled: dict[State, list[Label]] = {}
        nearest: dict[State, float] = {}
        while heap:
            *_, state, label = heapq.heappop(heap)
            if not self._settles(settled, state, label):
                continue
            for seconds, live, after, move in space.edges(state):
                total = label.seconds + seconds
                if not self.frontier:
                    if total > nearest.get(after, math.inf):
                        continue
                    nearest[after] = total
                peak = max(label.peak, live)
                if peak <= self.budget:
                    then = Label(total, peak, space.temp_of(after), Moved(move, state, label))
                    heapq.heappush(heap, (total, peak, next(count), after, then))
        return settled

    def _settles(self, settled: dict[State, list[Label]], state: State, label: Label) -> bool:
        """Keep a label unless one that came before, and is faster, needs no more memory."""
        known = settled.setdefault(state, [])
        if known and (not self.frontier or label.peak >= known[-1].peak):
            return False
        known.append(label)
        return True

    # Joins: every local einsum that the axes allow.

    def joins(self, node: Join, tables: list[dict[State, list[Label]]]) -> Iterator[tuple[State, Label]]:
        """Every state and label that a local einsum can give, over all layouts of its operands."""
        space = self.space(node)
        prices: dict[tuple[int, ...], float] = {}
        dims = tuple(dict.fromkeys(dim for child in node.children for dim in child.names))
        places = [tuple(dims.index(dim) for dim in child.names) for child in node.children]
        kept = tuple(dims.index(dim) for dim in node.names)
        summed = tuple(i for i, dim in enumerate(dims) if dim not in node.names)
        spaces = [self.space(child) for child in node.children]
        partial = [sorted({axis for state in table for axis in state[1]}) for table in tables]
        names = tuple(name for name, _ in self.mesh_axes)
        for split in splits(len(dims), names):
            extents = tuple(self.extent(axes) for axes in split)
            sums = [axis for i in summed for axis in split[i]]
            if sums and self.exact:
                continue
            after_dims = tuple(split[i] for i in kept)
            for given in self._partials(split, names, partial):
                states = tuple((tuple(split[i] for i in at), u) for at, u in zip(places, given, strict=True))
                found = [table.get(state) for table, state in zip(tables, states, strict=True)]
                if not all(found):
                    continue
                if extents not in prices:
                    prices[extents] = self._einsum_seconds(node, dims, extents, spaces, states, space)
                after = (after_dims, tuple(sorted([*sums, *(axis for u in given for axis in u)])))
                for label in self._combined(node, states, [f for f in found if f], prices[extents], space.bytes_of(after)):
                    yield after, label

    def _partials(self, split: tuple[Axes, ...], names: Axes, partial: list[list[str]]) -> Iterable[tuple[Axes, ...]]:
        """Every way in which idle axes may be unreduced in at most one operand."""
        if not any(partial):
            return (((),) * len(partial),)
        used = {axis for axes in split for axis in axes}
        idle = [axis for axis in names if axis not in used]
        choices = [[None, *(k for k, own in enumerate(partial) if axis in own)] for axis in idle]
        return [
            tuple(tuple(sorted(a for a, owner in zip(idle, owners, strict=True) if owner == k)) for k in range(len(partial)))
            for owners in itertools.product(*choices)
        ]

    def _einsum_seconds(
        self, node: Join, dims: tuple[str, ...], extents: tuple[int, ...], spaces: list[Space],
        states: tuple[State, ...], space: Space,
    ) -> float:  # fmt: skip
        local = {dim: self.sizes[dim] // extent for dim, extent in zip(dims, extents, strict=True)}
        flops = einsum_flops([child.names for child in node.children], node.names, local)
        took = sum(side.bytes_of(state) for side, state in zip(spaces, states, strict=True))
        made = space.item_bytes * math.prod(local[dim] for dim in node.names)
        return self.costs.einsum(flops, took, made) + STEP_SECONDS

    def _combined(
        self, node: Join, states: tuple[State, ...], found: list[list[Label]], seconds: float, made: float
    ) -> Iterator[Label]:
        """Labels of an einsum's result: operands are prepared one after the other, in the order that needs less."""
        for labels in itertools.product(*found):
            total = math.fsum((seconds, *(label.seconds for label in labels)))
            held = sum(label.temp for label in labels) + made
            orders = [max(labels[0].peak, labels[0].temp + label.peak) for label in labels[1:]]
            orders += [max(label.peak, label.temp + labels[0].peak) for label in labels[1:]]
            first = orders.index(min(orders)) if orders else 0
            peak = max(held, min(orders) if orders else labels[0].peak)
            if peak <= self.budget:
                yield Label(total, peak, made, Joined(node, states, labels, first))

    # Backward: from every layout of the result, the way to the wanted one.

    def backward(self, space: Space, sources: Iterable[State], wanted: Iterable[State]) -> dict[State, list[Label]]:
        """For every layout from which a wanted one can be reached: labels of the way there."""
        into: dict[State, list[tuple[float, float, State, Move]]] = {}
        # In the order met, never that of a set: processes that plan alone must settle ties alike.
        seen = dict.fromkeys(sources)
        queue = list(seen)
        while queue:
            state = queue.pop()
            for seconds, live, after, move in space.edges(state):
                into.setdefault(after, []).append((seconds, live, state, move))
                if after not in seen:
                    seen[after] = None
                    queue.append(after)
        count = itertools.count()
        heap = [(0.0, 0.0, next(count), state, Label(0.0, 0.0, 0.0, None)) for state in wanted if state in seen]
        settled: dict[State, list[Label]] = {}
        nearest: dict[State, float] = {}
        while heap:
            *_, state, label = heapq.heappop(heap)
            if not self._settles(settled, state, label):
                continue
            for seconds, live, before, move in into.get(state, ()):
                total = label.seconds + seconds
                if label.link is None:  # the last move of all
                    total += self.costs.leaving(move.kind, space.bytes_of(state))
                if not self.frontier:
                    if total > nearest.get(before, math.inf):
                        continue
                    nearest[before] = total
                peak = max(label.peak, live)
                if peak <= self.budget:
                    heapq.heappush(
                        heap, (total, peak, next(count), before, Label(total, peak, 0.0, Moved(move, before, label)))
                    )
        return settled

    def candidates(self, root: Node, wanted: Iterable[State]) -> list[Found]:
        """The cheapest program through each last einsum, or each layout where there is none; cheapest first."""
        ways, onward = self._ways(root, wanted)
        best: dict[Any, Found] = {}
        for state, label in ways:
            for rest in onward.get(state, ()):
                total = label.seconds + rest.seconds
                if rest.link is None and isinstance(label.link, Moved):
                    total += self.costs.leaving(label.link.move.kind, self.space(root).bytes_of(state))
                found = Found(total, max(label.peak, rest.peak), state, label, rest)
                key = label.link.states if isinstance(label.link, Joined) else state
                if found.peak <= self.budget and (key not in best or found.seconds < best[key].seconds):
                    best[key] = found
        return sorted(best.values(), key=lambda found: found.seconds)

    def _ways(self, root: Node, wanted: Iterable[State]) -> tuple[list[tuple[State, Label]], dict[State, list[Label]]]:
        """Every state and label of the root's value as made, and the ways on from there."""
        if isinstance(root, Leaf):
            ways = [(state, label) for state, found in self.table(root).items() for label in found]
        else:
            ways = list(self.joins(root, [self.table(child) for child in root.children]))
        return ways, self.backward(self.space(root), [state for state, _ in ways], wanted)

    def least_memory(self, root: Node, wanted: Iterable[State]) -> float:
        """The smallest peak of temporary bytes that any program has; needs `frontier`."""
        ways, onward = self._ways(root, wanted)
        peaks = (max(label.peak, rest.peak) for state, label in ways for rest in onward.get(state, ()))
        return min(peaks, default=math.inf)


def trees(
    operands: list[Leaf], result: tuple[str, ...], sizes: Mapping[str, int], mesh: Mesh, exact: bool = False
) -> Iterator[Node]:
    """The orders in which to multiply: every one where that is cheap, else the one that opt_einsum finds, as `jnp.einsum`
    does; to be exact that one alone."""
    if len(operands) == 1:
        yield operands[0] if operands[0].names == result else Join((operands[0],), result)
        return
    if exact:
        yield _opt_einsum_tree(operands, result, sizes)
        return
    dims = len({dim for leaf in operands for dim in leaf.names})
    axes = tuple(name for name, size in mesh.axes if size > 1)
    if len(operands) <= 2 or (len(operands) <= 4 and len(splits(dims, axes)) <= 400):
        for nodes in _summed_first(operands, result):
            yield from _all_trees(nodes, result)
    else:
        yield _opt_einsum_tree(operands, result, sizes)


def _summed_first(operands: list[Leaf], result: tuple[str, ...]) -> Iterator[list[Node]]:
    """The operands as given, and with the dimensions that one alone has summed before anything else, in all ways."""
    choices: list[list[Node]] = []
    for index, leaf in enumerate(operands):
        kept = _needed([leaf], [other for at, other in enumerate(operands) if at != index], result)
        choices.append([leaf] if kept == leaf.names else [leaf, Join((leaf,), kept)])
    yield from map(list, itertools.product(*choices))


def _needed(chosen: Iterable[Node], others: Iterable[Node], result: tuple[str, ...]) -> tuple[str, ...]:
    outside = {dim for node in others for dim in node.names} | set(result)
    return tuple(dict.fromkeys(dim for node in chosen for dim in node.names if dim in outside))


def _all_trees(nodes: list[Any], result: tuple[str, ...]) -> Iterator[Node]:
    if len(nodes) == 2:
        yield Join(tuple(nodes), result)
        return
    seen = set()
    for i, j in itertools.combinations(range(len(nodes)), 2):
        pair = (nodes[i], nodes[j])
        others = [node for k, node in enumerate(nodes) if k not in (i, j)]
        for tree in _all_trees([Join(pair, _needed(pair, others, result)), *others], result):
            if tree not in seen:
                seen.add(tree)
                yield tree


def _opt_einsum_tree(operands: list[Leaf], result: tuple[str, ...], sizes: Mapping[str, int]) -> Node:
    import opt_einsum  # JAX depends on it; only many operands need it

    symbol = {dim: opt_einsum.get_symbol(i) for i, dim in enumerate(sizes)}
    terms = ",".join("".join(symbol[dim] for dim in leaf.names) for leaf in operands)
    shapes = [tuple(sizes[dim] for dim in leaf.names) for leaf in operands]
    path, _ = opt_einsum.contract_path(f"{terms}->{''.join(symbol[d] for d in result)}", *shapes, shapes=True)
    nodes: list[Any] = list(operands)
    for chosen in path:
        picked = [nodes[i] for i in chosen]
        nodes = [node for i, node in enumerate(nodes) if i not in chosen]
        while len(picked) > 1:
            pair = (picked.pop(0), picked.pop(0))
            rest = [*picked, *nodes]
            picked.insert(0, Join(pair, _needed(pair, rest, result) if rest else result))
        nodes.append(picked[0])
    return nodes[0]
