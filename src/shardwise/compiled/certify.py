"""Assertions on an audit: only these collectives, those of the plan, hidden, within memory. Each says what differs."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardwise.compiled.facts import Collective
from shardwise.errors import AuditMismatchError, ShardwiseError, counted
from shardwise.layout import Axes
from shardwise.mesh import Mesh
from shardwise.planning.explain import bytes_text
from shardwise.planning.plan import Candidate, Ranking
from shardwise.planning.prices import ITEM_BYTES
from shardwise.planning.problem import Problem
from shardwise.planning.rings import gather_sends, scatter_sends
from shardwise.steps import (
    Automatic,
    CollectivePermute,
    Einsum,
    EinsumScatter,
    Fused,
    GatherEinsum,
    RotateEinsum,
    Slice,
    kind,
    touched,
)

if TYPE_CHECKING:
    from shardwise.compiled.audit import Audit

Key = tuple[str, Axes]


def assert_only(audit: Audit, expected: Mapping[str, Any]) -> None:
    """See `Audit.assert_only`."""
    _refuse_unread(audit)
    wanted = _wanted(expected, audit.mesh)
    found: dict[Key, list[Collective]] = defaultdict(list)
    for collective in audit.collectives:
        if collective.group_size > 1:
            loose = (collective.kind, ("*",))
            found[loose if loose in wanted else (collective.kind, collective.axes)].append(collective)
    faults = []
    for key in [*wanted, *(key for key in found if key not in wanted)]:
        have = sum(collective.trips or 1 for collective in found.get(key, ()))
        if have != wanted.get(key, 0):
            faults.append(f"{_said(key)}: {have} compiled, {wanted.get(key, 0)} allowed")
            faults += [f"    {line(collective)}" for collective in found.get(key, ())]
    _fail(audit, "other collectives than asserted", faults)


def _wanted(expected: Mapping[str, Any], mesh: Mesh) -> dict[Key, int]:
    wanted: dict[Key, int] = {}
    for name, counts in expected.items():
        for axes, count in counts.items() if isinstance(counts, Mapping) else [("*", counts)]:
            if isinstance(count, bool) or not isinstance(count, int) or count < 0:
                raise ShardwiseError(f"assert_only: {name} over {axes}: {count!r} is no count of collectives, as 1")
            wanted[name, ("*",) if axes == "*" else axes_given(axes, mesh)] = count
    return wanted


def axes_given(axes: Any, mesh: Mesh) -> Axes:
    """Axes as a user gives them, `"x"`, `"x, y"` or `("x", "y")`, in mesh order."""
    parts = [part.strip() for part in axes.split(",")] if isinstance(axes, str) else [str(part) for part in axes]
    names = [name for name in mesh.names for part in parts if part.split(":")[0] == name]
    unknown = [part for part in parts if part.split(":")[0] not in mesh.names]
    if unknown:
        raise ShardwiseError(f"the mesh {mesh} has no axis {', '.join(unknown)}")
    return tuple(sorted(parts, key=lambda part: names.index(part.split(":")[0])))


@dataclass(frozen=True, slots=True)
class Planned:
    """A collective of a plan: the bytes that one device sends, of elements of a dtype; of a permute how many devices send."""

    kind: str
    axes: Axes
    wire_bytes: float
    dtype: str
    senders: int = 0

    @property
    def elements(self) -> float:
        return self.wire_bytes / ITEM_BYTES[self.dtype]


def assert_matches(audit: Audit, plan: Any) -> None:
    """See `Audit.assert_matches`."""
    _refuse_unread(audit)
    planned: dict[Key, list[Planned]] = defaultdict(list)
    for step in planned_collectives(plan):
        planned[step.kind, step.axes].append(step)
    compiled: dict[Key, list[Collective]] = defaultdict(list)
    for collective in audit.collectives:
        if collective.wire_bytes:
            compiled[collective.kind, collective.axes].append(collective)
    faults = []
    for key in [*planned, *(key for key in compiled if key not in planned)]:
        faults += _differences(key, planned.get(key, []), compiled.get(key, []))
    _fail(audit, "the compiled program is not the planned one", faults)


def _differences(key: Key, planned: list[Planned], compiled: list[Collective]) -> list[str]:
    """What of one kind over the same axes is not as planned.

    Compilers may send fewer bits of each number than planned: with float32 products in one bfloat16 pass, TPU's round
    before they gather. That is no difference; more bits are.
    """
    count = sum((collective.trips or 1) * collective.arrays for collective in compiled)
    wider = [c for c in compiled if planned and _item_bytes(c.dtype) > max(ITEM_BYTES[step.dtype] for step in planned)]
    if count == len(planned) and not wider and _same_elements(planned, compiled) and _same_senders(planned, compiled):
        return []
    sent = sum(collective.wire_bytes for collective in compiled)
    bytes_planned = sum(step.wire_bytes for step in planned)
    head = f"{_said(key)}: {len(planned)} planned with {_bytes(bytes_planned)}, {count} compiled with {_bytes(sent)}"
    why = [f"    the compiler sends {c.dtype} where {planned[0].dtype} is planned" for c in wider[:1]]
    return [head, *why, *(f"    {line(collective)}" for collective in compiled)]


def _same_elements(planned: list[Planned], compiled: list[Collective]) -> bool:
    moved = [collective.wire_bytes / _item_bytes(collective.dtype) for collective in compiled]
    if all(collective.arrays == 1 and collective.trips == 1 for collective in compiled):
        return sorted(moved) == sorted(step.elements for step in planned)
    return sum(moved) == sum(step.elements for step in planned)


def _same_senders(planned: list[Planned], compiled: list[Collective]) -> bool:
    """Whether as many devices send as planned, in permutes."""
    if not planned or planned[0].kind != "collective-permute":
        return True
    sending = {sum(source != target for source, target in collective.groups) for collective in compiled}
    return sending == {step.senders for step in planned}


def _item_bytes(dtype: str) -> float:
    return ITEM_BYTES.get(dtype, math.inf)


def planned_collectives(plan: Any) -> list[Planned]:
    """The collectives of a plan's best program, or of one candidate as `(plan, candidate)`, that send anything.

    >>> import shardwise as sw
    >>> plan = sw.plan("A[I, J_x] · B[J_x, K] -> C[I, K]", sizes={"I": 8, "J": 8, "K": 8}, mesh="x=4", dtype="float32")
    >>> planned_collectives(plan)
    [Planned(kind='all-reduce', axes=('x',), wire_bytes=384.0, dtype='float32', senders=0)]
    """
    ranking, candidate = plan if isinstance(plan, tuple) and len(plan) == 2 else (plan, None)
    if not isinstance(ranking, Ranking) or not (candidate is None or isinstance(candidate, Candidate)):
        kind_given = type(ranking).__name__
        raise ShardwiseError(f"assert_matches takes a plan of sw.plan, or (plan, candidate), and {kind_given} is none")
    chosen, task = candidate or ranking.best, ranking.task
    planned: list[Planned] = []
    products: set[str] = set()
    for step, cost in zip(chosen.program.steps, chosen.estimate.steps, strict=True):
        if isinstance(step, Automatic):
            raise ShardwiseError("the compiler's own choice was never planned: there is nothing to hold it against")
        if isinstance(step, Fused):
            products.add(touched(step))
            planned += _ring_sends(step, cost.wire_bytes, task)
        elif isinstance(step, Einsum):
            products.add(step.result)
        elif cost.wire_bytes and not isinstance(step, Slice):
            axes = tuple(name for name, size in task.mesh.axes if name in step.axes and size > 1)
            dtype = (task.accumulated or task.dtype) if step.array in products else task.dtype
            senders = 0
            if isinstance(step, CollectivePermute):
                moving = sum(source != target for source, target in step.pairs)
                senders = moving * task.mesh.size // task.mesh.extent(step.axes)
            planned.append(Planned(kind(step), axes, float(cost.wire_bytes), dtype, senders))
    return planned


def _ring_sends(step: Fused, wire_bytes: float, task: Problem) -> Iterator[Planned]:
    """The permutes of a ring: on every hop each strand sends its part of a block."""
    if isinstance(step, RotateEinsum):
        raise ShardwiseError("a rotation's permutes are not held against the compiled ones yet: use assert_overlapped")
    moving = step.scatter if isinstance(step, EinsumScatter) else step.gather
    axes = tuple(name for name, size in task.mesh.axes if name in moving.axes and size > 1)
    n = task.mesh.extent(axes)
    dtype = task.dtype if isinstance(step, GatherEinsum) else (task.accumulated or task.dtype)
    sends = scatter_sends if isinstance(step, EinsumScatter) else gather_sends
    for share in sends(n, step.way, step.chunks):
        yield Planned("collective-permute", axes, share * wire_bytes / (n - 1), dtype, task.mesh.size)


def assert_overlapped(audit: Audit, kind: str | None, *, axes: Any, least: int | None) -> None:
    """See `Audit.assert_overlapped`."""
    over = None if axes is None else axes_given(axes, audit.mesh)
    chosen = [
        c for c in audit.collectives
        if c.wire_bytes and kind in (None, c.kind) and over in (None, c.axes)
    ]  # fmt: skip
    if not chosen:
        raise AuditMismatchError(f"{audit.name} on {audit.target}: there is no {kind or 'collective'} to be hidden")
    bare = [collective for collective in chosen if not collective.hidden_by]
    needed = len(chosen) if least is None else least
    if len(chosen) - len(bare) < needed:
        faults = [f"{len(chosen) - len(bare)} of {len(chosen)} are hidden behind products, {needed} asserted"]
        _fail(audit, "transfers that nothing hides", faults + [f"    {line(collective)}" for collective in bare])


def assert_fits(audit: Audit, on: Any) -> None:
    """See `Audit.assert_fits`."""
    from shardwise.compiled.audit import chip_of

    chip = chip_of(audit, on)
    if audit.memory is None:
        raise AuditMismatchError(f"{audit.name}: the compiler says nothing of its memory")
    have = chip.memory_bytes.value / chip.devices_per_chip
    if audit.memory.peak > have:
        parts = f"arguments {_bytes(audit.memory.arguments)}, outputs {_bytes(audit.memory.outputs)}, "
        parts += f"temporaries {_bytes(audit.memory.temporaries)}"
        faults = [f"{_bytes(audit.memory.peak)} needed ({parts}), {_bytes(have)} there on each {chip.title}"]
        _fail(audit, "a device has not enough memory", faults)


def line(collective: Collective) -> str:
    """One collective on a line: what, over what, how much, from where."""
    trips = "" if collective.trips == 1 else f", {collective.trips or 'unknown'} trips"
    shape = f"{collective.dtype}[{','.join(map(str, collective.shape))}]"
    said = f"{_said((collective.kind, collective.axes))} {shape}, {_bytes(collective.wire_bytes)}{trips}"
    return f"{said}, {collective.source}" + (" (nearby)" if collective.inferred else "")


def _said(key: Key) -> str:
    name, axes = key
    return name if axes == ("*",) else f"{name} over {', '.join(axes) or 'no axis that is known'}"


def _bytes(count: float) -> str:
    return bytes_text(count)


def _refuse_unread(audit: Audit) -> None:
    """What could not be read might be what is asserted not to be there."""
    if audit.unread:
        _fail(audit, f"{counted(len(audit.unread), 'thing')} could not be read", [str(unread) for unread in audit.unread])


def _fail(audit: Audit, what: str, faults: Iterable[str]) -> None:
    lines = list(faults)
    if lines:
        raise AuditMismatchError("\n".join([f"{audit.name} on {audit.target}: {what}", *(f"  {text}" for text in lines)]))
