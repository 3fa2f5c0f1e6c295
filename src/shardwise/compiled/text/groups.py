"""Which mesh axes a collective runs over: from replica groups in any spelling, or from a permutation's pairs."""

from __future__ import annotations

import functools
import itertools
import math
import re

import numpy as np

from shardwise.layout import Axes
from shardwise.mesh import Mesh

Groups = tuple[tuple[int, ...], ...]

_IOTA = re.compile(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?$")
_MESH = re.compile(r"mesh\[([^\]]*)\](.*)\{([^{}]*)\}$", re.DOTALL)
_MESH_AXIS = re.compile(r"'([^']+)'=(\d+)")
_AXIS_REF = re.compile(r"'([^']+)'(?::\((\d+)\)(\d+))?")
_ORDER = re.compile(r"device_ids=\(?(\[[\d,]+\](?:<=\[[\d,]+\])?(?:T\([\d,]+\))?|[\d,\s]+)\)?")


@functools.lru_cache(maxsize=4096)
def parse_groups(text: str, devices: int) -> Groups | None:
    """Read replica groups; None where the spelling is not known.

    >>> parse_groups("{{0,1},{2,3}}", 4) == parse_groups("[2,2]<=[4]", 4) == parse_groups("mesh['a'=2,'b'=2] {'b'}", 4)
    True
    >>> parse_groups("[2,2]<=[2,2]T(1,0)", 4)
    ((0, 2), (1, 3))
    """
    text = text.strip()
    if text in ("", "{}"):
        return (tuple(range(devices)),)
    if text.startswith("{{") and text.endswith("}}"):
        return _listed(text)
    if match := _IOTA.match(text):
        grid = _iota(match)
        return None if grid is None else _rows(grid)
    if match := _MESH.match(text):
        return _on_mesh(match)
    return None


def _listed(text: str) -> Groups | None:
    try:
        return tuple(tuple(int(part) for part in group.split(",") if part.strip()) for group in text[2:-2].split("},{"))
    except ValueError:
        return None


def _iota(match: re.Match[str]) -> np.ndarray | None:
    shape, sizes = _integers(match[1]), _integers(match[2])
    turn = _integers(match[3]) if match[3] else tuple(range(len(sizes)))
    if math.prod(shape) != math.prod(sizes) or sorted(turn) != list(range(len(sizes))):
        return None
    return np.arange(math.prod(sizes)).reshape(sizes).transpose(turn).reshape(shape)


def _on_mesh(match: re.Match[str]) -> Groups | None:
    """Groups over named axes of the compiler's own mesh: `mesh['a'=4,'b'=2] {'a'}`, a part of an axis as `'a':(2)2`."""
    axes = [(name, int(size)) for name, size in _MESH_AXIS.findall(match[1])]
    ids = np.arange(math.prod(size for _, size in axes))
    rest = match[2].strip().strip(",").strip()
    if rest:
        order = _ORDER.search(rest)
        listed = _ordered(order[1]) if order else None
        if listed is None or len(listed) != len(ids):
            return None
        ids = listed
    wanted = [(name, int(pre or 1), int(size) if size else None) for name, pre, size in _AXIS_REF.findall(match[3])]
    digits: list[tuple[str, int, int]] = []  # every axis cut where a wanted part begins and ends
    for name, size in axes:
        cuts = {1, size}
        for axis, pre, part in wanted:
            if axis == name:
                cuts |= {pre, pre * (part or size // pre)}
        ordered = sorted(cuts)
        if any(b % a for a, b in itertools.pairwise(ordered)):
            return None
        digits += [(name, a, b // a) for a, b in itertools.pairwise(ordered)]
    names = {name for name, _ in axes}
    if not wanted or any(name not in names for name, _, _ in wanted):
        return None
    sizes = dict(axes)
    grouped = [
        place
        for name, pre, part in wanted
        for place, (axis, low, size) in enumerate(digits)
        if axis == name and pre <= low and low * size <= pre * (part or sizes[name] // pre)
    ]
    other = [place for place in range(len(digits)) if place not in grouped]
    grid = ids.reshape([size for _, _, size in digits]).transpose(other + grouped)
    return _rows(grid.reshape(-1, math.prod(digits[place][2] for place in grouped)))


def _ordered(text: str) -> np.ndarray | None:
    if text.startswith("["):
        if "T" in text and "<=" not in text:  # [4,2]T(1,0): what is transposed alone
            text = f"[{math.prod(_integers(text[1 : text.index(']')]))}]<={text}"
        match = _IOTA.match(text)
        grid = _iota(match) if match else np.arange(_integers(text[1:-1])[0])
        return None if grid is None else grid.reshape(-1)
    return np.array(_integers(text))


def _integers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part.strip())


def _rows(grid: np.ndarray) -> Groups | None:
    return tuple(map(tuple, grid.tolist())) if grid.ndim == 2 else None


@functools.lru_cache(maxsize=4096)
def axes_of_groups(groups: Groups, mesh: Mesh) -> Axes | None:
    """The mesh axes whose devices the groups join, in mesh order; None where they follow no axes.

    A part of an axis is written as Shardy writes it: `x:(2)2` is the part of size 2 below a part of size 2.

    >>> axes_of_groups(((0, 2), (1, 3)), Mesh.parse("x=2, y=2"))
    ('x',)
    >>> axes_of_groups(((0, 1), (2, 3)), Mesh.parse("x=4"))
    ('x:(2)2',)
    """
    sizes = [size for _, size in mesh.axes]
    if {device for group in groups for device in group} != set(range(mesh.size)) or sum(map(len, groups)) != mesh.size:
        return None
    if len({len(group) for group in groups}) > 1:
        return None
    if len(groups[0]) == 1:
        return ()
    first = next(group for group in groups if 0 in group)
    coordinates = np.array(np.unravel_index(sorted(first), sizes or [1])).T
    digits: list[int] = []
    joined: list[bool] = []
    labels: list[str] = []
    for (name, size), column in zip(mesh.axes, coordinates.T, strict=True):
        held = np.unique(column)
        count, stride = len(held), int(held[1]) if len(held) > 1 else size
        if count > 1 and (size % (count * stride) or not np.array_equal(held, np.arange(count) * stride)):
            return None
        if count == 1:
            digits, joined = [*digits, size], [*joined, False]
            continue
        before = size // (count * stride)
        digits += [before, count, stride]
        joined += [False, True, False]
        labels.append(name if count == size else f"{name}:({before}){count}")
    if math.prod(d for d, j in zip(digits, joined, strict=True) if j) != len(first):
        return None
    inside = [place for place, is_joined in enumerate(joined) if is_joined]
    outside = [place for place, is_joined in enumerate(joined) if not is_joined]
    expected = np.arange(mesh.size).reshape(digits).transpose(outside + inside).reshape(-1, len(first))
    if {frozenset(row) for row in expected.tolist()} != {frozenset(group) for group in groups}:
        return None
    return tuple(labels)


Pairs = tuple[tuple[int, int], ...]


@functools.lru_cache(maxsize=4096)
def parse_pairs(text: str) -> Pairs | None:
    """Read a permutation's pairs: `{{0,1},{1,0}}`."""
    rows = _listed(text.strip()) if text.strip().startswith("{{") else (() if text.strip() == "{}" else None)
    if rows is None or any(len(row) != 2 for row in rows):
        return None
    return tuple((row[0], row[1]) for row in rows)


@functools.lru_cache(maxsize=4096)
def axes_of_pairs(pairs: Pairs, mesh: Mesh) -> Axes | None:
    """The mesh axes along which a permutation moves shards, in mesh order; None where a device is not of the mesh.

    >>> axes_of_pairs(((0, 2), (2, 0), (1, 3), (3, 1)), Mesh.parse("x=2, y=2"))
    ('x',)
    """
    if not pairs:
        return ()
    ends = np.array(pairs)
    if ends.max() >= mesh.size or ends.min() < 0:
        return None
    shape = [size for _, size in mesh.axes] or [1]
    moved = np.array(np.unravel_index(ends[:, 0], shape)) != np.array(np.unravel_index(ends[:, 1], shape))
    return tuple(name for (name, _), along in zip(mesh.axes, moved, strict=True) if along.any())
