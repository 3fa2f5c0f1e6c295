"""What devices hold, compactly: one row for each where it holds a line of numbers, one board for all that hold the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from shardwise.pictures.film import Film
from shardwise.pictures.flows import bounds, moment, movement
from shardwise.pictures.picture import Arrow, Board, Box, Card, Sign, Strip, Track, Words
from shardwise.program import Program
from shardwise.steps import (
    AllGather,
    Einsum,
    EinsumGather,
    EinsumScatter,
    GatherEinsum,
    ReduceScatter,
    RotateEinsum,
    Slice,
    Step,
    collectives_of,
    consumed,
    einsum_of,
    kind,
    moved_axes,
    touched,
)

MOST_DEVICES = 8
SCREEN = 80  # columns of a terminal, within which a step stands in one strip


def held(film: Film, frame: int, arrays: tuple[str, ...] = ()) -> Iterator[Strip]:
    """What every device holds of each array at one moment."""
    cards = moment(film, frame, MOST_DEVICES)
    for name, layout in film.frames[frame].layouts.items():
        if not arrays or name in arrays:
            boards = _boards(film, frame, name, cards)
            lone = len(boards) == 1 and not boards[0].name
            yield Strip("", (replace(boards[0], name=f"{name}{layout}"),)) if lone else Strip(f"{name}{layout}", tuple(boards))


def changed(film: Film, number: int) -> Iterator[Strip]:
    """A step: what every device holds of the array before and after; before it of the first group."""
    step = film.frames[number].step
    assert step is not None, "behind the last frame there is no step"
    shown, name = movement(film, number, MOST_DEVICES), touched(step)
    before = _boards(film, number, name, shown.before)
    after = _boards(film, number + 1, name, shown.after)
    layouts = [f"{name}{film.frames[at].layouts[name]}" for at in (number, number + 1)]
    arrow = Arrow(step_words(step), "", bool(collectives_of(step)))
    if len(before) == len(after) == 1 and not before[0].name:  # rows of devices on both sides
        before[0], after[0] = replace(before[0], name=layouts[0]), replace(after[0], name=layouts[1], labelled=False)
        yield Strip("", (*before, arrow, *after))
        return
    group = _group(film, step)
    before = [board for board, who in zip(before, _sharers(film, number, name), strict=True) if group & set(who)]
    if sum(map(_columns, (*before, *after))) + len(arrow.text) + 2 * (len(before) + len(after)) <= SCREEN:
        yield Strip(f"{layouts[0]} -> {layouts[1]}", (*before, arrow, *after))
    else:
        yield Strip(f"before: {layouts[0]}", tuple(before))
        yield Strip(f"after: {layouts[1]}", tuple(after))


def _group(film: Film, step: Step) -> set[int]:
    """The first devices that work together."""
    moved = moved_axes(step)
    return set(film.group(moved, MOST_DEVICES)[0]) if moved else set(range(film.mesh.size))


def _columns(board: Board) -> int:
    """How many columns of a terminal a board takes."""
    widest = max([3, *(len(line) for box in board.boxes for line in (box.head, *box.body))])
    return max((widest + 3) * len(board.columns) + 1, len(board.name))


def matmuls(film: Film, number: int, devices: Sequence[int]) -> Iterator[Strip | Words]:
    """A local matmul on some devices: operand · operand = result."""
    step = film.frames[number].step
    assert step is not None, "behind the last frame there is no step"
    before, after = moment(film, number, film.mesh.size), moment(film, number + 1, film.mesh.size)
    made = touched(step)
    summed = bool(film.frames[number + 1].layouts[made].unreduced)
    for device in devices:
        items: list[Board | Sign] = []
        for name in consumed(step):
            items += [*([Sign("·")] if items else []), _of(before[device], name)]
        result = _of(after[device], made)
        shown = replace(result, name=f"a partial sum of {made}" if summed else result.name)
        yield Strip(f"device {device}", (*items, Sign("="), shown))
    if len(devices) < film.mesh.size:
        shown = f"{len(devices)} of {film.mesh.size} devices {'is' if len(devices) == 1 else 'are'} shown"
        yield Words((f"{shown}; the others do the same with what they hold.",))


def sends(film: Film, number: int) -> Words:
    """Who sends what to whom, one line for each sender of the first group; in the others the same happens."""
    step = film.frames[number].step
    assert step is not None, "behind the last frame there is no step"
    told: dict[int, dict[tuple[tuple[int, int], ...], list[int]]] = {}
    adds, group = False, _group(film, step)
    for move in film.moves(number, group):
        told.setdefault(move.source, {}).setdefault(bounds(move.where), []).append(move.target)
        adds = adds or move.adds
    lines = []
    for source, parts in told.items():
        said = [f"[{_slices(where)}] to {', '.join(map(str, targets))}" for where, targets in parts.items()]
        lines.append(f"device {source} sends {', '.join(said)}")
    if not lines:
        return Words(("Nothing is sent.",))
    others = film.mesh.size - len(group)
    notes = ["what arrives is added"] * adds + [f"the other {others} devices do the same"] * bool(others)
    return Words((*lines, *(["; ".join(notes)] if notes else [])))


def _sharers(film: Film, frame: int, name: str) -> list[list[int]]:
    """The devices that hold the same part, and the same partial sum, of an array."""
    groups: dict[object, list[int]] = {}
    for device in range(min(film.mesh.size, MOST_DEVICES)):
        holding = film.holding(frame, name, device)
        groups.setdefault((bounds(holding.where), holding.partial_sum), []).append(device)
    return list(groups.values())


def _boards(film: Film, frame: int, name: str, cards: Sequence[Card]) -> list[Board]:
    """One board of rows where every device holds a line of blocks; else one for all devices that hold the same."""
    found = [_of(card, name) for card in cards]
    if any(":" in line for board in found for box in board.boxes for line in (box.head, *box.body)):
        found = [replace(board, boxes=tuple(map(_placed, board.boxes))) for board in found]  # all by place, if some are
    if all(_is_line(board) for board in found):
        boxes = [
            replace(box, row=row, column=column, body=(), head=box.head or " ".join(box.body))
            for row, board in enumerate(found)
            for column, box in enumerate(board.boxes)
        ]
        rows = tuple(Track(card.name) for card in cards)
        columns = (Track(),) * max(len(board.boxes) for board in found)
        return [Board("", "", rows, columns, tuple(boxes))]
    return [_shared(found[devices[0]], devices, len(cards)) for devices in _sharers(film, frame, name)]


def _placed(box: Box) -> Box:
    """A box that says its place in the array, not its numbers."""
    return replace(box, head="", body=(dict(box.facts)["part"].replace(",", ", "),))


def _shared(board: Board, devices: list[int], count: int) -> Board:
    who = "every device" if len(devices) == count > 1 else f"device{'s' * (len(devices) > 1)} {', '.join(map(str, devices))}"
    boxes = tuple(replace(box, copies=len(devices)) for box in board.boxes)
    return replace(board, name=who, boxes=boxes)


def _is_line(board: Board) -> bool:
    lines = all(len(box.body) + bool(box.head) == 1 for box in board.boxes)
    return lines and (len(board.rows) == 1 or len(board.columns) == 1)


def _of(card: Card, name: str) -> Board:
    """The board of one array on a card."""
    return next(board for board in card.boards if board.name.startswith(f"{name}[") or board.name.split(",")[0] == name)


def step_words(step: Step) -> str:
    """A step in a few words, as what stands over an arrow: its operation, and the axes that it moves along."""
    moved = moved_axes(step)
    if einsum_of(step) is not None and not moved:
        return "multiply" if len(consumed(step)) > 1 else "sum"
    name = kind(step).removeprefix("collective-")
    return f"{name} {','.join(moved)}" if moved else f"{name} {touched(step)}"


def program_words(program: Program) -> str:
    """A program in one short line.

    >>> from shardwise.layout import Layout; from shardwise.mesh import Mesh; from shardwise.steps import AllGather
    >>> program_words(Program(Mesh.parse("x=2"), (("A", Layout.parse("I_x")),), (AllGather("A", "I", ("x",)),), "A"))
    'all-gather A (I)'
    """
    said = []
    for step in program.steps:
        match step:
            case GatherEinsum(gather, _) | EinsumGather(_, gather):
                said.append(f"multiply gathering {gather.array} ({gather.dim})")
            case EinsumScatter(_, scatter):
                said.append(f"multiply scattering {scatter.array} ({scatter.dim})")
            case RotateEinsum():
                said.append(f"multiply rotating {' and '.join(consumed(step))}")
            case Einsum():
                said.append(step_words(step))
            case AllGather() | ReduceScatter() | Slice():
                said.append(f"{kind(step)} {step.array} ({step.dim})")
            case _:
                said.append(f"{kind(step).removeprefix('collective-')} {touched(step)}")
    return ", ".join(said) or "nothing moves"


def _slices(where: tuple[tuple[int, int], ...]) -> str:
    return ", ".join(f"{start}:{stop}" for start, stop in where)
