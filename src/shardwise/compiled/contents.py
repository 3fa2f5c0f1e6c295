"""What a compiled program holds, as one plain value. `Audit` judges it, and is the one that users are given."""

from __future__ import annotations

from dataclasses import dataclass, field

from shardwise.chips import Hardware
from shardwise.chips import hardware as catalogue
from shardwise.chips.placing import Site
from shardwise.chips.topology import Topology
from shardwise.compiled.facts import Argument, Collective, MemoryUse, Work
from shardwise.compiled.reshapes import Reshape
from shardwise.compiled.text.hlo import Module, Unread
from shardwise.compiled.uneven import Uneven
from shardwise.errors import HardwareError
from shardwise.mesh import Mesh


@dataclass(frozen=True, slots=True)
class Contents:
    """The facts of one compiled program; `Audit` says what each is."""

    name: str
    target: str
    mesh: Mesh
    hardware: Hardware | None
    module: Module = field(repr=False)
    collectives: tuple[Collective, ...]
    memory: MemoryUse | None
    work: Work
    unread: tuple[Unread, ...] = ()
    notes: tuple[str, ...] = ()
    topology: Topology | None = None
    site: Site | None = field(default=None, repr=False)
    uneven: tuple[Uneven, ...] = ()
    arguments: tuple[Argument, ...] = field(default=(), repr=False)
    reshapes: tuple[Reshape, ...] = field(default=(), repr=False)
    compile_seconds: float | None = field(default=None, repr=False, compare=False)

    @property
    def total_wire_bytes(self) -> float:
        """What one device sends in one call."""
        return sum(collective.wire_bytes for collective in self.collectives)

    @property
    def room(self) -> float | None:
        """The memory of one device that was compiled for, in bytes; None where its hardware is not known."""
        return None if self.hardware is None else self.hardware.memory_bytes.value / self.hardware.devices_per_chip

    @property
    def fits(self) -> bool | None:
        """Whether the program's memory fits a device; None where one of them is not known."""
        return None if self.memory is None or self.room is None else self.memory.peak <= self.room

    @property
    def total_network_bytes(self) -> float:
        """What of it leaves its node, or its slice."""
        return sum(collective.network_bytes for collective in self.collectives)


def chip_of(held: Contents, name: str | Hardware | None) -> Hardware:
    """The hardware that is meant: the one named, or the one compiled for."""
    chosen = catalogue(name) if name is not None else held.hardware
    if chosen is None:
        raise HardwareError(f"{held.target} is not in the catalogue: say which hardware to estimate with, as 'tpu-v5e'")
    return chosen
