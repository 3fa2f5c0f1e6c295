"""Where an array lives: which device holds which part of it, as plain facts. No data is touched."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shardwise import views
from shardwise.errors import MeshError, one_line
from shardwise.layout import Layout, padded_size, shard_slices
from shardwise.mesh import Mesh

MOST_DEVICES = 65_536  # of a mesh that is placed: a picture looks at every one; the largest pods have 9,216 chips
SHOWN_DEVICES = 16


@dataclass(frozen=True, slots=True)
class Placement:
    """An array's shape and layout on a mesh, with the number of each device in mesh order; prints and draws itself.

    >>> print(Placement.of("A", Layout.parse("I_x, J_y"), {"I": 8, "J": 4}, Mesh.parse("x=2, y=2")).picture())
    +-----+-----+
    |  0  |  1  |
    +-----+-----+
    |  2  |  3  |
    +-----+-----+

    Attributes:
        shape: the array's own, in elements. Where its axes do not divide a dimension, zeros at the end fill it up.
        note: what the reader should know, as that no sizes were given.
        whole: the shape with what fills it up, where it is known; else as much as the axes need.
    """

    name: str
    layout: Layout
    shape: tuple[int, ...]
    mesh: Mesh
    devices: tuple[int, ...]
    note: str = ""
    whole: tuple[int, ...] = ()

    @classmethod
    def of(
        cls, name: str, layout: Layout, sizes: Mapping[str, int], mesh: Mesh, devices: Sequence[int] | None = None,
        *, pad: bool = False, note: str = "",
    ) -> Placement:  # fmt: skip
        """Place a layout of so many elements on a mesh.

        Args:
            devices: their numbers in mesh order (default: counted from 0).
            pad: fill dimensions that their axes do not divide, as `sw.put(..., pad=True)` does.

        Raises:
            MeshError: the mesh lacks an axis, or is too large; LayoutError: a size is missing, or not divided and not padded.
        """
        if mesh.size > MOST_DEVICES:
            raise MeshError(
                f"a placement has every device, and mesh {mesh} has more than {MOST_DEVICES:,}: take a smaller mesh"
            )
        wanted = sizes
        if pad:
            wanted = {**sizes, **{d: padded_size(sizes[d], mesh.extent(axes)) for d, axes in layout.dims if d in sizes}}
        layout.shard_shape(wanted, mesh)
        mesh.extent(sorted(layout.unreduced))
        shape = tuple(int(sizes[dim]) for dim in layout.names)
        return cls(name, layout, shape, mesh, tuple(range(mesh.size)) if devices is None else tuple(devices), note)

    @property
    def parts(self) -> tuple[int, ...]:
        """Into how many parts each dimension is cut."""
        return tuple(self.mesh.extent(axes) for _, axes in self.layout.dims)

    @property
    def padded_shape(self) -> tuple[int, ...]:
        """The shape with what fills it up."""
        return self.whole or tuple(padded_size(size, parts) for size, parts in zip(self.shape, self.parts, strict=True))

    @property
    def shard_shape(self) -> tuple[int, ...]:
        """The shape of what one device holds."""
        return tuple(size // parts for size, parts in zip(self.padded_shape, self.parts, strict=True))

    def holders(self) -> np.ndarray:
        """The numbers of the devices, by block along each dimension, then by partial sum, then by copy."""
        order = [*self.layout.axes, *sorted(self.layout.unreduced)]
        order += [axis for axis in self.mesh.names if axis not in order]
        grid = np.asarray(self.devices, dtype=np.int64).reshape([size for _, size in self.mesh.axes])
        per_sum = self.mesh.extent(sorted(self.layout.unreduced))
        return grid.transpose([self.mesh.names.index(axis) for axis in order]).reshape(*self.parts, per_sum, -1)

    def shards(self) -> list[tuple[int, tuple[slice, ...]]]:
        """Every device with the part that it holds, in device order of the mesh; padding counts as part of the array."""
        shape = self.padded_shape
        parts = (shard_slices(self.layout, shape, coordinate, self.mesh) for coordinate in self.mesh.coordinates())
        return list(zip(self.devices, parts, strict=True))

    def grid(self) -> list[list[list[int]]]:
        """For an array of up to two dimensions: the devices of every block, by row and column of blocks."""
        rows, columns = ((1, 1, *self.parts))[-2:]
        return self.holders().reshape(rows, columns, -1).tolist()

    def picture(self, width: int = 100) -> str:
        """The blocks as boxes of plain text, each with the devices that hold it.

        Args:
            width: of the text at most, in characters.
        """
        return views.view(self, "blocks", width)

    def table(self) -> str:
        """Device, slices and shape of every shard."""
        rows = [("device", "holds", "shard")]
        shards = self.shards()
        shape = " x ".join(map(str, self.shard_shape)) or "scalar"
        for device, where in shards[:SHOWN_DEVICES]:
            rows.append((str(device), self.words(where), shape))
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        if len(shards) > SHOWN_DEVICES:
            lines.append(f"... and {len(shards) - SHOWN_DEVICES} more devices")
        return "\n".join(lines)

    def words(self, where: Sequence[slice]) -> str:
        """Slices as text, `0:4, 4:8`; what fills up a shard is told apart: `6:7 +1 padding`."""
        said = [slice_text(part, size) for part, size in zip(where, self.shape, strict=True)]
        return ", ".join(said) or "the value"

    def headline(self) -> str:
        """Name, layout, shape, mesh, and over which axes there are copies or partial sums."""
        split = [axis for _, axes in self.layout.dims for axis in axes]
        idle = [f"{name}={size}" for name, size in self.mesh.axes if size > 1 and name not in split]
        copies = [axis for axis in idle if axis.split("=")[0] not in self.layout.unreduced]
        said = f"{self.name}{self.layout}, {' x '.join(map(str, self.shape)) or 'scalar'}, on {self.mesh.told}"
        if self.padded_shape != self.shape:
            said += f"; padded to {' x '.join(map(str, self.padded_shape))}"
        said += f"; replicated over {', '.join(copies)}" if copies else ""
        said += f"; partial sums over {', '.join(sorted(self.layout.unreduced))}" if self.layout.unreduced else ""
        return one_line(said + (f"; {self.note}" if self.note else ""))

    def __str__(self) -> str:
        return f"{self.headline()}\n{self.picture()}\n{self.table()}"

    _repr_svg_ = views.svg


def slice_text(part: slice, size: int) -> str:
    """A slice of a dimension of so many elements, and what of it only fills up.

    >>> slice_text(slice(6, 8), 7), slice_text(slice(8, 10), 7)
    ('6:7 +1 padding', 'padding')
    """
    filling = part.stop - max(part.start, size) if part.stop > size else 0
    if part.start >= size:
        return "padding"
    return f"{part.start}:{min(part.stop, size)}" + (f" +{filling} padding" if filling else "")


def devices_text(ids: np.ndarray, shown: int = 4) -> str:
    """The devices of a block, by partial sum and copy: `0,1` hold copies, `0+1` one partial sum each.

    >>> devices_text(np.array([[0, 1], [2, 3]])), devices_text(np.arange(8).reshape(1, 8))
    ('(0,1)+(2,3)', '0,1,...,7')
    """
    if math.prod(ids.shape) == 1:
        return str(ids.flat[0])
    if ids.shape[0] == 1:
        return ",".join(map(str, _ends(ids[0].tolist(), shown)))
    if ids.shape[1] == 1:
        return "+".join(map(str, _ends(ids[:, 0].tolist(), shown)))
    rows = _ends(list(ids), 2 if ids.size > 8 else shown)
    return "+".join(row if isinstance(row, str) else f"({devices_text(row[None, :], 2)})" for row in rows)


def _ends(items: list, shown: int) -> list:
    """All of a short list; of a long one its beginning and its end."""
    return items if len(items) <= shown else [*items[:2], "...", items[-1]]
