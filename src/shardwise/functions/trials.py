"""Ways out, tried: a function is propagated again with another layout somewhere, and its cost is compared."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from shardwise.compiled.facts import Line
from shardwise.functions.causes import Cause
from shardwise.functions.diagnosis import RemedyKind
from shardwise.functions.holding import last_name
from shardwise.functions.pasting import constrained
from shardwise.functions.pricing import Totals, Where, price, totals
from shardwise.intent.flowgraph import Constraint, Graph, Operation, Value, root_of
from shardwise.intent.movements import Movement, movements
from shardwise.intent.propagation import Intended
from shardwise.intent.shardy import ArgumentLaid, Change, ConstraintLaid, InsideLaid, NoPassesError, ResultLaid
from shardwise.layout import Axes, Layout, splits

MOST_LAYOUTS = 12  # that are tried of one array
# What loops, slices and lookups make on the way has no name of the user's own.
_UNNAMED = frozenset({"constant", "iota", "dynamic_slice", "dynamic_update_slice", "broadcast_in_dim", "compare"})
MOST_GROWN = 1.02  # how much more arguments may take, and matmuls
MOST_WRITTEN = 1.25  # and all arrays that are made
LEAST_WON = 0.01  # of the seconds that the function moves data
Key = tuple[str, tuple[int, ...], str]


@dataclass(frozen=True, slots=True)
class Trial:
    """A change that may help: where, and to which layout (None drops a constraint)."""

    kind: RemedyKind
    changes: tuple[Change, ...]
    layout: Layout | None
    line: Line | None = None
    arguments: tuple[int, ...] = ()
    dtype: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a trial came to: the totals, and what each line still moves of each shape."""

    trial: Trial
    totals: Totals
    left: dict[Key, float] = field(hash=False)


def key_of(moved: Movement) -> Key:
    """By what movements before and after a change are held against each other: line, shape and dtype."""
    return (str(moved.line), moved.shape, moved.dtype)


def outcome(intended: Intended, trial: Trial, where: Where) -> Outcome | None:
    """Propagate again with a change; None where the passes refuse it."""
    try:
        graph = intended.graph(trial.changes)
    except NoPassesError:
        return None
    moved = movements(graph)
    return Outcome(trial, totals(graph, where, moved), bytes_left(graph, moved, where))


def bytes_left(graph: Graph, moved: Sequence[Movement], where: Where) -> dict[Key, float]:
    """What each line moves of each shape, in bytes."""
    found: dict[Key, float] = {}
    for each in moved:
        found[key_of(each)] = found.get(key_of(each), 0.0) + price(each, graph.mesh, where).wire_bytes * (each.trips or 1)
    return found


def helps(before: Totals, after: Totals) -> bool:
    """Whether a function costs less, and neither repeats work nor holds more."""
    return (
        after.moving_seconds < before.moving_seconds * (1 - LEAST_WON)
        and after.wire_bytes < before.wire_bytes
        and after.seconds < before.seconds
        and after.writing_seconds <= before.writing_seconds * MOST_WRITTEN
        and after.argument_bytes <= before.argument_bytes * MOST_GROWN
        and after.multiplying_seconds <= before.multiplying_seconds * MOST_GROWN
    )


def trials(graph: Graph, moved: Movement, cause: Cause) -> Iterator[Trial]:
    """What may make a movement needless: the annotations that it goes back to changed, or one more where there is none."""
    before, after = Layout(moved.before.dims), moved.after
    yield from _converts(graph, moved)
    for source in cause.sources:
        if source.kind == "constraint":
            yield from _constraints(graph, source.number, (before, after))
    numbers = (moved.value, moved.made, *cause.others)
    arguments = [each.number for each in cause.sources if each.kind == "argument"]
    arguments += [root.argument for root in (root_of(graph, graph.values[n]) for n in numbers) if root.argument is not None]
    for argument in dict.fromkeys(arguments):
        yield from _arguments(graph, argument, (before, after))
    for number in dict.fromkeys(numbers):
        yield from _results(graph, graph.values[number], (before, after))


def _constraints(graph: Graph, number: int, like: Sequence[Layout]) -> Iterator[Trial]:
    """A constraint dropped, or for another layout; all of the same line and shape together, as in a backward pass."""
    own = next((each for each in graph.constraints if each.number == number), None)
    if own is None:
        return
    alike = [each for each in graph.constraints if _same_place(each, own)]
    yield Trial("constraint-dropped", tuple(ConstraintLaid(each.number, None) for each in alike), None, own.line)
    for layout in _layouts(graph, own.shape, own.layout, like):
        yield Trial("constraint-changed", tuple(ConstraintLaid(each.number, layout) for each in alike), layout, own.line)


def _same_place(one: Constraint, other: Constraint) -> bool:
    return (one.line, one.shape) == (other.line, other.shape)


def _arguments(graph: Graph, argument: int, like: Sequence[Layout]) -> Iterator[Trial]:
    """An argument laid out otherwise, with those of other layers; and with all of its shape and last name, as of optimizers."""
    own = graph.values[graph.arguments[argument]]
    name = graph.names[argument]
    alike = [number for number in range(len(graph.arguments)) if _alike(graph, number, own)]
    layers = [number for number in alike if _family(graph.names[number]) == _family(name)]
    twins = [number for number in alike if last_name(graph.names[number]) == last_name(name)]
    for layout in _layouts(graph, own.shape, own.layout, like):
        for numbers in dict.fromkeys((tuple(layers), tuple(twins))):
            yield Trial("argument", tuple(ArgumentLaid(n, layout) for n in numbers), layout, None, numbers)


def _alike(graph: Graph, argument: int, own: Value) -> bool:
    value = graph.values[graph.arguments[argument]]
    return (value.shape, value.layout) == (own.shape, own.layout)


def _family(name: str) -> str:
    return re.sub(r"\[\d+\]", "[*]", name)


def _results(graph: Graph, value: Value, like: Sequence[Layout]) -> Iterator[Trial]:
    """What an operation makes constrained, where it is the last of its line: there is a name to constrain then."""
    users = graph.users()
    chain, seen = value, 0
    while seen < 4:
        maker = graph.maker(chain)
        if maker is None:
            if chain.same is None:
                return
            chain, seen = graph.values[chain.same], seen + 1
            continue
        if (
            maker.lowered is not None
            and maker.constraint is None
            and not maker.manual
            and maker.line is not None
            and len(maker.results) == 1
        ):
            forward = [user for user, _ in users.get(chain.number, []) if _direction(user) == _direction(maker)]
            outside = bool(forward) and all(_beyond(graph, users, user, maker) for user in forward)
            if outside and not _direction(maker) and maker.name not in _UNNAMED:
                alike = [
                    each.lowered for each in graph.operations
                    if each.lowered is not None and each.line == maker.line and each.name == maker.name
                    and each.scope.rpartition("/")[2] == maker.scope.rpartition("/")[2]
                    and graph.values[each.results[0]].shape == chain.shape and _direction(each) == _direction(maker)
                ]  # fmt: skip
                for layout in _near(graph, chain, like):
                    if constrained(maker.line, layout) is None:
                        break
                    changes = tuple(ResultLaid(number, layout) for number in dict.fromkeys(alike))
                    yield Trial("result", changes, layout, maker.line)
        if maker.name not in ("reshard", "sum", "convert", "reshape", "transpose", "add", "maximum", "multiply"):
            return
        chain, seen = graph.values[maker.operands[0]], seen + 1


def _direction(operation: Operation) -> bool:
    return "transpose(" in operation.scope


def _beyond(graph: Graph, users: dict[int, list[tuple[Operation, int]]], user: Operation, maker: Operation) -> bool:
    """Whether a user stands at another line, or what it moves does."""
    if user.name in ("reshard", "sum"):
        return any(_beyond(graph, users, each, maker) for each, _ in users.get(user.results[0], [])) or not users.get(
            user.results[0]
        )
    return user.line != maker.line


def _converts(graph: Graph, moved: Movement) -> Iterator[Trial]:
    """A wide array that is made of narrow numbers, or becomes them: moved as such."""
    users = graph.users()
    if moved.dtype != "float32":
        return
    user = None if moved.user is None else graph.operations[moved.user]
    while user is not None and user.constraint is not None:
        following = users.get(user.results[0], [])
        constraint, user = user, following[0][0] if len(following) == 1 else None
        if user is not None and user.name == "reshard":
            user = next((each for each, _ in users.get(user.results[0], [])), None)
        if user is not None and user.name == "convert" and user.lowered is not None:
            narrow = graph.values[user.results[0]]
            asked = next((each for each in graph.constraints if each.number == constraint.constraint), None)
            if narrow.dtype in ("bfloat16", "float16") and asked is not None:
                alike = [each for each in graph.constraints if _same_place(each, asked)]
                numbers = [
                    each.lowered for each in graph.operations
                    if each.name == "convert" and each.lowered is not None and each.line == user.line and not _direction(each)
                ]  # fmt: skip
                changes = (
                    *(ConstraintLaid(each.number, None) for each in alike),
                    *(ResultLaid(number, asked.layout) for number in dict.fromkeys(numbers)),
                )
                yield Trial("convert-first", changes, asked.layout, asked.line, dtype=narrow.dtype)
            return
    value = graph.values[moved.value]
    maker = graph.maker(value)
    while maker is not None and maker.name == "reshard":
        maker = graph.maker(graph.values[maker.operands[0]])
    if maker is not None and maker.name == "convert":
        narrow = graph.values[maker.operands[0]]
        if narrow.dtype in ("bfloat16", "float16"):
            root, made = root_of(graph, narrow), graph.maker(narrow)
            if narrow.argument is not None:
                yield Trial("inside", (InsideLaid(narrow.argument, moved.after),), moved.after, maker.line, (narrow.argument,))
            elif made is not None and made.lowered is not None:
                yield Trial("result", (ResultLaid(made.lowered, moved.after),), moved.after, made.line)
            assert root is not None


def _layouts(graph: Graph, shape: tuple[int, ...], own: Layout, like: Sequence[Layout]) -> list[Layout]:
    """Other layouts of an array: those alike first, then all over the same axes, then over the axes of the mesh."""
    named = Layout.from_spec([None] * len(shape)).names
    known = [
        Layout(tuple(zip(named, (axes for _, axes in each.dims), strict=True))) for each in like if len(each.dims) == len(shape)
    ]
    used = tuple(dict.fromkeys((*own.axes, *(axis for each in known for axis in each.axes))))
    used = tuple(axis for axis in used if axis in graph.mesh.names)
    same = [Layout(tuple(zip(named, dims, strict=True))) for dims in splits(len(shape), own.axes) if _plain(own.axes, graph)]
    if not own.axes:
        used = tuple(name for name, size in graph.mesh.axes if size > 1)
    more = [Layout(tuple(zip(named, dims, strict=True))) for dims in splits(len(shape), used[:2])]
    full = [each for each in (*same, *more) if len(each.axes) >= len(own.axes)]
    found = [each for each in dict.fromkeys((*known, *full)) if each != own and _divides(graph, shape, each)]
    return list(itertools.islice(found, MOST_LAYOUTS))


def _near(graph: Graph, value: Value, like: Sequence[Layout]) -> list[Layout]:
    """Layouts for what an operation makes: those alike, and its own with one axis moved, added or taken away."""
    alike = {tuple(axes for _, axes in each.dims) for each in like}
    own = [axes for _, axes in value.layout.dims]
    found = []
    for layout in _layouts(graph, value.shape, value.layout, like):
        dims = [axes for _, axes in layout.dims]
        changed = {axis for axis in (*layout.axes, *value.layout.axes) if _where(own, axis) != _where(dims, axis)}
        if tuple(dims) in alike or len(changed) == 1:
            found.append(layout)
    return found


def _where(dims: Sequence[Axes], axis: str) -> int | None:
    return next((place for place, axes in enumerate(dims) if axis in axes), None)


def _plain(axes: Axes, graph: Graph) -> bool:
    return all(axis in graph.mesh.names for axis in axes)


def _divides(graph: Graph, shape: tuple[int, ...], layout: Layout) -> bool:
    return all(
        all(axis in graph.mesh.names for axis in axes) and size % math.prod(graph.mesh.axis_size(axis) for axis in axes) == 0
        for size, (_, axes) in zip(shape, layout.dims, strict=True)
    )
