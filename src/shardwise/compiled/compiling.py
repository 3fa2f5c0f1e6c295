"""The doors of this floor: compile a function for this machine's devices, or for a cluster's, and audit what came out."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import NamedSharding

from shardwise.compiled.audit import Audit, audit_text
from shardwise.compiled.facts import MemoryUse
from shardwise.compiled.needed import needed_flops
from shardwise.compiled.targets import reason
from shardwise.errors import HardwareError, MeshError, TraceError
from shardwise.mesh import Mesh
from shardwise.runtime.devices import AnyMesh, hardware_of, make_mesh

_MESH_IN_TEXT = re.compile(r"sdy\.mesh\s+@\S+\s*=\s*<\[([^\]]*)\]")
_AXIS_IN_TEXT = re.compile(r'"([^"]+)"=(\d+)')


def audit(function: Callable[..., Any], *args: Any, mesh: Any = None) -> Audit:
    """Compile a function for this machine's devices, and read what the compiler made of it; nothing is run.

    >>> import jax, jax.numpy as jnp, shardwise as sw
    >>> mesh = sw.make_mesh("x=4")
    >>> a = jax.ShapeDtypeStruct((8, 16), jnp.float32, sharding=sw.Layout.parse("I, J_x").on_mesh(mesh))
    >>> found = audit(lambda a: jnp.sin(a).sum(axis=1), a)
    >>> [(collective.kind, collective.axes) for collective in found.collectives]
    [('all-reduce', ('x',))]

    Args:
        function: jitted or plain, one of Shardwise's plans or not.
        args: its arguments, pytrees of arrays or `jax.ShapeDtypeStruct`.
        mesh: the mesh whose axes are named; by default that of the arguments, the one in force, or the function's own.

    Raises:
        TraceError: the function cannot be traced, or not be compiled; the cause is JAX's own error.
        MeshError: the mesh given is none.
    """
    with _in_force(mesh):
        traced = trace(function, args)
        lowered = _said(function, "lowered", traced.lower)
        compiled = _said(function, "compiled", lowered.compile)
    devices = _devices(mesh, args)
    grid = _mesh(mesh, args, lowered)
    kind = devices[0].device_kind
    try:
        chip = hardware_of(_NoMesh, None) if False else _chip(kind)
    except HardwareError:
        chip = None
    return audit_text(
        compiled.as_text() or "",
        name=name_of(function),
        target=f"{chip.name if chip else kind}:{grid.size}",
        mesh=grid,
        hardware=chip,
        memory=memory_of(compiled),
        needed=needed_flops(traced.jaxpr.jaxpr),
    )
