"""Transposes around a matmul: in which order its arrays are taken and given, so that nothing is copied into another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax.extend.core import JaxprEqn, Literal

from shardwise.functions.rewriting import inverse, source_of

_TRANSPOSE = "transpose"


@dataclass(frozen=True, slots=True)
class Orders:
    """In which order a matmul takes and gives dimensions where arrays are transposed before it or after: as they are there.

    A compiler folds a transpose into a matmul of its own, and copies what goes through steps in another order.
    """

    operands: tuple[tuple[int, ...], tuple[int, ...]]
    result: tuple[int, ...]

    @property
    def none(self) -> Orders:
        """Those of the same matmul as it is written."""
        first, second = (tuple(range(len(order))) for order in self.operands)
        return Orders((first, second), tuple(range(len(self.result))))

    def taken(self, operands: Sequence[Any]) -> list[Any]:
        return [jnp.transpose(array, order) for array, order in zip(operands, self.operands, strict=True)]

    def given(self, result: Any) -> Any:
        return jnp.transpose(result, inverse(self.result))

    def roots(self, equation: JaxprEqn, makers: Mapping[Any, JaxprEqn]) -> list[Any]:
        """The variables that a matmul takes in these orders: what its operands were before constraints, and transposes."""
        found = []
        for var, order in zip(equation.invars, self.operands, strict=True):
            root = source_of(var, makers)
            while list(order) != sorted(order) and _is_transpose(root, makers):
                root = source_of(makers[root].invars[0], makers)
            found.append(root)
        return found


def orders_of(equation: JaxprEqn, makers: Mapping[Any, JaxprEqn], users: Mapping[Any, Sequence[JaxprEqn | None]]) -> Orders:
    """The orders of a matmul among those that make its operands, and those that take its result."""
    first, second = (_before(var, makers) for var in equation.invars)
    order = tuple(range(equation.outvars[0].aval.ndim))  # type: ignore[attr-defined]
    match users.get(equation.outvars[0], ()):
        case [JaxprEqn() as user] if user.primitive.name == _TRANSPOSE:
            order = tuple(user.params["permutation"])
    return Orders((first, second), order)


def _before(var: Any, makers: Mapping[Any, JaxprEqn]) -> tuple[int, ...]:
    order = list(range(var.aval.ndim))
    while _is_transpose(var := source_of(var, makers), makers):
        order = [order[place] for place in inverse(makers[var].params["permutation"])]
        var = makers[var].invars[0]
    return tuple(order)


def _is_transpose(var: Any, makers: Mapping[Any, JaxprEqn]) -> bool:
    maker = None if isinstance(var, Literal) else makers.get(var)
    return maker is not None and maker.primitive.name == _TRANSPOSE
