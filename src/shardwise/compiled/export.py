"""An audit's facts as plain dictionaries and lists, for JSON; the keys are stable."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from shardwise.compiled.facts import Collective
from shardwise.compiled.findings import Finding

if TYPE_CHECKING:
    from shardwise.compiled.audit import Audit


def facts(audit: Audit) -> dict[str, Any]:
    """The facts of an audit.

    Keys: `name`, `target`, `mesh` (axis to size), `hardware` (its name or None), `total_wire_bytes`, `collectives` (a list in
    the order of the schedule; see `compiled.facts.Collective`; `source_is_nearby` where the line is a neighbour's; `via` the
    line of the helper that `source` calls; `lines` those of all arrays that the compiler joined), `memory` (bytes of one device
    by name, or None), `work` (`flops_per_device`, `devices`, `needed`, `repeated`), `unread` (`line`, `text`, `why`), `notes`
    (texts), `arguments` (`name`, `shape`, `axes` or None) and `findings` (the worst first: `kind`, `what`, `advice`, `count`,
    `wire_bytes` and `memory_bytes` that need not be, `lines`; see `compiled.findings.Finding`). All bytes are those of one
    device in one call.
    """
    use, work = audit.memory, audit.work
    return {
        "name": audit.name,
        "target": audit.target,
        "mesh": dict(audit.mesh.axes),
        "hardware": None if audit.hardware is None else audit.hardware.name,
        "total_wire_bytes": audit.total_wire_bytes,
        "collectives": [_collective(each) for each in audit.collectives],
        "memory": None if use is None else {
            name: getattr(use, name) for name in ("peak", "arguments", "outputs", "temporaries", "aliased", "code", "host")
        },
        "work": {
            "flops_per_device": work.flops_per_device, "devices": work.devices, "needed": work.needed,
            "repeated": _finite(work.repeated),
        },
        "unread": [{"line": each.line, "text": each.text, "why": each.why} for each in audit.unread],
        "notes": list(audit.notes),
        "arguments": [
            {"name": each.name, "shape": list(each.shape), "axes": None if each.axes is None else list(each.axes)}
            for each in audit.arguments
        ],
        "findings": [_finding(each) for each in audit.findings],
    }  # fmt: skip


def _collective(each: Collective) -> dict[str, Any]:
    return {
        "kind": each.kind,
        "axes": list(each.axes),
        "wire_bytes": each.wire_bytes,
        "dtype": each.dtype,
        "shape": list(each.shape),
        "group_size": each.group_size,
        "source": each.source,
        "via": each.via,
        "lines": [str(line) for line in dict.fromkeys(each.lines or (each.line,))],
        "source_is_nearby": each.inferred,
        "op_name": each.op_name,
        "trips": each.trips,
        "asynchronous": each.asynchronous,
        "hidden_by": list(each.hidden_by),
    }


def _finding(each: Finding) -> dict[str, Any]:
    return {
        "kind": each.kind,
        "what": each.what,
        "advice": each.advice,
        "count": each.count,
        "wire_bytes": each.wire_bytes,
        "memory_bytes": each.memory_bytes,
        "lines": [str(line) for line in each.lines],
    }


def _finite(number: float | None) -> float | None:
    """JSON has no word for infinity."""
    return number if number is not None and math.isfinite(number) else None
