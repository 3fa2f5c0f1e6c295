"""Compiler options for asynchronous and overlapped collectives, as data: what each does, and who says so."""

from __future__ import annotations

import functools
import textwrap
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwise.chips.topology import Topology
from shardwise.errors import CompileError, did_you_mean, one_line, quoted

PLATFORMS = ("tpu", "gpu", "cpu")
PERMUTES_EARLY = "xla_tpu_enable_all_experimental_scheduler_features"  # what has their schedulers start permutes early
PERMUTES_AT_ONCE = "xla_max_concurrent_async_collective_permutes"
Options = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Flag:
    """An option of a compiler: a value that is suggested, why, and where; `effect` is what it changed where it was tried."""

    name: str
    value: str
    platform: str
    reason: str
    source: str
    effect: str = ""

    def __str__(self) -> str:
        lines = [f"{self.name}={self.value}", *textwrap.wrap(self.reason, 96), f"source: {self.source}"]
        if self.effect:
            lines.append(f"effect on the compiler's own collective matmul, modelled: {self.effect}")
        return "\n  ".join(lines)


@functools.cache
def flags(on: str | Topology | None = None) -> tuple[Flag, ...]:
    """The options of the compiler for a topology, or all that are listed.

    >>> flags("v5e:2x4")[0].name
    'xla_tpu_enable_async_collective_fusion'
    >>> sorted({flag.platform for flag in flags()})
    ['cpu', 'gpu', 'tpu']

    Raises:
        HardwareError: the topology is not one.
    """
    listed = tomllib.loads(Path(__file__).with_name("compiler_flags.toml").read_text(encoding="utf-8"))["flag"]
    kind = None if on is None else on if on in PLATFORMS else Topology.parse(on).kind
    return tuple(Flag(**each) for each in listed if kind in (None, each["platform"]))


def suggested(name: str, kind: str) -> Options:
    """An option with the value that is suggested, for compilers of this kind of device; none where it is not theirs.

    >>> suggested(PERMUTES_EARLY, "tpu"), suggested(PERMUTES_EARLY, "gpu")
    ((('xla_tpu_enable_all_experimental_scheduler_features', 'true'),), ())
    """
    return tuple((flag.name, flag.value) for flag in flags() if flag.platform == kind and flag.name == name)


def checked_options(options: Mapping[str, Any] | None) -> Options:
    """Compiler options as text, in the order of their names.

    >>> checked_options({"xla_tpu_scoped_vmem_limit_kib": 98304, "xla_enable_async_all_gather": True})
    (('xla_enable_async_all_gather', 'true'), ('xla_tpu_scoped_vmem_limit_kib', '98304'))

    Raises:
        CompileError: these are no options.
    """
    if options is None:
        return ()
    if not isinstance(options, Mapping):
        raise CompileError(f"compiler_options={quoted(options)}: give names and values, as {{'{flags()[0].name}': True}}")
    found = []
    for name, value in options.items():
        if not isinstance(name, str) or not isinstance(value, str | bool | int | float):
            raise CompileError(
                f"compiler option {quoted(name)}={quoted(value)}: give a name and a text, a number or True or False"
            )
        found.append((name.lstrip("-"), str(value).lower() if isinstance(value, bool) else str(value)))
    return tuple(sorted(found))


def unknown_option(error: CompileError, options: Options, topology: Topology) -> CompileError:
    """Why a compiler refuses options, in words that say which and what there is; any other error as it stands."""
    for name, value in options:
        if f"No such compile option: '{name}'" in str(error):
            known = [flag.name for flag in flags(topology)]
            near = "" if name in known else did_you_mean(name, known)
            listed = f"`shardwise flags --on {one_line(str(topology))}` lists some"
            return CompileError(f"{topology}: its compiler knows no option {quoted(name)}{near}; {listed}")
        if f"'{value}' into flag {name}" in str(error) or (f"option {name}," in str(error) and "is not a valid" in str(error)):
            return CompileError(f"{topology}: its compiler cannot read {quoted(value)} as a value of the option {quoted(name)}")
    return error
