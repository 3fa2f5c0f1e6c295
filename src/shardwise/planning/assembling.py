"""What a search found, written down as a program."""

from __future__ import annotations

from typing import Any

from shardwise.mesh import Mesh
from shardwise.notation import Operand
from shardwise.planning.graph import State, Vertex, step_of
from shardwise.planning.orders import Leaf
from shardwise.planning.search import Found, Joined, Label, Moved
from shardwise.program import Program
from shardwise.steps import Einsum, Step


def assembled(found: Found, root: Any, operands: tuple[Operand, ...], names: list[str], result: Operand, mesh: Mesh) -> Program:
    """Turn what the search found into a program."""
    taken = list(names)
    steps: list[Step] = []

    def forward(label: Label, state: Vertex, node: Any, wish: str) -> str:
        path: list[tuple[Moved, Vertex]] = []
        while isinstance(label.link, Moved):
            path.append((label.link, state))
            label, state = label.link.label, label.link.before
        name = names[node.index] if isinstance(node, Leaf) else joined(label.link, wish)
        for moved, _ in reversed(path):
            steps.append(step_of(moved.move, moved.before.state, name, node.names, mesh))
        return name

    def joined(link: Joined, wish: str) -> str:
        order = list(range(len(link.states)))
        if link.first:
            order.reverse()
        sides = {k: forward(link.labels[k], link.states[k], link.way[k], "") for k in order}
        sources = tuple(sides[k] for k in range(len(sides)))
        name = wish or ("".join(sources) if len(sources) > 1 else f"{sources[0]}'")
        while name in set(taken) - set(sources):
            name += "'"
        taken.append(name)
        steps.append(Einsum(sources, name, link.names))
        return name

    output = forward(found.forward, found.state, root, result.name)
    rest = found.backward
    while isinstance(rest.link, Moved):
        steps.append(step_of(rest.link.move, rest.link.before.state, output, result.dims, mesh))
        rest = rest.link.label
    inputs = tuple((name, operand.layout) for name, operand in zip(names, operands, strict=True))
    return Program(mesh, inputs, tuple(steps), output)


def passes(found: Found) -> tuple[object, ...]:
    """The layouts that a program passes through after its last einsum, or all where there is none; and that einsum."""
    path: list[State] = [found.state.state]
    label = found.forward
    while isinstance(label.link, Moved):
        path.append(label.link.before.state)
        label = label.link.label
    path.reverse()
    rest = found.backward
    while isinstance(rest.link, Moved):
        path.append(rest.link.move.after)
        rest = rest.link.label
    last = (id(label.link), label.link.states) if isinstance(label.link, Joined) else ()
    return (*path, last)


def unique(names: list[str]) -> list[str]:
    taken: list[str] = []
    for name in names:
        while name in taken:
            name += "'"
        taken.append(name)
    return taken
