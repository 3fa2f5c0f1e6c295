"""Arguments at home on another mesh, and functions lowered there: what is kept, what is said, what is refused."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

import shardwise as sw
from shardwise.compiled.targets.abstract_arguments import at_home, written_mesh
from shardwise.compiled.targets.helper_process import compile_in_subprocess
from shardwise.compiled.targets.lowering import lower_on
from shardwise.compiled.targets.unattached import mesh_of
from shardwise.errors import CompileError, LayoutError, MeshError, ShardwiseError
from shardwise.mesh import Mesh

TOPOLOGIES = ["v5e:2x4", "h100:8"]


@pytest.fixture(scope="module")
def host():
    return sw.make_mesh("x=4, y=2")


@pytest.fixture(scope="module", params=[pytest.param(text, marks=pytest.mark.needs(compiler_of="away")) for text in TOPOLOGIES])
def away(request):
    return mesh_of(request.param, "x=4, y=2")


def shaped(mesh, spec, shape=(8, 8), memory_kind=None):
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, spec, memory_kind=memory_kind))


def on(mesh) -> str:
    return "v5e:2x4" if mesh.devices.flat[0].platform == "tpu" else "h100:8"


def compiled(lowering, mesh) -> str:
    return compile_in_subprocess(lowering.program, on(mesh), Mesh.parse(mesh)).text


def test_layouts_come_along_and_the_rest_is_taken_as_replicated(host, away):
    args = {
        "laid": jax.device_put(jnp.ones((8, 8)), NamedSharding(host, P("x", None))),
        "shape": shaped(host.abstract_mesh, P(None, ("x", "y"))),
        "unreduced": shaped(host, P("x", unreduced={"y"})),
        "bare": jax.ShapeDtypeStruct((4,), jnp.bfloat16),
        "numpy": np.ones((3, 3)),
        "single": jax.ShapeDtypeStruct((4,), jnp.int8, sharding=SingleDeviceSharding(jax.devices()[0])),
        "host": shaped(host, P("y"), memory_kind="pinned_host"),
        "device": shaped(host, P("y"), memory_kind="device"),
        "single host": jax.ShapeDtypeStruct(
            (4,), jnp.int8, sharding=SingleDeviceSharding(jax.devices()[0], memory_kind="pinned_host")
        ),
        "scalar": np.float32(2),
        "number": 3.0,
        "nothing": None,
    }
    homed, replicated = at_home(args, away.abstract_mesh)
    specs = {name: leaf.sharding.spec for name, leaf in homed.items() if hasattr(leaf, "sharding")}
    assert specs["laid"] == P("x", None)
    assert specs["shape"] == P(None, ("x", "y"))
    assert specs["unreduced"] == P("x", unreduced={"y"})
    assert specs["bare"] == P()
    assert replicated == ("['bare']", "['numpy']", "['single']", "['single host']")
    assert (homed["number"], homed["nothing"]) == (3.0, None)
    assert homed["scalar"] is args["scalar"], "a static argument may be one"
    kinds = {name: leaf.sharding.memory_kind for name, leaf in homed.items() if hasattr(leaf, "sharding")}
    assert {name for name, kind in kinds.items() if kind == "pinned_host"} == {"host", "single host"}
    assert homed["bare"].dtype == jnp.bfloat16
    assert all(leaf.sharding.mesh == away.abstract_mesh for leaf in homed.values() if hasattr(leaf, "sharding"))


def test_a_random_key_is_brought_home(away):
    (key,), _ = at_home((jax.random.key(0),), away)
    text = compiled(lower_on(lambda key: jax.random.normal(key, (8,)), (key,), on(away), away), away)
    assert "is_scheduled=true" in text


@pytest.mark.parametrize(
    ("axes", "spec", "said"),
    [
        ("z=8", P("z"), r"\['w'\] is laid out as P.*'z'.*, and mesh x=4, y=2 has no axis 'z'"),
        ("x=8", P(None, "x"), r"on x=8, and mesh x=4, y=2 has x=4"),
        ("x=4, z=2", P("x", unreduced={"z"}), r"has no axis 'z'"),
    ],
)
def test_a_layout_that_the_mesh_cannot_hold_is_refused(away, axes, spec, said):
    with pytest.raises(MeshError, match=said):
        at_home({"w": shaped(sw.make_mesh(axes), spec)}, away)


def test_axes_that_a_layout_does_not_use_do_not_matter(away):
    homed, _ = at_home(shaped(sw.make_mesh("x=4, z=2"), P("x")), away)
    assert homed.sharding == NamedSharding(away, P("x"))


def test_the_mesh_that_arguments_lie_on_is_found(host):
    auto = sw.make_mesh("x=8", axis_types=AxisType.Auto)
    assert written_mesh([np.ones(3), {"w": shaped(auto, P())}, shaped(host, P())]) == auto
    assert written_mesh((1.0, np.ones(3))) is None


def test_a_function_is_traced_with_the_mesh_in_force(host, away):
    a, b = shaped(host, P("x", None)), shaped(host, P())
    gathered = lower_on(lambda a, b: sw.einsum("A[I_x,J] · B[J,K] -> C[I,K]", a, b), (a, b), on(away), away)
    summed = lower_on(
        lambda a: jax.shard_map(lambda a: jax.lax.psum(a, "x"), in_specs=P("x"), out_specs=P())(a), (a,), on(away), away
    )
    made = lower_on(lambda: jnp.zeros((8, 8), out_sharding=P("x")) + 1, (), on(away), away)
    for lowering, collective in ((gathered, "all-gather"), (summed, "all-reduce"), (made, "ENTRY")):
        assert (lowering.replicated, lowering.moved) == ((), False)
        assert collective in compiled(lowering, away)


@pytest.mark.needs("tpu")
def test_constraints_by_spec_work_under_automatic_axes(host):
    mesh = mesh_of("v5e:2x4", "x=4, y=2", axis_types=AxisType.Auto)
    lowering = lower_on(lambda a: jax.lax.with_sharding_constraint(a * 2, P("x", "y")), (shaped(host, P("x")),), on(mesh), mesh)
    assert not lowering.moved
    assert "f32[2,4]" in compiled(lowering, mesh)


def test_a_jitted_function_keeps_what_it_donates_and_what_is_static(host, away):
    scale = jax.jit(lambda a, k: a * k, static_argnums=1, donate_argnums=0)
    lowering = lower_on(scale, (shaped(host, P("x")), 2), on(away), away)
    assert "input_output_alias" in compiled(lowering, away)


def test_so_does_one_that_is_moved(host, away):
    @functools.partial(jax.jit, static_argnums=(1, 2), donate_argnums=0)
    def scaled(state, k, way):
        assert way == "up"
        scale = jax.shard_map(lambda a: a * k, mesh=host, in_specs=P("x"), out_specs=P("x"))
        return jax.tree.map(scale, state)

    state = {"b": shaped(host, P("x")), "a": shaped(host, P("x"))}
    lowering = lower_on(scaled, (state, 2, "up"), on(away), away)
    assert lowering.moved
    assert compiled(lowering, away).count("may-alias") == 2


@pytest.mark.parametrize("placed", ["host", "away", "abstract"])
def test_a_function_that_holds_on_to_another_mesh_is_moved(host, away, placed):
    def summed(a):
        return jax.shard_map(lambda a: jax.lax.psum(a, "x"), mesh=host, in_specs=P("x"), out_specs=P())(a)

    meshes = {"host": host, "away": away, "abstract": host.abstract_mesh}
    lowering = lower_on(summed, (shaped(meshes[placed], P("x")),), on(away), away)
    assert lowering.moved
    text = compiled(lowering, away)
    assert "all-reduce" in text
    assert "test_abstract_arguments.py" in text, "source lines are lost"


def test_where_a_function_fails_on_its_own_mesh_too_both_reasons_are_told(host, away):
    def summed(a):
        return jax.shard_map(lambda a: jax.lax.psum(a, "x"), mesh=host, in_specs=P("x"), out_specs=P())(a)

    with pytest.raises(CompileError, match=r"context mesh[\s\S]*nor where it is at home: ValueError: in_specs passed"):
        lower_on(summed, (np.ones((8, 8), np.float32),), on(away), away)


def test_so_is_one_that_closes_over_an_array_or_names_its_mesh(host, away):
    held = jax.device_put(jnp.ones((8, 8)), NamedSharding(host, P("x", None)))
    lowering = lower_on(lambda a: a + held, (shaped(host, P("x")),), on(away), away)
    assert lowering.moved
    assert "ENTRY" in compiled(lowering, away)
    planned = lower_on(
        lambda a, b: sw.einsum("A[I_x,J] · B[J,K] -> C[I,K]", a, b, mesh=host),
        (shaped(host, P("x")), shaped(host, P())), on(away), away,
    )  # fmt: skip
    assert planned.moved
    assert "all-gather" in compiled(planned, away)


def test_a_function_that_cannot_be_traced_tells_its_own_error_and_line(away):
    def wrong(a):
        b = a + 1
        return b @ jnp.ones((3, 3))

    with pytest.raises(CompileError) as refusal:
        lower_on(wrong, (np.ones((8, 8), np.float32),), on(away), away)
    first, second = str(refusal.value).splitlines()
    assert first.startswith("wrong cannot be traced for these devices: TypeError: dot_general requires contracting dimensions")
    assert second.startswith(f"at {__file__}:")
    assert second.endswith("return b @ jnp.ones((3, 3))")
    assert isinstance(refusal.value.__cause__, TypeError)
    assert isinstance(refusal.value, ShardwiseError)


def test_an_error_of_shardwise_stays_what_it_is(away):
    with pytest.raises((LayoutError, ShardwiseError), match="x splits both"):
        lower_on(lambda a: sw.einsum("A[I_x,J_x] -> S[I_x]", a), (np.ones((8, 8), np.float32),), on(away), away)


@pytest.mark.needs("tpu")
def test_an_abstract_mesh_in_constraints_and_maps_by_hand_is_that_of_the_devices():
    """As one writes it where none are attached: the mesh in force has their kind, and JAX takes the two for others."""
    mesh, spec = jax.sharding.AbstractMesh((2, 4), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2), jax.P("x", "y")

    def function(a):
        laid = jax.lax.with_sharding_constraint(a, spec)
        return jax.shard_map(lambda shard: jax.lax.psum(shard, "y"), mesh=mesh, in_specs=spec, out_specs=jax.P("x"))(laid)

    a = jax.ShapeDtypeStruct((256, 1024), "bfloat16", sharding=jax.NamedSharding(mesh, spec))
    assert [each.kind for each in sw.rehearse(function, a, on="v5e:2x4").collectives] == ["all-reduce"]
