"""A program as scenes to step through: what every device holds, what is sent, what it holds then, each with a caption.

Large programs are played by a small stand-in: the same steps and layouts on arrays, and where needed a mesh, that can be
drawn with every number.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import assert_never

import numpy as np

from shardwise.errors import LayoutError, MeshError, ProgramError, counted
from shardwise.layout import Layout
from shardwise.mesh import Mesh
from shardwise.pictures.film import Film, film
from shardwise.pictures.flows import MOST_DEVICES, MOST_ON_STAGE, lacking, moment, stages
from shardwise.pictures.picture import Stage
from shardwise.planning.step_cost import StepCost
from shardwise.program import Program, relayout, unfused
from shardwise.steps import (
    AllGather,
    AllReduce,
    AllToAll,
    Automatic,
    CollectivePermute,
    Einsum,
    Fused,
    ReduceScatter,
    Slice,
    Step,
    collectives_of,
    consumed,
    describe,
    parts,
    touched,
)
from shardwise.units import bytes_text, seconds_text

FEW_ELEMENTS = 16  # of an array that is drawn as it is


@dataclass(frozen=True, slots=True)
class Scene:
    """One position of the player.

    Attributes:
        title: which step it belongs to.
        words: what happens, or what holds now.
        moves: whether something is on its way.
    """

    title: str
    words: str
    stage: Stage
    moves: bool = False


@dataclass(frozen=True, slots=True)
class Play:
    """The scenes of a program, and what was made smaller to draw them."""

    scenes: tuple[Scene, ...]
    note: str


def play(program: Program, sizes: Mapping[str, int], costs: tuple[StepCost, ...] = ()) -> Play:
    """Every scene of a program: before it, and for each step what is sent and what is held then.

    >>> from shardwise.steps import AllGather
    >>> gather = Program(Mesh.parse("x=2"), (("A", Layout.parse("I_x")),), (AllGather("A", "I", ("x",)),), "A")
    >>> [scene.title for scene in play(gather, {"I": 4}).scenes]
    ['At first', 'Step 1 of 1: all-gather A over x (I)', 'After step 1 of 1']

    Args:
        sizes: of every dimension, in elements.
        costs: of the program's steps, as they are priced; without them no time is told.
    """
    small = stand_in(program)
    drawn = _few(small, sizes) if small.mesh == program.mesh else None
    drawn = drawn or _small_sizes(small)
    shown = film(small, drawn, _values(small, drawn) if small.mesh.size <= MOST_DEVICES else None)
    numbered = list(_numbered(program, costs))
    scenes = tuple(_scenes(shown, numbered, len(program.steps)))
    return Play(scenes, _note(program, small, sizes, drawn))


def stand_in(program: Program) -> Program:
    """The same steps on a mesh of few devices; the program itself, with fused steps apart, where that cannot be.

    >>> from shardwise.steps import AllGather
    >>> gather = Program(Mesh.parse("x=256"), (("A", Layout.parse("I_x")),), (AllGather("A", "I", ("x",)),), "A")
    >>> str(stand_in(gather).mesh)
    'x=4'
    """
    plain = unfused(program)
    if plain.mesh.size <= MOST_ON_STAGE:
        return plain
    wide = sum(size > 1 for _, size in plain.mesh.axes)
    most = {1: 4, 2: 4}.get(wide, 2)
    mesh = Mesh(tuple((name, min(size, most)) for name, size in plain.mesh.axes))
    try:
        steps = tuple(_again(step, state, mesh) for step, state in zip(plain.steps, plain.states(), strict=False))
        return Program(mesh, plain.inputs, steps, plain.output)
    except (ProgramError, LayoutError, MeshError, KeyError):  # a permutation between axes of other sizes
        return plain


def _again(step: Step, before: Mapping[str, Layout], mesh: Mesh) -> Step:
    if isinstance(step, CollectivePermute):
        return relayout(step.array, before[step.array], step.layout, mesh)
    return step


def _few(program: Program, sizes: Mapping[str, int]) -> Mapping[str, int] | None:
    """The true sizes, where every array is small."""
    held = [math.prod(sizes[dim] for dim in layout.names) for state in program.states() for layout in state.values()]
    return sizes if max(held, default=0) <= FEW_ELEMENTS else None


def _small_sizes(program: Program) -> dict[str, int]:
    """The smallest sizes that all layouts divide, twice that on few devices."""
    found: dict[str, int] = {}
    for state in program.states():
        for layout in state.values():
            for dim, axes in layout.dims:
                found[dim] = math.lcm(found.get(dim, 1), program.mesh.extent(axes))
    most = 4 if program.mesh.size <= 4 else 2
    return {dim: max(parts, most if parts < most and most % parts == 0 else 2) for dim, parts in found.items()}


def _values(program: Program, sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Small whole numbers: products stay short."""
    values = {}
    for number, (name, layout) in enumerate(program.inputs):
        shape = tuple(sizes[dim] for dim in layout.names)
        values[name] = (np.arange(math.prod(shape), dtype=np.int64) % (9 - number % 3) + number % 2).reshape(shape)
    return values


@dataclass(frozen=True, slots=True)
class _Numbered:
    """A plain step with the number of the program's step that it is, or is a part of, and what that costs."""

    number: int
    whole: Step
    part: Step
    cost: StepCost | None
    last: bool = True  # of the step's parts


def _numbered(program: Program, costs: tuple[StepCost, ...]) -> Iterator[_Numbered]:
    for number, step in enumerate(program.steps):
        cost = costs[number] if number < len(costs) else None
        plain = parts(step)
        yield from (_Numbered(number + 1, step, part, cost, at == len(plain)) for at, part in enumerate(plain, 1))


def _scenes(shown: Film, numbered: list[_Numbered], count: int) -> Iterator[Scene]:
    columns = _columns(min(shown.mesh.size, MOST_ON_STAGE))
    if not numbered:
        already = f"{_held(shown, 0)} That is how it is wanted: nothing moves."
        yield Scene("At first", already, Stage("", columns, moment(shown, 0, MOST_ON_STAGE)))
    for frame, at in enumerate(numbered):
        before, moving, after = stages(shown, frame, columns)
        if frame == 0:
            yield Scene("At first", _held(shown, 0), before)
        title = f"Step {at.number} of {count}: {_called(at.part)}"
        joined = " Both parts of this step run at once, block by block." if isinstance(at.whole, Fused) else ""
        said = f"{_meaning(at.part)}{_lacks(shown, frame)}{joined}{_cost(at)}"
        if collectives_of(at.part):
            yield Scene(title, said, moving, moves=True)
            when = "After" if at.last else "Within"
            yield Scene(f"{when} step {at.number} of {count}", _after(shown, frame, at), after)
        else:
            yield Scene(title, f"{said} {_after(shown, frame, at)}", after)


def _called(step: Step) -> str:
    word = "multiply" if len(consumed(step)) > 1 else "sum"
    return describe(step).replace("einsum", word, 1) if isinstance(step, Einsum) else describe(step)


def _columns(count: int) -> int:
    """Devices in a row: all of few, else as a square would have.

    >>> [_columns(n) for n in (1, 2, 3, 4, 6, 8, 9, 16)]
    [1, 2, 3, 4, 3, 4, 3, 4]
    """
    return count if count <= 4 else next((n for n in (4, 3, 5) if count % n == 0), 4)


def _held(shown: Film, frame: int) -> str:
    layouts = shown.frames[frame].layouts
    return f"Every device holds its part of {' and '.join(f'{name}{layout}' for name, layout in layouts.items())}."


def _lacks(shown: Film, frame: int) -> str:
    lacks = lacking(shown, frame)
    return f" Before it, every device {lacks}." if lacks else ""


def _after(shown: Film, frame: int, at: _Numbered) -> str:
    apart = "" if at.last else " It is drawn apart to be seen: both run at once, and nothing waits for the whole of it."
    return _made(shown, frame + 1, touched(at.part)) + apart


def _made(shown: Film, frame: int, name: str) -> str:
    layout = shown.frames[frame].layouts[name]
    split = "a part of it" if layout.axes else "all of it"
    over = ", ".join(sorted(layout.unreduced))
    sums = f", as a partial sum over {over} that is still to be added" if over else ""
    return f"Now there is {name}{layout}: every device holds {split}{sums}."


def _cost(at: _Numbered) -> str:
    if at.cost is None:
        return ""
    sends = collectives_of(at.part) and at.cost.wire_bytes
    of = "the whole step" if isinstance(at.whole, Fused) else "it"
    return f" At full size {of} takes {seconds_text(at.cost.seconds)}" + (
        f", and each device sends {bytes_text(at.cost.wire_bytes)}." if sends else "."
    )


def _meaning(step: Step) -> str:
    """What happens in a step, for those who meet it for the first time."""
    match step:
        case AllGather(array, dim, axes):
            return f"Every device sends its part of {array} to the others along {_and(axes)}, until each has all of {dim}."
        case ReduceScatter(array, dim, axes):
            return (
                f"Every device sends its partial sum of each part of {array} to the device along {_and(axes)} that keeps this "
                f"part of {dim}; there they are added."
            )
        case AllReduce(array, axes):
            return f"The partial sums of {array} are added over {_and(axes)}; every device receives the whole sum."
        case AllToAll(array, source_dim, target_dim, axes):
            return (
                f"The devices along {_and(axes)} change blocks of {array}: it was split along {source_dim}, and is split along "
                f"{target_dim} then."
            )
        case CollectivePermute(array, axes, _, _):
            return f"Whole shards of {array} change places along {_and(axes)}."
        case Slice(array, dim, axes):
            return f"Every device keeps its part of {array} along {dim}, by its place on {_and(axes)}; nothing is sent."
        case Einsum():
            what = "multiplies" if len(consumed(step)) > 1 else "sums"
            return f"Every device {what} what it holds; nothing is sent."
        case Automatic():
            return "The compiler alone chooses what moves; it is not known before it is compiled."
        case _:
            assert not isinstance(step, Fused), "a film has plain steps alone"
            assert_never(step)


def _and(axes: tuple[str, ...]) -> str:
    return ", ".join(axes)


def _note(program: Program, small: Program, sizes: Mapping[str, int], drawn: Mapping[str, int]) -> str:
    """What differs from what was planned."""
    changed = []
    if dict(drawn) != dict(sizes):
        changed.append("sizes " + ", ".join(f"{dim}={size}" for dim, size in drawn.items()))
    if small.mesh != program.mesh:
        changed.append(f"mesh {small.mesh}, {counted(small.mesh.size, 'device')} for {program.mesh.size:,}")
    told = (
        "The numbers are worked out in NumPy." if small.mesh.size <= MOST_DEVICES else "Each block has the colour of its part."
    )
    if not changed:
        return told
    return f"Played by a small stand-in with the same steps and layouts: {'; '.join(changed)}. {told}"
