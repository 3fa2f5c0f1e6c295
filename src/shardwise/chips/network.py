"""Nodes and slices, and the network between them: what of a group shares one, and what a device sends out of it."""

from __future__ import annotations

import functools
import math
from typing import assert_never

from shardwise.chips import Hardware
from shardwise.errors import HardwareError
from shardwise.layout import Axes
from shardwise.mesh import Mesh
from shardwise.steps import CollectiveKind


def network_bytes(kind: CollectiveKind, inside: int, outside: int, in_bytes: float, out_bytes: float) -> float:
    """The bytes that one device sends over the network, `inside` devices of its group sharing a node or slice of `outside`.

    They share what has to leave it: first what each has is put together there, or summed.

    >>> network_bytes("all-reduce", 8, 2, 800, 800), network_bytes("all-gather", 8, 2, 100, 1600)
    (100.0, 100.0)
    """
    others = (outside - 1) / outside
    match kind:
        case "all-gather":
            return out_bytes * others / inside
        case "reduce-scatter":
            return in_bytes * others / inside
        case "all-reduce":
            return 2 * in_bytes * others / inside
        case "all-to-all":
            return in_bytes * others
        case "collective-permute":
            return in_bytes if outside > 1 else 0.0
        case _:
            assert_never(kind)


def network_speed(hardware: Hardware) -> float:
    """What one device sends to other slices, in bytes/s.

    Raises:
        HardwareError: the catalogue has no figure of it.
    """
    speed = hardware.network_speed()
    if speed is None:
        raise HardwareError(
            f"hardware {hardware.name} has no figure for the network between slices: plan for one slice, or give a file with "
            "[network] bytes_per_s"
        )
    return speed


@functools.lru_cache(maxsize=1024)
def group_in_node(mesh: Mesh, axes: Axes, node_devices: int) -> int:
    """How many devices of a group share a node, nodes being filled in device order."""
    inside, stride = 1, 1
    for name, size in reversed(mesh.axes):
        room = max(1, node_devices // stride)
        if name in axes:
            inside *= math.gcd(size, room)
        stride *= size
    return inside


def crossing(mesh: Mesh, node_devices: int) -> Axes:
    """The axes along which devices of several nodes stand, nodes being filled in device order.

    >>> crossing(Mesh.parse("x=2, y=8"), 8), crossing(Mesh.parse("x=16"), 8), crossing(Mesh.parse("x=2, y=4"), 8)
    (('x',), ('x',), ())
    """
    return tuple(name for name, size in mesh.axes if size > 1 and group_in_node(mesh, (name,), node_devices) < size)
