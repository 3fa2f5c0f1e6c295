"""The scattering ring: a partial sum travels to the device that keeps it; each device on the way adds a matmul's result."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from jax import lax

from shardwise.runtime.blocks import cut_out, unseen
from shardwise.runtime.ring_matmuls import (
    LocalMatmul,
    Numbers,
    Operands,
    Term,
    all_extents,
    held_back,
    laid_by_one_kernel,
    matmul,
    summed_flat,
    told_to_lie,
)
from shardwise.runtime.ring_paths import Ring, Schedule
from shardwise.schedule.events import Await, Events, Loop, Matmul, Send, Span
from shardwise.schedule.fused import scattered_along
from shardwise.schedule.makers import matmul_scatter


@dataclass(frozen=True, slots=True)
class Scatter:
    """The sum of some matmuls over the ring's devices; each device keeps its part of `dim`, which every result has."""

    ring: Ring
    dim: Any
    matmuls: tuple[LocalMatmul, ...]
    schedule: Schedule
    numbers: Numbers


def scatter(job: Scatter, operands: Operands) -> Any:
    """Run the ring; `operands` are those of each matmul.

    A sum begins one place past its home and ends there, so every element is added in one fixed order.
    """
    sizes, schedule, out = all_extents(operands, job.matmuls), job.schedule, job.matmuls[0].out
    sizes[job.dim] = width = sizes[job.dim] // job.ring.n
    split = scattered_along(out, [made.terms for made in job.matmuls], sizes, job.dim, schedule.way, schedule.chunks)
    if schedule.ordered:
        operands = [told_to_lie(arrays, made.terms, split) for arrays, made in zip(operands, job.matmuls, strict=True)]
    operands, matmuls = summed_flat(operands, job.matmuls)
    job = replace(job, matmuls=matmuls)
    extent = sizes[split]
    events = matmul_scatter(job.ring.n, schedule.way, schedule.chunks, extent, schedule.unroll)
    parts = sorted(_Run(job, operands, width, split).after(({}, {}), events)[1].items())
    return laid_by_one_kernel([(unseen(first, last - first), part) for (first, last), part in parts], out.index(split), extent)


State = tuple[dict[int, Any], dict[Span, Any]]  # what is on its way, by transfer; the sums that lie here


@dataclass(frozen=True, slots=True)
class _Run:
    """One run of the ring."""

    job: Scatter
    operands: Operands
    width: int
    split: Any

    def after(self, state: State, events: Events, trip: Any = None) -> State:
        """What is there when these events have happened; a sum that was sent on lies here no more."""
        flying, sums = dict(state[0]), dict(state[1])
        last = [*sums.values()][-1:]
        awaited: list[int] = []  # since the last matmul, which are over before the next
        for event in events:
            match event:
                case Send(transfer, _, part):
                    flying[transfer] = self.job.ring.sent(sums.pop(part.span), event.pairs)
                case Await(transfers):
                    awaited += transfers
                case Matmul((part,), transfers):
                    over = [flying[k] for k in awaited if k not in transfers]
                    arrived = [flying.pop(k) for k in transfers]
                    start = self.job.ring.place(part.away_on(trip)) * self.width
                    waits = [*over, *last] if arrived or over or self.job.ring.sides is not None else []
                    sums[part.span] = new = self.partial_sum(start, part.span, arrived, waits)
                    last, awaited = [*([] if waits else last), new], []
                case Loop(trips, body):
                    flying, sums = lax.fori_loop(0, trips, lambda k, state, b=body: self.after(state, b, k), (flying, sums))
                    last = [*sums.values()][-1:]
                case _:
                    raise AssertionError(f"no event of a scattering ring: {event}")
        return flying, sums

    def partial_sum(self, start: Any, span: Span, arrived: list[Any], waits: list[Any]) -> Any:
        """What this device multiplies for one part of one block, added to the sums that arrived; after what it `waits` for."""
        job, operands = self.job, list(self.operands)
        total: Any = None
        if (arrived or waits) and len(operands) > 1:  # all but the last need not wait for what arrived
            operands[:-1], *_ = held_back(operands[:-1], *waits)
        for number, (wanted, arrays) in enumerate(zip(job.matmuls, operands, strict=True)):
            if (arrived or waits) and number == len(operands) - 1:  # a matmul that waits for the sum takes the addition in
                (arrays,), *past = held_back([arrays], *arrived, *waits)
                arrived = past[: len(arrived)]
            cuts = [self.cut(a, t, start, span) for a, t in zip(arrays, wanted.terms, strict=True)]
            new = matmul(cuts, wanted, job.numbers, accumulated=True)
            total = new if total is None else total + new
        for each in arrived:
            total = total + each.astype(total.dtype)
        return total.astype(job.numbers.of_result([a for arrays in operands for a in arrays]))

    def cut(self, array: Any, term: Term, start: Any, span: Span) -> Any:
        """What an operand has of a strand's part of the block that starts at `start`."""
        width = span[1] - span[0]
        if self.split == self.job.dim:
            return cut_out(array, term, {self.split: (start + span[0], width)})
        return cut_out(array, term, {self.job.dim: (start, self.width), self.split: (unseen(span[0], width), width)})
