"""Why an array moves: which annotations meet at the operation that needs it, in words and as their sources."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shardwise.intent.flattening import layout_named
from shardwise.intent.flowgraph import Graph, Operation, Source, Value
from shardwise.intent.movements import Movement, called, is_opaque, subject_of
from shardwise.intent.rules import Factors, Rule
from shardwise.mesh import Mesh


@dataclass(frozen=True, slots=True)
class Cause:
    """Why something moves: in words, and the annotations that it goes back to.

    `equation`: of a matmul or another operation that needs it, in the notation, with the layouts before anything moves.
    `others`: the numbers of the other values that meet there.
    `uneven`: it moves since its layout's axes do not divide its sizes.
    """

    says: str
    sources: tuple[Source, ...] = ()
    equation: str = ""
    others: tuple[int, ...] = ()
    uneven: bool = False


Users = dict[int, list[tuple[Operation, int]]]


def cause_of(graph: Graph, moved: Movement, users: Users) -> Cause:
    """Why a movement is there."""
    taken, made = graph.values[moved.value], graph.values[moved.made]
    maker, user = graph.maker(taken), None if moved.user is None else graph.operations[moved.user]
    comes = sources_of(taken, moved.before.axes)
    if moved.kind:
        return Cause(f"asked for by hand, in a shard_map or pmap: {moved.kind} over {', '.join(moved.axes)}")
    if moved.before.unreduced:
        return _summed(graph, moved, maker, users)
    if user is not None and is_opaque(user):
        target = user.target.split(" ")[0] or "a custom call"
        says = (
            f"{target} is opaque: the partitioner knows no rule for it and hands it whole arrays; this one is split{_by(comes)}"
        )
        return Cause(says, comes, "", user.operands)
    if user is not None and user.constraint is not None and graph.values[user.results[0]].layout != moved.before:
        source = _constraint_source(graph, user.constraint)
        asked = next((each.layout for each in graph.constraints if each.number == user.constraint), moved.after)
        return Cause(f"{source} asks for {asked}; it comes as {moved.before}{_by(comes)}", (source, *comes))
    if maker is not None and maker.name != "reshard" and maker.wanted[:1] == (moved.after,) != (moved.before,):
        new = [axis for axis in moved.after.axes if axis not in moved.before.axes] or list(moved.after.axes)
        wanted = sources_of(made, new)
        says = f"`{called(maker)}` makes it as {moved.before}{_by(comes)}, and it is to be {moved.after}{_by(wanted)}"
        return Cause(says, (*wanted, *comes), equation_of(graph, maker, users), maker.operands)
    if user is None:
        leaves = sources_of(made, moved.after.axes)
        says = f"it leaves as {moved.after}{_by(leaves)}, and is made as {moved.before}{_by(comes)}"
        uneven = _indivisible(moved, graph.mesh)
        return Cause(says + (f"; {uneven}, and no result can lie so" if uneven else ""), (*leaves, *comes), uneven=bool(uneven))
    if user.rule is not None and moved.place < len(user.rule.operands):
        return _needed(graph, moved, user, user.rule, users)
    return Cause(f"`{called(user)}` takes it as {moved.after}; it comes as {moved.before}{_by(comes)}", comes)


def _indivisible(moved: Movement, mesh: Mesh) -> str:
    """The sizes that do not allow an array to leave as it lies inside, where the partitioner pads; empty where they do."""
    return " and ".join(
        f"{mesh.extent(axes)} devices ({', '.join(axes)}) do not divide {dim} of {size}"
        for size, (dim, axes) in zip(moved.shape, moved.before.dims, strict=True)
        if all(axis in mesh.names for axis in axes) and size % mesh.extent(axes)
    )


def _summed(graph: Graph, moved: Movement, maker: Operation | None, users: Users) -> Cause:
    """Partial sums: which dimension is summed, and what split it."""
    axes = sorted(moved.before.unreduced)
    if maker is None or maker.rule is None:
        return Cause(f"partial sums over {', '.join(axes)} are added up")
    found, dims = list[Source](), list[str]()
    for factors, number in zip(maker.rule.operands, maker.operands, strict=False):
        value = graph.values[number]
        for dim, (_, split) in zip(factors, value.layout.dims, strict=False):
            if maker.rule.summed.intersection(dim) and set(split) & set(axes):
                found += [value.source(axis) for axis in split if axis in axes]
                dims += [factor.upper() for factor in dim if factor in maker.rule.summed]
    sources = _unique(found)
    over, does = (
        ", ".join(dict.fromkeys(dims)) or "a dimension",
        "multiplies and sums" if maker.name == "dot_general" else "sums",
    )
    splits = f"{', '.join(axes)} split{'s' if len(axes) == 1 else ''}"
    says = f"`{called(maker)}` {does} over {over}, which {splits}{_by(sources)}: each device has a partial sum"
    if moved.after.axes != moved.before.axes:
        says += f"; it is kept as {moved.after}{_by(sources_of(graph.values[moved.made], moved.after.axes))}"
    return Cause(says, sources, equation_of(graph, maker, users), maker.operands)


def _needed(graph: Graph, moved: Movement, user: Operation, rule: Rule, users: Users) -> Cause:
    """Which other array of an operation does not let an operand stay as it comes."""
    taken, own = graph.values[moved.value], rule.operands[moved.place]
    sources, said, others = list[Source](), list[str](), list[int]()
    for place, (_, axes) in enumerate(moved.before.dims):
        factor = (own[place] or ("",))[0] if place < len(own) else ""
        for axis in (axis for axis in axes if axis not in moved.after.dims[place][1]):
            mine = sources_of(taken, (axis,))
            sources += mine
            splits = f"{axis} splits {factor.upper() or moved.before.names[place]} of {subject_of(graph, taken)}{_by(mine)}"
            if factor in rule.whole:
                said.append(f"`{called(user)}` needs all of it, and {splits}")
                continue
            meets = _meeting(graph, user, rule, moved.place, factor, axis)
            if meets is None:
                continue
            other, theirs, how = meets
            others.append(other)
            sources += theirs
            said.append(f"in `{called(user)}` {splits}, and {how}")
    if not said:
        found = sources_of(taken, moved.before.axes)
        sources += found
        said.append(f"`{called(user)}` takes it as {moved.after}; it comes as {moved.before}{_by(found)}")
    every = tuple(dict.fromkeys((*others, *(each for each in user.operands if each != moved.made))))
    return Cause("; ".join(dict.fromkeys(said)), _unique(sources), equation_of(graph, user, users), every)


def _meeting(
    graph: Graph, user: Operation, rule: Rule, place: int, factor: str, axis: str
) -> tuple[int, tuple[Source, ...], str] | None:
    """The other array that does not let an axis split a factor: one that it splits elsewhere, or one that has it otherwise."""
    others = list(_others(graph, user, rule, place))
    for number, value, factors in others:
        split = next((each for each, (_, axes) in zip(factors, value.layout.dims, strict=False) if axis in axes), None)
        if split is not None and factor not in split:
            theirs = (value.source(axis),)
            where = f"{(split or ('?',))[0].upper()} of {subject_of(graph, value)}{_by(theirs)}"
            return number, theirs, f"{where}: an axis can split only one"
    for number, value, factors in others:
        if any(factor in each for each in factors):
            theirs = sources_of(value, value.layout.axes)
            return (
                number,
                theirs,
                f"{subject_of(graph, value)}, which has {factor.upper()} too, lies as {value.layout}{_by(theirs)}",
            )
    return None


def _others(graph: Graph, user: Operation, rule: Rule, place: int) -> Iterator[tuple[int, Value, Factors]]:
    """The other arrays of an operation, as they are when it runs; results first, since how they are to look decides."""
    for number, factors in zip(user.results, rule.results, strict=False):
        yield number, graph.values[number], factors
    for other, (number, factors) in enumerate(zip(user.operands, rule.operands, strict=False)):
        if other != place:
            yield number, graph.values[number], factors


def equation_of(graph: Graph, operation: Operation, users: Users) -> str:
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


def sources_of(value: Value, axes: Sequence[str]) -> tuple[Source, ...]:
    """Where axes of a value's layout come from, as far as it is known."""
    known = dict(value.sources)
    return _unique([known[axis] for axis in axes if axis in known])


def _unique(sources: Sequence[Source]) -> tuple[Source, ...]:
    return tuple(dict.fromkeys(each for each in sources if each.kind != "unknown"))


def _by(sources: Sequence[Source]) -> str:
    named = list(dict.fromkeys(map(str, _unique(sources))))
    told = " and ".join(named[:2]) + (f" and {len(named) - 2} more" if len(named) > 2 else "")
    return f" ({told})" if told else ""
