"""`shardwise bench-overlap` on a real case, and what it says about mistakes."""

from __future__ import annotations

import json

import pytest

from benchmarks.overlap import row_of
from benchmarks.pairs import measured_pair
from shardwise.cli import main
from shardwise.commands.bench_overlap import _local
from shardwise.measure.overlap_rows import KINDS, Case
from shardwise.notation import parse
from shardwise.planning.explain import summary
from shardwise.planning.problem import problem
from shardwise.planning.ranking import rank
from shardwise.program import unfused

pytestmark = pytest.mark.usefixtures("kept_texts")
SMALLEST = "16384x1024x2048"


@pytest.mark.needs("tpu")
def test_a_gathered_matmul_beats_the_compilers_own(tmp_path, capsys):
    path = tmp_path / "rows.json"
    case = ("--on", "v5e:2x4", "--kinds", "AG", "--sizes", SMALLEST)
    assert main(["bench-overlap", *case, "--json", str(path)]) == 0
    out = capsys.readouterr().out
    assert "times modelled from the compiled schedule" in out
    assert "in the geometric mean" in out
    facts = json.loads(path.read_text())
    (row,) = map(row_of, facts["rows"])
    assert row.case == Case("v5e:2x4", "AG", SMALLEST)
    assert facts["versions"].keys() == {"jax", "libtpu"}
    assert facts["summary"]["count"] == 1
    assert row.gain >= 1.3
    assert row.ours.step < row.textbook.step
    assert "while gathering A" in row.program
    assert row.program in out
    assert row.ours.permutes
    assert row.ours.hidden == row.ours.permutes
    assert 350 < row.written_bound < 420  # 68.7 GFLOP at 197 TFLOP/s, and what of it a matmul reaches
    assert row.bound <= row.ours.step


def test_the_local_matmul_is_that_of_the_shards_once_gathered():
    task = problem(parse(KINDS["AG"]), {"I": 64, "J": 16, "K": 32}, {"x": 8}, "v5e:2x4")
    found = {summary(each.program): _local(task, unfused(each.program))[0] for each in rank(task)}
    assert found["all-gather A over x (I), then multiply"]["I"] == 64
    assert found["multiply, then all-gather C over x (I)"]["I"] == 8


@pytest.mark.needs("tpu")
@pytest.mark.slow
def test_the_gradient_of_a_pair_is_overlapped():
    pair = measured_pair("v5e:2x2", {"I": 2048, "J": 2048, "F": 4096})
    assert pair.gain > 1
    assert pair.ours.hidden


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--on", "v5e:2x4", "--kinds", "AR"), "--kinds AR: there is AG"),
        (("--on", "v5e:2x4", "--sizes", "7"), "--sizes 7: write rows x contracted x columns"),
        (("--on", "v5e:2x4", "--sizes", "7x8x8", "--kinds", "AG"), "8"),
        (("--on", "v9:2x4"), "v9"),
        (("--on", "v5e:1x1"), "nobody to send to"),
        (("--on", "v5e:2x4", "--json", "nowhere/rows.json"), "there is no folder nowhere"),
    ],
)
def test_mistakes(arguments, message, capsys):
    assert main(["bench-overlap", *arguments]) == 2
    assert message in capsys.readouterr().err
