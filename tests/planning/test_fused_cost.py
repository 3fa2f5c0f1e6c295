"""Laws of overlap: what a ring may cost, what it must, and what a plan chooses among fused programs."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardwise as sw
from benchmarks.equations import random_case
from shardwise.chips.hops import Hop
from shardwise.errors import HardwareError, MeshError, PlanError
from shardwise.mesh import Sides
from shardwise.planning.cost import Estimate, estimate
from shardwise.planning.explain import facts
from shardwise.planning.fuse import names_of
from shardwise.planning.problem import OVERLAPS, costs_of, problem
from shardwise.planning.ranking import Candidate, rank
from shardwise.program import unfused
from shardwise.schedule.events import Await, Events, Matmul, Part, Send, unrolled
from shardwise.schedule.makers import UNROLL, gather_matmul, matmul_gather, matmul_scatter
from shardwise.schedule.play import Links, Played, play
from shardwise.steps import Fused, goes_along_sides

AG = "A[I_x, J] · B[J, K] -> C[I, K]"
UP = "A[I_x, J] · B[J, K_x] -> C[I, K_x]"
WEIGHTS = "A[B_x, D] · W[D_x, F] -> C[B_x, F]"
RS = "A[I, J_x] · B[J_x, K] -> C[I_x, K]"
SLICES = {"tpu-v5e": "2x4", "tpu-v5p": "2x2x2"}
MAKERS = {"gather": gather_matmul, "scatter": matmul_scatter, "spread": matmul_gather}
LONG = 24
LARGE = {"I": 8192, "J": 8192, "K": 28672}


@dataclass(frozen=True)
class Ring:
    """A ring to be timed: its product takes `multiplied` seconds a block."""

    n: int
    way: str
    chunks: int
    hop: Hop
    block_bytes: float
    multiplied: float
    cover: float = math.inf

    def product(self, share: float) -> float:
        return self.multiplied * share

    def laid(self, share: float) -> float:
        return self.multiplied * share / 10

    def events(self, kind: str, unroll: int = UNROLL) -> Events:
        return MAKERS[kind](self.n, self.way, self.chunks, self.width, unroll)

    @property
    def width(self) -> int:
        return 2 * self.chunks

    @property
    def links(self) -> Links:
        return Links(lambda share, _: self.hop.seconds(share * self.block_bytes), self.hop.both_ways, self.cover)

    def time(self, kind: str, unroll: int = UNROLL, **changed: object) -> Played:
        ring = replace(self, **changed)
        return play(ring.events(kind, unroll), ring.width, ring.links, lambda share, _: ring.product(share), ring.laid)

    def simulated(self, kind: str) -> Played:
        """Hop by hop, with no loop."""
        return self.time(kind, unroll=self.n)

    def moving(self, kind: str, way: int | None = None) -> float:
        """The seconds of all transfers, or of those that go one way."""
        sent = (each for each in unrolled(self.events(kind)) if isinstance(each, Send) and way in (None, each.way))
        return math.fsum(self.hop.seconds(each.part.width / self.width * self.block_bytes) for each in sent)

    @property
    def worked(self) -> dict[str, float]:
        return {"gather": self.n * self.multiplied, "spread": self.multiplied + self.n * self.laid(1.0)}


@st.composite
def drawn_rings(draw: st.DrawFn, sizes: tuple[int, int] = (2, LONG)) -> Ring:
    hop = Hop(draw(st.floats(1e-12, 1e-9)), draw(st.sampled_from([0.0, 1e-6, 1e-5])), draw(st.booleans()))
    return Ring(
        draw(st.integers(*sizes)),
        draw(st.sampled_from(["ring", "bidirectional"])),
        draw(st.integers(1, 3)),
        hop,
        draw(st.floats(1, 1e8)),
        draw(st.floats(1e-9, 1e-2)),
        draw(st.sampled_from([0.0, 0.1, 1.0, math.inf])),
    )


kinds = pytest.mark.parametrize("kind", ["gather", "scatter", "spread"])
SLACK = 1 + 1e-9


# One ring.


@kinds
@given(drawn_rings())
def test_a_ring_takes_as_long_as_its_products_and_its_fullest_lane_and_no_longer_than_one_after_another(kind: str, ring: Ring):
    time, moving = ring.simulated(kind), ring.moving(kind)
    lanes = [ring.moving(kind, 1), ring.moving(kind, -1)] if ring.hop.both_ways else [moving]
    assert time.busy_seconds == pytest.approx(ring.worked.get(kind, ring.worked["gather"]))
    assert time.seconds * SLACK >= max(time.busy_seconds, *lanes)
    assert time.seconds <= (time.busy_seconds + moving) * SLACK
    assert -1e-15 <= time.exposed_seconds <= moving * SLACK + 1e-15


@kinds
@given(drawn_rings())
def test_every_byte_is_sent_and_no_more(kind: str, ring: Ring):
    strands = ring.chunks * (2 if kind == "scatter" and ring.way == "bidirectional" else 1)
    sent = (ring.n - 1) * ring.hop.seconds_per_byte * ring.block_bytes
    assert ring.moving(kind) == pytest.approx(sent + (ring.n - 1) * strands * ring.hop.latency)


@kinds
@given(drawn_rings())
def test_a_compiler_that_starts_transfers_late_is_never_the_faster(kind: str, ring: Ring):
    assert ring.time(kind, cover=math.inf).seconds <= ring.time(kind).seconds * SLACK


@kinds
@given(drawn_rings(), st.floats(1, 100))
def test_more_bytes_never_take_less_time(kind: str, ring: Ring, factor: float):
    assert ring.time(kind).seconds <= ring.time(kind, block_bytes=ring.block_bytes * factor).seconds * SLACK


@kinds
@given(drawn_rings((2, 60)))
def test_more_devices_never_take_less_time(kind: str, ring: Ring):
    assert ring.time(kind).seconds <= ring.time(kind, n=ring.n + 1).seconds * SLACK


@kinds
@given(drawn_rings())
def test_both_ways_are_no_slower_where_each_has_its_links_and_products_are_small(kind: str, ring: Ring):
    hop = replace(ring.hop, both_ways=True)
    ring = replace(ring, hop=hop, multiplied=hop.seconds(ring.block_bytes) / 100, cover=math.inf)
    assert ring.time(kind, way="bidirectional").seconds <= ring.time(kind, way="ring").seconds * SLACK


@kinds
@given(drawn_rings((40, 41)))
def test_what_is_extrapolated_is_what_would_be_simulated(kind: str, ring: Ring):
    simulated = ring.simulated(kind)
    assert ring.n > LONG
    assert ring.time(kind).seconds == pytest.approx(simulated.seconds, rel=0.01)
    assert ring.time(kind).busy_seconds == pytest.approx(simulated.busy_seconds, rel=0.01)


@kinds
@given(drawn_rings((2, 80)))
def test_what_is_recorded_is_what_was_played(kind: str, ring: Ring):
    """From start to end without a gap, the trips of a long loop that are not played one by one in between."""
    played = play(
        ring.events(kind), ring.width, ring.links, lambda share, _: ring.product(share), ring.laid, record=True
    )  # fmt: skip
    work = [each for each in played.happened if not isinstance(each.event, Send)]
    for before, after in itertools.pairwise(work):
        assert after.start_seconds == pytest.approx(before.start_seconds + before.seconds, rel=1e-9, abs=1e-15)
    assert work[-1].start_seconds + work[-1].seconds == pytest.approx(played.seconds)
    assert replace(played, happened=()) == ring.time(kind)


@pytest.mark.parametrize("way", ["ring", "bidirectional", "scatter"])
@pytest.mark.parametrize("n", [4, 17, 64, 256])
def test_the_timeline_of_a_ring_is_its_step_from_start_to_end_however_long_it_is(way: str, n: int):
    text = RS if way == "scatter" else AG
    best = sw.plan(text, sizes=dict.fromkeys("IJK", 64 * n), mesh=f"x={n}", hardware="tpu-v5p", overlap=way).best
    line = best.timeline()
    work = [span for span in line.spans if span.lane == "compute"]
    assert math.fsum(span.seconds for span in work) == pytest.approx(line.step_seconds)
    assert max(span.end_seconds for span in line.spans) == pytest.approx(line.step_seconds)
    assert math.fsum(span.moved_bytes for span in line.spans) == pytest.approx(best.estimate.total_wire_bytes)
    loops = n >= 64 and not any(map(goes_along_sides, best.program.steps))
    assert any(span.kind == "loop" for span in work) == loops


@pytest.mark.parametrize("mesh", ["x=16, y=16", "x=16, y=17"])
def test_a_rotation_of_more_turns_than_can_be_written_out_is_no_candidate(mesh: str):
    text, sizes = "A[I_x, J_y] · B[J_x, K_y] -> C[I_x, K_y]", dict.fromkeys("IJK", 16 * 17 * 16)
    plan = lambda: sw.plan(text, sizes=sizes, mesh=mesh, hardware="tpu-v5p", overlap="rotate")  # noqa: E731
    if mesh.endswith("16"):
        assert any("rotate" in names_of(step) for step in plan().best.program.steps)
    else:
        with pytest.raises(PlanError, match="'rotate': no program of this equation has it"):
            plan()


@pytest.mark.parametrize("kind", ["gather", "scatter"])
def test_where_products_take_long_enough_one_transfer_or_none_is_seen(kind: str):
    ring = Ring(8, "bidirectional", 1, Hop(1e-9, 1e-6, True), 1e3, 1.0)
    assert ring.time(kind).exposed_seconds <= ring.hop.seconds(ring.block_bytes)


# A program of them.


def drawn_candidates(random: Random, overlap: bool | str = True) -> list[tuple[Candidate, Estimate, Estimate]]:
    """Fused programs of a random equation, each with its estimate and that of its plain steps."""
    chips = ("tpu-v5e", "tpu-v5p", "h100")
    case = random_case(random, elements=10**7, factors=(1, 4, 64), hardware=chips, operands=(2, 2, 3), free=0.0)
    task = problem(case.equation, case.sizes, case.mesh, case.hardware, overlap=overlap)
    try:
        found = rank(task)
    except PlanError:
        return []
    fused = [each for each in found if each.program.overlaps]
    return [(each, each.estimate, estimate(unfused(each.program), costs_of(task), case.sizes)) for each in fused]


@given(st.integers(0, 2**32 - 1))
def test_a_fused_program_does_the_work_of_its_plain_one(seed: int):
    for candidate, fused, plain in drawn_candidates(
        Random(seed), Random(seed).choice((True, "ring", "bidirectional", "scatter"))
    ):
        said = str(candidate.program)
        assert fused.flops == pytest.approx(plain.flops), said
        assert fused.total_wire_bytes == pytest.approx(plain.total_wire_bytes), said
        assert fused.redundancy == pytest.approx(plain.redundancy), said
        assert fused.seconds == pytest.approx(math.fsum(step.seconds for step in fused.steps)), said
        assert 0 <= fused.exposed_fraction <= SLACK, said
        for step in fused.steps:
            assert 0 <= step.exposed_seconds <= step.transfer_seconds <= fused.communication_seconds * SLACK, said


@given(st.integers(0, 2**32 - 1))
def test_what_is_chosen_is_no_slower_than_anything_plain(seed: int):
    case = random_case(Random(seed), elements=10**6, factors=(1, 4, 64), hardware=("tpu-v5e", "h100"), operands=(2,))
    best = {
        overlap: rank(problem(case.equation, case.sizes, case.mesh, case.hardware, overlap=overlap))[0].estimate.seconds
        for overlap in (True, False)
    }
    assert best[True] <= best[False]


# What is chosen.


def fused_steps(plan: sw.Plan) -> list[Fused]:
    return [step for each in plan for step in each.program.steps if isinstance(step, Fused)]


@pytest.mark.parametrize("name", OVERLAPS[2:])
def test_a_name_gives_only_programs_that_have_it(name: str):
    text = "A[I_x, J_y] · B[J_x, K_y] -> C[I_x, K_y]" if name == "rotate" else RS
    where = {"mesh": "x=8", "hardware": "v5p:2x2x2"} if name == "torus" else {"mesh": "x=4, y=2", "hardware": "tpu-v5e"}
    found = sw.plan(text, sizes={"I": 96, "J": 96, "K": 96}, overlap=name, **where)
    assert len(found) > 0
    for each in found:
        assert any(name in names_of(step) for step in each.program.steps)
    seconds = [each.estimate.seconds for each in found]
    assert seconds == sorted(seconds)


@pytest.mark.parametrize(
    ("text", "name", "says"),
    [
        (AG, "rotate", "no program of this equation has it: it has bidirectional, folded, ring"),
        (RS, "rotate", "no program of this equation has it: it has bidirectional, folded, ring, scatter"),
        (
            "A[I, J] · B[J, K] -> C[I, K]",
            "ring",
            "no program of this equation has it: nothing is gathered or scattered beside a",
        ),
    ],
)
def test_a_name_that_an_equation_lacks_is_refused_with_those_it_has(text: str, name: str, says: str):
    mesh = "x=1" if "x" not in text else "x=4"
    with pytest.raises(PlanError, match=f"overlap='{name}': {says}"):
        sw.plan(text, sizes={"I": 64, "J": 64, "K": 64}, mesh=mesh, hardware="tpu-v5e", overlap=name)


@pytest.mark.parametrize("chip", ["cpu", "tpu-v5e", "h100"])
@pytest.mark.parametrize("text", [AG, UP, RS])
def test_without_overlap_no_step_is_fused(text: str, chip: str):
    assert not fused_steps(sw.plan(text, sizes=LARGE, mesh="x=8", hardware=chip, overlap=False))


@pytest.mark.parametrize("text", [AG, UP, RS])
@pytest.mark.parametrize("factor", [1, 64])
def test_simulated_devices_hide_nothing_and_no_ring_is_chosen(text: str, factor: int):
    sizes = {"I": 64 * factor, "J": 64 * factor, "K": 64 * factor}
    assert not fused_steps(sw.plan(text, sizes=sizes, mesh="x=8", hardware="cpu"))
    forced = sw.plan(text, sizes=sizes, mesh="x=8", hardware="cpu", overlap="ring")
    assert forced.best.estimate.exposed_fraction == pytest.approx(1)


@pytest.mark.parametrize(("text", "sizes"), [(UP, LARGE), (RS, {"I": 8192, "J": 65536, "K": 28672})], ids=["TP-up", "RS"])
def test_where_products_are_large_transfers_hide_behind_them(text: str, sizes: dict[str, int]):
    for chip, most in (("tpu-v5e", 0.1), ("tpu-v5p", 0.3)):  # the latter's compiler starts transfers late
        chosen = sw.plan(text, sizes=sizes, mesh="x=8", hardware=f"{chip.removeprefix('tpu-')}:{SLICES[chip]}").best
        assert chosen.program.overlaps
        assert chosen.estimate.exposed_fraction < most


def test_one_way_loses_to_a_plain_gather_where_transfers_bound_the_time():
    sizes = {"I": 65536, "J": 8192, "K": 128}
    plain = sw.plan(AG, sizes=sizes, mesh="x=16", hardware="tpu-v5e", overlap=False).best
    one_way = sw.plan(AG, sizes=sizes, mesh="x=16", hardware="tpu-v5e", overlap="ring").best
    assert one_way.estimate.seconds > plain.estimate.seconds


@pytest.mark.parametrize("chip", ["tpu-v5e", "cpu"])
def test_a_ring_fits_where_a_gather_does_not(chip: str):
    """Sixteen blocks of W gathered fill the memory; three of them on their way do not."""
    sizes = {"B": 2048, "D": 8192, "F": 32768}
    plain = sw.plan(WEIGHTS, sizes=sizes, mesh="x=16", hardware=chip, overlap=False)
    least = min(each.estimate.peak_memory_bytes for each in plain)
    forms = sw.plan(WEIGHTS, sizes=sizes, mesh="x=16", hardware=chip, overlap="ring")
    ring = min(each.estimate.peak_memory_bytes for each in forms)
    assert ring < least
    limit = (ring + least) / 2
    for overlap in (True, "ring"):
        found = sw.plan(WEIGHTS, sizes=sizes, mesh="x=16", hardware=chip, memory_limit=limit, overlap=overlap)
        assert all(each.estimate.peak_memory_bytes <= limit for each in found)
    with pytest.raises(PlanError, match="no program"):
        sw.plan(WEIGHTS, sizes=sizes, mesh="x=16", hardware=chip, memory_limit=1e3)


@pytest.mark.parametrize("overlap", [True, "ring", "scatter"])
def test_the_same_plan_twice(overlap: bool | str):
    one, other = (sw.plan(RS, sizes=LARGE, mesh="x=8", hardware="tpu-v5e", overlap=overlap) for _ in range(2))
    assert one.candidates == other.candidates
    assert str(one) == str(other)


# Transfers on their way.


@pytest.mark.parametrize(("at_once", "rounds"), [(0, 1), (6, 1), (5, 2), (3, 2), (2, 3)])
def test_of_more_transfers_than_may_be_on_their_way_one_is_awaited_first(at_once, rounds):
    """Six parts over six links of their own take one hop; with room for fewer each next one waits for the first to arrive."""
    whole = Part(0, (0, 6))
    cube = Sides((2, 2, 2), tuple(range(8)))
    sends = [Send(k, 1 - 2 * (k % 2), Part(0, (k, k + 1)), sides=cube, side=k // 2) for k in range(6)]
    links = Links(lambda share, _: 1.0, both_ways=True, at_once=at_once)
    played = play((*sends, Matmul((whole,)), Await(tuple(range(6)))), 6, links, lambda share, _: 0.5)
    assert played.seconds == rounds


# A topology by name.


def test_a_topology_brings_its_own_links():
    line, plane = (sw.plan(RS, sizes=LARGE, mesh="x=8", hardware=name, overlap=False) for name in ("v5e:1x8", "v5e:2x4"))
    assert plane.best.estimate.communication_seconds < line.best.estimate.communication_seconds  # two dimensions, not one
    assert plane.best.estimate.flops == line.best.estimate.flops


@pytest.mark.parametrize(("chip", "mesh", "topology"), [
    ("tpu-v6e", "x=8", "v6e:2x4"),
    ("v5e", "x=2, y=2", "v5e:2x2"),
    ("tpu-v5p", "x=4, y=2", "v5p:2x2x2"),
    ("v7x", "x=8", "v7x:2x2x1"),
])  # fmt: skip
def test_of_a_chip_and_a_count_the_standard_slice_is_assumed_and_said(chip, mesh, topology):
    assumed, named = (sw.plan(RS, sizes=LARGE, mesh=mesh, hardware=name) for name in (chip, topology))
    assert [each.program for each in assumed] == [each.program for each in named]
    assert [each.estimate for each in assumed] == [each.estimate for each in named]
    said, head = assumed.explain().splitlines()[2], named.explain().splitlines()[2]
    assert said == f"  {topology} assumed, the standard slice of {assumed.task.mesh.size} devices; {head.strip()}"
    assert [(told["topology"], told["topology_assumed"]) for told in map(facts, (assumed, named))] == [
        (topology, True),
        (topology, False),
    ]


@pytest.mark.parametrize("mesh", ["x=2", "x=6", "x=3, y=2"])
def test_of_a_count_that_no_slice_has_each_axis_is_a_side(mesh):
    head = sw.plan(RS, sizes={"I": 1536, "J": 3072, "K": 1536}, mesh=mesh, hardware="tpu-v6e").explain().splitlines()[2]
    assert head.startswith("  torus: x a")


def test_a_mesh_larger_than_the_topology_is_refused():
    with pytest.raises(MeshError, match="mesh x=16 needs 16 devices, and v5e:2x4 has 8"):
        sw.plan(RS, sizes=LARGE, mesh="x=16", hardware="v5e:2x4")


@pytest.mark.parametrize("text", ["v5e:", "v5e:2x", "v9z:2x4", ":", "v5e:2x4:1", "tpu-v5e:twoxfour"])
def test_an_unknown_topology_is_refused(text: str):
    with pytest.raises(HardwareError):
        sw.plan(RS, sizes=LARGE, mesh="x=8", hardware=text)
