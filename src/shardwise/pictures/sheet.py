"""All layouts of an array on a mesh, counted and drawn as one sheet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from shardwise.errors import LayoutError, counted
from shardwise.layout import Layout
from shardwise.mesh import Mesh
from shardwise.notation import Operand
from shardwise.pictures.boards import board
from shardwise.pictures.picture import Board, Picture, Strip, Words
from shardwise.pictures.placement import Placement

MOST_LAYOUTS = 120  # drawn; all are counted
TRACKS = 6  # rows and columns of blocks of each


def sheet(operand: Operand, mesh: Mesh, sizes: Mapping[str, int] | None = None, *, pad: bool = False) -> Picture:
    """Every layout of an array on a mesh, each with its placement.

    Args:
        operand: the array; how it is laid out as written does not matter.
        sizes: of every dimension, in elements; without them those that all layouts divide.
        pad: fill up dimensions that axes do not divide; without it such layouts are named, and not drawn.

    Raises:
        LayoutError: a size is missing.
    """
    every = Layout.all(operand.dims, mesh)
    wanted = dict.fromkeys(operand.dims, mesh.size) if sizes is None else sizes
    boards: list[Board] = []
    refused: list[str] = []
    for layout in every:
        if missing := [dim for dim in layout.names if dim not in wanted]:
            raise LayoutError(f"no size is given for dimension {missing[0]}: sizes={{{missing[0]!r}: ...}}")
        if not pad and any(wanted[dim] % mesh.extent(axes) for dim, axes in layout.dims):
            refused.append(str(layout))
        elif len(boards) < MOST_LAYOUTS:
            boards.append(_plain(board(Placement.of(operand.name, layout, wanted, mesh, pad=pad), TRACKS, TRACKS)))
    shape = " x ".join(str(wanted[dim]) for dim in operand.dims) or "scalar"
    said = [f"{counted(len(every), 'layout')} of {operand.name}[{', '.join(operand.dims)}], {shape}, on {mesh.told}"]
    if len(every) - len(refused) > len(boards):
        said.append(f"{len(boards)} are drawn; {len(every) - len(refused) - len(boards)} more are not")
    if refused:
        said.append(f"the sizes are not divided by {', '.join(refused[:20])}" + (" and others" if len(refused) > 20 else ""))
    return Picture(said[0], "; ".join(said), (*((Words(tuple(said[1:])),) if said[1:] else ()), Strip("", tuple(boards))))


def _plain(drawn: Board) -> Board:
    """A board with its devices alone: on a sheet of many the rest is noise."""
    return replace(drawn, boxes=tuple(replace(box, aside="") for box in drawn.boxes), notes=())
