"""How long planning takes on problems of every kind: up to six operands, five axes, ten dimensions each.

    python -m benchmarks.bounds [how many]

Random problems, each from its number: stages between arrows, free results, partial sums, memory limits, every hardware, every
`overlap`. Prints the distribution of the processor's time, of what was looked at, and how often not all was searched.
"""

from __future__ import annotations

import math
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

from benchmarks.equations import parts_of, random_layout
from shardwise.chips import hardware
from shardwise.errors import PlanError, ShardwiseError
from shardwise.layout import Layout
from shardwise.mesh import Mesh
from shardwise.notation import Equation, Operand
from shardwise.planning.prices import ITEM_BYTES
from shardwise.planning.problem import OVERLAPS, Problem, problem
from shardwise.planning.ranking import ranking
from shardwise.planning.spaces import Ground

AXES = "xyzwv"
LIMITS = (None, None, None, 1.01, 1.5, 4.0)  # times the bytes of the inputs and the result


def drawn(number: int) -> Problem:
    """The problem of a number."""
    random = Random(f"bounds {number}")
    while True:
        axes = random.choice((1, 2, 3, 3, 4, 4, 5, 5, 5, 5))
        mesh = Mesh(tuple((name, random.choice((2, 2, 2, 4, 8, 3))) for name in AXES[:axes]))
        try:
            equation = _equation(random, mesh).on(mesh)
        except ShardwiseError:  # an operand that the notation refuses
            continue
        sizes = {dim: parts * random.choice((1, 1, 2, 4, 64, 512, 3)) for dim, parts in parts_of(equation, mesh).items()}
        chip, dtype = random.choice(hardware.names()), random.choice(("bfloat16", "float32", "int8"))
        room, overlap = random.choice(LIMITS), random.choice((*OVERLAPS, True, True))
        arrays = (*equation.operands, equation.result)
        held = ITEM_BYTES[dtype] * sum(math.prod(array.layout.shard_shape(sizes, mesh)) for array in arrays)
        return problem(equation, sizes, mesh, chip, dtype, None, None if room is None else room * held, overlap)


def _equation(random: Random, mesh: Mesh) -> Equation:
    count, rank = random.choice((1, 1, 2, 2, 2, 3, 4, 5, 6)), random.choice((2, 3, 4, 6, 8, 10))
    pool = [f"D{number}" for number in range(random.randint(1, min(24, rank + 2 * count)))]
    partial = mesh.names if random.random() < 0.15 else ()
    operands = []
    for name in "ABCDEF"[:count]:
        dims = random.sample(pool, random.randint(0 if random.random() < 0.05 else 1, min(rank, len(pool))))
        operands.append(Operand(name, random_layout(random, dims, mesh.names, partial)))
    known = list(dict.fromkeys(dim for operand in operands for dim in operand.dims))
    most = len(known) if count == 1 and random.random() < 0.6 else min(rank, len(known))
    kept = random.sample(known, most if count == 1 else random.randint(min(1, most), most))
    made = random_layout(random, kept, mesh.names)
    free = frozenset(random.sample(kept, random.randint(1, len(kept)))) if kept and random.random() < 0.2 else frozenset()
    sums = frozenset(_summed(random.choice(operands), kept, made, mesh)) if random.random() < 0.1 else frozenset()
    layout = Layout(tuple((dim, () if dim in free else axes) for dim, axes in made.dims), sums)
    stages = random.choice((1, 2)) if random.random() < 0.15 and kept and not sums else 0
    via = tuple(Operand("R", random_layout(random, kept, mesh.names)) for _ in range(stages))
    return Equation(tuple(operands), Operand("R", layout, free), via)


def _summed(operand: Operand, kept: list[str], made: Layout, mesh: Mesh) -> Iterator[str]:
    for axis in mesh.names:
        split = any(axis in axes and dim not in kept for dim, axes in operand.layout.dims)
        if axis not in made.axes and (split or axis in operand.layout.unreduced):
            yield axis


@contextmanager
def looks() -> Iterator[list[int]]:
    """Count the moves and einsums that all searches look at meanwhile."""
    counted, look = [0], Ground.look

    def counting(ground: Ground, count: int) -> None:
        counted[0] += count
        look(ground, count)

    Ground.look = counting
    try:
        yield counted
    finally:
        Ground.look = look


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    seconds, looked, cut, refused, gaps = [], [], 0, 0, []
    for number in range(count):
        task = drawn(number)
        begin = time.process_time()
        with looks() as counted:
            try:
                ranked = ranking(task)
                cut += not ranked.searched_all
                if not ranked.searched_all and ranked.floor_seconds:
                    gaps.append(ranked.best.estimate.seconds / ranked.floor_seconds)
            except PlanError:
                refused += 1
        seconds.append(time.process_time() - begin)
        looked.append(counted[0])
    print(f"{count} problems, {refused} refused; of the others {cut} not all searched")
    print(f"seconds: {_spread(seconds, '.3f')}")
    print(f"looked at: {_spread(looked, '.0f')}")
    print(f"where cut, times the lower bound: {_spread(gaps, '.3g')}")
    print(f"memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3:.0f} MB")


def _spread(figures: list[float], form: str) -> str:
    order = sorted(figures)
    places = {"median": 0.5, "90 %": 0.9, "99 %": 0.99, "most": 1.0}
    return ", ".join(f"{name} {order[min(len(order) - 1, int(at * len(order)))]:{form}}" for name, at in places.items())


if __name__ == "__main__":
    main()
