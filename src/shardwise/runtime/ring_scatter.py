"""The scattering ring: a sum of products travels to the device that keeps it, and takes up one more at every stop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jax import lax

from shardwise.planning.paths import Span, scattering
from shardwise.runtime.ring_paths import Ring, Schedule
from shardwise.runtime.ring_products import (
    Numbers,
    Operands,
    Product,
    Term,
    all_extents,
    cut,
    held_back,
    laid,
    least_read_again,
    product,
)

ENOUGH = 512  # rows: what a product of so many reads again takes no longer than its multiplications


@dataclass(frozen=True, slots=True)
class Scatter:
    """The sum of products, and of those over the ring's devices; each keeps its part of `dim`, which every result has."""

    ring: Ring
    dim: Any
    products: tuple[Product, ...]
    schedule: Schedule
    numbers: Numbers


def scatter(job: Scatter, operands: Operands) -> Any:
    """Run the ring; `operands` are those of each product.

    A sum begins one place past its home and ends there, so every element is added in one fixed order.
    """
    sizes = all_extents(operands, job.products)
    sizes[job.dim] = width = sizes[job.dim] // job.ring.n
    split = split_of(job, operands, sizes)
    extent = sizes[split]
    run = _Run(job, operands, width, split, scattering(job.schedule.way, job.schedule.chunks, extent))
    state = run.hop(None, 0)
    looped = (job.ring.n - 2) // 2 * 2 if job.ring.n > job.schedule.unroll else 0
    if looped:
        state = lax.fori_loop(0, looped // 2, lambda k, state: run.hop(run.hop(state, 2 * k + 1), 2 * k + 2), state)
    for hop in range(looped + 1, job.ring.n - 1):
        state = run.hop(state, hop)
    result = None
    for (_, span), part in zip(run.strands, run.parts(state, job.ring.n - 1), strict=True):
        result = laid(result, part, job.products[0].out.index(split), span[0], extent)
    return result


def split_of(job: Scatter, operands: Operands, sizes: Mapping[Any, int]) -> Any:
    """Along which dimension of the result a block, of these sizes, is cut into strands.

    Every strand's product reads whatever operand lacks that dimension once more. Where parts of the scattered dimension
    are too small for that, it is the one that costs the least.
    """
    parts = job.schedule.chunks * (1 if job.schedule.way == "ring" else 2)
    if sizes[job.dim] >= parts * ENOUGH:
        return job.dim
    return least_read_again(job.products, operands, sizes, job.dim, parts, blocks=job.ring.n)


@dataclass(frozen=True, slots=True)
class _Run:
    """One run of the ring. Its state: what arrives on each strand but the last, and what that one has yet to send.

    So the last strand's transfer hides behind the first one's product of the next hop, in a loop too.
    """

    job: Scatter
    operands: Operands
    width: int
    split: Any
    strands: list[tuple[int, Span]]

    def hop(self, state: Any, hop: Any) -> tuple[list[Any], Any]:
        parts = self.parts(state, hop)
        sent = [self.job.ring.sent(part, way) for part, (way, _) in zip(parts[:-1], self.strands[:-1], strict=True)]
        return sent, parts[-1]

    def parts(self, state: Any, hop: Any) -> list[Any]:
        """The sums of every strand, with this device's product, after so many hops; none has arrived before the first."""
        flying, unsent = state if state is not None else ([None] * len(self.strands[:-1]), None)
        arriving = [*flying, None if unsent is None else self.job.ring.sent(unsent, self.strands[-1][0])]
        parts: list[Any] = []
        for (way, span), arrived in zip(self.strands, arriving, strict=True):
            start = self.job.ring.place(-way * (hop + 1)) * self.width
            parts.append(self.summand(start, span, arrived, parts[-1] if parts else unsent))
        return parts

    def summand(self, start: Any, span: Span, arrived: Any, last: Any) -> Any:
        """This device's product for one part of one block, added to the sum that arrived; made after `last`."""
        job, operands = self.job, self.operands
        total: Any = None
        if arrived is not None:  # a product that waits for the sum takes the addition in
            operands, arrived, _ = held_back(operands, arrived, last)
        for wanted, arrays in zip(job.products, operands, strict=True):
            cuts = [self.cut(a, t, start, span) for a, t in zip(arrays, wanted.terms, strict=True)]
            new = product(cuts, wanted, job.numbers, is_summand=True)
            total = new if total is None else total + new
        if arrived is not None:
            total = total + arrived.astype(total.dtype)
        return total.astype(job.numbers.of_result([a for arrays in operands for a in arrays]))

    def cut(self, array: Any, term: Term, start: Any, span: Span) -> Any:
        """What an operand has of a strand's part of the block that starts at `start`."""
        if self.split == self.job.dim:
            return cut(array, term, self.job.dim, start + span[0], span[1] - span[0])
        if self.split in term:
            array = lax.slice_in_dim(array, *span, axis=term.index(self.split))
        return cut(array, term, self.job.dim, start, self.width)
