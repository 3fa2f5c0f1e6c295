"""Local matmuls inside of a ring: one einsum, what is cut of its operands, and where its result is laid."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding, get_abstract_mesh

from shardwise.planning.told import operand_orders, summed_as_one
from shardwise.runtime.arrays import explicit_axes
from shardwise.runtime.blocks import as_one, lying_in

Term = tuple[Any, ...]  # an array's dimensions, by name or number
Operands = Sequence[Sequence[Any]]  # the arrays of each of some matmuls


@dataclass(frozen=True, slots=True)
class LocalMatmul:
    """An einsum of arrays with these terms."""

    terms: tuple[Term, ...]
    out: Term


def new_dim(matmuls: Sequence[LocalMatmul]) -> Any:
    """A dimension that none of these matmuls has."""
    taken = {dim for made in matmuls for term in (*made.terms, made.out) for dim in term}
    return next(dim for dim in (("stacked", number) for number in range(len(taken) + 1)) if dim not in taken)


@dataclass(frozen=True, slots=True)
class Numbers:
    """How matmuls are computed and summed: as `jnp.einsum` takes them, and the dtype of running sums."""

    precision: Any = None
    preferred: Any = None
    accumulate: Any = None

    @property
    def backwards(self) -> Numbers:
        """For the matmuls of a derivative, whose dtypes are those of their operands."""
        return Numbers(self.precision, None, self.accumulate)

    def of_result(self, arrays: Sequence[Any]) -> Any:
        """The dtype of an einsum of these arrays."""
        return jnp.dtype(self.preferred) if self.preferred is not None else jnp.result_type(*arrays)


def matmul(arrays: Sequence[Any], wanted: LocalMatmul, numbers: Numbers, *, accumulated: bool = False) -> Any:
    """One local einsum, in the dtype of running sums where it is to be added to one."""
    if wanted.terms == (wanted.out,):
        return arrays[0]
    names: dict[Any, int] = {}
    terms = [[names.setdefault(dim, len(names)) for dim in term] for term in wanted.terms]
    pairs = (x for pair in zip(arrays, terms, strict=True) for x in pair)
    dtype = numbers.accumulate if accumulated and numbers.accumulate is not None else numbers.preferred
    return jnp.einsum(*pairs, [names[dim] for dim in wanted.out], precision=numbers.precision, preferred_element_type=dtype)


def held_back(operands: Operands, *events: Any) -> tuple[Operands, *tuple[Any, ...]]:
    """Operands for matmuls that are made when the events are there, and those.

    Of each matmul the smallest operand waits. Whatever waits, a compiler that wants it in another layout copies anew for
    every matmul; the rest it copies once.
    """
    least = [min(range(len(arrays)), key=lambda k: arrays[k].size) for arrays in operands]
    waiting, *past = lax.optimization_barrier(([arrays[k] for arrays, k in zip(operands, least, strict=True)], *events))
    held = [[*arrays[:k], each, *arrays[k + 1 :]] for arrays, k, each in zip(operands, least, waiting, strict=True)]
    return held, *past


def told_to_lie(arrays: Sequence[Any], terms: Sequence[Term], along: Any) -> list[Any]:
    """Operands that a ring cuts `along` a dimension, in the order in memory that the compiler is told (`planning.told`)."""
    orders = operand_orders(terms, [array.shape for array in arrays], along)
    return [array if order is None else lying_in(array, order) for array, order in zip(arrays, orders, strict=True)]


def summed_flat(operands: Operands, matmuls: Sequence[LocalMatmul]) -> tuple[Operands, tuple[LocalMatmul, ...]]:
    """Operands and matmuls with the dimensions as one that they sum side by side, as compilers are told (`planning.told`)."""
    flat, found = [], []
    for arrays, made in zip(operands, matmuls, strict=True):
        arrays, terms = list(arrays), [list(term) for term in made.terms]
        for first, *others in summed_as_one(made.terms, made.out, [array.shape for array in arrays]):
            for place, term in enumerate(terms):
                if first in term:
                    at = term.index(first)
                    arrays[place] = as_one(arrays[place], at, 1 + len(others))
                    del term[at + 1 : at + 1 + len(others)]
        flat.append(arrays)
        found.append(LocalMatmul(tuple(map(tuple, terms)), made.out))
    return flat, tuple(found)


def all_extents(operands: Operands, matmuls: Sequence[LocalMatmul]) -> dict[Any, int]:
    """The size of every dimension of some matmuls on this device."""
    pairs = (
        (array, term)
        for arrays, made in zip(operands, matmuls, strict=True)
        for array, term in zip(arrays, made.terms, strict=True)
    )
    return {dim: size for array, term in pairs for dim, size in zip(term, array.shape, strict=True)}


def laid_by_one_kernel(parts: Iterable[tuple[Any, Any]], at: int, size: int) -> Any:
    """Matmuls' results, each with its start along one dimension, as one array of `size` there.

    None of their kernels makes the room, so what writes one writes all, if no start is seen: it is compiled once.
    """
    whole = None
    for start, part in parts:
        if part.shape[at] == size:
            return part
        whole = lax.optimization_barrier(room_along(part, at, size)) if whole is None else whole
        whole = lax.dynamic_update_slice_in_dim(whole, part, start, axis=at)
    return whole


def laid(onto: Any, part: Any, at: int, start: Any, size: int) -> Any:
    """Write a part of an array of `size` along one dimension; `onto` is None for the first part.

    The room is not filled before: zeros would cost as much as the matmuls.
    """
    if part.shape[at] == size:
        return part
    onto = room_along(part, at, size) if onto is None else onto
    return lax.dynamic_update_slice_in_dim(onto, part, start, axis=at)


def room_along(part: Any, at: int, size: int) -> Any:
    """Room for an array of `size` along one dimension, of which this is a part."""
    return room((*part.shape[:at], size, *part.shape[at + 1 :]), part)


def room(shape: tuple[int, ...], like: Any, *, zeros: bool = False) -> Any:
    """Room for parts, typed as they are: different over the same axes, and split by the same Explicit ones."""
    mesh = get_abstract_mesh()
    told = NamedSharding(mesh, jax.typeof(like).sharding.spec) if explicit_axes(mesh) else None
    made = jnp.zeros(shape, like.dtype, out_sharding=told) if zeros else lax.empty(shape, like.dtype, out_sharding=told)
    return as_varying(made, varying_axes(like))


def varying_axes(*arrays: Any) -> frozenset[str]:
    """The mesh axes over which JAX's types see any of these arrays as different; none where types are unchecked."""
    return frozenset().union(*(jax.typeof(array).manual_axis_type.varying for array in arrays))


def as_varying(array: Any, axes: frozenset[str]) -> Any:
    """The same array, seen by JAX's types as different over these axes."""
    missing = tuple(sorted(axes - varying_axes(array)))
    return lax.pcast(array, missing, to="varying") if missing else array
