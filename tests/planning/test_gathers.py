"""Gathers along lanes take what compilers made of them."""

from __future__ import annotations

import pytest

from shardwise.notation import parse
from shardwise.planning.cost import estimate
from shardwise.planning.problem import costs_of, problem
from shardwise.program import Program
from shardwise.steps import AllGather

FOUR, EIGHT, SIXTEEN = "x=4", "x=8", "x=16"
COMPILED = [  # the sizes of the gathered dimension and the other, and microseconds
    ("v6e:2x2", FOUR, 6080, 936, 190),  # spread: four blocks of many tiles
    ("v5e:2x2", FOUR, 6400, 784, 251),
    ("v5e:2x2", FOUR, 17440, 248, 113),  # transposed there and back, which the chip has room for
    ("v6e:2x2", FOUR, 9536, 3992, 783),  # and has no room for
    ("v5e:2x2", FOUR, 20256, 1744, 1246),
    ("v5p:2x2x1", FOUR, 12544, 1600, 490),
    ("v4:2x2x1", FOUR, 8256, 1576, 416),
    ("v5p:2x2x2", EIGHT, 23680, 480, 176),  # eight blocks fill a tile
    ("v5e:2x4", EIGHT, 4864, 584, 107),
    ("v5e:4x4", SIXTEEN, 25728, 968, 961),
]


@pytest.mark.parametrize(("target", "mesh", "extent", "other", "microseconds"), COMPILED)
def test_blocks_that_end_within_lanes_are_put_together_as_compiled(target, mesh, extent, other, microseconds):
    task = problem(parse("A[I_x, J] -> A[I, J]"), {"I": extent, "J": other}, mesh, target)
    program = Program(task.mesh, (("A", task.equation.operands[0].layout),), (AllGather("A", "I", ("x",)),), "A")
    assert estimate(program, costs_of(task), task.sizes).seconds == pytest.approx(microseconds * 1e-6, rel=0.25)
