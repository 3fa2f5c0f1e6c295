"""A comparison as a picture: a bar for each way as long as its time, with the interval of the median, and the table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from shardwise.pictures.lanes import ticks
from shardwise.pictures.picture import Bar, Lane, Lanes, Picture, Table, Words
from shardwise.units import seconds_text

if TYPE_CHECKING:
    from shardwise.measure.comparison import Comparison, Measured

KINDS = (("measured", "the median, up to its interval"), ("interval", "where the true median lies, with 95 % confidence"))


def comparison_picture(comparison: Comparison) -> Picture:
    """Every way with its time drawn to scale, and all that the text says."""
    from shardwise.measure.comparison import HEAD, NUMBERS, row, said, verdict

    whole = max(_until(way) for way in comparison)
    lanes = tuple(Lane(way.name, tuple(_bars(way, whole)), _told(way)) for way in comparison)
    chart = Lanes(verdict(comparison), lanes, tuple(ticks(whole)), KINDS)
    table = Table("", HEAD, tuple(row(way, comparison) for way in comparison), NUMBERS)
    title = f"{comparison.what} {comparison.where}"
    return Picture(title, verdict(comparison), (chart, table, Words(tuple(said(comparison))[1:])))


def _until(way: Measured) -> float:
    interval = way.timing.interval_seconds
    return way.timing.median_seconds if interval is None else interval[1]


def _bars(way: Measured, whole: float) -> Iterator[Bar]:
    low, high = way.timing.interval_seconds or (way.timing.median_seconds,) * 2
    yield Bar(0.0, low / whole, "measured", _told(way))
    if high > low:
        yield Bar(low / whole, high / whole, "interval", _told(way))


def _told(way: Measured) -> str:
    interval = way.timing.interval_seconds
    between = "" if interval is None else f", between {seconds_text(interval[0])} and {seconds_text(interval[1])}"
    return f"{way.name}: {seconds_text(way.timing.median_seconds)}{between}, {len(way.timing.seconds)} runs"
