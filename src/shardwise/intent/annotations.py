"""Shardy's annotations as our words: layouts, where their axes come from, frames of the user's program."""

from __future__ import annotations

import functools
import re

from shardwise.compiled.text.sources import Frame
from shardwise.layout import Layout
from shardwise.mesh import Mesh

_SHARDING = re.compile(r"<@?[^,<>]*, \[([^\]]*)\]([^<>]*)>")
_DIM = re.compile(r"\{([^{}]*)\}")
_AXIS = re.compile(r'"([^"]+)"(:\(\d+\)\d+)?')
_UNREDUCED = re.compile(r"unreduced=\{([^{}]*)\}")
_ORIGIN = re.compile(r'"?([\w:()]+)"?\s*=\s*"([^"]*)"')
_DICTIONARY = re.compile(r"\{([^{}]*)\}")
_MESH = re.compile(r'"([^"]+)"=(\d+)')
_FRAME = re.compile(r'"((?:[^"\\]|\\.)*)"\("((?:[^"\\]|\\.)*)":(\d+)(?::\d+)?')
_SCOPE = re.compile(r'^loc\("((?:[^"\\]|\\.)*)"(?!:\d)')


@functools.lru_cache(maxsize=8192)
def layouts_in(text: str) -> tuple[Layout, ...]:
    """The layouts that an annotation writes, one for each array; their dimensions are I, J, K ... in order.

    >>> [str(each) for each in layouts_in('#sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>, <@mesh, [{"y":(1)2, ?}]>]>')]
    ['[I_x, J]', '[I_y:(1)2]']
    """
    found = []
    for dims, rest in _SHARDING.findall(text):
        axes = [tuple(name + part for name, part in _AXIS.findall(dim)) for dim in _DIM.findall(dims)]
        unreduced = _UNREDUCED.search(rest)
        layout = Layout.from_spec([each or None for each in axes])
        sums = frozenset(name + part for name, part in _AXIS.findall(unreduced[1])) if unreduced else frozenset[str]()
        found.append(Layout(layout.dims, sums))
    return tuple(found)


@functools.lru_cache(maxsize=64)
def whole(rank: int) -> Layout:
    """The layout of an array that every device holds whole."""
    return Layout.from_spec([None] * rank)


def origins_in(text: str) -> tuple[dict[str, str], ...]:
    """For each array the annotation that each axis of its layout comes from, as Shardy calls it.

    >>> origins_in('[{x = "input: 3", y = "constraint_0"}, {}]')
    ({'x': 'input: 3', 'y': 'constraint_0'}, {})
    """
    return tuple(dict(_ORIGIN.findall(each)) for each in _DICTIONARY.findall(text))


def mesh_in(text: str) -> Mesh:
    """A mesh as Shardy writes it.

    >>> str(mesh_in('#sdy.mesh<["x"=4, "y"=2]>'))
    'x=4, y=2'
    """
    return Mesh(tuple((name, int(size)) for name, size in _MESH.findall(text)))


def axes_in(text: str) -> tuple[str, ...]:
    """The axes that a list of them names."""
    return tuple(name + part for name, part in _AXIS.findall(text))


@functools.lru_cache(maxsize=8192)
def frames_in(location: str) -> tuple[Frame, ...]:
    """The lines that a location names, innermost first.

    >>> [str(each) for each in frames_in('loc("jit(f)/dot"(callsite("f"("a.py":3:4 to :9) at "main"("b.py":1:0 to :5))))')]
    ['a.py:3', 'b.py:1']
    """
    return tuple(Frame(file, int(line), function) for function, file, line in _FRAME.findall(location))


@functools.lru_cache(maxsize=8192)
def scope_in(location: str) -> str:
    """JAX's name of an operation.

    >>> scope_in('loc("jit(f)/dot_general"(callsite("f"("a.py":3:4 to :9) at unknown)))')
    'jit(f)/dot_general'
    """
    found = _SCOPE.match(location)
    return found[1] if found else ""
