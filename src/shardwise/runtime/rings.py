"""Collective matmuls that overlap: gather and multiply, multiply and scatter, each the other's derivative; and others.

They run on local shards, inside `jax.shard_map`, and take einsums as lists of dimensions. What one hop of the ring
brings is overlapped by the matmul of what the last one brought. Where several devices need the same result they need not
add in the same order: see `gather_einsum`.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any, Literal

import jax

from shardwise.runtime.ring_derivatives import gather_ring, keeping, pipelined_gather_ring, rotation, scatter_ring
from shardwise.runtime.ring_gather import Gather, gather_in_parts
from shardwise.runtime.ring_matmuls import LocalMatmul, Numbers, Term, as_varying, matmul, varying_axes
from shardwise.runtime.ring_paths import Ring, Schedule
from shardwise.runtime.ring_pipelined import PipelinedGather
from shardwise.runtime.ring_rotate import Rotation
from shardwise.runtime.ring_scatter import Scatter
from shardwise.steps import Way

Axes = str | Sequence[str]


def gather_einsum(
    operands: Sequence[Any], terms: Sequence[Sequence[Any]], out_term: Sequence[Any], *, gathered: int, dim: Any,
    axes: Axes, n: int, way: Way = "bidirectional", chunks: int = 1, unroll: int = 16,
    precision: Any = None, preferred_element_type: Any = None, accumulate: Any = None, save: bool = True,
    ordered: bool = False, keep: bool | Literal["parts"] = False,
) -> Any:  # fmt: skip
    """Gather one operand along a dimension and multiply it with the others, block by block as it arrives.

    Where the result holds `dim`, every element is one device's block multiplied: all devices get the same bits. Where
    it does not, the blocks' results are added in the order in which they arrive, which differs from device to device;
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
        way: from one neighbour, or from both, in half the steps, or along all `Sides` of a torus.
        chunks: into how many parts each block is cut, to be sent and multiplied one by one; on a torus for each side.
        unroll: a ring of more devices than this is a loop, of two hops a turn.
        accumulate: the dtype of running sums, as float32; blocks travel in their own.
        save: keep the gathered operand for the derivative; else it is gathered again.
        ordered: tell the compiler to lay out what a matmul makes as the result that it is written into, and to leave operands
            of three dimensions as they lie; for TPUs.
        keep: give the gathered operand, too, after the result; each of its dimensions is one of the others' or the result's.
            `"parts"`: as a tuple of what arrives, in that order; for a ring that is no loop, and without a derivative.
    """
    how: dict[str, Any] = {"way": way, "chunks": chunks, "unroll": unroll, "save": save, "ordered": ordered, "keep": keep}
    how |= {"precision": precision, "preferred_element_type": preferred_element_type, "accumulate": accumulate}
    made = gather_einsums([operands], terms, out_term, gathered=gathered, dim=dim, axes=axes, n=n, **how)
    return made if keep else made[0]


def gather_einsums(
    groups: Sequence[Sequence[Any]], terms: Sequence[Sequence[Any]], out_term: Sequence[Any], *, gathered: int, dim: Any,
    axes: Axes, n: int, way: Way = "bidirectional", chunks: int = 1, unroll: int = 16,
    precision: Any = None, preferred_element_type: Any = None, accumulate: Any = None, save: bool = True,
    ordered: bool = False, keep: bool | Literal["parts"] = False,
) -> tuple[Any, ...]:  # fmt: skip
    """Gather one array, and multiply every block with what stands beside it in each group: a result of each group.

    It is `gather_einsum` for several matmuls at once, of the same dimensions but of other sizes where only the others and the
    results have them. Behind the results comes the gathered array, to `keep` it.

    Args:
        groups: this device's shards of each matmul; operand `gathered` is the same in all.
    """
    numbers = Numbers(precision, preferred_element_type, accumulate)
    order = [gathered, *(k for k in range(len(terms)) if k != gathered)]
    arrays, matmuls = _matmuls(groups, terms, out_term, keep=dim, order=order)
    assert not keep or len(matmuls[0].terms[0]) == len(terms[gathered]), "what it alone has is summed before it is sent"
    for wanted in matmuls:
        assert dim in wanted.terms[0], f"operand {gathered} has no dimension {dim}"
        summed = any(dim in term for term in wanted.terms[1:])
        assert dim in wanted.out or summed, f"{dim} is summed alone: sum first, then gather"
    if n == 1:
        made = [matmul(each, wanted, numbers) for each, wanted in zip(arrays, matmuls, strict=True)]
        return (*made, *([arrays[0][0]] if keep else []))
    schedule = Schedule(way, chunks, unroll, save, ordered)
    job = Gather(Ring.going(way, axes, n), dim, matmuls[0].terms[0], matmuls, schedule, numbers)
    block, *others = _all_varying([arrays[0][0], *(each for group in arrays for each in group[1:])], job.ring)
    beside = iter(others)
    factors: list[Sequence[Any]] = [[next(beside) for _ in group[1:]] for group in arrays]
    if keep == "parts":
        made, parts = gather_in_parts(job, block, factors)
        return *made, parts
    if keep:
        return tuple(gather_ring(keeping(job, matmuls), block, [*factors, ()]))
    return tuple(gather_ring(job, block, factors))


def einsum_scatter(
    operands: Sequence[Any], terms: Sequence[Sequence[Any]], out_term: Sequence[Any], *, dim: Any, axes: Axes, n: int,
    way: Way = "bidirectional", chunks: int = 1, unroll: int = 16, precision: Any = None,
    preferred_element_type: Any = None, accumulate: Any = None, save: bool = True, ordered: bool = False,
) -> Any:  # fmt: skip
    """Multiply, sum over the devices of a ring, and keep this device's part of `dim`; the sums travel as they grow.

    Every element is added up in one order, that of the ring from one place past its home: the same bits on each run.

    Args:
        operands: this device's shards; `terms` their dimensions, `out_term` those of the result: names or numbers.
        dim: the result's dimension that is scattered; the operands have it whole, a multiple of n.
        axes: the mesh axes of the ring, the major one first, and `n` how many devices they have together.
        way: all parts one way, or half of them each way; it takes two parts to overlap the transfer of one.
        chunks: into how many parts what goes one way is cut.
        accumulate: the dtype in which a result is added to a sum; sums travel in the dtype of the result.
        save: in the derivative, put the gathered cotangent together, and multiply it whole where that is the better
            matmul; else nothing but shards is held.
        ordered: tell the compiler how operands of three dimensions lie (`shardwise.planning.told.operand_orders`); for the
            derivative see `gather_einsum`.
    """
    how: dict[str, Any] = {"way": way, "chunks": chunks, "unroll": unroll, "save": save, "ordered": ordered}
    how |= {"precision": precision, "preferred_element_type": preferred_element_type, "accumulate": accumulate}
    return einsums_scatter([operands], terms, out_term, dim=dim, axes=axes, n=n, **how)


def einsums_scatter(
    groups: Sequence[Sequence[Any]], terms: Sequence[Sequence[Any]], out_term: Sequence[Any], *, dim: Any, axes: Axes, n: int,
    way: Way = "bidirectional", chunks: int = 1, unroll: int = 16, precision: Any = None,
    preferred_element_type: Any = None, accumulate: Any = None, save: bool = True, ordered: bool = False,
) -> Any:  # fmt: skip
    """Multiply each group, sum all results over the devices of a ring, and keep this device's part of `dim`.

    It is `einsum_scatter` of several matmuls whose results are added up, of the same dimensions but of other sizes where they
    are summed.

    Args:
        groups: this device's shards of each matmul.
    """
    numbers = Numbers(precision, preferred_element_type, accumulate)
    arrays, matmuls = _matmuls(groups, terms, out_term, keep=dim, order=range(len(terms)))
    assert dim in out_term, f"the result has no dimension {dim}"
    if n == 1:
        return functools.reduce(operator.add, (matmul(each, made, numbers) for each, made in zip(arrays, matmuls, strict=True)))
    job = Scatter(Ring.going(way, axes, n), dim, matmuls, Schedule(way, chunks, unroll, save, ordered), numbers)
    varying = iter(_all_varying([each for group in arrays for each in group], job.ring))
    return scatter_ring(job, [[next(varying) for _ in group] for group in arrays])


def einsum_gather(
    operands: Sequence[Any], terms: Sequence[Sequence[Any]], out_term: Sequence[Any], *, dim: Any, axes: Axes, n: int,
    way: Way = "bidirectional", chunks: int = 4, unroll: int = 16, precision: Any = None, preferred_element_type: Any = None,
    ordered: bool = False,
) -> Any:  # fmt: skip
    """Multiply, and gather the result along a dimension, of which every device has made a block.

    The block is made in parts; each goes round as soon as it is there, while the next is multiplied.

    Args:
        operands: this device's shards; `terms` their dimensions, `out_term` those of the result: names or numbers.
        dim: the result's dimension that is gathered: n times as long as the operands have it.
        axes: the mesh axes of the ring, the major one first, and `n` how many devices they have together.
        way: from one neighbour, or from both, in half the steps.
        chunks: in how many parts the block is made and sent; the matmul of the first is exposed.
        ordered: for the derivative's derivative, which gathers: see `gather_einsum`.
    """
    arrays, all_terms = _without_lone(operands, terms, out_term, keep=dim)
    numbers, wanted = Numbers(precision, preferred_element_type), LocalMatmul(tuple(all_terms), tuple(out_term))
    assert dim in wanted.out, f"the result has no dimension {dim}"
    if n == 1:
        return matmul(arrays, wanted, numbers)
    job = PipelinedGather(Ring.going(way, axes, n), dim, (wanted,), Schedule(way, chunks, unroll, ordered=ordered), numbers)
    return pipelined_gather_ring(job, [_all_varying(arrays, job.ring)])


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
    wanted = LocalMatmul(tuple(all_terms), tuple(out_term))
    assert len(arrays) == 2, f"two operands rotate, not {len(arrays)}"
    assert dim not in out_term, f"{dim} is not summed"
    assert all(dim in term for term in all_terms), f"{dim} is not in both operands"
    job = Rotation(axes, n, dim, wanted, Numbers(precision, preferred_element_type, accumulate))
    varying = varying_axes(*arrays, *(jax.lax.axis_index(axis) for axis in axes))
    return rotation(job, [as_varying(array, varying) for array in arrays])


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
        kept = tuple(dim for dim in term if dim in elsewhere)
        arrays.append(matmul([array], LocalMatmul((tuple(term),), kept), Numbers()))  # in its dtype, as jnp.einsum does
        found.append(kept)
    return arrays, found


def _matmuls(
    groups: Sequence[Sequence[Any]], terms: Sequence[Sequence[Any]], out: Sequence[Any], keep: Any, order: Sequence[int]
) -> tuple[list[list[Any]], tuple[LocalMatmul, ...]]:
    """The operands of each matmul in an order, and what it is; a dimension of which they have other sizes is one of each."""
    sizes: dict[Any, set[int]] = {}
    for arrays in groups:
        for array, term in zip(arrays, terms, strict=True):
            for dim, size in zip(term, array.shape, strict=True):
                sizes.setdefault(dim, set()).add(size)
    found, matmuls = [], []
    for number, operands in enumerate(groups):
        own = {dim: dim if len(known) == 1 or dim == keep else (dim, number) for dim, known in sizes.items()}
        result = [own[dim] for dim in out]
        arrays, kept = _without_lone(operands, [[own[dim] for dim in term] for term in terms], result, keep)
        found.append([arrays[k] for k in order])
        matmuls.append(LocalMatmul(tuple(kept[k] for k in order), tuple(result)))
    return found, tuple(matmuls)
