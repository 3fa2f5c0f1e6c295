"""Random arrays whose values do not depend on the layout or the number of devices; each device makes only its shard.

JAX's threefry generator computes every value from the key and the position in the whole array, so that a shard can be made
where it lives. These functions name the layout, and see to what is needed for that to hold: the generator, a draw that is
split like the array, padding that does not move positions, and rounding that does not depend on the shard's shape.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shardwise.layout import Layout
from shardwise.runtime.drawing import Distribution, made


def bits(
    key: Any, layout: str | Layout, *, sizes: Mapping[str, int], mesh: Any = None, dtype: Any = "uint32", pad: bool = False
) -> jax.Array:
    """Unsigned integers of random bits, equal to `jax.random.bits(key, shape, dtype)` in every layout.

    >>> import jax, shardwise as sw
    >>> key, sizes, mesh = jax.random.key(0), {"I": 8, "J": 4}, sw.make_mesh("x=4, y=2")
    >>> one, other = (sw.random.bits(key, layout, sizes=sizes, mesh=mesh) for layout in ("I_x, J", "I, J_y"))
    >>> bool((np.asarray(one) == np.asarray(other)).all())
    True

    Args, returns and raises: as `normal`; the dtype is an unsigned one.
    """
    return made(_BITS, key, layout, sizes, mesh, dtype, pad)


def uniform(
    key: Any, layout: str | Layout, *, sizes: Mapping[str, int], mesh: Any = None, dtype: Any = "float32",
    minval: Any = 0.0, maxval: Any = 1.0, pad: bool = False,
) -> jax.Array:  # fmt: skip
    """Values spread evenly from `minval` up to, but without, `maxval`; equal to `jax.random.uniform` in every layout.

    >>> import jax, shardwise as sw
    >>> a = sw.random.uniform(jax.random.key(0), "A[I_x]", sizes={"I": 8}, mesh="x=4", minval=-1.0)
    >>> bool((a >= -1).all() and (a < 1).all())
    True

    Args, returns and raises: as `normal`.
    """
    return made(_UNIFORM, key, layout, sizes, mesh, dtype, pad, minval=minval, maxval=maxval)


def normal(
    key: Any, layout: str | Layout, *, sizes: Mapping[str, int], mesh: Any = None, dtype: Any = "float32", pad: bool = False
) -> jax.Array:
    """Values of the standard normal distribution, bit for bit the same in every layout and on any number of devices.

    >>> import jax, shardwise as sw
    >>> w = sw.random.normal(jax.random.key(0), "W[D_x, F_y]", sizes={"D": 64, "F": 32}, mesh="x=4, y=2")
    >>> w.addressable_shards[0].data.shape
    (16, 16)
    >>> alone = sw.random.normal(jax.random.key(0), "W[D, F]", sizes={"D": 64, "F": 32}, mesh="x=1")
    >>> bool((np.asarray(w) == np.asarray(alone)).all())
    True

    Each device makes its shard, and nothing is communicated. Works inside `jit` too, where the mesh is the one in force.
    Values are those of `jax.random.normal(key, shape)`, up to the last bits: compilers round its inverse error function by
    the shape that they compile for, which here is the same for every layout.

    Args:
        key: one key, of `jax.random.key` or `PRNGKey`, of the generator threefry2x32 (JAX's own).
        layout: `"A[I_x, J]"`, `"I_x, J"` or a `Layout`.
        sizes: the size of every dimension, in elements.
        mesh: a JAX mesh or `"x=4"`; by default the one in force.
        dtype: of the values, by name or as a type.
        pad: fill dimensions that their axes do not divide with zeros at the end, as `sw.put` does; the other values stay
            the same.

    Raises:
        ArrayError: it is no key, or one of another generator; a dtype that this distribution does not have.
        LayoutError: a size that is missing, or that its axes do not divide, without `pad`; partial sums.
        MeshError: there is no mesh, or it lacks an axis; or inside `jax.shard_map` (see `sw.spmd.fold_in_axis`).
    """
    return made(_NORMAL, key, layout, sizes, mesh, dtype, pad)


def truncated_normal(
    key: Any, layout: str | Layout, *, lower: Any, upper: Any, sizes: Mapping[str, int], mesh: Any = None,
    dtype: Any = "float32", pad: bool = False,
) -> jax.Array:  # fmt: skip
    """Values of the standard normal distribution between `lower` and `upper`, the same in every layout.

    >>> import jax, shardwise as sw
    >>> a = sw.random.truncated_normal(jax.random.key(0), "A[I_x]", lower=-2.0, upper=2.0, sizes={"I": 8}, mesh="x=4")
    >>> bool((abs(a) < 2).all())
    True

    Args, returns and raises: as `normal`.
    """
    return made(_TRUNCATED, key, layout, sizes, mesh, dtype, pad, lower=lower, upper=upper)


def bernoulli(
    key: Any, layout: str | Layout, *, p: Any = 0.5, sizes: Mapping[str, int], mesh: Any = None, pad: bool = False
) -> jax.Array:
    """True with probability `p`, equal to `jax.random.bernoulli(key, p, shape)` in every layout: masks for dropout.

    >>> import jax, shardwise as sw
    >>> sw.random.bernoulli(jax.random.key(0), "A[I_x]", p=0.9, sizes={"I": 8}, mesh="x=4").dtype
    dtype('bool')

    Args, returns and raises: as `normal`. Padding is False.
    """
    return made(_BERNOULLI, key, layout, sizes, mesh, "bool", pad, p=p)


def randint(
    key: Any, layout: str | Layout, *, minval: Any, maxval: Any, sizes: Mapping[str, int], mesh: Any = None,
    dtype: Any = "int32", pad: bool = False,
) -> jax.Array:  # fmt: skip
    """Integers from `minval` up to, but without, `maxval`; equal to `jax.random.randint` in every layout.

    >>> import jax, shardwise as sw
    >>> a = sw.random.randint(jax.random.key(0), "A[I_x]", minval=0, maxval=10, sizes={"I": 8}, mesh="x=4")
    >>> bool((a >= 0).all() and (a < 10).all())
    True

    Args, returns and raises: as `normal`.
    """
    return made(_RANDINT, key, layout, sizes, mesh, dtype, pad, minval=minval, maxval=maxval)


# Distributions: what is drawn for the whole array, and what each device then does to its shard, value by value.


def _erf_of(bound: Any, dtype: Any) -> Any:
    return lax.erf(jnp.asarray(bound, dtype) / jnp.asarray(math.sqrt(2), dtype))


def _from_erf(values: Any) -> Any:
    return jnp.asarray(math.sqrt(2), values.dtype) * lax.erf_inv(values)


def _between(values: Any, lower: Any, upper: Any) -> Any:
    """Normal values kept off the bounds, where rounding may put them, as `jax.random.truncated_normal` does."""
    lower, upper = (jnp.asarray(bound, values.dtype) for bound in (lower, upper))
    above, below = jnp.nextafter(lower, jnp.full_like(lower, jnp.inf)), jnp.nextafter(upper, jnp.full_like(upper, -jnp.inf))
    return jnp.clip(_from_erf(values), above, below)


def _above_minus_one(dtype: Any) -> Any:
    return np.nextafter(dtype.type(-1), dtype.type(0))


_FLOATS = ("float16", "bfloat16", "float32", "float64")
_UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
_BITS = Distribution("bits", _UNSIGNED, jax.random.bits)
_UNIFORM = Distribution("uniform", _FLOATS, jax.random.uniform)
_NORMAL = Distribution(
    "normal", _FLOATS, lambda key, shape, dtype: jax.random.uniform(key, shape, dtype, _above_minus_one(dtype), 1), _from_erf
)
_TRUNCATED = Distribution(
    "truncated_normal",
    _FLOATS,
    lambda key, shape, dtype, *bounds: jax.random.uniform(key, shape, dtype, *(_erf_of(bound, dtype) for bound in bounds)),
    _between,
)
_BERNOULLI = Distribution("bernoulli", ("bool",), lambda key, shape, _, p: jax.random.bernoulli(key, p, shape))
_RANDINT = Distribution(
    "randint",
    ("int8", "int16", "int32", "int64", *_UNSIGNED),
    lambda key, shape, dtype, minval, maxval: jax.random.randint(key, shape, minval, maxval, dtype),
)
