"""What a report holds: the plan's own figures, the estimate as lanes that add up, and a page that is whole and safe."""

from __future__ import annotations

import html
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pictures.hostile import HOSTILE, plan_with
from pictures.test_page import Reader

from shardwise.errors import one_line
from shardwise.notation import parse
from shardwise.pictures.estimates import memory_steps
from shardwise.pictures.lanes import timeline_lanes
from shardwise.pictures.picture import Bar, Lane
from shardwise.pictures.report_page import MOST_BARS, _lane, _scale, report_page
from shardwise.pictures.reports import Sheet, sheet
from shardwise.planning.problem import problem
from shardwise.planning.ranking import Ranking, rank
from shardwise.units import bytes_text, seconds_text

SIZES = {"I": 16384, "J": 1024, "K": 2048}
EQUATIONS = [
    ("A[I_x, J] · B[J, K] -> C[I, K]", "x=4", "tpu-v5e"), ("A[I, J_x] · B[J_x, K] -> C[I_x, K]", "x=4, y=2", "h100"),
    ("A[I_x, J_y] · B[J, K_y] -> C[I_?, K_?]", "x=2, y=2", "cpu"), ("A[I_x, J] -> A[I, J_x]", "x=8", "tpu-v4"),
    ("A[I_x, J_y] · B[J_z, K_w] -> C[I_w, K_x]", "x=2, y=2, z=2, w=2", "tpu-v5p"),
    ("A[I_x, J] -> A[I_x, J]", "x=8", "tpu-v4"),
]  # fmt: skip


def ranked(equation: str, mesh: str, hardware: str) -> Ranking:
    read = parse(equation)
    task = problem(read, {dim: SIZES[dim] for dim in read.dims}, mesh, hardware)
    return Ranking(task, rank(task))


PLANS = {plan[0]: ranked(*plan) for plan in EQUATIONS}


@pytest.mark.parametrize("plan", PLANS.values(), ids=list(PLANS))
def test_the_lanes_of_an_estimate_add_up(plan):
    line, cost = plan.best.timeline(), plan.best.estimate
    lanes = timeline_lanes(line).lanes

    def seconds(bars: tuple[Bar, ...], *kinds: str) -> float:
        return sum(bar.end - bar.start for bar in bars if bar.kind in kinds) * cost.seconds

    compute = lanes[0].bars
    assert seconds(compute, "wait") == pytest.approx(cost.exposed_seconds)
    assert seconds(compute, "matmul", "compute", "wait") == pytest.approx(cost.seconds)
    assert math.fsum(span.moved_bytes for span in line.spans) == pytest.approx(cost.total_wire_bytes)
    assert sum(share.exposed_seconds for share in line.shares) == pytest.approx(line.exposed_seconds)
    for lane in lanes:
        for before, after in zip(lane.bars, lane.bars[1:], strict=False):
            assert before.end <= after.start + 1e-9
        assert all(0 <= bar.start <= bar.end <= 1 + 1e-9 for bar in lane.bars)
    assert line.origin in str(line)


@pytest.mark.parametrize("plan", PLANS.values(), ids=list(PLANS))
def test_the_most_that_is_held_is_the_peak_of_the_estimate(plan):
    told = sheet(plan, "")

    assert max((held for _, held in told.memory), default=plan.best.estimate.peak_memory_bytes) == pytest.approx(
        plan.best.estimate.peak_memory_bytes
    )
    assert len(memory_steps(plan.best, 0.0)) == 1 + len(plan.best.program.steps)


@pytest.mark.parametrize("plan", PLANS.values(), ids=list(PLANS))
def test_a_page_says_what_the_plan_says(plan):
    made = report_page(sheet(plan, "print('code')\n"), "0")
    read = Reader(made)
    said = html.unescape(re.sub(r"<[^>]*>", " ", made))

    assert f"<title>{html.escape(str(plan.task.equation))}</title>" in made
    assert seconds_text(plan.best.seconds) in said
    assert bytes_text(plan.best.estimate.peak_memory_bytes) in said
    assert made.count('<li class="panel') == len(plan)
    assert "print('code')" in read.text
    assert len(made.encode()) < 1_000_000
    assert not re.search(r"(?:src|href)=\"(?!#|data:)", made)
    assert not re.search(r"url\((?!#)", made)
    assert "@import" not in made


@pytest.mark.parametrize("name", HOSTILE, ids=[ascii(name[:12]) for name in HOSTILE])
def test_hostile_names_are_text_in_a_report(name):
    made = report_page(sheet(plan_with(name), f"# {name}"), "0")
    read = Reader(made)

    assert "img" not in read.tags
    assert not [attribute for attribute in read.names if attribute.startswith("on")]
    assert made.count("<script") == 2
    assert one_line(name) in read.text
    made.encode("utf-8", "strict")


def test_what_may_run_is_the_report_s_own_script_alone():
    made = report_page(sheet(PLANS[EQUATIONS[0][0]], ""), "0")
    policy = html.unescape(re.search(r'Content-Security-Policy" content="([^"]*)"', made)[1])

    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-")
    assert policy.count("sha256-") == 2
    assert "unsafe-eval" not in policy
    assert "http" not in policy


def test_the_verdict_says_by_how_much_and_what_is_repeated():
    plan = PLANS[EQUATIONS[0][0]]
    told: Sheet = sheet(plan, "")

    assert told.verdict == (
        f"Of {len(plan.candidates)} programs the fastest is: "
        "multiply while gathering A over x (I), along all sides of 2x2. The next one is as fast."
    )
    assert ("FLOPs of a device", "68.7 G", "every matmul 4 times") in [(f.name, f.value, f.note) for f in told.figures]
    assert told.room == 16e9
    assert sheet(PLANS[EQUATIONS[2][0]], "").room is None  # one host's memory is nobody's alone


@given(st.lists(st.floats(0, 1), min_size=2, max_size=4000, unique=True))
def test_of_very_many_bars_close_ones_are_joined_and_none_is_lost(places):
    at = sorted(places)
    bars = tuple(Bar(a, b, "matmul", "t") for a, b in zip(at[::2], at[1::2], strict=False))
    drawn = _lane(Lane("l", bars))["bars"]

    assert len(drawn) <= max(MOST_BARS, 1)
    ends = [(float(bar["left"]), float(bar["left"]) + float(bar["width"])) for bar in drawn]
    assert all(any(left - 0.02 <= 100 * bar.start and 100 * bar.end <= right + 0.02 for left, right in ends) for bar in bars)


@pytest.mark.parametrize("seconds", [2e-9, 3.7e-6, 471e-6, 1.46e-3, 2.0, 86400.0])
def test_ticks_of_every_zoom_are_told_apart(seconds):
    for most in (3, 6, 12, 24, 48, 96, 192):
        ticks = list(_scale(seconds, most))
        assert 1 <= len(ticks) <= most + 1
        assert len({text for _, text in ticks}) == len(ticks)
        assert len({text.split()[-1] for _, text in ticks[1:]}) <= 1
