"""Quantities: as floats they are the floats that they stand for, and their formulas come to them. No JAX."""

from __future__ import annotations

import operator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.chips.links import FLOATS
from shardwise.chips.quantities import FORMULAS, Quantity, formula_of, longest, value_of

numbers = st.floats(0.5, 1e6)
letters = st.builds(Quantity.named, st.sampled_from("ABCD"), numbers, st.sampled_from(["", "s", "B"]))
STEPS = [operator.add, operator.sub, operator.mul, operator.truediv, longest, lambda a, b: FORMULAS.name("X", a + b)]


@given(st.lists(st.tuples(st.sampled_from(STEPS), numbers | letters, st.booleans()), max_size=8), letters)
def test_whatever_is_done_with_them_the_formula_comes_to_the_value(steps, quantity):
    plain, made = float(quantity), quantity
    for step, other, swapped in steps:
        if step is operator.truediv and not (made if swapped else other):
            continue
        new, value = (
            (step(other, made), step(float(other), plain)) if swapped else (step(made, other), step(plain, float(other)))
        )
        if not 1e-9 < abs(value) < 1e200 or abs(value) < 1e-6 * max(abs(plain), abs(other)) * (step is operator.sub):
            continue  # what cancels keeps no figures
        made, plain = new, float(value)
    assert float(made) == plain
    assert isinstance(made, Quantity)
    assert value_of(made.formula) == pytest.approx(plain, rel=1e-6)


def test_like_terms_are_one_and_what_cancels_is_gone():
    hop, matmul = Quantity.named("H", 2.0, "s"), Quantity.named("T", 3.0, "s")
    total = sum([hop, matmul, hop, 0.5 * matmul], 0.0) - hop
    assert [(times, factors[0][0].symbol) for times, factors in total.formula] == [(1.0, "H"), (1.5, "T")]
    assert (hop - hop).formula == ()


def test_floats_stay_floats():
    assert type(FLOATS.name("V", 3.0, "B", "bytes")) is float
    assert FLOATS.longest(1.0, 2.0) == 2.0
    assert value_of(formula_of(2.5)) == 2.5
