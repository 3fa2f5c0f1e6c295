"""A plan as a picture: the ranking, and the best program step by step, with layouts before and after and what moves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from shardwise.errors import counted
from shardwise.layout import Layout
from shardwise.mesh import Mesh
from shardwise.pictures.boards import board
from shardwise.pictures.film import film
from shardwise.pictures.flows import movement
from shardwise.pictures.picture import Arrow, Board, Part, Picture, Sign, Strip, Table, Words
from shardwise.pictures.placement import Placement
from shardwise.planning.agreement import long, notes
from shardwise.planning.explain import ranking_rows, sent_text
from shardwise.planning.problem import assumed_of
from shardwise.planning.ranking import Candidate, Ranking
from shardwise.program import Program
from shardwise.steps import Fused, Step, collectives_of, consumed, describe, moved_axes, parts, touched
from shardwise.units import seconds_text

MOST_CARDS = 4  # devices before and after a transfer
SMALL = 6  # rows and columns of blocks of one of many boards


def plan_picture(ranked: Ranking) -> Picture:
    """Everything that a plan says, drawn."""
    task, best = ranked.task, ranked.best
    sizes = ", ".join(f"{dim}={size}" for dim, size in task.sizes.items())
    head, *rows = ranking_rows(ranked)
    exposed = seconds_text(best.estimate.exposed_seconds)
    described = (
        f"{counted(len(rows), 'program')} for {task.equation} on {task.mesh.told}; the best takes "
        f"{seconds_text(best.seconds)}{long(task, best)}; {exposed} of it waiting for transfers"
    )
    title = f"{counted(len(rows), 'program')}, cheapest first"
    ranking = Table(title, head, tuple(rows), frozenset({0, 1, 2, 3, 4, 5}), tuple(notes(ranked)))
    said = f"{sizes}; {task.dtype}; {task.mesh.told}; {task.hardware.title}"
    return Picture(
        str(task.equation),
        described,
        (
            Words((said, assumed_of(task))),
            ranking,
            *program_parts(best.program, task.sizes, best),
        ),
    )


def program_parts(program: Program, sizes: Mapping[str, int], priced: Candidate | None = None) -> Iterator[Part]:
    """For each step a strip of placements before and after; below a transfer who sends what to whom."""
    if not program.steps:
        yield Words(("The array already lies as wanted: nothing moves.",))
        return
    shown = film(program, sizes)
    states = program.states()
    costs = priced.estimate.steps if priced is not None else ()
    at = 0
    for number, step in enumerate(program.steps):
        said = ""
        if number < len(costs):  # the compiler's own program has no price step by step
            cost = costs[number]
            said = seconds_text(cost.seconds) + (f", {sent_text(cost)}" if moved_axes(step) else "")
        yield _strip(program.mesh, sizes, step, (states[number], states[number + 1]), f"{number + 1}. {describe(step)}", said)
        for part in parts(step):
            if collectives_of(part):
                yield replace(movement(shown, at, MOST_CARDS), title=f"{describe(part)}: who sends what")
            at += 1
        if isinstance(step, Fused):
            yield Words(("Both happen block by block: while one block is multiplied, the next is on its way.",))


def _strip(
    mesh: Mesh, sizes: Mapping[str, int], step: Step, states: tuple[Mapping[str, Layout], Mapping[str, Layout]],
    title: str, cost: str,
) -> Strip:  # fmt: skip
    before, after = states
    items: list[Board | Sign | Arrow] = []
    for name in consumed(step):
        items += [Sign("·")] if items else []
        items.append(_small(name, before[name], sizes, mesh))
    items.append(Arrow(_words(step), cost, bool(collectives_of(step))))
    made = touched(step)
    items.append(_small(made, after[made], sizes, mesh))
    return Strip(title, tuple(items))


def _words(step: Step) -> str:
    moved = moved_axes(step)
    name = type(step).__name__
    words = "".join(f" {c.lower()}" if c.isupper() else c for c in name).strip()
    return f"{words} {','.join(moved)}" if moved else "multiply" if name == "Einsum" else words


def _small(name: str, layout: Layout, sizes: Mapping[str, int], mesh: Mesh) -> Board:
    return board(Placement.of(name, layout, sizes, mesh), SMALL, SMALL)
