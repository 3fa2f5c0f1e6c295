"""Which host this is, and where its calibration is kept."""

from __future__ import annotations

import functools
import os
import platform
import re
import sys
from importlib import metadata
from pathlib import Path


@functools.cache
def cpu_name() -> str:
    """What this host's CPU is called, and how many cores may be used, as "AMD EPYC, 2 cores"."""
    model = ""
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
        model = found[1].strip() if found else ""
    except (OSError, UnicodeDecodeError):  # no Linux
        pass
    cores = cpu_cores()
    return f"{model or platform.processor() or platform.machine() or 'CPU'}, {cores} core{'s' if cores > 1 else ''}"


def cpu_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cache_folder() -> Path:
    """Where this user's programs keep what can be made again: SHARDWISE_CACHE, or the system's own place for it."""
    said = os.environ.get("SHARDWISE_CACHE")
    if said:
        return Path(said)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "shardwise"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "shardwise"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shardwise"


def cache_file() -> Path:
    """The calibration of this host with this JAX: another CPU, or another JAX, is another file."""
    return cache_folder() / f"{_safe(cpu_name())}-jax-{_safe(jax_version())}.toml"


@functools.cache
def jax_version() -> str:
    """The version of JAX that is installed, without importing it."""
    try:
        return metadata.version("jax")
    except metadata.PackageNotFoundError:
        return "none"


def _safe(text: str) -> str:
    """
    >>> _safe("AMD EPYC, 2 cores")
    'AMD-EPYC-2-cores'
    """
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-")
