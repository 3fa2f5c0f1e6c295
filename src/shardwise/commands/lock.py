"""`shardwise lock`: write what functions compile to into `comms.lock`, and hold them to it."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shardwise import writing
from shardwise.chips.topology import Topology
from shardwise.commands.making import compiled, made_by, prepared, start, users_output_aside, versions, widest
from shardwise.commands.session import enough_bits
from shardwise.compiled import lockfile
from shardwise.compiled.drift import difference, report, versions_lines
from shardwise.compiled.lockfile import Entry, Lock, Made
from shardwise.errors import FileError, ShardwiseError, counted, did_you_mean, leading, one_line
from shardwise.mesh import Mesh
from shardwise.projects import project_of
from shardwise.units import bytes_text

FILE = "comms.lock"


def run(options: argparse.Namespace) -> int:
    """Lock functions, check the lock file, or lock what it holds again; 0, 1 on drift, 2 where something cannot be compiled."""
    if options.check and options.update:
        raise ShardwiseError("--check compares and --update overwrites: ask for one of them")
    files = [name for name in options.what if ":" not in name]
    functions = [name for name in options.what if ":" in name]
    if options.check or options.update:
        name = _one_file(files, options)
        _refuse_making(options)
        return _again(_to_write(name) if options.update else Path(name), functions, options)
    if files or not functions:
        given = f"{files[0]!r} names no function: write" if files else "name a function:"
        raise ShardwiseError(f"{given} module:function, as train.py:step; --check compares what is locked already")
    return _lock_functions(_to_write(FILE if options.output is None else options.output), functions, options)


def _one_file(files: list[str], options: argparse.Namespace) -> str:
    named = [*files, *([] if options.output is None else [options.output])]
    if len(named) > 1:
        raise ShardwiseError(f"{' and '.join(map(one_line, named))}: one lock file at a time")
    return named[0] if named else FILE


def _to_write(name: str) -> Path:
    """A lock file by its name, refused early where it could not be written.

    Raises:
        FileError: the system refuses it, or it is no file that is read and written again.
    """
    writing.check(name)
    if writing.streams(name):
        raise FileError(f"{one_line(name)}: a lock file is read and written again, and this holds nothing: name a file")
    return Path(name)


def _refuse_making(options: argparse.Namespace) -> None:
    given = [
        f"--{name.replace('_', '-')}"
        for name in ("args", "mesh", "axis_types", "on", "platform", "name", "layouts", "time")
        if getattr(options, name)
    ]
    if given:
        raise ShardwiseError(
            f"{', '.join(given)}: --check and --update go by what the lock file says; lock a function anew without them"
        )


# Writing.


def _lock_functions(path: Path, functions: list[str], options: argparse.Namespace) -> int:
    if options.name and len(functions) > 1:
        raise ShardwiseError(f"--name {one_line(options.name)}: it names one function, and {len(functions)} are given")
    lockfile.held_in(path)  # a damaged one is told before anything long
    made = [made_by(function, options) for function in functions]
    start(made)
    held = _Held(options.layouts, options.time)
    entries = [_entry(options.name or how.function, how, path, options, held) for how in made]
    _write(path, entries)
    return 0


@dataclass(frozen=True, slots=True)
class _Held:
    """What an entry holds beside collectives and memory: layouts of arguments and results, the modelled time."""

    layouts: bool
    time: bool


def _entry(name: str, made: Made, path: Path, options: argparse.Namespace, held: _Held) -> Entry:
    folder, inside = path.absolute().parent, None if options.allow_outside else project_of(path)
    audit = compiled(made, folder, started=True, inside=inside)
    entry = lockfile.lock_entry(audit, name=name, folder=folder, made=made, versions=versions(audit.target))
    if held.time:
        entry = replace(entry, seconds=_modelled_seconds(audit))
    if held.layouts:
        from shardwise.functions.boundaries import boundaries

        function, args, mesh = prepared(made, folder, started=True, inside=inside)
        with users_output_aside(), enough_bits(widest(args)):
            arguments, results = boundaries(function, *args, mesh=mesh, on=made.on or None)
        entry = replace(entry, arguments=arguments, results=results)
    return entry


def _modelled_seconds(audit: Any) -> float:
    """What a call takes by the compiled schedule.

    Raises:
        ShardwiseError: it cannot be modelled.
    """
    from shardwise.compiled.table import replayed

    timeline = replayed(audit)
    if timeline is None:
        why = "its text was not read whole" if audit.unread else "one host plays all its devices, or its chip is not known"
        raise ShardwiseError(f"no time is modelled for {audit.target}: {why}; leave --time out, or name devices with --on")
    return timeline.step_seconds


def _write(path: Path, entries: list[Entry]) -> None:
    held = Lock()

    def put(place: str) -> None:
        nonlocal held
        held, sure = lockfile.update(place, entries)
        if not sure:
            print(f"shardwise: {path}: its file system has no locks: write one lock file at a time here", file=sys.stderr)

    writing.keeping(str(path), put)
    for entry in entries:
        old = held.find(entry.key)
        count = counted(sum(row.count for row in entry.rows), "collective")
        peak = f", {bytes_text(entry.memory.peak)} at the peak" if entry.memory else ""
        print(f"{leading(str(path))}: {one_line(entry.key)}: {count}, {bytes_text(entry.wire_bytes)} on the wire{peak}")
        for line in difference(old, entry, held.memory_tolerance).drift if old else ():
            print(f"  {line}")


# Checking.


def _again(path: Path, functions: list[str], options: argparse.Namespace) -> int:
    """Compile what is locked again, and compare or overwrite; an entry that cannot be compiled holds up no other."""
    held = lockfile.read(path)
    chosen = _chosen(held, functions)
    start([entry.made for entry in chosen if entry.made is not None and _is_sound(entry.made)])
    fresh: list[Entry] = []
    failed = drifted = 0
    for old in chosen:
        if old.made is None:
            print(f"{leading(old.key)}: made by a test, which holds to it; not compiled here")
            continue
        new = _made_again(old, old.made, path, options)
        if new is None:
            failed += 1
            continue
        fresh.append(new)
        drifted += not options.update and _compare(held, old, new)
    if options.update and not failed:
        _write(path, fresh)
    if drifted:
        print(f"\nIf that is meant: shardwise lock --update {one_line(str(path))}")
    return 2 if failed else 1 if drifted else 0


def _is_sound(made: Made) -> bool:
    """Whether an entry's mesh and devices can be read; compiling it says why not."""
    try:
        if made.mesh:
            Mesh.parse(made.mesh)
        if made.on:
            Topology.parse(made.on)
    except ShardwiseError:
        return False
    return True


def _made_again(old: Entry, made: Made, path: Path, options: argparse.Namespace) -> Entry | None:
    """What a locked function compiles to now; None, with the reason on stderr, where it cannot be told."""
    try:
        new = _entry(old.name, made, path, options, _Held(old.arguments is not None, old.seconds is not None))
        if new.target == old.target:
            return new
        why = f"it compiles for {new.target} here: check it where {old.target} is, or name its --platform"
    except ShardwiseError as error:
        why = str(error)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever the user's code does, the other entries are compared
        why = f"{type(error).__name__}: {one_line(str(error))}"
    print(f"shardwise: {one_line(old.key)}: {why}", file=sys.stderr)
    return None


def _chosen(held: Lock, functions: list[str]) -> tuple[Entry, ...]:
    """The entries of the functions named, or all."""
    names = [name for entry in held.entries for name in (entry.name, *([entry.made.function] if entry.made else []))]
    for function in functions:
        if function not in names:
            raise ShardwiseError(
                f"{one_line(function)} is not locked{did_you_mean(function, names)}: lock it without --check and --update"
            )
    return tuple(
        entry for entry in held.entries
        if not functions or entry.name in functions or (entry.made is not None and entry.made.function in functions)
    )  # fmt: skip


def _compare(held: Lock, old: Entry, new: Entry) -> bool:
    """Print how one entry compares; whether it drifted."""
    told = report(old, new, held.memory_tolerance)
    print(told or f"{leading(old.key)}: as locked")
    for line in difference(old, new, held.memory_tolerance).moved:
        print(f"  {line}; the same collectives, so no drift")
    if not told and not os.environ.get("CI"):
        for line in versions_lines(old, new):
            print(f"  {line}; no drift by itself")
    return bool(told)
