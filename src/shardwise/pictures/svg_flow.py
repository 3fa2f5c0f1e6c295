"""What moves, drawn as SVG: boards with arrows between them, and devices with wires from those before to those after."""

from __future__ import annotations

from typing import assert_never

from shardwise.pictures.picture import Arrow, Board, Card, Movement, Sign, Strip, Wire
from shardwise.pictures.svg_board import board
from shardwise.pictures.svg_pen import WIDE, Drawn, beside, element, label, measure, number, paragraph, stacked, titled
from shardwise.pictures.svg_style import LIGHT

NARROW, NARROWER = 300.0, 215.0  # a board within a strip of two, and of more
CARD = 420.0  # a board within a card
ROOM = 150.0  # between the cards before and after


def strip(drawn: Strip, prefix: str) -> Drawn:
    """Boards, signs and arrows in a row; what does not fit goes on below."""
    boards = sum(isinstance(item, Board) for item in drawn.items)
    sheet = boards == len(drawn.items)
    pieces = [_item(item, prefix, NARROW if boards < 3 or sheet else NARROWER) for item in drawn.items]
    between = 26 if sheet else 14
    lines: list[list[Drawn]] = [[]]
    for piece in pieces:
        used = sum(p.width + between for p in lines[-1])
        if lines[-1] and used + piece.width > WIDE + 60:
            lines.append([])
        lines[-1].append(piece)
    rows = [beside(line, between, middle=not sheet) for line in lines if line]
    title = [_title(drawn.title)] if drawn.title else []
    return stacked([*title, *rows], 22 if sheet else 12)


def _title(text: str) -> Drawn:
    return Drawn(measure(text, 13.5, most=100), 18, label(0, 13, text, size=13.5, look="b", most=100))


def _item(item: Board | Sign | Arrow, prefix: str, width: float) -> Drawn:
    match item:
        case Board():
            cells = board(item, prefix, width, named=False)
            name = Drawn(measure(item.name, 13, True), 17, label(0, 13, item.name, size=13, look="m b"))
            return stacked([name, cells], 4)
        case Sign(text):
            return Drawn(14, 24, label(7, 19, text, size=22, anchor="middle"))
        case Arrow(text, below, moves):
            return _arrow(text, below, moves, prefix)
        case _:
            assert_never(item)


def _arrow(text: str, below: str, moves: bool, prefix: str) -> Drawn:
    width = max(70.0, measure(text, 12, most=40) + 20, measure(below, 11, most=40) + 14)
    line = element(
        "path", d=f"M2 30H{number(width - 4)}", class_="wire", stroke_width=3.0 if moves else 1.4,
        marker_end=f"url(#{prefix}tip)",
    )  # fmt: skip
    words = label(width / 2, 19, text, size=12, anchor="middle", look="b" if moves else "", most=40)
    return Drawn(width, 52, words + line + label(width / 2, 47, below, size=11, anchor="middle", look="f", most=40))


# Devices before and after.


def movement(drawn: Movement, prefix: str) -> Drawn:
    """The devices before on the left, those after on the right, and a wire for everything that is sent."""
    left, right = ([_card(card, prefix) for card in cards] for cards in (drawn.before, drawn.after))
    wide_left, wide_right = (max((card.width for card in cards), default=0.0) for cards in (left, right))
    rows = max(len(left), len(right))
    heights = [max(cards[n].height if n < len(cards) else 0.0 for cards in (left, right)) for n in range(rows)]
    tops = [sum(heights[:n]) + 10 * n for n in range(rows)]
    start, end = wide_left + 6, wide_left + ROOM - 6
    body = []
    for cards, x, wide in ((left, 0.0, wide_left), (right, wide_left + ROOM, wide_right)):
        for card, top, height in zip(cards, tops, heights, strict=False):
            frame = element("rect", x=x, y=top, width=wide, height=height, rx=7.0, class_="card")
            body.append(frame + card.at(x, top + (height - card.height) / 2))
    for wire in drawn.wires:
        a, b = (tops[n] + heights[n] / 2 for n in (wire.source, wire.target))
        shift = _fanned(wire, drawn)
        body.append(_wire(wire, (start, a + shift[0]), (end, b + shift[1]), prefix))
    total = Drawn(wide_left + ROOM + wide_right, tops[-1] + heights[-1] if rows else 0.0, "".join(body))
    heads = label(0, 11, "before", size=11.5, look="f") + label(wide_left + ROOM, 11, "after", size=11.5, look="f")
    pieces = [_title(drawn.title)] if drawn.title else []
    notes = [paragraph(note, max(total.width, 420.0), 12) for note in drawn.notes]
    return stacked([*pieces, Drawn(total.width, 14, heads), total, *notes], 8)


def _fanned(wire: Wire, drawn: Movement) -> tuple[float, float]:
    """How far a wire leaves and arrives from the middle of its cards, so that wires do not lie on each other."""
    leaving = [w.target for w in drawn.wires if w.source == wire.source]
    arriving = [w.source for w in drawn.wires if w.target == wire.target]

    def offset(among: list[int], which: int) -> float:
        return (sorted(among).index(which) - (len(among) - 1) / 2) * min(7.0, 36.0 / max(len(among), 1))

    return offset(leaving, wire.target), offset(arriving, wire.source)


def _wire(wire: Wire, start: tuple[float, float], end: tuple[float, float], prefix: str) -> str:
    (x0, y0), (x1, y1) = start, end
    bend = (x1 - x0) * 0.45
    points = [(x0, y0), (x0 + bend, y0), (x1 - bend, y1), (x1, y1)]
    path = "M{} C{} {} {}".format(*(f"{number(x)} {number(y)}" for x, y in points))
    many = wire.tone is None or wire.tone.of > len(LIGHT)
    look = "wire" if wire.tone is None or many else f"w{wire.tone.index}"
    return element(
        "path", titled(wire.title), d=path, class_=look, stroke_width=1.8, marker_end=f"url(#{prefix}tip)",
        stroke_dasharray="5 3" if wire.adds else None, data_source=wire.source, data_target=wire.target,
    )  # fmt: skip


def _card(card: Card, prefix: str) -> Drawn:
    wide = measure(card.name, 12) + 8
    words = label(0, 12, card.name, size=12, look="b") + label(wide, 12, card.place, size=11, look="m f")
    name = Drawn(wide + measure(card.place, 11, True), 16, words)
    held = []
    for inner in card.boards:
        title = Drawn(measure(inner.name, 11, True), 14, label(0, 10, inner.name, size=11, look="m f"))
        held.append(stacked([title, board(inner, prefix, CARD, named=False, low=True)], 3))
    lacks = [paragraph(card.lacks, 220, 11, "f")] if card.lacks else []
    inside = stacked([name, beside(held, 16, middle=False), *lacks], 4)
    return Drawn(inside.width + 20, inside.height + 16, inside.at(10, 8))
