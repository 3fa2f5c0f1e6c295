"""Functions lowered on a mesh of devices that are not attached."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from shardwise.compiled.targets.homing import at_home
from shardwise.compiled.targets.portable import Portable, export_platform, is_jitted, portable, untraced
from shardwise.errors import CompileError, ShardwiseError


@dataclass(frozen=True, slots=True)
class Lowering:
    """A function lowered on a mesh, and what was taken for granted on the way.

    Attributes:
        lowered: ready for `compile_for`.
        replicated: paths of the arguments that said no layout on a mesh, and are taken as replicated.
        moved: whether the function holds on to another mesh, and was traced there.
        traced: what was lowered; None for a function that was moved.
    """

    lowered: jax.stages.Lowered
    replicated: tuple[str, ...] = ()
    moved: bool = False
    traced: Any = None


def lower_on(function: Callable[..., Any], args: tuple[Any, ...], mesh: jax.sharding.Mesh) -> Lowering:
    """Trace a function with its arguments at home on a mesh, that mesh being in force, and lower it.

    A function that holds on to another mesh of as many devices (`mesh=` of a `jax.shard_map`, an array that it closes
    over) is traced where it is at home, exported, and lowered from there.

    >>> from shardwise.compiled.targets.devices import mesh_of
    >>> lowering = lower_on(lambda a: a * 2, (jax.ShapeDtypeStruct((8,), "float32"),), mesh_of("v5e:2x4"))
    >>> lowering.replicated, lowering.moved
    (('[0]',), False)

    Raises:
        CompileError: the function cannot be traced; with its own error, and the line.
        MeshError: an argument's layout does not fit the mesh.
    """
    homed, replicated = at_home(args, mesh)
    jitted: Any = function if is_jitted(function) else jax.jit(function)
    try:
        with jax.set_mesh(mesh):
            traced = jitted.trace(*homed)
            return Lowering(traced.lower(), replicated, traced=traced)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever the user's function raises, SystemExit too
        moved = _moved(function, args, homed, mesh)
        if isinstance(moved, jax.stages.Lowered):
            return Lowering(moved, replicated, moved=True)
        if isinstance(error, ShardwiseError):
            raise
        raise CompileError(untraced(function, [error, *moved])) from error


def _moved(
    function: Callable[..., Any], args: Any, homed: Any, mesh: jax.sharding.Mesh
) -> jax.stages.Lowered | list[BaseException]:
    made = portable(function, args, mesh, export_platform(mesh.devices.flat[0].platform))
    if not isinstance(made, Portable):
        return made[1:]  # the first attempt has the mesh in force, as here
    try:
        with jax.set_mesh(mesh):
            return made.lower(homed)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return [error]
