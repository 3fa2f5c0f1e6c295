"""From a module to its collectives: kind, axes, bytes on the wire, source line, trips, and what overlaps each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from shardwise.chips.placing import Site
from shardwise.compiled.facts import MADE_BY_A_PLAN, MADE_BY_THE_COMPILER, Collective, Line
from shardwise.compiled.text import shapes
from shardwise.compiled.text.flow import Flow, carries_on
from shardwise.compiled.text.groups import axes_of_groups, axes_of_pairs, parse_groups, parse_pairs
from shardwise.compiled.text.hlo import Computation, Instruction, Module, Unread
from shardwise.compiled.text.laying import laid, unpacked
from shardwise.compiled.text.slices import Crossing, Numbering, crosses, crossing, network_sent, numbering
from shardwise.compiled.text.sources import Sources, is_planners, metadata
from shardwise.compiled.text.stated import algorithm, communicates, stated_cost
from shardwise.compiled.text.uses import Graph, keeps_its_part
from shardwise.compiled.text.walk import KINDS, RUNS, WRAPS, Survey, Visit, inside, is_collective, survey, visits
from shardwise.layout import Axes
from shardwise.mesh import Mesh

POINT_TO_POINT = ("send", "recv")


@dataclass(frozen=True, slots=True)
class Reading:
    """The collectives of a module in the order of its schedule, all that could not be read, and what was walked.

    `notes` say how what not every device runs alike was counted.
    """

    collectives: tuple[Collective, ...]
    unread: tuple[Unread, ...]
    visits: tuple[Visit, ...]
    notes: tuple[str, ...] = ()


def collectives(module: Module, mesh: Mesh | None = None, site: Site | None = None) -> Reading:
    """Find every collective that the module's entry reaches.

    Wire bytes are what one device sends, of B bytes that it holds and n devices of a group: all-gather B (n-1),
    reduce-scatter and all-to-all B (n-1)/n, all-reduce 2 B (n-1)/n, permute B ("How to Scale Your Model", sharding). How
    many rows a ragged all-to-all sends is known at run time alone: all that it holds, evenly, are counted.

    >>> from shardwise.compiled.text.hlo import read
    >>> module = read('''HloModule jit_f, num_partitions=2
    ... ENTRY %main (p: f32[4]) -> f32[8] {
    ...   %p = f32[4]{0} parameter(0)
    ...   ROOT %g = f32[8]{0} all-gather(%p), replica_groups={{0,1}}, dimensions={0}
    ... }''')
    >>> [(c.kind, c.axes, c.wire_bytes) for c in collectives(module, Mesh.parse("x=2")).collectives]
    [('all-gather', ('x',), 16.0)]

    Args:
        site: where the mesh's devices stand, of a mesh over several slices: the module is then that of one of them.
    """
    numbers = numbering(site) if site is not None and site.topology.slices > 1 else None
    devices = module.devices * (1 if numbers is None else len(numbers.partitions))
    reader = _Reader(module, mesh if mesh is not None and mesh.size == devices else None, numbers)
    if mesh is not None and reader.mesh is None:
        why = f"the mesh {mesh} has {mesh.size} devices and the module {devices}: no axes are named"
        reader.unread.append(Unread(1, module.name, why))
    walked = tuple(visits(module, reader.survey, reader.unread))
    found, notes = _of_one_slice([(visit, tuple(reader.of(visit))) for visit in walked])
    reader.report_unreached({visit.computation.name for visit in walked})
    return Reading(found, (*module.unread, *reader.unread), walked, notes)


def _of_one_slice(held: Sequence[tuple[Visit, tuple[Collective, ...]]]) -> tuple[tuple[Collective, ...], tuple[str, ...]]:
    """What one device runs where each slice runs branches of its own: those of the slice that sends most in them."""
    sent: dict[int, float] = {}
    for visit, found in held:
        if visit.slice is not None and found:
            sent[visit.slice] = sent.get(visit.slice, 0.0) + sum(each.wire_bytes for each in found)
    most = max(sorted(sent), key=lambda number: sent[number], default=None)
    counted = tuple(each for visit, found in held if visit.slice in (None, most) for each in found)
    note = f"each slice runs branches of its own: those of slice {most} are counted, no other sends more in them"
    return counted, (note,) if sent else ()


@dataclass(frozen=True, slots=True)
class _Site:
    """A collective and where it stands: itself in `home`; in the schedule what runs it, and what waits for it."""

    collective: Instruction
    home: Computation
    runs: Instruction
    flow: Flow
    visit: Visit

    @property
    def computation(self) -> Computation:
        return self.visit.computation

    @property
    def fused(self) -> bool:
        return self.runs is not self.collective


class _Reader:
    def __init__(self, module: Module, mesh: Mesh | None, numbers: Numbering | None = None) -> None:
        self.module = module
        self.mesh = mesh
        self.numbers = numbers
        self.survey: Survey = survey(module)
        self.graph = Graph(module, self.survey)
        self.sources = Sources(module)
        self.unread: list[Unread] = []

    def of(self, visit: Visit) -> Iterator[Collective]:
        """The collectives of one computation of the schedule."""
        for instruction in visit.computation.instructions:
            if crosses(instruction) and (across := crossing(instruction, visit.computation)) is not None:
                yield self._crossing(instruction, across, visit)
                continue
            for home, found in self._held(visit.computation, instruction):
                yield self._collective(_Site(found, home, instruction, self.graph.flow(visit.computation.name), visit))

    def _held(self, computation: Computation, instruction: Instruction) -> Iterator[tuple[Computation, Instruction]]:
        """The collectives that an instruction of the schedule is, or wraps; each with the computation it stands in."""
        opcode = instruction.opcode
        if is_collective(opcode):
            yield computation, instruction
        elif opcode in WRAPS and instruction.called():
            if self.survey.talks(instruction) and not carries_on(self.module, instruction):
                for inner in inside(self.module, instruction):
                    yield from ((inner, found) for found in inner.instructions if is_collective(found.opcode))
        else:
            self._check_known(instruction)

    def _check_known(self, instruction: Instruction) -> None:
        opcode = instruction.opcode
        if opcode in POINT_TO_POINT and "is_host_transfer=true" not in instruction.attributes:
            self._cannot(instruction, "a point-to-point transfer, which is not counted as a collective")
        elif crosses(instruction):
            self._cannot(instruction, "a transfer between slices whose kind, devices or end cannot be read")
        elif communicates(instruction):
            cost = stated_cost(instruction)
            sent = f"to whom it sends {cost.remote_bytes:.0f} bytes" if cost and cost.remote_bytes else "what it sends"
            self._cannot(instruction, f"a kernel that communicates by itself: {sent} is not known")
        elif _may_be_collective(opcode):
            self._cannot(instruction, f"{opcode} is not known, and may be a collective")

    def report_unreached(self, reached: set[str]) -> None:
        """A collective in a computation that nothing known runs is not counted, and must not go unseen."""
        held = {name for name, c in self.module.computations.items() if any(is_collective(i.opcode) for i in c.instructions)}
        for name in reached:
            for instruction in self.module.computations[name].instructions:
                held -= {computation.name for computation in inside(self.module, instruction)}
        for name in sorted(held - reached):
            computation = self.module.computations[name]
            self.unread.append(Unread(computation.line, name, "it holds collectives, and nothing that is known runs it"))

    def _cannot(self, instruction: Instruction, why: str) -> None:
        self.unread.append(Unread(instruction.line, instruction.name, why))

    def _collective(self, site: _Site) -> Collective:
        instruction, flow, trips = site.collective, site.flow, site.visit.trips
        kind = instruction.opcode.removesuffix("-start")
        scattered = kind == "all-reduce" and site.fused and any(i.opcode == "dynamic-slice" for i in site.home.instructions)
        kind = "reduce-scatter" if scattered else kind
        groups, axes, size = self._groups(kind, instruction, site.visit.slice)
        closing = flow.closing(site.runs)
        starts = closing is not None or site.runs.opcode.endswith("-start")
        gives = self._arrays(instruction, [self._result(site, closing, scattered)])
        sent = self._sent(instruction)
        takes = self._arrays(instruction, [_shape_of(site.home, name) for name in sent])
        held = float(sum(array.bytes for array in takes))
        numbers = [array for name in sent if (array := unpacked(site.home, name)) is not None]
        opening = flow.opening(site.runs)
        overlapping = flow.matmuls_between(flow.places[opening.name], flow.places[closing.name]) if closing else ()
        line, op_name, inferred = self._source(site, opening, closing or site.runs)
        moved = _held(instruction, numbers, size)
        largest = max(gives or takes, key=lambda array: array.bytes, default=shapes.Array("?", (), 0))
        found = Collective(
            kind=kind,
            axes=axes,
            wire_bytes=_wire_bytes(kind, size, held, groups) * (1 if trips is None else trips),
            dtype=largest.dtype,
            shape=largest.dims,
            group_size=size,
            source=line.place,
            op_name=op_name,
            trips=trips,
            asynchronous=starts and '"is_sync":true' not in site.runs.attributes,
            hidden_by=overlapping if self.module.scheduled else (),
            held_bytes=held,
            name=opening.name,
            computation=flow.computation.name,
            end=(closing or site.runs).name,
            groups=groups,
            operands=flow.arrays(opening),
            held=moved,
            inferred=inferred,
            laid=self._laid(site, size) if kind == "all-reduce" else (),
            algorithm=algorithm(site.runs, instruction),
            via=line.via,
            lines=self._lines(site, opening, line, len(moved)),
        )
        return replace(found, sliced=keeps_its_part(self.graph, found)) if kind == "all-reduce" else found

    def _crossing(self, instruction: Instruction, across: Crossing, visit: Visit) -> Collective:
        """A collective between slices: it begins where the module hands its array to the host."""
        flow, kind, trips = self.graph.flow(visit.computation.name), across.kind, visit.trips
        groups = across.groups if self.numbers is None else self.numbers.named(across.groups)
        axes: Axes | None = ()
        if groups is not None and self.mesh is not None and self.numbers is not None:
            axes = (axes_of_pairs if kind == "collective-permute" else axes_of_groups)(groups, self.mesh)  # type: ignore[arg-type]
        if groups is None or axes is None:
            self._cannot(instruction, f"its groups follow no axes of the mesh: {str(across.groups)[:80]}")
        groups = groups or across.groups
        size = max(map(len, groups))
        takes = self._arrays(instruction, [_shape_of(visit.computation, name) for name in instruction.operands[:1]])
        gives = self._arrays(across.received, [across.received.shape]) or takes
        held = float(sum(array.bytes for array in takes))
        sent, runs = _wire_bytes(kind, size, held, groups), 1 if trips is None else trips
        slow = network_sent(kind, groups, held, {} if self.numbers is None else self.numbers.slice_of)
        starts, closing = flow.places[instruction.name], flow.places[across.received.name]
        here = _Site(instruction, visit.computation, instruction, flow, visit)
        line, op_name, inferred = self._source(here, instruction, across.received)
        largest = max(gives, key=lambda array: array.bytes, default=shapes.Array("?", (), 0))
        return Collective(
            kind=kind,
            axes=axes or (),
            wire_bytes=sent * runs,
            dtype=largest.dtype,
            shape=largest.dims,
            group_size=size,
            source=line.place,
            op_name=op_name,
            trips=trips,
            asynchronous=True,
            hidden_by=flow.matmuls_between(starts, closing) if self.module.scheduled else (),
            held_bytes=held,
            name=instruction.name,
            computation=flow.computation.name,
            end=across.received.name,
            groups=groups,
            operands=tuple(instruction.operands[:1]),
            held=tuple((array.dtype, array.elements) for array in takes),
            inferred=inferred,
            via=line.via,
            lines=(line,),
            network_bytes=slow * runs,
        )

    def _groups(self, kind: str, instruction: Instruction, only: int | None) -> tuple[tuple[tuple[int, ...], ...], Axes, int]:
        """The groups or pairs, the axes they follow, and how many devices take part together."""
        permutes = kind == "collective-permute"
        text = instruction.attribute("source_target_pairs" if permutes else "replica_groups")
        if text is None:
            text = "?" if permutes or "replica_groups" in instruction.attributes else "{}"
        groups = parse_pairs(text) if permutes else parse_groups(text, self.module.devices)
        if groups is None:
            self._cannot(instruction, f"its groups cannot be read: {text[:80]}")
            return (), (), self.module.devices
        if self.numbers is not None:
            groups = self.numbers.everywhere(groups, only if permutes else None)
        axes: Axes | None = ()
        if self.mesh is not None:
            axes = axes_of_pairs(groups, self.mesh) if permutes else axes_of_groups(groups, self.mesh)  # type: ignore[arg-type]
            if axes is None:
                self._cannot(instruction, f"its groups follow no axes of the mesh: {text[:80]}")
        if permutes:
            members = self.mesh.extent(axes) if self.mesh is not None and axes else len({d for pair in groups for d in pair})
            return groups, axes or (), members
        return groups, axes or (), max(map(len, groups), default=1)

    def _sent(self, instruction: Instruction) -> list[str]:
        """The names of the arrays that a collective moves; others say where and how much of it."""
        if instruction.attribute("slice_sizes") is not None:
            self._cannot(instruction, "it moves slices in place: how much of its arrays is not known")
        # Its rows, where they go to, then where the rows for each device begin, how many they are, and the same of what comes.
        return instruction.operands[:1] if instruction.opcode.startswith("ragged-all-to-all") else instruction.operands

    def _arrays(self, instruction: Instruction, texts: list[str | None]) -> list[shapes.Array]:
        found: list[shapes.Array] = []
        for text in texts:
            try:
                if text is None:
                    raise shapes.UnreadShapeError("an operand of it is not found")
                found += shapes.leaves(shapes.parse(text))
            except shapes.UnreadShapeError as error:
                self._cannot(instruction, f"its bytes are not known: {error}")
        return found

    def _result(self, site: _Site, closing: Instruction | None, scattered: bool) -> str:
        """The text of a collective's result: of an asynchronous one that of its end, of a fused scatter the fusion's."""
        if closing is not None and site.collective.opcode.endswith("-start"):
            return closing.shape
        return site.runs.shape if scattered else site.collective.shape

    def _source(self, site: _Site, opening: Instruction, closing: Instruction) -> tuple[Line, str, bool]:
        """The user's line, the operation's name, and whether the line is that of a neighbour in the data's flow."""
        own = (site.collective, site.runs, opening, closing)
        op_name = next((name for name in (metadata(i).get("op_name", "") for i in own) if name), "")
        for candidate in own:
            if (line := self.sources.line(candidate)) is not None:
                return line, op_name, False
        for candidate in (*site.flow.upwards(opening), *site.flow.downwards(closing), *reversed(site.visit.path)):
            if (line := self.sources.line(candidate)) is not None:
                return line, op_name or metadata(candidate).get("op_name", ""), True
        asked = next((frames[0] for candidate in own if (frames := self.sources.frames(candidate))), None)
        if asked is None:
            return Line(MADE_BY_THE_COMPILER), op_name, False
        return Line(MADE_BY_A_PLAN if is_planners(asked.file) else str(asked)), op_name, False

    def _lines(self, site: _Site, opening: Instruction, own: Line, arrays: int) -> tuple[Line, ...]:
        """Of each array that is moved the line that makes it: compilers join collectives, and keep one line of them."""
        operands = site.flow.arrays(opening)
        if arrays < 2 or len(operands) != arrays:
            return (own,) * arrays
        makers = [site.computation.by_name[name] for name in operands]
        found = [(maker, *site.flow.upwards(maker)) for maker in makers]
        return tuple(next(filter(None, map(self.sources.line, them)), own) for them in found)

    def _laid(self, site: _Site, size: int) -> tuple[int, ...]:
        """Of each array that an all-reduce adds up over so many devices, the elements that each lays into zeros; or 0."""
        parts = [laid(self.module, site.home, name) for name in site.collective.operands]
        wholes = [unpacked(site.home, name) for name in site.collective.operands]
        return tuple(
            part.elements if part is not None and whole is not None and whole.elements == size * part.elements else 0
            for part, whole in zip(parts, wholes, strict=True)
        )


def _may_be_collective(opcode: str) -> bool:
    """Whether an opcode that is not known sounds like one: the next compiler's collectives must not go unseen."""
    plain = re.sub(r"-(start|update|done)$", "", opcode)
    return plain not in (*KINDS, *RUNS) and any(
        word in plain for word in ("all-", "collective", "scatter-reduce", "reduce-scatter")
    )


def _wire_bytes(kind: str, n: int, held: float, groups: tuple[tuple[int, ...], ...]) -> float:
    """The bytes that one device sends, of the bytes that it holds before."""
    match kind:
        case "all-gather":
            return held * (n - 1)
        case "all-reduce":
            return 2 * held * (n - 1) / n
        case "reduce-scatter" | "all-to-all" | "ragged-all-to-all":
            return held * (n - 1) / n
        case "collective-permute":
            return held if any(pair[0] != pair[1] for pair in groups) else 0.0
        case _:
            return held


def _held(instruction: Instruction, taken: list[shapes.Array], size: int) -> tuple[tuple[str, int], ...]:
    """The dtype and elements of each array moved: an all-to-all without a dimension takes one as a piece for each device."""
    pieces = instruction.opcode.startswith("all-to-all") and "dimensions=" not in instruction.attributes
    step = size if pieces and len(taken) % size == 0 else 1
    arrays = [taken[k : k + step] for k in range(0, len(taken), step)]
    return tuple((parts[0].dtype, sum(part.elements for part in parts)) for parts in arrays)


def _shape_of(computation: Computation, name: str) -> str | None:
    found = computation.by_name.get(name)
    return found.shape if found else None
