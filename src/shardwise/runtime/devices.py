"""Devices and meshes: simulated ones, meshes by name, and which mesh and hardware are meant when none is given."""

from __future__ import annotations

import numbers
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding

from shardwise.chips import Hardware, Torus, hardware
from shardwise.chips.placing import Position, Site, is_sliced, mesh_order
from shardwise.chips.topology import Topology, standard_slice
from shardwise.distributed.jobs import job
from shardwise.errors import DeviceError, HardwareError, MeshError, quoted
from shardwise.mesh import Mesh
from shardwise.planning.problem import hardware_on
from shardwise.runtime.cpu_flags import set_cpu_flags

MOST_SIMULATED = 2048  # devices of one host: JAX starts as many in seconds, and a hundred thousand not within minutes
TOO_MANY = f"a host is at most {MOST_SIMULATED:,} devices: use a smaller mesh; sw.plan and sw.rehearse need no devices"

AnyMesh = jax.sharding.Mesh | jax.sharding.AbstractMesh


def simulate(n: int) -> None:
    """Make the host's CPU appear as `n` devices; before JAX is first used.

    In a run of several processes these are the devices of all together: each simulates its part.

    >>> simulate(8)
    >>> len(jax.devices())
    8

    Raises:
        DeviceError: `n` is not positive, or too large, or not a multiple of the processes; or JAX has started already with
            another number of devices.
    """
    if isinstance(n, bool) or not isinstance(n, numbers.Integral) or n < 1:
        raise DeviceError(f"simulate({quoted(n)}): give the number of devices, at least 1")
    if n > MOST_SIMULATED:
        raise DeviceError(f"simulate({quoted(n)}): {TOO_MANY}")
    n, own = int(n), own_part(int(n))
    set_cpu_flags()
    try:
        jax.config.update("jax_num_cpu_devices", own)
        jax.config.update("jax_platforms", "cpu")
    except RuntimeError:
        have = len(jax.devices())
        if have != n or jax.devices()[0].platform != "cpu":
            raise DeviceError(
                f"simulate({n}): JAX has started already with {have} {jax.devices()[0].platform} "
                f"device{'s' if have > 1 else ''}: call sw.simulate({n}) before the first use of JAX, in a new process"
            ) from None


def own_part(n: int) -> int:
    """How many of `n` simulated devices are this process's.

    Raises:
        DeviceError: the processes of the run cannot have as many each.
    """
    together = job()
    if together is None:
        return n
    if n % together.processes:
        raise DeviceError(
            f"simulate({n}): {together.processes} processes cannot have as many devices each: give a multiple of "
            f"{together.processes}, or start another number of processes"
        )
    return n // together.processes


def make_mesh(
    axes: Any, *, devices: Sequence[Any] | None = None, axis_types: Iterable[AxisType] | AxisType | None = None
) -> jax.sharding.Mesh:
    """Make a JAX mesh from `"x=4, y=2"` or `{"x": 4, "y": 2}`. Over several slices of TPUs the first axes go across.

    >>> dict(make_mesh("x=4, y=2").shape)
    {'x': 4, 'y': 2}

    Args:
        devices: the devices, in mesh order; by default the first of `jax.devices()`.
        axis_types: one `jax.sharding.AxisType` for all axes or one for each; by default JAX's own (Explicit).

    Raises:
        MeshError: the axes cannot be read.
        MeshError: the axis types are not one, or one for each axis.
        DeviceError: there are fewer devices than the mesh needs, or what is given are none.
    """
    grid = Mesh.parse(axes)
    types = checked_types(axis_types, grid)
    chosen = list(jax.devices()) if devices is None else _checked_devices(devices)
    if len(chosen) < grid.size:
        way_out = "use a smaller mesh"
        if devices is None and chosen[0].platform == "cpu":
            simulate_them = f"simulate them with sw.simulate({grid.size}) before the first use of JAX"
            way_out = simulate_them if grid.size <= MOST_SIMULATED else TOO_MANY
        raise DeviceError(f"mesh {grid} needs {grid.size} devices, and there are {len(chosen)}: {way_out}")
    if devices is not None and len(chosen) > grid.size:
        raise DeviceError(f"mesh {grid} needs {grid.size} devices, and {len(chosen)} are given: give exactly as many")
    shape = tuple(size for _, size in grid.axes)
    topology = torus_of(chosen) if devices is None and len(chosen) == grid.size else None
    if topology is not None and topology.slices > 1:
        standing = {place: device for device, place in _positions(chosen, topology).items()}
        ordered = np.array([standing[place] for place in mesh_order(topology, grid)], dtype=object).reshape(shape)
        return jax.sharding.Mesh(ordered, grid.names, axis_types=types or (AxisType.Explicit,) * len(shape))
    # On simulated devices, and for devices given in order, mesh order is device order.
    listed = chosen[: grid.size] if devices is not None or chosen[0].platform == "cpu" or len(chosen) > grid.size else None
    return jax.make_mesh(shape, grid.names, axis_types=types, devices=listed)


def _checked_devices(devices: Any) -> list[jax.Device]:
    chosen = list(devices) if isinstance(devices, Iterable) else [devices]
    wrong = next((device for device in chosen if not isinstance(device, jax.Device)), None)
    if wrong is not None:
        raise DeviceError(f"{quoted(wrong)} is no device: give devices of jax.devices(), in mesh order")
    if len(set(chosen)) < len(chosen):
        raise DeviceError("a device is given twice: a mesh holds every device once")
    return chosen


def checked_types(axis_types: Any, grid: Mesh) -> tuple[AxisType, ...] | None:
    """One type for each axis of a mesh, from one for all or one for each; None stays None.

    Raises:
        MeshError: that is not what is given.
    """
    if axis_types is None:
        return None
    if isinstance(axis_types, AxisType):
        return (axis_types,) * len(grid.axes)
    types = tuple(axis_types) if isinstance(axis_types, Iterable) else (axis_types,)
    if len(types) != len(grid.axes) or not all(isinstance(each, AxisType) for each in types):
        raise MeshError(f"axis_types={quoted(axis_types)}: give one jax.sharding.AxisType, or one for each axis of mesh {grid}")
    return types


def find_mesh(mesh: Any, arrays: Iterable[Any] = ()) -> AnyMesh:
    """The mesh that is meant: the one given, the one in force (`jax.set_mesh`), or the one the arrays live on.

    Raises:
        MeshError: there is none, or it has Manual axes.
    """
    if isinstance(mesh, AnyMesh):
        check_mesh(mesh)
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


def attached_mesh(mesh: Any, arrays: Iterable[Any] = ()) -> jax.sharding.Mesh:
    """The mesh that is meant, with devices that programs can run on.

    Raises:
        MeshError: as `find_mesh`; DeviceError: its devices are not attached, or it has none.
    """
    found = find_mesh(mesh, arrays)
    if not isinstance(found, jax.sharding.Mesh) or found.devices.flat[0].client.runtime_type == "compile_only_runtime":
        raise DeviceError("the mesh has no devices to run on: give one of attached devices, as sw.make_mesh('x=4')")
    return found


def check_mesh(mesh: AnyMesh) -> None:
    """Refuse a mesh with Manual axes: only `jax.shard_map` makes axes so, inside, and no array can be laid out over them.

    Raises:
        MeshError: an axis is Manual.
    """
    manual = [str(name) for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True) if kind == AxisType.Manual]
    if manual:
        raise MeshError(
            f"mesh {Mesh.parse(mesh)}: {', '.join(manual)} is Manual, and arrays are laid out over Explicit or Auto axes: make "
            "the mesh by sw.make_mesh(...) as it comes; jax.shard_map makes its axes Manual inside by itself"
        )


def inside_jit() -> bool:
    """Whether what is computed here is traced, to be compiled later: what leaves is then laid out by its type alone.

    Under `jax.grad` or `jax.vmap` outside of `jit` arguments are traced too, but computed at once. JAX has no public way
    to ask, so something is made, and looked at.
    """
    return isinstance(jax.lax.full((), 0.0), jax.core.Tracer)


def refuse_manual() -> None:
    """Refuse to run inside `jax.shard_map`: along its axes arrays are shards of one device, and no layout says which.

    Raises:
        MeshError: an axis of the mesh in force is manual.
    """
    context = jax.sharding.get_abstract_mesh()
    manual = [name for name, kind in zip(context.axis_names, context.axis_types, strict=True) if kind == AxisType.Manual]
    if manual:
        raise MeshError(
            f"inside jax.shard_map arrays are shards over {', '.join(manual)} already: sw.spmd.einsum and sw.spmd.reshard take "
            "the same equation there"
        )


def settled(mesh: AnyMesh) -> AnyMesh:
    """The mesh to run on, once it is held against the one in force (`jax.set_mesh`), which JAX takes in any case.

    Where both have the same devices and axes it is the one in force, whose axes may be of other types.

    Raises:
        MeshError: both are named: they differ; or an axis of the mesh in force is manual.
    """
    context = jax.sharding.get_abstract_mesh()
    if context.empty:
        return mesh
    refuse_manual()
    concrete = _mesh_in_force()
    if context == mesh or (concrete is mesh and concrete is not None):
        return mesh
    same = Mesh.parse(context) == Mesh.parse(mesh)
    if same and isinstance(mesh, jax.sharding.Mesh) and concrete is not None:
        same = concrete.devices.tolist() == mesh.devices.tolist()
    if not same:
        where = "on other devices, " if Mesh.parse(context) == Mesh.parse(mesh) else ""
        raise MeshError(
            f"mesh {Mesh.parse(mesh)} is given, and mesh {Mesh.parse(context)} is in force, {where}in which "
            "JAX runs everything: give none, or put the one that is meant in force, with jax.set_mesh(mesh): ..."
        )
    if context.axis_types == mesh.axis_types:
        return mesh
    return context if concrete is None else concrete


def _mesh_in_force() -> jax.sharding.Mesh | None:
    """The mesh in force with its devices; None within jit, where it has none."""
    try:
        found = jax.sharding.get_mesh()
    except ValueError:
        return None
    return found if isinstance(found, jax.sharding.Mesh) and not found.empty else None


def hardware_of(mesh: AnyMesh) -> Hardware | Site:
    """The hardware that the mesh's devices are; of TPUs also where they sit on the torus, by their coordinates.

    A mesh without devices, as the one in force is inside `jit`, is taken to lie as `shardwise` lays meshes of its kind. A
    host that was calibrated has its own figures; where several processes plan, each on its own host, that of the catalogue.

    Raises:
        HardwareError: it is not in the catalogue.
    """
    if isinstance(mesh, jax.sharding.AbstractMesh):
        local, grid = jax.devices(), Mesh.parse(mesh)
        kind = getattr(mesh.abstract_device, "device_kind", None) or local[0].device_kind
        topology = torus_of(local) if kind == local[0].device_kind else None
        if topology is None or grid.size > topology.size:
            return chip_of_kind(kind)
        return Site(topology, mesh_order(topology, grid))
    first = mesh.devices.flat[0]
    all_devices = first.client.devices()
    topology = torus_of(all_devices)
    if topology is None:
        return chip_of_kind(first.device_kind)
    at = _positions(all_devices, topology)
    positions = tuple(at[device] for device in mesh.devices.flat)
    if topology.slices > 1 and not is_sliced(topology, positions, Mesh.parse(mesh)):
        return chip_of_kind(first.device_kind)
    return Site(topology, positions)


def chip_of_kind(kind: str) -> Hardware:
    """The hardware of devices by JAX's `device_kind`; a host that was calibrated, and plans for itself, has its own figures.

    Raises:
        HardwareError: it is not in the catalogue.
    """
    chip = hardware.for_device_kind(kind)
    return hardware.here() if chip.shared and jax.process_count() == 1 else chip


def hardware_along(mesh: AnyMesh, part: Mesh, given: str | Hardware | None = None) -> str | Hardware | Site:
    """The hardware of a part of a mesh, some of its axes: of TPUs where the devices sit that are first along the others.

    Args:
        given: its name; by default what the mesh's devices are. The standard slice is that of the whole mesh.

    Raises:
        HardwareError: it is not in the catalogue.
    """
    site, grid = hardware_of(mesh) if given is None else given, Mesh.parse(mesh)
    if not isinstance(site, Site):
        chip, topology = hardware_on(site, part)
        standard = standard_slice(chip.name, grid.size) if topology is None else None
        if standard is None:
            return site
        site = Site(standard, mesh_order(standard, grid))
    first = (where for where, here in zip(site.positions, grid.coordinates(), strict=True)
             if not any(here[axis] for axis in here if axis not in part.names))  # fmt: skip
    return Site(site.topology, tuple(first))


def torus_of(devices: Sequence[Any]) -> Topology | None:
    """The slice that all devices of a client are, by their coordinates; None where they are no TPUs of one slice.

    Of several slices of one shape all together, where a figure tells the network between them.
    """
    first = devices[0]
    if first.platform != "tpu":
        return None
    slices = len({_slice_of(device) for device in devices})
    chip = hardware.for_device_kind(first.device_kind)
    if not isinstance(chip.links, Torus):
        return None
    if slices > 1 and chip.network_bytes_per_s is None:
        return None
    here = [device for device in devices if _slice_of(device) == _slice_of(first)]
    sides = [max(side) - min(side) + 1 for side in zip(*(device.coords for device in here), strict=True)]
    sides = sides[: int(chip.links.dimensions.value)]
    try:
        topology = Topology.parse(f"{chip.name}:{'x'.join(map(str, sides))}{f'*{slices}' if slices > 1 else ''}")
    except HardwareError:
        return None  # no slice that is sold: part of one, or of a shape that is not known
    return topology if topology.size == len(devices) else None


def position_of(device: Any, topology: Topology, origin: Sequence[int] = (0, 0, 0)) -> Position:
    """Where a TPU device stands on its slice, whose first chip has the coordinates `origin`; of several, on which."""
    place = (*map(operator.sub, device.coords[: len(topology.shape)], origin), device.core_on_chip)
    return place if topology.slices == 1 else (*place, _slice_of(device))


def _positions(devices: Sequence[Any], topology: Topology) -> dict[Any, Position]:
    """Where each of all devices of a client stands; the first chip of a slice may have any coordinates."""
    found: dict[Any, Position] = {}
    for number in sorted({_slice_of(device) for device in devices}):
        here = [device for device in devices if _slice_of(device) == number]
        origin = [min(side) for side in zip(*(device.coords for device in here), strict=True)]
        found |= {device: position_of(device, topology, origin) for device in here}
    return found


def _slice_of(device: Any) -> int:
    return getattr(device, "slice_index", 0)


def kind_of(mesh: AnyMesh) -> str:
    """What the mesh's devices are, by JAX's `device_kind`: "cpu" (a host's, simulated), "TPU v6 lite", or another."""
    if not isinstance(mesh, jax.sharding.AbstractMesh):
        return str(mesh.devices.flat[0].device_kind)
    return str(getattr(mesh.abstract_device, "device_kind", None) or jax.devices()[0].device_kind)
