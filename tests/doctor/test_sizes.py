"""Sizes that axes do not divide, and work that devices repeat: told without a compiler, and what is pasted cures it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import P
from jax.sharding import AbstractMesh, AxisType
from making import laid

import shardwise as sw
from shardwise.errors import MeshError
from shardwise.functions.diagnosis_facts import facts
from shardwise.functions.paddings import padding_text
from shardwise.functions.pasting import apply

AUTO = AbstractMesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
SIXTEEN = AbstractMesh((16,), ("x",), axis_types=(AxisType.Explicit,))
CHIP = "tpu-v5e"

CONSTRAINED = """\
import jax
import jax.numpy as jnp
from jax import P


def build(mesh):
    def forward(a, w):
        h = a @ w
        h = jax.lax.with_sharding_constraint(h, jax.NamedSharding(mesh, P("x", None)))
        return h * 2

    return forward
"""
RESHARDED = CONSTRAINED.replace("jax.lax.with_sharding_constraint", "jax.sharding.reshard")


def loaded(text: str, folder: Path, name: str) -> Any:
    path = folder / f"{name}.py"
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_constraint_whose_axes_do_not_divide_is_padded_and_then_nothing_moves(tmp_path: Path):
    mesh = sw.make_mesh("x=8", axis_types=AxisType.Auto)
    args = laid(mesh, (1004, 64), dtype=jnp.float32), laid(mesh, (64, 64), dtype=jnp.float32)
    found = sw.doctor(loaded(CONSTRAINED, tmp_path, "uneven").build(mesh), *args, mesh=mesh, hardware=CHIP)
    (place,), (padded,) = found.places, found.padded
    assert place.cause.uneven
    assert "8 devices (x) do not divide I of 1004, and no result can lie so" in place.cause.says
    assert padded.wire_bytes == place.wire_bytes > 0
    assert "pad float32[1004,64] to [1008, 64] before the constraint at uneven.py:9" in padded.says
    assert padded.paste is not None
    assert "jnp.pad(h, ((0, 4), (0, 0)))" in padded.paste.new
    assert "padding" in str(found)
    assert facts(found)["padded"][0]["paste"]["new"] == padded.paste.new

    cured = loaded(apply(padded.paste, CONSTRAINED), tmp_path, "even").build(mesh)
    assert sw.doctor(cured, *args, mesh=mesh, hardware=CHIP).places == ()
    assert sw.audit(cured, *args, mesh=mesh).collectives == ()
    a, w = jnp.arange(1004 * 64, dtype=jnp.float32).reshape(1004, 64), jnp.eye(64)
    assert jnp.array_equal(jax.jit(cured)(a, w)[:1004], (a @ w) * 2)


def test_an_explicit_layout_whose_axes_do_not_divide_is_padded(tmp_path: Path):
    args = laid(SIXTEEN, (1000, 64)), laid(SIXTEEN, (64, 64))
    stop = sw.doctor(loaded(RESHARDED, tmp_path, "uneven_type").build(SIXTEEN), *args, hardware=CHIP).stop
    assert stop is not None
    assert "16 devices do not divide dimension 0 of 1000" in stop.why
    paste = stop.options[0].paste
    assert paste is not None
    cured = loaded(apply(paste, RESHARDED), tmp_path, "even_type").build(SIXTEEN)
    assert sw.doctor(cured, *args, hardware=CHIP).stop is None


def test_an_argument_whose_axes_do_not_divide_is_refused_with_the_shape_that_they_do():
    with pytest.raises(MeshError) as refused:
        sw.doctor(lambda p, a: p["w"] + a, {"w": laid(AUTO, (6, 3), "x", "y")}, laid(AUTO, (8, 4), "x"))
    assert str(refused.value) == (
        "p['w'] of [6, 3] cannot lie as P('x', 'y'), whose axes do not divide its sizes: "
        "pad it to [8, 4], jnp.pad(p['w'], ((0, 2), (0, 1)))"
    )


def test_padding_is_written_as_jax_takes_it():
    padded = jnp.pad(jnp.ones((6, 3)), eval(padding_text((6, 3), (8, 4))))
    assert padded.shape == (8, 4)


def loss(w: Any, a: Any) -> Any:
    for k in w:
        a = jnp.tanh(a @ k)
    return a.sum()


@pytest.mark.parametrize(("spec", "axes"), [((), "x, y"), (("x",), "y"), ((("x", "y"),), "")])
def test_matmuls_that_devices_repeat_are_told_without_a_compiler(spec: tuple[Any, ...], axes: str):
    args = [laid(AUTO, (512, 512))] * 3, laid(AUTO, (4096, 512), *spec)
    found = sw.doctor(jax.grad(loss), *args, hardware=CHIP)
    told = [each for each in found.findings if each.kind == "repeated-work"]
    if not axes:
        assert told == []
        return
    (one,) = told
    assert f"devices along {axes} do it alike" in one.what
    assert one.count == 8  # three forward, five back: nothing is asked of the input's own gradient
    assert [line.place for line in one.lines] == [f"{__file__}:{loss.__code__.co_firstlineno + 2}"]


def test_what_is_repeated_costs_what_the_totals_grow_by():
    def multiplying(*spec: Any) -> float:
        args = [laid(AUTO, (512, 512))], laid(AUTO, (4096, 512), *spec)
        found = sw.doctor(loss, *args, hardware=CHIP, remedies=False)
        assert found.totals is not None
        return found.totals.multiplying_seconds

    assert multiplying("x") == pytest.approx(2 * multiplying(("x", "y")))


def test_a_map_by_hand_repeats_nothing_that_its_specs_split():
    def mapped(a: Any, w: Any) -> Any:
        return jax.shard_map(jnp.matmul, mesh=AUTO, in_specs=(P(("x", "y")), P()), out_specs=P(("x", "y")))(a, w)

    found = sw.doctor(mapped, laid(AUTO, (4096, 512), ("x", "y")), laid(AUTO, (512, 512)), hardware=CHIP)
    assert found.findings == ()
