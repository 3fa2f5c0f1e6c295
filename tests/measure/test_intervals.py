"""Intervals of medians: their coverage, when runs in turn end, and who is called the fastest; nothing is compiled."""

from __future__ import annotations

import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.measure.intervals import Timing, runs_outside

times = st.lists(st.floats(1e-6, 10.0), min_size=1, max_size=40).map(lambda seconds: Timing(tuple(seconds)))


@given(times)
def test_an_interval_holds_the_median_and_lies_among_the_runs(timing):
    interval = timing.interval_seconds
    if interval is None:
        assert len(timing.seconds) < 6
    else:
        assert min(timing.seconds) <= interval[0] <= timing.median_seconds <= interval[1] <= max(timing.seconds)


def test_too_few_runs_have_no_interval_and_cannot_be_told_apart():
    fast, slow = Timing((1.0,) * 5), Timing((9.0,) * 5)
    assert fast.interval_seconds is None
    assert fast.overlaps(slow)
    assert slow.overlaps(fast)
    assert not Timing((1.0,) * 6).overlaps(Timing((9.0,) * 6))


@given(times, times)
def test_to_overlap_is_mutual(one, other):
    assert one.overlaps(other) == other.overlaps(one)


@pytest.mark.parametrize("runs", [6, 9, 15, 40])
def test_of_skewed_times_at_least_95_percent_of_intervals_hold_the_true_median(runs):
    """Log-normal noise with a long tail, as on a loaded machine; its true median is 1."""
    draw = random.Random(runs)
    held = 0
    for _ in range(2000):
        low, high = Timing(tuple(draw.lognormvariate(0, 1) for _ in range(runs))).interval_seconds or (0.0, 0.0)
        held += low <= 1.0 <= high
    assert held >= 0.94 * 2000  # 95 % less two standard deviations of 2000 draws


def test_the_interval_narrows_with_the_runs():
    assert [runs_outside(count) for count in (1, 5, 6, 1000)] == [0, 0, 1, 469]
    draw = random.Random(0)
    seconds = [draw.lognormvariate(0, 0.2) for _ in range(1000)]
    widths = []
    for count in (10, 100, 1000):
        low, high = Timing(tuple(seconds[:count])).interval_seconds or (0.0, 0.0)
        widths.append(high - low)
    assert widths[0] > widths[1] > widths[2] > 0
    assert Timing(tuple(seconds)).median_seconds == statistics.median(seconds)
