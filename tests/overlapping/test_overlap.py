"""Whole functions compiled for devices that are not attached, before and after: never slower, each change with its line."""

from __future__ import annotations

import dataclasses
import json
import math
from types import SimpleNamespace
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec
from kept import taking_kept_texts
from test_rewriting import places

import shardwise as sw
from shardwise.cli import main
from shardwise.errors import CompileError, MeshError
from shardwise.functions import overlapping
from shardwise.functions.matmul_places import MatmulPlace
from shardwise.functions.replacing import replacing
from shardwise.functions.rewriting import rewritten
from shardwise.steps import Einsum, EinsumScatter, Fused

pytestmark = pytest.mark.needs("tpu")
ON = "v5e:2x4"
MESH = AbstractMesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)


def laid(shape: tuple[int, ...], *spec: Any, mesh: Any = MESH, dtype: Any = jnp.bfloat16) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, PartitionSpec(*spec)))


def constrained(array: Any, *spec: Any) -> Any:
    return jax.lax.with_sharding_constraint(array, PartitionSpec(*spec))


def loss(weights: Any, x: Any) -> Any:
    hidden = constrained(jnp.einsum("bsd,df->bsf", x, weights["up"]), "x", None, "y")
    out = jnp.einsum("bsf,fd->bsd", jax.nn.gelu(hidden), weights["down"])
    return (constrained(out, "x", "y", None).astype(jnp.float32) ** 2).mean()


def step(weights: Any, x: Any) -> Any:
    gradients = jax.grad(loss)(weights, x)
    return jax.tree.map(lambda weight, gradient: weight - 0.01 * gradient, weights, gradients)


def arguments(batch: int = 8, tokens: int = 1024, model: int = 2048, hidden: int = 8192, mesh: Any = MESH) -> Any:
    weights = {"up": laid((model, hidden), "x", "y", mesh=mesh), "down": laid((hidden, model), "y", "x", mesh=mesh)}
    return weights, laid((batch, tokens, model), "x", "y", None, mesh=mesh)


@pytest.fixture(scope="module")
def found() -> sw.Overlapped:
    with taking_kept_texts():
        return sw.overlap(step, *arguments(), on=ON, seconds=0)


def test_how_much_longer_it_compiles_is_said_where_that_is_known(found: sw.Overlapped):
    assert found.before is not None
    assert found.after is not None
    before, after, unsaid = (
        dataclasses.replace(made, audit=dataclasses.replace(made.audit, compile_seconds=seconds))
        for made, seconds in ((found.before, 2.0), (found.after, 5.0), (found.before, None))
    )
    known = dataclasses.replace(found, before=before, after=after)
    assert known.compile_times == 2.5
    assert "; compiles in 2.5 times the time (" in str(known)
    unknown = dataclasses.replace(known, before=unsaid)
    assert unknown.compile_times is None
    assert "compiles in" not in str(unknown)


def test_a_feed_forward_step_is_faster_and_says_where(found: sw.Overlapped):
    assert found.speedup > 1.05
    assert found.before_exposed is not None
    assert found.after_exposed is not None
    assert found.after_exposed < found.before_exposed
    first = loss.__code__.co_firstlineno
    lines = {place.line.place.rpartition(":")[2] for place in found.changes if place.line}
    assert lines <= {str(first + 1), str(first + 2)}
    text = str(found)
    assert text.startswith(f"step on {ON}: ")
    assert "times as fast" in text
    assert "test_overlap.py" in text
    assert found.code().count("sw.einsum(") == len(found.changes)
    assert [place for place in found.changes if place.times != 1] == []


def test_a_gradient_may_have_its_sum_alone_changed_where_that_compiles_to_be_faster(monkeypatch):
    """By a clock of the test: the best is one gradient behind its own matmul, and the other's sum behind what comes next."""
    seen: list[tuple[MatmulPlace, ...]] = []

    def sums_alone(place: MatmulPlace) -> bool:
        return place.is_brought and isinstance(place.program.steps[0], Einsum | EinsumScatter)

    def compiled(search: Any, kept: tuple[MatmulPlace, ...], options: Any) -> float:
        search.compiled[kept, options] = None
        seen.append(kept)
        alone = [len(place.program.steps) for place in kept if sums_alone(place)]
        return 10.0 - len(kept) - len(alone) - 5 * (sorted(alone) == [1, 2]) + bool(options)

    monkeypatch.setattr(overlapping._Search, "_compiled", compiled)
    found = sw.overlap(step, *arguments(), on=ON, seconds=60)
    alone = [place for place in found.changes if sums_alone(place)]
    assert sorted(len(place.program.steps) for place in alone) == [1, 2]
    assert {str(place.task.equation) for place in alone} != {str(each.task.equation) for each in seen[1]}
    assert "with operands as others bring them: " in str(found)
    assert "# a and b as they lie before the matmul" in found.code()


@pytest.mark.parametrize("gained", [1, 20])
def test_without_the_rings_of_the_compiler_where_that_is_faster(gained: float, monkeypatch):
    """By a clock of the test: without its own rings all is faster by so much, and each place changed by 1."""

    def compiled(search: Any, kept: tuple[MatmulPlace, ...], options: Any) -> float:
        search.compiled[kept, options] = None
        early = overlapping.PERMUTES_EARLY in dict(options)
        return 100.0 - (len(kept) if gained == 1 else -len(kept)) - gained * (overlapping.OWN_RINGS in dict(options)) + early

    monkeypatch.setattr(overlapping._Search, "_compiled", compiled)
    found = sw.overlap(step, *arguments(), on=ON, seconds=60)
    assert found.compiler_options == {overlapping.OWN_RINGS: "1000000"}
    assert bool(found.changes) == (gained == 1)
    assert f"compiled with {overlapping.OWN_RINGS}=1000000" in str(found)
    assert f"# jax.jit(..., compiler_options={found.compiler_options})" in found.code()
    assert sw.overlap(step, *arguments(), on=ON, seconds=0).tried == (5 if gained == 1 else 6)


@pytest.mark.parametrize("known", [True, False])
def test_permutes_start_early_where_the_compiler_knows_how_and_that_is_faster(known: bool, monkeypatch):
    def compiled(search: Any, kept: tuple[MatmulPlace, ...], options: Any) -> float:
        search.compiled[kept, options] = None
        early = overlapping.PERMUTES_EARLY in dict(options)
        assert kept or not early
        return float("inf") if early and not known else 100.0 - len(kept) - early

    monkeypatch.setattr(overlapping._Search, "_compiled", compiled)
    found = sw.overlap(step, *arguments(), on=ON, seconds=0)
    assert found.changes
    assert found.compiler_options == ({overlapping.PERMUTES_EARLY: "true"} if known else {})


@pytest.mark.parametrize("seconds", [0, 60])
@pytest.mark.parametrize("gained", [-1, 1])
def test_arrays_in_rings_lie_as_the_compiler_lays_others_where_that_is_faster(gained: int, seconds: float, monkeypatch):
    def compiled(search: Any, kept: tuple[MatmulPlace, ...], options: Any) -> float:
        search.compiled[kept, options] = None
        return 100.0 - len(kept) - 0.1 * gained * sum(not place.told for place in kept)

    monkeypatch.setattr(overlapping._Search, "_compiled", compiled)
    found = sw.overlap(step, *arguments(), on=ON, seconds=seconds)
    assert found.changes
    assert {place.told for place in found.changes} == {gained < 0}
    assert ("the compiler is not told how arrays lie" in found.code()) == (gained > 0)


def whole(place: MatmulPlace) -> bool:
    return place.unchunked == place


def compiled_in(seconds: float) -> Any:
    return SimpleNamespace(audit=SimpleNamespace(compile_seconds=seconds))


@pytest.mark.parametrize("quick", [1.0, 0.01])
@pytest.mark.parametrize("most", [1.5, 3.0, math.inf])
def test_what_compiles_too_long_is_not_kept_but_said(most: float, quick: float, monkeypatch):
    """By clocks of the test: each place gains 1 and takes 8 seconds to compile, 10 alone."""

    def compiled(search: Any, kept: tuple[MatmulPlace, ...], options: Any) -> float:
        search.compiled[kept, options] = compiled_in(quick * (10.0 + 8.0 * len(kept)))
        return 100.0 - len(kept)

    monkeypatch.setattr(overlapping._Search, "_compiled", compiled)
    found = sw.overlap(step, *arguments(), on=ON, seconds=60, compile_times=most)
    several = 5 if most == math.inf or quick < 1 else {1.5: 0, 3.0: 2}[most]
    assert len(found.changes) == several
    assert [note for note in found.notes if "compile_times=" in note] == (
        [] if several == 5 else [f"95 s would compile in 5.0 times the time, more than compile_times={most:g} allows"]
    )


@pytest.mark.parametrize(("most", "several"), [(1.5, 0), (2.0, 1), (3.0, 2), (3.5, 3), (4.5, 4), (math.inf, 5)])
def test_as_many_places_are_changed_as_compile_in_time(most: float, several: int, monkeypatch):
    """By clocks of the test: one place alone gains nothing, so that only what is left of all of them shows the way."""

    def compiled(search: Any, kept: tuple[MatmulPlace, ...], options: Any) -> float:
        search.compiled[kept, options] = compiled_in(10.0 + 8.0 * len(kept) + len(kept) ** 2 / 10)
        return 100.0 - max(0, len(kept) - 1) - 0.1 * bool(kept)

    monkeypatch.setattr(overlapping._Search, "_compiled", compiled)
    assert len(sw.overlap(step, *arguments(), on=ON, seconds=60, compile_times=most).changes) == several


@pytest.mark.parametrize("gained", [-1, 1])
def test_blocks_of_rings_are_whole_where_that_is_faster(gained: int, monkeypatch):
    def compiled(search: Any, kept: tuple[MatmulPlace, ...], options: Any) -> float:
        search.compiled[kept, options] = None
        return 100.0 - len(kept) - 0.1 * gained * sum(map(whole, kept))

    monkeypatch.setattr(overlapping._Search, "_compiled", compiled)
    found = sw.overlap(step, *arguments(), on=ON, seconds=0)
    assert len(found.changes) == 5
    assert all(map(whole, found.changes)) == (gained > 0)


def test_as_many_blocks_are_cut_as_compile_in_time(monkeypatch):
    """By clocks of the test: one ring with cut blocks compiles in three times the time, two do not."""

    def compiled(search: Any, kept: tuple[MatmulPlace, ...], options: Any) -> float:
        cut = len(kept) - sum(map(whole, kept))
        search.compiled[kept, options] = compiled_in(10.0 + len(kept) + 10.0 * cut)
        return 100.0 - len(kept) - cut

    monkeypatch.setattr(overlapping._Search, "_compiled", compiled)
    found = sw.overlap(step, *arguments(), on=ON, seconds=60)
    assert [*map(whole, found.changes)].count(False) == 1
    assert len(found.changes) == 5


@pytest.mark.parametrize(("most", "way"), [(3.0, "bidirectional"), (math.inf, "torus")])
def test_where_a_torus_compiles_too_long_rings_take_its_place(most: float, way: str, monkeypatch):
    """By clocks of the test: with a torus it is faster, and compiles in four times the time."""

    def compiled(search: Any, kept: tuple[MatmulPlace, ...], options: Any) -> float:
        tori = any(place.overlap == "torus" for place in kept)
        search.compiled[kept, options] = compiled_in(40.0 if tori else 10.0)
        return 100.0 - len(kept) - tori

    monkeypatch.setattr(overlapping._Search, "_compiled", compiled)
    cube = AbstractMesh((1, 8), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    given = arguments(model=4096, hidden=16384, mesh=cube)
    found = sw.overlap(step, *given, on="v5p:2x2x2", seconds=0, compile_times=most)
    ways = json.loads(json.dumps([place.overlap for place in found.changes]))
    assert way in ways
    assert ("torus" in ways) == (way == "torus")
    assert f'overlap="{way}"' in "\n".join(line for place in found.changes for line in place.code())


@pytest.mark.parametrize("name", [overlapping.OWN_RINGS, overlapping.PERMUTES_EARLY])
def test_the_options_that_are_suggested_are_a_tpus(name: str):
    assert overlapping._suggested(name, "v5p:2x2x2", MESH)
    assert not overlapping._suggested(name, "h100:8", MESH)
    assert not overlapping._suggested(name, None, sw.make_mesh("x=2"))


def test_what_is_returned_compiles_to_what_was_told(found: sw.Overlapped):
    audit = sw.rehearse(found.function, *arguments(), on=ON, mesh=MESH, compiler_options=found.compiler_options)
    assert audit.timeline().step_seconds == found.after_seconds
    assert {c.kind for c in audit.collectives} >= {"collective-permute"}
    before = sw.rehearse(step, *arguments(), on=ON, mesh=MESH)
    assert before.timeline().step_seconds == found.before_seconds
    lines = {c.source for c in audit.collectives if c.kind == "collective-permute"}
    assert all("test_overlap.py" in line for line in lines), lines


def small(mesh: Any) -> Any:
    """The arguments of the step with values, small, on simulated devices."""
    numbers = np.random.default_rng(0)
    return jax.tree.map(
        lambda kind: jax.device_put(
            numbers.normal(size=kind.shape).astype(np.float32).astype(kind.dtype), NamedSharding(mesh, kind.sharding.spec)
        ),
        arguments(2, 8, 16, 32),
    )


def close(got: Any, wanted: Any) -> None:
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(np.asarray(one, np.float32), np.asarray(other, np.float32), rtol=0.02, atol=0.02)


def test_the_changed_function_has_the_same_values_and_bears_every_transformation():
    mesh = sw.make_mesh("x=2, y=4", axis_types=AxisType.Auto)
    args = small(mesh)

    def curved(function: Any) -> Any:
        squares = lambda w: sum((leaf.astype(jnp.float32) ** 2).sum() for leaf in jax.tree.leaves(function(w, args[1])))  # noqa: E731
        return jax.jit(jax.grad(squares))(args[0])

    with jax.set_mesh(mesh):
        chosen = places(step, args, mesh)
        assert len(chosen) == 5
        changed = rewritten(step, replacing(chosen, mesh))
        wanted = jax.jit(step)(*args)
        close(jax.jit(changed)(*args), wanted)
        exported = jax.export.export(jax.jit(changed))(*args)
        close(jax.jit(exported.call)(*args), wanted)
        stacked = jnp.stack([args[1]] * 2)
        close(jax.jit(jax.vmap(lambda x: changed(args[0], x)))(stacked), jax.tree.map(lambda a: jnp.stack([a] * 2), wanted))
        close(curved(changed), curved(step))
        given = jax.tree.map(lambda array: jax.device_put(np.asarray(array), array.sharding), args)
        jax.jit(changed, donate_argnums=0)(*given)
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(given[0]))


def test_with_blocks_cut_or_whole_the_values_are_the_same():
    mesh = sw.make_mesh("x=2, y=4", axis_types=AxisType.Auto)
    args = small(mesh)

    def cut(place: MatmulPlace) -> MatmulPlace:
        """With two chunks a block."""
        steps = place.program.steps
        two = tuple(dataclasses.replace(each, chunks=2) if isinstance(each, Fused) else each for each in steps)
        return dataclasses.replace(place, program=dataclasses.replace(place.program, steps=two))

    with jax.set_mesh(mesh):
        chosen = [*map(cut, places(step, args, mesh))]
        uncut = [place.unchunked for place in chosen]
        assert [place == other for place, other in zip(chosen, uncut, strict=True)] == [False] * 5
        for each in (chosen, uncut):
            close(jax.jit(rewritten(step, replacing(each, mesh)))(*args), jax.jit(step)(*args))


@pytest.mark.usefixtures("kept_texts")
def test_what_gains_nothing_comes_back_as_it_was():
    def plain(x: Any, w: Any) -> Any:
        return x @ w

    gained = sw.overlap(plain, laid((64, 64), "x"), laid((64, 64)), on=ON)
    assert gained.function is plain
    assert gained.changes == ()
    assert "nothing was faster" in str(gained)
    assert gained.speedup == 1.0


@pytest.mark.parametrize("seconds", [-1, float("nan")])
def test_seconds_that_are_no_time_are_refused(seconds: float):
    with pytest.raises(CompileError, match="0 or more"):
        sw.overlap(step, *arguments(), on=ON, seconds=seconds)


@pytest.mark.parametrize("times", [0.5, float("nan")])
def test_compile_times_below_one_are_refused(times: float):
    with pytest.raises(CompileError, match="1 or more"):
        sw.overlap(step, *arguments(), on=ON, compile_times=times)


@pytest.mark.usefixtures("kept_texts")
def test_a_matmul_that_is_not_planned_is_told_with_its_reason():
    def mixed(x: Any, w: Any) -> Any:
        product = jax.lax.dot(x, w.astype(jnp.float32), preferred_element_type=jnp.float32)
        return constrained(product, "x", None)

    gained = sw.overlap(mixed, laid((64, 64), "x"), laid((64, 64), "x"), on=ON)
    assert gained.function is mixed
    assert [left.reason for left in gained.left] == ["its operands have different dtypes"]
    assert "left as it is" in str(gained)


@pytest.mark.usefixtures("kept_texts")
def test_explicit_axes_keep_their_types():
    mesh = AbstractMesh((8,), ("x",), axis_types=(AxisType.Explicit,))

    def layer(x: Any, w: Any) -> Any:
        return jnp.einsum("ij,jk->ik", x, w, out_sharding=PartitionSpec(None, "x"))

    args = (laid((8192, 8192), "x", mesh=mesh), laid((8192, 8192), None, "x", mesh=mesh))
    gained = sw.overlap(layer, *args, on=ON, seconds=0)
    assert [str(place.task.equation) for place in gained.changes] == ["A[J_x, I] · B[I, K_x] -> C[J, K_x]"]
    assert gained.speedup > 1.2


def test_numerics_options_are_kept():
    mesh = sw.make_mesh("x=4", axis_types=AxisType.Auto)

    def layer(x: Any, w: Any) -> Any:
        made = jnp.einsum("ij,jk->ik", x, w, preferred_element_type=jnp.float32, precision="highest")
        return jax.lax.with_sharding_constraint(made, NamedSharding(mesh, PartitionSpec(None, "x")))

    args = (laid((64, 32), "x", mesh=mesh), laid((32, 16), None, "x", mesh=mesh))
    chosen = places(layer, args, mesh)
    assert [place.task.accumulated for place in chosen] == ["float32"]
    traced = jax.jit(rewritten(layer, replacing(chosen, mesh))).trace(*args)
    assert traced.out_info.dtype == jnp.float32
    assert "ppermute" in str(traced.jaxpr)
    assert str(traced.jaxpr).count("Precision.HIGHEST") >= 4


def test_simulated_devices_share_one_host_and_a_decorated_function_runs_as_it_is(monkeypatch):
    calls = []

    @sw.overlapped("x=4")
    def double(x: Any) -> Any:
        """Twice."""
        calls.append(1)
        return x + x

    x = jnp.ones(4)
    np.testing.assert_array_equal(double(x), 2 * x)
    np.testing.assert_array_equal(double(x), 2 * x)
    assert double.__doc__ == "Twice."
    monkeypatch.setenv("SHARDWISE_OVERLAP", "0")
    np.testing.assert_array_equal(double(x), 2 * x)
    assert len(calls) == 3
    monkeypatch.delenv("SHARDWISE_OVERLAP")
    np.testing.assert_array_equal(jax.jit(jax.grad(lambda x: double(x).sum()))(x), jnp.full(4, 2.0))
    assert len(calls) == 4
    told = sw.overlap(double, x, mesh="x=4")
    assert "simulated devices share one host" in str(told)


def test_bad_input_is_one_clear_error():
    with pytest.raises(CompileError, match="is no function"):
        sw.overlap(3, on=ON)  # type: ignore[arg-type]
    with pytest.raises(CompileError, match="cannot be traced"):
        sw.overlap(lambda x: x + undefined, laid((8,)), on=ON)  # type: ignore[name-defined]  # noqa: F821
    with pytest.raises(MeshError):
        sw.overlap(lambda x: x, laid((8,)), on=ON, mesh="x=7")


FILE = """
import jax, jax.numpy as jnp
def layer(x, w):
    return jnp.einsum("ij,jk->ik", x, w, out_sharding=jax.P(None, "x"))
"""


@pytest.mark.usefixtures("kept_texts")
def test_the_command_says_the_same(tmp_path, capsys):
    (tmp_path / "train.py").write_text(FILE)
    called = [f"{tmp_path}/train.py:layer", "--args", "bfloat16[8192@x,8192] bfloat16[8192,8192@x]", "--mesh", "x=8"]
    assert main(["overlap", *called, "--on", ON, "--seconds", "0", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["before_seconds"] > told["after_seconds"]
    (change,) = told["changes"]
    assert change["line"].endswith("train.py:4")
    assert main(["overlap", *called, "--on", ON, "--seconds", "0", "--code"]) == 0
    assert 'sw.einsum("A[J_x, I] · B[I, K_x] -> C[J, K_x]", a, b, overlap=' in capsys.readouterr().out
