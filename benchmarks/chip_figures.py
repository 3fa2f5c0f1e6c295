"""Figures of a chip's compiler from what it made of probes: plain numbers in, plain numbers out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from shardwise.chips.figures import NEVER
from shardwise.planning.prices import started
from shardwise.planning.tiles import scattered_rows

ALWAYS = 1e15  # what stands in the catalogue for more bytes than there are
CLOSE_ENOUGH = 1.03  # how near a limit is searched for


@dataclass(frozen=True, slots=True)
class Derived:
    """A figure as derived: its value, what it was derived from, and from how many probes; without a value it is kept."""

    value: float | None
    says: str
    probes: int


class TimedMatmul(NamedTuple):
    """A local matmul: seconds of its FLOPs at the peak, elements of its result, and the seconds that it takes."""

    peak_seconds: float
    results: float
    seconds: float


class Fit(NamedTuple):
    """What the price of a matmul is made with (`shardwise.planning.prices.Costs.einsum`), and its median error."""

    efficiency: float
    results_per_s: float
    start_seconds: float
    least_seconds: float
    error: float


def fitted(matmuls: Sequence[TimedMatmul], short: Sequence[TimedMatmul]) -> Fit:
    """The figures with which the price of matmuls is nearest to what compilers say, by the sum of the logs' distances.

    Those of short sums say how fast results leave, the smallest what the least is; share and start are searched for.
    """
    least = min(matmul.seconds for matmul in (*matmuls, *short))

    def errors(efficiency: float, start: float) -> list[float]:
        speed = leaving(short, start)
        fit = Fit(efficiency, speed, start, least, 0.0)
        return [abs(math.log(priced(matmul, fit) / matmul.seconds)) for matmul in (*matmuls, *short)]

    grid = [(share / 100, 2.5e-7 * start) for share in range(40, 101) for start in range(81)]
    efficiency, start = min(grid, key=lambda each: sum(errors(*each)))
    return Fit(efficiency, leaving(short, start), start, least, median(errors(efficiency, start)))


def chunk_tiles(scatters: Sequence[tuple[int, int, int]], devices: int) -> tuple[float, int]:
    """What `scattered_tiles` has to be for most scatters to be padded as they were, and for how many it is then.

    Args:
        scatters: of each the rows of a block, the tiles of each row, and the rows to which it was padded.
    """

    def met(most: int) -> int:
        return sum(scattered_rows(rows, columns, most) == padded for rows, columns, padded in scatters)

    counts = {most: met(most) for most in range(16, 2000)}
    best = [most for most, count in counts.items() if count == max(counts.values())]
    return (median(best) + 0.5) * (devices + 4), max(counts.values())


def leaving(short: Sequence[TimedMatmul], start: float) -> float:
    """Elements of results a second, of matmuls with short sums."""
    return median(matmul.results / (matmul.seconds - min(start, matmul.seconds / 2)) for matmul in short)


def priced(matmul: TimedMatmul, fit: Fit) -> float:
    """Seconds of a matmul by its price."""
    arithmetic = max(matmul.peak_seconds / fit.efficiency, matmul.results / fit.results_per_s)
    return started(arithmetic, fit.start_seconds, fit.least_seconds)


def largest(holds: Callable[[float], bool], low: float, high: float) -> tuple[float, int]:
    """The largest number, about, of which something holds, and how many were tried; 0 where it does not hold of the lowest.

    >>> largest(lambda size: size < 100, 1, 50), largest(lambda size: False, 1, 50)
    ((50, 2), (0.0, 1))
    """
    if not holds(low):
        return 0.0, 1
    if holds(high):
        return high, 2
    tried = 2
    while high / low > CLOSE_ENOUGH:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if holds(middle) else (low, middle)
        tried += 1
    return low, tried


def first(found: Mapping[float, bool]) -> float:
    """From which number on something holds, of those that were tried; `NEVER` where it does not hold of the largest.

    >>> first({4: False, 8: True, 16: True}), first({4: True, 8: False})
    (8, 1000000000.0)
    """
    from_on = NEVER
    for number in sorted(found, reverse=True):
        if not found[number]:
            break
        from_on = number
    return from_on


def speed(moved: Iterable[tuple[float, float]]) -> float | None:
    """The median of bytes a second, of bytes and seconds; None where nothing took any.

    >>> speed([(10.0, 2.0), (10.0, 1.0), (30.0, 1.0), (8.0, 0.0)])
    10.0
    """
    speeds = [bytes_ / seconds for bytes_, seconds in moved if seconds]
    return median(speeds) if speeds else None
