"""What processes say of themselves, compared. Needs no JAX."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shardwise.distributed.differences import MOST_SHOWN, difference, named

FACTS = st.dictionaries(st.sampled_from(["jax", "mesh", "plan"]), st.text("ab", max_size=3), max_size=3)


@given(st.dictionaries(st.integers(0, 7), FACTS, min_size=1))
def test_nothing_is_said_exactly_where_all_agree(told):
    sides = {tuple(sorted(facts.items())) for facts in told.values()}
    assert (difference(told) == "") == (len(sides) == 1)


def test_each_side_is_named_with_its_processes():
    told = {process: {"equation": "A[I]" if process < 2 else "B[I]", "jax": "0.12"} for process in range(4)}
    assert difference(told).splitlines() == ["equation", "  processes 0, 1: A[I]", "  processes 2, 3: B[I]"]


def test_of_long_values_the_place_where_they_part_is_shown():
    same = "x" * 5000
    lines = difference({0: {"plan": f"{same}LEFT{same}"}, 1: {"plan": f"{same}RIGHT{same}"}}).splitlines()
    assert "LEFT" in lines[1]
    assert "RIGHT" in lines[2]
    assert all(len(line) < MOST_SHOWN + 40 for line in lines)


def test_a_fact_that_one_process_lacks_is_a_difference():
    assert "process 1: (nothing)" in difference({0: {"mesh": "x=4"}, 1: {}})


def test_runs_of_processes_are_named_as_one():
    assert named([5, 0, 1, 2, 9, 8]) == "processes 0-2, 5, 8, 9"
