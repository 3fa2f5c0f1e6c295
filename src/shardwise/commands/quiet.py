"""What JAX's libraries log as they start is left out of stderr; everything else that they say passes."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import time
from collections.abc import Iterator

# With any of these set, the user has said what is to be logged.
JAX_SETTINGS = ("JAX_LOGGING_LEVEL", "JAX_DEBUG_LOG_MODULES")
LIBRARY_SETTINGS = (  # read before JAX is imported, which sets the first one itself
    "TF_CPP_MIN_LOG_LEVEL",
    "TF_CPP_MIN_VLOG_LEVEL",
    "TF_CPP_MAX_VLOG_LEVEL",
    "TF_CPP_VMODULE",
    "TPU_MIN_LOG_LEVEL",
    "TPU_STDERR_LOG_LEVEL",
)

# The compilers' extras log these where there is no GPU and no TPU; TF_CPP_MIN_LOG_LEVEL does not reach them, since they come
# before logging is set up. Of what else is logged only lines of the level INFO are left out.
START_UP = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR"
    rb"|WARNING: Logging before InitGoogle\(\) is written to STDERR"
    rb"|I\d{4} \d\d:\d\d:\d\d\.\d+ .*"
    rb"|I0000 00:00:\d+\.\d+ .*"
    rb"|Failed to find host bounds for accelerator type: WARNING: could not determine TPU accelerator type.*"
    rb"|E0000 00:00:\d+\.\d+ .*unexpected worker hostname 'WARNING: could not determine TPU worker hostnames.*"
    rb"|=== Source Location Trace: ===\s*"
    rb"|learning/45eac/tfrc/runtime/libtpu_init_utils\.cc:\d+"
)
PATIENCE_SECONDS = 1.0  # that the last lines may take; what a command left running may hold them for longer


def asked_for_logs(*names: str) -> bool:
    """Whether the user's environment says what is to be logged, by one of these names."""
    return any(name in os.environ for name in names)


# As this module is imported, which commands do before anything imports JAX.
ASKED = asked_for_logs(*JAX_SETTINGS, *(() if "jax" in sys.modules else LIBRARY_SETTINGS))


def is_start_up(line: bytes) -> bool:
    """Whether a line is of the start-up log of a library.

    >>> is_start_up(b"I0000 00:00:1795364224.035731   14975 cudart_stub.cc:31] Could not find cuda drivers on your machine")
    True
    >>> is_start_up(b"F0000 00:00:1795364224.035731   14975 rendezvous.cc:31] Termination timeout")
    False
    """
    return START_UP.fullmatch(line.rstrip(b"\r\n")) is not None


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Leave the start-up log out of this process's stderr, unless the user asked for logs.

    What libraries write goes through a process of its own, so that the last words of one that ends this process arrive.
    Python's own stderr stays as it is: a terminal stays one.
    """
    if asked_for_logs(*JAX_SETTINGS, *LIBRARY_SETTINGS) or not hasattr(os, "fork"):
        yield
        return
    sys.stderr.flush()
    real = os.dup(2)
    reading, writing = os.pipe()
    filtering = os.fork()
    if filtering == 0:
        _filter(reading, real, writing)
    os.close(reading)
    os.dup2(writing, 2)
    os.close(writing)
    before = sys.stderr
    sys.stderr = open(  # noqa: SIM115  it is open as long as the process
        real, "w", encoding=before.encoding, errors=before.errors, buffering=1, closefd=False
    )
    try:
        yield
    finally:
        if not sys.stderr.closed:
            sys.stderr.flush()
        os.dup2(real, 2)
        sys.stderr = before
        _await(filtering)


def _filter(reading: int, real: int, writing: int) -> None:
    """Pass on what is not of the start-up log, line by line, until nobody writes any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for descriptor in (0, 1, 2, writing):  # who reads this process's stdout waits for no filter
        os.close(descriptor)
    try:
        with open(reading, "rb") as lines, open(real, "wb", buffering=0) as out:
            for line in lines:
                if not is_start_up(line):
                    out.write(line)
    finally:
        os._exit(0)


def _await(child: int) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(child, os.WNOHANG) == (0, 0) and time.monotonic() < until:
            time.sleep(0.002)
