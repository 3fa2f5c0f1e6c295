"""Reshapes of a traced function, and whether the layout of an array outlives one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from shardwise.compiled.needed import inner_jaxprs
from shardwise.compiled.uneven import line_of


@dataclass(frozen=True, slots=True)
class Reshape:
    """A reshape as the function writes it: the shapes over all devices, and the line of the user's that asks for it."""

    before: tuple[int, ...]
    after: tuple[int, ...]
    line: str = ""

    def keeps(self, dim: int, parts: int) -> bool:
        """Whether a dimension that is split into so many parts can stay split: it leads those that it is joined with, and
        the first of those that it becomes divides.

        >>> Reshape((64, 48), (64, 4, 12)).keeps(1, 4), Reshape((64, 48), (64, 4, 12)).keeps(1, 8)
        (True, False)
        >>> Reshape((64, 48), (3072,)).keeps(0, 8), Reshape((64, 48), (3072,)).keeps(1, 8)
        (True, False)
        """
        outer, passed = math.prod(self.before[:dim]), 1
        for became in self.after:
            if passed == outer and became > 1:
                return became % parts == 0  # as many rows stand before both, and as many numbers after: the parts are the same
            passed *= became
        return False


def reshapes(jaxpr: Any) -> tuple[Reshape, ...]:
    """Every reshape of a traced function that no map by hand holds, in loops and branches too, each once.

    >>> import jax, jax.numpy as jnp
    >>> [(each.before, each.after) for each in reshapes(jax.make_jaxpr(jnp.ravel)(jnp.ones((4, 8))).jaxpr)]
    [((4, 8), (32,))]
    """
    return tuple(dict.fromkeys(_found(jaxpr)))


def _found(jaxpr: Any) -> Iterator[Reshape]:
    for equation in jaxpr.eqns:
        if equation.primitive.name == "reshape":
            before, after = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
            if all(isinstance(size, int) for size in (*before, *after)):
                yield Reshape(tuple(before), tuple(after), line_of(equation))
        if equation.primitive.name != "shard_map":
            for inner in inner_jaxprs(equation.params):
                yield from _found(inner)
