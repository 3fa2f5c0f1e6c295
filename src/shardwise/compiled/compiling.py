"""The doors of this floor: compile a function for this machine's devices, or for a cluster's, and audit what came out."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.sharding import NamedSharding

from shardwise.chips import Hardware, hardware
from shardwise.compiled.audit import Audit, audit_text
from shardwise.compiled.facts import MemoryUse
from shardwise.compiled.needed import needed_flops
from shardwise.compiled.targets import reason
from shardwise.errors import CompileError, HardwareError, ShardwiseError, one_line
from shardwise.mesh import Mesh
from shardwise.runtime.devices import AnyMesh, make_mesh

_MESH_IN_TEXT = re.compile(r"sdy\.mesh\s+@\S+\s*=\s*<\[([^\]]*)\]")
_AXIS_IN_TEXT = re.compile(r'"([^"]+)"=(\d+)')


def audit(function: Callable[..., Any], *args: Any, mesh: Any = None) -> Audit:
    """Compile a function for this machine's devices, and read what the compiler made of it; nothing is run.

    >>> import jax, jax.numpy as jnp, shardwise as sw
    >>> a = sw.put(jnp.ones((8, 16)), "A[I, J_x]", sw.make_mesh("x=4"))
    >>> found = audit(jax.jit(lambda a: a.sum(axis=1)), a)
    >>> [(collective.kind, collective.axes) for collective in found.collectives]
    [('all-reduce', ('x',))]

    Args:
        function: jitted or plain, one of Shardwise's plans or not.
        args: its arguments, pytrees of arrays or `jax.ShapeDtypeStruct`.
        mesh: the mesh whose axes are named; by default that of the arguments, the one in force, or the function's own.

    Raises:
        CompileError: the function cannot be traced, or the compiler refuses; the cause is their own error.
        MeshError: the mesh given is none.
    """
    mesh = make_mesh(mesh) if mesh is not None and not isinstance(mesh, AnyMesh) else mesh
    with jax.set_mesh(mesh) if isinstance(mesh, jax.sharding.Mesh) else contextlib.nullcontext():
        traced = trace(function, args)
        lowered = traced.lower()
    compiled = compile_here(lowered)
    grid = _grid(mesh, args, lowered)
    kind, platform = _device(args, mesh)
    chip = _known(kind)
    return audit_text(
        compiled.as_text() or "",
        name=name_of(function),
        target=f"{chip.name if chip else platform}:{grid.size}",
        mesh=grid,
        hardware=chip,
        memory=memory_of(compiled),
        needed=needed_flops(traced.jaxpr.jaxpr),
    )


def trace(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Trace a function, jitted if it is not yet.

    Raises:
        CompileError: it cannot be traced; the message holds the first line of its own error, which is the cause.
    """
    if not callable(function):
        raise CompileError(f"{function!r} is no function: give one, and its arguments after it")
    jitted = function if hasattr(function, "trace") and hasattr(function, "lower") else jax.jit(function)
    try:
        return jitted.trace(*args)  # type: ignore[attr-defined]
    except ShardwiseError:
        raise
    except Exception as error:  # whatever the user's code raises
        said = next((text for text in str(error).splitlines() if text.strip()), "")
        where = _line_of(error)
        raise CompileError(
            f"{name_of(function)} cannot be traced{where}: {type(error).__name__}: {one_line(said)}\n"
            "run it on small arrays first, as sw.check does; its own error is the cause above"
        ) from error


def compile_here(lowered: Any) -> Any:
    """Compile for the devices at hand.

    Raises:
        CompileError: the compiler refuses.
    """
    try:
        return lowered.compile()
    except Exception as error:  # XLA's errors share no public type
        raise CompileError(f"the compiler refuses: {reason(error)}") from error


def name_of(function: Any) -> str:
    """What a function is called: of a partial or wrapped one, what is inside."""
    while isinstance(function, functools.partial) or hasattr(function, "__wrapped__"):
        function = function.func if isinstance(function, functools.partial) else function.__wrapped__
    name = getattr(function, "__name__", type(function).__name__)
    return "a lambda" if name == "<lambda>" else name


def memory_of(compiled: Any) -> MemoryUse | None:
    """What one device needs, as the compiler says; None where it does not."""
    try:
        stats = compiled.memory_analysis()
    except Exception:  # not every backend has it
        return None
    if stats is None:
        return None
    arguments, outputs = int(stats.argument_size_in_bytes), int(stats.output_size_in_bytes)
    temporaries, aliased = int(stats.temp_size_in_bytes), int(stats.alias_size_in_bytes)
    whole = arguments + outputs - aliased + temporaries
    return MemoryUse(arguments, outputs, temporaries, aliased, int(stats.generated_code_size_in_bytes), whole)


def _line_of(error: BaseException) -> str:
    """The user's line that an error comes from: the innermost one outside of libraries."""
    from shardwise.compiled.sources import is_users

    frame, found = error.__traceback__, ""
    while frame is not None:
        file = frame.tb_frame.f_code.co_filename
        if is_users(file):
            found = f" ({file.replace(chr(92), '/').rsplit('/', 1)[-1]}:{frame.tb_lineno})"
        frame = frame.tb_next
    return found


def _grid(mesh: Any, args: tuple[Any, ...], lowered: Any) -> Mesh:
    """The mesh whose axes are named: given, of the arguments, in force, or as the lowered text says."""
    for found in (mesh, *_meshes(args)):
        if found is not None and not found.empty:
            return Mesh.parse(found)
    in_force = jax.sharding.get_abstract_mesh()
    if not in_force.empty:
        return Mesh.parse(in_force)
    written = [
        Mesh(tuple((name, int(size)) for name, size in _AXIS_IN_TEXT.findall(axes)))
        for axes in _MESH_IN_TEXT.findall(lowered.as_text())
    ]
    return max(written, key=lambda grid: grid.size, default=Mesh(()))


def _meshes(args: tuple[Any, ...]) -> Iterator[AnyMesh]:
    for leaf in jax.tree.leaves(args):
        sharding = getattr(leaf, "sharding", None)
        if isinstance(sharding, NamedSharding):
            yield sharding.mesh


def _device(args: tuple[Any, ...], mesh: Any) -> tuple[str, str]:
    """Kind and platform of the devices that are compiled for."""
    for found in (mesh, *_meshes(args)):
        if isinstance(found, jax.sharding.Mesh) and not found.empty:
            return found.devices.flat[0].device_kind, found.devices.flat[0].platform
    return jax.devices()[0].device_kind, jax.devices()[0].platform


def _known(kind: str) -> Hardware | None:
    try:
        return hardware.for_device_kind(kind)
    except HardwareError:
        return None
