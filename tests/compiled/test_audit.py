"""An audit of a text: what stands out, the assertions, the table. Small texts by hand, and the golden ones."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from shardwise.chips import hardware
from shardwise.compiled.audit import Audit, audit_text
from shardwise.compiled.facts import MemoryUse
from shardwise.errors import AuditMismatchError, HardwareError, ShardwiseError
from shardwise.mesh import Mesh

GOLDEN = Path(__file__).parents[1] / "golden" / "texts"


def audit(
    body: str, *, mesh: str = "x=4, y=2", before: str = "", memory: MemoryUse | None = None, needed: float | None = None
) -> Audit:
    lines = "\n".join(f"  {line.strip()}" for line in body.strip().splitlines())
    text = (
        f"HloModule jit_step, is_scheduled=true, num_partitions={Mesh.parse(mesh).size}\n\n{before}\n"
        "ENTRY %main (p: f32[8,8]) -> f32[8,8] {\n"
        "  %p = f32[8,8]{1,0} parameter(0), metadata={op_name=\"weights[\\'w\\']\"}\n"
        f"{lines}\n}}\n"
    )
    return audit_text(
        text, name="step", target="v5e:2x4", mesh=Mesh.parse(mesh), hardware=hardware("tpu-v5e"), memory=memory, needed=needed
    )


def golden(name: str, mesh: str = "x=8") -> Audit:
    text = gzip.decompress((GOLDEN / f"{name}.txt.gz").read_bytes()).decode()
    return audit_text(text, name=name.rsplit("/", 1)[1], target="v5e:2x4", mesh=Mesh.parse(mesh), hardware=hardware("tpu-v5e"))


GATHER_X = "f32[32,8]{1,0} all-gather(%p), replica_groups=[2,4]<=[4,2]T(1,0), dimensions={0}"
REDUCE_Y = "f32[8,8]{1,0} all-reduce(%p), replica_groups=[4,2]<=[8], to_apply=%add"

# What stands out.


def found(of: Audit) -> str:
    return "\n".join(map(str, of.findings))


def test_a_gather_that_undoes_the_sharding_of_an_argument_names_it():
    said = found(audit(f"ROOT %g = {GATHER_X}"))
    assert "1 argument comes in split over x and is gathered whole, 768 B received: weights['w']" in said
    assert "FSDP" in said


def test_arguments_gathered_over_the_same_axes_are_one_finding():
    said = found(golden("jax-0.12/v5e-2x4/fsdp"))
    assert "2 arguments come in split over x and are gathered whole" in said
    assert "weights[0], weights[1]" in said


def test_the_same_array_gathered_twice_stands_out():
    said = found(audit(f"%c = f32[8,8]{{1,0}} copy(%p)\n%g = {GATHER_X}\nROOT %h = {GATHER_X.replace('%p', '%c')}"))
    assert "the same array (weights['w']) is gathered 2 times over x" in said


def test_two_arrays_gathered_are_not_one_gathered_twice():
    said = found(audit(f"%c = f32[8,8]{{1,0}} add(%p, %p)\n%g = {GATHER_X}\nROOT %h = {GATHER_X.replace('%p', '%c')}"))
    assert "times over" not in said


def test_an_all_reduce_of_which_parts_are_kept_stands_out_with_the_bytes_too_many():
    said = found(audit(f"%r = {REDUCE_Y}\n%i = u32[] partition-id()\nROOT %s = f32[4,8]{{1,0}} dynamic-slice(%r, %i, %i)"))
    assert "an all-reduce over y of which each device keeps its part" in said
    assert "128 B too many" in said


def cut_in_a_fusion(dims: str) -> str:
    """A fusion that takes of an array (the first parameter) a part alone."""
    return f"""
%cut (w: f32[8,8], i: u32[]) -> f32[{dims}] {{
  %w = f32[8,8]{{1,0}} parameter(0)
  %i = u32[] parameter(1)
  %v = f32[8,8]{{1,0}} copy(%w)
  %d = f32[{dims}]{{1,0}} dynamic-slice(%v, %i, %i)
  ROOT %n = f32[{dims}]{{1,0}} negate(%d)
}}
"""


@pytest.mark.parametrize(("dims", "is_part"), [("4,8", True), ("8,8", False)])
def test_a_part_is_kept_in_a_fusion_where_nothing_else_is_taken(dims: str, is_part: bool):
    uses = f"%r = {REDUCE_Y}\n%i = u32[] partition-id()\nROOT %s = f32[{dims}]{{1,0}} fusion(%r, %i), kind=kLoop, calls=%cut"
    assert audit(uses, before=cut_in_a_fusion(dims)).collectives[0].sliced == (is_part,)
    whole = cut_in_a_fusion(dims).replace("negate(%d)", "slice(%w)")
    assert audit(uses, before=whole).collectives[0].sliced == (False,)


ZEROS = "%zero = f32[] constant(0)\n%z = f32[16,8]{1,0} broadcast(%zero), dimensions={}\n%at = u32[] partition-id()\n"
LAID = ZEROS + "%u = f32[16,8]{1,0} dynamic-update-slice(%z, %p, %at, %at)\n%c = f32[16,8]{1,0} copy(%u)\n"


def test_a_sum_of_zeros_in_which_each_device_lays_its_part_is_a_gather():
    summed = f"ROOT %r = {REDUCE_Y.replace('f32[8,8]', 'f32[16,8]').replace('%p', '%c')}"
    gathered = audit(LAID + summed)
    assert gathered.collectives[0].laid == (64,)
    assert "an all-gather over y made of an all-reduce of zeros in which each device lays its part" in found(gathered)
    for other in (
        LAID.replace("constant(0)", "constant(1)"),
        LAID.replace("copy(%u)", "convert(%u)"),
        LAID.replace("copy(%u)", "negate(%u)"),
    ):
        assert not any(audit(other + summed).collectives[0].laid), other
    assert not any(audit(LAID + summed.replace("[4,2]<=[8]", "[1,8]<=[8]")).collectives[0].laid)  # over 8, of which 2 have room


def test_narrow_numbers_packed_in_words_are_counted_as_themselves():
    packed = "%n = s16[8,8]{1,0} multiply(%p, %p)\n%b = u32[4,128]{1,0} bitcast(%n)\n"
    summed = "ROOT %r = u32[4,128]{1,0} all-reduce(%b), replica_groups=[4,2]<=[8], to_apply=%add"
    assert audit(packed + summed).collectives[0].held == (("int16", 64),)
    assert audit(packed.replace("bitcast", "convert") + summed).collectives[0].held == (("uint32", 512),)


def test_repeated_work_stands_out_first():
    dot = "%d = f32[8,8]{1,0} dot(%p, %p), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    several = audit(f"{dot}\nROOT %g = {GATHER_X.replace('%p', '%d')}", needed=2 * 8**3 * 4)
    assert several.work.flops_per_device == 2 * 8**3
    assert several.work.repeated == 2
    assert found(several).startswith("all matmuls together are computed 2 times over")
    assert "2 times what the function asks for" in str(several)
    assert not audit(dot, needed=2 * 8**3 * 8).findings


def test_numbers_widened_before_they_are_sent_stand_out():
    convert = "%b = bf16[8,8]{1,0} multiply(%p, %p)\n%w = f32[8,8]{1,0} convert(%b)"
    said = found(audit(f"{convert}\nROOT %r = {REDUCE_Y.replace('%p', '%w')}"))
    assert "sends float32 made of 16-bit numbers" in said


LOOP = """
%body (s: (s32[], f32[8,8], f32[32,8])) -> (s32[], f32[8,8], f32[32,8]) {
  %s = (s32[], f32[8,8]{1,0}, f32[32,8]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %v = f32[8,8]{1,0} get-tuple-element(%s), index=1
  %g = f32[32,8]{1,0} all-gather(%v), replica_groups=[2,4]<=[4,2]T(1,0), dimensions={0}
  ROOT %t = (s32[], f32[8,8]{1,0}, f32[32,8]{1,0}) tuple(%next, %KEPT, %g)
}

%cond (s.1: (s32[], f32[8,8], f32[32,8])) -> pred[] {
  %s.1 = (s32[], f32[8,8]{1,0}, f32[32,8]{1,0}) parameter(0)
  %i.1 = s32[] get-tuple-element(%s.1), index=0
  %limit = s32[] constant(5)
  ROOT %c = pred[] compare(%i.1, %limit), direction=LT
}
"""
TURNS = """
%zero = s32[] constant(0)
%b = f32[32,8]{1,0} broadcast(%zero), dimensions={}
%start = (s32[], f32[8,8]{1,0}, f32[32,8]{1,0}) tuple(%zero, %p, %b)
ROOT %w = (s32[], f32[8,8]{1,0}, f32[32,8]{1,0}) while(%start), condition=%cond, body=%body
"""


def test_a_loop_that_gathers_what_no_turn_changes_stands_out():
    assert "gathers the same array in each of its 5 turns" in found(audit(TURNS, before=LOOP.replace("%KEPT", "%v")))
    changed = LOOP.replace("%KEPT", "%u").replace("  ROOT %t", "  %u = f32[8,8]{1,0} add(%v, %v)\n  ROOT %t")
    assert "in each of its" not in found(audit(TURNS, before=changed))


# Assertions.


def test_assert_only_takes_counts_by_kind_and_axes():
    both = audit(f"%g = {GATHER_X}\nROOT %r = {REDUCE_Y}")
    both.assert_only({"all-gather": {"x": 1}, "all-reduce": {"y": 1}})
    both.assert_only({"all-gather": 1, "all-reduce": {("y",): 1}})
    audit("ROOT %c = f32[8,8]{1,0} copy(%p)").assert_only({})


@pytest.mark.parametrize(
    ("expected", "said"),
    [
        ({}, "all-gather over x: 1 compiled, 0 allowed"),
        ({"all-gather": {"x": 2}}, "all-gather over x: 1 compiled, 2 allowed"),
        ({"all-gather": {"y": 1}}, "all-gather over y: 0 compiled, 1 allowed"),
        ({"all-gather": {"x": 1}, "all-reduce": 1}, "all-reduce: 0 compiled, 1 allowed"),
        ({"all-gather": {"x, y": 1}}, "all-gather over x, y: 0 compiled"),
    ],
)
def test_assert_only_says_what_differs_with_bytes_and_line(expected: dict, said: str):
    with pytest.raises(AuditMismatchError) as raised:
        audit(f"ROOT %g = {GATHER_X}").assert_only(expected)
    assert said in str(raised.value)
    assert "step on v5e:2x4" in str(raised.value)


def test_assert_only_counts_the_turns_of_loops():
    audit(TURNS, before=LOOP.replace("%KEPT", "%v")).assert_only({"all-gather": {"x": 5}})


@pytest.mark.parametrize("expected", [{"all-gather": {"z": 1}}, {"all-gather": {"x": -1}}, {"all-gather": {"x": True}}])
def test_assert_only_refuses_what_is_no_count_or_axis(expected: dict):
    with pytest.raises(ShardwiseError, match=r"no axis z|is no count"):
        audit("ROOT %c = f32[8,8]{1,0} copy(%p)").assert_only(expected)


def test_an_audit_with_something_unread_passes_no_assertion():
    strange = audit("ROOT %g = f32[8,8]{1,0} all-gather-2(%p)")
    for check in (lambda: strange.assert_only({}), lambda: strange.assert_matches(None)):
        with pytest.raises(AuditMismatchError, match="could not be read"):
            check()


def test_assert_matches_wants_a_plan():
    with pytest.raises(ShardwiseError, match=r"a plan of sw\.plan is needed"):
        audit("ROOT %c = f32[8,8]{1,0} copy(%p)").assert_matches("all of it")


def test_assert_overlapped_names_what_is_bare():
    golden("jax-0.12/v5e-2x4/ring_pinned").assert_overlapped("collective-permute", axes="x")
    golden("jax-0.12/v5e-2x4/ring_plain").assert_overlapped(least=2)
    with pytest.raises(AuditMismatchError, match=r"2 of 7 are overlapped by matmuls, 7 asserted[\s\S]*programs.py:\d+"):
        golden("jax-0.12/v5e-2x4/ring_plain").assert_overlapped()
    with pytest.raises(AuditMismatchError, match="there is no all-gather"):
        golden("jax-0.12/v5e-2x4/ring_plain").assert_overlapped("all-gather")


def test_assert_fits_says_how_much_is_missing():
    small, large = MemoryUse(10**9, 0, 10**9, 0, 0, 2 * 10**9), MemoryUse(10**10, 0, 10**10, 0, 0, 2 * 10**10)
    audit("ROOT %c = f32[8,8]{1,0} copy(%p)", memory=small).assert_fits()
    too_large = audit("ROOT %c = f32[8,8]{1,0} copy(%p)", memory=large)
    too_large.assert_fits("h100")
    with pytest.raises(AuditMismatchError, match=r"20 GB needed \(arguments 10 GB.*16 GB there on each TPU v5e"):
        too_large.assert_fits()
    assert "which it does not fit" in str(too_large)
    with pytest.raises(AuditMismatchError, match="says nothing of its memory"):
        audit("ROOT %c = f32[8,8]{1,0} copy(%p)").assert_fits()


def test_a_chip_that_is_not_known_must_be_named():
    strange = audit_text("HloModule m\n\nENTRY %e (p: f32[]) -> f32[] {\n  ROOT %p = f32[] parameter(0)\n}\n",
                         name="f", target="v3:2x2", mesh=Mesh(()), hardware=None)  # fmt: skip
    assert "f on v3:2x2" in str(strange)
    with pytest.raises(HardwareError, match="say which hardware to estimate with"):
        strange.timeline()
    assert strange.timeline("tpu-v4").step_seconds == 0


# The table.


def test_the_table_says_what_where_and_how_much():
    text = str(golden("jax-0.12/v5e-2x4/fsdp"))
    lines = text.splitlines()
    assert lines[0] == "fsdp on v5e:2x4, mesh x=8: 5 collectives, each device sends 29.4 MB a call"
    assert lines[1].split() == ["collective", "over", "times", "sends", "array", "overlapped", "from"]
    assert len([line for line in lines if "reduce-scatter" in line and "programs.py:" in line]) == 2
    assert "modelled from the compiled schedule" in text


def test_equal_collectives_are_one_row():
    rows = [line for line in str(golden("jax-0.12/v5e-2x4/ring_plain")).splitlines() if "collective-permute" in line]
    assert len(rows) == 1
    assert rows[0].split()[2] == "7"


def test_what_is_unread_is_in_the_table():
    text = str(golden("jax-0.12/v5e-2x4/dynamic_loop"))
    assert "unread" in text
    assert "the trips of this loop are not known" in text
    assert "1 x ?" in text


def test_a_program_without_collectives_says_that_nothing_is_sent():
    assert "0 collectives, nothing is sent" in str(golden("jax-0.12/v5e-2x4/case1_local"))
