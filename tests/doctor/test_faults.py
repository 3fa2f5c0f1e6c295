"""Planted faults: the first finding names line and cause, and what it says to paste removes the movement, compiled again."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faults import FAULTS, Fault, axis_types, loaded, planted, relaid

import shardwise as sw
from shardwise.functions.diagnosis import Diagnosis, Remedy
from shardwise.functions.explicit import Option
from shardwise.functions.pasting import apply, text_of

pytestmark = pytest.mark.slow
CHIP = "tpu-v5e"
MESH = {"x": 4, "y": 2}


def first_words(found: Diagnosis) -> str:
    """What the first finding says: the line, the cause with the lines that it names, the way out."""
    if found.stop is not None:
        return found.stop.text
    if found.held:
        return found.held[0].says
    place = found.places[0]
    said, lines = [place.text, place.cause.says], [source.line for source in place.cause.sources]
    if place.remedy is not None:
        said += [place.remedy.says, place.remedy.code, place.remedy.paste.old if place.remedy.paste else ""]
        lines.append(place.remedy.line)
    for line in lines:
        if line is not None:
            said += [text_of(line), text_of(type(line)(line.place))]
    return " ".join(said)


def offered(found: Diagnosis) -> Remedy | Option | None:
    """The first way out."""
    if found.stop is not None:
        return found.stop.options[0] if found.stop.options else None
    return found.held[0] if found.held else found.places[0].remedy


def compiled(fault: Fault, mesh: Any) -> Callable[..., Any]:
    if fault.target == "here":
        return lambda function, args: sw.audit(function, *args, mesh=mesh)
    return lambda function, args: sw.rehearse(function, *args, on=fault.target)


def planted_faults() -> list[Any]:
    return [
        pytest.param(fault, id=f"{fault.program}: {fault.name}", marks=[pytest.mark.needs("tpu")] * (fault.target != "here"))
        for fault in (FAULTS if os.environ.get("CORPUS") else FAULTS[::3])  # all of them in `make soak`
    ]


@pytest.mark.parametrize("fault", planted_faults())
def test_the_first_finding_names_a_planted_fault_and_its_way_out_removes_it(fault: Fault, tmp_path: Path):
    text = planted(fault)
    module = loaded(text, tmp_path, "faulty")
    mesh = sw.make_mesh(MESH, axis_types=axis_types(module))
    function, args = module.build(mesh)
    found = sw.doctor(function, *args, mesh=mesh, hardware=CHIP)
    named, remedy = fault.named in first_words(found), offered(found)
    assert named is not ("named" in fault.missed), first_words(found)
    assert remedy is not None
    held = isinstance(remedy, Remedy) and remedy.kind == "held"
    if remedy.paste is not None:
        cured, cured_args = loaded(apply(remedy.paste, text), tmp_path, "cured").build(mesh)
    else:
        assert isinstance(remedy, Remedy)
        assert remedy.layout is not None
        cured, cured_args = function, relaid(function, args, remedy.arguments, remedy.layout.spec)
    after = compiled(fault, mesh)(cured, cured_args)
    if found.stop is not None:
        return  # it could not be compiled before, and now it is
    before = compiled(fault, mesh)(function, args)
    less = after.memory.arguments < before.memory.arguments if held else after.total_wire_bytes < before.total_wire_bytes
    assert less is not ("removed" in fault.missed), (before.total_wire_bytes, after.total_wire_bytes)


def test_of_thirty_faults_at_least_twenty_seven_are_named_and_removed():
    assert len(FAULTS) >= 30
    assert sum("named" not in fault.missed for fault in FAULTS) >= 27
    assert sum("removed" not in fault.missed for fault in FAULTS) >= 27
