"""What is moved: every change of layout and every sum over devices of a graph, with the array and the line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from shardwise.compiled.facts import Line
from shardwise.intent.flattening import COLLECTIVES
from shardwise.intent.flowgraph import Graph, Operation, Value, root_of
from shardwise.layout import Axes, Layout

_DERIVED = re.compile(r"(?:(?:transpose|jvp|vmap)\()+(.*?)\)+")  # JAX's name of what is differentiated or mapped
Users = dict[int, list[tuple[Operation, int]]]
_MANUAL = frozenset(COLLECTIVES.values())
# Calls that move nothing, or that the partitioner knows: it hands any other one whole arrays.
_HARMLESS = frozenset({
    "Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "annotate_device_placement", "MoveToHost", "MoveToDevice",
    "PartialReduce", "TopK", "mhlo.topk", "CustomSPMDPartitioning", "xla_python_cpu_callback", "xla_ffi_python_cpu_callback",
    "LayoutConstraint", "Eigh", "Qr", "ProductOfElementaryHouseholderReflectors", "approx_top_k", "xla.sdy.PropagationBarrier",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Movement:
    """An array that changes its layout, or partial sums that are added up; one that a `jax.shard_map` writes by hand.

    Attributes:
        before, after: its layouts; partial sums stand in `before.unreduced`. Inside of a map both are of one device's part.
        value: the number of the value that is moved; `operation` of what makes it, if any, and `user` of what needs it.
        subject: what users call the array: an argument, or its dtype and shape and what made it.
        kind: of a collective written by hand, its name; empty otherwise.
        made: the number of the value as it is afterwards.
    """

    before: Layout
    after: Layout
    shape: tuple[int, ...]
    dtype: str
    value: int
    made: int
    subject: str
    line: Line | None
    scope: str
    trips: int | None
    kind: str = ""
    axes: Axes = ()
    maker: int | None = None
    user: int | None = None
    place: int = 0


def movements(graph: Graph) -> tuple[Movement, ...]:
    """Everything that is moved, in the order of the function; what only keeps a part of what is there is left out."""
    return tuple(_movements(graph))


def _movements(graph: Graph) -> Iterator[Movement]:
    users, done = graph.users(), set[int]()
    for operation in graph.operations:
        if operation.number in done:
            continue
        if not operation.manual:
            yield from _unsaid(graph, operation, users)
        if operation.name in _MANUAL and operation.manual:
            yield _by_hand(graph, operation)
        elif operation.name in ("reshard", "sum"):
            taken, made = graph.values[operation.operands[0]], graph.values[operation.results[0]]
            before, after = taken.layout, made.layout
            if back := _back(operation, before, users.get(made.number, []), graph):
                done |= back
                continue
            if operation.name == "sum":
                before = replace(before, unreduced=before.unreduced | frozenset(operation.axes))
                following = users.get(made.number, [])
                if len(following) == 1 and following[0][0].name == "reshard" and following[0][0].constraint is None:
                    cut = graph.values[following[0][0].results[0]]
                    if sliced(after, cut.layout):
                        done.add(following[0][0].number)
                        made, after = cut, cut.layout
            if before != after and not sliced(before, after):
                yield _moved(graph, operation, taken, made, before, after, users.get(made.number, []))


def _back(operation: Operation, before: Layout, users: list[tuple[Operation, int]], graph: Graph) -> set[int]:
    """The reshards that lead an array back to where it comes from before anything uses it, which partitioners leave out; Shardy
    goes such ways around the padding of sizes that axes do not divide."""
    back = {each.number for each, _ in users if each.name == "reshard" and graph.values[each.results[0]].layout == before}
    asked = any(each.constraint is not None for each in (operation, *(each for each, _ in users)))
    return back if operation.name == "reshard" and len(back) == len(users) and not asked else set()


def _unsaid(graph: Graph, operation: Operation, users: Users) -> Iterator[Movement]:
    """What is moved though no pass says it: what an opaque call is handed, and partial results of several arrays."""
    if operation.name == "custom_call" and operation.target.split(" ")[0] not in _HARMLESS:
        for place, number in enumerate(operation.operands):
            taken = graph.values[number]
            kept = _shared_dims(operation, place)
            whole = Layout(tuple((dim, axes if own in kept else ()) for own, (dim, axes) in enumerate(taken.layout.dims)))
            if taken.layout.axes != whole.axes:
                found = _moved(graph, operation, taken, taken, taken.layout, whole, users.get(number, []))
                yield replace(
                    found, user=operation.number, place=place, line=operation.line or found.line, scope=operation.scope
                )
    elif operation.name == "reduce" and len(operation.results) > 1 and operation.rule is not None:
        split = {
            axis
            for factors, number in zip(operation.rule.operands, operation.operands, strict=False)
            for dim, (_, axes) in zip(factors, graph.values[number].layout.dims, strict=False)
            if operation.rule.summed.intersection(dim)
            for axis in axes
        }
        for number in operation.results:
            made = graph.values[number]
            if partial := split - set(made.layout.axes):
                before = replace(made.layout, unreduced=frozenset(partial))
                found = _moved(graph, operation, made, made, before, made.layout, users.get(number, []))
                yield replace(found, line=operation.line, scope=operation.scope)


def is_opaque(operation: Operation) -> bool:
    """Whether the partitioner knows nothing of a call: no dimension that it takes is one of what it makes."""
    calls = operation.name == "custom_call"
    return calls and not any(_shared_dims(operation, place) for place in range(len(operation.operands)))


def _shared_dims(operation: Operation, place: int) -> set[int]:
    """The dimensions of what a call takes that its results have too; Shardy's rule of a call that it does not know has none."""
    rule = operation.rule
    if rule is None or place >= len(rule.operands):
        return set()
    made = {factor for factors in rule.results for dim in factors for factor in dim}
    return {own for own, dim in enumerate(rule.operands[place]) if made.intersection(dim) or rule.summed.intersection(dim)}


def sliced(before: Layout, after: Layout) -> bool:
    """Whether a change of layout only keeps parts: nothing is on the wire."""
    return before.unreduced == after.unreduced and all(
        became[: len(axes)] == axes for (_, axes), (_, became) in zip(before.dims, after.dims, strict=True)
    )


def _moved(
    graph: Graph, operation: Operation, taken: Value, made: Value, before: Layout, after: Layout,
    users: list[tuple[Operation, int]],
) -> Movement:  # fmt: skip
    user, place = next(((each, place) for each, place in users), (None, 0))
    maker = graph.maker(taken)
    where = next((each for each in (operation, user, maker) if each is not None and each.line is not None), operation)
    if operation.name == "reshard" and user is not None and user.line is not None and (maker is None or operation.line is None):
        where = user
    scope = next((each.scope for each in (user, operation) if each is not None and each.scope), "")
    scope = operation.scope if operation.name == "sum" else scope
    return Movement(
        before, after, taken.shape, taken.dtype, taken.number, made.number, subject_of(graph, taken), where.line, scope,
        operation.trips, maker=None if maker is None else maker.number, user=None if user is None else user.number, place=place,
    )  # fmt: skip


def _by_hand(graph: Graph, operation: Operation) -> Movement:
    taken, made = graph.values[operation.operands[0]], graph.values[operation.results[0]]
    return Movement(
        taken.layout, made.layout, taken.shape, taken.dtype, taken.number, made.number, subject_of(graph, taken),
        operation.line, operation.scope, operation.trips, operation.name, operation.axes,
    )  # fmt: skip


def subject_of(graph: Graph, value: Value) -> str:
    """What users call an array: the argument that it is, or its dtype and shape, and what makes it."""
    root = root_of(graph, value)
    if root.carried:
        return f"{value.dtype}[{','.join(map(str, value.shape))}] that a loop carries"
    kind = f"{value.dtype}[{','.join(map(str, value.shape))}]"
    if root.argument is not None:
        return f"{graph.names[root.argument]} ({kind})"
    maker = graph.maker(root)
    return kind if maker is None else f"{kind} of {called(maker)}"


def called(operation: Operation) -> str:
    """What users know an operation by: the last part of JAX's name of it, and of an einsum its text."""
    *_, before, last = ["", "", *operation.scope.split("/")]
    name = before if "->" in before and last == "dot_general" else last.rstrip(":") or operation.name
    derived = _DERIVED.fullmatch(name)
    return derived[1] if derived and derived[1] else name
