"""Inside `jax.shard_map`: equations on shards, where a device stands, its random keys and lines of print, and statistics."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
from jax import lax

from shardwise.errors import MeshError
from shardwise.runtime.drawing import checked_key
from shardwise.runtime.inside import einsum, reshard
from shardwise.runtime.manual import checked_axes, named, unknown
from shardwise.runtime.printing import device_print
from shardwise.runtime.statistics import logsumexp, mean, normalize, softmax, var

__all__ = [
    "axis_position",
    "device_print",
    "einsum",
    "fold_in_axis",
    "logsumexp",
    "mean",
    "normalize",
    "reshard",
    "softmax",
    "var",
]


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

    Raises:
        MeshError: an axis that the mesh lacks, or outside `jax.shard_map`.
    """
    names = named("sw.spmd.axis_position", axes)
    for name in names:
        try:
            lax.axis_size(name)
        except NameError:
            raise MeshError(f"sw.spmd.axis_position: {unknown(name)}") from None
    return lax.axis_index(names)


def fold_in_axis(key: Any, axes: str | Iterable[str]) -> Any:
    """A random key that differs along mesh axes, and agrees along the others: the key folded with the axis position.

    >>> import jax, shardwise as sw
    >>> mesh, spec = sw.make_mesh("i=4, j=2"), sw.Layout.parse("D_{i,j}").spec
    >>> draw = jax.shard_map(
    ...     lambda key: jax.random.randint(fold_in_axis(key, "i"), (1,), 0, 100) + 0 * axis_position("j"),
    ...     mesh=mesh, in_specs=sw.Layout.parse("").spec, out_specs=spec,
    ... )
    >>> drawn = draw(jax.random.key(0)).tolist()
    >>> drawn[0] == drawn[1], drawn[0] == drawn[2]
    (True, False)

    Args:
        key: one key, of `jax.random.key` or `PRNGKey`.
        axes: one mesh axis or several, whose combined position is folded in; with none, position 0, as on one device.

    Returns:
        A key of the same kind that varies over the axes. What is drawn depends on the mesh: for values that do not, see
        `sw.random`.

    Raises:
        MeshError: an axis that the mesh lacks, or outside `jax.shard_map`.
        ArrayError: it is no key, or several.
    """
    names = checked_axes("sw.spmd.fold_in_axis", axes)
    return jax.random.fold_in(checked_key("sw.spmd.fold_in_axis", key), lax.axis_index(names) if names else 0)
