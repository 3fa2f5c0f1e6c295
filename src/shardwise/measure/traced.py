"""From the operations of a trace to a timeline: which device computed, moved, waited and idled when; no JAX."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from shardwise.compiled.audit import Audit
from shardwise.compiled.replaying.instruction_stream import COPIES
from shardwise.compiled.replaying.work import Workbook, matmuls
from shardwise.compiled.text.sources import metadata
from shardwise.errors import MeasureError, counted, shortened
from shardwise.schedule.timeline import COMPUTE, MEASURED, Moved, Share, Span, Timeline
from shardwise.units import seconds_text

TRANSFERS = "transfers"
SCOPE = re.compile(r"shardwise/(\d+ [^/]+)")
NESTING = ("while", "conditional", "call", "async-start", "async-done", "async-update")
MOST_LISTED = 5  # modules that an error names
MOST_DEVICES = 16  # that a timeline shows
# What compilers and JAX call collectives, by how their names begin; the longer ones first.
KINDS = {
    "all-gather": "all-gather", "all_gather": "all-gather", "all-reduce": "all-reduce", "psum_scatter": "reduce-scatter",
    "reduce-scatter": "reduce-scatter", "reduce_scatter": "reduce-scatter", "psum": "all-reduce", "all-to-all": "all-to-all",
    "all_to_all": "all-to-all", "collective-permute": "collective-permute", "ppermute": "collective-permute",
    "ragged-all-to-all": "ragged-all-to-all", "collective-broadcast": "collective-broadcast",
}  # fmt: skip
MATMULS = re.compile(r"dot|conv|ynn|onednn|gemm|cublas|triton_gemm")


@dataclass(frozen=True, slots=True)
class Op:
    """One operation that a device ran: `line` is its thread, stream or core, `run` tells calls of a module apart.

    `op_name` is JAX's name of it, with its scopes, and `category` the compiler's word for it, where the trace has them.
    """

    name: str
    device: int
    line: str
    start_seconds: float
    seconds: float
    module: str = ""
    run: int = 0
    op_name: str = ""
    category: str = ""

    @property
    def end_seconds(self) -> float:
        return self.start_seconds + self.seconds


@dataclass(frozen=True, slots=True)
class Meaning:
    """What an operation is: `matmul`, `compute`, `copy`, `transfer` or `nesting`, which only holds others.

    Of a transfer its collective, and whether it is only where it `begins` (the time until it `ends` counts) or ends.
    """

    kind: str
    collective: Moved | None = None
    begins: bool = True
    ends: bool = True
    line: str = ""


@dataclass(frozen=True, slots=True)
class Guessed:
    """A collective of which only the name of its operation is known."""

    kind: str
    name: str
    axes: tuple[str, ...] = ()
    computation: str = ""
    source: str = ""
    op_name: str = ""


Meanings = Callable[[Op], Meaning]


def meanings_of(audit: Audit) -> Mapping[str, Meaning]:
    """What the operations of a compiled program are, by their names."""
    found: dict[str, Meaning] = {}
    book = Workbook(audit.module)
    for computation in audit.module.computations.values():
        for each in computation.instructions:
            kind = "nesting" if each.opcode in NESTING else "copy" if each.opcode in COPIES else "compute"
            kind = "matmul" if matmuls(book, computation, each) else kind
            found[each.name] = Meaning(kind, line=step_of(metadata(each).get("op_name", "")))
    for collective in audit.collectives:
        line = step_of(collective.op_name) or collective.source
        split = collective.end and collective.end != collective.name
        found[collective.name] = Meaning("transfer", collective, True, not split, line)
        if split:
            found[collective.end] = Meaning("transfer", collective, False, True, line)
    return found


def step_of(op_name: str) -> str:
    """The step of a plan that an operation belongs to, by the scope in which it ran.

    >>> step_of("jit(f)/shard_map/shardwise/2 all-gather A/all_gather"), step_of("jit(f)/dot_general")
    ('step 2 all-gather A', '')
    """
    match = SCOPE.search(op_name)
    return f"step {match[1]}" if match else ""


def guessed(op: Op) -> Meaning:
    """What an operation is by its name alone, where its compiled text is not at hand.

    >>> [guessed(Op(name, 0, "", 0.0, 1.0)).kind for name in ("ppermute.9", "dot.3", "fusion.1", "while.2")]
    ['transfer', 'matmul', 'compute', 'nesting']
    """
    line = step_of(op.op_name)
    kind = next((kind for begin, kind in KINDS.items() if op.name.startswith(begin)), None)
    if kind is not None:
        plain = re.sub(r"-(start|done)(?=\.|$)", "", op.name)
        begins, ends = "-done" not in op.name, "-start" not in op.name
        return Meaning("transfer", Guessed(kind, plain, source=line, op_name=op.op_name), begins, ends, line)
    if re.match(r"(while|conditional|call)(\.|$)", op.name):
        return Meaning("nesting", line=line)
    if op.name.startswith(COPIES):
        return Meaning("copy", line=line)
    is_matmul = MATMULS.match(op.name) or "convolution" in op.category
    return Meaning("matmul" if is_matmul else "compute", line=line)


# Which call.


def one_call(ops: Sequence[Op], known: Mapping[str, Meaning] | None, module: str | None = None) -> list[Op]:
    """The operations of one call: of the program that is known or named, else of that which runs for longest; of its calls the
    one of median length.

    Raises:
        MeasureError: there are none.
    """
    if not ops:
        raise MeasureError(
            "the trace holds no operation of a compiled program: trace a call that is waited for, as in sw.trace"
        )
    seconds: Counter[str] = Counter()
    for op in ops:
        seconds[op.module] += op.seconds  # type: ignore[assignment]
    there = ", ".join(name or "one without a name" for name, _ in seconds.most_common(MOST_LISTED))
    if module is not None and module not in seconds:
        raise MeasureError(f"the trace holds no program {module}: it holds {shortened(there, 200)}")
    if known is not None:
        fitting = [name for name in seconds if all(op.name in known for op in ops if op.module == name)]
        if not fitting:
            raise MeasureError(
                f"the trace is of another program: it holds {shortened(there, 200)}, with operations that are not its"
            )
        seconds = Counter({name: seconds[name] for name in fitting})
    chosen = module if module is not None else seconds.most_common(1)[0][0]
    calls: dict[int, list[Op]] = defaultdict(list)
    for op in ops:
        if op.module == chosen:
            calls[op.run].append(op)
    ordered = sorted(calls.values(), key=lambda call: max(o.end_seconds for o in call) - min(o.start_seconds for o in call))
    return ordered[(len(ordered) - 1) // 2]


# What each device did.


@dataclass(frozen=True, slots=True)
class Interval:
    """When something ran, and what."""

    start: float
    end: float
    op: Op
    meaning: Meaning


@dataclass(frozen=True, slots=True)
class Did:
    """What one device did: its work, its transfers, when it waited for which of these; seconds since the call began."""

    device: int
    work: tuple[Interval, ...]
    transfers: tuple[Interval, ...]
    waits: tuple[tuple[float, float, Interval], ...]

    @property
    def compute_seconds(self) -> float:
        return sum(end - start for start, end in union((each.start, each.end) for each in self.work))

    @property
    def exposed_seconds(self) -> float:
        return sum(end - start for start, end, _ in self.waits)


def did(device: int, ops: Sequence[Op], meaning: Meanings, began: float) -> Did:
    """Sort the operations of one device into work and transfers, and find what it waited for."""
    work, opened, transfers = [], defaultdict[str, list[Interval]](list), []
    for op, what in sorted(_leaves(ops, meaning), key=lambda found: found[0].start_seconds):
        interval = Interval(op.start_seconds - began, op.end_seconds - began, op, what)
        if what.kind != "transfer" or what.collective is None:
            work.append(interval)
        elif what.begins:
            transfers.append(interval)
            if not what.ends:
                opened[what.collective.name].append(interval)
        elif opened[what.collective.name]:  # where it is awaited; of several under way the first
            start = opened[what.collective.name].pop(0)
            transfers[transfers.index(start)] = dataclasses.replace(start, end=max(start.end, interval.end))
        else:
            transfers.append(interval)
    return Did(device, tuple(work), tuple(transfers), tuple(_waits(work, transfers)))


def _leaves(ops: Sequence[Op], meaning: Meanings) -> Iterator[tuple[Op, Meaning]]:
    """What is not made up of other operations of its line: loops are their trips; what moves or multiplies is one whole."""
    for _, line in itertools.groupby(sorted(ops, key=lambda op: op.line), key=lambda op: op.line):
        ordered = sorted(line, key=lambda op: (op.start_seconds, op.seconds > 0, -op.seconds))
        whole_until = float("-inf")
        for op, after in itertools.zip_longest(ordered, ordered[1:]):
            what = meaning(op)
            if op.start_seconds < whole_until >= op.end_seconds or what.kind == "nesting":
                continue
            holds = after is not None and after.start_seconds < op.end_seconds and after.end_seconds <= op.end_seconds
            if holds and what.kind not in ("transfer", "matmul"):
                continue
            whole_until = max(whole_until, op.end_seconds) if holds else whole_until
            yield op, what


def union(intervals: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Intervals that cover the same, in order, none touching the next.

    >>> union([(3, 4), (0, 2), (1, 3), (6, 7)])
    [(0, 4), (6, 7)]
    """
    found: list[tuple[float, float]] = []
    for start, end in sorted(intervals):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def _waits(work: Sequence[Interval], transfers: Sequence[Interval]) -> Iterator[tuple[float, float, Interval]]:
    """When the device works on nothing while something travels; of several under way it waits for what arrives first."""
    busy = union((each.start, each.end) for each in work)
    ends = [end for _, end in busy]
    places = sorted({place for each in transfers for place in (each.start, each.end)} | {p for pair in busy for p in pair})
    waiting: tuple[float, float, Interval] | None = None
    for start, end in itertools.pairwise(places):
        at = bisect.bisect_right(ends, start)
        if at < len(busy) and busy[at][0] <= start:
            continue
        under_way = [each for each in transfers if each.start <= start and each.end >= end]
        if not under_way:
            continue
        first = min(under_way, key=lambda each: each.end)
        if waiting is not None and waiting[2] is first and waiting[1] == start:
            waiting = (waiting[0], end, first)
            continue
        if waiting is not None:
            yield waiting
        waiting = (start, end, first)
    if waiting is not None:
        yield waiting


# The timeline.


def measured_timeline(
    ops: Sequence[Op],
    name: str,
    hardware: str,
    audit: Audit | None = None,
    module: str | None = None,
    notes: Sequence[str] = (),
) -> Timeline:
    """One call on every device, as it was traced.

    >>> ops = [Op("dot.1", 0, "", 0.0, 2.0), Op("ppermute-start.1", 0, "", 2.0, 0.0), Op("dot.2", 0, "", 2.0, 1.0),
    ...        Op("ppermute-done.1", 0, "", 3.0, 1.0)]
    >>> line = measured_timeline(ops, "step", "here")
    >>> line.step_seconds, line.compute_seconds, line.exposed_seconds, line.shares[0].hidden
    (4.0, 3.0, 1.0, 0.5)

    Args:
        audit: of the program that ran, which names its collectives, axes and lines; without one they are told by name.
        module: which program of the trace, by the name that it has there.

    Raises:
        MeasureError: the trace is empty, or of another program.
    """
    known = None if audit is None else meanings_of(audit)
    call = one_call(ops, known, module)
    began, ended = min(op.start_seconds for op in call), max(op.end_seconds for op in call)
    devices: dict[int, list[Op]] = defaultdict(list)
    for op in call:
        devices[op.device].append(op)
    meaning: Meanings = guessed if known is None else lambda op: known[op.name]
    found = [did(device, own, meaning, began) for device, own in sorted(devices.items())]
    shown = found[:MOST_DEVICES]
    spans = [span for each in shown for span in _spans(each)]
    count = len(found)
    last = max(found, key=lambda each: max((i.end for i in (*each.work, *each.transfers)), default=0.0))
    return Timeline(
        name=name,
        hardware=hardware,
        spans=tuple(sorted(spans, key=lambda span: (span.start_seconds, span.lane))),
        step_seconds=ended - began,
        compute_seconds=sum(each.compute_seconds for each in found) / count,
        transfer_seconds=sum(each.end - each.start for d in found for each in d.transfers) / count,
        exposed_seconds=sum(each.exposed_seconds for each in found) / count,
        copy_wait_seconds=0.0,
        critical_path=tuple(span for span in reversed(list(_spans(last))) if span.lane.endswith(COMPUTE)),
        utilisation=0.0,
        matmul_flops=0.0 if audit is None else audit.work.flops_per_device,
        lanes=tuple(_lanes(shown)),
        shares=tuple(_shares(found)),
        notes=(*_notes(found, ended - began), *notes),
        origin=MEASURED,
    )


def _spans(each: Did) -> Iterator[Span]:
    """The lanes of one device."""
    compute, moving = f"{each.device} {COMPUTE}", f"{each.device} {TRANSFERS}"
    trips: Counter[str] = Counter()
    repeated = {name for name, times in Counter(i.op.name for i in (*each.work, *each.transfers)).items() if times > 1}
    for interval, lane in ((i, lane) for lane, all_ in ((compute, each.work), (moving, each.transfers)) for i in all_):
        name = interval.op.name
        trip = trips[name] if name in repeated else None
        trips[name] += 1
        seconds = interval.end - interval.start
        yield Span(name, lane, interval.meaning.kind, interval.start, seconds, trip, interval.meaning.collective,
                   line=interval.meaning.line)  # fmt: skip
    for start, end, interval in each.waits:
        yield Span(f"wait for {interval.op.name}", compute, "wait", start, end - start, None, interval.meaning.collective)


def _lanes(found: Sequence[Did]) -> Iterator[tuple[str, float]]:
    for each in found:
        yield f"{each.device} {COMPUTE}", each.compute_seconds
        if each.transfers:
            yield (
                f"{each.device} {TRANSFERS}",
                sum(end - start for start, end in union((i.start, i.end) for i in each.transfers)),
            )


def _shares(found: Sequence[Did]) -> Iterator[Share]:
    """Each collective in the order in which it first begins on the first device; means over the devices."""
    ordered: dict[tuple[str, str], Moved] = {}
    moving: Counter[tuple[str, str]] = Counter()
    exposed: Counter[tuple[str, str]] = Counter()
    for each in found:
        for interval in sorted(each.transfers, key=lambda i: i.start):
            place = _place(interval)
            ordered.setdefault(place, interval.meaning.collective)  # type: ignore[arg-type]
            moving[place] += interval.end - interval.start  # type: ignore[assignment]
        for start, end, interval in each.waits:
            exposed[_place(interval)] += end - start  # type: ignore[assignment]
    for place, collective in ordered.items():
        yield Share(collective, moving[place] / len(found), exposed[place] / len(found))


def _place(interval: Interval) -> tuple[str, str]:
    collective = interval.meaning.collective
    assert collective is not None
    return collective.computation, collective.name


def _notes(found: Sequence[Did], step: float) -> Iterator[str]:
    """What is shown of which devices, and how they differ."""
    if len(found) > 1:
        yield f"means over {len(found)} devices; a collective lasts until the last device has come and its data are there"
        waits = sorted(found, key=lambda each: each.exposed_seconds)
        least, most = waits[0], waits[-1]
        if most.exposed_seconds:
            yield (
                f"device {least.device} waits least, {seconds_text(least.exposed_seconds)} of {seconds_text(step)}; "
                f"device {most.device} most, {seconds_text(most.exposed_seconds)}"
            )
    if len(found) > MOST_DEVICES:
        yield f"{counted(MOST_DEVICES, 'device')} of {len(found)} are shown"
