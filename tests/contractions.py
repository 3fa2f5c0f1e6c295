"""Equations that tests run, their operands drawn and placed, and the same by `jnp.einsum`."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

import shardwise as sw

GATHERED = "A[I_x, J] · B[J, K] -> C[I, K]"
CONTRACTED = "A[I, J_x] · B[J_x, K] -> C[I, K]"
SCATTERED = "A[I, J_x] · B[J_x, K] -> C[I_x, K]"
WEIGHTS = "X[B_x, D] · W[D_x, F] -> Y[B_x, F]"
EQUATIONS = [GATHERED, CONTRACTED, SCATTERED]


def drawn(equation: str, sizes: dict[str, int], dtype: str = "float32", seed: int = 0) -> list[np.ndarray]:
    """Small whole numbers, of which every dtype here sums the products exactly (int8 and uint8 modulo 256)."""
    random = np.random.default_rng(seed)
    shapes = [[sizes[dim] for dim in operand.dims] for operand in sw.parse(equation).operands]
    whole = [random.integers(-8, 8, shape) for shape in shapes]
    if jnp.issubdtype(dtype, jnp.complexfloating):
        whole = [array + 1j * random.integers(-8, 8, array.shape) for array in whole]
    return [array.astype(jnp.dtype(dtype)) for array in whole]


def placed(equation: str, arrays: list[np.ndarray], mesh: jax.sharding.Mesh) -> list[jax.Array]:
    return [sw.put(array, operand.layout, mesh) for operand, array in zip(sw.parse(equation).operands, arrays, strict=True)]


def whole(equation: str, **options) -> Callable[..., jax.Array]:
    """The equation as `jnp.einsum`."""
    read = sw.parse(equation)
    letter = dict(zip(read.dims, "abcdefghij", strict=False))
    terms = ",".join("".join(letter[dim] for dim in operand.dims) for operand in read.operands)
    return functools.partial(jnp.einsum, f"{terms}->{''.join(letter[dim] for dim in read.result.dims)}", **options)


def laid_out(array: jax.Array, layout: sw.Layout) -> bool:
    return sw.Layout.from_spec(array.sharding.spec, layout.names) == layout
