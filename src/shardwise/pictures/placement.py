"""Which device holds which part of an array: a table of shards, and a small picture of the first two dimensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardwise.layout import Layout, shard_slices
from shardwise.mesh import Mesh

SHOWN_DEVICES = 16
SHOWN_CELLS = 8


@dataclass(frozen=True, slots=True)
class Placement:
    """An array's shape and layout on a mesh, with the number of each device in mesh order.

    >>> print(Placement.of("A", Layout.parse("I_x, J_y"), {"I": 8, "J": 4}, Mesh.parse("x=2, y=2")).picture())
    +-----+-----+
    |  0  |  1  |
    +-----+-----+
    |  2  |  3  |
    +-----+-----+
    """

    name: str
    layout: Layout
    shape: tuple[int, ...]
    mesh: Mesh
    devices: tuple[int, ...]

    @classmethod
    def of(
        cls, name: str, layout: Layout, sizes: Mapping[str, int], mesh: Mesh, devices: Sequence[int] | None = None
    ) -> Placement:
        layout.shard_shape(sizes, mesh)
        shape = tuple(sizes[dim] for dim in layout.names)
        return cls(name, layout, shape, mesh, tuple(range(mesh.size)) if devices is None else tuple(devices))

    def shards(self) -> list[tuple[int, tuple[slice, ...]]]:
        """Every device with the part that it holds, in device order of the mesh."""
        coordinates = self.mesh.coordinates()
        parts = (shard_slices(self.layout, self.shape, coordinate, self.mesh) for coordinate in coordinates)
        return list(zip(self.devices, parts, strict=True))

    def grid(self) -> list[list[list[int]]]:
        """For an array of up to two dimensions: the devices of every block, by row and column of blocks."""
        split = [self.mesh.extent(axes) for _, axes in self.layout.dims]
        rows, columns = ([1] * (2 - len(split)) + split)[:2] if len(split) <= 2 else (split[0], split[1])
        cells: list[list[list[int]]] = [[[] for _ in range(columns)] for _ in range(rows)]
        widths = [size // parts for size, parts in zip(self.shape, split, strict=True)]
        for device, where in self.shards():
            at = [part.start // width for part, width in zip(where, widths, strict=True)]
            row, column = ([0] * (2 - len(at)) + at)[:2] if len(at) <= 2 else (at[0], at[1])
            cells[row][column].append(device)
        return cells

    def picture(self) -> str:
        """The blocks of the first two dimensions as boxes, each with the devices that hold it."""
        cells = [row[:SHOWN_CELLS] for row in self.grid()[:SHOWN_CELLS]]
        texts = [[_devices(cell) for cell in row] for row in cells]
        width = max(5, *(len(text) + 2 for row in texts for text in row))
        rule = "+" + "+".join("-" * width for _ in texts[0]) + "+"
        lines = [rule]
        for row in texts:
            lines += ["|" + "|".join(text.center(width) for text in row) + "|", rule]
        left_out = [n for n in (len(self.grid()) - len(cells), len(self.grid()[0]) - len(cells[0])) if n > 0]
        return "\n".join(lines) + (
            f"\n... and {' x '.join(map(str, left_out))} more rows or columns of blocks" if left_out else ""
        )

    def table(self) -> str:
        """Device, slices and shape of every shard."""
        rows = [("device", "holds", "shard")]
        shards = self.shards()
        for device, where in shards[:SHOWN_DEVICES]:
            slices = ", ".join(f"{part.start}:{part.stop}" for part in where) or "the value"
            shape = " x ".join(str(part.stop - part.start) for part in where) or "scalar"
            rows.append((str(device), slices, shape))
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        if len(shards) > SHOWN_DEVICES:
            lines.append(f"... and {len(shards) - SHOWN_DEVICES} more devices")
        return "\n".join(lines)

    def headline(self) -> str:
        split = [axis for _, axes in self.layout.dims for axis in axes]
        idle = [f"{name}={size}" for name, size in self.mesh.axes if size > 1 and name not in split]
        copies = [axis for axis in idle if axis.split("=")[0] not in self.layout.unreduced]
        said = f"{self.name}{self.layout}, {' x '.join(map(str, self.shape)) or 'scalar'}, on mesh {self.mesh}"
        said += f"; replicated over {', '.join(copies)}" if copies else ""
        return said + (f"; summands over {', '.join(sorted(self.layout.unreduced))}" if self.layout.unreduced else "")

    def __str__(self) -> str:
        return f"{self.headline()}\n{self.picture()}\n{self.table()}"


def _devices(cell: list[int]) -> str:
    shown = ",".join(map(str, cell[:4]))
    return shown + (f",+{len(cell) - 4}" if len(cell) > 4 else "")
