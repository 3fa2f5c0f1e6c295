"""All sides of a torus at once: which devices fill one, when the planner takes it, and what it promises."""

from __future__ import annotations

from dataclasses import replace

import pytest

import shardwise as sw
from shardwise.chips.crowds import sides_of
from shardwise.chips.placing import Site, mesh_order
from shardwise.chips.topology import Topology
from shardwise.errors import PlanError, ProgramError
from shardwise.mesh import Mesh, Sides
from shardwise.notation import parse
from shardwise.planning.cost import estimate
from shardwise.planning.problem import costs_of, problem
from shardwise.program import Program
from shardwise.steps import AllGather, Einsum, EinsumGather, EinsumScatter, GatherEinsum, ReduceScatter, goes_along_sides

UP, DOWN = "A[I_x, J] · B[J, K_x] -> C[I, K_x]", "A[I, J_x] · B[J_x, K] -> C[I_x, K]"
MATMUL = Einsum(("A", "B"), "C", ("I", "K"))
CUBE = Sides((2, 2, 2), (0, 1, 3, 2, 6, 7, 5, 4))


def sides(topology: str, mesh: str, axes: tuple[str, ...] = ("x",)) -> list[str]:
    slice_, grid = Topology.parse(topology), Mesh.parse(mesh)
    return list(map(str, sides_of(axes, grid, Site(slice_, mesh_order(slice_, grid)))))


@pytest.mark.parametrize(
    ("topology", "mesh", "axes", "found"),
    [
        ("v5p:2x2x2", "x=8", ("x",), ["2x2x2"]),
        ("v5p:2x2x2", "x=4, y=2", ("x",), ["2x2"]),
        ("v5p:2x2x2", "x=4, y=2", ("x", "y"), ["2x2x2"]),
        ("v5p:2x2x2", "x=4, y=2", ("y", "x"), ["2x2x2"]),
        ("v5p:2x2x2", "x=4, y=2", ("y",), []),  # one side is a ring, or two chips
        ("v4:4x4x4", "x=16, y=4", ("x",), ["4x4"]),
        ("v4:2x2x4", "x=16", ("x",), ["2x2x4"]),
        ("v5e:2x4", "x=8", ("x",), []),  # a line of four has no link from its end to its start
        ("v5e:4x4", "x=16", ("x",), []),
        ("v5e:4x4", "x=4, y=4", ("x",), []),
        ("v6e:2x2", "x=4", ("x",), ["2x2"]),
        ("v7x:2x2x1", "x=8", ("x",), []),  # two cores a chip
        ("v5p:2x2x2*2", "x=16", ("x",), []),  # two slices
        ("h100:8", "x=8", ("x",), []),
    ],
)
def test_which_devices_fill_a_torus(topology: str, mesh: str, axes: tuple[str, ...], found: list[str]):
    assert sides(topology, mesh, axes) == found


def test_every_device_has_its_place_whatever_the_order_of_the_devices():
    cube, mesh = Topology.parse("v5p:2x2x2"), Mesh.parse("x=8")
    positions = mesh_order(cube, mesh)
    for order in ((0, 1, 2, 3, 4, 5, 6, 7), (3, 1, 6, 0, 7, 2, 5, 4)):
        there = tuple(positions[k] for k in order)
        (found,) = sides_of(("x",), mesh, Site(cube, there))
        for side in range(3):
            for one, other in found.beside(side, 1):
                apart = [a != b for a, b in zip(there[one], there[other], strict=True)]
                assert sum(apart) == 1


@pytest.mark.parametrize(("hardware", "devices", "said"), [
    ("v5p:4x4x4", 64, "along all sides of 4x4x4"), ("tpu-v4", 32, "along all sides of 2x4x4"), ("v5p:4x4x8", 128, "both ways"),
])  # fmt: skip
def test_a_torus_of_up_to_64_devices_is_used_whole(hardware: str, devices: int, said: str):
    sizes = {"I": 65536, "J": 8192, "K": 57344}
    assert said in str(sw.plan(UP, sizes=sizes, mesh={"x": devices}, hardware=hardware).best)


@pytest.mark.parametrize(("text", "sizes"), [(UP, 8192), (DOWN, 8192)])
def test_a_cube_is_used_where_a_ring_leaves_links_idle(text: str, sizes: int):
    plan = sw.plan(text, sizes=dict.fromkeys("IJK", sizes), mesh="x=8", hardware="v5p:2x2x2")
    assert plan.best.program.steps[0].way == CUBE
    assert "along all sides of 2x2x2" in str(plan.best)
    rings = next(each for each in plan if each.program.overlaps and not any(map(goes_along_sides, each.program.steps)))
    assert replace(rings.program.steps[0], way=CUBE, chunks=1) == replace(plan.best.program.steps[0], chunks=1)
    moving, ring = plan.best.estimate.communication_seconds, rings.estimate.communication_seconds
    assert moving == pytest.approx(2 / 3 * ring, rel=0.02)
    assert [lane for lane, _ in plan.best.timeline().lanes if lane != "compute"] == [
        f"x side {side} {'up' if text == UP else 'down'}" for side in (1, 2, 3)
    ]


def test_a_name_that_needs_a_torus_is_refused_on_a_line():
    with pytest.raises(PlanError, match="'torus': no program of this equation has it: it has bidirectional, folded, ring"):
        sw.plan(UP, sizes=dict.fromkeys("IJK", 64), mesh="x=8", hardware="v5e:2x4", overlap="torus")


@pytest.mark.parametrize(
    "way", [Sides((2, 2), (0, 1, 2, 3)), Sides((2, 2, 2), (0, 0, 1, 2, 3, 4, 5, 6)), Sides((8,), tuple(range(7)))]
)
def test_a_torus_that_lacks_places_is_refused(way: Sides):
    inputs = tuple((operand.name, operand.layout) for operand in parse(UP).operands)
    with pytest.raises(ProgramError, match=f"a torus of {way} has not a place for each of the 8 devices along x"):
        Program(Mesh.parse("x=8"), inputs, (GatherEinsum(AllGather("A", "I", ("x",)), MATMUL, way),), "C")


ALL = "A[I_x, J] · B[J, K] -> C[I, K]"
COMPILED = {  # in microseconds
    "gathered": (UP, 8192, GatherEinsum(AllGather("A", "I", ("x",)), MATMUL, CUBE), 634),
    "summed": (DOWN, 8192, EinsumScatter(MATMUL, ReduceScatter("C", "I", ("x",)), CUBE), 661),
    "made": (ALL, 8192, EinsumGather(MATMUL, AllGather("C", "I", ("x",)), CUBE, 2), 774),
    "made, of much": (ALL, 28672, EinsumGather(MATMUL, AllGather("C", "I", ("x",)), CUBE, 2), 2517),
}


@pytest.mark.parametrize("form", COMPILED)
def test_what_goes_along_all_sides_takes_what_compilers_made_of_it(form: str):
    text, columns, step, microseconds = COMPILED[form]
    task = problem(parse(text), {"I": 8192, "J": 8192, "K": columns}, "x=8", "v5p:2x2x2")
    inputs = tuple((operand.name, operand.layout) for operand in task.equation.operands)
    found = estimate(Program(task.mesh, inputs, (step,), "C"), costs_of(task), task.sizes)
    assert found.seconds == pytest.approx(microseconds * 1e-6, rel=0.15)


def test_what_a_torus_holds_of_blocks_on_their_way_counts_as_memory():
    """Compiled for v5p: 4.7 to 6 blocks of temporaries of either form, where a ring has two."""
    cube = {"sizes": dict.fromkeys("IJK", 8192), "mesh": "x=8", "hardware": "v5p:2x2x2"}
    block = 2 * 8192 * 8192 / 8
    for text in (UP, DOWN):
        ring, torus = (sw.plan(text, **cube, overlap=way).best.estimate for way in ("bidirectional", "torus"))
        assert torus.peak_memory_bytes - ring.peak_memory_bytes == pytest.approx(4 * block)


# Compiled for v5p:2x2x4 and v5p:2x2x2: the torus in one chunk takes 1,176 us, of which parts are transposed for 680, in two
# 691 us; the second problem 96 us along the torus, and 76 us by a matmul and a gather.
def test_parts_that_a_matmul_makes_across_the_result_are_priced_with_their_transposes():
    text = "A[B, I, J] · B[B, J, K_x] -> C[B, I, K]"
    best = sw.plan(text, sizes={"B": 16, "I": 672, "J": 1536, "K": 8192}, mesh="x=16", hardware="v5p:2x2x4").best
    (step,) = best.program.steps
    assert isinstance(step, EinsumGather)
    assert isinstance(step.way, Sides)
    assert step.chunks == 2
    assert best.seconds == pytest.approx(691e-6, rel=0.1)
    text = "A[B, I_x, J] · B[J, K] -> C[B, I, K]"
    best = sw.plan(text, sizes={"B": 16, "I": 768, "J": 512, "K": 336}, mesh="x=8", hardware="v5p:2x2x2").best
    assert not best.program.overlaps
    assert best.seconds == pytest.approx(76e-6, rel=0.1)
