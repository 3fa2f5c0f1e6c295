"""Assertions on an audit: only these collectives, those of the plan, overlapped, within memory. Each says what differs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from shardwise.chips import Hardware, Torus
from shardwise.compiled.contents import Contents, chip_of
from shardwise.compiled.facts import Collective
from shardwise.compiled.text.slices import levels
from shardwise.errors import AuditMismatchError, ShardwiseError, counted
from shardwise.layout import Axes
from shardwise.mesh import Mesh
from shardwise.schedule.places import Pairs
from shardwise.units import bytes_text

if TYPE_CHECKING:
    from shardwise.compiled.expected import Planned

Key = tuple[str, Axes]
SHOWN = 8  # pairs of a permute


def assert_only(audit: Contents, expected: Mapping[str, Any]) -> None:
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


def assert_matches(audit: Contents, plan: Any) -> None:
    """See `Audit.assert_matches`."""
    _refuse_unread(audit)
    planned: dict[Key, list[Planned]] = defaultdict(list)
    from shardwise.compiled.expected import planned_collectives  # imports JAX, which pictures of audits do not need

    for step in planned_collectives(plan):
        planned[step.kind, step.axes].append(step)
    wanted = {key: Counter(move for step in steps for move in _asked(step, audit.hardware)) for key, steps in planned.items()}
    compiled: dict[Key, list[tuple[Move, Collective]]] = defaultdict(list)
    for collective in audit.collectives:
        if collective.wire_bytes:
            for kind, move in _moves(collective, audit.hardware, wanted):
                for key, part in _by_level(audit, kind, collective, move):
                    compiled[key].append((part, collective))
    faults = []
    for key in [*planned, *(key for key in compiled if key not in planned)]:
        differences = _unmatched(wanted.get(key, Counter()), [move for move, _ in compiled[key]], audit.hardware)
        if any(differences):
            faults += _said_differences(key, planned.get(key, []), [c for _, c in compiled[key]], *differences)
    _fail(audit, "the compiled program is not the planned one", faults)


def kept(audit: Contents, plan: Any) -> str:
    """What to say of a program that was compiled as planned: also what its compiler sends more, or less, in its own way."""
    from shardwise.compiled.expected import planned_collectives  # imports JAX, which pictures of audits do not need

    more = audit.total_wire_bytes - sum(step.wire_bytes for step in planned_collectives(plan))
    if not more:
        return "compiled as planned: the same collectives, axes and bytes"
    amount = f"{bytes_text(abs(more))} {'more' if more > 0 else 'less'}"
    return f"compiled as planned: the same collectives, axes and elements, which the compiler sends in its own way: {amount}"


def _said_differences(
    key: Key, planned: Sequence[Planned], compiled: Sequence[Collective], missing: Sequence[Move], other: Sequence[Move]
) -> Iterator[str]:
    """What of one kind over the same axes is not as planned: their number, elements, dtype, who sends to whom."""
    once = {(collective.computation, collective.name): collective for collective in compiled}
    sent = sum(collective.wire_bytes for collective in once.values())
    asked = sum(step.wire_bytes for step in planned)
    counts = f"{len(planned)} planned with {bytes_text(asked)}, {len(compiled)} compiled with {bytes_text(sent)}"
    yield f"{_said(key)}: {counts}"
    yield from (f"    planned, and not compiled: {move}" for move in missing)
    yield from (f"    compiled, and not planned: {move}" for move in other)
    yield from (f"    {line(collective)}" for collective in once.values())


@dataclass(frozen=True, slots=True)
class Move:
    """One array that a collective moves: the elements that one device holds before; of a permute who sends to whom."""

    elements: int
    dtype: str
    pairs: Pairs = ()

    def __str__(self) -> str:
        return f"{counted(self.elements, 'element')} of {self.dtype}" + (f" from {_listed(self.pairs)}" if self.pairs else "")


def _listed(pairs: Pairs) -> str:
    return ", ".join(f"{source} to {target}" for source, target in pairs[:SHOWN]) + (", ..." if len(pairs) > SHOWN else "")


PARTS = {"complex64": "float32", "complex128": "float64"}


def _asked(step: Planned, hardware: Hardware | None) -> list[Move]:
    """What a compiler is to move for a step: TPU's have no complex numbers, and move both parts of them."""
    if step.dtype in PARTS and _is_tpu(hardware):
        return [Move(step.elements, PARTS[step.dtype], step.pairs)] * 2
    return [Move(step.elements, step.dtype, step.pairs)]


def _moves(
    collective: Collective, hardware: Hardware | None, wanted: Mapping[Key, Counter[Move]]
) -> Iterator[tuple[str, Move]]:
    """What a collective moves in one call of the program, array by array and trip by trip, and as which kind it counts.

    TPU's compilers gather a vector by adding up zeros in which each device has laid its part, and make some reduce-scatters
    of an all-reduce of which each keeps its part: those count as what they do. Findings say what they send more.
    """
    kind, pairs = collective.kind, ()
    if kind == "collective-permute":
        pairs = tuple(sorted((pair[0], pair[1]) for pair in collective.groups if pair[0] != pair[1]))
    parts = collective.laid if collective.laid and _is_tpu(hardware) else (0,) * len(collective.held)
    sliced = collective.sliced or (False,) * len(collective.held)
    trips = collective.trips or 1
    for (dtype, elements), part, cut in zip(collective.held * trips, parts * trips, sliced * trips, strict=True):
        move = Move(elements, dtype, pairs)
        if part:
            yield "all-gather", Move(part, dtype)
        elif cut and _is_tpu(hardware) and move not in wanted.get((kind, collective.axes), ()):
            yield "reduce-scatter", move
        else:
            yield kind, move


def _by_level(audit: Contents, kind: str, collective: Collective, move: Move) -> Iterator[tuple[Key, Move]]:
    """A gather over slices and within them that is made at once counts as one over the network and one within each slice."""
    if kind == "all-gather" and collective.network_bytes and not any(":" in axis for axis in collective.axes):
        (outer, slices), (inner, devices) = levels(audit.topology, audit.mesh, collective.axes)
        if devices > 1:
            yield (kind, outer), move
            yield (kind, inner), replace(move, elements=move.elements * slices)
            return
    yield (kind, collective.axes), move


def _is_tpu(hardware: Hardware | None) -> bool:
    return hardware is not None and isinstance(hardware.links, Torus)


def _unmatched(planned: Counter[Move], compiled: Sequence[Move], hardware: Hardware | None) -> tuple[list[Move], list[Move]]:
    """The planned moves that no compiled one is, and the compiled ones that are no planned one."""
    missing, other = Counter(planned), Counter(compiled)
    missing, other = missing - other, other - missing
    for move, count in list(missing.items()):
        for dtype in _also_sent_as(move.dtype, hardware):
            there = replace(move, dtype=dtype)
            same = min(count, other[there])
            missing[move] -= same
            other[there] -= same
            count -= same
    return list(missing.elements()), list(other.elements())


def _also_sent_as(dtype: str, hardware: Hardware | None) -> tuple[str, ...]:
    """In which dtypes a compiler may send numbers of another without sending other numbers.

    With float32 matmuls in one bfloat16 pass, TPU's round before they send. A host has no 16-bit arithmetic: its
    compiler widens what is to be added or multiplied, and may do so before it is sent.
    """
    if hardware is None:
        return ()
    if hardware.shared:
        return ("float32",) if dtype in ("bfloat16", "float16") else ()
    return ("bfloat16",) if dtype == "float32" and _is_tpu(hardware) else ()


def assert_overlapped(audit: Contents, kind: str | None, *, axes: Any, least: int | None) -> None:
    """See `Audit.assert_overlapped`."""
    over = None if axes is None else axes_given(axes, audit.mesh)
    chosen = [
        c for c in audit.collectives
        if c.wire_bytes and kind in (None, c.kind) and over in (None, c.axes)
    ]  # fmt: skip
    if not chosen:
        raise AuditMismatchError(f"{audit.name} on {audit.target}: there is no {kind or 'collective'} to overlap")
    bare = [collective for collective in chosen if not collective.hidden_by]
    needed = len(chosen) if least is None else least
    if len(chosen) - len(bare) < needed:
        faults = [f"{len(chosen) - len(bare)} of {len(chosen)} are overlapped by matmuls, {needed} asserted"]
        _fail(audit, "exposed transfers", faults + [f"    {line(collective)}" for collective in bare])


def assert_fits(audit: Contents, on: Any) -> None:
    """See `Audit.assert_fits`."""
    chip = chip_of(audit, on)
    if audit.memory is None:
        raise AuditMismatchError(f"{audit.name}: the compiler says nothing of its memory")
    have = chip.memory_bytes.value / chip.devices_per_chip
    if audit.memory.peak > have:
        parts = f"arguments {bytes_text(audit.memory.arguments)}, outputs {bytes_text(audit.memory.outputs)}, "
        parts += f"temporaries {bytes_text(audit.memory.temporaries)}"
        faults = [f"{bytes_text(audit.memory.peak)} needed ({parts}), {bytes_text(have)} there on each {chip.title}"]
        _fail(audit, "a device has not enough memory", faults)


def line(collective: Collective) -> str:
    """One collective on a line: what, over what, how much, from where."""
    trips = "" if collective.trips == 1 else f", {collective.trips or 'unknown'} trips"
    shape = f"{collective.dtype}[{','.join(map(str, collective.shape))}]"
    said = f"{_said((collective.kind, collective.axes))} {shape}, {bytes_text(collective.wire_bytes)}{trips}"
    return f"{said}, {collective.source}" + (" (nearby)" if collective.inferred else "")


def _said(key: Key) -> str:
    name, axes = key
    return name if axes == ("*",) else f"{name} over {', '.join(axes) or 'no axis that is known'}"


def _refuse_unread(audit: Contents) -> None:
    """What could not be read might be what is asserted not to be there."""
    if audit.unread:
        _fail(audit, f"{counted(len(audit.unread), 'thing')} could not be read", [str(unread) for unread in audit.unread])


def _fail(audit: Contents, what: str, faults: Iterable[str]) -> None:
    lines = list(faults)
    if lines:
        raise AuditMismatchError("\n".join([f"{audit.name} on {audit.target}: {what}", *(f"  {text}" for text in lines)]))
