"""Devices at one moment, drawn as SVG: cards in rows, and wires that lead from card to card around and below them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from shardwise.pictures.picture import Card, Stage, Wire
from shardwise.pictures.svg_board import board
from shardwise.pictures.svg_pen import Drawn, element, label, measure, number, paragraph, stacked, titled
from shardwise.pictures.svg_style import LIGHT

ROOM = 720.0  # for the cards of one row
BETWEEN, AROUND = 34.0, 30.0  # cards in a row; above, between and below rows, where wires bend
PAD = 10.0
SWATCH = 14.0  # a block in which nothing is written
CROWD = 24  # wires that are drawn thick


@dataclass(frozen=True, slots=True)
class _Grid:
    """Where the cards stand at one moment: all as wide in all moments, each row as high as its highest card.

    `bend` is the room for wires around them.
    """

    columns: int
    wide: float
    bend: float
    highs: tuple[float, ...]

    def corner(self, place: int) -> tuple[float, float]:
        row, column = divmod(place, self.columns)
        return self.bend + column * (self.wide + BETWEEN), self.bend + sum(self.highs[:row]) + row * AROUND

    def middle(self, place: int) -> tuple[float, float]:
        x, y = self.corner(place)
        return x + self.wide / 2, y + self.highs[place // self.columns] / 2

    @property
    def extent(self) -> tuple[float, float]:
        wide = self.columns * (self.wide + BETWEEN) - BETWEEN
        return wide + 2 * self.bend, sum(self.highs) + (len(self.highs) - 1) * AROUND + 2 * self.bend


def stages(drawn: Sequence[Stage], prefix: str) -> list[Drawn]:
    """Moments of the same devices in columns that are as wide in all of them; each moment is as high as what it holds."""
    room = max(ROOM / max(stage.columns for stage in drawn) - BETWEEN, 130.0) - 2 * PAD
    held = [[_held(card, prefix, room) for card in stage.cards] for stage in drawn]
    columns = drawn[0].columns
    wide = max((card.width for cards in held for card in cards), default=0.0)
    bend = AROUND + 4 if any(stage.wires for stage in drawn) else 2.0
    return [
        _stage(stage, cards, _Grid(columns, wide, bend, _highs(cards, columns)), prefix)
        for stage, cards in zip(drawn, held, strict=True)
    ]


def _highs(cards: Sequence[Drawn], columns: int) -> tuple[float, ...]:
    return tuple(max(card.height for card in cards[first : first + columns]) for first in range(0, len(cards), columns))


def _stage(stage: Stage, held: Sequence[Drawn], grid: _Grid, prefix: str) -> Drawn:
    """One moment: cards are as high as the highest of their row."""
    wires = "".join(_wire(wire, grid, prefix) for wire in stage.wires)
    cards = []
    for place, inside in enumerate(held):
        x, y = grid.corner(place)
        high = grid.highs[place // grid.columns]
        frame = element("rect", x=x, y=y, width=grid.wide, height=high, rx=8.0, class_="device")
        cards.append(element("g", titled(stage.cards[place].name) + frame + inside.at(x, y), data_card=place))
    crowd = {"stroke_width": 1.2, "opacity": 0.7} if len(stage.wires) > CROWD else {"stroke_width": 1.8}
    body = (element("g", wires, class_="wires", **crowd) if wires else "") + "".join(cards)
    wide, high = grid.extent
    notes = [paragraph(note, max(wide, 300.0), 12) for note in stage.notes]
    title = [Drawn(measure(stage.title, 13.5, most=100), 18, label(0, 13, stage.title, size=13.5, look="b", most=100))]
    return stacked([*(title if stage.title else []), Drawn(wide, high, body), *notes], 6)


def _held(card: Card, prefix: str, room: float) -> Drawn:
    """What stands in a card: the device, its place, and the boards of what it holds, below each other."""
    name = Drawn(measure(card.name, 12), 16, label(0, 12, card.name, size=12, look="b"))
    place = [Drawn(measure(card.place, 10.5, True), 13, label(0, 9, card.place, size=10.5, look="m f"))] if card.place else []
    lines = [name, *place]
    for inner in card.boards:
        title = Drawn(measure(inner.name, 11, True), 14, label(0, 10, inner.name, size=11, look="m"))
        plain = replace(inner, boxes=tuple(replace(box, facts=()) for box in inner.boxes))  # each card names its device
        written = any(box.head or box.body for box in inner.boxes)
        width = room if written else min(room, SWATCH * len(inner.columns))
        lines.append(stacked([title, board(plain, prefix, width, named=False, low=True, told=False)], 2))
    lines += [paragraph(card.lacks, room, 11)] if card.lacks else []
    inside = stacked(lines, 5)
    return Drawn(inside.width + 2 * PAD, inside.height + 2 * PAD, inside.at(PAD, PAD))


def _wire(wire: Wire, grid: _Grid, prefix: str) -> str:
    look = f"w{wire.tone.index}" if wire.tone is not None and wire.tone.of <= len(LIGHT) else "wire"
    return element(
        "path", titled(wire.title), d=_path(wire, grid), class_=look, marker_end=f"url(#{prefix}tip)",
        stroke_dasharray="5 3" if wire.adds else None, data_source=wire.source, data_target=wire.target,
    )  # fmt: skip


def _path(wire: Wire, grid: _Grid) -> str:
    """Around the cards between two of one row (there above, back below) or column (right, left); below them otherwise."""
    (row, column), (to_row, to_column) = (divmod(place, grid.columns) for place in (wire.source, wire.target))
    x, y = grid.middle(wire.source)
    to_x, to_y = grid.middle(wire.target)
    if row == to_row:
        way = 1 if to_column > column else -1
        far, half = abs(to_column - column), grid.highs[row] / 2
        bow = min(8.0 + 9.0 * far, AROUND) * 1.2
        shift = way * min(grid.wide * 0.1, 12.0) * (4 - min(far, 3))  # far ones outside, so that no two cross at a card
        y -= way * half
        return _bent((x + shift * 0.8, y), (0.0, -way * bow), (to_x - shift * 0.8, y))
    if column == to_column:
        way, far = (1 if to_row > row else -1), abs(to_row - row)
        bow = min(6.0 + 9.0 * far, BETWEEN) * 1.2
        shift = way * 7.0 * (4 - min(far, 3))
        x += way * grid.wide / 2
        return _bent((x, y + shift), (way * bow, 0.0), (x, to_y - shift))
    way = 1 if to_column > column else -1
    ends = (x + way * grid.wide / 2, y), (to_x - way * grid.wide / 2, to_y)
    bend = (ends[1][0] - ends[0][0]) * 0.5
    return _curve(ends[0], (ends[0][0] + bend, y), (ends[1][0] - bend, to_y), ends[1])


def _bent(start: tuple[float, float], by: tuple[float, float], end: tuple[float, float]) -> str:
    return _curve(start, (start[0] + by[0], start[1] + by[1]), (end[0] + by[0], end[1] + by[1]), end)


def _curve(*points: tuple[float, float]) -> str:
    return "M{} C{} {} {}".format(*(f"{number(x)} {number(y)}" for x, y in points))
