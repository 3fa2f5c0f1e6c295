"""Arrays that are prefetched in parts and joined again, as TPU compilers write it: they keep their names and what they hold."""

from __future__ import annotations

import pytest

from shardwise.chips import hardware
from shardwise.compiled.audit import Audit, audit_text
from shardwise.compiled.facts import Argument
from shardwise.mesh import Mesh

GATHER = "all-gather({}), channel_id=1, replica_groups=[1,8]<=[8], dimensions={{0}}, use_global_device_ids=true"
JOIN = 'f32[8,8]{1,0:S(1)} custom-call(%d1, %d2), custom_call_target="ConcatBitcast"'
STARTED = "((s8[256]{0}), s8[128]{0:S(1)}, s32[])"
WRAPPED = """
%low (p: s8[256]) -> s8[128] {
  %p = s8[256]{0} parameter(0)
  ROOT %s = s8[128]{0} slice(%p), slice={[0:128]}
}
"""
SLICES = f"""
%b = s8[256]{{0}} bitcast(%p)
%s1 = {STARTED} slice-start(%b), slice={{[0:128]}}
%s2 = {STARTED} slice-start(%b), slice={{[128:256]}}
%d1 = s8[128]{{0:S(1)}} slice-done(%s1)
%d2 = s8[128]{{0:S(1)}} slice-done(%s2)
%k = {JOIN}
%w = f32[8,8]{{1,0:S(1)}} bitcast(%k)
"""
WRAPS = SLICES.replace("slice-start(%b), slice={[0:128]}", "async-start(%b), calls=%low")
WRAPS = WRAPS.replace("slice-done(%s1)", "async-done(%s1)")
COPIES = """
%s = (f32[8,8]{1,0:S(1)}, f32[8,8]{1,0}, u32[]) copy-start(%p)
%w = f32[8,8]{1,0:S(1)} copy-done(%s)
"""
TUPLES = """
%t = (f32[8,8]{1,0}, f32[8,8]{1,0}) tuple(%q, %p)
%e = f32[8,8]{1,0} get-tuple-element(%t), index=1
%w = f32[8,8]{1,0} bitcast(%e)
"""


def audit(body: str, *, axes: tuple[str, ...] = ("x",)) -> Audit:
    lines = ["%p = f32[8,8]{1,0} parameter(0)", "%q = f32[8,8]{1,0} parameter(1)", *body.strip().splitlines()]
    entry = "\n".join(f"  {line}" for line in lines)
    text = f"HloModule jit_f, is_scheduled=true, num_partitions=8\n{WRAPPED}\nENTRY %main () -> f32[64,8] {{\n{entry}\n}}\n"
    arguments = tuple(Argument(name, (64, 8) if axes else (8, 8), axes) for name in ("w", "v"))
    chip = hardware("tpu-v6e")
    return audit_text(text, name="f", target="v6e:2x4", mesh=Mesh.parse("x=8"), hardware=chip, arguments=arguments)


@pytest.mark.parametrize("moved", [COPIES, SLICES, WRAPS, TUPLES], ids=["copied", "sliced", "wrapped", "tuple"])
def test_a_prefetched_argument_keeps_its_name(moved: str):
    (finding,) = audit(f"{moved}ROOT %g = f32[64,8]{{1,0}} {GATHER.format('%w')}").findings
    assert finding.what.startswith("1 argument comes in split over x and is gathered whole, 1.79 kB received: w")


def test_parts_of_two_arguments_are_neither_of_them():
    other = SLICES.replace("slice-start(%b), slice={[128:256]}", "slice-start(%c), slice={[128:256]}")
    both = other.replace("%s1 =", "%c = s8[256]{0} bitcast(%q)\n%s1 =")
    assert not audit(f"{both}ROOT %g = f32[64,8]{{1,0}} {GATHER.format('%w')}").findings


def test_a_sum_of_a_prefetched_argument_that_all_hold_is_told():
    reduce = "ROOT %r = f32[8,8]{1,0} all-reduce(%w), replica_groups=[1,8]<=[8], to_apply=%add"
    assert [finding.kind for finding in audit(SLICES + reduce, axes=()).findings] == ["reduced-same"]


@pytest.mark.parametrize("moved", [COPIES, SLICES], ids=["copied", "sliced"])
def test_what_is_moved_in_parts_after_a_gather_is_followed_to_what_takes_it(moved: str):
    gathered = f"%p.g = f32[64,8]{{1,0}} {GATHER.format('%p')}\n" + moved.replace("(%p)", "(%p.g)").replace("[8,8]", "[64,8]")
    kept = audit(gathered + "ROOT %o = f32[2,8]{1,0} slice(%w), slice={[0:2], [0:8]}").findings
    assert [finding.kind for finding in kept] == ["gathered-then-sliced"]
