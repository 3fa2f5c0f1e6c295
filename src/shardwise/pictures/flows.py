"""Frames of a program as pictures: devices before and after a step with the very numbers they hold, and what moves."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from shardwise.errors import counted
from shardwise.pictures.film import Film, Holding, Where, common
from shardwise.pictures.picture import Board, Box, Card, Movement, Stage, Tone, Track, Wire, thinned
from shardwise.reference import groups
from shardwise.steps import (
    AllGather,
    AllReduce,
    AllToAll,
    CollectivePermute,
    ReduceScatter,
    Slice,
    Step,
    collectives_of,
    consumed,
    describe,
    touched,
)

MOST_DEVICES = 8
MOST_ON_STAGE, MOST_WIRES = 16, 64
MOST_BLOCKS = 16  # along each side of what one device holds
MOST_VALUES, MOST_LINES, MOST_LINE = 32, 4, 26  # of one block: numbers, lines, characters of a line


def movement(film: Film, frame: int, most_devices: int = MOST_DEVICES) -> Movement:
    """One step: its devices before and after, and a wire for everything that is sent.

    Of a mesh with more devices the first group that works together is drawn, and the others are counted.
    """
    step = film.frames[frame].step
    assert step is not None, "behind the last frame there is no step"
    devices, notes = _drawn_devices(film, step, most_devices)
    look = _Look.of(film, frame, step)
    names = list(dict.fromkeys((*consumed(step), touched(step))))
    cards = []
    for at in (frame, frame + 1):
        live = [name for name in names if name in film.frames[at].layouts]
        told = live if at == frame else [touched(step)]
        cards.append([_card(film, at, device, told, look, at == frame) for device in devices])
    wires = _wires(film, frame, devices, look)
    if not collectives_of(step):
        notes = ["nothing is sent: every device works with what it holds", *notes]
    return Movement(describe(step), tuple(cards[0]), tuple(cards[1]), wires, tuple(notes))


def moment(film: Film, frame: int, most_devices: int = 64) -> tuple[Card, ...]:
    """A card for every device with all live arrays: one frame alone, for those who step through a program."""
    step = film.frames[frame].step
    look = _Look.of(film, frame, step)
    names = list(film.frames[frame].layouts)
    count = min(film.mesh.size, most_devices)
    return tuple(_card(film, frame, device, names, look, step is not None) for device in range(count))


def stages(film: Film, frame: int, columns: int, most_devices: int = MOST_ON_STAGE) -> tuple[Stage, Stage, Stage]:
    """A step on a stage: its devices before it, the same with what they send, and after it."""
    step = film.frames[frame].step
    assert step is not None, "behind the last frame there is no step"
    look = _Look.of(film, frame, step)
    devices = list(range(min(film.mesh.size, most_devices)))
    wires, left, notes = _wires(film, frame, devices, look), [], []
    if film.mesh.size > len(devices):
        left.append(f"{len(devices)} of {film.mesh.size:,} devices are drawn; the others do the same")
    if len(wires) > MOST_WIRES:
        group = look.group[0]
        inside = [wire for wire in wires if wire.source in group]
        wires = tuple(inside if len(inside) <= MOST_WIRES else [wire for wire in inside if wire.source == 0])
        senders = "one group" if len(inside) <= MOST_WIRES else "device 0"
        notes.append(f"only what {senders} sends is drawn; the others do the same")

    def at(moment: int, sent: tuple[Wire, ...] = (), said: Sequence[str] = ()) -> Stage:
        names = film.frames[moment].layouts
        cards = (_card(film, moment, device, list(names), look, False) for device in devices)
        return Stage("", columns, tuple(map(_bare, cards) if len(devices) > MOST_DEVICES else cards), sent, (*left, *said))

    return at(frame), at(frame, wires, notes), at(frame + 1)


def _bare(card: Card) -> Card:
    """A card of one of many devices: its blocks by their colours, with nothing written in them."""
    boards = (replace(b, boxes=tuple(replace(box, head="", body=()) for box in b.boxes)) for b in card.boards)
    return replace(card, boards=tuple(boards))


def _wires(film: Film, frame: int, devices: Sequence[int], look: _Look) -> tuple[Wire, ...]:
    place = {device: number for number, device in enumerate(devices)}
    return tuple(
        Wire(
            place[move.source], place[move.target], look.wire(move.source, move.target), move.adds,
            f"{move.array}[{_slices(move.where)}]" + (", to be summed" if move.adds else ""),
        )
        for move in film.moves(frame, devices)
    )  # fmt: skip


def lacking(film: Film, frame: int) -> str:
    """What every device lacks for the step to come, in words."""
    return _Look.of(film, frame, film.frames[frame].step).lacks()


def _drawn_devices(film: Film, step: Step, most: int) -> tuple[list[int], list[str]]:
    if film.mesh.size <= most:
        return list(range(film.mesh.size)), []
    axes = tuple(dict.fromkeys(axis for part in collectives_of(step) for axis in part.axes))
    if not axes:
        return list(range(min(2, film.mesh.size))), [f"two of {film.mesh.size:,} devices; the others do the same"]
    group, count = film.group(axes, most)
    whole = film.mesh.size // count
    notes = []
    if len(group) < whole:
        notes.append(f"{len(group)} of the {whole} devices along {', '.join(axes)}; the others do the same")
    if count > 1:
        notes.append(f"one of {count:,} groups; in the others the same happens")
    return group, notes


def _card(film: Film, frame: int, device: int, names: Sequence[str], look: _Look, before: bool) -> Card:
    coordinate = " ".join(f"{axis}={at}" for axis, at in film.coordinate(device).items())
    boards = tuple(_board(film, frame, film.holding(frame, name, device), look) for name in names)
    lacks = look.lacks() if before else ""
    return Card(f"device {device}", boards, coordinate, lacks)


@dataclass(frozen=True, slots=True)
class _Look:
    """How the blocks of the array that a step moves are cut and coloured: by where they come from, or where they go."""

    film: Film
    frame: int
    step: Step | None
    array: str = ""
    cuts: tuple[int, ...] = ()
    group: dict[int, list[int]] = field(default_factory=dict)  # of each device those that it works with, in order

    @classmethod
    def of(cls, film: Film, frame: int, step: Step | None) -> _Look:
        moved = collectives_of(step) if step is not None else ()
        if step is None or not (moved or isinstance(step, Slice)):
            return cls(film, frame, step)
        array = touched(step)
        layouts = (film.frames[frame].layouts[array], film.frames[frame + 1].layouts[array])
        cuts = tuple(max(film.mesh.extent(layout.axes_of(dim)) for layout in layouts) for dim in layouts[0].names)
        listed = groups(moved[0].axes if moved else step.axes, film.mesh)  # type: ignore[union-attr]
        return cls(film, frame, step, array, cuts, {device: group for group in listed for device in group})

    @property
    def count(self) -> int:
        """How many devices work together."""
        return max(map(len, self.group.values()), default=1)

    def tones(self, holding: Holding, frame: int) -> Callable[[Where], Tone | None]:
        """The colour of a block: of copies that of the device it comes from, of parts to be summed that of its target."""
        if holding.array != self.array:
            whole = self._block(holding, frame)
            return lambda where: whole
        group, before = self.group[holding.device], frame == self.frame
        own = Tone(group.index(holding.device), self.count)
        match self.step:
            case AllReduce():
                return lambda where: own if before else None
            case AllGather() | AllToAll() | CollectivePermute() if before:
                return lambda where: own
            case CollectivePermute():
                senders = [move.source for move in self.film.moves(self.frame, group) if move.target == holding.device]
                sent = Tone(group.index(senders[0]), self.count) if senders else own
                return lambda where: sent
            case _:
                other = self.frame + isinstance(self.step, ReduceScatter | Slice)
                ends = (self.film.holding(other, holding.array, device).where for device in group)
                found = {bounds(common(end, holding.where)): at for at, end in enumerate(ends)}
                return lambda where: Tone(found[bounds(where)], self.count) if bounds(where) in found else None

    def _block(self, holding: Holding, frame: int) -> Tone | None:
        """The colour of an array that stays: by which block of it a device holds; none where all hold the whole."""
        layout = self.film.frames[frame].layouts[holding.array]
        parts = [self.film.mesh.extent(axes) for _, axes in layout.dims]
        at = [part.start // (part.stop - part.start) for part in holding.where]
        return Tone(int(np.ravel_multi_index(at, parts)), math.prod(parts)) if math.prod(parts) > 1 else None

    def wire(self, source: int, target: int) -> Tone:
        """The colour of what one device sends to another."""
        group = self.group[source]
        return Tone(group.index(target if isinstance(self.step, ReduceScatter) else source), self.count)

    def lacks(self) -> str:
        """What every device needs and has not."""
        match self.step:
            case AllGather(array, dim, _):
                return f"lacks {self.count - 1} of {self.count} parts of {array} along {dim}"
            case AllReduce(array, _) | ReduceScatter(array, _, _):
                return f"lacks {self.count - 1} of {counted(self.count, 'partial sum')} of {array}"
            case _:
                return ""


def bounds(where: Where) -> tuple[tuple[int, int], ...]:
    """Slices as something that can be looked up; Python 3.11 has no hash of a slice."""
    return tuple((part.start, part.stop) for part in where)


def _board(film: Film, frame: int, holding: Holding, look: _Look) -> Board:
    names = film.frames[frame].layouts[holding.array].names
    cuts = look.cuts if holding.array == look.array else None
    sides = []
    for at, (part, dim) in enumerate(zip(holding.where, names, strict=True)):
        width = part.stop - part.start if cuts is None else film.sizes[dim] // cuts[at]
        sides.append([slice(start, start + width) for start in range(part.start, part.stop, width)])
    tone = look.tones(holding, frame)
    across = len(sides[-1]) if sides else 1
    boxes = tuple(
        _box(holding, where, *divmod(number, across), tone(where)) for number, where in enumerate(itertools.product(*sides))
    )
    name = f"{holding.array}[{_slices(holding.where)}]" if holding.where else holding.array
    sums = ", partial sum " + " ".join(f"{axis}={place}" for axis, place in holding.partial_sum) if holding.partial_sum else ""
    rows, columns = (Track(),) * (len(boxes) // across), (Track(),) * across
    return thinned(Board(name + sums, "", rows, columns, boxes, labelled=False), MOST_BLOCKS, MOST_BLOCKS)


def _box(holding: Holding, where: Where, row: int, column: int, tone: Tone | None) -> Box:
    lines = _values(holding, where)
    told = f"{holding.array}[{_slices(where)}]" if where else holding.array
    held = f"device {holding.device} holds {told}" + (", one partial sum of it" if holding.partial_sum else "")
    facts = (
        ("device", str(holding.device)),
        ("array", holding.array),
        ("part", ",".join(f"{p.start}:{p.stop}" for p in where)),
    )
    head, body = (lines[0], ()) if len(lines) == 1 and len(lines[0]) <= 8 else ("", tuple(lines))
    partial_sums = 2 if holding.partial_sum else 1
    return Box(row, column, head, body, tone=tone, partial_sums=partial_sums, title=held, facts=facts)


def _values(holding: Holding, where: Where) -> list[str]:
    """The numbers of a block, a line for each row; of a block with too many its slices."""
    if holding.values is None:
        return [_slices(where) or "value"]
    inside = tuple(slice(p.start - h.start, p.stop - h.start) for p, h in zip(where, holding.where, strict=True))
    values = holding.values[inside]
    rows = values.reshape(-1, values.shape[-1]) if values.ndim else values.reshape(1, 1)
    texts = [[value_text(value) for value in row] for row in rows]
    width = max(len(text) for row in texts for text in row)
    lines = [" ".join(text.rjust(width) for text in row) for row in texts]
    if values.size > MOST_VALUES or len(lines) > MOST_LINES or max(map(len, lines)) > MOST_LINE:
        return [_slices(where) or "value"]
    return lines


def value_text(value: object) -> str:
    """A number as short as it is told: whole ones without a point, others with four figures.

    >>> value_text(np.float32(3.0)), value_text(1 / 3)
    ('3', '0.3333')
    """
    number = np.asarray(value)
    if number.dtype.kind in "iub":
        return str(number.item())
    real = complex(number) if number.dtype.kind == "c" else float(number)
    if isinstance(real, float) and real.is_integer() and abs(real) < 1e6:
        return str(int(real))
    return f"{real:.4g}"


def _slices(where: Where) -> str:
    return ", ".join(f"{part.start}:{part.stop}" for part in where)
