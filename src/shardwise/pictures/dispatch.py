"""From whatever a user wants to see to what can be drawn: the door of the floor of sight."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from shardwise.errors import LayoutError, MeshError
from shardwise.layout import Layout
from shardwise.mesh import Mesh
from shardwise.notation import Operand, parse_operand
from shardwise.pictures.placement import Placement

NO_SIZES = "no sizes are given: one element a block"


def seen(x: Any, mesh: Any = None, sizes: Any = None, *, pad: bool = False) -> Any:
    """What can be drawn of anything: itself where it draws itself; else a placement, a table of parameters, a traced type.

    Raises:
        ShardwiseError: as `sw.show`.
    """
    if isinstance(x, str | Layout | Operand):
        return written(x, mesh, sizes, pad=pad)
    ours = type(x).__module__.startswith("shardwise.")
    if (sizes is not None or pad) and (ours or not hasattr(x, "devices_indices_map")):
        raise LayoutError(
            "sizes and pad belong to a layout or a sharding: what is shown here has its own shape, so leave them off"
        )
    if ours:
        return x
    import jax

    from shardwise.pictures import live
    from shardwise.pictures.parameters import parameters

    if isinstance(x, jax.sharding.Sharding):
        return live.lying(x, _shape(x, sizes))
    if jax.tree_util.all_leaves([x]):
        return live.placement(x)
    return parameters(x)


def written(x: str | Layout | Operand, mesh: Any = None, sizes: Any = None, *, pad: bool = False) -> Placement:
    """The placement of an array by its text, `A[I_x, J]`, or layout.

    Args:
        mesh: the mesh in any form; by default the one in force, where JAX runs.
        sizes: of the dimensions by name, or in order; without them every block has one element.
    """
    operand = x if isinstance(x, Operand) else parse_operand(str(x))
    mesh = _in_force() if mesh is None else mesh
    if mesh is None and (operand.layout.axes or operand.layout.unreduced):
        raise MeshError("a layout is shown on a mesh: give one, as in sw.show('A[I_x]', 'x=4')")
    grid = Mesh.parse({} if mesh is None else mesh)
    for axis in (*operand.layout.axes, *sorted(operand.layout.unreduced)):
        grid.axis_size(axis)
    named = _sizes(operand, grid, sizes)
    note = NO_SIZES if sizes is None and operand.dims else ""
    return Placement.of(operand.name, operand.layout.on(grid), named, grid, _devices(mesh), pad=pad, note=note)


def _sizes(operand: Operand, grid: Mesh, sizes: Any) -> Mapping[str, int]:
    if sizes is None:
        return {dim: grid.extent(axes) for dim, axes in operand.layout.dims}
    if isinstance(sizes, Mapping):
        return sizes
    listed = _sequence(sizes)
    if len(listed) != len(operand.dims):
        raise LayoutError(f"sizes={tuple(listed)}: {operand} has {len(operand.dims)} dimensions; give each its size")
    return dict(zip(operand.dims, listed, strict=True))


def _shape(sharding: Any, sizes: Any) -> tuple[int, ...]:
    if sizes is None:
        raise LayoutError(
            f"{type(sharding).__name__} lays out arrays of any shape: give one, as in sw.show(sharding, sizes=(8, 4))"
        )
    return tuple(sizes.values()) if isinstance(sizes, Mapping) else tuple(_sequence(sizes))


def _sequence(sizes: Any) -> Sequence[int]:
    if isinstance(sizes, Sequence) and not isinstance(sizes, str):
        return sizes
    raise LayoutError(f"{sizes!r} are no sizes: give each dimension its size, as in sizes={{'I': 1024}} or sizes=(1024,)")


def _in_force() -> Any:
    """The mesh in force; JAX is not loaded to find out that there is none."""
    if "jax" not in sys.modules:
        return None
    from shardwise.pictures.live import mesh_in_force

    return mesh_in_force()


def _devices(mesh: Any) -> list[int] | None:
    if mesh is None or isinstance(mesh, str | Mapping | Mesh):
        return None
    from shardwise.pictures.live import device_ids

    return device_ids(mesh)
