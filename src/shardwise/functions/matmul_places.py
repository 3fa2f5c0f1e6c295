"""Places of a function at which matmuls run, and something moves: what was planned for them, and what takes their place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from jax.extend.core import Jaxpr, JaxprEqn, Literal

from shardwise.compiled.facts import Line
from shardwise.dataflow import kept_layout
from shardwise.functions.joining import JOINED, Joint, Part
from shardwise.functions.rewriting import Brought, Path, Replacement, Together, makers_of
from shardwise.functions.sights import mesh_in_force
from shardwise.functions.transposes import Orders
from shardwise.layout import Layout
from shardwise.notation import sizes_padded_on
from shardwise.planning.problem import Problem
from shardwise.planning.ranking import Candidate
from shardwise.program import Program
from shardwise.steps import EinsumGather, EinsumScatter, Fused, GatherEinsum, Step, describe, goes_along_sides, way_name

if TYPE_CHECKING:
    from shardwise.runtime.arriving import Arriving


@dataclass(frozen=True, slots=True)
class Looks:
    """What is seen of a matmul: which dimensions it multiplies, and what it takes. Where it looks otherwise, it is another."""

    dimensions: tuple[Any, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]


def looks_of(equation: JaxprEqn) -> Looks:
    avals: list[Any] = [var.aval for var in equation.invars]
    return Looks(
        equation.params["dimension_numbers"], tuple(aval.shape for aval in avals), tuple(str(aval.dtype) for aval in avals)
    )


@dataclass(frozen=True, slots=True)
class MatmulPlace:
    """Matmuls of one line that pose the same problem, or several that are one each time, and the program planned for them.

    Attributes:
        groups: where they stand in the function: each alone, or those that are one; `looks` is what they look like there.
        orders: of each of those that are one; `as_written` is the same place with arrays in the orders of the matmul itself,
            where they are others.
        joint: how the arrays of those that are one become those of one matmul.
        candidate: the fastest program for one of them alone, with its estimate.
        program: what takes their place: that program, or the same with its sums by permutes, or its gathers too.
        programs: those of the three that have a transfer behind a matmul, the likeliest first; `gathering` is the last of them
            on chips whose compiler runs an all-gather by itself.
        as_brought: the same place of a gradient, with operands as other places gather them (it `is_brought`): what is left to
            move is its sum, or another operand; and `as_moved` with operands as the compiler brings them.
        parts_of: the operand that such a place takes as the parts that arrive, where a ring brings it: what each gives is
            summed while the next is on its way; `in_parts` is the same place so, if its result has the gathered dimension.
        told: whether its compiler is told how arrays lie in its rings (`shardwise.planning.told`), or lays them as others do.
        seconds: of the candidate each time; `plain_seconds` of the best without a transfer behind matmuls. Both modelled.
        times: how often all of them run in one call.
    """

    line: Line | None
    groups: tuple[tuple[Path, ...], ...]
    looks: tuple[Looks, ...]
    task: Problem
    candidate: Candidate = field(repr=False, compare=False)
    program: Program
    programs: tuple[Program, ...] = field(repr=False, compare=False)
    gathering: Program | None = field(repr=False, compare=False)
    seconds: float
    plain_seconds: float
    times: int
    orders: tuple[Orders, ...]
    joint: Joint | None = None
    as_brought: tuple[MatmulPlace, ...] = field(default=(), repr=False, compare=False)
    as_moved: tuple[MatmulPlace, ...] = field(default=(), repr=False, compare=False)
    as_written: MatmulPlace | None = field(default=None, repr=False, compare=False)
    is_brought: bool = False
    in_parts: MatmulPlace | None = field(default=None, repr=False, compare=False)
    parts_of: str = ""
    told: bool = True

    otherwise = "without overlap"  # what `plain_seconds` are of

    @property
    def paths(self) -> tuple[Path, ...]:
        """Of all of them."""
        return tuple(path for group in self.groups for path in group)

    @property
    def gain(self) -> float:
        return (self.plain_seconds - self.seconds) * self.times

    @property
    def ways(self) -> tuple[MatmulPlace, ...]:
        """Each of the programs in their place."""
        found = tuple(replace(self, program=program) for program in self.programs)
        in_parts = (each.in_parts for each in self.as_brought if each.in_parts is not None)
        written = () if self.as_written is None else self.as_written.ways
        return (*found, *written, *self.as_moved, *in_parts, *self.as_brought)

    @property
    def first(self) -> MatmulPlace | None:
        """The likeliest; none where gathers by permutes are all that there is."""
        return None if self.programs == (self.gathering,) else self.ways[0]

    @property
    def furthest(self) -> MatmulPlace | None:
        """With gathers by permutes, where there are any."""
        return self.first if self.gathering is None else replace(self, program=self.gathering)

    @property
    def unchunked(self) -> MatmulPlace:
        """With the blocks of rings whole: fewer matmuls to compile, and as fast where a step overlaps the transfers."""
        return self._with(_unchunked)

    @property
    def around(self) -> MatmulPlace:
        """With rings in place of tori: much less to compile, and as fast where a step overlaps the transfers."""
        return self._with(_around)

    def _with(self, form: Callable[[Step], Step]) -> MatmulPlace:
        """With another form of each step."""
        in_parts = None if self.in_parts is None else self.in_parts._with(form)
        return replace(self, program=self.program.with_steps(tuple(map(form, self.program.steps))), in_parts=in_parts)

    @property
    def joined(self) -> tuple[tuple[Part, ...] | None, tuple[Part, ...] | None]:
        """Of each operand the parts that lie side by side; None of one that is an array of the function's."""
        return (None, None) if self.joint is None else self.joint.operands

    @property
    def together(self) -> int:
        """How many matmuls are one."""
        return len(self.looks)

    @property
    def overlap(self) -> str:
        """How a transfer runs behind the matmul, as `overlap=` names it; `"none"` where none does."""
        found = (step for step in self.program.steps if isinstance(step, Fused) and not _is_background(step))
        return next(map(way_name, found), "none")

    @property
    def described(self) -> tuple[str, ...]:
        """Its steps in words."""
        return tuple(describe(step) for step in self.program.steps)

    def code(self) -> list[str]:
        """What to write by hand in its place, in lines."""
        lines = []
        if self.joint is not None:
            lines.append(
                f"# {len(self.looks)} matmuls in one ring, as if each device's parts of their arrays were one along {JOINED}"
            )
        if self.is_brought:
            lines.append("# a and b as they lie before the matmul, where the function, its compiler or a ring has moved them")
        if self.parts_of:
            lines.append(f"# {self.parts_of.lower()} as the parts that a ring brings: what each gives is summed at once")
        if not self.told:
            lines.append("# here the compiler is not told how arrays lie in rings, as sw.einsum tells it")
        lines += [f"# {describe(step)}" for step in self.program.steps if _is_background(step)]
        how = f'"{self.overlap}"' if self.overlap != "none" else "False"
        exact = f", preferred_element_type={self.task.accumulated!r}" if self.task.accumulated else ""
        return [*lines, f'c = sw.einsum("{self.task.equation}", a, b, overlap={how}{exact})']

    def takes(self, path: Path, equation: JaxprEqn, makers: Mapping[Any, JaxprEqn]) -> dict[int, Brought]:
        """By the side of an operand, how a place that `is_brought` takes it; nothing of others."""
        number = next(group for group in self.groups if path in group).index(path)
        if not self.is_brought:
            return {}
        names, layouts = zip(*self.program.inputs, strict=True)
        found = self._brought(number, equation, makers, layouts)
        return {side: each._replace(in_parts=names[side] == self.parts_of) for side, each in found.items()}

    def _brought(
        self, number: int, equation: JaxprEqn, makers: Mapping[Any, JaxprEqn], layouts: Sequence[Layout | None]
    ) -> dict[int, Brought]:  # fmt: skip
        """The operands that the whole place has as one of its matmuls does, by their side, and how they lie in `layouts`."""
        sides = zip(self.orders[number].roots(equation, makers), layouts, self.joined, strict=True)
        return {
            side: Brought(root, tuple(axes for _, axes in layout.dims))
            for side, (root, layout, parts) in enumerate(sides)
            if parts is None and layout is not None and not isinstance(root, Literal)
        }

    def replacement(
        self, path: Path, equation: JaxprEqn, jaxpr: Jaxpr, mesh: Any, wanted: frozenset[Brought] = frozenset()
    ) -> Replacement | None:  # fmt: skip
        """The planned program for the matmul of a path, unless it looks otherwise than what was planned.

        Args:
            wanted: what others in the jaxpr take as this may bring it.
        """
        from shardwise.runtime.arriving import Arrived
        from shardwise.runtime.execute import planned_function
        from shardwise.runtime.lower import Arithmetic, lower, lower_by_parts, lower_keeping
        from shardwise.runtime.mapped import typed_as

        group = next(group for group in self.groups if path in group)
        number = group.index(path)
        if self.looks[number] != looks_of(equation):
            return None
        arithmetic = Arithmetic(equation.params["precision"], equation.params["preferred_element_type"], self.told)
        makers = makers_of(jaxpr)
        gives, arrives = self._gives(number, equation, makers, wanted)

        def run(*arrays: Any, brought: tuple[int, ...] = ()) -> Sequence[Any]:
            """All results, and what others want."""
            on, shared = mesh_in_force(mesh), list[Any]()
            operands = arrays[: 2 * len(self.orders)]
            pairs = zip(self.orders, operands[0::2], operands[1::2], strict=True)
            taken = [array for orders, *pair in pairs for array in orders.taken(pair)]
            for place, array in zip(brought, arrays[len(operands) :], strict=True):
                taken[place] = array

            def alone(*operands: Any) -> Any:
                """The result of the one matmul; what others want of its operands is put into `shared`."""
                if any(isinstance(operand, Arrived) for operand in operands):
                    return lower_by_parts(self.program, on, arithmetic)(*operands)
                if not gives and self.joint is not None:
                    return lower(self.program, on, arithmetic)(*operands)
                if not gives:
                    inputs = zip(operands, self.program.inputs, strict=True)
                    there = [typed_as(array, layout.on(self.task.mesh).spec) for array, (_, layout) in inputs]
                    return planned_function(self.task, self.program, on, arithmetic)(*there)
                names = tuple(dict.fromkeys(gives.values()))
                made, *gathered = lower_keeping(self.program, names, on, arithmetic, arrives)(*operands)
                found = dict(zip(names, gathered, strict=True))
                found |= {name: Arrived(found[name], how) for name, how in arrives.items()}
                shared.extend(found[name] for name in gives.values())
                return made

            made = (alone(*taken),) if self.joint is None else self.joint.computed(alone, on, self.task.mesh)(*taken)
            return *(orders.given(each) for orders, each in zip(self.orders, made, strict=True)), *shared

        return Together(group, run, self.takes(path, equation, makers), tuple(gives))

    def _gives(
        self, number: int, equation: JaxprEqn, makers: Mapping[Any, JaxprEqn], wanted: frozenset[Brought]
    ) -> tuple[dict[Brought, str], dict[str, Arriving]]:  # fmt: skip
        """The operands that one of the matmuls brings for others, by what these take; and how those arrive that are in parts.

        An operand that some take whole, and others in parts, is given whole.
        """
        from shardwise.runtime.arriving import arriving

        gives: dict[Brought, str] = {}
        arrives: dict[str, Arriving] = {}
        names = [name for name, _ in self.program.inputs] if not self.parts_of else []
        kept = [None if self.is_padded else kept_layout(self.program, name) for name in names]
        for side, whole in self._brought(number, equation, makers, kept).items() if names else ():
            either = [each for each in (whole, whole._replace(in_parts=True)) if each in wanted]
            gives |= dict.fromkeys(either, names[side])
            how = arriving(self.program, names[side], whole.var.aval.shape) if either and whole not in wanted else None
            if how is not None:
                arrives[names[side]] = how
        return gives, arrives

    @property
    def is_padded(self) -> bool:
        """Whether some device's part of an array is filled up."""
        return sizes_padded_on(self.task.equation, self.task.sizes, self.task.mesh) != dict(self.task.sizes)


def _around(step: Step) -> Step:
    return replace(step, way="bidirectional", chunks=1) if goes_along_sides(step) else step  # type: ignore[call-arg]


def _unchunked(step: Step) -> Step:
    return replace(step, chunks=1) if isinstance(step, GatherEinsum | EinsumScatter) else step


def _is_background(step: Step) -> bool:
    """Whether it is a collective by permutes, which run behind whatever comes next."""
    return isinstance(step, EinsumGather | EinsumScatter) and len(step.einsum.operands) == 1
