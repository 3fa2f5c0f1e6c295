"""A ring of devices, and how it is to run; what happens when is in `shardwise.schedule.makers`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shardwise.mesh import Sides, folded
from shardwise.schedule.makers import UNROLL
from shardwise.schedule.places import Pairs, neighbours
from shardwise.steps import Way


@dataclass(frozen=True, slots=True)
class Ring:
    """The devices along `axes` in a circle, the first axis the major one; or folded, over every second one and back.

    Or on a torus of `sides`: how far a place is from another is then a number of it (`Sides`).
    """

    axes: tuple[str, ...]
    n: int
    is_folded: bool = False
    sides: Sides | None = None

    @classmethod
    def going(cls, way: Way, axes: str | Sequence[str], n: int) -> Ring:
        """The ring of so many devices that goes a way."""
        named = (axes,) if isinstance(axes, str) else tuple(axes)
        return cls(named, n, is_folded=way == "folded", sides=way if isinstance(way, Sides) else None)

    def sent(self, array: Any, pairs: Pairs) -> Any:
        """What arrives here when every device sends `array` to the place that the pairs say."""
        axes, numbers = self._in_mesh_order()
        return lax.ppermute(array, axes, [(numbers[source], numbers[target]) for source, target in pairs])

    def _in_mesh_order(self) -> tuple[tuple[str, ...], list[int]]:
        """The axes as the mesh has them, which `ppermute` wants, and what it calls the ring's positions in order."""
        axes = tuple(axis for axis in jax.sharding.get_abstract_mesh().axis_names if axis in self.axes)
        numbers = np.arange(self.n).reshape([lax.axis_size(axis) for axis in axes])
        return axes, numbers.transpose([axes.index(axis) for axis in self.axes]).reshape(-1).tolist()

    def all_brought(self, array: Any) -> dict[int, Any]:
        """The `array` of every device, by how far above this one it is; each sent all the way by itself."""
        if self.sides is not None:
            sources = ((away, self.sides.above(away)) for away in range(1, self.n))
            return {0: array} | {away: self.sent(array, tuple((k, at) for at, k in enumerate(each))) for away, each in sources}
        found = dict[int, Any]()
        for away in range(self.n):
            found[-away % self.n] = array
            array = self.sent(array, neighbours(self.n, 1, self.is_folded))
        return found

    def place(self, away: int) -> Any:
        """The position of the device that is `away` places of the circle above this one, or so far from it on a torus."""
        here = lax.axis_index(self.axes)
        if self.sides is not None:
            return jnp.asarray(self.sides.above(away))[here] if away else here
        if not self.is_folded:
            return (here + away) % self.n
        order = folded(self.n)
        return jnp.asarray(order)[(jnp.asarray(np.argsort(order))[here] + away) % self.n]


@dataclass(frozen=True, slots=True)
class Schedule:
    """The way, and into how many chunks, each sent on its own, every block is cut; a ring of more than `unroll` loops.

    `save`: what is gathered is kept for the matmuls of the derivative that can wait for all of it. `ordered`: a matmul's result
    is told to lie in memory as what it is written into, and operands of three dimensions as they do; TPU compilers make or
    read some in another order, and transpose them.
    """

    way: Way = "bidirectional"
    chunks: int = 1
    unroll: int = UNROLL
    save: bool = True
    ordered: bool = False
