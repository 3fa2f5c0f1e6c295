"""Functions of `jax.shard_map` without `mesh=`, left as unbound by a trace as they were before it."""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from types import CellType, CodeType, FunctionType
from typing import Any

import jax

_BOUND = ("mesh", "axis_names")  # what such a function keeps of the first mesh that is in force when it is called


@contextmanager
def left_unbound() -> Iterator[None]:
    """Trace as often as wanted, under other meshes too: afterwards every function is bound to what it was bound to before.

    What `jax.shard_map` makes without `mesh=` takes the mesh that is in force when it is first called, and refuses all
    others from then on. A trace that runs nothing shall not decide that for the program.

    >>> double = jax.shard_map(lambda a: a * 2, in_specs=jax.P("x"), out_specs=jax.P("x"))
    >>> for size in (2, 4):
    ...     mesh = jax.sharding.AbstractMesh((size,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,))
    ...     a = jax.ShapeDtypeStruct((8,), "float32", sharding=jax.NamedSharding(mesh, jax.P("x")))
    ...     with left_unbound(), jax.sharding.use_abstract_mesh(mesh):
    ...         print(jax.jit(double).trace(a).jaxpr.out_avals)
    [ShapedArray(float32[8@x])]
    [ShapedArray(float32[8@x])]
    """
    before = [(cell, cell.cell_contents) for cell in _cells()]
    try:
        yield
    finally:
        for cell, contents in before:
            cell.cell_contents = contents


def _cells() -> Iterator[CellType]:
    """The cells of all such functions that hold what they are bound to."""
    code = _code()
    if code is None:
        return
    for made in gc.get_referrers(code):
        if isinstance(made, FunctionType) and made.__closure__:
            yield from (cell for name, cell in zip(code.co_freevars, made.__closure__, strict=True) if name in _BOUND)


@functools.cache
def _code() -> CodeType | None:
    """The code that all functions of `jax.shard_map` share; None where JAX makes them in another way."""
    within: list[Any] = [jax.shard_map(lambda: None, in_specs=(), out_specs=())]
    seen: set[int] = set()
    while within:
        found = within.pop()
        if not isinstance(found, FunctionType) or id(found) in seen:
            continue
        seen.add(id(found))
        if set(_BOUND) <= set(found.__code__.co_freevars):
            return found.__code__
        within += [cell.cell_contents for cell in found.__closure__ or ()]
    return None
