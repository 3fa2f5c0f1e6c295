"""The grammar of the notation: a cursor over a text that gives what stands there, or points at what is wrong."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NoReturn

from shardwise.errors import NotationError, did_you_mean, pointed
from shardwise.mesh import AXIS_NAME

Axes = tuple[str, ...]
MOST_DIMS = 64  # NumPy and JAX have no arrays of more
ARRAY_NAME = re.compile(r"[^\W\d]\w*'*")
DIM_NAME = re.compile(r"[^\W\d_][^\W_]*'*")
_SEPARATORS = "·*@"
_ARROWS = ("->", "→")


@dataclass(frozen=True, slots=True)
class Written:
    """One array as it is written; `free` holds the dimensions written `_?`."""

    name: str
    dims: tuple[tuple[str, Axes], ...]
    unreduced: frozenset[str] = frozenset()
    free: frozenset[str] = frozenset()

    @property
    def names(self) -> tuple[str, ...]:
        """Those of the dimensions."""
        return tuple(dim for dim, _ in self.dims)


class Reader:
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

    def equation(self) -> tuple[list[Written], list[Written]]:
        """Read operands, and behind arrows the stages of the result."""
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
        return operands, stages

    def stage(self, operands: list[Written], first: Written | None) -> Written:
        """Read one stage of the result; its dimensions stand in the operands, and are those of the first stage."""
        self.blank()
        start = self.at
        stage = self.operand(result=True)
        known = {dim for operand in operands for dim in operand.names}
        for dim in stage.names:
            if dim not in known:
                fix = f"name it in an operand; they have {', '.join(sorted(known)) or 'no dimensions'}"
                self.fail(self.places[dim], f"result dimension {dim} comes from nowhere", fix + did_you_mean(dim, known))
        if first and stage.names != first.names:
            what = f"{stage.name} has dimensions {', '.join(stage.names) or 'none'} where {first.name} has "
            self.fail(start, what + (", ".join(first.names) or "none"), "between arrows only the layout may change")
        return stage

    # operand = NAME "[" [ dim { "," dim } ] "]" [ "{U_" axes "}" ]

    def operand(self, result: bool = False) -> Written:
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
        return Written(name, tuple(dims), self.unreduced(dims), frozenset(free))

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
                    fix = "along one axis devices hold parts or partial sums, not both"
                    self.fail(start, f"mesh axis {axis} splits {dim} and is unreduced as well", fix)
        return frozenset(axes)

    def layout(self) -> Written:
        """Read a layout alone, with or without a name and brackets."""
        bracket = re.match(r"\s*(?:[^\W\d]\w*'*)?\s*\[", self.text)
        self.at = bracket.end() if bracket else 0
        dims, _ = self.dims(result=False)
        if bracket and not self.take("]"):
            self.fail(self.at, "the layout is not closed", "close the bracket: ]")
        unreduced = self.unreduced(dims)
        if self.peek():
            self.fail(self.at, f"unexpected {self.peek()!r} in a layout", "write a layout as 'I_x, J'")
        return Written("", tuple(dims), unreduced)
