"""The notation: `A[I_x, J] · B[J, K_y] -> C[I_x, K_y]`, read once into values, and written back."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NoReturn

from shardwise.errors import SHOWN_CHARACTERS, NotationError, did_you_mean, one_line, pointed, quoted
from shardwise.layout import MOST_DIMS, Axes, Layout, padded_size, subscript
from shardwise.mesh import AXIS_NAME, LARGEST, Mesh, whole_number

ARRAY_NAME = re.compile(r"[^\W\d]\w*'*")
DIM_NAME = re.compile(r"[^\W\d_][^\W_]*'*")
_SEPARATORS = "·*@"
_ARROWS = ("->", "→")


@dataclass(frozen=True, slots=True)
class Operand:
    """A named array with its layout; `free` holds the dimensions written `_?`, whose axes the planner may choose."""

    name: str
    layout: Layout
    free: frozenset[str] = frozenset()

    @property
    def dims(self) -> tuple[str, ...]:
        """Read dimensions up to the closing bracket; those written `_?` apart."""
        return self.layout.names

    def __str__(self) -> str:
        shown = ", ".join(dim + ("_?" if dim in self.free else subscript(axes)) for dim, axes in self.layout.dims)
        unreduced = subscript(sorted(self.layout.unreduced))
        return f"{self.name}[{shown}]" + (f"{{U{unreduced}}}" if unreduced else "")


@dataclass(frozen=True, slots=True)
class Equation:
    """Operands, the layouts that the result passes through on the way, and the result.

    >>> str(parse("A[I_x,J]*B[J,K] -> C[I_x,K]"))
    'A[I_x, J] · B[J, K] -> C[I_x, K]'
    """

    operands: tuple[Operand, ...]
    result: Operand
    via: tuple[Operand, ...] = ()
    text: str = field(default="", compare=False, repr=False)

    def __str__(self) -> str:
        left = " · ".join(str(operand) for operand in self.operands)
        return " -> ".join([left, *(str(stage) for stage in (*self.via, self.result))])

    @property
    def dims(self) -> tuple[str, ...]:
        """Every dimension, in order of appearance."""
        return tuple(dict.fromkeys(dim for operand in self.operands for dim in operand.dims))

    @property
    def contracted(self) -> tuple[str, ...]:
        """The dimensions that are summed over."""
        return tuple(dim for dim in self.dims if dim not in self.result.dims)

    def on(self, mesh: Mesh) -> Equation:
        """The equation in canonical form on a mesh.

        Raises:
            NotationError: it names an axis that the mesh does not have.
        """
        for operand in (*self.operands, *self.via, self.result):
            for axis in (*operand.layout.axes, *sorted(operand.layout.unreduced)):
                if axis not in mesh.names:
                    self._fail_axis(axis, mesh)

        def canonical(operand: Operand) -> Operand:
            return Operand(operand.name, operand.layout.on(mesh), operand.free)

        return Equation(
            tuple(map(canonical, self.operands)), canonical(self.result), tuple(map(canonical, self.via)), self.text
        )

    def _fail_axis(self, axis: str, mesh: Mesh) -> NoReturn:
        text = self.text or str(self)
        # Behind `_`, or within its braces; neither a part of a longer name nor the end of an array's name.
        found = re.search(rf"_\s*(?:\{{(?:[^}}]*,)?\s*)?(?P<axis>{re.escape(axis)})(?!\w|'*\s*\[)", text)
        fix = "`_` introduces mesh axes, and dimension names hold none: use an axis of the mesh, or write dModel for d_model"
        for parts in (axis.split("_"), list(axis)):
            if len(parts) == len(set(parts)) > 1 and set(parts) <= set(mesh.names):
                fix = f"write several axes in braces: {{{','.join(parts)}}}"
        raise NotationError(pointed(text, found.start("axis") if found else 0, mesh.unknown(axis), fix))


def parse(text: str) -> Equation:
    """Read an equation.

    >>> parse("A[I, J_x] · B[J_x, K] -> C[I, K]").contracted
    ('J',)

    Args:
        text: operands, separated by blanks, `·`, `*` or `@`, an arrow `->` or `→`, and a result. The result may
            pass through further layouts, each behind an arrow of its own. `_?` lets the planner choose the axes.

    Raises:
        NotationError: with the text, a caret under the fault, the reason and a way out.
    """
    if not isinstance(text, str):
        raise NotationError(f"an equation is a text such as 'A[I_x, J] · B[J, K] -> C[I_x, K]', not {type(text).__name__}")
    return _Reader(text).equation()


def parse_layout(text: str) -> Layout:
    """Read one layout: `I_x, J`, `[I_x, J]{U_y}` or `A[I_x, J]`."""
    if not isinstance(text, str):
        raise NotationError(f"a layout is a text such as 'I_x, J', not {type(text).__name__}")
    return _Reader(text).lone_layout()


def parse_operand(text: str) -> Operand:
    """Read one named array, `A[I_x, J]`; without a name it is called A."""
    match = ARRAY_NAME.match(text.strip()) if isinstance(text, str) and "[" in text else None
    return Operand(match[0] if match else "A", parse_layout(text))


def parse_sizes(text: str) -> dict[str, int]:
    """Read `I=16384,J=1024`.

    >>> parse_sizes("I=16384, J=1024")
    {'I': 16384, 'J': 1024}
    """
    sizes: dict[str, int] = {}
    said = quoted(text, SHOWN_CHARACTERS)
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = part.partition("=")
        name, digits = name.strip(), value.strip()
        size = whole_number(digits.removeprefix("-"))
        if not equals or not name or size is None:
            wrong = "is too large" if equals and name and digits.isdecimal() else "is no size"
            limit = f"; the largest is {LARGEST:,}" if wrong == "is too large" else ""
            raise NotationError(f"sizes {said}: {quoted(part)} {wrong}; write I=16384,J=1024{limit}")
        if name in sizes:
            raise NotationError(f"sizes {said}: dimension {one_line(name)} has two sizes; give one")
        sizes[name] = -size if digits.startswith("-") else size
    return sizes


def checked_sizes(equation: Equation, shapes: Mapping[int, tuple[int, ...]]) -> dict[str, int]:
    """Give every dimension its one size from the operands' shapes.

    Raises:
        NotationError: two operands disagree; both sizes are named.
    """
    sizes: dict[str, int] = {}
    seen: dict[str, str] = {}
    for index, operand in enumerate(equation.operands):
        for dim, size in zip(operand.dims, shapes[index], strict=True):
            if sizes.setdefault(dim, size) != size:
                raise NotationError(
                    f"dimension {dim} has size {sizes[dim]} in {seen[dim]} and size {size} in {operand.name}: "
                    "a dimension has one size everywhere"
                )
            seen.setdefault(dim, operand.name)
    return sizes


def padded_sizes(operands: Iterable[Operand], sizes: Mapping[str, int], mesh: Mesh) -> dict[str, int]:
    """The smallest sizes that every layout divides: multiples of the parts into which any of them cuts a dimension."""
    parts = dict.fromkeys(sizes, 1)
    for operand in operands:
        for dim, axes in operand.layout.dims:
            if dim in parts:
                parts[dim] = math.lcm(parts[dim], mesh.extent(axes))
    return {dim: padded_size(size, parts[dim]) for dim, size in sizes.items()}


def sizes_padded_on(equation: Equation, sizes: Mapping[str, int], mesh: Mesh) -> dict[str, int]:
    """The smallest sizes that all layouts of an equation divide.

    >>> sizes_padded_on(parse("A[I_x, J] -> A[I, J]"), {"I": 7, "J": 5}, Mesh.parse("x=4"))
    {'I': 8, 'J': 5}
    """
    canonical = equation.on(mesh)
    return padded_sizes((*canonical.operands, *canonical.via, canonical.result), sizes, mesh)


class _Reader:
    """A cursor over the text: each method reads one thing of the grammar and leaves the cursor behind it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.result = False
        self.places: dict[str, int] = {}

    def fail(self, position: int, what: str, fix: str) -> NoReturn:
        raise NotationError(pointed(self.text, position, what, fix))

    def blank(self) -> None:
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1

    def take(self, *words: str) -> bool:
        self.blank()
        for word in words:
            if self.text.startswith(word, self.at):
                self.at += len(word)
                return True
        return False

    def peek(self) -> str:
        self.blank()
        return self.text[self.at : self.at + 1]

    def name(self, pattern: re.Pattern[str]) -> str | None:
        self.blank()
        found = pattern.match(self.text, self.at)
        if found is None:
            return None
        self.at = found.end()
        return found[0]

    # equation = operand { sep operand } arrow result { arrow result }

    def equation(self) -> Equation:
        """Read operands, arrows and results."""
        if not self.text.strip():
            raise NotationError(
                "the equation is empty: write operands, an arrow and a result: A[I_x, J] · B[J, K] -> C[I_x, K]"
            )
        operands = [self.operand()]
        while not self.take(*_ARROWS):
            if not self.peek():
                fix = "say what is wanted behind an arrow: ... -> C[I, K]; `_?` leaves axes to the planner"
                self.fail(len(self.text.rstrip()), "missing arrow", fix)
            self.take(*_SEPARATORS)
            operands.append(self.operand())
        stages = [self.stage(operands, None)]
        while self.take(*_ARROWS):
            stages.append(self.stage(operands, stages[0]))
        if self.peek():
            self.fail(self.at, f"unexpected {self.peek()!r} behind the result", "end the equation here")
        return Equation(tuple(operands), stages[-1], tuple(stages[:-1]), self.text)

    def stage(self, operands: list[Operand], first: Operand | None) -> Operand:
        """Read one stage of the result; its dimensions stand in the operands, and are those of the first stage."""
        self.blank()
        start = self.at
        stage = self.operand(result=True)
        known = {dim for operand in operands for dim in operand.dims}
        for dim in stage.dims:
            if dim not in known:
                fix = f"name it in an operand; they have {', '.join(sorted(known)) or 'no dimensions'}"
                self.fail(self.places[dim], f"result dimension {dim} comes from nowhere", fix + did_you_mean(dim, known))
        if first and stage.dims != first.dims:
            what = f"{stage.name} has dimensions {', '.join(stage.dims) or 'none'} where {first.name} has "
            self.fail(start, what + (", ".join(first.dims) or "none"), "between arrows only the layout may change")
        return stage

    # operand = NAME "[" [ dim { "," dim } ] "]" [ "{U_" axes "}" ]

    def operand(self, result: bool = False) -> Operand:
        """Read one array with its dimensions and partial sums."""
        self.blank()
        start = self.at
        name = self.name(ARRAY_NAME)
        if name is None:
            found = repr(self.peek()) if self.peek() else "the end"
            fix = "write arrays as A[I, J], a blank, ·, * or @ between them, and the arrow as ->"
            self.fail(start, f"expected an array, found {found}", fix)
        if not self.take("["):
            fix = f"give its dimensions in brackets: {name}[I, J]; a scalar has none: {name}[]"
            if "[" not in self.text:
                fix = "give dimensions in brackets: A[I, J]; sw.einsum reads the short form too: ij,jk->ik"
            self.fail(self.at, f"array {name} has no dimensions", fix)
        dims, free = self.dims(result)
        if not self.take("]"):
            found = repr(self.peek()) if self.peek() else "the end"
            fix = "separate dimensions by commas, and close the bracket: A[I, J]"
            self.fail(self.at, f"expected ',' or ']' in array {name}, found {found}", fix)
        return Operand(name, Layout(tuple(dims), self.unreduced(dims)), frozenset(free))

    def dims(self, result: bool) -> tuple[list[tuple[str, Axes]], list[str]]:
        """Read dimensions up to the closing bracket; of a result, those written `_?` apart."""
        dims: list[tuple[str, Axes]] = []
        free: list[str] = []
        owner: dict[str, str] = {}
        self.places = {}
        while self.peek() not in ("]", ""):
            start = self.at
            dim = self.name(DIM_NAME)
            if dim is None:
                self.fail(start, f"expected a dimension, found {self.peek()!r}", "name a dimension with letters: I, Batch")
            if len(dims) == MOST_DIMS:
                self.fail(start, f"an array of more than {MOST_DIMS} dimensions", "NumPy and JAX have none: join some of them")
            if dim in self.places:
                fix = "name each dimension once; take a diagonal with jnp.diagonal first"
                if self.peek() == "_":
                    fix = "name each dimension once; `_` introduces mesh axes: write dModel for a dimension d_model"
                self.fail(start, f"dimension {dim} stands twice in one array", fix)
            self.places[dim] = start
            axes: Axes = ()
            self.result = result
            if self.take("_?"):
                if not result:
                    where = "an operand" if any(arrow in self.text for arrow in _ARROWS) else "a layout"
                    self.fail(start, f"`_?` stands in {where}", "only an equation's result may leave its axes to the planner")
                free.append(dim)
            elif self.take("_"):
                axes = self.axes(dim, owner)
            dims.append((dim, axes))
            if not self.take(","):
                break
        return dims, free

    # axes = AXIS | "{" AXIS { "," AXIS } "}"

    def axes(self, dim: str, owner: dict[str, str]) -> Axes:
        """Read the axes behind `_`."""
        if not self.take("{"):
            return (self.axis(dim, owner),)
        axes = [self.axis(dim, owner)]
        while self.take(","):
            axes.append(self.axis(dim, owner))
        if not self.take("}"):
            self.fail(self.at, f"the axes of {dim} are not closed", "close the brace: }")
        return tuple(axes)

    def axis(self, dim: str, owner: dict[str, str]) -> str:
        """Read one axis; it may stand once in an array."""
        self.blank()
        start = self.at
        axis = self.name(AXIS_NAME)
        if axis is None:
            fix = f"name the mesh axes that split {dim}: {dim}_x or {dim}_{{x,y}}"
            self.fail(start, f"no mesh axis behind {dim}_", fix)
        if axis in owner:
            both = f"{dim} twice" if owner[axis] == dim else f"both {owner[axis]} and {dim}"
            fix = "an axis may appear once in an array: drop one, or use another axis"
            if self.result and owner[axis] != dim:
                fix = (
                    f"each device would hold a block on the diagonal only, and most of the result nobody: "
                    f"split {owner[axis]} or {dim} over {axis}, not both"
                )
            self.fail(start, f"mesh axis {axis} splits {both}", fix)
        owner[axis] = dim
        return axis

    def unreduced(self, dims: list[tuple[str, Axes]]) -> frozenset[str]:
        """Read `{U_x}`, if it stands here."""
        if not self.take("{"):
            return frozenset()
        if not self.take("U_"):
            fix = "write the axes of partial sums as {U_x} or {U_{x,y}}"
            self.fail(self.at, "only partial sums stand in braces behind an array", fix)
        start = self.at
        owner: dict[str, str] = {}
        axes = self.axes("U", owner)
        if not self.take("}"):
            self.fail(self.at, "the partial sums are not closed", "close the brace: }")
        for dim, split in dims:
            for axis in axes:
                if axis in split:
                    fix = "along one axis devices hold parts or summands, not both"
                    self.fail(start, f"mesh axis {axis} splits {dim} and is unreduced as well", fix)
        return frozenset(axes)

    def lone_layout(self) -> Layout:
        """Read a layout alone, with or without a name and brackets."""
        named = re.match(r"\s*(?:[^\W\d]\w*'*)?\s*\[", self.text)
        if named is None:
            dims, _ = self.dims(result=False)
            layout = Layout(tuple(dims), self.unreduced(dims))
        else:
            self.at = named.end()
            dims, _ = self.dims(result=False)
            if not self.take("]"):
                self.fail(self.at, "the layout is not closed", "close the bracket: ]")
            layout = Layout(tuple(dims), self.unreduced(dims))
        if self.peek():
            self.fail(self.at, f"unexpected {self.peek()!r} in a layout", "write a layout as 'I_x, J'")
        return layout
