"""Other ways between two layouts that a program passes: one move, or a permute and a move, instead of several moves.

Only here do permutes lead to other axes, or to more parts: where no shard that a device is to have is cut over two.

A search adds up what moves take by themselves, and finds the best program through each layout. Where a step stands may make it
slower or faster: a gather and a slice that ends a program take longer than the all-to-all between the same layouts, and a
permute that is followed link by link may take less.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from shardwise.layout import Layout
from shardwise.mesh import Mesh
from shardwise.planning.graph import Move, State, arrangements, graph_of, layout_of, permute, state_of, step_of
from shardwise.program import Program, relayout
from shardwise.steps import Collective, CollectivePermute, Einsum, Slice, Step, touched

Path = tuple[Move, ...]


class Shortcut(NamedTuple):
    """Other steps in place of those of a program from `first` to before `last`, which move one array.

    `layouts` are those that the array passes: before each of the steps, and in the end.
    """

    program: Program
    first: int
    last: int
    steps: tuple[Collective | Slice, ...]
    layouts: tuple[Layout, ...]

    def taken(self) -> Program:
        """The program that takes it."""
        steps = self.program.steps
        return self.program.with_steps((*steps[: self.first], *self.steps, *steps[self.last :]))


@functools.lru_cache(maxsize=256)
def shortcuts(program: Program) -> tuple[Shortcut, ...]:
    """At most two moves of an array, of which one is a permute, in place of several.

    One to other axes stands alone, or replaces all moves of a run.

    >>> from shardwise.layout import Layout
    >>> from shardwise.mesh import Mesh
    >>> from shardwise.steps import AllGather, Slice
    >>> steps = (AllGather("A", "J", ("x",)), Slice("A", "I", ("x",)))
    >>> slow = Program(Mesh.parse("x=4"), (("A", Layout.parse("I, J_x")),), steps, "A")
    >>> [each.taken().steps for each in shortcuts(slow)]
    [(AllToAll(array='A', source_dim='J', target_dim='I', axes=('x',)),)]
    """
    return tuple(_shortcuts(program))


def _shortcuts(program: Program) -> Iterator[Shortcut]:
    states = program.states()
    for first, last in _runs(program.steps):
        array = touched(program.steps[first])
        names = states[first][array].names
        passed = [state_of(layouts[array]) for layouts in states[first : last + 1]]
        for start, end in itertools.combinations(range(len(passed)), 2):
            if end - start < 2:
                continue
            ends, most = (passed[start], passed[end], program.mesh.axes), 2 if 2 < end - start == last - first else 1
            for path in (*paths(*ends), *(path for path in wide_paths(*ends) if len(path) <= most)):
                before = (passed[start], *(move.after for move in path))
                steps = tuple([step_of(*each, array, names, program.mesh) for each in zip(path, before, strict=False)])
                if len(steps) < end - start or steps != program.steps[first + start : first + end]:
                    layouts = tuple([layout_of(state, names) for state in before])
                    for each in _matched(steps, layouts, array, program.mesh):
                        yield Shortcut(program, first + start, first + end, each, layouts)


def _matched(
    steps: tuple[Collective | Slice, ...], layouts: Sequence[Layout], array: str, mesh: Mesh
) -> Iterator[tuple[Collective | Slice, ...]]:  # fmt: skip
    """The steps, and with a permute whose devices do not keep what they hold, where there is a choice."""
    yield steps
    for place, (step, before) in enumerate(zip(steps, layouts, strict=False)):
        if isinstance(step, CollectivePermute) and set(before.axes) != set(step.layout.axes):
            other = relayout(array, before, step.layout, mesh, keeps=False)
            if other != step:
                yield (*steps[:place], other, *steps[place + 1 :])


def _runs(steps: tuple[Step, ...]) -> Iterator[tuple[int, int]]:
    """The first and the last place, exclusive, of moves of one array after each other."""
    for array, places in itertools.groupby(
        range(len(steps)), lambda k: None if isinstance(steps[k], Einsum) else touched(steps[k])
    ):
        run = list(places)
        if array is not None and len(run) > 1:
            yield run[0], run[-1] + 1


@functools.lru_cache(maxsize=4096)
def paths(before: State, after: State, mesh_axes: tuple[tuple[str, int], ...]) -> tuple[Path, ...]:
    """One move from a layout to another, and a permute and one move, in either order."""
    axes = tuple(name for name, size in mesh_axes if size > 1)
    sizes = tuple((name, size) for name, size in mesh_axes if size > 1)
    graph = graph_of(axes)

    def moves(state: State) -> Iterator[Move]:
        return (arc.move for arc in graph.arcs(graph.vertex(state)))

    def arranged(state: State) -> Iterator[State]:
        return ((dims, state[1]) for dims in arrangements(state, sizes) if dims != state[0])

    found = [(move,) for move in moves(before) if move.after == after]
    found += [(permute(before, after, axes),) for other in arranged(before) if other == after]
    found += [
        (permute(before, middle, axes), move) for middle in arranged(before) for move in moves(middle) if move.after == after
    ]
    around = set(arranged(after))
    found += [(move, permute(move.after, after, axes)) for move in moves(before) if move.after in around]
    return tuple(found)


@functools.lru_cache(maxsize=4096)
def wide_paths(before: State, after: State, mesh_axes: tuple[tuple[str, int], ...]) -> tuple[Path, ...]:
    """One permute to other axes, or to more parts, from a layout to another; and one with another move, in either order."""
    extents = {name: size for name, size in mesh_axes if size > 1}
    axes = tuple(extents)
    graph = graph_of(axes)
    found: list[Path] = [(permute(before, after, axes),)] if leads(before, after, extents) else []
    moves = (arc.move for arc in graph.arcs(graph.vertex(before)))
    found += [(move, permute(move.after, after, axes)) for move in moves if leads(move.after, after, extents)]
    arcs = graph.arcs_into(graph.vertex(after), ())
    found += [
        (permute(before, arc.other.state, axes), arc.move)
        for arc in arcs
        if leads(before, arc.other.state, extents) and _divides(arc.other.state, (before, after), extents)
    ]
    return tuple(found)


def _divides(middle: State, ends: tuple[State, State], extents: Mapping[str, int]) -> bool:
    """Whether what the layouts around divide the one between does."""
    parts = [[math.prod(extents[axis] for axis in axes) for axes in state[0]] for state in (middle, *ends)]
    return all(first % between == 0 or last % between == 0 for between, first, last in zip(*parts, strict=True))


def leads(before: State, after: State, extents: Mapping[str, int]) -> bool:
    """Whether a permute leads to other axes, or to more parts, none of which lies in two; and no slice does."""
    splits = list(zip(before[0], after[0], strict=True))
    if before[1] != after[1] or {a for old, _ in splits for a in old} == {a for _, new in splits for a in new}:
        return False
    parts = ((math.prod(extents[a] for a in old), math.prod(extents[a] for a in new)) for old, new in splits)
    return not any(many % few for few, many in parts) and any(new[: len(old)] != old for old, new in splits)
