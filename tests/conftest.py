"""What every test stands on: eight simulated devices, marks, and how Hypothesis searches.

JAX reads its settings when it is first imported. They are set here, in the environment, so that tests which need
no JAX never pay for importing it. A test that starts a process of its own may set them otherwise for that process.
"""

from __future__ import annotations

import functools
import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings
from lacking import pytest_configure, pytest_runtest_setup, pytest_terminal_summary  # noqa: F401  pytest calls them

from shardwise.runtime.cpu_flags import set_cpu_flags

# A shell that runs tests in the background lets them, and what they start, ignore Ctrl-C: here it is to be heard.
signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_NUM_CPU_DEVICES"] = "8"
set_cpu_flags()  # as sw.simulate does
os.environ["SHARDWISE_CACHE"] = "/nonexistent"  # plans are those of the catalogue, whatever this host was calibrated to
# Tests compile thousands of programs and run each once: LLVM need not try hard. What XLA makes of a program stays the same.
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "true"

# HYPOTHESIS_PROFILE=ci draws the same examples on every run; dev draws new ones. Neither sets a deadline:
# the first call of a jitted function compiles it.
settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("dev", deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev"))

TESTS = Path(__file__).parent
NEED_JAX = [TESTS / name for name in ("rehearsal", "runtime", "doors", "docs", "browser", "doctor", "overlapping")]


@functools.cache
def needs_jax(path: Path) -> bool:
    return any(path.is_relative_to(folder) for folder in NEED_JAX)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what lives below the folders that need JAX, before -m selects."""
    for item in items:
        if needs_jax(item.path):
            item.add_marker(pytest.mark.jax)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With -m "not jax", leaves modules that import JAX unread, so that the fast tests stay fast."""
    return True if config.option.markexpr == "not jax" and needs_jax(collection_path) else None


@pytest.fixture(autouse=True)
def eight_devices(request: pytest.FixtureRequest) -> None:
    """Starts JAX with them, before a command that a test runs would start it with as many as it needs."""
    if request.node.get_closest_marker("jax"):
        import jax

        jax.devices()
