"""Which mesh is meant, where a function and its arguments are given."""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import AxisType

from shardwise.chips.topology import Topology
from shardwise.compiled.targets.abstract_arguments import written_mesh
from shardwise.compiled.targets.unattached import target_mesh
from shardwise.errors import MeshError
from shardwise.mesh import Mesh
from shardwise.runtime.devices import AnyMesh


def mesh_meant(args: tuple[Any, ...], mesh: Any, on: str | None) -> AnyMesh:
    """The mesh that is meant: its axes, and their types."""
    written = mesh if isinstance(mesh, AnyMesh) else written_mesh(args)
    if mesh is None and written is None:
        in_force = jax.sharding.get_abstract_mesh()
        written = None if in_force.empty else in_force
    if mesh is None and written is None and on is None:
        raise MeshError(
            "no mesh is given, none is in force, and no argument lies on one: give mesh='x=4, y=2', or lay arguments out on one"
        )
    if mesh is None and written is not None:
        return written
    grid = Mesh((("x", Topology.parse(on).size),)) if mesh is None and on is not None else Mesh.parse(mesh)
    known = {} if written is None else dict(zip(written.axis_names, written.axis_types, strict=True))
    types = [known.get(name, AxisType.Explicit) for name in grid.names]
    if on is not None:
        return target_mesh(on, grid, axis_types=types)
    if isinstance(mesh, AnyMesh):
        return mesh
    return jax.sharding.AbstractMesh(tuple(size for _, size in grid.axes), grid.names, axis_types=tuple(types))
