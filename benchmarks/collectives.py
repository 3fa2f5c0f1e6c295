"""How near the prices of single collectives come: random ones on slices of TPUs, as estimated and as compiled.

    python -m benchmarks.collectives [--count 300] [--seed new]

Written to docs/benchmarks/collectives.md. Shapes, meshes, axes and slices are drawn; with another seed they are others.
The rules of `shardwise.chips.algorithms` were read off three draws of the seed "fitted", "more" and "v7x", of which none is
drawn by default. `--list` prints each one that is not near.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from benchmarks.drawn import LARGE, SMALL, drawn_mesh
from benchmarks.estimates import ONE_OF_EACH
from shardwise import api, writing
from shardwise.chips.topology import Topology
from shardwise.commands.making import start, versions
from shardwise.compiled.lockfile import Made
from shardwise.errors import ShardwiseError
from shardwise.layout import subscript
from shardwise.planning.agreement import CLOSE
from shardwise.steps import kind

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks" / "collectives.md"
KINDS = ("all-gather", "reduce-scatter", "all-reduce", "all-to-all")
BYTES = (5e5, 4e7)  # of the whole array
MOST_BYTES = 4e8


@dataclass(frozen=True, slots=True)
class Drawn:
    """One collective: a change of layout that it alone makes."""

    target: str
    mesh: str
    kind: str
    equation: str
    sizes: dict[str, int]

    def __str__(self) -> str:
        sizes = ",".join(f"{dim}={size}" for dim, size in self.sizes.items())
        return f'{self.kind}: "{self.equation}" --sizes {sizes} --mesh "{self.mesh}" --hardware {self.target}'


@dataclass(frozen=True, slots=True)
class Row:
    """The same, estimated and compiled, in microseconds."""

    drawn: Drawn
    estimate: float
    compiled: float

    @property
    def is_near(self) -> bool:
        return abs(self.estimate / self.compiled - 1) <= CLOSE


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=300, help="collectives drawn (default: 300)")
    parser.add_argument("--seed", default="0", help="of the draws (default: 0)")
    parser.add_argument("--list", action="store_true", help="print those that are not near; write no page")
    given = parser.parse_args()
    start([Made("benchmarks.collectives", on=ONE_OF_EACH)])
    rows = []
    for number in range(given.count):
        row = compiled(draw(given.seed, number))
        if row is not None:
            rows.append(row)
            if given.list and not row.is_near:
                print(f"{row.estimate:.1f} / {row.compiled:.1f} us  {row.drawn}", flush=True)
    text = "\n".join(page(rows, given.count, given.seed, versions(ONE_OF_EACH))) + "\n"
    print(text)
    if not given.list:
        writing.write(PAGE, text)


def draw(seed: str, number: int) -> Drawn:
    """The collective of a number: each chip in turn, half of them on slices of up to 16 chips."""
    random, chips = Random(f"collective {seed} {number}"), list(SMALL)
    chip = chips[number % len(chips)]
    while True:
        target = f"{chip}:{random.choice((SMALL, LARGE)[number // len(chips) % 2][chip])}"
        mesh = drawn_mesh(random, Topology.parse(target))
        axes = list(mesh.names)
        random.shuffle(axes)
        axes = axes[: random.randint(1, len(axes))]
        extent, split = mesh.extent(tuple(axes)), subscript(axes)
        dims = random.choice(("IJ", "JI"))  # the first is split
        unit = random.choice((8, 8, 64, 1) if dims == "IJ" else (128, 128, 1024, 8, 1))
        other = _about(random.uniform(math.log(128), math.log(8192)), random.choice((128, 128, 8)))
        whole = random.uniform(math.log(BYTES[0]), math.log(BYTES[1]))
        sizes = {dims[0]: _about(whole - math.log(2 * other), extent * unit), dims[1]: other}
        name = random.choice(KINDS)
        if name == "all-to-all":
            sizes[dims[1]] = _about(math.log(other), extent * random.choice((1, 8, 128)))
        if 2 * math.prod(sizes.values()) <= MOST_BYTES:
            equation = _equation(name, dims, split)
            return Drawn(target, str(mesh), name, equation, {dim: sizes[dim] for dim in "IJ"})


def _about(log: float, unit: int) -> int:
    return unit * max(1, round(math.exp(log) / unit))


def _equation(name: str, dims: str, split: str) -> str:
    def array(which: str) -> str:
        return f"A[{', '.join(dim + (split if dim == which else '') for dim in 'IJ')}]"

    summed = f"{array('')}{{U{split}}}"
    return {
        "all-gather": f"{array(dims[0])} -> {array('')}",
        "reduce-scatter": f"{summed} -> {array(dims[0])}",
        "all-reduce": f"{summed} -> {array('')}",
        "all-to-all": f"{array(dims[0])} -> {array(dims[1])}",
    }[name]


def compiled(drawn: Drawn) -> Row | None:
    """The collective, as the planner prices it and the compiler makes it; None where something else is cheaper by far."""
    from shardwise.compiled.confirming import rehearsed

    plan = api.plan(drawn.equation, sizes=drawn.sizes, mesh=drawn.mesh, hardware=drawn.target)
    chosen = next((each for each in plan.candidates if [kind(step) for step in each.program.steps] == [drawn.kind]), None)
    if chosen is None:
        return None
    try:
        audit = rehearsed(plan.task, chosen.program, Topology.parse(drawn.target))
    except ShardwiseError as error:
        print(f"{drawn}: {str(error).splitlines()[0]}")
        return None
    return Row(drawn, 1e6 * chosen.estimate.seconds, 1e6 * audit.timeline().step_seconds)


def page(rows: Sequence[Row], count: int, seed: str, made: dict[str, str]) -> Iterator[str]:
    with_what = ", ".join(f"{name} {version}" for name, version in made.items())
    yield "# Single collectives"
    yield ""
    yield (
        f"Made by `python -m benchmarks.collectives --count {count} --seed {seed}`: {with_what}; bfloat16. Random shapes, "
        f"meshes and axes on slices of 4 to 256 chips; *near* is an estimate within {CLOSE:.0%} of the compiled schedule, "
        "replayed on a model of the chip. Nothing was tuned on this draw, and nothing ran on a TPU."
    )
    yield ""
    yield f"| near / of | {' | '.join(KINDS)} | all |"
    yield f"|---|{'---|' * (len(KINDS) + 1)}"
    for chip in (*SMALL, "all"):
        of_chip = [row for row in rows if chip in ("all", row.drawn.target.split(":")[0])]
        cells = [_share([row for row in of_chip if name in ("all", row.drawn.kind)]) for name in (*KINDS, "all")]
        yield f"| {chip} | {' | '.join(cells)} |"


def _share(rows: Sequence[Row]) -> str:
    return f"{sum(row.is_near for row in rows)} / {len(rows)}"


if __name__ == "__main__":
    main()
