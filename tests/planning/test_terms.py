"""Prices as formulas: what is printed comes to the price, in symbols exactly, and in numbers to their three figures. No JAX."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.drawn import LARGE, SMALL, drawn
from shardwise.chips import hardware
from shardwise.chips.quantities import Quantity
from shardwise.layout import Layout
from shardwise.mesh import Mesh
from shardwise.notation import parse
from shardwise.planning.cost import estimate
from shardwise.planning.prices import Costs
from shardwise.planning.problem import costs_of, costs_on, problem
from shardwise.planning.ranking import rank
from shardwise.planning.terms import Told, told, with_formulas
from shardwise.program import Program, shift
from shardwise.steps import AllGather, AllReduce, AllToAll, ReduceScatter, Slice, kind

UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
UNITS |= {"FLOPs": 1.0, "FLOP/s": 1.0, "results/s": 1.0}
NUMBER = re.compile(r"(\d[\d.]*(?:e[+-]?\d+)?) (ns|us|ms|s|kB|MB|GB|TB|B|FLOPs|FLOP/s|results/s)\b(?:/s)?")
NUMERAL = re.compile(r"(?<![\w.])\d[\d.]*(?:e[+-]?\d+)?")
MESHES = ["x=4", "x=16", "x=16, y=2", "x=2, y=3, z=4"]
PLACES = [(name, mesh) for name in hardware.names() for mesh in MESHES]
PLACES += [("v5e:2x4", "x=4"), ("v5p:2x2x2", "x=4"), ("v5p:2x2x2", "x=4, y=2"), ("h100:2x8", "x=16"), ("v5p:4x4x4", "x=64")]


def came(symbols: str, values: Mapping[str, float]) -> float:
    """What a formula in symbols comes to."""
    names = {name.replace("'", "_"): value for name, value in values.items()}
    return eval(symbols.replace("·", "*").replace("'", "_"), {"max": max}, names)


def evaluated(numbers: str) -> float:
    """What a formula in numbers comes to."""
    return eval(NUMBER.sub(lambda m: f"({m[1]}*{UNITS[m[2]]})", numbers).replace("·", "*"), {"max": max})


def is_coefficient(numeral: str) -> bool:
    """Whether it is no figure whose letter was lost; a switch's hops are priced by 2**30 bytes at a time."""
    value = float(numeral)
    short = value < 1e6 and value * 1000 == pytest.approx(round(value * 1000), rel=1e-12)
    return short or 0 < value * 2**30 < 64


def check(price: Told, seconds: float) -> None:
    """The printed terms are the price; so are their numbers, and the formulas of the letters are their values."""
    for term in price.terms:
        assert all(map(is_coefficient, NUMERAL.findall(term.symbols))), term
        assert came(term.symbols, price.values) == pytest.approx(term.seconds, rel=1e-9), term
        assert evaluated(term.numbers) == pytest.approx(term.seconds, rel=0.02), term
    assert math.fsum(came(term.symbols, price.values) for term in price.terms) == pytest.approx(seconds, rel=1e-9)
    for said in price.letters:
        symbol, *formulas = said.split(": ")[0].split(" = ")
        if formulas:
            assert all(map(is_coefficient, NUMERAL.findall(formulas[0]))), said
            assert came(formulas[0], price.values) == pytest.approx(price.values[symbol], rel=1e-9), said
            assert evaluated(formulas[1]) == pytest.approx(price.values[symbol], rel=0.02), said


def check_program(program: Program, costs: Costs, sizes: Mapping[str, int]) -> set[str]:
    """Every step of a program is priced the same with its formula and without; the kinds of its steps."""
    plain, made = estimate(program, costs, sizes), estimate(program, with_formulas(costs), sizes)
    assert made.seconds == pytest.approx(plain.seconds, rel=1e-12)
    for with_formula, alone in zip(made.steps, plain.steps, strict=True):
        assert type(alone.seconds) is float
        assert with_formula.seconds == pytest.approx(alone.seconds, rel=1e-12)
        assert with_formula.exposed_seconds == pytest.approx(alone.exposed_seconds, rel=1e-9, abs=1e-15)
        check(told(with_formula.seconds), alone.seconds)
    return set(map(kind, program.steps))


def one_step_programs(mesh: Mesh):
    cut, whole, summed = Layout.parse("I_x, J"), Layout.parse("I, J"), Layout.parse("[I, J]{U_x}")
    for layout, step in (
        (cut, AllGather("A", "I", ("x",))), (Layout.parse("I, J_x"), AllGather("A", "J", ("x",))),
        (summed, AllReduce("A", ("x",))), (summed, ReduceScatter("A", "I", ("x",))),
        (summed, ReduceScatter("A", "J", ("x",))), (cut, AllToAll("A", "I", "J", ("x",))),
        (cut, shift("A", cut, "x", mesh)), (whole, Slice("A", "J", ("x",))),
    ):  # fmt: skip
        yield Program(mesh, (("A", layout),), (step,), "A")


@pytest.mark.parametrize(("name", "mesh"), PLACES)
@pytest.mark.parametrize("size", [96, 96 * 64])
def test_collectives_and_slices_on_every_hardware(name, mesh, size):
    grid = Mesh.parse(mesh)
    sizes = {"I": math.lcm(size, grid.size), "J": math.lcm(size, grid.size)}
    for program in one_step_programs(grid):
        check_program(program, costs_on(name, grid, "bfloat16"), sizes)


FUSED = [
    ("A[I_x, J] · B[J, K] -> C[I, K]", "x=4", True), ("A[I_x, J] · B[J, K] -> C[I, K]", "x=32", "ring"),
    ("A[I, J_x] · B[J_x, K] -> C[I_x, K]", "x=4", True), ("A[I, J_x] · B[J_x, K] -> C[I_x, K]", "x=4", "scatter"),
    ("A[I, J] · B[J_x, K] -> C[I, K]", "x=4", "bidirectional"),
    ("A[I_x, J_y] · B[J_x, K_y] -> C[I_x, K_y]", "x=4, y=2", "rotate"),
]  # fmt: skip
KINDS = {"einsum", "all-gather", "all-reduce", "reduce-scatter", "all-to-all", "slice"}
KINDS |= {"gather-einsum", "einsum-scatter", "einsum-gather", "rotate-einsum"}


@pytest.mark.parametrize("name", hardware.names())
@pytest.mark.parametrize("sizes", [(8192, 8192, 8192), (64, 8192, 64), (64, 64, 64), (8192, 128, 8192)])
def test_matmuls_and_every_fused_step_on_every_hardware(name, sizes):
    seen = set()
    for equation, mesh, overlap in FUSED:
        task = problem(parse(equation), dict(zip("IJK", sizes, strict=True)), mesh, name, overlap=overlap)
        for candidate in rank(task):
            seen |= check_program(candidate.program, costs_of(task), task.sizes)
    assert seen >= KINDS if sizes[0] == sizes[1] == 8192 else seen


@settings(max_examples=25)
@given(st.integers(0, 2**32), st.sampled_from(hardware.names()), st.sampled_from(["bfloat16", "float32", "int8"]))
def test_random_problems_on_slices_of_tpus_and_on_any_hardware(seed, name, dtype):
    random = Random(seed)
    given_ = drawn(random, random.choice(list(SMALL)), random.choice((SMALL, LARGE)))
    for target in (given_.target, name):
        task = problem(given_.equation, given_.sizes, given_.mesh, target, dtype)
        for candidate in rank(task):
            check_program(candidate.program, costs_of(task), task.sizes)


def test_two_numbers_of_one_name_have_letters_of_their_own():
    speed = Quantity.named("W", 45e9, "B/s", "a link")
    hops = [Quantity.named("S", size, "B", f"bytes of a shard of {array}") / speed for array, size in (("A", 3e6), ("B", 5e6))]
    price = told(2 * hops[0] + hops[1])
    assert [term.symbols for term in price.terms] == ["2 · S / W", "S' / W"]
    assert [term.numbers for term in price.terms] == ["2 · 3 MB / 45 GB/s", "5 MB / 45 GB/s"]
    assert price.letters == ("S: bytes of a shard of A", "W: a link", "S': bytes of a shard of B")


def test_what_a_compiler_makes_a_sum_is_said():
    program = Program(Mesh.parse("x=64"), (("A", Layout.parse("I_x")),), (AllGather("A", "I", ("x",)),), "A")
    price = told(
        estimate(program, with_formulas(costs_on("v5p:4x4x4", program.mesh, "bfloat16")), {"I": 2**20}).steps[0].seconds
    )
    assert [term.label for term in price.terms] == [
        "this compiler makes it an all-reduce of blocks among zeros",
        "blocks laid out in memory",
    ]
    assert price.terms[0].symbols == "2 · max(L, V · (n-1)/n / W)"
    assert price.terms[1].symbols == "1.3 · V / copied"
