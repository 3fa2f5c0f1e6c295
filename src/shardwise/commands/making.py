"""A user's function, compiled as the command line or a lock file says it (`Made`), and the versions of what compiles it."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from shardwise.chips.topology import Topology
from shardwise.commands.loading import arguments, check_call, load_function
from shardwise.commands.session import WIDE, choose_devices, enough_bits, mesh_on, progress
from shardwise.compiled.lockfile import Made
from shardwise.errors import DeviceError, ShardwiseError
from shardwise.mesh import Mesh
from shardwise.projects import Roots

MOST_SIMULATED = 512
# The packages that hold the compiler, by what a target begins with; of several the first one installed.
COMPILERS = {
    "tpu": ("libtpu",),
    "gpu": ("jax-cuda13-plugin", "jax-cuda12-plugin", "jax-rocm7-plugin", "jax-rocm60-plugin"),
    "cpu": ("jaxlib",),
}


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
