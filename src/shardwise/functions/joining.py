"""Several matmuls as one: those that multiply the same array, or whose results are added up, with the others side by side.

Queries, keys and values multiply one activation, and a gate and its partner another; on the way back their results are added
up. One by one each would gather the activation again, or scatter a sum of its own. They are planned as one matmul, of which
the others are parts, and computed part by part: a block that arrives is multiplied with each, and what is added up travels as
one sum. Where adding up would write more than putting the parts into one array does, they are put into one. A part is what
each device holds of an array, so that nothing is sent; the columns of the joint array are in another order than they were,
which no one sees: its parts are what they were.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Jaxpr, JaxprEqn, Literal

from shardwise.functions.rewriting import Path, inverse, makers_of, source_of, users_of
from shardwise.layout import Axes, Layout
from shardwise.notation import Equation, Operand
from shardwise.program import Program
from shardwise.runtime.mapped import map_shards

JOINED = "Z"  # the dimension along which they lie side by side
_ADDS = frozenset({"add", "add_any"})


@dataclass(frozen=True, slots=True)
class Group:
    """Matmuls of one jaxpr that may be one: the number of the operand that they share, or None where results are added up."""

    paths: tuple[Path, ...]
    shared: int | None


@dataclass(frozen=True, slots=True)
class Member:
    """A matmul with the layouts that its arrays have before and after what is moved.

    Attributes:
        names: the letters of both operands' dimensions; `order` those of the result, batches first.
        shapes: over all devices.
    """

    names: tuple[tuple[str, ...], tuple[str, ...]]
    order: tuple[str, ...]
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    layouts: tuple[Layout, Layout]
    result: Layout


@dataclass(frozen=True, slots=True)
class Part:
    """How an array becomes a block of the joint one: its dimensions in another order, of which some are one, of these sizes.

    `layout` is what the array has, by its own dimensions; `at` is where the joint dimension stands, which `count` of them make.
    """

    permutation: tuple[int, ...]
    at: int
    count: int
    layout: Layout
    sizes: tuple[int, ...]

    @property
    def width(self) -> int:
        """Of the joint dimension, over all devices."""
        return self._joint(self.sizes)

    def joined(self, shard: Any) -> Any:
        transposed = jnp.transpose(shard, self.permutation)
        shape = transposed.shape
        return transposed.reshape(*shape[: self.at], -1, *shape[self.at + self.count :])

    def shard_shape(self, mesh: Any) -> tuple[int, ...]:
        """Of the array on one device."""
        return self.layout.shard_shape(dict(zip(self.layout.names, self.sizes, strict=True)), mesh)

    def local_width(self, mesh: Any) -> int:
        """How much of the joint dimension one device has of it."""
        return self._joint(self.shard_shape(mesh))

    def _joint(self, shape: Sequence[int]) -> int:
        return math.prod(shape[place] for place in self.permutation[self.at : self.at + self.count])

    def parted(self, block: Any, mesh: Any) -> Any:
        local = self.shard_shape(mesh)
        transposed = block.reshape([local[place] for place in self.permutation])
        return jnp.transpose(transposed, inverse(self.permutation))


@dataclass(frozen=True, slots=True)
class Joint:
    """How the arrays of several matmuls become those of one.

    Attributes:
        shared: the operand that all take; None where the results are added up.
        operands, result: of each array that is joined, the parts of its members; None of one that is not.
        layouts: of the joint arrays.
    """

    shared: int | None
    operands: tuple[tuple[Part, ...] | None, tuple[Part, ...] | None]
    result: tuple[Part, ...] | None
    layouts: tuple[Layout, Layout, Layout]

    def divides(self, program: Program) -> bool:
        """Whether a program splits every part evenly, however it lays out the joint dimension on the way."""
        parts = {part for side in (*self.operands, self.result) for part in side or ()}
        split = {layout.axes_of(JOINED) for state in program.states() for layout in state.values() if JOINED in layout.names}
        return all(part.width % program.mesh.extent(axes) == 0 for part in parts for axes in split)

    def is_copied(self, grid: Any) -> bool:
        """Whether what is summed is put into one array: where adding up the results of each part would write more."""
        left, right = self.operands
        if left is None or right is None:
            return False
        held = [sum(math.prod(part.shard_shape(grid)) for part in parts) for parts in (left, right)]
        result = math.prod(math.prod(each.shard_shape(grid)) // each.local_width(grid) for each in (left[0], right[0]))
        return (len(left) - 1) * result > sum(held)

    def computed(self, run: Callable[..., Any], mesh: Any, grid: Any) -> Callable[..., tuple[Any, ...]]:
        """Both operands of each member to the results of all, by what computes the joint matmul."""

        def compute(*arrays: Any) -> tuple[Any, ...]:
            """The operands as parts of the joint ones, what is computed of them, and its parts as the results."""
            given, one = [arrays[0::2], arrays[1::2]], self.is_copied(grid)
            joint = [
                found[0] if parts is None else _beside(found, parts, layout, mesh, one)
                for found, parts, layout in zip(given, self.operands, self.layouts, strict=False)
            ]
            made = run(*joint)
            if self.result is None:
                return made, *(jax.lax.full_like(made, 0) for _ in given[0][1:])
            return _own(made, self.result, self.layouts[2], mesh, grid)

        return compute


def _beside(arrays: Sequence[Any], parts: Sequence[Part], layout: Layout, mesh: Any, one: bool) -> Any:
    """Arrays as the parts of a joint one: a tuple of them, or that `one` array."""

    def local(*shards: Any) -> Any:
        found = tuple(part.joined(shard) for part, shard in zip(parts, shards, strict=True))
        return jnp.concatenate(found, axis=parts[0].at) if one else found

    specs = tuple(part.layout.spec for part in parts)
    return map_shards(local, mesh=mesh, in_specs=specs, out_specs=layout.spec)(*arrays)


def _own(made: Sequence[Any], parts: Sequence[Part], layout: Layout, mesh: Any, grid: Any) -> tuple[Any, ...]:
    """The parts of a joint array as arrays of their own."""

    def local(*blocks: Any) -> tuple[Any, ...]:
        return tuple(part.parted(block, grid) for part, block in zip(parts, blocks, strict=True))

    specs = tuple(part.layout.spec for part in parts)
    return map_shards(local, mesh=mesh, in_specs=(layout.spec,) * len(made), out_specs=specs)(*made)


def groups(jaxpr: Jaxpr, found: Mapping[Path, JaxprEqn]) -> Iterator[Group]:
    """The matmuls of a jaxpr, of those found, that may be one."""
    makers, users = makers_of(jaxpr), users_of(jaxpr)
    alike: dict[object, list[Path]] = {}
    for path, equation in found.items():
        contracted, batch = equation.params["dimension_numbers"]
        how = (equation.params["preferred_element_type"], str(equation.params["precision"]))
        avals: list[Any] = [var.aval for var in equation.invars]
        how = (*how, *(str(aval.dtype) for aval in avals))
        for shared in (0, 1):
            var = source_of(equation.invars[shared], makers)
            if not isinstance(var, Literal):
                alike.setdefault((shared, var, contracted[shared], batch[shared], how), []).append(path)
        total = _total(equation.outvars[0], users)
        if total is not None:
            alike.setdefault((None, total, how), []).append(path)
    for key, paths in alike.items():
        if len(paths) > 1:
            yield Group(tuple(sorted(paths)), key[0])  # type: ignore[index]


def _total(var: Any, users: Mapping[Any, Sequence[JaxprEqn | None]]) -> Any:
    """The sum that an array is a part of, and of nothing else; None where it is of none."""
    total = None
    while True:
        match users.get(var, ()):
            case [JaxprEqn() as add] if add.primitive.name in _ADDS:
                total = var = add.outvars[0]
            case _:
                return total


def joint_of(group: Group, members: Sequence[Member]) -> tuple[Equation, Mapping[str, int], Joint] | None:
    """The equation that several matmuls are, its sizes, and how their arrays are joined; None where they are not alike.

    What is side by side is laid out alike, in the operands as in the result: each device holds parts of all of them.
    """
    found = [arrays for member in members if (arrays := _lettered(group.shared, member)) is not None and _stay(arrays)]
    if len(found) < len(members):
        return None
    first = found[0]
    sides: list[tuple[Part, ...] | None] = []
    layouts: list[Layout] = []
    sizes: dict[str, int] = {}
    for side in range(3):
        arrays = [each[side] for each in found]
        if not any(_is_joined(letter) for letter in first[side].letters):
            if any(array != arrays[0] for array in arrays):
                return None
            sides.append(None)
            layouts.append(Layout(tuple(zip(first[side].letters, first[side].axes, strict=True))))
            sizes |= dict(zip(first[side].letters, first[side].sizes, strict=True))
            continue
        joined = _joined(arrays)
        if joined is None:
            return None
        parts, layout, width = joined
        sides.append(parts)
        layouts.append(layout)
        sizes |= {
            letter: size for letter, size in zip(first[side].letters, first[side].sizes, strict=True) if not _is_joined(letter)
        }
        if sizes.setdefault(JOINED, width) != width:
            return None
    split = {layout.axes_of(JOINED) for layout in layouts if JOINED in layout.names}
    if len(split) != 1:
        return None
    one, other, result = layouts
    equation = Equation((Operand("A", one), Operand("B", other)), Operand("C", result))
    return equation, sizes, Joint(group.shared, (sides[0], sides[1]), sides[2], (one, other, result))


@dataclass(frozen=True, slots=True)
class _Lettered:
    """An array of a member: a letter for each dimension, a pair of that and a number where it is joined, its axes and sizes."""

    letters: tuple[Any, ...]
    axes: tuple[Axes, ...]
    sizes: tuple[int, ...]


def _is_joined(letter: Any) -> bool:
    return not isinstance(letter, str)


def _lettered(shared: int | None, member: Member) -> tuple[_Lettered, _Lettered, _Lettered] | None:
    """The arrays of a member with letters that are the same in all members; None where it cannot be joined."""
    left, right = member.names
    both = [name for name in left if name in right]
    summed = [name for name in both if name not in member.order]
    if shared is None:
        joined, kept = summed, [name for name in (*left, *right) if name not in summed]
    else:
        own = member.names[1 - shared]
        joined, kept = [name for name in own if name not in both], list(member.names[shared])
    if not joined:
        return None
    letters: dict[str, Any] = dict(zip(dict.fromkeys(kept), "IJKLMNPQRSTUVWXY", strict=False))
    letters |= {name: (JOINED, number) for number, name in enumerate(joined)}
    arrays = []
    sizes = {
        name: size
        for names, shape in zip(member.names, member.shapes, strict=True)
        for name, size in zip(names, shape, strict=True)
    }
    for names, layout in ((left, member.layouts[0]), (right, member.layouts[1]), (member.order, member.result)):
        axes = tuple(axes for _, axes in layout.dims)
        arrays.append(_Lettered(tuple(letters[name] for name in names), axes, tuple(sizes[name] for name in names)))
    return arrays[0], arrays[1], arrays[2]


def _stay(arrays: Sequence[_Lettered]) -> bool:
    """Whether the dimensions that are joined are split in the same way in every array that has them."""
    split: dict[Any, Axes] = {}
    return all(
        split.setdefault(letter, axes) == axes
        for array in arrays for letter, axes in zip(array.letters, array.axes, strict=True) if _is_joined(letter)
    )  # fmt: skip


def _joined(arrays: Sequence[_Lettered]) -> tuple[tuple[Part, ...], Layout, int] | None:
    """How arrays lie side by side along one dimension, the layout of the joint one, and how wide that is."""
    first = arrays[0]
    at = next(place for place, letter in enumerate(first.letters) if _is_joined(letter))
    plain = [letter for letter in first.letters if not _is_joined(letter)]
    known = {
        letter: (axes, size)
        for letter, axes, size in zip(first.letters, first.axes, first.sizes, strict=True)
        if not _is_joined(letter)
    }
    parts, split, width = [], None, 0
    for array in arrays:
        numbered = sorted(
            (place for place, letter in enumerate(array.letters) if _is_joined(letter)), key=lambda p: array.letters[p][1]
        )
        rest = {letter: place for place, letter in enumerate(array.letters) if not _is_joined(letter)}
        mine = {letter: (array.axes[place], array.sizes[place]) for letter, place in rest.items()}
        axes = tuple(axis for place in numbered for axis in array.axes[place])
        if mine != known or split not in (None, axes):
            return None
        split = axes
        order = [rest[letter] for letter in plain]
        permutation = (*order[:at], *numbered, *order[at:])
        names = [chr(ord("A") + place) for place in range(len(array.letters))]
        parts.append(Part(permutation, at, len(numbered), Layout(tuple(zip(names, array.axes, strict=True))), array.sizes))
        width += math.prod(array.sizes[place] for place in numbered)
    dims = [(letter, known[letter][0]) for letter in plain]
    assert split is not None
    dims.insert(at, (JOINED, split))
    return tuple(parts), Layout(tuple(dims)), width
