"""How often a `while` loop runs: as the compiler notes it, or worked out from its condition, initial values and step."""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Callable

from shardwise.compiled.text.hlo import Computation, Instruction, Module

_NOTED = re.compile(r'"known_trip_count":\{"n":"?(\d+)"?\}')
WATCHED_STEPS = 4  # turns that are computed one by one before the rest is extrapolated
MOST_TRIPS = 1 << 62

_BINARY: dict[str, Callable[[int, int], int]] = {
    "add": operator.add, "subtract": operator.sub, "multiply": operator.mul, "maximum": max, "minimum": min,
    "divide": lambda a, b: int(a / b) if b else 0, "remainder": lambda a, b: a - b * int(a / b) if b else a,
    "and": operator.and_, "or": operator.or_, "xor": operator.xor,
}  # fmt: skip
_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "LT": operator.lt, "LE": operator.le, "GT": operator.gt, "GE": operator.ge, "EQ": operator.eq, "NE": operator.ne,
}  # fmt: skip
_SAME = ("copy", "convert", "bitcast", "reshape", "copy-done", "copy-start", "optimization-barrier", "bitcast-convert")
_FOLLOWED = frozenset((*_BINARY, *_SAME, "compare", "select", "tuple", "get-tuple-element", "not", "fusion", "call"))
_MANY = re.compile(r"\w+\[(?:1,)*(?:[02-9]|1\d)")  # an array of more elements than one, or of none

Value = int | list["Value"] | None  # a scalar, a tuple's elements, or not known


def trip_count(module: Module, computation: Computation, loop: Instruction) -> int | None:
    """The number of trips of a `while` instruction; None where it cannot be read. It is worked out once for a module."""
    key = computation.name, loop.name, loop.line
    if key not in module.trips:
        module.trips[key] = _trips(module, computation, loop)
    return module.trips[key]


def _trips(module: Module, computation: Computation, loop: Instruction) -> int | None:
    noted = _NOTED.search(loop.attributes)
    if noted:
        return int(noted[1])
    roles = dict(loop.called())
    condition, body = module.computations.get(roles.get("condition", "")), module.computations.get(roles.get("body", ""))
    if condition is None or body is None or len(loop.operands) != 1:
        return None
    state = _Evaluator(module, computation, []).value(loop.operands[0])
    return None if not isinstance(state, list) else _count(module, condition, body, state)


def _count(module: Module, condition: Computation, body: Computation, state: list[Value]) -> int | None:
    states = [state]
    for trip in range(WATCHED_STEPS):
        goes_on = _root(module, condition, states[-1])
        if not isinstance(goes_on, int):
            return None
        if not goes_on:
            return trip
        after = _root(module, body, states[-1])
        if not isinstance(after, list):
            return None
        states.append(after)
    return _extrapolated(module, condition, states)


def _extrapolated(module: Module, condition: Computation, states: list[list[Value]]) -> int | None:
    """Where each counter moves by equal steps, the first turn at which the condition fails, found by bisection."""
    first, last, before = states[0], states[-1], states[-2]
    steps: list[int | None] = []
    for seen in zip(*states, strict=True):
        integers = [v for v in seen if isinstance(v, int)]
        differences = {b - a for a, b in itertools.pairwise(integers)}
        steps.append(differences.pop() if len(integers) == len(seen) and len(differences) == 1 else None)

    def holds(trip: int) -> int | None:
        state: list[Value] = [
            value + step * trip if isinstance(value, int) and step is not None else None
            for value, step in zip(first, steps, strict=True)
        ]
        found = _root(module, condition, state)
        return found if isinstance(found, int) else None

    if last == before:
        return None  # nothing moves: it would never end
    apart = [_apart(module, condition, state) for state in states[:2]]
    if apart[0] is not None and apart[1] is not None:  # it goes on until two numbers are equal
        gap, step = apart[0], apart[0] - apart[1]
        return gap // step if step and gap % step == 0 and gap // step > 0 else None
    high = WATCHED_STEPS
    while (found := holds(high)) == 1:
        high *= 2
        if high > MOST_TRIPS:
            return None
    if found is None:
        return None
    low = high // 2
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return high if holds(high - 1) == 1 and holds(high) == 0 else None


def _root(module: Module, computation: Computation, state: list[Value]) -> Value:
    root = computation.root
    return _Evaluator(module, computation, [state]).value(root.name) if root else None


def _apart(module: Module, condition: Computation, state: list[Value]) -> int | None:
    """How far apart the sides of a condition `a != b` are; None where the condition is another."""
    arguments: list[Value] = [state]
    for _ in range(len(module.computations)):
        root = condition.root
        if root is None:
            return None
        sides = [_Evaluator(module, condition, arguments).value(operand) for operand in root.operands]
        called = module.computations.get(next((name for _, name in root.called()), ""))
        if root.opcode in ("fusion", "call") and called is not None:
            condition, arguments = called, sides
            continue
        if root.opcode != "compare" or "direction=NE" not in root.attributes or not all(isinstance(s, int) for s in sides):
            return None
        return sides[0] - sides[1]  # type: ignore[operator]
    return None


class _Evaluator:
    """Integer scalars of one computation, from its arguments; what depends on anything else is None."""

    def __init__(self, module: Module, computation: Computation, arguments: list[Value]) -> None:
        self.module = module
        self.computation = computation
        self.arguments = arguments
        self.known: dict[str, Value] = {}

    def value(self, name: str) -> Value:
        """The value of an instruction; walks operands with a stack of its own, since chains may be long."""
        pending = [name]
        while pending:
            current = pending[-1]
            instruction = self.computation.by_name.get(current)
            if current in self.known or instruction is None:
                self.known.setdefault(current, None)
                pending.pop()
                continue
            missing = [operand for operand in self._needed(instruction) if operand not in self.known]
            if missing:
                self.known[current] = None  # stands for a cycle, which a legal text has none of
                del self.known[current]
                pending += missing
                if len(pending) > len(self.computation.instructions) * 4 + 8:
                    return None
                continue
            self.known[current] = self._apply(instruction, [self.known[operand] for operand in self._needed(instruction)])
            pending.pop()
        return self.known[name]

    def _needed(self, instruction: Instruction) -> list[str]:
        """What the value of an instruction is computed from; nothing where it can be no integer."""
        opcode = instruction.opcode
        if _MANY.match(instruction.shape) or opcode not in _FOLLOWED:
            return []
        return instruction.operands

    def _apply(self, instruction: Instruction, operands: list[Value]) -> Value:
        if _MANY.match(instruction.shape):
            return None
        match instruction.opcode:
            case "parameter":
                number = int(instruction.inside)
                return self.arguments[number] if number < len(self.arguments) else None
            case "constant":
                return _literal(instruction)
            case "tuple":
                return list(operands)
            case "get-tuple-element":
                index = re.search(r"\bindex=(\d+)", instruction.attributes)
                whole = operands[0] if operands else None
                return whole[int(index[1])] if index and isinstance(whole, list) and int(index[1]) < len(whole) else None
            case "fusion" | "call":
                called = self.module.computations.get(next((n for _, n in instruction.called()), ""))
                root = called.root if called else None
                return _Evaluator(self.module, called, operands).value(root.name) if called and root else None
            case opcode if opcode in _SAME:
                return operands[0] if operands else None
            case opcode:
                return _scalar(opcode, instruction, operands)


def _scalar(opcode: str, instruction: Instruction, operands: list[Value]) -> Value:
    numbers = [value for value in operands if isinstance(value, int)]
    if len(numbers) != len(operands):
        return None
    if opcode == "compare":
        direction = re.search(r"\bdirection=([A-Z]+)", instruction.attributes)
        return int(_COMPARE[direction[1]](numbers[0], numbers[1])) if direction and direction[1] in _COMPARE else None
    if opcode == "select":
        return numbers[1] if numbers[0] else numbers[2]
    if opcode == "not":
        return int(not numbers[0]) if instruction.shape.startswith("pred") else ~numbers[0]
    return _BINARY[opcode](numbers[0], numbers[1]) if opcode in _BINARY and len(numbers) == 2 else None


def _literal(instruction: Instruction) -> Value:
    text = instruction.inside.strip()
    if text in ("true", "false"):
        return int(text == "true")
    return int(text) if re.fullmatch(r"-?\d+", text) and not instruction.shape.startswith(("f", "bf")) else None
