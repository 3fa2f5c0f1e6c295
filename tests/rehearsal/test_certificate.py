"""The certificate: what compilers made of every benchmark equation is its plan; programs that were tampered with fail it."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import pytest

import shardwise as sw
from benchmarks.cases import CASES, Case
from benchmarks.tampering import TAMPER, tampered
from shardwise.chips.topology import Topology
from shardwise.compiled.audit import Audit, audit_text
from shardwise.compiled.expected import planned_collectives
from shardwise.errors import AuditMismatchError
from shardwise.notation import parse

pytestmark = pytest.mark.usefixtures("kept_texts")
TARGETS = ["cpu", "v5e:2x4", "v6e:2x4", "v7x:2x2x1", "v4:2x2x2", "v5p:2x2x2", "h100:8"]
BY_NAME = {case.name: case for case in CASES}


def chip(target: str) -> str:
    return Topology.parse(target).chip or "" if ":" in target else target


def dtype(target: str) -> str:
    return "float32" if target == "cpu" else "bfloat16"


@functools.cache
def planned(name: str, target: str) -> sw.Plan:
    case = BY_NAME[name]
    return sw.plan(case.equation, sizes=case.sizes, mesh=case.mesh[8], hardware=chip(target), dtype=dtype(target))


@functools.cache
def compiled(name: str, target: str, which: int = 0) -> Audit:
    """The audit of a case's plan, or of another candidate, compiled for a target."""
    case, plan = BY_NAME[name], planned(name, target)
    arguments = shapes(case, dtype(target))
    if target == "cpu":
        mesh = sw.make_mesh(case.mesh[8])
        return sw.audit(plan.function(mesh, plan.candidates[which]), *arguments, mesh=mesh)
    if which == 0:
        return sw.rehearse(lambda *a: sw.einsum(case.equation, *a), *arguments, on=target)
    raise AssertionError("only the best is rehearsed")


def shapes(case: Case, of: str) -> list[jax.ShapeDtypeStruct]:
    mesh = sw.make_mesh(case.mesh[8])
    return [
        jax.ShapeDtypeStruct(
            tuple(case.sizes[dim] for dim in operand.dims), of, sharding=jax.sharding.NamedSharding(mesh, operand.layout.spec)
        )
        for operand in parse(case.equation).operands
    ]


@pytest.mark.needs(compiler_of="target")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", BY_NAME)
def test_what_is_compiled_is_what_is_planned(name: str, target: str):
    compiled(name, target).assert_matches(planned(name, target))


@pytest.mark.parametrize("name", [name for name in BY_NAME if len(planned(name, "cpu").candidates) > 1])
def test_another_candidate_does_not_pass_for_the_best(name: str):
    plan = planned(name, "cpu")
    best = sorted(map(str, planned_collectives(plan)))
    for which, candidate in enumerate(plan.candidates):
        audit = compiled(name, "cpu", which)
        audit.assert_matches((plan, candidate))
        if sorted(map(str, planned_collectives((plan, candidate)))) != best:
            with pytest.raises(AuditMismatchError):
                audit.assert_matches(plan)


# Programs that were tampered with.


TAMPERED = [
    (name, target, how)
    for name in BY_NAME
    for target in ("cpu", "v5e:2x4", "h100:8")
    for how in TAMPER
    if planned_collectives(planned(name, target))
]


@pytest.mark.needs(compiler_of="target")
@pytest.mark.parametrize(("name", "target", "how"), TAMPERED, ids=[f"{n}-{t}-{h.__name__}" for n, t, h in TAMPERED])
def test_a_program_that_was_tampered_with_fails(name: str, target: str, how: Callable[..., list[str]]):
    audit = compiled(name, target)
    text = dict(tampered(audit.module.text, audit.mesh))[how.__name__]
    again = audit_text(text, name=audit.name, target=audit.target, mesh=audit.mesh, hardware=audit.hardware)
    with pytest.raises(AuditMismatchError):
        again.assert_matches(planned(name, target))


def test_at_least_a_hundred_programs_were_tampered_with():
    assert len(TAMPERED) >= 100
