"""A problem read off arrays, or what describes them: their sizes, dtype, layouts, mesh and hardware."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, NamedSharding

from shardwise.chips import Hardware
from shardwise.chips import hardware as chips
from shardwise.errors import PlanError, did_you_mean, quoted
from shardwise.mesh import Mesh
from shardwise.planning.prices import ITEM_BYTES
from shardwise.planning.problem import Problem
from shardwise.runtime.arrays import as_array
from shardwise.runtime.devices import AnyMesh, find_mesh
from shardwise.runtime.execute import Options, Signature, bind, check_options, read_equation, signature


def problem_of(
    text: str, arrays: Sequence[Any], mesh: Any, hardware: str | Hardware | None, dtype: str | None,
    memory_limit: float | None, overlap: bool | str, exact: bool,
) -> Problem:  # fmt: skip
    """The problem that an equation of these arrays poses; what is given besides stands in place of what they say.

    Args:
        text: the notation, or `"ij,jk->ik"`: then layouts are those of the arrays.
        arrays: arrays of JAX or NumPy, or `jax.ShapeDtypeStruct`s, one for each operand.
        mesh: in any form that Shardwise reads; None: the one in force, or that of the arrays.

    Raises:
        ArrayError: an array lies otherwise than written, or has another rank.
        ShardwiseError: another of its kinds, as `sw.einsum`.
    """
    given = [_described(array) for array in arrays]
    if dtype is not None:
        if dtype not in ITEM_BYTES:
            known = ", ".join(sorted(ITEM_BYTES))
            raise PlanError(f"unknown dtype {quoted(dtype)}: use one of {known}{did_you_mean(dtype, ITEM_BYTES)}")
        given = [replace(each, dtype=jnp.dtype(dtype)) for each in given]
    if mesh is None or isinstance(mesh, AnyMesh):
        where = find_mesh(mesh, arrays)
    else:
        where = _lived_on(arrays, Mesh.parse(mesh))
        if where is None:
            where, hardware = _told(Mesh.parse(mesh)), chips.here() if hardware is None else hardware
    options = Options(hardware, None, memory_limit, overlap=overlap, exact=exact)
    check_options(options)
    kinds = tuple(given)
    return bind(read_equation(text, where, options, kinds), where, options, kinds).task


def _described(array: Any) -> Signature:
    if not isinstance(array, jax.ShapeDtypeStruct):
        return signature(as_array(array))
    return Signature(array.shape, array.dtype, array.sharding, array.sharding is None, traced=False, loose=False)


def _lived_on(arrays: Sequence[Any], grid: Mesh) -> AnyMesh | None:
    """The mesh that an array lives on, if it has these axes."""
    shardings = (getattr(array, "sharding", None) for array in arrays if not isinstance(array, jax.core.Tracer))
    meshes = (sharding.mesh for sharding in shardings if isinstance(sharding, NamedSharding))
    return next((mesh for mesh in meshes if Mesh.parse(mesh) == grid), None)


def _told(grid: Mesh) -> AbstractMesh:
    """A mesh of no devices, whose types tell every layout."""
    sizes = tuple(size for _, size in grid.axes)
    return AbstractMesh(sizes, grid.names, axis_types=(AxisType.Explicit,) * len(sizes))
