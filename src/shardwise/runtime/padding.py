"""What of an array is padding: the true shapes of padded arrays, known for as long as the arrays live.

JAX's arrays have no room for it, so it is kept beside them, by identity. What is computed of a padded array by anything else
than Shardwise is another array, of which nothing is known: it may hold other things than zeros there.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import jax

from shardwise.errors import ArrayError

_KNOWN: dict[int, tuple[weakref.ref[Any], tuple[int, ...]]] = {}


def true_shape(array: Any) -> tuple[int, ...]:
    """The shape of an array without the zeros that `pad=True` filled it up with; of any other its own.

    >>> import numpy as np, shardwise as sw
    >>> a = sw.put(np.arange(7.0), "A[I_x]", "x=4", pad=True)
    >>> a.shape, true_shape(a), true_shape(sw.reshard(a, "A[I_x] -> A[I]"))
    ((8,), (7,), (7,))

    Known of what `sw.put`, `sw.einsum`, `sw.reshard`, `sw.random` and a plan's function give. Inside `jit`, and of what JAX
    itself computes of a padded array, nothing is: there it is the array's own shape.

    Raises:
        ArrayError: it is no array.
    """
    known = _KNOWN.get(id(array))
    if known is not None and known[0]() is array:
        return known[1]
    if not hasattr(array, "shape"):
        raise ArrayError(f"{type(array).__name__} is no array: it has no shape")
    return tuple(array.shape)


def remember(array: Any, shape: Iterable[int]) -> Any:
    """Keep the true shape of an array that is padded; returns the array."""
    true = tuple(shape)
    if true != tuple(array.shape) and isinstance(array, jax.Array) and not isinstance(array, jax.core.Tracer):
        key = id(array)
        _KNOWN[key] = (weakref.ref(array, lambda _: _KNOWN.pop(key, None)), true)
    return array


def any_padded(arrays: Iterable[Any]) -> bool:
    """Whether one of some arrays is known to be padded."""
    return bool(_KNOWN) and any(id(array) in _KNOWN for array in arrays)
