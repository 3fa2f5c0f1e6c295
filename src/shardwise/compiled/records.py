"""What a plan, an audit or a lock file said once, read from its file to be compared with what is said now."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwise import writing
from shardwise.compiled import lockfile
from shardwise.compiled.lockfile import Entry, Lock, Memory, Row
from shardwise.errors import FileError, one_line
from shardwise.planning.explain import facts
from shardwise.planning.ranking import Ranking

if TYPE_CHECKING:
    from shardwise.compiled.audit import Audit


@dataclass(frozen=True, slots=True)
class Choice:
    """One program of a plan, as it was estimated.

    Attributes:
        steps: in words.
        transfers: seconds of all collectives together, overlapped ones included.
        wire: bytes that one device sends, by collective and axes.
    """

    steps: tuple[str, ...]
    seconds: float
    transfers: float
    flops: float
    memory_bytes: float
    wire: tuple[tuple[str, float], ...]

    @property
    def wire_bytes(self) -> float:
        return sum(sent for _, sent in self.wire)


@dataclass(frozen=True, slots=True)
class PlanRecord:
    """A plan: what was asked, by name, and its programs, the fastest first."""

    equation: str
    given: tuple[tuple[str, str], ...]
    choices: tuple[Choice, ...]


Record = PlanRecord | Lock  # an audit is a lock of one program


def record_of_plan(plan: Ranking) -> PlanRecord:
    """What a plan says, as a file would keep it."""
    return _plan(facts(plan), "the plan")


def record_of_audit(audit: Audit) -> Lock:
    """What an audit says, as a lock file would keep it."""
    return Lock((lockfile.lock_entry(audit, folder=Path.cwd()),))


def read(path: str | Path) -> Record:
    """Read what `--json` printed of a plan or an audit, or a lock file.

    >>> import tempfile, shardwise as sw
    >>> from shardwise.errors import as_json
    >>> plan = sw.plan("A[I_x] -> A[I]", sizes={"I": 64}, mesh="x=4", hardware="tpu-v5e")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "old.json").write_text(as_json(facts(plan)), encoding="utf-8")
    ...     read(f"{folder}/old.json") == record_of_plan(plan)
    True

    Raises:
        FileError: it cannot be read, or is none of these.
    """
    where = one_line(str(path))
    try:
        text = writing.read(path)
    except (OSError, ValueError) as error:  # what is no UTF-8, and names with a zero byte, are values too
        raise FileError(f"{where}: it cannot be read: {getattr(error, 'strerror', None) or one_line(str(error))}") from None
    if not text.lstrip().startswith("{"):
        return lockfile.parse(text, where)
    try:
        data = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise FileError(f"{where}: not JSON: {one_line(str(error))}") from None
    try:
        if "candidates" in data:
            return _plan(data, where)
        if "collectives" in data:
            return Lock((_entry(data),))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FileError(f"{where}: {_damaged(error)}: write it again with --json") from None
    raise FileError(f"{where}: neither a plan nor an audit: write it with `shardwise plan ... --json` or `audit ... --json`")


def _damaged(error: Exception) -> str:
    said = one_line(str(error))
    return f"it has no {said}" if isinstance(error, KeyError) else f"a value is of another kind ({said})"


def _plan(data: Mapping[str, Any], where: str) -> PlanRecord:
    given = (
        ("sizes", _pairs(data["sizes"])), ("mesh", _pairs(data["mesh"])), ("hardware", str(data["hardware"])),
        ("dtype", str(data["dtype"])),
    )  # fmt: skip
    choices = tuple(map(_choice, data["candidates"]))
    if not choices:
        raise FileError(f"{where}: a plan without a program")
    return PlanRecord(str(data["equation"]), given, choices)


def _choice(data: Mapping[str, Any]) -> Choice:
    return Choice(
        tuple(map(str, data["steps"])), float(data["seconds"]), float(data["communication_seconds"]), float(data["flops"]),
        float(data["peak_memory_bytes"]), tuple((str(name), float(sent)) for name, sent in data["wire_bytes"].items()),
    )  # fmt: skip


def _entry(data: Mapping[str, Any]) -> Entry:
    memory = data["memory"]
    return Entry(
        name=str(data["name"]),
        target=str(data["target"]),
        mesh=_pairs(data["mesh"]),
        rows=lockfile.merged(map(_row, data["collectives"])),
        memory=None if memory is None else Memory(**{field.name: int(memory[field.name]) for field in fields(Memory)}),
        unread=len(data["unread"]),
    )


def _row(data: Mapping[str, Any]) -> Row:
    trips, source = data["trips"], lockfile.relative(str(data["source"]), Path.cwd())
    axes = tuple(map(str, data["axes"]))
    count = 1 if trips is None else int(trips)
    return Row(str(data["kind"]), axes, str(data["dtype"]), source, count, float(data["wire_bytes"]), trips is not None)


def _pairs(sizes: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={size}" for name, size in sizes.items())
