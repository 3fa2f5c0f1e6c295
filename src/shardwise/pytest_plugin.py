"""Pytest's fixture `comms_lock`: a test fails when a function compiles to other collectives, bytes or memory than locked."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from shardwise.compiled.lockfile import Entry, Lock

# Loaded with every run of pytest where Shardwise is installed: the rest of it, and JAX, are imported when the fixture is used.


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("shardwise")
    group.addoption("--comms-lock", metavar="FILE", help="the lock file that the fixture comms_lock holds to")
    group.addoption(
        "--update-comms-lock", action="store_true", help="write what the fixture comms_lock is given, instead of failing"
    )
    parser.addini(
        "comms_lock", "the lock file that the fixture comms_lock holds to, from the root folder", default="comms.lock"
    )


@pytest.fixture
def comms_lock(request: pytest.FixtureRequest) -> CommsLock:
    """Holds compiled functions to the lock file: `comms_lock.check(function, *args)`, or `comms_lock.check(audit)`."""
    return CommsLock(request.config)


_WRITTEN = pytest.StashKey[dict[str, Any]]()


class CommsLock:
    """The lock file of one run of pytest."""

    def __init__(self, config: pytest.Config) -> None:
        given = config.getoption("--comms-lock")
        if given == "":
            raise pytest.UsageError("--comms-lock: the name of the file is empty: name one, as comms.lock")
        self.path: Path = config.invocation_params.dir / given if given else config.rootpath / config.getini("comms_lock")
        self.update: bool = config.getoption("--update-comms-lock")
        if self.update and hasattr(config, "workerinput"):
            raise pytest.UsageError("--update-comms-lock writes one file: run it in one process, without -n")
        self._written: dict[str, Entry] = config.stash.setdefault(_WRITTEN, {})

    def check(self, subject: Any, *args: Any, on: str | None = None, mesh: Any = None, name: str | None = None) -> None:
        """Hold an audit, or a function that is compiled for it, to the entry of its name and target.

        Args:
            subject: an audit of `sw.audit` or `sw.rehearse`, or a function, whose arguments follow.
            on: devices that are not attached, as "v5e:2x4"; by default those at hand.
            mesh: the mesh whose axes are named.
            name: by default the function's; of two programs of one function each needs its own.
        """
        from shardwise import writing
        from shardwise.commands.making import versions
        from shardwise.compiled.drift import report
        from shardwise.compiled.lockfile import lock_entry

        if self.update:
            writing.check(self.path)  # before anything long
        audit = _audit(subject, args, on, mesh)
        entry = lock_entry(audit, name=name, folder=self.path.parent, versions=versions(audit.target))
        held = self._held()
        locked = held.find(entry.key)
        if self.update:
            self._write(entry)
        elif locked is None:
            pytest.fail(f"{entry.key} is not locked in {self.path}: run pytest --update-comms-lock", pytrace=False)
        elif told := report(locked, entry, held.memory_tolerance):
            pytest.fail(f"{told}\nIf that is meant: pytest --update-comms-lock", pytrace=False)

    def _held(self) -> Lock:
        from shardwise.compiled.lockfile import held_in

        return held_in(self.path)

    def _write(self, entry: Entry) -> None:
        from shardwise.compiled.drift import report
        from shardwise.compiled.lockfile import update

        before = self._written.get(entry.key)
        if before is not None and (told := report(before, entry, 0.0)):
            pytest.fail(f"two programs are checked under one name; give each its own, as name=...\n{told}", pytrace=False)
        if before is None:
            self._written[entry.key] = entry
            _, sure = update(self.path, [entry])
            if not sure:
                warnings.warn(f"{self.path}: its file system has no locks: update it from one pytest at a time", stacklevel=2)


def _audit(subject: Any, args: tuple[Any, ...], on: str | None, mesh: Any) -> Any:
    if hasattr(subject, "collectives") and hasattr(subject, "target"):
        if args or on is not None or mesh is not None:
            raise TypeError("comms_lock.check takes an audit alone, or a function with its arguments, on= and mesh=")
        return subject
    from shardwise.compiled import compiling

    return compiling.audit(subject, *args, mesh=mesh) if on is None else compiling.rehearse(subject, *args, on=on, mesh=mesh)
