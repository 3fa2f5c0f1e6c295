"""Matmuls that devices repeat for each other, line by line: no dimension of them is split over an axis of the mesh."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from shardwise.compiled.facts import Line
from shardwise.compiled.findings import ADVICE, Finding
from shardwise.functions.causes import equation_of
from shardwise.functions.pricing import Where, flops_of
from shardwise.intent.flowgraph import Graph, Operation
from shardwise.intent.movements import called
from shardwise.layout import Axes
from shardwise.planning.problem import hardware_on
from shardwise.units import seconds_text

LEAST_SHARE = 0.01  # of the function's FLOPs that must be repeated at a line
LEAST_SECONDS = 1e-6  # and what that takes: less is lost among the starts of operations
MOST_LINES = 6


def repeated(graph: Graph, where: Where) -> Iterator[Finding]:
    """For each line the matmuls that several devices do alike, those that cost most first; maps by hand are left out."""
    users = graph.users()
    found: dict[tuple[Line | None, Axes], list[tuple[Operation, float]]] = defaultdict(list)
    total = 0.0
    for each in graph.operations:
        if each.name == "dot_general" and each.rule is not None and not each.manual:
            flops = flops_of(graph, each) * (each.trips or 1)
            total += flops
            axes = _idle(graph, each)
            if axes:
                found[each.line, axes].append((each, flops))
    wasted = {key: sum(flops for _, flops in them) * (1 - 1 / graph.mesh.extent(key[1])) for key, them in found.items()}
    speed = hardware_on(where, graph.mesh)[0].flops("bfloat16", graph.mesh)
    least = max(LEAST_SHARE * total, LEAST_SECONDS * speed)
    dear = sorted((key for key in found if wasted[key] >= least), key=lambda key: -wasted[key])
    for line, axes in dear[:MOST_LINES]:
        first = max(found[line, axes], key=lambda each: each[1])[0]
        more = len(found[line, axes]) - 1
        what = f"{equation_of(graph, first, users)} (`{called(first)}`{f' and {more} more of this line' if more else ''})"
        alike = f"the {graph.mesh.extent(axes)} devices along {', '.join(axes)} do it alike"
        says = f"{what}: {alike}; split among them it would take {seconds_text(wasted[line, axes] / speed)} less a call"
        yield Finding("repeated-work", says, 0.0, ADVICE["repeated-work"], 0.0, more + 1, (line,) if line else ())


def _idle(graph: Graph, operation: Operation) -> Axes:
    """The axes of the mesh over which no dimension of a matmul is split."""
    numbers = (*operation.operands, *operation.results)
    used = {axis.partition(":")[0] for number in numbers for axis in graph.values[number].layout.axes}
    return tuple(name for name, size in graph.mesh.axes if size > 1 and name not in used)
