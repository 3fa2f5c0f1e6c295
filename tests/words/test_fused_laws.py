"""Laws of fused steps: each means its plain parts, to the rule and to the oracle alike."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.equations import Case, random_arrays, random_case
from shardwise.dataflow import invarying_axes
from shardwise.errors import PlanError, ProgramError
from shardwise.layout import Layout
from shardwise.mesh import Mesh
from shardwise.planning.fuse import forms_of, fused_programs, names_of
from shardwise.planning.problem import problem
from shardwise.planning.ranking import rank
from shardwise.program import Program, rule, unfused
from shardwise.reference import run
from shardwise.steps import (
    AllGather,
    Einsum,
    EinsumGather,
    EinsumScatter,
    Fused,
    GatherEinsum,
    ReduceScatter,
    RotateEinsum,
    Step,
    consumed,
    describe,
    einsum_of,
    kind,
    moved_axes,
    parts,
    touched,
)

# A seed and not `st.randoms`: most equations drawn have nothing to fuse, and Hypothesis counts all that is drawn.
randoms = st.integers(0, 2**32 - 1).map(Random)
X4 = Mesh.parse("x=4")
GRID = Mesh.parse("x=4, y=2")
PRODUCT = Einsum(("A", "B"), "C", ("I", "K"))
GATHER = GatherEinsum(AllGather("A", "I", ("x",)), PRODUCT)
SCATTER = EinsumScatter(PRODUCT, ReduceScatter("C", "I", ("x",)))
ROTATE = RotateEinsum((AllGather("A", "J", ("y",)), AllGather("B", "J", ("x",))), PRODUCT)
CANNOT_ROTATE = "two operands rotate along the one dimension that they sum, each over one axis of its own"
PIPELINED = EinsumGather(PRODUCT, AllGather("C", "I", ("x",)))
ALL = [GATHER, SCATTER, PIPELINED, ROTATE]


def layouts(**texts: str) -> dict[str, Layout]:
    return {name: Layout.parse(text) for name, text in texts.items()}


BEFORE = {
    GATHER: (X4, layouts(A="I_x, J", B="J, K")),
    SCATTER: (X4, layouts(A="I, J_x", B="J_x, K")),
    PIPELINED: (X4, layouts(A="I_x, J", B="J, K")),
    ROTATE: (GRID, layouts(A="I_x, J_y", B="J_x, K_y")),
}


def fused_forms(random: Random) -> tuple[Case, list[Program]]:
    """A random equation, and some fused forms of one of its programs, in some of the ways that they may go."""
    while True:
        case = random_case(random, elements=2000, operands=(1, 2, 2, 2, 3), hardware=("tpu-v5e", "h100"), partial=0.2)
        try:
            plans = rank(problem(case.equation, case.sizes, case.mesh, case.hardware, overlap=False))
        except PlanError:
            continue
        plain = random.choice(plans).program
        found = [_in_some_way(random, form) for form in fused_programs(plain, case.sizes)]
        if found:
            return case, random.sample(found, min(3, len(found)))


def _in_some_way(random: Random, program: Program) -> Program:
    steps = tuple(random.choice(list(forms_of(step))) if isinstance(step, Fused) else step for step in program.steps)
    return replace(program, steps=steps)


def fused_steps(program: Program) -> list[Fused]:
    return [step for step in program.steps if isinstance(step, Fused)]


# What a fused step means.


@pytest.mark.parametrize("step", ALL, ids=kind)
def test_a_fused_step_is_typed_as_its_parts_one_after_another(step: Fused):
    mesh, before = BEFORE[step]
    after = before
    for part in parts(step):
        after = rule(part, after, mesh)
    assert rule(step, before, mesh) == after


@given(randoms)
def test_the_rule_of_a_fused_step_is_that_of_its_parts_wherever_it_stands(random: Random):
    _, forms = fused_forms(random)
    for form in forms:
        for step, before, made in zip(form.steps, form.states(), form.states()[1:], strict=False):
            after = before
            for part in parts(step):
                after = rule(part, after, form.mesh)
            assert made == after


@given(randoms)
def test_a_fused_program_and_its_plain_one_give_the_same_array(random: Random):
    case, forms = fused_forms(random)
    arrays = random_arrays(random, case)
    for form in forms:
        plain = unfused(form)
        assert plain.result == form.result
        assert (run(form, *arrays) == run(plain, *arrays)).all(), f"{case}:\n{form}"


@given(randoms)
def test_unfusing_twice_is_unfusing_once(random: Random):
    _, forms = fused_forms(random)
    for form in forms:
        plain = unfused(form)
        assert unfused(plain) is plain
        assert not fused_steps(plain)
        assert plain != form


@given(randoms)
def test_a_fused_form_starts_and_ends_as_the_plain_program(random: Random):
    case, forms = fused_forms(random)
    for form in forms:
        assert fused_steps(form)
        assert (form.mesh, form.output) == (unfused(form).mesh, unfused(form).output)
        assert all(size % form.mesh.extent(axes) == 0 for dim, axes in form.result.dims for size in [case.sizes[dim]])
        assert len(invarying_axes(form)) == len(form.steps)


@given(randoms)
def test_nothing_that_must_be_equal_everywhere_is_added_in_orders_that_differ(random: Random):
    _, forms = fused_forms(random)
    for form in forms:
        for step, need in zip(form.steps, invarying_axes(form), strict=True):
            adds = isinstance(step, RotateEinsum) or (
                isinstance(step, GatherEinsum) and step.gather.dim not in step.einsum.dims
            )
            assert not (adds and need & set(moved_axes(step))), f"{form}"


# What is refused.


A_RING = "a ring goes one of ring, bidirectional, folded, in at least one chunk"


@pytest.mark.parametrize(
    ("step", "why"),
    [
        (EinsumScatter(PRODUCT, ReduceScatter("A", "I", ("x",))), "A is scattered, and the matmul is C"),
        (EinsumGather(PRODUCT, AllGather("A", "I", ("x",))), "A is gathered, and the matmul is C"),
        (GatherEinsum(AllGather("D", "I", ("x",)), PRODUCT), "D is gathered, but is no operand of the matmul, or twice"),
        (
            GatherEinsum(AllGather("A", "I", ("x",)), Einsum(("A", "A"), "C", ("I", "J"))),
            "A is gathered, but is no operand of the matmul, or twice",
        ),
        (
            RotateEinsum((AllGather("A", "J", ("y",)), AllGather("D", "J", ("x",))), PRODUCT),
            "D is gathered, but is no operand of the matmul, or twice",
        ),
        (
            replace(GATHER, way="around"),
            f"{A_RING}: not 'around', 1",
        ),
        (replace(SCATTER, way="up"), f"{A_RING}: not 'up', 1"),
        (
            replace(GATHER, chunks=0),
            f"{A_RING}: not 'bidirectional', 0",
        ),
        (
            replace(SCATTER, chunks=-2),
            f"{A_RING}: not 'bidirectional', -2",
        ),
        (
            GatherEinsum(AllGather("A", "I", ("x",)), Einsum(("A", "B"), "C", ("J", "K"))),
            "I is summed in A alone: there is nothing to multiply block by block",
        ),
        (RotateEinsum((AllGather("A", "I", ("x",)), AllGather("B", "K", ("y",))), PRODUCT), CANNOT_ROTATE),
        (RotateEinsum((AllGather("A", "J", ("x",)), AllGather("B", "J", ("x",))), PRODUCT), CANNOT_ROTATE),
        (RotateEinsum((AllGather("A", "J", ("x", "y")), AllGather("B", "J", ("y",))), PRODUCT), CANNOT_ROTATE),
        (RotateEinsum((AllGather("A", "J", ("x",)), AllGather("A", "J", ("y",))), PRODUCT), CANNOT_ROTATE),
        (
            RotateEinsum((AllGather("A", "J", ("x",)), AllGather("B", "J", ("y",))), Einsum(("A", "B"), "C", ("I", "J", "K"))),
            CANNOT_ROTATE,
        ),
        (GatherEinsum(AllGather("A", "J", ("x",)), PRODUCT), "axes x are not the minor axes of J"),
        (EinsumScatter(PRODUCT, ReduceScatter("C", "I", ("x",))), "nothing is unreduced over x"),
    ],
    ids=lambda value: kind(value) if isinstance(value, Fused) else "",
)
def test_what_is_refused_and_why(step: Fused, why: str):
    before = layouts(A="I_x, J", B="J, K", D="I_x, J")
    with pytest.raises(ProgramError) as refused:
        rule(step, before, GRID)
    assert str(refused.value) == why


def test_an_array_that_is_not_there():
    with pytest.raises(ProgramError, match="there is no array B here: there are A"):
        rule(GATHER, layouts(A="I_x, J"), X4)


def test_a_program_says_which_step_is_refused():
    with pytest.raises(
        ProgramError, match=r"^step 1, multiply while gathering A over x \(I\), both ways in 0 chunks a block: "
    ):
        Program(X4, tuple(BEFORE[GATHER][1].items()), (replace(GATHER, chunks=0),), "C")


# Their words.


@pytest.mark.parametrize(
    ("step", "name", "says", "axes"),
    [
        (GATHER, "gather-einsum", "multiply while gathering A over x (I), both ways", ("x",)),
        (replace(GATHER, way="ring"), "gather-einsum", "multiply while gathering A over x (I), one way", ("x",)),
        (
            replace(SCATTER, chunks=2),
            "einsum-scatter",
            "multiply while scattering over x (I), both ways in 2 chunks a block",
            ("x",),
        ),
        (SCATTER, "einsum-scatter", "multiply while scattering over x (I), both ways", ("x",)),
        (PIPELINED, "einsum-gather", "multiply, and gather C over x (I), both ways in 4 chunks a block", ("x",)),
        (ROTATE, "rotate-einsum", "multiply while rotating A over y and B over x", ("y", "x")),
        (
            GatherEinsum(AllGather("A", "I", ("y", "x")), PRODUCT, "ring", 3),
            "gather-einsum",
            "multiply while gathering A over y,x (I), one way in 3 chunks a block",
            ("y", "x"),
        ),
    ],
    ids=str,
)
def test_the_words_of_fused_steps(step: Fused, name: str, says: str, axes: tuple[str, ...]):
    assert kind(step) == name
    assert describe(step) == says
    assert moved_axes(step) == axes
    assert consumed(step) == ("A", "B")
    assert touched(step) == "C"
    assert einsum_of(step) == PRODUCT


def test_a_collective_by_permutes_multiplies_nothing_and_is_called_what_it_is():
    same = Einsum(("C",), "C", ("I", "K"))
    assert (
        describe(EinsumScatter(same, ReduceScatter("C", "I", ("x",)))) == "reduce-scatter C over x (I) by permutes, both ways"
    )
    gather = EinsumGather(same, AllGather("C", "I", ("x",)), "ring", 2)
    assert describe(gather) == "all-gather C over x (I) by permutes, one way in 2 chunks a block"
    assert consumed(gather) == (touched(gather),) == ("C",)


@pytest.mark.parametrize("step", [GATHER.gather, SCATTER.scatter, PRODUCT], ids=kind)
def test_a_plain_step_is_its_only_part(step: Step):
    assert parts(step) == (step,)
    assert names_of(step) == frozenset()


def test_axes_moved_twice_are_named_once():
    both = RotateEinsum((AllGather("A", "J", ("x",)), AllGather("B", "J", ("x",))), PRODUCT)
    assert moved_axes(both) == ("x",)


def test_what_overlap_may_call_them():
    assert names_of(GATHER) == {"bidirectional"}
    assert names_of(replace(SCATTER, way="ring")) == {"ring", "scatter"}
    assert names_of(ROTATE) == {"rotate"}
    assert list(forms_of(ROTATE)) == [ROTATE]
    assert names_of(PIPELINED) == {"bidirectional"}
    for step, count in ((GATHER, 6), (SCATTER, 6), (PIPELINED, 9)):
        forms = list(forms_of(step))
        assert step in forms
        assert len(set(forms)) == len(forms) == count
        assert {parts(form) for form in forms} == {parts(step)}


def test_a_program_prints_a_fused_step_with_the_layouts_around_it():
    program = Program(X4, tuple(BEFORE[SCATTER][1].items()), (SCATTER,), "C")
    assert str(program).splitlines()[-1].split("  ")[-1].strip().endswith("A[I, J_x] · B[J_x, K] -> C[I_x, K]")
