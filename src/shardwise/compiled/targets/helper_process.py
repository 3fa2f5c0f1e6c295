"""Compiling in a process of its own, kept for the next time: a compiler that ends its process never ends this one."""

from __future__ import annotations

import atexit
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import IO, Any

from shardwise.chips.topology import Topology
from shardwise.compiled.targets.programs import Made, Program
from shardwise.errors import CompileError, HardwareError, MeshError, MissingExtraError
from shardwise.mesh import Mesh

TIMEOUT_SECONDS = 600.0
REMEMBERED_BYTES = 64_000_000  # of compiled texts
_ERRORS = {error.__name__: error for error in (CompileError, HardwareError, MeshError, MissingExtraError)}
_COMMAND = (sys.executable, "-P", "-m", "shardwise.compiled.targets.child")
# What compilers read of the environment, when they are loaded: a helper that was started with other words is replaced.
_READ_WHEN_LOADED = re.compile(r"XLA_|LIBTPU_|TPU_|JAX_|CUDA_|LD_LIBRARY_PATH|PATH$|PYTHONPATH")
_FATAL = re.compile(r"F\d{4} ")  # how compilers log the line that they end with


@dataclass(frozen=True, slots=True)
class Request:
    """What the helper is asked: a program, and the devices to compile it for."""

    program: Program
    topology: str
    axes: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Failed:
    """Why the helper has no text: the name of one of Shardwise's errors, and its message."""

    error: str
    message: str


class BrokenDownError(CompileError):
    """The compiler ended its process."""


@dataclass(slots=True, eq=False)
class _Helper:
    """A running process that compiles, the line to it, and what it logs; up to its last answer it logged so many bytes."""

    process: subprocess.Popen[bytes]
    line: Connection
    log: IO[bytes]
    environment: dict[str, str]
    owner: int
    logged: int = 0


_kept: list[_Helper] = []  # at most one
_made: dict[tuple[Request, str], Made] = {}
_lock = threading.Lock()


def compile_in_subprocess(program: Program, topology: Any, grid: Mesh, *, timeout_seconds: float = TIMEOUT_SECONDS) -> Made:
    """Compile a program for devices that are not attached, in the helper; this process loads no compiler of theirs.

    >>> import jax
    >>> from shardwise.compiled.targets.programs import program_of
    >>> found = compile_in_subprocess(program_of(jax.jit(lambda a: a * 2).lower(1.0)), "v5e:1x1", Mesh.parse("x=1"))
    >>> "is_scheduled=true" in found.text
    True

    Args:
        timeout_seconds: how long it may take; then the helper is ended.

    Raises:
        CompileError: the compiler refuses, breaks down or takes too long.
        HardwareError, MeshError, MissingExtraError: as `mesh_of` raises them.
    """
    topology = Topology.parse(topology)
    with _lock:
        helper = _helper()
        try:
            said = _asked(helper, Request(program, topology.name, grid.axes), topology, timeout_seconds)
        except BaseException:  # an answer that is still to come would be taken for that to the next request
            end_helper()
            raise
    if isinstance(said, Failed):
        raise _ERRORS.get(said.error, CompileError)(said.message)
    return said


def compile_once(program: Program, topology: Topology, grid: Mesh) -> Made:
    """`compile_in_subprocess`, or what came of the same program before: compilers are deterministic, and take seconds.

    Raises:
        CompileError, HardwareError, MeshError, MissingExtraError: as `compile_in_subprocess` raises them.
    """
    key = Request(program, topology.name, grid.axes), repr(_environment())
    made = _made.pop(key, None) or compile_in_subprocess(program, topology, grid)
    _made[key] = made  # the latest stands last
    while len(_made) > 1 and sum(len(each.text) for each in _made.values()) > REMEMBERED_BYTES:
        del _made[next(iter(_made))]
    return made


def start_helper() -> None:
    """Start the helper, if it does not run: it loads JAX while this process traces."""
    with _lock:
        _helper()


def end_helper() -> None:
    """End the helper, if one runs; the next request starts another."""
    while _kept:
        helper = _kept.pop()
        helper.line.close()
        helper.log.close()
        if helper.owner == os.getpid():
            helper.process.kill()
            helper.process.wait()


atexit.register(end_helper)


def _helper() -> _Helper:
    environment = _environment()
    for helper in _kept:
        if helper.owner == os.getpid() and helper.process.poll() is None and helper.environment == environment:
            return helper
    end_helper()
    ours, theirs = Pipe()
    log = tempfile.TemporaryFile(prefix="shardwise-")  # noqa: SIM115 - closed with the helper
    process = subprocess.Popen(
        [*_COMMAND, str(theirs.fileno())], env={**os.environ, **environment}, pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,  # Ctrl-C is for this process
    )  # fmt: skip
    theirs.close()
    _kept.append(_Helper(process, ours, log, environment, os.getpid()))
    return _kept[0]


def _environment() -> dict[str, str]:
    """What the helper reads, no device of this machine taking part."""
    read = {name: value for name, value in os.environ.items() if _READ_WHEN_LOADED.match(name)}
    home = str(Path(__file__).parents[3])
    path = os.pathsep.join([home, *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**read, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"}


def _asked(helper: _Helper, request: Request, topology: Topology, timeout_seconds: float) -> Made | Failed:
    log = helper.log.fileno()
    try:
        helper.line.send(request)
        if not helper.line.poll(timeout_seconds):
            raise CompileError(
                f"{topology}: compiling took longer than {timeout_seconds:g} seconds and was ended: allow more, or compile less"
            )
        answer = helper.line.recv()
        helper.logged = os.fstat(log).st_size
        return answer
    except (EOFError, ConnectionError):  # it may have said why before it was asked
        code = helper.process.wait()
        left = os.fstat(log).st_size - helper.logged
        said = _fault(os.pread(log, left, helper.logged).decode("utf-8", "replace"))  # the log's position is the helper's too
        raise BrokenDownError(f"{topology}: the compiler broke down ({_ended(code)}): {said}") from None


def _fault(logged: str) -> str:
    """The line that tells most: the first fatal one that a compiler logs, else the last."""
    lines = [line.strip() for line in logged.splitlines() if line.strip()]
    fatal = [line for line in lines if _FATAL.match(line)]
    return (fatal or lines[-1:] or ["it said nothing"])[0][:300]


def _ended(code: int) -> str:
    if code >= 0:
        return f"exit status {code}"
    return signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
