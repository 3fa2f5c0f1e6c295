"""Collectives as devices of their own have them: all-to-alls that join a dimension of one row, scatters told of blocks."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import numpy as np
import pytest

import shardwise as sw
from shardwise.runtime.shard_collectives import OnTpu, Tiled

SHAPES = ((1, 8, 12), (8, 1, 12), (8, 12, 1))


def exchange(collectives: Tiled, mesh: Any, joined: int, cut: int) -> tuple[Any, str, Any]:
    """An all-to-all of an array of three dimensions as a function, and how what it takes and makes lies."""
    before, after = ([f"{dim}_x" if k == at else dim for k, dim in enumerate("IJK")] for at in (joined, cut))
    specs = [sw.Layout.parse(", ".join(dims)).spec for dims in (before, after)]
    moved = jax.shard_map(
        lambda shard: collectives.all_to_all(shard, cut, joined, ("x",)), mesh=mesh, in_specs=specs[0], out_specs=specs[1]
    )  # fmt: skip
    return moved, ", ".join(before), specs[1]


@pytest.mark.parametrize(("shape", "split"), [(shape, k) for shape, k in itertools.product(SHAPES, range(3)) if shape[k] != 1])
def test_an_all_to_all_that_joins_one_row_is_the_same_change_of_layout(shape: tuple[int, ...], split: int):
    mesh = sw.make_mesh("x=4")
    whole = np.arange(4 * np.prod(shape), dtype=np.float32).reshape([4 * n if n == 1 else n for n in shape])
    moved, before, spec = exchange(Tiled(), mesh, shape.index(1), split)
    given = sw.put(whole, before, mesh)
    np.testing.assert_array_equal(moved(given), whole)
    assert moved(given).sharding.spec == spec
    with jax.set_mesh(mesh):
        np.testing.assert_array_equal(jax.grad(lambda array: (moved(array) ** 2).sum())(given), 2 * whole)


@pytest.mark.parametrize(("joined", "cut"), list(itertools.permutations(range(3), 2)))
def test_an_all_to_all_that_compilers_are_told_of_is_the_same(joined: int, cut: int):
    mesh, whole = sw.make_mesh("x=4"), np.arange(8 * 12 * 16, dtype=np.float32).reshape(8, 12, 16)
    moved, before, _ = exchange(OnTpu(sw.hardware("v6e")), mesh, joined, cut)
    given, both = sw.put(whole, before, mesh), np.stack([whole, 2 * whole])
    np.testing.assert_array_equal(jax.jit(moved)(given), whole)
    with jax.set_mesh(mesh):
        value, tangent = jax.jvp(moved, (given,), (given,))
        np.testing.assert_array_equal(value, tangent)
        np.testing.assert_array_equal(jax.grad(lambda array: (moved(array) ** 2).sum())(given), 2 * whole)
        np.testing.assert_array_equal(jax.vmap(moved)(sw.put(both, f"N, {before}", mesh)), both)


SCATTERED = (
    ((8, 40), 0, "float32"), ((8, 1024), 1, "bfloat16"), ((8, 1024), 1, "float32"), ((3, 8, 24), 2, "float32"),
    ((3, 32, 5), 1, "bfloat16"), ((3, 24, 130), 1, "float32"),
    ((1536,), 0, "bfloat16"), ((40,), 0, "float32"),
)  # fmt: skip


@pytest.mark.parametrize("chip", ["v5p", "v7x"])
@pytest.mark.parametrize(("shape", "at", "dtype"), SCATTERED)
def test_a_scatter_told_of_its_blocks_is_the_same(shape: tuple[int, ...], at: int, dtype: str, chip: str):
    mesh = sw.make_mesh("x=4")
    terms = np.random.default_rng(0).integers(-8, 8, (4, *shape)).astype(dtype)
    names = "IJK"[: len(shape)]
    dims = [f"{dim}_x" if k == at else dim for k, dim in enumerate(names)]
    specs = [sw.Layout.parse("N_x, " + ", ".join(names)).spec, sw.Layout.parse(", ".join(dims)).spec]

    def summed(collectives: Tiled):
        return jax.jit(jax.shard_map(
            lambda shard: collectives.reduce_scatter(shard[0], at, ("x",)), mesh=mesh, in_specs=specs[0], out_specs=specs[1]
        ))  # fmt: skip

    apart, tiled = summed(OnTpu(sw.hardware(chip))), summed(Tiled())
    given = sw.put(terms, "N_x, " + ", ".join(names), mesh)
    np.testing.assert_array_equal(apart(given), terms.sum(0))
    assert apart(given).sharding.spec == specs[1]
    with jax.set_mesh(mesh):
        grads = [jax.grad(lambda array, of=of: (of(array).astype("float32") ** 2).sum())(given) for of in (apart, tiled)]
        pushed = [jax.jvp(of, (given,), (given,))[1] for of in (apart, tiled)]
        stacked = [
            jax.vmap(of)(sw.put(np.stack([terms, 2 * terms]), f"S, N_x, {', '.join(names)}", mesh)) for of in (apart, tiled)
        ]
        twice = [jax.grad(lambda a, of=of: jax.jvp(of, (a,), (a,))[1].astype("float32").sum())(given) for of in (apart, tiled)]
    for pair in (grads, pushed, stacked, twice):
        np.testing.assert_array_equal(*pair)
