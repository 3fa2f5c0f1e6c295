"""The roll call: before JAX connects them, all processes of a run come together, so that the missing ones can be named.

`jax.distributed` ends a process whose peers do not come in time, and cannot say which those are. Here each tells process 0, on
the coordinator's own port, who it is and with which versions; then the port is left to JAX.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from shardwise.distributed.differences import difference
from shardwise.errors import DistributedError

RETRY_SECONDS = 0.05
LOOPBACK = "127.0.0.1"
MOST_BYTES = 1 << 20  # of what one process tells


@dataclass(frozen=True, slots=True)
class Present:
    """A process that has come: where it runs, and what all must have in common."""

    process: int
    processes: int
    host: str
    pid: int
    common: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"process {self.process} (pid {self.pid} on {self.host})"


def here(process: int, processes: int, common: Mapping[str, str]) -> Present:
    """This process."""
    return Present(process, processes, socket.gethostname(), os.getpid(), common)


def call(own: Present, address: str, seconds: float) -> tuple[Present, ...]:
    """Wait until all processes have come, and leave the port; each gets all of them.

    >>> call(here(0, 1, {"jax": "0.12"}), "127.0.0.1:0", 1.0)[0].process
    0

    Args:
        address: the coordinator's, as `"10.0.0.1:1234"`: process 0 listens there.
        seconds: how long to wait for the last one.

    Raises:
        DistributedError: a process is missing, two say that they are the same one, their versions differ, the port is
            taken, or nobody answers there.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise DistributedError(f"{address!r} is no address: give the host and port of process 0, as '10.0.0.1:1234'")
    if own.process == 0:
        return _gathered(own, host, int(port), seconds)
    return _answered(own, host.strip("[]"), int(port), seconds)


def _gathered(own: Present, host: str, port: int, seconds: float) -> tuple[Present, ...]:
    deadline = time.monotonic() + seconds
    came: dict[int, Present] = {0: own}
    lines: list[socket.socket] = []
    try:
        with _listening(port, host) as listener, selectors.DefaultSelector() as waiting:
            waiting.register(listener, selectors.EVENT_READ)
            while len(came) < own.processes and (left := deadline - time.monotonic()) > 0:
                if not waiting.select(left):
                    continue
                line, _ = listener.accept()
                lines.append(line)
                line.settimeout(min(5.0, max(left, 0.1)))
                other = _heard(line)
                if other is None:  # something else that knocks at ports
                    lines.remove(line)
                    line.close()
                    continue
                twin = came.setdefault(other.process, other)
                if twin is not other:
                    raise DistributedError(
                        f"{twin} and {other} both say that they are the same one of {own.processes} processes: "
                        "two runs share a port, or a number is given twice"
                    )
        _check_all_came(came, own.processes, seconds)
        together = tuple(came[i] for i in range(own.processes))
        _check_common(together)
    except DistributedError as error:
        _tell(lines, {"error": str(error)})
        raise
    _tell(lines, {"present": [asdict(each) for each in together]})
    return together


def _answered(own: Present, host: str, port: int, seconds: float) -> tuple[Present, ...]:
    deadline = time.monotonic() + seconds
    reason = "nobody listens there"
    while (left := deadline - time.monotonic()) > 0:
        try:
            with socket.create_connection((host, port), timeout=left) as line:
                line.sendall(json.dumps(asdict(own)).encode() + b"\n")
                line.settimeout(max(left, 0.1) + 1.0)  # process 0 names those that are missing: let it come first
                said = _line(line)
        except OSError as error:
            reason = error.strerror or str(error)
            time.sleep(RETRY_SECONDS)
            continue
        if said is None:
            reason = "it closed the connection"
            time.sleep(RETRY_SECONDS)
            continue
        if "error" in said:
            raise DistributedError(said["error"])
        return tuple(Present(**each) for each in said["present"])
    raise DistributedError(
        f"process {own.process} of {own.processes} waited {seconds:g} seconds for process 0 at {host}:{port} ({reason}): start "
        "process 0 there, or check the address and the firewall"
    )


def check_free(port: int) -> None:
    """Refuse a port that another program listens on.

    Raises:
        DistributedError: one does.
    """
    _listening(port).close()


def _listening(port: int, host: str = "") -> socket.socket:
    """Listen on all of this host's interfaces; for processes of one machine on none that others reach."""
    both = socket.has_dualstack_ipv6() and host != LOOPBACK
    family = socket.AF_INET6 if both else socket.AF_INET
    try:
        where = LOOPBACK if host == LOOPBACK else ""
        return socket.create_server((where, port), family=family, dualstack_ipv6=both, backlog=1024)
    except OSError as error:
        raise DistributedError(
            f"process 0 cannot listen on port {port}: {error.strerror or error}; another program, or another run, has it: "
            "choose another port"
        ) from None


def _line(line: socket.socket) -> dict[str, Any] | None:
    data = b""
    while not data.endswith(b"\n") and len(data) < MOST_BYTES:
        more = line.recv(1 << 16)
        if not more:
            return None
        data += more
    try:
        found = json.loads(data)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _heard(line: socket.socket) -> Present | None:
    try:
        said = _line(line)
        return None if said is None else Present(**said)
    except (OSError, TypeError):
        return None


def _tell(lines: list[socket.socket], said: dict[str, Any]) -> None:
    """Answer each, and let it hang up first: the port is then free at once."""
    for line in lines:
        with contextlib.suppress(OSError):
            line.sendall(json.dumps(said).encode() + b"\n")
    for line in lines:
        with contextlib.suppress(OSError), line:
            line.settimeout(1.0)
            line.recv(1)


def _check_all_came(came: Mapping[int, Present], processes: int, seconds: float) -> None:
    strangers = sorted(i for i in came if not 0 <= i < processes)
    if strangers:
        raise DistributedError(
            f"process {strangers[0]} came, and the run has the processes 0 to {processes - 1}: start the same number everywhere"
        )
    missing = [i for i in range(processes) if i not in came]
    if missing:
        names = ", ".join(map(str, missing))
        raise DistributedError(
            f"process{'es' * (len(missing) > 1)} {names} of {processes} did not come within {seconds:g} seconds: see why in "
            f"the log of {'each' if len(missing) > 1 else 'it'}, or wait longer, as start_seconds={2 * seconds:g}"
        )


def _check_common(together: tuple[Present, ...]) -> None:
    told = {each.process: {"processes": str(each.processes), **each.common} for each in together}
    found = difference(told)
    if found:
        raise DistributedError(
            f"the processes were not started alike:\n{found}\ninstall the same versions everywhere, and start the same command"
        )
