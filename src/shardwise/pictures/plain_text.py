"""The renderer of plain text: a picture as lines of characters, ASCII or box-drawing ones. Colour is left to `terminal`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import assert_never

from shardwise.errors import one_line
from shardwise.pictures.picture import (
    Arrow,
    Board,
    Box,
    Card,
    Lanes,
    Movement,
    Part,
    Picture,
    Sign,
    Stage,
    Strip,
    Table,
    Tone,
    Track,
    Wire,
    Words,
    clipped,
    columns_of,
    left_out,
    padded_to,
    thinned,
    wrapped,
)

MOST_ROWS = 12  # rows of blocks
MOST_CELL = 24  # columns of one cell
MOST_CELLS = 60  # columns of one cell of a table
MOST_WIRES = 24
# Of bars on a lane, as `schedule.timeline_text` writes them.
MARKS = {
    "matmul": "M", "compute": "#", "wait": ".", "stall": ",", "transfer": "=", "copy": "-", "loop": "~",
    "measured": "#", "interval": "-",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Segment:
    """Characters of one look: the tone of a box, or a role (`name`, `faint`, `rule`, a kind of bar)."""

    text: str
    tone: Tone | None = None
    role: str = ""


Line = list[Segment]


@dataclass(frozen=True, slots=True)
class Rim:
    """The characters that boxes are drawn with."""

    across: str
    down: str
    corners: tuple[str, str, str]  # upper, middle and lower: left, inside, right
    dashed_across: str
    arrow: str
    dots: str


ASCII = Rim("-", "|", ("+++", "+++", "+++"), "-", "-->", "...")
BOXES = Rim("─", "│", ("┌┬┐", "├┼┤", "└┴┘"), "╌", "──▶", "⋯")


def plain(lines: Iterable[Line]) -> str:
    """Lines without their looks."""
    return "\n".join(one_line("".join(segment.text for segment in line)).rstrip() for line in lines)


def text(picture: Picture, width: int = 100, rim: Rim = ASCII) -> str:
    """A whole picture as plain text.

    Args:
        width: of the text at most, in columns; a name that is longer than all of it is cut.
    """
    return plain(drawn(picture, width, rim))


def drawn(picture: Picture, width: int = 100, rim: Rim = ASCII) -> list[Line]:
    """A whole picture as lines, which keep the look of each piece."""
    lines: list[Line] = [[Segment(clipped(picture.title, width), role="name")]]
    for part in picture.parts:
        lines += [[], *_part(part, width, rim)]
    return lines


def _part(part: Part, width: int, rim: Rim) -> list[Line]:
    match part:
        case Board():
            said = wrapped(part.caption, width) or [""]
            return [*([Segment(line, role="faint")] for line in said), *drawn_board(part, width, rim)]
        case Strip():
            return _strip(part, width, rim)
        case Movement():
            return _movement(part, width, rim)
        case Stage():
            return _stage(part, width, rim)
        case Lanes():
            return _lanes(part, width)
        case Table():
            return _table(part, width)
        case Words():
            lines = (
                [one_line(said) for said in part.lines]
                if part.code
                else [x for said in part.lines for x in wrapped(said, width)]
            )
            return [
                *([Segment(line, role="name")] for line in wrapped(part.title, width)),
                *([Segment(line)] for line in lines),
            ]
        case _:
            assert_never(part)


# Boards.


def drawn_board(board: Board, width: int = 100, rim: Rim = ASCII) -> list[Line]:
    """The boxes of a board; as many columns as fit, and what is left out in words."""
    fitted = thinned(board, MOST_ROWS, len(board.columns))
    most = len(board.columns)
    while (cells := _Cells(fitted, rim)).width > width and most > 3:
        most = max(min(most - 1, most * width // cells.width), 3)
        fitted = thinned(board, MOST_ROWS, most)
    notes = [*board.notes, *filter(None, [left_out(fitted)])]
    return [*cells.lines(), *([Segment(line, role="faint")] for note in notes for line in wrapped(note, width))]


@dataclass
class _Cells:
    """The boxes of a board, measured."""

    board: Board
    rim: Rim
    at: dict[tuple[int, int], list[str]] = field(init=False)
    boxes: dict[tuple[int, int], Box] = field(init=False)
    widths: list[int] = field(init=False)
    margin: int = field(init=False)

    def __post_init__(self) -> None:
        self.boxes = {(box.row, box.column): box for box in self.board.boxes}
        self.at = {place: [clipped(t, MOST_CELL) for t in (box.head, *box.body) if t] for place, box in self.boxes.items()}
        shared = max([5, *(columns_of(line) + 2 for lines in self.at.values() for line in lines)])
        self.widths = [len(self.rim.dots) + 2 if track.left_out else shared for track in self.board.columns]
        if self.board.labelled:
            self.widths = [
                max(width, columns_of(clipped(track.label, MOST_CELL)) + 2)
                for width, track in zip(self.widths, self.board.columns, strict=True)
            ]
        self.margin = 0
        if self.board.labelled:
            self.margin = 1 + max(
                columns_of(clipped(t, MOST_CELL)) for track in self.board.rows for t in (track.label, track.header)
            )

    @property
    def width(self) -> int:
        """Of the whole board, in columns."""
        return self.margin + sum(self.widths) + len(self.widths) + 1 + sum(3 * bool(track.gap) for track in self.board.columns)

    def lines(self) -> Iterator[Line]:
        """The board from top to bottom: labels of columns, then for each row of boxes a rule and its cells."""
        board, rows = self.board, self.board.rows
        if board.labelled:
            yield from self._column_labels()
        for number, track in enumerate(rows):
            if track.left_out:
                yield [*self._left(track.label), Segment(self.rim.dots, role="faint")]
                continue
            fresh = number == 0 or bool(track.gap) or bool(rows[number - 1].left_out)
            if fresh and board.labelled and track.header:
                yield [Segment(clipped(track.header, MOST_CELL), role="faint")]
            if fresh:
                yield self._left("") + self._rule(0)
            yield from self._row(number, track)
            last = number == len(rows) - 1 or bool(rows[number + 1].gap) or bool(rows[number + 1].left_out)
            yield self._left("") + self._rule(2 if last else 1)

    def _left(self, label: str) -> Line:
        return [Segment(padded_to(clipped(label, MOST_CELL), self.margin), role="faint")] if self.margin else []

    def _groups(self) -> Iterator[list[int]]:
        """The columns that stand together, between gaps."""
        group: list[int] = []
        for number, track in enumerate(self.board.columns):
            if group and (track.gap or track.left_out or self.board.columns[number - 1].left_out):
                yield group
                group = []
            group.append(number)
        yield group

    def _joined(self, pieces: Iterator[tuple[list[int], Line]]) -> Line:
        line: Line = []
        for group, piece in pieces:
            if line and self.board.columns[group[0]].gap:
                line.append(Segment("   "))
            line += piece
        return line

    def _column_labels(self) -> Iterator[Line]:
        for kind in ("header", "label"):
            if not any(getattr(track, kind) for track in self.board.columns):
                continue
            pieces = []
            for group in self._groups():
                widths = [self.widths[number] for number in group]
                labels = [clipped(getattr(self.board.columns[number], kind), MOST_CELL) for number in group]
                if kind == "header":
                    pieces.append((group, padded_to(labels[0], sum(widths) + len(widths) + 1)))
                else:
                    named = (padded_to(label, width, "^") for label, width in zip(labels, widths, strict=True))
                    pieces.append((group, " " + " ".join(named) + " "))
            yield self._left("") + self._joined((group, [Segment(piece, role="faint")]) for group, piece in pieces)

    def _rule(self, which: int) -> Line:
        def piece(group: list[int]) -> str:
            left, inner, right = self.rim.corners[which]
            if self.board.columns[group[0]].left_out:
                return " " * self.widths[group[0]]
            return left + inner.join(self.rim.across * self.widths[number] for number in group) + right

        return self._joined((group, [Segment(piece(group), role="rule")]) for group in self._groups())

    def _row(self, number: int, track: Track) -> Iterator[Line]:
        height = max([1, *(len(self.at[place]) for place in self.at if place[0] == number)])
        for at in range(height):
            label = track.label if at == 0 else ""
            pieces = ((group, list(self._row_piece(number, group, at))) for group in self._groups())
            yield (self._left(label) if self.board.labelled else []) + self._joined(pieces)

    def _row_piece(self, number: int, group: list[int], at: int) -> Iterator[Segment]:
        if self.board.columns[group[0]].left_out:
            yield Segment(padded_to(self.rim.dots if at == 0 else "", self.widths[group[0]], "^"), role="faint")
            return
        for column in group:
            box = self.boxes.get((number, column))
            lines = self.at.get((number, column), [])
            said = padded_to(lines[at] if at < len(lines) else "", self.widths[column], "^")
            yield Segment(self.rim.down, role="rule")
            yield Segment(said, tone=box.tone if box else None)
        yield Segment(self.rim.down, role="rule")


# Strips: boards side by side while they fit, below each other where not.


def _strip(strip: Strip, width: int, rim: Rim) -> list[Line]:
    blocks = [_item(item, width, rim) for item in strip.items]
    lines: list[Line] = [[Segment(line, role="name")] for line in wrapped(strip.title, width)]
    row: list[list[Line]] = []
    used = 0
    for block in blocks:
        wide = _width(block)
        if row and used + wide > width:
            lines += [*_beside(row), []]
            row, used = [], 0
        row.append(block)
        used += wide + 2
    return lines + _beside(row)


def _item(item: Board | Sign | Arrow, width: int, rim: Rim) -> list[Line]:
    match item:
        case Board():
            name = [Segment(clipped(item.name, width), role="name")]
            return [name, *drawn_board(item, width, rim)]
        case Sign(said):
            return [[], [], [Segment(said)]]
        case Arrow(said, below, _):
            told = (
                [
                    Segment(clipped(said, width)),
                ]
                if said
                else []
            )
            return [[], told, [Segment(rim.arrow)], *([[Segment(clipped(below, MOST_CELL), role="faint")]] if below else [])]
        case _:
            assert_never(item)


def _width(block: Sequence[Line]) -> int:
    return max((sum(columns_of(segment.text) for segment in line) for line in block), default=0)


def _beside(blocks: Sequence[Sequence[Line]], between: int = 2) -> list[Line]:
    """Blocks of lines side by side."""
    height = max((len(block) for block in blocks), default=0)
    lines: list[Line] = [[] for _ in range(height)]
    for number, block in enumerate(blocks):
        wide = _width(block) + (between if number < len(blocks) - 1 else 0)
        for at in range(height):
            line = block[at] if at < len(block) else []
            lines[at] += [*line, Segment(" " * (wide - sum(columns_of(segment.text) for segment in line)))]
    return lines


# Movements: before, what is sent, after.


def _movement(movement: Movement, width: int, rim: Rim) -> list[Line]:
    lines: list[Line] = [[Segment(line, role="name")] for line in wrapped(movement.title, width)]
    for word, cards in (("before", movement.before), ("after", movement.after)):
        lines.append([Segment(word, role="faint")])
        lines += _cards(cards, width, rim)
        if word == "before":
            lines += [[Segment(line, role="faint")] for line in _sends(movement.wires, cards, movement.after, rim)]
    return lines + [[Segment(line, role="faint")] for note in movement.notes for line in wrapped(note, width)]


def _stage(stage: Stage, width: int, rim: Rim) -> list[Line]:
    lines: list[Line] = [[Segment(line, role="name")] for line in wrapped(stage.title, width)]
    lines += _cards(stage.cards, width, rim)
    lines += [[Segment(line, role="faint")] for line in _sends(stage.wires, stage.cards, stage.cards, rim)]
    return lines + [[Segment(line, role="faint")] for note in stage.notes for line in wrapped(note, width)]


def _cards(cards: Sequence[Card], width: int, rim: Rim) -> list[Line]:
    blocks = []
    for card in cards:
        place = [Segment("  " + clipped(card.place, MOST_CELL), role="faint")] if card.place else []
        block: list[Line] = [[Segment(clipped(card.name, width), role="name"), *place]]
        for board in card.boards:
            block += [[Segment(clipped(board.name, width), role="faint")], *drawn_board(board, width, rim)]
        if card.lacks:
            block += [[Segment(line, role="faint")] for line in wrapped(card.lacks, 28)]
        blocks.append(block)
    lines: list[Line] = []
    row: list[list[Line]] = []
    for block in blocks:
        if row and sum(_width(b) + 3 for b in row) + _width(block) > width:
            lines += _beside(row, 3)
            row = []
        row.append(block)
    return lines + _beside(row, 3)


def _sends(wires: Iterable[Wire], before: Sequence[Card], after: Sequence[Card], rim: Rim) -> Iterator[str]:
    """Who sends what to whom, one line for each sender that sends everybody the same."""
    told: dict[tuple[int, str], list[int]] = {}
    for wire in wires:
        told.setdefault((wire.source, wire.title), []).append(wire.target)
    for (source, what), targets in list(told.items())[:MOST_WIRES]:
        names = ", ".join(clipped(after[at].name.removeprefix("device "), MOST_CELL) for at in targets)
        yield f"  {clipped(before[source].name, MOST_CELL)} {rim.arrow} {names}: {clipped(what, MOST_CELLS)}"
    if len(told) > MOST_WIRES:
        yield f"  {rim.dots} and {len(told) - MOST_WIRES} more"


# Lanes and tables.


def _lanes(lanes: Lanes, width: int) -> list[Line]:
    margin = max([7, *(columns_of(clipped(lane.name, MOST_CELL)) for lane in lanes.lanes)]) + 2
    columns = max(width - margin, 10)
    marks = {kind: MARKS.get(kind, "+") for kind, _ in lanes.legend}
    lines: list[Line] = [[Segment(line, role="name")] for line in wrapped(lanes.title, width)]
    for lane in lanes.lanes:
        filled: list[dict[str, float]] = [{} for _ in range(columns)]
        for bar in lane.bars:
            low, high = bar.start * columns, bar.end * columns
            for column in range(max(int(low), 0), min(int(high) + 1, columns)):
                share = min(high, column + 1) - max(low, column)
                if share > 0:
                    filled[column][bar.kind] = filled[column].get(bar.kind, 0.0) + share
        kinds = [max(cell, key=lambda kind: cell[kind]) if sum(cell.values()) >= 0.05 else "" for cell in filled]
        row = [Segment(padded_to(clipped(lane.name, MOST_CELL), margin), role="faint")]
        for kind, run in groupby(kinds):
            row.append(Segment((marks.get(kind, "?") if kind else " ") * len(list(run)), role=kind))
        lines.append(row)
    ruler, numbers = [" "] * columns, [" "] * (columns + 12)
    for share, tick in lanes.ticks:
        said = clipped(tick, 12)
        place = min(int(share * columns), columns - 1)
        ruler[place] = "|"
        if place + len(said) <= columns:
            numbers[place : place + len(said)] = said
    lines += [[Segment(" " * margin + "".join(part).rstrip(), role="faint")] for part in (ruler, numbers)]
    told = ", ".join(f"{marks[kind]} {words}" for kind, words in lanes.legend if kind in marks)
    lines += [[Segment(line)] for line in wrapped(told, width)]
    return lines + [[Segment(line, role="faint")] for note in lanes.notes for line in wrapped(note, width)]


def _table(table: Table, width: int) -> list[Line]:
    rows = [[clipped(cell, MOST_CELLS) for cell in row] for row in (table.head, *table.rows)]
    widths = [max(columns_of(row[column]) for row in rows) for column in range(len(table.head))]
    lines: list[Line] = [[Segment(line, role="name")] for line in wrapped(table.title, width)]
    for number, row in enumerate(rows):
        cells = (
            padded_to(cell, wide, ">" if column in table.numbers else "<")
            for column, (cell, wide) in enumerate(zip(row, widths, strict=True))
        )
        lines.append([Segment("  ".join(cells), role="" if number else "faint")])
    return lines + [[Segment(line, role="faint")] for note in table.notes for line in wrapped(note, width)]
