"""What an audit holds: plain, frozen facts of one compiled program. Reading, judging and showing them live elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath

from shardwise.layout import Axes
from shardwise.steps import COLLECTIVES, CollectiveKind

_PRICED_AS: dict[str, CollectiveKind] = {known: known for known in COLLECTIVES} | {"collective-broadcast": "all-gather"}
MADE_BY_THE_COMPILER = "made by the compiler"
MADE_BY_A_PLAN = "a step of the plan"


def priced_as(kind: str) -> CollectiveKind:
    """The collective whose price one of a compiled text has: of a ragged one, or one that is not known, an all-to-all's.

    >>> priced_as("all-gather"), priced_as("ragged-all-to-all")
    ('all-gather', 'all-to-all')
    """
    return _PRICED_AS.get(kind, "all-to-all")


@dataclass(frozen=True, slots=True)
class Algorithm:
    """How a collective is carried out, as the compiled text says (`text.stated.algorithm`).

    Attributes:
        name: as the compiler names it.
        links: over how many of its links a device receives at once at most; None where nothing but its place limits it.
        known: whether the name is one that Shardwise knows.
        whole: whether each device passes on whole arrays, which are not cut into a part for each.
        per_chip: whether the cores of a chip hand each other what arrives at one of them.
        around: whether a ring of two links goes round all chips of the group, not along their sides one after the other.
    """

    name: str
    links: int | None = None
    known: bool = True
    whole: bool = False
    per_chip: bool = False
    around: bool = True


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the user's files; `via`, where that line calls a helper, the helper's own: `train.py:88 via shardops.py:23`."""

    place: str
    via: str = ""

    def __str__(self) -> str:
        return f"{self.place} via {self.via}" if self.via else self.place

    @property
    def short(self) -> str:
        """The same with the files' names alone."""
        return str(Line(_file_name(self.place), _file_name(self.via)))


def _file_name(place: str) -> str:
    return PurePath(place.replace("\\", "/")).name


@dataclass(frozen=True, slots=True)
class Argument:
    """An array that a compiled program takes: its name, its shape over all devices, and the axes that split it, if known."""

    name: str
    shape: tuple[int, ...]
    axes: Axes | None = None


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective of a compiled program, as one device sees it.

    Attributes:
        kind: `all-gather`, `reduce-scatter`, `all-reduce`, `all-to-all`, `collective-permute`, ...
        axes: the mesh axes it runs over, in mesh order; a part of an axis as `x:(2)2`; empty where they are not known.
        wire_bytes: what one device sends in one call of the program, all trips together.
        dtype: JAX's name of it.
        shape: one device's result; of several results the largest.
        group_size: how many devices take part together; of a permutation, the devices along its axes.
        source: the line of the user's file that it comes from, as `layer.py:14`; `a step of the plan` where Shardwise alone
            asked for it; `made by the compiler` where nobody did.
        op_name: JAX's name of the operation, as `jit(f)/dot_general`.
        trips: how often it runs in one call; None where a loop's trips cannot be read (it is counted once then).
        asynchronous: whether it starts and ends at two places of the schedule.
        hidden_by: the matmuls (dots, convolutions, kernels that state FLOPs) scheduled between start and end, by name.
        held_bytes: what one device holds before one trip: what `wire_bytes` is computed from (see `reading`).
        name, computation: where it starts in the schedule (of a fused one the fusion); `end` is what waits for it.
        groups: the groups, or the pairs of a permutation, as device numbers in mesh order.
        operands: the names of the arrays it takes.
        held: of each array that it moves the dtype, and the elements that one device holds before one trip: compilers join
            small collectives into one of several arrays.
        inferred: the source is that of the array it takes or of what uses it, since it has none of its own.
        sliced: of each array of an all-reduce, whether each device keeps its part of it alone.
        laid: of each array of an all-reduce, the elements that each device has laid into zeros: such a sum is a gather; 0
            where it is none.
        algorithm: how it is carried out, where the text says that.
        network_bytes: those of `wire_bytes` that leave a node of GPUs, or a slice of TPUs, over the network.
    """

    kind: str
    axes: Axes
    wire_bytes: float
    dtype: str
    shape: tuple[int, ...]
    group_size: int
    source: str
    op_name: str
    trips: int | None
    asynchronous: bool
    hidden_by: tuple[str, ...]
    held_bytes: float
    name: str
    computation: str
    end: str
    groups: tuple[tuple[int, ...], ...]
    operands: tuple[str, ...] = ()
    held: tuple[tuple[str, int], ...] = ()
    inferred: bool = False
    sliced: tuple[bool, ...] = ()
    laid: tuple[int, ...] = ()
    algorithm: Algorithm | None = None
    via: str = ""
    lines: tuple[Line, ...] = ()
    network_bytes: float = 0.0

    @property
    def arrays(self) -> int:
        """How many arrays it moves."""
        return len(self.held)

    @property
    def line(self) -> Line:
        """Its `source`, with the helper's line."""
        return Line(self.source, self.via)


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """The bytes that one device needs, as the compiler says.

    `peak` is what is alive at once: arguments, outputs that no argument gives its memory to, temporaries. `host` is what
    lies in the memory of the host for the device (arrays of memory kind `pinned_host`), and in none of the others.
    """

    arguments: int
    outputs: int
    temporaries: int
    aliased: int
    code: int
    peak: int
    host: int = 0


@dataclass(frozen=True, slots=True)
class Work:
    """The FLOPs of matmuls (dots, convolutions, and kernels that state theirs) in one call of the program.

    `needed` is what the function as it was written multiplies, over all devices, each matmul once; None where it is
    not known. `repeated` is how often the compiled program does it. `silent` kernels do not state theirs, and are left out.
    """

    flops_per_device: float
    devices: int
    needed: float | None
    silent: int = 0

    @property
    def repeated(self) -> float | None:
        return self.flops_per_device * self.devices / self.needed if self.needed else None
