"""What is padding stays known as long as an array lives: by `sw.true_shape`, and in what `sw.show` draws."""

from __future__ import annotations

import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shardwise as sw
from shardwise.errors import ArrayError
from shardwise.runtime import padding


def rows(count: int = 7) -> np.ndarray:
    return np.arange(count * 3, dtype=np.float32).reshape(count, 3)


def test_what_is_placed_and_what_is_made_of_it():
    mesh = sw.make_mesh("x=4")
    a = sw.put(rows(), "A[I_x, J]", mesh, pad=True)
    assert (a.shape, sw.true_shape(a)) == ((8, 3), (7, 3))
    for moved in (sw.reshard(a, "A[I_x, J] -> A[I, J]"), sw.put(a, "A[I_x, J]", mesh), sw.put(a, "A[I_{x,y}, J]", "x=4, y=2")):
        assert (moved.shape, sw.true_shape(moved)) == ((8, 3), (7, 3))
    product = sw.einsum("A[I_x, J] · B[J, K] -> C[K_x, I]", a, np.ones((3, 4), np.float32))
    assert sw.true_shape(product) == (4, 7)
    np.testing.assert_array_equal(np.asarray(product)[:, 7:], 0)
    assert sw.true_shape(sw.einsum("A[I_x, J] -> S[J]", a)) == (3,)
    drawn = sw.random.normal(jax.random.key(0), "A[I_x]", sizes={"I": 5}, mesh=mesh, pad=True)
    assert (drawn.shape, sw.true_shape(drawn)) == ((8,), (5,))


def test_what_an_einsum_pads():
    text, arrays = "A[I_x, J] · B[J, K] -> C[I_x, K]", (rows(), np.ones((3, 2), np.float32))
    padded = sw.einsum(text, *arrays, mesh="x=4", pad=True)
    assert (padded.shape, sw.true_shape(padded)) == ((8, 2), (7, 2))
    cut = sw.einsum("A[I_x, J] · B[J, K] -> C[I, K]", *arrays, mesh="x=4", pad=True)
    assert (cut.shape, sw.true_shape(cut)) == ((7, 2), (7, 2))
    planned = sw.plan(text, sizes={"I": 8, "J": 3, "K": 2}, mesh="x=4", dtype="float32").function(sw.make_mesh("x=4"))
    assert sw.true_shape(planned(sw.put(rows(), "A[I_x, J]", "x=4", pad=True), arrays[1])) == (7, 2)


def test_nothing_is_known_of_other_arrays():
    a = sw.put(np.arange(7.0), "A[I_x]", "x=4", pad=True)
    assert sw.true_shape(a + 1) == (8,)  # where it is padded it holds ones
    assert sw.true_shape(np.ones((2, 3))) == (2, 3)
    seen = []
    jax.jit(lambda a: (seen.append(sw.true_shape(a)), sw.einsum("A[I_x] -> A[I]", a, mesh="x=4"))[1])(a)
    assert seen == [(8,)]
    with pytest.raises(ArrayError, match="str is no array"):
        sw.true_shape("A[I_x]")


def test_what_is_known_goes_with_the_array():
    gc.collect()
    before = len(padding._KNOWN)
    arrays = [sw.put(np.arange(7.0), "A[I_x]", "x=4", pad=True) for _ in range(3)]
    assert len(padding._KNOWN) == before + 3
    del arrays
    gc.collect()
    assert len(padding._KNOWN) == before


def test_a_picture_says_what_is_padding(capsys):
    sw.show(sw.einsum("A[I_x, J] · B[J, K] -> C[I_x, K]", rows(5), np.ones((3, 2), np.float32), mesh="x=4", pad=True))
    shown = capsys.readouterr().out
    assert "A[I_x, J], 5 x 2, on mesh x=4; padded to 8 x 2" in shown
    assert "4:5 +1 padding, 0:2" in shown
    assert "pad I+2" in shown
    sw.show(sw.reshard(sw.put(rows(), "A[I_x, J]", "x=4", pad=True), "A[I_x, J] -> A[I, J]"))
    assert "A[I, J], 7 x 3, on mesh x=4; padded to 8 x 3; replicated over x=4" in capsys.readouterr().out


def test_a_dimension_padded_for_the_sake_of_another_array(capsys):
    """Rows are split by 4 as they come and by 3 as they go: to be both there are 12 of them."""
    made = sw.einsum("A[I_x, J] · B[J, K] -> C[I_y, K]", rows(5), np.ones((3, 2), np.float32), mesh="x=2, y=3", pad=True)
    assert (made.shape, sw.true_shape(made)) == ((6, 2), (5, 2))
    sw.show(made)
    assert "A[I_y, J], 5 x 2, on mesh x=2, y=3; padded to 6 x 2" in capsys.readouterr().out


def test_a_single_device_is_no_mesh(capsys):
    sw.show(jnp.ones((2, 2)))
    assert capsys.readouterr().out.startswith("A[I, J], 2 x 2, on one device\n")
