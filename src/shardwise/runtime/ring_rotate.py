"""The rotation: two arrays, each split over its own axis along the dimension that is summed, meet shard by shard.

Cannon's algorithm on a grid of any two sizes. Operand 0 is in n0 blocks along the summed dimension, over `axes[0]`,
operand 1 in n1, over `axes[1]`; cut the dimension into L = lcm(n0, n1) pieces. At step t the device at (p0, p1)
multiplies piece p0 L/n0 + p1 L/n1 + t (mod L). Along either axis these are in different blocks at every step, so each
device holds one shard of each operand, and passes it on when it has used it up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax import lax

from shardwise.runtime.blocks import cut_out
from shardwise.runtime.ring_matmuls import LocalMatmul, Numbers, matmul, room
from shardwise.schedule.events import Await, Matmul, Send
from shardwise.schedule.makers import rotate_matmul
from shardwise.schedule.places import Grid, Pair, Pairs


@dataclass(frozen=True, slots=True)
class Rotation:
    """A matmul of two operands; `dim`, which is summed, is split over `axes[k]`, of `sizes[k]` devices, in operand k."""

    axes: tuple[str, str]
    sizes: Pair
    dim: Any
    matmul: LocalMatmul
    numbers: Numbers

    @property
    def grid(self) -> Grid:
        return Grid(self.sizes)

    @property
    def steps(self) -> int:
        return self.grid.steps

    def number(self, position: int) -> int:
        """What `ppermute` calls a position of the grid: it counts along the axes in the mesh's order."""
        if self.axes == self.in_mesh_order:
            return position
        return position % self.sizes[1] * self.sizes[0] + position // self.sizes[1]

    @property
    def in_mesh_order(self) -> tuple[str, ...]:
        return tuple(axis for axis in jax.sharding.get_abstract_mesh().axis_names if axis in self.axes)

    def moved(self, array: Any, k: int, before: int | None, after: int | None) -> Any:
        """Operand k as it is needed at step `after`, from where it is at `before`; None is where it lives."""
        pairs = self.grid.pairs(k, before, after)
        return array if all(source == target for source, target in pairs) else self.sent(array, pairs)

    def sent(self, array: Any, pairs: Pairs) -> Any:
        """What arrives here when every device sends an array as the pairs of positions say."""
        numbers = [(self.number(source), self.number(target)) for source, target in pairs]
        return lax.ppermute(array, self.in_mesh_order, numbers)

    def piece(self, array: Any, k: int, step: int) -> Any:
        """The piece of operand k's present shard that is multiplied at a step."""
        pieces = self.steps // self.sizes[k]
        size = array.shape[self.place(k)] // pieces
        if pieces == 1:
            return array
        return cut_out(array, self.matmul.terms[k], {self.dim: (self.start(k, step) * size, size)})

    def start(self, k: int, step: int) -> Any:
        """Which piece of operand k's present shard that is."""
        offset = lax.axis_index(self.axes[1 - k]) * (self.steps // self.sizes[1 - k]) + step
        return offset % (self.steps // self.sizes[k])

    def place(self, k: int) -> int:
        return self.matmul.terms[k].index(self.dim)


def rotate(job: Rotation, operands: Sequence[Any]) -> Any:
    """Multiply and pass on, the next shards on their way while the present ones are multiplied."""
    held, coming, total = list(operands), dict[int, Any](), None
    for event in rotate_matmul(job.sizes):
        match event:
            case Send(k):
                coming[k] = job.sent(held[k], event.pairs)
            case Await():
                held, coming = [coming.get(k, array) for k, array in enumerate(held)], {}
                if total is not None:
                    held, total = lax.optimization_barrier((held, total))
            case Matmul((part,)):
                if total is not None:  # a matmul that waits for the sum takes the addition in
                    total, held = lax.optimization_barrier((total, held))
                factors = [job.piece(array, k, part.away) for k, array in enumerate(held)]
                new = matmul(factors, job.matmul, job.numbers, accumulated=True)
                total = new if total is None else total + new
            case _:
                raise AssertionError(f"no event of a rotation: {event}")
    assert total is not None
    return total.astype(job.numbers.of_result(operands))


def rotate_back(job: Rotation, k: int, other: Any, cotangent: Any) -> Any:
    """The cotangent of operand k: the other one rotates as before, and the sums go where operand k's shards went."""
    held, total = job.moved(other, 1 - k, None, 0), None
    for step in range(job.steps):
        coming = job.moved(held, 1 - k, step, step + 1) if step + 1 < job.steps else held
        if step:
            total = job.moved(total, k, step - 1, step)
        total = _with(job, total, held, k, step, cotangent)
        held, total = lax.optimization_barrier((coming, total))
    return job.moved(total, k, job.steps - 1, None)


def _with(job: Rotation, total: Any, held: Any, k: int, step: int, cotangent: Any) -> Any:
    """The cotangent of a shard of operand k, with what this step's matmul owes to a piece of it."""
    wanted = LocalMatmul((job.matmul.out, job.matmul.terms[1 - k]), job.matmul.terms[k])
    new = matmul([cotangent, job.piece(held, 1 - k, step)], wanted, job.numbers.backwards, accumulated=True)
    pieces, at = job.steps // job.sizes[k], job.place(k)
    if pieces == 1:
        return new if total is None else total + new
    size = new.shape[at]
    if total is None:
        total = room((*new.shape[:at], size * pieces, *new.shape[at + 1 :]), new, zeros=True)
    start = job.start(k, step) * size
    old = lax.dynamic_slice_in_dim(total, start, size, axis=at)
    return lax.dynamic_update_slice_in_dim(total, old + new, start, axis=at)
