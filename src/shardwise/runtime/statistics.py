"""Statistics over dimensions that mesh axes split, for use inside `jax.shard_map`: stable, and in few collectives.

In all of them `axis` are the dimensions of the shard that are reduced, and `over` the mesh axes that split them: the
reduced elements are those of this shard and of the other devices along `over`. With `over=()` nothing is communicated.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shardwise.errors import ArrayError
from shardwise.runtime.arrays import as_array
from shardwise.runtime.manual import checked_axes, manual_mesh
from shardwise.runtime.ring_matmuls import varying_axes

# Up to here a variance gathers the moments of all n devices: one collective, which brings 3n values for each of the result,
# where two all-reduces send 6 and wait four times as long for hops. On links of 45 GB/s a megabyte takes 23 us, about as
# long as the hops that it saves 8 devices; beyond it bytes and memory count.
GATHERED_BYTES = 1 << 20

Dims = int | Iterable[int] | None
MeshAxes = str | Iterable[str]


def mean(x: Any, *, axis: Dims = None, over: MeshAxes, keepdims: bool = False) -> Any:
    """The mean over dimensions that mesh axes split: one all-reduce.

    >>> import jax, numpy as np, shardwise as sw
    >>> mesh, layout = sw.make_mesh("x=4"), sw.Layout.parse("I, J_x")
    >>> x = sw.put(np.float32([[0, 1, 2, 3, 4, 5, 6, 7]]), layout, mesh)
    >>> rows = jax.shard_map(lambda x: mean(x, axis=1, over="x"), mesh=mesh, in_specs=layout.spec, out_specs=jax.P(None))
    >>> rows(x)
    Array([3.5], dtype=float32)

    Args:
        x: this device's shard. Sums are taken in float32 (float64 of float64).
        axis: the dimension or dimensions of the shard to reduce; None is all of them.
        over: the mesh axis or axes that split those dimensions.
        keepdims: keep the reduced dimensions, with size 1.

    Returns:
        The mean in the dtype of `x` (float32 of integers), equal on all devices along `over`.

    Raises:
        MeshError: an axis that the mesh lacks, or outside `jax.shard_map`.
        ArrayError: a dimension that `x` lacks; complex or empty; or nothing of `x` is split over one of the mesh axes.
    """
    part = _part("sw.spmd.mean", x, axis, over)
    total = _sum(part, part.values)
    return _finished(part, total / part.count, keepdims)


def var(x: Any, *, axis: Dims = None, over: MeshAxes, keepdims: bool = False) -> Any:
    """The variance (of the population, as `jnp.var`) over dimensions that mesh axes split: one collective.

    Each device reduces its shard to a mean and a sum of squared deviations, and these are combined as by T. F. Chan,
    G. H. Golub and R. J. LeVeque, "Algorithms for computing the sample variance", 1983, equation 2.1: a large offset
    does not cancel. One all-gather brings them together, and the gradient needs no collective; where that would be more
    than a megabyte, two all-reduces do.

    >>> import jax, numpy as np, shardwise as sw
    >>> mesh, layout = sw.make_mesh("x=4"), sw.Layout.parse("J_x")
    >>> x = sw.put(1e6 + np.float32([0, 1, 2, 3, 4, 5, 6, 7]), layout, mesh)
    >>> jax.shard_map(lambda x: var(x, over="x"), mesh=mesh, in_specs=layout.spec, out_specs=jax.P())(x)
    Array(5.25, dtype=float32)

    Args, returns and raises: as `mean`.
    """
    part = _part("sw.spmd.var", x, axis, over)
    return _finished(part, _moments(part)[2], keepdims)


def normalize(x: Any, *, axis: Dims = -1, over: MeshAxes, eps: float = 1e-5) -> Any:
    """Take off the mean and divide by the standard deviation, over dimensions that mesh axes split: one collective.

    >>> import jax, numpy as np, shardwise as sw
    >>> mesh, layout = sw.make_mesh("x=4"), sw.Layout.parse("I, J_x")
    >>> x = sw.put(np.float32([[0, 1, 2, 3, 4, 5, 6, 7]]), layout, mesh)
    >>> y = jax.shard_map(lambda x: normalize(x, over="x"), mesh=mesh, in_specs=layout.spec, out_specs=layout.spec)(x)
    >>> float(y.std().round(4))
    1.0

    Args:
        x, axis, over: as in `mean`, for one shard; by default the last dimension.
        eps: added to the variance. Above zero it keeps rows of equal values, and their gradients, at zero.

    Returns:
        `(x - mean) / sqrt(var + eps)`, in the shape and dtype of `x` (float32 of integers).

    Raises:
        MeshError, ArrayError: as `mean`; or `eps` is negative.
    """
    if not isinstance(eps, jax.Array) and not (isinstance(eps, numbers.Real) and 0 <= eps < math.inf):
        raise ArrayError(f"sw.spmd.normalize: eps={eps!r}: give a number that is not negative, as 1e-5")
    part = _part("sw.spmd.normalize", x, axis, over)
    near, delta, spread = _moments(part)
    return (((part.values - near) - delta) * lax.rsqrt(spread + eps)).astype(part.dtype)


def softmax(x: Any, *, axis: Dims = -1, over: MeshAxes) -> Any:
    """The softmax over dimensions that mesh axes split: the largest value by one all-reduce, the sum by another.

    >>> import jax, numpy as np, shardwise as sw
    >>> mesh, layout = sw.make_mesh("x=4"), sw.Layout.parse("J_x")
    >>> x = sw.put(np.float32([1000, 1000, -np.inf, -np.inf]), layout, mesh)
    >>> jax.shard_map(lambda x: softmax(x, over="x"), mesh=mesh, in_specs=layout.spec, out_specs=layout.spec)(x)
    Array([0.5, 0.5, 0. , 0. ], dtype=float32)

    Args:
        x, axis, over: as in `mean`, for one shard; by default the last dimension.

    Returns:
        Of the shape and dtype of `x` (float32 of integers). As in `jax.nn.softmax` a row that is -inf throughout is NaN.

    Raises:
        MeshError, ArrayError: as `mean`.
    """
    part = _part("sw.spmd.softmax", x, axis, over)
    powers = jnp.exp(part.values - _largest(part))
    return (powers / _sum(part, powers)).astype(part.dtype)


def logsumexp(x: Any, *, axis: Dims = None, over: MeshAxes, keepdims: bool = False) -> Any:
    """The logarithm of the sum of exponentials over dimensions that mesh axes split, by two all-reduces as `softmax`.

    >>> import jax, numpy as np, shardwise as sw
    >>> mesh, layout = sw.make_mesh("x=4"), sw.Layout.parse("J_x")
    >>> x = sw.put(np.float32([1000, -np.inf, -np.inf, -np.inf]), layout, mesh)
    >>> jax.shard_map(lambda x: logsumexp(x, over="x"), mesh=mesh, in_specs=layout.spec, out_specs=jax.P())(x)
    Array(1000., dtype=float32)

    Args, returns and raises: as `mean`. A row that is -inf throughout gives -inf, one with +inf gives +inf.
    """
    part = _part("sw.spmd.logsumexp", x, axis, over)
    largest = _largest(part)
    shift = jnp.where(jnp.isfinite(largest), largest, 0)
    total = _sum(part, jnp.exp(part.values - shift))
    return _finished(part, jnp.log(total) + shift, keepdims)


@dataclass(frozen=True, slots=True)
class _Part:
    """A shard to be reduced: its values in the dtype of the sums, the dimensions, the mesh axes, and the number of
    elements reduced on all devices together; and the dtype of what is returned."""

    values: Any
    dims: tuple[int, ...]
    axes: tuple[str, ...]
    count: int
    dtype: Any


def _part(who: str, x: Any, axis: Dims, over: MeshAxes) -> _Part:
    array = jnp.asarray(as_array(x))
    if not jnp.issubdtype(array.dtype, jnp.floating):
        if not jnp.issubdtype(array.dtype, jnp.integer) and array.dtype != bool:
            raise ArrayError(f"{who}: the array has dtype {array.dtype}: give real numbers, as array.real and array.imag")
        array = array.astype(jnp.float32)
    dims = _dims(who, axis, array.ndim)
    here = math.prod(array.shape[dim] for dim in dims)
    if here == 0:
        raise ArrayError(
            f"{who}: the array has shape {array.shape}: there is nothing to reduce in dimension {_empty(array, dims)}"
        )
    axes = _split_axes(who, array, checked_axes(who, over))
    values = array if array.dtype == np.float64 else array.astype(jnp.float32)
    return _Part(values, dims, axes, here * manual_mesh().extent(axes), array.dtype)


def _empty(array: Any, dims: tuple[int, ...]) -> int:
    return next(dim for dim in dims if array.shape[dim] == 0)


def _dims(who: str, axis: Dims, rank: int) -> tuple[int, ...]:
    """Dimensions as they are counted from the front, each once."""
    given = range(rank) if axis is None else (axis,) if isinstance(axis, numbers.Integral) else axis
    dims = []
    for dim in given if isinstance(given, Iterable) else (given,):
        if isinstance(dim, bool) or not isinstance(dim, numbers.Integral):
            raise ArrayError(
                f"{who}: axis={axis!r}: give dimensions of the shard by number, as -1 or (0, 1), and mesh axes as over="
            )
        if not -rank <= dim < rank:
            have = f"dimensions 0 to {rank - 1}" if rank else "no dimensions"
            raise ArrayError(f"{who}: axis {dim} is out of range: the shard has {have}")
        dims.append(int(dim) % rank)
    if len(set(dims)) < len(dims):
        raise ArrayError(f"{who}: axis={axis!r} names a dimension twice: name each once")
    return tuple(dims)


def _split_axes(who: str, array: Any, axes: tuple[str, ...]) -> tuple[str, ...]:
    """The mesh axes to reduce over, without those of one device that JAX's types do not tell of either.

    Under `check_vma` the types tell where values differ; along an axis where they do not, nothing is split. Without it the
    types tell nothing, not even that a device's own position differs.
    """
    here, told = manual_mesh(), varying_axes(array)
    kept = []
    for axis in axes:
        if axis in told or axis not in varying_axes(lax.axis_index(axis)):
            kept.append(axis)
        elif here.axis_size(axis) > 1:
            raise ArrayError(
                f"{who}: over={axis!r}, but the array is equal on all devices along {axis}, so none of it is split over it: "
                f"leave {axis} out, or say that the values are shards, jax.lax.pcast(x, {axis!r}, to='varying')"
            )
    return tuple(kept)


def _sum(part: _Part, values: Any) -> Any:
    """Sum values, which keep their reduced dimensions, here and on the other devices."""
    here = jnp.sum(values, part.dims, keepdims=True)
    return lax.psum(here, part.axes) if part.axes else here


def _largest(part: _Part) -> Any:
    """The largest value, here and on the other devices. No gradient runs through it: what it is used for is the same
    for every shift."""
    here = lax.stop_gradient(jnp.max(part.values, part.dims, keepdims=True))
    return lax.pmax(here, part.axes) if part.axes else here


def _moments(part: _Part) -> tuple[Any, Any, Any]:
    """A value near the mean, how far the mean is from it, and the variance; reduced dimensions are kept.

    Each shard counts from its first value, and the shards are compared by how far they are from a common one, so that
    neither loses digits to a constant offset. Wherever one counts from, the moments are the same: no gradient runs through it.
    """
    at_first = tuple(slice(0, 1) if dim in part.dims else slice(None) for dim in range(part.values.ndim))
    first = lax.stop_gradient(part.values[at_first])
    beyond = part.values - first
    middle = jnp.mean(beyond, part.dims, keepdims=True)
    squares = jnp.sum((beyond - middle) ** 2, part.dims, keepdims=True)
    if not part.axes:
        return first, middle, squares / part.count
    devices = manual_mesh().extent(part.axes)
    count_here = part.count // devices
    if 3 * devices * first.size * first.dtype.itemsize <= GATHERED_BYTES:
        firsts, middles, all_squares = _gathered(jnp.stack([first, middle, squares]), part.axes)
        apart = (firsts - firsts[0]) + middles
        delta = jnp.mean(apart, 0)
        return firsts[0], delta, jnp.sum(all_squares + count_here * (apart - delta) ** 2, 0) / part.count
    near = lax.stop_gradient(lax.psum(first + middle, part.axes) / devices)
    apart = (first - near) + middle
    total, total_squares = lax.psum(jnp.stack([apart, squares + count_here * apart**2]), part.axes)
    delta = total / devices
    return near, delta, jnp.maximum(total_squares / part.count - delta**2, 0)


def _gathered(stacked: Any, axes: tuple[str, ...]) -> Any:
    """Every device's values of some kinds: for each kind an array with the devices first, equal on all of them.

    Only under `check_vma` may JAX be told that they are equal: without it the gradient would lack the other devices'.
    """
    typed = varying_axes(lax.axis_index(axes[0]))
    return lax.all_gather(stacked, axes, axis=1, to="invarying" if typed else "varying")


def _finished(part: _Part, value: Any, keepdims: bool) -> Any:
    return (value if keepdims else jnp.squeeze(value, part.dims)).astype(part.dtype)
