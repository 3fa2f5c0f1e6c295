"""Scenes of a program: true numbers on every device, stand-ins that keep steps and layouts, wires from card to card."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.layout import Layout
from shardwise.mesh import Mesh
from shardwise.notation import parse
from shardwise.pictures.picture import Picture, Stage
from shardwise.pictures.scenes import _values, play, stand_in
from shardwise.pictures.svg import svg
from shardwise.planning.problem import problem
from shardwise.planning.ranking import rank
from shardwise.program import Program, relayout, unfused
from shardwise.steps import AllGather, AllReduce, Automatic, Einsum, collectives_of

SIZES = {"I": 16384, "J": 1024, "K": 2048}
GATHER, CONTRACT = "A[I_x, J] · B[J, K] -> C[I, K]", "A[I, J_x] · B[J_x, K] -> C[I, K]"
# Case 3 by hand: every device multiplies, then the partial sums are added.
CASE_3 = Program(
    Mesh.parse("x=2"), (("A", Layout.parse("I, J_x")), ("B", Layout.parse("J_x, K"))),
    (Einsum(("A", "B"), "C", ("I", "K")), AllReduce("C", ("x",))), "C",
)  # fmt: skip


def best(equation: str, mesh: str, hardware: str = "tpu-v5e") -> Program:
    return rank(problem(parse(equation), SIZES, mesh, hardware))[0].program


def numbers(stage: Stage, device: int, name: str) -> list[int]:
    """What a device is drawn to hold of an array, in reading order."""
    board = next(b for b in stage.cards[device].boards if b.name.startswith(f"{name}["))
    lines = [line for box in board.boxes for line in (box.head, *box.body) if line]
    return [int(number) for line in lines for number in line.split()]


def test_the_numbers_on_the_last_scene_are_those_of_the_matmul():
    played = play(CASE_3, {"I": 2, "J": 4, "K": 2})
    values = _values(CASE_3, {"I": 2, "J": 4, "K": 2})
    matmul = values["A"] @ values["B"]

    assert [scene.moves for scene in played.scenes] == [False, False, True, False]
    partial_sums = [np.array(numbers(played.scenes[1].stage, device, "C")) for device in (0, 1)]
    assert (partial_sums[0] != matmul.ravel()).any()  # each device has but a partial sum
    assert (partial_sums[0] + partial_sums[1]).tolist() == matmul.ravel().tolist()
    for device in (0, 1):
        assert numbers(played.scenes[-1].stage, device, "C") == matmul.ravel().tolist()


def test_small_arrays_are_drawn_as_they_are_and_large_ones_by_a_stand_in():
    assert "stand-in" not in play(CASE_3, {"I": 2, "J": 4, "K": 2}).note
    note = play(CASE_3, {"I": 512, "J": 512, "K": 512}).note
    assert note == (
        "Played by a small stand-in with the same steps and layouts: sizes I=4, J=4, K=4. The numbers are worked out in NumPy."
    )


def test_captions_say_what_happens_what_is_lacking_and_what_it_costs():
    candidate = rank(problem(parse(CONTRACT), SIZES, "x=4", "tpu-v5e", overlap=False))[0]
    scenes = play(candidate.program, SIZES, candidate.estimate.steps).scenes
    said = " ".join(scene.words for scene in scenes)

    assert scenes[0].words == "Every device holds its part of A[I, J_x] and B[J_x, K]."
    assert "lacks 3 of 4" in said
    assert re.search(r"At full size it takes [\d.]+ [mu]s, and each device sends [\d.]+ MB\.", said)
    assert scenes[-1].words.endswith("Now there is C[I, K]: every device holds all of it.")


def test_a_fused_step_is_played_in_its_parts_which_run_at_once():
    program = best(GATHER, "x=4")
    assert len(program.steps) == 1
    scenes = play(program, SIZES).scenes

    assert [scene.title for scene in scenes] == [
        "At first", "Step 1 of 1: all-gather A over x (I)", "Within step 1 of 1", "Step 1 of 1: multiply A · B -> C[I, K]",
    ]  # fmt: skip
    assert scenes[2].words == (
        "Now there is A[I, J]: every device holds all of it. "
        "It is drawn apart to be seen: both run at once, and nothing waits for the whole of it."
    )
    assert all("at once, block by block" in scene.words for scene in scenes if scene.title.startswith("Step"))


def test_wires_are_what_the_collective_sends():
    moving = next(scene.stage for scene in play(best(GATHER, "x=4"), SIZES).scenes if scene.moves)

    assert {(wire.source, wire.target) for wire in moving.wires} == {(a, b) for a in range(4) for b in range(4) if a != b}
    assert all(wire.title.startswith("A[") for wire in moving.wires)


@given(st.sampled_from([GATHER, CONTRACT, "A[I_x, J_y] -> A[I_y, J_x]", "A[I_x, J] · B[J, K_y] -> C[I_y, K_x]"]),
       st.sampled_from(["x=16, y=2", "x=8, y=8", "x=64, y=4"]))  # fmt: skip
def test_a_stand_in_has_the_same_steps_and_layouts(equation, mesh):
    sizes = {dim: SIZES[dim] for dim in parse(equation).dims}
    program = rank(problem(parse(equation), sizes, mesh, "tpu-v5p"))[0].program
    small, plain = stand_in(program), unfused(program)

    assert [type(step) for step in small.steps] == [type(step) for step in plain.steps]
    assert small.states() == plain.states()
    assert small.mesh.size <= 16
    played = play(program, sizes)
    assert f"mesh {small.mesh}" in played.note
    assert len(played.scenes) == 1 + len(plain.steps) + sum(bool(collectives_of(step)) for step in plain.steps)


def test_where_no_small_mesh_has_the_same_permutation_the_first_devices_are_drawn():
    mesh = Mesh.parse("x=8, y=2, z=4")
    swap = relayout("A", Layout.parse("I_x, J_{y,z}"), Layout.parse("I_{y,z}, J_x"), mesh)
    program = Program(mesh, (("A", Layout.parse("I_x, J_{y,z}")),), (swap,), "A")
    played = play(program, {"I": 64, "J": 64})

    assert stand_in(program).mesh == mesh
    assert all(len(scene.stage.cards) == 16 for scene in played.scenes)
    assert "16 of 64 devices are drawn; the others do the same" in played.scenes[0].stage.notes


def test_of_too_many_transfers_some_are_drawn_and_it_says_so():
    scenes = play(best("A[I_{x,y}, J] · B[J, K] -> C[I, K]", "x=4, y=4"), SIZES).scenes
    moving = next(scene.stage for scene in scenes if scene.moves)

    assert {wire.source for wire in moving.wires} == {0}
    assert moving.notes == ("only what device 0 sends is drawn; the others do the same",)
    assert not any(box.head or box.body for card in moving.cards for board in card.boards for box in board.boxes)


def test_what_the_compiler_chooses_alone_is_played_too():
    auto = Program(CASE_3.mesh, CASE_3.inputs, (Automatic(("A", "B"), "C", Layout.parse("I, K")),), "C")

    assert "The compiler alone chooses" in play(auto, {"I": 2, "J": 4, "K": 2}).scenes[1].words


def test_a_program_without_steps_has_its_first_scene():
    still = Program(Mesh.parse("x=2"), (("A", Layout.parse("I_x")),), (), "A")

    (only,) = play(still, {"I": 4}).scenes
    assert (only.title, len(only.stage.cards)) == ("At first", 2)
    assert only.words.endswith("nothing moves.")


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16])
def test_cards_stand_apart_and_wires_end_at_them(count):
    inputs = (("A", Layout.parse("I_x, J")),)
    gather = (
        Program(Mesh.parse(f"x={count}"), inputs, (AllGather("A", "I", ("x",)),), "A") if count > 1 else CASE_3
    )  # an all-reduce
    for scene in play(gather, {"I": 5040, "J": 8, "K": 8}).scenes:
        tree = ET.fromstring(svg(Picture("s", "", (scene.stage,))))
        frames = [element.attrib for element in tree.iter() if element.attrib.get("class") == "device"]
        cards = [[float(frame[name]) for name in ("x", "y", "width", "height")] for frame in frames]
        assert len(cards) == max(count, 2)
        for at, (x, y, wide, high) in enumerate(cards):
            assert not any(x < a + w and a < x + wide and y < b + h and b < y + high for a, b, w, h in cards[at + 1 :])
        for path in tree.iter():
            if "data-source" not in path.attrib:
                continue
            ends = [tuple(map(float, pair.split())) for pair in re.findall(r"[\d.-]+ [\d.-]+", path.attrib["d"])]
            for end, place in ((ends[0], path.attrib["data-source"]), (ends[-1], path.attrib["data-target"])):
                x, y, wide, high = cards[int(place)]
                away = math.hypot(max(x - end[0], 0, end[0] - x - wide), max(y - end[1], 0, end[1] - y - high))
                assert away < 0.2  # at the rim, or rounded to it
