"""Lookups of rows and the gradients of tables, planned: the same values, whatever splits what, and less is sent."""

from __future__ import annotations

import os
import random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import shardwise as sw
from shardwise.functions.lookup_places import LookupPlace
from shardwise.functions.replacing import found_places, replacing
from shardwise.functions.rewriting import rewritten

CHIP = "tpu-v5e"
FUNCTIONS = int(os.environ.get("FUNCTIONS", "24"))  # that are drawn; `make soak` draws more
MODES = ("clip", "fill", "promise_in_bounds")


def lookups(function: Any, args: Any, mesh: Any, forced: str = "ring") -> list[LookupPlace]:
    found, _ = found_places(function, tuple(args), None, mesh, CHIP, forced)
    return [place for place in found if isinstance(place, LookupPlace)]


def spec_of(numbers: random.Random, rank: int, axes: list[str]) -> PartitionSpec:
    """Each axis on a dimension, or on none."""
    entries: list[tuple[str, ...]] = [() for _ in range(rank)]
    for axis in numbers.sample(axes, len(axes)):
        if numbers.random() < 0.7:
            at = numbers.randrange(rank)
            entries[at] = (*entries[at], axis)
    return PartitionSpec(*(entry or None for entry in entries))


def drawn(seed: int) -> tuple[Any, list[jax.Array], Any]:
    """A function that looks rows up and weighs them, its table and tokens, and the mesh: every fourth of Explicit axes."""
    numbers, values, is_typed = random.Random(seed), np.random.default_rng(seed), seed % 4 == 3
    axes = (
        ["x=1, y=8", "x=4, y=2", "x=2, y=1, z=2", "x=8, y=1"] if is_typed else ["x=2, y=4", "x=4, y=2", "x=2, y=2, z=2", "x=8"]
    )
    mesh = sw.make_mesh(numbers.choice(axes), axis_types=AxisType.Explicit if is_typed else AxisType.Auto)
    axes, mode = list(mesh.axis_names), MODES[seed % 3]
    shape, count = numbers.choice([(16, 24), (32, 8, 16), (24, 16)]), numbers.choice([(16,), (8, 16)])
    axis = numbers.randrange(len(shape))
    size = shape[axis]
    beyond = 0 if mode == "promise_in_bounds" else size // 2
    tokens = values.integers(0, size + beyond, count).astype(numbers.choice(["int32", "int8", "uint8"]))
    rows = (*shape[:axis], *count, *shape[axis + 1 :])
    wanted, weights = spec_of(numbers, len(rows), axes), values.normal(size=rows).astype(np.float32)

    def function(table: Any, tokens: Any) -> Any:
        found = table.at[(slice(None),) * axis + (tokens,)].get(mode=mode, out_sharding=wanted if is_typed else None)
        if is_typed:
            found = jax.shard_map(lambda shard: 2 * shard, in_specs=(wanted,), out_specs=wanted)(found)
        else:
            found = jax.lax.with_sharding_constraint(found, NamedSharding(mesh, wanted))
        return jnp.sum(jnp.where(jnp.isnan(found), 0, jnp.tanh(found)) * weights), found

    given = ((values.normal(size=shape).astype(np.float32), shape), (tokens, count))
    args = [jax.device_put(each, NamedSharding(mesh, spec_of(numbers, len(sizes), axes))) for each, sizes in given]
    return function, args, mesh


@pytest.mark.parametrize("block", range(FUNCTIONS // 12))
def test_planned_lookups_have_the_same_values_and_gradients(block: int) -> None:
    kinds = list[tuple[str, bool, bool]]()
    for seed in range(block, FUNCTIONS, FUNCTIONS // 12):
        function, args, mesh = drawn(seed)
        gradient = jax.value_and_grad(function, has_aux=True)
        with jax.set_mesh(mesh):
            found = lookups(gradient, args, mesh)
            again = rewritten(gradient, replacing(found, mesh))
            got, wanted = (jax.tree.leaves(jax.jit(each)(*args)) for each in (again, gradient))
        for place in found:
            rows_split = bool(place.program.table_layout(place.task).axes_of("V"))
            kinds.append((place.task.kind, rows_split, bool(place.program.result.steps)))
        for one, other in zip(got, wanted, strict=True):
            assert jax.typeof(one) == jax.typeof(other), f"seed {seed}"
            np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=2e-5, atol=2e-5, err_msg=f"seed {seed}")
    assert len({kind for kind, *_ in kinds}) == 2, "lookups or gradients were not changed at all"
    assert any(split for _, split, _ in kinds), "no table was looked up with its rows split"


def test_a_gradient_is_added_to_what_is_there() -> None:
    mesh = sw.make_mesh("x=2, y=4", axis_types=AxisType.Auto)
    table, tokens = np.arange(16 * 8, dtype=np.float32).reshape(16, 8), np.arange(32).reshape(4, 8) % 11
    rows = np.random.default_rng(0).normal(size=(4, 8, 8)).astype(np.float32)

    def function(table: Any, tokens: Any, rows: Any) -> Any:
        found = table.at[tokens].add(rows)
        return jax.lax.with_sharding_constraint(found, NamedSharding(mesh, PartitionSpec(None, "x")))

    specs = PartitionSpec("x"), PartitionSpec("y"), PartitionSpec("y")
    args = [jax.device_put(each, NamedSharding(mesh, spec)) for each, spec in zip((table, tokens, rows), specs, strict=True)]
    found = lookups(function, args, mesh)
    assert [place.task.kind for place in found] == ["gradient"]
    again = jax.jit(rewritten(function, replacing(found, mesh)))(*args)
    np.testing.assert_allclose(again, function(*args), rtol=1e-6)


def test_what_is_no_lookup_of_whole_rows_is_left_with_its_reason() -> None:
    mesh = sw.make_mesh("x=8", axis_types=AxisType.Auto)

    def function(array: Any, places: Any) -> Any:
        return jnp.take_along_axis(array, places, axis=1)

    args = [
        jax.device_put(array, NamedSharding(mesh, PartitionSpec(*spec)))
        for array, spec in ((np.ones((8, 16), np.float32), (None, "x")), (np.zeros((8, 3), np.int32), ("x",)))
    ]
    places, left = found_places(function, tuple(args), None, mesh, CHIP, "ring")
    assert places == []
    assert [each.reason for each in left] == ["only lookups of whole rows, each by one index, are planned"]


def test_lookups_in_loops_of_typed_meshes_are_changed_where_they_stand() -> None:
    mesh = sw.make_mesh("x=2, y=4", axis_types=AxisType.Explicit)
    table = np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32)
    tokens = np.arange(3 * 4 * 8).reshape(3, 4, 8) % 16

    def function(table: Any, tokens: Any) -> Any:
        def looked_up(carried: Any, each: Any) -> tuple[Any, None]:
            rows = table.at[each].get(out_sharding=PartitionSpec("x", "y", None))
            return carried + jnp.tanh(rows).sum(), None

        return jax.lax.scan(looked_up, jnp.float32(0), tokens)[0]

    with jax.set_mesh(mesh):
        args = [
            jax.device_put(array, NamedSharding(mesh, PartitionSpec(*spec)))
            for array, spec in ((table, (None, "x")), (tokens, (None, "x")))
        ]
        found = lookups(function, args, mesh)
        assert [(place.task.kind, place.times) for place in found] == [("rows", 3)]
        again = jax.jit(jax.value_and_grad(rewritten(function, replacing(found, mesh))))(*args)
        wanted = jax.jit(jax.value_and_grad(function))(*args)
    for one, other in zip(jax.tree.leaves(again), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
