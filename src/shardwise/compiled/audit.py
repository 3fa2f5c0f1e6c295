"""An audit: what a compiled program holds, as one value that prints, judges, and is held against a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from shardwise import views
from shardwise.chips import Hardware, Switch
from shardwise.chips.placing import Site
from shardwise.chips.topology import Topology
from shardwise.compiled import certify
from shardwise.compiled.contents import Contents, chip_of
from shardwise.compiled.facts import Argument, Collective, MemoryUse, Work
from shardwise.compiled.findings import Finding, findings
from shardwise.compiled.replaying.modelled import timeline
from shardwise.compiled.replaying.work import flops_per_device, silent_kernels
from shardwise.compiled.reshapes import Reshape
from shardwise.compiled.stepwise import Stepwise, stepwise
from shardwise.compiled.text.hlo import read
from shardwise.compiled.text.reading import collectives
from shardwise.compiled.text.slices import network_sent
from shardwise.compiled.uneven import Uneven
from shardwise.mesh import Mesh
from shardwise.schedule.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Audit(Contents):
    """What a compiled program holds: collectives, bytes, axes, source lines, what overlaps them, memory; printable.

    Attributes:
        name: of the function.
        target: what it was compiled for, as `v5e:2x4` or `cpu:8`.
        collectives: every one, in the order of the schedule.
        memory: what one device needs, in bytes, as the compiler says; None where only the text is known.
        work: the FLOPs of one device, and how often replicas repeat them.
        unread: what could not be read of the compiled text; nothing is dropped in silence.
        notes: what was assumed on the way, as arguments taken as replicated.
        uneven: layouts that the function asks for and that its sizes do not allow (see `uneven`).
        arguments: what the compiled program takes, in its order, by the names of the function's parameters.
        reshapes: those that the function asks for.
        compile_seconds: of a processor, over all threads of the compiler; None where only the text is known.
    """

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What stands out, with the way out; each kind once for a line, or once for all where its lines are many."""
        return findings(self)

    def timeline(self, hardware: str | Hardware | None = None) -> Timeline:
        """Replay the schedule: when compute and transfers run and what waits; modelled, not measured.

        Args:
            hardware: a name of `sw.hardware.names()`, by default what the program was compiled for.

        Raises:
            HardwareError: none is known.
        """
        chip = chip_of(self, hardware)
        site = self.site if chip == self.hardware else None
        return timeline(self.module, self.collectives, chip, self.mesh, name=f"{self.name} on {self.target}", site=site)

    def assert_only(self, expected: Mapping[str, Any]) -> None:
        """Hold the program to exactly these collectives, as `{"all-gather": {"x": 1}}`; `{}` is none at all.

        Raises:
            AuditMismatchError: there are others, or fewer; each with its source line and bytes.
        """
        certify.assert_only(self, expected)

    def assert_matches(self, plan: Any) -> None:
        """The certificate: what was compiled is what was planned, collective by collective.

        Each has its kind, its axes, the elements that a device sends, their dtype, and of a permute who sends to whom. What a
        compiler wraps counts as what it is: collectives joined into one or run in a loop; on TPUs complex numbers in two
        parts, a vector gathered by a sum of zeros, a reduce-scatter as an all-reduce of which each keeps its part (two
        findings say what is sent more); on a host 16-bit numbers that its compiler widens before it sends.

        Args:
            plan: a plan (its best program), or one of its candidates with `plan` given as `(plan, candidate)`.

        Raises:
            AuditMismatchError: they differ; each difference on a line.
        """
        certify.assert_matches(self, plan)

    def against(self, plan: Any, hardware: str | Hardware | None = None) -> Stepwise:
        """The plan's events beside the compiled ones, step by step: matmuls, transfers, waits, and what no step asked for.

        Args:
            plan: the plan that was compiled (its best program), or one of its candidates, `(plan, candidate)`.
            hardware: as `timeline` takes it.

        Raises:
            ShardwiseError: it is no plan; HardwareError: no hardware is known.
        """
        from shardwise.compiled.expected import chosen  # imports JAX, which pictures of audits do not need

        _, candidate = chosen(plan)
        return stepwise(candidate.timeline(), self.timeline(hardware), candidate.program.steps)

    def assert_overlapped(self, kind: str | None = None, *, axes: Any = None, least: int | None = None) -> None:
        """Assert that the program overlaps its collectives with matmuls.

        Args:
            kind: only these, as `"collective-permute"`.
            axes: only those over these mesh axes.
            least: how many must be overlapped, by default all.

        Raises:
            AuditMismatchError: fewer are; each one that is not, with its source line.
        """
        certify.assert_overlapped(self, kind, axes=axes, least=least)

    def assert_fits(self, hardware: str | Hardware | None = None) -> None:
        """Hold the program to the memory of a chip.

        Raises:
            AuditMismatchError: it needs more.
        """
        certify.assert_fits(self, hardware)

    __str__ = views.text
    _repr_html_ = views.html


def audit_text(
    text: str, *, name: str, target: str, mesh: Mesh, hardware: Hardware | None, memory: MemoryUse | None = None,
    needed: float | None = None, notes: tuple[str, ...] = (), topology: Topology | None = None,
    site: Site | None = None, uneven: tuple[Uneven, ...] = (),
    arguments: tuple[Argument, ...] = (), reshapes: tuple[Reshape, ...] = (), compile_seconds: float | None = None,
) -> Audit:  # fmt: skip
    """Read a compiled text into an audit.

    Args:
        needed: the FLOPs that the function asks for, over all devices (`needed.needed_flops`).

    Raises:
        CompiledTextError: the text is not that of a compiled module.
    """
    module = read(text)
    reading = collectives(module, mesh, site)
    found = reading.collectives
    if hardware is not None and isinstance(hardware.links, Switch):
        node = int(hardware.links.node_devices.value) if topology is None else topology.shape[-1]
        found = tuple(replace(each, network_bytes=_leaving_nodes(each, node)) for each in found)
    devices = module.devices * (1 if topology is None else topology.slices)
    work = Work(flops_per_device(module, reading.visits), devices, needed, silent_kernels(module))
    notes = (*notes, *reading.notes)
    return Audit(
        name, target, mesh, hardware, module, found, memory, work, reading.unread, notes, topology, site,
        uneven, arguments, reshapes, compile_seconds,
    )  # fmt: skip


def _leaving_nodes(collective: Collective, node: int) -> float:
    """What one device sends out of its node, nodes being filled in device order."""
    place = {device: device // node for group in collective.groups for device in group}
    once = network_sent(collective.kind, collective.groups, collective.held_bytes, place)
    return once * (1 if collective.trips is None else collective.trips)
