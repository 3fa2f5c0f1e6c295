"""`check`: is a function equal to its reference, leaf by leaf, with equal replicas, and equal gradients?"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from shardwise.distributed.preflights import agree
from shardwise.errors import ArrayError, one_line
from shardwise.layout import Layout
from shardwise.runtime.arrays import fetch

CHUNK = 1 << 22


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
            lines.append(one_line(f"{'ok  ' if leaf.ok else 'FAIL'} {leaf.name}: {said}"))
        return "\n".join(lines)


def check(
    function: Callable[..., Any], reference: Callable[..., Any], *args: Any, gradients: bool = False, exact: bool = False
) -> Check:
    """Compare a function with its reference on the same arguments.

    The tolerance of a leaf is relative to its largest value: 8 times the epsilon of its dtype, for rounding, and 8 times
    that of float32 (or finer) times the square root of the arguments' largest dimension, for sums in another order.
    Integers must be equal, NaN and infinities stand in the same places, and replicas agree bit by bit.

    >>> bool(check(lambda x: x @ x.T, lambda x: np.einsum("ij,kj->ik", x, x), np.arange(6.0).reshape(2, 3)))
    True

    Args:
        args: arrays or pytrees of them; the reference is given whole host arrays.
        gradients: compare the gradients of the sum of squares of all floating outputs too; the reference must then be
            written in JAX.
        exact: allow no difference at all: every leaf has the reference's dtype and, bit by bit, its values.

    Returns:
        A `Check`: true or false, printable, with a line for every leaf.
    """
    for mesh in {leaf.sharding.mesh for leaf in jax.tree.leaves(args) if _is_across_processes(leaf)}:
        arrays = ", ".join(f"{leaf.dtype}{list(leaf.shape)}" for leaf in jax.tree.leaves(args) if hasattr(leaf, "dtype"))
        agree("check", mesh, {"arrays": arrays, "gradients": str(gradients), "exact": str(exact)})
    whole = jax.tree.map(fetch, args)
    largest = max([1, *(size for leaf in jax.tree.leaves(whole) for size in np.shape(leaf))])
    compared = functools.partial(_compared, largest=largest, exact=exact)
    leaves = compared("output", _called(function, args), reference(*whole))
    if gradients:
        leaves += compared("gradient", _gradient(function, args), _gradient(reference, whole))
    return Check(tuple(leaves))


def _is_across_processes(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and not leaf.is_fully_addressable and isinstance(leaf.sharding, NamedSharding)


def _called(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """What a function gives.

    Raises:
        ArrayError: it is mapped by `jax.shard_map` over Explicit axes, which moves no array to where its `in_specs` want it.
    """
    try:
        return function(*args)
    except ValueError as error:
        if not str(error).startswith("in_specs passed to shard_map"):
            raise
        reason = str(error).partition(". ")[0].partition(": ")[2]
        raise ArrayError(
            f"an argument of the shard_map lies otherwise than its in_specs say, {reason}: over Explicit axes place it first, "
            'as sw.put(a, "A[I_x, J]", mesh), or make the mesh with Auto axes, over which JAX moves it'
        ) from error


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
        outputs = [jnp.asarray(out) for out in jax.tree.leaves(function(*jax.tree.unflatten(tree, filled)))]
        if all(_is_whole(out.dtype) for out in outputs):
            raise ArrayError("no output has a floating or complex dtype: there is no gradient to check")
        return sum(jnp.sum(out.real**2 + out.imag**2) for out in outputs if not _is_whole(out.dtype))

    return jax.jit(jax.grad(energy))([arrays[index] for index in inexact])


def _compared(what: str, got: Any, wanted: Any, largest: int, exact: bool) -> list[Leaf]:
    got_leaves = jax.tree_util.tree_leaves_with_path(got)
    wanted_leaves = jax.tree_util.tree_leaves_with_path(wanted)
    if jax.tree.structure(got) != jax.tree.structure(wanted):
        note = f"structure {jax.tree.structure(got)} where the reference has {jax.tree.structure(wanted)}"
        return [Leaf(what, float("inf"), 0.0, True, note)]
    return [
        _leaf(what + jax.tree_util.keystr(path), one, other, largest, exact)
        for (path, one), (_, other) in zip(got_leaves, wanted_leaves, strict=True)
    ]


def _leaf(name: str, got: Any, wanted: Any, largest: int, exact: bool) -> Leaf:
    replicas = replicas_equal(got)
    one, other = fetch(got), np.asarray(wanted)
    for side in (one, other):
        if not jax.dtypes.issubdtype(side.dtype, np.number) and side.dtype != bool:
            return Leaf(name, float("inf"), 0.0, replicas, f"dtype {side.dtype}, which holds no numbers to compare")
    if one.shape != other.shape:
        return Leaf(name, float("inf"), 0.0, replicas, f"shape {one.shape} where the reference has {other.shape}")
    if not one.size:
        return Leaf(name, 0.0, 0.0, replicas)
    if not np.array_equal(np.isnan(one), np.isnan(other)):
        return Leaf(name, float("inf"), 0.0, replicas, "NaN stands in other places than in the reference")
    error, scale = _largest(one, other)
    if exact:
        return Leaf(name, error, 0.0, replicas, _bits_said(one, other, error))
    if _is_whole(one.dtype):
        return Leaf(name, error, 0.0, replicas)
    own = float(jnp.finfo(one.dtype).eps)
    allowed = 8 * (own + min(own, float(jnp.finfo("float32").eps)) * largest**0.5) * scale
    return Leaf(name, error, allowed, replicas)


def _bits_said(one: np.ndarray, other: np.ndarray, error: float) -> str:
    """Why two arrays of one shape do not hold the same bits, where their largest difference does not say it."""
    if one.dtype != other.dtype:
        return f"dtype {one.dtype} where the reference has {other.dtype}: their bits are not comparable"
    if error or np.array_equal(_bits(one), _bits(other)):
        return ""
    return "equal values of other bits, as 0.0 and -0.0"


def _is_whole(dtype: Any) -> bool:
    return not jnp.issubdtype(dtype, jnp.inexact)


def _largest(one: np.ndarray, other: np.ndarray) -> tuple[float, float]:
    """The largest difference and the largest value of the reference; part by part, so that large arrays fit."""
    whole = _is_whole(one.dtype) and _is_whole(other.dtype)
    wide = np.complex128 if "c" in (one.dtype.kind, other.dtype.kind) else np.float64
    error = scale = 0.0
    for start in range(0, one.size, CHUNK):
        part, wanted = (x.reshape(-1)[start : start + CHUNK] for x in (one, other))
        wide_part, wide_wanted = part.astype(wide), wanted.astype(wide)
        if whole:  # float64 would take neighbours beyond 2**53 for equal, and int64 alone 2**64 - 1 for -1
            differ = (part.astype(np.int64) != wanted.astype(np.int64)) | ((part < 0) != (wanted < 0))
        else:  # infinities are equal to themselves, and so is NaN here
            differ = (wide_part != wide_wanted) & ((wide_part == wide_part) | (wide_wanted == wide_wanted))
        if differ.any():
            with np.errstate(invalid="ignore", over="ignore"):
                gaps = np.abs(wide_part[differ] - wide_wanted[differ])
            error = max(error, float(whole), float(np.max(np.where(np.isfinite(gaps), gaps, np.inf))))
        sizes = np.abs(wide_wanted)
        scale = max(scale, float(np.max(sizes, where=np.isfinite(sizes), initial=0.0)))
    return error, scale


def replicas_equal(array: Any) -> bool:
    """Whether shards of the same part of an array hold the same bits; where several processes hold them, all must ask."""
    if not isinstance(array, jax.Array) or isinstance(array, jax.core.Tracer):
        return True
    spec = getattr(array.sharding, "spec", None)
    if getattr(spec, "unreduced", None):
        return True  # these are partial sums, not replicas
    if not array.is_fully_addressable and isinstance(array.sharding, NamedSharding):
        return _replicas_equal_across_processes(array, array.sharding)
    first: dict[str, np.ndarray] = {}
    for shard in array.addressable_shards:
        held = np.asarray(shard.data)
        known = first.setdefault(str(shard.index), held)
        if known is not held and not np.array_equal(_bits(known), _bits(held)):
            return False
    return True


def _replicas_equal_across_processes(array: jax.Array, sharding: NamedSharding) -> bool:
    """Whether, on every device, the largest and the smallest among the replicas' bits are the same; so all processes find
    the same answer. Types that say what is replicated are what is in doubt here, so this one map is unchecked."""
    every = tuple(sharding.mesh.axis_names)
    idle = tuple(axis for axis in every if axis not in Layout.from_spec(sharding.spec).axes)
    if not idle:
        return True

    def differ(shard: Any) -> Any:
        words = _words(shard)
        return lax.pmax(jnp.any(lax.pmax(words, idle) != lax.pmin(words, idle)).astype("int32"), every)

    compare = jax.shard_map(differ, mesh=sharding.mesh, in_specs=sharding.spec, out_specs=PartitionSpec(), check_vma=False)
    return not int(np.asarray(jax.jit(compare)(array).addressable_data(0)))


def _words(array: Any) -> Any:
    """The bits of an array as whole numbers of 32 bits."""
    if jnp.iscomplexobj(array):
        return jnp.stack([_words(array.real), _words(array.imag)])
    if array.dtype.itemsize >= 4:
        return lax.bitcast_convert_type(array, "uint32")
    if jnp.issubdtype(array.dtype, jnp.floating):
        array = lax.bitcast_convert_type(array, f"uint{8 * array.dtype.itemsize}")
    return array.astype("int32")


def _bits(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
