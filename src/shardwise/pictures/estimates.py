"""What a program's estimate says beside its timeline: the bytes that are sent, and memory step by step."""

from __future__ import annotations

from shardwise.pictures.picture import Table
from shardwise.planning.ranking import Candidate
from shardwise.steps import describe
from shardwise.units import bytes_text


def wire_table(candidate: Candidate) -> Table:
    """What one device sends, by collective and axes."""
    rows = [(kind, ", ".join(axes), bytes_text(count)) for (kind, axes), count in candidate.estimate.wire_bytes.items()]
    return Table("Bytes that each device sends", ("collective", "over", "sends"), tuple(rows), frozenset({2}))


def memory_steps(candidate: Candidate, inputs: float) -> tuple[tuple[str, float], ...]:
    """The bytes that one device holds: at first, and while each step runs."""
    steps = zip(candidate.program.steps, candidate.estimate.steps, strict=False)
    held = ((f"{number}. {describe(step)}", cost.live_bytes) for number, (step, cost) in enumerate(steps, 1))
    return (("the operands", inputs), *held)
