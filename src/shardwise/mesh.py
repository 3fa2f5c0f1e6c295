"""A mesh: devices in a grid with named axes, told by its axes and their sizes alone."""

from __future__ import annotations

import itertools
import math
import numbers
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shardwise.errors import MeshError, did_you_mean, pointed, quoted

AXIS_NAME = re.compile(r"[^\W\d]\w*")
LARGEST = 2**63 - 1  # a size or a number of devices: NumPy and XLA count in 64 bits
MOST_AXES = 64  # NumPy has no array, and so no grid of devices, of more dimensions
_ENTRY = re.compile(r"\s*(?P<name>[^\s=,:]+)\s*[=:]\s*(?P<size>[^\s,]+)\s*(?:,|$)")


@dataclass(frozen=True, slots=True)
class Mesh:
    """Mesh axes, major first, each with its number of devices.

    >>> mesh = Mesh.parse("x=4, y=2")
    >>> mesh.size, mesh.names, str(mesh)
    (8, ('x', 'y'), 'x=4, y=2')
    """

    axes: tuple[tuple[str, int], ...]
    _sizes: dict[str, int] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_sizes", dict(self.axes))
        if len(self.axes) > MOST_AXES:
            raise MeshError(f"the mesh has {len(self.axes)} axes, and a grid of devices has at most {MOST_AXES}: join some")
        names = [name for name, _ in self.axes]
        devices = 1
        for name, size in self.axes:
            if names.count(name) > 1:
                raise MeshError(f"mesh axis {name} is named twice: every axis needs a name of its own")
            if size < 1:
                raise MeshError(f"mesh axis {name} has size {quoted(size)}: an axis holds at least one device")
            devices *= size
            if devices > LARGEST:
                raise MeshError(f"mesh axis {name} has size {quoted(size)}: the devices of a mesh are at most {LARGEST:,}")

    @classmethod
    def parse(cls, mesh: Any) -> Mesh:
        """Read `"x=4, y=2"`, a mapping of axis to size, a Shardwise mesh, or a JAX `Mesh` or `AbstractMesh`.

        Raises:
            MeshError: the text, a name or a size is not one.
        """
        if isinstance(mesh, Mesh):
            return mesh
        if isinstance(mesh, str):
            return cls(tuple(_parse_axes(mesh)))
        if isinstance(mesh, Mapping):
            return cls(tuple(_checked(mesh.items())))
        if hasattr(mesh, "axis_names") and hasattr(mesh, "shape"):
            return cls(tuple((str(name), int(mesh.shape[name])) for name in mesh.axis_names))
        raise MeshError(f"{quoted(mesh)} is not a mesh: write 'x=4, y=2', {{'x': 4, 'y': 2}}, or give a jax.sharding.Mesh")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.axes)

    @property
    def size(self) -> int:
        """The number of devices."""
        return math.prod(size for _, size in self.axes)

    def axis_size(self, axis: str) -> int:
        size = self._sizes.get(axis)
        if size is None:
            raise MeshError(self.unknown(axis))
        return size

    def extent(self, axes: Iterable[str]) -> int:
        """The number of devices along several axes together."""
        devices, sizes = 1, self._sizes  # planning asks often, mostly of none or one
        for axis in axes:
            devices *= sizes.get(axis) or self.axis_size(axis)
        return devices

    def unknown(self, axis: str) -> str:
        """Say that the mesh lacks an axis, with the nearest one that it has."""
        have = f"it has {', '.join(self.names)}" if self.axes else "it has no axes"
        return f"the mesh has no axis {quoted(axis)}: {have}{did_you_mean(axis, self.names)}"

    def coordinates(self) -> Iterator[dict[str, int]]:
        """The position of every device along each axis, in device order (the last axis runs fastest)."""
        for position in itertools.product(*(range(size) for _, size in self.axes)):
            yield dict(zip(self.names, position, strict=True))

    def positions(self) -> dict[str, np.ndarray]:
        """The positions of all devices along each axis, in device order; `flat_index` takes them as it takes one device's."""
        sizes = [size for _, size in self.axes]
        return dict(zip(self.names, np.indices(sizes).reshape(len(sizes), self.size), strict=True)) if sizes else {}

    @property
    def told(self) -> str:
        """How a sentence names it, as `mesh x=4`, or `one device` where there are no axes."""
        return f"mesh {self}" if self.axes else str(self)

    def __str__(self) -> str:
        return ", ".join(f"{name}={size}" for name, size in self.axes) or "one device"


def flat_index(coordinate: Mapping[str, Any], axes: Iterable[str], mesh: Mesh) -> Any:
    """The combined position along several axes, the first the major one; of many devices where it is given theirs as arrays.

    >>> flat_index({"x": 1, "y": 1}, ("x", "y"), Mesh.parse("x=4, y=2"))
    3
    """
    index = 0
    for axis in axes:
        index = index * mesh.axis_size(axis) + coordinate[axis]
    return index


def _parse_axes(text: str) -> Iterator[tuple[str, int]]:
    position = 0
    while position < len(text.rstrip()):
        entry = _ENTRY.match(text, position)
        if entry is None:
            raise MeshError(
                pointed(text, position, "not a mesh", "write each axis as name=size, with commas between: 'x=4, y=2'")
            )
        name, size = entry["name"], entry["size"]
        if not AXIS_NAME.fullmatch(name):
            raise MeshError(pointed(text, entry.start("name"), f"{quoted(name)} cannot name an axis", "use letters: x=4"))
        count = whole_number(size)
        if count is None:
            why = f"{quoted(size)} is no size for mesh axis {name}"
            raise MeshError(pointed(text, entry.start("size"), why, f"give the number of devices: {name}=4"))
        yield name, count
        position = entry.end()


def whole_number(digits: str) -> int | None:
    """The number that decimal digits write; None where they are none, or one larger than `LARGEST`.

    >>> whole_number("16384"), whole_number("²"), whole_number("9" * 5000)
    (16384, None, None)
    """
    if not digits.isdecimal() or len(digits.lstrip("0")) > len(str(LARGEST)):
        return None
    number = int(digits.lstrip("0") or "0")
    return number if number <= LARGEST else None


def _checked(items: Iterable[tuple[Any, Any]]) -> Iterator[tuple[str, int]]:
    for name, size in items:
        if not isinstance(name, str) or not AXIS_NAME.fullmatch(name):
            raise MeshError(f"{quoted(name)} cannot name a mesh axis: use letters, as in {{'x': 4}}")
        if isinstance(size, bool) or not isinstance(size, numbers.Integral):
            raise MeshError(f"{quoted(size)} is no size for mesh axis {name}: give the number of devices as an int")
        yield name, int(size)


def folded(n: int) -> list[int]:
    """The order in which a ring visits a line of devices, none more than two places from the next: up and back.

    >>> folded(5), folded(6)
    ([0, 2, 4, 3, 1], [0, 2, 4, 5, 3, 1])
    """
    return [*range(0, n, 2), *range(n - 1 - n % 2, 0, -2)]


@dataclass(frozen=True, slots=True)
class Sides:
    """The sides of a torus that the devices along mesh axes fill, and the place of each device on it.

    A place is a number, row by row, the last side fastest, and so is how far one place is from another; `order[k]` is the place
    of the device at position k of the axes.

    >>> square = Sides((2, 2), (0, 1, 3, 2))                            # a ring of four as a square
    >>> square.beside(0, 1), square.above(3)
    (((0, 3), (1, 2), (2, 1), (3, 0)), (2, 3, 0, 1))
    """

    sizes: tuple[int, ...]
    order: tuple[int, ...]

    def __str__(self) -> str:
        return "x".join(map(str, self.sizes))

    def beside(self, side: int, way: int) -> tuple[tuple[int, int], ...]:
        """Who sends to whom, by position, when every device sends to the next one up (`way` = 1) or down (-1) a side."""
        return tuple(enumerate(reached(self.sizes, self.order, [way * (place == side) for place in range(len(self.sizes))])))

    def above(self, away: int) -> tuple[int, ...]:
        """For each position that of the device so far from it."""
        return tuple(reached(self.sizes, self.order, [int(each) for each in np.unravel_index(away, self.sizes)]))


def reached(sizes: tuple[int, ...], order: tuple[int, ...], steps: list[int]) -> list[int]:
    """For each position on a torus that of the device so many steps away along each side; `order` has the positions' places.

    `Plan.code()` copies it as it stands.
    """
    places = zip(np.unravel_index(order, sizes), steps, sizes, strict=True)
    there = np.ravel_multi_index([(at + more) % size for at, more, size in places], sizes)
    return [order.index(place) for place in there.tolist()]
