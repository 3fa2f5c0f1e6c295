"""The accuracy ledger: this host is calibrated, held-out cases are predicted with that, and then measured.

    python -m benchmarks.accuracy [--only NAME] [--minutes 25] [--clock cpu]

The cases are the benchmark's contractions in other sizes, on 4 and 8 simulated devices; none of them is among the programs
that are fitted. Every candidate of a case runs in turn with those of others, and runs count only beside probes as fast as those
of the calibration: on a host that others use, cases are tried again until the time is up. With `--clock cpu` times are this
process's CPU time over the host's cores, which others hardly lengthen: of as many simulated devices as cores, or more, that is
what a host takes that is left alone, but for the time in which devices wait for each other. Beside it
stands how near predictions for the overlap corpus came to what the TPU compilers made of it, when `make bench-overlap` last
compiled it. Written to docs/benchmarks/accuracy.json, .md and .svg.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.cases import CASES, Case
from benchmarks.ledger import Held, Tried, summary
from shardwise import writing
from shardwise.chips.hosts import cpu_cores
from shardwise.measure.intervals import Timing

FOLDER = Path(__file__).parent.parent / "docs" / "benchmarks"
DEVICES = (4, 8)
Clock = Callable[[], float]
CLOCKS: dict[str, Clock] = {"wall": time.perf_counter, "cpu": lambda: time.process_time() / cpu_cores()}
CALIBRATION_SECONDS = 60.0  # at most
SCALES = ((2, 2), (4, 2))  # what free and summed dimensions are divided by
MOST = 5  # candidates of a case
SLOWEST = 4  # times the choice's prediction: a candidate beyond is not run
NEARLY = 1.3  # times the choice's prediction: what is no slower must have been measured
BLOCK = 3  # cases whose candidates run in turn
CPU_TIME = (
    " Others used the host all the while: times, fitted and measured alike, are CPU time over the host's cores, without the "
    "time in which devices wait for each other."
)
BLOCK_SECONDS = 20.0  # at most
ENOUGH = 25  # runs of a candidate that count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases whose name holds this text; nothing is written then")
    parser.add_argument("--minutes", type=float, default=25.0, help="at most, for all")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="of what times are told")
    options = parser.parse_args()
    cases = [(case, n) for case, n in held_out() if options.only in case.name]
    for found in measured(cases, time.monotonic() + 60 * options.minutes, options.clock):
        text = report(found)
        if not options.only:
            write(found, text)
    print(text)


def held_out() -> Iterator[tuple[Case, int]]:
    """The benchmark's contractions in half and in a quarter of their sizes."""
    for free, inner in SCALES:
        for case in CASES:
            equation = case.equation.partition("->")[2]
            sizes = {dim: max(32, size // (free if dim in equation else inner)) for dim, size in case.sizes.items()}
            if case.name.startswith(("small", "batched")):
                sizes = {dim: size * 2 // (1 if free == 2 else 2) for dim, size in case.sizes.items()}
            for devices in DEVICES:
                yield dataclasses.replace(case, name=f"{case.name}, 1/{free}", sizes=sizes), devices


def measured(cases: Sequence[tuple[Case, int]], until: float, clock: str) -> Iterator[dict[str, Any]]:
    """Calibrate, predict and measure; what is known after each round over the cases that are not measured yet."""
    import jax

    import shardwise as sw
    from shardwise.runtime.devices import make_mesh

    sw.simulate(max(DEVICES))
    load = os.getloadavg()
    found = _calibrated(make_mesh({"x": max(DEVICES)}), until, CLOCKS[clock])
    chip = found.hardware
    assert chip.calibration is not None
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    left = list(cases)
    while left and time.monotonic() < until:
        for start in range(0, len(left), BLOCK):
            if time.monotonic() > until:
                break
            for row in _block(left[start : start + BLOCK], chip, found.probe_seconds, CLOCKS[clock]):
                rows[row["name"], row["devices"]] = row
                ratios = " ".join(f"{each['predicted'] / each['measured']:.2f}" for each in row["tried"] if each["predicted"])
                said = (
                    f"{row['devices']} {row['name']}: {row['tried'][0]['measured'] * 1e3:.1f} ms, predicted / measured {ratios}"
                )
                print(said, file=sys.stderr, flush=True)
        left = [(case, devices) for case, devices in cases if (case.name, devices) not in rows]
        if rows:
            yield {
                "made with": f"JAX {jax.__version__}, Python {sys.version.split()[0]}",
                "host": chip.calibration.host,
                "clock": clock,
                "load": [load[0], os.getloadavg()[0]],
                "errors fitted": dict(chip.calibration.errors),
                "fitted": chip.calibration.measured,
                "lost": len(left),
                "rows": [rows[case.name, devices] for case, devices in cases if (case.name, devices) in rows],
                "overlap": list(overlap_rows()),
            }


def _calibrated(mesh: Any, until: float, clock: Clock) -> Any:
    """A calibration, as `shardwise calibrate` makes it; a host that is too busy is tried again."""
    import shardwise as sw
    from shardwise.errors import MeasureError
    from shardwise.measure.calibrating import calibrated

    while True:
        try:
            found = calibrated(mesh, sw.hardware("cpu"), CALIBRATION_SECONDS, clock)
        except MeasureError as error:
            print(error, file=sys.stderr, flush=True)
            if time.monotonic() > until:
                raise
        else:
            print(f"{found.hardware}\n{found.hardware.calibration}", file=sys.stderr, flush=True)
            return found


def _block(cases: Sequence[tuple[Case, int]], chip: Any, probe_seconds: float, clock: Clock) -> list[dict[str, Any]]:
    """Predict and measure the candidates of some cases in turn: those cases of which enough could be measured."""
    import jax
    import numpy as np

    import shardwise as sw
    from shardwise.measure.probes import probe_trial, ready
    from shardwise.measure.rounds import timed
    from shardwise.mesh import Mesh
    from shardwise.runtime.devices import make_mesh
    from shardwise.runtime.execute import planned_function

    calls, known, confirmed = [], [], {}
    generator = np.random.default_rng(0)
    for case, devices in cases:
        mesh = make_mesh(case.mesh[devices])
        plan = sw.plan(case.equation, sizes=case.sizes, mesh=mesh, hardware=chip, dtype=case.dtype)
        arrays = [
            sw.put(generator.standard_normal([case.sizes[d] for d in o.dims], np.float32), o.layout, mesh)
            for o in sw.parse(case.equation).operands
        ]
        near = [each for each in plan if each.estimate.seconds <= SLOWEST * plan.best.estimate.seconds]
        fastest = sw.plan(case.equation, sizes=case.sizes, mesh=mesh, hardware=chip, dtype=case.dtype, confirm="here").best
        confirmed[case.name, devices] = fastest
        tried = near[:MOST] + [fastest] * all(each.program != fastest.program for each in near[:MOST])
        for number, candidate in enumerate(tried):
            function = planned_function(plan.task, candidate.program, mesh)
            jax.block_until_ready(function(*arrays))
            calls.append(lambda function=function, arrays=arrays: function(*arrays))
            known.append((case, devices, number, candidate))
    every = Mesh.parse({"x": max(DEVICES)})
    probe = ready(probe_trial(every, shared=True), make_mesh(every))
    rounds = timed(calls, probe, BLOCK_SECONDS, within=probe_seconds, enough=ENOUGH, clock=clock)
    return list(_rows(known, rounds, confirmed))


def _rows(known: Sequence[Any], rounds: Any, confirmed: dict[Any, Any]) -> Iterator[dict[str, Any]]:
    from shardwise.planning.explain import summary as words

    cases = dict.fromkeys((case.name, devices) for case, devices, _, _ in known)
    for name, devices in cases:
        tried = []
        for (case, count, _, candidate), median, runs in zip(known, rounds.seconds, rounds.runs, strict=True):
            if (case.name, count) == (name, devices) and median is not None:
                interval = Timing(runs).interval_seconds
                tried.append(
                    {
                        "program": words(candidate.program), "measured": median,
                        "predicted": None if candidate.is_compilers_own else candidate.estimate.seconds,
                        "interval": interval, "runs": len(runs),
                    }
                )  # fmt: skip
        mine = [candidate for case, count, _, candidate in known if (case.name, count) == (name, devices)]
        needed = [
            words(each.program)
            for each in mine
            if not each.is_compilers_own and each.estimate.seconds <= NEARLY * mine[0].estimate.seconds
        ]
        if set(needed) <= {each["program"] for each in tried}:
            sizes = next(case.sizes for case, count, _, _ in known if (case.name, count) == (name, devices))
            chosen = words(confirmed[name, devices].program)
            yield {"name": name, "devices": devices, "sizes": sizes, "tried": tried, "confirmed": chosen}


def overlap_rows() -> Iterator[dict[str, Any]]:
    """The overlap corpus, as `make bench-overlap` kept it: what was predicted, and what compiled schedules take; seconds."""
    for row in json.loads((FOLDER / "overlap.json").read_text(encoding="utf-8"))["rows"]:
        ways = [row[way]["step"] for way in ("ours", "own", "textbook", "plain") if row.get(way)]
        if row.get("estimate") and row.get("ours"):
            yield {
                "name": f"{row['target']} {row['kind']} {row['size']}", "program": row["program"],
                "predicted": 1e-6 * row["estimate"], "compiled": 1e-6 * row["ours"]["step"], "fastest": 1e-6 * min(ways),
            }  # fmt: skip


def held(rows: Sequence[dict[str, Any]]) -> list[Held]:
    return [
        Held(
            f"{row['name']}, {row['devices']} devices",
            tuple(
                Tried(
                    each["program"], each["predicted"], each["measured"], tuple(each["interval"]) if each["interval"] else None
                )
                for each in row["tried"]
            ),
            row.get("confirmed", ""),
        )
        for row in rows
    ]


def _pair(interval: Any) -> tuple[float, float] | None:
    return None if interval is None else (interval[0], interval[1])


def report(found: dict[str, Any]) -> str:
    """The ledger as Markdown."""
    cases = held(found["rows"])
    lines = ["## Measured on this host", "", *summary(cases)]
    for devices in DEVICES:
        some = held([row for row in found["rows"] if row["devices"] == devices])
        if some:
            lines += ["", f"On {devices} devices:", "", *summary(some)]
    lines += [
        "",
        f"The host: {found['host']}; load average {found['load'][0]:.1f} before, {found['load'][1]:.1f} after, others' too. "
        f"{found['fitted']} programs were fitted, to {found['errors fitted']['all']:.0%}; {found['lost']} cases are left out: "
        "the choice, or one predicted nearly as fast, did not run three times beside a quick probe."
        + (CPU_TIME if found["clock"] == "cpu" else ""),
        "",
        "| case | devices | predicted ms | measured ms | predicted / measured | regret | confirmed | candidates |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row, case in zip(found["rows"], cases, strict=True):
        first = case.tried[0]
        lines.append(
            f"| {row['name']} | {row['devices']} | {first.predicted * 1e3:.2f} | {first.measured * 1e3:.2f} "
            f"| {first.predicted / first.measured:.2f} | {case.regret:.0%} | {_share(case.confirmed_regret)} "
            f"| {len(case.tried)} |"
        )
    return "\n".join([*lines, "", *_overlap_report(found["overlap"])])


def _share(regret: float | None) -> str:
    return "" if regret is None else f"{regret:.0%}"


def _overlap_report(rows: Sequence[dict[str, Any]]) -> list[str]:
    from benchmarks.ledger import percentile, spearman

    errors = [abs(row["predicted"] / row["compiled"] - 1) for row in rows]
    regrets = [row["compiled"] / row["fastest"] - 1 for row in rows]
    rank = spearman([row["predicted"] for row in rows], [row["compiled"] for row in rows])
    return [
        "## Compiled for TPUs",
        "",
        f"The {len(rows)} cases of the [overlap corpus](overlap.md), as predicted and as the real compilers scheduled them, "
        "when `make bench-overlap` last compiled them:",
        "",
        f"- Error of the predicted time: median {percentile(errors, 0.5):.1%}, 90th percentile {percentile(errors, 0.9):.0%}.",
        f"- Rank correlation over all cases: {rank:.3f}.",
        f"- Regret of the choice against the fastest of the compiler's own, the textbook ring, no ring and the choice: mean "
        f"{sum(regrets) / len(regrets):.1%}, most {max(regrets):.0%}.",
    ]


def write(found: dict[str, Any], text: str) -> None:
    how = " ARGS='--clock cpu'" if found["clock"] == "cpu" else ""
    head = (
        "# Accuracy ledger\n\n"
        f"Made by `make accuracy{how}`: {found['made with']}, float32. The host is calibrated first (`shardwise calibrate`: "
        "collectives, matmuls, copies, and a few programs of two and four steps). The cases are whole plans of the "
        "benchmark's contractions in sizes that were never fitted, predicted with those figures and then measured, candidates "
        "in turn with those of other cases. A time is the median of the quicker half of the runs that count, and an interval "
        "is that of this median. *Regret* is how much longer the planner's choice takes than the fastest of its candidates; "
        '*confirmed* that of the choice of `confirm="here"`, which ran the first candidates for itself before.\n\n'
        "![Predicted against measured times](accuracy.svg)\n\n"
    )
    writing.write(FOLDER / "accuracy.json", json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    writing.write(FOLDER / "accuracy.md", head + text + "\n")
    draw(found["rows"])


def draw(rows: Sequence[dict[str, Any]]) -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "shardwise"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.5, 6))
    for devices, mark in zip(DEVICES, "ox", strict=True):
        tried = [each for row in rows if row["devices"] == devices for each in row["tried"] if each["predicted"]]
        axes.loglog(
            [each["measured"] * 1e3 for each in tried], [each["predicted"] * 1e3 for each in tried], mark, markersize=4,
            markerfacecolor="none", label=f"{devices} devices",
        )  # fmt: skip
    low, high = axes.get_xlim()
    axes.plot([low, high], [low, high], color="black", linewidth=0.8)
    for share in (0.8, 1.2):
        axes.plot([low, high], [share * low, share * high], color="black", linewidth=0.5, linestyle=":")
    axes.set_xlabel("measured, milliseconds (dotted: 20 % off)")
    axes.set_ylabel("predicted, milliseconds")
    axes.legend()
    figure.tight_layout()
    with writing.replacing(FOLDER / "accuracy.svg") as beside:
        figure.savefig(beside, format="svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
