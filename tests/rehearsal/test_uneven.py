"""Layouts that sizes do not allow, which JAX takes without a word: the audit names dimension, size, axes, line and way out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import shardwise as sw
from shardwise.compiled.audit import Audit
from shardwise.errors import CompileError


def mesh() -> jax.sharding.Mesh:
    return sw.make_mesh("x=4, y=2", axis_types=AxisType.Auto)


def kept(array: Any, *spec: Any) -> Any:
    return jax.lax.with_sharding_constraint(array, NamedSharding(mesh(), PartitionSpec(*spec)))


def audited(function: Callable[..., Any], *shape: int) -> Audit:
    array = jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh(), PartitionSpec()))
    return sw.audit(function, array, mesh=mesh())


def said(of: Audit) -> str:
    return "\n".join(str(finding) for finding in of.findings if "does not divide" in finding.what)


def test_a_constraint_that_its_size_does_not_allow_is_named_with_the_line_and_the_way_out():
    found = said(audited(lambda a: kept(a * 2, "x").sum(0), 6, 10))
    assert "a constraint splits dimension 0 of float32[6,10] over x, which is 4 devices and does not divide 6" in found
    assert "the compiler pads it to 8 without a word" in found
    assert "(test_uneven.py:" in found
    assert "pad dimension 0 to 8, a multiple of 4" in found


def test_the_table_says_so():
    assert "does not divide 6" in str(audited(lambda a: kept(a * 2, "x").sum(0), 6, 10))


def in_a_loop(a: Any) -> Any:
    return jax.lax.scan(lambda total, row: (total + kept(row, "x").sum(), None), 0.0, a)[0]


def in_a_branch(a: Any) -> Any:
    return jax.lax.cond(a.sum() > 0, lambda: kept(a * 2, None, "x").sum(), lambda: 0.0)


def in_a_derivative(a: Any) -> Any:
    return jax.grad(lambda b: jax.checkpoint(lambda c: kept(c * c, None, "x"))(b).sum())(a)


def in_a_vmap(a: Any) -> Any:
    return jax.vmap(lambda row: kept(row, "x").sum())(a)


def in_a_shard_map(a: Any) -> Any:
    inner = lambda b: jax.lax.with_sharding_constraint(b, PartitionSpec(None, "x")).sum(1)  # noqa: E731
    spec = PartitionSpec("y")
    return jax.shard_map(inner, mesh=mesh(), in_specs=spec, out_specs=spec, axis_names={"y"})(a)


@pytest.mark.parametrize("function", [in_a_loop, in_a_branch, in_a_derivative, in_a_vmap, in_a_shard_map])
def test_wherever_it_stands(function: Callable[..., Any]):
    assert "over x, which is 4 devices and does not divide 6" in said(audited(function, 4, 6))


def test_over_two_axes_together():
    assert "over x, y, which is 8 devices and does not divide 12" in said(audited(lambda a: kept(a, ("x", "y")).sum(0), 12, 4))


def test_sizes_that_divide_are_not_spoken_of():
    assert not said(audited(lambda a: kept(a * 2, "x", PartitionSpec.UNCONSTRAINED).sum(0), 8, 10))
    assert not said(audited(lambda a: kept(a * 2, "x", None).sum(0), 0, 10))


def test_where_it_leaves_the_function_it_is_said_to_be_dropped_or_why_the_compiler_refuses():
    try:
        found = said(audited(lambda a: kept(a * 2, "x"), 6, 10))
        assert "JAX drops it without a word, and every device returns the whole" in found
    except CompileError as error:  # from JAX 0.11 on
        found = str(error)
        assert "pad it to 8" in found
    assert "a constraint splits dimension 0 of float32[6,10] over x, which is 4 devices and does not divide 6" in found
    assert "test_uneven.py:" in found
