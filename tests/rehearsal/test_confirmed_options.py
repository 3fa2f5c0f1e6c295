"""What `confirm` compiles, and with which options of the compiler; and that they are given where the plan is run by itself."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import shardwise as sw
from shardwise.compiled import confirming
from shardwise.compiled.targets.compiler_flags import PERMUTES_AT_ONCE, PERMUTES_EARLY
from shardwise.planning.problem import Problem
from shardwise.program import Program
from shardwise.runtime import execute
from shardwise.steps import Automatic, goes_along_sides

UP = "A[I_x, J] · B[J, K_x] -> C[I, K_x]"
EARLY = ((PERMUTES_EARLY, "true"),)
MORE = (*EARLY, (PERMUTES_AT_ONCE, "8"))


def planned(target: str, compiled: list[tuple[Program, Any]], gain: float, monkeypatch: pytest.MonkeyPatch) -> sw.Plan:
    """A plan that was confirmed by a compiler of ours: each option takes so much off the seconds of the estimate."""
    plan = sw.plan(UP, sizes=dict.fromkeys("IJK", 8192), mesh="x=8", hardware=target)
    seconds = {candidate.program: candidate.estimate.seconds for candidate in plan}
    line = plan.best.timeline()

    def rehearsed(task: Problem, program: Program, topology: Any, options: Any = ()) -> Any:
        compiled.append((program, options))
        if any(isinstance(step, Automatic) for step in program.steps):
            raise ValueError("it has no compiler")
        took = seconds[program] * (1 - gain * len(options))
        return SimpleNamespace(timeline=lambda: replace(line, step_seconds=took))

    monkeypatch.setattr(confirming, "rehearsed", rehearsed)
    return sw.plan(UP, sizes=dict.fromkeys("IJK", 8192), mesh="x=8", confirm=target)


@pytest.mark.parametrize(("gain", "kept"), [(0.1, MORE), (-0.1, ())])
def test_what_overlaps_is_compiled_with_permutes_that_start_early_and_along_a_torus_with_more_of_them(gain, kept, monkeypatch):
    compiled: list[tuple[Program, Any]] = []
    plan = planned("v5p:2x2x2", compiled, gain, monkeypatch)
    fused = {program for program, _ in compiled if program.overlaps}
    along = {program for program in fused if any(map(goes_along_sides, program.steps))}
    assert {options for program, options in compiled if program in along} == {(), EARLY, MORE}
    assert {options for program, options in compiled if program in fused - along} == {(), EARLY}
    assert {options for program, options in compiled if program not in fused} == {()}
    assert along
    assert fused - along  # rings are tried beside
    assert plan.best.options == kept
    assert plan.compiler_options == dict(kept)
    assert (PERMUTES_EARLY in str(plan)) == (PERMUTES_EARLY in plan.code()) == bool(kept)
    compile(plan.code(), "code", "exec")


@pytest.mark.parametrize("target", ["v5e:2x4", "h100:8"])
def test_where_compilers_start_them_early_anyway_each_is_compiled_once(target, monkeypatch):
    compiled: list[tuple[Program, Any]] = []
    plan = planned(target, compiled, 0.1, monkeypatch)
    assert {options for _, options in compiled} == {()}
    assert len(compiled) == len(set(compiled))
    assert plan.compiler_options == {}


def test_options_are_those_of_what_is_compiled_by_itself_on_tpus(monkeypatch):
    plan = sw.plan(UP, sizes=dict.fromkeys("IJK", 16), mesh="x=4", dtype="float32", overlap="ring")
    mesh, given = sw.make_mesh("x=4"), []
    arrays = [sw.put(jnp.ones((16, 16)), text, mesh) for text in ("I_x, J", "J, K_x")]
    jit = jax.jit

    def noting(function, *args, compiler_options=None, **more):
        given.append(compiler_options)
        return jit(function, *args, **more)

    monkeypatch.setattr(execute.jax, "jit", noting)
    candidate = replace(plan.best, options=EARLY)
    for kind, expected in (("TPU v5p", dict(EARLY)), ("cpu", None)):
        monkeypatch.setattr(execute, "kind_of", lambda mesh, kind=kind: kind)
        function = plan.function(mesh, candidate)
        given.clear()
        function(*arrays)
        assert given == [expected]
        given.clear()
        jit(lambda a, b, function=function: function(a, b) * 2)(*arrays)
        with jax.set_mesh(mesh):
            jax.grad(lambda a, b, function=function: function(a, b).sum())(*arrays)
        assert set(given) <= {None}
