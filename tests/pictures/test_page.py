"""HTML and the terminal: self-contained, escaped, colours only where somebody looks, and a word where an extra is missing."""

from __future__ import annotations

import contextlib
import io
import re
import sys
import types
from collections.abc import Callable
from html.parser import HTMLParser

import pytest
from pictures.hostile import HOSTILE, everything

from shardwise.errors import MissingExtraError
from shardwise.layout import Layout
from shardwise.mesh import Mesh
from shardwise.pictures import page as hand
from shardwise.pictures import terminal
from shardwise.pictures.boards import placed
from shardwise.pictures.dispatch import written
from shardwise.pictures.page import fragment, page
from shardwise.pictures.picture import picture_of
from shardwise.pictures.placement import Placement

PLACEMENT = Placement.of("A", Layout.parse("I_x, J"), {"I": 4, "J": 2}, Mesh.parse("x=2, y=2"))
VOID = {"meta", "link", "br", "img", "hr", "input"}


class Reader(HTMLParser):
    """Tags, attributes and text of a page; fails where tags do not close in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.names: set[str] = set()
        self.text = ""
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.names.update(name for name, _ in attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.names.update(name for name, _ in attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("name", HOSTILE, ids=[ascii(name[:12]) for name in HOSTILE])
def test_hostile_names_are_text_on_a_page(name):
    made = page(everything(name))
    read = Reader(made)

    assert "script" not in read.tags
    assert "img" not in read.tags
    assert not [n for n in read.names if n.startswith("on") or n in ("src", "href")]
    assert "".join(c if c.isprintable() else " " for c in name) in read.text
    made.encode("utf-8", "strict")


def test_a_page_is_whole_and_needs_no_other():
    made = page(placed(PLACEMENT))

    assert made.startswith('<!DOCTYPE html>\n<html lang="en">')
    assert '<meta name="viewport"' in made
    assert made.count("http") == 1  # the name of SVG
    assert made.count("<main>") == 1
    assert fragment(placed(PLACEMENT), level=1) in made
    assert made.count("<h1") == 1


def test_without_jinja2_html_names_the_extra_and_a_notebook_takes_the_svg(monkeypatch):
    hand.template.cache_clear()
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'shardwise\[show\]'"):
        page(placed(PLACEMENT))
    monkeypatch.setattr(hand.importlib.util, "find_spec", lambda name: None)
    assert hand.notebook(PLACEMENT) is None
    assert PLACEMENT._repr_svg_().startswith("<svg")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def seen(monkeypatch) -> Callable[[object], str]:
    """What a terminal is told of something."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLORTERM", "truecolor")

    def told(shown: object) -> str:
        with contextlib.redirect_stdout(Terminal()) as out:
            terminal.present(shown)
        return out.getvalue()

    return told


def test_a_terminal_sees_colours_and_boxes(seen):
    said = seen(PLACEMENT)

    assert "48;2;207;227;243m" in said  # the first block's own colour
    assert "┌─────┐" in said
    assert "0,1" in said


@pytest.mark.parametrize("shown", [PLACEMENT, placed(PLACEMENT), "anything"], ids=["placement", "picture", "text"])
def test_the_colours_change_nothing_that_is_said(seen, shown):
    coloured = re.sub(r"\x1b\[[0-9;]*m", "", seen(shown))

    assert {word for word in coloured.split() if word[0].isalnum()} == {
        word for word in str(shown).split() if word[0].isalnum()
    }


@pytest.mark.parametrize(("variable", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_no_colours_where_they_are_not_wanted(seen, monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)
    said = seen(PLACEMENT)

    assert said == f"{PLACEMENT}\n"
    assert said.isascii()


def test_no_colours_without_rich(seen, monkeypatch):
    monkeypatch.setattr(terminal.importlib.util, "find_spec", lambda name: None)

    assert seen(PLACEMENT) == f"{PLACEMENT}\n"


def test_names_are_no_markup_of_rich(seen):
    said = seen(Placement.of("[bold red]A[/]", Layout.parse("I_x"), {"I": 2}, Mesh((("[link=x]", 1), ("x", 2)))))

    assert "[bold red]A[/][I_x]" in said


def test_in_a_notebook_it_is_drawn_once(monkeypatch, capsys):
    drawn = []
    ipython = types.ModuleType("IPython")
    ipython.get_ipython = lambda: types.SimpleNamespace(config={"IPKernelApp": {}})
    shows = types.ModuleType("IPython.display")
    shows.display = drawn.append
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", shows)
    returned = terminal.present(PLACEMENT)

    assert drawn == [PLACEMENT]
    assert capsys.readouterr().out == ""
    assert returned.devices == (0, 1, 2, 3)
    assert returned._ipython_display_() is None
    assert str(returned) == str(PLACEMENT)


def test_what_has_no_picture_is_its_text():
    picture = picture_of(Mesh.parse("x=2"))

    assert picture.parts[0].lines == ("x=2",)
    assert picture_of(picture) is picture
    assert picture_of(written("A[I_x]", "x=2", (4,))).title == "A[I_x]"
