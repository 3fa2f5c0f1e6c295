"""What the benchmarks sum up and print: the accuracy ledger, the catalogue beside a device, peers, and what a change cost."""

from __future__ import annotations

import json

import pytest

from benchmarks import baseline, gpu, peers
from benchmarks.accuracy import DEVICES, held, held_out, overlap_rows, report
from benchmarks.ledger import Held, Tried, candidate_correlation, errors, percentile, settled_pairs, spearman, summary
from shardwise.chips import hardware
from shardwise.measure.probes import host_trials
from shardwise.mesh import Mesh
from shardwise.notation import parse

TWO = (
    Held("one", (Tried("a", 1.0, 2.0, (1.9, 2.1)), Tried("b", 2.0, 1.0, (0.9, 1.1)), Tried("c", 3.0, 3.0, (2.0, 4.0)))),
    Held("two", (Tried("a", 1.0, 1.0, (0.9, 1.1)), Tried("b", 1.5, 1.2, (1.0, 1.4)))),
)


def test_errors_and_regret_are_those_that_one_works_out_by_hand():
    assert errors(TWO) == pytest.approx([0.0, 0.0, 0.25, 0.5, 1.0])
    assert percentile(errors(TWO), 0.9) == pytest.approx(0.8)
    assert [case.regret for case in TWO] == pytest.approx([1.0, 0.0])
    assert [case.sure_regret for case in TWO] == pytest.approx([1.0, 0.0])
    unsure = Held("three", (Tried("a", 1.0, 1.2, (0.9, 1.5)), Tried("b", 1.5, 1.0, (0.8, 1.1))))
    assert (unsure.regret, unsure.sure_regret) == (pytest.approx(0.2), 0.0)


def test_what_runs_have_confirmed_is_judged_by_other_runs():
    own = Tried("own", None, 0.5, None)
    case = Held("one", (*TWO[0].tried, own), confirmed="b")
    assert (case.confirmed_regret, TWO[0].confirmed_regret) == (pytest.approx(1.0), None)
    assert errors([case]) == errors(TWO[:1])  # the compiler's own is not predicted
    assert settled_pairs([case]) == settled_pairs(TWO[:1])
    assert 'what `confirm="here"` chose of 1 cases, by runs that it did not see: mean 100.0%' in "\n".join(summary([case]))


def test_pairs_whose_intervals_meet_settle_nothing():
    assert settled_pairs(TWO) == (1, 2)  # of one: b before a was not foreseen, b before c was; the rest meet


def test_ranks():
    assert spearman([1, 2, 2, 3], [10, 20, 20, 30]) == pytest.approx(1)
    scaled = [Held(str(n), tuple(Tried("p", n * k, 2 * n * k) for k in (1.0, 2.0, 4.0))) for n in (1, 100)]
    assert candidate_correlation(scaled) == pytest.approx(1)  # cases of different lengths count alike
    assert -1 <= candidate_correlation(TWO) < 1


def test_the_summary_says_all_that_is_promised():
    text = "\n".join(summary(TWO))
    assert "2 cases, 5 programs" in text
    assert "median 25.0%, 90th percentile 80%" in text
    assert "of 2 pairs whose intervals do not meet, 1 are predicted in their order" in text
    assert "mean 50.0%, most 100%" in text


def test_at_least_sixty_cases_are_held_out_and_none_is_fitted():
    cases = list(held_out())
    assert len(cases) >= 60
    assert {devices for _, devices in cases} == set(DEVICES)
    fitted = {
        (*sorted(trial.sizes.items()), *(str(layout) for _, layout in trial.program.inputs), str(trial.program.result))
        for trial in host_trials(Mesh.parse("x=8"))
    }
    for case, _ in cases:
        equation = parse(case.equation)
        layouts = [str(operand.layout) for operand in (*equation.operands, equation.result)]
        assert (*sorted(case.sizes.items()), *layouts) not in fitted, case.name
    assert len({(case.name, devices) for case, devices in cases}) == len(cases)


def test_the_report_holds_every_case():
    rows = [
        {"name": "one", "devices": 4, "sizes": {}, "confirmed": "b", "tried": [
            {"program": "a", "predicted": 1e-3, "measured": 1.1e-3, "interval": [1e-3, 1.2e-3], "runs": 9},
            {"program": "b", "predicted": 2e-3, "measured": 2.1e-3, "interval": None, "runs": 4}]},
        {"name": "two", "devices": 8, "sizes": {}, "tried": [
            {"program": "a", "predicted": 1e-3, "measured": 1e-3, "interval": None, "runs": 3},
            {"program": "b", "predicted": 3e-3, "measured": 2e-3, "interval": None, "runs": 3}]},
    ]  # fmt: skip
    found = {"rows": rows, "host": "a host", "load": [0.1, 0.2],
             "errors fitted": {"all": 0.1}, "fitted": 60, "lost": 0, "clock": "cpu",
             "overlap": list(overlap_rows())}  # fmt: skip
    text = report(found)
    assert "| one | 4 | 1.00 | 1.10 | 0.91 | 0% | 91% | 2 |" in text
    assert "60 programs were fitted, to 10%" in text
    assert "are CPU time over the host's cores" in text
    assert len(held(rows)) == 2
    assert len(found["overlap"]) > 100


def test_a_device_beside_the_catalogue(capsys):
    chip = hardware("h100")
    rows = [
        *gpu.matmul_rows(chip, lambda name, call: 1e-3, (64,), ("float32",)),
        *gpu.memory_rows(chip, lambda name, call: 1e-3, (2**20,)),
    ]
    assert [row.measured for row in rows] == pytest.approx([2 * 64**3 / 1e-3, 2 * 2**20 / 1e-3])
    assert rows[0].share == pytest.approx(rows[0].measured / 4.945e14)
    text = gpu.table(chip, rows)
    assert text.startswith("NVIDIA H100 SXM, by the catalogue and as measured")
    assert "float32 matmul, 64 a side" in text


def test_kernels_of_a_traced_step_beside_the_estimate():
    (row,) = gpu.step_rows(hardware("cpu"), {"I": 64, "J": 64, "K": 64}, "float32")
    assert row.what == "kernels of a traced step, float32 64x64x64"
    assert row.measured > 0
    assert "s" in gpu.table(hardware("cpu"), [row])


def test_without_a_gpu_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["gpu"])
    assert gpu.main() == 2
    assert "JAX finds no GPU here" in capsys.readouterr().err


def quartiles(middle: float, spread: float = 0.02) -> list[float]:
    return [middle * (1 - spread), middle, middle * (1 + spread)]


def test_what_a_change_cost_is_named():
    before = {
        "probes": {"plan a": quartiles(1.0), "run b": quartiles(2.0), "run c": quartiles(1.0, 0.5), "run d": quartiles(1.0)},
        "chosen": {"a on cpu": {"program": "multiply", "seconds": 1.0}, "b on cpu": {"program": "multiply", "seconds": 1.0}},
    }
    now = {
        "probes": {"plan a": quartiles(1.3), "run b": quartiles(1.0), "run c": quartiles(1.2)},
        "chosen": {"a on cpu": {"program": "sum", "seconds": 1.0}, "b on cpu": {"program": "multiply", "seconds": 1.5}},
    }
    lines, worse = baseline.compared(before, now)
    assert lines == [
        "slower  plan a: 1.30 times as long as the baseline", "faster  run b: 0.50 times as long as the baseline",
        "gone    run d", "choice  a on cpu: sum; it was multiply", "price   b on cpu: 1.500 times what was predicted",
    ]  # fmt: skip
    assert worse
    assert baseline.compared(before, before) == (["nothing changed beyond its spread"], False)


def test_figures_are_times_of_the_probe_right_before():
    now, speed = [0.0], [1.0]

    def takes(seconds: float):
        def call() -> None:
            now[0] += seconds * speed[0]

        return call

    def probe() -> None:
        speed[0] = 3.0 - speed[0]  # the host is slow every other time
        takes(0.01)()

    found = baseline.in_probes({"run a": takes(0.02)}, {"run": probe}, 6, clock=lambda: now[0])
    assert found["run a"] == pytest.approx([2.0, 2.0, 2.0])


def test_the_stored_baseline_is_one():
    stored = json.loads(baseline.FILE.read_text(encoding="utf-8"))
    assert baseline.compared(stored, stored) == (["nothing changed beyond its spread"], False)
    assert any(name.startswith("plan") for name in stored["probes"])
    assert any(name.startswith("run") for name in stored["probes"])


def test_peers_multiply_the_same():
    import numpy as np

    for name in peers.CASES:
        (multiply,) = peers.numpy_way(name).values()
        a, b = peers.arrays_of(name)
        np.testing.assert_allclose(multiply(), a @ b)
    row = {"name": "headline", "equation": peers.CASES["headline"][0], "sizes": {}, "runs": 3,
           "seconds": {"Shardwise": 0.01, "NumPy, one device": 0.005}}  # fmt: skip
    assert "| headline: `A[I_x, J] · B[J, K] -> C[I, K]` | 10.0 | 0.50 |" in peers.report([row])
