"""Collective matmuls that overlap: gather and multiply, multiply and scatter, each the other's derivative; and others.

They run on local shards, inside `jax.shard_map`, and take einsums as lists of dimensions. What one hop of the ring
brings hides behind the product of what the last one brought. Where several devices need the same result they need not
add in the same order: see `gather_einsum`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax

from shardwise.runtime.ring_gather import Gather, gather
from shardwise.runtime.ring_paths import Ring, Schedule
from shardwise.runtime.ring_products import Numbers, Product, Term, as_varying, product, varying_axes
from shardwise.runtime.ring_rotate import Rotation, rotate, rotate_back
from shardwise.runtime.ring_scatter import Scatter, scatter
from shardwise.runtime.ring_spread import Spread, spread
from shardwise.steps import Way

Axes = str | Sequence[str]
Others = tuple[tuple[Any, ...], ...]


def gather_einsum(
    operands: Sequence[Any], terms: Sequence[Sequence[Any]], out_term: Sequence[Any], *, gathered: int, dim: Any,
    axes: Axes, n: int, way: Way = "bidirectional", chunks: int = 1, unroll: int = 16,
    precision: Any = None, preferred_element_type: Any = None, accumulate: Any = None, save: bool = True,
) -> Any:  # fmt: skip
    """Gather one operand along a dimension and multiply it with the others, block by block as it arrives.

    Where the result holds `dim`, every element is one device's block multiplied: all devices get the same bits. Where
    it does not, the blocks' products are added in the order in which they arrive, which differs from device to device;
    such a result, if no operand makes it differ anyway, is equal on all only up to rounding. Gather first, then.

    >>> import jax.numpy as jnp, shardwise as sw
    >>> mesh = sw.make_mesh("x=4")
    >>> a, b = sw.put(jnp.ones((8, 2)), "I_x, J", mesh), sw.put(jnp.ones((2, 4)), "J, K_x", mesh)
    >>> def up(a, b):
    ...     return gather_einsum([a, b], ["IJ", "JK"], "IK", gathered=0, dim="I", axes="x", n=4)
    >>> spec = jax.sharding.PartitionSpec
    >>> jax.shard_map(up, mesh=mesh, in_specs=(spec("x"), spec(None, "x")), out_specs=spec(None, "x"))(a, b).shape
    (8, 4)

    Args:
        operands: this device's shards; `terms` their dimensions, `out_term` those of the result: names or numbers.
        gathered: which operand is gathered; along `dim` it has 1/n of what the others and the result have.
        axes: the mesh axes of the ring, the major one first, and `n` how many devices they have together.
        way: from one neighbour, or from both, in half the steps.
        chunks: into how many parts each block is cut, to be sent and multiplied one by one.
        unroll: a ring of more devices than this is a loop, of two hops a turn.
        accumulate: the dtype of running sums, as float32; blocks travel in their own.
        save: keep the gathered operand for the derivative; else it is gathered again.
    """
    arrays, all_terms = _without_lone(operands, terms, out_term, keep=dim)
    numbers = Numbers(precision, preferred_element_type, accumulate)
    order = [gathered, *(k for k in range(len(arrays)) if k != gathered)]
    wanted = Product(tuple(all_terms[k] for k in order), tuple(out_term))
    assert dim in wanted.terms[0], f"operand {gathered} has no dimension {dim}"
    assert dim in wanted.out or any(dim in term for term in wanted.terms[1:]), f"{dim} is summed alone: sum first, then gather"
    if n == 1:
        return product([arrays[k] for k in order], wanted, numbers)
    job = Gather(_ring(axes, n), dim, wanted.terms[0], (wanted,), Schedule(way, chunks, unroll, save), numbers)
    block, *others = _all_varying([arrays[k] for k in order], job.ring)
    return _gathered(job, block, (tuple(others),))[0]


def einsum_scatter(
    operands: Sequence[Any], terms: Sequence[Sequence[Any]], out_term: Sequence[Any], *, dim: Any, axes: Axes, n: int,
    way: Way = "bidirectional", chunks: int = 1, unroll: int = 16, precision: Any = None,
    preferred_element_type: Any = None, accumulate: Any = None, save: bool = True,
) -> Any:  # fmt: skip
    """Multiply, sum over the devices of a ring, and keep this device's part of `dim`; the sums travel as they grow.

    Every element is added up in one order, that of the ring from one place past its home: the same bits on each run.

    Args:
        operands: this device's shards; `terms` their dimensions, `out_term` those of the result: names or numbers.
        dim: the result's dimension that is scattered; the operands have it whole, a multiple of n.
        axes: the mesh axes of the ring, the major one first, and `n` how many devices they have together.
        way: all parts one way, or half of them each way; it takes two parts to hide the transfer of one.
        chunks: into how many parts what goes one way is cut.
        accumulate: the dtype in which a product is added to a sum; sums travel in the dtype of the result.
        save: in the derivative, put the gathered cotangent together, and multiply it whole where that is the better
            product; else nothing but shards is held.
    """
    arrays, all_terms = _without_lone(operands, terms, out_term, keep=dim)
    numbers = Numbers(precision, preferred_element_type, accumulate)
    wanted = Product(tuple(all_terms), tuple(out_term))
    assert dim in wanted.out, f"the result has no dimension {dim}"
    if n == 1:
        return product(arrays, wanted, numbers)
    job = Scatter(_ring(axes, n), dim, (wanted,), Schedule(way, chunks, unroll, save), numbers)
    return _scattered(job, (tuple(_all_varying(arrays, job.ring)),))


def einsum_gather(
    operands: Sequence[Any], terms: Sequence[Sequence[Any]], out_term: Sequence[Any], *, dim: Any, axes: Axes, n: int,
    way: Way = "bidirectional", chunks: int = 4, unroll: int = 16, precision: Any = None, preferred_element_type: Any = None,
) -> Any:  # fmt: skip
    """Multiply, and gather the result along a dimension, of which every device has made a block.

    The block is made in parts; each goes round as soon as it is there, while the next is multiplied.

    Args:
        operands: this device's shards; `terms` their dimensions, `out_term` those of the result: names or numbers.
        dim: the result's dimension that is gathered: n times as long as the operands have it.
        axes: the mesh axes of the ring, the major one first, and `n` how many devices they have together.
        way: from one neighbour, or from both, in half the steps.
        chunks: in how many parts the block is made and sent; nothing hides the product of the first.
    """
    arrays, all_terms = _without_lone(operands, terms, out_term, keep=dim)
    numbers, wanted = Numbers(precision, preferred_element_type), Product(tuple(all_terms), tuple(out_term))
    assert dim in wanted.out, f"the result has no dimension {dim}"
    if n == 1:
        return product(arrays, wanted, numbers)
    job = Spread(_ring(axes, n), dim, wanted, Schedule(way, chunks, unroll), numbers)
    return _spread(job, tuple(_all_varying(arrays, job.ring)))


def rotate_einsum(
    operands: Sequence[Any], terms: Sequence[Sequence[Any]], out_term: Sequence[Any], *, dim: Any, axes: tuple[str, str],
    n: tuple[int, int], precision: Any = None, preferred_element_type: Any = None, accumulate: Any = None,
) -> Any:  # fmt: skip
    """Multiply two operands that are split over different axes along the dimension that is summed; both rotate.

    As `A[I_x, J_y] · B[J_x, K_y] -> C[I_x, K_y]`, with one shard of each in memory and one on its way. Each device
    adds in an order of its own, the same on every run.

    Args:
        operands: this device's shards of two arrays; `terms` their dimensions, `out_term` those of the result.
        dim: the summed dimension, which operand k has split over `axes[k]`, of `n[k]` devices; a multiple of lcm(n).
        accumulate: the dtype of running sums.
    """
    arrays, all_terms = _without_lone(operands, terms, out_term, keep=dim)
    wanted = Product(tuple(all_terms), tuple(out_term))
    assert len(arrays) == 2, f"two operands rotate, not {len(arrays)}"
    assert dim not in out_term, f"{dim} is not summed"
    assert all(dim in term for term in all_terms), f"{dim} is not in both operands"
    job = Rotation(axes, n, dim, wanted, Numbers(precision, preferred_element_type, accumulate))
    varying = varying_axes(*arrays, *(jax.lax.axis_index(axis) for axis in axes))
    return _rotated(job, tuple(as_varying(array, varying) for array in arrays))


def _ring(axes: Axes, n: int) -> Ring:
    return Ring((axes,) if isinstance(axes, str) else tuple(axes), n)


def _all_varying(arrays: Sequence[Any], ring: Ring) -> list[Any]:
    """Types alike, so that the derivatives' are, too: what is equal on all devices has its cotangents summed outside."""
    axes = varying_axes(*arrays, ring.place(0))
    return [as_varying(array, axes) for array in arrays]


def _without_lone(
    operands: Sequence[Any], terms: Sequence[Sequence[Any]], out: Sequence[Any], keep: Any
) -> tuple[list[Any], list[Term]]:
    """Sum every dimension that one operand alone has, before anything is sent."""
    arrays, found = [], []
    for k, (array, term) in enumerate(zip(operands, terms, strict=True)):
        elsewhere = {keep, *out, *(dim for j, other in enumerate(terms) if j != k for dim in other)}
        lone = tuple(place for place, dim in enumerate(term) if dim not in elsewhere)
        arrays.append(array.sum(axis=lone, dtype=array.dtype) if lone else array)
        found.append(tuple(dim for dim in term if dim in elsewhere))
    return arrays, found


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _gathered(job: Gather, block: Any, others: Others) -> list[Any]:
    return gather(job, block, others)


def _gathered_forward(job: Gather, block: Any, others: Others) -> tuple[list[Any], Any]:
    if not job.schedule.save:
        return _gathered(job, block, others), (block, None, others)
    *made, kept = _gathered(_keeping(job, job.products), block, (*others, ()))
    return made, (block, kept, others)


def _gathered_backward(job: Gather, residuals: Any, cotangents: Sequence[Any]) -> tuple[Any, Any]:
    """The block's cotangent is a scattering ring; those of the others are products with the gathered array."""
    block, kept, others = residuals
    sums = tuple(Product((wanted.out, *wanted.terms[1:]), job.block) for wanted in job.products)
    arrays = tuple((ct, *rest) for ct, rest in zip(cotangents, others, strict=True))
    back = _scattered(Scatter(job.ring, job.dim, sums, job.schedule, job.numbers.backwards), arrays)
    wanted, factors = [], []
    for made, rest, ct in zip(job.products, others, cotangents, strict=True):
        for j in range(len(rest)):
            left = made.terms[1 : 1 + j] + made.terms[2 + j :]
            wanted.append(Product((job.block, made.out, *left), made.terms[1 + j]))
            factors.append((ct, *rest[:j], *rest[j + 1 :]))
    again = replace(job, products=tuple(wanted), numbers=job.numbers.backwards)
    found = iter(_gathered(again, block, tuple(factors)) if kept is None else _whole(again, kept, factors))
    return back.astype(block.dtype), tuple(tuple(next(found).astype(a.dtype) for a in rest) for rest in others)


_gathered.defvjp(_gathered_forward, _gathered_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _scattered(job: Scatter, operands: Others) -> Any:
    return scatter(job, operands)


def _scattered_backward(job: Scatter, operands: Others, cotangent: Any) -> tuple[Any]:
    """One gathering ring brings the cotangent's blocks to the products of all operands."""
    out = job.products[0].out
    wanted, factors = [], []
    for made, arrays in zip(job.products, operands, strict=True):
        for j in range(len(arrays)):
            wanted.append(Product((out, *made.terms[:j], *made.terms[j + 1 :]), made.terms[j]))
            factors.append((*arrays[:j], *arrays[j + 1 :]))
    again = Gather(job.ring, job.dim, out, tuple(wanted), job.schedule, job.numbers.backwards)
    found = iter(_once(again, cotangent, factors))
    return (tuple(tuple(next(found).astype(a.dtype) for a in arrays) for arrays in operands),)


_scattered.defvjp(lambda job, operands: (_scattered(job, operands), operands), _scattered_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _spread(job: Spread, operands: tuple[Any, ...]) -> Any:
    return spread(job, operands)


def _spread_backward(job: Spread, operands: tuple[Any, ...], cotangent: Any) -> tuple[Any]:
    """A ring brings every device the sum of its block's cotangents; the rest are products on the spot."""
    made = job.product
    schedule = replace(job.schedule, chunks=1)
    back = Scatter(job.ring, job.dim, (Product((made.out,), made.out),), schedule, job.numbers.backwards)
    block = _scattered(back, ((cotangent,),))
    found = []
    for j, (array, term) in enumerate(zip(operands, made.terms, strict=True)):
        wanted = Product((made.out, *made.terms[:j], *made.terms[j + 1 :]), term)
        found.append(product([block, *operands[:j], *operands[j + 1 :]], wanted, job.numbers.backwards).astype(array.dtype))
    return (tuple(found),)


_spread.defvjp(lambda job, operands: (_spread(job, operands), operands), _spread_backward)


def _once(job: Gather, block: Any, others: Sequence[Sequence[Any]]) -> list[Any]:
    """Gather a block for several products; with `save` those that would be running sums take all of it at the end.

    One product with the whole is quicker than n additions; the others hide the transfers.
    """
    in_blocks = [job.dim in wanted.out for wanted in job.products]
    if not job.schedule.save or all(in_blocks) or not any(in_blocks):
        return _gathered(job, block, tuple(map(tuple, others)))
    now = tuple(wanted for wanted, early in zip(job.products, in_blocks, strict=True) if early)
    factors = [tuple(arrays) for arrays, early in zip(others, in_blocks, strict=True) if early]
    *made, kept = _gathered(_keeping(job, now), block, (*factors, ()))
    at_once, found = _whole(job, kept, others, in_blocks), iter(made)
    return [next(found) if early else later for early, later in zip(in_blocks, at_once, strict=True)]


def _whole(job: Gather, kept: Any, others: Sequence[Sequence[Any]], left_out: Sequence[bool] = ()) -> list[Any]:
    """The products with the gathered array, None for those that are left out."""
    skipped = left_out or [False] * len(others)
    return [
        None if skip else product([kept, *arrays], wanted, job.numbers)
        for wanted, arrays, skip in zip(job.products, others, skipped, strict=True)
    ]


def _keeping(job: Gather, products: tuple[Product, ...]) -> Gather:
    """With one product more, of the block alone: the gathered array."""
    return replace(job, products=(*products, Product((job.block,), job.block)))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _rotated(job: Rotation, operands: tuple[Any, ...]) -> Any:
    return rotate(job, operands)


_rotated.defvjp(
    lambda job, operands: (_rotated(job, operands), operands),
    lambda job, operands, cotangent: (tuple(rotate_back(job, operands, cotangent)),),
)
