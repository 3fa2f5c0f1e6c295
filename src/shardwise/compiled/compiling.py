"""The doors of this floor: compile a function for this machine's devices, or for a cluster's, and audit what came out."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import AxisType, NamedSharding

from shardwise.chips import Hardware, hardware
from shardwise.chips.placing import Site, mesh_order
from shardwise.chips.topology import Topology
from shardwise.compiled.arguments import arguments_of
from shardwise.compiled.audit import Audit, audit_text
from shardwise.compiled.needed import needed_flops
from shardwise.compiled.reshapes import reshapes
from shardwise.compiled.table import RETURNS_NOTHING
from shardwise.compiled.targets.abstract_arguments import written_mesh
from shardwise.compiled.targets.compiler_flags import checked_options, unknown_option
from shardwise.compiled.targets.helper_process import BrokenDownError, compile_once, start_helper
from shardwise.compiled.targets.lowering import Lowering, lower_on
from shardwise.compiled.targets.programs import Made, Program, compile_program
from shardwise.compiled.targets.tracing import called, check_function, name_of, traced_by_jax, untraced
from shardwise.compiled.targets.unattached import memory_use, reason, target_mesh
from shardwise.compiled.targets.unbound import left_unbound
from shardwise.compiled.uneven import Uneven, uneven_constraints
from shardwise.errors import CompileError, HardwareError, MeshError, ShardwiseError, did_you_mean
from shardwise.mesh import Mesh
from shardwise.runtime.devices import AnyMesh, chip_of_kind, make_mesh

_LACKS_AN_AXIS = re.compile(r"not found in (?:the )?mesh|[Uu]nbound axis name|[Aa]xis name|Resource axis")
_MESH_IN_TEXT = re.compile(r"sdy\.mesh\s+@\S+\s*=\s*<\[([^\]]*)\]")
SHOWN_ARGUMENTS = 8
_AXIS_IN_TEXT = re.compile(r'"([^"]+)"=(\d+)')


def audit(function: Callable[..., Any], *args: Any, mesh: Any = None, **keywords: Any) -> Audit:
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
        keywords: none; the function's own are bound by `functools.partial`.

    Raises:
        CompileError: the function cannot be traced, or the compiler refuses; the cause is their own error.
        MeshError: the mesh given is none.
    """
    _check_keywords(function, keywords, ("mesh",))
    mesh = make_mesh(mesh) if mesh is not None and not isinstance(mesh, AnyMesh) else mesh
    with left_unbound(), jax.set_mesh(mesh) if isinstance(mesh, jax.sharding.Mesh) else contextlib.nullcontext():
        traced = traced_here(function, args)
        lowered = lowered_here(function, traced)
    with _explained(uneven_constraints(traced.jaxpr.jaxpr)):
        compiled = compile_here(lowered)
    return audited(function, args, mesh, traced, lowered, compiled)


def wire_bytes_on(lowering: Lowering, module: bytes, on: str, mesh: AnyMesh) -> float:
    """What one device sends in one call of another module than a lowering's, compiled in its place.

    Raises:
        CompileError: the compiler refuses.
    """
    topology, grid = Topology.parse(on), Mesh.parse(mesh)
    program = dataclasses.replace(lowering.program, module=module)
    made = _made(program, topology, grid, isolated=True)
    read = audit_text(made.text, name="", target=str(topology), mesh=grid, hardware=None)
    return read.total_wire_bytes


def audited(function: Callable[..., Any], args: tuple[Any, ...], mesh: Any, traced: Any, lowered: Any, compiled: Any) -> Audit:
    """Read what the compiler made of a function for this machine's devices; see `audit`."""
    grid = _grid(mesh, args, lowered)
    kind, platform = _device(args, mesh)
    chip = _known(kind)
    return audit_text(
        compiled.as_text() or "",
        name=name_of(function),
        target=f"{chip.name if chip else platform}:{grid.size}",
        mesh=grid,
        hardware=chip,
        memory=memory_use(compiled.memory_analysis()),
        needed=needed_flops(traced.jaxpr.jaxpr),
        notes=tuple(_nothing_returned(traced)),
        uneven=uneven_constraints(traced.jaxpr.jaxpr),
        arguments=arguments_of(traced, lowered.compiler_ir("stablehlo")),
        reshapes=reshapes(traced.jaxpr.jaxpr),
    )


def rehearse(
    function: Callable[..., Any], *args: Any, on: Any, mesh: Any = None, compiler_options: Mapping[str, Any] | None = None,
    isolated: bool = True, **keywords: Any,
) -> Audit:  # fmt: skip
    """Compile a function with the real compiler of devices that are not attached, and read what it made; nothing is run.

    >>> import jax, jax.numpy as jnp
    >>> a = jax.ShapeDtypeStruct((8192, 1024), jnp.bfloat16)
    >>> found = rehearse(lambda a: a @ a.T, a, on="v5e:2x4")
    >>> found.target, str(found.mesh), found.collectives, found.notes
    ('v5e:2x4', 'x=8', (), ('arguments without a layout are taken as replicated: a',))

    Args:
        function: jitted or plain. While it is traced the axes of the mesh are in force (`jax.sharding.use_abstract_mesh`);
            one that holds on to another mesh of as many devices is traced there and moved.
        args: its arguments, pytrees of arrays or `jax.ShapeDtypeStruct`; layouts and memory kinds are kept, on the new mesh.
        on: a TPU slice as `"v5e:2x4"`, `"v5p:4x4x4"`, two of them as `"v5e:2x4*2"`, or GPUs as `"h100:8"`, `"h100:2x8"`
            (hosts x GPUs).
        mesh: `"x=4, y=2"`; by default the axes of the mesh that the arguments lie on, or one axis x over all devices.
        compiler_options: for the compiler, by name, as `{"xla_tpu_scoped_vmem_limit_kib": 98304}`; `shardwise flags` lists
            some.
        isolated: compile in a process of its own, which is kept for the next time: a compiler that ends its process does
            not end this one, and what was compiled before is known. With False what comes out is the same, and a part of a
            slice is compiled in a subprocess all the same.
        keywords: none; the function's own are bound by `functools.partial`.

    Raises:
        CompileError: the function cannot be traced, or the compiler refuses or breaks down, with their own words.
        HardwareError: a topology that is not known.
        MeshError: axes that do not fit it, or a part of a slice that its compiler cannot compile for.
        MissingExtraError: the compiler is not installed; the message names the extra.
    """
    _check_keywords(function, keywords, ("on", "mesh", "compiler_options", "isolated"))
    topology, options = Topology.parse(on), checked_options(compiler_options)
    check_function(function)
    written = mesh if isinstance(mesh, AnyMesh) else written_mesh(args)
    axes = mesh if mesh is not None else written
    grid = Mesh((("x", topology.size),)) if axes is None else Mesh.parse(axes)
    order = mesh_order(topology, grid)
    if isolated or grid.size < topology.size:
        start_helper()
    away = target_mesh(topology, grid, axis_types=_types(grid, written))
    with _guessed(grid, axes is None):
        lowering = lower_on(function, args, topology, away, written=written)
    uneven = uneven_constraints(lowering.traced.jaxpr.jaxpr)
    with _explained(uneven):
        made = _made(dataclasses.replace(lowering.program, options=options), topology, grid, isolated)
    chip = None if topology.chip is None else hardware(topology.chip)
    site = None if chip is None or topology.kind == "gpu" else Site(topology, order)
    return audit_text(
        made.text, name=name_of(function), target=str(topology), mesh=grid, hardware=chip, memory=made.memory,
        needed=needed_flops(lowering.traced.jaxpr.jaxpr), notes=tuple(_notes(lowering)), topology=topology, site=site,
        uneven=uneven, arguments=lowering.arguments, reshapes=reshapes(lowering.traced.jaxpr.jaxpr),
        compile_seconds=made.compile_seconds,
    )  # fmt: skip


def _check_keywords(function: Any, keywords: Mapping[str, Any], own: Sequence[str]) -> None:
    """Arguments of the function are given by position, since keywords are ours; one that is static has to be bound."""
    for word in keywords:
        raise CompileError(
            f"{word}= is not among {', '.join(f'{each}=' for each in own)}{did_you_mean(word, own)}: what the function takes "
            f"is given by position; bind what it takes by keyword alone, functools.partial({called(function)}, {word}=...), "
            "under a jax.jit of its own where it donates"
        )


@contextlib.contextmanager
def _guessed(grid: Mesh, guessed: bool) -> Iterator[None]:
    """Where a function uses an axis that a mesh lacks which nobody gave: say that it was taken, and how to give one."""
    try:
        yield
    except CompileError as error:
        if not guessed or not _LACKS_AN_AXIS.search(str(error.__cause__)):
            raise
        raise CompileError(
            f"{error}\nno argument lies on a mesh, and none was given: {grid} was taken; give the axes that the function uses, "
            'as mesh="rows=4, cols=2" (--mesh)'
        ) from error.__cause__


@contextlib.contextmanager
def _explained(uneven: tuple[Uneven, ...]) -> Iterator[None]:
    """Where the compiler refuses: name the layouts that cannot be had, whose dimension and line JAX's own error lacks."""
    try:
        yield
    except CompileError as error:
        if not uneven:
            raise
        asked = [f"{each}{f' ({each.line})' if each.line else ''}: pad it to {each.padded}" for each in uneven]
        raise CompileError("\n  ".join([str(error), *asked])) from error.__cause__


def _types(grid: Mesh, written: AnyMesh | None) -> list[AxisType]:
    """The axis types that the function was written for where a mesh says them."""
    known = {} if written is None else dict(zip(written.axis_names, written.axis_types, strict=True))
    return [known.get(name, AxisType.Explicit) for name in grid.names]


def _made(program: Program, topology: Topology, grid: Mesh, isolated: bool) -> Made:
    """What the compiler of a topology makes of a program, in the helper, or in this process.

    A program that the partitioner calls back has to be compiled here; and what takes part of a slice never is, since
    the compilers for TPUs end their process where they have no way to compile it.
    """
    part = grid.size < topology.size
    try:
        if program.calls_back or not (isolated or part):
            return compile_program(program, topology, grid)
        return compile_once(program, topology, grid)
    except CompileError as error:
        told = unknown_option(error, program.options, topology)
        if told is not error:
            raise told from error
        if part and (isinstance(error, BrokenDownError) or "RET_CHECK" in str(error)):
            raise MeshError(
                f"mesh {grid} takes {grid.size} of the {topology.size} devices of {topology}, and their compiler cannot "
                f"compile this for a part of them: give axes whose sizes multiply to {topology.size}, or a topology of "
                f"{grid.size}\n{error}"
            ) from error
        if "replica groups should contain" in str(error):
            raise MeshError(
                f"{topology} has {topology.size} devices, and the function holds a mesh of another size: make that mesh over "
                f"as many (sw.simulate({topology.size}) before JAX starts), or name devices as many as it has\n{error}"
            ) from error
        raise


def _nothing_returned(traced: Any) -> Iterator[str]:
    """Of a function whose results are lost, as those of a step that changes its model and returns nothing of it."""
    jaxpr = traced.jaxpr.jaxpr
    seen = any(hasattr(each.aval, "inner_aval") for each in (*jaxpr.invars, *jaxpr.constvars))  # array references
    if not jaxpr.outvars and not seen:
        kept = " but for its prints and calls back" if jaxpr.effects else ""
        yield (
            f"{RETURNS_NOTHING}, so that the compiler drops all that it computes{kept}, and what is told here is of what is "
            "left: return what it changes (of flax.nnx, nnx.state((model, optimizer)))"
        )


def _notes(lowering: Lowering) -> Iterator[str]:
    yield from _nothing_returned(lowering.traced)
    if lowering.replicated:
        yield f"arguments without a layout are taken as replicated: {_some(lowering.replicated)}"
    if lowering.unsaid:
        yield f"arguments without a layout lie as function and compiler have them: {_some(lowering.unsaid)}"
    if lowering.moved:
        yield "the function holds on to another mesh: it was traced there and moved"


def _some(names: tuple[str, ...]) -> str:
    more = len(names) - SHOWN_ARGUMENTS
    return ", ".join(names[:SHOWN_ARGUMENTS]) + (f" and {more} more" if more > 0 else "")


def traced_here(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Trace a function, jitted if it is not yet.

    Raises:
        CompileError: it cannot be traced; with its own error, and the line.
    """
    check_function(function)
    try:
        return traced_by_jax(function, args)
    except (ShardwiseError, KeyboardInterrupt):
        raise
    except BaseException as error:  # whatever the user's code raises, SystemExit too
        raise CompileError(untraced(function, [error])) from error


def lowered_here(function: Callable[..., Any], traced: Any) -> Any:
    """Lower what is traced; see `traced_here`."""
    try:
        return traced.lower()
    except (ShardwiseError, KeyboardInterrupt):
        raise
    except BaseException as error:  # rules of lowering may be the user's own
        raise CompileError(untraced(function, [error])) from error


def compile_here(lowered: Any) -> Any:
    """Compile for the devices at hand.

    Raises:
        CompileError: the compiler refuses.
    """
    try:
        return lowered.compile()
    except Exception as error:  # XLA's errors share no public type
        raise CompileError(f"the compiler refuses: {reason(error)}") from error


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
        return chip_of_kind(kind)
    except HardwareError:
        return None
