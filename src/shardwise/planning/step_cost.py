"""What one step of a program costs on each device, and the FLOPs of a local einsum."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Beside:
    """Seconds of a transfer beside other steps: it starts `after` seconds into the step of this `number`, counted from 0."""

    number: int
    after: float
    seconds: float


class StepCost(NamedTuple):
    """One step of a program: its modelled seconds, and what it computes, sends and holds on each device.

    `transfer_seconds` is how long data moves, `exposed_seconds` what of it no matmul overlaps; `network_bytes` are those of
    `wire_bytes` that leave a node, or a slice. `seconds` are those of the clock, `saved_seconds` less than of the step alone:
    some of a gather may run `beside` other steps, and the first hops of a ring start up to `ahead_seconds` before it. It waits
    for `fetched_seconds` of them first, until inputs are in the chip's own memory.
    """

    seconds: float
    flops: float = 0.0
    wire_bytes: float = 0.0
    live_bytes: float = 0.0
    transfer_seconds: float = 0.0
    exposed_seconds: float = 0.0
    network_bytes: float = 0.0
    beside: Beside | None = None
    ahead_seconds: float = 0.0
    saved_seconds: float = 0.0
    fetched_seconds: float = 0.0


def einsum_flops(operands: Sequence[Sequence[str]], dims: Iterable[str], sizes: Mapping[str, int]) -> float:
    """The FLOPs of a local einsum: what one operand alone sums is summed before the matmul.

    >>> einsum_flops(["IJ", "JK"], "IK", {"I": 2, "J": 3, "K": 5})
    60.0
    """
    kept = set(dims)
    flops, multiplied = 0.0, set[str]()
    for index, names in enumerate(operands):
        others = {dim for other, theirs in enumerate(operands) if other != index for dim in theirs}
        private = [dim for dim in names if dim not in kept and dim not in others]
        if private:
            flops += math.prod(sizes[dim] for dim in names)
        multiplied |= set(names) - set(private)
    if len(operands) > 1:
        flops += (2.0 if multiplied - kept else 1.0) * math.prod(sizes[dim] for dim in multiplied)
    return flops
