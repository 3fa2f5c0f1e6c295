"""Intent against truth: what a compiler made of a function, held against what its annotations asked for."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from shardwise import views
from shardwise.chips.topology import HERE
from shardwise.compiled.audit import Audit
from shardwise.compiled.compiling import audit, rehearse, wire_bytes_on
from shardwise.compiled.facts import MADE_BY_A_PLAN, Collective, Line
from shardwise.compiled.targets.lowering import Lowering
from shardwise.errors import CompileError
from shardwise.functions.diagnosis import Diagnosis, Place, Remedy
from shardwise.intent.propagation import Intended, with_changes
from shardwise.units import bytes_text

How = Literal["name", "line", "array", "plan", "own"]
MOST_CONFIRMED = 4  # ways out that are compiled


@dataclass(frozen=True, slots=True)
class Answer:
    """A collective of the compiled program, and the place that asked for it.

    Attributes:
        place: its number in `Diagnosis.places`, from 0; None where no place asked: then it is the compiler's own.
        how: by what it was found: JAX's name of the operation or of the argument, the user's line, or the axes and the size of
            the array; a step of one of Shardwise's plans is none of these.
        otherwise: it moves another array than its place does, as the other operand of a matmul: the compiler chose so.
        joined: the numbers of other places whose arrays it moves too: compilers join collectives into one.
        exposed_seconds: what of it is exposed, where a timeline says it.
    """

    collective: Collective
    place: int | None
    how: How
    otherwise: bool = False
    joined: tuple[int, ...] = ()
    exposed_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Truth:
    """The compiled program beside the places: what was asked for and made, asked for and gone, made and not asked for.

    Attributes:
        answers: every collective of the compiled program.
        gone: the numbers of the places that no collective answers: the compiler found another way.
        once: of them those that move an array as another place does that is answered, and that one: it is moved once.
        lines: of all places.
        whole: the numbers of the places where it gathers an array whole, of which each device then keeps a part: full
            rematerialization, since it knows no steps from the one layout to the other.
    """

    audit: Audit = field(repr=False)
    answers: tuple[Answer, ...]
    gone: tuple[int, ...]
    whole: tuple[int, ...] = ()
    once: tuple[tuple[int, int], ...] = ()
    lines: tuple[Line | None, ...] = ()

    @property
    def own(self) -> tuple[Collective, ...]:
        """What the compiler made and nobody asked for."""
        return tuple(each.collective for each in self.answers if each.how == "own")

    @property
    def explained(self) -> float:
        """The share of the collectives that some place asked for."""
        return 1.0 - len(self.own) / len(self.answers) if self.answers else 1.0

    __str__ = views.text


def beside(found: Diagnosis, function: Callable[..., Any], args: tuple[Any, ...], on: str, mesh: Any) -> Diagnosis:
    """A diagnosis with the compiled program beside it.

    Raises:
        CompileError: the compiler refuses; others as `sw.rehearse` and `sw.audit`.
    """
    made = audit(function, *args, mesh=mesh) if on == HERE else rehearse(function, *args, on=on, mesh=mesh)
    return dataclasses.replace(found, truth=truth_of(made, found.places), findings=(*found.findings, *_new(made, found)))


def confirmed(found: Diagnosis, ready: Intended, lowering: Lowering, on: str, mesh: Any) -> Diagnosis:
    """The ways out compiled, too, the first few: one with which the compiled program sends no less is taken back.

    Raises:
        CompileError: the compiler's process breaks down.
    """
    truth: Any = found.truth
    before, told, notes = truth.audit.total_wire_bytes, dict[Remedy, Remedy | None](), list(found.notes)
    for each in found.remedies[:MOST_CONFIRMED]:
        try:
            after = wire_bytes_on(lowering, with_changes(ready, each.changes), on, mesh)
        except CompileError:
            continue
        told[each] = dataclasses.replace(each, compiled_bytes=(before, after)) if after < before else None
        if after >= before:
            sends, instead = bytes_text(after), bytes_text(before)
            what = f"sends {sends} and not {instead}" if sends != instead else f"sends no less than the {instead} of now"
            notes.append(f"taken back, since compiled for {on} it {what}: {each.says}")
    places = tuple(
        dataclasses.replace(place, remedy=told.get(place.remedy, place.remedy)) if place.remedy else place
        for place in found.places
    )
    return dataclasses.replace(found, places=places, notes=tuple(notes))


def _new(made: Audit, found: Diagnosis) -> Iterator[Any]:
    known = {each.what for each in found.findings}
    yield from (each for each in made.findings if each.what not in known)


def truth_of(made: Audit, places: Sequence[Place]) -> Truth:
    """Hold every collective against the places."""
    shown = made.timeline() if made.hardware is not None and not made.hardware.shared and not made.unread else None
    asked, taken = list[tuple[Collective, int | None, How]](), set[int]()
    for each in made.collectives:
        number, how = _asked(each, places, taken)
        if number is not None:
            taken.add(number)
        asked.append((each, number, how))
    answers, arguments = list[Answer](), {argument.name for argument in made.arguments}
    for each, number, how in asked:
        joined = () if number is None else _joined(each, number, places, taken)
        taken.update(joined)
        share = None if shown is None else shown.share(each)
        otherwise = number is not None and _moves_another(each, places[number], arguments)
        answers.append(Answer(each, number, how, otherwise, joined, None if share is None else share.exposed_seconds))
    gone = tuple(number for number, place in enumerate(places) if number not in taken and place.wire_bytes)
    whole = (each.place for each in answers if each.place is not None and _gathered_whole(each.collective, places[each.place]))
    return Truth(
        made,
        tuple(answers),
        gone,
        tuple(dict.fromkeys(whole)),
        tuple(_once(gone, taken, places)),
        tuple(place.line for place in places),
    )


def _moves_another(each: Collective, place: Place, arguments: set[str]) -> bool:
    """Whether a collective moves another array than its place does, by its name or its size."""
    named = each.op_name in arguments and not _names_argument(each.op_name, place)
    counts = [count for _, count in each.held] or [math.prod(each.shape)]
    return named or not _take_size(counts, place, each)


def _joined(each: Collective, own: int, places: Sequence[Place], taken: set[int]) -> tuple[int, ...]:
    """The places that nothing else answers and whose arrays a collective of several moves beside that of its own place."""
    axes = {axis.partition(":")[0] for axis in each.axes}
    left, lines = [count for _, count in each.held], _lines(each)
    _take_size(left, places[own], each)
    found = []
    for number, place in enumerate(places):
        if number not in taken and axes & _axes(place) and _at(place, lines) and _take_size(left, place, each):
            found.append(number)
    return tuple(found)


def _take_size(counts: list[int], place: Place, each: Collective) -> bool:
    """Take the array of a place, whole or as one device's part, out of the elements of those that a collective moves."""
    whole = math.prod(place.shape)
    found = next((count for count in counts if count and whole % count == 0 and _is_part(whole // count, each)), None)
    if found is not None:
        counts.remove(found)
    return found is not None


def _once(gone: Sequence[int], taken: set[int], places: Sequence[Place]) -> Iterator[tuple[int, int]]:
    for number in gone:
        place = places[number]
        alike = (
            other for other in sorted(taken)
            if set(places[other].subjects) & set(place.subjects)
            and (places[other].before, places[other].after) == (place.before, place.after)
        )  # fmt: skip
        if (other := next(alike, None)) is not None:
            yield number, other


def _gathered_whole(each: Collective, place: Place) -> bool:
    """Whether a gather makes all of an array that was to be split before and after."""
    split = bool(place.before.axes) and bool(place.after.axes) and not place.before.unreduced
    moves = any(set(axes) - set(place.before.axes_of(dim)) for dim, axes in place.after.dims)
    return split and moves and each.kind == "all-gather" and math.prod(each.shape) == math.prod(place.shape)


def _asked(each: Collective, places: Sequence[Place], taken: set[int]) -> tuple[int | None, How]:
    """The place that a collective goes back to: by name before line, by line before what it moves; of several that fit the one
    that no other collective has answered."""
    if each.source == MADE_BY_A_PLAN:
        return None, "plan"
    axes = {axis.partition(":")[0] for axis in each.axes}
    fitting = [(number, place) for number, place in enumerate(places) if not axes or axes & _axes(place)]
    lines = _lines(each)
    best: tuple[int, int | None, How] = (0, None, "own")
    for number, place in fitting:
        same_line = _at(place, lines)
        named = any(_same_name(each.op_name, scope) for scope in place.scopes) or _names_argument(each.op_name, place)
        sized = _same_size(each, place)
        score, how = (
            (8, "name")
            if named
            else (4, "line")
            if same_line
            else (1, "array")
            if sized and axes == _axes(place)
            else (0, "own")
        )
        alike = any(kind == each.kind for kind, _ in place.collectives)
        score = 4 * score + 4 * sized + 2 * alike + (number not in taken) if score else 0
        if score > best[0]:
            best = (score, number, how)  # type: ignore[assignment]
    return best[1], best[2]


def _lines(each: Collective) -> set[str]:
    """Where the arrays of a collective come from."""
    return {line for found in (*each.lines, each.line) for line in (found.place, found.via) if line}


def _at(place: Place, lines: set[str]) -> bool:
    return place.line is not None and bool({place.line.place, place.line.via} & lines)


def _names_argument(name: str, place: Place) -> bool:
    """Whether what moves at a place is the argument that a compiled operation is called after."""
    return bool(name) and any(subject.startswith(f"{name} (") for subject in place.subjects)


def _axes(place: Place) -> set[str]:
    return {axis.partition(":")[0] for axis in place.axes}


def _same_name(name: str, scope: str) -> bool:
    """Whether a compiled operation and a lowered one are the same by JAX's name of them."""
    return bool(name) and bool(scope) and (name == scope or name.endswith("/" + scope) or scope.endswith("/" + name))


def _same_size(each: Collective, place: Place) -> bool:
    """Whether a collective moves as many elements as the array of a place has, whole or as one device's part."""
    whole, count = math.prod(place.shape), math.prod(each.shape)
    return bool(count) and whole % count == 0 and _is_part(whole // count, each)


def _is_part(parts: int, each: Collective) -> bool:
    return parts in (1, each.group_size, 2, 4, 8, 16, 32, 64)
