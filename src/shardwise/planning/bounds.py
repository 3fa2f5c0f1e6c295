"""Lower bounds of the seconds of a stage's programs.

Einsums take at least what the cheapest order takes if nothing has to be moved. A change of layout takes at least the bytes
that a device lacks, over all the links that it has.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shardwise.layout import Axes
from shardwise.mesh import Mesh, flat_index
from shardwise.notation import Operand
from shardwise.planning.graph import State, state_of
from shardwise.planning.orders import Leaf, Node, Orders
from shardwise.planning.prices import Costs
from shardwise.planning.step_cost import einsum_flops

ToGo = tuple[Callable[[State], float], Callable[[State], float]]


@dataclass(frozen=True, slots=True)
class LowerBound:
    """A lower bound of the seconds of programs, whether matmuls overlap the transfers or not.

    Where one array changes its layout, `to_go` says of a layout what is left from there, and what it took to get there.
    """

    seconds: float = 0.0
    to_go: ToGo | None = None


def lower_bound_of(orders: Orders, result: Operand, sizes: Mapping[str, int], costs: Costs) -> LowerBound:
    """The lower bound of the programs that multiply in some orders."""
    root = orders.root
    if not isinstance(root, Leaf) or result.free:
        return LowerBound(_einsums_lower_bound(orders, sizes, costs))
    least, end = functools.partial(moving_lower_bound, costs, sizes, root.names), state_of(result.layout)
    return LowerBound(least(root.state, end), (lambda state: least(state, end), lambda state: least(root.state, state)))


def _einsums_lower_bound(orders: Orders, sizes: Mapping[str, int], costs: Costs) -> float:
    known: dict[Node, float] = {}
    for node in orders.values:
        if isinstance(node, Leaf):
            known[node] = 0.0
            continue
        known[node] = min(
            einsum_lower_bound([child.names for child in way], node.names, sizes, costs) + sum(known[child] for child in way)
            for way in node.ways
        )
    return known[orders.root]


def einsum_lower_bound(
    operands: Sequence[tuple[str, ...]], names: tuple[str, ...], sizes: Mapping[str, int], costs: Costs
) -> float:
    """The lower bound of an einsum, however it is split, in seconds: the whole of it, evenly over all devices."""
    devices = costs.mesh.size
    took = costs.item_bytes * sum(math.prod(sizes[dim] for dim in each) for each in operands)
    took = min(took, took * costs.made_item_bytes / costs.item_bytes)  # an operand may be a product
    made = costs.made_item_bytes * math.prod(sizes[dim] for dim in names)
    return costs.einsum(einsum_flops(operands, names, sizes) / devices, took / devices, made / devices)


def moving_lower_bound(costs: Costs, sizes: Mapping[str, int], names: tuple[str, ...], before: State, after: State) -> float:
    """The lower bound of the programs from one layout to another, in seconds.

    However it goes, some device must receive what it has not of its part of the result; and no collective brings a device
    more bytes a second than all its links do. Where partial sums are added up, it has nothing of its part yet:
    every element needs at least one of another device.

    >>> from shardwise.chips import hardware
    >>> from shardwise.chips.interconnect import Interconnect
    >>> costs = Costs(Interconnect(hardware("h100"), Mesh.parse("x=8")), "bfloat16")
    >>> one, all_ = ((("x",),), ()), (((),), ())
    >>> gathered = costs.collective("all-gather", ("x",), 2**27, 2**30)
    >>> moving_lower_bound(costs, {"I": 2**29}, ("I",), one, all_) == gathered
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
