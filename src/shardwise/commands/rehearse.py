"""`shardwise audit` and `shardwise rehearse`: compile a user's function, and print what the compiler made of it."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping
from typing import Any

from shardwise import api, writing
from shardwise.chips.topology import Topology
from shardwise.commands.making import compiled, made_by, start
from shardwise.commands.session import progress
from shardwise.compiled.lockfile import Made
from shardwise.errors import AuditMismatchError, ShardwiseError, as_json, lines_of, one_line


def audit(options: argparse.Namespace) -> int:
    """Compile a function for the devices at hand, and show what came out."""
    _check_forms(options)
    return _show(compiled(made_by(options.function, options)), options)


def rehearse(options: argparse.Namespace) -> int:
    """Compile a function, or the plan of an equation, for devices that are not attached, and show what came out."""
    _check_forms(options)
    if is_equation(options.function):
        plan = planned(options)
        return _show(rehearsed(plan, options.on, options.function), options, plan)
    if options.sizes:
        raise ShardwiseError(f"--sizes belong to an equation, and {one_line(options.function)} is a function: give its --args")
    return _show(compiled(made_by(options.function, options)), options)


def is_equation(text: str) -> bool:
    """Whether what is named is an equation, and no function."""
    return "->" in text or "→" in text


def planned(options: argparse.Namespace) -> Any:
    """The plan of an equation that is rehearsed."""
    from shardwise.notation import parse_sizes
    from shardwise.planning.problem import DTYPE

    if options.args:
        raise ShardwiseError("--args belong to a function: an equation has --sizes, and --dtype")
    if not options.mesh:
        raise ShardwiseError(f"the mesh of {one_line(options.function)} is missing: add it, as --mesh x=8")
    topology = Topology.parse(options.on)
    return api.plan(
        options.function,
        sizes=parse_sizes(options.sizes),
        mesh=options.mesh,
        hardware=options.hardware or (str(topology) if topology.chip else None),
        dtype=options.dtype or DTYPE,
    )


def rehearsed(plan: Any, on: str, name: str = "", compiler_options: Mapping[str, str] | None = None) -> Any:
    """The audit of the best program of a plan, compiled for devices that are not attached.

    Args:
        name: that the audit is told by (default: the equation).
    """
    import jax

    from shardwise.compiled import compiling
    from shardwise.compiled.targets.unattached import target_mesh

    task = plan.task
    start([Made(str(task.equation), on=on)])
    mesh = target_mesh(on, task.mesh)
    structs = [
        jax.ShapeDtypeStruct(
            tuple(task.sizes[dim] for dim in operand.dims), jax.numpy.dtype(task.dtype),
            sharding=jax.sharding.NamedSharding(mesh, operand.layout.spec),
        )
        for operand in task.equation.operands
    ]  # fmt: skip
    with progress("compiling the plan"):
        found = compiling.rehearse(plan.function(mesh), *structs, on=on, mesh=mesh, compiler_options=compiler_options)
    return dataclasses.replace(found, name=name or str(task.equation))


# Showing.


def _check_forms(options: argparse.Namespace) -> None:
    if options.json and options.timeline:
        raise ShardwiseError("--json and --timeline are two forms of the same audit: ask for one of them")
    if options.trace is not None:
        writing.check(options.trace)


def _show(found: Any, options: argparse.Namespace, plan: Any = None) -> int:
    """Print an audit; of a plan also whether it was compiled as planned: 1 where it was not."""
    from shardwise.compiled.certify import kept
    from shardwise.compiled.export import facts
    from shardwise.compiled.table import replayed

    line: Any = found.timeline(options.hardware) if options.trace is not None or options.timeline else None
    differs = None if plan is None else _differs(found, plan)
    steps = None if plan is None or replayed(found) is None else found.against(plan, options.hardware)
    if options.json:
        certificate = {} if plan is None else {"compiled_as_planned": not differs, "differences": differs}
        if steps is not None:
            certificate |= {"events": [dataclasses.asdict(event) for event in steps]}
        print(as_json(facts(found) | certificate))
    else:
        print(found)
        if plan is not None:
            print("\n" + lines_of(differs or kept(found, plan)))
        if steps is not None:
            print(f"\n{steps}")
        if options.timeline:
            print(f"\n{line}")
    if options.trace is not None:
        writing.keeping(options.trace, line.save)
    return 1 if differs else 0


def _differs(found: Any, plan: Any) -> str:
    """How the compiled program differs from the plan; empty where it does not."""
    try:
        found.assert_matches(plan)
    except AuditMismatchError as error:
        return str(error)
    return ""
