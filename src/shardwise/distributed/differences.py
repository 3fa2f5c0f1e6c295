"""What processes say of themselves, compared: a text that names each difference and the processes on either side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from shardwise.errors import one_line

MOST_SHOWN = 200  # characters of one value
MISSING = "(nothing)"


def difference(told: Mapping[int, Mapping[str, str]]) -> str:
    """What differs, a paragraph for each fact; empty where all say the same.

    >>> x, y = {"jax": "0.12", "mesh": "x=4"}, {"jax": "0.12", "mesh": "y=4"}
    >>> print(difference({0: x, 1: y, 2: x}))
    mesh
      processes 0, 2: x=4
      process 1:      y=4
    """
    names = dict.fromkeys(name for facts in told.values() for name in facts)
    parts = []
    for name in names:
        sides: dict[str, list[int]] = {}
        for process, facts in sorted(told.items()):
            sides.setdefault(facts.get(name, MISSING), []).append(process)
        if len(sides) > 1:
            parts.append(f"{one_line(name)}\n{_sides(sides)}")
    return "\n".join(parts)


def _sides(sides: Mapping[str, list[int]]) -> str:
    heads = [f"{named(processes)}:" for processes in sides.values()]
    width = max(map(len, heads))
    shown = [_parting(value, [other for other in sides if other != value]) for value in sides]
    return "\n".join(f"  {head:{width}} {value}" for head, value in zip(heads, shown, strict=True))


def _parting(value: str, others: Iterable[str]) -> str:
    """A value on one line; of a long one what surrounds the first place where it differs from another."""
    value = one_line(value)
    if len(value) <= MOST_SHOWN:
        return value
    first = min((_common(value, one_line(other)) for other in others), default=0)
    begin = max(0, min(first - MOST_SHOWN // 3, len(value) - MOST_SHOWN))
    end = begin + MOST_SHOWN
    return "..." * (begin > 0) + value[begin:end] + "..." * (end < len(value))


def _common(one: str, other: str) -> int:
    """How many characters two texts begin with alike."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def named(processes: Iterable[int]) -> str:
    """Processes by their numbers, runs of them as one.

    >>> named([3]), named([0, 1, 2, 3, 7])
    ('process 3', 'processes 0-3, 7')
    """
    runs: list[list[int]] = []
    for process in sorted(processes):
        if runs and process == runs[-1][1] + 1:
            runs[-1][1] = process
        else:
            runs.append([process, process])
    words = [w for a, b in runs for w in ([f"{a}"] if a == b else [f"{a}, {b}"] if b == a + 1 else [f"{a}-{b}"])]
    return f"process{'' if len(runs) == 1 and runs[0][0] == runs[0][1] else 'es'} {', '.join(words)}"
