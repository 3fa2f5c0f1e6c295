"""The decoder of examples, stopped and gone on with by Orbax: bit for bit what it is without a stop."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
import pytest

import shardwise as sw

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "decoder"))
import train_decoder
from decoder import Sizes

sw.simulate(8)
SMALL = Sizes(tokens=32, width=64, hidden=128)


@pytest.fixture(autouse=True)
def compiled_quickly() -> Iterator[None]:
    """Each program runs a few times: LLVM need not try hard."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.mark.parametrize("layout", train_decoder.LAYOUTS)
def test_training_goes_on_bit_for_bit(layout: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wanted, losses = train_decoder.train(layout, 5, sizes=SMALL)
    _, before = train_decoder.train(layout, 3, sizes=SMALL, every=2, checkpoint=str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.isdigit()) == ["2", "3"]
    state, after = train_decoder.train(layout, 5, sizes=SMALL, checkpoint=str(tmp_path))
    assert f"{tmp_path} holds step 3" in capsys.readouterr().out
    assert before + after == losses
    for one, other in zip(jax.tree.leaves(state), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.sharding == other.sharding


def test_a_state_is_read_in_another_layout(tmp_path: Path) -> None:
    _, losses = train_decoder.train("fsdp", 4, sizes=SMALL)
    train_decoder.train("fsdp", 2, sizes=SMALL, checkpoint=str(tmp_path))
    _, after = train_decoder.train("fsdp+tp", 4, sizes=SMALL, checkpoint=str(tmp_path))
    np.testing.assert_allclose(after, losses[2:], rtol=1e-5)
