"""What a collective occupies: the lanes of links that its bytes take, and for how long."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import assert_never

import numpy as np

from shardwise.chips import Hardware, Memory, Switch, Torus
from shardwise.chips.crowds import Loads, ends_of, link_loads, links_of, over_chips
from shardwise.chips.hops import closes_to_a_ring, ring_hop
from shardwise.chips.links import Pricer, Route, pricer, ringed, torus_routes
from shardwise.chips.network import network_speed
from shardwise.chips.placing import Site, in_one_slice, physical_routes, sliced
from shardwise.compiled.facts import Algorithm, Collective, priced_as
from shardwise.compiled.text.groups import axes_of_groups, axes_of_pairs
from shardwise.layout import Axes
from shardwise.mesh import Mesh
from shardwise.steps import CollectiveKind

Groups = tuple[tuple[int, ...], ...]

_PART = re.compile(r"(\w+):\((\d+)\)(\d+)$")
SHARED, NVLINK, NETWORK = "shared memory", "nvlink out", "network out"


@dataclass(frozen=True, slots=True)
class Traffic:
    """The lanes that one transfer keeps busy, and for how long; what had to be assumed of it.

    Of a permutation that is followed from chip to chip also the `links` by how many shards pass them (`links_of`).
    """

    lanes: tuple[str, ...]
    seconds: float
    assumed: str = ""
    links: tuple[int, ...] = ()


def traffic(
    collective: Collective, hardware: Hardware, mesh: Mesh, routes: Mapping[str, Route] | None = None, site: Site | None = None
) -> Traffic:  # fmt: skip
    """Where one trip of a collective goes, and how long it takes there.

    Args:
        routes: the physical routes of the mesh's axes, where they are known; else those of `torus_routes`.
        site: on which chip each device sits, where that is known; a permutation is then followed link by link.
    """
    if collective.network_bytes and isinstance(hardware.links, Torus):
        sent = collective.network_bytes / max(collective.trips or 1, 1)
        return Traffic((NETWORK,), sent / network_speed(hardware))
    if site is not None and site.topology.slices > 1:
        collective, mesh, routes, site = _in_one_slice(collective, mesh, site)
    axes, assumed = collective.axes, ""
    if collective.kind == "collective-permute" and collective.wire_bytes == 0:
        return Traffic((), 0.0)
    if not axes:
        if collective.group_size <= 1:
            return Traffic((), 0.0)
        axes = tuple(name for name, size in mesh.axes if size > 1)
        assumed = f"{collective.name} follows no axes of the mesh: estimated over all of them"
    whole = tuple(dict.fromkeys(axis.split(":")[0] for axis in axes))
    if len(whole) < len(axes):
        axes, assumed = whole, f"{collective.name} runs over several parts of one axis: estimated over all of it"
    if isinstance(hardware.links, Torus):
        table = dict(routes or torus_routes(hardware.links, mesh, hardware.devices_per_chip))
        if collective.kind == "collective-permute" and collective.axes:
            return _permute(collective, hardware.links, hardware.devices_per_chip, mesh, table, site)
        lanes = tuple(f"{axis.split(':')[0]}{way}" for axis in axes for way in "+-")
    else:
        lanes = _switched(collective, hardware, mesh)
    algorithm = collective.algorithm or Algorithm("")
    if not algorithm.known:
        assumed = assumed or f"the algorithm {algorithm.name} is not known: taken as one over all links of its axes"
    kind: CollectiveKind = "all-gather" if algorithm.whole else priced_as(collective.kind)
    in_bytes, out_bytes = _sizes(collective, kind)
    price, times = _pricer(kind, hardware, mesh, axes, routes, algorithm)
    return Traffic(lanes, price(in_bytes * times, out_bytes * times), assumed)


def _in_one_slice(collective: Collective, mesh: Mesh, site: Site) -> tuple[Collective, Mesh, dict[str, Route], Site]:
    """A collective inside of slices as that of the first alone, on the part of the mesh that stands there."""
    _, inside = sliced(site.topology, mesh)
    places = in_one_slice(site.positions)
    here = [device for device, place in enumerate(site.positions) if place[-1] == site.positions[0][-1]]
    number = {device: partition for partition, device in enumerate(here)}
    groups = tuple(tuple(number[device] for device in group) for group in collective.groups if group[0] in number)
    axes = axes_of_pairs(groups, inside) if collective.kind == "collective-permute" else axes_of_groups(groups, inside)  # type: ignore[arg-type]
    one = Site(site.topology.slice, places)
    return replace(collective, groups=groups, axes=axes or ()), inside, physical_routes(one.topology, places, inside), one


def remote_traffic(sent_bytes: float, hardware: Hardware, mesh: Mesh, routes: Mapping[str, Route] | None = None) -> Traffic:
    """Where the bytes go that a kernel sends by itself, and how long they take: to whom, no text says.

    Taken as a step of a ring: over one link, while all links of the mesh are kept busy.
    """
    axes = tuple(name for name, size in mesh.axes if size > 1)
    hop = ring_hop(hardware, mesh, axes[-1:], routes)
    assumed = f"it states that it sends {sent_bytes:.0f} bytes, not to whom: taken as sent over one link, and all as busy"
    match hardware.links:
        case Torus():
            lanes = tuple(f"{axis}{way}" for axis in axes for way in "+-")
        case Switch() as switch:
            lanes = (NVLINK, NETWORK) if mesh.size > int(switch.node_devices.value) else (NVLINK,)
        case Memory():
            lanes = (SHARED,)
        case _:
            assert_never(hardware.links)
    return Traffic(lanes, hop.seconds(sent_bytes), assumed)


def _sizes(collective: Collective, kind: CollectiveKind) -> tuple[float, float]:
    """The bytes of a device's shard before and after."""
    held, n = collective.held_bytes, max(collective.group_size, 1)
    if collective.kind == "collective-broadcast":
        return held / n, held
    return held, held * n if kind == "all-gather" else held / n if kind == "reduce-scatter" else held


def _pricer(
    kind: CollectiveKind, hardware: Hardware, mesh: Mesh, axes: Axes, routes: Mapping[str, Route] | None, algorithm: Algorithm
) -> tuple[Pricer, float]:
    """A price list over axes, parts of axes among them, and how many bytes of others pass for each of one's own."""
    times, table = 1.0, dict(routes) if routes else {}
    for axis in [axis for axis in axes if ":" in axis]:
        if isinstance(hardware.links, Torus):
            mesh, table, stride = _on_a_part(mesh, table, axis)
            times *= stride
        else:
            mesh = _cut(mesh, axis)
    plain = tuple(axis.split(":")[0] for axis in axes) if isinstance(hardware.links, Torus) else tuple(map(_label, axes))
    if algorithm.links is not None and isinstance(hardware.links, Torus):
        table = table or torus_routes(hardware.links, mesh, hardware.devices_per_chip)
        table = ringed(table, plain, hardware, algorithm.links, algorithm.per_chip, algorithm.around)
    return pricer(kind, hardware, mesh, plain, table or None), times


def _on_a_part(mesh: Mesh, table: dict[str, Route], axis: str) -> tuple[Mesh, dict[str, Route], int]:
    """The mesh as if a part of an axis were all of it; its devices stand `stride` apart and share the links between."""
    match = _PART.match(axis)
    assert match is not None
    name, before, part = match[1], int(match[2]), int(match[3])
    stride = mesh.axis_size(name) // (before * part)
    if name in table:
        route = table[name]
        half = route.bytes_per_s / 2 if route.wraps else route.bytes_per_s
        cores = min(route.cores, part) if stride == 1 else 1
        hops = (part - 1) * stride
        table = table | {name: replace(route, size=part, bytes_per_s=half, hops=hops, wraps=False, cores=cores)}
    return Mesh(tuple((axis, part if axis == name else size) for axis, size in mesh.axes)), table, stride


def _label(axis: str) -> str:
    return axis if ":" not in axis else axis.replace(":(", "_").replace(")", "_")


def _cut(mesh: Mesh, axis: str) -> Mesh:
    """The mesh with an axis cut where a part of it begins and ends."""
    match = _PART.match(axis)
    assert match is not None
    name, before, part = match[1], int(match[2]), int(match[3])
    cut: list[tuple[str, int]] = []
    for other, size in mesh.axes:
        if other != name:
            cut.append((other, size))
        else:
            cut += [(f"{name}_above", before), (_label(axis), part), (f"{name}_below", size // (before * part))]
    return Mesh(tuple(cut))


def _switched(collective: Collective, hardware: Hardware, mesh: Mesh) -> tuple[str, ...]:
    match hardware.links:
        case Switch() as switch:
            node = int(switch.node_devices.value)
            groups = collective.groups or (tuple(range(mesh.size)),)
            crosses = any(len({device // node for device in group}) > 1 for group in groups)
            return (NVLINK, NETWORK) if crosses else (NVLINK,)
        case Memory():
            return (SHARED,)
        case Torus():
            raise AssertionError("a torus has lanes of its axes")
        case _:
            assert_never(hardware.links)


def _permute(
    collective: Collective, torus: Torus, per_chip: int, mesh: Mesh, table: Mapping[str, Route], site: Site | None
) -> Traffic:  # fmt: skip
    """A permutation: each shard goes along its axes, and the link that most shards pass says how long.

    Where it is known on which chip each device sits, the shards go along one side of the torus after the other; else along
    the mesh's axes, as if each were a side.
    """
    link = torus.bytes_per_s.value / per_chip
    rings = tuple(name in table and closes_to_a_ring(table[name], link) for name in mesh.names)
    loads, far = _along_axes(collective.groups, mesh, rings)
    links = () if site is None else links_of(collective.groups, site)
    places = [(axis, mesh.names.index(axis)) for axis in collective.axes]
    lanes = tuple(f"{axis}{way}" for axis, place in places for way, load in zip("+-", loads[place], strict=True) if load)
    if site is not None:
        loads, far = over_chips(collective.groups, site)
        hops, worst, link = sum(far), max(1, *map(max, loads)), torus.bytes_per_s.value
    else:
        reaches = {axis: table[axis].size // 2 if rings[place] else table[axis].size - 1 for axis, place in places}
        # Devices of other axes stand between two of an axis.
        strides = {axis: max(1, table[axis].hops // max(reach, 1)) for axis, reach in reaches.items()}
        hops = sum(far[place] * strides[axis] for axis, place in places)
        worst = max(max(loads[place]) * strides[axis] for axis, place in places)
    return Traffic(lanes, torus.hop_seconds.value * hops + worst * collective.held_bytes / link, links=links)


@functools.lru_cache(maxsize=1024)
def _along_axes(pairs: Groups, mesh: Mesh, rings: tuple[bool, ...]) -> Loads:
    """The loads of a mesh's axes, as if each were a side of the torus."""
    sizes = tuple(size for _, size in mesh.axes)
    starts, goals = (np.array(np.unravel_index(ends, sizes)) for ends in ends_of(pairs))
    return link_loads(starts, goals, sizes, rings)
