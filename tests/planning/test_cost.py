"""Laws of cost: the triangle inequality, monotone in bytes, all-reduce = reduce-scatter + all-gather, and honest sums.

Where a law ends is a test too: `test_where_the_triangle_inequality_ends` says for which steps and why.
"""

from __future__ import annotations

import dataclasses
import math
import re
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from searches import permutes_keep_their_axes

from benchmarks.equations import HARDWARE, Case, random_case, random_layout, random_mesh
from shardwise.chips import Hardware, hardware
from shardwise.chips.links import COLLECTIVES, collective_seconds, wire_bytes
from shardwise.layout import Layout
from shardwise.mesh import Mesh
from shardwise.notation import Equation, Operand, parse
from shardwise.planning.candidates import KEPT, Candidate
from shardwise.planning.cost import estimate
from shardwise.planning.prices import NEXT, STARTING
from shardwise.planning.problem import costs_of, problem
from shardwise.planning.ranking import Ranking, rank
from shardwise.planning.step_cost import einsum_flops
from shardwise.steps import moved_axes
from shardwise.units import bytes_text, seconds_text

randoms = st.randoms(use_true_random=False)
NAMES = hardware.names()
MESHES = [
    Mesh.parse(text)
    for text in ("x=2", "x=3", "x=8", "x=16", "x=256", "x=4, y=2", "x=8, y=4", "x=16, y=16", "x=4, y=4, z=4", "x=2, y=8, z=3")
]


def drawn(random: Random) -> tuple[Hardware, Mesh, tuple[str, ...]]:
    mesh = random.choice(MESHES)
    return hardware(random.choice(NAMES)), mesh, tuple(random.sample(mesh.names, random.randint(1, len(mesh.names))))


def shards(kind: str, n: int, whole: float) -> tuple[float, float]:
    """Bytes of a shard before and after a collective over n devices, for V = `whole`."""
    before, after = {"all-gather": (whole / n, whole), "reduce-scatter": (whole, whole / n)}.get(kind, (whole, whole))
    return before, after


def seconds(kind: str, chip: Hardware, mesh: Mesh, axes: tuple[str, ...], whole: float) -> float:
    return collective_seconds(kind, chip, mesh, axes, *shards(kind, mesh.extent(axes), whole))


def reshard_seconds(chip: str, mesh: Mesh, sizes: dict[str, int], before: Layout, after: Layout) -> float:
    equation = Equation((Operand("A", before),), Operand("A", after))
    return least_alone(rank(problem(equation, sizes, mesh, chip)))


# Collectives on links.


@given(randoms, st.sampled_from(COLLECTIVES), st.floats(1, 1e12), st.floats(1, 100))
def test_more_bytes_never_take_less_time(random, kind, whole, factor):
    chip, mesh, axes = drawn(random)
    assert 0 < seconds(kind, chip, mesh, axes, whole) <= seconds(kind, chip, mesh, axes, whole * factor)
    assert wire_bytes(kind, mesh, axes, *shards(kind, mesh.extent(axes), whole)) <= wire_bytes(
        kind, mesh, axes, *shards(kind, mesh.extent(axes), whole * factor)
    )


@given(randoms, st.floats(1, 1e12))
def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather(random, whole):
    chip, mesh, axes = drawn(random)
    both = seconds("reduce-scatter", chip, mesh, axes, whole) + seconds("all-gather", chip, mesh, axes, whole)
    one = seconds("all-reduce", chip, mesh, axes, whole)
    if chip.shared:  # one pass through shared memory: the scattered parts are never written
        assert one <= both
    else:
        assert one == pytest.approx(both, rel=1e-12)
    sent = [
        wire_bytes(kind, mesh, axes, *shards(kind, mesh.extent(axes), whole))
        for kind in ("reduce-scatter", "all-gather", "all-reduce")
    ]
    assert sent[2] == pytest.approx(sent[0] + sent[1])


@given(randoms, st.floats(1, 1e12))
def test_a_gather_and_a_scatter_mirror_each_other_on_a_wire(random, whole):
    chip, mesh, axes = drawn(random)
    if not chip.shared:
        assert seconds("all-gather", chip, mesh, axes, whole) == seconds("reduce-scatter", chip, mesh, axes, whole)


@given(randoms, st.sampled_from(COLLECTIVES), st.floats(1, 1e12))
def test_an_axis_of_size_1_costs_nothing(random, kind, whole):
    chip, mesh, axes = drawn(random)
    wider = Mesh((*mesh.axes, ("one", 1)))
    assert seconds(kind, chip, wider, ("one",), whole) == 0
    assert seconds(kind, chip, wider, (*axes, "one"), whole) == seconds(kind, chip, mesh, axes, whole)


# Going round.


@given(randoms, st.floats(1, 1e12))
def test_one_collective_over_two_axes_costs_no_more_than_two(random, whole):
    chip, mesh = hardware(random.choice(NAMES)), random.choice([mesh for mesh in MESHES if len(mesh.axes) > 1])
    major, minor = random.sample(mesh.names, 2)
    n = mesh.extent((major, minor))
    middle = whole / mesh.axis_size(major)

    def over(kind: str, axes: tuple[str, ...], before: float, after: float) -> float:
        # Threads of one host wait less in two small groups, one after the other, than in a large one.
        start = collective_seconds(kind, chip, mesh, axes, 0.0, 0.0) if chip.shared else 0.0
        return collective_seconds(kind, chip, mesh, axes, before, after) - start

    both = (major, minor)
    gathers = over("all-gather", (minor,), whole / n, middle) + over("all-gather", (major,), middle, whole)
    assert over("all-gather", both, whole / n, whole) <= gathers * (1 + 1e-12)
    scatters = over("reduce-scatter", (major,), whole, middle) + over("reduce-scatter", (minor,), middle, whole / n)
    assert over("reduce-scatter", both, whole, whole / n) <= scatters * (1 + 1e-12)
    reduces = over("all-reduce", (major,), whole, whole) + over("all-reduce", (minor,), whole, whole)
    assert over("all-reduce", both, whole, whole) <= reduces * (1 + 1e-12)


@given(randoms, st.floats(1, 1e12))
def test_an_all_to_all_on_a_wire_costs_no_more_than_a_gather_of_which_a_part_is_kept(random, whole):
    chip, mesh, axes = drawn(random)
    part = whole / mesh.extent(axes)
    moved = collective_seconds("all-to-all", chip, mesh, axes, part, part)
    if not chip.shared:
        assert moved <= seconds("all-gather", chip, mesh, axes, whole) * (1 + 1e-12)


def test_where_the_triangle_inequality_ends():
    """Two steps may cost more than going round, each for a reason; the planner then goes round, by the law of paths below.

    On simulated devices an all-to-all turns its whole array in memory, which a gather along the first dimension does
    not. A permutation pays its latency and then its bytes, where a gather pays the longer of the two.
    """
    sizes = {"I": 1024, "J": 1024}
    ends = {}
    for chip, text, mesh in [("cpu", "A[I_x, J] -> A[I, J_x]", "x=2"), ("h100", "A[I_{x,y}] -> A[I_{y,x}]", "x=2, y=2")]:
        equation = parse(text)
        used = {dim: sizes[dim] for dim in equation.dims}
        ends[chip] = rank(problem(equation, used, mesh, chip))[0].program.steps
    assert [type(step).__name__ for step in ends["cpu"]] == ["AllGather", "Slice"]
    assert [type(step).__name__ for step in ends["h100"]] == ["AllGather", "Slice"]


@given(randoms)
def test_going_round_through_another_layout_costs_no_less(random):
    """The planned cost of A -> C is at most that of A -> B and B -> C: on every hardware, for every layout between."""
    mesh = random_mesh(random, axes=2, devices=16, sizes=(2, 3, 4, 8))
    dims = "IJ"[: random.randint(1, 2)]
    sizes = {dim: mesh.size * random.choice((1, 5, 512)) for dim in dims}
    partial_sums = random.choice([(), mesh.names[:1]])
    before = random_layout(random, dims, mesh.names, partial_sums)
    middle = random_layout(random, dims, mesh.names, before.unreduced)
    after = random_layout(random, dims, mesh.names, middle.unreduced)
    middle = Layout(middle.dims, middle.unreduced & before.unreduced)
    after = Layout(after.dims, after.unreduced & middle.unreduced)
    chip = random.choice(NAMES)
    direct = reshard_seconds(chip, mesh, sizes, before, after)
    round_about = reshard_seconds(chip, mesh, sizes, before, middle) + reshard_seconds(chip, mesh, sizes, middle, after)
    assert direct <= round_about * (1 + 1e-12), f"{before} -> {middle} -> {after} on {mesh}, {chip}, {sizes}"


# Plans.


def planning_case(random: Random, **options) -> Case:
    options = {"operands": (1, 2, 2, 3), "rank": 3, "axes": 2, "partial": 0.2, "hardware": NAMES} | options
    return random_case(random, elements=10**12, factors=(1, 2, 3, 64, 512), **options)


@given(randoms)
@permutes_keep_their_axes()
def test_candidates_are_sorted_and_priced_as_the_search_priced_them(random):
    from shardwise.planning.assembling import assembled
    from shardwise.planning.graph import state_of
    from shardwise.planning.orders import Leaf, all_orders
    from shardwise.planning.search import Search
    from shardwise.planning.spaces import STEP_SECONDS
    from shardwise.planning.stages import wanted_states

    case = planning_case(random, via=0.0)
    task = problem(case.equation, case.sizes, case.mesh, case.hardware)
    costs = costs_of(task)
    operands, result = task.equation.operands, task.equation.result
    leaves = [Leaf(index, operand.dims, state_of(operand.layout)) for index, operand in enumerate(operands)]
    names = [f"operand{n}" for n in range(len(operands))]
    every, root = [], all_orders(leaves, result.dims).root
    for found in Search(costs, task.sizes, root, wanted_states(result, task)).candidates():
        program = assembled(found, root, operands, names, result, task.mesh)
        counted = len(program.steps) * STEP_SECONDS
        priced = estimate(program, costs, task.sizes)
        assert priced.alone_seconds == pytest.approx(found.seconds - counted, rel=1e-9, abs=STEP_SECONDS)
        every.append(priced)
    ranked = rank(dataclasses.replace(task, overlap=False))
    seconds = [candidate.estimate.seconds for candidate in ranked]
    assert seconds == sorted(seconds)
    # None of the first that the search found is faster; where chips overlap nothing, all of them are ranked.
    assert seconds[0] <= min(priced.seconds for priced in every[:KEPT]) * (1 + 1e-9)
    if task.hardware.compiler is None:
        assert seconds[0] == pytest.approx(min(priced.seconds for priced in every), rel=1e-9)


@given(randoms)
def test_an_estimate_adds_up(random):
    case = planning_case(random)
    for candidate in rank(problem(case.equation, case.sizes, case.mesh, case.hardware)):
        cost, program = candidate.estimate, candidate.program
        exposed = cost.exposed_fraction * cost.communication_seconds
        assert cost.seconds == pytest.approx(cost.compute_seconds + exposed)
        assert cost.seconds == pytest.approx(sum(step.seconds for step in cost.steps))
        assert cost.total_wire_bytes == pytest.approx(sum(step.wire_bytes for step in cost.steps))
        assert cost.flops == sum(step.flops for step in cost.steps)
        held = 2 * sum(math.prod(layout.shard_shape(case.sizes, case.mesh)) for _, layout in program.inputs)
        assert cost.peak_memory_bytes >= held
        assert cost.redundancy >= 1 - 1e-12
        assert (cost.total_wire_bytes > 0) <= any(moved_axes(step) for step in program.steps)
        hides = program.overlaps or any(step.beside for step in cost.steps)
        assert 0 <= cost.exposed_fraction <= 1
        assert hides or cost.exposed_fraction == pytest.approx(1.0 if cost.communication_seconds else 0.0)


def least_alone(found: tuple[Candidate, ...]) -> float:
    """Of programs whose steps are taken one after the other, as they are searched for: what follows are laws of the search."""
    return min(each.estimate.alone_seconds for each in found)


@given(randoms)
def test_wider_numbers_never_plan_faster(random):
    case = planning_case(random, operands=(1, 1, 2))
    narrow, wider = (
        least_alone(rank(problem(case.equation, case.sizes, case.mesh, case.hardware, dtype)))
        for dtype in ("bfloat16", "float32")
    )
    assert narrow <= wider * (1 + 1e-9)


@given(randoms)
def test_freedom_never_costs(random):
    """A result left to the planner is as fast as the fastest of all layouts that could be written.

    Of plain programs: fused ones are sought among the first candidates alone, which are others for each layout.
    """
    case = planning_case(random, operands=(1, 2), rank=2, free=1.0, via=0.0, partial=0.0)
    result = case.equation.result
    found = rank(problem(case.equation, case.sizes, case.mesh, case.hardware, overlap=False))
    free = min(found, key=lambda each: each.estimate.alone_seconds)
    written = dataclasses.replace(result, layout=free.program.result, free=frozenset())
    same = dataclasses.replace(case.equation, result=written)
    assert least_alone(rank(problem(same, case.sizes, case.mesh, case.hardware, overlap=False))) == pytest.approx(
        least_alone(found), rel=1e-9
    )
    idle = [axis for axis in case.mesh.names if axis not in result.layout.axes]
    for _ in range(4):
        other = random_layout(random, sorted(result.free), idle)
        dims = tuple((dim, other.axes_of(dim) if dim in result.free else axes) for dim, axes in result.layout.dims)
        if all(case.sizes[dim] % case.mesh.extent(axes) == 0 for dim, axes in dims):
            fixed = dataclasses.replace(case.equation, result=Operand("R", Layout(dims)))
            seconds = least_alone(rank(problem(fixed, case.sizes, case.mesh, case.hardware, overlap=False)))
            assert least_alone(found) <= seconds * (1 + 1e-9)


@given(randoms)
def test_less_memory_never_plans_faster(random):
    """Of plain programs, where no step is taken for what it runs beside: of fused ones the first candidates have others."""
    case = planning_case(random, operands=(1, 2), via=0.0)
    task = problem(case.equation, case.sizes, case.mesh, case.hardware)
    free = rank(task)[0].estimate
    within = rank(dataclasses.replace(task, memory_limit=free.peak_memory_bytes))[0].estimate
    assert within.seconds == pytest.approx(free.seconds, rel=1e-9)
    plain = dataclasses.replace(task, overlap=False)
    least = min(candidate.estimate.peak_memory_bytes for candidate in rank(plain))
    tight = rank(dataclasses.replace(plain, memory_limit=least))
    assert tight[0].estimate.peak_memory_bytes <= least
    assert least_alone(tight) >= least_alone(rank(plain)) * (1 - 1e-9)


@given(randoms)
def test_every_estimate_is_printed(random):
    case = planning_case(random)
    task = problem(case.equation, case.sizes, case.mesh, case.hardware)
    ranked = Ranking(task, rank(task))
    rows = {int(row[1]): row[0] for row in re.finditer(r"^ *>?(\d+)  .*$", ranked.explain(), re.MULTILINE)}
    for number, candidate in enumerate(ranked, 1):
        assert seconds_text(candidate.estimate.seconds) in rows[number]
        assert seconds_text(candidate.estimate.exposed_seconds) in rows[number]
        assert bytes_text(candidate.estimate.peak_memory_bytes) in rows[number]


def test_work_that_replicas_repeat_is_counted():
    plan = rank(problem(parse("A[I, J] · B[J, K] -> C[I, K]"), {"I": 64, "J": 64, "K": 64}, "x=4", "h100"))
    repeated = next(candidate for candidate in plan if len(candidate.program.steps) == 1)
    assert repeated.estimate.redundancy == 4
    assert repeated.estimate.flops == einsum_flops(["IJ", "JK"], "IK", {"I": 64, "J": 64, "K": 64})
    split = rank(problem(parse("A[I_x, J] · B[J, K] -> C[I_x, K]"), {"I": 64, "J": 64, "K": 64}, "x=4", "h100"))[0]
    assert split.estimate.redundancy == 1
    assert split.estimate.flops * 4 == repeated.estimate.flops


# The choice flips with the hardware, and says so.

HEADLINE = "A[I_x, J] · B[J, K] -> C[I, K]"
SIZES = {"I": 16384, "J": 1024, "K": 2048}
WAYS = {"gather": "all-gather A over x (I), then multiply", "multiply": "multiply, then all-gather C over x (I)"}


@pytest.mark.parametrize("devices", [4, 8])
@pytest.mark.parametrize("name", HARDWARE)
def test_the_headline_flips_with_the_hardware_and_prints_both_estimates(name, devices):
    from shardwise.planning.explain import summary

    task = problem(parse(HEADLINE), SIZES, {"x": devices}, name, overlap=False)
    plan = Ranking(task, rank(task))
    found = {summary(candidate.program): candidate.estimate for candidate in plan}
    ways = {way: found[said] for way, said in WAYS.items()}
    assert summary(plan.best.program) == WAYS[min(ways, key=lambda way: ways[way].seconds)]
    if name == "cpu":
        assert summary(plan.best.program) == WAYS["multiply"]
    else:  # worked by hand: the wire carries A or C, half or all of the product's bytes; the product is done n times or once
        moved = {"gather": 2 * SIZES["I"] * SIZES["J"], "multiply": 2 * SIZES["I"] * SIZES["K"]}
        products = 2 * SIZES["I"] * SIZES["J"] * SIZES["K"]
        flops = {"gather": products, "multiply": products / devices}
        chip = hardware(name)
        for way in WAYS:
            wire = costs_of(task).collective("all-gather", ("x",), moved[way] / devices, moved[way])
            compute = flops[way] / chip.flops("bfloat16", task.mesh)
            if chip.compiler:  # the share of the peak that is reached, and the results that leave in a second
                results = SIZES["I"] * SIZES["K"] * flops[way] / products
                keeps = way == "multiply" and chip.compiler.kept_bytes.value  # the chip, what a collective takes from there
                rate = chip.compiler.kept_results_per_s if keeps else chip.compiler.results_per_s
                compute = max(compute / chip.compiler.efficiency.value, results / rate.value)
                compute += min(chip.compiler.start_seconds.value, STARTING * compute) * (NEXT if keeps else 1.0)
                if way == "multiply":  # it starts when its inputs are fetched; the result is copied to where it must stand
                    inputs = (2 * SIZES["I"] * SIZES["J"] / devices, 2 * SIZES["J"] * SIZES["K"])
                    near = sum(size for size in inputs if size <= chip.compiler.near_bytes.value)
                    compute += near * chip.devices_per_chip / chip.memory_bytes_per_s.value
                    kept = moved[way] <= chip.compiler.kept_bytes.value
                    speed = chip.memory_bytes_per_s if kept else chip.compiler.copied_bytes_per_s
                    compute += moved[way] * chip.devices_per_chip / speed.value
            assert ways[way].seconds == pytest.approx(wire + compute, rel=1e-3)
    text = plan.explain()
    for way, said in WAYS.items():
        row = next(line for line in text.splitlines() if line.endswith(said))
        assert seconds_text(ways[way].seconds) in row
