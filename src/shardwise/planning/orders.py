"""In which orders operands may be multiplied: every value on the way, with all the ways to make it.

Values are shared: what several orders make on their way is one value, and is searched once.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from shardwise.planning.graph import State

ALL_ORDERS = 4  # operands that are multiplied in every order
SEVERAL = 9  # less the number of operands: orders that are kept for every set of them, where not all are searched


@dataclass(frozen=True, slots=True, eq=False)
class Leaf:
    """An operand as the caller gives it."""

    index: int
    names: tuple[str, ...]
    state: State


@dataclass(frozen=True, slots=True, eq=False)
class Join:
    """What a local einsum of one or two values makes; `ways` lists all of them that make it."""

    names: tuple[str, ...]
    ways: tuple[tuple[Node, ...], ...]


Node = Leaf | Join


@dataclass(frozen=True, slots=True)
class Orders:
    """The orders that lead to one value, the root, with all values on the way, the ones that others are made of first."""

    root: Node
    values: tuple[Node, ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", _values(self.root))

    @property
    def ways(self) -> int:
        """How many local einsums there are."""
        return sum(len(node.ways) for node in self.values if isinstance(node, Join))


def _values(root: Node) -> tuple[Node, ...]:
    found: dict[Node, None] = {}

    def visit(node: Node) -> None:
        if node not in found:
            for child in itertools.chain.from_iterable(node.ways if isinstance(node, Join) else ()):
                visit(child)
            found[node] = None

    visit(root)
    return tuple(found)


def all_orders(operands: Sequence[Leaf], result: tuple[str, ...]) -> Orders:
    """Every order in which to multiply, two values at a time; what one operand alone has may be summed before."""
    if len(operands) == 1:
        return Orders(operands[0] if operands[0].names == result else Join(result, ((operands[0],),)))
    whole = frozenset(range(len(operands)))
    made: dict[frozenset[int], list[Node]] = {}
    for at, leaf in enumerate(operands):
        kept = _needed([leaf], [other for other in operands if other is not leaf], result)
        made[frozenset({at})] = [leaf] if kept == leaf.names else [leaf, Join(kept, ((leaf,),))]
    for size in range(2, len(operands)):
        for chosen in map(frozenset, itertools.combinations(range(len(operands)), size)):
            others = [leaf for at, leaf in enumerate(operands) if at not in chosen]
            ways: dict[tuple[str, ...], list[tuple[Node, ...]]] = {}
            for pair in _pairs(chosen, made):
                ways.setdefault(_needed(pair, others, result), []).append(pair)
            made[chosen] = [Join(names, tuple(found)) for names, found in ways.items()]
    return Orders(Join(result, tuple(_pairs(whole, made))))


def _pairs(chosen: frozenset[int], made: Mapping[frozenset[int], list[Node]]) -> Iterator[tuple[Node, ...]]:
    """Every two values of which one of some operands is made; products stand before operands, then by their first operand."""
    for left, right in _halves(chosen):
        yield from itertools.product(made[left], made[right])


def _halves(chosen: frozenset[int]) -> Iterator[tuple[frozenset[int], frozenset[int]]]:
    first, *rest = sorted(chosen)
    for count in range(len(rest)):
        for others in itertools.combinations(rest, count):
            half = frozenset({first, *others})
            left, right = half, chosen - half
            yield (right, left) if len(left) == 1 < len(right) else (left, right)


def _needed(chosen: Iterable[Node | _Order], others: Iterable[Node], result: tuple[str, ...]) -> tuple[str, ...]:
    outside = {dim for node in others for dim in node.names} | set(result)
    return tuple(dict.fromkeys(dim for node in chosen for dim in node.names if dim in outside))


def one_order(operands: Sequence[Leaf], result: tuple[str, ...], sizes: Mapping[str, int]) -> Orders:
    """The order in which `jnp.einsum` multiplies, which opt_einsum finds, two values at a time."""
    if len(operands) == 1:
        return all_orders(operands, result)
    import opt_einsum  # JAX depends on it; only this needs it

    symbol = {dim: opt_einsum.get_symbol(i) for i, dim in enumerate(sizes)}
    terms = ",".join("".join(symbol[dim] for dim in leaf.names) for leaf in operands)
    shapes = [tuple(sizes[dim] for dim in leaf.names) for leaf in operands]
    path, _ = opt_einsum.contract_path(f"{terms}->{''.join(symbol[dim] for dim in result)}", *shapes, shapes=True)
    nodes: list[Node] = list(operands)
    for chosen in path:
        picked = [nodes[i] for i in chosen]
        nodes = [node for i, node in enumerate(nodes) if i not in chosen]
        while len(picked) > 1:
            pair = (picked.pop(0), picked.pop(0))
            rest = [*picked, *nodes]
            picked.insert(0, Join(_needed(pair, rest, result) if rest else result, (pair,)))
        nodes.append(picked[0])
    return Orders(nodes[0])


# Where there are too many orders: the few that are cheapest if nothing had to be moved.

Price = Callable[[Sequence[tuple[str, ...]], tuple[str, ...]], float]  # seconds of an einsum, from the names of its values


@dataclass(frozen=True, slots=True)
class _Order:
    """A way to make the product of some operands: its seconds, its dimensions, and the two it is made of."""

    seconds: float
    names: tuple[str, ...]
    halves: tuple[_Order, ...]
    leaf: Leaf | None = None

    @property
    def members(self) -> frozenset[int]:
        """The operands in it."""
        return frozenset({self.leaf.index}) if self.leaf else frozenset[int]().union(*(half.members for half in self.halves))


def few_orders(
    operands: Sequence[Leaf], result: tuple[str, ...], sizes: Mapping[str, int], price: Price, several: int | None = None
) -> Orders:
    """The orders that take least if every product were split over all devices, and priced so, and nothing moved.

    Dynamic programming over the sets of operands; each keeps its first few, or so many.
    """
    if len(operands) < 3:
        return all_orders(operands, result)
    several = several or max(2, SEVERAL - len(operands))
    alike = len(operands) <= ALL_ORDERS
    price = functools.cache(price)
    best: dict[frozenset[int], list[_Order]] = {}
    for at, leaf in enumerate(operands):
        kept = _needed([leaf], [other for other in operands if other is not leaf], result)
        given = _Order(0.0, leaf.names, (), leaf)
        best[frozenset({at})] = [given] if kept == leaf.names else [given, _order((given,), kept, price)]
    for size in range(2, len(operands) + 1):
        for chosen in map(frozenset, itertools.combinations(range(len(operands)), size)):
            others = [leaf for at, leaf in enumerate(operands) if at not in chosen]
            found = []
            for left, right in _halves(chosen):
                for pair in itertools.product(best[left], best[right]):
                    names = _named(pair, others, result, sizes, alike) if others else result
                    found.append(_order(pair, names, price))
            best[chosen] = sorted(found, key=lambda order: order.seconds)[:several]
    return Orders(_node_of(best[frozenset(range(len(operands)))]))


def _order(halves: tuple[_Order, ...], names: tuple[str, ...], price: Price) -> _Order:
    seconds = price(tuple(half.names for half in halves), names)
    return _Order(math.fsum((seconds, *(half.seconds for half in halves))), names, halves)


def _named(
    pair: tuple[_Order, ...], others: Iterable[Leaf], result: tuple[str, ...], sizes: Mapping[str, int], alike: bool
) -> tuple[str, ...]:
    """The dimensions of a product, in one order however it is made: then orders share it.

    Where every order is searched too, named `alike`: what it costs to move a product depends on which dimension is its last.
    """
    if alike:
        return _needed(pair, others, result)
    outside = {dim for leaf in others for dim in leaf.names} | set(result)
    kept = {dim for half in pair for dim in half.names} & outside
    return tuple(dim for dim in sizes if dim in kept)


def _node_of(orders: list[_Order]) -> Node:
    """The values that some orders make, each with the ways in which they make it."""
    ways: dict[tuple[frozenset[int], tuple[str, ...]], dict[tuple[_Order, ...], None]] = {}
    made: dict[tuple[frozenset[int], tuple[str, ...]], Join] = {}

    def collect(order: _Order) -> None:
        for half in order.halves:
            collect(half)
        if order.leaf is None:
            ways.setdefault((order.members, order.names), {})[order.halves] = None

    def node(order: _Order) -> Node:
        if order.leaf is not None:
            return order.leaf
        key = (order.members, order.names)
        if key not in made:
            pairs = dict.fromkeys(tuple(node(half) for half in halves) for halves in ways[key])
            made[key] = Join(order.names, tuple(pairs))
        return made[key]

    for order in orders:
        collect(order)
    return node(orders[0])
