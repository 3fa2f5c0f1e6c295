"""Many programs timed in turn on a machine that others use too: runs beside which it was slow do not count."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from shardwise.measure.timing import done

QUICK = 0.2  # the share of probes that are faster than the usual one of a machine that is left alone now and then
SLOWER = 1.25  # times the usual probe: where one is slower, or as much faster, the runs beside it do not count
BETWEEN_SECONDS = 0.5  # of runs between two probes
BRIEF_SECONDS = 0.01  # what takes no longer is run several times in a turn
FEWEST = 3  # runs that count, of which there is a median


@dataclass(frozen=True, slots=True)
class Rounds:
    """What was timed.

    Attributes:
        seconds: the median of each program's runs that count; None where there are fewer than three.
        runs: the runs of each that count, in this process.
        counted: the share of all runs that count.
        probe_seconds: the probe beside which runs count.
    """

    seconds: tuple[float | None, ...]
    runs: tuple[tuple[float, ...], ...]
    counted: float
    probe_seconds: float


Agree = Callable[[Sequence[float]], list[float]]


def alone(seconds: Sequence[float]) -> list[float]:
    """What one process has measured is agreed."""
    return list(seconds)


def timed(
    calls: Sequence[Callable[[], Any]], probe: Callable[[], Any], seconds: float, agree: Agree = alone,
    within: float | None = None, clock: Callable[[], float] = time.perf_counter,
) -> Rounds:  # fmt: skip
    """Time programs in turn, in another order each round, until the time is up; at least three rounds.

    A probe, always the same program, runs between them. A run counts where the probes before and after it took hardly longer
    than the quickest fifth: a machine whose other users slow it down for seconds is measured in the seconds between.

    Args:
        calls: programs that were compiled before; each run is preceded by one that does not count.
        agree: gives for times of this process those that all processes hold true: the same programs run in all.
        within: seconds of a usual probe, where they are known: what is timed is to be held against what was timed then.

    Raises:
        MeasureError: a program raises.
    """
    taken: list[list[tuple[float, int]]] = [[] for _ in calls]
    probes: list[float] = []
    shuffled, order = random.Random(0), list(range(len(calls)))
    started = clock()

    def probed() -> None:
        done("the probe", probe)
        runs = []
        for _ in range(3):
            begin = clock()
            done("the probe", probe)
            runs.append(clock() - begin)
        probes.append(min(runs))

    probed()
    rounds, spent = 0, 0.0
    while calls and (rounds < FEWEST or spent * (rounds + 1) / rounds <= seconds):
        shuffled.shuffle(order)
        last = 0.0
        for number in order:
            begin = clock()
            done("a program", calls[number])
            for _ in range(3 if taken[number] and taken[number][-1][0] < BRIEF_SECONDS else 1):
                run = clock()
                done("a program", calls[number])
                taken[number].append((clock() - run, len(probes) - 1))
            last += clock() - begin
            if agree([last])[0] > BETWEEN_SECONDS:
                probed()
                last = 0.0
        probed()
        rounds += 1
        spent = agree([clock() - started])[0]
    usual = within or float(np.quantile(probes, QUICK))
    is_usual = [usual / SLOWER <= each <= SLOWER * usual for each in probes]
    kept = [[run for run, before in runs if all(is_usual[before : before + 2])] for runs in taken]
    agreed = agree([np.inf if len(runs) < FEWEST else statistics.median(runs) for runs in kept])
    counted = sum(map(len, kept)) / max(1, sum(map(len, taken)))
    seconds_of = tuple(each if np.isfinite(each) else None for each in agreed)
    return Rounds(seconds_of, tuple(map(tuple, kept)), counted, usual)


def agreement(mesh: jax.sharding.Mesh) -> Agree:
    """How processes agree on times: each is as long as in the process where it was longest."""
    if jax.process_count() == 1:
        return alone
    devices = mesh.devices.reshape(-1)
    flat = jax.sharding.Mesh(devices, ("all",))
    split = jax.sharding.NamedSharding(flat, jax.sharding.PartitionSpec("all"))
    whole = jax.sharding.NamedSharding(flat, jax.sharding.PartitionSpec())
    longest = jax.jit(lambda times: times.max(axis=0), out_shardings=whole)

    def agree(seconds: Sequence[float]) -> list[float]:
        mine = np.asarray(seconds, np.float32)[None]
        rows = jax.make_array_from_callback((len(devices), len(seconds)), split, lambda index: mine)
        return [float(each) for each in np.asarray(longest(rows).addressable_data(0))]

    return agree
