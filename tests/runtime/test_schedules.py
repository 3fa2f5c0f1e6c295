"""One schedule: what is run, and what `Plan.code()` writes, sends and multiplies what it says, in its order; nothing runs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType

from shardwise.layout import Layout
from shardwise.mesh import Mesh, Sides
from shardwise.notation import Equation, Operand
from shardwise.planning.problem import problem
from shardwise.program import Program
from shardwise.runtime.code import source
from shardwise.runtime.lower import lower
from shardwise.schedule.events import Matmul, Send, unrolled
from shardwise.schedule.fused import scheduled
from shardwise.schedule.makers import UNROLL, gather_matmul, matmul_gather, matmul_scatter, rotate_matmul
from shardwise.steps import AllGather, Einsum, EinsumGather, EinsumScatter, GatherEinsum, ReduceScatter, RotateEinsum

MULTIPLY = Einsum(("A", "B"), "C", ("I", "K"))


def gathers(array: str, dim: str) -> Callable[..., GatherEinsum]:
    return lambda *how: GatherEinsum(AllGather(array, dim, ("x",)), MULTIPLY, *how)


def scatters(*how: Any) -> EinsumScatter:
    return EinsumScatter(MULTIPLY, ReduceScatter("C", "I", ("x",)), *how)


def pipelines(*how: Any) -> EinsumGather:
    return EinsumGather(MULTIPLY, AllGather("C", "I", ("x",)), *how)


@dataclass(frozen=True)
class Form:
    """A fused step, the layouts of its operands, and sizes: so many times the number of devices, or as they are."""

    layouts: tuple[str, str]
    step: Callable[..., Any]
    each: dict[str, int]
    plain: dict[str, int]
    along: str  # what its blocks are cut along

    def sizes(self, n: int) -> dict[str, int]:
        return {"J": 3 * n, "K": 4} | {dim: size * n for dim, size in self.each.items()} | self.plain


OUT, IN = ("I_x, J", "J, K"), ("I, J_x", "J_x, K")
FORMS = {
    "gather": Form(OUT, gathers("A", "I"), {"I": 7}, {}, "I"),
    "gather what is summed": Form(("I_x, J", "J_x, K"), gathers("B", "J"), {"I": 3, "J": 5}, {"K": 64}, "J"),
    "scatter": Form(IN, scatters, {"I": 9}, {}, "I"),
    "scatter, cut along K": Form(IN, scatters, {"I": 2}, {"K": 128 * 24}, "K"),
    "pipelined": Form(OUT, pipelines, {"I": 7}, {}, "I"),
    "pipelined, cut along K": Form(OUT, pipelines, {"I": 2, "J": 1}, {"K": 128 * 12}, "K"),
}
MAKERS = {"gather": gather_matmul, "scatter": matmul_scatter, "pipelined": matmul_gather}
HOW = [*itertools.product(("ring", "bidirectional"), (1, 2, 3, 4)), ("folded", 1), ("folded", 3)]
TORI = {4: [(2, 2)], 6: [(2, 3)], 8: [(2, 2, 2), (4, 2)], 9: [(3, 3)], 16: [(4, 4), (2, 2, 4)], 64: [(4, 4, 4)]}


def hows(n: int) -> Iterator[tuple[Any, int]]:
    """The ways that a ring of so many devices may go, and in how many chunks; on tori in an order of their own."""
    if n <= UNROLL:
        yield from HOW
    for sizes in TORI.get(n, ()):
        order = list(range(n))
        Random(n).shuffle(order)
        yield from ((Sides(sizes, tuple(order)), chunks) for chunks in ((1, 2) if n <= UNROLL else (1,)))


def within(jaxpr: Any) -> Iterator[Any]:
    """All equations, those of inner functions too, in order."""
    for equation in jaxpr.eqns:
        inner = [each for each in jax.tree.leaves(list(equation.params.values()), is_leaf=_is_jaxpr) if _is_jaxpr(each)]
        if inner:
            for each in inner:
                yield from within(getattr(each, "jaxpr", each))
        else:
            yield equation


def _is_jaxpr(value: Any) -> bool:
    return hasattr(value, "eqns") or hasattr(getattr(value, "jaxpr", None), "eqns")


def traced(function: Callable[..., Any], program: Program, sizes: dict[str, int]) -> tuple[list[Any], list[Any]]:
    """What a function sends, as pairs and elements, and the shapes that it multiplies, each in order."""
    mesh = abstract(*zip(*program.mesh.axes, strict=True))
    shapes = []
    for _, layout in program.inputs:
        placing = jax.NamedSharding(mesh, layout.on(program.mesh).spec)
        shapes.append(jax.ShapeDtypeStruct(tuple(sizes[dim] for dim in layout.names), jnp.float32, sharding=placing))
    with jax.sharding.use_abstract_mesh(mesh):
        found = list(within(jax.make_jaxpr(function)(*shapes).jaxpr))
    permutes = [each for each in found if each.primitive.name == "ppermute"]
    sends = [(tuple(sorted(map(tuple, each.params["perm"]))), each.outvars[0].aval.size) for each in permutes]
    matmuls = [tuple(v.aval.shape for v in each.invars) for each in found if each.primitive.name == "dot_general"]
    return sends, matmuls


def abstract(names: tuple[str, ...], sizes: tuple[int, ...]) -> AbstractMesh:
    return AbstractMesh(sizes, names, axis_types=(AxisType.Explicit,) * len(sizes))


def both(program: Program, sizes: dict[str, int]) -> list[tuple[list[Any], list[Any]]]:
    """What is run, and what is written, as they are traced."""
    operands = tuple(Operand(name, layout) for name, layout in program.inputs)
    equation = Equation(operands, Operand(program.output, program.result))
    text = source(program, "", task=problem(equation, sizes, program.mesh, "cpu", "float32")).replace(
        "jax.make_mesh(", "abstract("
    )
    names: dict[str, Any] = {"abstract": lambda shape, axes: abstract(axes, shape)}
    exec(text, names)
    mesh = abstract(*zip(*program.mesh.axes, strict=True))
    return [traced(function, program, sizes) for function in (lower(program, mesh), names["program"])]


FEW = (
    "gather what is summed",
    "scatter, cut along K",
    "pipelined, cut along K",
)  # other forms in other shapes, on fewer devices


@pytest.mark.parametrize(
    ("form", "n"), [(form, n) for form in FORMS for n in (*range(2, 10), 16, 64) if form not in FEW or n < 6]
)
def test_what_is_run_and_what_is_written_are_the_schedule(form: str, n: int):
    shown = FORMS[form]
    sizes, layouts = shown.sizes(n), {name: Layout.parse(text) for name, text in zip("AB", shown.layouts, strict=True)}
    for how in hows(n):
        step = shown.step(*how)
        program = Program(Mesh((("x", n),)), tuple(layouts.items()), (step,), "C")
        ring = scheduled(step, layouts, sizes, program.mesh)
        assert ring.along == shown.along
        events = list(unrolled(ring.events))
        sent = [each for each in events if isinstance(each, Send)]
        sends = [(tuple(sorted(each.pairs)), ring.elements * each.part.width // ring.width) for each in sent]
        ran, written = both(program, sizes)
        assert ran[0] == sends, how
        assert written[0] == sends, how
        assert written[1] == ran[1], how
        matmuls = [each for each in events if isinstance(each, Matmul)]
        parts = sum(len(each.parts) for each in matmuls)
        assert len(ran[1]) in ({len(matmuls), parts} if "summed" in form else {parts}), how


@pytest.mark.parametrize(("n", "m"), [(2, 2), (2, 3), (3, 2), (2, 4), (4, 4), (3, 3)])
def test_a_rotation_sends_what_its_grid_says(n: int, m: int):
    first, second = AllGather("A", "J", ("y",)), AllGather("B", "J", ("x",))
    program = Program(
        Mesh((("x", n), ("y", m))), (("A", Layout.parse("I_x, J_y")), ("B", Layout.parse("J_x, K_y"))),
        (RotateEinsum((first, second), MULTIPLY),), "C",
    )  # fmt: skip
    ran, written = both(program, {"I": 2 * n, "J": 12, "K": 3 * m})
    sends = [tuple(sorted(event.pairs)) for event in rotate_matmul((m, n)) if isinstance(event, Send)]
    assert len(ran[0]) == len(written[0]) == len(sends)
    assert sorted(ran[0]) == sorted(written[0])
    assert ran[1] == written[1]


@pytest.mark.parametrize("form", ["gather", "scatter", "pipelined"])
@pytest.mark.parametrize("n", [17, 18, 32, 33])
def test_a_loop_is_its_trips_one_after_the_other(form: str, n: int):
    """A long ring is a loop; trip by trip it has the events of one that is none."""
    for how in hows(n):
        looped, flat = (MAKERS[form](n, *how, 12, unroll) for unroll in (16, n))
        assert len(looped) < len(flat)
        assert list(unrolled(looped)) == list(unrolled(flat))
