"""Random plans, compiled and held against the certificate; and by name what once was a false alarm, or not held at all.

`python -m benchmarks.certificates --count 500` does the same at length, on any target.
"""

from __future__ import annotations

import collections
import dataclasses
import math

import jax
import jax.numpy as jnp
import pytest

import shardwise as sw
from benchmarks.certificates import check
from benchmarks.tampering import tampered
from shardwise.compiled.audit import Audit, audit_text
from shardwise.compiled.certify import kept
from shardwise.compiled.expected import planned_collectives
from shardwise.errors import AuditMismatchError
from shardwise.layout import Layout
from shardwise.mesh import Mesh, Sides
from shardwise.notation import parse
from shardwise.planning.cost import estimate
from shardwise.planning.problem import costs_of
from shardwise.planning.ranking import Candidate
from shardwise.program import Program, relayout
from shardwise.schedule.places import Grid, on_devices
from shardwise.schedule.strands import gathering
from shardwise.steps import (
    AllGather,
    CollectivePermute,
    Einsum,
    EinsumGather,
    EinsumScatter,
    GatherEinsum,
    ReduceScatter,
    RotateEinsum,
    Way,
    moved_axes,
    step_of,
)

BLOCKS, PLANS = 4, 10
GATHER, PIPELINED = "A[I_x, J] · B[J, K_x] -> C[I, K_x]", "A[I_x, J] · B[J, K] -> C[I, K]"
SCATTER, ROTATE = "A[I, J_x] · B[J_x, K] -> C[I_x, K]", "A[I_x, J_y] · B[J_x, K_y] -> C[I_x, K_y]"
Plan = tuple[sw.Plan, Candidate]


@pytest.mark.parametrize("block", range(BLOCKS))
def test_random_plans_are_compiled_as_planned_and_no_tampered_program_passes(block: int):
    counts: collections.Counter[str] = collections.Counter()
    for seed in range(PLANS * block, PLANS * (block + 1)):
        check(seed, None, counts)
    assert counts["tampered programs caught"] >= PLANS


@pytest.mark.parametrize("overlap", [False, "ring", "bidirectional", "folded", "scatter", "rotate"])
def test_compiled_collectives_name_their_step_in_derivatives_too(overlap: bool | str):
    equation = {"scatter": SCATTER, "rotate": ROTATE}.get(str(overlap), PIPELINED)
    plan = planned(equation, "x=4" if overlap != "rotate" else "x=2, y=2", overlap=overlap, I=16, J=16, K=16)
    audit = compiled(plan, plan.best)
    numbers = {number for number, step in enumerate(plan.best.program.steps, 1) if moved_axes(step)}
    assert audit.collectives
    assert {step_of(each.op_name) for each in audit.collectives} == numbers

    mesh = sw.make_mesh(plan.task.mesh)
    arrays = [sw.put(jnp.ones((16, 16)), str(operand), mesh) for operand in plan.task.equation.operands]
    function = plan.function(mesh)
    derived = sw.audit(jax.value_and_grad(lambda *given: (function(*given) ** 2).sum(), argnums=(0, 1)), *arrays)
    assert numbers <= {step_of(each.op_name) for each in derived.collectives}


def planned(equation: str, mesh: str, dtype: str = "float32", overlap: bool | str = True, **sizes: int) -> sw.Plan:
    return sw.plan(equation, sizes=sizes, mesh=mesh, hardware="tpu-v5e", dtype=dtype, overlap=overlap)


def compiled(plan: sw.Plan, candidate: Candidate) -> Audit:
    mesh = sw.make_mesh(plan.task.mesh)
    arguments = [
        jax.ShapeDtypeStruct(
            tuple(plan.task.sizes[dim] for dim in operand.dims),
            plan.task.dtype,
            sharding=jax.sharding.NamedSharding(mesh, operand.layout.on(plan.task.mesh).spec),
        )
        for operand in parse(str(plan.task.equation)).operands
    ]
    return sw.audit(plan.function(mesh, candidate), *arguments, mesh=mesh)


EINSUM = Einsum(("A", "B"), "C", ("I", "K"))


def ring(kind: str, n: int, way: Way, chunks: int, rows: int = 7, dtype: str = "float32") -> Plan:
    """A plan of which the candidate is one ring over n devices, with blocks of so many rows."""
    equation, step = {
        "gather": (GATHER, GatherEinsum(AllGather("A", "I", ("x",)), EINSUM, way, chunks)),
        "scatter": (SCATTER, EinsumScatter(EINSUM, ReduceScatter("C", "I", ("x",)), way, chunks)),
        "pipelined": (PIPELINED, EinsumGather(EINSUM, AllGather("C", "I", ("x",)), way, chunks)),
    }[kind]
    plan = planned(equation, f"x={n}", dtype=dtype, overlap=False, I=rows * n, J=2 * n, K=3 * n)
    program = Program(plan.task.mesh, plan.best.program.inputs, (step,), "C")
    return plan, dataclasses.replace(plan.best, program=program)


def rotation(mesh: str, **sizes: int) -> Plan:
    plan = planned(ROTATE, mesh, overlap="rotate", **sizes)
    assert any(isinstance(step, RotateEinsum) for step in plan.best.program.steps)
    return plan, plan.best


def narrow_sums() -> Plan:
    plan = planned("A[I, J, K] · B[J_x] -> C[I_x]", "x=2", dtype="int8", overlap="scatter", I=6, J=4, K=3)
    return plan, plan.best


HELD = {
    "gather 3 one way": ring("gather", 3, "ring", 2),
    "gather 3 both ways": ring("gather", 3, "bidirectional", 2),
    "gather 4 both ways in three": ring("gather", 4, "bidirectional", 3),
    "scatter 3 one way": ring("scatter", 3, "ring", 2, dtype="bfloat16"),
    "scatter 3 both ways": ring("scatter", 3, "bidirectional", 1),
    "scatter 5 both ways": ring("scatter", 5, "bidirectional", 2),
    "pipelined 4 one way": ring("pipelined", 4, "ring", 2),
    "pipelined 3 both ways": ring("pipelined", 3, "bidirectional", 4),
    "pipelined, nothing to cut": ring("pipelined", 3, "bidirectional", 2, rows=1),
    "gather on a torus": ring("gather", 8, Sides((2, 2, 2), (0, 1, 3, 2, 6, 7, 5, 4)), 1),
    "scatter on a torus": ring("scatter", 6, Sides((2, 3), (0, 1, 2, 5, 4, 3)), 1),
    "pipelined on a torus": ring("pipelined", 4, Sides((2, 2), (0, 1, 3, 2)), 2),
    "rotate 2, 2": rotation("x=2, y=2", I=6, J=4, K=6),
    "rotate 2, 4": rotation("x=2, y=4", I=6, J=8, K=8),
    "rotate 3, 2": rotation("y=3, x=2", I=6, J=6, K=9),
    "rotate beside another axis": rotation("y=2, z=2, x=2", I=6, J=4, K=6),
    "sums of int8": narrow_sums(),
}


@pytest.mark.parametrize("name", HELD)
def test_blocks_of_odd_sizes_and_rotations_are_held(name: str):
    audit = compiled(*HELD[name])
    assert any(each.kind == "collective-permute" for each in audit.collectives)
    audit.assert_matches(HELD[name])
    for how, text in tampered(audit.module.text, audit.mesh):
        again = read_again(audit, text)
        with pytest.raises(AuditMismatchError):
            again.assert_matches(HELD[name])
        assert how


def read_again(audit: Audit, text: str) -> Audit:
    return audit_text(text, name="f", target=audit.target, mesh=audit.mesh, hardware=audit.hardware)


def test_a_longer_part_that_goes_the_other_way_is_another_program():
    audit = compiled(*HELD["scatter 3 both ways"])
    up, down = "{{0,1},{1,2},{2,0}}", "{{0,2},{1,0},{2,1}}"
    assert up in audit.module.text
    assert down in audit.module.text
    turned = (
        audit.module.text.replace(up, "UP").replace(down, up).replace("UP", down)
    )  # as many permutes each way, and bytes in all
    with pytest.raises(AuditMismatchError, match="from 0 to 1, 1 to 2, 2 to 0"):
        read_again(audit, turned).assert_matches(HELD["scatter 3 both ways"])


def test_a_permute_runs_over_the_axes_along_which_something_moves():
    plan = planned("A[I_{x,y}, J_z] -> A[I_{y,x}, J_z]", "x=2, y=2, z=2", I=8, J=4)
    layouts = [Layout.parse("I_{x,y}, J_z"), Layout.parse("I_{y,x}, J_z")]
    step = relayout("A", *layouts, plan.task.mesh)
    pairs = tuple((2 * source + z, 2 * target + z) for source, target in step.pairs for z in range(2))
    wider = CollectivePermute("A", ("x", "y", "z"), pairs, step.layout)
    one, other = (
        dataclasses.replace(plan.best, program=Program(plan.task.mesh, (("A", layouts[0]),), (each,), "A"))
        for each in (step, wider)
    )
    audit = compiled(plan, other)
    assert [each.axes for each in audit.collectives] == [("x", "y")]
    assert planned_collectives((plan, one)) == planned_collectives((plan, other))
    audit.assert_matches((plan, one))
    audit.assert_matches((plan, other))


@pytest.mark.parametrize("name", [name for name in HELD if "rotate" not in name])
def test_what_is_planned_is_what_an_estimate_counts(name: str):
    plan, candidate = HELD[name]
    counted = estimate(candidate.program, costs_of(plan.task), plan.task.sizes)
    assert sum(each.wire_bytes for each in planned_collectives(HELD[name])) == pytest.approx(counted.total_wire_bytes)


@pytest.mark.parametrize("sizes", [(1, 3), (2, 2), (3, 2), (2, 4), (4, 4), (5, 3), (8, 2), (6, 4)])
def test_operands_of_a_rotation_are_where_they_are_needed_when_all_have_moved(sizes: tuple[int, int]):
    grid = Grid(sizes)
    for k in range(2):
        at = {p * sizes[1] + q: (p, q)[k] for p in range(sizes[0]) for q in range(sizes[1])}
        for step in range(math.lcm(*sizes)):
            pairs = grid.pairs(k, step - 1 if step else None, step)
            moved = {target: at[source] for source, target in pairs}
            along = [tuple(divmod(place, sizes[1])[k] for place in pair) for pair in pairs]
            away = [min((target - source) % sizes[k], (source - target) % sizes[k]) for source, target in along]
            assert grid.hops(k, step - 1 if step else None, step) == max(away)
            assert moved == {p * sizes[1] + q: grid.blocks((p, q), step)[k] for p in range(sizes[0]) for q in range(sizes[1])}
            at = moved


def test_pairs_count_along_the_axes_as_they_are_named():
    mesh = Mesh.parse("x=2, y=2")
    assert on_devices(((0, 1),), ("x", "y"), mesh) == ((0, 1),)
    assert on_devices(((0, 1),), ("y", "x"), mesh) == ((0, 2),)
    assert on_devices(((0, 0), (1, 1)), ("x",), mesh) == ()


def test_a_ring_of_one_sends_nothing():
    assert gathering(1, "ring", 2, 4) == gathering(1, "bidirectional", 2, 4) == []


def test_sixteen_bit_numbers_that_a_host_widens_are_held_and_wider_ones_are_not():
    plan = planned(PIPELINED, "x=4", dtype="bfloat16", overlap=False, I=8, J=4, K=4)
    audit = compiled(plan, plan.best)
    audit.assert_matches(plan)
    assert (
        kept(audit, plan)
        == "compiled as planned: the same collectives, axes and elements, which the compiler sends in its own way: 48 B more"
    )
    wider = dict(tampered(audit.module.text, audit.mesh))["retyped"]
    with pytest.raises(AuditMismatchError, match="elements of float64"):
        read_again(audit, wider).assert_matches(plan)


def test_narrow_whole_numbers_that_one_operand_sums_alone_stay_narrow():
    mesh = sw.make_mesh("x=2")
    plan = planned("A[I, J, K] · B[J_x] -> C[I_x]", "x=2", dtype="int8", overlap="scatter", I=4, J=4, K=3)
    arrays = sw.put(jnp.ones((4, 4, 3), jnp.int8), "I, J, K", mesh), sw.put(jnp.ones(4, jnp.int8), "J_x", mesh)
    assert plan.function(mesh)(*arrays).dtype == jnp.int8
