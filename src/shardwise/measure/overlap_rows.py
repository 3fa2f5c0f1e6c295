"""What a case of the overlap benchmark says: the corpus, a row of figures, and what several rows come to."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from shardwise.chips.links import pricer
from shardwise.errors import ShardwiseError, did_you_mean, one_line
from shardwise.planning.problem import Problem

KINDS = {
    "AG": "A[I_x, J] · B[J, K] -> C[I, K]",
    "TP-up": "A[I_x, J] · B[J, K_x] -> C[I, K_x]",
    "RS": "A[I, J_x] · B[J_x, K] -> C[I_x, K]",
    "weights": "A[I_x, J] · B[J_x, K] -> C[I_x, K]",
}
SIZES = ("16384x1024x2048", "8192x8192x28672", "8192x28672x8192", "8192x8192x8192", "4096x16384x53248")
ITEM_BYTES = 2  # all of it is bfloat16
CLOSE = 0.15  # how far an estimate may be from the timeline
MODELLED = "modelled from the compiled schedule"


@dataclass(frozen=True, slots=True)
class Case:
    """An equation of the corpus at one size, `IxJxK`, with its one axis over all devices of a target."""

    target: str
    kind: str
    size: str

    @property
    def sizes(self) -> dict[str, int]:
        return dict(zip("IJK", map(int, self.size.split("x")), strict=True))


@dataclass(frozen=True, slots=True)
class Ran:
    """What the timeline and the memory of one compiled program say, in microseconds and bytes."""

    step: float
    exposed: float
    compute: float
    temporary_bytes: int
    permutes: int
    hidden: int


@dataclass(frozen=True, slots=True)
class Row:
    """One case: the compiler's own, the textbook ring, and Shardwise's choice; times in microseconds.

    Attributes:
        estimate: what the cost model said, before it was compiled, of the fastest program that the planner priced: the
            chosen one, or the next where that is the compiler's own. `priced` is what its timeline says.
        local: the compute of one matmul on one device of the same shards and FLOPs as in the chosen program.
        plain: the chosen program with nothing fused: gather, then multiply; itself where it has no ring.
        written_bound: max(compute, wire) of the program that the equation spells out: A or B gathered, or C scattered.
        best_bound: the least of it that any program of the planner has.
    """

    target: str
    kind: str
    size: str
    program: str
    own: Ran
    textbook: Ran
    ours: Ran
    plain: Ran
    priced: float
    estimate: float
    local: float
    written_bound: float
    best_bound: float

    @property
    def case(self) -> Case:
        return Case(self.target, self.kind, self.size)

    @property
    def gain(self) -> float:
        """How many times as fast as the compiler's own."""
        return self.own.step / self.ours.step

    @property
    def bound(self) -> float:
        """What no program can beat: of the written form, or of a better one."""
        return min(self.written_bound, self.best_bound)

    @property
    def agreement(self) -> float:
        """The estimate, as a share of the timeline."""
        return self.estimate / self.priced

    @property
    def agrees(self) -> bool:
        return abs(self.agreement - 1) <= CLOSE


def cases(target: str, kinds: str = "", sizes: str = "") -> list[Case]:
    """The corpus on a target, or the part of it that is asked for by names with commas.

    >>> cases("v5e:2x4", "RS", "16384x1024x2048")
    [Case(target='v5e:2x4', kind='RS', size='16384x1024x2048')]

    Raises:
        ShardwiseError: a kind that there is not, or a size that is no `IxJxK`.
    """
    chosen = _listed(kinds) or list(KINDS)
    for kind in chosen:
        if kind not in KINDS:
            raise ShardwiseError(f"--kinds {one_line(kind)}: there is {', '.join(KINDS)}{did_you_mean(kind, KINDS)}")
    asked = _listed(sizes) or list(SIZES)
    for size in asked:
        numbers = size.split("x")
        if len(numbers) != 3 or not all(number.isdecimal() and int(number) > 0 for number in numbers):
            raise ShardwiseError(f"--sizes {one_line(size)}: write rows x contracted x columns, as {SIZES[0]}")
    return [Case(target, kind, size) for size in asked for kind in chosen]


def _listed(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def bounds(task: Problem, kind: str, plain: Iterable[Any], local_seconds: float, local_flops: float) -> tuple[float, float]:
    """max(compute of the fused local matmul, wire bytes / bandwidth): of the written form, and of the best program.

    Args:
        plain: the planner's candidates without overlap.
        local_seconds, local_flops: of a matmul on one device; another program's compute is as its FLOPs.
    """
    n, whole = task.mesh.size, math.prod(task.sizes.values())

    def compute(flops: float) -> float:
        return local_seconds * flops / local_flops

    written = max(compute(2.0 * whole / (1 if kind == "AG" else n)), wire_seconds(task, kind))
    best = min(max(compute(each.estimate.flops), each.estimate.communication_seconds) for each in plain)
    return written, best


def wire_seconds(task: Problem, kind: str) -> float:
    """What a kind's own collective takes alone, with every link that the axis may use."""
    first, second = {"RS": "IK", "weights": "JK"}.get(kind, "IJ")
    whole = ITEM_BYTES * task.sizes[first] * task.sizes[second]
    collective = "reduce-scatter" if kind == "RS" else "all-gather"
    shards = (whole / task.mesh.size, whole)
    before, after = reversed(shards) if kind == "RS" else shards
    return pricer(collective, task.hardware, task.mesh, task.mesh.names, task.interconnect.routes)(before, after)


@dataclass(frozen=True, slots=True)
class Summary:
    """Several rows: geometric means, and the worst of each."""

    count: int
    gain: float
    least_gain: float
    least_gain_case: str
    over_textbook: float
    over_bound: float
    most_over_bound: float
    most_over_bound_case: str
    over_written: float
    agreeing: int
    permutes: int
    hidden: int


def summarised(rows: Sequence[Row]) -> Summary:
    """What rows come to.

    Raises:
        ShardwiseError: there are none.
    """
    if not rows:
        raise ShardwiseError("no case has been compiled")
    slowest = min(rows, key=lambda row: row.gain)
    furthest = max(rows, key=lambda row: row.ours.step / row.bound)
    return Summary(
        count=len(rows),
        gain=geometric_mean(row.gain for row in rows),
        least_gain=slowest.gain,
        least_gain_case=f"{slowest.target} {slowest.kind} {slowest.size}",
        over_textbook=geometric_mean(row.textbook.step / row.ours.step for row in rows),
        over_bound=geometric_mean(row.ours.step / row.bound for row in rows),
        most_over_bound=furthest.ours.step / furthest.bound,
        most_over_bound_case=f"{furthest.target} {furthest.kind} {furthest.size}",
        over_written=geometric_mean(row.ours.step / row.written_bound for row in rows),
        agreeing=sum(row.agrees for row in rows),
        permutes=sum(row.ours.permutes for row in rows),
        hidden=sum(row.ours.hidden for row in rows),
    )


def geometric_mean(values: Iterable[float]) -> float:
    """The n-th root of the product.

    >>> geometric_mean([1.0, 4.0])
    2.0
    """
    found = list(values)
    return math.exp(math.fsum(map(math.log, found)) / len(found))


# Rows as text.

HEAD = (
    "kind", "I x J x K", "own µs", "textbook µs", "ours µs", "own / ours", "estimate / timeline µs", "exposed µs", "overlapped",
    "compute / matmul", "temporary / gathered", "bound µs", "ours / bound", "chosen program",
)  # fmt: skip


def cells(row: Row) -> tuple[str, ...]:
    """A row of the table, as `HEAD` names it."""
    mib = 2**20
    temporaries = f"{row.ours.temporary_bytes / mib:.0f} / {row.plain.temporary_bytes / mib:.0f} MiB"
    return (
        row.kind, row.size, f"{row.own.step:.0f}", f"{row.textbook.step:.0f}", f"{row.ours.step:.0f}", f"{row.gain:.2f}",
        f"{row.estimate:.0f} / {row.priced:.0f}", f"{row.ours.exposed:.0f}", hidden(row.ours),
        f"{row.ours.compute / row.local:.2f}", temporaries, f"{row.bound:.0f}", f"{row.ours.step / row.bound:.2f}", row.program,
    )  # fmt: skip


def hidden(ran: Ran) -> str:
    """Of the permutes, how many travel behind a matmul."""
    return f"{ran.hidden} of {ran.permutes}" if ran.permutes else "no ring"


def sentences(found: Summary) -> Iterator[str]:
    """A summary in words, one fact to a line."""
    faster = f"{found.gain:.2f} times as fast as the compiler's own, {found.over_textbook:.2f} times as the textbook ring"
    yield f"{faster}, in the geometric mean"
    yield f"least against the compiler's own: {found.least_gain:.2f}, {found.least_gain_case}"
    yield (
        f"{found.over_bound:.2f} of the bound in the geometric mean ({found.over_written:.2f} of the written form's), "
        f"at most {found.most_over_bound:.2f}, {found.most_over_bound_case}"
    )
    yield f"the estimate is within {CLOSE:.0%} of the timeline in {found.agreeing} of {found.count} cases"
    yield f"{found.hidden} of {found.permutes} permutes behind a matmul"


def facts_of(row: Row) -> dict[str, Any]:
    """A row as plain data."""
    return dataclasses.asdict(row)
