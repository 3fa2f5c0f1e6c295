"""Figures fitted to measurements: least absolute deviations of the logarithms, which a few disturbed runs cannot move."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

ROUNDS = 60
CLOSE = 1e-4  # of the logarithm of each figure: where rounds stop
WIDEST = 1.5  # the most that a logarithm moves in one round
LEAST = 0.02  # deviations below this weigh alike: then squares are as good
FREE = 1e-3  # how strongly a figure is held that nothing measured depends on


@dataclass(frozen=True, slots=True)
class Fit:
    """Fitted figures, and of each measurement the predicted time over the measured one."""

    figures: tuple[float, ...]
    ratios: tuple[float, ...]
    is_settled: bool

    @property
    def errors(self) -> tuple[float, ...]:
        return tuple(abs(ratio - 1) for ratio in self.ratios)


def fitted(
    predict: Callable[[tuple[float, ...]], list[float]], measured: list[float], start: tuple[float, ...]
) -> Fit:  # fmt: skip
    """The positive figures for which predicted times come nearest to measured ones.

    The sum of |log(predicted / measured)| is made least by reweighted least squares (Schlossmacher, JASA 1973) with the
    damping of Levenberg and Marquardt: half as long and twice as long weigh alike, and so do microseconds and seconds.

    >>> true = lambda figures: [figures[0] + n / figures[1] for n in (1, 10, 100, 1000)]
    >>> [round(each, 3) for each in fitted(true, true((2.0, 50.0)), (1.0, 1.0)).figures]
    [2.0, 50.0]

    Args:
        predict: the seconds of each measurement, from figures.
        start: figures to begin with, all positive; one that no measurement depends on stays as it is.
    """
    wanted = np.log(measured)
    at = np.log(start)
    deviations = _deviations(predict, at, wanted)
    damping, settled = 1e-2, False
    for _ in range(ROUNDS):
        slopes = np.stack([(_deviations(predict, at + step, wanted) - deviations) / 1e-4 for step in 1e-4 * np.eye(len(at))], 1)
        weights = 1 / np.maximum(np.abs(deviations), LEAST)
        square = slopes.T @ (weights[:, None] * slopes)
        moved = False
        while damping < 1e6 and not moved:
            held = damping * np.diag(square) + FREE
            step = np.clip(np.linalg.solve(square + np.diag(held), -slopes.T @ (weights * deviations)), -WIDEST, WIDEST)
            tried = _deviations(predict, at + step, wanted)
            moved = bool(_loss(tried) < _loss(deviations))
            damping = damping / 4 if moved else damping * 4
        if not moved:
            settled = True
            break
        settled = bool(np.max(np.abs(step)) < CLOSE)
        at, deviations = at + step, tried
        if settled:
            break
    return Fit(tuple(map(float, np.exp(at))), tuple(map(float, np.exp(deviations))), settled)


def _deviations(predict: Callable[[tuple[float, ...]], list[float]], at: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    return np.log(predict(tuple(map(float, np.exp(at))))) - wanted


def _loss(deviations: np.ndarray) -> float:
    """The absolute deviations, of small ones their squares, which are smooth where they vanish."""
    size = np.abs(deviations)
    return float(np.sum(np.where(size < LEAST, size**2 / (2 * LEAST) + LEAST / 2, size)))
