"""Placements as text and as boards: the capabilities' five, folding, what is left out, and the marks. Needs no JAX."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.errors import LayoutError, MeshError
from shardwise.layout import Layout
from shardwise.mesh import Mesh
from shardwise.pictures.boards import board, placed
from shardwise.pictures.picture import left_out, thinned
from shardwise.pictures.placement import Placement, devices_text
from shardwise.pictures.plain_text import text
from shardwise.pictures.svg import svg


def place(layout: str, sizes: dict[str, int], mesh: str, **more) -> Placement:
    return Placement.of("A", Layout.parse(layout), sizes, Mesh.parse(mesh), **more)


FIVE = [
    ("I_x, J_y", [[[0], [1]], [[2], [3]]], [["0", "1"], ["2", "3"]]),
    ("I_y, J_x", [[[0], [2]], [[1], [3]]], [["0", "2"], ["1", "3"]]),
    ("I_x, J", [[[0, 1]], [[2, 3]]], [["0,1"], ["2,3"]]),
    ("I, J_y", [[[0, 2], [1, 3]]], [["0,2", "1,3"]]),
    ("I, J", [[[0, 1, 2, 3]]], [["0,1,2,3"]]),
]


@pytest.mark.parametrize(("layout", "grid", "shown"), FIVE, ids=[layout for layout, _, _ in FIVE])
def test_A5_the_placements_of_a_matrix_on_a_2x2_mesh(layout, grid, shown):
    placement = place(layout, {"I": 8, "J": 8}, "x=2, y=2")

    assert placement.grid() == grid
    rows = [line.strip("|").split("|") for line in placement.picture().splitlines() if line.startswith("|")]
    assert [[cell.strip() for cell in row] for row in rows] == shown
    drawn = board(placement)
    assert {(box.row, box.column): box.head for box in drawn.boxes} == {
        (i, j): head for i, row in enumerate(shown) for j, head in enumerate(row)
    }


def test_copies_partial_sums_and_padding_are_told_apart_in_words_and_marks():
    copies = board(place("I_x, J", {"I": 4, "J": 4}, "x=2, y=2"))
    partial_sums = board(place("[I_x, J]{U_y}", {"I": 4, "J": 4}, "x=2, y=2"))
    both = board(place("[I_x, J]{U_y}", {"I": 4, "J": 4}, "x=2, y=2, z=2"))
    padded = board(place("I_x, J_y", {"I": 3, "J": 4}, "x=2, y=2", pad=True))

    assert [box.head for box in copies.boxes] == ["0,1", "2,3"]
    assert [box.head for box in partial_sums.boxes] == ["0+1", "2+3"]
    assert [box.head for box in both.boxes] == ["(0,1)+(2,3)", "(4,5)+(6,7)"]
    assert [(box.copies, box.partial_sums) for box in (copies.boxes[0], partial_sums.boxes[0], both.boxes[0])] == [
        (2, 1),
        (1, 2),
        (2, 2),
    ]
    assert [box.body for box in padded.boxes] == [(), (), ("pad I+1",), ("pad I+1",)]
    assert [box.padding for box in padded.boxes] == [(0, 0), (0, 0), (0.5, 0), (0.5, 0)]
    drawn = [svg(placed(place("[I_x, J]{U_y}", {"I": 4, "J": 4}, "x=2, y=2")))]
    assert "box t0 sum" in drawn[0]
    assert "partial sums (0+1)" in drawn[0]


def test_a_shard_of_padding_alone_says_so():
    placement = place("I_x", {"I": 5}, "x=4", pad=True)

    assert [placement.words(where) for _, where in placement.shards()] == ["0:2", "2:4", "4:5 +1 padding", "padding"]
    assert [box.padding for box in board(placement).boxes] == [(0, 0), (0, 0), (0, 0.5), (0, 1)]
    assert "padded to 8" in placement.headline()


def test_nothing_is_padded_unasked():
    with pytest.raises(LayoutError, match="pad=True pads it to 8"):
        place("I_x", {"I": 5}, "x=4")


def test_an_axis_that_the_mesh_lacks():
    with pytest.raises(MeshError, match="the mesh has no axis 'q'"):
        place("[I]{U_q}", {"I": 4}, "x=2")


def test_higher_ranks_are_blocks_of_blocks():
    drawn = board(place("I_x, J_y, K_z, L_w", {"I": 8, "J": 4, "K": 8, "L": 8}, "x=2, y=2, z=2, w=2"))

    assert (drawn.row_title, drawn.column_title) == ("I_x, K_z", "J_y, L_w")
    assert [(t.header, t.label, t.gap) for t in drawn.rows] == [
        ("I 0:4", "0:4", 0), ("", "4:8", 0), ("I 4:8", "0:4", 1), ("", "4:8", 0)
    ]  # fmt: skip
    heads = {(box.row, box.column): box.head for box in drawn.boxes}
    assert [[heads[i, j] for j in range(4)] for i in range(4)] == [
        ["0", "1", "4", "5"], ["2", "3", "6", "7"], ["8", "9", "12", "13"], ["10", "11", "14", "15"]
    ]  # fmt: skip


def test_dimensions_that_are_whole_are_named_and_take_no_room():
    drawn = board(place("I, J_x, K, L, M, N_y", {"I": 2, "J": 2, "K": 3, "L": 2, "M": 2, "N": 4}, "x=2, y=2"))

    assert (len(drawn.rows), len(drawn.columns)) == (2, 2)
    assert drawn.notes == ("whole in every block: I 0:2, K 0:3, L 0:2, M 0:2",)


def test_a_long_strip_is_folded_and_its_blocks_name_their_slices():
    drawn = board(place("I_x", {"I": 128}, "x=64"))

    assert (len(drawn.rows), len(drawn.columns)) == (8, 8)
    assert drawn.boxes[9].head, drawn.boxes[9].body == ("9", ("18:20",))
    assert "I_x is folded: read row by row" in drawn.notes


@pytest.mark.parametrize(("layout", "mesh"), [("I_x, J_y", "x=300, y=200"), ("I_x, J", "x=9001"), ("I_x", "x=8192")])
def test_what_is_not_drawn_is_counted(layout, mesh):
    grid = Mesh.parse(mesh)
    placement = place(layout, {"I": 9001 * 3 if "9001" in mesh else 8192 * 75, "J": 200}, mesh)
    drawn = board(placement)
    blocks = math.prod(placement.parts)

    assert len(drawn.boxes) <= 64 * 64
    told = [sum(t.left_out or 1 for t in side) for side in (drawn.rows, drawn.columns)]
    assert blocks <= told[0] * told[1] < blocks + max(told)  # the last line of a fold may be short
    assert bool(left_out(drawn)) == (len(drawn.boxes) < blocks)
    assert left_out(drawn) in svg(placed(placement))
    assert grid.size == blocks


def test_a_board_that_is_thinned_keeps_the_first_and_the_last_and_counts_the_others():
    drawn = thinned(board(place("I_x, J_y", {"I": 64, "J": 64}, "x=64, y=64")), 6, 5)

    assert [t.left_out for t in drawn.rows] == [0, 0, 0, 0, 59, 0]
    assert {box.head for box in drawn.boxes if box.row == 5} == {"4032", "4033", "4034", "4095"}
    assert left_out(drawn) == "not drawn: 59 of 64 rows and 60 of 64 columns of blocks"
    assert left_out(thinned(drawn, 4, 4)) == "not drawn: 61 of 64 rows and 61 of 64 columns of blocks"


def test_4096_devices_are_drawn():
    placement = place("I_x, J_y", {"I": 8192, "J": 8192}, "x=64, y=64")
    drawn, said = svg(placed(placement)), str(placement)

    assert drawn.count("data-devices=") == 4096
    assert "not drawn: " in said
    assert "... and 4080 more devices" in said


def test_text_keeps_within_its_width():
    for width in (40, 72, 100):
        for layout, mesh in [("I_x, J_y", "x=64, y=64"), ("I_x", "x=100"), ("I_{x,y}, J_z", "x=8, y=8, z=8")]:
            lines = place(layout, {"I": 6400, "J": 6400}, mesh).picture(width).splitlines()
            assert max(map(len, lines)) <= width


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        ([[3]], "3"), ([[0, 1]], "0,1"), ([[0], [1]], "0+1"), ([list(range(9))], "0,1,...,8"),
        ([[i] for i in range(9)], "0+1+...+8"), ([[0, 1], [2, 3]], "(0,1)+(2,3)"),
    ],
)  # fmt: skip
def test_devices_in_words(ids, said):
    assert devices_text(np.array(ids)) == said


AXES = ("x", "y", "z", "w")


@st.composite
def placements(draw) -> Placement:
    rank = draw(st.integers(0, 6))
    sizes = [draw(st.sampled_from([1, 2, 3, 4])) for _ in AXES]
    homes = [draw(st.integers(-2, rank - 1)) for _ in AXES]
    order = draw(st.permutations(range(len(AXES))))
    dims = tuple((f"D{at}", tuple(AXES[a] for a in order if homes[a] == at)) for at in range(rank))
    mesh = Mesh(tuple(zip(AXES, sizes, strict=True)))
    unreduced = frozenset(axis for axis, home in zip(AXES, homes, strict=True) if home == -2)
    layout = Layout(dims, unreduced).on(mesh)
    elements = {name: draw(st.integers(1, 7)) for name in layout.names}
    return Placement.of("A", layout, elements, mesh, pad=True)


@given(placements())
def test_every_device_stands_in_the_block_that_it_holds(placement: Placement):
    drawn = board(placement)
    told: dict[int, str] = {}
    for box in drawn.boxes:
        facts = dict(box.facts)
        for device in itertools.chain(*(part.split(",") for part in facts["devices"].split("+"))):
            assert int(device) not in told
            told[int(device)] = facts["slices"]
    if not left_out(drawn):
        assert told == {device: ",".join(f"{part.start}:{part.stop}" for part in where) for device, where in placement.shards()}
    assert set(told) <= set(placement.devices)
    assert text(placed(placement))
