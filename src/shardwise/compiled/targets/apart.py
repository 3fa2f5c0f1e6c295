"""Compiling in a process of its own, so that a compiler that ends its process, or is a gigabyte, stays out of this one."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from jax.sharding import AxisType

from shardwise.chips.topology import Topology
from shardwise.compiled.facts import MemoryUse
from shardwise.compiled.targets.homing import at_home, written_mesh
from shardwise.compiled.targets.portable import Portable, export_platform, portable, untraced
from shardwise.errors import CompileError, HardwareError, MeshError, MissingExtraError, ShardwiseError
from shardwise.mesh import Mesh

PROGRAM, REQUEST, ANSWER = "program.bin", "request.json", "answer.json"
_ERRORS = {error.__name__: error for error in (CompileError, HardwareError, MeshError, MissingExtraError)}


@dataclass(frozen=True, slots=True)
class Apart:
    """What came back: the compiled text, what it takes of a device's memory, and the arguments taken as replicated."""

    text: str
    memory: MemoryUse | None
    replicated: tuple[str, ...]


def compile_apart(
    function: Callable[..., Any], args: tuple[Any, ...], topology: Any, axes: Any = None, *, timeout_seconds: float = 600
) -> Apart:
    """Compile a function for devices that are not attached, in a child process; this one loads no compiler of theirs.

    >>> a = jax.ShapeDtypeStruct((8, 16), "float32")
    >>> found = compile_apart(lambda a: a @ a.T, (a,), "v5e:2x4")
    >>> "is_scheduled=true" in found.text, found.replicated
    (True, ('[0]',))

    Args:
        axes: `"x=4, y=2"`; by default those of the mesh that the arguments lie on, or one axis x over all devices.
        timeout_seconds: how long the child may take; then it is ended.

    Raises:
        CompileError: the function cannot be traced or moved to another process; or the compiler refuses, breaks down or
            takes too long.
        HardwareError, MeshError, MissingExtraError: as `mesh_of` raises them.
    """
    topology = Topology.parse(topology)
    if importlib.util.find_spec("flatbuffers") is None:
        raise MissingExtraError('a program is written down with flatbuffers: pip install "shardwise[tpu]" (or [gpu])')
    mesh = _abstract_mesh(topology, args, axes)
    homed, replicated = at_home(args, mesh)
    made = portable(function, args, mesh, export_platform(topology.kind))
    if not isinstance(made, Portable):
        if isinstance(made[0], ShardwiseError):
            raise made[0]
        raise CompileError(untraced(function, made)) from made[0]
    leaves = jax.tree.leaves(homed)
    request = {
        "topology": topology.name,
        "axes": list(mesh.shape.items()),
        "axis_types": [kind.name for kind in mesh.axis_types],
        "specs": [_written(leaves[index]) for index in made.takes],
        "donated": made.donated,
    }
    with tempfile.TemporaryDirectory(prefix="shardwise-") as name:
        folder = Path(name)
        (folder / PROGRAM).write_bytes(_serialized(made, function))
        (folder / REQUEST).write_text(json.dumps(request), encoding="utf-8")
        answer = _asked(folder, topology, timeout_seconds)
    if "error" in answer:
        raise _ERRORS.get(answer["error"], CompileError)(answer["message"])
    memory = MemoryUse(**answer["memory"]) if answer["memory"] else None
    return Apart(answer["text"], memory, replicated)


def _abstract_mesh(topology: Topology, args: Any, axes: Any) -> jax.sharding.AbstractMesh:
    written = written_mesh(args)
    wanted = written if axes is None else axes
    grid = Mesh((("x", topology.size),)) if wanted is None else Mesh.parse(wanted)
    types = dict(zip(written.axis_names, written.axis_types, strict=True)) if written is not None else {}
    kinds = tuple(types.get(name, AxisType.Explicit) for name in grid.names)
    return jax.sharding.AbstractMesh(tuple(size for _, size in grid.axes), grid.names, axis_types=kinds)


def _serialized(made: Portable, function: Callable[..., Any]) -> bytes:
    try:
        return bytes(made.program.serialize())
    except Exception as error:  # of many types: what an operation or a tree cannot be written as
        raise CompileError(f"{untraced(function, [error])}\nit cannot be sent to another process") from error


def _written(leaf: Any) -> dict[str, Any]:
    spec = getattr(getattr(leaf, "sharding", None), "spec", None)
    if spec is None:
        return {"partitions": [], "unreduced": [], "reduced": []}
    return {"partitions": list(spec.partitions), "unreduced": sorted(spec.unreduced), "reduced": sorted(spec.reduced)}


def _asked(folder: Path, topology: Topology, timeout_seconds: float) -> dict[str, Any]:
    home = str(Path(__file__).parents[3])
    path = os.pathsep.join([home, *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "shardwise.compiled.targets.child", str(folder)]
    # No device of this machine takes part.
    environment = {**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"}
    try:
        child = subprocess.run(
            command,
            env=environment,
            cwd=folder,
            capture_output=True,
            timeout=timeout_seconds,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise CompileError(
            f"{topology}: compiling took longer than {timeout_seconds:g} seconds and was ended: allow more, or compile less"
        ) from None
    answer = folder / ANSWER
    if child.returncode or not answer.exists():
        said = _fault(child.stderr.decode("utf-8", "replace"))
        raise CompileError(f"{topology}: the compiler broke down ({_ended(child.returncode)}): {said}")
    return json.loads(answer.read_text(encoding="utf-8"))


def _fault(stderr: str) -> str:
    """The line that tells most: the first fatal one that a compiler logs (they begin with F), else the last."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    fatal = [line for line in lines if line.startswith("F") and "Check failed" in line]
    return (fatal or lines[-1:] or ["it said nothing"])[0][:300]


def _ended(code: int) -> str:
    if code >= 0:
        return f"exit status {code}"
    return signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
