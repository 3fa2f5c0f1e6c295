"""Programs over several slices, compiled: what stays in a slice, what leaves it over the network, and the certificate."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import shardwise as sw
from shardwise.compiled.audit import Audit
from shardwise.compiled.confirming import rehearsed
from shardwise.compiled.targets.unattached import mesh_of, target_mesh
from shardwise.errors import MeshError

pytestmark = pytest.mark.usefixtures("kept_texts")


def summed(on: str, axes: str, over: str | tuple[str, ...]) -> Audit:
    """A matmul whose contracted dimension is split over axes: its result is added up over them."""
    mesh = target_mesh(on, axes)
    a = jax.ShapeDtypeStruct((2048, 4096), jnp.bfloat16, sharding=NamedSharding(mesh, PartitionSpec(None, over)))
    b = jax.ShapeDtypeStruct((4096, 2048), jnp.bfloat16, sharding=NamedSharding(mesh, PartitionSpec(over, None)))
    return sw.rehearse(lambda a, b: jnp.einsum("ij,jk->ik", a, b, out_sharding=PartitionSpec()), a, b, on=on, mesh=axes)


def found(audit: Audit) -> list[tuple[str, tuple[str, ...], float, float]]:
    assert audit.unread == ()
    return [(c.kind, c.axes, c.wire_bytes, c.network_bytes) for c in audit.collectives]


@pytest.mark.needs("tpu")
def test_a_sum_over_slices_alone_goes_over_the_network():
    audit = summed("v5e:2x4*2", "s=2, x=8", "s")
    assert found(audit) == [("all-reduce", ("s",), 2048 * 2048 * 2, 2048 * 2048 * 2)]
    assert audit.total_network_bytes == audit.total_wire_bytes
    line = audit.timeline()
    assert dict(line.lanes)["network out"] == pytest.approx(2048 * 2048 * 2 / 3.125e9)
    assert line.exposed_seconds == pytest.approx(2048 * 2048 * 2 / 3.125e9, rel=0.01)
    assert "8.39 MB of it over the network" in str(audit)


@pytest.mark.needs("tpu")
def test_a_sum_over_all_devices_is_scattered_in_each_slice_first():
    whole = 2048 * 2048 * 2
    assert found(summed("v5e:2x4*2", "s=2, x=8", ("s", "x"))) == [
        ("reduce-scatter", ("x",), whole * 7 / 8, 0.0),
        ("all-reduce", ("s",), whole / 8, whole / 8),
        ("all-gather", ("x",), whole * 7 / 8, 0.0),
    ]


@pytest.mark.needs("tpu")
def test_an_axis_over_slices_and_chips_is_named_by_its_parts():
    whole = 2048 * 2048 * 2
    assert found(summed("v5e:2x4*2", "x=16", "x")) == [
        ("reduce-scatter", ("x:(2)8",), whole * 7 / 8, 0.0),
        ("all-reduce", ("x:(1)2",), whole / 8, whole / 8),
        ("all-gather", ("x:(2)8",), whole * 7 / 8, 0.0),
    ]


@pytest.mark.needs("tpu")
def test_groups_of_four_slices_are_told_apart():
    assert [c[:2] for c in found(summed("v5e:2x2*4", "a=2, b=2, x=4", "b"))] == [("all-reduce", ("b",))]
    assert [c[:2] for c in found(summed("v5e:2x2*4", "a=2, b=2, x=4", "a"))] == [("all-reduce", ("a",))]


@pytest.mark.needs("tpu")
def test_a_permute_to_the_next_slice_goes_over_the_network_and_one_within_does_not():
    mesh = target_mesh("v5e:2x4*2", "s=2, x=8")
    a = jax.ShapeDtypeStruct((1024, 2048), jnp.bfloat16, sharding=NamedSharding(mesh, PartitionSpec(("s", "x"))))

    def turned(axis: str, size: int):
        pairs = [(here, (here + 1) % size) for here in range(size)]
        split = PartitionSpec(("s", "x"))
        return jax.shard_map(lambda a: jax.lax.ppermute(a, axis, pairs), in_specs=split, out_specs=split)

    held = 1024 * 2048 * 2 / 16
    assert found(sw.rehearse(turned("s", 2), a, on="v5e:2x4*2", mesh="s=2, x=8")) == [
        ("collective-permute", ("s",), held, held)
    ]
    within = sw.rehearse(turned("x", 8), a, on="v5e:2x4*2", mesh="s=2, x=8")
    assert found(within) == [("collective-permute", ("x",), held, 0.0)]
    assert within.collectives[0].groups[:2] == ((0, 1), (1, 2))
    assert (8, 9) in within.collectives[0].groups


PLANS = [
    ("v5e:2x4*2", "s=2, x=8", "A[I_s, J_x] · B[J_x, K] -> C[I_s, K]"),
    ("v5e:2x4*2", "s=2, x=8", "A[I, J_{s,x}] · B[J_{s,x}, K] -> C[I, K]"),
    ("v5e:2x4*2", "x=16", "A[I_x, J] -> A[I, J]"),
    ("v6e:2x4*2", "s=2, x=8", "A[B_s, D] · W[D_x, F] -> C[B_s, F]"),
    ("v5p:2x2x1*2", "s=2, x=4", "A[I_{s,x}, J] -> A[I, J_{s,x}]"),
    ("v5e:2x2*4", "a=2, b=2, x=4", "S[I, J]{U_b} -> S[I, J]"),
]


@pytest.mark.needs("tpu")
@pytest.mark.parametrize(("on", "axes", "equation"), PLANS)
def test_plans_over_slices_are_compiled_as_planned(on: str, axes: str, equation: str):
    sizes = dict.fromkeys(sw.parse(equation).dims, 4096)
    plan = sw.plan(equation, sizes=sizes, mesh=axes, hardware=on)
    assert plan.task.topology is not None
    audit = rehearsed(plan.task, plan.best.program, plan.task.topology)
    audit.assert_matches(plan)
    assert audit.total_network_bytes == pytest.approx(plan.best.estimate.network_bytes)
    assert audit.timeline().step_seconds == pytest.approx(plan.best.seconds, rel=0.2)


def test_the_plan_says_which_axis_crosses_and_what_goes_over_the_network():
    equation = "A[I, J_{s,x}] · B[J_{s,x}, K] -> C[I, K]"
    plan = sw.plan(equation, sizes=dict.fromkeys("IJK", 8192), mesh="s=2, x=8", hardware="v5e:2x4*2")
    text = str(plan)
    assert "s over 2 slices; x a line of 2 x line of 4" in text
    assert "of it over the network" in text
    assert "held-out" not in text
    assert plan.best.estimate.network_bytes < plan.best.estimate.total_wire_bytes / 5


@pytest.mark.needs("tpu")
def test_the_plan_of_a_mesh_of_such_devices_is_the_same():
    mesh = mesh_of("v5e:2x4*2", "s=2, x=8")
    equation, sizes = "A[I_s, J_x] · B[J_x, K] -> C[I_s, K]", dict.fromkeys("IJK", 4096)
    here, named = (sw.plan(equation, sizes=sizes, mesh=m, hardware=h) for m, h in ((mesh, None), ("s=2, x=8", "v5e:2x4*2")))
    assert str(here).replace("mesh s=2, x=8", "") == str(named).replace("mesh s=2, x=8", "")


@pytest.mark.needs("gpu")
def test_hosts_of_gpus_have_their_bytes_over_the_network_counted():
    audit = summed("h100:2x8", "x=16", "x")
    (kind, _, wire, slow), *more = found(audit)
    assert (kind, more) == ("all-reduce", [])
    assert slow == pytest.approx(2048 * 2048 * 2 / 8)
    assert slow < wire


def test_a_mesh_that_does_not_go_over_all_slices_is_refused():
    with pytest.raises(MeshError, match="does not go over the 2 slices"):
        summed("v5e:2x4*2", "x=7", "x")
