"""What devices hold whole and need not: arguments as large as others that are split, as the state of an optimizer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from shardwise.functions.diagnosis import Remedy
from shardwise.functions.pasting import spec_text
from shardwise.functions.pricing import local_bytes
from shardwise.intent.flowgraph import Graph
from shardwise.layout import Layout
from shardwise.units import bytes_text

LEAST_BYTES = 1e6  # that one device could be without
SHOWN = 4


def held_whole(graph: Graph) -> Iterator[Remedy]:
    """Arguments that every device holds whole, while others of their shape and last name are split: how to lay them out."""
    split: dict[tuple[tuple[int, ...], str], tuple[str, Layout]] = {}
    for place, number in enumerate(graph.arguments):
        value = graph.values[number]
        if value.layout.axes:
            split.setdefault((value.shape, last_name(graph.names[place])), (graph.names[place], value.layout))
    found: dict[tuple[str, Layout], list[int]] = defaultdict(list)
    for place, number in enumerate(graph.arguments):
        value = graph.values[number]
        like = split.get((value.shape, last_name(graph.names[place])))
        if not value.layout.axes and value.dtype.startswith(("float", "bfloat")) and like is not None:
            found[like].append(place)
    for (name, layout), places in found.items():
        held = sum(local_bytes(graph, graph.arguments[place]) for place in places)
        saved = held * (1 - 1 / graph.mesh.extent(axis for axis in layout.axes if axis in graph.mesh.names))
        if saved >= LEAST_BYTES:
            names = tuple(graph.names[place] for place in places)
            told = ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
            laid = f"lay {'it' if len(names) == 1 else 'them'} out as {spec_text(layout)}, as {name} is"
            says = f"every device holds {told} whole; {laid}: {bytes_text(saved)} of memory less"
            yield Remedy("held", says, arguments=names, layout=layout, memory_bytes=saved)


def last_name(name: str) -> str:
    """The last key of an argument's name.

    >>> last_name("params['layers'][3]['wq']"), last_name("state.mu")
    ("['wq']", '.mu')
    """
    keys = name.replace("[", "\0[").replace(".", "\0.").split("\0")
    return keys[-1]
