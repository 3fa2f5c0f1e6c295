"""What happens to which array of a program, and when: who reads what a step makes, what waits for it, and what is gathered."""

from __future__ import annotations

from shardwise.layout import Layout
from shardwise.program import Program
from shardwise.steps import AllGather, Einsum, EinsumGather, GatherEinsum, Slice, Step, consumed, moved_axes, touched


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
    taking = (step for step in program.steps[:number] if not isinstance(step, Slice))
    taken = {name for step in taking for name in (*consumed(step), touched(step))}
    return frozenset(name for name, _ in program.inputs if name not in taken)


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


def gathers_of(program: Program, array: str) -> dict[int, AllGather]:
    """The gathers of an input before anything else happens to it, by the numbers of their steps: by themselves or in a ring."""
    found: dict[int, AllGather] = {}
    for number, step in enumerate(program.steps):
        match step:
            case AllGather(name) if name == array:
                found[number] = step
            case EinsumGather(Einsum((name,), made), gather) if name == made == array:
                found[number] = gather
            case GatherEinsum(gather) if gather.array == array:
                return found | {number: gather}
            case _ if array in (touched(step), *consumed(step)):
                break
    return found
