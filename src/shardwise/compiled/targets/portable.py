"""Functions made portable: exported without the devices they were traced for, to be lowered elsewhere or in another process."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from jax import export

from shardwise.compiled.targets.devices import reason
from shardwise.compiled.targets.homing import AnyMesh, at_home

_NOT_THE_USERS = (str(Path(jax.__file__).parent), str(Path(__file__).parents[2]), "<")


@dataclass(frozen=True, slots=True)
class Portable:
    """A program over the leaves of a function's arguments.

    Attributes:
        program: what `jax.export` made of it.
        takes: which leaves of the arguments it takes; the others (strings, static numbers) are part of it.
        donated: which of those that it takes it may overwrite.
    """

    program: export.Exported
    takes: tuple[int, ...]
    donated: tuple[int, ...]

    def lower(self, homed: Any) -> jax.stages.Lowered:
        """Lower it for arguments that are at home on a mesh."""
        leaves = jax.tree.leaves(homed)
        return jax.jit(self.program.call, donate_argnums=self.donated).lower(*(leaves[index] for index in self.takes))


def portable(function: Callable[..., Any], args: Any, mesh: AnyMesh, platform: str) -> Portable | list[BaseException]:
    """Trace a function on the axes of a mesh, or where it is at home, and export it; or return why neither works.

    >>> a = jax.ShapeDtypeStruct((8, 2), "float32")
    >>> made = portable(lambda a, k: a * k, (a, 2.0), jax.sharding.AbstractMesh((4,), ("x",)), "tpu")
    >>> made.takes, made.program.platforms
    ((0, 1), ('tpu',))
    """
    unplaced = unplaced_mesh(mesh)
    homed, _ = at_home(args, unplaced)
    raised: list[BaseException] = []
    for candidate, in_force in ((homed, unplaced), (args, None), (homed, None)):
        try:
            with jax.sharding.use_abstract_mesh(in_force) if in_force is not None else nullcontext():
                return _exported(function, candidate, platform)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # whatever the user's function raises, SystemExit too; the caller tells it
            raised.append(error)
    return raised


def unplaced_mesh(mesh: AnyMesh) -> jax.sharding.AbstractMesh:
    """A mesh of the same axes and types that says nothing of its devices.

    >>> dict(unplaced_mesh(jax.make_mesh((4,), ("x",))).shape)
    {'x': 4}
    """
    return jax.sharding.AbstractMesh(tuple(mesh.shape.values()), mesh.axis_names, axis_types=mesh.axis_types)


def export_platform(kind: str) -> str:
    """How `jax.export` names a platform: it tells the makers of GPUs apart.

    >>> export_platform("gpu"), export_platform("tpu")
    ('cuda', 'tpu')
    """
    return "cuda" if kind == "gpu" else kind


def is_jitted(function: Any) -> bool:
    """Whether a function is one that `jax.jit` made."""
    return hasattr(function, "trace") and hasattr(function, "lower")


def untraced(function: Callable[..., Any], errors: Sequence[BaseException]) -> str:
    """Say that a function cannot be traced, why in its own error's words, and at which of the user's lines."""
    first, *others = errors
    frames = [f for f in traceback.extract_tb(first.__traceback__) if not f.filename.startswith(_NOT_THE_USERS)]
    at = f"\nat {frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line}" if frames else ""
    name = getattr(function, "__name__", type(function).__name__)
    said = f"{name} cannot be traced for these devices: {type(first).__name__}: {reason(first)}{at}"
    other = next((error for error in others if reason(error) != reason(first)), None)
    if "Explicit" in reason(first):
        said += "\nwritten for Auto axes? give a mesh of them (axis_types=jax.sharding.AxisType.Auto, --axis-types auto)"
    return said if other is None else f"{said}\nnor where it is at home: {type(other).__name__}: {reason(other)}"


def _exported(function: Callable[..., Any], args: Any, platform: str) -> Portable:
    leaves, tree = jax.tree.flatten(args)
    takes, donated = _taken(function, args, leaves)

    def flat(*given: Any) -> list[Any]:
        all_leaves = list(leaves)
        for index, leaf in zip(takes, given, strict=True):
            all_leaves[index] = leaf
        return jax.tree.leaves(function(*jax.tree.unflatten(tree, all_leaves)))

    program = export.export(jax.jit(flat), platforms=[platform])(*(leaves[index] for index in takes))
    return Portable(program, takes, donated)


def _taken(function: Any, args: Any, leaves: list[Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Which leaves a function takes while it runs, and which of these it may overwrite: what was jitted knows."""
    arrays = tuple(index for index, leaf in enumerate(leaves) if hasattr(leaf, "dtype"))
    values = tuple(
        index for index, leaf in enumerate(leaves) if hasattr(leaf, "dtype") or isinstance(leaf, int | float | complex)
    )
    if not is_jitted(function):
        return values, ()
    infos = jax.tree.leaves(function.trace(*args).args_info)  # without the static arguments, which may be numbers
    takes = next((some for some in (values, arrays) if len(some) == len(infos)), None)
    if takes is None:  # some numbers are static and some are not: none need change, and what is donated is not known
        return arrays, ()
    return takes, tuple(position for position, info in enumerate(infos) if info.donated)
