"""Pictures shown one to a screen, with keys to step through them; without such keys one after another, at Enter."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from shardwise.pictures.keys import can_step, is_terminal, keyboard
from shardwise.pictures.picture import Picture, clipped, columns_of
from shardwise.pictures.plain_text import ASCII, BOXES, Line, Rim, Segment, drawn, plain, text
from shardwise.pictures.terminal import coloured, painted

NEXT, BACK = {"space", "enter", "right", "n"}, {"left", "b", "back", "p"}
WATCHED = 0.2  # seconds between looks at the size of the window
NARROWEST = 20
WIDTH = 80  # of plain text


@dataclass(frozen=True, slots=True)
class Place:
    """Where somebody is: the screen, the first line of it that is seen, and the digits typed of a number to jump to."""

    at: int = 0
    top: int = 0
    typed: str = ""


def moved(place: Place, key: str, count: int, hidden: int = 0) -> Place | None:
    """Where a key leads; None is out.

    >>> moved(Place(0), "space", 6), moved(Place(5), "b", 6).at, moved(Place(0), "q", 6)
    (Place(at=1, top=0, typed=''), 4, None)

    Args:
        count: of screens.
        hidden: lines of this screen that do not fit in the window.
    """
    if key == "q":
        return None
    if key == "enter" and place.typed:
        return Place(_within(int(place.typed) - 1, count))
    if key in NEXT:
        return Place(place.at + 1) if place.at + 1 < count else replace(place, typed="")
    if key in BACK:
        return Place(max(place.at - 1, 0))
    if key in ("up", "down"):
        top = min(place.top, hidden) + (1 if key == "down" else -1)
        return Place(place.at, _within(top, hidden + 1))
    if key in ("home", "end"):
        return Place(0 if key == "home" else count - 1)
    if key.isdigit():
        typed = (place.typed + key).lstrip("0")
        more = typed and int(typed) * 10 <= count  # another digit may follow
        return replace(place, typed=typed) if more or not typed else Place(_within(int(typed) - 1, count))
    return replace(place, typed="")


def _within(number: int, count: int) -> int:
    return min(max(number, 0), count - 1)


def step_through(screens: Sequence[Picture], *, plainly: bool = False) -> None:
    """Show pictures with keys to step, in a terminal; in anything else, or `plainly`, all of them one after another."""
    if plainly or not is_terminal():
        print(all_of(screens))
    elif can_step():
        _with_keys(screens)
    else:
        _with_enter(screens)


def all_of(screens: Sequence[Picture]) -> str:
    """All screens as plain text."""
    return "\n\n\n".join(text(each, WIDTH) for each in screens)


def _with_keys(screens: Sequence[Picture]) -> None:
    place, seen, hidden, colours = Place(), None, 0, coloured()
    with keyboard() as keys:
        while True:
            window = os.get_terminal_size(sys.stdout.fileno())
            if seen != (place, window) or keys.redrawn:
                seen, keys.redrawn = (place, window), False  # before drawing: Ctrl-Z may come in the middle of it
                lines, hidden = screen(screens, place, window.columns, window.lines)
                _write(lines, colours)
            for key in keys.read(WATCHED):
                after = moved(place, key, len(screens), hidden)
                if after is None:
                    return
                place = after


def screen(screens: Sequence[Picture], place: Place, columns: int, rows: int) -> tuple[list[Line], int]:
    """The lines of one screen in a window of so many columns and rows, and how many of them do not fit."""
    width, room = max(columns, NARROWEST), max(rows - 1, 1)
    lines = drawn(screens[place.at], width, _rim())
    hidden = max(len(lines) - room, 0)
    top = min(place.top, hidden)
    shown = [cropped(line, width) for line in lines[top : top + room]]
    shown += [[]] * (room - len(shown))
    return [*shown, _foot(place, len(screens), hidden - top, width)], hidden


def _foot(place: Place, count: int, below: int, width: int) -> Line:
    if place.typed:
        said = f"go to {place.typed}_ of {count}   enter"
    else:
        ways = [
            "space next" if place.at + 1 < count else "the end",
            *(["b back"] if place.at else []),
            f"1-{count} jump",
            "q quit",
        ]
        said = "   ".join([f"{place.at + 1}/{count}", *ways, *([f"down: {below} more lines"] if below else [])])
    return [Segment(clipped(said, width - 1), role="faint")]


def cropped(line: Line, width: int) -> Line:
    """A line in at most so many columns."""
    kept: Line = []
    for segment in line:
        room = width - sum(columns_of(each.text) for each in kept)
        if columns_of(segment.text) <= room:
            kept.append(segment)
        elif room > 0:
            kept.append(replace(segment, text=clipped(segment.text, room)))
            break
    return kept


def _rim() -> Rim:
    """Boxes drawn with lines where the terminal can write them."""
    try:
        "".join((BOXES.across, *BOXES.corners, BOXES.arrow, BOXES.dots)).encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return ASCII
    return BOXES


def _write(lines: list[Line], colours: bool) -> None:
    told = painted(lines) if colours else [plain([line]) for line in lines]
    encoding = sys.stdout.encoding or "ascii"
    written = "\x1b[H" + "\x1b[K\r\n".join(told) + "\x1b[K\x1b[J"
    sys.stdout.write(written.encode(encoding, "replace").decode(encoding))
    sys.stdout.flush()


def _with_enter(screens: Sequence[Picture]) -> None:
    """Where single keys cannot be read: a line at a time."""
    place: Place | None = Place()
    while place is not None:
        print(f"\n{text(screens[place.at], WIDTH)}\n")
        try:
            word = input(f"{place.at + 1}/{len(screens)}   enter: next   b: back   1-{len(screens)}: jump   q: quit > ").strip()
        except EOFError:
            return
        if place.at + 1 == len(screens) and not word:
            return
        place = Place(_within(int(word) - 1, len(screens))) if word.isdecimal() else moved(place, word or "enter", len(screens))
