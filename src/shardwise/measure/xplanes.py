"""Traces of `jax.profiler` as they lie on disk: the operations that CPU, GPU and TPU planes hold."""

from __future__ import annotations

import bisect
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jax.profiler import ProfileData

from shardwise.errors import FileError, one_line
from shardwise.measure.traced import Op

# Names of planes, lines and stats: xla/tsl/profiler/utils/xplane_schema.cc of openxla/xla. Sparse cores have planes, too.
DEVICE = re.compile(r"/device:(?:GPU|TPU):(\d+)")
MODULES, OPS = "XLA Modules", "XLA Ops"
NS = 1e-9


def operations(place: str | Path) -> list[Op]:
    """Every operation of a compiled program in a trace: of a directory that `jax.profiler` wrote, its newest session.

    Raises:
        FileError: there is no trace, or it cannot be read.
    """
    found = []
    for path in files(Path(place)):
        try:
            with warnings.catch_warnings():  # nanobind's types lack a __module__, of which Python warns
                warnings.simplefilter("ignore", DeprecationWarning)
                data = ProfileData.from_file(str(path))
                found += [op for plane in data.planes for op in _plane(plane)]
        except (RuntimeError, ValueError, OSError) as error:
            raise FileError(f"{one_line(str(path))} is no trace that can be read: {one_line(str(error))}") from None
    return found


def files(place: Path) -> list[Path]:
    """The files of the newest session: one for each host.

    Raises:
        FileError: there are none.
    """
    if place.is_file():
        return [place]
    if not place.exists():
        raise FileError(f"there is no file or folder {one_line(str(place))}")
    sessions: dict[Path, list[Path]] = {}
    for path in sorted(place.rglob("*.xplane.pb")):
        sessions.setdefault(path.parent, []).append(path)
    if not sessions:
        raise FileError(f"{one_line(str(place))} holds no trace: jax.profiler writes files that end in .xplane.pb")
    return sessions[max(sessions, key=lambda folder: (folder.stat().st_mtime, folder.name))]


def _plane(plane: Any) -> Iterator[Op]:
    device = DEVICE.fullmatch(plane.name)
    if device is None:
        if plane.name.startswith("/host:"):
            yield from _host(plane)
        return
    lines = {line.name: line for line in plane.lines}
    if OPS in lines:
        yield from _tpu(lines, int(device[1]))
        return
    for name, line in lines.items():
        for event in line.events:
            stats = dict(event.stats)
            if "hlo_op" in stats:
                module = str(stats.get("hlo_module", ""))
                yield _op(event, str(stats["hlo_op"]), int(device[1]), name, module, 0, stats)


def _host(plane: Any) -> Iterator[Op]:
    """Simulated devices: threads of the host, whose events say of which device they are."""
    for line in plane.lines:
        for event in line.events:
            if event.name.startswith(("end: ", "ThreadpoolListener", "$")):
                continue
            stats = dict(event.stats)
            if "hlo_op" in stats and "device_ordinal" in stats:
                module, run = str(stats.get("hlo_module", "")), int(stats.get("run_id", 0))
                device = int(stats["device_ordinal"])
                yield _op(event, str(stats["hlo_op"]), device, line.name, module, run, stats)


def _tpu(lines: dict[str, Any], device: int) -> Iterator[Op]:
    """A line of calls, `jit_step(1234)`, and one of operations, named by their text: `%fusion.3 = bf16[8]{0} fusion(...)`."""
    calls = (
        sorted((event.start_ns, event.name, number) for number, event in enumerate(lines[MODULES].events))
        if MODULES in lines
        else []
    )
    starts = [start for start, _, _ in calls]
    for event in lines[OPS].events:
        at = bisect.bisect_right(starts, event.start_ns) - 1
        module = re.sub(r"\(\d+\)$", "", calls[at][1]) if at >= 0 else ""
        name = event.name.partition(" = ")[0].removeprefix("%")
        yield _op(event, name, device, OPS, module, max(at, 0), dict(event.stats))


def _op(event: Any, name: str, device: int, line: str, module: str, run: int, stats: dict[str, Any]) -> Op:
    scope, category = str(stats.get("tf_op", "")), str(stats.get("hlo_category", ""))
    return Op(name, device, line, event.start_ns * NS, event.duration_ns * NS, module, run, scope, category)
