"""`check`: is a function equal to its reference, leaf by leaf, with equal replicas, and equal gradients?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shardwise.errors import ArrayError
from shardwise.runtime.arrays import fetch


@dataclass(frozen=True, slots=True)
class Leaf:
    """One compared array: where it stands in the output, its largest error, what is allowed, and its replicas."""

    name: str
    error: float
    allowed: float
    replicas_equal: bool
    note: str = ""

    @property
    def ok(self) -> bool:
        return self.replicas_equal and not self.note and self.error <= self.allowed


@dataclass(frozen=True, slots=True)
class Check:
    """The outcome of a check: true when every leaf is equal within its dtype's tolerance."""

    leaves: tuple[Leaf, ...]

    @property
    def ok(self) -> bool:
        return all(leaf.ok for leaf in self.leaves)

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        lines = []
        for leaf in self.leaves:
            said = leaf.note or f"largest error {leaf.error:.3g}, allowed {leaf.allowed:.3g}"
            said += "" if leaf.replicas_equal else "; replicas differ"
            lines.append(f"{'ok  ' if leaf.ok else 'FAIL'} {leaf.name}: {said}")
        return "\n".join(lines)


def check(function: Callable[..., Any], reference: Callable[..., Any], *args: Any, gradients: bool = False) -> Check:
    """Compare a function with its reference on the same arguments.

    Equal NaNs and equal infinities at equal places are equal. The tolerance of a leaf is relative to its largest value: 50 times the epsilon of its dtype and the square root of
    its arguments' largest dimension, for sums in another order; integers must be equal. Replicas must agree bit by bit.

    >>> bool(check(lambda x: x @ x.T, lambda x: np.einsum("ij,kj->ik", x, x), np.arange(6.0).reshape(2, 3)))
    True

    Args:
        args: arrays or pytrees of them; the reference is given whole host arrays.
        gradients: compare the gradients of the sum of squares of all floating outputs too; the reference must then be
            written in JAX.

    Returns:
        A `Check`: true or false, printable, with a line for every leaf.
    """
    whole = jax.tree.map(fetch, args)
    largest = max([1, *(size for leaf in jax.tree.leaves(whole) for size in np.shape(leaf))])
    leaves = _compared("output", function(*args), reference(*whole), largest)
    if gradients:
        leaves += _compared("gradient", _gradient(function, args), _gradient(reference, whole), largest)
    return Check(tuple(leaves))


def _gradient(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    leaves, tree = jax.tree.flatten(args)
    arrays = [leaf if isinstance(leaf, jax.Array) else jnp.asarray(leaf) for leaf in leaves]
    inexact = [index for index, leaf in enumerate(arrays) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    if not inexact:
        raise ArrayError("no argument has a floating or complex dtype: there is no gradient to check")

    def energy(chosen: list[Any]) -> Any:
        filled = list(arrays)
        for index, leaf in zip(inexact, chosen, strict=True):
            filled[index] = leaf
        outputs = jax.tree.leaves(function(*jax.tree.unflatten(tree, filled)))
        return sum(jnp.sum(jnp.square(jnp.abs(out))) for out in outputs if jnp.issubdtype(out.dtype, jnp.inexact))

    return jax.jit(jax.grad(energy))([arrays[index] for index in inexact])


def _compared(what: str, got: Any, wanted: Any, largest: int) -> list[Leaf]:
    got_leaves = jax.tree_util.tree_leaves_with_path(got)
    wanted_leaves = jax.tree_util.tree_leaves_with_path(wanted)
    if [path for path, _ in got_leaves] != [path for path, _ in wanted_leaves]:
        note = f"structure {jax.tree.structure(got)} where the reference has {jax.tree.structure(wanted)}"
        return [Leaf(what, float("inf"), 0.0, True, note)]
    return [
        _leaf(what + jax.tree_util.keystr(path), one, other, largest)
        for (path, one), (_, other) in zip(got_leaves, wanted_leaves, strict=True)
    ]


def _leaf(name: str, got: Any, wanted: Any, largest: int) -> Leaf:
    replicas = replicas_equal(got)
    one, other = fetch(got), np.asarray(wanted)
    for side in (one, other):
        if not jax.dtypes.issubdtype(side.dtype, np.number) and side.dtype != bool:
            return Leaf(name, float("inf"), 0.0, replicas, f"dtype {side.dtype}, which holds no numbers to compare")
    if one.shape != other.shape:
        return Leaf(name, float("inf"), 0.0, replicas, f"shape {one.shape} where the reference has {other.shape}")
    if not one.size:
        return Leaf(name, 0.0, 0.0, replicas)
    wide = np.complex128 if one.dtype.kind == "c" else np.float64
    one, other, dtype = one.astype(wide), other.astype(wide), one.dtype
    finite = np.isfinite(other)
    if not np.array_equal(np.isfinite(one), finite):
        return Leaf(name, float("inf"), 0.0, replicas, "one has NaN or infinity where the other has none")
    if not np.array_equal(one[~finite], other[~finite], equal_nan=True):
        return Leaf(name, float("inf"), 0.0, replicas, "one has NaN or an infinity where the other has another")
    one, other = np.where(finite, one, 0), np.where(finite, other, 0)
    error = float(np.max(np.abs(one - other), where=finite, initial=0.0))
    scale = float(np.max(np.abs(other), where=finite, initial=0.0))
    exact = not jnp.issubdtype(dtype, jnp.inexact)
    allowed = 0.0 if exact else 50 * float(jnp.finfo(dtype).eps) * largest**0.5 * scale
    return Leaf(name, error, allowed, replicas)


def replicas_equal(array: Any) -> bool:
    """Whether shards of the same part of an array hold the same bits, on the devices that this process sees."""
    if not isinstance(array, jax.Array) or isinstance(array, jax.core.Tracer):
        return True
    first: dict[str, bytes] = {}
    for shard in array.addressable_shards:
        held = np.asarray(shard.data).tobytes()
        if first.setdefault(str(shard.index), held) != held:
            return False
    return True
