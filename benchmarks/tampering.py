"""Compiled texts that were tampered with: one collective added, gone, larger, of another dtype, or among other devices."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import numpy as np

from shardwise.compiled.text.groups import Groups, parse_groups, parse_pairs
from shardwise.compiled.text.walk import KINDS
from shardwise.mesh import Mesh

COLLECTIVE = re.compile(
    r"^(?P<head>\s+(?:ROOT )?%)(?P<name>\S+) = (?P<shape>\([^=]*?\)|\S+) "
    rf"(?P<kind>(?:{'|'.join(KINDS)})(?:-start)?)\(%(?P<operand>[^\s,)]+)"
)
PARAMETER = re.compile(r"^\s+%(?P<name>\S+) = (?P<shape>[a-z]\w*\[[\d,]*\])\S* parameter\(0\)")
GROUPS = re.compile(r"replica_groups=(\{\{.*?\}\}|\[[^ ]*?\](?=, )|mesh\[.*?\] \{.*?\})")
PAIRS = re.compile(r"source_target_pairs=(\{\{.*?\}\})")
WIDEST = {"f": "f64", "b": "f64", "s": "s64", "u": "u64", "c": "c128", "p": "u64"}  # by a dtype's first letter, as XLA names it

Lines = list[str]
Tamper = Callable[[Lines, int, re.Match[str], Mesh], Lines]


def tampered(text: str, mesh: Mesh) -> Iterator[tuple[str, str]]:
    """Every way to tamper with the first collective of a text, by name; where it has none, one that is added."""
    lines = text.split("\n")
    found = next(((at, match) for at, line in enumerate(lines) if (match := COLLECTIVE.match(line))), None)
    if found is None:
        yield "inserted", "\n".join(inserted(lines, mesh))
    else:
        for how in TAMPER:
            yield how.__name__, "\n".join(how(lines, *found, mesh))


def added(lines: Lines, at: int, match: re.Match[str], _: Mesh) -> Lines:
    copy = lines[at].replace(f"%{match['name']} =", f"%{match['name']}.again =").replace("ROOT ", "")
    return [*lines[: at + 1 if "ROOT" not in lines[at] else at], copy, *lines[at + 1 if "ROOT" not in lines[at] else at :]]


def removed(lines: Lines, at: int, match: re.Match[str], _: Mesh) -> Lines:
    gone = lines[at].replace(f" {match['kind']}(", " bitcast(", 1)
    return [*lines[:at], gone, *lines[at + 1 :]]


def widened(lines: Lines, at: int, match: re.Match[str], _: Mesh) -> Lines:
    """Of twice as many elements."""
    dtype, dims = _operand(lines, match["operand"])
    return _taking(lines, at, match, f"{dtype}[{','.join(map(str, [2 * (dims or [1])[0], *dims[1:]]))}] broadcast")


def retyped(lines: Lines, at: int, match: re.Match[str], _: Mesh) -> Lines:
    """Of the same elements in the widest dtype of their kind."""
    dtype, dims = _operand(lines, match["operand"])
    wide = _taking(lines, at, match, f"{WIDEST[dtype[0]]}[{','.join(map(str, dims))}] convert")
    return [
        line.replace(f"{dtype}[", f"{WIDEST[dtype[0]]}[", 1) if match["name"] in line.split(" = ")[0] else line for line in wide
    ]


def elsewhere(lines: Lines, at: int, match: re.Match[str], mesh: Mesh) -> Lines:
    """Over other axes, or a part of one; a permute between two devices alone, and one way."""
    if match["kind"].startswith("collective-permute"):
        pairs = PAIRS.search(lines[at])
        assert pairs is not None
        moving = [pair for pair in parse_pairs(pairs[1]) or () if pair[0] != pair[1]]
        other = "{{0,1},{1,0}}" if sorted(moving) != [(0, 1), (1, 0)] else "{{0,1}}"
        changed = PAIRS.sub(f"source_target_pairs={other}", lines[at])
    else:
        spelt = GROUPS.search(lines[at])
        assert spelt is not None
        have = _sets(parse_groups(spelt[1], mesh.size) or ())
        other = next(groups for groups in _groupings(mesh) if _sets(groups) != have)
        listed = ",".join("{" + ",".join(map(str, group)) + "}" for group in other)
        changed = GROUPS.sub(f"replica_groups={{{listed}}}", lines[at])
    assert changed != lines[at]
    return [*lines[:at], changed, *lines[at + 1 :]]


def inserted(lines: Lines, mesh: Mesh) -> Lines:
    """A program that sends nothing, with an all-reduce of its first argument over all devices."""
    entry = next(at for at, line in enumerate(lines) if line.startswith("ENTRY"))
    at, match = next((at, match) for at in range(entry, len(lines)) if (match := PARAMETER.match(lines[at])))
    groups = ",".join(map(str, range(mesh.size)))
    extra = f"  %extra = {match['shape']} all-reduce(%{match['name']}), replica_groups={{{{{groups}}}}}, to_apply=%add"
    return [*lines[: at + 1], extra, *lines[at + 1 :]]


TAMPER: list[Tamper] = [added, removed, widened, retyped, elsewhere]


def _operand(lines: Lines, name: str) -> tuple[str, list[int]]:
    made = next(line for line in lines if re.match(rf"\s+(ROOT )?%{re.escape(name)} = ", line))
    shape = re.search(r" = \(?(\w+)\[([\d,]*)\]", made)
    assert shape is not None
    return shape[1], [int(size) for size in shape[2].split(",") if size]


def _taking(lines: Lines, at: int, match: re.Match[str], made: str) -> Lines:
    """The collective takes what is made of its operand instead."""
    extra = f"  %other.{at} = {made}(%{match['operand']})"
    return [*lines[:at], extra, lines[at].replace(f"(%{match['operand']}", f"(%other.{at}", 1), *lines[at + 1 :]]


def _groupings(mesh: Mesh) -> Iterator[Groups]:
    """Devices along each axis together, halves of all, and every device alone."""
    ids = np.arange(mesh.size).reshape([size for _, size in mesh.axes])
    for place, (_, size) in enumerate(mesh.axes):
        if size > 1:
            yield tuple(map(tuple, np.moveaxis(ids, place, -1).reshape(-1, size).tolist()))
    if mesh.size % 2 == 0:
        yield tuple(map(tuple, ids.reshape(2, -1).tolist()))
    yield tuple((device,) for device in range(mesh.size))


def _sets(groups: Groups) -> set[frozenset[int]]:
    return set(map(frozenset, groups))
