"""Figures fitted to measurements: least absolute deviations of the logarithms, which a few disturbed runs cannot move."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

ROUNDS = 60
SETTLED = 1e-6  # of the sum of deviations: where a round gains less, rounds stop
STEP = 1e-4  # of the logarithm of a figure, by which slopes are told
STUCK = 1e6  # damping above which no step gains anything
WIDEST = 1.5  # the most that a logarithm moves in one round
LEAST = 0.05  # deviations below this weigh alike: then squares are as good
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
    deviations, damping, settled = _deviations(predict, at, wanted), 1e-2, False
    for _ in range(ROUNDS):
        slopes = np.stack([(_deviations(predict, at + step, wanted) - deviations) / STEP for step in STEP * np.eye(len(at))], 1)
        weighted = slopes / np.maximum(np.abs(deviations), LEAST)[:, None]
        square, downwards = slopes.T @ weighted, -weighted.T @ deviations
        before = _loss(deviations)
        while damping < STUCK:
            step = np.linalg.solve(square + np.diag(damping * np.diag(square) + FREE), downwards).clip(-WIDEST, WIDEST)
            tried = _deviations(predict, at + step, wanted)
            if _loss(tried) < before:
                at, deviations, damping = at + step, tried, damping / 4
                break
            damping *= 4
        settled = before - _loss(deviations) < SETTLED * before
        if settled:
            break
    return Fit(tuple(map(float, np.exp(at))), tuple(map(float, np.exp(deviations))), settled)


def _deviations(predict: Callable[[tuple[float, ...]], list[float]], at: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    return np.log(predict(tuple(map(float, np.exp(at))))) - wanted


def _loss(deviations: np.ndarray) -> float:
    """The absolute deviations, of small ones their squares, which are smooth where they vanish."""
    size = np.abs(deviations)
    return float(np.sum(np.where(size < LEAST, size**2 / (2 * LEAST) + LEAST / 2, size)))
