"""The tour of an equation of the user's: the planner's best program, step by step, on numbers counted up from 0."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np

from shardwise.errors import PlanError
from shardwise.mesh import Mesh
from shardwise.notation import Equation, parse
from shardwise.pictures.tours.stops import Alone, Check, Choice, Cost, Done, Held, Multiplied, Scene, Stop, Tour
from shardwise.planning.problem import problem
from shardwise.planning.ranking import rank
from shardwise.program import Program, unfused
from shardwise.steps import Einsum, collectives_of, describe

MOST_ELEMENTS = 1024  # of an array: every number is shown, or could be
MOST_DEVICES = 16
MOST_EXACT = 2**53


def own(text: str, sizes: Mapping[str, int], mesh: str, hardware: str, dtype: str) -> Tour:
    """The tour of an equation, with whole arrays `arange`.

    Raises:
        PlanError: an array, the mesh or a number is too large to be looked at.
        NotationError, LayoutError, MeshError, HardwareError: as `sw.plan`.
    """
    equation = parse(text)
    task = problem(equation, sizes, mesh, hardware, dtype)
    _check_size(equation, task.sizes, task.mesh)
    best = rank(task)[0].program
    program = unfused(best)
    values = {
        name: np.arange(math.prod(shape)).reshape(shape)
        for name, shape in ((name, tuple(task.sizes[dim] for dim in layout.names)) for name, layout in best.inputs)
    }
    scene = Scene(program, task.sizes, values)
    names = [operand.name for operand in equation.operands]
    stops = [Stop("what every device holds", (str(equation), _told(values)), (Held(scene),))]
    if not equation.result.free and len(set(names)) == len(names):
        wanted = str(Equation(equation.operands, equation.result))
        said = "From what each device holds, before anything moves."
        stops.append(Stop("what each device lacks", (said,), (Alone(scene, wanted),)))
    stops.append(Stop("what the planner says", (), (Choice(text, mesh, dict(task.sizes)),)))
    stops += _steps(scene)
    stops.append(Stop("the end", ("Put together, and beside NumPy's answer on whole arrays:",), (Check(scene, str(equation)),)))
    stops.append(Stop("the cost", (), (Cost(Scene(best, task.sizes, values)),)))
    return Tour("your tour", str(equation), tuple(stops))


def _steps(scene: Scene) -> Iterator[Stop]:
    for number, step in enumerate(scene.program.steps):
        if isinstance(step, Einsum):
            summed = scene.program.states()[number + 1][step.result].unreduced
            said = f"Each matmul gives a partial sum over {', '.join(sorted(summed))}." if summed else "Nothing is sent."
            title = "multiply" if len(step.operands) > 1 else "sum"
            yield Stop(title, (said,), (Multiplied(scene, number, _different(scene.program, number, step)),))
        else:
            yield Stop(describe(step), () if collectives_of(step) else ("Each keeps its part.",), (Done(scene, number),))


def _different(program: Program, number: int, step: Einsum) -> tuple[int, ...]:
    """The first device, and the first that holds another part or partial sum of a result, if there is one."""
    layout, mesh = program.states()[number + 1][step.result], program.mesh
    cut = {*layout.axes, *layout.unreduced}
    others = (device for device, at in enumerate(mesh.coordinates()) if any(at[axis] for axis in cut))
    return (0, *(device for device in [next(others, 0)] if device))


def _told(values: Mapping[str, np.ndarray]) -> str:
    return "; ".join(f"{name} = arange({array.size})" for name, array in values.items())


def _check_size(equation: Equation, sizes: Mapping[str, int], mesh: Mesh) -> None:
    small = ",".join(f"{dim}={_smaller(sizes[dim])}" for dim in equation.dims)
    way = f"use smaller sizes, as --sizes {small}; `shardwise plan` takes any"
    for operand in (*equation.operands, *equation.via, equation.result):
        elements = math.prod(sizes[dim] for dim in operand.dims)
        if elements > MOST_ELEMENTS:
            raise PlanError(f"a tour shows every number, and {operand} has {elements:,}, more than {MOST_ELEMENTS:,}: {way}")
    if mesh.size > MOST_DEVICES:
        raise PlanError(
            f"a tour shows every device, and mesh {mesh} has {mesh.size:,}, more than {MOST_DEVICES}: use a smaller --mesh; "
            "`shardwise plan` takes any"
        )
    terms = math.prod(sizes[dim] for dim in equation.contracted)
    largest = terms * math.prod(math.prod(sizes[dim] for dim in operand.dims) for operand in equation.operands)
    if largest > MOST_EXACT:
        raise PlanError(f"a tour shows exact numbers, and these grow to about {largest:.1g}: {way}")


def _smaller(size: int) -> int:
    """A size that the same axes divide, if that can be: the smallest power of two that is at least 4."""
    return min(size, 4) if size & (size - 1) == 0 else min(size, 12)
