"""Plans, sheets and timelines as pictures: they say what their texts say, and a bar is as long as its time. Needs no JAX."""

from __future__ import annotations

import gzip
import itertools
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.chips import hardware
from shardwise.compiled.audit import Audit, audit_text
from shardwise.errors import LayoutError
from shardwise.layout import Layout
from shardwise.mesh import Mesh
from shardwise.notation import parse, parse_operand
from shardwise.pictures.audits import audit_picture
from shardwise.pictures.lanes import ticks, timeline_picture
from shardwise.pictures.picture import Arrow, Bar, Board, Lane, Lanes, Movement, Picture, Strip, Table, Words
from shardwise.pictures.plain_text import text
from shardwise.pictures.plans import plan_picture, program_parts
from shardwise.pictures.sheet import sheet
from shardwise.pictures.svg import svg
from shardwise.pictures.svg_chart import joined
from shardwise.planning.problem import problem
from shardwise.planning.ranking import Ranking, rank
from shardwise.program import Program
from shardwise.steps import Automatic, collectives_of, parts

SPACE = "{http://www.w3.org/2000/svg}"
GOLDEN = Path(__file__).parents[1] / "golden" / "texts" / "jax-0.12" / "v5e-2x4"


def ranked(equation: str, sizes: dict[str, int], mesh: str, chip: str = "tpu-v5e") -> Ranking:
    task = problem(parse(equation), sizes, mesh, chip, "bfloat16")
    return Ranking(task, rank(task))


PLANS = [
    ("A[I_x, J] · B[J, K] -> C[I, K]", {"I": 16384, "J": 1024, "K": 2048}, "x=4"),
    ("A[I_x, J_y] · B[J_y, K] -> C[I_x, K_y]", {"I": 8192, "J": 8192, "K": 8192}, "x=16, y=16"),
    ("A[I_x, J_y] · B[J_x, K_y] -> C[I_x, K_y]", {"I": 64, "J": 64, "K": 64}, "x=4, y=4"),
    ("A[I_x, J] -> A[I, J_x]", {"I": 64, "J": 64}, "x=4"),
    ("A[I_x, J] -> A[I_x, J]", {"I": 64, "J": 64}, "x=4"),
    ("A[P_x, I_y, J_z] · Y[P_x, J_z, K] -> C[P_x, I_y, K_z]", {"P": 64, "I": 64, "J": 64, "K": 64}, "x=4, y=4, z=4"),
]


@pytest.mark.parametrize(("equation", "sizes", "mesh"), PLANS)
def test_a_plan_shows_every_step_with_its_layouts_before_and_after(equation, sizes, mesh):
    plan = ranked(equation, sizes, mesh)
    picture = plan_picture(plan)
    program = plan.best.program

    strips = [part for part in picture.parts if isinstance(part, Strip)]
    assert len(strips) == len(program.steps)
    states = program.states()
    for strip, before, after in zip(strips, states, states[1:], strict=False):
        *left, right = [item.name for item in strip.items if isinstance(item, Board)]
        assert set(left) <= {f"{name}{layout}" for name, layout in before.items()}
        assert right in {f"{name}{layout}" for name, layout in after.items()}
        assert sum(isinstance(item, Arrow) for item in strip.items) == 1
    moving = [part for step in program.steps for part in parts(step) if collectives_of(part)]
    assert len([part for part in picture.parts if isinstance(part, Movement)]) == len(moving)
    table = next(part for part in picture.parts if isinstance(part, Table))
    assert len(table.rows) == len(plan.candidates)
    drawn, said = svg(picture), text(picture)
    ET.fromstring(drawn)
    assert all(strip.title in said for strip in strips)
    assert len(drawn) < 400_000


def test_a_program_alone_is_drawn_without_costs():
    plan = ranked(*PLANS[0])
    parts = program_parts(plan.best.program, plan.task.sizes)

    arrows = [item for part in parts if isinstance(part, Strip) for item in part.items if isinstance(item, Arrow)]
    assert [arrow.below for arrow in arrows] == [""] * len(plan.best.program.steps)


def test_what_the_compiler_chooses_by_itself_is_drawn_before_and_after():
    mesh = Mesh.parse("x=2")
    inputs = (("A", Layout.parse("I_x, J")), ("B", Layout.parse("J, K")))
    program = Program(mesh, inputs, (Automatic(("A", "B"), "C", Layout.parse("I, K")),), "C")
    (strip,) = program_parts(program, {"I": 4, "J": 4, "K": 4})

    assert [item.name for item in strip.items if isinstance(item, Board)] == ["A[I_x, J]", "B[J, K]", "C[I, K]"]


def test_all_layouts_of_a_matrix_on_a_2x2_mesh_are_on_one_sheet():
    picture = sheet(parse_operand("A[I, J]"), Mesh.parse("x=2, y=2"))

    boards = [item for part in picture.parts if isinstance(part, Strip) for item in part.items]
    assert picture.title == "11 layouts of A[I, J], 4 x 4, on mesh x=2, y=2"
    assert len({board.name for board in boards}) == 11
    for layout in ("[I_x, J_y]", "[I_y, J_x]", "[I_x, J]", "[I, J_y]", "[I, J]", "[I_{y,x}, J]"):
        assert f"A{layout}" in {board.name for board in boards}


def test_layouts_that_sizes_do_not_allow_are_named_not_hidden():
    picture = sheet(parse_operand("A[I]"), Mesh.parse("x=2, y=3"), {"I": 4})

    assert picture.parts[0] == Words(("the sizes are not divided by [I_y], [I_{x,y}], [I_{y,x}]",))
    assert [item.name for item in picture.parts[1].items] == ["A[I]", "A[I_x]"]
    assert len(sheet(parse_operand("A[I]"), Mesh.parse("x=2, y=3"), {"I": 4}, pad=True).parts[0].items) == 5
    with pytest.raises(LayoutError, match="no size is given for dimension J"):
        sheet(parse_operand("A[I, J]"), Mesh.parse("x=2"), {"I": 4})


def test_a_sheet_of_too_many_layouts_says_how_many_it_draws():
    picture = sheet(parse_operand("A[I, J, K, L]"), Mesh.parse("x=2, y=2, z=2"))

    count = len(Layout.all("I, J, K, L", "x=2, y=2, z=2"))
    assert picture.title.startswith(f"{count} layouts")
    assert picture.parts[0] == Words((f"120 are drawn; {count - 120} more are not",))


def golden(name: str) -> Audit:
    body = gzip.decompress((GOLDEN / f"{name}.txt.gz").read_bytes()).decode()
    return audit_text(body, name="step", target="v5e:2x4", mesh=Mesh.parse("x=8"), hardware=hardware("tpu-v5e"))


@pytest.mark.parametrize("name", ["fsdp", "ring_pinned", "windowed_gather", "case1_local", "transformer"])
def test_bars_are_as_long_as_their_time(name):
    line = golden(name).timeline()
    picture = timeline_picture(line)
    chart = next(part for part in picture.parts if isinstance(part, Lanes))

    assert [lane.name for lane in chart.lanes] == [lane for lane, _ in line.lanes]
    for lane, (_, busy) in zip(chart.lanes, line.lanes, strict=True):
        covered = sum(bar.end - bar.start for bar in lane.bars if bar.kind not in ("wait", "stall", "loop"))
        assert covered * line.step_seconds == pytest.approx(busy, rel=1e-6)
    exposed = sum(bar.end - bar.start for lane in chart.lanes for bar in lane.bars if bar.exposed)
    assert exposed * line.step_seconds == pytest.approx(line.exposed_seconds, rel=1e-6)
    drawn = svg(picture)
    ET.fromstring(drawn)
    assert ('data-kind="wait" data-exposed="yes"' in drawn) == (line.exposed_seconds > 0)
    assert "waiting for transfers: exposed" in text(picture) or not line.exposed_seconds


def test_an_audit_is_drawn_with_its_table_and_its_findings():
    audit = golden("fsdp")
    picture = audit_picture(audit)

    table = next(part for part in picture.parts if isinstance(part, Table))
    assert table.head[0] == "collective"
    for row in table.rows:
        assert all(cell in str(audit) for cell in row)
    told = "\n".join(line for part in picture.parts if isinstance(part, Words) for line in part.lines)
    assert all(line in told for line in str(audit).splitlines() if line and not line.startswith("  "))
    assert any(isinstance(part, Lanes) for part in picture.parts)


def test_thin_bars_are_joined_however_many_there_are():
    bars = tuple(Bar(n / 20_000, (n + 0.9) / 20_000, "matmul", f"p{n}") for n in range(20_000))
    drawn = svg(Picture("t", "d", (Lanes("t", (Lane("compute", bars),), (), (("matmul", "matmuls"),)),)))
    assert len(drawn) < 100_000
    kept = joined(bars, 0.001)
    assert kept[0].start == 0
    assert kept[-1].end == bars[-1].end
    assert kept[0].title.endswith("and more")
    apart = (Bar(0, 0.2, "wait", exposed=True), Bar(0.2, 0.4, "matmul"), Bar(0.4, 0.6, "wait"))
    assert joined(apart, 0.001) == list(apart)


@given(st.floats(1e-11, 1e3))
def test_ticks_are_round_few_and_within(seconds):
    found = list(ticks(seconds))

    assert 2 <= len(found) <= 7
    assert found[0] == (0.0, "0")
    assert all(0 <= share <= 1 + 1e-6 for share, _ in found)
    gaps = {round(b - a, 9) for (a, _), (b, _) in itertools.pairwise(found)}
    assert len(gaps) <= 2
