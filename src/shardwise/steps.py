"""The steps of programs, named as the field names them: frozen data, what each reads and makes, and its words."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, assert_never, get_args, overload

from shardwise.layout import Axes, Layout
from shardwise.mesh import Sides

Way = Literal["ring", "bidirectional", "folded"] | Sides
CollectiveKind = Literal["all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute"]
MoveKind = CollectiveKind | Literal["slice"]
COLLECTIVES: tuple[CollectiveKind, ...] = get_args(CollectiveKind)
_SCOPE = re.compile(r"(?:^|[/(])shardwise/(\d+) ")


@dataclass(frozen=True, slots=True)
class AllGather:
    """Every device along `axes` receives all their parts of `dim`: `A[I_x] -> A[I]`."""

    array: str
    dim: str
    axes: Axes


@dataclass(frozen=True, slots=True)
class ReduceScatter:
    """Sum the partial values over `axes`; each device keeps its part of `dim`: `A[I]{U_x} -> A[I_x]`."""

    array: str
    dim: str
    axes: Axes


@dataclass(frozen=True, slots=True)
class AllReduce:
    """Sum the partial values over `axes`; every device receives the sum: `A[I]{U_x} -> A[I]`."""

    array: str
    axes: Axes


@dataclass(frozen=True, slots=True)
class AllToAll:
    """Move `axes` from one dimension to another: `A[I_x, J] -> A[I, J_x]`."""

    array: str
    source_dim: str
    target_dim: str
    axes: Axes


@dataclass(frozen=True, slots=True)
class CollectivePermute:
    """Along `axes`, the device at the first position of each pair sends its shard to the one at the second.

    Positions count along the axes together, the first the major one. `layout` is the layout afterwards; it differs
    from the one before where the pairs say so (`relayout`), and is the same for a shift. Where it has more parts, each device
    sends the part of its shard that the other keeps.
    """

    array: str
    axes: Axes
    pairs: tuple[tuple[int, int], ...]
    layout: Layout


@dataclass(frozen=True, slots=True)
class Slice:
    """Each device keeps its part of `dim` along `axes`; nothing is sent: `A[I] -> A[I_x]`."""

    array: str
    dim: str
    axes: Axes


@dataclass(frozen=True, slots=True)
class Einsum:
    """Multiply the operands' local shards and sum over every dimension that the result lacks."""

    operands: tuple[str, ...]
    result: str
    dims: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GatherEinsum:
    """What `gather` and then `einsum` do, block by block: while one is multiplied, the next is on its way.

    The blocks go round a ring, one way (`"ring"`), both (`"bidirectional"`), or one way over every second device and back
    over the others (`"folded"`: on a line no two neighbours are far apart), each cut into so many chunks. Or they go along all
    `Sides` of a torus at once: each is cut into so many chunks for each side, every one of which begins with another side.
    """

    gather: AllGather
    einsum: Einsum
    way: Way = "bidirectional"
    chunks: int = 1


@dataclass(frozen=True, slots=True)
class EinsumScatter:
    """What `einsum` and then `scatter` do, part by part: while one is multiplied, the sums of another are on their way."""

    einsum: Einsum
    scatter: ReduceScatter
    way: Way = "bidirectional"
    chunks: int = 1


@dataclass(frozen=True, slots=True)
class EinsumGather:
    """What `einsum` and then `gather` do, part by part: while one part of the result goes round, the next is multiplied."""

    einsum: Einsum
    gather: AllGather
    way: Way = "bidirectional"
    chunks: int = 4


@dataclass(frozen=True, slots=True)
class RotateEinsum:
    """What two `gathers` and then `einsum` do, with one block of each operand in memory: both go round, and meet."""

    gathers: tuple[AllGather, AllGather]
    einsum: Einsum


@dataclass(frozen=True, slots=True)
class Automatic:
    """The compiler's own: one einsum of whole arrays, and the layout that is wanted; it chooses what moves."""

    operands: tuple[str, ...]
    result: str
    layout: Layout


Collective = AllGather | ReduceScatter | AllReduce | AllToAll | CollectivePermute
Fused = GatherEinsum | EinsumScatter | EinsumGather | RotateEinsum
Step = Collective | Slice | Einsum | Fused | Automatic
WAYS: tuple[Way, ...] = ("ring", "bidirectional", "folded")  # that any ring may go
TORUS = "torus"  # what `overlap=` calls a way along sides


def parts(step: Step) -> tuple[Step, ...]:
    """The plain steps that a fused one stands for; of any other the step itself."""
    match step:
        case GatherEinsum(gather, einsum):
            return (gather, einsum)
        case EinsumScatter(einsum, scatter):
            return (einsum, scatter)
        case EinsumGather(einsum, gather):
            return (einsum, gather)
        case RotateEinsum(gathers, einsum):
            return (*gathers, einsum)
        case _:
            return (step,)


def goes_along_sides(step: Step) -> bool:
    """Whether what a step moves goes along all sides of a torus at once."""
    return isinstance(step, GatherEinsum | EinsumScatter | EinsumGather) and isinstance(step.way, Sides)


def way_name(step: Fused) -> str:
    """The way of a fused step as `overlap=` names it: `ring`, `bidirectional`, `folded`, `torus`, or `rotate`."""
    return TORUS if goes_along_sides(step) else getattr(step, "way", "rotate")


def einsum_of(step: Step) -> Einsum | None:
    """The local einsum of a step, fused or not; None where there is none."""
    return step if type(step) is Einsum else getattr(step, "einsum", None)  # asked so often that unions of types take too long


def moved_axes(step: Step) -> Axes:
    """The mesh axes along which a step moves data; none where it moves nothing."""
    return tuple(dict.fromkeys(axis for part in collectives_of(step) for axis in part.axes))


def collectives_of(step: Step) -> tuple[Collective, ...]:
    """The collectives that a step is, or stands for."""
    return tuple(part for part in parts(step) if isinstance(part, Collective))


def consumed(step: Step) -> tuple[str, ...]:
    """The arrays that a step reads."""
    if (array := getattr(step, "array", None)) is not None:  # as in `einsum_of`
        return (array,)
    return step.operands if isinstance(step, Automatic | Einsum) else step.einsum.operands  # type: ignore[union-attr]


def unsent(step: Step) -> frozenset[str]:
    """The arrays that a step reads where they are, and of which it sends nothing."""
    return frozenset(consumed(step)).difference(part.array for part in collectives_of(step))


def touched(step: Step) -> str:
    """The array that a step makes or lays out anew."""
    if (array := getattr(step, "array", None)) is not None:  # as in `einsum_of`
        return array
    return step.result if isinstance(step, Automatic | Einsum) else step.einsum.result  # type: ignore[union-attr]


def describe(step: Step) -> str:
    """Say a step in the field's words.

    >>> describe(AllGather("A", "I", ("x",)))
    'all-gather A over x (I)'
    """
    match step:
        case AllGather(array, dim, axes):
            return f"all-gather {array} over {_listed(axes)} ({dim})"
        case ReduceScatter(array, dim, axes):
            return f"reduce-scatter {array} over {_listed(axes)} ({dim})"
        case AllReduce(array, axes):
            return f"all-reduce {array} over {_listed(axes)}"
        case AllToAll(array, source_dim, target_dim, axes):
            return f"all-to-all {array} over {_listed(axes)} ({source_dim} to {target_dim})"
        case CollectivePermute(array, axes, _, layout):
            return f"permute {array} over {_listed(axes)} to {layout}"
        case Slice(array, dim, axes):
            return f"slice {array} over {_listed(axes)} ({dim})"
        case Einsum(operands, result, dims):
            return f"einsum {' · '.join(operands)} -> {result}[{', '.join(dims)}]"
        case GatherEinsum(gather, _, way, chunks):
            return f"multiply while gathering {gather.array} over {_listed(gather.axes)} ({gather.dim}), {_ring(way, chunks)}"
        case EinsumScatter(Einsum((one,), made), scatter, way, chunks) if one == made:
            return (
                f"reduce-scatter {scatter.array} over {_listed(scatter.axes)} ({scatter.dim}) by permutes, {_ring(way, chunks)}"
            )
        case EinsumScatter(_, scatter, way, chunks):
            return f"multiply while scattering over {_listed(scatter.axes)} ({scatter.dim}), {_ring(way, chunks)}"
        case EinsumGather(Einsum((one,), made), gather, way, chunks) if one == made:
            return f"{describe(gather)} by permutes, {_ring(way, chunks)}"
        case EinsumGather(_, gather, way, chunks):
            return f"multiply, and gather {gather.array} over {_listed(gather.axes)} ({gather.dim}), {_ring(way, chunks)}"
        case RotateEinsum(gathers, _):
            turning = " and ".join(f"{gather.array} over {_listed(gather.axes)}" for gather in gathers)
            return f"multiply while rotating {turning}"
        case Automatic():
            return "the compiler's own choice"
        case _:
            assert_never(step)


def scope(number: int, step: Step) -> str:
    """What the operations of a program's step are called in compiled texts and traces: `jax.named_scope`.

    >>> scope(2, AllGather("A", "I", ("x",)))
    'shardwise/2 all-gather A'
    """
    return f"shardwise/{number} {kind(step)} {touched(step)}"


def step_of(op_name: str) -> int | None:
    """The number of the step that an operation belongs to, by its name in a compiled text; None where it is no step's.

    >>> step_of("jit(f)/shmap_body/shardwise/2 all-gather A/all_gather"), step_of("jit(f)/dot_general")
    (2, None)
    """
    found = _SCOPE.search(op_name)
    return int(found[1]) if found else None


@overload
def kind(step: Collective) -> CollectiveKind: ...
@overload
def kind(step: Slice) -> Literal["slice"]: ...
@overload
def kind(step: Step) -> str: ...
def kind(step: Step) -> str:
    """The field's name of a step's operation: `all-gather`, `reduce-scatter`, ..."""
    match step:
        case AllGather():
            return "all-gather"
        case ReduceScatter():
            return "reduce-scatter"
        case AllReduce():
            return "all-reduce"
        case AllToAll():
            return "all-to-all"
        case CollectivePermute():
            return "collective-permute"
        case Slice():
            return "slice"
        case Einsum():
            return "einsum"
        case GatherEinsum():
            return "gather-einsum"
        case EinsumScatter():
            return "einsum-scatter"
        case EinsumGather():
            return "einsum-gather"
        case RotateEinsum():
            return "rotate-einsum"
        case Automatic():
            return "automatic"
        case _:
            assert_never(step)


def _ring(way: Way, chunks: int) -> str:
    said = {"ring": "one way", "bidirectional": "both ways", "folded": "folded"}.get(str(way), f"along all sides of {way}")
    return said if chunks == 1 else f"{said} in {chunks} chunks a block"


def _listed(axes: Axes) -> str:
    return ",".join(axes)
