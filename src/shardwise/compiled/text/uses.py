"""What becomes of an array: followed through views, elementwise work, fusions, calls and loops to what ends it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from shardwise.compiled.facts import Collective
from shardwise.compiled.text import shapes
from shardwise.compiled.text.flow import Flow
from shardwise.compiled.text.hlo import Instruction, Module
from shardwise.compiled.text.walk import Survey

# Every element in its order or another, perhaps in another dtype, or with dimensions of size 1 added.
VIEWS = (
    "bitcast", "bitcast-convert", "copy", "copy-start", "copy-done", "reshape", "transpose", "convert", "reverse",
    "opt-barrier", "reduce-precision",
)  # fmt: skip
# Element by element: a part of the result needs that part of the operands alone.
ELEMENTWISE = (
    "abs", "add", "and", "atan2", "cbrt", "ceil", "clamp", "compare", "cosine", "divide", "erf", "exponential",
    "exponential-minus-one", "floor", "is-finite", "log", "log-plus-one", "logistic", "maximum", "minimum", "multiply",
    "negate", "not", "or", "popcnt", "power", "remainder", "round-nearest-afz", "round-nearest-even", "rsqrt", "select",
    "shift-left", "shift-right-arithmetic", "shift-right-logical", "sign", "sine", "sqrt", "subtract", "tan", "tanh", "xor",
)  # fmt: skip
ENTERED = ("fusion", "call")  # their operands are the parameters of what they call, one by one
MOST_PLACES = 4000  # places that an array is followed to; beyond these what becomes of it is not known


Path = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Place:
    """An array where it stands: an instruction's result, or one element of the tuple that it makes.

    `path`: the computations that were entered on the way to it, outermost first, each by the instruction that runs it.
    """

    path: Path
    computation: str
    name: str
    element: int | None = None


@dataclass(frozen=True, slots=True)
class Use:
    """An instruction that ends an array: takes it as its operand of that number; or, `leaves`, returns it from the program.

    Of one that returns it `operand` is the number of the result.
    """

    place: Place
    by: Instruction
    operand: int
    leaves: bool = False


@dataclass(slots=True)
class Graph:
    """The data flow of a whole module; that of a computation is made when first asked for."""

    module: Module
    survey: Survey
    _flows: dict[str, Flow] = field(default_factory=dict)
    _callers: dict[str, tuple[str, Instruction]] = field(default_factory=dict)

    def flow(self, computation: str) -> Flow:
        """The data flow of one computation."""
        if computation not in self._flows:
            self._flows[computation] = Flow(self.module, self.survey, self.module.computations[computation])
        return self._flows[computation]

    def instruction(self, place: Place) -> Instruction:
        """What stands at a place."""
        return self.module.computations[place.computation].by_name[place.name]

    def uses(self, computation: str, name: str, element: int | None = None) -> list[Use] | None:
        """All that end an array, seen through views and elementwise work; None where they are too many to follow."""
        places, found = self._followed(Place((), computation, name, element))
        return None if len(places) > MOST_PLACES else found

    def shapes_of(self, computation: str, name: str, element: int | None = None) -> set[tuple[int, ...]]:
        """The dimensions that an array takes on as it is seen and worked on so."""
        places, _ = self._followed(Place((), computation, name, element))
        return {dims for place in places if (dims := dims_of(self.instruction(place))) is not None}

    def _followed(self, start: Place) -> tuple[set[Place], list[Use]]:
        pending, seen, found = [start], {start}, list[Use]()
        while pending and len(seen) <= MOST_PLACES:
            for step in self._onward(pending.pop()):
                if isinstance(step, Use):
                    found.append(step)
                elif step not in seen:
                    seen.add(step)
                    pending.append(step)
        return seen, found

    def is_own(self, place: Place, name: str) -> bool:
        """Whether a number depends on which device computes it."""
        start = Place(place.path, place.computation, name)
        pending, seen = [start], {start}
        while pending and len(seen) <= MOST_PLACES:
            here = pending.pop()
            if self.instruction(here).opcode in ("partition-id", "replica-id"):
                return True
            for step in self._upward(here):
                if step not in seen:
                    seen.add(step)
                    pending.append(step)
        return False

    def _upward(self, place: Place) -> Iterator[Place]:
        """What the array at a place is made of: operands, and of a parameter what is handed to its computation."""
        made = self.instruction(place)
        if made.opcode == "get-tuple-element" and (made.attribute("index") or "").isdigit():
            yield Place(place.path, place.computation, made.operands[0], int(made.attribute("index") or 0))
        elif made.opcode == "tuple" and place.element is not None:
            yield Place(place.path, place.computation, made.operands[place.element])
        elif made.opcode == "parameter":
            path, home, caller = self._run_by(place)
            if caller is not None and int(made.inside) < len(caller.operands):
                yield Place(path, home, caller.operands[int(made.inside)], place.element)
        else:
            yield from (Place(place.path, place.computation, operand) for operand in made.operands)

    def _run_by(self, place: Place) -> tuple[Path, str, Instruction | None]:
        """What runs the computation of a place, and where that stands; None of the entry."""
        if place.path:
            home, name = place.path[-1]
            return place.path[:-1], home, self.module.computations[home].by_name[name]
        if not self._callers:
            for home, computation in self.module.computations.items():
                for instruction in computation.instructions:
                    if instruction.opcode in (*ENTERED, "while"):
                        self._callers.update({called: (home, instruction) for _, called in instruction.called()})
        home, caller = self._callers.get(place.computation, ("", None))
        return (), home, caller

    def _onward(self, place: Place) -> Iterator[Place | Use]:
        """Where an array goes from a place: to the next places, or to an end."""
        flow, here = self.flow(place.computation), self.instruction(place)
        for user in flow.using(here):
            for number, operand in enumerate(user.operands):
                if operand == place.name:
                    yield from self._taken(place, user, number)
        if flow.computation.root is here:
            yield from self._returned(place)

    def _taken(self, place: Place, user: Instruction, number: int) -> Iterator[Place | Use]:
        """An array is operand of an instruction."""
        flow, onward = self.flow(place.computation), Place(place.path, place.computation, user.name)
        inside = (*place.path, (place.computation, user.name))
        called = dict(user.called()) if user.opcode in (*ENTERED, "while") else {}
        runs = called.get("body") or called.get("calls") or called.get("to_apply") or ""
        inner = self.module.computations.get(runs)
        parameter = None if inner is None else inner.parameters().get(number)
        if user.opcode == "get-tuple-element":
            if place.element is None or user.attribute("index") == str(place.element):
                yield onward
        elif user.opcode == "tuple" and place.element is None:
            yield Place(place.path, place.computation, user.name, number)
        elif parameter is not None and inner is not None:
            yield Place(inside, inner.name, parameter.name, place.element)
        elif user.opcode in ("slice-start", "async-start") and flow.hands_on(user):
            whole = flow.joining(user)
            if whole is None:
                yield Use(place, flow.closing(user) or user, 0)
            else:
                yield Place(place.path, place.computation, whole.name)
        elif user.opcode in VIEWS or _same_size(user, self.instruction(place)):
            yield Place(place.path, place.computation, user.name, place.element if user.opcode == "opt-barrier" else None)
        elif user.opcode == "dynamic-update-slice" and number == 1:
            yield onward
        else:
            yield Use(place, user, number)

    def _returned(self, place: Place) -> Iterator[Place | Use]:
        """An array is the result of its computation, or an element of it."""
        path, home, caller = self._run_by(place)
        if caller is None:
            entry = self.module.entry is not None and self.module.entry.name == place.computation
            yield Use(place, self.instruction(place), place.element or 0, leaves=entry)
            return
        if caller.opcode == "while" and (state := self.module.computations[place.computation].parameters().get(0)) is not None:
            yield Place(place.path, place.computation, state.name, place.element)
        yield Place(path, home, caller.name, place.element)


def results(graph: Graph, collective: Collective) -> tuple[tuple[str, int | None], ...]:
    """Where each array that a collective moves stands after it: a name, or an element of a tuple; () if that is not clear."""
    found = graph.module.computations[collective.computation].by_name.get(collective.end)
    try:
        shape = None if found is None else shapes.parse(found.shape)
    except shapes.UnreadShapeError:
        return ()
    if isinstance(shape, shapes.Array):
        return ((collective.end, None),) if collective.arrays == 1 else ()
    if shape is None or len(shape) != collective.arrays:
        return ()
    return tuple((collective.end, element) for element in range(collective.arrays))


def keeps_its_part(graph: Graph, collective: Collective) -> tuple[bool, ...]:
    """Of each array of an all-reduce, whether all that take it cut out one device's part, each device its own."""
    found = []
    for (name, element), (_, held) in zip(results(graph, collective), collective.held, strict=False):
        uses = graph.uses(collective.computation, name, element)
        found.append(bool(uses) and all(is_own_part(graph, use, held // collective.group_size) for use in uses or ()))
    return tuple(found)


def is_own_part(graph: Graph, use: Use, most: int) -> bool:
    """Whether an instruction cuts so many elements or fewer out of an array, at a place that depends on the device."""
    if use.by.opcode != "dynamic-slice" or use.operand != 0:
        return False
    kept = elements(use.by)
    return kept is not None and kept <= most and any(graph.is_own(use.place, index) for index in use.by.operands[1:])


def elements(instruction: Instruction) -> int | None:
    """The elements of an instruction's result, of several the most; None where its shape cannot be read."""
    try:
        return max((array.elements for array in shapes.leaves(shapes.parse(instruction.shape))), default=0)
    except shapes.UnreadShapeError:
        return None


def dims_of(instruction: Instruction) -> tuple[int, ...] | None:
    """The dimensions of an instruction's result; None of several, or of one that cannot be read."""
    try:
        array = shapes.parse(instruction.shape)
    except shapes.UnreadShapeError:
        return None
    return array.dims if isinstance(array, shapes.Array) else None


def _same_size(user: Instruction, taken: Instruction) -> bool:
    """Whether an instruction works element by element; a broadcast to as many elements only adds dimensions of size 1."""
    return user.opcode in ELEMENTWISE or (user.opcode == "broadcast" and elements(user) == elements(taken))
