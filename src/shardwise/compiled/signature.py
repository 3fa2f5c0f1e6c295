"""Types of arguments as text, in JAX's own way to write them: `bfloat16[8192@x,1024] float32[16,8@(x,y)] int32[]`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from shardwise.compiled.text.shapes import DTYPES
from shardwise.errors import LayoutError, NotationError, did_you_mean, pointed
from shardwise.layout import Axes
from shardwise.mesh import AXIS_NAME, Mesh

NAMES = {name for name, _ in DTYPES.values()} - {"token", "opaque"}
# What jaxprs and compiled texts abbreviate: i32 and s32 are int32.
SHORT = {short: name for short, (name, _) in DTYPES.items() if name in NAMES}
SHORT |= {f"i{name.removeprefix('int')}": name for name in NAMES if name.startswith("int")}
_DTYPE = re.compile(r"[A-Za-z_][\w<>]*")
_SIZE = re.compile(r"[0-9]+")
EXAMPLE = "bfloat16[8192@x,1024] int32[]"


@dataclass(frozen=True, slots=True)
class ArrayType:
    """The dtype of an array, its sizes, and for each dimension the mesh axes that split it, major first."""

    dtype: str
    shape: tuple[int, ...]
    axes: tuple[Axes, ...]

    def __str__(self) -> str:
        dims = [f"{size}{_axes_text(axes)}" for size, axes in zip(self.shape, self.axes, strict=True)]
        return f"{self.dtype}[{','.join(dims)}]"


def _axes_text(axes: Axes) -> str:
    return "" if not axes else f"@{axes[0]}" if len(axes) == 1 else f"@({','.join(axes)})"


def parse_types(text: str) -> tuple[ArrayType, ...]:
    """Read the types of arguments, blanks or commas between them.

    >>> parse_types("bf16[8192@x, 1024] float32[16,8@(x,y)]")[1]
    ArrayType(dtype='float32', shape=(16, 8), axes=((), ('x', 'y')))
    >>> print(*parse_types("bf16[8192@x, 1024] float32[16,8@(x,y)]"))
    bfloat16[8192@x,1024] float32[16,8@(x,y)]

    Raises:
        NotationError: the text is none; it is shown with a caret under the fault.
    """
    reader = _Reader(text)
    found = []
    while reader.peek():
        found.append(reader.array())
        reader.take(",")
    return tuple(found)


def check_on(types: Sequence[ArrayType], mesh: Mesh | None) -> None:
    """Check that a mesh has the axes, and that they divide the sizes.

    Raises:
        LayoutError: they do not, or no mesh is given and one is needed.
    """
    for each in types:
        for size, axes in zip(each.shape, each.axes, strict=True):
            if axes and mesh is None:
                raise LayoutError(f"{each} is split over {', '.join(axes)}: give the mesh, as --mesh {axes[0]}=4")
            if mesh is not None and (unknown := [axis for axis in axes if axis not in mesh.names]):
                raise LayoutError(f"{each}: {mesh.unknown(unknown[0])}")
            if mesh is not None and size % mesh.extent(axes):
                over = f"{mesh.extent(axes)} devices along {', '.join(axes)}"
                raise LayoutError(f"{each}: size {size} is not a multiple of {over}: each device holds an equal part")


class _Reader:
    """A cursor over the text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def fail(self, position: int, what: str, fix: str) -> NoReturn:
        raise NotationError(pointed(self.text, position, what, fix))

    def peek(self) -> str:
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1
        return self.text[self.at : self.at + 1]

    def take(self, word: str) -> bool:
        found = self.peek() == word
        self.at += found
        return found

    def match(self, pattern: re.Pattern[str]) -> str | None:
        self.peek()
        found = pattern.match(self.text, self.at)
        if found is None:
            return None
        self.at = found.end()
        return found[0]

    def found(self) -> str:
        return repr(self.peek()) if self.peek() else "the end"

    def array(self) -> ArrayType:
        """array = DTYPE "[" [ dim { "," dim } ] "]"."""
        self.peek()
        start = self.at
        name = self.match(_DTYPE)
        if name is None:
            self.fail(start, f"expected a dtype, found {self.found()}", f"write one type for each argument, as {EXAMPLE}")
        dtype = SHORT.get(name, name)
        if dtype not in NAMES:
            fix = "use a dtype of JAX, as bfloat16; for keys and trees of arrays give module:function that returns them"
            self.fail(start, f"unknown dtype {name!r}{did_you_mean(name, [*sorted(NAMES), *SHORT])}", fix)
        if not self.take("["):
            self.fail(self.at, f"{name} has no sizes", f"give them in brackets: {name}[8192,1024]; a scalar is {name}[]")
        sizes: list[int] = []
        axes: list[Axes] = []
        owner: dict[str, int] = {}
        while self.peek() not in ("]", ""):
            sizes.append(self.size())
            axes.append(self.axes(owner, len(sizes)) if self.take("@") else ())
            if not self.take(","):
                break
        if not self.take("]"):
            self.fail(self.at, f"expected ',' or ']', found {self.found()}", f"close the bracket, as {EXAMPLE}")
        return ArrayType(dtype, tuple(sizes), tuple(axes))

    def size(self) -> int:
        self.peek()
        start = self.at
        digits = self.match(_SIZE)
        if digits is None or len(digits) > 18:
            found = f"{digits[:18]}..." if digits else self.found()
            self.fail(start, f"expected a size, found {found}", "sizes are whole numbers: [8192,1024]")
        return int(digits)

    def axes(self, owner: dict[str, int], place: int) -> Axes:
        """axes = AXIS | "(" AXIS { "," AXIS } ")"."""
        if not self.take("("):
            return (self.axis(owner, place),)
        found = [self.axis(owner, place)]
        while self.take(","):
            found.append(self.axis(owner, place))
        if not self.take(")"):
            self.fail(self.at, "the axes are not closed", "close the bracket: 8@(x,y)")
        return tuple(found)

    def axis(self, owner: dict[str, int], place: int) -> str:
        self.peek()
        start = self.at
        axis = self.match(AXIS_NAME)
        if axis is None:
            self.fail(start, f"expected a mesh axis behind @, found {self.found()}", "name the axes that split: 8@x or 8@(x,y)")
        if axis in owner:
            self.fail(start, f"mesh axis {axis} splits this array twice", "an axis may appear once in an array: drop one")
        owner[axis] = place
        return axis
