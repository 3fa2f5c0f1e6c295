"""A tree of parameters as a table: where each leaf lives, and what it takes of one device's memory and of all of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from shardwise import views
from shardwise.errors import ArrayError, counted
from shardwise.layout import Layout
from shardwise.mesh import Mesh
from shardwise.pictures.picture import Picture, Table
from shardwise.pictures.plain_text import text
from shardwise.units import bytes_text

MOST_LEAVES = 200


@dataclass(frozen=True, slots=True)
class Leaf:
    """One array of a tree: its path, layout, shape, what one device holds, and bytes of one device, of the array, of all.

    `on` names the devices that hold it, by mesh or number; it is empty where nothing says where the array lives.
    """

    path: str
    layout: str
    on: str
    dtype: str
    shape: tuple[int, ...]
    shard_shape: tuple[int, ...]
    device_bytes: int
    array_bytes: int
    held_bytes: int


@dataclass(frozen=True, slots=True)
class Parameters:
    """A tree of arrays, leaf by leaf; prints as a table, and draws itself in a notebook.

    Attributes:
        others: how many leaves are no arrays, and so are not in the table.
        most_device_bytes: what the fullest device holds of all leaves.
    """

    leaves: tuple[Leaf, ...]
    others: int
    most_device_bytes: int

    @property
    def array_bytes(self) -> int:
        """The bytes of all arrays, each counted once."""
        return sum(leaf.array_bytes for leaf in self.leaves)

    @property
    def held_bytes(self) -> int:
        """The bytes on all devices together, copies and all."""
        return sum(leaf.held_bytes for leaf in self.leaves)

    def picture(self) -> Picture:
        """The table, with its sums below."""
        shown = self.leaves[:MOST_LEAVES]
        rows = [
            (leaf.path, leaf.layout, leaf.on or "nowhere yet", f"{leaf.dtype}[{_by(leaf.shape)}]", f"[{_by(leaf.shard_shape)}]",
             bytes_text(leaf.device_bytes), bytes_text(leaf.array_bytes))
            for leaf in shown
        ]  # fmt: skip
        rows.append((
            f"{counted(len(self.leaves), 'array')} in all", "", "", "", "",
            bytes_text(self.most_device_bytes), bytes_text(self.array_bytes),
        ))  # fmt: skip
        head = ("parameter", "layout", "on", "array", "shard", "a device", "whole")
        notes = tuple(self._notes(len(shown)))
        said = f"{counted(len(self.leaves), 'array')}, {bytes_text(self.most_device_bytes)} on the fullest device"
        return Picture("Parameters", said, (Table("", head, tuple(rows), frozenset({5, 6}), notes),))

    def _notes(self, shown: int) -> Iterator[str]:
        if shown < len(self.leaves):
            rest = self.leaves[shown:]
            yield f"not shown: {len(rest)} more arrays of {bytes_text(sum(leaf.array_bytes for leaf in rest))}"
        if self.held_bytes > self.array_bytes > 0:
            times = self.held_bytes / self.array_bytes
            yield f"all devices together hold {bytes_text(self.held_bytes)}, {times:.3g} times the arrays: the rest is copies"
        if any(not leaf.on for leaf in self.leaves):
            yield "arrays of the host, and types without a sharding, take no device's memory yet"
        if self.others:
            verb = "leaf that is" if self.others == 1 else "leaves that are"
            yield f"left out: {self.others} {verb} no array"

    def __str__(self) -> str:
        return text(self.picture(), 160)

    _repr_svg_ = views.svg
    _repr_html_ = views.html


def parameters(tree: Any) -> Parameters:
    """Read a tree of arrays, of their types (`jax.ShapeDtypeStruct`), or of both.

    >>> table = parameters({"w": np.zeros((4, 2), np.float32), "step": 3})
    >>> table.array_bytes, table.others
    (32, 1)

    Raises:
        ArrayError: the tree holds no array.
    """
    leaves, held, others = [], Counter[tuple[int, ...] | str](), 0
    numbers: dict[Any, tuple[int, ...] | str] = {}
    for path, value in jax.tree_util.tree_leaves_with_path(tree):
        if not isinstance(value, jax.Array | jax.ShapeDtypeStruct | np.ndarray):
            others += 1
            continue
        where, sharding = jax.tree_util.keystr(path, simple=True, separator="."), getattr(value, "sharding", None)
        leaf = _leaf(where or "(itself)", value, sharding)
        leaves.append(leaf)
        if sharding is not None:
            held[_devices(sharding, numbers)] += leaf.device_bytes
    if not leaves:
        raise ArrayError(
            f"{type(tree).__name__} lives on no device: place it with sw.put, or give a JAX array, or a tree of them"
        )
    return Parameters(tuple(leaves), others, _fullest(held))


def _leaf(path: str, value: Any, sharding: Any) -> Leaf:
    shape = tuple(value.shape)
    shard = shape if sharding is None else tuple(sharding.shard_shape(shape))
    item = value.dtype.itemsize
    layout, on, copies = "", "", 0
    if isinstance(sharding, NamedSharding) and not sharding.mesh.empty:
        grid = Mesh.parse(sharding.mesh)
        layout = str(Layout.from_spec(sharding.spec, Layout.from_spec((None,) * len(shape)).names).on(grid))
        on, copies = str(grid), grid.size
    elif sharding is not None:
        ids = sorted(device.id for device in sharding.device_set)
        layout = (
            "[" + ", ".join(Layout.from_spec((None,) * len(shape)).names) + "]" if len(ids) == 1 else type(sharding).__name__
        )
        on, copies = (f"device {ids[0]}" if len(ids) == 1 else f"{len(ids)} devices"), len(ids)
    one = math.prod(shard) * item
    return Leaf(path, layout, on, value.dtype.name, shape, shard, one if copies else 0, math.prod(shape) * item, one * copies)


def _devices(sharding: Any, known: dict[Any, tuple[int, ...] | str]) -> tuple[int, ...] | str:
    """The devices of a sharding; of a mesh that has none, its axes."""
    mesh = getattr(sharding, "mesh", None)
    key = mesh if mesh is not None else frozenset(sharding.device_set)
    if key not in known:
        abstract = isinstance(mesh, jax.sharding.AbstractMesh)
        known[key] = str(Mesh.parse(mesh)) if abstract else tuple(sorted(device.id for device in sharding.device_set))
    return known[key]


def _fullest(held: Counter[tuple[int, ...] | str]) -> int:
    """The bytes of the device that holds the most; meshes without devices are each taken as devices of their own."""
    each: Counter[int] = Counter()
    most = 0
    for devices, count in held.items():
        if isinstance(devices, str):
            most = max(most, count)
        else:
            each.update(dict.fromkeys(devices, count))
    return max([most, *each.values()])


def _by(shape: tuple[int, ...]) -> str:
    return ",".join(map(str, shape))
