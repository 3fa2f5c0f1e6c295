"""Which mesh axes a function inside `jax.shard_map` may speak of, and what it says when it names others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jax.sharding import AxisType, get_abstract_mesh

from shardwise.errors import MeshError, did_you_mean
from shardwise.mesh import Mesh


def manual_mesh() -> Mesh:
    """The axes along which this code is one device's, with their sizes: those that `jax.shard_map` is manual over."""
    mesh = get_abstract_mesh()
    kinds = zip(mesh.axis_names, mesh.axis_types, strict=True)
    return Mesh(tuple((str(name), mesh.shape[name]) for name, kind in kinds if kind == AxisType.Manual))


def checked_axes(who: str, axes: str | Iterable[str]) -> tuple[str, ...]:
    """One mesh axis or several as a tuple, each once, each one that this code is manual over.

    Args:
        who: the function that asks, for the message.

    Raises:
        MeshError: there is no such axis here, or it is named twice, or no axis is manual: this is not `jax.shard_map`.
    """
    names = named(who, axes)
    here = manual_mesh()
    for name in names:
        if name not in here.names:
            raise MeshError(f"{who}: {unknown(name)}")
        if names.count(name) > 1:
            raise MeshError(f"{who}: mesh axis {name} is named twice: name every axis once")
    return names


def named(who: str, axes: Any) -> tuple[str, ...]:
    """What is given as mesh axes as a tuple of names, which need not exist."""
    names = (axes,) if isinstance(axes, str) else tuple(axes) if isinstance(axes, Iterable) else (axes,)
    wrong = next((name for name in names if not isinstance(name, str)), None)
    if wrong is not None or axes is None:
        raise MeshError(f"{who}: {wrong!r} names no mesh axis: give one as 'x', or several as ('x', 'y'); none as ()")
    return names


def unknown(axis: str) -> str:
    """Say why this code cannot speak of an axis: there is none of that name, or it is not manual, or nothing is."""
    mesh, here = get_abstract_mesh(), manual_mesh()
    if not here.axes:
        return f"there is no mesh axis {axis!r} here, outside jax.shard_map: call it in the function that jax.shard_map maps"
    if axis in mesh.axis_names:
        kind = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))[axis].name
        names = ", ".join(repr(name) for name in (*here.names, axis))
        return f"mesh axis {axis} is {kind} here: map over it too, as in jax.shard_map(..., axis_names={{{names}}})"
    return f"the mesh has no axis {axis!r} here: it has {', '.join(here.names)}{did_you_mean(axis, here.names)}"
