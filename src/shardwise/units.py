"""Quantities as they are printed: seconds, bytes and FLOPs, with three figures and a unit that fits; the steps of scales."""

from __future__ import annotations

import math

SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
_BYTES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))
_FLOPS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def seconds_text(seconds: float) -> str:
    """Seconds with three figures and a unit that fits.

    >>> seconds_text(0.000328)
    '328 us'
    """
    for unit, name in SECONDS:
        if seconds >= 0.9995 * unit:
            return f"{seconds / unit:.3g} {name}"
    return "0 s" if seconds <= 0 else f"{seconds / 1e-9:.3g} ns"


def bytes_text(count: float) -> str:
    """Bytes with three figures and a decimal unit.

    >>> bytes_text(134217728)
    '134 MB'
    """
    for unit, name in _BYTES:
        if count >= unit:
            scaled = count / unit
            return f"{scaled:.0f} {name}" if scaled >= 100 or unit == 1 else f"{scaled:.3g} {name}"
    return "0 B"


def flops_text(flops: float) -> str:
    """FLOPs with three figures and a unit that fits.

    >>> flops_text(6.87e10)
    '68.7 GFLOPs'
    """
    power, prefix = next((each for each in _FLOPS if flops >= each[0]), (1.0, ""))
    return f"{flops / power:.3g} {prefix}FLOPs"


def round_step(whole: float, most: int = 6) -> float:
    """The step of a scale of at most so many steps: 1, 2, 2.5 or 5 times a power of ten, and at least 1e-12.

    >>> round_step(14.0), round_step(2e-6)
    (2.5, 5e-07)
    """
    power = 10.0 ** max(math.floor(math.log10(whole / most)), -12)
    return next(n * power for n in (1, 2, 2.5, 5, 10, 20) if whole / (n * power) <= most)
