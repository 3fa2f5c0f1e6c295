"""Users' functions traced, and told of where that fails."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax

from shardwise.compiled.targets.unattached import reason
from shardwise.errors import CompileError

_NOT_THE_USERS = (str(Path(jax.__file__).parent), str(Path(__file__).parents[2]), "<")


def traced_by_jax(function: Callable[..., Any], args: Sequence[Any]) -> Any:
    """Trace a function, jitted if it is not yet.

    Raises:
        CompileError: it is jitted by another than `jax.jit`, whose traces do not show what is traced.
    """
    jitted: Any = function if hasattr(function, "trace") and hasattr(function, "lower") else jax.jit(function)
    traced = jitted.trace(*args)
    if not hasattr(traced, "jaxpr"):
        name, maker = getattr(function, "__name__", type(function).__name__), type(function).__module__
        raise CompileError(
            f"{name} is jitted by {maker}, whose traces are not those of jax.jit: give a function under jax.jit that calls it "
            "and returns all that it changes, as of flax.nnx\n"
            f"    jax.jit(lambda model, *args: ({name}(model, *args), nnx.state(model)))"
        )
    return traced


def untraced(function: Callable[..., Any], errors: Sequence[BaseException]) -> str:
    """Say that a function cannot be traced, why in its own error's words, and at which of the user's lines."""
    first, *others = errors
    frames = [f for f in traceback.extract_tb(first.__traceback__) if not f.filename.startswith(_NOT_THE_USERS)]
    at = f"\nat {frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line}" if frames else ""
    name = getattr(function, "__name__", type(function).__name__)
    said = f"{name} cannot be traced for these devices: {type(first).__name__}: {reason(first)}{at}"
    other = next((error for error in others if reason(error) != reason(first)), None)
    if "should match the mesh passed to shard_map" in reason(first):
        said += (
            "\nit holds a mesh of other devices than those compiled for: let it be made over as many, "
            "with sw.simulate(how many) before JAX starts, or give mesh= its axes"
        )
    elif "as an abstract array" in reason(first):
        said += (
            "\nan argument holds what is no array, as a model of Equinox does: give its arrays alone, and return arrays alone\n"
            "    arrays, rest = eqx.partition(model, eqx.is_array)\n"
            f"    jax.jit(lambda arrays, *args: eqx.filter({name}(eqx.combine(arrays, rest), *args), eqx.is_array))"
        )
    elif "Explicit" in reason(first):
        said += "\nwritten for Auto axes? give a mesh of them (axis_types=jax.sharding.AxisType.Auto, --axis-types auto)"
    return said if other is None else f"{said}\nnor where it is at home: {type(other).__name__}: {reason(other)}"
