"""Collectives that fusions carry on, as TPU compilers write asynchronous ones: each ends where its own chain does."""

from __future__ import annotations

import pytest

from shardwise.compiled.text.hlo import read
from shardwise.compiled.text.reading import collectives
from shardwise.mesh import Mesh

GATHER = "all-gather({}), channel_id={}, replica_groups={{{{0,1}}}}, dimensions={{0}}, use_global_device_ids=true"
PAIR = "(f32[4,4]{1,0}, f32[8,4]{1,0})"


def computations(channel: int) -> str:
    """What opens, carries on and ends the chain of a channel."""
    return f"""
%start{channel} (p: f32[4,4]) -> (f32[4,4], f32[8,4]) {{
  %p = f32[4,4]{{1,0}} parameter(0)
  %g = f32[8,4]{{1,0}} {GATHER.format("%p", channel)}
  ROOT %c = {PAIR} custom-call(%p, %g), custom_call_target="AsyncCollectiveStart"
}}
%async_collective_fusion.{channel} (p: f32[4,4], q: f32[8,4], a: f32[4,4]) -> (f32[4,4], f32[8,4]) {{
  %p = f32[4,4]{{1,0}} parameter(0)
  %q = f32[8,4]{{1,0}} parameter(1)
  %a = f32[4,4]{{1,0}} parameter(2)
  %g = f32[8,4]{{1,0}} {GATHER.format("%p", channel)}
  %d = f32[4,4]{{1,0}} dot(%a, %a), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  ROOT %t = {PAIR} tuple(%d, %g)
}}
%end{channel} (q: f32[8,4]) -> f32[8,4] {{
  %q = f32[8,4]{{1,0}} parameter(0)
  ROOT %c = f32[8,4]{{1,0}} custom-call(%q), custom_call_target="AsyncCollectiveDone"
}}"""


def chain(channel: int, carried: list[str], end: int) -> list[str]:
    """The lines of a chain: it is carried on by matmuls of these arrays, the first of which is called made<channel>."""
    lines = [
        f"%s{channel} = {PAIR} fusion(%x), kind=kCustom, calls=%start{channel}",
        f"%b{channel}.0 = f32[8,4]{{1,0}} get-tuple-element(%s{channel}), index=1",
    ]
    for number, factor in enumerate(carried, 1):
        arrays = f"%x, %b{channel}.{number - 1}, %{factor}"
        lines += [
            f"%u{channel}.{number} = {PAIR} fusion({arrays}), kind=kOutput, calls=%async_collective_fusion.{channel}",
            f"%made{channel}.{number} = f32[4,4]{{1,0}} get-tuple-element(%u{channel}.{number}), index=0",
            f"%b{channel}.{number} = f32[8,4]{{1,0}} get-tuple-element(%u{channel}.{number}), index=1",
        ]
    return [*lines, f"%e{channel} = f32[8,4]{{1,0}} fusion(%b{channel}.{len(carried)}), kind=kCustom, calls=%end{end}"]


@pytest.mark.parametrize("longer", [2, 3, 6])
def test_a_chain_whose_matmul_goes_on_into_another_ends_where_its_own_does(longer: int):
    """The other's end is nearer, by way of the matmul, than its own."""
    lines = [*chain(1, ["y"] * longer, 1), *chain(2, ["made1.1"], 2), *chain(3, ["made2.1", "made1.2"], 3)]
    entry = "\n  ".join(["%x = f32[4,4]{1,0} parameter(0)", "%y = f32[4,4]{1,0} parameter(1)", *lines])
    text = "HloModule jit_f, is_scheduled=true, num_partitions=2" + "".join(map(computations, (1, 2, 3)))
    text += f"\nENTRY %main (x: f32[4,4], y: f32[4,4]) -> f32[8,4] {{\n  {entry}\n  ROOT %out = f32[8,4]{{1,0}} copy(%e3)\n}}"
    found = collectives(read(text), Mesh.parse("x=2")).collectives
    assert [(each.name, each.end) for each in found] == [("s1", "e1"), ("s2", "e2"), ("s3", "e3")]
    assert [each.hidden_by for each in found] == [
        tuple(f"u1.{number}" for number in range(1, longer + 1)), ("u2.1",), ("u3.1", "u3.2"),
    ]  # fmt: skip


STATE = "(f32[4,4]{1,0}, f32[8,4]{1,0}, s32[])"
LOOP = f"""
%turn (s: (f32[4,4], f32[8,4], s32[])) -> (f32[4,4], f32[8,4], s32[]) {{
  %s = {STATE} parameter(0)
  %a = f32[4,4]{{1,0}} get-tuple-element(%s), index=0
  %q = f32[8,4]{{1,0}} get-tuple-element(%s), index=1
  %i = s32[] get-tuple-element(%s), index=2
  %one = s32[] constant(1)
  %n = s32[] add(%i, %one)
  %u = {PAIR} fusion(%a, %q, %a), kind=kOutput, calls=%async_collective_fusion.1
  %d = f32[4,4]{{1,0}} get-tuple-element(%u), index=0
  %g = f32[8,4]{{1,0}} get-tuple-element(%u), index=1
  ROOT %t = {STATE} tuple(%d, %g, %n)
}}
%more (s: (f32[4,4], f32[8,4], s32[])) -> pred[] {{
  %s = {STATE} parameter(0)
  %i = s32[] get-tuple-element(%s), index=2
  %three = s32[] constant(3)
  ROOT %l = pred[] compare(%i, %three), direction=LT
}}"""
THROUGH = f"""  %x = f32[4,4]{{1,0}} parameter(0)
  %zero = s32[] constant(0)
  %s1 = {PAIR} fusion(%x), kind=kCustom, calls=%start1
  %b1 = f32[8,4]{{1,0}} get-tuple-element(%s1), index=1
  %s2 = {PAIR} fusion(%x), kind=kCustom, calls=%start2
  %b2 = f32[8,4]{{1,0}} get-tuple-element(%s2), index=1
  %state = {STATE} tuple(%x, %b1, %zero)
  %w = {STATE} while(%state), condition=%more, body=%turn
  %e2 = f32[8,4]{{1,0}} fusion(%b2), kind=kCustom, calls=%end2
  %product = f32[4,4]{{1,0}} get-tuple-element(%w), index=0
  %b1.1 = f32[8,4]{{1,0}} get-tuple-element(%w), index=1
  %again = {STATE} tuple(%product, %b1.1, %zero)
  %v = {STATE} while(%again), condition=%more, body=%turn
  %b1.2 = f32[8,4]{{1,0}} get-tuple-element(%v), index=1
  %e1 = f32[8,4]{{1,0}} fusion(%b1.2), kind=kCustom, calls=%end1
  ROOT %out = f32[8,4]{{1,0}} add(%e1, %e2)"""


def test_a_chain_that_the_turns_of_loops_carry_on_ends_after_them():
    text = "HloModule jit_f, is_scheduled=true, num_partitions=2" + "".join(map(computations, (1, 2))) + LOOP
    found = collectives(read(f"{text}\nENTRY %main (x: f32[4,4]) -> f32[8,4] {{\n{THROUGH}\n}}"), Mesh.parse("x=2"))
    assert [(each.name, each.end, each.asynchronous, each.hidden_by) for each in found.collectives] == [
        ("s1", "e1", True, ("w", "v")), ("s2", "e2", True, ("w",)),
    ]  # fmt: skip
