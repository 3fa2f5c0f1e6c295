"""`shardwise launch`: several processes on this machine, as a cluster would start them on many."""

from __future__ import annotations

import argparse
import os
import re
import sys

from shardwise.commands.quiet import ASKED, is_start_up
from shardwise.distributed.jobs import SECONDS
from shardwise.distributed.launching import Launch, launch
from shardwise.errors import DistributedError, did_you_mean, quoted

OWN = ("run", "compare", "audit", "trace")  # commands that make sense in many processes
MOST = 256
# What gloo prints on stdout as it connects, where pieces of two threads may stand in one line, and what JAX's notifier of
# preemption says when this launcher ends a process.
_NOISE = re.compile(
    rb"(?=.*(?:\[Gloo\] Rank|peer ranks))"
    rb"(?:\[Gloo\] Rank|is connected to|peer ranks\.|Expected number of connected peer ranks is :|\d+|\s)+"
    rb"|W\d{4} .* preemption_notifier\.cc:\d+\] SIGTERM caught.*"
)


def run(options: argparse.Namespace) -> int:
    """Start the processes; the exit status of the first that failed, or 0."""
    if not 1 <= options.processes <= MOST:
        raise DistributedError(f"-n {options.processes}: start 1 to {MOST} processes")
    if options.devices_per_process is not None and options.devices_per_process < 1:
        raise DistributedError(f"--devices-per-process {options.devices_per_process}: give at least 1")
    _check_what(options.what)
    command = [sys.executable, "-P", "-m", "shardwise.member", options.what, *options.rest]
    return launch(Launch(command, options.processes, _environment(options), options.port, options.all, _is_noise))


def _check_what(what: str) -> None:
    if what in OWN or (":" in what and not what.startswith(":")) or os.path.isfile(what):
        return
    near = did_you_mean(what, OWN)
    raise DistributedError(
        f"{quoted(what)} is no file, no module:function, and none of {', '.join(OWN)}{near}: name a script, as train.py"
    )


def _environment(options: argparse.Namespace) -> dict[str, str]:
    """What each process finds: its platform, how many devices it simulates, and its time-outs."""
    found = {"JAX_PLATFORMS": {"gpu": "cuda"}.get(options.platform, options.platform)}
    if options.platform == "cpu":
        found["JAX_NUM_CPU_DEVICES"] = str(options.devices_per_process or 1)
    for name, (_, variable) in SECONDS.items():
        if getattr(options, name, None) is not None:
            found[variable] = str(getattr(options, name))
    here = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    found["PYTHONPATH"] = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
    return found


def _is_noise(line: bytes) -> bool:
    """Whether a line is what libraries say as they connect, or as they start where nobody has asked for it."""
    if _NOISE.fullmatch(line.rstrip()) is not None:
        return True
    return is_start_up(line) and not ASKED
