"""`trace`: run a function under `jax.profiler`, and read what every device did; or read a trace that is there."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax

from shardwise.compiled.audit import Audit
from shardwise.compiled.compiling import audited, compile_here, lowered_here, traced_here
from shardwise.errors import FileError, MeasureError, one_line, quoted
from shardwise.measure.timing import done
from shardwise.measure.traced import measured_timeline
from shardwise.measure.xplanes import operations
from shardwise.schedule.timeline import Timeline

CALLS = 3


def trace(
    what: Callable[..., Any] | str | Path, *args: Any, mesh: Any = None, of: Audit | None = None, module: str | None = None,
    keep: str | Path | None = None,
) -> Timeline:  # fmt: skip
    """Measure what every device does in one call of a function: when it multiplies, moves, waits and idles.

    The function is compiled, run once, and then run under `jax.profiler`; of the calls that are traced the one of median
    length is told. A trace that is there is read as well.

    >>> import jax, jax.numpy as jnp, shardwise as sw
    >>> a = sw.put(jnp.ones((64, 32)), "A[I, J_x]", sw.make_mesh("x=4"))
    >>> line = trace(jax.jit(lambda a: a.sum(axis=1)), a)
    >>> line.origin, sorted({share.collective.kind for share in line.shares})
    ('measured', ['all-reduce'])

    Args:
        what: a function, jitted or not; or a folder that `jax.profiler` wrote, or an `.xplane.pb` file.
        args: of a function, its arguments, as arrays.
        mesh: of a function, the mesh in force while it is traced by JAX and run, as in `sw.audit`.
        of: of a trace that is there, the audit of the program that ran: then its collectives have axes and lines. Without it
            they are told by the names of the operations alone.
        module: of a trace that is there, the program by its name, as `jit_step`; by default that which ran for longest.
        keep: a folder to write the trace to, for XProf or `sw.trace` later; by default none is kept.

    Returns:
        A `Timeline`: seconds as measured, lanes for each device, and of each collective how much is overlapped.

    Raises:
        MeasureError: the function raises while it is run; the trace is empty, or of another program.
        FileError: there is no trace, or it cannot be read or written.
        CompileError: the function cannot be traced by JAX, or the compiler refuses.
    """
    if isinstance(what, str | Path):
        if args:
            raise MeasureError(f"{quoted(str(what))} is a trace that is there, which takes no arguments")
        return measured_timeline(operations(what), Path(what).name, _where(of), of, module)
    return traced_call(what, *args, mesh=mesh, keep=keep)[0]


def traced_call(
    function: Callable[..., Any], *args: Any, mesh: Any = None, keep: str | Path | None = None, name: str = ""
) -> tuple[Timeline, Audit]:
    """The timeline of a call, as `trace` has it, and the audit of the very program that ran."""
    with jax.set_mesh(mesh) if isinstance(mesh, jax.sharding.Mesh) else contextlib.nullcontext():
        traced = traced_here(function, args)
        lowered = lowered_here(function, traced)
        compiled = compile_here(lowered)
        audit = audited(function, args, mesh, traced, lowered, compiled)
        name = name or audit.name

        def call() -> Any:
            return compiled(*args)

        done(name, call)
        with _folder(keep) as folder:
            with _profiled(folder):
                # Planes of GPUs do not tell calls apart: there one is traced.
                for _ in range(1 if jax.default_backend() == "gpu" else CALLS):
                    done(name, call)
            ops = operations(folder)
    notes = [] if keep is None else [f"the trace is kept in {one_line(str(keep))}"]
    return measured_timeline(ops, name, audit.target, audit, notes=notes), audit


def _where(audit: Audit | None) -> str:
    return "the devices of the trace" if audit is None else audit.target


@contextlib.contextmanager
def _folder(keep: str | Path | None) -> Iterator[Path]:
    """Where the trace is written: the folder named, or one that is gone afterwards."""
    if keep is not None:
        yield Path(keep)
        return
    try:
        made = tempfile.TemporaryDirectory(prefix="shardwise-", ignore_cleanup_errors=True)
    except OSError as error:
        raise FileError(
            f"no temporary folder can be made: {error.strerror}; name one that can be written to, with keep="
        ) from None
    with made as folder:
        yield Path(folder)


@contextlib.contextmanager
def _profiled(folder: Path) -> Iterator[None]:
    """Run under `jax.profiler`, without what Python does, which would take most of the time and of the file.

    Raises:
        FileError: the folder cannot be written to; MeasureError: a profile is being made already.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise FileError(f"no trace can be written to {one_line(str(folder))}: {error.strerror}; name another folder") from None
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    try:
        jax.profiler.start_trace(str(folder), profiler_options=options)
    except RuntimeError as error:
        raise MeasureError(
            f"jax.profiler cannot be started: {one_line(str(error))}; end the profile that is being made"
        ) from None
    try:
        yield
    finally:
        jax.profiler.stop_trace()
