"""What a change cost: planning and running now against a stored baseline, each beside a probe of the same moment.

    python -m benchmarks.baseline            hold this tree against docs/benchmarks/baseline.json
    python -m benchmarks.baseline --store    store what is measured now as the baseline

Hosts differ, and so does one host from minute to minute: figures are CPU times, in those of a probe that runs beside them.
What differs by more than its own spread and a tenth is named; exit code 1 where something takes longer. What the planner
chooses and predicts is held against the baseline exactly.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.cases import CASES
from shardwise import writing

FILE = Path(__file__).parent.parent / "docs" / "benchmarks" / "baseline.json"
NAMES = ("D3", "D5", "D6", "D8", "three operands")
RUNS = 7
WORTH = 0.1  # of a figure: less is no change


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", action="store_true", help="store what is measured now")
    options = parser.parse_args()
    now = measured()
    if options.store:
        writing.write(FILE, json.dumps(now, indent=1, ensure_ascii=False) + "\n")
        print(f"stored in {FILE}")
        return 0
    lines, worse = compared(json.loads(FILE.read_text(encoding="utf-8")), now)
    print("\n".join(lines))
    return 1 if worse else 0


def measured() -> dict[str, Any]:
    """Each figure in probes, with the range of its middle half; and what the planner chose."""
    import jax

    import shardwise as sw
    from shardwise.planning.explain import summary
    from shardwise.planning.problem import problem
    from shardwise.planning.ranking import ranking

    sw.simulate(4)
    import numpy as np

    square = jax.jit(lambda a: a @ a)
    side = jax.numpy.ones((512, 512))
    ticks = list(range(200_000))
    probes: dict[str, Callable[[], Any]] = {
        "plan": lambda: sum(tick * tick for tick in ticks),
        "run": lambda: [jax.block_until_ready(square(side)) for _ in range(8)],
    }
    calls: dict[str, Callable[[], Any]] = {}
    chosen: dict[str, Any] = {}
    for case in CASES:
        if not case.name.startswith(NAMES):
            continue
        sizes = {dim: max(64, size // 4) for dim, size in case.sizes.items()}
        for chip in ("tpu-v5e", "cpu"):
            task = problem(sw.parse(case.equation), sizes, case.mesh[4], chip)
            best = ranking(task).best
            chosen[f"{case.name} on {chip}"] = {"program": summary(best.program), "seconds": best.estimate.seconds}
            calls[f"plan {case.name} on {chip}"] = lambda task=task: ranking(task)
        mesh = sw.make_mesh(case.mesh[4])
        generator = np.random.default_rng(0)
        arrays = [
            sw.put(generator.standard_normal([sizes[d] for d in o.dims], np.float32), o.layout, mesh)
            for o in sw.parse(case.equation).operands
        ]
        calls[f"run {case.name}"] = lambda case=case, arrays=arrays, mesh=mesh: jax.block_until_ready(
            sw.einsum(case.equation, *arrays, mesh=mesh, hardware="cpu")
        )
    return {"jax": jax.__version__, "chosen": chosen, "probes": in_probes(calls, probes)}


def in_probes(
    calls: Mapping[str, Callable[[], Any]], probes: Mapping[str, Callable[[], Any]], runs: int = RUNS,
    clock: Callable[[], float] = time.process_time,
) -> dict[str, list[float]]:  # fmt: skip
    """The quartiles of each call's time over that of the probe that ran right before it; a call's first word says which."""

    def took(call: Callable[[], Any]) -> float:
        begin = clock()
        call()
        return clock() - begin

    found: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(runs + 1):
        for name, call in calls.items():
            probe = took(probes[name.split()[0]])
            ratio = took(call) / probe
            if turn:  # the first run compiles
                found[name].append(ratio)
    return {name: statistics.quantiles(ratios, n=4) for name, ratios in found.items()}


def compared(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[list[str], bool]:
    """What changed, in lines; and whether something takes longer."""
    lines, worse = [], False
    for name, old in before["probes"].items():
        new = now["probes"].get(name)
        if new is None:
            lines.append(f"gone    {name}")
            continue
        times = new[1] / old[1]
        is_apart = new[0] > old[2] or new[2] < old[0]
        if is_apart and abs(times - 1) > WORTH:
            lines.append(f"{'slower' if times > 1 else 'faster'}  {name}: {times:.2f} times as long as the baseline")
            worse |= times > 1
    for name, old in before["chosen"].items():
        new = now["chosen"].get(name)
        if new is not None and new["program"] != old["program"]:
            lines.append(f"choice  {name}: {new['program']}; it was {old['program']}")
        elif new is not None and abs(new["seconds"] / old["seconds"] - 1) > 1e-9:
            lines.append(f"price   {name}: {new['seconds'] / old['seconds']:.3f} times what was predicted")
    return lines or ["nothing changed beyond its spread"], worse


if __name__ == "__main__":
    sys.exit(main())
