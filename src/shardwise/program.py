"""The spine: a program is a list of steps that takes layouts to layouts; here live programs and each step's rule."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import assert_never

import numpy as np

from shardwise.errors import LayoutError, ProgramError
from shardwise.layout import Axes, Layout, subscript
from shardwise.mesh import Mesh, Sides, flat_index
from shardwise.steps import (
    WAYS,
    AllGather,
    AllReduce,
    AllToAll,
    Automatic,
    CollectivePermute,
    Einsum,
    EinsumGather,
    EinsumScatter,
    Fused,
    GatherEinsum,
    ReduceScatter,
    RotateEinsum,
    Slice,
    Step,
    consumed,
    describe,
    einsum_of,
    moved_axes,
    parts,
    touched,
)

AT_ONCE = 100  # steps that are typed one within the other: Python's stack is no deeper


@dataclass(frozen=True, slots=True)
class Program:
    """Steps from named input layouts to one output, on one mesh; checked when made.

    >>> program = Program(Mesh.parse("x=2"), (("A", Layout.parse("I_x")),), (AllGather("A", "I", ("x",)),), "A")
    >>> str(program.result)
    '[I]'

    Raises:
        ProgramError: a step is not legal where it stands.
    """

    mesh: Mesh
    inputs: tuple[tuple[str, Layout], ...]
    steps: tuple[Step, ...]
    output: str
    _states: tuple[dict[str, Layout], ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", tuple(map(tuple, self.inputs)))
        object.__setattr__(self, "steps", tuple(self.steps))
        try:
            for end in range(AT_ONCE, len(self.steps) + AT_ONCE + 1, AT_ONCE):
                object.__setattr__(self, "_states", _states_of(self.mesh, self.inputs, self.steps[:end]))
        except TypeError as error:
            if "unhashable" not in str(error):
                raise
            raise ProgramError(f'{error}: write axes as tuples, as in AllGather("A", "I", ("x",))') from None
        if len({name for name, _ in self.inputs}) < len(self.inputs):
            raise ProgramError(f"inputs share a name: {', '.join(name for name, _ in self.inputs)}")
        if self.output not in self.states()[-1]:
            raise ProgramError(f"no step makes the output {self.output}")

    def states(self) -> tuple[dict[str, Layout], ...]:
        """The layouts of all live arrays: before the first step, and after each."""
        return self._states

    def with_steps(self, steps: tuple[Step, ...]) -> Program:
        """The program with other steps.

        Raises:
            ProgramError: a step is not legal where it stands.
        """
        return Program(self.mesh, self.inputs, steps, self.output)

    @property
    def result(self) -> Layout:
        """The layout of the output."""
        return self.states()[-1][self.output]

    @property
    def overlaps(self) -> bool:
        """Whether a step is fused, so that transfers run behind its matmul."""
        return any(isinstance(step, Fused) for step in self.steps)

    def __str__(self) -> str:
        states = self.states()
        lines = [f"{name}{layout}" for name, layout in self.inputs]
        for step, before, after in zip(self.steps, states, states[1:], strict=False):
            name = touched(step)
            left = " · ".join(f"{n}{before[n]}" for n in consumed(step))
            lines.append(f"{describe(step):<42} {left} -> {name}{after[name]}")
        return "\n".join(lines)


@functools.lru_cache(maxsize=4096)
def _states_of(mesh: Mesh, inputs: tuple[tuple[str, Layout], ...], steps: tuple[Step, ...]) -> tuple[dict[str, Layout], ...]:
    """The layouts of all live arrays, before the first step and after each; programs share those of what both begin with."""
    if not steps:
        return ({name: layout.on(mesh) for name, layout in inputs},)
    before = _states_of(mesh, inputs, steps[:-1])
    try:
        return (*before, rule(steps[-1], before[-1], mesh))
    except (ProgramError, LayoutError) as error:
        raise ProgramError(f"step {len(steps)}, {describe(steps[-1])}: {error}") from None


def unfused(program: Program) -> Program:
    """The program with every fused step as the plain steps that it stands for.

    >>> gather, multiply = AllGather("A", "I", ("x",)), Einsum(("A", "B"), "C", ("I", "K"))
    >>> inputs = (("A", Layout.parse("I_x, J")), ("B", Layout.parse("J, K")))
    >>> len(unfused(Program(Mesh.parse("x=2"), inputs, (GatherEinsum(gather, multiply),), "C")).steps)
    2
    """
    steps = tuple(part for step in program.steps for part in parts(step))
    return program if steps == program.steps else Program(program.mesh, program.inputs, steps, program.output)


def typed(program: Program) -> Program:
    """The program in steps that JAX's types follow: unfused, and permutes to other axes as gathers and slices."""
    plain = unfused(program)
    steps = tuple(part for step, before in zip(plain.steps, plain.states(), strict=False) for part in _typed(step, before))
    return Program(program.mesh, program.inputs, steps, program.output)


def _typed(step: Step, before: Mapping[str, Layout]) -> tuple[Step, ...]:
    if not isinstance(step, CollectivePermute) or set(before[step.array].axes) == set(step.layout.axes):
        return (step,)
    gathers, slices = list[Step](), list[Step]()
    for (dim, old), (_, new) in zip(before[step.array].dims, step.layout.dims, strict=True):
        same = len([0 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False))])
        gathers += [AllGather(step.array, dim, old[same:])] if old[same:] else []
        slices += [Slice(step.array, dim, new[same:])] if new[same:] else []
    return (*gathers, *slices)


def sums_stay_whole(program: Program) -> bool:
    """Whether every sum is made on one device at once: no step adds what devices, or turns of a ring, made apart.

    >>> inputs = (("A", Layout.parse("I, J_x")), ("B", Layout.parse("J_x, K")))
    >>> multiply, reduce = Einsum(("A", "B"), "C", ("I", "K")), AllReduce("C", ("x",))
    >>> sums_stay_whole(Program(Mesh.parse("x=2"), inputs, (multiply, reduce), "C"))
    False
    """
    return not any(_adds_parts(step, before) for step, before in zip(program.steps, program.states(), strict=False))


def _adds_parts(step: Step, before: Mapping[str, Layout]) -> bool:
    match step:
        case ReduceScatter() | AllReduce() | EinsumScatter() | RotateEinsum() | Automatic():
            return True
        case GatherEinsum(gather, einsum):
            return gather.dim not in einsum.dims or _sums_parts(einsum, {**before, gather.array: _gathered(before, gather)})
        case Einsum() | EinsumGather():
            einsum = einsum_of(step)
            assert einsum is not None
            return _sums_parts(einsum, before)
        case AllGather() | AllToAll() | CollectivePermute() | Slice():
            return False
        case _:
            assert_never(step)


def _gathered(layouts: Mapping[str, Layout], gather: AllGather) -> Layout:
    return _without_minor(layouts[gather.array], gather.dim, gather.axes)


def _sums_parts(einsum: Einsum, layouts: Mapping[str, Layout]) -> bool:
    """Whether an einsum is given parts of what it sums, or partial sums."""
    return bool(einsum_layout([(name, layouts[name]) for name in einsum.operands], einsum.dims).unreduced)


def rule(step: Step, layouts: Mapping[str, Layout], mesh: Mesh) -> dict[str, Layout]:
    """Type a step: the layouts of all live arrays after it.

    >>> before = {"A": Layout.parse("I_x, J")}
    >>> str(rule(AllToAll("A", "I", "J", ("x",)), before, Mesh.parse("x=2"))["A"])
    '[I, J_x]'

    Raises:
        ProgramError: the step is not legal on these layouts; the reason names the dimension and the axis.
    """
    for name in consumed(step):
        if name not in layouts:
            raise ProgramError(f"there is no array {name} here: there are {', '.join(layouts) or 'none'}")
    after = dict(layouts)
    match step:
        case AllGather(array, dim, axes):
            after[array] = _without_minor(layouts[array], dim, axes)
        case ReduceScatter(array, dim, axes):
            after[array] = _appended(_reduced(layouts[array], axes), dim, axes, mesh)
        case AllReduce(array, axes):
            after[array] = _reduced(layouts[array], axes)
        case AllToAll(array, source_dim, target_dim, axes):
            if source_dim == target_dim:
                raise ProgramError(f"an all-to-all moves axes to another dimension, not from {source_dim} to itself")
            after[array] = _appended(_without_minor(layouts[array], source_dim, axes), target_dim, axes, mesh)
        case CollectivePermute(array, _, _, layout):
            after[array] = _permuted(layouts[array], step, mesh, layout)
        case Slice(array, dim, axes):
            after[array] = _appended(layouts[array], dim, axes, mesh)
        case Einsum(operands, result, dims):
            for name in operands:
                after.pop(name, None)
            if result in after:
                raise ProgramError(f"array {result} exists already")
            after[result] = einsum_layout([(name, layouts[name]) for name in operands], dims)
        case Automatic(operands, result, layout):
            for name in operands:
                after.pop(name, None)
            after[result] = layout.on(mesh)
        case GatherEinsum() | EinsumScatter() | EinsumGather() | RotateEinsum():
            _check_fused(step, layouts, mesh)
            for part in parts(step):
                after = rule(part, after, mesh)
        case _:
            assert_never(step)
    return after


def _check_fused(step: Fused, layouts: Mapping[str, Layout], mesh: Mesh) -> None:
    einsum, gathers = einsum_of(step), [part for part in parts(step) if isinstance(part, AllGather)]
    assert einsum is not None
    if isinstance(step, EinsumGather):
        gathers = []
        if step.gather.array != einsum.result:
            raise ProgramError(f"{step.gather.array} is gathered, and the matmul is {einsum.result}")
    for gather in gathers:
        if einsum.operands.count(gather.array) != 1:
            raise ProgramError(f"{gather.array} is gathered, but is no operand of the matmul, or twice")
        others = {dim for name in einsum.operands if name != gather.array for dim in layouts[name].names}
        if gather.dim not in others | set(einsum.dims):
            raise ProgramError(f"{gather.dim} is summed in {gather.array} alone: there is nothing to multiply block by block")
    if isinstance(step, RotateEinsum):
        axes, dims = [gather.axes for gather in gathers], {gather.dim for gather in gathers}
        summed = len(dims) == 1 and not dims & set(einsum.dims)
        both = sorted(gather.array for gather in gathers) == sorted(einsum.operands)
        if not both or not summed or list(map(len, axes)) != [1, 1] or axes[0] == axes[1]:
            raise ProgramError("two operands rotate along the one dimension that they sum, each over one axis of its own")
    if isinstance(step, EinsumScatter) and step.scatter.array != einsum.result:
        raise ProgramError(f"{step.scatter.array} is scattered, and the matmul is {einsum.result}")
    if not isinstance(step, RotateEinsum):
        _check_way(step, mesh)


def _check_way(step: GatherEinsum | EinsumScatter | EinsumGather, mesh: Mesh) -> None:
    axes, way = moved_axes(step), step.way
    if isinstance(way, Sides):
        n = mesh.extent(axes)
        if step.chunks < 1 or math.prod(way.sizes) != n or sorted(way.order) != list(range(n)):
            raise ProgramError(
                f"a torus of {way} has not a place for each of the {n} devices along {', '.join(axes)}, or no chunk"
            )
    elif way not in WAYS or step.chunks < 1:
        raise ProgramError(f"a ring goes one of {', '.join(map(str, WAYS))}, in at least one chunk: not {way!r}, {step.chunks}")
    if way == "folded" and len(axes) > 1:
        raise ProgramError(f"a ring over {', '.join(axes)} is no line that can be folded: it takes one axis")


@functools.lru_cache(maxsize=4096)
def _without_minor(layout: Layout, dim: str, axes: Axes) -> Layout:
    held = layout.axes_of(dim)
    if not axes or held[-len(axes) :] != axes:
        raise ProgramError(f"axes {', '.join(axes) or '(none)'} are not the minor axes of {dim + subscript(held)}")
    return layout.with_axes(dim, held[: -len(axes)])


def _reduced(layout: Layout, axes: Axes) -> Layout:
    missing = [axis for axis in axes if axis not in layout.unreduced]
    if missing or not axes:
        raise ProgramError(f"nothing is unreduced over {', '.join(missing) or 'no axis'}")
    return Layout(layout.dims, layout.unreduced - set(axes))


@functools.lru_cache(maxsize=4096)
def _appended(layout: Layout, dim: str, axes: Axes, mesh: Mesh) -> Layout:
    for axis in axes:
        mesh.axis_size(axis)
    if not axes:
        raise ProgramError(f"no axis is named to split {dim}")
    return layout.with_axes(dim, layout.axes_of(dim) + axes)


@functools.lru_cache(maxsize=4096)
def _permuted(before: Layout, step: CollectivePermute, mesh: Mesh, after: Layout) -> Layout:
    if before.names != after.names or before.unreduced != after.unreduced:
        raise ProgramError(f"a permutation cannot turn {before} into {after}")
    moved = set(step.axes)
    for (dim, old), (_, new) in zip(before.dims, after.dims, strict=True):
        if mesh.extent(new) % mesh.extent(old):
            raise ProgramError(f"a permutation cannot cut {dim} into {mesh.extent(new)} parts from {mesh.extent(old)}")
        named = set(old) ^ set(new) if mesh.extent(old) == mesh.extent(new) else {*old, *new}
        if old != new and not moved >= named:
            raise ProgramError(f"axes {', '.join(sorted(named - moved))} move, but the step names {step.axes}")
    extent = mesh.extent(step.axes)
    for side in zip(*step.pairs, strict=True):
        if len(set(side)) < len(side) or not all(0 <= position < extent for position in side):
            raise ProgramError(f"pairs {step.pairs} are no permutation of {extent} positions")
    if before.dims != after.dims and not _arrives(step, before, mesh):
        raise ProgramError(f"the pairs do not bring every device its part of {after}: use relayout")
    return after


def _arrives(step: CollectivePermute, before: Layout, mesh: Mesh) -> bool:
    """Whether every device receives the part of the array that the new layout gives it."""
    dims = [({*old, *new}, old != new) for (_, old), (_, new) in zip(before.dims, step.layout.dims, strict=True)]
    moved = set(step.axes).union(*(axes for axes, changed in dims if changed or axes & set(step.axes)))
    here = _group(mesh, moved).positions()
    senders = np.full(mesh.extent(step.axes), -1)
    sources, targets = np.reshape(step.pairs, (-1, 2)).T
    senders[targets] = sources
    source = senders[flat_index(here, step.axes, mesh)]
    if (source < 0).any():
        return False
    positions = Mesh(tuple((axis, mesh.axis_size(axis)) for axis in step.axes)).positions()
    there = {**here, **{axis: along[source] for axis, along in positions.items()}}
    splits = [
        (old, new) for (_, old), (_, new) in zip(before.dims, step.layout.dims, strict=True) if moved.issuperset((*old, *new))
    ]
    partial = [((axis,), (axis,)) for axis in moved & before.unreduced]
    same = (
        flat_index(there, old, mesh) == flat_index(here, new, mesh) // (mesh.extent(new) // mesh.extent(old))
        for old, new in (*splits, *partial)
    )
    return all(np.all(each) for each in same)


def cuts(step: CollectivePermute, before: Layout, mesh: Mesh) -> dict[str, tuple[int, tuple[int, ...]]]:
    """The dimensions that a permute cuts: into how many parts, and which of them the device at each position sends.

    >>> step = relayout("A", Layout.parse("I_x"), Layout.parse("I_y"), Mesh.parse("x=2, y=4"))
    >>> cuts(step, Layout.parse("I_x"), Mesh.parse("x=2, y=4"))
    {'I': (2, (0, 1, 0, 1, 0, 1, 0, 1))}
    """
    found = {}
    positions = Mesh(tuple((axis, mesh.axis_size(axis)) for axis in step.axes)).positions()
    sources, targets = np.reshape(step.pairs, (-1, 2)).T
    to = np.zeros(mesh.extent(step.axes), int)
    to[sources] = targets
    for (dim, old), (_, new) in zip(before.dims, step.layout.dims, strict=True):
        parts = mesh.extent(new) // mesh.extent(old)
        if parts > 1:
            found[dim] = parts, tuple((flat_index(positions, new, mesh) % parts)[to].tolist())
    return found


def _group(mesh: Mesh, axes: Container[str]) -> Mesh:
    """The part of a mesh along some axes, as it orders them."""
    return Mesh(tuple((axis, size) for axis, size in mesh.axes if axis in axes))


def einsum_layout(operands: list[tuple[str, Layout]], dims: tuple[str, ...]) -> Layout:
    """The layout of a local einsum's result; what stands on one axis twice cannot be multiplied locally.

    Raises:
        ProgramError: with the reason, as the four cases of sharded multiplication tell it.
    """
    axes_of: dict[str, Axes] = {}
    holder: dict[str, str] = {}
    for name, layout in operands:
        for dim, axes in layout.dims:
            if axes_of.setdefault(dim, axes) != axes:
                here, there = dim + subscript(axes), dim + subscript(axes_of[dim])
                raise ProgramError(f"{name} holds {here} where {holder[dim]} holds {there}: devices lack parts of {dim}")
            holder.setdefault(dim, name)
    for dim in dims:
        if dim not in axes_of:
            raise ProgramError(f"no operand has dimension {dim}")
    owner: dict[str, str] = {}
    for dim, axes in axes_of.items():
        for axis in axes:
            if axis in owner:
                raise ProgramError(
                    f"mesh axis {axis} splits both {owner[axis]} and {dim}: each device would hold only the blocks "
                    "on the diagonal of the product"
                )
            owner[axis] = dim
    summed = {axis for dim, axes in axes_of.items() if dim not in dims for axis in axes}
    partial: dict[str, str] = {}
    for name, layout in operands:
        for axis in layout.unreduced:
            if axis in partial or axis in owner:
                clash = partial.get(axis) or f"the split of {owner[axis]}"
                raise ProgramError(f"the partial sums of {name} over {axis} cannot be multiplied with {clash}: reduce first")
            partial[axis] = f"the partial sums of {name}"
    return Layout(tuple((dim, axes_of[dim]) for dim in dims), frozenset(summed | set(partial)))


@functools.lru_cache(maxsize=4096)
def relayout(array: str, before: Layout, after: Layout, mesh: Mesh, keeps: bool = True) -> CollectivePermute:
    """The permutation that turns one layout into another of as many parts, or of several times as many, on the axes that move.

    Where several devices hold a shard, who is to have it keeps it, if `keeps`; else they send in their order to those who are
    to have its first part, its second, and so on, which crowds fewer links at times.

    >>> step = relayout("A", Layout.parse("I_{x,y}"), Layout.parse("I_{y,x}"), Mesh.parse("x=2, y=2"))
    >>> step.pairs
    ((0, 0), (1, 2), (2, 1), (3, 3))
    >>> relayout("A", Layout.parse("I_x"), Layout.parse("I_y"), Mesh.parse("x=2, y=2")).pairs
    ((0, 0), (1, 2), (2, 1), (3, 3))
    """
    pairs = zip(before.dims, after.dims, strict=True)
    changed = {axis for (_, old), (_, new) in pairs if old != new for axis in (*old, *new)}
    group = _group(mesh, changed)
    here = group.positions()
    held = wanted = part = np.zeros(group.size, int)
    for (_, old), (_, new) in zip(before.dims, after.dims, strict=True):
        parts = mesh.extent(old)
        if changed.issuperset((*old, *new)):
            held = held * parts + flat_index(here, old, mesh)
            wanted = wanted * parts + flat_index(here, new, mesh) // max(1, mesh.extent(new) // parts)
            part = part * mesh.extent(new) + flat_index(here, new, mesh)
    leaves = held != wanted  # who keeps its own is matched first, with itself
    senders = np.lexsort((leaves & keeps, held))
    takers = np.lexsort((leaves if keeps else part, wanted))
    moves = sorted(zip(senders.tolist(), takers.tolist(), strict=True))
    return CollectivePermute(array, group.names, tuple(moves), after)


def shift(array: str, layout: Layout, axis: str, mesh: Mesh, by: int = 1) -> CollectivePermute:
    """Every shard moves `by` positions along an axis; the last wrap around.

    >>> shift("A", Layout.parse("I_x"), "x", Mesh.parse("x=4")).pairs
    ((0, 1), (1, 2), (2, 3), (3, 0))
    """
    extent = mesh.axis_size(axis)
    return CollectivePermute(array, (axis,), tuple((k, (k + by) % extent) for k in range(extent)), layout)
