"""Findings: arrays judged one by one, wastes of a kind put together, the lines that are named. Small texts by hand."""

from __future__ import annotations

from typing import get_args

import pytest

from shardwise.chips import hardware
from shardwise.compiled.audit import Audit, audit_text
from shardwise.compiled.facts import Argument, Line
from shardwise.compiled.findings import ADVICE, Finding
from shardwise.compiled.table import MOST_FINDINGS, WIDTH, standing_out
from shardwise.compiled.wastes import Kind
from shardwise.mesh import Mesh


def audit(entry: str, *, before: str = "", tables: str = "", arguments: tuple[Argument, ...] = ()) -> Audit:
    lines = "\n".join(f"  {line.strip()}" for line in entry.strip().splitlines())
    head = "HloModule jit_step, is_scheduled=true, num_partitions=8"
    text = f"{head}\n\n{tables}\n{before}\nENTRY %main () -> f32[8] {{\n{lines}\n}}\n"
    chip = hardware("tpu-v5e")
    return audit_text(text, name="step", target="v5e:2x4", mesh=Mesh.parse("x=8"), hardware=chip, arguments=arguments)


GROUPS = "replica_groups=[1,8]<=[8]"
UPDATE = """
%update (g: f32[64], m: f32[8], i: u32[]) -> (f32[8], f32[8]) {
  %g = f32[64]{0} parameter(0)
  %m = f32[8]{0} parameter(1)
  %i = u32[] parameter(2)
  %n = f32[64]{0} negate(%g)
  %d = f32[8]{0} dynamic-slice(%n, %i), dynamic_slice_sizes={8}
  %s = f32[8]{0} add(%m, %d)
  %t = f32[8]{0} multiply(%s, %d)
  ROOT %r = (f32[8]{0}, f32[8]{0}) tuple(%s, %t)
}
"""
JOINED = f"""
%a = f32[64]{{0}} parameter(0)
%b = f32[32]{{0}} parameter(1)
%m = f32[8]{{0}} parameter(2)
%r = (f32[64]{{0}}, f32[32]{{0}}) all-reduce(%a, %b), {GROUPS}, to_apply=%add
%ra = f32[64]{{0}} get-tuple-element(%r), index=0
%rb = f32[32]{{0}} get-tuple-element(%r), index=1
%i = u32[] partition-id()
%u = (f32[8]{{0}}, f32[8]{{0}}) fusion(%ra, %m, %i), kind=kLoop, calls=%update
%u0 = f32[8]{{0}} get-tuple-element(%u), index=0
ROOT %out = (f32[8]{{0}}, f32[32]{{0}}) tuple(%u0, %rb)
"""


def test_of_a_joined_all_reduce_each_array_is_judged_also_through_a_fusion_of_several_results():
    of = audit(JOINED, before=UPDATE)
    assert of.collectives[0].sliced == (True, False)
    (finding,) = of.findings
    assert (finding.kind, finding.count, finding.wire_bytes) == ("reduced-then-sliced", 1, 64 * 4 * 7 / 8)
    assert "224 B too many: a" in finding.what


def test_a_part_cut_at_a_place_that_is_the_same_everywhere_is_not_a_devices_own():
    assert audit(JOINED.replace("partition-id()", "constant(0)"), before=UPDATE).collectives[0].sliced == (False, False)


def test_a_fusion_that_also_returns_the_whole_keeps_more_than_a_part():
    whole = UPDATE.replace("(f32[8]{0}, f32[8]{0}) tuple(%s, %t)", "(f32[8]{0}, f32[64]{0}) tuple(%s, %n)")
    used = JOINED.replace("index=0\nROOT", "index=0\n%u1 = f32[64]{0} get-tuple-element(%u), index=1\nROOT")
    used = used.replace("tuple(%u0, %rb)", "tuple(%u0, %rb, %u1)")
    assert audit(used, before=whole).collectives[0].sliced == (False, False)


# Lines. `matmul` of ops.py is called from two lines of train.py, `norm` from one; both by way of one line of layers.py.
TABLES = """
FileNames
1 "/home/ann/train.py"
2 "/home/ann/layers.py"
3 "/home/ann/ops.py"
4 "/usr/lib/python3.12/site-packages/jax/x.py"

FunctionNames
1 "f"

FileLocations
1 {file_name_id=1 function_name_id=1 line=88}
2 {file_name_id=1 function_name_id=1 line=90}
3 {file_name_id=2 function_name_id=1 line=10}
4 {file_name_id=3 function_name_id=1 line=23}
5 {file_name_id=3 function_name_id=1 line=40}
6 {file_name_id=4 function_name_id=1 line=7}

StackFrames
1 {file_location_id=1 parent_frame_id=0}
2 {file_location_id=2 parent_frame_id=0}
3 {file_location_id=3 parent_frame_id=1}
4 {file_location_id=3 parent_frame_id=2}
5 {file_location_id=4 parent_frame_id=3}
6 {file_location_id=4 parent_frame_id=4}
7 {file_location_id=6 parent_frame_id=6}
8 {file_location_id=5 parent_frame_id=1}

"""


def gather(name: str, of: str, frame: int, root: str = "") -> str:
    metadata = f'metadata={{op_name="jit(step)/gather" stack_frame_id={frame}}}'
    return f"{root}%{name} = f32[64]{{0}} all-gather(%{of}), {GROUPS}, dimensions={{0}}, {metadata}\n"


P = "%p = f32[8]{0} parameter(0)\n"


@pytest.mark.parametrize(
    ("frame", "place", "via"),
    [
        (5, "train.py:88", "ops.py:23"),  # by way of layers.py:10, which both have
        (7, "train.py:90", "ops.py:23"),  # a library's frame is none
        (8, "ops.py:40", ""),
    ],
)
def test_of_a_helper_that_is_called_from_several_lines_the_line_where_the_ways_part_comes_first(
    frame: int, place: str, via: str
):
    of = audit(P + gather("g", "p", frame, "ROOT "), tables=TABLES)
    assert of.collectives[0].line == Line(f"/home/ann/{place}", f"/home/ann/{via}" if via else "")
    said = f"{place} via {via}" if via else place
    assert any(line.rstrip().endswith(said) for line in str(of).splitlines())
    assert f"({said})" in str(of.findings[0])


def test_joined_collectives_name_the_lines_of_all_arrays():
    made = "\n".join(
        f'%{name} = f32[8]{{0}} negate(%p), metadata={{op_name="jit(step)/neg" stack_frame_id={frame}}}'
        for name, frame in (("a", 5), ("b", 8))
    )
    shape, metadata = "(f32[64]{0}, f32[64]{0})", 'metadata={op_name="jit(step)/gather" stack_frame_id=5}'
    of = audit(f"{P}{made}\nROOT %g = {shape} all-gather(%a, %b), {GROUPS}, dimensions={{0}}, {metadata}", tables=TABLES)
    assert [line.short for line in of.collectives[0].lines] == ["train.py:88 via ops.py:23", "ops.py:40"]
    assert "train.py:88 via ops.py:23, ops.py:40" in str(of)


# Many of one kind.


def test_wastes_of_one_kind_from_many_lines_are_one_finding_with_their_number_and_bytes():
    tables = 'FileNames\n1 "/home/ann/train.py"\n\nFunctionNames\n1 "f"\n\nFileLocations\n'
    tables += "".join(f"{n} {{file_name_id=1 function_name_id=1 line={n}}}\n" for n in range(1, 25)) + "\nStackFrames\n"
    tables += "".join(f"{n} {{file_location_id={n} parent_frame_id=0}}\n" for n in range(1, 25)) + "\n"
    each = [
        f'%r{n} = f32[{64 * n}]{{0}} all-reduce(%p{n}), {GROUPS}, to_apply=%add, metadata={{op_name="r" stack_frame_id={n}}}\n'
        f"%s{n} = f32[{8 * n}]{{0}} dynamic-slice(%r{n}, %i), dynamic_slice_sizes={{{8 * n}}}\n"
        for n in range(1, 25)
    ]
    taken = "".join(f"%p{n} = f32[{64 * n}]{{0}} parameter({n})\n" for n in range(1, 25))
    of = audit(f"%i = u32[] partition-id()\n{taken}{''.join(each)}", tables=tables)
    (finding,) = of.findings
    assert (finding.count, finding.wire_bytes, len(finding.lines)) == (24, 64 * 4 * 7 / 8 * sum(range(1, 25)), 24)
    assert finding.lines[0].short == "train.py:24"  # the most bytes first
    assert str(finding).splitlines()[0].endswith("(train.py:24, train.py:23, train.py:22, train.py:21 and 20 more)")


def test_a_few_lines_of_one_kind_are_told_apart():
    sliced = '%{0} = f32[64]{{0}} all-reduce(%p), {1}, to_apply=%add, metadata={{op_name="r" stack_frame_id={2}}}\n'
    cut = "%s{0} = f32[8]{{0}} dynamic-slice(%{0}, %i), dynamic_slice_sizes={{8}}\n"
    entry = "%i = u32[] partition-id()\n%p = f32[64]{0} parameter(0)\n"
    entry += "".join(sliced.format(name, GROUPS, frame) + cut.format(name) for name, frame in (("a", 5), ("b", 8), ("c", 8)))
    found = audit(entry, tables=TABLES).findings
    assert [(each.count, each.source) for each in found] == [
        (2, "/home/ann/ops.py:40"),
        (1, "/home/ann/train.py:88 via /home/ann/ops.py:23"),
    ]


def test_no_more_than_ten_findings_are_printed_and_the_rest_in_one_line():
    found = tuple(Finding("reduced-same", f"waste {n}", 1000.0, "", 5.0) for n in range(MOST_FINDINGS + 3))
    lines = list(standing_out(found))
    assert sum("waste" in line for line in lines) == 10
    assert lines[-1] == "  ... and 3 more, 3 kB on the wire, 15 B of memory (audit.findings, --json)"
    assert not any("more" in line for line in standing_out(found[:MOST_FINDINGS]))


def test_every_kind_has_its_advice():
    assert set(ADVICE) == set(get_args(Kind)) - {"uneven-layout"}


# Who holds what.


def test_a_sum_of_what_came_in_whole_is_told_and_of_what_came_in_parts_not():
    entry = f"%p = f32[8]{{0}} parameter(0)\nROOT %r = f32[8]{{0}} all-reduce(%p), {GROUPS}, to_apply=%add"
    whole, split = (audit(entry, arguments=(Argument("a", shape),)) for shape in ((8,), (64,)))
    assert [finding.kind for finding in whole.findings] == ["reduced-same"]
    assert "of what all 8 devices hold already: 56 B sent for nothing: float32[8]" in whole.findings[0].what
    assert not split.findings
    assert not audit(entry).findings  # how the argument is laid out is not known
    assert not audit(entry, arguments=(Argument("a", (8,), ("x",)),)).findings  # partial sums: whole, and not equal


def test_a_sum_of_what_a_device_makes_of_its_place_is_none_of_equal_numbers():
    entry = (
        f"%i = u32[] partition-id()\n%p = u32[] parameter(0)\n%s = u32[] add(%p, %i)\nROOT %r = u32[] all-reduce(%s), {GROUPS}"
    )
    assert not audit(entry, arguments=(Argument("a", ()),)).findings
    assert audit(entry.replace("partition-id()", "constant(3)"), arguments=(Argument("a", ()),)).findings


def test_arguments_are_called_as_the_function_calls_them():
    of = audit(
        P + gather("g", "p", 5, "ROOT "), tables=TABLES, arguments=(Argument("params['layers'][3]['wq']", (64,), ("x",)),)
    )
    assert "params['layers'][3]['wq']" in of.findings[0].what


def test_of_what_a_plan_gathers_parts_are_kept_for_a_reason():
    entry = P.replace("[8]", "[800]") + gather("g", "p", 5).replace("[64]", "[6400]")
    entry += "ROOT %s = f32[8]{0} slice(%g), slice={[0:8]}"
    assert "gathered-then-sliced" in [finding.kind for finding in audit(entry, tables=TABLES).findings]
    planned = TABLES.replace("/home/ann/ops.py", "/usr/lib/shardwise/runtime/lower.py")
    assert "gathered-then-sliced" not in [finding.kind for finding in audit(entry, tables=planned).findings]


def test_a_long_finding_stands_on_several_lines_below_its_number():
    found = (Finding("reduced-same", "an array " + "of many names " * 40, 1000.0, "write " + "this and that " * 40),)
    title, *lines = standing_out(found)
    assert title == "stands out"
    assert lines[0].startswith("  1. an array")
    assert max(map(len, lines)) <= WIDTH
    assert {len(line) - len(line.lstrip()) for line in lines[1:]} == {5, 7}
    assert " ".join(line.strip() for line in lines) == f"1. {' '.join(str(found[0]).split())}"
