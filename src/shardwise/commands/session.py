"""What commands share that run or compile: devices chosen before JAX starts, dtypes of 64 bits, and progress on stderr."""

from __future__ import annotations

import contextlib
import glob
import logging
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from shardwise.commands.quiet import JAX_SETTINGS, asked_for_logs
from shardwise.errors import DeviceError, ShardwiseError, one_line
from shardwise.mesh import Mesh

WIDE = ("float64", "int64", "uint64", "complex128")


@contextlib.contextmanager
def progress(what: str) -> Iterator[None]:
    """Say on stderr what is being done, if it takes over a second, and how long it took; in a terminal with a bar meanwhile."""
    said, what = threading.Event(), one_line(what)
    bar = _bar(what)

    def say() -> None:
        said.set()
        if bar is None:
            print(f"{what} ...", file=sys.stderr, flush=True)
        else:
            bar.start()

    timer = threading.Timer(1.0, say)
    timer.daemon = True
    started = time.perf_counter()
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        if said.is_set():
            if bar is not None:
                bar.stop()
            print(f"{what}: {time.perf_counter() - started:.1f} s", file=sys.stderr, flush=True)


def _bar(what: str) -> Any:
    """A bar that runs until what is being done is done; None where stderr is no terminal, or rich is not installed."""
    if not sys.stderr.isatty():
        return None
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    except ImportError:
        return None
    columns = TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn()
    # What goes to stdout is for whoever reads that, not for the terminal of stderr.
    bar = Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False)
    bar.add_task(what, total=None)
    return bar


def choose_devices(count: int, platform: str | None) -> None:
    """Choose the platform before JAX starts; the host appears as so many devices."""
    import jax

    from shardwise.runtime.devices import MOST_SIMULATED, own_part, simulate

    if platform == "cpu":
        simulate(count)
        return
    with contextlib.suppress(RuntimeError):  # JAX has started already: take its devices as they are
        jax.config.update("jax_num_cpu_devices", min(own_part(count), MOST_SIMULATED))
    if platform:
        jax.config.update("jax_platforms", {"gpu": "cuda"}.get(platform, platform))


def mesh_on(grid: Mesh, platform: str | None, axis_types: Any = None) -> Any:
    """A mesh on the devices that are there.

    Raises:
        DeviceError: there are too few, or none of the platform.
    """
    from shardwise.runtime.devices import make_mesh

    try:
        with _logged_in_lines():
            mesh = make_mesh(grid, axis_types=axis_types)
    except ShardwiseError:
        raise
    except (RuntimeError, AssertionError) as error:  # JAX asserts where it finds no backend of the platform
        said = one_line(str(error)).strip() or "JAX finds none"
        raise DeviceError(
            f"no {platform or 'such'} devices can be used here: {said}; leave off --platform, or use cpu"
        ) from None
    have = mesh.devices.flat[0].platform
    if platform and have != platform:
        raise DeviceError(f"--platform {platform}: JAX has started already, with {have} devices")
    return mesh


class _Lines(logging.Handler):
    """Writes what is logged on one line, with the error that it is of and no traceback.

    That JAX's plug-in for GPUs cannot start is no news where there is no GPU: the compiler's extra brings it along.
    """

    def emit(self, record: logging.LogRecord) -> None:
        is_of_gpus = "jax_plugins.xla_cuda" in record.getMessage()
        if is_of_gpus and not glob.glob("/dev/nvidia[0-9]*") and not asked_for_logs(*JAX_SETTINGS):
            return
        error = record.exc_info[1] if record.exc_info else None
        print(one_line(f"JAX: {record.getMessage()}{f': {error}' if error else ''}"), file=sys.stderr)


@contextlib.contextmanager
def _logged_in_lines() -> Iterator[None]:
    """While JAX starts: of a plug-in that cannot, as one for GPUs where there is none, JAX would log a traceback."""
    logger = logging.getLogger("jax")
    handlers, propagate = logger.handlers, logger.propagate
    lines: list[logging.Handler] = [_Lines(logging.WARNING)]
    logger.handlers, logger.propagate = lines, False
    try:
        yield
    finally:
        logger.handlers, logger.propagate = handlers, propagate


@contextlib.contextmanager
def enough_bits(dtype: str) -> Iterator[None]:
    """Numbers of 64 bits where they are asked for, which JAX would make ones of 32 in silence."""
    import jax

    with jax.enable_x64(True) if dtype in WIDE else contextlib.nullcontext():
        yield
