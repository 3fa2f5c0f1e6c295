"""`shardwise audit` and `shardwise rehearse`: compile a user's function, and print what the compiler made of it."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from shardwise import writing
from shardwise.chips.topology import Topology
from shardwise.compiled.lock import Made
from shardwise.errors import AuditMismatchError, DeviceError, ShardwiseError, as_json, lines_of, one_line
from shardwise.loading import arguments, check_call, load_function
from shardwise.mesh import Mesh
from shardwise.projects import Roots
from shardwise.session import WIDE, choose_devices, enough_bits, mesh_on, progress

MOST_SIMULATED = 512
# The packages that hold the compiler, by what a target begins with; of several the first one installed.
COMPILERS = {
    "tpu": ("libtpu",),
    "gpu": ("jax-cuda13-plugin", "jax-cuda12-plugin", "jax-rocm7-plugin", "jax-rocm60-plugin"),
    "cpu": ("jaxlib",),
}


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


def made_by(function: str, options: argparse.Namespace) -> Made:
    """How the command line says that a function is compiled."""
    given = {name: getattr(options, name, None) or "" for name in ("args", "mesh", "axis_types", "on", "platform")}
    return Made(function, **given)


def compiled(
    made: Made, folder: str | Path | None = None, *, started: bool = False, inside: Roots = None,
    compiler_options: Mapping[str, str] | None = None,
) -> Any:  # fmt: skip
    """Compile a function as the command line says it: for the devices at hand, or for those of `made.on`.

    Args:
        folder: where modules are looked for beside the current folder.
        started: the devices have been chosen already (`start`).
        inside: the folders of the project that functions are imported from; None for any.
        compiler_options: for a rehearsal.
    """
    function, args, mesh = prepared(made, folder, started=started, inside=inside)
    with users_output_aside(), progress(f"compiling {made.function}"), enough_bits(widest(args)):
        return _compile(function, args, mesh, made.on, compiler_options)


def prepared(
    made: Made, folder: str | Path | None = None, *, started: bool = False, inside: Roots = None
) -> tuple[Any, tuple[Any, ...], Any]:
    """A function as the command line says it, its arguments, and the mesh; as `compiled`."""
    grid = Mesh.parse(made.mesh) if made.mesh else None
    with users_output_aside():
        with progress("starting JAX"):
            if not started:
                start([made])
            function = load_function(made.function, folder, inside)
        mesh = _mesh(grid, made)
        args = arguments(made.args, mesh, folder, inside) if made.args else ()
        check_call(made.function, function, args)
    return function, args, mesh


def widest(args: tuple[Any, ...]) -> str:
    """A dtype of 64 bits, where an argument has one."""
    import jax

    names = (str(getattr(leaf, "dtype", "")) for leaf in jax.tree.leaves(args))
    return next((name for name in names if name in WIDE), "")


def start(what: Iterable[Made]) -> None:
    """Choose devices, before JAX starts, that serve to compile all of these.

    A rehearsal takes none of this machine's accelerators; a function that makes a mesh of all devices by itself finds as
    many simulated ones as the cluster has, up to `MOST_SIMULATED`.

    Raises:
        ShardwiseError: they are for different platforms, or JAX runs already with other devices.
    """
    here, away = [made for made in what if not made.on], [made for made in what if made.on]
    platforms = {made.platform: made.function for made in here if made.platform}
    if len(platforms) > 1:
        raise ShardwiseError(
            f"one process cannot compile for the platforms {' and '.join(sorted(platforms))} at once: name the functions of "
            f"one, as shardwise lock --check {next(iter(platforms.values()))}"
        )
    count = max((Mesh.parse(made.mesh).size for made in here if made.mesh), default=1)
    if here:
        if platforms or any(made.mesh for made in here):
            choose_devices(count, next(iter(platforms), None))
        return
    sizes = [Topology.parse(made.on).size for made in away]
    with contextlib.suppress(DeviceError):  # JAX runs already: its devices are left as they are
        choose_devices(max((size for size in sizes if size <= MOST_SIMULATED), default=1), "cpu")


def _mesh(grid: Mesh | None, made: Made) -> Any:
    """The mesh of the devices at hand, or one without devices for a rehearsal."""
    if grid is None:
        return None
    from jax.sharding import AbstractMesh, AxisType

    kind = AxisType.Auto if made.axis_types == "auto" else AxisType.Explicit
    if not made.on:
        return mesh_on(grid, made.platform, kind)
    return AbstractMesh(tuple(size for _, size in grid.axes), grid.names, axis_types=(kind,) * len(grid.axes))


def _compile(function: Any, args: tuple[Any, ...], mesh: Any, on: str, options: Mapping[str, str] | None) -> Any:
    from shardwise.compiled import compiling

    if not on:
        return compiling.audit(function, *args, mesh=mesh)
    return compiling.rehearse(function, *args, on=on, mesh=mesh, compiler_options=options)


@contextlib.contextmanager
def users_output_aside() -> Iterator[None]:
    """What the user's code prints while it is imported and traced goes to stderr: stdout is for the facts alone."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


def versions(target: str) -> dict[str, str]:
    """The versions of JAX and of the compiler that serves a target.

    >>> list(versions("cpu:8"))
    ['jax', 'jaxlib']
    """
    name = target.split(":")[0]
    kind = "cpu" if name.startswith("cpu") else "tpu" if name.startswith(("v", "tpu")) else "gpu"
    found = {}
    for package in ("jax", *COMPILERS[kind]):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def is_equation(text: str) -> bool:
    return "->" in text or "→" in text


def planned(options: argparse.Namespace) -> Any:
    """The plan of an equation that is rehearsed."""
    from shardwise import api
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
    from shardwise.compiled.targets.devices import target_mesh

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

    line: Any = found.timeline(options.hardware) if options.trace is not None or options.timeline else None
    differs = None if plan is None else _differs(found, plan)
    if options.json:
        certificate = {} if plan is None else {"compiled_as_planned": not differs, "differences": differs}
        print(as_json(facts(found) | certificate))
    else:
        print(found)
        if plan is not None:
            print("\n" + lines_of(differs or kept(found, plan)))
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
