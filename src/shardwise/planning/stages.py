"""The programs of one stage, from operands to one result: searched for, and written down.

All programs are searched where that takes little. Else a narrow search looks at the layouts that are worth it, and a second
one at all that may be part of a program faster than what it found: where that comes to its end, the best is the best of all.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NoReturn

from shardwise.errors import PlanError
from shardwise.layout import Axes, splits
from shardwise.notation import Operand
from shardwise.planning.assembling import assembled, passes, unique
from shardwise.planning.bounds import LowerBound, einsum_lower_bound, lower_bound_of
from shardwise.planning.graph import Scope, State, state_of
from shardwise.planning.orders import ALL_ORDERS, Leaf, Node, Orders, all_orders, few_orders, one_order
from shardwise.planning.prices import Costs
from shardwise.planning.problem import Problem
from shardwise.planning.scopes import looks_in_all, places_of, scopes_of
from shardwise.planning.search import Found, Search, enough_of
from shardwise.planning.spaces import TooMany
from shardwise.program import Program

IN_SUBSETS = 8  # operands whose sets are gone through for the cheapest orders; of more opt_einsum's order is taken
AT_ONCE = 8_000  # looks, at moves and einsums, that a search of all layouts may take
PAIR_AT_ONCE = 30_000  # where a bound hardly helps: two operands meet in one einsum, from which all are a few cheap slices away
BOUNDED = 90_000  # and one of all that may be part of something faster than what was found
NARROW, WIDER = 300, 1200  # layouts of all values together
LIMITED = 3  # times as long takes a look under a memory limit, where layouts have several labels
ALL_IN_ORDER = 0
PAIRS = 5000  # of layouts that go together into einsums, of all einsums together
MOST_LOOKS = 100_000
WIDER_AFTER = 20_000  # looks a search of some layouts took too long for one of more
LAST_LOOKS = 30_000  # of these are left for a search of some layouts, where that of all comes to no end


@dataclass(frozen=True, slots=True)
class Searched:
    """What a stage's search found, cheapest first, for the value it leads to; and whether nothing faster was left out.

    No program takes less than `floor_seconds`.
    """

    orders: Orders
    found: list[Found]
    whole: bool
    floor_seconds: float


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of a problem: its operands, what they are to make, and the bytes that temporaries may take."""

    task: Problem
    operands: tuple[Operand, ...]
    result: Operand
    costs: Costs
    budget: float
    leaves: tuple[Leaf, ...] = field(init=False)

    def __post_init__(self) -> None:
        leaves = [Leaf(index, operand.dims, state_of(operand.layout)) for index, operand in enumerate(self.operands)]
        object.__setattr__(self, "leaves", tuple(leaves))

    @property
    def dims(self) -> dict[str, int]:
        """The sizes of the dimensions that the stage has."""
        return {dim: self.task.sizes[dim] for operand in self.operands for dim in operand.dims}

    def one_order(self) -> Orders:
        """That of `jnp.einsum`."""
        return one_order(self.leaves, self.result.dims, self.dims)

    def few_orders(self, several: int | None = None) -> Orders:
        """Those that promise most."""
        price = functools.partial(einsum_lower_bound, sizes=self.dims, costs=self.costs)
        return few_orders(self.leaves, self.result.dims, self.dims, price, several)

    def every_order(self) -> Orders | None:
        """Every order in which to multiply, None where there are too many; to be exact that of `jnp.einsum` alone."""
        if self.task.exact:
            return self.one_order()
        return all_orders(self.leaves, self.result.dims) if len(self.leaves) <= ALL_ORDERS else None

    def lower_bound(self, orders: Orders) -> LowerBound:
        """The lower bound of the programs that multiply in these orders."""
        return lower_bound_of(orders, self.result, self.task.sizes, self.costs)

    def scopes(self, orders: Orders, most: int) -> dict[Node, Scope]:
        """Of each value the layouts that are worth a look, so many in all."""
        sizes, wanted = self.dims, state_of(self.result.layout)
        largest_first = sorted(self.operands, key=lambda operand: -math.prod(sizes[dim] for dim in operand.dims))
        arrays = [(operand.dims, state_of(operand.layout)) for operand in (self.result, *largest_first)]
        places = places_of(arrays, self.result.dims, sorted(self.result.free), sizes, self.task.mesh)
        return scopes_of(orders, places, wanted, most)


@dataclass(frozen=True, slots=True)
class Lacking:
    """Memory within which no program leads to a stage, and with how many bytes one would do: the least `of_all` programs."""

    task: Problem
    result: Operand
    inputs_bytes: float
    least_bytes: float
    of_all: bool

    def __str__(self) -> str:
        onward = f" as far as {self.result}" if self.task.equation.via else ""
        would = "the least that would do is" if self.of_all else "not all were searched, and of these one would do with"
        return (
            f"no program fits in {self.task.memory_limit:,.0f} bytes of memory a device{onward}: {would} "
            f"{self.least_bytes:,.0f} bytes (the inputs alone are {self.inputs_bytes:,.0f})"
        )


class LackingMemoryError(PlanError):
    """No program of a stage fits in the memory limit."""

    def __init__(self, lacking: Lacking) -> None:
        super().__init__(str(lacking))
        self.lacking = lacking


def stage_of(task: Problem, costs: Costs, operands: tuple[Operand, ...], result: Operand) -> Stage:
    budget = math.inf if task.memory_limit is None else task.memory_limit - inputs_bytes(task, operands, costs)
    return Stage(task, operands, result, costs, budget)


def inputs_bytes(task: Problem, operands: Iterable[Operand], costs: Costs) -> float:
    return sum(costs.item_bytes * math.prod(operand.layout.shard_shape(task.sizes, task.mesh)) for operand in operands)


def searched(stage: Stage) -> Searched:
    """The programs of a stage: all that there are, or the best of those worth looking at.

    Raises:
        PlanError: there is none, or none that fits in the memory limit.
    """
    every = stage.every_order()
    looks = math.inf if every is None else looks_in_all(every, stage.task.mesh)
    looks *= (1 if stage.task.memory_limit is None else LIMITED) * (1 + len(stage.task.equation.via))  # stages share the time
    if every is not None and looks <= (AT_ONCE if len(stage.leaves) != 2 else PAIR_AT_ONCE):
        with contextlib.suppress(TooMany):
            search = _search(stage, every, None, _bound_of_one_order(stage), MOST_LOOKS, pairs=ALL_IN_ORDER)
            found = search.candidates()
            if not found:
                _fail(stage, every, None)
            return Searched(every, found, True, search.lower_bound.seconds)
    return _widening(stage, every if looks <= BOUNDED else None)


def _bound_of_one_order(stage: Stage) -> float:
    """What a program must not take longer than to be one of the first, from those of the one order that promises most."""
    if len(stage.leaves) < 3 or stage.task.exact:
        return math.inf  # there is but one
    one = stage.few_orders(1)
    found, _ = _candidates(stage, one, None, [], 0)
    return _bound(one.root, found)


def _search(
    stage: Stage, orders: Orders, scopes: Mapping[Node, Scope] | None, bound: float, most: float, lean: bool = False,
    pairs: int | None = None,
) -> Search:  # fmt: skip
    frontier = stage.task.memory_limit is not None and scopes is None and not lean
    if scopes is not None:
        pairs = PAIRS // max(1, orders.ways)
    elif pairs is None:
        pairs = ALL_IN_ORDER if math.isinf(bound) else sys.maxsize
    wanted = wanted_states(stage.result, stage.task, None if scopes is None else scopes[orders.root])
    return Search(
        stage.costs, stage.task.sizes, orders.root, wanted, stage.budget, frontier, lean, bound, stage.lower_bound(orders),
        None if scopes is None else scopes.__getitem__, pairs, most, stage.task.exact,
    )  # fmt: skip


def _widening(stage: Stage, every: Orders | None) -> Searched:
    """Searches of more and more layouts, each for what may be faster than the programs found before."""
    alone = stage.task.exact or len(stage.leaves) > IN_SUBSETS
    few = stage.one_order() if alone else stage.few_orders()
    narrow, floor = stage.scopes(few, NARROW), stage.lower_bound(few).seconds
    found, looks = _candidates(stage, few, narrow, [], 0)
    if every is not None:
        with contextlib.suppress(TooMany):
            first, _ = _candidates(stage, every, None, found, looks)
            if first:
                return Searched(every, first, True, floor)
        looks = MOST_LOOKS - LAST_LOOKS
    if not found or looks <= WIDER_AFTER or every is not None:
        wider = stage.scopes(few, WIDER // (1 + len(stage.task.equation.via)))
        if any(wider[node].sequences != narrow[node].sequences for node in wider):
            with contextlib.suppress(TooMany):
                more, _ = _candidates(stage, few, wider, found, looks)
                found = sorted([*more, *found], key=lambda each: each.seconds)
    if not found and stage.task.memory_limit is not None:
        found, _ = _candidates(stage, few, narrow, [], 0, lean=True)
    if not found:
        _fail(stage, few, narrow)
    return Searched(few, found, False, floor)


def _candidates(
    stage: Stage, orders: Orders, scopes: Mapping[Node, Scope] | None, found: list[Found], looks: int, lean: bool = False
) -> tuple[list[Found], int]:
    """What a search finds that may be among the first, given those found before; and how much was looked at in all.

    Raises:
        TooMany: it looks at more than is left.
    """
    search = _search(stage, orders, scopes, _bound(orders.root, found), MOST_LOOKS - looks if found else math.inf, lean)
    return search.candidates(), looks + search.ground.looked


def _bound(root: Node, found: list[Found]) -> float:
    """What a program must not take longer than to be one of the first."""
    enough = enough_of(root)
    return found[enough - 1].seconds * (1 + 1e-9) if len(found) >= enough else math.inf


@dataclass(frozen=True, slots=True)
class Programs:
    """The programs of a stage, cheapest first; whether the first is the best of all, and what none is faster than."""

    found: tuple[Program, ...]
    whole: bool
    floor_seconds: float


def programs_of(task: Problem, costs: Costs, operands: tuple[Operand, ...], result: Operand, most: int) -> Programs:
    """The programs from operands to a result.

    Raises:
        PlanError: there is none, or none that fits in the memory limit.
    """
    made = searched(stage_of(task, costs, operands, result))
    names = unique([operand.name for operand in operands])
    programs: dict[Program, None] = {}
    passed: set[tuple[object, ...]] = set()
    for each in made.found:
        path = passes(each)
        if path not in passed:  # one that is found by way of several layouts is written once
            passed.add(path)
            programs.setdefault(assembled(each, made.orders.root, operands, names, result, task.mesh))
        if len(programs) == most:
            break
    return Programs(tuple(programs), made.whole, made.floor_seconds)


def wanted_states(result: Operand, task: Problem, scope: Scope | None = None) -> list[State]:
    """The layouts that the result may end in: the one written, or all that agree with it where it says `_?`."""
    state = state_of(result.layout)
    if not result.free:
        return [state]
    idle = tuple(
        name for name, size in task.mesh.axes if size > 1 and name not in {*result.layout.axes, *result.layout.unreduced}
    )
    return [
        (dims, state[1])
        for dims in _free_dims(result, state, idle, scope)
        if all(task.sizes[d] % task.mesh.extent(a) == 0 for d, a in zip(result.dims, dims, strict=True))
    ]


def _free_dims(result: Operand, state: State, idle: Axes, scope: Scope | None) -> Iterator[tuple[Axes, ...]]:
    free = [i for i, dim in enumerate(result.dims) if dim in result.free]
    given = None if scope is None else Scope(tuple(scope.sequences[i] for i in free))
    for split in splits(len(free), idle) if given is None else given.splits(idle):
        dims = list(state[0])
        for i, axes in zip(free, split, strict=True):
            dims[i] = axes
        yield tuple(dims)


def _fail(stage: Stage, orders: Orders, scopes: Mapping[Node, Scope] | None) -> NoReturn:
    task, result = stage.task, stage.result
    if task.memory_limit is not None:
        free, most = dataclasses.replace(stage, budget=math.inf), MOST_LOOKS if scopes is None else math.inf
        least = _search(free, orders, scopes, math.inf, most, lean=True).least_memory()
        if math.isfinite(least):
            inputs = inputs_bytes(task, stage.operands, stage.costs)
            raise LackingMemoryError(Lacking(task, result, inputs, inputs + least, scopes is None))
    why = ""
    if result.layout.unreduced:
        why = ": partial sums come only from a sum over a dimension that is split; ask for the result without {U...}"
    raise PlanError(f"no program leads to {result}{why}")
