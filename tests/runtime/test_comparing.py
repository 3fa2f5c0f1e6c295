"""`sw.compare`: each way computes the same, holds what its compiler made, and no winner is called that is none."""

from __future__ import annotations

import json
import math
import os
import random
import threading
from collections.abc import Iterator
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import shardwise as sw
from shardwise.measure.comparison import facts
from shardwise.measure.intervals import Timing
from shardwise.measure.timing import until_narrow
from shardwise.measure.ways import DEFAULT
from shardwise.pictures.comparisons import comparison_picture
from shardwise.pictures.picture import picture_of
from shardwise.pictures.svg import svg

GATHERED = "A[I_x, J] · B[J, K] -> C[I, K]"
SCATTERED = "A[I, J_x] · B[J_x, K] -> C[I_x, K]"
SOON = 1e-3  # seconds: one run of each
COMPARES = int(os.environ.get("COMPARES", "50"))  # on a loaded machine; `make soak` makes 200


def arrays(i: int = 16, j: int = 8, k: int = 4) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    return draw.standard_normal((i, j), np.float32), draw.standard_normal((j, k), np.float32)


def test_one_equation_in_every_way():
    found = sw.compare(SCATTERED, *arrays(), mesh="x=4", ways=(*DEFAULT, "ring", "candidate 2"), seconds=SOON)
    assert [way.name for way in found] == [*DEFAULT, "ring", "candidate 2"]
    assert found.agrees
    assert {each.kind for each in found["manual"].audit.collectives} == {"reduce-scatter"}
    assert {each.kind for each in found["ring"].audit.collectives} == {"collective-permute"}
    assert found["planned"].estimate_seconds is not None
    assert found["constraint"].estimate_seconds is None
    assert found["planned"].estimate_seconds <= (found["candidate 2"].estimate_seconds or 0)


def test_the_table_says_why_a_constraint_costs_more():
    """Its compiler gathers both operands' rows first, and every device does the whole matmul."""
    found = sw.compare(GATHERED, *arrays(1024, 256, 256), mesh="x=4", ways=("constraint", "planned"), seconds=2.0)
    work = found["constraint"].audit.work.flops_per_device, found["planned"].audit.work.flops_per_device
    if work[0] != 4 * work[1]:
        pytest.fail(f"this compiler no longer repeats the work under a constraint: {work}")
    assert found.repeated(found["constraint"]) == 4
    assert found.repeated(found["planned"]) == 1
    text = str(found)
    assert "134 MFLOPs (x4)" in text
    assert "each device multiplies 4 times as much, every matmul 4 times over" in text


def test_manual_takes_the_fewest_steps_and_needs_nothing_of_ours():
    found = sw.compare(GATHERED, *arrays(), mesh="x=4", ways="manual", seconds=SOON)
    assert found["manual"].says.startswith("jax.shard_map by hand: ")
    assert [each.kind for each in found["manual"].audit.collectives] == ["all-gather"]


@pytest.mark.parametrize("types", [AxisType.Explicit, AxisType.Auto])
@pytest.mark.parametrize("in_force", [True, False])
def test_whatever_axes_the_mesh_has_and_whether_it_is_in_force(types, in_force):
    mesh = sw.make_mesh("x=2, y=2", axis_types=types)
    equation = "A[I_x, J_y] · B[J_y, K] -> C[I_x, K]"
    if not in_force:
        assert sw.compare(equation, *arrays(), mesh=mesh, seconds=SOON).agrees
        return
    with jax.set_mesh(mesh):
        assert sw.compare(equation, *arrays(), seconds=SOON).agrees


def test_a_result_whose_layout_is_free_is_that_of_the_plan_in_every_way():
    found = sw.compare("A[I_x, J] · B[J, K] -> C[I_?, K_?]", *arrays(), mesh="x=4", seconds=SOON)
    assert found.agrees
    assert all(not way.audit.collectives for way in found if way.name in ("planned", "manual"))


def test_partial_sums_leave_out_what_cannot_be_asked_for():
    found = sw.compare("A[I, J_x] · B[J_x, K] -> C[I, K]{U_x}", *arrays(), mesh="x=4", seconds=SOON)
    assert [way.name for way in found] == ["manual", "planned"]
    assert "auto, constraint, explicit left out: jax.jit neither takes nor gives partial sums" in str(found)


def test_functions_with_arguments_of_their_own():
    x = jnp.ones((64, 64))
    four = sw.put(x, "A[I_x, J]", "x=4")
    found = sw.compare({"one device": (jnp.sin, x), "four": (jnp.sin, four)}, seconds=SOON)
    assert found.agrees
    assert found.where == "on cpu:1 and cpu:4, mesh x=4"
    assert [len(way.timing.seconds) >= 1 for way in found] == [True, True]


def test_functions_that_give_other_results_are_told():
    def double(x):
        return 2 * x

    def square(x):
        return x * x

    found = sw.compare([double, square], jnp.arange(8.0), seconds=SOON)
    assert not found.agrees
    assert "square gives another result than double: output by up to 35" in str(found)


@pytest.mark.parametrize(
    ("what", "options", "message"),
    [
        (GATHERED, {"ways": ("planed",)}, r"way 'planed' is none that is known: .*did you mean 'planned'"),
        (GATHERED, {"ways": ("candidate 99",)}, r"way 'candidate 99': the plan has candidates 1 to \d+"),
        (GATHERED, {"ways": ()}, "there is nothing to compare"),
        (GATHERED, {"seconds": 0}, "seconds=0: give the seconds that runs may take"),
        (GATHERED, {"seconds": math.nan}, "seconds=nan"),
        ({}, {}, "there is nothing to compare"),
        ({"one": 3}, {}, "3 is no function: give 'one' one"),
        ([jnp.sin, jnp.sin], {}, "two functions have the same name"),
        (7, {}, "7 is neither an equation nor functions"),
    ],
    ids=range(9),
)
def test_what_cannot_be_compared_is_said(what, options, message):
    with pytest.raises(sw.ShardwiseError, match=message):
        sw.compare(what, *arrays(), mesh="x=4", **options)


def test_a_function_that_raises_midway_is_told_by_name():
    calls = iter(range(100))

    def fine(x):
        return x + 1

    def torn(x):
        def host(x):
            if next(calls) > 2:
                raise ValueError("the disk is full")
            return x

        return jax.pure_callback(host, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    with pytest.raises(sw.ShardwiseError, match=r"torn raises while it is run: .*"):
        sw.compare([fine, torn], jnp.ones(8), seconds=5.0)


def test_a_function_that_donates_its_arguments_is_told():
    donating = jax.jit(lambda x: x + 1, donate_argnums=0)
    with pytest.raises(sw.ShardwiseError, match="a function that donates its arguments can be called only once"):
        sw.compare({"donating": (donating, jnp.ones(8))}, seconds=1.0)


def timed(found: sw.Comparison) -> sw.Comparison:
    """The same with times that no machine's load changes: six runs of each way, of 1 to 6 s, of the next 11 to 16 s, ..."""
    runs = [Timing(tuple(10.0 * number + second for second in range(1, 7))) for number in range(len(found.ways))]
    return replace(found, ways=tuple(replace(way, timing=run) for way, run in zip(found.ways, runs, strict=True)))


def test_the_facts_are_json():
    found = sw.compare(SCATTERED, *arrays(), mesh="x=4", seconds=SOON)
    told = json.loads(json.dumps(facts(timed(found))))
    assert [way["name"] for way in told["ways"]] == list(DEFAULT)
    planned, last = told["ways"][-1], 10 * (len(DEFAULT) - 1)
    assert planned["collectives"] == [{"kind": "reduce-scatter", "axes": ["x"], "trips": 1, "wire_bytes": 3 / 4 * 16 * 4 * 4}]
    assert planned["interval_seconds"] == [last + 1, last + 6]
    assert planned["median_seconds"] == last + 3.5
    assert (told["fastest"], told["certain"]) == ([DEFAULT[0]], True)
    once = facts(replace(found, ways=tuple(replace(way, timing=Timing((1.0,))) for way in found.ways)))
    assert {way["interval_seconds"] for way in once["ways"]} == {None}


def test_it_draws_itself():
    found = sw.compare(SCATTERED, *arrays(), mesh="x=4", ways=("constraint", "planned"), seconds=SOON)
    found = timed(found)
    drawn = svg(comparison_picture(found))
    assert drawn.count('data-kind="measured"') == 3  # two bars and the legend
    assert "reduce-scatter over x" in str(picture_of(found))
    assert "constraint" in (found._repr_html_() or "")


# The clock.


class Clock:
    """Tells the time that scripted functions take."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def taking(self, seconds: Iterator[float]) -> object:
        def function() -> None:
            self.now += next(seconds)

        return function


def noisy(median: float, spread: float, seed: int) -> Iterator[float]:
    draw = random.Random(seed)
    while True:
        yield median * draw.lognormvariate(0, spread)


def test_steady_functions_are_soon_done_and_noisy_ones_run_until_the_time_is_up():
    clock = Clock()
    found = until_narrow({"a": clock.taking(noisy(1.0, 0, 1)), "b": clock.taking(noisy(2.0, 0, 2))}, 1000, clock=clock)
    assert [len(timing.seconds) for timing in found.values()] == [6, 6]
    clock = Clock()
    found = until_narrow({"a": clock.taking(noisy(1.0, 0.5, 1))}, 100, clock=clock)
    assert 80 < clock.now < 110
    clock = Clock()
    found = until_narrow({"a": clock.taking(noisy(60.0, 0, 1))}, 20, clock=clock)
    assert len(found["a"].seconds) == 1


@pytest.mark.parametrize("noise", [0.02, 0.3, 1.0])
def test_of_equal_functions_a_winner_is_hardly_ever_called(noise):
    """Four equal ones with skewed noise: intervals of 95 % that all miss each other are rarer than one in twenty."""
    certain = 0
    for seed in range(200):
        clock = Clock()
        found = until_narrow({n: clock.taking(noisy(1.0, noise, 10 * seed + n)) for n in range(4)}, 150, clock=clock)
        certain += _is_certain(found.values())
    assert certain <= 10


def test_on_a_loaded_machine_no_winner_is_called_whose_interval_overlaps():
    stop = threading.Event()

    def busy() -> None:
        while not stop.is_set():
            sum(range(1000))

    threads = [threading.Thread(target=busy, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    one, same = jax.jit(lambda x: x @ x), jax.jit(lambda x: x @ x + 0)
    x = jnp.ones((64, 64))
    called = 0
    try:
        for _ in range(COMPARES):
            found = until_narrow({"one": lambda: one(x), "same": lambda: same(x)}, 0.02)
            intervals = [timing.interval_seconds for timing in found.values()]
            if _is_certain(found.values()):
                called += 1
                assert None not in intervals
                (low, high), (other_low, other_high) = intervals  # type: ignore[misc]
                assert high < other_low or other_high < low
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert called < COMPARES


def _is_certain(timings) -> bool:
    ways = list(timings)
    first = min(ways, key=lambda timing: timing.median_seconds)
    return not any(way.overlaps(first) for way in ways if way is not first)


def test_the_compilers_own_layouts_are_as_asked():
    """`explicit` and `constraint` give what the equation says, as `planned` does."""
    from shardwise.measure.ways import ways_of

    mesh = sw.make_mesh("x=4")
    placed = [sw.put(array, layout, mesh) for array, layout in zip(arrays(), ("A[I, J_x]", "B[J_x, K]"), strict=True)]
    plan = sw.plan(SCATTERED, sizes={"I": 16, "J": 8, "K": 4}, mesh=mesh, dtype="float32")
    for way in ways_of((*DEFAULT, "scatter"), plan, placed, mesh):
        assert way().sharding.spec in (P("x"), P("x", None)), way.name
