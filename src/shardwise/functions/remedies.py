"""Which way out to offer at each place: the trial that saves most, in words and as what to paste."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence

from shardwise.errors import counted
from shardwise.functions.causes import Cause
from shardwise.functions.diagnosis import Place, Remedy
from shardwise.functions.pasting import constrained, converted_first, dropped, relaid, spec_text
from shardwise.functions.pricing import Totals, Where, totals
from shardwise.functions.trials import Outcome, Trial, bytes_left, helps, key_of, outcome, trials
from shardwise.intent.flowgraph import Graph
from shardwise.intent.movements import Movement, movements
from shardwise.intent.propagation import Intended
from shardwise.units import bytes_text, seconds_text

MOST_PLACES = 8  # for which ways out are looked for, the dearest first
MOST_TRIALS = 90
MOST_OPERATIONS = 32_000  # that are propagated in all trials together
LEAST_SHARE = 0.01  # of what the function moves that a place must take


def remedied(
    ready: Intended, graph: Graph, places: Sequence[Place], members: Sequence[Sequence[tuple[Movement, Cause]]],
    where: Where,
) -> list[Place]:  # fmt: skip
    """The places, each with its way out where one was found that costs less; those first whose way out saves most."""
    now = totals(graph, where)
    left = bytes_left(graph, movements(graph), where)
    worth = [
        number for number, place in enumerate(places[:MOST_PLACES])
        if not place.by_hand and place.seconds >= LEAST_SHARE * now.moving_seconds
    ]  # fmt: skip
    wished = [_each_change_once(trials(graph, *members[number][0])) for number in worth]
    most = max(6, min(MOST_TRIALS, MOST_OPERATIONS // max(len(graph.operations), 1)))
    chosen = list(itertools.islice(_in_turn(wished), most))
    outcomes = [found for found in (outcome(ready, trial, where) for trial in chosen) if found is not None]
    good = [each for each in outcomes if helps(now, each.totals)]
    found = list(places)
    for number in worth:
        key = key_of(members[number][0][0])
        removing = [each for each in good if each.left.get(key, 0.0) <= 0.5 * left[key]]
        if removing:
            best = min(
                removing, key=lambda each: (round(each.totals.seconds, 12), _trouble(each.trial), len(each.trial.changes))
            )
            found[number] = dataclasses.replace(found[number], remedy=remedy(graph, best, now))
    found.sort(key=lambda place: (-(place.remedy.seconds if place.remedy else 0.0), -place.seconds))
    return found


def _each_change_once(wished: Iterable[Trial]) -> list[Trial]:
    return list({each.changes: each for each in wished}.values())


def _in_turn(wished: Sequence[Sequence[Trial]]) -> Iterable[Trial]:
    """The first wish of each place, then the second of each ...; none twice."""
    seen = set()
    for row in itertools.zip_longest(*wished):
        for trial in row:
            if trial is not None and trial.changes not in seen:
                seen.add(trial.changes)
                yield trial


def _trouble(trial: Trial) -> int:
    """How much a user changes: of two that save the same the smaller change is offered."""
    return ("constraint-dropped", "constraint-changed", "convert-first", "argument", "result", "inside").index(trial.kind)


def remedy(graph: Graph, found: Outcome, now: Totals) -> Remedy:
    """A trial as a way out."""
    trial = found.trial
    saved_bytes, saved_seconds = now.wire_bytes - found.totals.wire_bytes, now.seconds - found.totals.seconds
    at = f" at {trial.line.short}" if trial.line else ""
    paste, arguments = None, tuple[str, ...]()
    match trial.kind:
        case "constraint-dropped":
            says = f"drop the constraint{at}"
            paste = dropped(trial.line) if trial.line else None
        case "constraint-changed":
            assert trial.layout is not None
            says = f"let the constraint{at} ask for {spec_text(trial.layout)}"
            paste = relaid(trial.line, trial.layout) if trial.line else None
        case "convert-first":
            says = f"convert to {trial.dtype} before the constraint{at}, not after it"
            paste = converted_first(trial.line, trial.dtype) if trial.line else None
        case "argument":
            assert trial.layout is not None
            arguments = names = tuple(graph.names[number] for number in trial.arguments)
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            says = f"lay out {', '.join(names[:3])}{more} as {spec_text(trial.layout)}"
        case "inside":
            assert trial.layout is not None
            arguments = (graph.names[trial.arguments[0]],)
            says = f"gather {arguments[0]} before it is converted{at}: constrain it to {spec_text(trial.layout)} first"
        case _:
            assert trial.layout is not None
            says = f"constrain what is made{at} to {spec_text(trial.layout)}"
            paste = constrained(trial.line, trial.layout) if trial.line else None
    changes = (
        f" ({counted(len(trial.changes), 'constraint')} of that line)"
        if len(trial.changes) > 1 and trial.kind.startswith("con")
        else ""
    )
    says += f"{changes}: {bytes_text(saved_bytes)} and {seconds_text(saved_seconds)} less a call"
    return Remedy(
        trial.kind, says, trial.line, paste, arguments, trial.layout, saved_bytes, saved_seconds, changes=trial.changes
    )  # fmt: skip
