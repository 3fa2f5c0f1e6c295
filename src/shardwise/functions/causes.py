"""Why an array moves: which annotations meet at the operation that needs it, in words and as their sources."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shardwise.intent.flattening import layout_named
from shardwise.intent.flowgraph import Graph, Operation, Source, Value, root_of
from shardwise.intent.movements import Movement, subject_of
from shardwise.intent.rules import Factors, Rule
from shardwise.layout import Layout


@dataclass(frozen=True, slots=True)
class Cause:
    """Why something moves: in words, and the annotations that it goes back to.

    `equation`: of a matmul or another operation that needs it, in the notation, with the layouts before anything moves.
    `others`: the numbers of the other values that meet there.
    """

    says: str
    sources: tuple[Source, ...] = ()
    equation: str = ""
    others: tuple[int, ...] = ()


def cause_of(graph: Graph, moved: Movement, users: dict[int, list[tuple[Operation, int]]]) -> Cause:
    """Why a movement is there."""
    taken, made = graph.values[moved.value], graph.values[moved.made]
    maker, user = graph.maker(taken), None if moved.user is None else graph.operations[moved.user]
    if moved.kind:
        return Cause(f"the shard_map asks for it: {moved.kind} over {_axes(moved.axes)}")
    if moved.before.unreduced:
        return _summed(graph, moved, taken, maker, users)
    if user is not None and user.constraint is not None and graph.values[user.results[0]].layout != moved.before:
        source = _constraint_source(graph, user.constraint)
        asked = next((each.layout for each in graph.constraints if each.number == user.constraint), moved.after)
        comes = f"; it comes as {moved.before}{_by(_sources(taken, moved.before.axes))}"
        return Cause(f"{source} asks for {asked}{comes}", (source, *_sources(taken, moved.before.axes)))
    if maker is not None and maker.name != "reshard" and maker.wanted[:1] == (moved.after,) != (moved.before,):
        return _made_otherwise(graph, moved, taken, made, maker, users)
    if user is None:
        sources = _sources(made, moved.after.axes)
        return Cause(f"it leaves as {moved.after}{_by(sources)}, and is made as {moved.before}{_by(_sources(taken, moved.before.axes))}",
                     (*sources, *_sources(taken, moved.before.axes)))  # fmt: skip
    if user.rule is not None and moved.place < len(user.rule.operands):
        return _needed(graph, moved, taken, user, user.rule, users)
    if user.name == "custom_call":
        return Cause(f"{user.target.split(' ')[0] or 'a custom call'} is opaque: the partitioner knows no rule for it, and gives it the "
                     f"whole array; the layout is {_named(_sources(taken, moved.before.axes))}", _sources(taken, moved.before.axes),
                     "", tuple(user.operands))  # fmt: skip
    sources = _sources(taken, moved.before.axes)
    return Cause(f"{_called(user)} takes it as {moved.after}; it comes as {moved.before}{_by(sources)}", sources)


def _summed(
    graph: Graph, moved: Movement, taken: Value, maker: Operation | None, users: dict[int, list[tuple[Operation, int]]]
) -> Cause:
    axes = sorted(moved.before.unreduced)
    if maker is None or maker.rule is None:
        return Cause(f"partial sums over {_axes(axes)} are added up")
    found: list[Source] = []
    dims: list[str] = []
    for factors, number in zip(maker.rule.operands, maker.operands, strict=False):
        value = graph.values[number]
        for dim, (_, split) in zip(factors, value.layout.dims, strict=False):
            for factor in dim:
                if factor in maker.rule.summed and set(split) & set(axes):
                    found += [value.source(axis) for axis in split if axis in axes]
                    dims.append(factor.upper())
    equation = equation_of(graph, maker, users)
    over = _axes(dict.fromkeys(dims)) or "a dimension"
    does = "multiplies and sums" if maker.name == "dot_general" else "sums"
    sources = _unique(found)
    says = f"{_called(maker)} {does} over {over}, which {_axes(axes)} split{'s' if len(axes) == 1 else ''}{_by(sources)}: each device has a partial sum"
    cut = "" if moved.after.axes == moved.before.axes else f"; it is kept as {moved.after}{_by(_sources(graph.values[moved.made], moved.after.axes))}"
    return Cause(says + cut, sources, equation, maker.operands)


def _made_otherwise(
    graph: Graph, moved: Movement, taken: Value, made: Value, maker: Operation, users: dict[int, list[tuple[Operation, int]]]
) -> Cause:
    new = [axis for axis in moved.after.axes if axis not in moved.before.axes] or list(moved.after.axes)
    wanted, comes = _sources(made, new), _sources(taken, moved.before.axes)
    says = f"{_called(maker)} makes it as {moved.before}{_by(comes)}, and it is to be {moved.after}{_by(wanted)}"
    return Cause(says, (*wanted, *comes), equation_of(graph, maker, users), maker.operands)


def _needed(
    graph: Graph, moved: Movement, taken: Value, user: Operation, rule: Rule, users: dict[int, list[tuple[Operation, int]]]
) -> Cause:
    """Which other array of an operation does not let an operand stay as it comes."""
    own = rule.operands[moved.place]
    sources, said, others = list[Source](), list[str](), list[int]()
    for place, (_, axes) in enumerate(moved.before.dims):
        kept = moved.after.dims[place][1]
        for axis in (axis for axis in axes if axis not in kept):
            factor = (own[place] or ("",))[0] if place < len(own) else ""
            sources += _sources(taken, (axis,))
            if factor in rule.whole:
                said.append(f"{_called(user)} needs all of dimension {moved.before.names[place]}, which {axis} splits{_by(_sources(taken, (axis,)))}")
                continue
            for other, value, factors in _others(graph, user, rule, moved.place):
                split = next((f for f, (_, split) in zip(factors, value.layout.dims, strict=False) if axis in split), None)
                if split is not None and factor not in split:
                    source = value.source(axis)
                    sources.append(source)
                    others.append(other)
                    said.append(
                        f"in {_called(user)} {axis} splits {factor.upper()} of {subject_of(graph, taken)}{_by(_sources(taken, (axis,)))}, "
                        f"and {(split or ('?',))[0].upper()} of {subject_of(graph, value)}{_by((source,))}: an axis can split only one"
                    )
                    break
            else:
                meets = [(other, value) for other, value, factors in _others(graph, user, rule, moved.place) if any(factor in f for f in factors)]
                others += [other for other, _ in meets]
                if meets:
                    value = meets[0][1]
                    sources += _sources(value, value.layout.axes)
                    said.append(
                        f"in {_called(user)} {axis} splits {factor.upper()} of {subject_of(graph, taken)}{_by(_sources(taken, (axis,)))}, "
                        f"and {subject_of(graph, value)}, which has {factor.upper()} too, lies as {value.layout}{_by(_sources(value, value.layout.axes))}"
                    )
    if not said:
        found = _sources(taken, moved.before.axes)
        sources += found
        said.append(f"{_called(user)} takes it as {moved.after}; it comes as {moved.before}{_by(found)}")
    every = tuple(dict.fromkeys((*others, *(n for n in user.operands if n != moved.made))))
    return Cause("; ".join(dict.fromkeys(said)), _unique(sources), equation_of(graph, user, users), every)


def _others(graph: Graph, user: Operation, rule: Rule, place: int) -> Iterator[tuple[int, Value, Factors]]:
    """The other arrays of an operation, as they are when it runs, results first: what they look like decided."""
    for number, factors in zip(user.results, rule.results, strict=False):
        yield number, graph.values[number], factors
    for other, (number, factors) in enumerate(zip(user.operands, rule.operands, strict=False)):
        if other != place:
            yield number, graph.values[number], factors


def equation_of(graph: Graph, operation: Operation, users: dict[int, list[tuple[Operation, int]]]) -> str:
    """A matmul in the notation, with the layouts that its operands come in and its result goes out with; of others nothing."""
    rule = operation.rule
    if operation.name != "dot_general" or rule is None:
        return ""
    names = iter("ABCDEFGH")
    shown = []
    for number, factors in zip(operation.operands, rule.operands, strict=True):
        value = graph.values[number]
        maker = graph.maker(value)
        if maker is not None and maker.name == "reshard" and maker.constraint is None:
            value = graph.values[maker.operands[0]]
        shown.append(f"{next(names)}{layout_named(value.layout, factors)}")
    made = graph.values[operation.results[0]]
    while len(following := users.get(made.number, [])) == 1 and following[0][0].name in ("reshard", "sum"):
        made = graph.values[following[0][0].results[0]]
    return f"{' · '.join(shown)} -> {next(names)}{layout_named(made.layout, rule.results[0])}"


def _constraint_source(graph: Graph, number: int) -> Source:
    found = next((each for each in graph.constraints if each.number == number), None)
    return Source("constraint", number, "", None if found is None else found.line)


def _sources(value: Value, axes: Sequence[str]) -> tuple[Source, ...]:
    known = dict(value.sources)
    return _unique([known[axis] for axis in axes if axis in known])


def _unique(sources: Sequence[Source]) -> tuple[Source, ...]:
    return tuple(dict.fromkeys(each for each in sources if each.kind != "unknown"))


def _by(sources: Sequence[Source]) -> str:
    return f" ({_named(sources)})" if sources else ""


def _named(sources: Sequence[Source]) -> str:
    told = list(dict.fromkeys(map(str, sources)))
    return " and ".join(told[:2]) + (f" and {len(told) - 2} more" if len(told) > 2 else "")


def _axes(axes: Sequence[str] | dict[str, None]) -> str:
    return ", ".join(axes)


def _called(operation: Operation) -> str:
    last = operation.scope.rpartition("/")[2].rstrip(":")
    return f"`{last}`" if last else f"`{operation.name}`"


def roots(graph: Graph, numbers: Sequence[int]) -> tuple[int, ...]:
    """The arguments that values are, before views and converts."""
    found = (root_of(graph, graph.values[number]).argument for number in numbers)
    return tuple(dict.fromkeys(each for each in found if each is not None))


def same_dims(layout: Layout, like: Layout) -> bool:
    return len(layout.dims) == len(like.dims)
