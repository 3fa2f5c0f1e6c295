"""Boards drawn as SVG: blocks with rims and marks, labels along the edges, and the legend of the marks that occur."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from shardwise.pictures.picture import Board, Box, Track, columns_of, left_out
from shardwise.pictures.svg_pen import MONO, WIDE, Drawn, element, label, measure, paragraph, stacked, titled
from shardwise.pictures.svg_style import SHADES, tone_class

HEAD, BODY, EDGE = 15.0, 11.0, 11.0  # sizes of letters
SMALLEST = 7.0  # letters that can be read
GAP, LEVEL, LEFT_OUT = 4.0, 16.0, 24.0  # between blocks; more for each level of nesting; the place of tracks left out
STACK = 3.5  # offset of each card of a stack


@dataclass(frozen=True, slots=True)
class Look:
    """The measures of one board: of its cells, of the letters in them (0 where none fit), of the cards of a stack."""

    width: float
    height: float
    gap: float
    head: float
    body: float
    aside: float
    stack: float


def board(drawn: Board, prefix: str, width: float = WIDE, named: bool = True, low: bool = False, told: bool = True) -> Drawn:
    """A board with its name, edges and notes.

    Args:
        prefix: of the names of patterns.
        width: that it may take.
        named: whether name and caption stand above it.
        low: whether its cells are as low as what is written in them, for one of many boards.
        told: whether a note says so where the cells are too small to be written in.
    """
    margin = _margin(drawn)
    look = _look(drawn, width - margin, low)
    xs = _places(drawn.columns, look.width, look.gap)
    ys = _places(drawn.rows, look.height, look.gap)
    top = _top(drawn)
    body = [*_edges(drawn, look, xs, ys, margin, top)]
    for box in drawn.boxes:
        body.append(_box(box, margin + xs[box.column], top + ys[box.row], look, prefix))
    extra = 2 * look.stack
    wide = margin + xs[-1] + _size(drawn.columns[-1], look.width) + extra
    high = top + ys[-1] + _size(drawn.rows[-1], look.height) + extra
    cells = Drawn(
        wide,
        high,
        element("g", "".join(body), data_array=drawn.name, data_rows=drawn.row_title, data_columns=drawn.column_title),
    )
    notes = [*drawn.notes, *filter(None, [left_out(drawn)])]
    if told and not look.head and not look.body and drawn.boxes:
        notes.append("point at a block to read its devices and slices")
    room = max(wide, min(width, 380.0))
    pieces = [_name(drawn, max(wide, width if named else 0.0))] if named else []
    return stacked([*pieces, cells, *(paragraph(note, room, 11.5) for note in notes)], 6)


def _name(drawn: Board, width: float) -> Drawn:
    name = label(0, 15, drawn.name, size=15, look="m b")
    caption = paragraph(drawn.caption, width, 12.5)
    return stacked([Drawn(measure(drawn.name, 15, True), 20, name), caption], 2)


def _look(drawn: Board, width: float, low: bool) -> Look:
    """The largest cells that fit: with all that is to be written, then with less and smaller, then with none."""
    stack = STACK if any(box.copies > 1 for box in drawn.boxes) else 0.0
    for aside in (BODY, 0.0):
        wide = max([46.0, *(_wide(box, bool(aside)) for box in drawn.boxes)])
        gap = GAP + 2 * stack
        lines = max((len(box.body) + bool(aside and box.aside) - (not box.head) for box in drawn.boxes), default=0)
        if _places(drawn.columns, wide, gap)[-1] + wide <= width or (not aside and len(drawn.columns) == 1):
            high = 24 + 14.5 * lines if low else max(36.0, 28 + 14.5 * lines)
            return Look(wide, high, gap / 2 if low and not stack else gap, HEAD, BODY, aside, stack)
    return _tight(drawn, width, stack)


def _tight(drawn: Board, width: float, stack: float) -> Look:
    """Cells as wide as there is room, with letters as small as that asks for."""
    count = len(drawn.columns)
    stack = min(stack, width / count * 0.1)
    gap = (1.5 if count > 24 else 3.0) + 2 * stack
    cell = max((width - _places(drawn.columns, 0.0, gap)[-1]) / count, 5.0)
    heads = max((columns_of(box.head) for box in drawn.boxes), default=0)
    bodies = [columns_of(line) for box in drawn.boxes for line in box.body]
    body = min(BODY, (cell - 6) / max(bodies) / MONO) if bodies else 0.0
    body = body if body >= SMALLEST else 0.0
    if not body:
        cell = min(cell, 44.0)
    head = min(HEAD, (cell - 4) / heads / MONO) if heads else 0.0
    head = head if head >= SMALLEST else 0.0
    lines = max((len(box.body) for box in drawn.boxes), default=0) if body else 0
    return Look(cell, max(min(cell, 30.0) if not body else 12 + 1.3 * (head + body * lines), 9.0), gap, head, body, 0.0, stack)


def _wide(box: Box, aside: bool) -> float:
    lines = [(box.head, HEAD), *((line, BODY) for line in box.body), *([(box.aside, BODY)] if aside else [])]
    return max(measure(text, size, True, 28) for text, size in lines) + 18


def _size(track: Track, cell: float) -> float:
    return LEFT_OUT if track.left_out else cell


def _places(tracks: Sequence[Track], cell: float, gap: float) -> list[float]:
    """Where each track begins."""
    places, at = [], 0.0
    for number, track in enumerate(tracks):
        if number:
            at += _size(tracks[number - 1], cell) + gap + (LEVEL * track.gap if track.gap else 0)
        places.append(at)
    return places


# Edges: titles of the dimensions, headers of the outer ones, labels of the tracks.


def _margin(drawn: Board) -> float:
    labels = max((measure(track.label, EDGE, True, 16) for track in drawn.rows), default=0.0)
    headers = max((measure(track.header, EDGE, True, 18) for track in drawn.rows), default=0.0)
    title = measure(drawn.row_title, EDGE, True, 18) if drawn.row_title and labels else 0.0
    inner = max(labels, title if not headers else 0.0)
    return (inner + 10 if inner else 0.0) + (max(headers, title) + 12 if headers else 0.0)


def _top(drawn: Board) -> float:
    rows = sum(any(getattr(track, kind) for track in drawn.columns) for kind in ("header", "label"))
    return 16.0 * (rows + bool(drawn.column_title or (drawn.row_title and _margin(drawn)))) + (
        4 if rows or drawn.row_title else 0
    )


def _edges(drawn: Board, look: Look, xs: Sequence[float], ys: Sequence[float], margin: float, top: float) -> Iterator[str]:
    small = {"size": EDGE, "look": "m f"}
    if drawn.row_title and margin:
        yield label(0, 11, drawn.row_title + " ↓", most=18, size=EDGE, look="m b")
    if drawn.column_title:
        left = measure(drawn.row_title + " ↓", EDGE, True, 18) + 10 if drawn.row_title and margin else 0.0
        yield label(max(margin, left), 11, drawn.column_title + " →", most=40, size=EDGE, look="m b")
    longest = max((measure(t.label, EDGE, True, 16) for t in drawn.columns), default=0.0)
    over = max(longest - look.width, 0.0) / 2  # by which the last one is moved, not to leave the picture
    for at in _spread(drawn.columns, xs, longest + 6, over):
        x, anchor = margin + xs[at] + look.width / 2, "middle"
        if over and at == len(xs) - 1:
            x, anchor = x + look.width / 2, "end"
        yield label(x, top - 6, drawn.columns[at].label, anchor=anchor, most=16, **small)
    for track, x in zip(drawn.columns, xs, strict=True):
        if track.header:
            yield label(margin + x, top - 22, track.header, most=24, size=EDGE, look="m b f")
        if track.left_out:
            yield label(margin + x + LEFT_OUT / 2, top + ys[-1] / 2 + look.height / 2 + 4, "⋯", anchor="middle", size=16)
    for at in _spread(drawn.rows, ys, 13.0):
        y = top + ys[at] + look.height / 2 + 4
        yield label(margin - 8, y, drawn.rows[at].label, anchor="end", most=16, **small)
    for track, y in zip(drawn.rows, ys, strict=True):
        if track.header:
            yield label(0, top + y + look.height / 2 + 4, track.header, most=18, size=EDGE, look="m b f")
        if track.left_out:
            yield label(margin + xs[-1] / 2 + look.width / 2, top + y + LEFT_OUT / 2 + 6, "⋮", anchor="middle", size=16)


def _spread(tracks: Sequence[Track], places: Sequence[float], need: float, moved: float = 0.0) -> Iterator[int]:
    """The tracks whose labels have room, evenly; the last one's label is moved so far to the front."""
    last = -math.inf
    for number, (track, at) in enumerate(zip(tracks, places, strict=True)):
        if track.label and at - (moved if number == len(tracks) - 1 else 0) - last >= need:
            yield number
            last = at


# Boxes.


def _box(box: Box, x: float, y: float, look: Look, prefix: str) -> str:
    kind = tone_class(box.tone)
    small = look.width < 24
    marks = (("sum", box.partial_sums > 1), ("tiny", small), ("many", box.copies > 1))
    rims = " ".join((f"box {kind}", *(mark for mark, is_set in marks if is_set)))
    shape = {"width": look.width, "height": look.height, "rx": None if small else 5.0}
    body = []
    if look.stack and box.copies > 1:
        for card in (2, 1):
            body.append(element("rect", x=x + card * look.stack, y=y + card * look.stack, class_=rims, **shape))
    body.append(element("rect", x=x, y=y, class_=rims, **shape))
    body += _padding(box, x, y, look, prefix)
    body += _texts(box, x, y, look, kind)
    facts = {f"data_{name}": value or "-" for name, value in box.facts}
    return element("g", titled(box.title) + "".join(body), **facts)


def _padding(box: Box, x: float, y: float, look: Look, prefix: str) -> Iterator[str]:
    down, across = box.padding
    filled = {"fill": f"url(#{prefix}pad)", "class_": "hatch"}
    if down:
        yield element("rect", x=x, y=y + look.height * (1 - down), width=look.width, height=look.height * down, **filled)
    if across:
        high = look.height * (1 - down)
        if high:
            yield element("rect", x=x + look.width * (1 - across), y=y, width=look.width * across, height=high, **filled)


def _texts(box: Box, x: float, y: float, look: Look, kind: str) -> Iterator[str]:
    wanted = [(box.head, look.head, "m b"), *((line, look.body, "m") for line in box.body), (box.aside, look.aside, "m f")]
    lines = [(text, size, style) for text, size, style in wanted if text and size]
    ink = f" si{kind[1:]}" if kind.startswith("s") else ""
    high = sum(size * 1.3 for _, size, _ in lines)
    at = y + (look.height - high) / 2
    for text, size, style in lines:
        at += size * 1.3
        shade = style.replace(" f", "") + ink if ink else style
        yield label(x + look.width / 2, at - size * 0.3, text, size=size, anchor="middle", look=shade, most=28)


def legend(boards: Iterable[Board], prefix: str) -> Drawn:
    """What the marks mean, of those that occur."""
    boxes = [box for drawn in boards for box in drawn.boxes]
    look = Look(26.0, 16.0, 0, 0, 0, 0, STACK)
    samples = []
    if any(box.copies > 1 for box in boxes):
        samples.append((Box(0, 0, "", copies=2), "copies: each of the devices holds the same"))
    if any(box.partial_sums > 1 for box in boxes):
        samples.append((Box(0, 0, "", partial_sums=2), "partial sums (0+1): the value is the sum of what the devices hold"))
    if any(any(box.padding) for box in boxes):
        samples.append((Box(0, 0, "", padding=(1.0, 0.0)), "padding: zeros that fill up the shard"))
    pieces = [
        Drawn(
            36 + measure(words, 11.5, most=90),
            24,
            _box(box, 1, 3, look, prefix) + label(40, 16, words, size=11.5, look="f", most=90),
        )
        for box, words in samples
    ]
    most = max((box.tone.of for box in boxes if box.tone), default=0)
    if most > 8:
        ramp = "".join(element("rect", x=14.0 * n + 1, y=4.0, width=14.0, height=14.0, class_=f"s{n}") for n in range(SHADES))
        words = "shade: blocks by their lowest device number"
        pieces.append(Drawn(200 + measure(words, 11.5), 24, ramp + label(14 * SHADES + 10, 16, words, size=11.5, look="f")))
    return stacked(pieces)
