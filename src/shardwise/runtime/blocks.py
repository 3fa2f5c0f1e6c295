"""Blocks of collectives as a dimension of their own, and several dimensions as one: as TPU compilers are told of them.

`Plan.code()` copies these functions as they stand, so they lean on nothing but JAX and each other.
"""

import math

from jax import lax
from jax import numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint


def cut_blocks(array, at, parts):
    """Cut a dimension into parts, and stack them along a new first one."""
    shape = (*array.shape[:at], parts, array.shape[at] // parts, *array.shape[at + 1 :])
    return jnp.moveaxis(array.reshape(shape), at, 0)


def join_blocks(blocks, at):
    """Lay the blocks of the first dimension side by side along another one: the inverse of `cut_blocks`."""
    moved = jnp.moveaxis(blocks, 0, at)
    return moved.reshape((*moved.shape[:at], -1, *moved.shape[at + 2 :]))


def as_one(array, at, count):
    """So many dimensions from one on as one, which the compiler takes as such."""
    return lax.optimization_barrier(array.reshape((*array.shape[:at], -1, *array.shape[at + count :])))


def lying_in(array, order):
    """An array whose dimensions lie in memory in this order, the slowest first: no compiler makes it in another one."""
    return with_layout_constraint(array, Layout(order))


def cut_out(array, term, spans):
    """What an array has of some dimensions of its term, from a start on and so many each: cut at once."""
    if not any(dim in spans for dim in term):
        return array
    starts, widths = zip(*(spans.get(dim, (0, size)) for dim, size in zip(term, array.shape, strict=True)), strict=True)
    return lax.dynamic_slice(array, starts, widths)


def unseen(start, width):
    """Where a part of this width starts: a number that no compiler sees through, but for what it is a multiple of.

    If it saw the starts, a compiler would copy what several matmuls cut before them, all of the array, and would make a kernel
    for each start. If it did not know the multiple, its matmuls would read every tile as if a part might begin within it.
    """
    unit = math.gcd(start, width)
    return lax.optimization_barrier(jnp.int32(start // unit)) * unit


def cut_part(array, axes, at, parts, places):
    """Of so many parts of a dimension, the one that this device's place along the axes has."""
    width = array.shape[at] // parts
    start = jnp.asarray(places)[lax.axis_index(axes)] * width
    return lax.dynamic_slice_in_dim(array, start, width, axis=at)


def scatter_blocks(array, axes, at):
    """A reduce-scatter whose blocks the compiler would sum or pad; a gather that follows takes what is left as it stands."""
    return lax.optimization_barrier(lax.psum_scatter(cut_blocks(array, at, lax.axis_size(axes)), axes, scatter_dimension=0))


def scatter_rows(array, axes):
    """A reduce-scatter of a vector, as rows of 128: the compiler would sum all of it."""
    return lax.psum_scatter(array.reshape(lax.axis_size(axes), -1, 128), axes, scatter_dimension=0).reshape(-1)


def sum_and_cut(array, axes, at):
    """A reduce-scatter that the compiler sums in any case: said so, nothing is brought in front before."""
    width = array.shape[at] // lax.axis_size(axes)
    return lax.dynamic_slice_in_dim(lax.psum(array, axes), lax.axis_index(axes) * width, width, axis=at)


def exchange_one(array, axes, split, concat):
    """An all-to-all that joins one row of each device: what arrives is the dimension, and no row is a tile of its own."""
    blocks = cut_blocks(lax.squeeze(array, [concat]), split - (concat < split), lax.axis_size(axes))
    return jnp.moveaxis(lax.all_to_all(blocks, axes, split_axis=0, concat_axis=0, tiled=True), 0, concat)


def exchange_blocks(array, axes, split, concat):
    """An all-to-all whose blocks the compiler would spread over memory."""
    blocks = cut_blocks(lax.optimization_barrier(array), split, lax.axis_size(axes))
    return join_blocks(lax.all_to_all(blocks, axes, split_axis=0, concat_axis=0), concat)
