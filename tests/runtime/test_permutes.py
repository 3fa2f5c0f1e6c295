"""Permutes to other axes, or to more parts: the same array under every transformation, as printed, and as held."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shardwise as sw
from shardwise.mesh import Mesh
from shardwise.program import Program, relayout
from shardwise.runtime.code import source
from shardwise.runtime.lower import lower
from shardwise.steps import AllReduce, CollectivePermute, Einsum, Step

MOVES = [
    ("I, J_x", "I, J_y", "x=2, y=2"),
    ("I, J_x", "I, J_y", "x=2, y=4"),
    ("I_x, J", "I_{y,z}, J", "x=2, y=2, z=2"),
    ("I_x, J_y", "I_y, J_{x,z}", "x=2, y=2, z=2"),
    ("I_{y,x}, J", "I_{z,x}, J_y", "x=2, y=2, z=2"),
]


def programs(before: str, after: str, mesh: str) -> list[Program]:
    layouts = [sw.Layout.parse(each) for each in (before, after)]
    found = {relayout("A", *layouts, Mesh.parse(mesh), keeps=keeps) for keeps in (True, False)}
    return [Program(Mesh.parse(mesh), (("A", layouts[0]),), (step,), "A") for step in sorted(found, key=str)]


@pytest.mark.parametrize(("before", "after", "mesh"), MOVES)
def test_a_permute_to_other_axes_is_the_array_under_every_transformation(before: str, after: str, mesh: str):
    devices, whole = sw.make_mesh(mesh), np.arange(16 * 24, dtype=np.float32).reshape(16, 24)
    given = sw.put(whole, before, devices)
    for program in programs(before, after, mesh):
        moved = jax.jit(lower(program, devices))
        made = moved(given)
        assert made.sharding.spec == sw.Layout.parse(after).on(program.mesh).spec
        for shard in made.addressable_shards:  # every copy, where there are several
            np.testing.assert_array_equal(shard.data, whole[shard.index])

        def total(array, moved=moved):
            return jnp.sum(moved(array) ** 2)

        with jax.set_mesh(devices):
            np.testing.assert_array_equal(jax.grad(total)(given), 2 * whole)
            np.testing.assert_array_equal(jax.jvp(moved, (given,), (3 * given,))[1], 3 * whole)
            np.testing.assert_array_equal(jax.jvp(jax.grad(total), (given,), (given,))[1], 2 * whole)
            both = sw.put(np.stack([whole, 2 * whole]), f"N, {before}", devices)
            np.testing.assert_array_equal(jax.vmap(moved)(both), both)


@pytest.mark.parametrize(("before", "after", "mesh"), MOVES)
def test_a_permute_to_other_axes_is_printed_as_it_runs(before: str, after: str, mesh: str):
    whole = np.arange(16 * 24, dtype=np.float32).reshape(16, 24)
    for program in programs(before, after, mesh):
        names: dict = {}
        exec(source(program, "moved"), names)
        spec = sw.Layout.parse(before).on(program.mesh).spec
        made = names["program"](jax.device_put(whole, jax.sharding.NamedSharding(names["mesh"], spec)))
        for shard in made.addressable_shards:
            np.testing.assert_array_equal(shard.data, whole[shard.index])


def test_a_permute_before_a_matmul_is_followed_by_types():
    """What is permuted does not leave: JAX's own rules lead the derivative back, over the copies, too."""
    steps: tuple[Step, ...] = (
        relayout("A", sw.Layout.parse("I, J_x"), sw.Layout.parse("I, J_y"), Mesh.parse("x=2, y=4")),
        Einsum(("A", "B"), "C", ("I", "K")),
        AllReduce("C", ("y",)),
    )
    inputs = ("A", sw.Layout.parse("I, J_x")), ("B", sw.Layout.parse("J_y, K_x"))
    program, mesh = Program(Mesh.parse("x=2, y=4"), inputs, steps, "C"), sw.make_mesh("x=2, y=4")
    random = np.random.default_rng(0)
    a, b = (random.integers(-4, 4, shape).astype("float32") for shape in ((8, 16), (16, 6)))
    function, placed = lower(program, mesh), [sw.put(a, "I, J_x", mesh), sw.put(b, "J_y, K_x", mesh)]
    np.testing.assert_array_equal(function(*placed), a @ b)
    with jax.set_mesh(mesh):
        found = jax.grad(lambda a, b: jnp.sum(function(a, b) ** 2), (0, 1))(*placed)
    for one, other in zip(found, jax.grad(lambda a, b: jnp.sum((a @ b) ** 2), (0, 1))(a, b), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_plan_chooses_such_a_permute_runs_and_holds_it():
    mesh, whole = sw.make_mesh("x=2, y=2"), np.arange(64 * 96, dtype=np.float32).reshape(64, 96)
    plan = sw.plan("A[I, J_x] -> A[I, J_y]", sizes={"I": 1280, "J": 15360}, mesh="x=2, y=2", hardware="v5e:2x2")
    assert [type(step) for step in plan.best.program.steps] == [CollectivePermute]
    small = sw.plan("A[I, J_x] -> A[I, J_y]", sizes={"I": 64, "J": 96}, mesh="x=2, y=2", hardware="v5e:2x2", dtype="float32")
    permuted = next(each for each in small.candidates if isinstance(each.program.steps[0], CollectivePermute))
    given = sw.put(whole, "I, J_x", mesh)
    np.testing.assert_array_equal(jax.jit(lower(permuted.program, mesh))(given), whole)
    audit = sw.audit(lower(permuted.program, mesh), given)
    assert [each.kind for each in audit.collectives] == ["collective-permute"]
    audit.assert_matches((small, permuted))
