"""What happens to which array of a program, and when: who reads what a step makes, what waits, is gathered, or is equal."""

from __future__ import annotations

from collections.abc import Iterator

from shardwise.layout import Layout
from shardwise.program import Program
from shardwise.steps import (
    AllGather,
    Einsum,
    EinsumGather,
    GatherEinsum,
    Slice,
    Step,
    collectives_of,
    consumed,
    einsum_of,
    moved_axes,
    touched,
)


def reader(program: Program, number: int) -> Step | None:
    """The next step that takes what a step makes, by its number from 0; None where it is the result."""
    name = touched(program.steps[number])
    return next((each for each in program.steps[number + 1 :] if name in (*consumed(each), touched(each))), None)


def makes_result(program: Program, number: int) -> bool:
    """Whether a step, by its number from 0, is the last and makes the output."""
    return number == len(program.steps) - 1 and touched(program.steps[number]) == program.output


def untouched(program: Program, number: int) -> frozenset[str]:
    """The inputs that nothing but slices took before a step, by its number from 0.

    >>> from shardwise.mesh import Mesh
    >>> inputs = (("A", Layout.parse("I_x, J")), ("B", Layout.parse("J, K")))
    >>> program = Program(Mesh.parse("x=2"), inputs, (AllGather("A", "I", ("x",)), Slice("B", "K", ("x",))), "A")
    >>> sorted(untouched(program, 0)), sorted(untouched(program, 2))
    (['A', 'B'], ['B'])
    """
    return list(untouched_until(program))[number]


def untouched_until(program: Program) -> Iterator[frozenset[str]]:
    """The inputs that nothing but slices took, before each step of a program and at its end."""
    left = frozenset(name for name, _ in program.inputs)
    yield left
    for step in program.steps:
        if not isinstance(step, Slice):
            left = left.difference(consumed(step), (touched(step),))
        yield left


def waiting(program: Program, number: int) -> tuple[str, ...]:
    """The arrays that rings gather and that wait for what a step makes, by its number from 0: it has their links.

    Nothing else keeps a compiler from sending the first blocks of such a ring before; then what the ring's matmuls need comes
    late, and nothing overlaps. Where a step before leaves those links free, they are sent beside it, and nothing waits.

    >>> from shardwise.mesh import Mesh
    >>> inputs = (("A", Layout.parse("I, J_x")), ("B", Layout.parse("J, K_x")))
    >>> ring = GatherEinsum(AllGather("B", "K", ("x",)), Einsum(("A", "B"), "C", ("I", "K")))
    >>> from shardwise.steps import AllToAll
    >>> waiting(Program(Mesh.parse("x=2"), inputs, (AllToAll("A", "J", "I", ("x",)), ring), "C"), 0)
    ('B',)
    """
    rings = ((place, step) for place, step in enumerate(program.steps) if isinstance(step, GatherEinsum) and place > number)
    return tuple(step.gather.array for place, step in rings if _last_on_links(program, place, step) == number)


def _last_on_links(program: Program, ring: int, step: GatherEinsum) -> int | None:
    """The last step before a ring that moves data; None where one leaves its links free, or does more than cut its array."""
    array, last = step.gather.array, None
    for place, earlier in enumerate(program.steps[:ring]):
        if array in (touched(earlier), *consumed(earlier)):
            if not isinstance(earlier, Slice):  # it is not there before, or moves itself
                return None
        elif moved_axes(earlier):
            if not set(moved_axes(earlier)) & set(moved_axes(step)):
                return None
            last = place
    return last


def kept_layout(program: Program, array: str) -> Layout | None:
    """How an input lies when it is gathered; None where it is not gathered as it is given, or partial sums are.

    >>> from shardwise.mesh import Mesh
    >>> inputs = (("A", Layout.parse("I_x, J")), ("B", Layout.parse("J, K")))
    >>> ring = GatherEinsum(AllGather("A", "I", ("x",)), Einsum(("A", "B"), "C", ("I", "K")))
    >>> str(kept_layout(Program(Mesh.parse("x=2"), inputs, (ring,), "C"), "A"))
    '[I, J]'
    """
    given, result = dict(program.inputs).get(array), program.result
    gathers = tuple(gathers_of(program, array).values())
    if given is None or not gathers or any(layout.unreduced for layout in (*dict(program.inputs).values(), result)):
        return None
    return Program(program.mesh, ((array, given),), gathers, array).result


def lone_gather(step: Step) -> AllGather | None:
    """The gather that a step is and nothing else, by a collective or by permutes; None where it is none."""
    match step:
        case AllGather():
            return step
        case EinsumGather(Einsum((name,), made), gather) if name == made:
            return gather
    return None


def gathers_of(program: Program, array: str) -> dict[int, AllGather]:
    """The gathers of an input before anything else happens to it, by the numbers of their steps: by themselves or in a ring."""
    found: dict[int, AllGather] = {}
    for number, step in enumerate(program.steps):
        alone = lone_gather(step)
        if alone is not None and alone.array == array:
            found[number] = alone
        elif isinstance(step, GatherEinsum) and step.gather.array == array:
            return found | {number: step.gather}
        elif array in (touched(step), *consumed(step)):
            break
    return found


def ring_of(program: Program, array: str) -> GatherEinsum | None:
    """The ring that gathers an input for its matmul, where nothing else moves it before; None where there is none."""
    match list(gathers_of(program, array)):
        case [number] if isinstance(step := program.steps[number], GatherEinsum) and program.mesh.extent(step.gather.axes) > 1:
            return step
    return None


def before_gathers(program: Program) -> tuple[Program, Program]:
    """A program up to where nothing but gathers of its result follow, and those.

    >>> from shardwise.mesh import Mesh
    >>> inputs = (("A", Layout.parse("I_x, J")), ("B", Layout.parse("J, K")))
    >>> steps = Einsum(("A", "B"), "C", ("I", "K")), AllGather("C", "I", ("x",))
    >>> [len(part.steps) for part in before_gathers(Program(Mesh.parse("x=2"), inputs, steps, "C"))]
    [1, 1]
    """
    count = len(program.steps)
    while count and (gather := lone_gather(program.steps[count - 1])) is not None and gather.array == program.output:
        count -= 1
    first = Program(program.mesh, program.inputs, program.steps[:count], program.output)
    return first, Program(program.mesh, ((program.output, first.result),), program.steps[count:], program.output)


def takes_parts(program: Program, array: str, dim: str) -> bool:
    """Whether a program does the same to every part of an input along a dimension, and moves nothing that all parts share.

    >>> from shardwise.mesh import Mesh
    >>> inputs = (("A", Layout.parse("E, I_x, J")), ("B", Layout.parse("E, I_x, K")))
    >>> from shardwise.steps import ReduceScatter
    >>> steps = Einsum(("A", "B"), "C", ("E", "J", "K")), ReduceScatter("C", "J", ("x",))
    >>> [takes_parts(Program(Mesh.parse("x=2"), inputs, steps, "C"), "A", dim) for dim in "EIJ"]
    [True, False, False]
    """
    states = program.states()
    whole = all(not layout.axes_of(dim) for state in states for layout in state.values() if dim in layout.names)
    shared = (
        name
        for state, step in zip(states, program.steps, strict=False) if moved_axes(step)
        for name in consumed(step) if dim not in state[name].names
    )  # fmt: skip
    has = dim in dict(program.inputs)[array].names and dim in program.result.names
    return has and whole and not program.result.unreduced and not any(shared)


def invarying_axes(program: Program) -> list[set[str]]:
    """For every step, the axes over which JAX's types must see its result as equal on all devices.

    The program's output must be so over every axis that does not split it; what makes it inherits the need, unless
    it is a collective over that axis, which settles it.
    """
    result = program.result
    needs: dict[str, set[str]] = {program.output: set(program.mesh.names) - set(result.axes) - set(result.unreduced)}
    found: list[set[str]] = []
    for step in reversed(program.steps):
        need = needs.pop(touched(step), set())
        found.append(need)
        for name in consumed(step):
            needs[name] = need - _settled(step, name)
    return found[::-1]


def _settled(step: Step, name: str) -> set[str]:
    """The axes over which a step makes equal what it makes of an array, whether that is equal or not."""
    moving = collectives_of(step)
    einsum = einsum_of(step)
    made = None if einsum is None else einsum.result
    return {axis for part in moving if part.array in (name, made) for axis in part.axes}
