"""What a ring gathers, as the parts that arrive: for a matmul that takes them one by one, and sends on what it makes of each.

A gradient of a weight needs the operand that a ring gathers for the matmul beside it. Where every part gives a part of the
gradient, as of a batch of experts, that is summed over other devices while the ring still brings the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
from jax import lax

from shardwise.dataflow import ring_of
from shardwise.layout import Layout
from shardwise.program import Program
from shardwise.runtime.blocks import cut_out
from shardwise.runtime.devices import AnyMesh
from shardwise.runtime.mapped import map_shards
from shardwise.runtime.ring_gather import Arrival, arrivals
from shardwise.runtime.ring_matmuls import laid_by_one_kernel
from shardwise.runtime.ring_paths import Ring, Schedule


@dataclass(frozen=True, slots=True)
class Arriving:
    """How an array arrives: in which parts of the blocks along dimension `at` that the devices of a ring have.

    Attributes:
        layout: of the array before it is gathered.
        width: of a block, on one device.
    """

    ring: Ring
    layout: Layout
    at: int
    width: int
    parts: tuple[Arrival, ...]

    def sent(self, mesh: AnyMesh) -> Callable[..., tuple[Any, ...]]:
        """The same parts of an array, each sent all the way by itself: what has a derivative."""
        spec = self.layout.spec

        def local(block: Any) -> tuple[Any, ...]:
            found = self.ring.all_brought(block)
            return tuple(lax.slice_in_dim(found[away % self.ring.n], *span, axis=self.at) for away, span in self.parts)

        return map_shards(local, mesh=mesh, in_specs=(spec,), out_specs=(spec,) * len(self.parts))


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class Arrived:
    """The parts of an array, in the order in which they arrived."""

    arrays: tuple[Any, ...]
    how: Arriving = field(metadata={"static": True})


def arriving(program: Program, array: str, shape: Sequence[int]) -> Arriving | None:
    """How an input of this shape arrives for the matmul of the one ring that gathers it; None where no ring alone does so."""
    step, layout = ring_of(program, array), dict(program.inputs)[array]
    if step is None:
        return None
    n, at = program.mesh.extent(step.gather.axes), layout.names.index(step.gather.dim)
    ring, width = Ring.going(step.way, step.gather.axes, n), shape[at] // n
    parts = arrivals(ring, Schedule(step.way, step.chunks), width)
    return None if parts is None else Arriving(ring, layout.on(program.mesh), at, width, parts)


def by_parts(
    program: Program, each: Callable[..., Any], whole: Callable[..., Any], *arrays: Any | Arrived, mesh: AnyMesh, checked: bool
) -> Any:  # fmt: skip
    """The result of a program of which one input is given as it arrived.

    Args:
        each: does the first of its steps to shards of which one is a part, and `whole` the others to what all of them give.
        checked: whether JAX checks types.
    """
    which = next(number for number, array in enumerate(arrays) if isinstance(array, Arrived))
    how, inputs = arrays[which].how, [layout.on(program.mesh) for _, layout in program.inputs]
    dim = inputs[which].names[how.at]
    at, size = program.result.names.index(dim), how.width * how.ring.n

    def local(*shards: Any) -> Any:
        """Each part as if it were all, and its result where it belongs."""
        made: list[tuple[Any, Any]] = []
        for part, (away, (first, last)) in zip(shards[which], how.parts, strict=True):
            start = how.ring.place(away) * how.width + first
            cut = [
                part if number == which else cut_out(shard, layout.names, {dim: (start, last - first)})
                for number, (shard, layout) in enumerate(zip(shards, inputs, strict=True))
            ]
            made.append((start, each(*cut)))
        return whole(laid_by_one_kernel(made, at, size))

    specs = tuple(
        layout.spec if number != which else (how.layout.spec,) * len(how.parts) for number, layout in enumerate(inputs)
    )
    given = [array.arrays if isinstance(array, Arrived) else array for array in arrays]
    mapped = map_shards(local, mesh=mesh, in_specs=specs, out_specs=program.result.spec, check_vma=checked)
    return mapped(*given)
