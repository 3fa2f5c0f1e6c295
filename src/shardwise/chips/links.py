"""How long a collective takes on links: ring, line, torus, switch, hierarchy and shared memory.

Formulas follow "How to Scale Your Model", chapters on sharding and on GPUs. V is the gathered bytes of a group, n its
devices, W the bandwidth of a link one way. Sizes are bytes of one device's shard, before and after.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, assert_never

from shardwise.chips import Hardware, Memory, Rate, Switch, Torus
from shardwise.chips.network import crossing, group_in_node, network_bytes, network_speed
from shardwise.layout import Axes
from shardwise.mesh import Mesh
from shardwise.steps import COLLECTIVES, CollectiveKind

Pricer = Callable[[float, float], float]
RING = 2  # links of a device that a ring fills, one for each direction


class Arithmetic(NamedTuple):
    """How prices are computed: on floats, or on quantities, which keep their formulas.

    `name(symbol, value, unit, *said)` gives the number back, or that letter for it.
    """

    name: Callable[..., float]
    longest: Callable[[float, float], float]
    total: Callable[[Iterable[float]], float]


FLOATS = Arithmetic(lambda symbol, value, unit="", *said: value, max, math.fsum)


def wire_bytes(kind: CollectiveKind, mesh: Mesh, axes: Axes, in_bytes: float, out_bytes: float) -> float:
    """The bytes that one device sends.

    >>> wire_bytes("all-reduce", Mesh.parse("x=4"), ("x",), 100, 100)
    150.0
    """
    n = mesh.extent(axes)
    match kind:
        case "all-gather":
            return out_bytes - in_bytes
        case "reduce-scatter":
            return in_bytes - out_bytes
        case "all-reduce":
            return 2 * in_bytes * (n - 1) / n
        case "all-to-all":
            return in_bytes * (n - 1) / n
        case "collective-permute":
            return in_bytes
        case _:
            assert_never(kind)


def collective_seconds(
    kind: CollectiveKind, hardware: Hardware, mesh: Mesh, axes: Axes, in_bytes: float, out_bytes: float
) -> float:
    """The modelled time of one collective over mesh axes.

    On a torus and behind a switch an all-reduce takes a reduce-scatter and an all-gather.

    >>> from shardwise.chips import hardware
    >>> mesh = Mesh.parse("x=16")
    >>> gather = collective_seconds("all-gather", hardware("tpu-v5e"), mesh, ("x",), 2**26, 2**30)
    >>> round(gather * 1e3, 2)                       # 2**30 bytes * 15/16 over two links of 4.5e10 bytes/s
    11.18
    """
    return pricer(kind, hardware, mesh, axes)(in_bytes, out_bytes)


def pricer(
    kind: CollectiveKind, hardware: Hardware, mesh: Mesh, axes: Axes, routes: Routes | None = None,
    arithmetic: Arithmetic = FLOATS,
) -> Pricer:  # fmt: skip
    """The time of one collective over mesh axes, as a function of the bytes of a shard before and after.

    On a torus `routes` says what each axis has of its links; by default `torus_routes` lays the mesh on it. Where the
    collective was measured, what it took stands in place of the links' figures.
    """
    if kind not in COLLECTIVES:
        raise AssertionError(f"unknown collective {kind}")
    axes = tuple(axis for axis in axes if mesh.axis_size(axis) > 1)
    if not axes:
        return lambda in_bytes, out_bytes: 0.0
    rate = measured_rate(kind, hardware, mesh, axes)
    if rate is not None:
        return _rated(kind, rate, mesh, axes, arithmetic)
    match hardware.links:
        case Torus() as torus:
            table = routes or torus_routes(torus, mesh, hardware.devices_per_chip)
            return _torus_pricer(kind, torus, hardware, axes, table, arithmetic)
        case Switch() as switch:
            return _switch_pricer(kind, switch, mesh, axes, arithmetic)
        case Memory() as memory:
            return _memory_pricer(kind, memory, mesh, mesh.size if kind == "collective-permute" else mesh.extent(axes))
        case _:
            assert_never(hardware.links)


@dataclass(frozen=True, slots=True)
class Route:
    """What a mesh axis has of a torus: bytes/s into a device over all its links, hops to the farthest, ring or not.

    Where it is known how it lies: `cores` says how many cores of each chip stand along it, `sides` how long those sides of
    the slice are that it fills, none where it takes a part of one, and `is_direct` whether its devices, and the last and the
    first, stand so many links apart as a power of two, in a line without a wraparound link; `folds` the same of a ring over
    every second device and back. Of an axis over several `slices` all others say what stands along it in each: `size` 1 where
    that is one device.
    """

    size: int
    bytes_per_s: float
    hops: int
    wraps: bool
    says: str
    cores: int = 1
    sides: tuple[int, ...] = ()
    is_direct: bool = False
    folds: bool = False
    slices: int = 1


Routes = Mapping[str, Route]


@functools.lru_cache(maxsize=256)
def torus_routes(torus: Torus, mesh: Mesh, devices_per_chip: int = 1) -> dict[str, Route]:
    """Lay the mesh's axes on the torus: each takes a dimension, a long one several, surplus ones share the last.

    Axes that share a dimension pass through each other's devices: one with stride s has 1/s of the bandwidth and
    s times the hops. The devices of a chip share its links.
    """
    link = torus.bytes_per_s.value / devices_per_chip
    longest, multiple = int(torus.longest.value), int(torus.wraps_at_multiple_of.value)
    axes = [(name, size) for name, size in mesh.axes if size > 1]
    wants = [max(1, math.ceil(math.log(size) / math.log(longest) - 1e-9)) for _, size in axes]
    free = int(torus.dimensions.value)
    routes: dict[str, Route] = {}
    shared: list[tuple[str, int]] = []
    for index, (name, size) in enumerate(axes):
        left = len(axes) - index - 1
        if shared or wants[index] > free or (free - wants[index] < 1 and left):
            shared.append((name, size))
            continue
        free -= wants[index]
        parts = _parts(size, wants[index], longest)
        rings = [part % multiple == 0 for part in parts]
        speed = sum(link * (2 if ring else 1) for ring in rings)
        hops = sum(part // 2 if ring else part - 1 for part, ring in zip(parts, rings, strict=True))
        shape = " x ".join(f"{'ring' if r else 'line'} of {p}" for p, r in zip(parts, rings, strict=True))
        routes[name] = Route(size, speed, hops, all(rings), f"{name} a {shape}")
    total = math.prod(size for _, size in shared)
    stride = total
    for position, (name, size) in enumerate(shared):
        stride //= size
        wraps = total % multiple == 0 and position == 0
        hops = (size // 2 if wraps else size - 1) * stride
        says = (
            f"{name} {size} devices, {stride} apart, in a shared dimension of {total}"
            if stride > 1
            else f"{name} a line of {size}"
        )
        routes[name] = Route(size, link * (2 if wraps else 1) / stride, hops, wraps, says)
    return routes


def ringed(
    table: Routes, axes: Axes, hardware: Hardware, links: int, per_chip: bool = False, around: bool = True
) -> dict[str, Route]:  # fmt: skip
    """The routes of a group's axes as a collective sees them that goes round rings, over so many links of a device.

    A ring through both cores of each chip passes each link once: it has all of the link, where two rings share it. One
    that fills two links goes round all chips of the group: half of them lie between the farthest two, unless the rings lie
    along its sides, one after the other (not `around`).

    Args:
        per_chip: whether the cores of a chip hand each other what arrives at one of them.
    """
    assert isinstance(hardware.links, Torus)
    chosen = {axis: table[axis] for axis in axes if axis in table and table[axis].size > 1}
    between = [route for route in chosen.values() if route.size > route.cores]  # others stay inside of a chip
    if not between:
        return dict(table)
    cores = math.prod(route.cores for route in chosen.values())
    chips = math.prod(route.size for route in chosen.values()) // cores
    most = links * hardware.links.bytes_per_s.value / hardware.devices_per_chip
    speed = cores * min(most, sum(route.bytes_per_s for route in between))
    hops = sum(route.hops for route in between)
    farthest = max(hops, chips // 2) if around and links <= RING else hops
    for place, (axis, route) in enumerate(chosen.items()):
        chosen[axis] = replace(
            route,
            size=route.size // route.cores if per_chip else route.size,
            bytes_per_s=speed / len(chosen),
            hops=0 if place else farthest,
        )
    return {**table, **chosen}


def _parts(size: int, dimensions: int, longest: int) -> list[int]:
    parts = []
    for _ in range(dimensions - 1):
        part = max(divisor for divisor in range(1, longest + 1) if size % divisor == 0)
        parts.append(part)
        size //= part
    return [*parts, size]


def _torus_pricer(
    kind: CollectiveKind, torus: Torus, hardware: Hardware, axes: Axes, table: Routes, arithmetic: Arithmetic
) -> Pricer:  # fmt: skip
    name, routes = arithmetic.name, [table[axis] for axis in axes if table[axis].bytes_per_s]
    slices = math.prod(table[axis].slices for axis in axes)
    if slices > 1:
        inside = {axis: replace(table[axis], slices=1) for axis in axes}
        return _sliced_pricer(kind, torus, hardware, axes, inside, slices, arithmetic)
    if not routes:
        return lambda in_bytes, out_bytes: 0.0
    hops = sum(route.hops for route in routes)
    latency = name("L", name("hop", torus.hop_seconds.value, "s") * hops, "s")
    match kind:
        case "all-to-all":
            # Half of the bytes cross the middle of each axis, half of those each way: a quarter of an all-gather.
            speeds = [name("W", route.bytes_per_s, "B/s", route.says) for route in routes]
            each = max(name("n", route.size, "", "devices") / 4 / speed for route, speed in zip(routes, speeds, strict=True))
        case "collective-permute":
            # A permuted shard shares each link with those that pass through: half of the hops, on average.
            crowd = name("c", max(1.0, hops / 2), "", "shards share a link")
            each = crowd * hardware.devices_per_chip / name("W", torus.bytes_per_s.value, "B/s", "a link")
        case "all-gather" | "reduce-scatter" | "all-reduce":
            n = name("n", math.prod(route.size for route in routes), "", "devices")
            each = (n - 1) / n / name("W", sum(route.bytes_per_s for route in routes), "B/s", *[route.says for route in routes])
    return _priced(kind, latency, each, arithmetic)


def _sliced_pricer(
    kind: CollectiveKind, torus: Torus, hardware: Hardware, axes: Axes, inside: Routes, slices: int, arithmetic: Arithmetic
) -> Pricer:  # fmt: skip
    """A collective over slices, as TPU compilers make it: gathered over the network first, and summed over it last.

    An all-to-all is one over the network. No figure tells how long the network takes to start.
    """
    name = arithmetic.name
    within = _torus_pricer(kind, torus, hardware, axes, inside, arithmetic)
    n = math.prod(inside[axis].size for axis in axes)
    speed = name("N", network_speed(hardware), "B/s", "out of a device to other slices")

    def slow(in_bytes: float, out_bytes: float) -> float:
        return network_bytes(kind, n, slices, in_bytes, out_bytes) / speed

    match kind:
        case "all-gather":
            return lambda in_bytes, out_bytes: slow(in_bytes, out_bytes) + within(in_bytes * slices, out_bytes)
        case "reduce-scatter":
            return lambda in_bytes, out_bytes: within(in_bytes, out_bytes * slices) + slow(in_bytes, out_bytes)
        case "all-reduce" | "collective-permute":
            return lambda in_bytes, out_bytes: within(in_bytes, out_bytes) + slow(in_bytes, out_bytes)
        case "all-to-all":
            return slow
        case _:
            assert_never(kind)


def sharing(hardware: Hardware, mesh: Mesh, axes: Axes, routes: Routes | None = None) -> tuple[int, int]:
    """How many devices of a group share a node, or a slice, and over how many of these it goes."""
    match hardware.links:
        case Torus():
            outside = math.prod(routes[axis].slices for axis in axes if axis in routes) if routes else 1
            return mesh.extent(axes) // outside, outside
        case Switch() as switch:
            inside = group_in_node(mesh, axes, int(switch.node_devices.value))
            return inside, mesh.extent(axes) // inside
        case Memory():
            return mesh.extent(axes), 1
        case _:
            assert_never(hardware.links)


def _switch_pricer(kind: CollectiveKind, switch: Switch, mesh: Mesh, axes: Axes, arithmetic: Arithmetic) -> Pricer:
    name, count = arithmetic.name, mesh.extent(axes)
    node = int(switch.node_devices.value)
    inside = group_in_node(mesh, axes, node)
    latency = name("L", name("hop", switch.hop_seconds.value, "s") * math.ceil(math.log2(count)), "s")
    egress = name("W", switch.bytes_per_s.value, "B/s", "out of a device")
    # Between nodes: a node's network is shared by all of its groups.
    network = name("W", switch.node_bytes_per_s.value * inside / min(node, mesh.size), "B/s", "its share of a node's network")
    n, d = name("n", count, "", "devices"), name("d", inside, "", "of them in a node")
    match kind:
        case "all-to-all":
            each = max((n - 1) / n / egress, d * (n - d) / n / network)
        case "collective-permute":
            each = max(1 / egress, d / network if count > inside else 0.0)
        case "all-gather" | "reduce-scatter" | "all-reduce":
            m = name("m", count // inside, "", "nodes")
            each = max((n - 1) / n / egress if inside > 1 else 0.0, (m - 1) / m / network)
    return _priced(kind, latency, each, arithmetic)


def _priced(kind: CollectiveKind, latency: float, each: float, arithmetic: Arithmetic) -> Pricer:
    """Seconds from constants: `each` for a byte that is gathered or, of other collectives, of a device's shard."""
    longest = arithmetic.longest
    match kind:
        case "all-gather":
            return lambda in_bytes, out_bytes: longest(latency, out_bytes * each)
        case "reduce-scatter" | "all-to-all":
            return lambda in_bytes, out_bytes: longest(latency, in_bytes * each)
        case "all-reduce":
            return lambda in_bytes, out_bytes: 2 * longest(latency, in_bytes * each)
        case "collective-permute":
            return lambda in_bytes, out_bytes: latency + in_bytes * each
        case _:
            assert_never(kind)


def measured_rate(kind: CollectiveKind, hardware: Hardware, mesh: Mesh, axes: Axes) -> Rate | None:
    """What a collective was measured to take over a group that lies like this one; None where none was.

    A group of another size, as far apart, stands for one that was not measured; behind a switch only within a node, as far as
    the measured one was, and across nodes as that was.
    """
    if not hardware.rates:
        return None
    count, apart = mesh.extent(axes), group_apart(mesh, axes)
    alike = [rate for rate in hardware.rates if rate.kind == kind and rate.apart == apart]
    if isinstance(hardware.links, Switch):
        node = int(hardware.links.node_devices.value)
        inside = group_in_node(mesh, axes, node) == count
        alike = [rate for rate in alike if (rate.devices * rate.apart <= node) == inside]
    return min(alike, key=lambda rate: abs(math.log(rate.devices / count)), default=None)


def group_apart(mesh: Mesh, axes: Axes) -> int:
    """How far apart in device order neighbours in a group are.

    >>> mesh = Mesh.parse("x=4, y=2")
    >>> group_apart(mesh, ("x",)), group_apart(mesh, ("y",)), group_apart(mesh, ("x", "y"))
    (2, 1, 1)
    """
    apart = 1
    for name, size in reversed(mesh.axes):
        if name in axes and size > 1:
            break
        apart *= size
    return apart


def _rated(kind: CollectiveKind, rate: Rate, mesh: Mesh, axes: Axes, arithmetic: Arithmetic) -> Pricer:
    start = arithmetic.name("L", rate.start_seconds.value, "s", "measured")
    speed = arithmetic.name("W", rate.bytes_per_s.value, "B/s", "out of a device, measured")
    return lambda in_bytes, out_bytes: start + wire_bytes(kind, mesh, axes, in_bytes, out_bytes) / speed


def _memory_pricer(kind: CollectiveKind, memory: Memory, mesh: Mesh, group: int) -> Pricer:
    """Of all devices at once; those of a `group` wait for each other (XLA's rendezvous; of a permute, all devices)."""
    launch = memory.launch_seconds.value * mesh.size + memory.rendezvous_seconds.value * group
    if kind in ("reduce-scatter", "all-reduce"):
        return lambda in_bytes, out_bytes: launch + memory_seconds(memory, mesh, in_bytes, out_bytes)
    return lambda in_bytes, out_bytes: launch + memory_seconds(memory, mesh, 0.0, out_bytes, memory.copied_bytes_per_s.value)


def memory_seconds(
    memory: Memory, mesh: Mesh, read_bytes: float, written_bytes: float, bytes_per_s: float | None = None
) -> float:  # fmt: skip
    """The time in which all devices together read and write, each so many bytes, in the memory that they share.

    Args:
        bytes_per_s: how fast is written what need not be mapped anew; by default as fast as is read.
    """
    fresh = written_bytes >= memory.fresh_from_bytes.value
    write_speed = memory.fresh_bytes_per_s.value if fresh else bytes_per_s or memory.bytes_per_s.value
    return mesh.size * (read_bytes / memory.bytes_per_s.value + written_bytes / write_speed)


def assumptions(hardware: Hardware, mesh: Mesh, routes: Routes | None = None) -> str:
    """Say in one sentence how the mesh is assumed to lie on the links, or known to with `routes`."""
    match hardware.links:
        case Torus() as torus:
            routes = routes or torus_routes(torus, mesh, hardware.devices_per_chip)
            said = "; ".join(route.says for route in routes.values()) or "one device"
            said = f"torus: {said}; links of {torus.bytes_per_s.value:.3g} bytes/s each way"
            if all(route.slices == 1 for route in routes.values()):
                return said
            return f"{said}; {network_speed(hardware):.3g} bytes/s out of a device to other slices, whose start no figure tells"
        case Switch() as switch:
            node = int(switch.node_devices.value)
            nodes = math.ceil(mesh.size / node)
            inside = f"{nodes} node{'s' if nodes > 1 else ''} of up to {node}, filled in device order"
            said = f"switch: {inside}; {switch.bytes_per_s.value:.3g} bytes/s out of a device"
            across = crossing(mesh, node)
            if not across:
                return said
            verb = "crosses" if len(across) == 1 else "cross"
            return f"{said}; {', '.join(across)} {verb} nodes, {switch.node_bytes_per_s.value:.3g} bytes/s out of one"
        case Memory():
            return "simulated devices share one host's cores and memory: work repeated on every device is paid every time"
        case _:
            assert_never(hardware.links)
