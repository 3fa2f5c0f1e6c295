"""The decoder that is trained in examples: one loss curve in every layout, and with transfers behind matmuls."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from kept import kept_texts  # noqa: F401  a fixture

from shardwise.functions.replacing import found_places, replacing
from shardwise.functions.rewriting import rewritten

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "decoder"))
import train_decoder
from decoder import Sizes

SMALL = Sizes(tokens=32, width=64, hidden=128, layers=2)
LARGE = Sizes(layers=1, tokens=256)  # so large that transfers behind matmuls are faster


@pytest.fixture(scope="module")
def trained():
    """Of each layout the state after four small steps, and their losses."""
    return {layout: train_decoder.train(layout, 4, sizes=SMALL) for layout in train_decoder.LAYOUTS}


def test_the_loss_falls_and_is_the_same_in_every_layout(trained):
    for _, losses in trained.values():
        assert losses[-1] < losses[0] - 0.4
        np.testing.assert_allclose(losses, trained["fsdp"][1], rtol=1e-5)
    for part in ("weights", "mean", "square"):
        parts = {layout: state[part]["up"].addressable_shards[0].data.shape for layout, (state, _) in trained.items()}
        assert parts == {"fsdp": (2, 2, 8, 128), "tp": (2, 2, 64, 64), "fsdp+tp": (2, 2, 32, 32)}


@pytest.mark.parametrize("layout", ["fsdp", "tp"])
def test_the_losses_are_the_same_with_every_transfer_behind_its_matmul(layout, trained, monkeypatch):
    """Whatever is faster, of which a test of these sizes says nothing."""
    chosen = []

    def forced(mesh, state, sizes, *_):
        args = (state, train_decoder.batch(0, mesh, sizes))
        chosen.extend(found_places(train_decoder.step, args, None, mesh, "tpu-v5e", "ring")[0])
        return rewritten(train_decoder.step, replacing(chosen, mesh))

    monkeypatch.setattr(train_decoder, "overlapped", forced)
    _, losses = train_decoder.train(layout, 4, sizes=SMALL, overlap="v5e:2x4")
    assert {Path(place.line.place.rpartition(":")[0]).name for place in chosen} == {"decoder.py"}
    assert len(chosen) > 5
    np.testing.assert_allclose(losses, trained[layout][1], rtol=1e-5)


@pytest.mark.needs("tpu")
@pytest.mark.usefixtures("kept_texts")
def test_the_losses_are_the_same_where_overlap_found_something_faster(monkeypatch, capsys):
    found = []
    overlap = train_decoder.sw.overlap
    monkeypatch.setattr(train_decoder.sw, "overlap", lambda *args, **said: found.append(overlap(*args, **said)) or found[0])
    _, wanted = train_decoder.train("fsdp+tp", 2, sizes=LARGE)
    _, losses = train_decoder.train("fsdp+tp", 2, sizes=LARGE, overlap="v5e:2x4", seconds=0)
    assert found[0].changes
    assert found[0].speedup > 1
    assert "times as fast" in capsys.readouterr().out
    np.testing.assert_allclose(losses, wanted, rtol=1e-5)


def test_the_blocks_of_the_recipe_are_under_forty_lines_each():
    page = Path(__file__).parents[2] / "docs" / "recipes" / "decoder.md"
    blocks = re.findall(r"^class (\w+)\(.*\n((?:(?: .*)?\n)+)", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert [name for name, _ in blocks] == ["NnxBlock", "EquinoxBlock"]
    assert all(len(body.strip("\n").splitlines()) + 1 < 40 for _, body in blocks)


def test_without_orbax_a_checkpoint_is_refused_with_the_way_out(monkeypatch):
    monkeypatch.setitem(sys.modules, "orbax", None)
    with pytest.raises(SystemExit, match="pip install orbax-checkpoint"):
        train_decoder.Checkpoints("anywhere")
