"""What the overlap benchmark compares with makes right results: a rival that is wrong would be no rival."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import shardwise as sw
from benchmarks.pairs import PAIR, local_gradient, own_gradient
from shardwise.measure import rivals
from shardwise.measure.overlap_rows import KINDS
from shardwise.notation import parse

SIZES = {"I": 16, "J": 8, "K": 24, "F": 32}


def drawn(dims: tuple[str, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-3, 4, [SIZES[dim] for dim in dims]).astype(np.float32)


@pytest.mark.parametrize("kind", KINDS)
def test_own_and_textbook_are_the_matmul(kind):
    equation = parse(KINDS[kind])
    mesh = rivals.on_auto(sw.make_mesh("x=4"))
    a, b = (drawn(operand.dims, seed) for seed, operand in enumerate(equation.operands))
    for function in (rivals.own(equation, mesh), rivals.textbook(kind, equation, mesh)):
        made = function(a, b)
        np.testing.assert_array_equal(made, a @ b)
        assert made.sharding.is_equivalent_to(jax.sharding.NamedSharding(mesh, equation.result.layout.spec), 2)


def test_gradients_are_those_of_one_device():
    up, down = map(parse, PAIR)
    mesh = rivals.on_auto(sw.make_mesh("x=4"))
    args = [drawn(dims, seed) for seed, dims in enumerate((("I", "J"), ("J", "F"), ("F", "J")))]
    function, structs = local_gradient(SIZES)
    assert [struct.shape for struct in structs] == [arg.shape for arg in args]
    for made, wanted in zip(own_gradient(up, down, mesh)(*args), function(*args), strict=True):
        np.testing.assert_allclose(made, wanted, rtol=1e-5)


def test_a_local_matmul_has_the_shards_dimensions():
    function, args = rivals.local(["IJ", "JK"], "KI", SIZES)
    assert jax.eval_shape(function, *args).shape == (24, 16)
