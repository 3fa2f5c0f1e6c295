"""Arguments and functions brought home to a mesh of devices that are not attached, and lowered there."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import export
from jax.sharding import NamedSharding, PartitionSpec

import shardwise
from shardwise.compiled.targets import reason
from shardwise.errors import CompileError, MeshError, ShardwiseError, did_you_mean
from shardwise.mesh import Mesh
from shardwise.runtime.devices import AnyMesh

_NOT_THE_USERS = tuple(str(Path(module.__file__).parent) for module in (jax, shardwise) if module.__file__)


@dataclass(frozen=True, slots=True)
class Lowering:
    """A function lowered on a mesh, and what was taken for granted on the way.

    Attributes:
        lowered: ready for `compile`.
        replicated: paths of the arguments that said no layout on a mesh, and are taken as replicated.
        traced: what was lowered; None for a function that was moved.
        moved: whether the function holds on to another mesh and was traced there. What it donates is then not known.
    """

    lowered: jax.stages.Lowered
    replicated: tuple[str, ...] = ()
    moved: bool = False
    traced: Any = None


def at_home(args: Any, mesh: AnyMesh) -> tuple[Any, tuple[str, ...]]:
    """Give every array of a tree its place on a mesh: shapes, dtypes and layouts stay, data and old devices do not.

    Arrays and `jax.ShapeDtypeStruct`s laid out on another mesh keep their `PartitionSpec`; those that lie on no mesh are
    taken as replicated, and their paths are returned. Python numbers stay as they are, and so does what is no array.

    >>> mesh = jax.sharding.AbstractMesh((4,), ("x",))
    >>> args, replicated = at_home((np.ones((8, 2), np.float32), 3.0), mesh)
    >>> args[0].sharding.spec, args[1], replicated
    (P(), 3.0, ('[0]',))

    Raises:
        MeshError: a layout uses an axis that the mesh lacks, or has in another size; or it is on no named axes.
    """
    replicated = []

    def home(path: Any, leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array | jax.ShapeDtypeStruct | np.ndarray | np.generic):
            return leaf
        where = jax.tree_util.keystr(path)
        spec = _spec(getattr(leaf, "sharding", None), mesh, where)
        if spec is None and leaf.ndim:
            replicated.append(where)
        sharding = NamedSharding(mesh, spec or PartitionSpec())
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


def lower_on(function: Callable[..., Any], args: tuple[Any, ...], mesh: jax.sharding.Mesh) -> Lowering:
    """Trace a function with its arguments at home on a mesh, that mesh being in force, and lower it.

    A function that holds on to another mesh of as many devices (`mesh=` of a `jax.shard_map`, an array that it closes
    over) is traced where it is at home, exported, and lowered from there.

    Raises:
        CompileError: the function cannot be traced; with its own error, and the line.
        MeshError: an argument's layout does not fit the mesh.
    """
    homed, replicated = at_home(args, mesh)
    try:
        with jax.set_mesh(mesh):
            traced = jitted(function).trace(*homed)
            return Lowering(traced.lower(), replicated, traced=traced)
    except Exception as error:  # whatever the user's function raises
        moved = _lower_moved(function, args, homed, mesh)
        if isinstance(moved, jax.stages.Lowered):
            return Lowering(moved, replicated, moved=True)
        if isinstance(error, ShardwiseError):
            raise
        said = untraced(function, error)
        if reason(moved) != reason(error):
            said += f"\nnor on a mesh that it holds on to: {type(moved).__name__}: {reason(moved)}"
        raise CompileError(said) from error


def untraced(function: Callable[..., Any], error: BaseException) -> str:
    """Say that a function cannot be traced, why in its own error's words, and at which of the user's lines."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_the_users(frame.filename)]
    at = f"\nat {frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line}" if frames else ""
    name = getattr(function, "__name__", type(function).__name__)
    return f"{name} cannot be traced for these devices: {type(error).__name__}: {reason(error)}{at}"


def _lower_moved(function: Callable[..., Any], args: Any, homed: Any, mesh: jax.sharding.Mesh) -> Any:
    """Lower by way of `jax.export`, which forgets the devices that a function was traced for; or return what it raised."""
    platform = export_platform(mesh.devices.flat[0].platform)
    unplaced, _ = at_home(args, unplaced_mesh(mesh))
    raised = []
    for candidate in (args, unplaced):
        try:
            exported = export.export(jitted(function), platforms=[platform])(*candidate)
            with jax.set_mesh(mesh):
                return jax.jit(exported.call).lower(*homed)
        except Exception as error:  # the caller tells it
            raised.append(error)
    return raised[0]


def unplaced_mesh(mesh: AnyMesh) -> jax.sharding.AbstractMesh:
    """A mesh of the same axes and types that says nothing of its devices.

    >>> dict(unplaced_mesh(jax.make_mesh((4,), ("x",))).shape)
    {'x': 4}
    """
    return jax.sharding.AbstractMesh(tuple(mesh.shape.values()), mesh.axis_names, axis_types=mesh.axis_types)


def export_platform(platform: str) -> str:
    """How `jax.export` names a platform: it tells the makers of GPUs apart."""
    return "cuda" if platform == "gpu" else platform


def jitted(function: Callable[..., Any]) -> Any:
    """The function, jitted if it is not yet."""
    return function if hasattr(function, "trace") and hasattr(function, "lower") else jax.jit(function)


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


def _is_the_users(filename: str) -> bool:
    return not filename.startswith((*_NOT_THE_USERS, "<"))
