"""The gathering ring: every device's block of one array is multiplied as it arrives, while the next is on its way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, assert_never

from jax import lax

from shardwise.planning.told import result_order
from shardwise.runtime.blocks import cut_out, lying_in, unseen
from shardwise.runtime.ring_matmuls import LocalMatmul, Numbers, Term, laid, matmul, told_to_lie
from shardwise.runtime.ring_paths import Ring, Schedule
from shardwise.schedule.events import Await, Copy, Events, Loop, Matmul, Part, Send, Span
from shardwise.schedule.makers import gather_matmul
from shardwise.schedule.strands import is_one_matmul

Others = Sequence[Sequence[Any]]
Arrival = tuple[int, Span]  # from how many places above a part of a block comes, and which of its elements it has
Parts = Sequence[tuple[Any, Any, Span]]  # of the block, from how many places above each came, and which elements it has


@dataclass(frozen=True, slots=True)
class Gather:
    """Matmuls that need an array whole along `dim`, of which this device has a block with the dimensions `block`.

    Each matmul has the block first. One whose result holds `dim` is made block by block, any other is a running sum.
    One of the block alone is the gathered array.
    """

    ring: Ring
    dim: Any
    block: Term
    matmuls: tuple[LocalMatmul, ...]
    schedule: Schedule
    numbers: Numbers


def gather(job: Gather, block: Any, others: Others, arrived: list[Any] | None = None) -> list[Any]:
    """Run the ring; `others` are for each matmul its operands after the block; parts are added to what has `arrived`."""
    width, schedule = block.shape[job.block.index(job.dim)], job.schedule
    if schedule.ordered:
        others = [told_to_lie(arrays, made.terms[1:], job.dim) for arrays, made in zip(others, job.matmuls, strict=True)]
    events = gather_matmul(job.ring.n, schedule.way, schedule.chunks, width, schedule.unroll)
    _, made = _Run(job, width, block, others, arrived).after(({}, [None] * len(others)), events)
    dtypes = [job.numbers.of_result([block, *arrays]) if arrays else block.dtype for arrays in others]
    return [result.astype(dtype) for result, dtype in zip(made, dtypes, strict=True)]


def arrivals(ring: Ring, schedule: Schedule, width: int) -> tuple[Arrival, ...] | None:
    """The parts of the gathered array in the order in which they are multiplied; None where a ring loops over them."""
    events = gather_matmul(ring.n, schedule.way, schedule.chunks, width, schedule.unroll)
    if any(isinstance(event, Loop) for event in events):
        return None
    return tuple((part.away, part.span) for event in events if isinstance(event, Matmul) for part in event.parts)


def gather_in_parts(job: Gather, block: Any, others: Others) -> tuple[list[Any], tuple[Any, ...]]:
    """`gather`, and the parts of the gathered array as they arrive, for whoever multiplies them one by one, too.

    A loop has no such parts, and this no derivative.
    """
    parts: list[Any] = []
    return gather(job, block, others, parts), tuple(parts)


State = tuple[dict[int, Any], list[Any]]  # what is on its way, by transfer; the results so far


@dataclass(frozen=True, slots=True)
class _Run:
    """One run of the ring."""

    job: Gather
    width: int
    block: Any
    others: Others
    arrived: list[Any] | None  # every part that was multiplied, to be given

    def after(self, state: State, events: Events, trip: Any = None) -> State:
        """What is there when these events have happened."""
        (flying, made), arrived = state, dict[int, Any]()
        flying = dict(flying)
        for event in events:
            match event:
                case Send(transfer, _, part):
                    source = arrived[event.source] if event.source in arrived else self.own(part)
                    flying[transfer] = self.job.ring.sent(source, event.pairs)
                case Await(transfers):
                    # No matmul of this hop before what it needs is here and the last one is done: else the compiler
                    # sends everything first, or multiplies everything last.
                    found, made = lax.optimization_barrier(([flying[k] for k in transfers], made))
                    arrived.update(zip(transfers, found, strict=True))
                case Matmul(parts, transfers):
                    arrays = [arrived[k] for k in transfers] or [self.block]
                    if self.arrived is not None:
                        self.arrived.extend(arrays)
                    come = [(array, part.away_on(trip), part.span) for array, part in zip(arrays, parts, strict=True)]
                    made = self.taken(made, come)
                case Loop(trips, body):
                    flying, made = lax.fori_loop(0, trips, lambda k, state, b=body: self.after(state, b, k), (flying, made))
                case Copy():
                    raise AssertionError("blocks are laid by their matmuls")
                case _:
                    assert_never(event)
        return flying, made

    def own(self, part: Part) -> Any:
        at, (first, last) = self.job.block.index(self.job.dim), part.span
        if self.job.ring.sides is None:
            return lax.slice_in_dim(self.block, first, last, axis=at)
        # Of several cuts of unlike sizes TPU compilers make slow copies, where they see the starts.
        return lax.dynamic_slice_in_dim(self.block, unseen(first, last - first), last - first, at)

    def taken(self, made: Sequence[Any], parts: Parts) -> list[Any]:
        """Multiply parts of blocks, each from so many places above; lay or add the results where they belong."""
        dim = self.job.dim
        return [
            self.laid(before, parts, wanted, others) if dim in wanted.out else self.added(before, parts, wanted, others)
            for before, wanted, others in zip(made, self.job.matmuls, self.others, strict=True)
        ]

    def laid(self, before: Any, parts: Parts, wanted: LocalMatmul, others: Sequence[Any]) -> Any:
        """A matmul whose result holds the dimension, block by block."""
        at, size = wanted.out.index(self.job.dim), self.width * self.job.ring.n
        for part, place, span in parts:
            start, cuts = self.cut(others, wanted, place, span)
            new = matmul([part, *cuts], wanted, self.job.numbers)
            if self.job.schedule.ordered and others:
                new = lying_in(new, result_order((*new.shape[:at], size, *new.shape[at + 1 :])))
            before = laid(before, new, at, start, size)
        return before

    def added(self, before: Any, parts: Parts, wanted: LocalMatmul, others: Sequence[Any]) -> Any:
        """A running sum: a matmul adds to it in its own kernel; what arrived together is one matmul, or each is one."""
        if len(parts) > 1 and not is_one_matmul(self.elements_cut(parts, wanted, others), before.size):
            for part in parts:
                before = self.added(before, [part], wanted, others)
            return before
        if before is not None:  # a matmul that waits for the sum takes the addition in
            before, arrays, waiting = lax.optimization_barrier((before, [part for part, *_ in parts], others))
            if len(parts) > 1:  # two cuts after the wait, too; whoever else waits may be laid out anew for each matmul
                others = waiting
            parts = [(array, away, span) for array, (_, away, span) in zip(arrays, parts, strict=True)]
        factors = [[part, *self.cut(others, wanted, away, span)[1]] for part, away, span in parts]
        whole = [self.joined(list(arrays), term) for arrays, term in zip(zip(*factors, strict=True), wanted.terms, strict=True)]
        new = matmul(whole, wanted, self.job.numbers, accumulated=True)
        made = new if before is None else before + new
        return lying_in(made, result_order(made.shape)) if self.job.schedule.ordered else made

    def elements_cut(self, parts: Parts, wanted: LocalMatmul, others: Sequence[Any]) -> int:
        """How many elements of the other operands the parts are multiplied with."""
        share, whole = sum(last - first for *_, (first, last) in parts), self.width * self.job.ring.n
        cut = zip(others, wanted.terms[1:], strict=True)
        return sum(other.size * share // whole for other, term in cut if self.job.dim in term)

    def joined(self, arrays: list[Any], term: Term) -> Any:
        if self.job.dim not in term or len(arrays) == 1:
            return arrays[0]
        return lax.concatenate(arrays, term.index(self.job.dim))

    def cut(self, others: Sequence[Any], wanted: LocalMatmul, away: Any, span: Span) -> tuple[Any, list[Any]]:
        """Where a part of a block begins, and what the other operands have there."""
        start = self.job.ring.place(away) * self.width + span[0]
        terms = zip(others, wanted.terms[1:], strict=True)
        return start, [cut_out(other, term, {self.job.dim: (start, span[1] - span[0])}) for other, term in terms]
