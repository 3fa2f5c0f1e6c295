"""Fused programs: where a gather or a scatter stands beside a matmul, the two as one step that overlaps."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from shardwise.dataflow import invarying_axes
from shardwise.errors import LayoutError, ProgramError
from shardwise.layout import Layout
from shardwise.mesh import Sides
from shardwise.program import Program
from shardwise.steps import (
    WAYS,
    AllGather,
    AllReduce,
    Einsum,
    EinsumGather,
    EinsumScatter,
    Fused,
    GatherEinsum,
    ReduceScatter,
    RotateEinsum,
    Step,
    Way,
    consumed,
    moved_axes,
    touched,
    way_name,
)

CHUNKS = (1, 2)  # along the sides of a torus so many for each side
PIPELINED_CHUNKS = (2, 4, 8)  # of a matmul whose parts are sent while the rest is made
MOST_FORMS = 64


MOST_TURNS = 256  # of a rotation, which is written out turn by turn


def fused_programs(program: Program, sizes: Mapping[str, int]) -> Iterator[Program]:
    """Every program that fuses one or more matmuls of a program with a gather or a scatter beside it.

    >>> from shardwise.mesh import Mesh
    >>> steps = (AllGather("A", "I", ("x",)), Einsum(("A", "B"), "C", ("I", "K")))
    >>> inputs = (("A", Layout.parse("I_x, J")), ("B", Layout.parse("J, K")))
    >>> plain = Program(Mesh.parse("x=4"), inputs, steps, "C")
    >>> [type(each.steps[0]).__name__ for each in fused_programs(plain, {"I": 8, "J": 8, "K": 8})]
    ['GatherEinsum']
    """
    for steps in fused_steps(program, sizes):
        fused = checked(program, steps)
        if fused is not None:
            yield fused


def fused_steps(program: Program, sizes: Mapping[str, int]) -> Iterator[tuple[Step, ...]]:
    """The steps of each of them, and some that are not legal."""
    matmuls = [place for place, step in enumerate(program.steps) if isinstance(step, Einsum)]
    forms: list[list[Form]] = [[{}, *_forms(program, place, sizes)] for place in matmuls]
    for chosen in itertools.islice(itertools.product(*forms), 1, MOST_FORMS):
        changes = {place: steps for form in chosen for place, steps in form.items()}
        if len(changes) < sum(map(len, chosen)):
            continue  # two forms change one step
        kept = [changes.get(place, (step,)) for place, step in enumerate(program.steps)]
        yield tuple(itertools.chain.from_iterable(kept))


def checked(program: Program, steps: tuple[Step, ...]) -> Program | None:
    """A program with these steps instead, if that is legal and leaves equal what must be."""
    try:
        fused = program.with_steps(steps)
    except (ProgramError, LayoutError):
        return None
    return fused if _keeps_replicas(fused) else None


def _keeps_replicas(program: Program) -> bool:
    """Whether what must be equal on all devices of a ring is: a ring along a summed dimension adds in other orders."""
    summing = [_sums(step) for step in program.steps]
    if not any(summing):
        return True
    steps = zip(program.steps, summing, invarying_axes(program), strict=True)
    return not any(sums and need & set(moved_axes(step)) for step, sums, need in steps)


def _sums(step: Step) -> bool:
    """Whether each device adds the blocks that come to it, in an order of its own."""
    return isinstance(step, RotateEinsum) or (isinstance(step, GatherEinsum) and step.gather.dim not in step.einsum.dims)


Form = dict[int, tuple[Step, ...]]  # what stands at a place of the list of steps instead


def _forms(program: Program, place: int, sizes: Mapping[str, int]) -> Iterator[Form]:
    """What one matmul may be fused with."""
    einsum = program.steps[place]
    assert isinstance(einsum, Einsum)
    gathers = dict(_gathers_before(program, place))
    for at, gather in gathers.items():
        yield {at: (), place: (GatherEinsum(gather, einsum),)}
    if len(einsum.operands) == 2 and len(gathers) == 2:
        (at, first), (other, second) = gathers.items()
        axes = (*first.axes, *second.axes)
        summed = first.dim == second.dim and first.dim not in einsum.dims
        turns = math.lcm(*(program.mesh.axis_size(axis) for axis in axes))
        if summed and len(axes) == len(set(axes)) == 2 and sizes[first.dim] % turns == 0 and turns <= MOST_TURNS:
            yield {at: (), other: (), place: (RotateEinsum((first, second), einsum),)}
    after = _next_use(program, place)
    if after is None:
        return
    step = program.steps[after]
    if isinstance(step, ReduceScatter):
        yield {place: (EinsumScatter(einsum, step),), after: ()}
    elif isinstance(step, AllGather):
        yield {place: (EinsumGather(einsum, step),), after: ()}
    elif isinstance(step, AllReduce):
        layout = program.states()[place + 1][einsum.result]
        dim = widest(layout, step, sizes, program)
        if dim is not None:
            scatter = ReduceScatter(step.array, dim, step.axes)
            yield {place: (EinsumScatter(einsum, scatter),), after: (AllGather(step.array, dim, step.axes),)}


def _gathers_before(program: Program, place: int) -> Iterator[tuple[int, AllGather]]:
    """The last gather of each operand, where nothing touches the array between it and the matmul.

    Not of an operand with a dimension of its own, which is summed before anything is sent: another program does.
    """
    einsum = program.steps[place]
    assert isinstance(einsum, Einsum)
    for name in einsum.operands:
        if einsum.operands.count(name) > 1 or _summed_alone(program, place, name):
            continue
        touching = [at for at in range(place) if touched(program.steps[at]) == name or name in consumed(program.steps[at])]
        last = program.steps[touching[-1]] if touching else None
        if isinstance(last, AllGather):
            yield touching[-1], last


def _summed_alone(program: Program, place: int, name: str) -> bool:
    """Whether a matmul's operand has a dimension that neither the result nor another operand has."""
    einsum, layouts = program.steps[place], program.states()[place]
    assert isinstance(einsum, Einsum)
    shared = {*einsum.dims, *(dim for other in einsum.operands if other != name for dim in layouts[other].names)}
    return not shared.issuperset(layouts[name].names)


def _next_use(program: Program, place: int) -> int | None:
    einsum = program.steps[place]
    assert isinstance(einsum, Einsum)
    later = range(place + 1, len(program.steps))
    return next((at for at in later if einsum.result in consumed(program.steps[at])), None)


def widest(layout: Layout, step: AllReduce, sizes: Mapping[str, int], program: Program) -> str | None:
    """The dimension of a sum that has most left to split over the axes summed over."""
    parts = program.mesh.extent(step.axes)
    local = {dim: sizes[dim] // program.mesh.extent(axes) for dim, axes in layout.dims}
    fitting = [dim for dim, size in local.items() if size % parts == 0]
    return max(fitting, key=lambda dim: local[dim], default=None)


def forms_of(step: Fused, ways: Sequence[Way] = WAYS) -> Iterator[Fused]:
    """A fused step in each of these ways and every number of chunks that it may go."""
    if isinstance(step, RotateEinsum):
        yield step
        return
    for way in ways:
        if way != "folded" or len(moved_axes(step)) == 1:
            for chunks in PIPELINED_CHUNKS if isinstance(step, EinsumGather) and not isinstance(way, Sides) else CHUNKS:
                yield replace(step, way=way, chunks=chunks)


def names_of(step: Step) -> frozenset[str]:
    """What `overlap=` may call a step: `ring`, `bidirectional`, `folded`, `torus`, `scatter`, `rotate`."""
    match step:
        case EinsumScatter():
            return frozenset({way_name(step), "scatter"})
        case GatherEinsum() | EinsumGather() | RotateEinsum():
            return frozenset({way_name(step)})
        case _:
            return frozenset()
