"""The interconnect of a mesh: what its axes have of a hardware's links, and how long what passes over them takes.

It knows neither sizes nor dtypes: one is kept for all problems on a mesh.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, replace

from shardwise.chips import Hardware, Memory, Switch, Torus
from shardwise.chips.algorithms import Ground, is_asynchronous, used_routes
from shardwise.chips.crowds import Pairs, crowd_of
from shardwise.chips.hops import Hop, hop_of
from shardwise.chips.links import FLOATS, Arithmetic, Pricer, Routes, pricer, sharing, torus_routes
from shardwise.chips.network import network_bytes
from shardwise.chips.placing import Position, Site, mesh_order, physical_routes
from shardwise.chips.topology import Topology
from shardwise.layout import Axes
from shardwise.mesh import Mesh
from shardwise.steps import CollectiveKind, Way

REMEMBERED = 32  # meshes on hardware; of thousands of devices one may take megabytes


@dataclass(frozen=True, slots=True, eq=False)
class Interconnect:
    """What collectives, permutes and rings over the axes of a mesh run on.

    >>> from shardwise.chips import hardware
    >>> links = Interconnect(hardware("tpu-v5e"), Mesh.parse("x=16"))
    >>> gathered = links.price("all-gather", ("x",))
    >>> round(gathered(2**26, 2**30) * 1e3, 2)       # milliseconds: 2**30 bytes * 15/16 over two links of 4.5e10 bytes/s
    11.18

    Args:
        routes: what the mesh's axes have of a torus's links, where that is known; by default as `torus_routes` lays them.
        shape: the chips along the sides of the slice, where the topology is known.
        site: on which chip of one slice each device sits, where that is known.
        arithmetic: what prices are computed with: floats, or quantities that keep their formulas (`planning.terms`).
    """

    hardware: Hardware
    mesh: Mesh
    routes: Routes | None = None
    shape: tuple[int, ...] | None = None
    site: Site | None = None
    arithmetic: Arithmetic = FLOATS
    ground: Ground | None = field(init=False, repr=False)  # what collectives run on, on a torus
    _prices: dict[tuple[str, Axes, bool, bool], Pricer] = field(init=False, default_factory=dict, repr=False)
    _hops: dict[tuple[Axes, Way], Hop] = field(init=False, default_factory=dict, repr=False)
    _shifts: dict[tuple[Axes, int], tuple[int, int]] = field(init=False, default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        ground = None
        if isinstance(torus := self.hardware.links, Torus):
            routes = self.routes or torus_routes(torus, self.mesh, self.hardware.devices_per_chip)
            ground = Ground(self.hardware, self.mesh, routes, self.shape)
        object.__setattr__(self, "ground", ground)

    def price(self, kind: CollectiveKind, axes: Axes, odd: bool = False, large: bool = False) -> Pricer:
        """The seconds of a collective over axes, from the bytes of a shard before and after.

        A chip's compiler takes other links where blocks are `odd`, or a gather is `large` (`used_routes`).
        """
        price = self._prices.get((kind, axes, odd, large))
        if price is None:
            links = None
            if self.ground is not None:
                compiled = self.hardware.compiler is not None
                links = used_routes(kind, axes, self.ground, odd, large) if compiled else self.ground.routes
            price = pricer(kind, self.hardware, self.mesh, axes, links, self.arithmetic)
            self._prices[kind, axes, odd, large] = price
        return price

    def permute(self, axes: Axes, pairs: Pairs, sent_bytes: float) -> float:
        """Seconds of a permutation, with the shards followed link by link where it is known which chip each device is on."""
        if self.site is None or not isinstance(self.hardware.links, Torus):
            return self.price("collective-permute", axes)(sent_bytes, sent_bytes)
        return self.over_links(*crowd_of(pairs, axes, self.mesh, self.site), sent_bytes, "shards share a link")

    def over_links(self, crowd: float, hops: int, sent_bytes: float, what: str) -> float:
        """Seconds in which so many shards pass the links that they share on a torus, over so many links."""
        links, name = self.hardware.links, self.arithmetic.name
        assert isinstance(links, Torus)
        latency = name("L", name("hop", links.hop_seconds.value, "s") * hops, "s")
        return latency + name("c", crowd, "", what) * sent_bytes / name("W", links.bytes_per_s.value, "B/s", "a link")

    def shift(self, axes: Axes, distance: int) -> tuple[int, int]:
        """How many blocks share a link, and how many links one passes, where each goes to the device so far behind it."""
        if self.site is None:
            return distance, distance
        known = self._shifts.get((axes, distance))
        if known is None:
            n = self.mesh.extent(axes)
            pairs = tuple((k, k + distance if k + distance < n else k) for k in range(n))
            known = self._shifts[axes, distance] = crowd_of(pairs, axes, self.mesh, self.site)
        return known

    def hop(self, axes: Axes, way: Way = "ring") -> Hop:
        """One step of a ring over axes."""
        key = axes, "ring" if self.ground is None or way == "bidirectional" else way
        if (hop := self._hops.get(key)) is None:
            hop = hop_of(key[1], self.hardware, self.mesh, axes, self.routes, self.arithmetic, self.site)
            if key[1] == "ring" and self.ground is not None and not is_asynchronous(axes, self.ground):
                hop = replace(hop, asynchronous=False)
            self._hops[key] = hop
        return hop

    def crosses(self, axes: Axes) -> bool:
        """Whether a group along axes goes over several nodes, or slices."""
        return sharing(self.hardware, self.mesh, axes, self.routes)[1] > 1

    def network_bytes(self, kind: CollectiveKind, axes: Axes, in_bytes: float, out_bytes: float) -> float:
        """Of what one device sends in a collective, the bytes that leave its node, or its slice."""
        inside, outside = sharing(self.hardware, self.mesh, axes, self.routes)
        return network_bytes(kind, inside, outside, in_bytes, out_bytes) if outside > 1 else 0.0

    @property
    def most_bytes_per_s(self) -> float:
        """What a device can receive at most over all its links together."""
        match self.hardware.links:
            case Torus():
                assert self.ground is not None
                routes = self.ground.routes.values()
                between = self.hardware.network_speed() if any(route.slices > 1 for route in routes) else None
                return sum(route.bytes_per_s for route in routes) * self.hardware.devices_per_chip + (between or 0.0)
            case Switch() as switch:
                return max(switch.bytes_per_s.value, switch.node_bytes_per_s.value)
            case Memory() as memory:
                fastest = (memory.bytes_per_s, memory.copied_bytes_per_s, memory.fresh_bytes_per_s)
                return max(figure.value for figure in fastest) / self.mesh.size


@functools.lru_cache(maxsize=REMEMBERED)
def interconnect_of(
    hardware: Hardware, mesh: Mesh, topology: Topology | None = None, positions: tuple[Position, ...] = ()
) -> Interconnect:
    """The interconnect of a mesh on a topology, where one is known: of its devices in `mesh_order`, or at these positions.

    >>> from shardwise.chips import hardware
    >>> links = interconnect_of(hardware("tpu-v5e"), Mesh.parse("x=8"), Topology.parse("v5e:2x4"))
    >>> links.routes["x"].says
    'x a line of 2 x line of 4'

    Raises:
        MeshError: there are more or fewer positions than the mesh has devices, or the mesh does not lie on the topology.
    """
    if topology is None or topology.kind != "tpu":
        return Interconnect(hardware, mesh, shape=None if topology is None else topology.shape)
    places = positions or mesh_order(topology, mesh)
    site = Site(topology, places) if topology.slices == 1 else None
    return Interconnect(hardware, mesh, physical_routes(topology, places, mesh), topology.shape, site)
