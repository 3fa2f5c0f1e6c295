"""What the accuracy ledger sums up: errors, rank correlation and regret of predictions that were measured or compiled."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Tried:
    """One program: predicted and measured seconds, and the interval of the median, where there are any.

    The compiler's own program, which may be confirmed, is not predicted.
    """

    program: str
    predicted: float | None
    measured: float
    interval: tuple[float, float] | None = None


@dataclass(frozen=True)
class Held:
    """One held-out case: its programs, the planner's choice first; and the program that runs of its own confirmed."""

    name: str
    tried: tuple[Tried, ...]
    confirmed: str = ""

    @property
    def regret(self) -> float:
        """How much longer the choice takes than the fastest that was measured."""
        return self.tried[0].measured / self._best - 1

    @property
    def confirmed_regret(self) -> float | None:
        """The same of the confirmed choice, by runs that it was not chosen by; None where none was confirmed."""
        chosen = next((each for each in self.tried if each.program == self.confirmed), None)
        return None if chosen is None else chosen.measured / self._best - 1

    @property
    def predicted(self) -> list[tuple[float, float]]:
        """Predicted and measured seconds of the programs that are predicted."""
        return [(each.predicted, each.measured) for each in self.tried if each.predicted is not None]

    @property
    def _best(self) -> float:
        return min(each.measured for each in self.tried)

    @property
    def sure_regret(self) -> float:
        """The same as far as the clock is sure: nothing where the intervals of the two medians meet."""
        first, best = self.tried[0], min(self.tried, key=lambda each: each.measured)
        return 0.0 if not _apart(first, best) else self.regret


def _apart(first: Tried, other: Tried) -> bool:
    """Whether the clock is sure which is faster; with fewer than six runs of one there is no interval, and it is not."""
    if first.interval is None or other.interval is None:
        return False
    return first.interval[0] > other.interval[1] or other.interval[0] > first.interval[1]


def errors(cases: Iterable[Held]) -> list[float]:
    """|predicted / measured - 1| of every program."""
    return sorted(abs(predicted / measured - 1) for case in cases for predicted, measured in case.predicted)


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which that share of them lies.

    >>> percentile([1.0, 2.0, 3.0, 4.0], 0.5)
    2.5
    """
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def spearman(first: Sequence[float], other: Sequence[float]) -> float:
    """The rank correlation; equal values share their ranks.

    >>> spearman([1, 2, 3], [10, 20, 30]), spearman([1, 2, 3], [3, 2, 1])
    (1.0, -1.0)
    """
    return statistics.correlation(_ranks(first), _ranks(other))


def _ranks(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    return [statistics.mean((ordered.index(value), len(ordered) - 1 - ordered[::-1].index(value))) for value in values]


def candidate_correlation(cases: Iterable[Held]) -> float:
    """The rank correlation of candidates, each against the others of its case: how much slower than their geometric mean."""
    predicted, measured = [], []
    for case in cases:
        if len(case.predicted) > 1:
            for values, found in zip((predicted, measured), zip(*case.predicted, strict=True), strict=True):
                middle = statistics.geometric_mean(found)
                values += [each / middle for each in found]
    return spearman(predicted, measured)


def settled_pairs(cases: Iterable[Held]) -> tuple[int, int]:
    """Of the pairs of one case whose intervals do not meet, how many are predicted in the order in which they were measured."""
    right = every = 0
    for case in cases:
        for place, one in enumerate(case.tried):
            for other in case.tried[place + 1 :]:
                if one.predicted is not None and other.predicted is not None and _apart(one, other):
                    every += 1
                    right += (one.predicted < other.predicted) == (one.measured < other.measured)
    return right, every


def summary(cases: Sequence[Held]) -> list[str]:
    """The ledger's lines."""
    found = errors(cases)
    right, every = settled_pairs(cases)
    regrets = [case.regret for case in cases]
    sure = [case.sure_regret for case in cases]
    confirmed = [each for each in (case.confirmed_regret for case in cases) if each is not None]
    lines = [
        f"- {len(cases)} cases, {len(found)} programs.",
        f"- Error of the predicted time: median {percentile(found, 0.5):.1%}, 90th percentile {percentile(found, 0.9):.0%}.",
        f"- Rank correlation of candidates within their cases: {candidate_correlation(cases):.3f}; of {every} pairs whose "
        f"intervals do not meet, {right} are predicted in their order.",
        f"- Regret of the choice against the fastest candidate: mean {statistics.mean(regrets):.1%}, most {max(regrets):.0%}; "
        f"as far as intervals do not meet: mean {statistics.mean(sure):.1%}, most {max(sure):.0%}.",
    ]
    if confirmed:
        lines.append(
            f'- Regret of what `confirm="here"` chose of {len(confirmed)} cases, by runs that it did not see: mean '
            f"{statistics.mean(confirmed):.1%}, most {max(confirmed):.0%}."
        )
    return lines
