"""The reader of compiled texts, on small texts written by hand: forms, groups, loops, lines, and what cannot be read."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.chips import hardware
from shardwise.compiled.audit import audit_text
from shardwise.compiled.facts import MADE_BY_THE_COMPILER
from shardwise.compiled.text import loops
from shardwise.compiled.text.groups import axes_of_groups, axes_of_pairs, parse_groups, parse_pairs
from shardwise.compiled.text.hlo import parse_instruction, read
from shardwise.compiled.text.loops import trip_count
from shardwise.compiled.text.reading import collectives
from shardwise.compiled.text.shapes import UnreadShapeError, leaves, parse
from shardwise.errors import CompiledTextError
from shardwise.mesh import Mesh

EIGHT = Mesh.parse("x=8")


def module(body: str, *, devices: int = 8, before: str = "", tables: str = "") -> str:
    """A scheduled module whose entry holds these lines."""
    head = f"HloModule jit_f, is_scheduled=true, num_partitions={devices}\n{tables}\n"
    lines = "\n".join(f"  {line.strip()}" for line in body.strip().splitlines())
    return f"{head}{before}\nENTRY %main (p: f32[4]) -> f32[4] {{\n  %p = f32[4]{{0}} parameter(0)\n{lines}\n}}\n"


def found(text: str, mesh: Mesh = EIGHT):
    reading = collectives(read(text), mesh)
    assert not reading.unread, reading.unread
    return reading.collectives


def one(text: str, mesh: Mesh = EIGHT):
    (collective,) = found(text, mesh)
    return collective


def unread(text: str, mesh: Mesh = EIGHT) -> str:
    return "\n".join(map(str, collectives(read(text), mesh).unread))


# Forms of the collectives.


@pytest.mark.parametrize(
    ("kind", "line", "sent"),
    [
        ("all-gather", "f32[32]{0} all-gather(%p), replica_groups=[1,8]<=[8], dimensions={0}", 16 * 7),
        ("all-reduce", "f32[4]{0} all-reduce(%p), replica_groups={}, to_apply=%add", 2 * 16 * 7 / 8),
        ("reduce-scatter", "f32[1]{0} reduce-scatter(%p), replica_groups=mesh['a'=8] {'a'}, dimensions={0}", 16 * 7 / 8),
        ("all-to-all", "f32[4]{0} all-to-all(%p), replica_groups={{0,1,2,3,4,5,6,7}}, dimensions={0}", 16 * 7 / 8),
        ("collective-permute", "f32[4]{0} collective-permute(%p), source_target_pairs={{0,1},{1,0}}", 16),
    ],
)
def test_each_kind_is_found_with_the_bytes_that_a_device_sends(kind: str, line: str, sent: float):
    collective = one(module(f"ROOT %c = {line}"))
    assert (collective.kind, collective.wire_bytes, collective.axes) == (kind, sent, ("x",))
    assert collective.trips == 1
    assert not collective.asynchronous


def test_an_asynchronous_pair_is_one_collective_overlapped_by_the_matmul_between():
    text = module("""
        %s = (f32[4]{0}, f32[32]{0}) all-gather-start(%p), replica_groups={}, dimensions={0}
        %d = f32[4]{0} dot(%p, %p), lhs_contracting_dims={}, rhs_contracting_dims={}
        ROOT %e = f32[32]{0} all-gather-done(%s)
    """)
    collective = one(text)
    assert (collective.asynchronous, collective.hidden_by, collective.end) == (True, ("d",), "e")
    assert (collective.shape, collective.wire_bytes) == ((32,), 112)


def test_a_matmul_after_the_end_overlaps_nothing():
    text = module("""
        %s = (f32[4]{0}, f32[32]{0}) all-gather-start(%p), replica_groups={}, dimensions={0}
        %e = f32[32]{0} all-gather-done(%s)
        ROOT %d = f32[4]{0} dot(%p, %p), lhs_contracting_dims={}, rhs_contracting_dims={}
    """)
    assert one(text).hidden_by == ()


def test_an_unscheduled_module_hides_nothing():
    text = module("""
        %s = (f32[4]{0}, f32[32]{0}) all-gather-start(%p), replica_groups={}, dimensions={0}
        %d = f32[4]{0} dot(%p, %p), lhs_contracting_dims={}, rhs_contracting_dims={}
        ROOT %e = f32[32]{0} all-gather-done(%s)
    """).replace("is_scheduled=true, ", "")
    assert one(text).hidden_by == ()


WRAPPED = """
%wrapped (q: f32[4]) -> f32[1] {
  %q = f32[4]{0} parameter(0)
  ROOT %r = f32[1]{0} reduce-scatter(%q), replica_groups={}, dimensions={0}, to_apply=%add
}
"""


def test_an_async_wrapped_call_is_one_collective():
    text = module(
        """
        %s = ((f32[4]{0}), f32[1]{0}) async-start(%p), calls=%wrapped
        %u = ((f32[4]{0}), f32[1]{0}) async-update(%s)
        %d = f32[4]{0} dot(%p, %p), lhs_contracting_dims={}, rhs_contracting_dims={}
        ROOT %e = f32[1]{0} async-done(%u)
        """,
        before=WRAPPED,
    )
    collective = one(text)
    assert (collective.kind, collective.name, collective.end, collective.hidden_by) == ("reduce-scatter", "s", "e", ("d",))


def test_a_call_that_is_given_its_array_later_starts_there():
    text = module(
        """
        %s = ((), (), s32[]) call-start(), to_apply=%wrapped
        %d = f32[4]{0} dot(%p, %p), lhs_contracting_dims={}, rhs_contracting_dims={}
        %u = ((f32[4]{0}), f32[1]{0}) call-update(%s, %d)
        ROOT %e = f32[1]{0} call-done(%u)
        """,
        before=WRAPPED,
    )
    collective = one(text)
    assert (collective.name, collective.end, collective.hidden_by, collective.asynchronous) == ("u", "e", (), True)


def test_the_fused_all_reduce_and_slice_is_a_reduce_scatter():
    fused = """
%all-reduce-scatter (q: f32[16]) -> f32[2] {
  %q = f32[16]{0} parameter(0)
  %r = f32[16]{0} all-reduce(%q), replica_groups={{0,1,2,3,4,5,6,7}}, to_apply=%add
  %i = u32[] partition-id()
  ROOT %s = f32[2]{0} dynamic-slice(%r, %i), dynamic_slice_sizes={2}
}
"""
    collective = one(module("ROOT %f = f32[2]{0} fusion(%p), kind=kCustom, calls=%all-reduce-scatter", before=fused))
    assert (collective.kind, collective.wire_bytes, collective.shape) == ("reduce-scatter", 64 * 7 / 8, (2,))


def test_an_all_reduce_of_which_a_part_is_kept_is_said_to_be_one():
    text = module("""
        %r = f32[16]{0} all-reduce(%p), replica_groups={}, to_apply=%add
        %i = u32[] partition-id()
        ROOT %s = f32[2]{0} dynamic-slice(%r, %i), dynamic_slice_sizes={2}
    """).replace("f32[4]{0} parameter", "f32[16]{0} parameter")
    collective = one(text)
    assert (collective.kind, collective.sliced) == ("all-reduce", (True,))


def test_an_all_reduce_that_is_also_used_whole_is_not_cut():
    text = module("""
        %r = f32[16]{0} all-reduce(%p), replica_groups={}, to_apply=%add
        %i = u32[] partition-id()
        %s = f32[2]{0} dynamic-slice(%r, %i), dynamic_slice_sizes={2}
        ROOT %t = f32[16]{0} add(%r, %r)
    """)
    assert one(text).sliced == (False,)


def test_joined_collectives_are_one_with_the_bytes_of_all():
    line = "ROOT %g = (f32[32]{0}, /*index=1*/f32[64]{0}) all-gather(%p, %q), replica_groups={}, dimensions={0}"
    collective = one(module(f"%q = f32[8]{{0}} copy(%p)\n{line}"))
    assert (collective.arrays, collective.wire_bytes, collective.shape) == (2, (16 + 32) * 7, (64,))


def test_a_ragged_all_to_all_sends_its_rows_and_not_where_they_go():
    text = module("""
        %rows = bf16[16,8]{1,0} copy(%p)
        %room = bf16[64,8]{1,0} copy(%p)
        %i = s32[8]{0} copy(%p)
        ROOT %r = bf16[64,8]{1,0} ragged-all-to-all(%rows, %room, %i, %i, %i, /*index=5*/%i), replica_groups={}
    """)
    collective = one(text)
    assert (collective.wire_bytes, collective.arrays, collective.shape) == (16 * 8 * 2 * 7 / 8, 1, (64, 8))
    assert collective.held == (("bfloat16", 128),)


# Axes.


@st.composite
def meshes_and_axes(draw: st.DrawFn) -> tuple[Mesh, tuple[str, ...]]:
    sizes = draw(st.lists(st.sampled_from([1, 2, 2, 3, 4]), min_size=1, max_size=4))
    mesh = Mesh(tuple(zip("xyzw", sizes, strict=False)))
    axes = tuple(name for name, size in mesh.axes if size > 1 and draw(st.booleans()))
    return mesh, axes


def groups_of(mesh: Mesh, axes: tuple[str, ...]) -> list[list[int]]:
    grid = np.arange(mesh.size).reshape([size for _, size in mesh.axes])
    inside = [mesh.names.index(axis) for axis in axes]
    outside = [place for place in range(grid.ndim) if place not in inside]
    return grid.transpose(outside + inside).reshape(-1, mesh.extent(axes)).tolist()


def iota_text(mesh: Mesh, axes: tuple[str, ...]) -> str:
    inside = [mesh.names.index(axis) for axis in axes]
    turn = [place for place in range(len(mesh.axes)) if place not in inside] + inside
    sizes = ",".join(str(size) for _, size in mesh.axes)
    n = mesh.extent(axes)
    return f"[{mesh.size // n},{n}]<=[{sizes}]T({','.join(map(str, turn))})"


def mesh_text(mesh: Mesh, axes: tuple[str, ...]) -> str:
    sizes = ",".join(f"'axis_{name}'={size}" for name, size in mesh.axes)
    joined = ",".join(f"'axis_{axis}'" for axis in axes)
    return f"mesh[{sizes}] {{{joined}}}"


@given(meshes_and_axes())
def test_axes_are_recovered_from_every_spelling_of_groups(case: tuple[Mesh, tuple[str, ...]]):
    mesh, axes = case
    listed = "{" + ",".join("{" + ",".join(map(str, group)) + "}" for group in groups_of(mesh, axes)) + "}"
    texts = [listed, iota_text(mesh, axes), *([mesh_text(mesh, axes)] if axes else [])]
    parsed = [parse_groups(text, mesh.size) for text in texts]
    assert {frozenset(map(frozenset, groups)) for groups in parsed} == {frozenset(map(frozenset, groups_of(mesh, axes)))}
    assert [axes_of_groups(groups, mesh) for groups in parsed] == [axes] * len(texts)


@given(meshes_and_axes(), st.randoms(use_true_random=False))
def test_groups_in_any_order_follow_the_same_axes(case: tuple[Mesh, tuple[str, ...]], random):
    mesh, axes = case
    groups = groups_of(mesh, axes)
    random.shuffle(groups)
    for group in groups:
        random.shuffle(group)
    assert axes_of_groups(tuple(map(tuple, groups)), mesh) == axes


@pytest.mark.parametrize(
    ("groups", "mesh", "axes"),
    [
        ("{{0,1},{2,3},{4,5},{6,7}}", "x=8", ("x:(4)2",)),
        ("{{0,4},{1,5},{2,6},{3,7}}", "x=8", ("x:(1)2",)),
        ("{{0,2},{1,3},{4,6},{5,7}}", "x=8", ("x:(2)2",)),
        ("{{0,1,4,5},{2,3,6,7}}", "x=4, y=2", ("x:(1)2", "y")),
        ("mesh['a'=8] {'a':(2)2}", "x=8", ("x:(2)2",)),
        ("mesh['a'=4,'b'=2], device_ids=([8]<=[2,4]T(1,0)) {'b'}", "x=2, y=4", ("x",)),
        ("mesh['a'=1,'b'=2,'c'=4], device_ids=([4,2]T(1,0)) {'b'}", "x=4, y=2", ("y",)),
        ("{{0,3},{1,2},{4,7},{5,6}}", "x=8", None),
        ("{{0,1,2},{3,4,5,6,7}}", "x=8", None),
        ("{{0,1}}", "x=8", None),
    ],
)
def test_parts_of_axes_are_named_and_what_follows_no_axis_is_not(groups: str, mesh: str, axes: object):
    parsed = parse_groups(groups, 8)
    assert parsed is not None
    assert axes_of_groups(parsed, Mesh.parse(mesh)) == axes


@given(meshes_and_axes(), st.integers(1, 5))
def test_a_shift_along_axes_together_is_seen_to_move_along_them(case: tuple[Mesh, tuple[str, ...]], shift: int):
    mesh, axes = case
    groups = groups_of(mesh, axes)
    pairs = [(group[i], group[(i + shift) % len(group)]) for group in groups for i in range(len(group))]
    shape = [size for _, size in mesh.axes]
    moved = {
        name
        for source, target in pairs
        for (name, _), a, b in zip(mesh.axes, np.unravel_index(source, shape), np.unravel_index(target, shape), strict=True)
        if a != b
    }
    text = "{" + ",".join(f"{{{a},{b}}}" for a, b in pairs) + "}"
    read_back = parse_pairs(text)
    assert read_back == tuple(pairs)
    assert set(axes_of_pairs(read_back, mesh) or ()) == moved <= set(axes)


def test_a_mesh_of_another_size_names_no_axes_and_says_so():
    text = module("ROOT %r = f32[4]{0} all-reduce(%p), replica_groups={}, to_apply=%add")
    assert "the mesh x=4 has 4 devices and the module 8" in unread(text, Mesh.parse("x=4"))


# Loops.

LOOP = """
%body (s: (s32[], f32[4])) -> (s32[], f32[4]) {{
  %s = (s32[], f32[4]{{0}}) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %step = s32[] constant({step})
  %next = s32[] add(%i, %step)
  %v = f32[4]{{0}} get-tuple-element(%s), index=1
  %r = f32[4]{{0}} all-reduce(%v), replica_groups={{}}, to_apply=%add
  ROOT %t = (s32[], f32[4]{{0}}) tuple(%next, %r)
}}

%cond (s.1: (s32[], f32[4])) -> pred[] {{
  %s.1 = (s32[], f32[4]{{0}}) parameter(0)
  %i.1 = s32[] get-tuple-element(%s.1), index=0
  %limit = s32[] constant({limit})
  ROOT %c = pred[] compare(%i.1, %limit), direction={direction}
}}
"""
TURNS = """
%first = s32[] constant({first})
%start = (s32[], f32[4]{{0}}) tuple(%first, %p)
%w = (s32[], f32[4]{{0}}) while(%start), condition=%cond, body=%body
ROOT %o = f32[4]{{0}} get-tuple-element(%w), index=1
"""


def loop(first: int, limit: int, step: int, direction: str) -> str:
    before = LOOP.format(step=step, limit=limit, direction=direction)
    return module(TURNS.format(first=first), before=before)


@given(st.integers(-50, 50), st.integers(0, 100_000), st.integers(1, 7), st.sampled_from(["LT", "LE", "GT", "GE", "NE"]))
def test_trips_are_worked_out_from_condition_start_and_step(first: int, span: int, step: int, direction: str):
    sign = -1 if direction in ("GT", "GE") else 1
    span = span // step * step if direction == "NE" else span
    limit = first + sign * span
    trips = len(range(first, limit + (sign if direction in ("LE", "GE") else 0), sign * step))
    collective = one(loop(first, limit, sign * step, direction))
    assert (collective.trips, collective.wire_bytes) == (trips, trips * 28)


@pytest.mark.parametrize(("step", "direction"), [(0, "LT"), (-1, "LT"), (2, "NE")])
def test_a_loop_that_would_not_end_is_unread(step: int, direction: str):
    text = loop(0, 5, step, direction)
    assert "the trips of this loop are not known" in unread(text)
    assert collectives(read(text), EIGHT).collectives[0].trips is None


def test_the_compilers_own_note_of_trips_is_taken():
    text = loop(0, 5, 0, "LT").replace("body=%body", 'body=%body, backend_config={"known_trip_count":{"n":"12"}}')
    assert one(text).trips == 12


def test_trips_of_a_start_that_is_an_argument_are_unread():
    text = loop(0, 5, 1, "LT").replace("%first = s32[] constant(0)", "%first = s32[] parameter(1)")
    assert "the trips of this loop are not known" in unread(text)


def test_trips_multiply_in_nested_loops():
    outer = LOOP.format(step=1, limit=3, direction="LT").replace("%body", "%outer").replace("%cond", "%outcond")
    outer = outer.replace(
        "%r = f32[4]{0} all-reduce(%v), replica_groups={}, to_apply=%add",
        "%zero = s32[] constant(0)\n  %in = (s32[], f32[4]{0}) tuple(%zero, %v)\n"
        "  %w = (s32[], f32[4]{0}) while(%in), condition=%cond, body=%body\n  %r = f32[4]{0} get-tuple-element(%w), index=1",
    )
    before = LOOP.format(step=1, limit=5, direction="LT") + outer
    body = TURNS.format(first=0).replace("%cond", "%outcond").replace("%body", "%outer")
    assert one(module(body, before=before)).trips == 15


def test_counting_a_long_loop_takes_no_time():
    long = read(loop(0, 10**15, 1, "LT"))
    assert long.entry is not None
    while_loop = next(i for i in long.entry.instructions if i.opcode == "while")
    assert trip_count(long, long.entry, while_loop) == 10**15


def test_trips_are_worked_out_once_and_of_what_may_be_integers_alone(monkeypatch: pytest.MonkeyPatch):
    worked: list[str] = []
    apply = loops._Evaluator._apply
    monkeypatch.setattr(loops._Evaluator, "_apply", lambda self, i, given: worked.append(i.name) or apply(self, i, given))
    chain = "\n".join(f"%c{n + 1} = f32[4]{{0}} copy(%c{n})" for n in range(500))
    body = f"%c0 = f32[4]{{0}} copy(%p)\n{chain}\n{TURNS.format(first=0).replace('%p', '%c500')}"
    text = module(body, before=LOOP.format(step=1, limit=100, direction="LT"))
    program = read(text)
    assert collectives(program, EIGHT).collectives[0].trips == 100
    before = len(worked)
    assert {"first", "c500"} <= set(worked)
    assert before < 400
    assert "c499" not in worked
    assert collectives(program, EIGHT).collectives[0].trips == 100
    assert len(worked) == before


# Lines.

TABLES = """
FileNames
1 "/home/me/train.py"
2 "/opt/lib/python3.12/site-packages/flax/linen.py"
3 "/home/me/src/shardwise/runtime/lower.py"

FunctionNames
1 "step"
2 "apply"

FileLocations
1 {{file_name_id=1 function_name_id=1 line=14 end_line=14 column=2 end_column=9}}
2 {{file_name_id=2 function_name_id=2 line=300 end_line=300 column=2 end_column=9}}
3 {{file_name_id=3 function_name_id=2 line=40 end_line=40 column=2 end_column=9}}

StackFrames
1 {{file_location_id=1{first}}}
2 {{file_location_id=2 parent_frame_id={parent}}}
3 {{file_location_id=3 parent_frame_id={parent}}}
"""


@pytest.mark.parametrize(("first", "parent"), [("", 1), (" parent_frame_id=0", 1), (" parent_frame_id=1", 2)])
@pytest.mark.parametrize("frame", [1, 2, 3])
def test_the_line_is_the_innermost_of_the_users_own(first: str, parent: int, frame: int):
    line = f'ROOT %r = f32[4]{{0}} all-reduce(%p), replica_groups={{}}, metadata={{op_name="a/b" stack_frame_id={frame}}}'
    collective = one(module(line, tables=TABLES.format(first=first, parent=parent)))
    assert (collective.source, collective.op_name, collective.inferred) == ("/home/me/train.py:14", "a/b", False)


def test_an_older_text_names_file_and_line_itself():
    line = 'ROOT %r = f32[4]{0} all-reduce(%p), replica_groups={}, metadata={op_name="n" source_file="m.py" source_line=7}'
    assert one(module(line)).source == "m.py:7"


def test_a_collective_without_a_line_has_that_of_what_it_takes_or_nearby():
    text = module(
        """
        %d = f32[4]{0} dot(%p, %p), metadata={op_name="dot" stack_frame_id=1}
        ROOT %r = f32[4]{0} all-reduce(%d), replica_groups={}, to_apply=%add
        """,
        tables=TABLES.format(first="", parent=1),
    )
    collective = one(text)
    assert (collective.source, collective.inferred) == ("/home/me/train.py:14", True)


def test_a_collective_with_no_line_anywhere_is_the_compilers():
    assert one(module("ROOT %r = f32[4]{0} all-reduce(%p), replica_groups={}")).source == MADE_BY_THE_COMPILER


# What cannot be read.


@pytest.mark.parametrize(("text", "what"), [
    ("", "the text is empty"), ("  \n\n", "the text is empty"), ("hello", "begins with 'HloModule'"),
    ("module @jit_f {}", "this text with 'module @jit_f {}'"),
])  # fmt: skip
def test_what_is_no_module_is_refused(text: str, what: str):
    with pytest.raises(CompiledTextError, match=what):
        read(text)


def test_an_empty_module_has_no_entry_and_says_so():
    assert "no ENTRY computation" in unread("HloModule nothing\n", Mesh(()))


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("ROOT %r = q7[4]{0} all-reduce(%x), replica_groups={}", "dtype q7"),
        ("ROOT %r = f32[4]{0} all-reduce(%p), replica_groups=<future>", "its groups cannot be read"),
        ("ROOT %r = f32[4]{0} all-reduce(%p), replica_groups={{0,5},{1,2},{3,4},{6,7}}", "follow no axes"),
        ("ROOT %r = f32[4]{0} all-reduce(%nowhere), replica_groups={}", "an operand of it is not found"),
        ("ROOT %r = f32[4]{0} all-gather-and-sort(%p), replica_groups={}", "may be a collective"),
        ("ROOT %r = f32[4]{0} collective-sum-start(%p)", "may be a collective"),
        ("%s = (f32[4]{0}, u32[], token[]) send(%p, %t), channel_id=1", "point-to-point"),
        ('%k = f32[4]{0} custom-call(%p), backend_config={"custom_call_config":{"has_communication":true}}', "by itself"),
        ("ROOT %r = f32[4] all-reduce %p", "no instruction looks like this"),
        ("ROOT %r = f32[4]{0} all-reduce(%p", "no instruction looks like this"),
        ("%w = f32[4]{0} while(%p), condition=%gone, body=%lost", "there is no computation"),
        ("%c = f32[4]{0} collective-permute(%p, %p, %i, %i), source_target_pairs={{0,1}}, slice_sizes={{2}}", "moves slices"),
    ],
)
def test_what_cannot_be_read_is_listed_as_unread(line: str, why: str):
    assert why in unread(module(line))


KERNEL = """
%k = f32[4]{0} custom-call(%p), custom_call_target="tpu_custom_call", frontend_attributes={kernel_metadata={
"xprof_metadata":"{\\"block_q\\": 128, \\"open\\": \\"{\\"}"
}}, metadata={op_name="jit(f)/pallas_call" stack_frame_id=9}
%g = f32[32]{0} all-gather(%k), replica_groups=[1,8]<=[8], dimensions={0}
ROOT %s = f32[4]{0} slice(%g), slice={[0:4]}
"""


def test_an_instruction_over_several_lines_is_one():
    text = module(KERNEL).replace('  "xprof', '"xprof').replace("  }}, metadata", "}}, metadata")
    read_whole = read(text)
    assert [each.opcode for each in read_whole.entry.instructions] == ["parameter", "custom-call", "all-gather", "slice"]
    assert read_whole.entry.instructions[1].attribute("metadata") == '{op_name="jit(f)/pallas_call" stack_frame_id=9}'
    assert one(text).kind == "all-gather"


OUTER = """
%outer (o: f32[4]) -> f32[1] {
  %o = f32[4]{0} parameter(0)
  ROOT %oc = f32[1]{0} call(%o), to_apply=%wrapped
}
"""


@pytest.mark.parametrize(
    "body",
    [
        "%s = ((f32[4]{0}), f32[1]{0}) async-start(%p), calls=%outer\nROOT %e = f32[1]{0} async-done(%s)",
        "ROOT %s = f32[1]{0} call(%p), to_apply=%outer",
        'ROOT %s = f32[1]{0} custom-call(%p), custom_call_target="x", called_computations={%outer}',
        'ROOT %s = f32[1]{0} fusion(%p), metadata={op_name="a(b{c, calls=%x"},\n  calls=%wrapped, kind=kCustom',
        'ROOT %s = f32[1]{0} fusion(%p), frontend_attributes={m="}",\nn="{"}, calls=%wrapped, kind=kCustom',
        "// a comment (of nobody\nROOT %s = f32[1]{0} fusion(%p), kind=kCustom, calls=%wrapped",
        "ROOT %s = (f32[1]{0},\n  /*index=1*/f32[4]{0}) fusion(%p,\n  /*index=1*/%p), calls=%wrapped",
    ],
    ids=["asynchronous-call", "call-of-call", "custom-call", "split", "quoted-brackets", "comment", "split-operands"],
)
@pytest.mark.parametrize("marked", [True, False], ids=["percent", "bare"])
def test_a_collective_is_found_however_the_text_runs_it(body: str, marked: bool):
    text = module(body, before=WRAPPED + OUTER)
    collective = one(text if marked else text.replace("%", ""))
    assert (collective.kind, collective.wire_bytes, collective.trips) == ("reduce-scatter", 14, 1)


def test_what_an_instruction_takes_and_calls_is_read_once():
    instruction = parse_instruction("%f = f32[4]{0} fusion(%p, %q), kind=kLoop, calls=%inner")
    assert instruction is not None
    assert instruction.operands is instruction.operands
    assert instruction.operands == ["p", "q"]
    assert instruction.called() is instruction.called()
    assert instruction.called() == [("calls", "inner")]


def test_operands_without_marks_are_told_from_their_comments():
    line = "ROOT g = (f32[32]{0}, /*index=1*/f32[64]{0}) all-gather(p, /*index=1*/q), replica_groups={}, dimensions={0}"
    assert one(module(f"q = f32[8]{{0}} copy(p)\n{line}").replace("%", "")).wire_bytes == (16 + 32) * 7


def test_an_instruction_that_nothing_closes_ends_at_the_next_and_is_unread():
    text = module(KERNEL.replace("}}, metadata", "}, metadata").replace('"xprof', "%x = f32[4]{0} add(%p, %p)\n"))
    assert "this instruction has no end" in unread(text)
    assert "all-gather" in [each.opcode for each in read(text).entry.instructions]


def test_while_anything_is_unread_counts_are_lower_bounds_and_no_time_is_told():
    body = "%g = f32[32]{0} all-gather(%p), replica_groups=[1,8]<=[8], dimensions={0}\nthis is no instruction"
    chip = hardware("tpu-v5e")
    audited = audit_text(module(body), name="f", target="v5e:2x4", mesh=EIGHT, hardware=chip)
    assert str(audited).startswith("f on v5e:2x4, mesh x=8: at least 1 collective, each device sends at least 112 B a call")
    assert "time " not in str(audited)
    whole = audit_text(module(body.splitlines()[0]), name="f", target="v5e:2x4", mesh=EIGHT, hardware=chip)
    assert "at least" not in str(whole)
    assert "time " in str(whole)


def test_groups_on_a_mesh_in_an_order_of_its_own_are_read_from_an_instruction():
    groups = "mesh['axis_0'=1,'axis_1'=2,'axis_2'=4], device_ids=([4,2]T(1,0)) {'axis_2'}"
    line = f"%a = f32[4]{{0}} all-to-all(%p), channel_id=1, replica_groups={groups}, dimensions={{0}}"
    found = one(module(line), Mesh.parse("x=4, y=2"))
    assert (found.axes, found.wire_bytes) == (("x",), 16 * 3 / 4)


def test_a_collective_that_nothing_known_runs_is_not_dropped():
    text = module("ROOT %z = f32[1]{0} conjure(%p), spell=%wrapped", before=WRAPPED)
    assert "wrapped" in unread(text)
    assert "nothing that is known runs it" in unread(text)


def test_an_operation_of_the_future_that_is_no_collective_disturbs_nothing():
    assert found(module("ROOT %z = f32[4]{0} quantum-sort(%p), qubits={1,{2,3}}")) == ()


def test_branches_are_counted_each_and_said_to_be_unknown():
    branch = WRAPPED.replace("%wrapped", "%other")
    line = "ROOT %c = f32[1]{0} conditional(%i, %p, %p), branch_computations={%wrapped, %other}"
    reading = collectives(read(module(f"%i = s32[] constant(0)\n{line}", before=WRAPPED + branch)), EIGHT)
    assert len(reading.collectives) == 2
    assert "which branch runs is not known" in str(reading.unread[0])


def test_calls_in_a_circle_end():
    circle = "%a (q: f32[4]) -> f32[4] {\n  ROOT %q = f32[4]{0} call(%q), to_apply=%a\n}\n"
    assert "nested deeper" in unread(module("ROOT %c = f32[4]{0} call(%p), to_apply=%a", before=circle))


def test_a_text_of_many_lines_is_read_in_seconds():
    line = '  %x.{} = f32[4]{{0}} add(%p, %p), metadata={{op_name="jit(f)/add"}}\n'
    body = "".join(line.format(number) for number in range(300_000))
    text = module("ROOT %r = f32[4]{0} all-reduce(%p), replica_groups={}").replace("  ROOT", body + "  ROOT")
    started = time.process_time()
    assert len(found(text)) == 1
    assert time.process_time() - started < 20  # a guard against more than linear work, not a benchmark


# Shapes and instructions.


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("f32[]", 4), ("bf16[8,512]{1,0:T(8,128)(2,1)S(1)}", 8192), ("(f32[2], (u8[3], pred[]))", 12), ("s4[3]{0:E(4)}", 2),
        ("f8e4m3fn[16]", 16), ("token[]", 0), ("f32[<=8,4]", 128), ("()", 0), ("(f32[2]{0}, /*index=5*/f32[3]{0})", 20),
    ],
)  # fmt: skip
def test_shapes_have_their_bytes(text: str, size: int):
    assert sum(leaf.bytes for leaf in leaves(parse(text))) == size


@pytest.mark.parametrize("text", ["", "f32", "f32[", "f32[a]", "future32[4]", "(f32[4]", "f32[4]) "])
def test_what_is_no_shape_is_unread(text: str):
    with pytest.raises(UnreadShapeError):
        parse(text)


@given(st.text(max_size=200))
def test_no_line_breaks_the_reader(line: str):
    module = read("HloModule m\n\nENTRY %e (p: f32[4]) -> f32[4] {\n  " + line + "\n}\n")
    assert module.entry is not None
    first = line.split("\n")[0].strip()
    is_comment = first.startswith("//")
    assert module.entry.instructions or module.unread or is_comment or not first  # read, or said to be unread
    assert (parse_instruction("  " + line) is not None) <= (bool(module.entry.instructions) or "\n" in line)


@given(st.lists(st.integers(1, 9), max_size=4), st.sampled_from(["f32", "bf16", "s8", "c128"]))
def test_a_shape_has_the_product_of_its_dimensions(dims: list[int], dtype: str):
    item = {"f32": 4, "bf16": 2, "s8": 1, "c128": 16}[dtype]
    (array,) = leaves(parse(f"{dtype}[{','.join(map(str, dims))}]"))
    assert array.bytes == item * math.prod(dims)
