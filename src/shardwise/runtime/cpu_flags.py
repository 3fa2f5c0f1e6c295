"""What XLA's CPU compiler and its collectives are told where the host appears as several devices."""

from __future__ import annotations

import os
from importlib.metadata import version

# Seconds until a CPU collective that lacks a device is reported as stuck, and until it ends the process.
_PATIENCE = {
    "xla_cpu_collective_call_warn_stuck_timeout_seconds": "120",
    "xla_cpu_collective_call_terminate_timeout_seconds": "600",
}
# Of JAX 0.10: it orders operations so that a donated array may be overwritten while a collective reads it. A training step
# of many collectives gave other gradients in every second call; not so in 0.12.
_IN_ORDER = {"xla_cpu_enable_concurrency_optimized_scheduler": "false"}


def set_cpu_flags() -> None:
    """Let simulated devices wait for each other, and compute what the program says.

    They share cores, so one may come to a collective minutes after another; XLA ends a process that waits for longer than a
    time-out that suits devices with cores of their own. What the user's XLA_FLAGS say already stays as it is.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    missing = [f"--{name}={value}" for name, value in _flags().items() if name not in flags]
    os.environ["XLA_FLAGS"] = " ".join([*flags.split(), *missing])


def _flags() -> dict[str, str]:
    major, minor = (int(part) for part in version("jaxlib").split(".")[:2])
    return {**_PATIENCE, **(_IN_ORDER if (major, minor) < (0, 11) else {})}  # XLA ends a process that is told what it lacks
