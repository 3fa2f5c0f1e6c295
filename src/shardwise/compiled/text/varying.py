"""Over which mesh axes an array varies: devices along all others hold the same numbers. What is not known varies over all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from shardwise.compiled.facts import Collective
from shardwise.compiled.text.flow import joins_parts
from shardwise.compiled.text.hlo import Computation, Instruction, Module
from shardwise.compiled.text.walk import is_collective, is_matmul

Axes = frozenset[str]
Value = Axes | tuple["Value", ...]  # of a tuple, those of its elements
NONE: Axes = frozenset()

_DIFFERS = ("partition-id", "replica-id", "infeed", "recv", "recv-done", "custom-call", "rng", "conditional", "domain")
MOST_TURNS = 16  # of a loop's body, until what varies in it no longer grows


@dataclass(slots=True)
class Varying:
    """The analysis of one module. `of` a collective: the axes over which the arrays that it takes vary, in any call of it."""

    module: Module
    every: Axes
    arguments: Sequence[Axes]
    collectives: dict[tuple[str, str], Collective]
    of: dict[tuple[str, str], Axes] = field(default_factory=dict)
    _known: dict[tuple[str, tuple[Value, ...]], Value] = field(default_factory=dict)

    def run(self) -> dict[tuple[str, str], Axes]:
        """Walk the whole program once, its loops until nothing changes."""
        entry = self.module.entry
        if entry is not None and len(self.arguments) == len(entry.parameters()):
            self._computed(entry, tuple(self.arguments))
        return self.of

    def _computed(self, computation: Computation, given: tuple[Value, ...]) -> Value:
        """What a computation returns of what it is given."""
        key = computation.name, given
        if key not in self._known:
            values: dict[str, Value] = {}
            for instruction in computation.instructions:
                values[instruction.name] = self._value(computation, instruction, values, given)
            root = computation.root
            self._known[key] = NONE if root is None else values[root.name]
        return self._known[key]

    def _value(
        self, computation: Computation, instruction: Instruction, values: dict[str, Value], given: tuple[Value, ...]
    ) -> Value:
        opcode = instruction.opcode
        if opcode == "parameter":
            number = int(instruction.inside)
            return given[number] if number < len(given) else self.every
        taken = tuple(values.get(name, self.every) for name in instruction.operands)
        if opcode == "tuple":
            return taken
        if opcode == "get-tuple-element":
            index = int(instruction.attribute("index") or 0)
            return taken[0][index] if isinstance(taken[0], tuple) and index < len(taken[0]) else joined(taken)
        if opcode == "opt-barrier" and len(taken) == 1:
            return taken[0]
        if is_collective(opcode) or opcode.endswith(("-done", "-update")):
            return self._collective(computation, instruction, joined(taken))
        return self._called(instruction, taken)

    def _called(self, instruction: Instruction, taken: tuple[Value, ...]) -> Value:
        called = {role: self.module.computations.get(name) for role, name in instruction.called()}
        if instruction.opcode == "while":
            return self._looped(called.get("body"), called.get("condition"), taken[0])
        if instruction.opcode in ("fusion", "call"):
            inner = called.get("calls") or called.get("to_apply")
            return self.every if inner is None else self._computed(inner, taken)
        differs = instruction.opcode in _DIFFERS and not (is_matmul(instruction) or joins_parts(instruction))
        return self.every if differs or instruction.opcode.startswith("async-") else joined(taken)

    def _looped(self, body: Computation | None, condition: Computation | None, state: Value) -> Value:
        """What a loop's state varies over after any number of turns, if that is the same number everywhere."""
        for _ in range(MOST_TURNS):
            if body is None or condition is None or joined((self._computed(condition, (state,)),)):
                break
            after = merged(state, self._computed(body, (state,)))
            if after == state:
                return state
            state = after
        return self.every

    def _collective(self, computation: Computation, instruction: Instruction, taken: Axes) -> Value:
        found = self.collectives.get((computation.name, instruction.name))
        if found is None:
            return taken if instruction.opcode.endswith(("-done", "-update")) else self.every
        key = computation.name, instruction.name
        self.of[key] = self.of.get(key, NONE) | taken
        over = frozenset(found.axes) & self.every  # of a part of an axis nothing is known
        evens_out = found.kind in ("all-reduce", "all-gather") and len(over) == len(found.axes)
        return taken - over if evens_out else taken | self.every


def joined(values: Sequence[Value]) -> Axes:
    """All axes that any of these values varies over."""
    return NONE.union(*(joined(value) if isinstance(value, tuple) else value for value in values))


def merged(one: Value, other: Value) -> Value:
    """Two values as one that varies over the axes of both, tuples element by element."""
    if isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
        return tuple(merged(a, b) for a, b in zip(one, other, strict=True))
    return joined((one, other))
