"""The renderer of HTML: words and tables as themselves, all else as SVG. It needs Jinja2, of the extra `show`."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
from collections.abc import Iterator
from typing import Any, assert_never

from shardwise.errors import MeshError, MissingExtraError, one_line
from shardwise.pictures.picture import Board, Lanes, Movement, Part, Picture, Stage, Strip, Table, Words, picture_of
from shardwise.pictures.svg import svg
from shardwise.pictures.svg_pen import isolated


def page(picture: Picture) -> str:
    """A picture as a whole page, which needs no other file and no network.

    Raises:
        MissingExtraError: Jinja2 is not installed.
    """
    return template("page.html.j2").render(picture=_shown(picture), fragment=safe(fragment(picture, level=1)))


def fragment(picture: Picture, level: int = 2) -> str:
    """A picture as a piece of a page, under a heading of this level.

    Raises:
        MissingExtraError: Jinja2 is not installed.
    """
    parts = [_part(part, picture) for part in picture.parts]
    return template("picture.html.j2").render(picture=_shown(picture), parts=parts, level=level)


def notebook(shown: Any) -> str | None:
    """What `_repr_html_` gives: the fragment, or None, so that a notebook takes the SVG or the text: without Jinja2, and of
    more devices than a picture shows."""
    if importlib.util.find_spec("jinja2") is None:
        return None
    try:
        return fragment(picture_of(shown))
    except MeshError:
        return None


def _shown(picture: Picture) -> dict[str, str]:
    return {"title": one_line(picture.title), "description": one_line(picture.description)}


def _part(part: Part, picture: Picture) -> dict[str, Any]:
    match part:
        case Words(lines, code, title):
            return {"kind": "words", "lines": list(map(one_line, lines)), "code": code, "title": one_line(title)}
        case Table(title, head, rows, numbers, notes):
            cells = [list(map(one_line, row)) for row in rows]
            told = {"title": one_line(title), "head": list(map(one_line, head)), "notes": list(map(one_line, notes))}
            return {"kind": "table", "rows": cells, "numbers": numbers, **told}
        case Board() | Strip() | Movement() | Stage() | Lanes():
            folded = isinstance(part, Movement) and not part.open
            title = part.name if isinstance(part, Board) else part.title
            drawn = dataclasses.replace(part, title="") if isinstance(part, Movement) and folded else part
            described = " ".join(_described(part)) or picture.description
            return {
                "kind": "drawn", "folded": folded, "title": one_line(title),
                "svg": safe(svg(Picture(title or picture.title, described, (drawn,)), heading=False)),
            }  # fmt: skip
        case _:
            assert_never(part)


def _described(part: Board | Strip | Movement | Stage | Lanes) -> Iterator[str]:
    """A drawn part in words, for those who do not see it."""
    match part:
        case Board():
            yield from (part.caption, *part.notes)
        case Strip():
            for item in part.items:
                said = [item.name, item.caption] if isinstance(item, Board) else [item.text]
                yield " ".join(said)
        case Movement():
            yield f"{len(part.before)} devices; {len(part.wires)} transfers."
            yield from part.notes
        case Stage():
            yield f"{len(part.cards)} devices; {len(part.wires)} transfers."
            yield from part.notes
        case Lanes():
            yield from (lane.note for lane in part.lanes)
        case _:
            assert_never(part)


def safe(text: str) -> Any:
    """Markup that is our own, in which everything of the user's is escaped already."""
    from markupsafe import Markup

    return Markup(text)


def _isolated(text: str) -> Any:
    return safe(isolated(text, "<bdi>", "</bdi>"))


@functools.lru_cache(maxsize=4)
def template(name: str) -> Any:
    """One of the templates, which escape what they are given.

    Raises:
        MissingExtraError: Jinja2 is not installed.
    """
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError:
        raise MissingExtraError(
            "HTML is made with Jinja2, which is not installed: pip install 'shardwise[show]'; SVG and text need nothing more"
        ) from None
    loader = PackageLoader("shardwise.pictures", "templates")
    made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.filters["isolated"] = _isolated
    return made.get_template(name)
