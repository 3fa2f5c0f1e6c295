"""Collective matmuls on local shards, inside `shard_map`: transfers around a ring, each hidden behind a product.

`gather` multiplies every device's block of one array as it arrives; `scatter` sums products on their way to where the
sum will live. They are each other's transpose, which is how `rings` differentiates them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from shardwise.runtime.ring_paths import Ring, Span, Way, gathering, scattering, slots

Term = tuple[Any, ...]  # an array's dimensions, by name or number


@dataclass(frozen=True, slots=True)
class Product:
    """An einsum of arrays with these terms."""

    terms: tuple[Term, ...]
    out: Term


@dataclass(frozen=True, slots=True)
class Numbers:
    """How products are computed and summed: as `jnp.einsum` takes them, and the dtype of running sums."""

    precision: Any = None
    preferred: Any = None
    accumulate: Any = None


@dataclass(frozen=True, slots=True)
class Schedule:
    """The shape of a ring: one way or both, and into how many chunks each block is cut."""

    way: Way = "ring"
    chunks: int = 1


def product(arrays: Sequence[Any], made: Product, numbers: Numbers, dtype: Any = None) -> Any:
    """One local einsum; `dtype` is that of its result where it is a part of a running sum."""
    names: dict[Any, int] = {}
    terms = [[names.setdefault(dim, len(names)) for dim in term] for term in made.terms]
    pairs = (x for pair in zip(arrays, terms, strict=True) for x in pair)
    preferred = dtype if dtype is not None else numbers.preferred
    return jnp.einsum(*pairs, [names[dim] for dim in made.out], precision=numbers.precision, preferred_element_type=preferred)


def result_dtype(arrays: Sequence[Any], numbers: Numbers) -> Any:
    """The dtype of an einsum of these arrays."""
    return jnp.dtype(numbers.preferred) if numbers.preferred is not None else jnp.result_type(*arrays)


def axes_varying(*arrays: Any) -> frozenset[str]:
    """The mesh axes over which JAX's types see any of these arrays as different; none where types are unchecked."""
    return frozenset().union(*(jax.typeof(array).manual_axis_type.varying for array in arrays))


def as_varying(array: Any, axes: frozenset[str]) -> Any:
    """The same array, seen by JAX's types as different over these axes."""
    missing = tuple(sorted(axes - jax.typeof(array).manual_axis_type.varying))
    return lax.pcast(array, missing, to="varying") if missing else array


def cut(array: Any, term: Term, dim: Any, start: Any, size: int) -> Any:
    """`size` elements of a dimension from `start` on; an array that lacks it stays whole."""
    if dim not in term or (size == array.shape[term.index(dim)]):
        return array
    return lax.dynamic_slice_in_dim(array, start, size, axis=term.index(dim))


def laid(onto: Any, part: Any, at: int, start: Any) -> Any:
    """Write a part of an array along one dimension."""
    return part if onto.shape == part.shape else lax.dynamic_update_slice_in_dim(onto, part, start, axis=at)


def unfilled(part: Any, at: int, size: int) -> Any:
    """Room for parts along one dimension. It is not filled: zeros would cost as much as the product."""
    shape = (*part.shape[:at], size, *part.shape[at + 1 :])
    return as_varying(lax.empty(shape, part.dtype), axes_varying(part))


@dataclass(frozen=True, slots=True)
class Gather:
    """The block of this device, `block` its term, is needed whole along `dim` by products with other arrays.

    Each product has the block first. One whose result holds `dim` is made block by block, any other as a sum.
    """

    ring: Ring
    dim: Any
    block: Term
    products: tuple[Product, ...]
    schedule: Schedule = Schedule()
    numbers: Numbers = Numbers()


def gather(job: Gather, block: Any, others: Sequence[Sequence[Any]], keep: bool = False) -> tuple[list[Any], Any]:
    """Run a gathering ring: the products, and the gathered array where it is to be kept."""
    at = job.block.index(job.dim)
    width = block.shape[at]
    taken = _Taken(job, width, others, keep)
    strands = gathering(job.ring.n, job.schedule.way, job.schedule.chunks, width)
    queue = slots(strands)
    flying = {number: job.ring.sent(_span(block, at, s.span), s.way) for number, s in enumerate(strands)}
    made = taken(None, block, 0, (0, width))
    for slot in queue:
        arrived, made = lax.optimization_barrier(([flying.pop(number) for number, _ in slot], made))
        for (number, hop), part in zip(slot, arrived, strict=True):
            strand = strands[number]
            if hop + 1 < strand.hops:
                flying[number] = job.ring.sent(part, strand.way)
        for (number, hop), part in zip(slot, arrived, strict=True):
            made = taken(made, part, -strands[number].way * (hop + 1), strands[number].span)
    return taken.results(made)


def _span(array: Any, at: int, span: Span) -> Any:
    if span == (0, array.shape[at]):
        return array
    return lax.slice_in_dim(array, *span, axis=at)


class _Taken:
    """What a gathering ring does with a part of a block: multiply it, and lay or add the product where it belongs."""

    def __init__(self, job: Gather, width: int, others: Sequence[Sequence[Any]], keep: bool) -> None:
        self.job, self.width, self.others, self.keep = job, width, others, keep

    def __call__(self, made: Any, part: Any, away: int, span: Span) -> list[Any]:
        job = self.job
        start = job.ring.place(away) * self.width + span[0]
        whole = self.width * job.ring.n
        found = []
        for number, (wanted, others) in enumerate(zip(job.products, self.others, strict=True)):
            before = None if made is None else made[number]
            if job.dim not in wanted.out and before is not None:
                # A product that waits for the sum takes the addition in; what is cut after the wait is cut inside it.
                before, part, others = lax.optimization_barrier((before, part, others))
            cuts = [cut(o, t, job.dim, start, span[1] - span[0]) for o, t in zip(others, wanted.terms[1:], strict=True)]
            new = product([part, *cuts], wanted, job.numbers, None if job.dim in wanted.out else job.numbers.accumulate)
            if job.dim in wanted.out:
                at = wanted.out.index(job.dim)
                found.append(laid(unfilled(new, at, whole) if before is None else before, new, at, start))
            else:
                found.append(new if before is None else before + new)
        if self.keep:
            at = job.block.index(job.dim)
            found.append(laid(unfilled(part, at, whole) if made is None else made[-1], part, at, start))
        return found

    def results(self, made: list[Any]) -> tuple[list[Any], Any]:
        count = len(self.job.products)
        numbers, parts = self.job.numbers, made[:count]
        if numbers.accumulate is not None:
            block = [made[-1]] if self.keep else []
            del block
        return parts, made[-1] if self.keep else None


@dataclass(frozen=True, slots=True)
class Scatter:
    """The sum of products over the ring's devices, each keeping its part of `dim`, which every product's result holds."""

    ring: Ring
    dim: Any
    products: tuple[Product, ...]
    schedule: Schedule = Schedule("bidirectional")
    numbers: Numbers = Numbers()


def scatter(job: Scatter, operands: Sequence[Sequence[Any]]) -> Any:
    """Run a scattering ring: each sum starts one place past its home, and every device adds its product to it."""
    whole = _extent(job, operands)
    width, at = whole // job.ring.n, job.products[0].out.index(job.dim)
    strands = scattering(job.schedule.way, job.schedule.chunks, width)
    flying: dict[int, Any] = {}
    result = part = None
    for hop in range(job.ring.n):
        for number, (way, span) in enumerate(strands):
            arrived = flying.pop(number, None)
            if arrived is not None:  # a product that waits for the sum takes the addition in
                arrived, operands, _ = lax.optimization_barrier((arrived, operands, part))
            part = _partial(job, operands, job.ring.place(-way * (hop + 1)) * width + span[0], span, arrived)
            if hop + 1 < job.ring.n:
                flying[number] = job.ring.sent(part, way)
            elif result is None:
                result = laid(unfilled(part, at, width), part, at, span[0])
            else:
                result = laid(result, part, at, span[0])
    return result


def _partial(job: Scatter, operands: Sequence[Sequence[Any]], start: Any, span: Span, arrived: Any) -> Any:
    total = None
    dtype = result_dtype([a for arrays in operands for a in arrays], job.numbers)
    for wanted, arrays in zip(job.products, operands, strict=True):
        cuts = [cut(a, t, job.dim, start, span[1] - span[0]) for a, t in zip(arrays, wanted.terms, strict=True)]
        new = product(cuts, wanted, job.numbers, job.numbers.accumulate)
        total = new if total is None else total + new
    if arrived is not None:
        total = total + arrived.astype(total.dtype)
    return total.astype(dtype)


def _extent(job: Scatter, operands: Sequence[Sequence[Any]]) -> int:
    for arrays, wanted in zip(operands, job.products, strict=True):
        for array, term in zip(arrays, wanted.terms, strict=True):
            if job.dim in term:
                return array.shape[term.index(job.dim)]
    raise AssertionError(f"no operand holds {job.dim}")
