"""Many programs timed in turn on a machine that others use too: runs beside which it was slow do not count."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from shardwise.measure.timing import done

QUIET = 0.05  # the share of probes that are quicker than the one that tells a quiet machine
SLOWER = 1.25  # times that one: where a probe takes longer, or that much less, the runs beside it do not count
BETWEEN_SECONDS = 0.15  # of runs between two probes
PAUSE_SECONDS = 0.05  # between probes while a machine is busy
BRIEF_SECONDS = 0.01  # what takes no longer is run several times in a turn
FEWEST = 3  # runs that count, of which there is a time


@dataclass(frozen=True, slots=True)
class Rounds:
    """What was timed.

    Attributes:
        seconds: the median of the quicker half of each program's runs that count; None where fewer than three do.
        runs: that half, in this process.
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
    within: float | None = None, enough: int = 1000, clock: Callable[[], float] = time.perf_counter,
    pause: Callable[[float], None] = time.sleep,
) -> Rounds:  # fmt: skip
    """Time programs in turn, in another order each round, until the time is up.

    A probe, always the same program, runs between them. Runs count where the probes before and after them are quick: a machine
    whose other users slow it down for seconds is measured in the seconds between, which are waited for.

    Args:
        calls: programs that were compiled before; each run is preceded by one that does not count.
        seconds: for all; what is not measured three times by then has no median.
        agree: gives for times of this process those that all processes hold true: the same programs run in all.
        within: seconds of a quick probe, where they are known: what is timed is to be held against what was timed then.
        enough: runs that count of each program, after which the rest of the time is not spent.
        pause: what waits for so many seconds.

    Raises:
        MeasureError: a program raises.
    """
    watch = _Watch(probe, agree, within, clock, pause, clock(), seconds)
    taken: list[list[tuple[float, int]]] = [[] for _ in calls]
    shuffled, order = random.Random(0), list(range(len(calls)))
    watch.await_quiet()
    while not watch.is_over() and agree([min(map(len, watch.kept(taken)), default=enough)])[0] < enough:
        shuffled.shuffle(order)
        begin = clock()
        for number in order:
            done("a program", calls[number])
            is_brief = bool(taken[number]) and agree([taken[number][-1][0]])[0] < BRIEF_SECONDS
            for _ in range(3 if is_brief else 1):
                run = clock()
                done("a program", calls[number])
                taken[number].append((clock() - run, len(watch.probes) - 1))
            if agree([clock() - begin])[0] > BETWEEN_SECONDS:
                watch.await_quiet()
                if watch.is_over():
                    break
                begin = clock()
        watch.await_quiet()
    found = watch.kept(taken)
    halves = tuple(tuple(sorted(runs)[: (len(runs) + 1) // 2]) for runs in found)  # what others take only ever adds
    agreed = agree(
        [np.inf if len(each) < FEWEST else statistics.median(half) for each, half in zip(found, halves, strict=True)]
    )
    medians = tuple(each if np.isfinite(each) else None for each in agreed)
    return Rounds(medians, halves, sum(map(len, found)) / max(1, sum(map(len, taken))), watch.quick)


@dataclass(slots=True)
class _Watch:
    """Tells by a probe when a machine is as fast as at its quickest, and waits until it is, or the time is up."""

    probe: Callable[[], Any]
    agree: Agree
    within: float | None
    clock: Callable[[], float]
    pause: Callable[[float], None]
    started: float
    seconds: float
    probes: list[float] = field(default_factory=list)

    @property
    def quick(self) -> float:
        """What a quick probe takes."""
        return self.within or float(np.quantile(self.probes, QUIET))

    def is_over(self) -> bool:
        return self.agree([self.clock() - self.started])[0] >= self.seconds

    def await_quiet(self) -> None:
        while not _is_near(self.probed(), self.quick) and not self.is_over():
            self.pause(PAUSE_SECONDS)

    def probed(self) -> float:
        runs = []
        for _ in range(2):
            begin = self.clock()
            done("the probe", self.probe)
            runs.append(self.clock() - begin)
        self.probes.append(self.agree([min(runs)])[0])
        return self.probes[-1]

    def kept(self, taken: Sequence[Sequence[tuple[float, int]]]) -> list[list[float]]:
        """The runs that count, of each program: those between two quick probes."""
        quick = self.quick
        is_quick = [_is_near(each, quick) for each in self.probes]
        return [[run for run, before in runs if all(is_quick[before : before + 2])] for runs in taken]


def _is_near(probe: float, quick: float) -> bool:
    return quick / SLOWER <= probe <= SLOWER * quick


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
