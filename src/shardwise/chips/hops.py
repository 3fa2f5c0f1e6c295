"""One step of a ring, in which every device sends to its neighbour: how long it takes, and what runs meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from shardwise.chips import Hardware, Memory, Switch, Torus
from shardwise.chips.crowds import crowd_of, passes_both_ways
from shardwise.chips.links import FLOATS, Arithmetic, Route, Routes, measured_rate, pricer, torus_routes
from shardwise.chips.network import network_speed
from shardwise.chips.placing import Site
from shardwise.layout import Axes
from shardwise.mesh import Mesh, Sides, folded
from shardwise.steps import Way


@dataclass(frozen=True, slots=True)
class Hop:
    """One step of a ring, in which every device sends to its neighbour: seconds a byte, and latency.

    `both_ways`: whether what goes down the ring takes other links than what goes up; `asynchronous`: whether devices work
    meanwhile.
    """

    seconds_per_byte: float
    latency: float
    both_ways: bool
    asynchronous: bool = True

    def seconds(self, sent_bytes: float) -> float:
        return self.latency + sent_bytes * self.seconds_per_byte


def ring_hop(
    hardware: Hardware, mesh: Mesh, axes: Axes, routes: Routes | None = None, arithmetic: Arithmetic = FLOATS,
    site: Site | None = None,
) -> Hop:  # fmt: skip
    """What one step of a ring over mesh axes takes: the links on its path alone.

    With a `site`, which says on which chip each device is, its shards are followed link by link. Between the cores of a chip
    none is passed, so that a ring through both has the chip's links for itself.

    >>> from shardwise.chips import hardware
    >>> hop = ring_hop(hardware("tpu-v5e"), Mesh.parse("x=16"), ("x",))
    >>> hop.both_ways, round(hop.seconds(45e6) * 1e6)       # 45 MB over one link of 4.5e10 bytes/s, and a hop
    (True, 1001)
    >>> from shardwise.chips.placing import mesh_order
    >>> from shardwise.chips.topology import Topology
    >>> slice, mesh = Topology.parse("v7x:2x2x1"), Mesh.parse("x=8")
    >>> hop = ring_hop(hardware("tpu-v7x"), mesh, ("x",), site=Site(slice, mesh_order(slice, mesh)))
    >>> hop.both_ways, round(hop.seconds(45e6) * 1e6)       # one of 9e10 bytes/s, and two hops
    (True, 502)
    """
    name = arithmetic.name
    rate = measured_rate("collective-permute", hardware, mesh, axes)
    if rate is not None:
        speed = name("W", rate.bytes_per_s.value, "B/s", "out of a device, measured")
        return Hop(1 / speed, name("hop", rate.start_seconds.value, "s", "measured"), both_ways=False)
    match hardware.links:
        case Torus() as torus if site is not None and site.topology.slices == 1:
            return _placed_hop(torus, range(mesh.extent(axes)), axes, mesh, site, arithmetic)
        case Torus() as torus:
            table = routes or torus_routes(torus, mesh, hardware.devices_per_chip)
            link = torus.bytes_per_s.value / hardware.devices_per_chip
            found = [table[axis] for axis in axes if mesh.axis_size(axis) > 1]
            if any(route.slices > 1 for route in found):  # each step waits for the slowest
                return Hop(
                    1 / name("N", network_speed(hardware), "B/s", "out of a device to other slices"), 0.0, both_ways=False
                )
            closes = all(closes_to_a_ring(route, link) for route in found)
            strides = [max(1, route.hops // max(1, route.size // 2 if closes else route.size - 1)) for route in found]
            hops = max(strides, default=1) if closes else max((route.hops for route in found), default=1)
            latency = name("hop", torus.hop_seconds.value, "s") * hops
            return Hop(max(strides, default=1) / name("W", link, "B/s", "a link"), latency, both_ways=closes)
        case Switch() as switch:
            price = pricer("collective-permute", hardware, mesh, axes, routes, arithmetic)
            return Hop(price(2**30, 2**30) / 2**30, name("hop", switch.hop_seconds.value, "s"), both_ways=False)
        case Memory():
            price = pricer("collective-permute", hardware, mesh, axes)
            return Hop((price(2**20, 2**20) - price(0, 0)) / 2**20, price(0, 0), both_ways=False)
        case _:
            assert_never(hardware.links)


def folded_hop(
    hardware: Hardware, mesh: Mesh, axis: str, routes: Routes | None = None, arithmetic: Arithmetic = FLOATS,
    site: Site | None = None,
) -> Hop:  # fmt: skip
    """One step of a ring over every second device of a line and back over the others: two links, and each carries one shard.

    >>> from shardwise.chips import hardware
    >>> hop = folded_hop(hardware("tpu-v5e"), Mesh.parse("x=8"), "x")
    >>> round(hop.seconds(45e6) * 1e6)
    1002
    """
    torus = hardware.links
    assert isinstance(torus, Torus)
    if site is not None and site.topology.slices == 1:
        return _placed_hop(torus, folded(mesh.axis_size(axis)), (axis,), mesh, site, arithmetic)
    link = torus.bytes_per_s.value / hardware.devices_per_chip
    route = (routes or torus_routes(torus, mesh, hardware.devices_per_chip))[axis]
    apart = max(1, route.hops // max(1, route.size // 2 if closes_to_a_ring(route, link) else route.size - 1))
    latency = arithmetic.name("hop", torus.hop_seconds.value, "s") * (2 * apart)
    return Hop(apart / arithmetic.name("W", link, "B/s", "a link"), latency, both_ways=False)


def hop_of(
    way: Way, hardware: Hardware, mesh: Mesh, axes: Axes, routes: Routes | None, arithmetic: Arithmetic, site: Site | None
) -> Hop:  # fmt: skip
    """One step of what goes this way over mesh axes; along a side of a torus a link for each way carries one shard."""
    if isinstance(way, Sides):
        torus = hardware.links
        assert isinstance(torus, Torus)
        per_byte = 1 / arithmetic.name("W", torus.bytes_per_s.value, "B/s", "a link")
        return Hop(per_byte, arithmetic.name("hop", torus.hop_seconds.value, "s"), both_ways=True)
    if way == "folded":
        return folded_hop(hardware, mesh, axes[0], routes, arithmetic, site)
    return ring_hop(hardware, mesh, axes, routes, arithmetic, site)


def _placed_hop(
    torus: Torus, order: Sequence[int], axes: Axes, mesh: Mesh, site: Site, arithmetic: Arithmetic
) -> Hop:  # fmt: skip
    """One step of a ring that visits the positions along its axes in an order."""
    pairs = tuple(zip(order, (*order[1:], *order[:1]), strict=True))
    crowd, far = crowd_of(pairs, axes, mesh, site)
    latency = arithmetic.name("hop", torus.hop_seconds.value, "s") * far
    per_byte = crowd / arithmetic.name("W", torus.bytes_per_s.value, "B/s", "a link")
    return Hop(per_byte, latency, both_ways=passes_both_ways(pairs, axes, mesh, site))


def closes_to_a_ring(route: Route, link_bytes_per_s: float) -> bool:
    """Whether the last device of an axis is linked to its first.

    One that has two links into each device and does not wrap goes through several dimensions; a tour of a grid with
    an even side comes back to its start.
    """
    return route.wraps or (route.size % 2 == 0 and route.bytes_per_s >= 2 * link_bytes_per_s)
