"""Inside `shard_map`: where this device stands."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jax import lax
from jax.sharding import get_abstract_mesh

from shardwise.errors import MeshError


def axis_position(axes: str | Iterable[str]) -> Any:
    """The position of this device along a mesh axis, or along several together, the first the major one.

    >>> import jax, shardwise as sw
    >>> mesh = sw.make_mesh("i=4, j=2")
    >>> spec = sw.Layout.parse("D_{i,j}").spec
    >>> place = jax.shard_map(lambda: axis_position(("i", "j"))[None], mesh=mesh, in_specs=(), out_specs=spec)
    >>> place().tolist()
    [0, 1, 2, 3, 4, 5, 6, 7]

    Returns:
        An int32 scalar that varies over the axes.
    """
    try:
        return lax.axis_index(axes if isinstance(axes, str) else tuple(axes))
    except NameError:
        known = ", ".join(get_abstract_mesh().axis_names) or "none: axis_position stands inside jax.shard_map"
        raise MeshError(f"no mesh axis {axes!r} here: there are {known}") from None
