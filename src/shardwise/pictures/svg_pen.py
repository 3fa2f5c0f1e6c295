"""What every part of an SVG is drawn with: elements that are escaped, texts that are measured and clipped."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from xml.sax.saxutils import escape, quoteattr

from shardwise.errors import one_line
from shardwise.pictures.picture import clipped, columns_of, wrapped

WIDE = 760.0  # of a picture, in its own units, which are pixels at most
MONO = 0.61  # the width of a character as a share of its size
SANS = 0.56
MOST_NAME = 60  # characters of a name that are drawn; the whole stands in its title


@dataclass(frozen=True, slots=True)
class Drawn:
    """A piece of a picture with its extent; its upper left corner is at 0, 0."""

    width: float
    height: float
    body: str

    def at(self, x: float, y: float) -> str:
        return f'<g transform="translate({number(x)} {number(y)})">{self.body}</g>' if x or y else self.body


def number(value: float) -> str:
    """A coordinate with at most one decimal.

    >>> number(12.0), number(3.25)
    ('12', '3.2')
    """
    return f"{value:.1f}".removesuffix(".0")


def element(name: str, content: str = "", /, **attributes: object) -> str:
    """An element; `_` in the name of an attribute is written `-`, and what is None or empty is left out."""
    said = "".join(
        f" {key.rstrip('_').replace('_', '-')}={quoteattr(number(value) if isinstance(value, float) else one_line(str(value)))}"
        for key, value in attributes.items()
        if value is not None and value != ""
    )
    return f"<{name}{said}>{content}</{name}>" if content else f"<{name}{said}/>"


def titled(text: str) -> str:
    """What a pointer over an element, or a screen reader, is told."""
    return f"<title>{escape(one_line(text))}</title>" if text else ""


def isolated(text: str, before: str = '<tspan unicode-bidi="isolate">', behind: str = "</tspan>") -> str:
    """An escaped text in which names that are written from right to left turn nothing around them.

    >>> isolated("A<[I]"), isolated("\u05e9[I]", "<bdi>", "</bdi>")
    ('A&lt;[I]', '<bdi>\u05e9</bdi>[I]')
    """
    return "".join(
        f"{before}{escape(run)}{behind}" if turned else escape(run)
        for turned, run in ((turned, "".join(run)) for turned, run in groupby(text, _turns))
    )


def _turns(character: str) -> bool:
    return unicodedata.bidirectional(character) in ("R", "AL")


def label(
    x: float, y: float, text: str, *, size: float = 13, anchor: str = "start", look: str = "", most: int = MOST_NAME
) -> str:
    """A line of text; a longer one is cut, and the whole of it is its title."""
    shown = clipped(text, most)
    content = (titled(text) if shown != one_line(text) else "") + isolated(shown)
    where = None if anchor == "start" else anchor
    kept = {"xml:space": "preserve"} if "  " in shown or shown.startswith(" ") else {}  # columns of numbers stay columns
    return element("text", content, x=float(x), y=float(y), font_size=float(size), text_anchor=where, class_=look, **kept)


def measure(text: str, size: float, mono: bool = False, most: int = MOST_NAME) -> float:
    """About how wide a text is drawn."""
    return columns_of(clipped(text, most)) * size * (MONO if mono else SANS)


def stacked(pieces: Iterable[Drawn], gap: float = 0.0) -> Drawn:
    """Pieces below each other."""
    y, width, body = 0.0, 0.0, []
    for piece in pieces:
        body.append(piece.at(0, y))
        y += piece.height + gap
        width = max(width, piece.width)
    return Drawn(width, max(y - gap, 0.0), "".join(body))


def beside(pieces: Iterable[Drawn], gap: float = 0.0, middle: bool = True) -> Drawn:
    """Pieces side by side, centred on one line or with their tops on one."""
    listed = list(pieces)
    height = max((piece.height for piece in listed), default=0.0)
    x, body = 0.0, []
    for piece in listed:
        body.append(piece.at(x, (height - piece.height) / 2 if middle else 0))
        x += piece.width + gap
    return Drawn(max(x - gap, 0.0), height, "".join(body))


def paragraph(text: str, width: float = WIDE, size: float = 12.5, look: str = "f") -> Drawn:
    """Lines of text, wrapped."""
    lines = wrapped(text, max(int(min(width, WIDE) / size / SANS), 8))
    body = "".join(label(0, size * 1.35 * (n + 0.8), line, size=size, look=look, most=400) for n, line in enumerate(lines))
    return Drawn(max((measure(line, size, most=400) for line in lines), default=0.0), size * 1.35 * len(lines), body)
