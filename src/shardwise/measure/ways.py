"""The ways to run one equation, by name: the compiler's choice, asked for in three ways, written by hand, and planned."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import AxisType, NamedSharding

from shardwise.errors import PlanError, did_you_mean, quoted
from shardwise.measure.timing import automatic, unsharded
from shardwise.mesh import Mesh
from shardwise.notation import Equation, Operand
from shardwise.planning.explain import summary
from shardwise.planning.problem import FORMS, Problem
from shardwise.planning.ranking import Candidate, Ranking, ranked
from shardwise.program import Program
from shardwise.runtime.arrays import untold_dims
from shardwise.runtime.code import source
from shardwise.runtime.lower import lower

WRITTEN = {
    "auto": "jax.jit with out_shardings, Auto axes: the compiler chooses what moves",
    "constraint": "jax.jit with jax.lax.with_sharding_constraint on the result, Auto axes",
    "explicit": "jnp.einsum with out_sharding, Explicit axes",
    "manual": "jax.shard_map by hand",
    "planned": "the best program of the plan",
}
DEFAULT = tuple(WRITTEN)
CANDIDATE = "candidate "


@dataclass(frozen=True, slots=True)
class Way:
    """A function with its arguments, what it is in words, and, of a program of ours, what it was estimated to take."""

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    says: str = ""
    estimate_seconds: float | None = None
    mesh: Any = None

    def __call__(self) -> Any:
        if self.mesh is None or jax.sharding.get_abstract_mesh().empty:
            return self.function(*self.args)
        with jax.set_mesh(self.mesh):  # the one in force has axes of other types
            return self.function(*self.args)


def ways_of(names: Sequence[str], plan: Ranking, arrays: Sequence[Any], mesh: jax.sharding.Mesh) -> Iterator[Way]:
    """Each way of an equation that is named, on arrays that lie on the mesh as the equation says.

    Args:
        names: `auto`, `constraint`, `explicit`, `manual`, `planned`, `candidate 2` (of the plan), or how transfers overlap
            with matmuls: `ring`, `bidirectional`, `scatter`, `rotate`.

    Raises:
        PlanError: there is no such way, or this equation has no program of that kind.
    """
    equation = settled(plan)
    for name in names:
        yield _way(name, equation, plan, arrays, mesh)


def settled(plan: Ranking) -> Equation:
    """The equation of a plan with the layout of its result, which the planner may have chosen."""
    result = Operand(plan.task.equation.result.name, plan.best.program.result)
    return dataclasses.replace(plan.task.equation, result=result)


def asked_of_compilers(names: Sequence[str], equation: Equation) -> tuple[str, ...]:
    """Those of the named ways that cannot be asked for: `jax.jit` neither takes nor gives partial sums."""
    partial = any(operand.layout.unreduced for operand in (*equation.operands, equation.result))
    return tuple(name for name in names if partial and name in ("auto", "constraint", "explicit"))


def _way(name: str, equation: Equation, plan: Ranking, arrays: Sequence[Any], mesh: jax.sharding.Mesh) -> Way:
    says = WRITTEN.get(name, "")
    args = tuple(arrays)
    match name:
        case "auto" | "constraint":
            functions, lay_out = automatic(equation, mesh)
            laid = tuple(lay_out(*arrays))
            return Way(name, functions["out_shardings" if name == "auto" else name], laid, says, mesh=laid[0].sharding.mesh)
        case "explicit":
            types = (AxisType.Explicit,) * len(mesh.axis_names)
            typed = jax.sharding.Mesh(mesh.devices, mesh.axis_names, axis_types=types)
            return Way(name, _explicit(equation, typed), tuple(_laid(equation, typed, arrays)), says, mesh=typed)
        case "manual":
            chosen = by_hand(dataclasses.replace(plan.task, overlap=False))
            by_steps = f"{says}: {summary(chosen.program)}"
            return Way(name, _manual(chosen, plan.task, mesh), args, by_steps, chosen.estimate.seconds, mesh)
    chosen = _chosen(name, plan)
    return Way(name, _planned(chosen.program, mesh), args, summary(chosen.program), chosen.estimate.seconds, mesh)


def _planned(program: Program, mesh: jax.sharding.Mesh) -> Callable[..., Any]:
    """A program of ours as a jitted function alone, as the others are: `Plan.function` checks its arguments at each call."""
    told = not any(untold_dims(program.result, mesh))  # else jit is told the layout, which the type does not tell
    return jax.jit(lower(program, mesh), out_shardings=None if told else NamedSharding(mesh, program.result.spec))


def _laid(equation: Equation, mesh: jax.sharding.Mesh, arrays: Sequence[Any]) -> Iterator[Any]:
    grid = Mesh.parse(mesh)
    for array, operand in zip(arrays, equation.operands, strict=True):
        yield jax.device_put(array, NamedSharding(mesh, operand.layout.on(grid).spec))


def _explicit(equation: Equation, mesh: jax.sharding.Mesh) -> Callable[..., Any]:
    out = NamedSharding(mesh, equation.result.layout.on(Mesh.parse(mesh)).spec)
    whole = unsharded(equation)

    def explicit(*arrays: Any) -> Any:
        # With nothing to sum, jnp.einsum leaves the layout as it was, whatever it is told.
        return jax.sharding.reshard(whole(*arrays, out_sharding=out), out)

    return jax.jit(explicit)


def _manual(chosen: Candidate, task: Problem, mesh: jax.sharding.Mesh) -> Callable[..., Any]:
    """The local function that `Plan.code()` prints, in one `jax.shard_map` on this mesh."""
    program, grid = chosen.program, task.mesh
    names: dict[str, Any] = {}
    exec(source(program, str(task.equation), task=task), names)  # our own text, which needs nothing of Shardwise's
    specs = tuple(layout.on(grid).spec for _, layout in program.inputs)
    return jax.jit(jax.shard_map(names["local"], mesh=mesh, in_specs=specs, out_specs=program.result.spec))


def by_hand(task: Problem) -> Candidate:
    """The program that one writes by hand: the fewest steps, without overlap; of several the one estimated fastest."""
    return min(ranked(task), key=lambda candidate: len(candidate.program.steps))


def _chosen(name: str, plan: Ranking) -> Candidate:
    if name == "planned":
        return plan.best
    if name in FORMS:
        return ranked(dataclasses.replace(plan.task, overlap=name)).best
    number = name.removeprefix(CANDIDATE) if isinstance(name, str) else ""
    if number.isascii() and number.isdigit() and name.startswith(CANDIDATE):
        if not 1 <= int(number) <= len(plan.candidates):
            raise PlanError(f"way {quoted(name)}: the plan has candidates 1 to {len(plan.candidates)}")
        return plan.candidates[int(number) - 1]
    known = (*WRITTEN, *FORMS, f"{CANDIDATE}2")
    near = did_you_mean(name, known) if isinstance(name, str) else ""
    raise PlanError(f"way {quoted(name)} is none that is known: they are {', '.join(known)}{near}")
