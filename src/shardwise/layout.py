"""A layout: for each dimension the mesh axes that split it, and the axes over which values are partial sums."""

from __future__ import annotations

import functools
import itertools
import math
import numbers
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shardwise.errors import LayoutError, NotationError, ShardwiseError, quoted
from shardwise.grammar import Axes, Reader
from shardwise.mesh import LARGEST, Mesh, flat_index

if TYPE_CHECKING:
    from jax.sharding import PartitionSpec

MOST_LISTED = 100_000  # layouts that `Layout.all` lists at most


@dataclass(frozen=True, slots=True)
class Layout:
    """How the dimensions of one array are split over mesh axes.

    `dims` holds each dimension's name and its axes, major first; `unreduced` the axes along which every device
    holds one partial sum. `Layout.on(mesh)` gives the canonical form: an axis of size 1 splits nothing and is dropped.

    >>> layout = Layout.parse("I_x, J")
    >>> layout.shard_shape({"I": 8, "J": 6}, "x=4")
    (2, 6)
    >>> str(layout)
    '[I_x, J]'
    """

    dims: tuple[tuple[str, Axes], ...]
    unreduced: frozenset[str] = frozenset()
    names: tuple[str, ...] = field(init=False, compare=False, repr=False)  # of the dimensions

    def __post_init__(self) -> None:
        if isinstance(self.dims, str):
            raise LayoutError(f"a layout is read from text by Layout.parse({self.dims!r})")
        owner: dict[str, str] = {}
        names = tuple([dim for dim, _ in self.dims])
        object.__setattr__(self, "names", names)
        for dim, axes in self.dims:
            if names.count(dim) > 1:
                raise LayoutError(
                    f"dimension {dim} is named twice in one array: name each once; take a diagonal with jnp.diagonal first"
                )
            for axis in axes:
                if axis in owner:
                    raise LayoutError(_split_twice(axis, owner[axis], dim))
                owner[axis] = dim
        for axis in sorted(self.unreduced):
            if axis in owner:
                why = f"mesh axis {axis} splits {owner[axis]} and is unreduced as well"
                raise LayoutError(f"{why}: along one axis devices hold parts or partial sums, not both")

    @classmethod
    def parse(cls, text: str | Layout) -> Layout:
        """Read `"I_x, J"`, `"[I_x, J]{U_y}"` or `"A[I_x, J]"`.

        Raises:
            NotationError: with a caret under the fault.
        """
        if isinstance(text, Layout):
            return text
        if not isinstance(text, str):
            raise NotationError(f"a layout is a text such as 'I_x, J', not {type(text).__name__}")
        read = Reader(text).layout()
        return cls(read.dims, read.unreduced)

    @classmethod
    def from_spec(cls, spec: Any, dims: str | Iterable[str] | None = None) -> Layout:
        """Read a `PartitionSpec`; dimensions without a name get I, J, K, ... in order.

        >>> Layout.from_spec((("x", "y"), None), "I, J")
        Layout(dims=(('I', ('x', 'y')), ('J', ())), unreduced=frozenset())

        Raises:
            LayoutError: the specification is none, or names more dimensions than `dims`.
        """
        try:
            given = [spec] if isinstance(spec, str) else getattr(spec, "partitions", spec)
            entries = [() if e is None else (e,) if isinstance(e, str) else tuple(e) for e in given]
        except TypeError:
            raise LayoutError(
                f"{spec!r} is no PartitionSpec that fixes a layout: write it as PartitionSpec('x', None)"
            ) from None
        if dims is None:
            dims = _fresh_names(len(entries))
        names = [d.strip() for d in dims.split(",") if d.strip()] if isinstance(dims, str) else list(dims)
        if len(entries) > len(names):
            raise LayoutError(f"{spec} splits {len(entries)} dimensions, but {len(names)} are named: {', '.join(names)}")
        entries += [()] * (len(names) - len(entries))
        unreduced = getattr(spec, "unreduced", None) or ()
        return cls(tuple(zip(names, entries, strict=True)), frozenset(unreduced))

    @classmethod
    def all(cls, dims: str | Iterable[str], mesh: Any, *, sizes: Mapping[str, int] | None = None) -> tuple[Layout, ...]:
        """List every layout of an array on a mesh: each axis splits one of its dimensions or none, in every order.

        >>> print(*Layout.all("I, J", "x=2"))
        [I, J] [I_x, J] [I, J_x]
        >>> len(Layout.all("I, J", "x=4, y=2")), len(Layout.all("I, J", "x=4, y=2", sizes={"I": 8, "J": 2}))
        (11, 7)

        Axes of size 1 split nothing and appear in none; partial sums are left out, since no array is placed so.

        Args:
            dims: `"I, J"`, or the names one by one.
            mesh: in any form that `Mesh.parse` reads.
            sizes: the size of every dimension, in elements: layouts whose axes do not divide them are left out.

        Returns:
            The layouts, those over fewer axes first, then those that split the first dimension. Their number grows fast: 11
            for two dimensions on two axes, 1,457 for four on four.

        Raises:
            NotationError, MeshError: the dimensions or the mesh cannot be read.
            LayoutError: a dimension with mesh axes; a size that is missing, or none.
        """
        grid = Mesh.parse(mesh)
        given = cls.parse(dims if isinstance(dims, str) else ", ".join(dims))
        if given.axes or given.unreduced:
            raise LayoutError(
                f"{given} is one layout: to list all of them give the dimensions alone, {', '.join(given.names)!r}"
            )
        if sizes is not None:
            given.shard_shape(sizes, grid)
        axes = tuple(axis for axis, size in grid.axes if size > 1)
        if (count := count_splits(len(given.names), len(axes))) > MOST_LISTED:
            raise LayoutError(
                f"{given} has {count:.3g} layouts on mesh {grid}, and at most {MOST_LISTED:,} are listed: "
                "take fewer axes, or fewer dimensions"
            )
        found = [cls(tuple(zip(given.names, split, strict=True))) for split in splits(len(given.names), axes)]
        if sizes is not None:
            found = [each for each in found if not any(sizes[dim] % grid.extent(axes) for dim, axes in each.dims)]
        return tuple(sorted(found, key=lambda each: (len(each.axes), [-len(axes) for _, axes in each.dims])))

    @property
    def axes(self) -> Axes:
        """Every axis that splits a dimension."""
        return tuple(axis for _, axes in self.dims for axis in axes)

    @property
    def spec(self) -> PartitionSpec:
        """The layout as a `jax.sharding.PartitionSpec` (imports JAX)."""
        from jax.sharding import PartitionSpec

        entries = [None if not axes else axes[0] if len(axes) == 1 else axes for _, axes in self.dims]
        if self.unreduced:
            return PartitionSpec(*entries, unreduced=set(self.unreduced))
        return PartitionSpec(*entries)

    def axes_of(self, dim: str) -> Axes:
        for name, axes in self.dims:
            if name == dim:
                return axes
        raise LayoutError(f"the array has no dimension {dim}: it has {', '.join(self.names) or 'none'}")

    def with_axes(self, dim: str, axes: Axes) -> Layout:
        """The same layout with one dimension split over other axes."""
        self.axes_of(dim)
        return Layout(tuple((d, axes if d == dim else a) for d, a in self.dims), self.unreduced)

    def on(self, mesh: Mesh) -> Layout:
        """The canonical form on a mesh: axes of size 1 dropped, every axis known.

        Raises:
            MeshError: the mesh lacks an axis.
        """

        def kept(axes: Iterable[str]) -> Axes:
            return tuple(axis for axis in axes if mesh.axis_size(axis) > 1)

        return Layout(tuple((dim, kept(axes)) for dim, axes in self.dims), frozenset(kept(self.unreduced)))

    def shard_shape(self, sizes: Mapping[str, int], mesh: Any) -> tuple[int, ...]:
        """The shape of one device's shard.

        Args:
            sizes: the size of every dimension, in elements.
            mesh: a mesh in any form that `Mesh.parse` reads.

        Raises:
            LayoutError: a size is missing, or its axes do not divide it.
        """
        grid = Mesh.parse(mesh)
        check_mapping(sizes, LayoutError)
        shape = []
        for dim, axes in self.dims:
            if dim not in sizes:
                raise LayoutError(f"no size is given for dimension {dim}: sizes={{{dim!r}: ...}}")
            size = checked_size(dim, sizes[dim], LayoutError)
            parts = grid.extent(axes)
            if size % parts:
                raise LayoutError(not_divisible(dim, size, axes, grid))
            shape.append(size // parts)
        return tuple(shape)

    def __str__(self) -> str:
        shown = ", ".join(dim + subscript(axes) for dim, axes in self.dims)
        return f"[{shown}]" + (f"{{U{subscript(sorted(self.unreduced))}}}" if self.unreduced else "")


def subscript(axes: Iterable[str]) -> str:
    """Write axes as they stand behind a dimension: nothing, `_x`, or `_{x,y}`."""
    names = list(axes)
    if not names:
        return ""
    return "_" + (names[0] if len(names) == 1 else "{" + ",".join(names) + "}")


def shard_slices(layout: Layout, shape: tuple[int, ...], coordinate: Mapping[str, int], mesh: Mesh) -> tuple[slice, ...]:
    """The part of an array that the device at a mesh coordinate holds.

    >>> shard_slices(Layout.parse("I_x, J"), (8, 3), {"x": 1}, Mesh.parse("x=4"))
    (slice(2, 4, None), slice(0, 3, None))
    """
    parts = []
    for (_, axes), size in zip(layout.dims, shape, strict=True):
        width = size // mesh.extent(axes)
        start = flat_index(coordinate, axes, mesh) * width
        parts.append(slice(start, start + width))
    return tuple(parts)


def check_mapping(sizes: Any, error: type[ShardwiseError]) -> None:
    """Refuse sizes that are no mapping of dimension to size."""
    if not isinstance(sizes, (dict, Mapping)):  # the first is told at once
        raise error(f"{quoted(sizes)} are no sizes: give every dimension its size, as in sizes={{'I': 1024}}")


def checked_size(dim: str, size: Any, error: type[ShardwiseError]) -> int:
    """The size of a dimension as an int; refuse what is not a whole number of at least one element."""
    if isinstance(size, bool) or not isinstance(size, (int, numbers.Integral)):  # an int is told at once
        raise error(f"dimension {dim} has size {quoted(size)}: a size is a whole number of elements")
    if size < 1:
        raise error(f"dimension {dim} has size {quoted(size)}: there is nothing to compute; every size is at least 1")
    if (whole := int(size)) > LARGEST:
        raise error(f"dimension {dim} has size {quoted(size)}: a size is at most {LARGEST:,}")
    return whole


def padded_size(size: int, parts: int) -> int:
    """The smallest size of at least `size` that `parts` divides."""
    return -(-size // parts) * parts


def not_divisible(dim: str, size: int, axes: Iterable[str], mesh: Mesh) -> str:
    """Say that axes do not divide a dimension, and offer the padded size."""
    names = tuple(axes)
    parts = mesh.extent(names)
    along = " x ".join(f"{axis}={mesh.axis_size(axis)}" for axis in names)
    padded = padded_size(size, parts)
    return (
        f"dimension {dim} has size {size}, which mesh {'axes' if len(names) > 1 else 'axis'} {along} "
        f"do{'' if len(names) > 1 else 'es'} not divide: pad=True pads it to {padded} (in sw.put, sw.einsum and sw.random), "
        "or use another layout"
    )


@functools.lru_cache(maxsize=4096)
def spread(used: Axes, rank: int) -> tuple[tuple[Axes, ...], ...]:
    """Every way to give all of some axes, in order, to the dimensions."""
    found = []
    for order in itertools.permutations(used):
        for cuts in itertools.combinations_with_replacement(range(len(used) + 1), rank - 1):
            bounds = (0, *cuts, len(used))
            found.append(tuple(order[a:b] for a, b in itertools.pairwise(bounds)))
    return tuple(found)


@functools.lru_cache(maxsize=1024)
def splits(rank: int, axes: Axes) -> tuple[tuple[Axes, ...], ...]:
    """Every way to give axes, or some of them, to the dimensions of an array.

    >>> len(splits(2, ("x", "y")))
    11
    """
    if rank == 0:
        return ((),)
    chosen = (c for count in range(len(axes) + 1) for c in itertools.combinations(axes, count))
    return tuple(dims for used in chosen for dims in spread(used, rank))


def count_splits(rank: int, axes: int) -> int:
    """How many ways `splits` finds, without finding them.

    >>> count_splits(2, 2), count_splits(4, 4)
    (11, 1457)
    """
    if rank == 0:
        return 1
    return sum(math.perm(axes, used) * math.comb(used + rank - 1, rank - 1) for used in range(axes + 1))


def _split_twice(axis: str, first: str, second: str) -> str:
    if first == second:
        return f"mesh axis {axis} splits {first} twice"
    return f"mesh axis {axis} splits both {first} and {second}"


def _fresh_names(count: int) -> list[str]:
    letters = "IJKLMNOPQRSTUVWXYZABCDEFGH"
    return [letters[i % 26] + (str(i // 26) if i >= 26 else "") for i in range(count)]
