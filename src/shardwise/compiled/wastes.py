"""What a compiled program sends or holds that it need not, array by array: the kinds of waste, and how each is told."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from shardwise.compiled.contents import Contents
from shardwise.compiled.facts import Argument, Collective, Line
from shardwise.compiled.text import shapes
from shardwise.compiled.text.flow import Flow
from shardwise.compiled.text.hlo import Instruction
from shardwise.compiled.text.sources import Sources, is_planners, metadata
from shardwise.compiled.text.uses import Graph, Use, dims_of, elements, is_own_part, results
from shardwise.compiled.text.varying import Varying
from shardwise.compiled.text.walk import survey
from shardwise.layout import Axes

Kind = Literal[
    "reduced-then-sliced", "gathered-then-sliced", "gathered-then-reduced", "gathered-to-reshape", "gathered-argument",
    "gathered-twice", "gathered-each-turn", "gathered-by-sum", "sent-wide", "reduced-same", "replicated-state",
    "repeated-work", "uneven-layout",
]  # fmt: skip
LEAST_BYTES = 1000  # of a gather for nothing: fewer take no time that could be won
FEW = 100  # of so many elements one is few: what a norm leaves of an array
FLOATS = ("bfloat16", "float16", "float32", "float64")


@dataclass(frozen=True, slots=True)
class Waste:
    """One array of which something is wasted: bytes that one device sends, or holds, and need not; the lines it comes from.

    `subject`: the array, by the name of the argument that it is, or its dtype and shape.
    """

    kind: Kind
    subject: str
    axes: Axes
    wire_bytes: float
    lines: tuple[Line, ...]
    memory_bytes: float = 0.0
    times: int = 1


@dataclass(frozen=True, slots=True)
class Moved:
    """One array that a collective moves: what it takes, where it stands after, and its share of the bytes."""

    collective: Collective
    operand: str
    result: tuple[str, int | None]
    dtype: str
    held: int
    wire_bytes: float
    line: Line

    @property
    def whole(self) -> int:
        """The elements of the whole array that a gather makes."""
        return self.held * self.collective.group_size


@dataclass(slots=True)
class Look:
    """What the kinds of waste are looked for in: the audit, its data flow, and every array that is moved."""

    audit: Contents
    graph: Graph = field(init=False)
    sources: Sources = field(init=False)
    moved: tuple[Moved, ...] = field(init=False)
    arguments: dict[int, Argument] = field(init=False)

    def __post_init__(self) -> None:
        module = self.audit.module
        self.graph = Graph(module, survey(module))
        self.sources = Sources(module)
        self.moved = tuple(found for each in self.audit.collectives if each.group_size > 1 for found in self._moved(each))
        known = self.audit.arguments if module.entry is not None else ()
        fit = module.entry is not None and len(module.entry.parameters()) == len(known)
        self.arguments = dict(enumerate(known)) if fit else {}

    def _moved(self, each: Collective) -> Iterator[Moved]:
        after = results(self.graph, each)
        if len(after) != each.arrays or len(each.operands) != each.arrays:
            return
        sizes = [count * shapes.BITS.get(dtype, 8) for dtype, count in each.held]
        lines = each.lines or (each.line,) * each.arrays
        for operand, result, (dtype, count), size, line in zip(each.operands, after, each.held, sizes, lines, strict=True):
            yield Moved(each, operand, result, dtype, count, each.wire_bytes * size / max(sum(sizes), 1), line)

    def flow(self, moved: Moved) -> Flow:
        return self.graph.flow(moved.collective.computation)

    def uses(self, moved: Moved) -> list[Use] | None:
        """What ends a moved array after it was moved."""
        return self.graph.uses(moved.collective.computation, *moved.result)

    def origin(self, moved: Moved) -> Instruction | None:
        """What made a moved array, before copies and views."""
        return self.flow(moved).origin(moved.operand)

    def is_entry(self, moved: Moved) -> bool:
        entry = self.audit.module.entry
        return entry is not None and entry.name == moved.collective.computation

    def is_planned(self, moved: Moved) -> bool:
        """Whether a collective is a step of one of Shardwise's plans."""
        start = self.flow(moved).computation.by_name.get(moved.collective.name)
        frames = self.sources.frames(start) if start is not None else []
        return bool(frames) and is_planners(frames[0].file)

    def name(self, parameter: Instruction) -> str:
        """The name of an argument of the program."""
        known = self.arguments.get(int(parameter.inside)) if parameter.inside.strip().isdigit() else None
        return (known.name if known else "") or metadata(parameter).get("op_name", "") or parameter.name

    def subject(self, moved: Moved) -> str:
        """A moved array by the name of the argument that it is, or by dtype and shape."""
        origin = self.origin(moved)
        if origin is not None and origin.opcode == "parameter" and self.is_entry(moved):
            return self.name(origin)
        found = self.flow(moved).computation.by_name.get(moved.operand)
        try:
            arrays = shapes.leaves(shapes.parse(found.shape)) if found else []
        except shapes.UnreadShapeError:
            arrays = []
        return f"{moved.dtype}[{','.join(map(str, arrays[0].dims))}]" if arrays else moved.dtype


def wastes(audit: Contents) -> list[Waste]:
    """Everything that is wasted on the wire or in memory."""
    look = Look(audit)
    users = [moved for moved in look.moved if not look.is_planned(moved)]  # a plan weighs latency too, and is not told of bytes
    gathers = {id(moved): _kept_in_part(look, moved) or _reshaped(look, moved) for moved in users}
    kept = {key: waste for key, waste in gathers.items() if waste is not None and waste.wire_bytes >= LEAST_BYTES}
    found = [*_sliced(look), *kept.values(), *_arguments(look, set(kept)), *_twice(look), *_each_turn(look), *_laid(look)]
    return [*found, *_widened(look), *_same(look), *_state(look)]


def _waste(kind: Kind, look: Look, moved: Moved, share: float) -> Waste:
    return Waste(kind, look.subject(moved), moved.collective.axes, moved.wire_bytes * share, (moved.line,))


def _sliced(look: Look) -> Iterator[Waste]:
    """All-reduces of which each device keeps its part, and perhaps a norm."""
    for moved in look.moved:
        if moved.collective.kind == "all-reduce" and not any(moved.collective.laid):
            uses = look.uses(moved) or []
            parts = [is_own_part(look.graph, use, moved.held // moved.collective.group_size) for use in uses]
            norms = [use.by.opcode == "reduce" and (elements(use.by) or 0) * FEW <= moved.held for use in uses]
            if any(parts) and all(part or norm for part, norm in zip(parts, norms, strict=True)):
                yield _waste("reduced-then-sliced", look, moved, 1 / 2)


def _kept_in_part(look: Look, moved: Moved) -> Waste | None:
    """A gather of which a device keeps a part: cuts it out, or reads the whole for sums and maxima alone."""
    uses = look.uses(moved) if moved.collective.kind == "all-gather" else None
    if not uses:
        return None
    opcodes = {use.by.opcode for use in uses}
    kept = sum({(use.place.computation, use.by.name): _kept(use, moved.whole) for use in uses}.values())
    if opcodes == {"gather"} or kept > moved.whole / 2:
        return None
    kind: Kind = "gathered-then-reduced" if "reduce" in opcodes else "gathered-then-sliced"
    return _waste(kind, look, moved, 1 - kept / moved.whole)


def _kept(use: Use, whole: int) -> int:
    """The elements that an instruction takes on of an array of so many."""
    reads = use.by.opcode in ("slice", "slice-done", "dynamic-slice", "gather") and use.operand == 0
    count = elements(use.by) if not use.leaves and (reads or use.by.opcode == "reduce") else None
    return whole if count is None else min(count, whole)


def _reshaped(look: Look, moved: Moved) -> Waste | None:
    """A gather that a reshape forces: it joins or parts the split dimension so that no layout outlives it."""
    dims = _gathered_dims(look, moved)
    if dims is None:
        return None
    dim, shape = dims
    for reshape in look.audit.reshapes:
        if len(reshape.before) != len(shape) or any(
            whole % size for whole, size in zip(reshape.before, shape, strict=True) if size
        ):
            continue
        parts = reshape.before[dim] * moved.collective.group_size // shape[dim]
        others_split = reshape.before[dim] != shape[dim] and reshape.line != moved.line.place
        if not others_split and not reshape.keeps(dim, parts) and _meets(look, moved, reshape.line, reshape.after, shape):
            return _waste("gathered-to-reshape", look, moved, 1)
    return None


def _gathered_dims(look: Look, moved: Moved) -> tuple[int, tuple[int, ...]] | None:
    """The dimension that a gather joins, and the shape that it makes."""
    made = look.flow(moved).computation.by_name.get(moved.result[0])
    start = look.flow(moved).computation.by_name.get(moved.collective.name)
    text = start.attribute("dimensions") if start is not None and moved.collective.kind == "all-gather" else None
    if made is None or text is None or not text.strip("{}").isdigit():
        return None
    arrays = shapes.leaves(shapes.parse(made.shape))
    array = arrays[moved.result[1] or 0] if arrays else None
    dim = int(text.strip("{}"))
    return (dim, array.dims) if array is not None and dim < len(array.dims) and all(array.dims) else None


def _meets(look: Look, moved: Moved, line: str, after: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether a gathered array is one that the line reshapes: the line asks for it, or it takes on the new shape."""
    if line and line in (moved.line.place, moved.line.via):
        return True
    taken = look.graph.shapes_of(moved.collective.computation, *moved.result)
    return after in taken and after != shape


def _arguments(look: Look, told: set[int]) -> Iterator[Waste]:
    """All-gathers of arguments as they came in."""
    for moved in look.moved:
        if moved.collective.kind == "all-gather" and look.is_entry(moved) and id(moved) not in told:
            origin = look.origin(moved)
            if origin is not None and origin.opcode == "parameter":
                yield _waste("gathered-argument", look, moved, 1)


def _twice(look: Look) -> Iterator[Waste]:
    """The same array gathered more than once."""
    gathered: dict[tuple[str, str, Axes], list[Moved]] = defaultdict(list)
    for moved in look.moved:
        origin = look.origin(moved) if moved.collective.kind == "all-gather" else None
        if origin is not None:
            gathered[moved.collective.computation, origin.name, moved.collective.axes].append(moved)
    for them in gathered.values():
        if len(them) > 1:
            lines, again = tuple(dict.fromkeys(each.line for each in them)), sum(each.wire_bytes for each in them[1:])
            yield Waste("gathered-twice", look.subject(them[0]), them[0].collective.axes, again, lines, times=len(them))


def _each_turn(look: Look) -> Iterator[Waste]:
    """A gather inside a loop of what no turn changes."""
    for moved in look.moved:
        trips = moved.collective.trips
        if moved.collective.kind == "all-gather" and not look.is_entry(moved) and trips not in (0, 1):
            origin = look.origin(moved)
            if origin is not None and _unchanged(look.flow(moved), origin):
                share = 1 - 1 / (trips or 2)
                axes, wire = moved.collective.axes, moved.wire_bytes * share
                yield Waste("gathered-each-turn", look.subject(moved), axes, wire, (moved.line,), times=trips or 0)


def _unchanged(flow: Flow, element: Instruction) -> bool:
    """Whether an element of a loop's state is handed to the next turn as it came."""
    root = flow.computation.root
    if element.opcode != "get-tuple-element" or root is None or root.opcode != "tuple":
        return False
    index = element.attribute("index")
    if index is None or not index.isdigit() or int(index) >= len(root.operands):
        return False
    back = flow.origin(root.operands[int(index)])
    return back is not None and back.opcode == "get-tuple-element" and back.attribute("index") == index


def _laid(look: Look) -> Iterator[Waste]:
    """Gathers made of sums of zeros in which each device lays its part."""
    for each in look.audit.collectives:
        if any(each.laid) and each.group_size > 1:
            yield Waste("gathered-by-sum", each.dtype, each.axes, each.wire_bytes / 2, (each.line,))


def _widened(look: Look) -> Iterator[Waste]:
    """Collectives of wide numbers that were narrow just before."""
    for moved in look.moved:
        origin = look.origin(moved) if moved.dtype == "float32" and moved.wire_bytes else None
        if origin is not None and origin.shape.startswith(("bf16[", "f16[")):
            each = moved.collective
            said = f"{'an' if each.kind[0] == 'a' else 'a'} {each.kind}"
            yield Waste("sent-wide", said, each.axes, moved.wire_bytes / 2, (moved.line,))


def _same(look: Look) -> Iterator[Waste]:
    """All-reduces of what every device holds already."""
    entry, mesh = look.audit.module.entry, look.audit.mesh
    every = frozenset(name for name, size in mesh.axes if size > 1)
    reduces = [
        each for each in look.audit.collectives if each.kind == "all-reduce" and every.issuperset(each.axes) and each.axes
    ]
    if entry is None or not reduces or not look.arguments:
        return
    parameters = entry.parameters()
    split = [split_over(each, parameters[number], every) for number, each in look.arguments.items()]
    collectives = {(each.computation, each.name): each for each in look.audit.collectives}
    varies = Varying(look.audit.module, every, split, collectives).run()
    for each in reduces:
        over = varies.get((each.computation, each.name))
        if over is not None and over.isdisjoint(each.axes) and each.group_size > 1 and each.wire_bytes:
            array = f"{each.dtype}[{','.join(map(str, each.shape))}]"
            yield Waste("reduced-same", array, each.axes, each.wire_bytes, (each.line,), times=each.group_size)


def split_over(argument: Argument, parameter: Instruction, every: frozenset[str]) -> frozenset[str]:
    """The axes over which an argument differs from device to device: of a layout that is not known all, unless it is whole."""
    if argument.axes is not None:
        return every.intersection(argument.axes)
    return frozenset() if dims_of(parameter) == argument.shape else every


def _state(look: Look) -> Iterator[Waste]:
    """The state of an optimizer that every device holds and updates whole, by gradients that were all-reduced."""
    entry = look.audit.module.entry
    if entry is None or not look.arguments:
        return
    every = frozenset(name for name, size in look.audit.mesh.axes if size > 1)
    updated = _updated(look)
    for number, parameter in entry.parameters().items():
        array = shapes.leaves(shapes.parse(parameter.shape))[0]
        uses = look.graph.uses(entry.name, parameter.name) if array.dtype in FLOATS and array.elements > 1 else None
        results_of = {use.operand for use in uses or () if use.leaves}
        gradients = [moved for result in results_of for moved in updated.get(result, ()) if array.elements % moved.held == 0]
        if not uses or not all(use.leaves for use in uses) or not gradients:
            continue
        axes, parts = gradients[0].collective.axes, gradients[0].collective.group_size
        if split_over(look.arguments[number], parameter, every).isdisjoint(axes):
            lines, saved = (gradients[0].line,), array.bytes * (1 - 1 / parts)
            yield Waste("replicated-state", look.name(parameter), axes, 0.0, lines, saved, times=parts)


def _updated(look: Look) -> dict[int, list[Moved]]:
    """For each result of the program the all-reduced arrays that it is computed from, element by element."""
    found: dict[int, list[Moved]] = defaultdict(list)
    for moved in look.moved:
        if moved.collective.kind == "all-reduce" and moved.dtype in FLOATS and moved.held > 1:
            for use in look.uses(moved) or ():
                if use.leaves:
                    found[use.operand].append(moved)
    return found
