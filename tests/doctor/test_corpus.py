"""Programs that people have: what the compiler makes of each is explained, on simulated devices and by two TPU compilers."""

from __future__ import annotations

import importlib
import math
import os
from typing import Any

import jax
import pytest
from faults import PROGRAMS, axis_types

import shardwise as sw

NAMES = sorted(path.stem for path in PROGRAMS.glob("*.py"))
AWAY = {"v5e:2x4": (4, 2), "v6e:4x4": (4, 4)}
LEAST_EXPLAINED = 0.95


def module_of(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"corpus_{name}", PROGRAMS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def built(name: str, mesh_of: Any) -> tuple[Any, tuple[Any, ...], Any]:
    module = module_of(name)
    mesh = mesh_of(axis_types(module))
    return *module.build(mesh), mesh


def here(kind: Any) -> Any:
    return sw.make_mesh("x=4, y=2", axis_types=kind)


def test_the_corpus_has_fifteen_programs_and_names_what_they_are_shaped_after():
    assert len(NAMES) >= 15
    for name in NAMES:
        assert "Shaped after" in (PROGRAMS / f"{name}.py").read_text(encoding="utf-8"), name


@pytest.mark.parametrize("name", NAMES)
def test_what_is_compiled_on_this_machine_is_explained(name: str):
    function, args, mesh = built(name, here)
    found = sw.doctor(function, *args, mesh=mesh, on="here", remedies=False)
    truth: Any = found.truth
    assert found.unread == ()
    assert truth.audit.unread == ()
    check_each_is_one_of_three(name, found)
    assert len(truth.answers) == len(truth.audit.collectives)
    assert all(found.places[each.place].cause.says for each in truth.answers if each.place is not None)
    assert truth.explained >= LEAST_EXPLAINED, [str(each.line) for each in truth.own]


def check_each_is_one_of_three(name: str, found: Any) -> None:
    """Every place is made or gone, every collective asked for or the compiler's own; each is told with its line."""
    truth, text = found.truth, str(found.truth)
    made = {each.place for each in truth.answers if each.place is not None} | {n for each in truth.answers for n in each.joined}
    assert made.isdisjoint(truth.gone), name
    assert made | set(truth.gone) == {number for number, place in enumerate(found.places) if place.wire_bytes}, name
    assert len(truth.answers) == len(truth.audit.collectives), name
    for number in made:
        assert f"made      {number + 1} ({found.places[number].line.short}): " in text, name
    for number in truth.gone:
        assert f"gone      {number + 1} ({found.places[number].line.short}): asked for; " in text, name
    for each in truth.own:
        assert f"from {each.line.short}: the compiler's own" in text, name
    assert all(gone in truth.gone and moved in made for gone, moved in truth.once), name


@pytest.mark.slow
@pytest.mark.needs("tpu")
@pytest.mark.parametrize("target", AWAY)
def test_over_the_corpus_nearly_all_that_a_tpu_compiler_makes_is_explained(target: str):
    """A third of the programs on each slice, of the second another third; all of them in `make soak`, which sets CORPUS."""
    names = NAMES if os.environ.get("CORPUS") else NAMES[list(AWAY).index(target) :: 3]
    asked = own = 0
    for name in names:
        if getattr(module_of(name), "DEVICES", math.prod(AWAY[target])) != math.prod(AWAY[target]):
            continue  # it takes the devices of this process
        function, args, mesh = built(
            name, lambda kind: jax.sharding.AbstractMesh(AWAY[target], ("x", "y"), axis_types=(kind,) * 2)
        )
        found = sw.doctor(function, *args, mesh=mesh, on=target, remedies=False)
        truth: Any = found.truth
        asked, own = asked + len(truth.answers), own + len(truth.own)
        check_each_is_one_of_three(name, found)
    assert asked > 3 * len(names)
    assert 1 - own / asked >= LEAST_EXPLAINED
