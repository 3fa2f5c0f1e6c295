"""The spreading ring: a sum of products goes round to all devices part by part, while the next part is multiplied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax

from shardwise.planning.paths import Span, Strand, gathering, side_by_side
from shardwise.runtime.ring_paths import Ring, Schedule
from shardwise.runtime.ring_products import (
    Numbers,
    Operands,
    Product,
    all_extents,
    as_varying,
    held_back,
    least_read_again,
    product,
    varying_axes,
)


@dataclass(frozen=True, slots=True)
class Spread:
    """A sum of products, of which this device's operands make one block along `dim`; every device receives all blocks."""

    ring: Ring
    dim: Any
    products: tuple[Product, ...]
    schedule: Schedule
    numbers: Numbers


def spread(job: Spread, operands: Operands) -> Any:
    """Run the ring: part k is made at tick k, and has gone h hops h ticks later; `operands` are those of each product."""
    sizes = all_extents(operands, job.products)
    split = split_of(job, operands)
    strands = gathering(job.ring.n, job.schedule.way, job.schedule.chunks, sizes[split])
    run = _Run(job, [sizes[dim] for dim in job.products[0].out], split, strands, side_by_side(strands))
    state: State = ([None] * len(strands), None)
    for tick, group in enumerate(run.groups):
        part = run.made(operands, state, strands[group[0]].span)
        state = run.begun(run.moved(state, tick, part), group, part)
    parts, hops = len(run.groups), [strand.hops for strand in strands]
    looped = max(0, min(hops) - parts) // 2 * 2 if job.ring.n > job.schedule.unroll else 0
    if looped:  # all parts travel on: two ticks a turn
        turn = lambda k, state: run.moved(run.moved(state, parts + 2 * k), parts + 2 * k + 1)  # noqa: E731
        state = lax.fori_loop(0, looped // 2, turn, state)
    for tick in range(parts + looped, parts + max(hops)):
        state = run.moved(state, tick)
    return state[1]


def split_of(job: Spread, operands: Operands) -> Any:
    """Along which dimension of the result a block is cut into parts."""
    return least_read_again(job.products, operands, all_extents(operands, job.products), job.dim, job.schedule.chunks)


State = tuple[list[Any], Any]  # what arrives on each strand that has begun; the result as far as it is there


@dataclass(frozen=True, slots=True)
class _Run:
    """One run of the ring."""

    job: Spread
    block: Sequence[int]  # the shape of this device's block of the result
    split: Any  # the dimension along which it is cut into parts
    strands: list[Strand]
    groups: list[list[int]]  # the strands of each part

    def made(self, operands: Operands, state: State, span: Span) -> Any:
        """This device's products for a part of its block, when all that came before has been laid."""
        if state[1] is not None:
            operands, _ = held_back(operands, state[1])
        total: Any = None
        for wanted, arrays in zip(self.job.products, operands, strict=True):
            pairs = zip(arrays, wanted.terms, strict=True)
            cuts = [lax.slice_in_dim(a, *span, axis=term.index(self.split)) if self.split in term else a for a, term in pairs]
            new = product(cuts, wanted, self.job.numbers)
            total = new if total is None else total + new
        return total

    def begun(self, state: State, group: Sequence[int], part: Any) -> State:
        """Send a part that has been made, and lay it."""
        flying, result = list(state[0]), state[1]
        for k in group:
            flying[k] = self.job.ring.sent(part, self.strands[k].way)
        return flying, self.laid(result, part, 0, self.strands[group[0]].span)

    def moved(self, state: State, tick: Any, part: Any = None) -> State:
        """Send on what arrives at a tick, the oldest part first, not before `part` is made; and lay it.

        In a loop the tick has no number yet, and every strand goes on.
        """
        flying, result = list(state[0]), state[1]
        for number, group in enumerate(self.groups[:tick] if isinstance(tick, int) else self.groups):
            here, further = group, group
            if isinstance(tick, int):
                here, further = ([k for k in group if self.strands[k].hops > tick - number - back] for back in (1, 0))
            if not here:
                continue
            arrived, result, part = lax.optimization_barrier(([flying[k] for k in here], result, part))
            for k, block in zip(here, arrived, strict=True):
                if k in further:
                    flying[k] = self.job.ring.sent(block, self.strands[k].way)
            for k, block in zip(here, arrived, strict=True):
                result = self.laid(result, block, -self.strands[k].way * (tick - number), self.strands[k].span)
        return flying, result

    def laid(self, result: Any, block: Any, away: Any, span: Span) -> Any:
        """Write a part of the block of the device so many places above where it belongs."""
        out = self.job.products[0].out
        at, along = out.index(self.job.dim), out.index(self.split)
        if result is None:  # room, which is not filled: every part has its place
            shape = tuple(size * (self.job.ring.n if place == at else 1) for place, size in enumerate(self.block))
            result = as_varying(lax.empty(shape, block.dtype), varying_axes(block))
        starts = [jnp.int32(0)] * len(out)  # all of one dtype, as the place on the ring is
        starts[along] += span[0]
        starts[at] += self.job.ring.place(away) * self.block[at]
        return lax.dynamic_update_slice(result, block, starts)
