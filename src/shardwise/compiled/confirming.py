"""Plans confirmed: the first candidates compiled by the real compiler of a target, and ranked by what it made of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding

from shardwise.chips.topology import Topology
from shardwise.compiled.audit import Audit
from shardwise.compiled.compiling import rehearse
from shardwise.compiled.targets.compiler_flags import PERMUTES_AT_ONCE, PERMUTES_EARLY, Options, suggested
from shardwise.compiled.targets.unattached import target_mesh
from shardwise.errors import CompileError, HardwareError
from shardwise.layout import Axes
from shardwise.planning.cost import Estimate
from shardwise.planning.problem import Problem
from shardwise.planning.ranking import Candidate
from shardwise.planning.step_cost import StepCost
from shardwise.program import Program
from shardwise.runtime.devices import AnyMesh
from shardwise.runtime.execute import planned_function
from shardwise.steps import Automatic, goes_along_sides

CONFIRMED = 3  # of the cheapest candidates; and the cheapest of each kind, where it is not among these


def confirmed(task: Problem, candidates: Sequence[Candidate], on: Any) -> tuple[Candidate, ...]:
    """Compile the first candidates for a target; those compiled come first, fastest first by their timelines.

    Raises:
        HardwareError: the target is not known, or not in the catalogue; MissingExtraError: its compiler is not installed.
    """
    fast = [candidate for candidate, _ in tried(task, candidates, on)]
    compiled = {candidate.program for candidate in fast}
    return (*fast, *(each for each in candidates if each.program not in compiled))


def tried(task: Problem, candidates: Sequence[Candidate], on: Any) -> list[tuple[Candidate, Audit]]:
    """The candidates that were compiled, and the compiler's own, with what came out; fastest first.

    Raises:
        HardwareError, MissingExtraError: as `confirmed`.
    """
    topology = Topology.parse(on)
    if topology.chip is None:
        raise HardwareError(f"confirm={str(topology)!r}: it is not in the catalogue of hardware, so nothing times its schedule")
    own = compilers_own(task, candidates[0].program, lambda program: rehearsed(task, program, topology))
    made = (found for candidate in first_of(candidates) for found in _timed(task, candidate, topology))
    return sorted([*own, *made], key=lambda found: found[0].seconds)


def first_of(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The cheapest, and the cheapest that overlap nothing, or by rings, or along the sides of a torus."""
    kinds = [_moving(candidate.program) for candidate in candidates]
    places = [
        *range(min(CONFIRMED, len(candidates))),
        *(kinds.index(each) for each in ("alone", "sides", "rings") if each in kinds),
    ]
    return [candidates[place] for place in dict.fromkeys(places)]


def _moving(program: Program) -> str:
    """How a program moves what it overlaps."""
    if any(map(goes_along_sides, program.steps)):
        return "sides"
    return "rings" if program.overlaps else "alone"


def compilers_own(
    task: Problem, like: Program, compiled: Callable[[Program], Audit]
) -> Iterator[tuple[Candidate, Audit]]:  # fmt: skip
    """What the compiler makes of one einsum and the layouts, where one einsum says it all and nothing is unreduced."""
    layouts = [layout for _, layout in like.inputs]
    if (
        task.equation.via
        or task.exact
        or task.overlap is not True
        or any(layout.unreduced for layout in (*layouts, like.result))
    ):
        return
    if task.equation.result.free:
        return
    names = tuple(name for name, _ in like.inputs)
    program = Program(task.mesh, like.inputs, (Automatic(names, like.output, like.result),), like.output)
    try:
        audit = compiled(program)
    except (CompileError, TypeError, ValueError):
        return
    timeline = audit.timeline()
    wire: dict[tuple[str, Axes], float] = {}
    for collective in audit.collectives:
        key = (collective.kind, collective.axes)
        wire[key] = wire.get(key, 0.0) + collective.wire_bytes
    seconds, flops, memory = timeline.step_seconds, audit.work.flops_per_device, audit.memory.peak if audit.memory else 0
    moving = timeline.transfer_seconds
    cost = StepCost(seconds, flops, sum(wire.values()), memory, moving, timeline.exposed_seconds)
    exposed_fraction = timeline.exposed_seconds / moving if moving else 0.0
    compute = seconds - timeline.exposed_seconds
    repeated = audit.work.repeated or 1.0
    estimate = Estimate(seconds, compute, moving, flops, wire, memory, exposed_fraction, repeated, (cost,))
    yield Candidate(program, estimate, timeline), audit


def rehearsed(task: Problem, program: Program, topology: Topology, options: Options = ()) -> Audit:
    """What the target's compiler makes of a program, with options of its own."""
    mesh = target_mesh(topology, task.mesh)
    function, given = planned_function(task, program, mesh), arguments(task, mesh)
    return rehearse(function, *given, on=topology, mesh=mesh, compiler_options=dict(options) or None)


def arguments(task: Problem, mesh: AnyMesh) -> list[jax.ShapeDtypeStruct]:
    """What a program of a problem takes, on a mesh."""
    return [
        jax.ShapeDtypeStruct(
            tuple(task.sizes[dim] for dim in operand.dims), task.dtype, sharding=NamedSharding(mesh, operand.layout.spec)
        )
        for operand in task.equation.operands
    ]


def _timed(task: Problem, candidate: Candidate, topology: Topology) -> Iterator[tuple[Candidate, Audit]]:
    """The candidate with its timeline; nothing where the compiler refuses it, as for want of memory.

    For chips whose compilers start permutes late what overlaps is compiled once more, with permutes that start early; and what
    goes along all sides of a torus with more of them at once, too. The fastest is taken.
    """
    compiler = task.hardware.compiler
    late = candidate.program.overlaps and compiler is not None and compiler.starts_late
    early = suggested(PERMUTES_EARLY, topology.kind) if late else ()
    more = suggested(PERMUTES_AT_ONCE, topology.kind) if any(map(goes_along_sides, candidate.program.steps)) else ()
    found = []
    for options in dict.fromkeys([(), early, (*early, *more) if early else ()]):
        try:
            audit = rehearsed(task, candidate.program, topology, options)
        except CompileError:
            continue
        found.append((dataclasses.replace(candidate, confirmed=audit.timeline(), options=options), audit))
    if found:
        yield min(found, key=lambda each: each[0].seconds)
