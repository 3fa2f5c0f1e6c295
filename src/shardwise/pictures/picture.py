"""The neutral picture: boards of boxes, signs and arrows, wires between devices, lanes, tables. What it shows is settled
here; a renderer (`text`, `svg`, `page`) only draws it, and every renderer draws every part."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass, replace
from typing import Any

from shardwise import views
from shardwise.errors import one_line


@dataclass(frozen=True, slots=True)
class Tone:
    """What the colour of a box stands for: one of so many things, by number."""

    index: int
    of: int


@dataclass(frozen=True, slots=True)
class Box:
    """One block of a board, in the row and column of its tracks.

    Attributes:
        head: what is read first, as the devices `0`, `0,1` (copies) or `0+1` (partial sums).
        body: smaller lines below.
        aside: what is added where there is room, as the place in the mesh.
        copies: how many devices hold the same; drawn as a stack.
        partial_sums: how many devices hold one partial sum each; drawn with a dashed rim.
        padding: the shares of its height and width, at the end, that only fill up; drawn hatched.
        title: everything in words, for pointers and screen readers.
        facts: names and values for programs that read the picture (`data-` attributes of an SVG).
    """

    row: int
    column: int
    head: str
    body: tuple[str, ...] = ()
    aside: str = ""
    tone: Tone | None = None
    copies: int = 1
    partial_sums: int = 1
    padding: tuple[float, float] = (0.0, 0.0)
    title: str = ""
    facts: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Track:
    """A row or column of a board: its label, the header that begins there, the gap before it (the level of nesting that
    ends), and, where it stands for tracks that are not drawn, how many."""

    label: str = ""
    header: str = ""
    gap: int = 0
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class Board:
    """Boxes in rows and columns: an array cut into blocks, or what one device holds."""

    name: str
    caption: str
    rows: tuple[Track, ...]
    columns: tuple[Track, ...]
    boxes: tuple[Box, ...]
    row_title: str = ""
    column_title: str = ""
    notes: tuple[str, ...] = ()
    labelled: bool = True  # whether plain text needs the labels of the tracks, or a table below says the same


@dataclass(frozen=True, slots=True)
class Sign:
    """A character between boards: `·`, `+`, `=`."""

    text: str


@dataclass(frozen=True, slots=True)
class Arrow:
    """What leads from the boards before it to those behind it: what is done, and what it costs."""

    text: str
    below: str = ""
    moves: bool = True  # a transfer; what is done in place has a thin arrow


@dataclass(frozen=True, slots=True)
class Strip:
    """Boards, signs and arrows side by side."""

    title: str
    items: tuple[Board | Sign | Arrow, ...]


@dataclass(frozen=True, slots=True)
class Wire:
    """What one device sends to another: from the `source`-th card on the left to the `target`-th on the right."""

    source: int
    target: int
    tone: Tone | None
    adds: bool = False  # summed where it arrives; drawn dashed
    title: str = ""


@dataclass(frozen=True, slots=True)
class Card:
    """A device with the boards of what it holds; `place` is where it stands in the mesh."""

    name: str
    boards: tuple[Board, ...]
    place: str = ""
    lacks: str = ""  # what it would need and has not


@dataclass(frozen=True, slots=True)
class Movement:
    """Devices before and after a step, and what moves between them; a page folds it away unless it is `open`."""

    title: str
    before: tuple[Card, ...]
    after: tuple[Card, ...]
    wires: tuple[Wire, ...]
    notes: tuple[str, ...] = ()
    open: bool = False


@dataclass(frozen=True, slots=True)
class Stage:
    """Devices at one moment, so many in a row, and what is on its way between them: wires lead from card to card."""

    title: str
    columns: int
    cards: tuple[Card, ...]
    wires: tuple[Wire, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Bar:
    """Something on a lane, from and to as shares of the whole width; `kind` is one of the legend's."""

    start: float
    end: float
    kind: str
    title: str = ""
    exposed: bool = False


@dataclass(frozen=True, slots=True)
class Lane:
    """One row of a chart in time."""

    name: str
    bars: tuple[Bar, ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Lanes:
    """What runs when: lanes over one scale, whose ticks are shares of the width with a text each."""

    title: str
    lanes: tuple[Lane, ...]
    ticks: tuple[tuple[float, str], ...]
    legend: tuple[tuple[str, str], ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under a head; columns in `numbers` are aligned to the right."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: frozenset[int] = frozenset()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Words:
    """Lines of text, under a heading if there is one; `code` keeps blanks as they are."""

    lines: tuple[str, ...]
    code: bool = False
    title: str = ""


Part = Board | Strip | Movement | Stage | Lanes | Table | Words


@dataclass(frozen=True, slots=True)
class Picture:
    """Parts below each other, with a title, and a description for those who cannot see it; prints and draws itself."""

    title: str
    description: str
    parts: tuple[Part, ...]

    __str__ = views.text
    _repr_svg_ = views.svg
    _repr_html_ = views.html


def picture_of(shown: Any) -> Picture:
    """The neutral picture of a value; of one that has none its text."""
    return shown if isinstance(shown, Picture) else views.view(shown, "picture")


def words_of(shown: Any) -> Picture:
    """The text of a value as a picture."""
    lines = tuple(str(shown).split("\n"))
    return Picture(type(shown).__name__, lines[0], (Words(lines, code=True),))


def left_out(board: Board) -> str:
    """What a board does not draw, in words; nothing where it draws all."""
    said = []
    for tracks, word in ((board.rows, "rows"), (board.columns, "columns")):
        missing = sum(track.left_out for track in tracks)
        if missing:
            said.append(f"{missing:,} of {missing + sum(not track.left_out for track in tracks):,} {word}")
    return f"not drawn: {' and '.join(said)} of blocks" if said else ""


def thinned(board: Board, most_rows: int, most_columns: int) -> Board:
    """A board of at most so many rows and columns: the first ones and the last are kept, the others counted."""
    rows, columns = _kept(board.rows, max(most_rows, 3)), _kept(board.columns, max(most_columns, 3))
    down = {old: new for new, (old, _) in enumerate(rows)}
    across = {old: new for new, (old, _) in enumerate(columns)}
    boxes = tuple(
        replace(box, row=down[box.row], column=across[box.column])
        for box in board.boxes
        if box.row in down and box.column in across
    )
    return replace(
        board,
        rows=tuple(track for _, track in rows),
        columns=tuple(track for _, track in columns),
        boxes=boxes,
        labelled=board.labelled or len(boxes) < len(board.boxes),
    )


def _kept(tracks: tuple[Track, ...], most: int) -> list[tuple[int, Track]]:
    """The tracks that stay, each with the number that it had; the one that stands for others has that of none."""
    numbered = list(enumerate(tracks))
    if len(tracks) <= most:
        return numbered
    missing = sum(track.left_out or 1 for track in tracks[most - 2 : -1])
    return [*numbered[: most - 2], (-1, Track(left_out=missing)), numbered[-1]]


def columns_of(text: str) -> int:
    """How many columns of a terminal a text takes: wide characters two, combining ones none.

    >>> columns_of("Axis"), columns_of("軸")
    (4, 2)
    """
    return sum(_columns(character) for character in text)


def _columns(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def clipped(text: str, width: int) -> str:
    """A text on one line, in at most so many columns; what is cut off leaves an ellipsis.

    >>> clipped("embedding", 5), clipped("A\\nB", 5)
    ('embe…', 'A B')
    """
    line = one_line(text)
    if columns_of(line) <= width:
        return line
    kept, used = "", 0
    for character in line:
        used += _columns(character)
        if used > max(width - 1, 0):
            break
        kept += character
    return kept + "…"


def wrapped(text: str, width: int) -> list[str]:
    """A text in lines of at most so many columns, as they are seen; a word that is longer is broken.

    >>> wrapped("to be or not", 5), wrapped("embedding", 5)
    (['to be', 'or', 'not'], ['embed', 'ding'])
    """
    lines: list[str] = []
    for word in one_line(text).split():
        if lines and columns_of(lines[-1]) + 1 + columns_of(word) <= width:
            lines[-1] += " " + word
            continue
        lines.append("")
        for character in word:
            if lines[-1] and columns_of(lines[-1]) + _columns(character) > width:
                lines.append("")
            lines[-1] += character
    return lines


def padded_to(text: str, width: int, align: str = "<") -> str:
    """A text filled up with blanks to so many columns, as they are seen: `<` left, `>` right, `^` centred."""
    spare = max(width - columns_of(text), 0)
    left = {"<": 0, ">": spare, "^": spare // 2}[align]
    return " " * left + text + " " * (spare - left)
