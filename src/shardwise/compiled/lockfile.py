"""The lock file `comms.lock`: what compiled programs put on the wire and the memory they need, as TOML for people to diff."""

from __future__ import annotations

import math
import os
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwise import writing
from shardwise.compiled.facts import Collective
from shardwise.compiled.toml_values import REPAIR, Table, table_text, value_text, whole
from shardwise.errors import FileError, one_line
from shardwise.layout import Axes

if TYPE_CHECKING:
    from shardwise.compiled.audit import Audit

VERSION = 1
MEMORY_TOLERANCE = 0.01
HEADER = """\
# What compiled programs put on the wire, and the memory that they need, on each device in one call.
# Written by `shardwise lock` and by pytest's --update-comms-lock; `shardwise lock --check` compiles again and compares.
# It is trusted as code: --check imports the functions that are named here, from the files and modules of the project.
"""


@dataclass(frozen=True, slots=True)
class Row:
    """The collectives of one kind, axes, dtype, size and source line: how many run in one call, and their bytes together.

    `trips_known` is False where a loop's trips cannot be read: the count has each of its collectives once.
    """

    kind: str
    axes: Axes
    dtype: str
    source: str
    count: int
    wire_bytes: float
    trips_known: bool = True


@dataclass(frozen=True, slots=True)
class Memory:
    """The bytes that one device needs, as the compiler says."""

    peak: int
    temporaries: int
    arguments: int
    outputs: int


@dataclass(frozen=True, slots=True)
class Laid:
    """An argument or a result by its name, and its layout in the notation: `[I_x, J]`."""

    name: str
    layout: str


@dataclass(frozen=True, slots=True)
class Made:
    """How an entry was made, in the words of the command line, so that it can be made again; empty where not given."""

    function: str
    args: str = ""
    mesh: str = ""
    axis_types: str = ""
    on: str = ""
    platform: str = ""


@dataclass(frozen=True, slots=True)
class Entry:
    """One compiled function on one target.

    Attributes:
        versions: for information: another compiler alone is no drift.
        arguments, results: how they lie, where that was asked for; None where it was not.
        seconds: what a call takes, modelled from the schedule, where that was asked for.
    """

    name: str
    target: str
    mesh: str
    rows: tuple[Row, ...]
    memory: Memory | None = None
    unread: int = 0
    versions: tuple[tuple[str, str], ...] = ()
    made: Made | None = None
    arguments: tuple[Laid, ...] | None = None
    results: tuple[Laid, ...] | None = None
    seconds: float | None = None

    @property
    def key(self) -> str:
        return f"{self.name}@{self.target}"

    @property
    def wire_bytes(self) -> float:
        """What one device sends in one call."""
        return math.fsum(row.wire_bytes for row in self.rows)


@dataclass(frozen=True, slots=True)
class Lock:
    """The entries of a lock file, and the part by which a memory figure may change without being drift."""

    entries: tuple[Entry, ...] = ()
    memory_tolerance: float = MEMORY_TOLERANCE

    def find(self, key: str) -> Entry | None:
        """The entry of `name@target`."""
        return next((entry for entry in self.entries if entry.key == key), None)

    def with_entries(self, entries: Iterable[Entry]) -> Lock:
        """This lock with these entries in place of those of the same key."""
        merged = {entry.key: entry for entry in (*self.entries, *entries)}
        return Lock(tuple(merged[key] for key in sorted(merged)), self.memory_tolerance)


def lock_entry(
    audit: Audit, *, name: str | None = None, folder: str | Path | None = None, made: Made | None = None,
    versions: Mapping[str, str] | None = None,
) -> Entry:  # fmt: skip
    """Sum up an audit for the lock file.

    Args:
        name: by default the audit's.
        folder: that of the lock file: sources below it are named from there.
        made: how to make it again.
        versions: of JAX and the compiler, by name.
    """
    rows = merged(
        Row(
            each.kind,
            each.axes,
            each.dtype,
            relative(each.source, folder),
            _times(each),
            each.wire_bytes,
            each.trips is not None,
        )
        for each in audit.collectives
    )
    use = audit.memory
    return Entry(
        name=name or audit.name,
        target=audit.target,
        mesh=str(audit.mesh),
        rows=rows,
        memory=None if use is None else Memory(use.peak, use.temporaries, use.arguments, use.outputs),
        unread=len(audit.unread),
        versions=tuple(sorted((versions or {}).items())),
        made=made,
    )


def merged(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Rows in order, with those of one kind, axes, dtype, size and source line as one."""
    grouped: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        alike = row.kind, row.axes, row.dtype, row.source, row.trips_known
        grouped[*alike, row.wire_bytes / max(row.count, 1)].append(row)
    made = (
        replace(found[0], count=sum(row.count for row in found), wire_bytes=whole(math.fsum(row.wire_bytes for row in found)))
        for found in grouped.values()
    )
    return tuple(sorted(made, key=row_order))


def _times(collective: Collective) -> int:
    return 1 if collective.trips is None else collective.trips


def relative(source: str, folder: str | Path | None) -> str:
    """A source line named from a folder, where its file is below it.

    >>> relative("/home/ann/work/layer.py:14", "/home/ann/work")
    'layer.py:14'
    """
    if folder is None or not os.path.isabs(source):
        return source
    base = os.path.join(os.path.abspath(folder), "")
    return Path(source[len(base) :]).as_posix() if source.startswith(base) and source != base else source


def row_order(row: Row) -> tuple[Any, ...]:
    """By file, then line as a number, so that a diff reads like the source."""
    file, line = place(row.source)
    return file, line, row.kind, row.axes, row.dtype, row.trips_known, row.source, row.count, row.wire_bytes


def place(source: str) -> tuple[str, int]:
    """The file and the line of a source; line 0 where it names none.

    >>> place("layer.py:14"), place("made by the compiler")
    (('layer.py', 14), ('made by the compiler', 0))
    """
    match = re.fullmatch(r"(.*):([0-9]{1,9})", source, re.DOTALL)
    return (match[1], int(match[2])) if match else (source, 0)


# Writing.


def write(path: str | Path, entries: Iterable[Entry], memory_tolerance: float = MEMORY_TOLERANCE) -> None:
    """Write a lock file with these entries; it appears whole, or stays as it was.

    Raises:
        FileError: it cannot be written there.
    """
    writing.write(path, text_of(Lock(tuple(entries), memory_tolerance)))


def update(path: str | Path, entries: Iterable[Entry]) -> tuple[Lock, bool]:
    """Put entries into a lock file, in place of those of the same keys; as many processes as like may do so at once.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in ("step", "loss"):
    ...         held, _ = update(f"{folder}/comms.lock", [Entry(name, "v5e:2x4", "x=8", ())])
    ...     [entry.name for entry in held.entries], [entry.name for entry in read(f"{folder}/comms.lock").entries]
    (['step'], ['loss', 'step'])

    Returns:
        What it held before; and whether others were held off meanwhile, which not every file system can.

    Raises:
        FileError: it cannot be read or written, or another process does not let go of it.
    """
    with writing.alone(path) as sure:
        held = held_in(path)
        merged = held.with_entries(entries)
        write(path, merged.entries, merged.memory_tolerance)
    return held, sure


def text_of(lock: Lock) -> str:
    """The text of a lock file: one line for each collective, in an order that does not depend on the schedule.

    >>> row = Row("all-gather", ("x",), "bfloat16", "layer.py:14", 1, 14680064)
    >>> print(text_of(Lock((Entry("step", "v5e:2x4", "x=8", (row,)),))).split("[[program]]")[1].rstrip())
    <BLANKLINE>
    name = "step"
    target = "v5e:2x4"
    mesh = "x=8"
    wire_bytes = 14680064
    collectives = [
      { source = "layer.py:14", kind = "all-gather", axes = ["x"], dtype = "bfloat16", count = 1, wire_bytes = 14680064 },
    ]
    """
    lines = [f"{HEADER}version = {VERSION}", f"memory_tolerance = {value_text(lock.memory_tolerance)}"]
    for entry in sorted(lock.entries, key=lambda entry: (entry.name, entry.target)):
        lines += ["", "[[program]]", *_program_lines(entry)]
    return "\n".join(lines) + "\n"


def _program_lines(entry: Entry) -> Iterator[str]:
    for name in ("name", "target", "mesh"):
        yield f"{name} = {value_text(getattr(entry, name))}"
    yield f"wire_bytes = {value_text(whole(entry.wire_bytes))}"
    rows = [f"  {table_text(_row_facts(row))}," for row in entry.rows]
    yield from ["collectives = [", *rows, "]"] if rows else ["collectives = []"]
    if entry.memory is not None:
        yield f"memory = {table_text({field.name: getattr(entry.memory, field.name) for field in fields(entry.memory)})}"
    if entry.seconds is not None:
        yield f"seconds = {value_text(entry.seconds)}"
    for name in ("arguments", "results"):
        laid = getattr(entry, name)
        if laid is not None:
            listed = [f"  {table_text({'name': each.name, 'layout': each.layout})}," for each in laid]
            yield from [f"{name} = [", *listed, "]"] if listed else [f"{name} = []"]
    if entry.unread:
        yield f"unread = {entry.unread}"
    if entry.made is not None:
        facts = {field.name: getattr(entry.made, field.name) for field in fields(entry.made)}
        yield f"made = {table_text({name: value for name, value in facts.items() if value or name == 'function'})}"
    if entry.versions:
        yield f"versions = {table_text(dict(entry.versions))}"


def _row_facts(row: Row) -> dict[str, Any]:
    facts = {name: getattr(row, name) for name in ("source", "kind", "axes", "dtype", "count", "wire_bytes")}
    return facts if row.trips_known else facts | {"trips_known": False}


# Reading.


def held_in(path: str | Path) -> Lock:
    """What a lock file holds; nothing where there is none yet. See `read`."""
    return read(path) if os.path.exists(path) else Lock()


def read(path: str | Path) -> Lock:
    """Read a lock file.

    Raises:
        FileError: it is missing, damaged, or of a version that is not known; with the line and the way out.
    """
    try:
        text = writing.read(path)
    except FileNotFoundError:
        raise FileError(f"there is no lock file {path}: write one with `shardwise lock module:function`") from None
    except UnicodeDecodeError as error:
        raise FileError(f"{path}: not a text in UTF-8 (byte {error.start}); {REPAIR}") from None
    except OSError as error:
        raise FileError(f"{path}: the lock file cannot be read: {error.strerror or error}") from None
    except FileError:
        raise
    except ValueError as error:  # a name with a zero byte
        raise FileError(f"{one_line(str(path))}: the lock file cannot be read: {error}") from None
    return parse(text, str(path))


def parse(text: str, path: str = "comms.lock") -> Lock:
    """Read the text of a lock file; see `read`."""
    for number, line in enumerate(text.split("\n"), 1):
        if line.startswith(("<<<<<<< ", ">>>>>>> ")):
            raise FileError(f"{path}, line {number}: a merge conflict: take either side, then `shardwise lock --update`")
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise FileError(f"{path}: not TOML: {one_line(str(error))}; {REPAIR}") from None
    except RecursionError:
        raise FileError(f"{path}: not a lock file: its values are nested too deeply; {REPAIR}") from None
    return _lock(data, text, path)


def _lock(data: dict[str, Any], text: str, path: str) -> Lock:
    head = Table(data, path)
    version = head.take("version", int)
    if version != VERSION:
        raise FileError(
            f"{path}: a lock file of version {version}, and this Shardwise reads version {VERSION}: use the Shardwise "
            "that wrote it, or write it again with `shardwise lock --update`"
        )
    tolerance = head.take("memory_tolerance", float, MEMORY_TOLERANCE)
    if not 0 <= tolerance < math.inf:
        raise FileError(f"{path}: memory_tolerance is {tolerance}: give a part of the whole, as 0.01 for 1 %")
    programs = head.take("program", list, [])
    head.end()
    starts = [number for number, line in enumerate(text.split("\n"), 1) if line.split("#")[0].strip() == "[[program]]"]
    starts += [0] * len(programs)
    entries: dict[str, Entry] = {}
    for data_of_one, line in zip(programs, starts, strict=False):
        where = f"{path}, the program at line {line}" if line else path
        entry = _entry(Table(data_of_one, where))
        if entry.key in entries:
            raise FileError(f"{where}: {one_line(entry.key)} stands twice: delete one of them")
        entries[entry.key] = entry
    return Lock(tuple(entries.values()), tolerance)


def _entry(table: Table) -> Entry:
    name, target, mesh = (table.take(key, str) for key in ("name", "target", "mesh"))
    total = table.take("wire_bytes", float)
    rows = tuple(sorted((_row(Table(each, table.where)) for each in table.take("collectives", list)), key=row_order))
    memory, made, versions = (table.take(key, dict, None) for key in ("memory", "made", "versions"))
    unread, seconds = table.take("unread", int, 0), table.take("seconds", float, None)
    if seconds is not None and not 0 <= seconds < math.inf:
        raise FileError(f"{table.where}: seconds = {seconds} is not possible; {REPAIR}")
    arguments, results = (_laid(table, key) for key in ("arguments", "results"))
    table.end()
    entry = Entry(
        name, target, mesh, rows,
        memory=None if memory is None else Memory(**Table(memory, table.where).all_of(Memory, int)),
        unread=unread,
        versions=tuple(sorted((key, str(value)) for key, value in (versions or {}).items())),
        made=None if made is None else Made(**Table(made, table.where).all_of(Made, str)),
        arguments=arguments, results=results, seconds=seconds,
    )  # fmt: skip
    if not math.isclose(entry.wire_bytes, total, rel_tol=1e-9):
        raise FileError(
            f"{table.where}: its collectives send {whole(entry.wire_bytes)} bytes together, and wire_bytes says {total}: "
            "a line is missing or was changed by hand; write it again with `shardwise lock --update`"
        )
    return entry


def _laid(table: Table, key: str) -> tuple[Laid, ...] | None:
    listed = table.take(key, list, None)
    return None if listed is None else tuple(Laid(**Table(each, table.where).all_of(Laid, str)) for each in listed)


def _row(table: Table) -> Row:
    axes = table.take("axes", list)
    if not all(isinstance(axis, str) for axis in axes):
        raise FileError(f"{table.where}: axes = {axes}: each is a name in quotes")
    kind, dtype, source = (table.take(key, str) for key in ("kind", "dtype", "source"))
    count, sent = table.take("count", int), table.take("wire_bytes", float)
    if count < 0 or not 0 <= sent < math.inf:
        raise FileError(f"{table.where}: {one_line(kind)}: a count of {count} with {sent} bytes is not possible; {REPAIR}")
    row = Row(kind, tuple(axes), dtype, source, count, sent, table.take("trips_known", bool, True))
    table.end()
    return row
