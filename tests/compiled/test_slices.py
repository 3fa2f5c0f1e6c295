"""Programs over several slices: what each slice runs by itself."""

from __future__ import annotations

import pytest

from shardwise.chips import hardware
from shardwise.chips.placing import Site, mesh_order
from shardwise.chips.topology import Topology
from shardwise.compiled.audit import Audit, audit_text
from shardwise.mesh import Mesh

TWO = Topology.parse("v6e:2x2*2")
MESH = Mesh.parse("x=2, y=4")
PERMUTE = "  %r{0} = f32[{1}]{{0}} collective-permute(%q{0}), source_target_pairs={{{{0,1}},{{1,0}}}}"
CHOICE = """  %p = f32[64]{0} parameter(0)
  %id = u32[] custom-call(), custom_call_target="SliceId"
  %s = s32[] convert(%id)
  ROOT %c = (f32[64]{0}) conditional(%s, %p, %p), branch_computations={%one, %two}"""


def branch(name: str, *permuted: int) -> str:
    """A branch that permutes arrays of so many numbers, one after the other."""
    lines = [
        f"  %q{n} = f32[{size}]{{0}} slice(%q), slice={{[0:{size}]}}\n{PERMUTE.format(n, size)}"
        for n, size in enumerate(permuted)
    ]
    body = "\n".join(["  %q = f32[64]{0} parameter(0)", *lines, "  ROOT %t = (f32[64]{0}) tuple(%q)"])
    return f"%{name} (q: f32[64]) -> (f32[64]) {{\n{body}\n}}\n"


def audit(one: str, two: str, choice: str = CHOICE) -> Audit:
    text = (
        f"HloModule jit_f, is_scheduled=true, num_partitions=4\n\n{one}\n{two}\nENTRY %main () -> (f32[64]) {{\n{choice}\n}}\n"
    )
    site = Site(TWO, mesh_order(TWO, MESH))
    chip = hardware("tpu-v6e")
    return audit_text(text, name="f", target=str(TWO), mesh=MESH, hardware=chip, topology=TWO, site=site)


@pytest.mark.parametrize(
    ("one", "two", "slice_", "sends"),
    [((64,), (64,), 0, (256,)), ((64,), (64, 32), 1, (256, 128)), ((64,), (), 0, (256,)), ((16,), (32,), 1, (128,))],
)
def test_of_branches_by_slice_what_one_device_runs_is_counted(
    one: tuple[int, ...], two: tuple[int, ...], slice_: int, sends: tuple[int, ...]
):
    of = audit(branch("one", *one), branch("two", *two))
    assert tuple(each.wire_bytes for each in of.collectives) == sends
    assert of.notes == (
        f"each slice runs branches of its own: those of slice {slice_} are counted, no other sends more in them",
    )
    assert not of.unread
    assert "at least" not in str(of)
    pairs = {device for each in of.collectives for pair in each.groups for device in pair}
    assert pairs == ({0, 1} if slice_ == 0 else {4, 5})


def test_within_a_slices_branch_that_slices_branches_alone_run():
    inner = CHOICE.replace("%p", "%q").replace("ROOT %c", "%c").replace("%one, %two", "%three, %four")
    nested = branch("one").replace("  ROOT", inner.split("\n", 1)[1] + "\n  ROOT")
    of = audit(branch("three", 16) + branch("four", 32) + nested, branch("two", 8))
    assert [each.wire_bytes for each in of.collectives] == [64]


def test_branches_without_collectives_need_no_note():
    assert not audit(branch("one"), branch("two")).notes


def test_an_index_that_is_made_of_the_slice_is_not_known():
    of = audit(branch("one", 64), branch("two", 64), CHOICE.replace("convert(%id)", "negate(%id)"))
    assert len(of.collectives) == 2
    assert "which branch runs is not known" in str(of)
