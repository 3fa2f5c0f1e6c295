"""`shardwise calibrate`: this machine's own figures, measured, for plans to be made with."""

from __future__ import annotations

import argparse

from shardwise import writing
from shardwise.chips import Hardware
from shardwise.chips.hosts import cache_file
from shardwise.commands.session import choose_devices, mesh_on, progress
from shardwise.errors import ShardwiseError, as_json, one_line
from shardwise.mesh import Mesh

SIMULATED = 8  # devices of a host, where no mesh is named
LOGS_ALONE = "--from reads what another machine measured: leave off --mesh, --platform and --seconds, and name its --hardware"


def run(options: argparse.Namespace) -> int:
    """Calibrate as the command line says, print what was found, and say where it is kept."""
    if options.output is not None:
        _check_name(options.output)
    found = _of_logs(options) if options.logs else _measured(options)
    print(as_json(facts(found)) if options.json else described(found))
    for path, what in _places(options, found):
        if not options.json:
            print(f"{what}: {one_line(path)}")
    return 0


def _check_name(path: str) -> None:
    writing.check(path)
    if not path.endswith(".toml"):
        raise ShardwiseError(f"{one_line(path)}: hardware is written as TOML: end the name with .toml")


def _of_logs(options: argparse.Namespace) -> Hardware:
    if options.mesh or options.platform or options.seconds is not None or options.hardware is None:
        raise ShardwiseError(LOGS_ALONE)
    from shardwise.measure.calibrating import calibrate

    return calibrate(hardware=options.hardware, output=options.output, logs=options.logs)


def _measured(options: argparse.Namespace) -> Hardware:
    grid = Mesh.parse(options.mesh) if options.mesh else None
    with progress("starting JAX"):
        choose_devices(grid.size if grid else SIMULATED, options.platform)
        import jax

        mesh = mesh_on(grid or Mesh((("x", len(jax.devices())),)), options.platform)
    from shardwise.measure.calibrating import SECONDS, calibrate

    keep = options.keep and mesh.devices.flat[0].platform == "cpu"
    seconds = SECONDS if options.seconds is None else options.seconds
    with progress(f"measuring {mesh.size} {mesh.devices.flat[0].device_kind} devices"):
        return calibrate(mesh, hardware=options.hardware, seconds=seconds, output=options.output, keep=keep)


def _places(options: argparse.Namespace, found: Hardware) -> list[tuple[str, str]]:
    """Where it was written, and what for."""
    kept = [(str(cache_file()), "kept for plans that name no hardware")] if found.shared and options.keep else []
    return [*kept, *([(options.output, "written")] if options.output is not None else [])]


def described(found: Hardware) -> str:
    """The figures, and how near they come to what they were fitted to."""
    told = found.calibration
    assert told is not None
    errors = ", ".join(f"{kind} {error:.0%}" for kind, error in told.errors)
    return f"{found}\n  {told.measured} programs measured on {told.host}; the median error of what was fitted: {errors}"


def facts(found: Hardware) -> dict[str, object]:
    """The same for JSON; the keys are stable."""
    told = found.calibration
    assert told is not None
    return {
        "name": found.name,
        "title": found.title,
        "host": told.host,
        "date": told.date,
        "versions": dict(told.versions),
        "measured": told.measured,
        "errors": dict(told.errors),
        "figures": {name: {"value": figure.value, "source": figure.source} for name, figure in found.figures()},
    }
