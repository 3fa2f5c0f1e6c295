"""The timeline of a program before it is compiled: what runs when, and what waits, as it is priced."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from shardwise.chips import Switch
from shardwise.layout import Axes
from shardwise.planning.cost import Estimate
from shardwise.planning.fused_cost import Priced
from shardwise.planning.prices import Costs
from shardwise.planning.problem import Problem, assumed_of, costs_of
from shardwise.planning.step_cost import StepCost
from shardwise.planning.step_prices import StepPrices
from shardwise.program import Program
from shardwise.schedule.events import Await, Copy, Event, Loop, Matmul, Send
from shardwise.schedule.timeline import COMPUTE, ESTIMATED, Share, Span, Timeline
from shardwise.steps import Collective, CollectiveKind, Fused, describe, einsum_of, kind, moved_axes, scope


@dataclass(frozen=True, slots=True)
class Moving:
    """A step that moves data, as a timeline names it."""

    kind: CollectiveKind
    axes: Axes
    name: str
    source: str
    computation: str = ""
    op_name: str = ""


def estimated_timeline(program: Program, estimate: Estimate, task: Problem) -> Timeline:
    """One device's timeline: its matmuls, its links, and its waits, one step after the other.

    >>> from shardwise.notation import parse
    >>> from shardwise.planning.ranking import rank
    >>> from shardwise.planning.problem import problem
    >>> sizes = {"I": 16384, "J": 1024, "K": 2048}
    >>> best = rank(problem(parse("A[I_x, J] · B[J, K] -> C[I, K]"), sizes, "x=8", "v5e:2x4"))[0]
    >>> line = best.timeline()
    >>> line.step_seconds == best.estimate.seconds, [lane for lane, _ in line.lanes]
    (True, ['compute', 'x up', 'x down'])
    """
    costs, now = costs_of(task), 0.0
    spans: list[Span] = []
    if program.steps and costs.dispatch:
        now = float(costs.dispatch)
        spans.append(Span("dispatch", COMPUTE, "compute", 0.0, now, line="the program is started on each device"))
    shares: list[Share] = []
    starts: list[float] = []  # of each step
    for number, (step, cost) in enumerate(zip(program.steps, estimate.steps, strict=True), 1):
        moving = None
        starts.append(now)
        if cost.transfer_seconds:
            name = kind(step) if isinstance(step, Collective) else "collective-permute"
            moving = Moving(name, moved_axes(step), f"step {number} {name}", f"step {number}: {describe(step)}")
            shares.append(Share(moving, cost.transfer_seconds, cost.exposed_seconds))
        found = _spans(program, cost, moving, now, number, costs, task.sizes)
        spans += (replace(span, op_name=scope(number, step)) for span in found)
        now += cost.seconds
    spans += _beside(program, estimate, starts, shares)
    lanes = {COMPUTE: 0.0}
    for span in spans:
        if span.kind != "wait":
            lanes[span.lane] = lanes.get(span.lane, 0.0) + span.seconds
    peak = costs.flops_per_s
    return Timeline(
        name=str(task.equation),
        hardware=task.hardware.name if task.topology is None else str(task.topology),
        spans=tuple(sorted(spans, key=lambda span: (span.start_seconds, span.lane))),
        step_seconds=estimate.seconds,
        compute_seconds=estimate.compute_seconds,
        transfer_seconds=estimate.communication_seconds,
        exposed_seconds=estimate.exposed_seconds,
        copy_wait_seconds=0.0,
        critical_path=tuple(span for span in reversed(spans) if span.lane == COMPUTE),
        utilisation=estimate.flops / peak / estimate.seconds if estimate.seconds else 0.0,
        matmul_flops=estimate.flops,
        lanes=tuple(lanes.items()),
        shares=tuple(shares),
        notes=tuple(_notes(task)),
        origin=ESTIMATED,
    )


def _beside(program: Program, estimate: Estimate, starts: Sequence[float], shares: Sequence[Share]) -> Iterator[Span]:
    """The transfers, or the parts of them, that run beside other steps."""
    moving = iter(shares)
    for number, (step, cost) in enumerate(zip(program.steps, estimate.steps, strict=True), 1):
        mine = next(moving).collective if cost.transfer_seconds else None
        if cost.beside is None or mine is None:
            continue
        start = starts[cost.beside.number] + cost.beside.after
        moved = cost.wire_bytes * cost.beside.seconds / cost.transfer_seconds
        yield Span(
            mine.name, ",".join(mine.axes), "transfer", start, cost.beside.seconds, None, mine, moved, mine.source,
            op_name=scope(number, step),
        )  # fmt: skip


def _notes(task: Problem) -> Iterator[str]:
    """What is assumed, and what is not known."""
    yield assumed_of(task, word="")  # printed timelines begin with it
    if task.hardware.compiler is None:
        yield "steps run one after another; within one, transfers beside matmuls"
    else:
        yield "steps run one after another; what the compiler starts ahead, beside the matmuls of others"
    if isinstance(task.hardware.links, Switch) and task.hardware.calibration is None:
        yield "FLOPs over the peak, and bytes over the bandwidth: what kernels take beyond that is not known"
    if task.hardware.overlapped_matmul is not None:
        figure = task.hardware.overlapped_matmul
        yield f"matmuls beside transfers take {figure.value:g} times as long ({figure.source})"


def _spans(
    program: Program, cost: StepCost, moving: Moving | None, now: float, number: int, costs: Costs, sizes: Mapping[str, int]
) -> Iterator[Span]:  # fmt: skip
    step = program.steps[number - 1]
    line = f"step {number}: {describe(step)}"
    if cost.fetched_seconds:
        yield Span("inputs fetched", COMPUTE, "compute", now, cost.fetched_seconds, line=line)
        now += cost.fetched_seconds
        cost = cost._replace(seconds=cost.seconds - cost.fetched_seconds)
    if isinstance(step, Fused):
        ring = StepPrices(costs, sizes).at(program, number - 1)
        yield from _ring(ring, cost, moving, now, line)
        return
    if moving is None:
        if cost.seconds:
            name = "matmul" if einsum_of(step) is not None else "compute"
            yield Span(f"step {number}", COMPUTE, name, now, cost.seconds, line=line)
        return
    moved = min(cost.exposed_seconds, cost.seconds)
    over, sent = ",".join(moving.axes), cost.wire_bytes * moved / cost.transfer_seconds
    if moved:
        yield Span(moving.name, over, "transfer", now, moved, collective=moving, moved_bytes=sent, line=line)
        yield Span(moving.name, COMPUTE, "wait", now, moved, collective=moving, line=line)
    if cost.seconds > moved:
        yield Span(f"step {number} copy", COMPUTE, "compute", now + moved, cost.seconds - moved, line=line)


def _ring(ring: Priced, cost: StepCost, moving: Moving | None, now: float, line: str) -> Iterator[Span]:
    """The events of a ring as they were played."""
    played = ring.played(ahead=cost.ahead_seconds, record=True)
    if ring.laid:
        yield Span("operand laid out", COMPUTE, "compute", now, ring.laid, line=line)
        now += ring.laid
    block = cost.wire_bytes / max(1.0, sum(_blocks(each.event, ring.width) for each in played.happened))
    count = itertools.count(1)
    for happened in played.happened:
        start = now + happened.start_seconds
        match happened.event:
            case Send() as event:
                lane = ring.lanes[event.lane]
                sent = _blocks(event, ring.width) * block
                if ring.hides:
                    yield Span(str(event), lane, "transfer", start, happened.seconds, None, moving, sent, line)
            case Await() if happened.seconds:
                yield Span(str(happened.event), COMPUTE, "wait", start, happened.seconds, collective=moving, line=line)
            case Matmul():
                yield Span(f"matmul {next(count)}", COMPUTE, "matmul", start, happened.seconds, line=line)
            case Copy() if happened.seconds:
                yield Span(str(happened.event), COMPUTE, "compute", start, happened.seconds, line=line)
            case Loop(trips) as event:
                moved = _blocks(event, ring.width) * block
                yield Span(f"{trips} more trips", COMPUTE, "loop", start, happened.seconds, None, moving, moved, line)
    left = played.seconds - played.busy_seconds if not ring.hides else 0.0
    if left > 0 and moving is not None:  # what hides behind nothing
        start = now + played.busy_seconds - ring.laid
        yield Span(moving.name, ring.lanes[1], "transfer", start, left, None, moving, cost.wire_bytes, line)
        yield Span(moving.name, COMPUTE, "wait", start, left, collective=moving, line=line)


def _blocks(event: Event, width: int) -> float:
    """How many blocks an event sends."""
    if isinstance(event, Loop):
        return event.trips * sum(_blocks(each, width) for each in event.body)
    return event.part.width / width if isinstance(event, Send) else 0.0
