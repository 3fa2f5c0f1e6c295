"""A diagnosis as text that a person acts on."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from shardwise.compiled.facts import Collective
from shardwise.compiled.table import standing_out
from shardwise.errors import counted, leading, one_line
from shardwise.functions.diagnosis import Diagnosis, Place
from shardwise.functions.explicit import Stop
from shardwise.functions.truth import Answer, Truth
from shardwise.units import bytes_text, seconds_text

MOST_PLACES = 20
WIDTH = 160
SHOWN = 3  # names of one place


def told(diagnosis: Diagnosis) -> str:
    """The whole diagnosis as text."""
    return "\n".join(map(one_line, _lines(diagnosis)))


def headline(diagnosis: Diagnosis) -> str:
    """What was looked at, and what it moves.

    `step on mesh x=4, y=2: data moves at 8 places, each device sends 8.09 MB a call, 210 us on tpu-v5e`
    """
    where = f"{diagnosis.name} on {diagnosis.mesh.told}"
    if diagnosis.stop is not None:
        return f"{where}: tracing stops at {diagnosis.stop.line.short if diagnosis.stop.line else 'a line that is not known'}"
    if diagnosis.totals is None:
        return f"{where}: Shardy's view is not to be had"
    if not diagnosis.places:
        return f"{where}: nothing moves"
    sends = f"each device sends {bytes_text(diagnosis.totals.wire_bytes)} a call"
    times = f"{seconds_text(diagnosis.totals.moving_seconds)} on {diagnosis.hardware} (modelled)"
    return f"{where}: data moves at {counted(len(diagnosis.places), 'place')}, {sends}, {times}"


def _lines(diagnosis: Diagnosis) -> Iterator[str]:
    yield leading(headline(diagnosis))
    if diagnosis.stop is not None:
        yield from stop_lines(diagnosis.stop)
    for number, place in enumerate(diagnosis.places[:MOST_PLACES], 1):
        yield from place_lines(number, place)
    if rest := diagnosis.places[MOST_PLACES:]:
        sent = bytes_text(sum(place.wire_bytes for place in rest))
        yield f"... and {counted(len(rest), 'place')} more, {sent} (diagnosis.places, --json)"
    for each in diagnosis.held:
        yield from _folded("memory", each.says)
    for each in diagnosis.padded:
        yield from _folded("padding", each.says)
        if each.paste is not None:
            yield from _folded("paste", str(each.paste))
    if diagnosis.truth is not None:
        yield ""
        yield from str(diagnosis.truth).split("\n")
    if diagnosis.pastes:
        yield "tried    what was pasted before this, in order:"
        yield from (f"  {number}. {paste}" for number, paste in enumerate(diagnosis.pastes, 1))
    yield from standing_out(diagnosis.findings)
    yield from (f"unread  {each}" for each in diagnosis.unread)
    yield from (f"note    {each}" for each in diagnosis.notes)


def stop_lines(stop: Stop) -> Iterator[str]:
    """Where tracing stops, and what is possible there."""
    where = stop.line.short if stop.line else "no line of yours"
    yield f"1. {where}" + (f"    {stop.text}" if stop.text else "")
    if stop.operation and stop.operands:
        yield from _folded("in", stop.equation or f"{stop.operation} of {', '.join(map(str, stop.operands))}")
    yield from _folded("because", stop.why)
    for number, option in enumerate(stop.options):
        laid = f"out as {option.layouts[0]}: {option.says}" if stop.equation else option.says
        takes = f", {seconds_text(option.seconds)}" if option.seconds else ""
        yield from _folded("way out" if not number else "or", laid + takes)
        if option.paste is not None and not number:
            yield from _folded("paste", str(option.paste))
    if not stop.options:
        yield from _folded("way out", "none that Shardwise can name: lay its operands out by jax.sharding.reshard first")


def place_lines(number: int, place: Place) -> Iterator[str]:
    """One place: where, what moves, why, and the way out."""
    where = place.line.short if place.line else "no line of yours"
    yield f"{number}. {where}" + (f"    {place.text}" if place.text else "")
    more = len(place.subjects) - SHOWN
    what = ", ".join(place.subjects[:SHOWN]) + (f" and {more} more" if more > 0 else "")
    yield from _folded("moves", f"{what}: {place.before} -> {place.after}")
    yield from _folded("costs", cost(place))
    if place.cause.equation:
        yield from _folded("in", place.cause.equation)
    yield from _folded("because", place.cause.says)
    for note in place.notes:
        yield from _folded("note", note)
    if place.remedy is not None:
        before_after = place.remedy.compiled_bytes
        made = "" if before_after is None else f"; compiled: {bytes_text(before_after[0])} -> {bytes_text(before_after[1])}"
        yield from _folded("way out", place.remedy.says + made)
        if place.remedy.paste is not None:
            yield from _folded("paste", str(place.remedy.paste))


def cost(place: Place) -> str:
    """What a place costs: the collectives, how often, bytes and seconds."""
    kinds = ", ".join(f"{kind} over {', '.join(axes)}" for kind, axes in place.collectives)
    times = "" if place.times == 1 else f"{place.times} times"
    if place.times is None:
        times = "as often as a loop turns that cannot be read"
    backward = "in the backward pass" if place.backward else ""
    return ", ".join(filter(None, (kinds, times, bytes_text(place.wire_bytes), seconds_text(place.seconds), backward)))


def _folded(name: str, text: str) -> Iterator[str]:
    before = f"   {name:<8} "
    for number, line in enumerate(textwrap.wrap(text, WIDTH - len(before), break_long_words=False, break_on_hyphens=False)):
        yield (" " * len(before) if number else before) + line


def compared(truth: Truth) -> str:
    """What the compiler made, beside what was asked for."""
    made = truth.audit
    own, share = truth.own, truth.explained
    lines = [
        f"compiled on {made.target}: {counted(len(truth.answers), 'collective')}, {100 * share:.0f} % of them asked for at a "
        f"place above; each device sends {bytes_text(made.total_wire_bytes)} a call"
    ]
    by_place: dict[int | None, list[Answer]] = {}
    for each in truth.answers:
        by_place.setdefault(each.place, []).append(each)
    joined = {other: each.place for each in truth.answers if each.place is not None for other in each.joined}
    for number in sorted({*(n for n in by_place if n is not None), *joined}):
        how = _made(by_place[number]) if number in by_place else f"in one with {(joined[number] or 0) + 1}"
        lines.append(f"  made      {_numbered(number, truth)}: {how}")
    if truth.whole:
        whole = ", ".join(str(number + 1) for number in truth.whole)
        lines.append(f"  whole     {whole}: gathered whole, and each device keeps a part: full rematerialization")
    once = dict(truth.once)
    for number in truth.gone[:MOST_PLACES]:
        why = f"moved once, at {once[number] + 1}" if number in once else "the compiler found another way"
        lines.append(f"  gone      {_numbered(number, truth)}: asked for; {why}")
    if len(truth.gone) > MOST_PLACES:
        lines.append(f"  ... and {len(truth.gone) - MOST_PLACES} more that are gone")
    planned = [each for each in by_place.get(None, ()) if each.how == "plan"]
    if planned:
        lines.append(f"  planned   {_made(planned)}: steps of Shardwise's own plans")
    for each in own[:MOST_PLACES]:
        what = f"{each.kind} over {', '.join(each.axes) or '?'} of {_array(each)}, {bytes_text(each.wire_bytes)}"
        lines.append(f"  not asked {what}, from {each.line.short}: the compiler's own")
    if len(own) > MOST_PLACES:
        lines.append(f"  ... and {len(own) - MOST_PLACES} more of the compiler's own")
    return "\n".join(lines)


def _numbered(number: int, truth: Truth) -> str:
    """A place by its number and its line."""
    line = truth.lines[number]
    return f"{number + 1} ({line.short if line else 'no line of yours'})"


def _made(them: Sequence[Answer]) -> str:
    """What was made: how many of each kind, their bytes, and how long they are exposed."""
    kinds: dict[str, int] = {}
    for each in them:
        kinds[each.collective.kind] = kinds.get(each.collective.kind, 0) + 1
    exposed = [each.exposed_seconds for each in them if each.exposed_seconds is not None]
    waits = f", {seconds_text(sum(exposed))} exposed" if exposed else ""
    sent = bytes_text(sum(each.collective.wire_bytes for each in them))
    others = dict.fromkeys(_array(each.collective) for each in them if each.otherwise)
    instead = f", of {', '.join(others)} in place of what was asked for" if others else ""
    return f"{', '.join(f'{count} {kind}' for kind, count in kinds.items())}, {sent}{waits}{instead}"


def _array(each: Collective) -> str:
    return f"{each.dtype}[{','.join(map(str, each.shape))}]"
