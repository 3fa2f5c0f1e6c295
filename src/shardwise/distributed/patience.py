"""How long collectives of the CPU wait for a device that comes late."""

from __future__ import annotations

import os

# Seconds until a CPU collective that lacks a device is reported as stuck, and until it ends the process.
PATIENCE = {
    "xla_cpu_collective_call_warn_stuck_timeout_seconds": 120,
    "xla_cpu_collective_call_terminate_timeout_seconds": 600,
}


def set_patience() -> None:
    """Let simulated devices wait for each other: they share cores, so one may come minutes after another.

    XLA ends a process whose CPU collectives wait for longer than a time-out that suits devices with cores of their own.
    What the user's XLA_FLAGS say already stays as it is.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    missing = [f"--{name}={seconds}" for name, seconds in PATIENCE.items() if name not in flags]
    os.environ["XLA_FLAGS"] = " ".join([*flags.split(), *missing])
