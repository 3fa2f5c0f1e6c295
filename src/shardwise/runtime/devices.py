"""Devices and meshes: simulated ones, meshes by name, and which mesh and hardware are meant when none is given."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import jax
from jax.sharding import AxisType, NamedSharding

from shardwise.chips import Hardware, hardware
from shardwise.errors import DeviceError, MeshError
from shardwise.mesh import Mesh

# Seconds until a CPU collective that lacks a device is reported as stuck, and until it ends the process.
PATIENCE = {
    "xla_cpu_collective_call_warn_stuck_timeout_seconds": 120,
    "xla_cpu_collective_call_terminate_timeout_seconds": 600,
}

AnyMesh = jax.sharding.Mesh | jax.sharding.AbstractMesh


def simulate(n: int) -> None:
    """Make the host's CPU appear as `n` devices; before JAX is first used.

    >>> simulate(8)
    >>> len(jax.devices())
    8

    Raises:
        DeviceError: `n` is not positive, or JAX has started already with another number of devices.
    """
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise DeviceError(f"simulate({n!r}): give the number of devices, at least 1")
    set_patience()
    try:
        jax.config.update("jax_num_cpu_devices", n)
        jax.config.update("jax_platforms", "cpu")
    except RuntimeError:
        have = len(jax.devices())
        if have != n or jax.devices()[0].platform != "cpu":
            raise DeviceError(
                f"simulate({n}): JAX has started already with {have} {jax.devices()[0].platform} "
                f"device{'s' if have > 1 else ''}: call sw.simulate({n}) before the first use of JAX, in a new process"
            ) from None


def set_patience() -> None:
    """Let simulated devices wait for each other: they share cores, so one may come minutes after another.

    XLA ends a process whose CPU collectives wait for longer than a time-out that suits devices with cores of their own.
    What the user's XLA_FLAGS say already stays as it is.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    missing = [f"--{name}={seconds}" for name, seconds in PATIENCE.items() if name not in flags]
    os.environ["XLA_FLAGS"] = " ".join([*flags.split(), *missing])


def make_mesh(
    axes: Any, *, devices: Sequence[jax.Device] | None = None, axis_types: Iterable[AxisType] | AxisType | None = None
) -> jax.sharding.Mesh:
    """Make a JAX mesh from `"x=4, y=2"` or `{"x": 4, "y": 2}`.

    >>> dict(make_mesh("x=4, y=2").shape)
    {'x': 4, 'y': 2}

    Args:
        devices: the devices, in mesh order; by default the first of `jax.devices()`.
        axis_types: one `jax.sharding.AxisType` for all axes or one for each; by default JAX's own (Explicit).

    Raises:
        MeshError: the axes cannot be read.
        DeviceError: there are fewer devices than the mesh needs.
    """
    grid = Mesh.parse(axes)
    chosen = list(jax.devices() if devices is None else devices)
    if len(chosen) < grid.size:
        way_out = (
            f"simulate them with sw.simulate({grid.size}) before the first use of JAX"
            if devices is None and chosen[0].platform == "cpu"
            else "use a smaller mesh"
        )
        raise DeviceError(f"mesh {grid} needs {grid.size} devices, and there are {len(chosen)}: {way_out}")
    if devices is not None and len(chosen) > grid.size:
        raise DeviceError(f"mesh {grid} needs {grid.size} devices, and {len(chosen)} are given: give exactly as many")
    types = (axis_types,) * len(grid.axes) if isinstance(axis_types, AxisType) else axis_types
    shape = tuple(size for _, size in grid.axes)
    # On simulated devices, and for devices given in order, mesh order is device order.
    listed = chosen[: grid.size] if devices is not None or chosen[0].platform == "cpu" or len(chosen) > grid.size else None
    return jax.make_mesh(shape, grid.names, axis_types=None if types is None else tuple(types), devices=listed)


def find_mesh(mesh: Any, arrays: Iterable[Any] = ()) -> AnyMesh:
    """The mesh that is meant: the one given, the one in force (`jax.set_mesh`), or the one the arrays live on.

    Raises:
        MeshError: there is none.
    """
    if isinstance(mesh, AnyMesh):
        return mesh
    if mesh is not None:
        return make_mesh(mesh)
    in_force = jax.sharding.get_abstract_mesh()
    if not in_force.empty:
        traced = any(isinstance(array, jax.core.Tracer) for array in arrays)
        return in_force if traced else jax.sharding.get_mesh()
    for array in arrays:
        sharding = jax.typeof(array).sharding if isinstance(array, jax.core.Tracer) else getattr(array, "sharding", None)
        if isinstance(sharding, NamedSharding) and not sharding.mesh.empty:
            return sharding.mesh
    raise MeshError(
        "no mesh is given, none is in force, and no array lives on one: give mesh=sw.make_mesh('x=4'), "
        "or put one in force with jax.set_mesh(mesh)"
    )


def hardware_of(mesh: AnyMesh, name: str | Hardware | None) -> Hardware:
    """The hardware to reckon with: the one named, or the one that the mesh's devices are.

    Raises:
        HardwareError: it is not in the catalogue.
    """
    if name is not None:
        return hardware(name)
    if isinstance(mesh, jax.sharding.AbstractMesh):
        kind = getattr(mesh.abstract_device, "device_kind", None)
        return hardware.for_device_kind(kind) if kind else hardware.for_device_kind(jax.devices()[0].device_kind)
    return hardware.for_device_kind(mesh.devices.flat[0].device_kind)


def is_host(mesh: AnyMesh) -> bool:
    """Whether the mesh's devices are those of a CPU host."""
    if isinstance(mesh, jax.sharding.AbstractMesh):
        kind = getattr(mesh.abstract_device, "device_kind", None)
        return (kind or jax.devices()[0].device_kind) == "cpu"
    return mesh.devices.flat[0].platform == "cpu"
