"""Programs as frames: the collectives' own numbers, and the law that what is said to move makes what comes after. No JAX."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.layout import Layout, splits
from shardwise.mesh import Mesh
from shardwise.notation import parse
from shardwise.pictures.film import Film, film
from shardwise.pictures.flows import moment, movement, value_text
from shardwise.pictures.picture import Card, Movement, Picture
from shardwise.pictures.plain_text import text
from shardwise.pictures.svg import svg
from shardwise.planning.graph import moves, step_of
from shardwise.planning.problem import problem
from shardwise.planning.ranking import rank
from shardwise.program import Program, shift
from shardwise.steps import AllGather, AllReduce, AllToAll, CollectivePermute, ReduceScatter, Step, collectives_of

FOUR = Mesh.parse("x=4")
ROWS = [np.array(row) for row in ([3, 1, 4, 1], [5, 9, 2, 6], [5, 3, 5, 8], [9, 7, 1, 2])]


def shown(card: Card) -> list[str]:
    """The numbers on a card, block by block."""
    return [" ".join((box.head, *box.body)).split() for board in card.boards for box in board.boxes]


def one_step(step: Step, layout: str, sizes: dict[str, int], values, mesh: Mesh = FOUR) -> Movement:
    program = Program(mesh, (("A", Layout.parse(layout)),), (step,), "A")
    return movement(film(program, sizes, {"A": values}), 0)


EVERYBODY = {(a, b) for a in range(4) for b in range(4) if a != b}
COLLECTIVES = [
    pytest.param(
        AllGather("A", "I", ("x",)), "I_x", {"I": 4}, np.array([3, 9, 5, 2]),
        [[["3"]], [["9"]], [["5"]], [["2"]]], [[["3"], ["9"], ["5"], ["2"]]] * 4, EVERYBODY, False, id="C1",
    ),
    pytest.param(
        AllReduce("A", ("x",)), "[I]{U_x}", {"I": 4}, ROWS,
        [[list(map(str, row))] for row in ROWS], [[["22", "20", "12", "17"]]] * 4, EVERYBODY, True, id="C2",
    ),
    pytest.param(
        ReduceScatter("A", "I", ("x",)), "[I]{U_x}", {"I": 4}, ROWS,
        [[[str(v)] for v in row] for row in ROWS], [[["22"]], [["20"]], [["12"]], [["17"]]], EVERYBODY, True, id="C3",
    ),
    pytest.param(
        AllToAll("A", "I", "J", ("x",)), "I_x, J", {"I": 4, "J": 4}, np.array(ROWS),
        [[[str(v)] for v in row] for row in ROWS],
        [[[v] for v in column] for column in ("3559", "1937", "4251", "1682")],
        EVERYBODY, False, id="C4",
    ),
    pytest.param(
        shift("A", Layout.parse("I_x"), "x", FOUR), "I_x", {"I": 4}, np.arange(4),
        [[["0"]], [["1"]], [["2"]], [["3"]]], [[["3"]], [["0"]], [["1"]], [["2"]]],
        {(0, 1), (1, 2), (2, 3), (3, 0)}, False, id="C5",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("step", "layout", "sizes", "values", "before", "after", "pairs", "adds"), COLLECTIVES)
def test_collectives_before_and_after_on_every_device(step, layout, sizes, values, before, after, pairs, adds):
    drawn = one_step(step, layout, sizes, values)

    assert [shown(card) for card in drawn.before] == before
    assert [shown(card) for card in drawn.after] == after
    assert {(wire.source, wire.target) for wire in drawn.wires} == pairs
    assert {wire.adds for wire in drawn.wires} == {adds}
    said = text(Picture("t", "d", (drawn,)))
    for block in itertools.chain(*before, *after):
        assert " ".join(block) in said
    assert svg(Picture("t", "d", (drawn,))).count("data-source=") == len(pairs)


def test_blocks_keep_the_colour_of_the_device_they_come_from():
    gathered = one_step(*COLLECTIVES[0].values[:4])

    assert [box.tone.index for box in gathered.after[2].boards[0].boxes] == [0, 1, 2, 3]
    assert [card.boards[0].boxes[0].tone.index for card in gathered.before] == [0, 1, 2, 3]
    shifted = one_step(*COLLECTIVES[4].values[:4])
    assert [card.boards[0].boxes[0].tone.index for card in shifted.after] == [3, 0, 1, 2]


def test_what_each_device_lacks_is_said():
    assert one_step(*COLLECTIVES[0].values[:4]).before[0].lacks == "lacks 3 of 4 parts of A along I"
    assert one_step(*COLLECTIVES[1].values[:4]).before[0].lacks == "lacks 3 of 4 partial sums of A"


def test_a_large_mesh_shows_one_group_and_counts_the_others():
    mesh = Mesh.parse("x=64, y=64")
    program = Program(mesh, (("A", Layout.parse("I_x, J_y")),), (AllGather("A", "I", ("x",)),), "A")
    drawn = movement(film(program, {"I": 128, "J": 128}), 0)

    assert [card.name for card in drawn.before] == [f"device {64 * n}" for n in range(8)]
    assert drawn.notes == (
        "8 of the 64 devices along x; the others do the same", "one of 64 groups; in the others the same happens"
    )  # fmt: skip
    assert len(drawn.wires) == 56
    assert len(svg(Picture("t", "d", (drawn,)))) < 200_000


def test_a_moment_shows_all_live_arrays_on_all_devices():
    task = problem(parse("A[I_x, J] · B[J, K] -> C[I, K]"), {"I": 4, "J": 2, "K": 2}, "x=4", "tpu-v5e", "float32")
    program = rank(task)[0].program
    frames = film(program, task.sizes, {"A": np.arange(8.0).reshape(4, 2), "B": np.eye(2)})

    cards = moment(frames, 0)
    assert [[board.name for board in card.boards] for card in cards][:2] == [
        ["A[0:1, 0:2]", "B[0:2, 0:2]"], ["A[1:2, 0:2]", "B[0:2, 0:2]"]
    ]  # fmt: skip
    assert [card.boards[0].boxes[0].tone.index for card in cards] == [0, 1, 2, 3]
    assert {card.boards[1].boxes[0].tone for card in cards} == {None}  # all hold the whole of B
    last = moment(frames, len(frames.frames) - 1)
    assert {tuple(map(tuple, shown(card))) for card in last} == {(("0", "1", "2", "3", "4", "5", "6", "7"),)}


def test_numbers_are_told_short():
    assert [value_text(v) for v in (np.int8(-3), np.float32(0.1), 2.0, 1e20, np.complex64(1j), np.bool_(True))] == [
        "-3", "0.1", "2", "1e+20", "0+1j", "True"
    ]  # fmt: skip


@st.composite
def steps(draw) -> tuple[Mesh, Layout, Step, dict[str, int]]:
    """One legal step from a random layout of an array on a random mesh."""
    axes = tuple((name, draw(st.sampled_from([2, 3]))) for name in draw(st.sampled_from([("x",), ("x", "y"), ("x", "y", "z")])))
    mesh = Mesh(axes)
    dims = draw(st.sampled_from(splits(draw(st.integers(1, 3)), mesh.names)))
    used = {axis for split in dims for axis in split}
    unreduced = tuple(axis for axis in mesh.names if axis not in used and draw(st.booleans()))
    names = tuple("IJK"[: len(dims)])
    legal = moves((dims, unreduced), tuple(name for name, _ in axes))
    if not legal:
        dims, unreduced = tuple((mesh.names[0],) if n == 0 else () for n in range(len(dims))), ()
        legal = moves((dims, unreduced), tuple(name for name, _ in axes))
    move = draw(st.sampled_from(legal))
    step = step_of(move, (dims, unreduced), "A", names, mesh)
    layout = Layout(tuple(zip(names, dims, strict=True)), frozenset(unreduced))
    sizes = {name: mesh.size * draw(st.integers(1, 2)) for name in names}
    return mesh, layout, step, sizes


@given(steps(), st.randoms(use_true_random=False))
def test_what_is_said_to_move_makes_what_comes_after(case, random):
    """Of every device: its own part, and what arrives, side by side or summed, is what the oracle says it holds."""
    mesh, layout, step, sizes = case
    whole = np.array([random.randint(-9, 9) for _ in range(int(np.prod(list(sizes.values()))))]).reshape(tuple(sizes.values()))
    frames = film(Program(mesh, (("A", layout),), (step,), "A"), sizes, {"A": whole})
    for device in range(mesh.size):
        made = assembled(frames, device)
        held = frames.holding(1, "A", device)
        assert held.values is not None
        np.testing.assert_array_equal(made, held.values)


def assembled(frames: Film, device: int) -> np.ndarray:
    after = frames.holding(1, "A", device)
    arriving = [move for move in frames.moves(0) if move.target == device]
    own = frames.holding(0, "A", device)
    step = frames.frames[0].step
    relocated = isinstance(step, CollectivePermute) and arriving
    pieces = [] if relocated else [(own.where, own.values)]
    for move in arriving:
        sender = frames.holding(0, "A", move.source)
        pieces.append((move.where, sender.values[relative(move.where, sender.where)]))
    if relocated:
        assert len(pieces) == 1
        return pieces[0][1]
    adds = any(move.adds for move in arriving)
    assert adds == isinstance(step, AllReduce | ReduceScatter) or not collectives_of(step)
    made = np.zeros([part.stop - part.start for part in after.where], own.values.dtype)
    filled = np.zeros(made.shape, int)
    for where, values in pieces:
        shared = tuple(slice(max(a.start, b.start), min(a.stop, b.stop)) for a, b in zip(where, after.where, strict=True))
        if any(part.stop <= part.start for part in shared):
            continue
        made[relative(shared, after.where)] += values[relative(shared, where)]
        filled[relative(shared, after.where)] += 1
    assert (filled == (len(pieces) if adds else 1)).all(), "every element comes once, or from every partial sum"
    return made


def relative(where: tuple[slice, ...], within: tuple[slice, ...]) -> tuple[slice, ...]:
    return tuple(slice(a.start - b.start, a.stop - b.start) for a, b in zip(where, within, strict=True))
