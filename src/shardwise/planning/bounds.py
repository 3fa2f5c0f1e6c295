"""What no change of layout is faster than: the bytes that a device lacks, over all the links that it has."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping

import numpy as np

from shardwise.layout import Axes
from shardwise.mesh import Mesh, flat_index
from shardwise.planning.graph import State
from shardwise.planning.prices import Costs


def moving_floor(costs: Costs, sizes: Mapping[str, int], names: tuple[str, ...], before: State, after: State) -> float:
    """Seconds that no program from one layout to another is faster than.

    However it goes, some device must receive what it has not of its part of the result; and no collective brings a device
    more bytes a second than all its links do. Where partial sums are added up, it has nothing of its part yet:
    every element needs at least one of another device.

    >>> from shardwise.chips import hardware
    >>> from shardwise.chips.interconnect import Interconnect
    >>> costs = Costs(Interconnect(hardware("h100"), Mesh.parse("x=8")), "bfloat16")
    >>> one, all_ = ((("x",),), ()), (((),), ())
    >>> gathered = costs.collective("all-gather", ("x",), 2**27, 2**30)
    >>> moving_floor(costs, {"I": 2**29}, ("I",), one, all_) == gathered
    True
    """
    mesh = costs.mesh
    if mesh.size == 1:
        return 0.0
    part = costs.item_bytes * math.prod(sizes[name] // mesh.extent(axes) for name, axes in zip(names, after[0], strict=True))
    if set(before[1]) - set(after[1]):
        return part / costs.interconnect.most_bytes_per_s
    shares = [_shares(mesh, old, new) for old, new in zip(before[0], after[0], strict=True) if old]
    have = float(np.min(np.prod(np.stack(shares), 0))) if shares else 1.0
    return part * (1.0 - have) / costs.interconnect.most_bytes_per_s


@functools.lru_cache(maxsize=4096)
def _shares(mesh: Mesh, old: Axes, new: Axes) -> np.ndarray:
    """The share of its new part of one dimension that lies in its old part, for each device at a corner of the mesh.

    These stand for all: whichever of them lacks most, it must receive that.
    """
    one, other = 1 / mesh.extent(old), 1 / mesh.extent(new)
    corners = _corners(mesh)
    start, begin = flat_index(corners, old, mesh) * one, flat_index(corners, new, mesh) * other
    return np.maximum(0.0, np.minimum(start + one, begin + other) - np.maximum(start, begin)) / other


@functools.lru_cache(maxsize=64)
def _corners(mesh: Mesh) -> dict[str, np.ndarray]:
    """The positions of the devices at the corners of a mesh."""
    corners = Mesh(tuple((axis, min(size, 2)) for axis, size in mesh.axes)).positions()
    return {axis: along * (mesh.axis_size(axis) - 1) for axis, along in corners.items()}
