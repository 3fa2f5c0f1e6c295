"""What a machine may lack: a browser, or a compiler. Tests that need it are not run there, and the last lines say so.

A test names its needs: `@pytest.mark.needs("browser")`, or `@pytest.mark.needs(compiler_of="target")` for the compiler of
the devices that its parameter `target` names. What is missing is reported, and fails the test where CI=true. With
SHARDWISE_WITHOUT="browser tpu gpu" in the environment a machine says what it goes without, in CI too.

    python tests/lacking.py browser     # exit status 1 where it is missing, as the Makefile asks
"""

from __future__ import annotations

import functools
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
MARKER = "needs(*parts, compiler_of=None): what a machine may lack: browser, tpu, gpu, or the compiler of a parameter's devices"
WITHOUT = "SHARDWISE_WITHOUT"


def chromium() -> str | None:
    return next(filter(None, map(shutil.which, CHROMIUM)), None)


def _browser() -> str | None:
    missing = [name for name, found in (("Chromium", chromium()), ("chromedriver", shutil.which("chromedriver"))) if not found]
    return f"there is no {' and no '.join(missing)}: apt-get install chromium chromium-driver" if missing else None


def _compiler(topology: str) -> str | None:
    """Asked of Shardwise itself, which loads the compiler: only where a test that needs it is about to run."""
    from shardwise.chips.topology import Topology
    from shardwise.compiled.targets.unattached import devices_of
    from shardwise.errors import MissingExtraError

    try:
        devices_of(Topology.parse(topology))
    except MissingExtraError as error:
        return str(error).removeprefix(f"{topology}: ")
    return None


PARTS: dict[str, Callable[[], str | None]] = {
    "browser": _browser,
    "tpu": functools.partial(_compiler, "v5e:1x1"),
    "gpu": functools.partial(_compiler, "h100:1"),
}


def gone_without() -> list[str]:
    """The parts that this machine says it goes without."""
    said = os.environ.get(WITHOUT, "").replace(",", " ").split()
    if unknown := [part for part in said if part not in PARTS]:
        raise pytest.UsageError(f"{WITHOUT}={' '.join(said)}: there is no {unknown[0]}, only {', '.join(PARTS)}")
    return said


def lacks(part: str) -> str | None:
    """Why this machine cannot run what needs a part, with the way out; None where it can."""
    return f"{WITHOUT} says so" if part in gone_without() else PARTS[part]()


def compiler(target: str) -> str | None:
    """The part that compiles for a target, as `v5e:2x4`; None for the devices of this process."""
    from shardwise.chips.topology import Topology

    return Topology.parse(target).kind if ":" in target else None


def needed(item: pytest.Item) -> Iterator[str]:
    """The parts that a test needs, by its marks."""
    for mark in item.iter_markers("needs"):
        yield from mark.args
        if (name := mark.kwargs.get("compiler_of")) and (part := compiler(item.callspec.params[name])):
            yield part


def in_ci() -> bool:
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


# What pytest calls, by way of conftest.py.


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)
    gone_without()  # what cannot be read is refused before the first test


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    for part in dict.fromkeys(needed(item)):
        if why := lacks(part):
            if in_ci() and part not in gone_without():
                pytest.fail(f"{why}\nin CI nothing is left out; {WITHOUT}={part} goes without", pytrace=False)
            item.user_properties.append(("lacks", [part, why]))
            pytest.skip(why)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What was not run and why, just above the last line. Of the reports alone: tests may run in other processes."""
    reports = terminalreporter.stats.get("skipped", ())
    lacking = [tuple(value) for report in reports for name, value in report.user_properties if name == "lacks"]
    if not lacking:
        return
    terminalreporter.section("not run, for what this machine lacks")
    for (part, why), count in Counter(lacking).items():
        tests = "1 test that needs" if count == 1 else f"{count} tests that need"
        terminalreporter.line(f"{tests} {part}: {why}")


if __name__ == "__main__":
    sys.exit(any(lacks(part) and part not in gone_without() for part in sys.argv[1:]))
