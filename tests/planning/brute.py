"""Brute force: every program of a small problem, tried without any of the planner's shortcuts.

A state is the layouts of all live arrays together, and of each whether it is still as the caller gave it. From a
state every step goes out that `program.rule` accepts: each collective and each slice over every ordered choice of
axes, on every array, in any order; and every einsum of two live arrays that sums what nothing after it needs. Then
Dijkstra's algorithm over all states finds the fewest seconds, and the smallest peak of memory.

What is a program here: an einsum multiplies two arrays (or takes the one array of an equation with one operand, if
its dimensions change), so every order of multiplication is tried, and the dimensions of a product in between stand
as they first appear; an operand may be summed alone over what nothing else needs. Not tried: einsums of three arrays
at once, and those that copy one array beside others.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from shardwise.errors import LayoutError, ProgramError
from shardwise.layout import Axes, Layout
from shardwise.mesh import Mesh
from shardwise.planning.cost import step_blocks
from shardwise.planning.problem import Problem, costs_of
from shardwise.planning.step_cost import einsum_flops
from shardwise.planning.tiles import Blocks, Order
from shardwise.program import Program, relayout, rule
from shardwise.steps import AllGather, AllReduce, AllToAll, CollectivePermute, Einsum, ReduceScatter, Slice, Step, kind


@dataclass(frozen=True, slots=True)
class Held:
    """A live array: which operands are in it, its layout, and whether it is as the caller gave it."""

    operands: tuple[int, ...]
    layout: Layout
    given: bool
    hashed: int = field(init=False, compare=False, repr=False)  # millions of states are looked up by it

    def __post_init__(self) -> None:
        object.__setattr__(self, "hashed", hash((self.operands, self.layout, self.given)))

    def __hash__(self) -> int:
        return self.hashed


State = tuple[Held, ...]
Edge = tuple[int, float, float, Step]  # the state after, seconds, live bytes while it runs, the step


@functools.lru_cache(maxsize=1 << 16)
def legal(name: str, layout: Layout, mesh: Mesh) -> list[tuple[Step, Layout]]:
    """The steps on an array that `program.rule` accepts, and what each makes of its layout."""
    found = []
    for step in conceivable(name, layout, mesh):
        try:
            found.append((step, rule(step, {name: layout}, mesh)[name]))
        except (ProgramError, LayoutError):
            continue
    return found


def conceivable(name: str, layout: Layout, mesh: Mesh) -> Iterator[Step]:
    """Steps on an array over every ordered choice of axes, legal or not; permutations by `relayout`."""
    axes = [axis for axis, size in mesh.axes if size > 1]
    for chosen in (each for count in range(1, len(axes) + 1) for each in itertools.permutations(axes, count)):
        yield AllReduce(name, chosen)
        for dim in layout.names:
            yield AllGather(name, dim, chosen)
            yield Slice(name, dim, chosen)
            yield ReduceScatter(name, dim, chosen)
            for other in layout.names:
                yield AllToAll(name, dim, other, chosen)
    extents = [mesh.extent(axes) for _, axes in layout.dims]
    for order in itertools.permutations(layout.axes):
        for cuts in itertools.product(range(len(order) + 1), repeat=max(0, len(extents) - 1)):
            bounds = (0, *cuts, len(order))
            if list(bounds) == sorted(bounds) and extents:
                dims: list[Axes] = [order[a:b] for a, b in itertools.pairwise(bounds)]
                arranged = Layout(tuple(zip(layout.names, dims, strict=True)), layout.unreduced)
                if arranged != layout and [mesh.extent(axes) for axes in dims] == extents:
                    yield relayout(name, layout, arranged, mesh)


@dataclass
class Brute:
    """All states that a problem's programs can reach, and all steps between them."""

    task: Problem
    edges: list[list[Edge]] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    states: list[State] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.costs = costs_of(self.task)
        self.alone: dict[Held, list[tuple[Held, float, float, Step]]] = {}
        self.bytes: dict[Held, float] = {}
        self.joined: dict[tuple[tuple[Held, ...], ...], tuple[Held, float, float, Step] | None] = {}
        operands = self.task.equation.operands
        start = tuple(Held((n,), operand.layout, True) for n, operand in enumerate(operands))
        self.inputs = sum(map(self.bytes_of, start))
        self.explore(start)

    # The graph of states.

    def explore(self, start: State) -> None:
        number = {start: 0}
        last: dict[State, int] = {}  # a wanted state as the last of all, behind the copy that some hardware makes there
        self.states.append(start)
        for at, state in enumerate(self.states):  # grows while it is walked
            if at in last.values():
                self.edges.append([])
                continue
            found = []
            for after, seconds, live, step in self.steps(state):
                if after not in number:
                    number[after] = len(self.states)
                    self.states.append(after)
                found.append((number[after], seconds, live, step))
                if self.wanted(after):
                    if after not in last:
                        last[after] = len(self.states)
                        self.states.append(after)
                    found.append((last[after], seconds + self.leaving(step, state, after), live, step))
            self.edges.append(found)
        self.ends = [*last.values(), *([0] if self.wanted(start) else [])]

    def leaving(self, step: Step, state: State, after: State) -> float:
        """Seconds to copy what the last step made, where it is a collective."""
        if isinstance(step, Einsum):
            return 0.0
        blocks = self.blocks(step, state[0], after[0])
        return self.costs.leaving(kind(step), step.axes, self.bytes_of(after[0]), blocks, state[0].given)

    def wanted(self, state: State) -> bool:
        if self.einsum_owed(state):
            return False
        result, made = self.task.equation.result, state[0].layout
        fixed = [dim for dim in result.dims if dim not in result.free]
        same = all(made.axes_of(dim) == result.layout.axes_of(dim) for dim in fixed)
        return same and made.unreduced == result.layout.unreduced

    def sums_alone(self, state: State, at: int) -> bool:
        """Whether an operand has a dimension that nothing else needs: it may be summed before anything else."""
        outside = {dim for other, held in enumerate(state) if other != at for dim in held.layout.names}
        return not outside.union(self.task.equation.result.dims).issuperset(state[at].layout.names)

    def einsum_owed(self, state: State) -> bool:
        return len(state) > 1 or state[0].layout.names != self.task.equation.result.dims

    def product(self, held: Held) -> bool:
        first = self.task.equation.operands[held.operands[0]]
        return len(held.operands) > 1 or held.layout.names != first.dims

    def name(self, held: Held) -> str:
        return ("product" if self.product(held) else "operand") + "".join(map(str, held.operands))

    def item_of(self, held: Held) -> int:
        return self.costs.made_item_bytes if self.product(held) else self.costs.item_bytes

    def bytes_of(self, held: Held) -> float:
        """Bytes of a shard; 0 where the axes do not divide a size."""
        known = self.bytes.get(held)
        if known is None:
            try:
                known = float(self.item_of(held) * math.prod(held.layout.shard_shape(self.task.sizes, self.task.mesh)))
            except LayoutError:
                known = 0.0
            self.bytes[held] = known
        return known

    def steps(self, state: State) -> Iterator[tuple[State, float, float, Step]]:
        """Every step from a state, with its seconds and the bytes that are live while it runs, as `estimate` counts."""
        final = not self.einsum_owed(state)
        temporary = [0.0 if held.given else self.bytes_of(held) for held in state]
        live = self.inputs + sum(temporary)
        for at, held in enumerate(state):
            for after, seconds, made, step in self.steps_of(held):
                yield (*state[:at], after, *state[at + 1 :]), seconds, live + made, step
        chosen: list[tuple[int, ...]] = [(0,)] if len(state) == 1 and not final else []
        chosen += itertools.combinations(range(len(state)), 2)
        chosen += [(at,) for at in range(len(state)) if len(state) > 1 and self.sums_alone(state, at)]
        for places in chosen:
            sides = tuple(state[at] for at in places)
            others = tuple(held for at, held in enumerate(state) if at not in places)
            done = self.einsum(sides, others)
            if done:
                product, seconds, made, step = done
                yield tuple(sorted((product, *others), key=lambda held: held.operands)), seconds, live + made, step

    # The steps of one array.

    def steps_of(self, held: Held) -> list[tuple[Held, float, float, Step]]:
        known = self.alone.get(held)
        if known is None:
            known = self.alone[held] = []
            for step, layout in legal(self.name(held), held.layout, self.task.mesh):
                after = Held(held.operands, layout, False)
                made = self.bytes_of(after)
                if made:
                    known.append((after, self.seconds(step, held, after, made), made, step))
        return known

    def seconds(self, step: Step, held: Held, after: Held, made: float) -> float:
        if isinstance(step, Slice):
            return self.costs.slice(made)
        assert not isinstance(step, Einsum)
        if isinstance(step, CollectivePermute) and all(source == target for source, target in step.pairs):
            return 0.0
        return self.costs.collective(kind(step), step.axes, self.bytes_of(held), made, self.blocks(step, held, after))

    def blocks(self, step: Step, before: Held, after: Held) -> Blocks:
        name = self.name(before)
        shape_of = functools.partial(Layout.shard_shape, sizes=self.task.sizes, mesh=self.task.mesh)
        held, made, orders = {name: before.layout}, {name: after.layout}, {name: self.order(before)}
        return step_blocks(step, held, made, shape_of, orders, self.item_of(before), self.costs.hardware.compiler is not None)

    def order(self, held: Held) -> Order | None:
        """In which order its dimensions lie in memory: an input as it comes, and the result as it must stand."""
        equation = self.task.equation
        if not self.product(held):
            layout = equation.operands[held.operands[0]].layout
        elif len(held.operands) == len(equation.operands):
            layout = equation.result.layout
        else:
            return None
        return self.costs.order(layout.shard_shape(self.task.sizes, self.task.mesh))

    # The steps that join arrays.

    def einsum(self, sides: tuple[Held, ...], others: tuple[Held, ...]) -> tuple[Held, float, float, Step] | None:
        key = (sides, others)
        if len(others) > 1:
            return self.fresh_einsum(sides, others)
        if key not in self.joined:
            self.joined[key] = self.fresh_einsum(sides, others)
        return self.joined[key]

    def fresh_einsum(self, sides: tuple[Held, ...], others: tuple[Held, ...]) -> tuple[Held, float, float, Step] | None:
        task = self.task
        needed = {dim for held in others for dim in held.layout.names} | set(task.equation.result.dims)
        met = dict.fromkeys(dim for held in sides for dim in held.layout.names)
        dims = tuple(dim for dim in met if dim in needed) if others else task.equation.result.dims
        members = tuple(sorted(n for held in sides for n in held.operands))
        name = self.name(Held(members, Layout(tuple((dim, ()) for dim in dims)), False))
        step = Einsum(tuple(map(self.name, sides)), name, dims)
        try:
            layout = rule(step, {self.name(held): held.layout for held in sides}, task.mesh)[name]
        except (ProgramError, LayoutError):
            return None
        product = Held(members, layout, False)
        split = {dim: axes for held in sides for dim, axes in held.layout.dims}
        local = {dim: task.sizes[dim] // task.mesh.extent(axes) for dim, axes in split.items()}
        flops = einsum_flops([held.layout.names for held in sides], dims, local)
        made = self.bytes_of(product)
        return product, self.costs.einsum(flops, sum(map(self.bytes_of, sides)), made), made, step

    # What is best.

    def best(self, limit: float = math.inf) -> tuple[float, Program] | None:
        """The fewest seconds in which a wanted state is reached, with a program; None where none is within the limit."""
        found = self.shortest(lambda far, seconds, _: far + seconds, limit) if self.inputs <= limit else None
        if not found:
            return None
        inputs = tuple((self.name(held), held.layout) for held in self.states[0])
        seconds, steps, end = found
        return seconds, Program(self.task.mesh, inputs, tuple(steps), self.name(self.states[end][0]))

    def least_bytes(self) -> float:
        """The smallest peak of memory with which a wanted state is reached."""
        found = self.shortest(lambda far, _, live: max(far, live), math.inf)
        return max(self.inputs, found[0]) if found else math.inf

    def shortest(self, further: Callable[[float, float, float], float], limit: float) -> tuple[float, list[Step], int] | None:
        distance = [math.inf] * len(self.states)
        came: list[tuple[int, Step] | None] = [None] * len(self.states)
        distance[0] = 0.0
        heap = [(0.0, 0)]
        ends = set(self.ends)
        while heap:
            far, at = heapq.heappop(heap)
            if far > distance[at]:
                continue
            if at in ends:
                return far, self.path(came, at), at
            for after, seconds, live, step in self.edges[at]:
                total = further(far, seconds, live)
                if live <= limit and total < distance[after]:
                    distance[after] = total
                    came[after] = (at, step)
                    heapq.heappush(heap, (total, after))
        return None

    def path(self, came: list[tuple[int, Step] | None], at: int) -> list[Step]:
        steps = []
        while came[at] is not None:
            at, step = came[at]
            steps.append(step)
        return steps[::-1]
