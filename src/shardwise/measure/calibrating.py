"""`calibrate`: measure this machine's matmuls, memory and collectives, and fit a hardware to them."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from shardwise import writing
from shardwise.chips import Calibration, Hardware
from shardwise.chips import hardware as chips
from shardwise.chips.hosts import cache_file, cpu_name
from shardwise.chips.storing import written
from shardwise.errors import HardwareError, MeasureError, one_line, quoted
from shardwise.measure.fitted_hardware import day, fitted_hardware
from shardwise.measure.probes import KIB, MIB, Trial, axis_trials, device_trials, host_trials, local_trials, probe_trial, ready
from shardwise.measure.rates import errors_of, rates, rows_of
from shardwise.measure.rounds import Rounds, agreement, timed
from shardwise.measure.timing import done
from shardwise.mesh import Mesh
from shardwise.runtime.devices import attached_mesh, make_mesh

SECONDS = 25.0
ENOUGH = 15  # runs of a program that count
LEAST_SECONDS = 8.0  # for runs, however long compiling took
MISSING = 0.25  # the share of programs without three runs that count, above which a machine is too busy


def calibrate(
    mesh: Any = None, *, hardware: str | Hardware | None = None, seconds: float = SECONDS, output: str | None = None,
    keep: bool = False, logs: str | Sequence[str] = (),
) -> Hardware:  # fmt: skip
    """Measure this machine: FLOP/s of matmuls by shape and dtype, memory, and each collective on each axis of a mesh.

    The programs that are timed are single steps of plans, and the figures those with which the planner's own prices come
    nearest to their medians (least absolute deviations of logarithms). Simulated devices share their host's cores and memory:
    all that they do adds up, and the figures hold for any number of them. Of other devices each collective on each axis has a
    start and a speed of its own, which stand in place of what the catalogue says of links.

    >>> import shardwise as sw
    >>> mine = sw.calibrate("x=8", output="mine.toml")                        # doctest: +SKIP
    >>> sw.plan("A[I_x, J] -> A[I, J]", sizes={"I": 64, "J": 64}, mesh="x=8", hardware="./mine.toml")     # doctest: +SKIP

    Args:
        mesh: in any form that Shardwise reads; by default the one in force, or all devices along `x`.
        hardware: what the devices are, by name, where the catalogue does not know them: what is not measured stays as it says.
        seconds: that all may take, compiling included; runs are given 8 at least.
        output: a file to write as TOML, which `hardware="./mine.toml"` takes everywhere.
        keep: on simulated devices, keep it for plans that name no hardware, for this CPU and version of JAX.
        logs: files in place of a measurement: what nccl-tests printed, or tables of JAX collective benchmarks. `hardware`
            says of which chip; its matmuls and memory stay as they are.

    Returns:
        A `Hardware` whose `calibration` says host, date, versions and errors.

    Raises:
        MeasureError: the machine was too busy, or what was measured is noise that no figures explain; nothing is written.
        HardwareError: the devices are not in the catalogue, and none is named.
        FileError: the file cannot be written, which is said before anything is measured.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
        raise MeasureError(f"seconds={quoted(seconds)}: give the seconds that runs may take, as 20")
    if logs:
        return _from_logs([logs] if isinstance(logs, str) else list(logs), mesh, hardware, output, keep)
    grid = _meant(mesh)
    base = _base(grid, hardware)
    if keep and not (base.shared and jax.process_count() == 1):
        raise HardwareError("keep=True keeps the calibration of one host with simulated devices: give output='mine.toml'")
    paths = [path for path in (output, str(cache_file()) if keep else None) if path is not None]
    if keep:
        with contextlib.suppress(OSError):  # where it cannot be made, the check says so
            cache_file().parent.mkdir(parents=True, exist_ok=True)
    for path in paths:
        writing.check(path)
    found = calibrated(grid, base, seconds).hardware
    if jax.process_index() == 0:
        for path in paths:
            writing.write(path, written(found))
    return found


def _from_logs(
    logs: list[str], mesh: Any, hardware: str | Hardware | None, output: str | None, keep: bool
) -> Hardware:  # fmt: skip
    """A hardware whose collectives are those of logs."""
    if hardware is None or mesh is not None or keep:
        raise HardwareError("logs are of devices that are not measured here: name the chip, hardware='h100', and no mesh")
    if output is not None:
        writing.check(output)
    base, today = chips(hardware), day()
    rows = [row for path in logs for row in rows_of(writing.read(path), path)]
    found = rates(rows, f"read on {today} from {', '.join(map(one_line, logs))}")
    told = Calibration(f"{base.title}, by {', '.join(map(one_line, logs))}", today, (), len(rows), errors_of(rows, found))
    chip = replace(base, name=f"{base.name}-calibrated", title=f"{base.title}, calibrated", rates=found, calibration=told)
    if output is not None:
        writing.write(output, written(chip))
    return chip


def _meant(mesh: Any) -> jax.sharding.Mesh:
    if mesh is None and jax.sharding.get_abstract_mesh().empty:
        return make_mesh({"x": len(jax.devices())})
    return attached_mesh(mesh)


def _base(mesh: jax.sharding.Mesh, named: str | Hardware | None) -> Hardware:
    """What the catalogue has of the devices."""
    return chips(named) if named is not None else chips.for_device_kind(mesh.devices.flat[0].device_kind)


@dataclass(frozen=True, slots=True)
class Calibrated:
    """A hardware, the share of runs that counted for it, and the probe beside which they did."""

    hardware: Hardware
    counted: float
    probe_seconds: float


def calibrated(
    mesh: jax.sharding.Mesh, base: Hardware, seconds: float, clock: Callable[[], float] = time.perf_counter
) -> Calibrated:  # fmt: skip
    """Measure a mesh by a clock, and fit a hardware to it; see `calibrate`."""
    grid = Mesh.parse(mesh)
    if not base.shared:
        trials = device_trials(grid)
    elif jax.process_count() > 1:
        trials = [*local_trials(grid), *axis_trials(grid, (64 * KIB, MIB, 8 * MIB))]
    else:
        trials = host_trials(grid)
    rounds = measured(trials, mesh, base, seconds, clock)
    found = fitted_hardware(base, trials, rounds.seconds, _where(mesh, base))
    return Calibrated(found, rounds.counted, rounds.probe_seconds)


def measured(
    trials: Sequence[Trial], mesh: jax.sharding.Mesh, base: Hardware, seconds: float, clock: Callable[[], float]
) -> Rounds:  # fmt: skip
    """Compile and time trials.

    Raises:
        MeasureError: for too many of them no three runs count.
    """
    devices = list(mesh.devices.flat)
    meshes = {Mesh.parse(mesh): mesh}
    started = clock()
    with jax.enable_x64(True):
        calls = []
        for trial in (probe_trial(Mesh.parse(mesh), base.shared), *trials):
            grid = trial.program.mesh
            if grid not in meshes:
                meshes[grid] = make_mesh(grid, devices=devices[: grid.size])
            calls.append(ready(trial, meshes[grid]))
            done(trial.says, calls[-1])
        left = max(seconds - (clock() - started), LEAST_SECONDS)
        found = timed(calls[1:], calls[0], left, agreement(mesh), enough=ENOUGH, clock=clock)
    lost = sum(each is None for each in found.seconds)
    if lost > MISSING * len(trials):
        raise MeasureError(
            f"this machine is too busy to be measured: in {left:.0f} s, {lost} of {len(trials)} programs ran fewer than three "
            "times while it was as fast as at its quickest; try again while nothing else runs, or allow more seconds"
        )
    return found


def _where(mesh: jax.sharding.Mesh, base: Hardware) -> str:
    """The host or the devices, as a plan names them."""
    kind = mesh.devices.flat[0].device_kind
    host = cpu_name() if base.shared else f"{mesh.size} {kind}"
    return f"{host}, {jax.process_count()} processes" if jax.process_count() > 1 else host
