"""A diagnosis as a picture: every place where data moves in a table, then why, and the way out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardwise.pictures.picture import Part, Picture, Table, Words
from shardwise.units import bytes_text, seconds_text

if TYPE_CHECKING:
    from shardwise.functions.diagnosis import Diagnosis, Place

HEAD = ("", "line", "moves", "from", "to", "sends", "takes", "way out")
MOST_ROWS = 40


def diagnosis_picture(diagnosis: Diagnosis) -> Picture:
    """Everything that the diagnosis's text says, with a table of the places before it."""
    from shardwise.functions.diagnosis_text import headline, told

    parts: list[Part] = [Words((headline(diagnosis),))]
    if diagnosis.places:
        rows = tuple(_row(number, place) for number, place in enumerate(diagnosis.places[:MOST_ROWS], 1))
        more = len(diagnosis.places) - MOST_ROWS
        parts.append(Table("", HEAD, rows, frozenset({5, 6}), (f"... and {more} more places",) if more > 0 else ()))
    parts.append(Words(tuple(told(diagnosis).split("\n")[1:]), code=True))
    return Picture(f"why data moves in {diagnosis.name}", headline(diagnosis), tuple(parts))


def _row(number: int, place: Place) -> tuple[str, ...]:
    more = len(place.subjects) - 1
    what = place.subjects[0] + (f" and {more} more" if more else "")
    where = place.line.short if place.line else "no line of yours"
    remedy = "" if place.remedy is None else place.remedy.says.partition(":")[0]
    return (
        str(number), where, what, str(place.before), str(place.after), bytes_text(place.wire_bytes),
        seconds_text(place.seconds), remedy,
    )  # fmt: skip
