"""Planned contractions against `jax.jit`'s own choices and against every candidate program, on simulated devices.

    python -m benchmarks.run [--devices 4 8] [--runs 5] [--only NAME]

All ways of a case run in turn; a figure is the median of their runs, a ratio that of the medians. Written to
docs/benchmarks/contractions.json, .md and .svg.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.cases import CASES, Case
from shardwise import writing

FOLDER = Path(__file__).parent.parent / "docs" / "benchmarks"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", default="", help="cases whose name holds this text; nothing is written then")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        for case in chosen(options.only):
            print(json.dumps(measure(case, options.child, options.runs)), flush=True)
        return
    rows = [row for devices in options.devices for row in in_child(devices, options)]
    print(report(rows))
    if not options.only:
        write(rows)


def chosen(only: str) -> list[Case]:
    return [case for case in CASES if only in case.name]


def in_child(devices: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """A process for each number of devices, since that is fixed when JAX starts."""
    command = [sys.executable, "-m", "benchmarks.run", "--child", str(devices), "--runs", str(options.runs)]
    rows = []
    with subprocess.Popen(
        [*command, "--only", options.only], stdout=subprocess.PIPE, text=True, env={**os.environ, "JAX_PLATFORMS": "cpu"}
    ) as child:
        assert child.stdout is not None
        for line in child.stdout:
            rows.append(json.loads(line))
            row = rows[-1]
            ways = f"planned {row['planned'] * 1e3:8.1f} ms, jit {row['constraint'] * 1e3:8.1f} ms"
            print(
                f"{devices} devices, {row['name']}: {ways}, fastest candidate {row['fastest'] * 1e3:8.1f} ms", file=sys.stderr
            )
    if child.returncode:
        sys.exit(f"the benchmark on {devices} devices ended with code {child.returncode}")
    return rows


def measure(case: Case, devices: int, runs: int) -> dict[str, Any]:
    import jax
    import numpy as np

    import shardwise as sw
    from shardwise.measure.timing import automatic, interleaved, unsharded
    from shardwise.planning.explain import summary
    from shardwise.runtime.lower import lower

    sw.simulate(devices)
    mesh = sw.make_mesh(case.mesh[devices])
    equation = sw.parse(case.equation)
    generator = np.random.default_rng(0)
    arrays = [
        sw.put(generator.standard_normal([case.sizes[d] for d in o.dims], np.float32).astype(case.dtype), o.layout, mesh)
        for o in equation.operands
    ]
    plan = sw.plan(case.equation, sizes=case.sizes, mesh=mesh, dtype=case.dtype)
    jitted, lay_out = automatic(equation, mesh)
    laid = lay_out(*arrays)
    ways = {"planned": functools.partial(sw.einsum, case.equation, *arrays, mesh=mesh)}
    ways |= {name: functools.partial(function, *laid) for name, function in jitted.items()}
    for number, candidate in enumerate(plan):
        ways[f"candidate {number}"] = functools.partial(jax.jit(lower(candidate.program, mesh)), *arrays)
    wanted = np.asarray(unsharded(equation)(*map(np.asarray, arrays)))
    error = float(np.max(np.abs(np.asarray(ways["planned"]()) - wanted)) / np.max(np.abs(wanted)))
    assert error < 1e-4, f"{case.name}: relative error {error}"
    times = interleaved(ways, runs, rest_after=20.0)
    medians = {name: timing.median_seconds for name, timing in times.items()}
    candidates = [medians[f"candidate {number}"] for number in range(len(plan))]
    return {
        "name": case.name,
        "devices": devices,
        "equation": case.equation,
        "sizes": case.sizes,
        "mesh": case.mesh[devices],
        "planned": medians["planned"],
        "constraint": medians["constraint"],
        "out_shardings": medians["out_shardings"],
        "fastest": min(candidates),
        "modelled": [candidate.estimate.seconds for candidate in plan],
        "candidates": candidates,
        "programs": [summary(candidate.program) for candidate in plan],
        "spread": max(timing.spread for name, timing in times.items() if "candidate" not in name),
        "error": error,
    }


def report(rows: list[dict[str, Any]]) -> str:
    """The table and the figures that sum it up, as Markdown."""
    lines = [
        "| contraction | devices | planned ms | jit, constraint ms | jit, out_shardings ms | constraint / planned "
        "| fastest candidate ms | regret | chosen program |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| {row['name']} | {row['devices']} | {row['planned'] * 1e3:.1f} | {row['constraint'] * 1e3:.1f} "
            f"| {row['out_shardings'] * 1e3:.1f} | {row['constraint'] / row['planned']:.2f} "
            f"| {row['fastest'] * 1e3:.1f} | {row['planned'] / row['fastest'] - 1:.0%} | {row['programs'][0]} |"
        )
    lines += ["", *summed_up(rows)]
    return "\n".join(lines)


def summed_up(rows: list[dict[str, Any]]) -> list[str]:
    def mean(baseline: str) -> str:
        ratios = [row[baseline] / row["planned"] for row in rows]
        return f"geometric mean {statistics.geometric_mean(ratios):.2f}, least {min(ratios):.2f}, most {max(ratios):.2f}"

    regrets = [row["planned"] / row["fastest"] - 1 for row in rows]
    return [
        f"- Time of `jax.jit` with a sharding constraint over the plan's: {mean('constraint')}.",
        f"- Time of `jax.jit` with `out_shardings` over the plan's: {mean('out_shardings')}.",
        f"- Regret against the fastest of all candidates: mean {statistics.mean(regrets):.1%}, most {max(regrets):.0%}.",
        f"- Spread of the runs (middle half over the median): median {statistics.median(r['spread'] for r in rows):.0%}.",
    ]


def write(rows: list[dict[str, Any]]) -> None:
    import jax

    FOLDER.mkdir(parents=True, exist_ok=True)
    writing.write(FOLDER / "contractions.json", json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
    made_with = f"JAX {jax.__version__}, Python {sys.version.split()[0]}, {os.cpu_count()} cores, float32"
    head = (
        "# Planned contractions on simulated devices\n\n"
        f"Made by `make bench`: {made_with}; medians of interleaved runs. *constraint* and *out_shardings* are the two "
        "ways to ask `jax.jit` for the result's layout; the compiler's choices differ between them. *Regret* is how much "
        "slower the chosen program is than the fastest of all candidates, each run by itself.\n\n"
        "![Time of jax.jit over the plan's](contractions.svg)\n\n"
    )
    writing.write(FOLDER / "contractions.md", head + report(rows) + "\n")
    draw(rows)


def draw(rows: list[dict[str, Any]]) -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "shardwise"
    from matplotlib import pyplot

    names = list(dict.fromkeys(row["name"] for row in rows))
    figure, axes = pyplot.subplots(figsize=(9, 7))
    for offset, devices in ((-0.2, 4), (0.2, 8)):
        found = {row["name"]: row["constraint"] / row["planned"] for row in rows if row["devices"] == devices}
        places = [names.index(name) + offset for name in found]
        bars = axes.barh(places, list(found.values()), 0.38, label=f"{devices} devices", hatch="//" if devices == 8 else None)
        axes.bar_label(bars, fmt="%.2f", padding=2, fontsize=7)
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("time of jax.jit with a sharding constraint / time of the plan (right of 1: the plan is faster)")
    axes.legend()
    figure.tight_layout()
    with writing.replacing(FOLDER / "contractions.svg") as beside:
        figure.savefig(beside, format="svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
