"""Forms of programs in which other people's libraries come: what the doctor makes of each, in small."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import P
from jax.sharding import AbstractMesh, AxisType
from making import laid

import shardwise as sw
from shardwise.errors import CompileError, MeshError

AUTO = AbstractMesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
CHIP = "tpu-v5e"
W, X = jax.ShapeDtypeStruct((64, 64), jnp.float32), jax.ShapeDtypeStruct((32, 64), jnp.float32)


def product(w: Any, x: Any, scale: int = 1) -> Any:
    return scale * (x @ w)


def test_the_mesh_is_that_of_in_shardings_where_no_other_is_known():
    shardings = jax.NamedSharding(AUTO, P("x", "y")), jax.NamedSharding(AUTO, P("x"))
    found = sw.doctor(jax.jit(product, in_shardings=shardings), W, X, hardware=CHIP)
    assert str(found.mesh) == "x=4, y=2"
    assert [(place.subjects, str(place.before), str(place.after)) for place in found.places] == [
        (("w (float32[64,64])",), "[I_x, J_y]", "[I, J_y]")
    ]


def test_static_arguments_are_no_arrays():
    jitted = jax.jit(product, static_argnames=("scale",))
    assert sw.doctor(jitted, laid(AUTO, (64, 64), "x"), laid(AUTO, (32, 64), "x"), 3, hardware=CHIP).places
    with pytest.raises(MeshError, match="neither an argument nor the function holds one"):
        sw.doctor(jitted, W, X, 3)


def test_a_decomposition_is_read_and_told_as_opaque():
    mesh = sw.make_mesh("x=4, y=2", axis_types=AxisType.Auto)  # of this machine's devices: there it is a call of LAPACK's
    a = laid(mesh, (64, 32), "x", dtype=jnp.float32)
    found = sw.doctor(lambda a: jnp.linalg.svd(a)[1].sum(), a, on="here", hardware=CHIP)
    assert found.unread == ()
    assert [place.subjects for place in found.places] == [("a (float32[64,32])",)]
    assert "is opaque: the partitioner knows no rule for it" in found.places[0].cause.says
    truth: Any = found.truth
    assert truth.explained == 1.0


def test_a_model_with_what_is_no_array_is_refused_with_the_way_to_hand_over_its_arrays():
    model = {"kernel": laid(AUTO, (64, 64), "x"), "activation": jnp.tanh}

    def apply(model: Any, x: Any) -> Any:
        return model["activation"](x @ model["kernel"])

    with pytest.raises(CompileError, match=r"holds what is no array(.|\n)*eqx.partition(.|\n)*eqx.filter\(apply\(eqx.combine"):
        sw.doctor(apply, model, laid(AUTO, (32, 64), "x"))
    arrays, rest = {"kernel": model["kernel"]}, {"activation": model["activation"]}
    found = sw.doctor(lambda arrays, x: apply(arrays | rest, x), arrays, laid(AUTO, (32, 64), "x"), hardware=CHIP)
    assert len(found.places) == 1


def test_a_collective_that_compilers_join_answers_every_place_whose_array_it_moves():
    mesh = sw.make_mesh("x=8", axis_types=AxisType.Auto)
    types = {name: laid(mesh, (64, 64), dtype=jnp.float32) for name in ("in", "out")}

    def loss(w: Any, a: Any) -> Any:
        h = jnp.tanh(a @ w["in"])
        return jnp.sum(h @ w["out"])

    found = sw.doctor(jax.grad(loss), types, laid(mesh, (128, 64), "x", dtype=jnp.float32), mesh=mesh, on="here", hardware=CHIP)
    truth: Any = found.truth
    asked = {number for number, place in enumerate(found.places) if place.collectives}
    answered = {each.place for each in truth.answers} | {number for each in truth.answers for number in each.joined}
    assert asked == answered
    assert truth.gone == ()
    assert [(each.place, each.joined) for each in truth.answers] == [(0, (1,))]
    assert "made      2 (test_forms.py:" in str(truth)
    assert "in one with 1" in str(truth)
