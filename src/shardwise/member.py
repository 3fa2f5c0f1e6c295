"""One process of `shardwise launch`: starts the run, and then a script, a function, or a command of Shardwise's own."""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
from collections.abc import Sequence

from shardwise.cli import main as command_line
from shardwise.commands.launch import OWN
from shardwise.commands.loading import load_function
from shardwise.distributed import reporting, watching
from shardwise.distributed.jobs import PROCESS, start
from shardwise.distributed.launching import LIFELINE
from shardwise.distributed.service import store
from shardwise.errors import DistributedError


def main(arguments: Sequence[str]) -> int:
    """Run what the arguments name, as a process of its own would; returns the exit status."""
    _end_with_launcher()
    reporting.find_launcher()
    number = int(os.environ.get(PROCESS, 0))
    what, *rest = arguments
    try:
        start(quiet=True)
        reporting.now_doing(f"running {what}")
        reporting.report("doing", what=reporting.doing())
        status = _run(what, rest)
    except SystemExit as stop:
        status = _code(stop)
    except KeyboardInterrupt:
        os._exit(130)
    except BaseException as error:
        watching.raised(store(), watching.trimmed(error, __file__), show=lambda: None)
        raise
    if status:  # at once: JAX would wait for the others, which may wait for this one
        failure = reporting.Failure(number, "ended", f"it ended with exit status {status}", reporting.doing())
        watching.fail(store(), failure)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status


def _run(what: str, rest: list[str]) -> int:
    sys.argv = [what, *rest]
    if what in OWN:
        return command_line([what, *rest])
    if what.endswith(".py") and ":" not in what:
        sys.path.insert(0, os.path.dirname(os.path.abspath(what)))
        runpy.run_path(what, run_name="__main__")
        return 0
    returned = load_function(what)(*rest)
    return returned if isinstance(returned, int) and not isinstance(returned, bool) else 0


def _code(stop: SystemExit) -> int:
    if stop.code is None or isinstance(stop.code, int):
        return stop.code or 0
    print(stop.code, file=sys.stderr)
    return 1


def _end_with_launcher() -> None:
    """End this process, and what it has started, once the launcher has: also one that was killed."""
    descriptor = os.environ.pop(LIFELINE, None)
    if descriptor is None:
        return

    def wait() -> None:
        os.read(int(descriptor), 1)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=wait, daemon=True, name="shardwise-lifeline").start()


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise DistributedError("shardwise launch starts this")
    sys.exit(main(sys.argv[1:]))
