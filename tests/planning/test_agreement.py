"""What a plan says of its own seconds: how near estimates of its kind came, whether it is confirmed, what figures it has."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

import shardwise as sw
from shardwise.planning import agreement
from shardwise.planning.agreement import FILE, kind_of
from shardwise.planning.explain import facts, ranking_rows
from shardwise.planning.ranking import Candidate, Ranking

AG = "A[I_x, J] · B[J, K] -> C[I, K]"
SIZES = {"I": 16384, "J": 1024, "K": 2048}
DOCS = Path(__file__).parents[2] / "docs" / "benchmarks"


def planned(hardware: str, mesh: str = "x=8", **wishes: object) -> Ranking:
    return sw.plan(AG, sizes=SIZES, mesh=mesh, hardware=hardware, **wishes)


@pytest.fixture
def figures(monkeypatch):
    """Of programs without a ring on up to 16 chips of a v5e, 17 of 20; of those with one, 1 of 2, and of all TPUs 6 of 9."""
    known = {kind_of("tpu-v5e", 8, fused=False): [17, 20], kind_of("tpu-v5e", 8, fused=True): [1, 2]}
    known |= {kind_of(agreement.ALL, 8, fused=True): [6, 9]}
    monkeypatch.setattr(agreement, "_kinds", lambda: known)


def test_behind_each_estimate_stands_how_near_its_kind_came(figures):
    plan = planned("v5e:2x4")
    for candidate, row in zip(plan, ranking_rows(plan)[1:], strict=True):
        fused = candidate.program.overlaps
        assert row[1].endswith(" (6/9)" if fused else " (17/20)")
    text = plan.explain()
    assert "held-out cases of this kind; of it" in text
    assert text.count("(a/b): of b held-out cases of the kind") == 1
    near = {"within": 0.2, "near": 17, "of": 20}
    assert near in [each["held_out_cases"] for each in facts(plan)["candidates"]]


@pytest.mark.parametrize(("hardware", "mesh"), [("v5e:4x8", "x=32"), ("v6e:4x8", "x=32"), ("h100", "x=8"), ("cpu", "x=8")])
def test_where_no_case_is_known_none_is_said(figures, hardware, mesh):
    plan = planned(hardware, mesh)
    assert "(a/b)" not in plan.explain()
    assert "held-out" not in plan.explain()
    assert {each["held_out_cases"] for each in facts(plan)["candidates"]} == {None}


def test_a_plan_that_is_confirmed_is_no_estimate(figures):
    plan = planned("v5e:2x4")
    timeline = SimpleNamespace(step_seconds=1e-3)
    confirmed = Ranking(plan.task, tuple(Candidate(each.program, each.estimate, timeline) for each in plan))
    assert "held-out" not in confirmed.explain()
    assert [row[1] for row in ranking_rows(confirmed)[1:]] == ["1 ms"] * len(plan)


@pytest.mark.parametrize(("hardware", "mesh", "said"), [
    ("v5p:4x4x4", "x=64", 'confirm="v5p:4x4x4" (--confirm v5p:4x4x4)'),
    ("v5p:2x2x4", "x=16", None),
    ("v7x:2x2x4", "x=32", None),  # two devices a chip
    ("tpu-v5e", "x=32", 'confirm="v5e:4x8"'),
    ("tpu-v5e", "x=512", 'confirm="v5e:..."'),
    ("h100", "x=32", None),
])  # fmt: skip
def test_above_16_chips_a_plan_says_that_it_is_not_confirmed_and_how_it_would_be(hardware, mesh, said):
    text = planned(hardware, mesh).explain()
    assert ("not confirmed: above 16 chips" in text) == (said is not None)
    assert said is None or said in text


@pytest.mark.parametrize("here", [True, False])
def test_where_the_compiler_is_not_installed_the_way_out_says_so(monkeypatch, here):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if here else None)
    text = planned("v5p:4x4x4", "x=64").explain()
    assert ('(needs pip install "shardwise[tpu]")' in text) != here


def test_a_gpu_has_a_bound_of_speed_and_the_shares_that_are_published():
    text = planned("h100").explain()
    assert text.count("those of an upper bound of speed, no prediction, until calibrated") == 1
    assert "published measurements reach 82% of its links and 81% of its peak" in text
    assert "published" not in planned("b200").explain()
    assert "upper bound" not in planned("v5e:2x4").explain()


def test_the_seconds_of_simulated_devices_are_those_of_one_host():
    assert planned("cpu").explain().count("the one host that the catalogue's figures were measured on") == 1


def test_what_plans_print_is_what_the_benchmark_found():
    printed = json.loads(FILE.read_text(encoding="utf-8"))
    rows = [row for row in json.loads((DOCS / "estimates.json").read_text(encoding="utf-8"))["rows"] if row["held_out"]]
    tried = [each for row in rows if row["choice"] for each in (row["choice"], *(row["others"] or ()))]
    priced = [each for each in tried if each["estimate"] is not None]
    near = sum(abs(each["estimate"] / each["compiled"] - 1) <= printed["within"] for each in priced)
    of_chips = [counts for kind, counts in printed["kinds"].items() if not kind.startswith(agreement.ALL)]
    of_all = [counts for kind, counts in printed["kinds"].items() if kind.startswith(agreement.ALL)]
    for found in (of_chips, of_all):
        assert [sum(counts) for counts in zip(*found, strict=True)] == [near, len(priced)]


def test_the_readme_says_what_the_benchmark_found():
    """Of held-out problems: how many choices are near, and how much longer they take than the best that was compiled."""
    facts = json.loads((DOCS / "estimates.json").read_text(encoding="utf-8"))["rows"]
    rows = [row for row in facts if row["held_out"] and row["choice"]]
    near = sum(abs(row["choice"]["estimate"] / row["choice"]["compiled"] - 1) <= 0.2 for row in rows)
    best = [min(each["compiled"] for each in (row["choice"], *row["others"])) for row in rows]
    regrets = [row["choice"]["compiled"] / least for row, least in zip(rows, best, strict=True)]
    longer, beyond = sum(regrets) / len(rows) - 1, sum(regret > 1.5 for regret in regrets)
    said = (
        f"it is in {near} of {len(rows)}; the choice takes\n  {longer:.1%} longer than the best that `confirm` finds on "
        f"average, over 1.5 times as long in {beyond or 'none'} of {len(rows)}"
    ).replace("%", " %")
    assert said in (DOCS.parents[1] / "README.md").read_text(encoding="utf-8")
