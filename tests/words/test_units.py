"""Quantities as they are printed, and round steps of scales."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shardwise.units import bytes_text, flops_text, round_step, seconds_text


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (seconds_text(0.0), "0 s"), (seconds_text(2.5), "2.5 s"), (seconds_text(0.9996), "1 s"),
        (seconds_text(3e-11), "0.03 ns"),
        (bytes_text(0), "0 B"), (bytes_text(999), "999 B"), (bytes_text(1.25e9), "1.25 GB"), (bytes_text(123456), "123 kB"),
        (flops_text(0.0), "0 FLOPs"), (flops_text(12), "12 FLOPs"), (flops_text(2e15), "2 PFLOPs"),
    ],
)  # fmt: skip
def test_three_figures_and_a_unit_that_fits(said, text):
    assert said == text


@given(st.floats(1e-9, 1e9), st.integers(3, 200))
@example(6e-10, 6)
@example(3e-10, 3)
def test_a_scale_has_at_most_so_many_round_steps_and_not_far_fewer(whole, most):
    step = round_step(whole, most)
    assert 0.39 * most < whole / step <= most
    assert f"{step:e}".partition("e")[0].rstrip("0").rstrip(".") in {"1", "2", "2.5", "5"}
