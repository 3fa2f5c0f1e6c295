"""The notation: `A[I_x, J] · B[J, K_y] -> C[I_x, K_y]`, read once into values, and written back."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NoReturn

from shardwise.errors import SHOWN_CHARACTERS, LayoutError, NotationError, one_line, pointed, quoted
from shardwise.grammar import ARRAY_NAME, Reader, Written
from shardwise.layout import Layout, padded_size, subscript
from shardwise.mesh import LARGEST, Mesh, whole_number


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

    In canonical form `written` is the equation as it was written, with its axes of size 1.
    """

    operands: tuple[Operand, ...]
    result: Operand
    via: tuple[Operand, ...] = ()
    text: str = field(default="", compare=False, repr=False)
    written: Equation | None = field(default=None, compare=False, repr=False)

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
            tuple(map(canonical, self.operands)), canonical(self.result), tuple(map(canonical, self.via)), self.text,
            self.written or self,
        )  # fmt: skip

    def as_written(self, layout: Layout, mesh: Mesh) -> Layout:
        """A layout of the result, with axes of size 1 as the result is written with them; where it is free, as an operand is.

        >>> mesh = Mesh.parse("x=1, y=4")
        >>> equation = parse("A[I_{x,y}, J] · B[J, K] -> C[I_{x,y}, K]").on(mesh)
        >>> print(equation.result, equation.as_written(equation.result.layout, mesh))
        C[I_y, K] [I_{x,y}, K]
        """
        if self.written is None:
            return layout
        dims = []
        for dim, axes in layout.dims:
            said = self.written.operands if dim in self.result.free else (self.written.result,)
            forms = (operand.layout.axes_of(dim) for operand in said if dim in operand.dims)
            alike = (form for form in forms if Layout(((dim, form),)).on(mesh).axes == axes)
            dims.append((dim, next(alike, axes)))
        try:
            return Layout(tuple(dims), layout.unreduced)
        except LayoutError:  # two operands have the same axis of size 1 on two dimensions
            return layout

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
    operands, stages = Reader(text).equation()
    *via, result = map(_operand, stages)
    return Equation(tuple(map(_operand, operands)), result, tuple(via), text)


def _operand(read: Written) -> Operand:
    return Operand(read.name, Layout(read.dims, read.unreduced), read.free)


def parse_operand(text: str) -> Operand:
    """Read one named array, `A[I_x, J]`; without a name it is called A."""
    match = ARRAY_NAME.match(text.strip()) if isinstance(text, str) and "[" in text else None
    return Operand(match[0] if match else "A", Layout.parse(text))


def parse_relayout(text: str) -> Equation:
    """Read an equation that changes the layout of one array, and does nothing else.

    >>> str(parse_relayout("A[I_x, J] -> A[I, J_x]").result)
    'A[I, J_x]'

    Raises:
        NotationError: it does more.
    """
    read = parse(text)
    if len(read.operands) > 1 or read.result.dims != read.operands[0].dims:
        raise NotationError("reshard changes the layout of one array, as A[I_x, J] -> A[I, J_x]: use sw.einsum for the rest")
    return read


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
