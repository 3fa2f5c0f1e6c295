"""Formulas with their numbers: their summands add up to the modelled cost, and reckoning with them gives it. No JAX."""

from __future__ import annotations

import math
import re

import pytest

from shardwise.chips import hardware
from shardwise.layout import Layout
from shardwise.mesh import Mesh
from shardwise.notation import parse
from shardwise.planning.formulas import costs_on, formulas
from shardwise.planning.problem import problem
from shardwise.planning.ranking import rank
from shardwise.program import Program, shift
from shardwise.steps import AllGather, AllReduce, AllToAll, ReduceScatter, Slice

UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
MESHES = ["x=4", "x=16", "x=16, y=2", "x=2, y=3, z=4"]
PLACES = [(name, mesh) for name in hardware.names() for mesh in MESHES]
PLACES += [("v5e:2x4", "x=4"), ("v5p:2x2x2", "x=4"), ("v5p:2x2x2", "x=4, y=2"), ("h100:2x8", "x=16")]


def one_step_programs(mesh: Mesh):
    cut, whole, summed = Layout.parse("I_x, J"), Layout.parse("I, J"), Layout.parse("[I, J]{U_x}")
    for layout, step in (
        (cut, AllGather("A", "I", ("x",))), (Layout.parse("I, J_x"), AllGather("A", "J", ("x",))),
        (summed, AllReduce("A", ("x",))), (summed, ReduceScatter("A", "I", ("x",))),
        (summed, ReduceScatter("A", "J", ("x",))), (cut, AllToAll("A", "I", "J", ("x",))),
        (cut, shift("A", cut, "x", mesh)), (whole, Slice("A", "J", ("x",))),
    ):  # fmt: skip
        yield Program(mesh, (("A", layout),), (step,), "A")


def reckoned(numbers: str) -> float | None:
    """What the numbers of a formula come to; nothing where they are words, or none."""
    if not numbers or "copied" in numbers:
        return None
    plain = numbers.replace(" FLOPs", "").replace(" FLOP/s", "").replace("·", "*")
    said = re.sub(r"([\d.]+) (ns|us|ms|s|kB|MB|GB|TB|B)\b(?:/s)?", lambda m: f"({m[1]}*{UNITS[m[2]]})", plain)
    return eval(said, {"max": max}) if re.fullmatch(r"[-+*/(). ,\deax]*|max\(.*|2 \* max\(.*", said) else None


@pytest.mark.parametrize(("name", "mesh"), PLACES)
@pytest.mark.parametrize("size", [96, 96 * 64])
def test_the_summands_are_the_modelled_cost_and_their_numbers_come_to_it(name, mesh, size):
    grid = Mesh.parse(mesh)
    costs = costs_on(name, grid, "bfloat16")
    checked = 0
    for program in one_step_programs(grid):
        (priced,) = formulas(program, costs, {"I": size, "J": size})
        assert math.fsum(term.seconds for term in priced.terms) == pytest.approx(priced.cost.seconds, rel=1e-9), priced
        for term in priced.terms:
            if (came := reckoned(term.numbers)) is not None:
                assert came == pytest.approx(term.seconds, rel=0.02), term
                checked += 1
    assert checked >= 7


@pytest.mark.parametrize("name", hardware.names())
@pytest.mark.parametrize("sizes", [(8192, 8192, 8192), (64, 8192, 64), (4, 4, 4), (8192, 16, 8192)])
def test_products_too(name, sizes):
    task = problem(parse("A[I_x, J] · B[J, K] -> C[I, K]"), dict(zip("IJK", sizes, strict=True)), "x=4", name)
    costs = costs_on(name, task.mesh, task.dtype)
    for candidate in rank(task):
        for priced in formulas(candidate.program, costs, task.sizes):
            assert math.fsum(term.seconds for term in priced.terms) == pytest.approx(priced.cost.seconds, rel=1e-9), priced
            for term in priced.terms:
                if (came := reckoned(term.numbers)) is not None:
                    assert came == pytest.approx(term.seconds, rel=0.02), term
