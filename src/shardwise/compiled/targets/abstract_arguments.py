"""Arguments brought home to a mesh: their shapes, dtypes and layouts, without their data and old devices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from shardwise.errors import MeshError, did_you_mean
from shardwise.mesh import Mesh
from shardwise.runtime.devices import AnyMesh


def at_home(args: Any, mesh: AnyMesh, names: Sequence[str] = ()) -> tuple[Any, tuple[str, ...]]:
    """Give every array of a tree its place on a mesh: shapes, dtypes, layouts and memories stay, data and devices do not.

    Arrays and `jax.ShapeDtypeStruct`s laid out on another mesh keep their `PartitionSpec` and memory kind; those that lie
    on no mesh are taken as replicated, and their paths are returned. Numbers, NumPy's too, stay as they are, since a
    static argument may be one, and so does what is no array.

    >>> mesh = jax.sharding.AbstractMesh((4,), ("x",))
    >>> args, replicated = at_home((np.ones((8, 2), np.float32), 3.0), mesh)
    >>> args[0].sharding.spec, args[1], replicated
    (P(), 3.0, ('[0]',))

    Args:
        names: what the function calls its arguments (`parameter_names`).

    Raises:
        MeshError: a layout uses an axis that the mesh lacks, or has in another size; or it is on no named axes.
    """
    replicated = []

    def home(path: Any, leaf: Any) -> Any:
        """A leaf on the mesh, with the layout that it has elsewhere; what is no array stays."""
        if not isinstance(leaf, jax.Array | jax.ShapeDtypeStruct | np.ndarray):
            return leaf
        first = path[0].idx if path and isinstance(path[0], jax.tree_util.SequenceKey) else len(names)
        where = names[first] + jax.tree_util.keystr(path[1:]) if first < len(names) else jax.tree_util.keystr(path)
        laid = getattr(leaf, "sharding", None)
        spec = _spec(laid, mesh, where)
        if spec is None and leaf.ndim:
            replicated.append(where)
        sharding = NamedSharding(mesh, spec or PartitionSpec(), memory_kind=_memory_kind(laid))
        weak = bool(getattr(leaf, "weak_type", False))
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding, weak_type=weak)

    homed = jax.tree_util.tree_map_with_path(home, args, is_leaf=lambda leaf: leaf is None)
    return homed, tuple(replicated)


def written_mesh(args: Any) -> AnyMesh | None:
    """The first mesh that an array of a tree lies on: its axes and their types are those that a function was written for.

    >>> mesh = jax.sharding.AbstractMesh((4,), ("x",))
    >>> args, _ = at_home({"w": np.ones((8, 2))}, mesh)
    >>> written_mesh(args) == mesh
    True
    """
    for leaf in jax.tree.leaves(args):
        sharding = getattr(leaf, "sharding", None)
        if isinstance(sharding, NamedSharding) and not sharding.mesh.empty:
            return sharding.mesh
    return None


def _spec(sharding: Any, mesh: AnyMesh, where: str) -> PartitionSpec | None:
    """The layout of a leaf, checked against a mesh; None for one on no mesh."""
    if isinstance(sharding, NamedSharding):
        if not sharding.mesh.empty:
            _check_axes(sharding, mesh, where)
            return sharding.spec
        return None
    if sharding is None or len(sharding.device_set) == 1 or sharding.is_fully_replicated:
        return None
    raise MeshError(
        f"{where} is laid out by a {type(sharding).__name__}, which names no axes: give it a NamedSharding, as sw.put does"
    )


def _memory_kind(sharding: Any) -> str | None:
    """The memory that was asked for; None for that of the device, which need not be said."""
    kind = getattr(sharding, "memory_kind", None)
    return None if kind == "device" else kind


def _check_axes(sharding: NamedSharding, mesh: AnyMesh, where: str) -> None:
    for axis in _axes(sharding.spec):
        size = sharding.mesh.shape[axis]
        if axis not in mesh.shape:
            raise MeshError(
                f"{where} is laid out as {sharding.spec}, and mesh {Mesh.parse(mesh)} has no axis {axis!r}"
                f"{did_you_mean(axis, mesh.axis_names)}: name the axes as the arguments do"
            )
        if mesh.shape[axis] != size:
            raise MeshError(
                f"{where} is laid out as {sharding.spec} on {axis}={size}, and mesh {Mesh.parse(mesh)} has "
                f"{axis}={mesh.shape[axis]}: give axes of the same sizes, or jax.ShapeDtypeStructs laid out on that mesh"
            )


def _axes(spec: PartitionSpec) -> Iterable[str]:
    """The axes that a layout uses; `partitions`, since a spec with unreduced axes cannot be iterated over."""
    for entry in spec.partitions:
        if isinstance(entry, str):
            yield entry
        elif isinstance(entry, tuple):
            yield from entry
    yield from sorted(spec.unreduced)
    yield from sorted(spec.reduced)
