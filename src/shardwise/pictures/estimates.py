"""The estimate of a program as lanes: when devices multiply, when data moves, what of it nothing hides; memory step by step."""

from __future__ import annotations

from collections.abc import Iterator

from shardwise.pictures.gantt import WORDS, ticks
from shardwise.pictures.picture import Bar, Lane, Lanes, Table
from shardwise.planning.explain import bytes_text, seconds_text
from shardwise.planning.plan import Candidate
from shardwise.planning.prices import StepCost
from shardwise.steps import Fused, Step, describe, product_of

DEVICE, LINKS = "device", "links"
HIDDEN = "within a step that hides transfers, the wait is drawn at its end: an estimate does not say when it falls"


def estimate_lanes(candidate: Candidate) -> Lanes:
    """One device and its links through the steps of a program, as they are priced."""
    whole = candidate.estimate.seconds or 1.0
    work: list[Bar] = []
    moving: list[Bar] = []
    now = 0.0
    for number, (step, cost) in enumerate(zip(candidate.program.steps, candidate.estimate.steps, strict=False), 1):
        said = f"step {number}, {describe(step)}: {seconds_text(cost.seconds)} from {seconds_text(now)}"
        here, there = _bars(step, cost, now, said)
        work += here
        moving += there
        now += cost.seconds
    busy = sum(bar.end - bar.start for bar in work if bar.kind != "wait")
    sent = sum(bar.end - bar.start for bar in moving)
    lanes = (
        Lane(DEVICE, tuple(_shares(work, whole)), f"{DEVICE}: works {seconds_text(busy)} of {seconds_text(whole)}"),
        Lane(LINKS, tuple(_shares(moving, whole)), f"{LINKS}: busy {seconds_text(sent)} of {seconds_text(whole)}"),
    )
    kinds = {bar.kind for bar in (*work, *moving)}
    legend = tuple((kind, words) for kind, words in WORDS.items() if kind in kinds)
    notes = (HIDDEN,) if any(isinstance(step, Fused) for step in candidate.program.steps) else ()
    return Lanes("as estimated", lanes, tuple(ticks(whole)), legend, notes)


def _bars(step: Step, cost: StepCost, now: float, said: str) -> tuple[list[Bar], list[Bar]]:
    """What one step puts on the lanes, in seconds."""
    end = now + cost.seconds
    kind = "product" if product_of(step) is not None else "compute"
    exposed = min(cost.exposed_seconds, cost.seconds)
    work = [Bar(now, end - exposed, kind, said)] if cost.seconds > exposed else []
    if exposed:
        work.append(Bar(end - exposed, end, "wait", f"{said}; waits {seconds_text(exposed)}", exposed=True))
    if not cost.transfer_seconds:
        return work, []
    if not isinstance(step, Fused):
        return work, [Bar(now, now + min(cost.transfer_seconds, cost.seconds), "transfer", _sent(said, cost))]
    return work, [Bar(max(now, end - cost.transfer_seconds), end, "transfer", _sent(said, cost))]


def _sent(said: str, cost: StepCost) -> str:
    return f"{said}; each device sends {bytes_text(cost.wire_bytes)}"


def _shares(bars: list[Bar], whole: float) -> Iterator[Bar]:
    return (Bar(bar.start / whole, bar.end / whole, bar.kind, bar.title, bar.exposed) for bar in bars)


def wire_table(candidate: Candidate) -> Table:
    """What one device sends, by collective and axes."""
    rows = [(kind, ", ".join(axes), bytes_text(count)) for (kind, axes), count in candidate.estimate.wire_bytes.items()]
    return Table("Bytes that each device sends", ("collective", "over", "sends"), tuple(rows), frozenset({2}))


def memory_steps(candidate: Candidate, inputs: float) -> tuple[tuple[str, float], ...]:
    """The bytes that one device holds: at first, and while each step runs."""
    steps = zip(candidate.program.steps, candidate.estimate.steps, strict=False)
    held = ((f"{number}. {describe(step)}", cost.live_bytes) for number, (step, cost) in enumerate(steps, 1))
    return (("the operands", inputs), *held)
