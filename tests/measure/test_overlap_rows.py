"""The arithmetic of the overlap benchmark: bounds, means, what a row says; nothing is compiled."""

from __future__ import annotations

import dataclasses
import json
import math
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.overlap import Kept, page
from benchmarks.pairs import PAIR, Pair
from shardwise.errors import ShardwiseError
from shardwise.measure import overlap_rows
from shardwise.measure.overlap_rows import Case, Ran, Row
from shardwise.notation import parse
from shardwise.planning.problem import Problem, problem


def ran(step: float, **other: float) -> Ran:
    facts = {"exposed": 1.0, "compute": step - 1, "temporary_bytes": 2**20, "permutes": 4, "hidden": 3} | other
    return Ran(step, **facts)  # type: ignore[arg-type]


def row(own: float = 200.0, ours: float = 100.0, estimate: float = 90.0, **other: float) -> Row:
    bounds = {"written_bound": 90.0, "best_bound": 80.0} | other
    book, plain = ran(400.0), ran(150.0, permutes=0, hidden=0)
    return Row("v5e:2x4", "AG", "8x8x8", "ring", ran(own), book, ran(ours), plain, 100.0, estimate, 60.0, **bounds)


def task(kind: str, target: str = "v5e:2x4", n: int = 8) -> Problem:
    return problem(parse(overlap_rows.KINDS[kind]), {"I": 8192, "J": 4096, "K": 2048}, {"x": n}, target)


def test_a_row_compares():
    found = row()
    assert (found.gain, found.bound, found.agreement, found.agrees) == (2.0, 80.0, 0.9, True)
    assert row(best_bound=95.0).bound == 90.0


@pytest.mark.parametrize(("estimate", "agrees"), [(85.1, True), (84.9, False), (114.9, True), (115.1, False)])
def test_an_estimate_agrees_within_fifteen_percent(estimate, agrees):
    assert row(estimate=estimate).agrees is agrees


def test_several_rows_come_to_means_and_the_worst():
    slow = dataclasses.replace(row(own=50.0, estimate=300.0), kind="RS", size="16x8x8", best_bound=20.0)
    found = overlap_rows.summarised([row(), slow])
    assert found.gain == pytest.approx(1.0)
    assert (found.least_gain, found.least_gain_case) == (0.5, "v5e:2x4 RS 16x8x8")
    assert found.over_bound == pytest.approx(math.sqrt(100 / 80 * 100 / 20))
    assert (found.most_over_bound, found.most_over_bound_case) == (5.0, "v5e:2x4 RS 16x8x8")
    assert (found.count, found.agreeing, found.permutes, found.hidden) == (2, 1, 8, 6)
    assert found.over_textbook == pytest.approx(4.0)


def test_no_rows_have_no_summary():
    with pytest.raises(ShardwiseError, match="no case has been compiled"):
        overlap_rows.summarised([])


@given(st.lists(st.floats(0.1, 10.0), min_size=1, max_size=8), st.floats(0.5, 2.0))
def test_the_mean_scales_and_lies_within(values, factor):
    mean = overlap_rows.geometric_mean(values)
    assert min(values) * (1 - 1e-9) <= mean <= max(values) * (1 + 1e-9)
    assert overlap_rows.geometric_mean(value * factor for value in values) == pytest.approx(mean * factor)


def test_the_wire_has_every_link_that_the_axis_may_use():
    """64 MiB gathered over the eight devices of v5e:2x4, seven eighths of it received, by two rings both ways at 45 GB/s."""
    whole, bandwidth = 2 * 8192 * 4096, 45e9
    seconds = overlap_rows.wire_seconds(task("AG"), "AG")
    assert whole * 7 / 8 / (4 * bandwidth) <= seconds <= whole * 7 / 8 / bandwidth
    assert overlap_rows.wire_seconds(task("TP-up"), "TP-up") == seconds
    assert overlap_rows.wire_seconds(task("RS"), "RS") == pytest.approx(seconds / 2)  # C has half as many columns
    assert overlap_rows.wire_seconds(task("weights"), "weights") == pytest.approx(seconds / 4)


def test_the_bounds_take_compute_by_flops_and_the_better_program():
    here, whole = task("AG"), 2.0 * 8192 * 4096 * 2048

    def candidate(flops: float, moving: float) -> SimpleNamespace:
        return SimpleNamespace(estimate=SimpleNamespace(flops=flops, communication_seconds=moving))

    plain = [candidate(whole, 1.0), candidate(whole / 8, 3.0)]
    assert overlap_rows.bounds(here, "AG", plain, 8.0, whole) == (8.0, 3.0)  # the gathered one computes 8 s, the other 1 s
    assert overlap_rows.bounds(here, "AG", plain, 1.0, whole / 8) == (8.0, 3.0)  # the same matmul, measured at an eighth
    assert overlap_rows.bounds(task("TP-up"), "TP-up", plain[1:], 8.0, whole)[0] == 1.0
    wire = overlap_rows.wire_seconds(here, "AG")
    assert overlap_rows.bounds(here, "AG", plain, 1e-9, whole)[0] == wire


def test_the_corpus_is_the_kinds_by_the_sizes():
    found = overlap_rows.cases("v5e:2x4")
    assert len(found) == 20 == len(set(found))
    assert found[0] == Case("v5e:2x4", "AG", "16384x1024x2048")
    assert found[0].sizes == {"I": 16384, "J": 1024, "K": 2048}
    for equation in (*overlap_rows.KINDS.values(), *PAIR):
        parse(equation)


@pytest.mark.parametrize(
    ("kinds", "sizes", "message"),
    [
        ("AG,SR", "", "--kinds SR: there is AG, TP-up, RS, weights"),
        ("", "8x8", "--sizes 8x8: write rows x contracted x columns"),
        ("", "8x0x8", "--sizes 8x0x8"),
    ],
)
def test_what_is_no_case_is_said(kinds, sizes, message):
    with pytest.raises(ShardwiseError, match=message):
        overlap_rows.cases("v5e:2x4", kinds, sizes)


def test_what_is_kept_is_read_again_and_what_is_not_run_is_said(tmp_path):
    path = tmp_path / "overlap.json"
    kept = Kept(path)
    assert "Not run: v5e:2x4, v5p:2x2x2" in page(kept)
    pair = Pair("v5e:2x4", "8x8x8", ("up", "down"), ran(4.0), ran(2.0), 1.0)
    kept.rows, kept.pairs, kept.seconds = [dataclasses.replace(row(), size=overlap_rows.SIZES[0])], [pair], {"v5e:2x4": 3.0}
    kept.write()
    again = Kept(path)
    assert (again.rows, again.pairs, again.seconds) == (kept.rows, kept.pairs, kept.seconds)
    text = page(again)
    assert "| v5e:2x4 | 1 | 2.00 |" in text
    assert "v5e:2x4 TP-up 16384x1024x2048" in text.split("Not run: ")[1].splitlines()[0]
    assert "compiled schedule" in text
    assert json.loads(path.read_text())["times"] == "microseconds, modelled from the compiled schedule"
    again.forget("v5e:2x4")
    assert (again.rows, again.pairs, again.seconds) == ([], [], {})
