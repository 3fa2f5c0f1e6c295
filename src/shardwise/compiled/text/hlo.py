"""The text of a compiled module, read line by line into computations and instructions; what cannot be read is kept as unread.

The reader takes the forms that XLA's compilers for CPU, GPU and TPU print. It is linear in the text: attributes stay
text until somebody asks for one.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from shardwise.compiled.text import shapes
from shardwise.errors import CompiledTextError, one_line

SHOWN = 120  # characters of a line that cannot be read

_COMPUTATION = re.compile(r"(ENTRY\s+)?%?([^\s(]+)\s*(?:\(.*\)\s*->\s*.*)?\{\s*$")
_INSTRUCTION = re.compile(r"\s*(ROOT\s+)?%?([^\s=]+)\s+=\s+(.*)$", re.DOTALL)
_OPCODE = re.compile(r"\s*([a-zA-Z][\w\-]*)\(")
_OPERAND = re.compile(r"%([^\s,()]+)")
_CALLED = re.compile(r"\b(calls|to_apply|body|condition|true_computation|false_computation|called_computations)=%?([^\s,{}]+)")
_BRANCHES = re.compile(r"\b(?:branch_computations|called_computations|calls)=\{([^}]*)\}")
_QUOTED = re.compile(r'"(?:\\.|[^"\\])*"')
_COMMENT = re.compile(r"/\*.*?\*/")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
TABLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")


@dataclass(frozen=True, slots=True)
class Unread:
    """Something of a compiled text that could not be read: the line (from 1), what stands there, and why."""

    line: int
    text: str
    why: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.why}: {self.text}"


@dataclass(slots=True)
class Instruction:
    """One instruction of a computation; `shape`, `inside` (its brackets) and `attributes` are text as it stands.

    What it takes and what it calls are read from that text when first asked for, once.
    """

    name: str
    opcode: str
    shape: str
    inside: str
    attributes: str
    root: bool
    line: int
    _operands: list[str] | None = field(default=None, init=False, repr=False, compare=False)
    _called: list[tuple[str, str]] | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def operands(self) -> list[str]:
        """The names of the operands."""
        if self._operands is None:
            self._operands = self._read_operands()
        return self._operands

    def called(self) -> list[tuple[str, str]]:
        """The computations that it calls, each with its role: `body`, `condition`, `calls`, `to_apply`, `branch`."""
        if self._called is None:
            self._called = self._read_called()
        return self._called

    def _read_operands(self) -> list[str]:
        if "%" in self.inside:
            return _OPERAND.findall(self.inside)
        if self.opcode in _LITERAL:
            return []
        return [part.split()[-1] for part in shapes.split(_COMMENT.sub("", self.inside))]

    @property
    def cycles(self) -> int | None:
        """The compiler's own estimate, in cycles of the device's clock."""
        match = _CYCLES.search(self.attributes)
        return int(match[1]) if match else None

    def _read_called(self) -> list[tuple[str, str]]:
        if "=" not in self.attributes:
            return []
        plain = _QUOTED.sub('""', self.attributes) if '"' in self.attributes else self.attributes
        found = [(match[1], match[2]) for match in _CALLED.finditer(plain)]
        for match in _BRANCHES.finditer(plain):
            found += [("branch", name.strip().lstrip("%")) for name in match[1].split(",") if name.strip()]
        return [(_ROLES.get(role, role), name) for role, name in found]

    def attribute(self, name: str) -> str | None:
        """The text of one attribute: `attribute("dimensions")` is `{0}`."""
        parts = shapes.split(self.attributes)
        for place, part in enumerate(parts):
            key, equals, value = part.partition("=")
            if equals and key.strip() == name:
                # Groups on a mesh whose devices are in an order of their own: mesh['a'=2,'b'=4], device_ids=(...) {'b'}
                more = [
                    each
                    for each in parts[place + 1 : place + 2]
                    if value.startswith("mesh[") and each.startswith("device_ids=")
                ]
                return ", ".join([value, *more])
        return None


_LITERAL = ("constant", "parameter", "iota", "partition-id", "replica-id")
_ROLES = {"true_computation": "branch", "false_computation": "branch", "called_computations": "calls"}


@dataclass(slots=True)
class Computation:
    """A list of instructions; those of a scheduled module stand in the order in which they are issued."""

    name: str
    entry: bool
    line: int
    instructions: list[Instruction] = field(default_factory=list)
    _by_name: dict[str, Instruction] = field(default_factory=dict, repr=False)

    @property
    def by_name(self) -> dict[str, Instruction]:
        if len(self._by_name) != len(self.instructions):
            self._by_name = {instruction.name: instruction for instruction in self.instructions}
        return self._by_name

    @property
    def root(self) -> Instruction | None:
        return next((i for i in reversed(self.instructions) if i.root), self.instructions[-1] if self.instructions else None)

    def parameters(self) -> dict[int, Instruction]:
        """Its parameters by number."""
        return {int(i.inside): i for i in self.instructions if i.opcode == "parameter" and i.inside.strip().isdigit()}


@dataclass(slots=True)
class Module:
    """A compiled module: its text, its computations by name, the tables of source lines, and what could not be read.

    `trips`: of each loop that was asked about, by its place in the text, how often it runs (`loops.trip_count`).
    """

    name: str
    header: str
    text: str = field(repr=False)
    computations: dict[str, Computation]
    tables: dict[str, dict[int, str]]
    unread: list[Unread]
    trips: dict[tuple[str, str, int], int | None] = field(default_factory=dict, repr=False, compare=False)

    @property
    def entry(self) -> Computation | None:
        return next((c for c in self.computations.values() if c.entry), None)

    @property
    def scheduled(self) -> bool:
        return "is_scheduled=true" in self.header

    @property
    def devices(self) -> int:
        """How many devices run it together."""
        return _devices(self.header)

    def instructions(self) -> Iterator[Instruction]:
        for computation in self.computations.values():
            yield from computation.instructions


@functools.lru_cache(maxsize=16)
def _devices(header: str) -> int:
    """Partitions times replicas, as a header says; it may be long, and each collective asks."""
    count = 1
    for name in ("num_partitions", "replica_count"):
        match = re.search(rf"\b{name}=(\d+)", header)
        count *= int(match[1]) if match else 1
    return count


def read(text: str) -> Module:
    """Read the text of a compiled module, as `compiled.as_text()` gives it.

    >>> module = read('''HloModule jit_f, is_scheduled=true, num_partitions=2
    ...
    ... ENTRY %main (p: f32[4]) -> f32[8] {
    ...   %p = f32[4]{0} parameter(0)
    ...   ROOT %g = f32[8]{0} all-gather(%p), replica_groups={{0,1}}, dimensions={0}
    ... }''')
    >>> module.devices, [instruction.opcode for instruction in module.entry.instructions]
    (2, ['parameter', 'all-gather'])

    Raises:
        CompiledTextError: it does not begin as one does.
    """
    lines = text.split("\n")
    start = next((number for number, line in enumerate(lines) if line.strip()), None)
    if start is None:
        raise CompiledTextError("the text is empty: give that of a compiled module, as compiled.as_text() returns it")
    if not lines[start].startswith("HloModule"):
        seen = one_line(lines[start][:SHOWN])
        raise CompiledTextError(f"a compiled module begins with 'HloModule', and this text with {seen!r}")
    name = re.match(r"HloModule\s+([^\s,]+)", lines[start])
    module = Module(name[1] if name else "?", lines[start], text, {}, {table: {} for table in TABLES}, [])
    _Reader(module).read(lines, start + 1)
    if module.entry is None:
        module.unread.append(Unread(len(lines), module.name, "the module has no ENTRY computation"))
    return module


class _Reader:
    """Where in the text the reading is: in a table, in a computation, or between."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.computation: Computation | None = None
        self.table: dict[int, str] | None = None

    def read(self, lines: list[str], start: int) -> None:
        """Read all lines from one on: computations, tables, and what stands outside of both."""
        number = start
        while number < len(lines):
            line = lines[number]
            number += 1
            if self.computation is not None:
                if line.startswith("}"):
                    self.computation = None
                elif line.strip() and not line.lstrip().startswith("//"):
                    number = self._instruction(lines, number)
            elif line.strip():
                self._outside(line, number)
        if self.computation is not None:
            self._unread(len(lines), self.computation.name, "the text ends inside this computation")

    def _outside(self, line: str, number: int) -> None:
        if line.strip() in self.module.tables:
            self.table = self.module.tables[line.strip()]
            return
        head = line.split(None, 1)
        if self.table is not None and head[0].isdigit() and len(head) == 2:
            self.table[int(head[0])] = head[1]
            return
        match = _COMPUTATION.match(line)
        if not match:
            self._unread(number, line, "no computation begins like this")
            return
        self.table = None
        name = match[2]
        if name in self.module.computations:
            self._unread(number, line, f"a second computation is named {name}")
        self.computation = Computation(name, bool(match[1]), number)
        self.module.computations[name] = self.computation

    def _instruction(self, lines: list[str], number: int) -> int:
        """Read the instruction that begins on the line before `number`; the number of the next line to read."""
        assert self.computation is not None
        text, first = lines[number - 1], number
        # Literals and attributes may go on over lines; the next instruction ends one that nothing closes.
        while number < len(lines) and _goes_on(text) and not _INSTRUCTION.match(lines[number]):
            text += " " + lines[number]
            number += 1
        instruction = parse_instruction(text, first)
        if instruction is not None:
            self.computation.instructions.append(instruction)
        if instruction is None or _goes_on(text):
            self._unread(
                first, text, "no instruction looks like this" if instruction is None else "this instruction has no end"
            )
        return number

    def _unread(self, number: int, text: str, why: str) -> None:
        self.module.unread.append(Unread(number, one_line(text.strip()[:SHOWN]), why))


def _goes_on(text: str) -> bool:
    """Whether a bracket or a quote is still open at the end of a text, or more is to come after a comma."""
    if text.endswith((",", ", ")):
        return True
    if all(text.count(opening) == text.count(closing) for opening, closing in ("()", "{}")) and text.count('"') % 2 == 0:
        return False  # nearly always, and soon told
    bare = _QUOTED.sub("", text)
    return '"' in bare or any(bare.count(opening) > bare.count(closing) for opening, closing in ("()", "{}"))


def parse_instruction(text: str, line: int = 0) -> Instruction | None:
    """Read one instruction, or None where the text is not one."""
    match = _INSTRUCTION.match(text)
    if not match:
        return None
    root, name, rest = match.groups()
    end = _closing(rest, 0) + 1 if rest.startswith("(") else rest.find(" ")
    opcode = _OPCODE.match(rest, end) if end > 0 else None
    if not opcode:
        return None
    close = _closing(rest, opcode.end() - 1)
    if close < 0:
        return None
    return Instruction(
        name, opcode[1], rest[:end], rest[opcode.end() : close], rest[close + 1 :].lstrip(", "), bool(root), line
    )


def _closing(text: str, opening: int) -> int:
    """The position of the bracket that closes the round one at `opening`; -1 where none does."""
    depth, position = 0, opening
    while True:
        close = text.find(")", position)
        if close < 0:
            return -1
        depth += text.count("(", position, close) - 1
        if depth == 0:
            return close
        position = close + 1
