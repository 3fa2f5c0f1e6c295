"""The pipelined gather: the result of matmuls goes round to all devices part by part, while the next part is multiplied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
from jax import lax

from shardwise.runtime.ring_matmuls import (
    LocalMatmul,
    Numbers,
    Operands,
    all_extents,
    held_back,
    matmul,
    room,
    summed_flat,
)
from shardwise.runtime.ring_paths import Ring, Schedule
from shardwise.schedule.events import Await, Copy, Events, Loop, Matmul, Send, Span
from shardwise.schedule.fused import least_read_again
from shardwise.schedule.makers import matmul_gather, parts_of


@dataclass(frozen=True, slots=True)
class PipelinedGather:
    """A sum of matmuls, of which this device's operands make one block along `dim`; every device receives all blocks."""

    ring: Ring
    dim: Any
    matmuls: tuple[LocalMatmul, ...]
    schedule: Schedule
    numbers: Numbers


def pipelined_gather(job: PipelinedGather, operands: Operands) -> Any:
    """Run the ring: part k is made at tick k, and has gone h hops h ticks later; `operands` are those of each matmul."""
    operands, matmuls = summed_flat(operands, job.matmuls)
    job = replace(job, matmuls=matmuls)
    sizes = all_extents(operands, job.matmuls)
    schedule, out = job.schedule, job.matmuls[0].out
    split = least_read_again(out, [made.terms for made in job.matmuls], sizes, job.dim, parts_of(schedule.way, schedule.chunks))
    events = matmul_gather(job.ring.n, schedule.way, schedule.chunks, sizes[split], schedule.unroll)
    return _Run(job, operands, [sizes[dim] for dim in out], split).after(({}, None), events)[1]


State = tuple[dict[int, Any], Any]  # what is on its way, by transfer; the result as far as it is there


@dataclass(frozen=True, slots=True)
class _Run:
    """One run of the ring."""

    job: PipelinedGather
    operands: Operands
    block: Sequence[int]  # the shape of this device's block of the result
    split: Any  # the dimension along which it is cut into parts

    def after(self, state: State, events: Events, trip: Any = None) -> State:
        """What is there when these events have happened."""
        flying, result = dict(state[0]), state[1]
        arrived, made = dict[int, Any](), None  # by transfer; this device's own part, until it is written
        own = dict[Span, Any]()  # this device's parts so far
        for event in events:
            match event:
                case Send(transfer, _, part):
                    flying[transfer] = self.job.ring.sent(arrived[event.source] if part.away else own[part.span], event.pairs)
                case Await(transfers):
                    found, result, made = lax.optimization_barrier(([flying[k] for k in transfers], result, made))
                    arrived.update(zip(transfers, found, strict=True))
                    if made is not None:
                        own[[*own][-1]] = made
                case Matmul((part,)):
                    made = own[part.span] = self.made(result, part.span)
                case Copy(part, transfer):
                    block = made if transfer is None else arrived[transfer]
                    result = self.laid(result, block, part.away_on(trip), part.span)
                    made = None if transfer is None else made
                case Loop(trips, body):
                    flying, result = lax.fori_loop(0, trips, lambda k, state, b=body: self.after(state, b, k), (flying, result))
                case _:
                    raise AssertionError(f"no event of a pipelined gather: {event}")
        return flying, result

    def made(self, result: Any, span: Span) -> Any:
        """This device's part of its block, multiplied when all that came before has been laid."""
        operands = self.operands
        if result is not None:
            operands, _ = held_back(operands, result)
        total: Any = None
        for wanted, arrays in zip(self.job.matmuls, operands, strict=True):
            pairs = zip(arrays, wanted.terms, strict=True)
            cuts = [lax.slice_in_dim(a, *span, axis=term.index(self.split)) if self.split in term else a for a, term in pairs]
            new = matmul(cuts, wanted, self.job.numbers)
            total = new if total is None else total + new
        return total

    def laid(self, result: Any, block: Any, away: Any, span: Span) -> Any:
        """Write a part of the block of the device so many places above where it belongs."""
        out = self.job.matmuls[0].out
        at, along = out.index(self.job.dim), out.index(self.split)
        if result is None:  # room, which is not filled: every part has its place
            shape = tuple(size * (self.job.ring.n if place == at else 1) for place, size in enumerate(self.block))
            result = room(shape, block)
        starts = [jnp.int32(0)] * len(out)  # all of one dtype, as the place on the ring is
        starts[along] += span[0]
        starts[at] += self.job.ring.place(away) * self.block[at]
        return lax.dynamic_update_slice(result, block, starts)
