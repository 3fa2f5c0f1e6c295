"""Where live arrays and shardings are: read off JAX's types, never off the data. Inside `jit` and `shard_map` too."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import AxisType, NamedSharding

from shardwise.errors import ArrayError, one_line
from shardwise.layout import Layout
from shardwise.mesh import Mesh
from shardwise.pictures.placement import SHOWN_DEVICES, Placement
from shardwise.runtime.padding import true_shape


@dataclass(frozen=True, slots=True)
class Local:
    """What is known of an array while a function is traced, where no placement is: it prints as a few lines.

    Attributes:
        type: dtype and shape, as `float32[4,8]`; inside `shard_map` those of one device's shard.
        manual: the axes that `shard_map` is over; empty inside `jit` under Auto axes.
        varying: those of them along which devices hold different values.
    """

    type: str
    mesh: Mesh
    manual: tuple[str, ...]
    varying: tuple[str, ...]

    def __str__(self) -> str:
        if not self.manual:
            on = f"over Auto axes ({', '.join(self.mesh.names)}) the compiler chooses" if self.mesh.axes else "JAX chooses"
            return f"inside jit: {self.type}, the whole array; {on} where it lives: sw.audit shows what it chose"
        sizes = ", ".join(f"{axis}={self.mesh.axis_size(axis)}" for axis in self.manual)
        same = [axis for axis in self.manual if axis not in self.varying]
        said = [f"differs along {', '.join(self.varying)}"] if self.varying else []
        said += [f"is the same along {', '.join(same)}"] if same else []
        lines = [f"inside shard_map over {sizes}: each device holds {self.type}, which {', and '.join(said)}"]
        return one_line(lines[0]) + "\n" + self._positions()

    def _positions(self) -> str:
        """Where each device stands along the manual axes, in one line."""
        over = [(axis, self.mesh.axis_size(axis)) for axis in self.manual]
        along = Mesh(tuple(over))
        places = [
            "(" + ", ".join(map(str, coordinate.values())) + ")"
            for _, coordinate in zip(range(SHOWN_DEVICES), along.coordinates(), strict=False)
        ]
        more = f", ... {along.size - SHOWN_DEVICES} more" if along.size > SHOWN_DEVICES else ""
        axes = self.manual[0] if len(self.manual) == 1 else f"({', '.join(self.manual)})"
        index = repr(self.manual[0]) if len(self.manual) == 1 else repr(self.manual)
        return one_line(f"  position {axes}, jax.lax.axis_index({index}), in mesh order: {', '.join(places)}{more}")


def placement(array: Any, name: str = "A") -> Placement | Local:
    """Where a JAX array lives, as a picture of its shards; of a traced one what its type tells.

    Raises:
        ArrayError: it lives on no device, is empty, or lies in a way that no mesh axes name.
    """
    if not isinstance(array, jax.Array | jax.ShapeDtypeStruct):
        raise ArrayError(f"{type(array).__name__} lives on no device: place it with sw.put, or give a JAX array")
    if isinstance(array, jax.core.Tracer):
        return _traced(array, name)
    if array.sharding is None:
        raise ArrayError(f"{array} has no sharding: it lives nowhere yet; give it one, as jax.ShapeDtypeStruct(sharding=...)")
    return lying(array.sharding, array.shape, name, true=true_shape(array))


def lying(sharding: Any, shape: Sequence[int], name: str = "A", note: str = "", true: Sequence[int] | None = None) -> Placement:
    """Where an array of a shape lies by a sharding; `true` is its shape without padding.

    Raises:
        ArrayError: the array is empty, or the sharding, over several devices, has no named axes.
        LayoutError: the sharding splits more dimensions than there are, or one that its axes do not divide.
    """
    shape = tuple(shape)
    if 0 in shape:
        raise ArrayError(f"the array is empty, of shape {shape}: no device holds any of it")
    dims = Layout.from_spec((None,) * len(shape)).names
    sizes = dict(zip(dims, shape, strict=True))
    if isinstance(sharding, NamedSharding) and not sharding.mesh.empty:
        grid = Mesh.parse(sharding.mesh)
        layout = Layout.from_spec(sharding.spec, dims).on(grid)
        placed = Placement.of(name, layout, sizes, grid, device_ids(sharding.mesh), note=note)
        return placed if true is None else dataclasses.replace(placed, shape=tuple(true), whole=shape)
    devices = sorted(device.id for device in sharding.device_set)
    if len(devices) > 1:
        raise ArrayError(f"an array with {type(sharding).__name__} has no named axes to show: place it with sw.put")
    placed = Placement.of(name, Layout(tuple((dim, ()) for dim in dims)), sizes, Mesh(()), devices, note=note)
    return placed if true is None else dataclasses.replace(placed, shape=tuple(true), whole=shape)


def device_ids(mesh: Any) -> list[int] | None:
    """The numbers of a JAX mesh's devices in mesh order; None of a mesh that has none."""
    return [device.id for device in mesh.devices.flat] if isinstance(mesh, jax.sharding.Mesh) else None


def mesh_in_force() -> Any:
    """The mesh that `jax.set_mesh` set, or None."""
    mesh = jax.sharding.get_mesh() if not jax.sharding.get_abstract_mesh().empty else None
    return None if mesh is None or mesh.empty else mesh


def _traced(array: Any, name: str) -> Placement | Local:
    kind = jax.typeof(array)
    mesh = kind.sharding.mesh
    said = f"{array.dtype.name}[{','.join(map(str, array.shape))}]"
    if mesh.empty:
        return Local(said, Mesh(()), (), ())
    types = dict(zip(map(str, mesh.axis_names), mesh.axis_types, strict=True))
    manual = tuple(axis for axis, held in types.items() if held == AxisType.Manual)
    if manual:
        varies = getattr(getattr(kind, "manual_axis_type", kind), "varying", None)
        varies = getattr(kind, "vma", manual) if varies is None else varies
        return Local(said, Mesh.parse(mesh), manual, tuple(axis for axis in manual if axis in varies))
    auto = [axis for axis, held in types.items() if held == AxisType.Auto]
    if len(auto) == len(types):
        return Local(said, Mesh.parse(mesh), (), ())
    note = f"over {', '.join(auto)}, which is Auto, the compiler chooses" if auto else ""
    return lying(kind.sharding, array.shape, name, note)
