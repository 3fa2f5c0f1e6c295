"""What changed between two plans, audits or lock files: every figure before and now, and nothing that stayed."""

from __future__ import annotations

import dataclasses

import pytest

import shardwise as sw
from shardwise.compiled.lockfile import Entry, Lock, Memory, Row
from shardwise.compiled.records import PlanRecord, record_of_plan
from shardwise.errors import PlanError
from shardwise.pictures.changes import changed
from shardwise.pictures.picture import Picture, Table, Words

SIZES = {"I": 4096, "J": 1024, "K": 4096}
GATHER = Row("all-gather", ("x",), "bfloat16", "layer.py:14", 1, 14.7e6)
STEP = Entry("step", "v5e:2x4", "x=8", (GATHER,), Memory(2_000_000, 500_000, 1_000_000, 500_000))


def planned(hardware: str) -> PlanRecord:
    plan = sw.plan("A[I_x, J] · B[J, K] -> C[I, K]", sizes=SIZES, mesh="x=4", hardware=hardware, overlap=False)
    return record_of_plan(plan)


def table(picture: Picture, title: str) -> dict[str, tuple[str, ...]]:
    (found,) = [part for part in picture.parts if isinstance(part, Table) and part.title == title]
    return {row[0]: row[1:] for row in found.rows}


def words(picture: Picture) -> list[str]:
    return [line for part in picture.parts if isinstance(part, Words) for line in part.lines]


def test_two_plans_of_other_hardware():
    old, new = planned("tpu-v5e"), planned("h100")
    picture = changed(old, new)
    assert table(picture, "What was asked") == {"hardware": ("tpu-v5e", "h100")}
    before, now, change = table(picture, "The chosen program")["time, estimated"]
    assert before != now
    assert change.endswith((" less", " more", " times"))
    assert len(table(picture, "All programs, by place")) <= 12
    assert picture.title == "What changed: A[I_x, J] · B[J, K] -> C[I, K]"


def test_the_same_plan_has_not_changed():
    picture = changed(planned("tpu-v5e"), planned("tpu-v5e"))
    assert {row[-1] for row in table(picture, "The chosen program").values()} == {"as before"}
    assert "The chosen program is the same." in words(picture)
    assert "What was asked" not in [part.title for part in picture.parts if isinstance(part, Table)]


def test_another_choice_is_said_with_both_ways():
    old = planned("tpu-v5e")
    new = dataclasses.replace(old, choices=(old.choices[1], *old.choices[2:], old.choices[0]))
    picture = changed(old, new)
    assert "The chosen program is another one." in words(picture)
    assert set(old.choices[0].steps) | set(old.choices[1].steps) <= set(words(picture))
    name = ", then ".join(old.choices[0].steps)
    before, now, change = table(picture, "All programs, by place")[name]
    assert before.startswith("1: ")
    assert now.startswith(f"{len(old.choices)}: ")
    assert change == "as before"


def test_a_lock_file_with_one_program_of_each_kind():
    twice = Row("all-gather", ("x",), "bfloat16", "layer.py:31", 1, 14.7e6)
    more = dataclasses.replace(STEP, rows=(GATHER, twice), memory=Memory(3_000_000, 1_500_000, 1_000_000, 500_000))
    same, gone, new = (dataclasses.replace(STEP, name=name) for name in ("same", "gone", "new"))
    picture = changed(Lock((STEP, same, gone)), Lock((more, same, new)))
    assert words(picture)[0] == "Of 4 programs: 1 changed, 1 new, 1 gone, 1 as before."
    rows = table(picture, "One device, in one call")
    assert rows["step@v5e:2x4"] == ("14.7 MB", "29.4 MB", "2.0 times", "2 MB", "3 MB", "50 % more")
    assert rows["same@v5e:2x4"][2] == "as before"
    assert rows["new@v5e:2x4"][:2] == ("-", "14.7 MB")
    assert rows["gone@v5e:2x4"][:2] == ("14.7 MB", "-")
    detail = table(picture, "step@v5e:2x4")
    assert detail == {"all-gather over x, bfloat16": ("1 x, 14.7 MB", "2 x, 29.4 MB", "2.0 times", "layer.py:14, layer.py:31")}
    assert table(picture, "Memory of step@v5e:2x4")["temporaries"] == ("500 kB", "1.5 MB", "3.0 times")


def test_a_collective_on_another_line_is_no_change_and_is_told():
    moved = dataclasses.replace(STEP, rows=(dataclasses.replace(GATHER, source="layer.py:99"),))
    picture = changed(Lock((STEP,)), Lock((moved,)))
    assert words(picture) == [
        "Of 1 program: 1 as before.",
        "step@v5e:2x4: all-gather over x moved from layer.py:14 to layer.py:99",
    ]


def test_another_mesh_is_told():
    picture = changed(Lock((STEP,)), Lock((dataclasses.replace(STEP, mesh="x=4, y=2"),)))
    assert {"- mesh x=8", "+ mesh x=4, y=2"} <= set(words(picture))


def test_a_plan_is_not_compared_with_a_lock():
    with pytest.raises(PlanError, match="give two plans, two audits or two lock files"):
        changed(planned("h100"), Lock((STEP,)))
