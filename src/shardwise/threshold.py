"""The threshold of a public function: what it was given is added to an error, once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from shardwise.errors import ShardwiseError, one_line, quoted, shortened
from shardwise.layout import Layout
from shardwise.mesh import Mesh
from shardwise.notation import Equation

SHOWN_GIVEN = 400  # characters of what was given, below an error


@contextlib.contextmanager
def context(**given: Any) -> Iterator[None]:
    """Add equation, sizes and mesh to an error once, at the threshold."""
    try:
        yield
    except ShardwiseError as error:
        if getattr(error, "at_threshold", False):
            raise
        lines = [str(error)]
        for name, value in given.items():
            text = _shown(name, value)
            if text and text not in lines[0]:
                lines.append(f"  {name}: {text}")
        told = type(error)("\n".join(lines))
        told.at_threshold = True  # type: ignore[attr-defined]
        raise told from None


def _shown(name: str, value: Any) -> str:
    if value is None:
        return ""
    if name in ("arrays", "shards"):
        return ", ".join(map(_kind, value))
    if name == "mesh":
        try:
            return str(Mesh.parse(value))
        except ShardwiseError:
            return quoted(value, SHOWN_GIVEN)
    if isinstance(value, Mapping):
        return shortened(", ".join(f"{one_line(str(k))}={quoted(v)}" for k, v in value.items()), SHOWN_GIVEN)
    return shortened(one_line(str(value)), SHOWN_GIVEN) if isinstance(value, str | Equation | Layout) else _kind(value)


def _kind(value: Any) -> str:
    """What an array is, without its values: `float32[8, 4]`; of anything else its type."""
    if not hasattr(value, "dtype"):
        return type(value).__name__
    return f"{value.dtype}{list(getattr(value, 'shape', ()))}"
