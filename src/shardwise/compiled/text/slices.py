"""A program over several slices: the module is that of one slice, and what crosses them leaves it as sends to the host.

`xla_megascale_runtime` carries them over the data centre's network. Their targets name chips of all slices, from 100000 on in
the first, 200000 in the second, ...; the module's own collectives number the partitions of a slice.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from shardwise.chips.network import network_bytes
from shardwise.chips.placing import Site, sliced
from shardwise.chips.topology import Topology
from shardwise.compiled.facts import priced_as
from shardwise.compiled.text.groups import Groups
from shardwise.compiled.text.hlo import Computation, Instruction
from shardwise.layout import Axes
from shardwise.mesh import Mesh
from shardwise.steps import CollectiveKind

_HANDLER = '_xla_host_transfer_handler_name="xla_megascale_runtime"'
_RENDEZVOUS = re.compile(r'_xla_host_transfer_rendezvous="([^"]*)"')
_TYPE = re.compile(r'_xla_megascale_transfer_type="([^"]*)"')
_TARGET = re.compile(r"_xla_megascale_target=(\"[^\"]*\"|\{\{[^=]*\}\})")
_SAME = re.compile(r"\{([\d,]+)\}x\{(\d+):(\d+)\}$")
_SLICE = 100_000  # chips of slice k, counted from 1, begin at k times this
_KINDS: dict[str, CollectiveKind] = {
    "ALL_GATHER": "all-gather", "ALL_REDUCE": "all-reduce", "REDUCE_SCATTER": "reduce-scatter",
    "ALL_TO_ALL": "all-to-all", "ONE_TO_ONE": "collective-permute",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Crossing:
    """A collective between slices: its kind, the groups (or pairs) of chips as they are named, and what waits for it."""

    kind: CollectiveKind
    groups: Groups
    received: Instruction


def crosses(instruction: Instruction) -> bool:
    """Whether an instruction sends to other slices."""
    return instruction.opcode == "send" and _HANDLER in instruction.attributes


def crossing(instruction: Instruction, home: Computation) -> Crossing | None:
    """What a send to other slices is part of; None where its spelling is not known."""
    kind, target, rendezvous = (_first(pattern, instruction) for pattern in (_TYPE, _TARGET, _RENDEZVOUS))
    groups = parse_target(target)
    received = next((i for i in home.instructions if i.opcode == "recv" and _first(_RENDEZVOUS, i) == rendezvous), None)
    done = next((i for i in home.instructions if received and i.opcode == "recv-done" and received.name in i.operands), None)
    if kind not in _KINDS or groups is None or done is None:
        return None
    return Crossing(_KINDS[kind], groups, done)


def _first(pattern: re.Pattern[str], instruction: Instruction) -> str:
    match = pattern.search(instruction.attributes)
    return match[1] if match else ""


def parse_target(text: str) -> Groups | None:
    """Groups of chips, or pairs, from a target; None where the spelling is not known.

    >>> parse_target('"{1,2}x{0:1}"')
    ((100000, 200000), (100001, 200001))
    >>> parse_target("{{100000,200000},{100001,200001}}") == parse_target('"{1,2}x{0:1}"')
    True
    >>> parse_target("{{100000->200000},{200000->100000}}")
    ((100000, 200000), (200000, 100000))
    """
    text = text.strip('"')
    if match := _SAME.match(text):
        slices = [int(part) for part in match[1].split(",")]
        return tuple(tuple(_SLICE * number + chip for number in slices) for chip in range(int(match[2]), int(match[3]) + 1))
    if not (text.startswith("{{") and text.endswith("}}")):
        return None
    try:
        return tuple(tuple(int(part) for part in re.split(r",|->", group)) for group in text[2:-2].split("},{"))
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class Numbering:
    """The numbers that the devices of a mesh over several slices have in a module, and in what crosses them.

    Attributes:
        partitions: of each slice, the device of the mesh that each partition is.
        chips: the device of the mesh that a target names.
    """

    partitions: tuple[tuple[int, ...], ...]
    chips: dict[int, int]

    @property
    def slice_of(self) -> dict[int, int]:
        """The slice of each device of the mesh."""
        return {device: number for number, devices in enumerate(self.partitions) for device in devices}

    def everywhere(self, groups: Groups, only: int | None = None) -> Groups:
        """The groups of a module, whose partitions stand for as many devices as there are slices, as devices of the mesh.

        Args:
            only: the one slice that has these groups, by default all have them.
        """
        slices = self.partitions if only is None else self.partitions[only : only + 1]
        return tuple(tuple(devices[member] for member in group) for devices in slices for group in groups)

    def named(self, groups: Groups) -> Groups | None:
        """The groups of a target as devices of the mesh; None where one is not of it."""
        try:
            return tuple(tuple(self.chips[member] for member in group) for group in groups)
        except KeyError:
            return None


def network_sent(kind: str, groups: Groups, held: float, place: Mapping[int, int]) -> float:
    """The bytes that one device sends out of its node or slice, of a collective; devices of no place stand alone.

    >>> nodes = {0: 0, 1: 0, 2: 1, 3: 1}
    >>> network_sent("all-gather", ((0, 1, 2, 3),), 100.0, nodes), network_sent("all-gather", ((0, 1), (2, 3)), 100.0, nodes)
    (100.0, 0.0)
    """
    if kind == "collective-permute":
        return held if any(place.get(source, ~source) != place.get(target, ~target) for source, target in groups) else 0.0
    group = max(groups, key=len, default=())
    inside = max(Counter(place.get(device, ~device) for device in group).values(), default=1)
    gathered = held * len(group) if kind == "all-gather" else held
    return network_bytes(priced_as(kind), inside, len(group) // inside, held, gathered) if len(group) > inside else 0.0


def levels(topology: Topology | None, mesh: Mesh, axes: Axes) -> tuple[tuple[Axes, int], tuple[Axes, int]]:
    """What of some axes goes over slices, and over how many; and what stays within them, and among how many devices.

    >>> levels(Topology.parse("v5e:2x4*2"), Mesh.parse("x=8, y=2"), ("x", "y"))
    ((('x:(1)2',), 2), (('x:(2)4', 'y'), 8))
    """
    if topology is None or topology.slices == 1:
        return ((), 1), (axes, mesh.extent(axes))
    across, inside = sliced(topology, mesh)
    outer, inner = [], []
    for axis in axes:
        count, here = across.axis_size(axis), inside.axis_size(axis)
        outer += [axis if here == 1 else f"{axis}:(1){count}"] if count > 1 else []
        inner += [axis if count == 1 else f"{axis}:({count}){here}"] if here > 1 else []
    return (tuple(outer), across.extent(axes)), (tuple(inner), inside.extent(axes))


def numbering(site: Site) -> Numbering:
    """The numbers of a mesh's devices over several slices.

    >>> from shardwise.chips.placing import mesh_order
    >>> from shardwise.chips.topology import Topology
    >>> from shardwise.mesh import Mesh
    >>> two = Topology.parse("v5e:2x2*2")
    >>> numbers = numbering(Site(two, mesh_order(two, Mesh.parse("s=2, x=4"))))
    >>> numbers.everywhere(((0, 1),)), numbers.named(((100000, 200000),))
    (((0, 1), (4, 5)), ((0, 4),))
    """
    slices = sorted({position[-1] for position in site.positions})
    partitions = tuple(
        tuple(device for device, position in enumerate(site.positions) if position[-1] == number) for number in slices
    )
    cores, chips = site.topology.cores_per_chip, dict[int, int]()
    for device, (*place, core, number) in enumerate(site.positions):
        chip, side = 0, 1
        for at, size in zip(place, site.topology.shape, strict=True):  # the first side goes fastest
            chip, side = chip + at * side, side * size
        chips[_SLICE * (number + 1) + chip * cores + core] = device
    return Numbering(partitions, chips)
