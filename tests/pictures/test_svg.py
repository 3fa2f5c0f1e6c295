"""SVG as text that programs and people can trust: well-formed, self-contained, accessible, safe with any name. No JAX."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pictures.hostile import HOSTILE, everything

from shardwise.layout import Layout
from shardwise.mesh import Mesh
from shardwise.pictures.boards import placed
from shardwise.pictures.picture import clipped, columns_of
from shardwise.pictures.placement import Placement
from shardwise.pictures.plain_text import text
from shardwise.pictures.svg import svg
from shardwise.pictures.svg_style import DARK, DARK_SHADE, LIGHT, RAMP

SPACE = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("name", HOSTILE, ids=[ascii(name[:12]) for name in HOSTILE])
def test_hostile_names_are_text_everywhere(name):
    drawn = svg(everything(name))
    tree = ET.fromstring(drawn.encode("utf-8", "strict"))

    assert {element.tag.removeprefix(SPACE) for element in tree.iter()} <= {
        "svg", "title", "desc", "defs", "style", "pattern", "marker", "path", "circle", "rect", "g", "text", "tspan"
    }  # fmt: skip
    names = {key for element in tree.iter() for key in element.attrib}
    assert not [key for key in names if key.startswith("on") or "href" in key]
    words = [element.text for element in tree.iter() if element.tag in (f"{SPACE}text", f"{SPACE}tspan") and element.text]
    titles = {element.text for element in tree.iter() if element.tag == f"{SPACE}title"}
    whole = "".join(c if c.isprintable() else " " for c in name)
    assert whole in titles
    assert max(columns_of(word) for word in words) <= 120
    said = text(everything(name))
    assert max(columns_of(line) for line in said.splitlines() if line != whole.rstrip()) <= 140  # code is never cut
    assert "\u202e" not in drawn + said
    assert "\x00" not in drawn + said


@given(st.text(max_size=60))
def test_any_text_makes_a_well_formed_svg(name):
    assert ET.fromstring(svg(everything(name)).encode("utf-8", "strict")).tag == f"{SPACE}svg"


def test_names_that_are_too_long_are_clipped_and_whole_in_a_title():
    placement = Placement.of("A" * 200, Layout.parse("I_x"), {"I": 4}, Mesh((("x", 2),)))
    drawn = svg(placed(placement))

    tree = ET.fromstring(drawn)
    words = [element for element in tree.iter(f"{SPACE}text") if (element.text or "").startswith("AAA")]
    clipped_ones = [element for element in tree.iter(f"{SPACE}text") if element.find(f"{SPACE}title") is not None]
    assert not words
    assert clipped_ones[0].find(f"{SPACE}title").text == "A" * 200 + "[I_x]"
    assert clipped_ones[0].find(f"{SPACE}title").tail == clipped("A" * 200, 60)


def test_it_scales_names_itself_and_fetches_nothing():
    drawn = svg(placed(Placement.of("A", Layout.parse("I_x, J"), {"I": 4, "J": 2}, Mesh.parse("x=2, y=2"))))
    tree = ET.fromstring(drawn)

    assert tree.attrib["role"] == "img"
    named = tree.attrib["aria-labelledby"].split()
    assert [element.attrib["id"] for element in tree[:2]] == named
    assert [element.tag.removeprefix(SPACE) for element in tree[:2]] == ["title", "desc"]
    assert tree[1].text == "A[I_x, J], 4 x 2, on mesh x=2, y=2; replicated over y=2"
    assert [tree.attrib["width"], tree.attrib["height"]] == tree.attrib["viewBox"].split()[2:]  # as large as it is drawn,
    assert tree.attrib["style"] == "max-width:100%;height:auto"  # and smaller where there is less room
    assert drawn.count("http") == 1  # the name of SVG itself
    assert "@media (prefers-color-scheme:dark)" in drawn


def test_two_pictures_on_a_page_do_not_share_names():
    one, two = (svg(placed(Placement.of("A", Layout.parse("I_x"), {"I": n}, Mesh.parse("x=4"), pad=True))) for n in (5, 6))
    ids = [set(re.findall(r' id="([^"]+)"', drawn)) for drawn in (one, two)]

    assert not ids[0] & ids[1]
    for drawn, own in zip((one, two), ids, strict=True):
        assert set(re.findall(r"url\(#([^)]+)\)", drawn)) <= own


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_what_is_written_can_be_read_on_every_colour():
    """WCAG 2.1 asks for 4.5 to 1."""
    assert all(contrast(fill, "#1b1f24") >= 4.5 for fill, _ in LIGHT)
    assert all(contrast(fill, "#e8ecf1") >= 4.5 for fill, _ in DARK)
    assert all(contrast(fill, "#111111" if n < DARK_SHADE else "#ffffff") >= 4.5 for n, fill in enumerate(RAMP))
    assert all(contrast("#59636e", fill) >= 3 for fill, _ in LIGHT)
