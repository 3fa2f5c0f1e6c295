"""A ring of devices, and how it is to run; what happens when is in `shardwise.schedule.makers`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shardwise.mesh import folded
from shardwise.schedule.makers import UNROLL
from shardwise.schedule.places import Pairs
from shardwise.steps import Way


@dataclass(frozen=True, slots=True)
class Ring:
    """The devices along `axes` in a circle, the first axis the major one; or folded, over every second one and back."""

    axes: tuple[str, ...]
    n: int
    is_folded: bool = False

    def sent(self, array: Any, pairs: Pairs) -> Any:
        """What arrives here when every device sends `array` to the place that the pairs say."""
        axes, numbers = self._in_mesh_order()
        return lax.ppermute(array, axes, [(numbers[source], numbers[target]) for source, target in pairs])

    def _in_mesh_order(self) -> tuple[tuple[str, ...], list[int]]:
        """The axes as the mesh has them, which `ppermute` wants, and what it calls the ring's positions in order."""
        axes = tuple(axis for axis in jax.sharding.get_abstract_mesh().axis_names if axis in self.axes)
        numbers = np.arange(self.n).reshape([lax.axis_size(axis) for axis in axes])
        return axes, numbers.transpose([axes.index(axis) for axis in self.axes]).reshape(-1).tolist()

    def place(self, away: int) -> Any:
        """The position of the device that is `away` places of the circle above this one."""
        here = lax.axis_index(self.axes)
        if not self.is_folded:
            return (here + away) % self.n
        order = folded(self.n)
        return jnp.asarray(order)[(jnp.asarray(np.argsort(order))[here] + away) % self.n]


@dataclass(frozen=True, slots=True)
class Schedule:
    """One way or both; into how many chunks, each sent on its own, every block is cut; a ring of more than `unroll` loops.

    `save`: what is gathered is kept for the matmuls of the derivative that can wait for all of it. `ordered`: a matmul's result
    is told to lie in memory as what it is written into, and operands of three dimensions as they do; TPU compilers make or
    read some in another order, and transpose them.
    """

    way: Way = "bidirectional"
    chunks: int = 1
    unroll: int = UNROLL
    save: bool = True
    ordered: bool = False
