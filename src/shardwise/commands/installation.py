"""What this installation is: versions, devices, settings and extras, in a block to paste into a question or an issue."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from typing import Any

from shardwise.commands.making import COMPILERS
from shardwise.commands.quiet import is_start_up
from shardwise.commands.session import progress
from shardwise.errors import one_line, shortened
from shardwise.version import VERSION

LIBRARIES = ("jax", "jaxlib", "numpy", *(name for names in COMPILERS.values() for name in names if name != "jaxlib"))
# What JAX, its compilers and Shardwise are told by the environment.
SETTINGS = re.compile(
    r"XLA_FLAGS|LIBTPU_INIT_ARGS|(JAX|SHARDWISE|NCCL|XLA_PYTHON_CLIENT)_\w+|CUDA_VISIBLE_DEVICES|TPU_VISIBLE_(CHIPS|DEVICES)"
)
FOR_DEVELOPERS = ("bench", "dev", "docs", "recipes")  # the extras that no command of a user's asks for
MOST_SAID = 300  # characters of an error
PATIENCE_SECONDS = 60.0  # that JAX may take to start
_ASK = """\
import jax
found = jax.devices()
kinds = ", ".join(sorted({each.device_kind for each in found}))
print(f"{len(found)} x {kinds} ({jax.default_backend()})")
"""
_ERROR = re.compile(rb"(\w+\.)*\w*(Error|Exception): |[EF]\d{4} ")  # the last line of a traceback, or a log's error
_REQUIREMENT = re.compile(r"""(?P<name>[\w.-]+)(?P<parts>\[[^]]*\])?[^;]*;(?P<marker>.*)\bextra == ['"](?P<extra>[\w-]+)['"]""")


def facts() -> dict[str, Any]:
    """What is installed here, which devices JAX finds, and what it is told by the environment."""
    with progress("starting JAX"):
        seen, errors = devices()
    return {
        "shardwise": VERSION,
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "system": f"{platform.platform()}, {os.cpu_count()} cores",
        "versions": {name: found for name in LIBRARIES if (found := installed(name))},
        "extras": extras(_requirements()),
        "devices": seen,
        "errors": errors,
        "settings": {name: one_line(value) for name, value in sorted(os.environ.items()) if SETTINGS.fullmatch(name)},
    }


def block(found: dict[str, Any]) -> str:
    """The facts as lines of a name and a value.

    >>> print(block({"shardwise": "1.0", "versions": {"jax": "0.10"}, "extras": {"show": {"rich": None}}, "settings": {}}))
    shardwise  1.0
    jax        0.10
    extras     show: no rich
    settings   none
    """
    rows = list(_rows(found))
    wide = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{wide}}  {value}" for name, value in rows)


def _rows(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in found.items():
        match name:
            case "versions":
                yield from value.items()
                continue
            case "extras":
                lines = [_extra(*each) for each in value.items()]
            case "settings":
                lines = ["=".join(each) for each in value.items()]
            case "errors":
                lines = value
            case _:
                lines = [value]
        yield from ((name if not number else "", line) for number, line in enumerate(lines or ["none"]))


def _extra(name: str, packages: dict[str, str | None]) -> str:
    return f"{name}: " + (", ".join(f"{each} {found}" if found else f"no {each}" for each, found in packages.items()) or "none")


def installed(name: str) -> str | None:
    """The version of a package that is installed, without importing it."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def extras(requirements: list[str]) -> dict[str, dict[str, str | None]]:
    """The packages of each extra with their versions, None where one is missing.

    One that only some systems or Pythons need is left out where it is missing, and so are JAX's own extras: what they bring
    stands among the versions.

    >>> extras(["nothing-of-the-name>=2; extra == 'files'", "jax[tpu]; sys_platform == 'linux' and extra == 'tpu'"])
    {'files': {'nothing-of-the-name': None}, 'tpu': {}}
    """
    found: dict[str, dict[str, str | None]] = {}
    for requirement in filter(None, map(_REQUIREMENT.match, requirements)):
        name, extra = requirement["name"], requirement["extra"]
        if extra in FOR_DEVELOPERS:
            continue
        packages = found.setdefault(extra, {})
        there = installed(name)
        if not requirement["parts"] and (there or not requirement["marker"].strip()):
            packages[name] = there
    return found


def _requirements() -> list[str]:
    try:
        return metadata.requires("shardwise") or []
    except metadata.PackageNotFoundError:  # the sources, put on the path by hand
        return []


def devices(seconds: float = PATIENCE_SECONDS) -> tuple[str, list[str]]:
    """The devices that JAX finds, or why it finds none; and the errors that it and its plugins log meanwhile.

    A process of its own is asked: a flag that XLA does not know ends the process, and a driver may wait for ever.
    """
    try:
        asked = subprocess.run([sys.executable, "-c", _ASK], capture_output=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return f"none: JAX did not start within {seconds:g} s", []
    said = [line for line in asked.stderr.splitlines() if not is_start_up(line)]
    errors = [shortened(one_line(line.decode(errors="replace")), MOST_SAID) for line in said if _ERROR.match(line)]
    errors = list(dict.fromkeys(errors))
    if asked.returncode:
        last = errors.pop() if errors else f"JAX ended the process with status {asked.returncode}"
        return f"none: {last}", errors
    return asked.stdout.decode().splitlines()[-1], errors
