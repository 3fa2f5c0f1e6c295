"""Quantities: floats that keep the formula by which they were computed.

Prices are computed by functions of floats. Given quantities in their place, the same lines give the same values with their
formulas beside: sums of products of letters. The functions take an `Arithmetic`: on floats what it does costs nothing, and on
quantities numbers become letters, and the longer of two times is told as such.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from shardwise.chips.links import Arithmetic


class Product(NamedTuple):
    """A coefficient and factors, each with 1, or with -1 where it divides."""

    times: float
    factors: tuple[tuple[Factor, int], ...]


Formula: TypeAlias = tuple[Product, ...]  # their sum


@dataclass(frozen=True, slots=True)
class Letter:
    """What a number is called in formulas: its unit, what is said of it, and its own formula, if it has one.

    One without a symbol is a part of a price, which has a label alone.
    """

    symbol: str
    value: float
    unit: str = ""
    said: tuple[str, ...] = ()
    made: Formula = ()


@dataclass(frozen=True, slots=True)
class Longest:
    """The largest of several sums; one alone is a sum in parentheses."""

    of: tuple[Formula, ...]


Factor: TypeAlias = Letter | Longest


class Quantity(float):
    """A float with its formula.

    >>> wire, speed = Quantity.named("V", 8e9, "B"), Quantity.named("W", 4e9, "B/s")
    >>> wire * 3 / 4 / speed, [factor for factor, power in (wire / speed).formula[0].factors if power < 0][0].symbol
    (1.5, 'W')
    """

    __slots__ = ("formula",)
    formula: Formula

    def __new__(cls, value: float, formula: Formula) -> Quantity:
        made = super().__new__(cls, value)
        made.formula = formula
        return made

    @staticmethod
    def named(symbol: str, value: float, unit: str = "", *said: str) -> Quantity:
        """A number as a letter."""
        made = value.formula if isinstance(value, Quantity) else ()
        return Quantity(value, (_single(Letter(symbol, float(value), unit, said, made)),))

    def __add__(self, other: float) -> Quantity:
        return Quantity(float(self) + float(other), _added(self.formula, formula_of(other)))

    def __radd__(self, other: float) -> Quantity:
        return Quantity(float(other) + float(self), _added(formula_of(other), self.formula))

    def __sub__(self, other: float) -> Quantity:
        return self + -1.0 * other

    def __rsub__(self, other: float) -> Quantity:
        return (self - other) * -1.0

    def __mul__(self, other: float) -> Quantity:
        return Quantity(float(self) * float(other), _multiplied(self.formula, formula_of(other)))

    def __rmul__(self, other: float) -> Quantity:
        return Quantity(float(other) * float(self), _multiplied(formula_of(other), self.formula))

    def __truediv__(self, other: float) -> Quantity:
        return Quantity(float(self) / float(other), _divided(self.formula, other))

    def __rtruediv__(self, other: float) -> Quantity:
        return Quantity(float(other) / float(self), _divided(formula_of(other), self))


def formula_of(value: float) -> Formula:
    """The formula of a number: its own, or the number."""
    if isinstance(value, Quantity):
        return value.formula
    return (Product(float(value), ()),) if value else ()


def value_of(formula: Formula) -> float:
    """What a formula comes to, from the values of its letters."""

    def factor_value(factor: Factor) -> float:
        return factor.value if isinstance(factor, Letter) else max(map(value_of, factor.of))

    return math.fsum(times * math.prod(factor_value(each) ** power for each, power in factors) for times, factors in formula)


def longest(first: float, second: float) -> float:
    """The larger of two quantities, told as the larger of two."""
    formulas = [formula for formula in (formula_of(first), formula_of(second)) if formula]
    if len(formulas) < 2:
        return max(first, second)
    return Quantity(max(first, second), (_single(Longest(tuple(formulas))),))


FORMULAS = Arithmetic(Quantity.named, longest, sum)


def _added(first: Formula, second: Formula) -> Formula:
    """The sum, in which like products are one."""
    found = {factors: times for times, factors in first}
    for times, factors in second:
        found[factors] = found.get(factors, 0.0) + times
    return tuple(Product(times, factors) for factors, times in found.items() if times)


def _scaled(formula: Formula, times: float) -> Formula:
    return tuple(Product(times * each.times, each.factors) for each in formula) if times else ()


def _multiplied(first: Formula, second: Formula) -> Formula:
    if not first or not second:
        return ()
    for number, other in ((first, second), (second, first)):
        if len(number) == 1 and not number[0].factors:
            return _scaled(other, number[0].times)
    one, two = _one(first), _one(second)
    return (Product(one.times * two.times, one.factors + two.factors),)


def _divided(formula: Formula, by: float) -> Formula:
    if not formula:
        return ()
    if not isinstance(by, Quantity):
        return _scaled(formula, 1 / by)
    one, two = _one(formula), _one(by.formula)
    return (Product(one.times / two.times, one.factors + tuple((factor, -power) for factor, power in two.factors)),)


def _one(formula: Formula) -> Product:
    """A formula as one product."""
    return formula[0] if len(formula) == 1 else _single(Longest((formula,)))


def _single(factor: Factor) -> Product:
    return Product(1.0, ((factor, 1),))
