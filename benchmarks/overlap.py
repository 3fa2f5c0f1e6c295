"""Plans that overlap transfers with matmuls against the compiler's own, on every target; nothing runs.

    python -m benchmarks.overlap --on v5e:2x4,v6e:2x4

Written to docs/benchmarks/overlap.md and overlap.json, after every target; cases that the JSON holds are not compiled
again, unless with --fresh. A target's cases are those of `shardwise bench-overlap --on TARGET`, and a gradient.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.pairs import Pair, measured_pair, pair_of
from shardwise import writing
from shardwise.commands.bench_overlap import measured
from shardwise.commands.making import start, versions
from shardwise.compiled.lockfile import Made
from shardwise.errors import ShardwiseError
from shardwise.measure.overlap_rows import (
    CLOSE,
    HEAD,
    KINDS,
    MODELLED,
    SIZES,
    Case,
    Ran,
    Row,
    cases,
    cells,
    facts_of,
    hidden,
    sentences,
    summarised,
)

FOLDER = Path(__file__).parent.parent / "docs" / "benchmarks"
TARGETS = ("v5e:2x4", "v5p:2x2x2", "v6e:2x4", "v7x:2x2x1", "v4:2x2x2", "v5e:4x4", "v6e:4x4")
PAIR = {"I": 8192, "J": 4096, "F": 16384}  # rows, model, hidden
PAIRED = ("v5e:2x4", "v6e:2x4")  # where the gradient of a pair is compiled too: its rings take minutes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--on", default=",".join(TARGETS), help="targets with commas (default: all)")
    parser.add_argument("--fresh", action="store_true", help="compile again what the JSON holds")
    parser.add_argument("--page", action="store_true", help="compile nothing: write the page from the JSON")
    given = parser.parse_args()
    kept = Kept(FOLDER / "overlap.json")
    targets = [] if given.page else given.on.split(",")
    start([Made("benchmarks.overlap", on=target) for target in targets])
    for target in targets:
        if given.fresh:
            kept.forget(target)
        compile_cases(target, kept)
        if target in PAIRED and not any(pair.target == target for pair in kept.pairs):
            began = time.perf_counter()
            kept.pairs.append(measured_pair(target, PAIR))
            kept.took(target, began)
        kept.write()
        writing.write(FOLDER / "overlap.md", page(kept))
    writing.write(FOLDER / "overlap.md", page(kept))


class Kept:
    """What has been compiled: rows, pairs, faults, and the seconds that each target took."""

    def __init__(self, path: Path) -> None:
        found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        self.path = path
        self.versions: dict[str, str] = found.get("versions", {})
        self.seconds: dict[str, float] = found.get("seconds", {})
        self.faults: dict[str, str] = found.get("faults", {})
        self.rows: list[Row] = [row_of(facts) for facts in found.get("rows", [])]
        self.pairs: list[Pair] = [pair_of(facts) for facts in found.get("pairs", [])]

    def forget(self, target: str) -> None:
        self.rows = [row for row in self.rows if row.target != target]
        self.pairs = [pair for pair in self.pairs if pair.target != target]
        self.faults = {name: why for name, why in self.faults.items() if not name.startswith(target)}
        self.seconds.pop(target, None)

    def took(self, target: str, began: float) -> None:
        self.seconds[target] = round(self.seconds.get(target, 0.0) + time.perf_counter() - began, 1)

    def write(self) -> None:
        facts: dict[str, Any] = {"times": f"microseconds, {MODELLED}", "versions": self.versions, "seconds": self.seconds}
        facts |= {"faults": self.faults, "rows": [facts_of(row) for row in self.rows]}
        facts |= {"pairs": [dataclasses.asdict(pair) for pair in self.pairs]}
        writing.write(self.path, json.dumps(facts, ensure_ascii=False, indent=1) + "\n")


def compile_cases(target: str, kept: Kept) -> None:
    """Compile what of a target's cases is not kept yet; one that fails is said, and the others go on."""
    held = {row.case for row in kept.rows}
    for case in cases(target):
        if case in held:
            continue
        began = time.perf_counter()
        try:
            row = measured(case)
        except ShardwiseError as error:
            kept.faults[named(case)] = str(error).splitlines()[0]
            print(f"{named(case)}: {error}", flush=True)
        else:
            kept.rows.append(row)
            print(f"{target}  {'  '.join(cells(row))}  ({time.perf_counter() - began:.0f} s)", flush=True)
        kept.versions = versions(target)
        kept.took(target, began)
        kept.write()


def row_of(facts: dict[str, Any]) -> Row:
    """A row from what `dataclasses.asdict` made of it."""
    read: dict[str, Any] = {name: Ran(**value) if isinstance(value, dict) else value for name, value in facts.items()}
    return Row(**read)


def named(case: Case) -> str:
    return f"{case.target} {case.kind} {case.size}"


# The page.


def page(kept: Kept) -> str:
    """What is kept, as Markdown."""
    return "\n".join([*head(kept), *whole(kept), *(line for t in TARGETS for line in table(t, kept)), *gradients(kept)]) + "\n"


def head(kept: Kept) -> Iterator[str]:
    made = ", ".join(f"{name} {version}" for name, version in kept.versions.items())
    yield "# Transfers behind matmuls"
    yield ""
    yield (
        f"Made by `make bench-overlap`: {made}; bfloat16, one axis over all devices. Every time is {MODELLED}: the target's "
        "real compiler made each program, and its schedule is replayed on a model of the chip, the same for all. Nothing ran "
        "on a TPU."
    )
    yield ""
    for kind, equation in KINDS.items():
        yield f"- {kind}: `{equation}`"
    yield ""
    yield (
        "*own* is `jax.jit` with layouts of arguments and result, and Auto axes; *textbook* an unrolled ring of `ppermute` "
        "into zeros; *ours* Shardwise's choice, planned on the topology and confirmed by compiling its first candidates: for "
        "v4, v5p and v6e also with the newer features of their compilers' schedulers, which change neither *own* nor "
        "*textbook* (held against eight of each). "
        "*estimate / timeline* is what the cost model said, before compiling, of the fastest program that the planner priced "
        "(not the compiler's own, where that is chosen), beside its timeline. *overlapped* are the permutes with a matmul "
        "between start and end; where a matmul is made first and then gathered, those that travel when all of it is made have "
        "none to overlap with. "
        "*compute / matmul* compares with one matmul on one device of the same shards and FLOPs; *temporary / gathered* with "
        "the same program, whose gathers are done before the matmuls. *bound* is max(compute of that matmul, wire bytes / "
        "bandwidth of all links that the axis may use): of the form that the equation spells out, or of a better one of the "
        "planner's programs if there is one."
    )
    yield ""


def whole(kept: Kept) -> Iterator[str]:
    """All targets: a line for each, and what is missing."""
    yield "## All targets"
    yield ""
    yield from titled(
        "target", "cases", "own / ours", "least", "textbook / ours", "ours / bound", "most", "ours / written bound",
        f"estimate within {CLOSE:.0%}", "permutes overlapped", "s",
    )  # fmt: skip
    for name in (*TARGETS, "all"):
        rows = [row for row in kept.rows if name in (row.target, "all")]
        if rows:
            it, took = summarised(rows), kept.seconds.get(name, sum(kept.seconds.values()))
            yield (
                f"| {name} | {it.count} | {it.gain:.2f} | {it.least_gain:.2f} | {it.over_textbook:.2f} | {it.over_bound:.2f} | "
                f"{it.most_over_bound:.2f} | {it.over_written:.2f} | {it.agreeing} of {it.count} | "
                f"{it.hidden} of {it.permutes} | {took:.0f} |"
            )
    yield ""
    yield "Geometric means; *least*, *most* are the worst case. The last column is how long the target took on this host."
    yield ""
    missing = [named(case) for target in TARGETS for case in cases(target) if case not in {row.case for row in kept.rows}]
    absent = [target for target in TARGETS if not any(row.target == target for row in kept.rows)]
    listed = [*absent, *(name for name in missing if name.split()[0] not in absent)]
    listed += [f"the gradient on {t}" for t in PAIRED if not any(pair.target == t for pair in kept.pairs)]
    yield f"Not run: {', '.join(listed) or 'nothing'}."
    for name, why in kept.faults.items():
        yield f"- {name}: {why}"
    yield ""


def titled(*names: str) -> Iterator[str]:
    """The first two lines of a Markdown table."""
    yield f"| {' | '.join(names)} |"
    yield "|---" * len(names) + "|"


def table(target: str, kept: Kept) -> Iterator[str]:
    rows = [row for row in kept.rows if row.target == target]
    if not rows:
        return
    order = {(size, kind): place for place, (size, kind) in enumerate((s, k) for s in SIZES for k in KINDS)}
    rows.sort(key=lambda row: order.get((row.size, row.kind), len(order)))
    yield f"## {target}"
    yield ""
    yield "".join(f"- {sentence}\n" for sentence in sentences(summarised(rows)))
    yield from titled(*HEAD)
    for row in rows:
        yield f"| {' | '.join(cells(row))} |"
    yield ""


def gradients(kept: Kept) -> Iterator[str]:
    if not kept.pairs:
        return
    yield "## The gradient of two matmuls, up and down"
    yield ""
    yield (
        "`A[I_x, J] · B[J, F_x] -> H[I, F_x]`, `H[I, F_x] · W[F_x, J] -> Y[I_x, J]`, forward and backward of the sum of "
        "squares of Y. *matmul* is the compute of the same on one device with its share of F and all rows."
    )
    yield ""
    yield from titled(
        "target", "I x J x F", "own µs", "ours µs", "own / ours", "own exposed µs", "exposed µs", "overlapped",
        "compute / matmul", "programs",
    )  # fmt: skip
    for pair in kept.pairs:
        yield (
            f"| {pair.target} | {pair.size} | {pair.own.step:.0f} | {pair.ours.step:.0f} | {pair.gain:.2f} | "
            f"{pair.own.exposed:.0f} | {pair.ours.exposed:.0f} | {hidden(pair.ours)} | {pair.ours.compute / pair.local:.2f} | "
            f"{'; '.join(pair.programs)} |"
        )


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    main()
