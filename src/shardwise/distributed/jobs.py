"""`sw.distributed.start`: connect this process with the others of its run, whoever started them."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from shardwise.distributed import reporting, service, watching
from shardwise.distributed.rollcall import call, here
from shardwise.errors import DeviceError, DistributedError, counted, one_line, quoted
from shardwise.runtime.cpu_flags import set_cpu_flags
from shardwise.version import VERSION

# Every time-out: its default, and the variable of the environment that changes it.
SECONDS = {
    "start_seconds": (300.0, "SHARDWISE_START_SECONDS"),  # for the last process to start
    "silence_seconds": (20.0, "SHARDWISE_SILENCE_SECONDS"),  # without a sign of life of a process
    "meeting_seconds": (300.0, "SHARDWISE_MEETING_SECONDS"),  # for the last process to come to a comparison
    "end_seconds": (300.0, "SHARDWISE_END_SECONDS"),  # for the last process to end, once the first has ended well
}
# What `shardwise launch` tells the processes that it starts.
COORDINATOR, PROCESSES, PROCESS = "SHARDWISE_COORDINATOR", "SHARDWISE_PROCESSES", "SHARDWISE_PROCESS"
LAUNCHER = "shardwise launch"
ALONE = "nothing"


@dataclass(frozen=True, slots=True)
class Job:
    """The run that this process is part of; prints as what was found.

    Attributes:
        process: this process's number.
        processes: how many there are.
        found: who started them: "shardwise launch", "SLURM", "Open MPI", "Kubernetes", ..., "arguments", or "nothing".
        coordinator: the address of process 0; empty where there is one process alone.
        hosts: where each process runs.
    """

    process: int = 0
    processes: int = 1
    found: str = ALONE
    coordinator: str = ""
    hosts: tuple[str, ...] = ()

    @property
    def speaks(self) -> bool:
        """Whether this process is the one that prints for all."""
        return self.process == 0

    def __str__(self) -> str:
        if self.processes == 1:
            return "1 process: no launcher and no cluster was found"
        hosts = f" on {counted(len(set(self.hosts)), 'host')}" if self.hosts else ""
        where = f"; process 0 is at {self.coordinator}" if self.coordinator else ""
        return f"process {self.process} of {self.processes}{hosts}, found by {self.found}{where}"


_job: Job | None = None


def start(
    *, coordinator: str | None = None, processes: int | None = None, process: int | None = None,
    local_device_ids: list[int] | None = None, start_seconds: float | None = None, silence_seconds: float | None = None,
    quiet: bool = False,
) -> Job:  # fmt: skip
    """Connect this process with the others of its run, by `jax.distributed`; call it before JAX is first used.

    Under `shardwise launch`, SLURM, Open MPI, Kubernetes and on Cloud TPUs it needs no arguments: what those tell is what
    `jax.distributed` detects, and process 0 says on stderr what was found. Where nothing is found there is one process, and
    nothing happens: so the same script runs on a laptop. A second call gives the same job.

    The processes then watch each other: one that raises, is killed or falls silent ends the run, with one message that names
    it.

    >>> start()
    Job(process=0, processes=1, found='nothing', coordinator='', hosts=())

    Args:
        coordinator: the host and port of process 0, `"10.0.0.1:1234"`; with `processes` and `process` where no cluster tells.
        local_device_ids: of a GPU host, the devices that are this process's.
        start_seconds: how long to wait for the last process (300; or the environment's SHARDWISE_START_SECONDS).
        silence_seconds: after how long without a sign of life a process is given up (20; SHARDWISE_SILENCE_SECONDS). JAX's own
            heartbeat gives up 10 seconds later.
        quiet: say nothing of what was found.

    Raises:
        DistributedError: a process does not come, the port is taken, or the processes were not started alike.
        DeviceError: JAX has started already.
    """
    global _job
    if _job is not None:
        return _job
    limits = {name: seconds(name) for name in SECONDS}
    limits |= {
        "start_seconds": seconds("start_seconds", start_seconds),
        "silence_seconds": seconds("silence_seconds", silence_seconds),
    }
    connected = service.store()
    if connected is not None:  # the script has called jax.distributed.initialize by itself
        watching.keep_watch(connected, limits["silence_seconds"])
        atexit.register(watching.end_watch, connected)
        _job = Job(connected.process, connected.processes, "jax.distributed.initialize")
        return _job
    found, address, count, own, local = _where(coordinator, processes, process, limits["start_seconds"])
    if count == 1:
        _job = Job(found=found)
        return _job
    _job = _connected(found, address, count, own, local_device_ids or local, limits)
    if _job.speaks and not quiet:
        print(f"shardwise: {_job}", file=sys.stderr, flush=True)
    return _job


def stop() -> None:
    """Leave the run, once all processes are here: what `start` does by itself when the process ends.

    >>> stop()
    """
    global _job
    if _job is None:
        return
    import jax

    reporting.now_doing("ending")
    watching.end_watch(service.store())
    jax.distributed.shutdown()
    _job = None


def job() -> Job | None:
    """The run that this process is part of; None before `start`.

    >>> job() is None or job().processes >= 1
    True
    """
    return _job


def _where(
    coordinator: str | None, processes: int | None, process: int | None, start_seconds: float
) -> tuple[str, str, int, int, list[int] | None]:
    """Who says where the processes are, and what: coordinator, how many, which one is this, and its local devices."""
    given = {"coordinator": coordinator, "processes": processes, "process": process}
    if any(value is not None for value in given.values()):
        missing = [name for name, value in given.items() if value is None]
        if missing:
            raise DistributedError(
                f"start: {' and '.join(missing)} is missing: give coordinator, processes and process, or none"
            )
        assert coordinator is not None
        return "arguments", coordinator, *_numbers(processes, process), None
    if COORDINATOR in os.environ:
        # What this process starts itself is no process of the run.
        address, count, own = (os.environ.pop(name, None) for name in (COORDINATOR, PROCESSES, PROCESS))
        assert address is not None
        return LAUNCHER, address, *_numbers(count, own), None
    cluster = service.detected()
    if cluster is None:
        return ALONE, "", 1, 0, None
    try:
        address, count, own, local = service.resolved(start_seconds)
    except Exception as error:  # what a cluster's environment lacks is told in many ways
        raise DistributedError(
            f"{cluster} was found, and does not say all: {one_line(str(error))}; give coordinator=, processes= and process="
        ) from error
    return cluster, address, *_numbers(count, own), local


def _numbers(processes: Any, process: Any) -> tuple[int, int]:
    try:
        count, own = int(processes), int(process)
    except (TypeError, ValueError):
        raise DistributedError(f"processes={quoted(processes)}, process={quoted(process)}: give two whole numbers") from None
    if not 0 <= own < count:
        raise DistributedError(f"process {own} of {count}: processes are numbered from 0 to {count - 1}")
    return count, own


def seconds(name: str, given: float | None = None) -> float:
    """A time-out: as given, else as the environment says, else its default.

    >>> seconds("silence_seconds"), seconds("silence_seconds", 5)
    (20.0, 5.0)

    Raises:
        DistributedError: it is no number of seconds.
    """
    default, variable = SECONDS[name]
    value = given if given is not None else os.environ.get(variable, default)
    try:
        found = float(value)
    except (TypeError, ValueError):
        found = -1.0
    if not 0 < found < 1e6:
        raise DistributedError(f"{variable if given is None else name}={quoted(value)}: give seconds, as {default:g}")
    return found


def _connected(found: str, address: str, count: int, own: int, local: list[int] | None, limits: dict[str, float]) -> Job:
    import jax

    reporting.now_doing("waiting for all processes to start")
    reporting.report("doing", what=reporting.doing())
    together = call(here(own, count, common()), address, limits["start_seconds"])
    set_cpu_flags()
    with _jax_started_too_early():
        jax.distributed.initialize(
            address, count, own, local_device_ids=local, cluster_detection_method="deactivate",
            initialization_timeout=int(limits["start_seconds"]) + 1,
            heartbeat_timeout_seconds=int(limits["silence_seconds"]) + watching.BACKSTOP_SECONDS,
            shutdown_timeout_seconds=int(limits["end_seconds"]) + 1,
        )  # fmt: skip
    store = service.store()
    if store is not None:
        watching.keep_watch(store, limits["silence_seconds"])
        atexit.register(watching.end_watch, store)
    reporting.now_doing("running")
    reporting.report("started")
    return Job(own, count, found, address, tuple(each.host for each in together))


@contextlib.contextmanager
def _jax_started_too_early() -> Any:
    try:
        yield
    except RuntimeError as error:
        if "must be called before" in str(error):
            raise DeviceError(
                "JAX has started already, and knows this process's devices alone: call sw.distributed.start() first, before "
                "anything asks for devices or makes an array"
            ) from None
        if "only be called once" in str(error):
            raise DeviceError(
                "jax.distributed has started already: leave that call out, and let sw.distributed.start() do it"
            ) from None
        raise


def common() -> dict[str, str]:
    """What all processes of a run must have alike: versions of what decides plans and programs."""
    return {"shardwise": VERSION, **{name: _version(name) for name in ("jax", "jaxlib")}}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "unknown"
