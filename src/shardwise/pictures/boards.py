"""A placement as a board: blocks in rows and columns, higher ranks folded, and what is too many left out and counted."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from shardwise.layout import subscript
from shardwise.pictures.picture import Board, Box, Picture, Tone, Track
from shardwise.pictures.placement import Placement, devices_text, slice_text
from shardwise.pictures.plain_text import drawn_board, plain

MOST_TRACKS = 64  # rows, and columns, of blocks that a picture draws
STRIP = 16  # blocks in one line before it is folded
SHORT_LINE = 8  # blocks to a line of a folded strip that names the slices of each
WORDY = 32  # blocks that are labelled with their place
FEW = 8  # blocks that have a colour of their own


def placed(placement: Placement) -> Picture:
    """A placement as a whole picture."""
    drawn = board(placement)
    return Picture(f"{placement.name}{placement.layout}", placement.headline(), (drawn,))


def blocks(placement: Placement, width: int = 100) -> str:
    """The blocks as boxes of plain text, at most so many characters wide."""
    return plain(drawn_board(board(placement), width))


def board(placement: Placement, most_rows: int = MOST_TRACKS, most_columns: int = MOST_TRACKS) -> Board:
    """The blocks of an array; of more rows or columns than wanted the first ones and the last are kept.

    Two split dimensions are rows and columns. Further ones are folded around them, the last innermost: blocks of blocks.
    A single long row or column is folded as text is, and its blocks then name their slices.
    """
    rows, columns = _folded(placement.parts)
    down, across = _Side(placement, rows), _Side(placement, columns)
    blocks = _Blocks(placement)
    if down.count == 1 and across.count > STRIP:
        return _wrapped(placement, across, blocks, "across", most_rows, most_columns)
    if across.count == 1 and down.count > STRIP:
        return _wrapped(placement, down, blocks, "down", most_rows, most_columns)
    row_tracks, column_tracks = down.tracks(most_rows), across.tracks(most_columns)
    boxes = [
        blocks.box(row, column, {**down.at(i), **across.at(j)})
        for row, (i, _) in enumerate(row_tracks)
        for column, (j, _) in enumerate(column_tracks)
        if i is not None and j is not None
    ]
    return Board(
        f"{placement.name}{placement.layout}",
        _caption(placement),
        tuple(track for _, track in row_tracks),
        tuple(track for _, track in column_tracks),
        tuple(boxes),
        down.title,
        across.title,
        tuple(_whole(placement, {*rows, *columns})),
        labelled=any(len(side.dims) > 1 for side in (down, across)),
    )


def _caption(placement: Placement) -> str:
    said = placement.headline()
    return said.removeprefix(f"{placement.name}{placement.layout}, ")


def _whole(placement: Placement, drawn: set[int]) -> Iterator[str]:
    edges = [edge_text(slice(0, whole), size) for whole, size in zip(placement.padded_shape, placement.shape, strict=True)]
    rest = [f"{name} {edges[at]}" for at, name in enumerate(placement.layout.names) if at not in drawn]
    if rest:
        yield f"whole in every block: {', '.join(rest)}"


def _folded(parts: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The dimensions that become rows and those that become columns, outermost first."""
    rank = len(parts)
    drawn = list(range(rank))
    if rank > 2:
        drawn = [at for at in drawn if parts[at] > 1]
        spare = [at for at in range(rank - 1, -1, -1) if parts[at] == 1]
        drawn = sorted(drawn + spare[: max(2 - len(drawn), 0)])
    return tuple(drawn[-2::-2][::-1]), tuple(drawn[-1::-2][::-1])


@dataclass(frozen=True)
class _Side:
    """The rows, or the columns, of a board: one or more dimensions, the last running fastest."""

    placement: Placement
    dims: tuple[int, ...]

    @property
    def parts(self) -> tuple[int, ...]:
        return tuple(self.placement.parts[at] for at in self.dims)

    @property
    def count(self) -> int:
        return math.prod(self.parts)

    @property
    def title(self) -> str:
        names = [name + subscript(axes) for name, axes in (self.placement.layout.dims[at] for at in self.dims)]
        return ", ".join(names)

    def at(self, index: int) -> dict[int, int]:
        """The part of each dimension that a track stands for."""
        return dict(zip(self.dims, map(int, np.unravel_index(index, self.parts)), strict=True)) if self.dims else {}

    def tracks(self, most: int) -> list[tuple[int | None, Track]]:
        """The tracks that are drawn, each with its number; None for the one that stands for those left out."""
        found: list[tuple[int | None, Track]] = []
        previous: dict[int, int] | None = None
        for index in shown(self.count, most):
            if index is None:
                found.append((None, Track(left_out=self.count - most + 1)))
                previous = None
                continue
            at = self.at(index)
            outer = self.dims[:-1]
            first = previous is None or any(previous[dim] != at[dim] for dim in outer)
            inner = self.part_text(self.dims[-1], at) if self.dims else ""
            header = (
                ", ".join(f"{self.placement.layout.names[dim]} {self.part_text(dim, at)}" for dim in outer) if first else ""
            )
            gap = 0
            if previous is not None:
                gap = next((len(outer) - level for level, dim in enumerate(outer) if previous[dim] != at[dim]), 0)
            found.append((index, Track(inner, header, gap)))
            previous = at
        return found

    def part_text(self, dim: int, at: dict[int, int]) -> str:
        width = self.placement.shard_shape[dim]
        return edge_text(slice(at[dim] * width, (at[dim] + 1) * width), self.placement.shape[dim])


def shown(count: int, most: int) -> Iterator[int | None]:
    """The numbers that are drawn of so many: all, or the first ones, a gap (None), and the last.

    >>> list(shown(9, 4)), list(shown(3, 4))
    ([0, 1, None, 8], [0, 1, 2])
    """
    if count <= most:
        yield from range(count)
        return
    yield from range(most - 2)
    yield None
    yield count - 1


class _Blocks:
    """Makes the box of every block; what all of them share is computed once."""

    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        self.holders = placement.holders()
        self.count = math.prod(placement.parts)
        self.partial_sums, self.copies = self.holders.shape[-2:]
        order = self.holders.reshape(self.count, -1)[:, 0].argsort()
        self.rank = np.empty(self.count, dtype=np.int64)
        self.rank[order] = np.arange(self.count)

    def box(self, row: int, column: int, parts: dict[int, int], sliced: bool = False) -> Box:
        p = self.placement
        block = tuple(parts.get(at, 0) for at in range(len(p.parts)))
        ids = self.holders[block]
        where = [slice(at * width, (at + 1) * width) for at, width in zip(block, p.shard_shape, strict=True)]
        held = f"{p.name}[{p.words(where)}]" if block else p.name
        padding = self._padding(where)
        body = [", ".join(slice_text(where[at], p.shape[at]) for at in parts)] if sliced else [padding] if padding else []
        aside = " ".join(self._coordinate(block)) if 1 < self.count <= WORDY and not sliced else ""
        flat = int(np.ravel_multi_index(block, p.parts)) if block else 0
        rank = flat if self.count <= FEW else int(self.rank[flat])
        return Box(
            row, column, devices_text(ids), tuple(body), aside, Tone(rank, self.count), self.copies, self.partial_sums,
            self._shares(where, parts), f"{_who(ids)} {held}",
            (
                ("devices", "+".join(",".join(map(str, copies)) for copies in ids.tolist())),
                ("slices", ",".join(f"{part.start}:{part.stop}" for part in where)),
            ),
        )  # fmt: skip

    def _coordinate(self, block: tuple[int, ...]) -> Iterator[str]:
        for (_, axes), at in zip(self.placement.layout.dims, block, strict=True):
            sizes = [self.placement.mesh.axis_size(axis) for axis in axes]
            for axis, position in zip(axes, np.unravel_index(at, sizes) if sizes else (), strict=True):
                yield f"{axis}={position}"

    def _padding(self, where: Sequence[slice]) -> str:
        names = self.placement.layout.names
        filling = [part.stop - max(part.start, size) for part, size in zip(where, self.placement.shape, strict=True)]
        said = [f"{name}+{n}" for name, n in zip(names, filling, strict=True) if n > 0]
        return f"pad {' '.join(said)}" if said else ""

    def _shares(self, where: Sequence[slice], parts: dict[int, int]) -> tuple[float, float]:
        """The shares of the box, down and across, that are padding; of a dimension that is not drawn it is none."""
        rows, columns = _folded(self.placement.parts)
        shares = [
            max(part.stop - max(part.start, size), 0) / (part.stop - part.start)
            for part, size in zip(where, self.placement.shape, strict=True)
        ]
        down = 1 - math.prod(1 - shares[at] for at in rows)
        across = 1 - math.prod(1 - shares[at] for at in columns)
        return down, across


def _who(ids: np.ndarray) -> str:
    shown_ids = devices_text(ids, 16)
    if ids.size == 1:
        return f"device {shown_ids} holds"
    if ids.shape[0] == 1:
        return f"devices {shown_ids} each hold a copy of"
    both = ", each in copies," if ids.shape[1] > 1 else ""
    return f"devices {shown_ids} each hold one partial sum{both} of"


def _wrapped(placement: Placement, side: _Side, blocks: _Blocks, way: str, most_rows: int, most_columns: int) -> Board:
    """One long line of blocks, folded: row by row for columns, column by column for rows."""
    sliced = side.count <= SHORT_LINE**2
    most = most_columns if way == "across" else most_rows
    line = _line_length(side.count, min(most, SHORT_LINE) if sliced else most)
    lines = -(-side.count // line)
    kept = list(shown(lines, most_rows if way == "across" else most_columns))
    boxes = []
    for place, number in enumerate(kept):
        if number is None:
            continue
        for offset in range(min(line, side.count - number * line)):
            row, column = (place, offset) if way == "across" else (offset, place)
            boxes.append(blocks.box(row, column, side.at(number * line + offset), sliced))
    folded = [_line_track(side, number, line, lines, len(kept)) for number in kept]
    plain = [Track() for _ in range(line)]
    rows, columns = (folded, plain) if way == "across" else (plain, folded)
    how = "read row by row" if way == "across" else "read down, column by column"
    titles = (side.title, "") if way == "across" else ("", side.title)
    return Board(
        f"{placement.name}{placement.layout}", _caption(placement), tuple(rows), tuple(columns), tuple(boxes), *titles,
        (*_whole(placement, set(itertools.chain(*_folded(placement.parts)))), f"{side.title} is folded: {how}"),
    )  # fmt: skip


def _line_length(count: int, most: int) -> int:
    """The longest line, of at most so many, that leaves no rest; near it, if all of those are short."""
    divisors = [n for n in range(1, most + 1) if count % n == 0]
    return divisors[-1] if divisors[-1] * 2 >= most else most


def _line_track(side: _Side, number: int | None, line: int, lines: int, drawn: int) -> Track:
    if number is None:
        return Track(left_out=lines - drawn + 1)
    dim = side.dims[-1]
    first, last = number * line, min((number + 1) * line, side.count) - 1
    width = side.placement.shard_shape[dim]
    return Track(edge_text(slice(first * width, (last + 1) * width), side.placement.shape[dim]))


def edge_text(part: slice, size: int) -> str:
    """A slice as it stands at the edge of a board: `6:7+1` has one element of padding.

    >>> edge_text(slice(6, 8), 7), edge_text(slice(8, 10), 7)
    ('6:7+1', 'padding')
    """
    return slice_text(part, size).replace(" padding", "").replace(" +", "+") if part.start < size else "padding"
