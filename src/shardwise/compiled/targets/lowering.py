"""Functions lowered for devices that are not attached: traced on the axes of a mesh, whatever devices they were written for."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import jax

from shardwise.chips.topology import Topology
from shardwise.compiled.arguments import arguments_of, parameter_names
from shardwise.compiled.facts import Argument
from shardwise.compiled.targets.abstract_arguments import at_home, written_mesh
from shardwise.compiled.targets.programs import Program, program_of
from shardwise.compiled.targets.tracing import traced_by_jax, untraced
from shardwise.compiled.targets.unattached import mesh_of, target_mesh
from shardwise.compiled.targets.unbound import left_unbound
from shardwise.errors import CompileError, ShardwiseError
from shardwise.mesh import Mesh
from shardwise.runtime.devices import AnyMesh


@dataclass(frozen=True, slots=True)
class Lowering:
    """A function lowered for a mesh, and what was taken for granted on the way.

    Attributes:
        program: ready for `compile_program`, here or in another process.
        traced: what was lowered, with its jaxpr.
        replicated: paths of the arguments that said no layout on a mesh, and are taken as replicated.
        moved: whether the function holds on to another mesh, and was traced there.
        arguments: what the compiled program takes, by name.
        unsaid: paths of the arguments of which neither they nor the function say a layout: the compiler chooses it.
        module: its StableHLO, which is not to be changed.
    """

    program: Program
    traced: Any
    replicated: tuple[str, ...] = ()
    moved: bool = False
    arguments: tuple[Argument, ...] = ()
    unsaid: tuple[str, ...] = ()
    module: Any = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class _Way:
    """A way to trace: with these arguments, under what is in force, and lowered for a platform by name or by its devices."""

    args: Any
    in_force: Callable[[], AbstractContextManager[Any]]
    platforms: tuple[str, ...] | None
    moved: bool = False


def lower_on(
    function: Callable[..., Any], args: tuple[Any, ...], topology: Any, mesh: AnyMesh, platform: str = "tpu",
    written: AnyMesh | None = None,
) -> Lowering:  # fmt: skip
    """Trace a function with its arguments at home on the axes of a mesh, which are in force, and lower it for a topology.

    No device takes part, though the mesh says their kind, so that what was traced before for others, which JAX remembers,
    makes no difference. A function that holds on to another mesh of as many devices (`mesh=` of a `jax.shard_map`, an
    array that it closes over) is traced where it is at home, under axes without devices, or with the mesh in force that it
    was written for, if it has the same axes. One that calls Python back (`jax.debug.print`) can be lowered for its devices
    alone: for those of the topology.

    >>> mesh = jax.sharding.AbstractMesh((8,), ("x",))
    >>> lowering = lower_on(lambda a: a * 2, (jax.ShapeDtypeStruct((8,), "float32"),), "v5e:2x4", mesh)
    >>> lowering.replicated, lowering.moved
    (('a',), False)

    Args:
        topology: as `v5e:2x4`; None where no devices are meant, but a mesh alone: then it is lowered for `platform`.
        written: the mesh that the function was written for; that of its arguments is known without.

    Raises:
        CompileError: the function cannot be traced; with its own error, and the line.
        MeshError: an argument's layout does not fit the mesh.
    """
    topology = None if topology is None else Topology.parse(topology)
    away = axes_alone(mesh) if topology is None else target_mesh(topology, mesh, axis_types=mesh.axis_types)
    homed, replicated = at_home(args, away, parameter_names(function, len(args)))
    ways = list(_ways(args, homed, away, written, platform if topology is None else topology.kind, topology is None))
    raised: list[BaseException] = []
    while ways:
        way = ways.pop(0)
        traced: Any = None
        try:
            with left_unbound(), way.in_force():
                traced = traced_by_jax(function, way.args)
                lowered = traced.lower(lowering_platforms=way.platforms)
                module: Any = lowered.compiler_ir("stablehlo")
                arguments = arguments_of(traced, module)
                laid = {argument.name: argument.axes for argument in arguments}  # by the function's own `in_shardings`, too
                whole = tuple(path for path in replicated if laid.get(path, ()) == ())
                unsaid = tuple(path for path in replicated if laid.get(path, ()) is None)
                return Lowering(program_of(lowered), traced, whole, way.moved, arguments, unsaid, module)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # whatever the user's function raises, SystemExit too
            raised.append(error)
        if traced is not None and len(raised) == 1 and topology is not None:
            ways.insert(0, _on_the_devices(args, topology, away))
    if isinstance(raised[0], ShardwiseError):
        raise raised[0]
    raise CompileError(untraced(function, raised)) from raised[0]


def axes_alone(mesh: AnyMesh) -> jax.sharding.AbstractMesh:
    """A mesh without its devices."""
    return mesh if isinstance(mesh, jax.sharding.AbstractMesh) else mesh.abstract_mesh


@contextmanager
def _under(mesh: AnyMesh) -> Iterator[None]:
    """A mesh in force, and no other beneath it: JAX lets none take the place of one of another size."""
    with (
        jax.set_mesh(None),
        jax.set_mesh(mesh) if isinstance(mesh, jax.sharding.Mesh) else jax.sharding.use_abstract_mesh(mesh),
    ):
        yield


def _ways(
    args: Any, homed: Any, away: jax.sharding.AbstractMesh, written: AnyMesh | None, kind: str, no_devices: bool
) -> Iterator[_Way]:
    """All ways, in the order in which they are tried."""
    platforms = ("cuda" if kind == "gpu" else kind,)  # JAX tells the makers of GPUs apart
    bare = jax.sharding.AbstractMesh(away.axis_sizes, away.axis_names, axis_types=away.axis_types)  # as one writes it oneself
    yield _Way(homed, lambda: _under(away), platforms)
    if no_devices:  # what calls Python back is lowered for this machine's own devices alone
        yield _Way(homed, lambda: _under(away), (jax.default_backend(),))
    yield _Way(args, _none, platforms, moved=True)
    yield _Way(homed, _none, platforms, moved=True)
    yield _Way(args, lambda: _under(bare), platforms, moved=True)
    for mesh in dict.fromkeys((written, written_mesh(args))):  # of one that wants a mesh in force, and holds on to it as well
        if mesh is not None and (mesh.shape, mesh.axis_types) == (away.shape, away.axis_types):
            yield _Way(at_home(args, mesh)[0], functools.partial(_under, mesh), platforms, moved=True)
    if not jax.sharding.get_abstract_mesh().empty:  # last, so that it changes no answer that there is without
        yield _Way(args, nullcontext, platforms, moved=True)


def _none() -> AbstractContextManager[Any]:
    """No mesh in force."""
    return jax.set_mesh(None)


def _on_the_devices(args: Any, topology: Topology, away: jax.sharding.AbstractMesh) -> _Way:
    placed = mesh_of(topology, Mesh.parse(away), axis_types=away.axis_types)
    homed, _ = at_home(args, placed)
    return _Way(homed, lambda: jax.set_mesh(placed), None)
