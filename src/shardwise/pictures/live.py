"""Pictures of live arrays: read where a JAX array lives."""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import NamedSharding

from shardwise.errors import ArrayError
from shardwise.layout import Layout
from shardwise.mesh import Mesh
from shardwise.pictures.placement import Placement


def placement(array: Any) -> Placement:
    """Where a JAX array lives, as a picture of its shards."""
    if not isinstance(array, jax.Array):
        raise ArrayError(f"{type(array).__name__} lives on no device: place it with sw.put, or give a JAX array")
    if not array.size:
        raise ArrayError(f"the array is empty, of shape {array.shape}: no device holds any of it")
    dims = Layout.from_spec((None,) * array.ndim).names
    sharding = jax.typeof(array).sharding if isinstance(array, jax.core.Tracer) else array.sharding
    if isinstance(sharding, NamedSharding) and not sharding.mesh.empty:
        grid = Mesh.parse(sharding.mesh)
        layout = Layout.from_spec(sharding.spec, dims).on(grid)
        concrete = isinstance(sharding.mesh, jax.sharding.Mesh)
        devices = [device.id for device in sharding.mesh.devices.flat] if concrete else None
        return Placement.of("A", layout, dict(zip(dims, array.shape, strict=True)), grid, devices)
    devices = sorted(device.id for device in sharding.device_set)
    grid, layout = Mesh(()), Layout(tuple((dim, ()) for dim in dims))
    if len(devices) > 1:
        raise ArrayError(f"an array with {type(sharding).__name__} has no named axes to show: place it with sw.put")
    return Placement.of("A", layout, dict(zip(dims, array.shape, strict=True)), grid, devices)
