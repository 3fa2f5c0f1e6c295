"""The schedule and the data flow of one computation: what waits for what, and what stands between."""

from __future__ import annotations

import bisect
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from shardwise.compiled.text.hlo import Computation, Instruction, Module
from shardwise.compiled.text.walk import Survey, inside

# What hands an array on as it is, or as a view.
HANDS_ON = (
    "bitcast",
    "copy",
    "get-tuple-element",
    "reshape",
    "transpose",
    "convert",
    "tuple",
    "copy-start",
    "copy-done",
    "slice",
    "slice-start",
    "slice-done",
)
SEARCHED = 12  # instructions upwards or downwards to a line that an instruction without one belongs to
_CHANNEL = re.compile(r"\bchannel_id=(\d+)")
_OPENS, _CLOSES = '"AsyncCollectiveStart"', '"AsyncCollectiveDone"'


@dataclass(slots=True)
class Flow:
    """A computation with its users and the places of its matmuls in the schedule."""

    module: Module
    survey: Survey
    computation: Computation
    users: dict[str, list[int]] = field(default_factory=dict)
    matmuls: list[int] = field(default_factory=list)
    places: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for place, instruction in enumerate(self.computation.instructions):
            self.places[instruction.name] = place
            for operand in instruction.operands:
                self.users.setdefault(operand, []).append(place)
            if self.survey.multiplies(instruction):
                self.matmuls.append(place)

    def using(self, instruction: Instruction) -> list[Instruction]:
        """The instructions that take what this one makes."""
        return [self.computation.instructions[place] for place in self.users.get(instruction.name, [])]

    def matmuls_between(self, first: int, last: int) -> tuple[str, ...]:
        """The names of the matmuls scheduled between two places."""
        low, high = bisect.bisect_right(self.matmuls, first), bisect.bisect_left(self.matmuls, last)
        return tuple(self.computation.instructions[place].name for place in self.matmuls[low:high])

    def opening(self, start: Instruction) -> Instruction:
        """Where the transfer of an asynchronous start begins: a start that takes nothing waits for its update."""
        if not start.operands and start.opcode.endswith("-start"):
            return next((user for user in self.using(start) if user.opcode.endswith("-update")), start)
        return start

    def closing(self, start: Instruction) -> Instruction | None:
        """The instruction that waits for what another one starts; None where it starts nothing.

        The fusions that carry a chain on multiply as well; what they multiply may go on into another chain, of another channel.
        Where a loop's turns carry it on, it comes out of the loop as the element of the state that it went in as.
        """
        chained = is_chained(self.module, start)
        channels = _channels(self.module, start) if chained else frozenset()
        if not start.opcode.endswith("-start") and not chained:
            return None
        first: tuple[Instruction, int | None] = (start, None)
        pending, seen = deque([first]), {(start.name, first[1])}
        while pending:
            made, element = pending.popleft()
            for user in self.using(made):
                if element is None and (user.opcode.endswith("-done") or (chained and self._ends(user, channels))):
                    return user
                onward = _elements(made, element, user)
                if element is None and (
                    user.opcode.endswith("-update")
                    or user.opcode == "bitcast"
                    or (chained and self.survey.talks(user) and _channels(self.module, user) == channels)
                ):
                    onward = [None]
                for number in onward:
                    if (user.name, number) not in seen:
                        seen.add((user.name, number))
                        pending.append((user, number))
        return None

    def _ends(self, user: Instruction, channels: frozenset[str]) -> bool:
        """Whether an instruction ends a chain of these channels; one that names none ends any that reaches it."""
        return _holds(self.module, user, _CLOSES) and _channels(self.module, user) in (channels, frozenset())

    def upwards(self, instruction: Instruction) -> Iterator[Instruction]:
        """What made the arrays that an instruction takes, nearest first."""
        yield from self._search(instruction, lambda i: [self._at(name) for name in i.operands])

    def downwards(self, instruction: Instruction) -> Iterator[Instruction]:
        """What takes the array that an instruction makes, nearest first."""
        yield from self._search(instruction, self.using)

    def arrays(self, instruction: Instruction) -> tuple[str, ...]:
        """The names of the arrays that an instruction takes, without the marks by which compilers order what waits."""
        found = [self._at(name) for name in instruction.operands]
        return tuple(i.name for i in found if i is not None and "-start" not in i.opcode and not i.name.startswith("prepare"))

    def hands_on(self, instruction: Instruction) -> bool:
        """Whether an instruction gives the array that it takes as it is, in another form, or in a wider dtype."""
        if instruction.opcode in HANDS_ON:
            return True
        if len(instruction.operands) != 1:
            return False
        if instruction.opcode in ("async-done", "async-update"):
            start = self._started(instruction)
            return start is not None and self.hands_on(start)
        if instruction.opcode not in ("fusion", "async-start") or not instruction.called():
            return False
        return all(i.opcode in (*HANDS_ON, "parameter") for c in inside(self.module, instruction) for i in c.instructions)

    def origin(self, name: str) -> Instruction | None:
        """What made an array, before copies, views, changes of dtype, and transfers in parts that are joined again."""
        return self._made(name, joins=True)

    def joining(self, start: Instruction) -> Instruction | None:
        """What joins the part of an array that an asynchronous slice takes with all others; None where nothing does."""
        pending, seen = [start], {start.name}
        while pending:
            for user in self.using(pending.pop()):
                if joins_parts(user):
                    return user if self._handed(user, joins=True) is not None else None
                if user.name not in seen and (user.opcode == "bitcast" or user.opcode.endswith(("-done", "-update"))):
                    seen.add(user.name)
                    pending.append(user)
        return None

    def _made(self, name: str, *, joins: bool) -> Instruction | None:
        found = self._at(name)
        for _ in self.places:
            taken = None if found is None else self._handed(found, joins=joins)
            if taken is None:
                break
            found = taken
        return found

    def _handed(self, instruction: Instruction, *, joins: bool) -> Instruction | None:
        """What an instruction hands on; None where it makes something itself. `joins`: parts of one array are that array."""
        operands = instruction.operands
        if instruction.opcode == "get-tuple-element" and operands:
            made, index = self._at(operands[0]), instruction.attribute("index") or ""
            known = made is not None and made.opcode == "tuple" and index.isdigit() and int(index) < len(made.operands)
            return self._at(made.operands[int(index)]) if made is not None and known else None
        if joins_parts(instruction):
            wholes = [self._made(name, joins=False) for name in operands] if joins else []
            one = len({None if whole is None else whole.name for whole in wholes}) == 1
            return wholes[0] if one else None
        return self._at(operands[0]) if len(operands) == 1 and self.hands_on(instruction) else None

    def _started(self, instruction: Instruction) -> Instruction | None:
        """The start that an asynchronous update or end belongs to."""
        found: Instruction | None = instruction
        for _ in self.places:
            if found is None or not found.opcode.endswith(("-done", "-update")) or not found.operands:
                break
            found = self._at(found.operands[0])
        return None if found is None or found.opcode in ("async-done", "async-update") else found

    def _at(self, name: str) -> Instruction | None:
        place = self.places.get(name)
        return None if place is None else self.computation.instructions[place]

    def _search(self, instruction: Instruction, neighbours: object) -> Iterator[Instruction]:
        pending, seen = [instruction], {instruction.name}
        while pending and len(seen) <= SEARCHED:
            for found in neighbours(pending.pop(0)):  # type: ignore[operator]
                if found is not None and found.name not in seen:
                    seen.add(found.name)
                    pending.append(found)
                    yield found


def joins_parts(instruction: Instruction) -> bool:
    """Whether an instruction joins the parts in which an array was moved, as TPU's compiler prefetches large arguments."""
    return instruction.opcode == "custom-call" and '"ConcatBitcast"' in instruction.attributes


def _elements(made: Instruction, element: int | None, user: Instruction) -> list[int | None]:
    """As which elements a tuple or a loop has an array, itself an element of what was made; None is the whole of a result."""
    if user.opcode == "get-tuple-element":
        return [None] if element is None or user.attribute("index") == str(element) else []
    if user.opcode == "tuple" and element is None:
        return [number for number, operand in enumerate(user.operands) if operand == made.name]
    return [element] if user.opcode in ("while", "opt-barrier") else []


def is_chained(module: Module, instruction: Instruction) -> bool:
    """Whether an instruction opens a collective that later fusions carry on: TPU's asynchronous collective fusion."""
    return _holds(module, instruction, _OPENS)


def carries_on(module: Module, instruction: Instruction) -> bool:
    """Whether an instruction is a later part of such a collective, which is counted at its opening."""
    if instruction.opcode != "fusion":
        return False
    called = inside(module, instruction)
    return any("async_collective_fusion" in c.name for c in called) or _holds(module, instruction, _CLOSES)


def _channels(module: Module, instruction: Instruction) -> frozenset[str]:
    """The channels of the collectives within an instruction."""
    return frozenset(
        channel[1]
        for computation in inside(module, instruction)
        for each in computation.instructions
        if (channel := _CHANNEL.search(each.attributes))
    )


def _holds(module: Module, instruction: Instruction, target: str) -> bool:
    return instruction.opcode == "fusion" and any(
        i.opcode == "custom-call" and target in i.attributes for c in inside(module, instruction) for i in c.instructions
    )
