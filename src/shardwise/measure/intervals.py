"""How long something takes, from several runs: the median, and an interval that takes no distribution for granted."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of several runs of one function."""

    seconds: tuple[float, ...]

    @property
    def median_seconds(self) -> float:
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """The range of the middle half of the runs, as a share of the median."""
        if len(self.seconds) < 4:
            return (max(self.seconds) - min(self.seconds)) / self.median_seconds
        low, _, high = statistics.quantiles(self.seconds, n=4)
        return (high - low) / self.median_seconds

    @property
    def interval_seconds(self) -> tuple[float, float] | None:
        """Between which two runs the true median lies, with 95 % confidence; None of fewer than six runs.

        It takes no distribution for granted: each run is below the true median with probability one half.

        >>> Timing((3.0, 1.0, 2.0)).interval_seconds, Timing((6.0, 1.0, 2.0, 5.0, 4.0, 3.0)).interval_seconds
        (None, (1.0, 6.0))
        """
        outside = runs_outside(len(self.seconds))
        ordered = sorted(self.seconds)
        return (ordered[outside - 1], ordered[-outside]) if outside else None

    def overlaps(self, other: Timing) -> bool:
        """Whether the two cannot be told apart: their intervals meet, or there are too few runs for one."""
        mine, its = self.interval_seconds, other.interval_seconds
        return mine is None or its is None or (mine[0] <= its[1] and its[0] <= mine[1])


def runs_outside(runs: int, confidence: float = CONFIDENCE) -> int:
    """The largest k for which the k-th smallest and the k-th largest of so many runs enclose the median; 0 if there is none.

    The order-statistic interval: the median lies below the k-th smallest with the probability that a binomial of `runs`
    throws of a coin stays below k (David and Nagaraja, Order Statistics, 7.1).

    >>> [runs_outside(n) for n in (5, 6, 8, 9, 20, 100)]
    [0, 1, 1, 2, 6, 40]
    """
    allowed, tail, k = (1 - confidence) / 2 * 2.0**runs, 0, 0
    while (tail := tail + math.comb(runs, k)) <= allowed:
        k += 1
    return k
