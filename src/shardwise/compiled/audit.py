"""An audit: what a compiled program holds, as one value that prints, judges, and is held against a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shardwise.chips import Hardware, hardware
from shardwise.chips.topology import Topology
from shardwise.compiled import certify, findings, table
from shardwise.compiled.facts import Collective, MemoryUse, Work
from shardwise.compiled.hlo import Module, Unread
from shardwise.compiled.reading import collectives
from shardwise.compiled.timeline import Timeline, timeline
from shardwise.errors import HardwareError
from shardwise.mesh import Mesh


@dataclass(frozen=True, slots=True)
class Audit:
    """What a compiled program holds: collectives, bytes, axes, source lines, what hides them, memory; printable.

    Attributes:
        name: of the function.
        target: what it was compiled for, as `v5e:2x4` or `cpu:8`.
        collectives: every one, in the order of the schedule.
        memory: what one device needs, in bytes, as the compiler says; None where only the text is known.
        work: the FLOPs of one device, and how often replicas repeat them.
        unread: what could not be read of the compiled text; nothing is dropped in silence.
        notes: what was assumed on the way, as arguments taken as replicated.
    """

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
    places: tuple[tuple[int, ...], ...] = field(default=(), repr=False)  # of each device of the mesh on the topology

    @property
    def total_wire_bytes(self) -> float:
        """What one device sends in one call."""
        return sum(collective.wire_bytes for collective in self.collectives)

    @property
    def findings(self) -> tuple[findings.Finding, ...]:
        """What stands out, and what to do about it."""
        return findings.findings(self)

    def timeline(self, on: str | Hardware | None = None) -> Timeline:
        """Replay the schedule: when compute and transfers run and what waits; modelled, not measured.

        Args:
            on: a hardware, by default the one that the program was compiled for.

        Raises:
            HardwareError: none is known.
        """
        raise NotImplementedError

    def assert_only(self, expected: Mapping[str, Any]) -> None:
        """Hold the program to exactly these collectives, as `{"all-gather": {"x": 1}}`; `{}` is none at all.

        Raises:
            AuditMismatchError: there are others, or fewer; each with its source line and bytes.
        """
        certify.assert_only(self, expected)

    def assert_matches(self, plan: Any) -> None:
        """The certificate: what was compiled is what was planned, in kind, axes, count and bytes.

        Args:
            plan: a plan (its best program), or one of its candidates with `plan` given as `(plan, candidate)`.

        Raises:
            AuditMismatchError: they differ; each difference on a line.
        """
        certify.assert_matches(self, plan)

    def assert_overlapped(self, kind: str | None = None, *, axes: Any = None, least: int | None = None) -> None:
        """Hold the program to hide its collectives behind products.

        Args:
            kind: only these, as `"collective-permute"`.
            axes: only those over these mesh axes.
            least: how many must be hidden, by default all.

        Raises:
            AuditMismatchError: fewer are; each one that is not, with its source line.
        """
        certify.assert_overlapped(self, kind, axes=axes, least=least)

    def assert_fits(self, on: str | Hardware | None = None) -> None:
        """Hold the program to the memory of a chip.

        Raises:
            AuditMismatchError: it needs more.
        """
        certify.assert_fits(self, on)

    def __str__(self) -> str:
        return table.table(self)


def chip_of(audit: Audit, on: str | Hardware | None) -> Hardware:
    """The hardware that is meant: the one named, or the one compiled for."""
    chosen = hardware(on) if on is not None else audit.hardware
    if chosen is None:
        raise HardwareError(f"{audit.target} is not in the catalogue: say which hardware to reckon with, as 'tpu-v5e'")
    return chosen


def audit_module(
    module: Module, *, name: str, target: str, mesh: Mesh, chip: Hardware | None, memory: MemoryUse | None = None,
    needed_flops: float | None = None, notes: tuple[str, ...] = (), topology: Topology | None = None,
    places: tuple[tuple[int, ...], ...] = (),
) -> Audit:  # fmt: skip
    """Read a module into an audit."""
    reading = collectives(module, mesh)
    raise NotImplementedError
