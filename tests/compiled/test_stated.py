"""What compiled texts state of collectives and kernels, and what the timeline makes of it. Needs no JAX."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from shardwise.chips import hardware
from shardwise.chips.placing import Site, mesh_order
from shardwise.chips.topology import Topology
from shardwise.compiled.facts import Algorithm
from shardwise.compiled.replaying.modelled import timeline
from shardwise.compiled.replaying.work import flops_per_device
from shardwise.compiled.text.hlo import parse_instruction, read
from shardwise.compiled.text.reading import collectives
from shardwise.compiled.text.stated import algorithm
from shardwise.compiled.text.walk import survey, visits
from shardwise.mesh import Mesh
from shardwise.schedule.timeline import Timeline

RINGS = "UniDirection{n}Strategy{{colors:{colors} phases:1 cores:{{4}},{{4}} nophase0:0}}"
GOLDEN = Path(__file__).parents[1] / "golden" / "texts"


def replayed(body: str, topology: str, axes: str) -> Timeline:
    """The timeline of a module whose entry holds these lines, on a mesh laid on a topology."""
    on, mesh = Topology.parse(topology), Mesh.parse(axes)
    text = f"HloModule jit_f, is_scheduled=true, num_partitions={mesh.size}\nENTRY %main (p: f32[4]) -> f32[4] {{\n{body}\n}}\n"
    module = read(text)
    assert not module.unread
    site = Site(on, mesh_order(on, mesh))
    return timeline(module, collectives(module, mesh).collectives, hardware(on.chip), mesh, site=site)


def config(emitter: str, strategy: str = "", debug: str = "") -> str:
    stated = {"emitter": emitter, "strategy": strategy, "debug": f"\n{debug}"}
    return "backend_config=" + json.dumps({"collective_algorithm_config": stated}, separators=(",", ":"))


def offloaded(*colors: list[dict[str, object]]) -> str:
    """A collective of v7x's sparse cores; a color is a list of rings, one for each phase."""
    strategies = [{"phase_rings": [{"ring_type": "ICI_RING_TYPE_UNIDIR_CW", **ring} for ring in color]} for color in colors]
    stated = {"all_gather_offload_config": {"ici_strategy_config": {"color_strategies": strategies}}}
    return "backend_config=" + json.dumps({"collective_offload_config": stated}, separators=(",", ":"))


PARTNERS = {"partner_transfers_outside_the_ring": True}


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        (config("1DAllGatherNonMajorDimImbalanced", debug="group_size = 16"), ("1DAllGatherNonMajorDimImbalanced", 2)),
        (config("2DAllGatherOnMajorDim"), ("2DAllGatherOnMajorDim", 4)),
        (config("3DAllGatherOnMajorDim"), ("3DAllGatherOnMajorDim", 6)),
        (config("RotatedPincerEmitter", "UniDirection1DRingStrategy", "U{colors:2 phases:1 cores:{8},{8}}"),
         ("RotatedPincerEmitter UniDirection1DRingStrategy", 2)),
        (config("RotatedPincerEmitter", "UniDirectionNDRingStrategy", "U{colors:6 phases:3 cores:{2 2 2}}"),
         ("RotatedPincerEmitter UniDirectionNDRingStrategy", 6)),
        (config("RotatedPincerShortEmitter", "StrategyND", "S{colors:3 phases:3 cores:{2 2 2},{2 2 2}}"),
         ("RotatedPincerShortEmitter StrategyND", 6)),
        (config("SingleInputAllReduceScatterFusion", "StrategyRing", "S{colors:1 phases:1 cores:{8}}"),
         ("SingleInputAllReduceScatterFusion StrategyRing", 2)),
        (config("AllToAllEmitter"), ("AllToAllEmitter", None)),
        (config("NetRouterEmitter"), ("NetRouterEmitter", None)),
        (offloaded([{}], [{}]), ("sparse cores UNIDIR_CW", 2)),
    ],
)  # fmt: skip
def test_an_algorithm_says_over_how_many_links_it_moves(stated: str, expected: tuple[str, int | None]):
    found = parse_instruction(f"%g = f32[8]{{0}} all-gather(%p), dimensions={{0}}, {stated}")
    assert algorithm(found) == Algorithm(*expected, around="ND" not in expected[0])


def test_what_no_text_names_is_no_algorithm_and_a_new_name_is_one_that_is_not_known():
    plain = parse_instruction("%g = f32[8]{0} all-gather(%p), dimensions={0}")
    broken = parse_instruction('%g = f32[8]{0} all-gather(%p), backend_config={"collective_algorithm_config":{"emitter"')
    new = parse_instruction(f"%g = f32[8]{{0}} all-gather(%p), {config('StarGather')}")
    unknown = [Algorithm("?", known=False), Algorithm("StarGather", known=False)]
    assert [algorithm(each) for each in (plain, broken, new)] == [None, *unknown]
    assert algorithm(plain, new) == algorithm(new)


# An all-gather of 64 MiB, as XLA names it there: a ring fills two links of a device, whatever its place has.
WHOLE = 2**26
ONE_RING = config("1DAllGatherNonMajorDim")


def gather(devices: int, stated: str) -> str:
    shard = f"bf16[{WHOLE // 2 // devices}]{{0}}"
    whole = f"bf16[{WHOLE // 2}]{{0}}"
    groups = f"replica_groups=[1,{devices}]<=[{devices}]"
    return f"  %p = {shard} parameter(0)\n  ROOT %g = {whole} all-gather(%p), {groups}, dimensions={{0}}, {stated}"


@pytest.mark.parametrize(
    ("topology", "axes", "stated", "micros"),
    [
        ("v5p:2x2x2", "x=8", ONE_RING, WHOLE * 7 / 8 / (2 * 9e10)),  # 326 us, and 217 over the three links that there are
        ("v5p:2x2x2", "x=8", config("3DAllGatherOnMajorDim"), WHOLE * 7 / 8 / (3 * 9e10)),
        ("v5e:16x16", "x=256", ONE_RING, WHOLE * 255 / 256 / (2 * 4.5e10)),  # 743 us, and 371 over four links
        ("v5e:16x16", "x=256", config("2DAllGatherOnMajorDim"), WHOLE * 255 / 256 / (4 * 4.5e10)),
        ("v5e:2x4", "x=8", ONE_RING, WHOLE * 7 / 8 / (2 * 4.5e10)),
        ("v5p:2x2x2", "x=2, y=2, z=2", ONE_RING, WHOLE * 7 / 8 / (2 * 9e10)),
        # Both cores of a v7x chip share its links: two rings of one core each, one ring through both, one from chip to chip.
        ("v7x:2x2x1", "x=8", offloaded([{}], [{}]), WHOLE * 7 / 8 / (2 * 9e10)),
        ("v7x:2x2x1", "x=8", offloaded([{}, PARTNERS], [{}, PARTNERS]), WHOLE * 3 / 4 / (2 * 9e10)),
        ("v7x:2x2x1", "x=4, y=2", offloaded([PARTNERS], [PARTNERS]), WHOLE * 3 / 4 / (2 * 9e10)),
    ],
)
def test_a_gather_takes_the_links_that_its_algorithm_fills(topology: str, axes: str, stated: str, micros: float):
    line = replayed(gather(Mesh.parse(axes).size, stated), topology, axes)
    assert line.step_seconds == pytest.approx(micros)
    assert any("over" in note and "links of a device at most" in note for note in line.notes)


def test_a_v7x_ring_of_one_core_of_each_chip_has_half_of_each_link():
    body = gather(4, offloaded([{}], [{}])).replace("[1,4]<=[4]", "[2,4]<=[4,2]T(1,0)")
    assert replayed(body, "v7x:2x2x1", "x=4, y=2").step_seconds == pytest.approx(WHOLE * 3 / 4 / 9e10)


def test_a_ring_through_a_whole_pod_passes_half_of_its_chips():
    small = gather(256, ONE_RING).replace(f"bf16[{WHOLE // 2}]", "bf16[256]").replace(f"bf16[{WHOLE // 512}]", "bf16[1]")
    assert replayed(small, "v5e:16x16", "x=256").step_seconds == pytest.approx(128e-6)
    plain = small.replace(ONE_RING, "channel_id=1")
    assert replayed(plain, "v5e:16x16", "x=256").step_seconds == pytest.approx(16e-6)


@pytest.mark.parametrize(("strategy", "micros"), [("StrategyRing", 32), ("StrategyND", 20)])  # 2 x 16 hops, 2 x (3 + 7)
def test_a_small_sum_goes_round_all_chips_or_along_the_sides(strategy: str, micros: float):
    stated = config("RotatedPincerShortEmitter", strategy, "S{colors:1 phases:2 cores:{4 8}}")
    body = f"  %p = f32[100]{{0}} parameter(0)\n  ROOT %r = f32[100]{{0}} all-reduce(%p), to_apply=%add, {stated}"
    assert replayed(body, "v5e:4x8", "x=32").step_seconds == pytest.approx(micros * 1e-6)


def permute(*pairs: tuple[int, int]) -> str:
    sent = ",".join(f"{{{source},{target}}}" for source, target in pairs)
    return (
        "  %p = bf16[45000000]{0} parameter(0)\n"
        f"  ROOT %c = bf16[45000000]{{0}} collective-permute(%p), source_target_pairs={{{sent}}}"
    )


def test_shards_of_a_permutation_go_over_the_chips_that_lie_between():
    """90 MB take 2 ms over a link. The axis goes round a square of chips: its opposite corners are two hops apart."""
    opposite = replayed(permute((0, 2), (1, 3), (2, 0), (3, 1)), "v5e:2x2", "x=4")
    assert opposite.step_seconds == pytest.approx(2e-3 + 2e-6)  # along the axis two shards would share each link: 4 ms
    next_ = replayed(permute((0, 1), (1, 2), (2, 3), (3, 0)), "v5e:2x2", "x=4")
    assert next_.step_seconds == pytest.approx(2e-3 + 2e-6)  # some go along the one side, some along the other
    back = replayed(permute(*((device, 3 - device) for device in range(4))), "v5e:2x2", "y=2, x=2")
    assert back.step_seconds == pytest.approx(2e-3 + 2e-6)
    # A line of four that is turned round: two shards pass the middle each way.
    line = replayed(permute((0, 3), (1, 2), (2, 1), (3, 0), *((4 + n, 4 + n) for n in range(4))), "v5e:2x4", "y=2, x=4")
    assert line.step_seconds == pytest.approx(4e-3 + 3e-6)


def test_an_algorithm_that_is_not_known_is_said_and_has_all_links():
    line = replayed(gather(8, config("StarGather")), "v5p:2x2x2", "x=8")
    assert line.step_seconds == pytest.approx(WHOLE * 7 / 8 / (3 * 9e10))
    assert "the algorithm StarGather is not known: taken as one over all links of its axes" in line.notes


def test_a_sum_in_a_single_phase_passes_on_whole_arrays():
    stated = config("SinglePhaseRingSumEmitter")
    body = f"  %p = f32[1000000]{{0}} parameter(0)\n  ROOT %r = f32[1000000]{{0}} all-reduce(%p), to_apply=%add, {stated}"
    assert replayed(body, "v5e:2x4", "x=8").step_seconds == pytest.approx(7 * 4e6 / (2 * 4.5e10))


def test_a_fusion_names_the_algorithm_of_what_it_holds():
    text = gzip.decompress((GOLDEN / "jax-0.12/v5e-2x4/planned_scatter.txt.gz").read_bytes()).decode()
    (scatter,) = collectives(read(text), Mesh.parse("x=8")).collectives
    assert (scatter.kind, scatter.algorithm) == (
        "reduce-scatter",
        Algorithm("SingleInputAllReduceScatterFusion StrategyRing", 2),
    )


TPUS = ("tpu7x-2x2x1", "v4-2x2x1", "v5e-2x4", "v5p-2x2x2", "v6e-2x4")


NAMED = [path for target in TPUS for path in sorted(GOLDEN.glob(f"*/{target}/*.gz"))]


@pytest.mark.parametrize("path", NAMED, ids=lambda path: "-".join(path.parts[-3:]))
def test_every_algorithm_of_the_corpus_is_known(path: Path):
    found = collectives(read(gzip.decompress(path.read_bytes()).decode())).collectives
    assert [c.algorithm.name for c in found if c.algorithm is not None and not c.algorithm.known] == []
    plain = [c for c in found if c.kind != "collective-permute" and not c.name.startswith("async-collective")]
    assert all(c.algorithm is not None for c in plain)  # one that is taken apart among matmuls names none


# Kernels that state what they take.

KERNEL = 'custom_call_target="tpu_custom_call", backend_config={{"custom_call_config":{{"body":"TUzv"{more}}}}}'
COST = ',"cost_estimate":{{"flops":"{flops}","transcendentals":"{exps}","bytes_accessed":"{moved}"{remote}}}'
ARRAYS = "  %m = s8[4096,4096]{1,0} parameter(0)\n  %q = bf16[1024,1024]{1,0} parameter(1)\n"


def kernel(flops: int = 0, moved: int = 0, exps: int = 0, remote: int | None = None, stated: bool = True) -> str:
    sent = "" if remote is None else f',"remote_bytes_transferred":"{remote}"'
    more = COST.format(flops=flops, exps=exps, moved=moved, remote=sent) if stated else ""
    more += "" if remote is None else ',"has_communication":true'
    return f"{ARRAYS}  ROOT %k = bf16[1024,1024]{{1,0}} custom-call(%m, %q), {KERNEL.format(more=more)}"


@pytest.mark.parametrize(
    ("cost", "seconds"),
    [
        ({"flops": 197 * 10**9, "moved": 1000}, 1e-3),  # at the peak of bf16, the largest floating array that it takes
        ({"flops": 1000, "moved": 81 * 10**7}, 1e-3),  # at the speed of main memory
        ({"flops": 0, "moved": 0}, (2**24 + 2 * 2**21) / 8.1e11),  # states nothing: what it takes and gives
    ],
)
def test_a_kernel_takes_the_time_of_what_it_states(cost: dict[str, int], seconds: float):
    line = replayed(kernel(**cost), "v5e:2x4", "x=8")
    assert line.step_seconds == pytest.approx(seconds)
    assert line.matmul_flops == cost["flops"]
    assert not any("its FLOPs are not known" in note for note in line.notes)


def test_a_kernel_that_states_nothing_is_said_to():
    line = replayed(kernel(stated=False), "v5e:2x4", "x=8")
    assert any("tpu_custom_call" in note and "its FLOPs are not known" in note for note in line.notes)
    assert line.matmul_flops == 0


def test_the_compilers_cycles_win_over_what_a_kernel_states():
    body = kernel(flops=197 * 10**9).replace('"body"', '"estimated_cycles":"3000","body"')
    assert replayed(body, "v5e:2x4", "x=8").step_seconds == pytest.approx(2e-6)


def test_transcendentals_without_a_figure_are_said_to_cost_nothing():
    assert any("transcendentals cost nothing" in note for note in replayed(kernel(exps=7), "v5e:2x4", "x=8").notes)


def test_the_work_counts_the_flops_of_kernels_and_transfers_hide_behind_them():
    cost = COST.format(flops=5000, exps=0, moved=8, remote="")
    text = f"""HloModule jit_f, is_scheduled=true, num_partitions=8
ENTRY %main (p: f32[4]) -> f32[4] {{
  %p = f32[4]{{0}} parameter(0)
  %s = (f32[4]{{0}}, f32[32]{{0}}) all-gather-start(%p), replica_groups={{}}, dimensions={{0}}
  %k = f32[4]{{0}} custom-call(%p), {KERNEL.format(more=cost)}
  ROOT %e = f32[32]{{0}} all-gather-done(%s)
}}"""
    module = read(text)
    assert flops_per_device(module, visits(module, survey(module), [])) == 5000
    assert collectives(module, Mesh.parse("x=8")).collectives[0].hidden_by == ("k",)


def test_what_a_kernel_sends_keeps_the_links_busy_while_it_works():
    sent = 9 * 10**6  # 200 us on a link of v5e, and a hop
    line = replayed(kernel(flops=197 * 10**8, moved=8, remote=sent), "v5e:4x4", "x=4, y=4")
    assert line.compute_seconds == pytest.approx(100e-6)
    assert line.step_seconds == pytest.approx(200e-6 + 3e-6)  # rows of four are lines: three hops
    assert line.exposed_seconds == pytest.approx(line.step_seconds - 100e-6)
    assert {lane for lane, _ in line.lanes} == {"compute", "x+", "x-", "y+", "y-"}
    assert any("sends 9000000 bytes, not to whom" in note for note in line.notes)


def test_a_kernel_that_sends_stays_unread_with_what_it_states():
    text = f"HloModule m, num_partitions=8\nENTRY %e (p: f32[4]) -> f32[4] {{\n{kernel(remote=64)}\n}}\n"
    assert "to whom it sends 64 bytes is not known" in str(collectives(read(text)).unread[0])
    silent = text.replace(',"remote_bytes_transferred":"64"', "")
    assert "what it sends is not known" in str(collectives(read(silent)).unread[0])


# Operations that are more than one pass.


@pytest.mark.parametrize(
    ("line", "seconds", "said"),
    [
        ("sort(%a), dimensions={0}, to_apply=%less", 20 * 8 * 2**20 / 3.35e12, "20 passes over memory"),
        ("fft(%a), fft_type=FFT, fft_length={1048576}", 5 * 2**20 * 20 / 4.95e14, "5 n log2 n"),
        ("reduce-window(%a, %z), window={size=128}, to_apply=%add", 8 * 2**20 / 3.35e12, "each window is read anew"),
        ("scatter(%a, %i, %i), to_apply=%add", 8 * 2**20 / 3.35e12, "update by update"),
        ("rng-bit-generator(%a), algorithm=rng_default", 8 * 2**20 / 3.35e12, "every number"),
    ],
)
def test_what_is_more_than_a_pass_is_estimated_by_its_formula_or_said(line: str, seconds: float, said: str):
    body = f"  %a = f32[1048576]{{0}} parameter(0)\n  ROOT %o = f32[1048576]{{0}} {line}"
    text = f"HloModule m, is_scheduled=true, num_partitions=8\nENTRY %e (p: f32[4]) -> f32[4] {{\n{body}\n}}\n"
    replay = timeline(read(text), (), hardware("h100"), Mesh.parse("x=8"))
    assert replay.step_seconds == pytest.approx(max(seconds, 8 * 2**20 / 3.35e12))
    assert any(said in note for note in replay.notes)
