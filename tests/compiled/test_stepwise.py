"""A plan event by event: its estimate beside a compiled schedule, written by hand."""

from __future__ import annotations

import pytest

import shardwise as sw
from shardwise.compiled.audit import audit_text
from shardwise.compiled.stepwise import Event, stepwise
from shardwise.errors import HardwareError, ShardwiseError
from shardwise.mesh import Mesh
from shardwise.steps import scope, step_of

SIZES = {"I": 8192, "J": 8192, "K": 1024}
PLAN = sw.plan("A[I_x, J] · B[J, K] -> C[I, K]", sizes=SIZES, mesh="x=8", hardware="v5e:2x4", overlap=False)

COMPILED = """HloModule jit_f, is_scheduled=true, num_partitions=8
ENTRY %main (a: bf16[1024,8192], b: bf16[8192,1024]) -> bf16[8192,1024] {
  %a = bf16[1024,8192]{1,0} parameter(0)
  %b = bf16[8192,1024]{1,0} parameter(1)
  %copy.1 = bf16[1024,8192]{1,0} copy(%a), backend_config={"estimated_cycles":"9400"}
  %multiply = bf16[1024,1024]{1,0} dot(%copy.1, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="jit(f)/shmap_body/shardwise/1 einsum C/dot_general"}, backend_config={"estimated_cycles":"94000"}
  ROOT %gather = bf16[8192,1024]{1,0} all-gather(%multiply), channel_id=1, replica_groups={{0,1,2,3,4,5,6,7}}, dimensions={0}, metadata={op_name="jit(f)/shmap_body/shardwise/2 all-gather C/all_gather"}
}
"""  # noqa: E501


def audited(text: str = COMPILED, hardware: str | None = "tpu-v5e") -> sw.Audit:
    chip = None if hardware is None else sw.hardware(hardware)
    return audit_text(text, name="f", target="v5e:2x4", mesh=Mesh.parse("x=8"), hardware=chip)


def test_each_event_of_a_step_stands_beside_the_compiled_one():
    told = audited().against(PLAN)
    assert told.steps == ("einsum A · B -> C[I, K]", "all-gather C over x (I)")
    events = {(event.step, event.kind): event for event in told}
    clock = sw.hardware("tpu-v5e").clock_hz
    assert clock is not None
    assert events[1, "matmul"].compiled == pytest.approx(94000 / clock.value)
    matmul = PLAN.best.estimate.steps[0]
    assert events[1, "matmul"].estimated == pytest.approx(matmul.seconds - matmul.fetched_seconds)
    assert events[1, "other work"].estimated == pytest.approx(matmul.fetched_seconds)
    assert events[0, "other work"] == Event(0, "other work", None, None, pytest.approx(9400 / clock.value))
    transfer = events[2, "transfer"]
    assert transfer.estimated == pytest.approx(PLAN.best.estimate.steps[1].transfer_seconds)
    assert transfer.compiled
    assert events[2, "wait"].compiled == pytest.approx(transfer.compiled)


def test_seconds_of_both_sides_are_those_of_their_timelines():
    told = audited().against(PLAN)
    for side in ("estimated", "compiled"):
        work = sum(getattr(event, side) or 0.0 for event in told if event.kind != "transfer")
        assert work == pytest.approx(getattr(told, f"{side}_seconds"))


def test_the_table_says_what_only_one_side_has():
    lines = str(audited().against(PLAN)).splitlines()
    assert lines[0].split() == ["step", "event", "estimated", "compiled"]
    assert next(line for line in lines if line.startswith("of no step")).split()[-3:] == ["-", "6.27", "us"]
    assert lines[-1].split()[0] == "all"


def test_alike_events_share_a_row():
    ring = sw.plan("A[I_x, J] · B[J, K] -> C[I, K]", sizes=SIZES, mesh="x=8", hardware="v5e:2x4", overlap="ring").best
    line = ring.timeline()
    told = stepwise(line, line, ring.program.steps)
    transfers = [event for event in told if event.kind == "transfer"]
    assert [event.number for event in transfers] == list(range(1, 7 * ring.program.steps[0].chunks + 1))
    assert all(event.estimated == event.compiled for event in told)
    assert len([row for row in str(told).splitlines() if "transfer" in row]) < len(transfers)
    assert f"transfer 1 to {len(transfers)}, each" in str(told)


def test_scopes_are_read_back():
    for number, step in enumerate(PLAN.best.program.steps, 1):
        name = scope(number, step)
        assert step_of(f"jit(f)/shmap_body/{name}/all_gather") == step_of(f"jit(f)/transpose(jvp({name}))/add") == number
    assert step_of("jit(shardwise)/2 x") is step_of("my_shardwise/2 all-gather A") is step_of("") is None


def test_what_is_no_plan_and_a_target_without_hardware_are_refused():
    with pytest.raises(ShardwiseError, match=r"a plan of sw\.plan is needed here"):
        audited().against("A[I]")
    with pytest.raises(HardwareError, match="say which hardware"):
        audited(hardware=None).against(PLAN)
