"""Walking a module as it runs: which computations are entered from which, and how often."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from shardwise.compiled.text.hlo import Computation, Instruction, Module, Unread
from shardwise.compiled.text.loops import trip_count
from shardwise.compiled.text.stated import stated_cost

MOST_DEPTH = 200
SCHEDULES = ("while", "conditional", "call")  # run computations that have a schedule of their own
WRAPS = ("fusion", "fusion-start", "async-start", "call-start", "custom-call")  # run computations as one instruction
RUNS = SCHEDULES + WRAPS
KINDS = (
    "all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute", "ragged-all-to-all",
    "collective-broadcast",
)  # fmt: skip
MATMULS = ("dot", "convolution", "ragged-dot", "scaled-dot")
# Calls into the vendors' libraries of matmuls.
MATMUL_CALLS = ("__cublas$", "__cudnn$conv", "__triton_gemm", "__onednn$matmul", "__onednn$convolution")


@dataclass(frozen=True, slots=True)
class Visit:
    """One computation that runs: how often in one call of the program, and the instructions that lead to it.

    `slice`: the one slice whose devices run it, where each slice has a branch of its own; None where all do.
    """

    computation: Computation
    trips: int | None
    path: tuple[Instruction, ...] = ()
    slice: int | None = None

    @property
    def caller(self) -> Instruction | None:
        return self.path[-1] if self.path else None


def visits(module: Module, seen: Survey, unread: list[Unread]) -> Iterator[Visit]:
    """Every computation that is scheduled: the entry, and what loops, branches and calls run, with its trips.

    What fusions and asynchronous wrappers hold is part of the instruction that stands in the schedule (`inside`).
    What is not known of trips and branches is added to `unread`.
    """
    pending = [Visit(module.entry, 1)] if module.entry else []
    while pending:
        visit = pending.pop()
        yield visit
        if len(visit.path) > MOST_DEPTH:
            unread.append(Unread(visit.computation.line, visit.computation.name, f"calls are nested deeper than {MOST_DEPTH}"))
            continue
        calls = [i for i in visit.computation.instructions if i.opcode in SCHEDULES]
        inner = [found for instruction in calls for found in _entered(module, seen, visit, instruction, unread)]
        pending += reversed(inner)


def _entered(module: Module, seen: Survey, visit: Visit, instruction: Instruction, unread: list[Unread]) -> Iterator[Visit]:
    trips = visit.trips
    talks = seen.talks(instruction)
    if instruction.opcode == "while":
        turns = trip_count(module, visit.computation, instruction)
        if turns is None and talks:
            unread.append(
                Unread(instruction.line, instruction.name, "the trips of this loop are not known, it is counted once")
            )
        trips = None if turns is None or trips is None else trips * turns
    sliced = is_by_slice(visit.computation, instruction)
    if instruction.opcode == "conditional" and talks and not sliced:
        why = "which branch runs is not known, the collectives of each are counted"
        unread.append(Unread(instruction.line, instruction.name, why))
    last = len(instruction.called()) - 1
    for number, (role, name) in enumerate(instruction.called()):
        if sliced and visit.slice is not None and number != min(visit.slice, last):
            continue  # within a branch of one slice, that slice's branch alone runs
        if name not in module.computations:
            unread.append(Unread(instruction.line, instruction.name, f"there is no computation {name}, which it calls"))
        elif role != "condition" or name in seen.talking:
            own = number if sliced and visit.slice is None else visit.slice
            yield Visit(module.computations[name], trips, (*visit.path, instruction), own)


def is_by_slice(home: Computation, instruction: Instruction) -> bool:
    """Whether an instruction chooses among branches by the slice that a device is of: each device runs one, always the same."""
    if instruction.opcode != "conditional" or not instruction.operands:
        return False
    index = home.by_name.get(instruction.operands[0])
    for _ in home.instructions:
        if index is None or index.opcode not in ("convert", "bitcast", "bitcast-convert", "copy", "reshape"):
            break
        index = home.by_name.get(next(iter(index.operands), ""))
    return index is not None and index.opcode == "custom-call" and 'custom_call_target="SliceId"' in index.attributes


def inside(module: Module, instruction: Instruction) -> list[Computation]:
    """The computations that a fusion or an asynchronous wrapper holds, nested ones too, innermost last."""
    found: list[Computation] = []
    pending = [instruction] if instruction.opcode in WRAPS else []
    while pending:
        for _, name in pending.pop().called():
            computation = module.computations.get(name)
            if computation is not None and computation not in found and len(found) < MOST_DEPTH:
                found.append(computation)
                pending += [i for i in computation.instructions if i.opcode in (*WRAPS, "call")]
    return found


def is_collective(opcode: str) -> bool:
    """Whether an opcode names a collective, or the start of one."""
    return opcode.removesuffix("-start") in KINDS


def is_matmul(instruction: Instruction) -> bool:
    """Whether an instruction itself is a matmul: a dot, a convolution, or a kernel that states FLOPs."""
    if instruction.opcode == "custom-call":
        cost = stated_cost(instruction)
        return cost.flops > 0 if cost else any(f'custom_call_target="{c}' in instruction.attributes for c in MATMUL_CALLS)
    return instruction.opcode in MATMULS


@dataclass(frozen=True, slots=True)
class Survey:
    """The computations of a module that hold a collective, or a matmul, themselves or in what they call."""

    talking: frozenset[str]
    multiplying: frozenset[str]

    def talks(self, instruction: Instruction) -> bool:
        """Whether an instruction is a collective, or runs one."""
        return is_collective(instruction.opcode) or self._runs(instruction, self.talking)

    def multiplies(self, instruction: Instruction) -> bool:
        """Whether an instruction is a matmul, or runs one."""
        return is_matmul(instruction) or self._runs(instruction, self.multiplying)

    def _runs(self, instruction: Instruction, those: frozenset[str]) -> bool:
        return instruction.opcode in RUNS and any(name in those for _, name in instruction.called())


def survey(module: Module) -> Survey:
    """Look at every instruction once."""
    callers: dict[str, list[str]] = {}
    talking, multiplying = set[str](), set[str]()
    for name, computation in module.computations.items():
        for instruction in computation.instructions:
            if is_collective(instruction.opcode):
                talking.add(name)
            if is_matmul(instruction):
                multiplying.add(name)
            if instruction.opcode in RUNS:
                for _, called in instruction.called():
                    callers.setdefault(called, []).append(name)
    return Survey(_with_callers(talking, callers), _with_callers(multiplying, callers))


def _with_callers(names: set[str], callers: dict[str, list[str]]) -> frozenset[str]:
    pending = list(names)
    while pending:
        for caller in callers.get(pending.pop(), ()):
            if caller not in names:
                names.add(caller)
                pending.append(caller)
    return frozenset(names)
