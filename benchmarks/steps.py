"""Whole training steps with their transfers behind matmuls, against the compiler's own, compiled for TPU slices; nothing runs.

    python -m benchmarks.steps --on v5e:4x4 --only feed-forward

Written to docs/benchmarks/steps.md and steps.json, after every step; what the JSON holds is not compiled again, unless with
--fresh.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from jax.sharding import AbstractMesh, AxisType

from benchmarks.flags import VARIANTS
from benchmarks.step_programs import WAYS, laid_out, programs, step_of
from shardwise import writing
from shardwise.commands.making import versions
from shardwise.errors import ShardwiseError, one_line
from shardwise.units import seconds_text

FOLDER = Path(__file__).parent.parent / "docs" / "benchmarks"
TARGETS = ("v5e:4x4", "v5p:2x2x4", "v6e:4x4")
MESH = AbstractMesh((4, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
# Options that say how the compiler's own collectives overlap matmuls.
OPTIONS = (
    "asynchronous collective fusion",
    "windowed einsum always",
    "windowed einsum never",
    "newer features of the scheduler",
)
HEAD = (
    "step",
    "layout",
    "target",
    "before",
    "after",
    "times as fast",
    "by options",
    "than that",
    "waiting before",
    "waiting after",
    "bound",
    "compiles in",
    "changed",
    "variants",
    "seconds",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--on", default=",".join(TARGETS), help="targets with commas (default: all)")
    parser.add_argument("--only", default="", help="steps, or how their names begin, with commas (default: all)")
    parser.add_argument("--ways", default="", help="layouts with commas (default: all)")
    parser.add_argument("--seconds", type=float, default=0.0, help="beyond two to seven compiles of each step (default 0)")
    parser.add_argument("--fresh", action="store_true", help="compile again what the JSON holds")
    parser.add_argument("--again", action="store_true", help="the same, but for steps with the compiler's options")
    parser.add_argument("--page", action="store_true", help="compile nothing: write the page from the JSON")
    given = parser.parse_args()
    path = FOLDER / "steps.json"
    kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for target in [] if given.page else given.on.split(","):
        for way in WAYS:
            for name, (loss, shapes, of_tokens) in programs(way).items():
                chosen = name.startswith(tuple(given.only.split(",")))
                chosen = chosen and way.name in (given.ways.split(",") if given.ways else [way.name])
                key = f"{name} | {way.name} | {target}"
                if not chosen or (key in kept and not given.fresh and not given.again):
                    continue
                known = kept.get(key, {}).get("options") if given.again else None
                kept[key] = _measured(step_of(loss), laid_out(MESH, way, shapes, of_tokens), target, given.seconds, known)
                print(key, kept[key].get("speedup", kept[key].get("fault")), flush=True)
                writing.write(path, json.dumps(kept, indent=1) + "\n")
    writing.write(FOLDER / "steps.md", "\n".join(_page(kept)) + "\n")


def _measured(step: Any, args: Any, target: str, seconds: float, options: dict[str, float] | None) -> dict[str, Any]:
    """A step as it is and overlapped; `options` are its seconds with those of the compiler, where they are known."""
    from shardwise.functions.overlapping import overlap

    began = time.perf_counter()
    try:
        found = overlap(step, *args, on=target, mesh=MESH, seconds=seconds)
    except ShardwiseError as error:
        return {"fault": one_line(str(error))[:300]}
    assert found.before is not None
    line = found.before.timeline
    options = dict(options or {})
    for name in OPTIONS:
        if name not in options and (took := _with_options(step, args, target, VARIANTS[name])) is not None:
            options[name] = took
    busy = dict(line.lanes)
    wire = max((share for lane, share in busy.items() if lane.endswith(("+", "-"))), default=0.0)
    return {
        "before": found.before_seconds,
        "after": found.after_seconds,
        "speedup": found.speedup,
        "options": options,
        "waiting_before": found.before_exposed,
        "waiting_after": found.after_exposed,
        "bound": max(line.compute_seconds, wire),
        "changed": [str(place.task.equation) for place in found.changes],
        "left": len(found.left),
        "compile_times": found.compile_times,
        "compiler_options": found.compiler_options,
        "variants": found.tried,
        "seconds": seconds,
        "took": time.perf_counter() - began,
        "versions": versions(target),
    }


def _with_options(step: Any, args: Any, target: str, options: str) -> float | None:
    """Seconds of the step as it is, compiled with options; None where the compiler refuses them."""
    from shardwise.compiled.compiling import rehearse
    from shardwise.measure.tries import variant

    try:
        found = rehearse(step, *args, on=target, mesh=MESH, compiler_options=dict(variant(options).options))
    except ShardwiseError:
        return None
    return found.timeline().step_seconds


def _than_options(row: dict[str, Any]) -> float:
    """How many times as fast as the best that the compiler makes of the step, with options or without."""
    return min([row["before"], *row.get("options", {}).values()]) / row["after"]


def _mean(numbers: Sequence[float]) -> str:
    return f"{math.exp(math.fsum(map(math.log, numbers)) / len(numbers)):.2f}" if numbers else "-"


def _page(kept: dict[str, Any]) -> Iterator[str]:
    yield "# Whole training steps\n"
    yield (
        "Made by `make bench-steps`: one step of training each, forward and backward, compiled for a slice that is not "
        "attached, as it is and by `sw.overlap` with the same layouts. Times are modelled from the compiled schedules; no TPU "
        "was measured. *By options* is the step as it is with the best of four compiler options for overlap "
        f"({', '.join(OPTIONS)}: [what they are](flags.md)). *Bound* is the longer of what the compiler's own computes and "
        "what its busiest link sends; it *compiles in* so many times the time of the compiler's own, in seconds of a processor "
        "(empty where that was not kept; at most 3 by default); *variants* were compiled, the function as it is among them: "
        "two to seven, and more in as many *seconds* as were given beyond (empty where that was not kept). *An option*: "
        "`sw.overlap` turns rings that the compiler makes off, has permutes start early, or both.\n"
    )
    rows = {key: row for key, row in kept.items() if "fault" not in row}
    every = [row["speedup"] for row in rows.values()]
    tensor = [row["speedup"] for key, row in rows.items() if "TP" in key]
    options = [_than_options(row) for row in rows.values() if "options" in row]
    if every:
        total = len(TARGETS) * sum(len(programs(way)) for way in WAYS)
        means = f"geometric mean {_mean(every)} times as fast, {_mean(tensor)} where TP is in the mesh"
        means += f"; {_mean(options)} times as fast as with the best of the options ({len(options)} steps)"
        yield f"- {len(rows)} of {total} steps were compiled so far; {means}."
        yield f"- Least {min(every):.2f}, most {max(every):.2f}.\n"
    yield "| " + " | ".join(HEAD) + " |"
    yield "|" + "---|" * len(HEAD)
    for key, row in rows.items():
        times = [seconds_text(row[name]) for name in ("before", "after")]
        beside = [seconds_text(min(row.get("options", {}).values(), default=row["before"])), f"{_than_options(row):.2f}"]
        waits = [seconds_text(row[name]) for name in ("waiting_before", "waiting_after")]
        cells = [*key.split(" | "), *times, f"{row['speedup']:.2f}", *beside, *waits, seconds_text(row["bound"])]
        longer = f"{row['compile_times']:.1f}" if row.get("compile_times") else ""
        changed = f"{len(row['changed'])} of {len(row['changed']) + row['left']}"
        changed += ", and an option" if row.get("compiler_options") else ""
        seconds = f"{row['seconds']:.0f}" if "seconds" in row else ""
        yield "| " + " | ".join([*cells, longer, changed, str(row["variants"]), seconds]) + " |"
    faults = {key: row["fault"] for key, row in kept.items() if "fault" in row}
    if faults:
        yield "\nNot compiled:\n"
        yield from (f"- {key}: {fault}" for key, fault in faults.items())


if __name__ == "__main__":
    main()
