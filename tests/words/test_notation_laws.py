"""Laws of the notation: printing inverts parsing, whatever the names, the blanks and the signs between operands."""

from __future__ import annotations

import re
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.equations import random_case, random_mesh
from shardwise.layout import Layout
from shardwise.mesh import Mesh
from shardwise.notation import Equation, Operand, parse, parse_operand

randoms = st.randoms(use_true_random=False)


LETTERS = "ABIJKUabdxyzλÉж"


def names(*, underscore: bool, primes: bool) -> st.SearchStrategy[str]:
    """A letter, then letters and digits; an underscore only where it does not introduce axes."""
    tail = st.text(LETTERS + "019" + "_" * underscore, max_size=4)
    ending = st.sampled_from(["", "", "'", "''"]) if primes else st.just("")
    return st.builds(lambda *parts: "".join(parts), st.sampled_from(LETTERS + "_" * underscore), tail, ending)


DIMS = names(underscore=False, primes=True)
AXES = names(underscore=True, primes=False)
ARRAYS = names(underscore=True, primes=True).filter(lambda name: name[0] != "_")


@st.composite
def operands(draw: st.DrawFn, dims: list[str], axes: list[str], *, result: bool = False, every: bool = False) -> Operand:
    """An array over some of the dimensions (or all, as they stand), each split over some of the axes."""
    names = dims if every else draw(st.lists(st.sampled_from(dims), unique=True)) if dims else []
    free = frozenset(draw(st.lists(st.sampled_from(names)))) if names and result else frozenset()
    order = draw(st.permutations(axes))
    split = {name: [] for name in names}
    unreduced = set()
    for axis in order:
        place = draw(st.sampled_from([None, "partial sums", *(name for name in names if name not in free)]))
        if place == "partial sums":
            unreduced.add(axis)
        elif place is not None:
            split[place].append(axis)
    layout = Layout(tuple((name, tuple(split[name])) for name in names), frozenset(unreduced))
    return Operand(draw(ARRAYS), layout, free)


@st.composite
def equations(draw: st.DrawFn) -> Equation:
    dims = draw(st.lists(DIMS, max_size=5, unique=True))
    # A dimension called "partial sums" cannot be: names hold no blanks.
    axes = draw(st.lists(AXES, max_size=4, unique=True))
    left = draw(st.lists(operands(dims, axes), min_size=1, max_size=4))
    known = list(dict.fromkeys(dim for operand in left for dim in operand.dims))
    kept = draw(st.permutations(known))[: draw(st.integers(0, len(known)))]
    stages = [draw(operands(kept, axes, result=True, every=True)) for _ in range(draw(st.integers(1, 3)))]
    return Equation(tuple(left), stages[-1], tuple(stages[:-1]))


@given(equations())
def test_parsing_inverts_printing(equation):
    assert parse(str(equation)) == equation


@given(equations(), randoms)
def test_blanks_separators_and_arrows_mean_the_same(equation, random: Random):
    text = re.sub(r" · ", lambda _: random.choice([" ", "·", " * ", "@", "\n"]), str(equation))
    text = re.sub(r" -> ", lambda _: random.choice(["->", "→", "  ->\t"]), text)
    text = re.sub(r", ", lambda _: random.choice([",", " , "]), text)
    assert parse(text) == equation


@given(randoms)
def test_random_equations_are_read_as_they_were_made(random: Random):
    case = random_case(random, partial=0.3)
    assert parse(str(case.equation)) == case.equation
    assert all(parse_operand(str(operand)) == operand for operand in case.equation.operands)


@given(randoms)
def test_an_axis_of_size_1_changes_nothing(random: Random):
    """The equation with axes of size 1 strewn in is the one without, on the mesh."""
    mesh = random_mesh(random)
    case = random_case(random, mesh=mesh, partial=0.3)
    wider = Mesh((*mesh.axes, ("one", 1), ("lone", 1)))

    def strewn(operand: Operand) -> Operand:
        dims = {dim: list(axes) for dim, axes in operand.layout.dims}
        unreduced = set(operand.layout.unreduced)
        for axis in ("one", "lone"):
            places = [None, *(dim for dim in dims if dim not in operand.free)]
            place = random.choice(places)
            if place is None:
                unreduced |= {axis} if random.random() < 0.5 else set()
            else:
                dims[place].insert(random.randint(0, len(dims[place])), axis)
        return Operand(operand.name, Layout(tuple((d, tuple(a)) for d, a in dims.items()), frozenset(unreduced)), operand.free)

    equation = case.equation
    other = Equation(tuple(map(strewn, equation.operands)), strewn(equation.result), tuple(map(strewn, equation.via)))
    assert other.on(wider) == equation.on(mesh)
    assert parse(str(other)).on(wider) == equation.on(wider)
