"""From the stops of a tour to pictures: each look becomes boards, tables and words with the numbers that hold."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import assert_never

import numpy as np

from shardwise.chips.links import assumptions
from shardwise.errors import NotationError, counted
from shardwise.mesh import Mesh
from shardwise.notation import parse, parse_operand
from shardwise.pictures.boards import board
from shardwise.pictures.film import film
from shardwise.pictures.flows import movement, value_text
from shardwise.pictures.picture import Board, Part, Picture, Strip, Table, Words, wrapped
from shardwise.pictures.placement import Placement
from shardwise.pictures.sheet import sheet
from shardwise.pictures.tours.alone import Short, alone, whole_einsum
from shardwise.pictures.tours.holdings import changed, held, matmuls, program_words, sends, step_words
from shardwise.pictures.tours.stops import (
    Alone,
    Check,
    Choice,
    Cost,
    Done,
    Equal,
    Forms,
    Held,
    Look,
    Multiplied,
    Needed,
    Placed,
    Refused,
    Ring,
    Said,
    Scene,
    Sheet,
    Stop,
    Tour,
)
from shardwise.planning.agreement import notes, short
from shardwise.planning.cost import estimate
from shardwise.planning.problem import DTYPE, costs_on, problem, slice_on
from shardwise.planning.ranking import rank, ranking
from shardwise.planning.step_cost import StepCost
from shardwise.planning.terms import told, with_formulas
from shardwise.reference import run
from shardwise.steps import Fused, Step, collectives_of, describe, moved_axes
from shardwise.units import bytes_text, seconds_text

MOST_ROWS = 8  # of a table, one for each device
MOST_PROGRAMS = 5
PROGRAM = 52  # columns of a program's words
LINE = 78  # characters of a formula with its numbers


def screens(tour: Tour, hardware: str) -> tuple[Picture, ...]:
    """Every stop of a tour as a picture of its own, for one screen each.

    Raises:
        HardwareError: there is no hardware of that name.
    """
    count = len(tour.stops)
    return tuple(
        Picture(
            f"{tour.name} {number}/{count}: {stop.title}",
            " ".join(stop.words) or stop.title,
            (*([Words(stop.words)] if stop.words else []), *_parts(stop, hardware, page=False)),
        )
        for number, stop in enumerate(tour.stops, 1)
    )


def document(tour: Tour, hardware: str) -> Picture:
    """All stops of a tour below each other, with a wire for everything that moves.

    Raises:
        HardwareError: there is no hardware of that name.
    """
    parts: list[Part] = []
    for number, stop in enumerate(tour.stops, 1):
        parts += [Words(stop.words, title=f"{number}. {stop.title}"), *_parts(stop, hardware, page=True)]
    return Picture(f"{tour.name}: {tour.about}", f"a tour in {counted(len(tour.stops), 'stop')}", tuple(parts))


def _parts(stop: Stop, hardware: str, page: bool) -> Iterator[Part]:
    for look in stop.looks:
        yield from _seen(look, hardware, page)


def _seen(look: Look, hardware: str, page: bool) -> Iterator[Part]:
    match look:
        case Held(scene, frame, arrays):
            yield from held(_film(scene), frame, arrays)
        case Done(scene, step):
            yield from (
                [replace(movement(_film(scene), step), open=True)]
                if page
                else [*changed(_film(scene), step), sends(_film(scene), step)]
            )
        case Multiplied(scene, step, devices):
            yield from matmuls(_film(scene), step, devices)
        case Alone(scene, wanted):
            yield _shorts(scene, wanted)
        case Needed(scene):
            yield _needed(scene)
        case Equal(scene, other):
            yield _equal(scene, other)
        case Forms(equations, scene):
            yield _forms(equations, scene, hardware)
        case Refused(equation):
            yield from _refused(equation)
        case Check(scene, equation):
            yield from _checked(scene, equation)
        case Ring(scene):
            yield _ring(scene)
        case Choice():
            yield _choice(look, hardware)
        case Cost(scene):
            yield from _cost(scene, hardware)
        case Sheet(array, mesh):
            drawn = sheet(parse_operand(array), Mesh.parse(mesh))
            yield Words((drawn.title,))
            yield from drawn.parts
        case Placed():
            yield _placed(look)
        case Said(lines):
            yield Words(lines, code=True)
        case _:
            assert_never(look)


def _film(scene: Scene):
    return film(scene.program, scene.sizes, scene.values)


# What a device lacks.


def _shorts(scene: Scene, wanted: str) -> Table:
    equation, mesh = parse(wanted), scene.program.mesh
    found = list(alone(equation.on(mesh), mesh, scene.values))
    name = equation.result.name
    rows = tuple(
        (
            str(short.device),
            f"{name}[{', '.join(map(str, short.element))}]" if short.element else name,
            f"{short.terms} of {short.of}",
            value_text(short.alone) if short.terms else "nothing",
            value_text(short.right),
            f"{short.wrong} of {short.held}",
        )
        for short in found[:MOST_ROWS]
    )
    head = ("device", "element", "terms it has", "alone", "right", "wrong in all")
    notes = [_verdict(found, name)]
    if len(found) > len(rows):
        notes.append(f"{len(found) - len(rows)} more devices are not listed")
    return Table(f"to {equation.result}, from what each device holds", head, rows, frozenset({3, 4}), tuple(notes))


def _verdict(found: list[Short], name: str) -> str:
    """The one sentence that the table is for."""
    wrong = next((short for short in found if short.wrong), None)
    if wrong is None:
        return "what each device makes alone is right"
    element = f"{name}[{', '.join(map(str, wrong.element))}]" if wrong.element else name
    if not wrong.terms:
        return f"device {wrong.device} alone has nothing of {element}; it is {value_text(wrong.right)}"
    return f"device {wrong.device} alone would say {element} = {value_text(wrong.alone)}; it is {value_text(wrong.right)}"


def _needed(scene: Scene) -> Table:
    frames = _film(scene)
    rows = []
    for device in range(frames.mesh.size):
        has, needs = (frames.holding(at, scene.program.output, device).values for at in (0, -1))
        rows.append((str(device), _numbers(has), _numbers(needs), "right" if _same(has, needs) else "wrong"))
    return Table("", ("device", "holds", "needs", "its own is"), tuple(rows), frozenset({1, 2}))


# What holds.


def _equal(scene: Scene, other: Scene) -> Table:
    """Two programs side by side: of the first the end, of the second every step that changes the result."""
    first, second = _film(scene), _film(other)
    output = other.program.output
    live = [at for at, frame in enumerate(second.frames) if output in frame.layouts]
    steps = [step_words(frame.step) if frame.step else "" for frame in second.frames]
    named = [steps[at - 1] if at else f"{output}{second.frames[0].layouts[output]}" for at in live]
    said = [step_words(step) for step in scene.program.steps]
    told = ", ".join([words for words in said if words != "multiply"] or said) or "at first"
    rows, same = [], True
    for device in range(first.mesh.size):
        ends = [second.holding(at, output, device).values for at in live]
        end = first.holding(-1, scene.program.output, device).values
        same = same and _same(ends[-1], end)
        rows.append((str(device), *map(_numbers, ends), _numbers(end)))
    verdict = "the last two columns are equal on every device" if same else "the last two columns are not equal"
    return Table("", ("device", *named, told), tuple(rows), frozenset(), (verdict,))


def _same(one: np.ndarray | None, other: np.ndarray | None) -> bool:
    return one is not None and other is not None and np.array_equal(one, other)


def _numbers(values: np.ndarray | None) -> str:
    if values is None:
        return ""
    flat = [value_text(value) for value in np.asarray(values).reshape(-1)]
    return " ".join(flat) if len(flat) <= 4 else " ".join((*flat[:2], "...", flat[-1]))


def _forms(equations: tuple[str, ...], scene: Scene, hardware: str) -> Table:
    a, b = scene.wholes()
    rows = []
    for text in equations:
        program = rank(problem(parse(text), scene.sizes, scene.program.mesh, hardware, DTYPE))[0].program
        moved = sum(len(collectives_of(step)) for step in program.steps)
        made = run(program, a, b)
        rows.append((text, counted(moved, "collective"), "equal" if np.array_equal(made, a @ b) else "not equal"))
    return Table("", ("equation", "sent", "to A @ B"), tuple(rows))


def _checked(scene: Scene, equation: str) -> Iterator[Part]:
    """The end of a program on every device, and whether its parts make what NumPy makes of whole arrays."""
    frames, name = _film(scene), scene.program.output
    yield from held(frames, len(frames.frames) - 1, (name,))
    arrays = scene.wholes()
    made = run(scene.program, *arrays)
    same = np.array_equal(made, whole_einsum(parse(equation))(arrays))
    yield Words((f"The parts make {'' if same else 'NOT '}what np.einsum makes of the whole arrays.",))


def _refused(equation: str) -> Iterator[Words]:
    """The message of the notation itself: the equation, what is wrong with it, the caret and the way out."""
    try:
        parse(equation)
    except NotationError as error:
        first, second = str(error).split("\n")
        said, what = first.removeprefix(equation).removeprefix(": "), second.split("^")
        yield Words((equation, f"{what[0]}^"), code=True)
        yield Words((f"{said}: {what[1].strip()}.",))
        return
    raise AssertionError(f"{equation} is legal")


def _ring(scene: Scene) -> Table:
    """Which row of A every device multiplies at each tick, and the first number of what it makes."""
    frames = _film(scene)
    (a, b), count = scene.wholes(), frames.mesh.size
    whole = a @ b
    rows, made = [], [np.zeros_like(whole) for _ in range(count)]
    for tick in range(len(frames.frames)):
        cells = []
        for device in range(count):
            holding = frames.holding(tick, "A", device)
            source = next(n for n in range(count) if _same(frames.holding(0, "A", n).values, holding.values))
            block = np.asarray(holding.values) @ b
            made[device][frames.holding(0, "A", source).where[0]] = block
            cells.append(f"A{source} · B = {value_text(block[0, 0])} ...")
        rows.append((str(tick + 1), *cells))
    same = all(np.array_equal(each, whole) for each in made)
    notes = [
        "A0 is the row that device 0 began with; the number is the first of the row of C that it makes",
        f"after tick {len(rows)} the rows of every device are {'' if same else 'not '}those of C",
    ]
    return Table("", ("tick", *(f"device {n}" for n in range(count))), tuple(rows), frozenset(), tuple(notes))


# What it costs.


def _choice(look: Choice, hardware: str) -> Table:
    task = problem(parse(look.equation), look.large, look.mesh, hardware, DTYPE, overlap=look.overlap)
    found = ranking(task)
    ranked = found.candidates
    rows: list[tuple[str, ...]] = []
    for candidate in ranked[:MOST_PROGRAMS]:
        said = program_words(candidate.program) + _repeated(candidate.estimate.redundancy)
        first, *more = wrapped(said, PROGRAM)
        seconds = seconds_text(candidate.seconds) + short(task, candidate)
        rows.append((seconds, bytes_text(candidate.estimate.total_wire_bytes), first))
        rows += [("", "", f"  {line}") for line in more]
    shown = min(len(ranked), MOST_PROGRAMS)
    below = (f"{shown} of {counted(len(ranked), 'program')}, cheapest first", *notes(found))
    title = f"{_at(task.sizes, task.mesh)}, on {task.hardware.title}"
    return Table(title, ("modelled", "sent", "program"), tuple(rows), frozenset({0, 1}), below)


def _repeated(times: float) -> str:
    return f", all work {times:.3g} times" if times > 1.01 else ""


def _at(sizes, mesh: Mesh) -> str:
    return f"{', '.join(f'{dim}={size}' for dim, size in sizes.items())}, {DTYPE}, mesh {mesh}"


def _cost(scene: Scene, hardware: str) -> Iterator[Part]:
    mesh = scene.program.mesh
    costs = with_formulas(costs_on(hardware, mesh, DTYPE))
    sizes = scene.large or scene.sizes
    _, topology, is_assumed = slice_on(hardware, mesh)
    on = f"{costs.hardware.title}, {topology} assumed" if is_assumed else costs.hardware.title
    laid = [f"{_at(sizes, mesh)}, on {on}", assumptions(costs.hardware, mesh, costs.interconnect.routes)]
    yield Words(tuple(laid))
    lines: list[str] = []
    made = estimate(scene.program, costs, sizes)
    for step, cost in zip(scene.program.steps, made.steps, strict=True):
        lines += [*([""] if lines else []), *_priced_words(step, cost)]
    total: list[str] = []
    if len(made.steps) > 1:
        total.append(f"{seconds_text(made.seconds)} in all, {seconds_text(made.exposed_seconds)} of it waiting")
    if scene.large:
        small = estimate(scene.program, costs, scene.sizes).seconds
        total.append(f"the few numbers of this tour: {seconds_text(small)}")
    if total:
        lines += ["", "; ".join(total)]
    yield Words(tuple(lines), code=True)


def _priced_words(step: Step, cost: StepCost) -> Iterator[str]:
    """A step, its price, and the formula with its numbers."""
    sent = f"{bytes_text(cost.wire_bytes)} sent by each device" if moved_axes(step) else "nothing sent"
    yield from _fitted([f"{describe(step)}: {seconds_text(cost.seconds)}", sent], "", ", ")
    price = told(cost.seconds)
    for number, term in enumerate(price.terms):
        label = f"{term.label}: " if term.label else ""
        sides = [f"{'+' if number else ' '} {label}{term.symbols}", term.numbers, seconds_text(term.seconds)]
        yield from _fitted(list(dict.fromkeys(sides)), "    = ", " = ")
    if isinstance(step, Fused):
        overlapped = max(cost.transfer_seconds - cost.exposed_seconds, 0.0)
        moving = f"{seconds_text(cost.transfer_seconds)} of transfers, {seconds_text(overlapped)} of it behind matmuls"
        yield f"  along the critical path; {moving}"
    yield from (f"  {line}" for line in _fitted(price.letters, "", "; "))


def _fitted(pieces: Iterable[str], indent: str, between: str) -> list[str]:
    """Pieces joined to lines that are not too long; one that is longer than a line is broken before its signs."""
    lines: list[str] = []
    for piece in pieces:
        if lines and len(lines[-1]) + len(between) + len(piece) <= LINE:
            lines[-1] += between + piece
            continue
        whole = (indent if lines else "") + piece
        lines += [whole] if len(whole) <= LINE else _fitted(_BEFORE_SIGNS.split(whole), "      ", " ")
    return lines


_BEFORE_SIGNS = re.compile(r"(?<=\S) (?=[·/+=] )|(?<=,) ")


def _placed(look: Placed) -> Strip:
    mesh = Mesh.parse(look.mesh)
    boards: list[Board] = []
    for text in look.arrays:
        operand = parse_operand(text)
        drawn = board(Placement.of(operand.name, operand.layout.on(mesh), look.sizes, mesh))
        boards.append(replace(drawn, notes=()))
    return Strip("", tuple(boards))
