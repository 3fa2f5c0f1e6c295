"""Collectives as devices of their own have them, and what TPU compilers are told of these and of rings."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contractions import whole

import shardwise as sw
from shardwise.dataflow import kept_layout, waiting
from shardwise.program import Program
from shardwise.runtime import lower
from shardwise.runtime.shard_collectives import OnTpu, Tiled
from shardwise.steps import AllGather, AllToAll, Einsum, EinsumGather, EinsumScatter, GatherEinsum, ReduceScatter, Step

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


MATMUL, GRADIENT = Einsum(("A", "B"), "C", ("I", "K")), Einsum(("A", "B"), "C", ("J", "K"))
TOLD: list[tuple[str, dict[str, int], tuple[Step, ...]]] = [
    ("A[I_x, J] · B[J, K] -> C[I_x, K]", {"I": 16, "J": 8, "K": 128}, (MATMUL,)),
    ("A[I, J] · B[J, K_x] -> C[I, K]", {"I": 16, "J": 8, "K": 512},
     (GatherEinsum(AllGather("B", "K", ("x",)), MATMUL, "bidirectional", 2),)),
    ("A[B, I_x, J] · B[B, I_x, K] -> C[J_x, K]", {"B": 2, "I": 32, "J": 16, "K": 128},
     (EinsumScatter(GRADIENT, ReduceScatter("C", "J", ("x",)), "bidirectional", 2),)),
    ("A[B, I, J_x] · B[B, I, K] -> C[J, K]", {"B": 2, "I": 8, "J": 512, "K": 128},
     (EinsumGather(GRADIENT, AllGather("C", "J", ("x",)), "ring", 2),)),
    ("A[I, J_x] · B[J, K_x] -> C[I_x, K]", {"I": 16, "J": 8, "K": 512},
     (AllToAll("A", "J", "I", ("x",)), GatherEinsum(AllGather("B", "K", ("x",)), MATMUL, "bidirectional"))),
]  # fmt: skip


@pytest.mark.parametrize(("equation", "sizes", "steps"), TOLD)
def test_what_tpu_compilers_are_told_bears_every_transformation(equation, sizes, steps, monkeypatch):
    monkeypatch.setattr(lower, "kind_of", lambda mesh: "TPU v5 lite")
    task = sw.plan(equation, sizes=sizes, mesh="x=4", hardware="v5e", overlap=False).task
    inputs = tuple((each.name, each.layout) for each in task.equation.operands)
    mesh, random = sw.make_mesh("x=4"), np.random.default_rng(0)
    function = lower.lower(Program(task.mesh, inputs, steps, "C"), mesh)
    plain = [jnp.asarray(random.normal(size=[sizes[dim] for dim in each.dims]), jnp.float32) for each in task.equation.operands]
    placed = [sw.put(array, str(each.layout)[1:-1], mesh) for array, each in zip(plain, task.equation.operands, strict=True)]

    def total(made):
        return lambda *arrays: jnp.sum(jnp.sin(made(*arrays)))

    transformed = {
        "as it is": lambda made: made,
        "reverse": lambda made: jax.grad(total(made), (0, 1)),
        "forward over reverse": lambda made: lambda a, b: jax.jvp(lambda a: jax.grad(total(made), 1)(a, b), (a,), (a,))[1],
        "in a batch": lambda made: lambda a, b: jax.vmap(made, (0, None))(jnp.stack([a, 2 * a]), b),
    }
    for name, changed in transformed.items():
        found, wanted = jax.jit(changed(function))(*placed), jax.jit(changed(whole(equation)))(*plain)
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-3, err_msg=name)


def test_a_ring_of_what_a_matmul_makes_waits_for_nothing_that_was_sent_before_it():
    inputs = tuple((name, sw.Layout.parse(dims)) for name, dims in (("A", "I, J_x"), ("P", "J, L"), ("Q", "L, K_x")))
    made = Einsum(("P", "Q"), "D", ("J", "K"))
    ring = GatherEinsum(AllGather("D", "K", ("x",)), Einsum(("A", "D"), "C", ("I", "K")))
    program = Program(sw.Mesh.parse("x=4"), inputs, (AllToAll("A", "J", "I", ("x",)), made, ring), "C")
    assert [waiting(program, number) for number in range(3)] == [(), (), ()]


GATHERED, TIMES_B = AllGather("A", "I", ("x",)), Einsum(("A", "B"), "C", ("B", "I", "K"))


@pytest.mark.parametrize(
    "steps",
    [
        (GatherEinsum(GATHERED, TIMES_B, "bidirectional", 2),),
        (GATHERED, TIMES_B),
        (EinsumGather(Einsum(("A",), "A", ("B", "I", "J")), GATHERED, chunks=1), TIMES_B),
    ],
    ids=["ring", "by itself", "by permutes"],
)
def test_what_is_gathered_is_given_beside_the_result_with_its_derivative(steps):
    equation = "A[B, I_x, J] · B[J, K] -> C[B, I, K]"
    inputs = tuple((name, sw.Layout.parse(dims)) for name, dims in (("A", "B, I_x, J"), ("B", "J, K")))
    program = Program(sw.Mesh.parse("x=4"), inputs, steps, "C")
    mesh, random = sw.make_mesh("x=4"), np.random.default_rng(0)
    a, b = random.normal(size=(2, 16, 8)).astype(np.float32), random.normal(size=(8, 8)).astype(np.float32)
    placed = sw.put(a, "B, I_x, J", mesh), sw.put(b, "J, K", mesh)
    function = lower.lower_keeping(program, ("A",), mesh)
    made, kept = jax.jit(function)(*placed)
    np.testing.assert_allclose(made, whole(equation)(a, b), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(kept, a)
    assert kept_layout(program, "B") is None

    def total(of):
        return lambda a, b: sum(jnp.sum(jnp.sin(each)) for each in of(a, b))

    found = jax.jit(jax.grad(total(function), (0, 1)))(*placed)
    wanted = jax.grad(total(lambda a, b: (whole(equation)(a, b), a)), (0, 1))(a, b)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
