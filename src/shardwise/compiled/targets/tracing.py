"""Users' functions traced, and told of where that fails."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax

from shardwise.compiled.targets.devices import reason

_NOT_THE_USERS = (str(Path(jax.__file__).parent), str(Path(__file__).parents[2]), "<")


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
