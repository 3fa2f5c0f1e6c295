"""The gathering ring: every device's block of one array is multiplied as it arrives, while the next is on its way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jax import lax

from shardwise.planning.paths import Span, Strand, gathering, is_one_product, side_by_side
from shardwise.runtime.ring_paths import Ring, Schedule
from shardwise.runtime.ring_products import Numbers, Product, Term, cut, laid, product

Others = Sequence[Sequence[Any]]
Parts = Sequence[tuple[Any, Any]]  # of the block, and from how many places above each came


@dataclass(frozen=True, slots=True)
class Gather:
    """Products that need an array whole along `dim`, of which this device has a block with the dimensions `block`.

    Each product has the block first. One whose result holds `dim` is made block by block, any other is a running sum.
    One of the block alone is the gathered array.
    """

    ring: Ring
    dim: Any
    block: Term
    products: tuple[Product, ...]
    schedule: Schedule
    numbers: Numbers


def gather(job: Gather, block: Any, others: Others) -> list[Any]:
    """Run the ring; `others` are for each product its operands after the block."""
    run = _Run(job, block.shape[job.block.index(job.dim)], others)
    state = run.begun(block)
    hops = [strand.hops for strand in run.strands]
    looped = (min(hops, default=0) - 1) // 2 * 2 if job.ring.n > job.schedule.unroll else 0
    if looped:  # two hops a turn: what arrives has a buffer of its own, and nothing is copied
        every = range(len(hops))
        turn = lambda number, state: run.hop(run.hop(state, 2 * number, every, every), 2 * number + 1, every, every)  # noqa: E731
        state = lax.fori_loop(0, looped // 2, turn, state)
    for hop in range(looped, max(hops, default=0)):
        here, further = ([k for k, most in enumerate(hops) if most > h] for h in (hop, hop + 1))
        state = run.hop(state, hop, here, further)
    dtypes = [job.numbers.of_result([block, *arrays]) if arrays else block.dtype for arrays in others]
    return [result.astype(dtype) for result, dtype in zip(state[1], dtypes, strict=True)]


@dataclass(frozen=True, slots=True)
class _Run:
    """One run of the ring. Its state: what arrives on each strand, and the products so far."""

    job: Gather
    width: int
    others: Others

    @property
    def strands(self) -> list[Strand]:
        return gathering(self.job.ring.n, self.job.schedule.way, self.job.schedule.chunks, self.width)

    def begun(self, block: Any) -> tuple[list[Any], list[Any]]:
        at = self.job.block.index(self.job.dim)
        flying = [self.job.ring.sent(lax.slice_in_dim(block, *s.span, axis=at), s.way) for s in self.strands]
        return flying, self.taken([None] * len(self.others), [(block, 0)], (0, self.width))

    def hop(self, state: Any, hop: Any, here: Sequence[int], further: Sequence[int]) -> tuple[list[Any], list[Any]]:
        """Send on what has arrived after `hop` hops and one more, and multiply it."""
        (flying, made), strands = state, self.strands
        flying = list(flying)
        for group in side_by_side(strands):
            numbers = [number for number in group if number in here]
            # No product of this hop before what it needs is here and the last one is done: else the compiler
            # sends everything first, or multiplies everything last.
            arrived, made = lax.optimization_barrier(([flying[k] for k in numbers], made))
            for number, part in zip(numbers, arrived, strict=True):
                if number in further:
                    flying[number] = self.job.ring.sent(part, strands[number].way)
            parts = [(part, -strands[k].way * (hop + 1)) for k, part in zip(numbers, arrived, strict=True)]
            made = self.taken(made, parts, strands[group[0]].span) if parts else made
        return flying, made

    def taken(self, made: Sequence[Any], parts: Parts, span: Span) -> list[Any]:
        """Multiply parts of blocks, each from so many places above; lay or add the products where they belong."""
        dim = self.job.dim
        return [
            self.laid(before, parts, span, wanted, others)
            if dim in wanted.out
            else self.added(before, parts, span, wanted, others)
            for before, wanted, others in zip(made, self.job.products, self.others, strict=True)
        ]

    def laid(self, before: Any, parts: Parts, span: Span, wanted: Product, others: Sequence[Any]) -> Any:
        """A product whose result holds the dimension, block by block."""
        for part, away in parts:
            start, cuts = self.cut(others, wanted, away, span)
            new = product([part, *cuts], wanted, self.job.numbers)
            before = laid(before, new, wanted.out.index(self.job.dim), start, self.width * self.job.ring.n)
        return before

    def added(self, before: Any, parts: Parts, span: Span, wanted: Product, others: Sequence[Any]) -> Any:
        """A running sum: a product is added in its own kernel, what arrived from both sides as one or one after the other."""
        if len(parts) > 1 and not is_one_product(self.elements_cut(parts, span, wanted, others), before.size):
            for part in parts:
                before = self.added(before, [part], span, wanted, others)
            return before
        if before is not None:  # a product that waits for the sum takes the addition in
            before, arrays, waiting = lax.optimization_barrier((before, [part for part, _ in parts], others))
            if len(parts) > 1:  # two cuts after the wait, too; whoever else waits may be laid out anew for each product
                others = waiting
            parts = [(array, away) for array, (_, away) in zip(arrays, parts, strict=True)]
        factors = [[part, *self.cut(others, wanted, away, span)[1]] for part, away in parts]
        whole = [self.joined(list(arrays), term) for arrays, term in zip(zip(*factors, strict=True), wanted.terms, strict=True)]
        new = product(whole, wanted, self.job.numbers, is_summand=True)
        return new if before is None else before + new

    def elements_cut(self, parts: Parts, span: Span, wanted: Product, others: Sequence[Any]) -> int:
        """How many elements of the other operands the parts are multiplied with."""
        share, whole = len(parts) * (span[1] - span[0]), self.width * self.job.ring.n
        cut = zip(others, wanted.terms[1:], strict=True)
        return sum(other.size * share // whole for other, term in cut if self.job.dim in term)

    def joined(self, arrays: list[Any], term: Term) -> Any:
        if self.job.dim not in term or len(arrays) == 1:
            return arrays[0]
        return lax.concatenate(arrays, term.index(self.job.dim))

    def cut(self, others: Sequence[Any], wanted: Product, away: Any, span: Span) -> tuple[Any, list[Any]]:
        """Where a part of a block begins, and what the other operands have there."""
        start = self.job.ring.place(away) * self.width + span[0]
        terms = zip(others, wanted.terms[1:], strict=True)
        return start, [cut(other, term, self.job.dim, start, span[1] - span[0]) for other, term in terms]
