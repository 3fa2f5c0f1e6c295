"""Every error that Shardwise raises on purpose, and the caret that points into the user's text."""

from __future__ import annotations

import difflib
import json
import unicodedata
from collections.abc import Iterable
from typing import Any

SHOWN_CHARACTERS = 160
MOST_SAID = 400  # characters of a reason that holds names
SHOWN_VALUE = 60  # characters of a value that a message shows


class ShardwiseError(Exception):
    """The root of all of Shardwise's own errors: `except shardwise.ShardwiseError` catches each of them."""


class NotationError(ShardwiseError, ValueError):
    """A text that is not the notation; the message shows the text and a caret under the fault."""


class MeshError(ShardwiseError, ValueError):
    """A mesh that cannot be made, or an axis that a mesh does not have."""


class LayoutError(ShardwiseError, ValueError):
    """A layout that breaks a rule: an axis used twice, a size that its axes do not divide."""


class ProgramError(ShardwiseError, ValueError):
    """A program with a step that is not legal where it stands."""


class PlanError(ShardwiseError, ValueError):
    """An equation that no program solves under the conditions given."""


class HardwareError(ShardwiseError, ValueError):
    """A hardware that the catalogue does not hold, or a figure that it lacks."""


class ArrayError(ShardwiseError, ValueError):
    """An array whose rank, size, dtype or layout is not the one written."""


class DeviceError(ShardwiseError, RuntimeError):
    """Devices that are missing, or chosen too late."""


class DistributedError(ShardwiseError, RuntimeError):
    """Processes of one run that cannot go on together: one is missing, silent or gone, or they do not agree."""


class CompileError(ShardwiseError, RuntimeError):
    """A function that cannot be traced, moved or compiled for the devices named."""


class MeasureError(ShardwiseError, RuntimeError):
    """A function that cannot be run to be measured, or a trace that does not tell what was asked."""


class FileError(ShardwiseError, ValueError):
    """A file that is missing, truncated, unsafe or of a format that is not read."""


class MissingExtraError(ShardwiseError, ImportError):
    """An optional dependency that is not installed; the message names the extra."""


class CompiledTextError(ShardwiseError, ValueError):
    """A text that is not that of a compiled module."""


class AuditMismatchError(ShardwiseError, AssertionError):
    """A compiled program that is not what was asserted of it."""


def pointed(text: str, position: int, what: str, fix: str) -> str:
    """Lay out a message as text and caret; of a long text, what surrounds the fault.

    >>> print(pointed("A[I_x, J_x]", 9, "mesh axis x splits both I and J", "drop one"))
    A[I_x, J_x]: mesh axis x splits both I and J
             ^  drop one
    """
    start = max(0, position - SHOWN_CHARACTERS // 2) if len(text) > SHOWN_CHARACTERS else 0
    before, behind = one_line(text[start:position]), one_line(text[position : start + SHOWN_CHARACTERS])
    before = ("..." if start else "") + before
    rest = "..." if start + SHOWN_CHARACTERS < len(text) else ""
    what, fix = (shortened(one_line(said), MOST_SAID) for said in (what, fix))
    return f"{before}{behind}{rest}: {what}\n{' ' * _columns(before)}^  {fix}"


def one_line(text: str) -> str:
    """Put a blank for every character that would break the line, or that does not show.

    What shows is what `str.isprintable` says: letters, marks and symbols of every script. What does not are controls
    (C0 and C1), what turns or hides text (bidirectional overrides, zero-width characters), separators of lines and
    paragraphs, lone surrogates, and what Unicode has not assigned.

    >>> one_line("A[I]\\n-> B[I]")
    'A[I] -> B[I]'
    """
    return text if text.isprintable() else "".join(character if character.isprintable() else " " for character in text)


def leading(text: str) -> str:
    """A name that begins a line: between quotes, where a CI would take the line for a command to itself.

    >>> leading("train.py:step"), leading("\\n::warning::x")
    ('train.py:step', "' ::warning::x'")
    """
    line = one_line(text)
    return repr(line) if line.lstrip().startswith(("::", "##")) else line


def lines_of(text: str) -> str:
    """A text of several lines, each as `one_line` has it: what may go to a terminal.

    >>> lines_of("one\\x1b[31m\\ntwo")
    'one [31m\\ntwo'
    """
    return "\n".join(map(one_line, text.split("\n")))


def as_json(facts: Any) -> str:
    """Facts as JSON that may go to a terminal: what does not show is written by its number, as JSON allows within strings.

    >>> print(as_json({"A²": "\\x9b2J"}))
    {
      "A²": "\\u009b2J"
    }
    """
    text = json.dumps(facts, ensure_ascii=False, indent=2)
    return "\n".join(
        "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in line) for line in text.split("\n")
    )


def quoted(value: Any, most: int = SHOWN_VALUE) -> str:
    """A value for a message, as Python writes it: on one line, and the middle left out where it is long.

    >>> quoted("x=4"), quoted(10**5000)
    ("'x=4'", 'a number of about 5,001 digits')
    """
    try:
        text = one_line(repr(value))
    except ValueError:  # Python writes no whole numbers of more than 4,300 digits
        if isinstance(value, int):
            return f"a number of about {int(value.bit_length() * 0.30103) + 1:,} digits"
        text = f"a {type(value).__name__}"
    return shortened(text, most)


def shortened(text: str, most: int) -> str:
    """A text without its middle, where it is longer than that.

    >>> shortened("abcdefghijkl", 9)
    'abcdef...jkl'
    """
    return text if len(text) <= most else f"{text[: most * 2 // 3]}...{text[-(most // 3) :]}"


def _columns(text: str) -> int:
    """How many columns of a terminal a text takes: wide characters take two, combining ones none."""
    return sum(
        0 if unicodedata.combining(character) else 1 + (unicodedata.east_asian_width(character) in "WF") for character in text
    )


def counted(count: int, noun: str) -> str:
    """Say a number of things.

    >>> counted(1, "array"), counted(2, "array")
    ('1 array', '2 arrays')
    """
    return f"{count} {noun}{'' if count == 1 else 's'}"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ` (did you mean 'x'?)` for the nearest known word, or nothing.

    >>> did_you_mean("X", ["x", "y"])
    " (did you mean 'x'?)"
    """
    words = list(known)
    folded = {w.casefold(): w for w in reversed(words)}
    if word.casefold() in folded:
        return f" (did you mean {folded[word.casefold()]!r}?)"
    near = difflib.get_close_matches(word, words, n=1, cutoff=0.6)
    return f" (did you mean {near[0]!r}?)" if near else ""
