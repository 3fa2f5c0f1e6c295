"""Functions that are linear in each of their arrays, as one primitive of JAX.

Whoever writes one says what it computes, its tangent, its transpose and how it is batched, each in terms of such functions
again. So forward and reverse mode, `jax.linearize`, `jax.linear_transpose`, `jax.vmap` and every mix of them work, to any
order: `jax.custom_vjp` knows no forward mode, and `jax.custom_jvp` no transpose of one's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir


class Multilinear(Protocol):
    """A function of arrays that is linear in each of them; a hashable value."""

    def run(self, *arrays: Any) -> Sequence[Any]:
        """Compute it."""
        ...

    def tangent(self, arrays: Sequence[Any], tangents: Sequence[Any | None]) -> tuple[Sequence[Any], Sequence[Any | None]]:
        """The results and their tangents; None is zero, on either side. At least one tangent is not."""
        ...

    def transposed(self, arrays: Sequence[Any | None], cotangents: Sequence[Any | None]) -> Sequence[Any | None]:
        """The cotangents of the arrays that are None, given those of the results; None is zero, or of what is given."""
        ...

    def batched(self, stacked: Sequence[bool]) -> tuple[Multilinear, Sequence[bool], Sequence[bool]]:
        """The function of arrays of which some have one dimension more, in front; which it wants so; which results are so."""
        ...


def call(function: Multilinear, *arrays: Any) -> list[Any]:
    """The results of a function, which JAX can then differentiate and batch."""
    # What it computes is traced here, where the mesh axes are known; when it is lowered they no longer are.
    return _multilinear.bind(*arrays, function=function, jaxpr=jax.make_jaxpr(function.run)(*arrays))


_multilinear = Primitive("multilinear")
_multilinear.multiple_results = True


def _run(*arrays: Any, function: Multilinear, jaxpr: Any) -> list[Any]:
    return jaxpr_as_fun(jaxpr)(*arrays)


def _tangent(arrays: Sequence[Any], tangents: Sequence[Any], *, function: Multilinear, jaxpr: Any) -> tuple[Any, list[Any]]:
    results, found = function.tangent(arrays, [None if isinstance(each, ad.Zero) else each for each in tangents])
    zeros = (ad.Zero(aval.to_tangent_aval()) for aval in jaxpr.out_avals)
    return results, [zero if each is None else each for each, zero in zip(found, zeros, strict=True)]


def _transposed(cotangents: Sequence[Any], *arrays: Any, function: Multilinear, jaxpr: Any) -> list[Any]:
    sought = [array.aval if ad.is_undefined_primal(array) else None for array in arrays]
    given = [array if aval is None else None for array, aval in zip(arrays, sought, strict=True)]
    found = function.transposed(given, [None if isinstance(each, ad.Zero) else each for each in cotangents])
    return [
        None if aval is None else ad.Zero(aval) if each is None else each.astype(aval.dtype)
        for each, aval in zip(found, sought, strict=True)
    ]


def _batched(arrays: Sequence[Any], places: Sequence[int | None], *, function: Multilinear, jaxpr: Any) -> tuple[Any, Any]:
    size = next(array.shape[place] for array, place in zip(arrays, places, strict=True) if place is not None)
    over_all, wanted, made = function.batched([place is not None for place in places])
    stacks = [
        jnp.moveaxis(array, place, 0)
        if place is not None
        else jnp.broadcast_to(array, (size, *array.shape))
        if wants
        else array
        for array, place, wants in zip(arrays, places, wanted, strict=True)
    ]
    return call(over_all, *stacks), [0 if each else None for each in made]


_multilinear.def_impl(_run)
_multilinear.def_abstract_eval(lambda *_, function, jaxpr: jaxpr.out_avals)
ad.primitive_jvps[_multilinear] = _tangent
ad.primitive_transposes[_multilinear] = _transposed
batching.primitive_batchers[_multilinear] = _batched
mlir.register_lowering(_multilinear, mlir.lower_fun(_run, multiple_results=True))
