"""Timelines: small schedules whose times are computed by hand, laws that all keep, and the golden texts. Needs no JAX."""

from __future__ import annotations

import gzip
import itertools
import json
from pathlib import Path

import pytest

from shardwise.chips import hardware
from shardwise.chips.links import Route
from shardwise.compiled.replaying.modelled import timeline
from shardwise.compiled.replaying.work import flops_per_device, matmul_flops
from shardwise.compiled.text.hlo import read
from shardwise.compiled.text.reading import collectives
from shardwise.compiled.text.walk import survey, visits
from shardwise.mesh import Mesh
from shardwise.schedule.timeline import Timeline

V5E = hardware("tpu-v5e")
LINK, HOP, HBM, CLOCK = 4.5e10, 1e-6, 8.1e11, 1.5e9
N = 16  # a full axis of v5e: a ring
UP = "{" + ",".join(f"{{{i},{(i + 1) % N}}}" for i in range(N)) + "}"
DOWN = "{" + ",".join(f"{{{i},{(i - 1) % N}}}" for i in range(N)) + "}"
ALL = "{{" + ",".join(map(str, range(N))) + "}}"
SHARD = "bf16[4500000]{0}"  # 9 MB: 200 us on a link
BESIDE = "f32[1024,1024]{1,0}"
MOVE = 200e-6 + HOP


def replayed(body: str, before: str = "", mesh: str = f"x={N}", chip: str = "tpu-v5e", routes=None) -> Timeline:
    head = f"HloModule jit_f, is_scheduled=true, num_partitions={Mesh.parse(mesh).size}\n{before}\n"
    module = read(f"{head}ENTRY %main (p: f32[4]) -> f32[4] {{\n{body}\n}}\n")
    assert not module.unread
    return timeline(module, collectives(module, Mesh.parse(mesh)).collectives, hardware(chip), Mesh.parse(mesh), routes)


def busy(name: str, micro: float) -> str:
    """An instruction that takes so many microseconds by the compiler's cycles."""
    cycles = f'backend_config={{"window_config":{{"estimated_cycles":"{round(micro * CLOCK / 1e6)}"}}}}'
    return f"  %{name} = {BESIDE} multiply(%w, %w), {cycles}\n"


def permute(name: str, pairs: str, operand: str = "p") -> str:
    shape = f"({SHARD}, {SHARD}, u32[], u32[])"
    return f"  %{name} = {shape} collective-permute-start(%{operand}), source_target_pairs={pairs}\n"


def done(name: str, start: str) -> str:
    return f"  %{name} = {SHARD} collective-permute-done(%{start})\n"


PARAMETERS = f"  %p = {SHARD} parameter(0)\n  %w = {BESIDE} parameter(1)\n"


def obeys_the_laws(line: Timeline) -> None:
    step = line.step_seconds
    assert step == pytest.approx(line.compute_seconds + line.exposed_seconds + line.copy_wait_seconds)
    assert all(seconds <= step * (1 + 1e-12) for _, seconds in line.lanes)
    assert line.exposed_seconds <= line.transfer_seconds * (1 + 1e-12)
    assert 0 <= line.utilisation <= 1.0 + 1e-9
    assert all(-1e-9 <= share.hidden <= 1 for share in line.shares)
    sending = {span.name for span in line.spans if span.kind == "transfer" and span.collective is None}  # kernels
    waits = sum(span.seconds for span in line.spans if span.kind == "wait" and span.name in sending)
    assert sum(share.exposed_seconds for share in line.shares) + waits >= line.exposed_seconds * (1 - 1e-9)  # all have a cause
    end = step
    for span in line.critical_path:
        assert span.end_seconds == pytest.approx(end, abs=1e-12)
        end = span.start_seconds
    assert end == pytest.approx(0, abs=1e-12)
    assert sum(span.seconds for span in line.critical_path) == pytest.approx(step)
    for lane in {span.lane for span in line.spans}:
        ordered = sorted((s for s in line.spans if s.lane == lane), key=lambda s: (s.start_seconds, s.end_seconds))
        for first, second in itertools.pairwise(ordered):
            assert first.end_seconds <= second.start_seconds + 1e-12, f"{first} and {second} share {lane}"


def test_a_synchronous_gather_occupies_the_cores_and_both_directions():
    gather = f"  ROOT %g = bf16[72000000]{{0}} all-gather(%p), replica_groups={ALL}, dimensions={{0}}"
    line = replayed(PARAMETERS + busy("a", 50) + gather)
    expected = 144e6 * 15 / 16 / (2 * LINK)
    assert line.step_seconds == pytest.approx(50e-6 + expected)
    assert line.exposed_seconds == pytest.approx(expected)
    assert dict(line.lanes) == pytest.approx({"compute": 50e-6, "x+": expected, "x-": expected})
    assert line.shares[0].hidden == 0
    obeys_the_laws(line)


@pytest.mark.parametrize(("work", "exposed"), [(150, MOVE - 150e-6), (300, 0.0)])
def test_work_hides_an_asynchronous_permute(work: float, exposed: float):
    line = replayed(PARAMETERS + permute("s", UP) + busy("a", work) + done("d", "s"))
    assert line.exposed_seconds == pytest.approx(exposed)
    assert line.step_seconds == pytest.approx(max(work * 1e-6, MOVE))
    assert line.shares[0].hidden == pytest.approx(1 - exposed / MOVE)
    assert [span.name for span in line.critical_path] == (["s"] if exposed else ["a"])
    obeys_the_laws(line)


@pytest.mark.parametrize(("second", "expected"), [(UP, 2 * MOVE), (DOWN, MOVE)], ids=["same", "opposite"])
def test_permutes_queue_in_one_direction_and_pass_each_other_in_two(second: str, expected: float):
    line = replayed(PARAMETERS + permute("s", UP) + permute("t", second) + done("d", "s") + done("e", "t"))
    assert line.step_seconds == pytest.approx(expected)
    assert [span.name for span in line.critical_path] in (["t", "s"], ["s"], ["t"])
    assert sum(span.seconds for span in line.critical_path) == pytest.approx(expected)
    obeys_the_laws(line)


def test_what_a_wait_queues_behind_is_exposed_too():
    line = replayed(PARAMETERS + permute("s", UP) + permute("t", UP) + done("e", "t") + done("d", "s"))
    assert line.exposed_seconds == pytest.approx(2 * MOVE)
    assert [share.hidden for share in line.shares] == pytest.approx([0, 0])
    obeys_the_laws(line)


def test_on_a_line_a_ring_goes_back_over_all_links_unless_routes_say_better():
    pairs = [[f"{{{i},{(i + way) % 8}}}" for i in range(8)] for way in (1, -1)]
    up, down = ("{" + ",".join(way) + "}" for way in pairs)
    body = PARAMETERS + permute("s", up) + permute("t", down) + done("d", "s") + done("e", "t")
    line = replayed(body, mesh="x=8")
    assert line.step_seconds == pytest.approx(2 * (200e-6 + 7 * HOP))
    snake = {"x": Route(8, 2 * LINK, 4, True, "x a ring of 8, laid through 2 x 4")}
    ring = replayed(body, mesh="x=8", routes=snake)
    assert ring.step_seconds == pytest.approx(MOVE)
    assert "laid through 2 x 4" in ring.notes[0]
    tour = {"x": Route(8, 2 * LINK, 4, False, "x a line of 2 x line of 4")}  # round a grid and back to the start
    assert replayed(body, mesh="x=8", routes=tour).step_seconds == ring.step_seconds


def test_parts_of_an_axis_share_the_links_between_them():
    pairs = "{{0,4},{1,5},{2,6},{3,7}}"
    gather = f"  ROOT %g = bf16[9000000]{{0}} all-gather(%p), replica_groups={pairs}, dimensions={{0}}"
    line = replayed(PARAMETERS + gather, mesh="x=8")
    assert line.step_seconds == pytest.approx(4 * 18e6 / 2 / LINK)
    obeys_the_laws(line)


def test_a_shift_by_three_takes_three_times_the_bytes_of_each_link():
    far = "{" + ",".join(f"{{{i},{(i + 3) % N}}}" for i in range(N)) + "}"
    line = replayed(PARAMETERS + permute("s", far) + done("d", "s"))
    assert line.step_seconds == pytest.approx(3 * 200e-6 + 3 * HOP)
    assert [lane for lane, _ in line.lanes] == ["compute", "x+"]


LOOP = """
%body (s: (s32[], {shard})) -> (s32[], {shard}) {{
  %s = (s32[], {shard}) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %p = {shard} get-tuple-element(%s), index=1
  %w = {beside} constant(0)
  %one = s32[] constant(1)
  %j = s32[] add(%i, %one)
{start}{work}{done}  ROOT %r = (s32[], {shard}) tuple(%j, %d)
}}
%condition (s: (s32[], {shard})) -> pred[] {{
  %s = (s32[], {shard}) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %n = s32[] constant({trips})
  ROOT %c = pred[] compare(%i, %n), direction=LT
}}
"""
ENTRY = f"""  %p = {SHARD} parameter(0)
  %zero = s32[] constant(0)
  %t = (s32[], {SHARD}) tuple(%zero, %p)
  ROOT %while = (s32[], {SHARD}) while(%t), condition=%condition, body=%body"""


def loop(trips: int) -> Timeline:
    parts = {"start": permute("s0", UP), "work": busy("a", 50), "done": done("d", "s0"), "trips": trips}
    return replayed(ENTRY, LOOP.format(shard=SHARD, beside=BESIDE, **parts))


def test_a_loop_runs_all_of_its_trips():
    line = loop(5)
    scalars = line.compute_seconds - 5 * 50e-6
    assert 0 <= scalars < 1e-9
    assert line.step_seconds == pytest.approx(5 * MOVE, rel=1e-6)
    assert [span.trip for span in line.spans if span.name == "a"] == [0, 1, 2, 3, 4]
    assert line.shares[0].transfer_seconds == pytest.approx(5 * MOVE)
    obeys_the_laws(line)


def test_a_million_trips_are_counted_and_not_all_kept():
    line = loop(1_000_000)
    assert line.step_seconds == pytest.approx(1_000_000 * MOVE, rel=1e-6)
    assert len(line.spans) < 30_000
    assert any("trips are shown" in note for note in line.notes)
    assert "~" in str(line)
    obeys_the_laws(line)


def test_a_prefetch_travels_on_the_memory_lane_and_counts_one_end_in_main_memory():
    near = "bf16[4050000]{0:T(1024)S(1)}"
    copy = f"  %c = ({near}, bf16[4050000]{{0:T(1024)}}, u32[]{{:S(2)}}) copy-start(%q)\n"
    body = f"  %q = bf16[4050000]{{0:T(1024)}} parameter(2)\n{PARAMETERS}{copy}{busy('a', 4)}  ROOT %d = {near} copy-done(%c)"
    line = replayed(body)
    assert line.copy_wait_seconds == pytest.approx(10e-6 - 4e-6)
    assert line.exposed_seconds == 0
    assert dict(line.lanes)["memory"] == pytest.approx(8.1e6 / HBM)
    obeys_the_laws(line)


def test_without_cycles_a_roofline_speaks():
    dot = "  ROOT %d = bf16[4096,4096]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    arrays = "  %a = bf16[4096,4096]{1,0} parameter(0)\n  %b = bf16[4096,4096]{1,0} parameter(1)\n"
    line = replayed(arrays + dot, mesh="x=8", chip="h100")
    assert line.step_seconds == pytest.approx(2 * 4096**3 / 9.9e14)
    assert line.utilisation == pytest.approx(1)
    added = replayed(arrays + "  ROOT %d = bf16[4096,4096]{1,0} add(%a, %b)", mesh="x=8", chip="h100")
    assert added.step_seconds == pytest.approx(3 * 2 * 4096**2 / 3.35e12)


def test_a_transfer_that_nothing_waits_for_still_ends():
    line = replayed(PARAMETERS + permute("s", UP) + busy("a", 50))
    assert line.step_seconds == pytest.approx(MOVE)
    obeys_the_laws(line)


def test_a_loop_of_unknown_trips_runs_once_and_says_so():
    parts = {"start": permute("s0", UP), "work": busy("a", 50), "done": done("d", "s0"), "trips": 5}
    entry = ENTRY.replace("constant(0)", "parameter(1)")
    line = replayed(entry, LOOP.format(shard=SHARD, beside=BESIDE, **parts))
    assert line.step_seconds == pytest.approx(MOVE, rel=1e-6)
    assert any("trips are not known" in note for note in line.notes)


BATCHED = "window={size=4 stride=3 lhs_dilate=4}, dim_labels=0bf_0io->0bf"
LINE = "dim_labels=b0f_0io->b0f"
CONVOLUTIONS = [
    ("bf16[64,32]", "bf16[32,16]", "bf16[64,16]", "dim_labels=bf_io->bf", 2 * 64 * 32 * 16),
    # a batch of 4 over the first dimension, as TPU texts write it: 4 * 2 * 64 * 32 * 16
    ("bf16[4,64,32]", "bf16[4,32,16]", "bf16[4,64,16]", BATCHED, 2**18),
    # padding meets nothing: of 3 positions at 5 places the outer two miss one
    ("f32[1,5,1]", "f32[3,1,1]", "f32[1,5,1]", f"window={{size=3 pad=1_1}}, {LINE}", 2 * 13),
    ("f32[1,8,4]", "f32[3,1,4]", "f32[1,6,4]", f"window={{size=3}}, {LINE}, feature_group_count=4", 2 * 6 * 3 * 4),
]


@pytest.mark.parametrize(("lhs", "kernel", "out", "says", "flops"), CONVOLUTIONS)
def test_the_flops_of_a_convolution_are_those_of_the_pairs_that_meet(lhs, kernel, out, says, flops):
    text = f"HloModule m\nENTRY %e (a: f32[]) -> f32[] {{\n  %a = {lhs} parameter(0)\n  %b = {kernel} parameter(1)\n"
    module = read(f"{text}  ROOT %c = {out} convolution(%a, %b), {says}\n}}\n")
    assert module.entry is not None
    assert matmul_flops(module, module.entry.instructions[-1]) == flops


def test_a_vendors_matmul_counts_by_its_dot_dimension_numbers():
    numbers = '{"lhs_contracting_dimensions":["0"],"rhs_contracting_dimensions":["0"]}'
    config = f'"gemm_backend_config":{{"dot_dimension_numbers":{numbers}}}'
    text = "HloModule m\nENTRY %e (a: f32[]) -> f32[] {\n  %a = f32[32,64] parameter(0)\n  %b = f32[32,16] parameter(1)\n"
    call = f'custom-call(%a, %b), custom_call_target="__cublas$gemm", backend_config={{{config}}}'
    module = read(f"{text}  ROOT %c = (f32[64,16], s8[4194304]) {call}\n}}\n")
    assert flops_per_device(module, visits(module, survey(module), [])) == 2 * 64 * 16 * 32


def test_the_trace_is_one_that_perfetto_opens(tmp_path: Path):
    line = loop(3)
    line.save(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X"}
    threads = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert set(threads.values()) == {"compute", "x+"}
    whole = [event for event in events if event["ph"] == "X"]
    assert all(event["dur"] > 0 and event["ts"] >= 0 and event["tid"] in threads for event in whole)
    assert max(event["ts"] + event["dur"] for event in whole) == pytest.approx(line.step_seconds * 1e6)
    assert [event["args"]["bytes"] for event in whole if event["cat"] == "transfer"] == [9e6] * 3


def test_the_drawing_is_ascii_and_says_what_it_is():
    said = str(replayed(PARAMETERS + permute("s", UP) + busy("a", 50) + done("d", "s")))
    assert said.isascii()
    assert max(map(len, said.splitlines())) <= 100
    assert "modelled from the compiled schedule" in said
    rows = {row.split()[0]: row for row in said.splitlines()}
    assert rows["compute"].count(".") == pytest.approx(3 * rows["compute"].count("#"), rel=0.05)
    assert "assumed: torus: x a ring of 16; links of 4.5e+10 bytes/s each way; cycles at 1.5 GHz" in said


TEXTS = sorted((Path(__file__).parents[1] / "golden" / "texts").glob("**/*.txt.gz"))
CHIPS = {"v4": "tpu-v4", "v5e": "tpu-v5e", "v5p": "tpu-v5p", "v6e": "tpu-v6e", "tpu7x": "tpu-v7x", "h100": "h100", "cpu": "cpu"}


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: "-".join(path.parts[-3:])[: -len(".txt.gz")])
def test_every_golden_text_replays_by_the_laws(path: Path):
    chip = CHIPS[path.parent.name.split("-")[0]]
    index = path.with_name("index.json")
    name = path.name[: -len(".txt.gz")]
    mesh = Mesh.parse(json.loads(index.read_text())["programs"][name]["axes"] if index.exists() else "x=8")
    module = read(gzip.decompress(path.read_bytes()).decode())
    line = timeline(module, collectives(module, mesh).collectives, hardware(chip), mesh)
    assert line.step_seconds > 0
    assert line.matmul_flops == pytest.approx(flops_per_device(module, visits(module, survey(module), [])))
    assert str(line).isascii()
    obeys_the_laws(line)


def test_a_gpu_timeline_says_what_it_does_not_know_and_charges_matmuls_beside_a_transfer():
    chip = hardware("h100")
    arrays = "  %a = bf16[8192,8192]{1,0} parameter(0)\n  %b = bf16[8192,8192]{1,0} parameter(1)\n"
    start = (
        "  %s = (bf16[8192,8192]{1,0}, bf16[65536,8192]{1,0}) all-gather-start(%a), "
        "replica_groups={{0,1,2,3,4,5,6,7}}, dimensions={0}\n"
    )
    dot = "  %d = bf16[8192,8192]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
    done = "  ROOT %g = bf16[65536,8192]{1,0} all-gather-done(%s)"
    line = replayed(arrays + start + dot + done, mesh="x=8", chip="h100")
    alone = 2 * 8192**3 / 9.9e14
    assert line.transfer_seconds > chip.slowdown * alone  # it is on its way all the while
    assert line.compute_seconds == pytest.approx(chip.slowdown * alone)
    after = replayed(arrays + dot + start + done, mesh="x=8", chip="h100")
    assert after.compute_seconds == pytest.approx(alone)
    said = " ".join(line.notes)
    assert "GPU compilers tell no cycles" in said
    assert (
        "matmuls take 1.189 times as long while something is on its way (Characterizing Compute-Communication Overlap" in said
    )
