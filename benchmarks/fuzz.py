"""Random equations, planned on random hardware and run by the NumPy oracle, against np.einsum: equal, number by number.

    python -m benchmarks.fuzz --count 20000 [--seed 0] [--only SEED]

Every equation has a seed of its own, and a failure prints the line that runs it alone. Exit code 1 if any fails.
"""

from __future__ import annotations

import argparse
import collections
import sys
import time
import traceback
from random import Random

import numpy as np

from benchmarks.equations import Case, grown, padded, random_arrays, random_case, uneven, whole
from shardwise.errors import LayoutError
from shardwise.notation import parse
from shardwise.planning.problem import problem
from shardwise.planning.ranking import Candidate, Ranking, promised, ranking
from shardwise.reference import run
from shardwise.steps import kind

EVERY = 4  # of so many equations one runs every candidate, not the best alone
UNEVEN = 0.15
PROGRESS_SECONDS = 5.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20000, help="how many equations")
    parser.add_argument("--seed", type=int, default=0, help="the first equation's seed; the others follow it")
    parser.add_argument("--only", type=int, help="run the equation of one seed alone, and say what it is")
    options = parser.parse_args()
    if options.only is not None:
        print(check(options.only, collections.Counter()))
        return 0
    counts: collections.Counter[str] = collections.Counter()
    started = said = time.perf_counter()
    for seed in range(options.seed, options.seed + options.count):
        try:
            check(seed, counts)
            counts["passed"] += 1
        except Exception:
            counts["failed"] += 1
            traceback.print_exc()
            print(f"FAILED: python -m benchmarks.fuzz --only {seed}", flush=True)
        if time.perf_counter() - said > PROGRESS_SECONDS:
            said = time.perf_counter()
            done = seed - options.seed + 1
            print(f"{done} of {options.count} equations, {counts['failed']} failed, {said - started:.0f} s", flush=True)
    print(", ".join(f"{counts[what]} {what}" for what in sorted(set(counts) - {"passed", "failed"})))
    print(f"{counts['passed']} passed, {counts['failed']} failed, {time.perf_counter() - started:.0f} s")
    return 1 if counts["failed"] else 0


def check(seed: int, counts: collections.Counter[str]) -> str:
    """Draw one equation, plan it, run it, and compare; says what it was."""
    random = Random(f"fuzz {seed}")
    case = random_case(random, partial=0.2)
    odd = uneven(random, case) if random.random() < UNEVEN else None
    text = str(case.equation)
    assert parse(text) == case.equation, f"{text} is read as {parse(text)}"
    try:
        if odd is None:
            check_even(random, case, every=seed % EVERY == 0, counts=counts)
        else:
            check_uneven(random, odd, counts)
    except Exception as error:
        error.add_note(f"in seed {seed}: {odd or case}")
        raise
    return f"seed {seed} holds: {odd or case}"


def plans(case: Case) -> Ranking:
    return ranking(problem(parse(str(case.equation)), case.sizes, case.mesh, case.hardware))


def check_even(random: Random, case: Case, *, every: bool, counts: collections.Counter[str]) -> None:
    arrays = random_arrays(random, case)
    wanted = whole(case.equation, arrays)
    ranked = plans(case)
    seconds = [promised(candidate, ranked.task) for candidate in ranked]
    assert seconds == sorted(seconds), f"candidates are not in order: {seconds}"
    for candidate in ranked.candidates if every else (ranked.best,):
        compare(case, candidate, run(candidate.program, *arrays), wanted)
        counts["programs run"] += 1
        counts.update(f"{kind(step)} steps" for step in candidate.program.steps)


def check_uneven(random: Random, case: Case, counts: collections.Counter[str]) -> None:
    said = refusal(case)
    named = [dim for dim, size in case.sizes.items() if f"dimension {dim} has size {size}" in said]
    assert named, f"the refusal names no dimension: {said}"
    counts["uneven refused by name"] += 1
    arrays = random_arrays(random, case)
    wanted = whole(case.equation, arrays)
    even = padded(case)
    filled = [grown(a, [even.sizes[d] for d in o.dims]) for a, o in zip(arrays, case.equation.operands, strict=True)]
    best = plans(even).best
    compare(even, best, run(best.program, *filled), grown(wanted, [even.sizes[d] for d in case.equation.result.dims]))
    counts["uneven padded"] += 1


def refusal(case: Case) -> str:
    try:
        plans(case)
    except LayoutError as error:
        return str(error)
    raise AssertionError("sizes that axes do not divide are planned")


def compare(case: Case, candidate: Candidate, got: np.ndarray, wanted: np.ndarray) -> None:
    """Equal numbers, in the layout that the equation asks for."""
    assert np.array_equal(got, wanted), f"another value than np.einsum:\n{candidate.program}\n{got}\nwanted\n{wanted}"
    result = case.equation.result
    made, asked = candidate.program.result, result.layout.on(case.mesh)
    assert made.names == asked.names
    assert made.unreduced == asked.unreduced, f"{made} for {result}"
    assert all(made.axes_of(dim) == asked.axes_of(dim) for dim in result.dims if dim not in result.free), f"{made} for {result}"


if __name__ == "__main__":
    sys.exit(main())
