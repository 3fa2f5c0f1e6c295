"""Assertions on an audit: only these collectives, those of the plan, hidden, within memory. Each says what differs, and where."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from shardwise.compiled.facts import Collective
from shardwise.errors import AuditMismatchError, ShardwiseError, counted
from shardwise.layout import Axes
from shardwise.mesh import Mesh
from shardwise.planning.explain import bytes_text
from shardwise.planning.plan import Candidate, Ranking
from shardwise.program import Einsum, Slice, kind

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


def assert_matches(audit: Audit, plan: Any) -> None:
    """See `Audit.assert_matches`."""
    _refuse_unread(audit)
    planned = planned_collectives(plan)
    compiled: dict[Key, list[Collective]] = defaultdict(list)
    for collective in audit.collectives:
        if collective.wire_bytes:
            compiled[collective.kind, collective.axes].append(collective)
    faults = []
    for key in [*planned, *(key for key in compiled if key not in planned)]:
        faults += _differences(key, planned.get(key, []), compiled.get(key, []))
    _fail(audit, "the compiled program is not the planned one", faults)


def _differences(key: Key, planned: list[float], compiled: list[Collective]) -> list[str]:
    count = sum((collective.trips or 1) * collective.arrays for collective in compiled)
    sent = sum(collective.wire_bytes for collective in compiled)
    same_bytes = sent == sum(planned)
    if same_bytes and all(collective.arrays == 1 and collective.trips == 1 for collective in compiled):
        same_bytes = sorted(planned) == sorted(collective.wire_bytes for collective in compiled)
    if count == len(planned) and same_bytes:
        return []
    head = f"{_said(key)}: {len(planned)} planned with {_bytes(sum(planned))}, {count} compiled with {_bytes(sent)}"
    return [head, *(f"    {line(collective)}" for collective in compiled)]


def planned_collectives(plan: Any) -> dict[Key, list[float]]:
    """The collectives of a plan's best program, or of one candidate as `(plan, candidate)`: the bytes that each sends.

    >>> import shardwise as sw
    >>> plan = sw.plan("A[I, J_x] · B[J_x, K] -> C[I, K]", sizes={"I": 8, "J": 8, "K": 8}, mesh="x=4", dtype="float32")
    >>> planned_collectives(plan)
    {('all-reduce', ('x',)): [384.0]}
    """
    ranking, candidate = plan if isinstance(plan, tuple) else (plan, None)
    if not isinstance(ranking, Ranking) or not (candidate is None or isinstance(candidate, Candidate)):
        raise ShardwiseError(
            f"assert_matches takes a plan of sw.plan, or (plan, candidate), and {type(ranking).__name__} is none"
        )
    chosen = candidate or ranking.best
    planned: dict[Key, list[float]] = defaultdict(list)
    for step, cost in zip(chosen.program.steps, chosen.estimate.steps, strict=True):
        if cost.wire_bytes and not isinstance(step, Einsum | Slice):
            axes = tuple(name for name, size in ranking.task.mesh.axes if name in step.axes and size > 1)
            planned[kind(step), axes].append(float(cost.wire_bytes))
    return dict(planned)


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
