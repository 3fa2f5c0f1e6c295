"""The renderer of SVG: one picture as one self-contained, scalable, accessible text."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any, assert_never
from xml.sax.saxutils import escape

from shardwise.errors import one_line
from shardwise.pictures.picture import Board, Lanes, Movement, Part, Picture, Stage, Strip, Table, Words, picture_of
from shardwise.pictures.svg_board import board, legend
from shardwise.pictures.svg_chart import lanes, table, words
from shardwise.pictures.svg_flow import movement, strip
from shardwise.pictures.svg_pen import Drawn, element, label, number, stacked, titled
from shardwise.pictures.svg_stage import stages
from shardwise.pictures.svg_style import patterns, style

MARGIN = 18.0


def shown_as_svg(shown: Any) -> str:
    """What `_repr_svg_` gives."""
    return svg(picture_of(shown))


def svg(picture: Picture, *, heading: bool | None = None) -> str:
    """A picture as SVG; it is as wide as its page allows, has light and dark looks, and names everything it shows.

    >>> from shardwise.pictures.picture import Words
    >>> text = svg(Picture("A <b>", "words alone", (Words(("hello",)),)))
    >>> text.startswith("<svg"), "<b>" in text, "A &lt;b&gt;" in text
    (True, False, True)

    Args:
        heading: whether the title is drawn above; by default where it does not name a lone board.
    """
    prefix = f"s{zlib.crc32(repr(picture).encode('utf-8', 'replace')):08x}-"
    lone = len(picture.parts) == 1 and isinstance(picture.parts[0], Board)
    pieces = [_heading(picture.title)] if (not lone if heading is None else heading) else []
    pieces += [drawn(part, prefix) for part in picture.parts]
    marks = legend(boards_of(picture), prefix)
    content = stacked([*pieces, *([marks] if marks.height else [])], 16)
    return _document(picture, content, prefix)


def drawn(part: Part, prefix: str) -> Drawn:
    """One part of a picture."""
    match part:
        case Board():
            return board(part, prefix)
        case Strip():
            return strip(part, prefix)
        case Movement():
            return movement(part, prefix)
        case Stage():
            return stages((part,), prefix)[0]
        case Lanes():
            return lanes(part, prefix)
        case Table():
            return table(part)
        case Words():
            return words(part)
        case _:
            assert_never(part)


def figure(content: Drawn, name: str, title: str, description: str, least: float = 0.0, scale: float = 1.0) -> str:
    """A drawn piece for a page that holds style, patterns and tips once (`shared`).

    Args:
        name: of its own on the page.
        least: the width below which it is not made smaller, to stay readable: the page lets it scroll.
        scale: by which it is drawn larger where there is room.
    """
    width, height = content.width + 4, content.height + 4
    told = titled(title).replace("<title>", f'<title id="{name}">')
    told += f'<desc id="{name}d">{escape(one_line(description)) or " "}</desc>'
    fitted = f"max-width:{number(width * scale)}px;min-width:{number(min(width, least))}px;width:100%;height:auto"
    return element(
        "svg", told + content.at(2, 2), class_="shardwise", role="img", viewBox=f"0 0 {number(width)} {number(height)}",
        width=width * scale, height=height * scale, aria_labelledby=f"{name} {name}d", style=fitted,
    )  # fmt: skip


def shared(prefix: str) -> str:
    """What all figures of a page need once: patterns and tips, under names with a prefix."""
    defs = f"<defs>{patterns(prefix)}{_tips(prefix)}</defs>"
    return f'<svg class="shardwise" width="0" height="0" aria-hidden="true" focusable="false">{defs}</svg>'


def boards_of(picture: Picture) -> Iterator[Board]:
    """Every board of a picture."""
    for part in picture.parts:
        match part:
            case Board():
                yield part
            case Strip():
                yield from (item for item in part.items if isinstance(item, Board))
            case Movement():
                yield from (board for card in (*part.before, *part.after) for board in card.boards)
            case Stage():
                yield from (board for card in part.cards for board in card.boards)
            case Lanes() | Table() | Words():
                pass
            case _:
                assert_never(part)


def _heading(title: str) -> Drawn:
    return Drawn(200, 20, label(0, 16, title, size=16, look="b", most=90))


def _document(picture: Picture, content: Drawn, prefix: str) -> str:
    width, height = content.width + 2 * MARGIN, content.height + 2 * MARGIN
    name, told = f"{prefix}title", f"{prefix}desc"
    head = titled(picture.title).replace("<title>", f'<title id="{name}">')
    head += element("desc", titled(picture.description).removeprefix("<title>").removesuffix("</title>") or " ", id=told)
    body = (
        f"<defs>{element('style', style())}{patterns(prefix)}{_tips(prefix)}</defs>"
        + element("rect", width=width, height=height, rx=8.0, class_="page")
        + content.at(MARGIN, MARGIN)
    )
    return element(
        "svg", head + body, xmlns="http://www.w3.org/2000/svg", class_="shardwise", role="img",
        viewBox=f"0 0 {number(width)} {number(height)}", width=width, height=height, aria_labelledby=f"{name} {told}",
        style="max-width:100%;height:auto",
    )  # fmt: skip


def _tips(prefix: str) -> str:
    tip = element("path", d="M0 0L8 4L0 8z", class_="tip")
    return element(
        "marker", tip, id=f"{prefix}tip", markerWidth=8, markerHeight=8, refX=7, refY=4, orient="auto",
        markerUnits="userSpaceOnUse",
    )  # fmt: skip
