"""From operations to a timeline, on traces made by hand; and operations from planes as CPU, GPU and TPU write them."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.chips import hardware
from shardwise.compiled.audit import audit_text
from shardwise.errors import MeasureError
from shardwise.measure.traced import Op, measured_timeline, union
from shardwise.mesh import Mesh
from shardwise.pictures.lanes import beside
from shardwise.schedule.chrome import trace
from shardwise.schedule.timeline import MEASURED

TEXT = """HloModule jit_f, is_scheduled=true, num_partitions=2
%body (p: (s32[], f32[4,4])) -> (s32[], f32[4,4]) {
  %p = (s32[], f32[4,4]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %x = f32[4,4]{1,0} get-tuple-element(%p), index=1
  %dot.2 = f32[4,4]{1,0} dot(%x, %x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  ROOT %t = (s32[], f32[4,4]{1,0}) tuple(%next, %dot.2)
}
%cond (p: (s32[], f32[4,4])) -> pred[] {
  %p.1 = (s32[], f32[4,4]{1,0}) parameter(0)
  %i.1 = s32[] get-tuple-element(%p.1), index=0
  %n = s32[] constant(3)
  ROOT %less = pred[] compare(%i.1, %n), direction=LT
}
ENTRY %main (a: f32[4,4]) -> f32[8,4] {
  %a = f32[4,4]{1,0} parameter(0)
  %zero = s32[] constant(0)
  %start = (f32[4,4]{1,0}, f32[8,4]{1,0}) all-gather-start(%a), replica_groups={{0,1}}, dimensions={0}, metadata={op_name="S1"}
  %dot.1 = f32[4,4]{1,0} dot(%a, %a), lhs_contracting_dims={1}, rhs_contracting_dims={0},metadata={op_name="PRODUCT"}
  %init = (s32[], f32[4,4]{1,0}) tuple(%zero, %dot.1)
  %loop = (s32[], f32[4,4]{1,0}) while(%init), condition=%cond, body=%body
  ROOT %done = f32[8,4]{1,0} all-gather-done(%start)
}
""".replace("S1", "jit(f)/shardwise/1 all-gather A/all_gather").replace("PRODUCT", "jit(f)/shardwise/2 einsum C/dot_general")
MESH = Mesh.parse("x=2")
AUDIT = audit_text(TEXT, name="f", target="v5e:2", mesh=MESH, hardware=hardware("tpu-v5e"))


def op(name: str, start: float, seconds: float, device: int = 0, line: str = "", **other: object) -> Op:
    return Op(name, device, line, start, seconds, **other)  # type: ignore[arg-type]


def call(start: float = 0.0, device: int = 0, **other: object) -> list[Op]:
    """Gathers while it multiplies for 2 s and three trips of 1 s each in a loop of 4 s; waits for 1 s at the end."""
    found = [("start", 0, 0.0), ("dot.1", 0, 2), ("loop", 2, 4), ("done", 6, 1), *(("dot.2", 2 + trip, 1) for trip in range(3))]
    return [op(name, start + begin, seconds, device, **other) for name, begin, seconds in found]


def test_what_a_device_did():
    line = measured_timeline(call(), "f", "two", AUDIT)
    assert (line.step_seconds, line.compute_seconds, line.transfer_seconds) == (7.0, 5.0, 7.0)
    assert line.exposed_seconds == 2.0  # between the last trip and the end of the loop, and at the end
    assert line.origin == MEASURED
    (share,) = line.shares
    assert (share.collective.kind, share.collective.axes, share.hidden) == ("all-gather", ("x",), pytest.approx(5 / 7))
    trips = [span for span in line.spans if span.name == "dot.2"]
    assert [span.trip for span in trips] == [0, 1, 2]
    assert {span.kind for span in trips} == {"matmul"}
    assert not [span for span in line.spans if span.name == "loop"]
    assert next(span.line for span in line.spans if span.name == "dot.1") == "step 2 einsum C"
    assert next(span.line for span in line.spans if span.kind == "transfer") == "step 1 all-gather A"
    assert "idle 0.0 us" in str(line)


def test_devices_are_averaged_and_each_has_its_lanes():
    late = call(1.0, device=1)
    line = measured_timeline([*call(), *late], "f", "two", AUDIT)
    assert (line.step_seconds, line.compute_seconds, line.exposed_seconds) == (8.0, 5.0, 2.0)
    assert [lane for lane, _ in line.lanes] == ["0 compute", "0 transfers", "1 compute", "1 transfers"]
    assert "means over 2 devices" in str(line)


def test_of_several_calls_the_one_of_median_length_is_told():
    calls = [*call(run=1), *call(10, run=2), op("dot.1", 16.5, 1, run=2), *call(30, run=3)[:2]]
    assert measured_timeline(calls, "f", "two", AUDIT).step_seconds == 7.0


@pytest.mark.parametrize(
    ("ops", "module", "message"),
    [
        ([], None, "the trace holds no operation of a compiled program"),
        ([op("fusion.7", 0, 1, module="jit_g")], None, "the trace is of another program: it holds jit_g"),
        (call(module="jit_f"), "jit_g", "the trace holds no program jit_g: it holds jit_f"),
    ],
)
def test_what_is_no_trace_of_the_program_is_told(ops, module, message):
    with pytest.raises(MeasureError, match=message):
        measured_timeline(ops, "f", "two", AUDIT, module)


def test_without_the_compiled_text_names_tell():
    names = ("all-gather-start.1", "convolution.3", "all-gather-done.1", "psum_scatter.4", "fusion.9")
    ops = [
        op(name, number, 1, op_name="jit(f)/shardwise/3 reduce-scatter C/x" * (number == 3))
        for number, name in enumerate(names)
    ]
    line = measured_timeline(ops, "f", "somewhere")
    assert [(s.collective.kind, s.transfer_seconds, s.exposed_seconds) for s in line.shares] == [
        ("all-gather", 3.0, 2.0),
        ("reduce-scatter", 1.0, 1.0),
    ]
    assert [span.name for span in line.spans if span.kind == "matmul"] == ["convolution.3"]
    assert next(span.line for span in line.spans if span.name == "psum_scatter.4") == "step 3 reduce-scatter C"


def test_two_under_way_share_what_is_exposed():
    """One transfer from 0 to 4, another from 1 to 3, work from 0 to 2: of 2 exposed seconds each explains one."""
    ops = [op("ppermute-start.1", 0, 0), op("dot.1", 0, 2), op("ppermute-start.2", 1, 0, line="b"),
           op("ppermute-done.2", 2, 1), op("ppermute-done.1", 3, 1)]  # fmt: skip
    line = measured_timeline(ops, "f", "somewhere")
    assert line.exposed_seconds == 2.0
    assert [share.exposed_seconds for share in line.shares] == [1.0, 1.0]


@given(
    st.lists(
        st.tuples(st.sampled_from(["dot", "ppermute", "fusion", "all-gather"]), st.integers(0, 20), st.integers(1, 6)),
        min_size=1, max_size=12,
    ),
    st.integers(1, 3),
)  # fmt: skip
def test_shares_sum_rightly(drawn, devices):
    """On lanes of their own: exposed is what transfers cover and work does not, and the shares are its parts."""
    ops = [op(f"{name}.{number}", start, seconds, device, f"line {number}")
           for device in range(devices) for number, (name, start, seconds) in enumerate(drawn)]  # fmt: skip
    line = measured_timeline(ops, "f", "somewhere")
    busy = {second for name, start, seconds in drawn if name in ("dot", "fusion") for second in range(start, start + seconds)}
    moving = {
        second for name, start, seconds in drawn if name not in ("dot", "fusion") for second in range(start, start + seconds)
    }
    assert line.compute_seconds == pytest.approx(len(busy))
    assert line.exposed_seconds == pytest.approx(len(moving - busy))
    assert sum(share.exposed_seconds for share in line.shares) == pytest.approx(line.exposed_seconds)
    assert sum(share.transfer_seconds for share in line.shares) == pytest.approx(line.transfer_seconds)
    assert all(-1e-9 <= share.hidden <= 1 for share in line.shares)
    assert line.compute_seconds + line.exposed_seconds <= line.step_seconds + 1e-9
    assert all(span.seconds >= 0 and span.end_seconds <= line.step_seconds + 1e-9 for span in line.spans)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9)), max_size=10))
def test_a_union_covers_the_same_without_overlap(drawn):
    intervals = [(start, start + length) for start, length in drawn]
    found = union(intervals)
    assert {s for a, b in found for s in range(int(a), int(b))} == {s for a, b in intervals for s in range(a, b)}
    assert all(one[1] < other[0] for one, other in itertools.pairwise(found))


def test_modelled_and_measured_stand_in_one_picture_and_one_file():
    modelled, measured = AUDIT.timeline(), measured_timeline(call(), "f", "two", AUDIT)
    picture = beside([modelled, measured])
    text = str(picture)
    assert "modelled: compute" in text
    assert "measured: 0 transfers" in text
    file = trace(modelled, measured)
    titles = [event["args"]["name"] for event in file["traceEvents"] if event["name"] == "process_name"]
    assert [title.rpartition(": ")[2] for title in titles] == ["modelled from the compiled schedule", "measured"]
    assert {event["pid"] for event in file["traceEvents"]} == {1, 2}
    assert [share.collective for share in modelled.shares] == [share.collective for share in measured.shares]
