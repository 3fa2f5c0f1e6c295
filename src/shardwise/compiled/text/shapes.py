"""Shapes as compiled texts write them: `bf16[8,512]{1,0:T(8,128)(2,1)S(1)}`, and tuples of them."""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass

# XLA's name of a dtype -> (JAX's name, bits of an element)
DTYPES = {
    "pred": ("bool", 8), "token": ("token", 0), "opaque": ("opaque", 0),
    "s2": ("int2", 2), "s4": ("int4", 4), "s8": ("int8", 8), "s16": ("int16", 16), "s32": ("int32", 32), "s64": ("int64", 64),
    "u2": ("uint2", 2), "u4": ("uint4", 4), "u8": ("uint8", 8), "u16": ("uint16", 16), "u32": ("uint32", 32),
    "u64": ("uint64", 64),
    "f16": ("float16", 16), "bf16": ("bfloat16", 16), "f32": ("float32", 32), "f64": ("float64", 64),
    "c64": ("complex64", 64), "c128": ("complex128", 128),
    "f4e2m1fn": ("float4_e2m1fn", 4), "f8e3m4": ("float8_e3m4", 8), "f8e4m3": ("float8_e4m3", 8),
    "f8e4m3fn": ("float8_e4m3fn", 8), "f8e4m3b11fnuz": ("float8_e4m3b11fnuz", 8), "f8e4m3fnuz": ("float8_e4m3fnuz", 8),
    "f8e5m2": ("float8_e5m2", 8), "f8e5m2fnuz": ("float8_e5m2fnuz", 8), "f8e8m0fnu": ("float8_e8m0fnu", 8),
}  # fmt: skip

BITS = dict(DTYPES.values())

_ARRAY = re.compile(r"([a-z][a-z0-9]*)\[([\d,<=? ]*)\](\{[^}]*\})?$")
_SPACE = re.compile(r"S\((\d+)\)")


class UnreadShapeError(ValueError):
    """A shape that cannot be read, or whose dtype is not known; the caller reports it as unread."""


@dataclass(frozen=True, slots=True)
class Array:
    """One array of a compiled program: JAX's name of its dtype, its dimensions, and the memory space it lives in.

    Memory space 0 is the device's main memory; others are on the chip.
    """

    dtype: str
    dims: tuple[int, ...]
    bits: int
    space: int = 0

    @property
    def bytes(self) -> int:
        """The bytes of all elements, without the padding of a tiled layout."""
        return -(-math.prod(self.dims) * self.bits // 8)

    @property
    def elements(self) -> int:
        return math.prod(self.dims)


Shape = Array | tuple["Shape", ...]


@functools.lru_cache(maxsize=1 << 16)
def parse(text: str) -> Shape:
    """Read one shape.

    >>> parse("(bf16[8,512]{1,0:T(8,128)(2,1)S(1)}, u32[])")
    (Array(dtype='bfloat16', dims=(8, 512), bits=16, space=1), Array(dtype='uint32', dims=(), bits=32, space=0))

    Raises:
        UnreadShapeError: it is not one, or its dtype is not known.
    """
    text = re.sub(r"/\*.*?\*/", "", text).strip()
    if text.startswith("(") and text.endswith(")"):
        return tuple(parse(part) for part in split(text[1:-1]))
    match = _ARRAY.match(text)
    if not match:
        raise UnreadShapeError(f"{text[:80]!r} is no shape that is known")
    dtype, dims, layout = match.groups()
    if dtype not in DTYPES:
        raise UnreadShapeError(f"dtype {dtype} of {text[:80]} is not known")
    name, bits = DTYPES[dtype]
    space = _SPACE.search(layout or "")
    sizes = tuple(int(size.replace("<=", "")) for size in dims.replace(" ", "").split(",") if size)
    return Array(name, sizes, bits, int(space[1]) if space else 0)


def split(text: str, separator: str = ",") -> list[str]:
    """Split at separators that stand outside of all brackets and quotes.

    >>> split('a, (b, c), d={e,f}, g="h,i"')
    ['a', '(b, c)', 'd={e,f}', 'g="h,i"']
    """
    parts, depth, start, quoted = [], 0, 0, False
    for match in re.finditer(r'\\.|["(){}\[\]]|' + re.escape(separator), text):
        found = match[0]
        if found == '"':
            quoted = not quoted
        elif quoted or found[0] == "\\":
            continue
        elif found in "({[":
            depth += 1
        elif found in ")}]":
            depth -= 1
        elif depth == 0:
            parts.append(text[start : match.start()].strip())
            start = match.end()
    parts.append(text[start:].strip())
    return [part for part in parts if part]


def leaves(shape: Shape) -> list[Array]:
    """The arrays of a shape, tuples opened."""
    return [shape] if isinstance(shape, Array) else [leaf for part in shape for leaf in leaves(part)]


def first(text: str) -> Array:
    """The array of a shape as text; of a tuple (a result with its workspace) the first."""
    return leaves(parse(text))[0]
