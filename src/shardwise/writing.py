"""Files that are written whole or not at all: beside their place first, which they take at the end, with its mode and links."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import secrets
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from shardwise.errors import FileError, did_you_mean, one_line

try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None

AnyPath = str | os.PathLike[str]
ENDING = ".shardwise-tmp"
MOST_LINKS = 40
PATIENCE_SECONDS = 60.0
_LONGEST_STEM = 100  # bytes of the target's name that a temporary's shows: no file system refuses what hangs on to it
_DESCRIPTOR = re.compile(r"(?:/dev/fd|/proc/(?:self|(?P<process>\d+))/fd)/(?P<number>\d+)")
_KINDS = {
    stat.S_IFDIR: "a folder", stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket", stat.S_IFBLK: "a disk",
    stat.S_IFCHR: "a device",
}  # fmt: skip
_NO_LOCKS = {errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}
_HINTS = {
    errno.ENOSPC: "make room, or name a file on another disk",
    errno.EDQUOT: "make room, or name a file on another disk",
    errno.EFBIG: "the file may not be that large here: name one on another disk",
    errno.ENAMETOOLONG: "give it a shorter name",
    errno.EACCES: "name a file that you may write",
    errno.EPERM: "name a file that you may write",
    errno.EROFS: "name a file on another disk",
}


@dataclass(frozen=True, slots=True)
class _Target:
    """Where a file is written.

    Attributes:
        path: of the file itself, with every link followed.
        status: of what stands there now.
        descriptor: that is open already, as that of `/dev/stdout`.
    """

    path: str
    status: os.stat_result | None = None
    descriptor: int | None = None

    @property
    def streams(self) -> bool:
        """Whether bytes are passed on, as by a pipe or a device: nothing may take its place."""
        return self.descriptor is not None or (self.status is not None and not stat.S_ISREG(self.status.st_mode))

    @property
    def folder(self) -> str:
        return os.path.dirname(self.path)


# Doors.


def check(path: AnyPath) -> None:
    """Say early, before anything long, what would be said when the file is written.

    >>> check("")
    Traceback (most recent call last):
    shardwise.errors.FileError: the name of the file to write is empty: name one

    Raises:
        FileError: it is a folder, or its own folder is missing or cannot be written to, or the system refuses its name.
    """
    with _told(path):
        target = _target(path)
        if not target.streams:
            descriptor, beside = _begun(target)  # the folder is asked itself: of rights and disks no forecast holds
            _dropped(beside)
            os.close(descriptor)


def write(path: AnyPath, content: str | bytes) -> None:
    """Write a file that appears whole, or stays as it was.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(f"{folder}/a.txt", "old")
    ...     write(f"{folder}/a.txt", "new")
    ...     Path(f"{folder}/a.txt").read_text(), os.listdir(folder)
    ('new', ['a.txt'])

    Raises:
        FileError: it cannot be written; then what stood there still does.
    """
    try:
        data = content.encode() if isinstance(content, str) else content
    except UnicodeEncodeError as error:
        raise FileError(f"{_said(path)} cannot be written: {error}") from None
    with replacing(path) as beside:
        beside.write_bytes(data)


@contextlib.contextmanager
def replacing(path: AnyPath) -> Iterator[Path]:
    """Give a file to fill, which takes the place of the one named once the block ends well.

    Links are followed, and stay; mode, owner and attributes stay as far as the system lets them; a new file has those that
    the folder and the umask say. Another hard link to the old file keeps the old content. A pipe or a device, as
    `/dev/stdout` or `-`, is never replaced: it is given the bytes at the end. What a killed process left beside the same
    target is removed, and what a living one writes there is not.

    Raises:
        FileError: it cannot be written; then what stood there still does.
    """
    with _told(path):
        target = _target(path)
        if target.streams:
            with tempfile.TemporaryDirectory(prefix="shardwise-") as folder:
                aside = Path(folder, "whole")
                aside.touch()
                yield aside
                _pour(aside, target)
            return
        _sweep(target)
        descriptor, beside = _begun(target)
        try:
            yield beside
            _keep_looks(target, beside)
            os.fsync(descriptor)
            os.replace(beside, target.path)
        finally:
            _dropped(beside)  # where it has not taken its place
            with contextlib.suppress(OSError):  # its content is on the disk, or given up
                os.close(descriptor)  # the last, as the lock on it says that it is alive
        _settle(target.folder)


def keeping(path: str, write_to: Callable[[str], None]) -> None:
    """Write a file that took long to make; where that fails after all, a temporary one, which the error names.

    Raises:
        FileError: it could not be written; it says where the content is.
    """
    try:
        write_to(path)
    except FileError as error:
        aside = f"kept{Path(path).suffix}"
        try:
            aside = os.path.join(tempfile.mkdtemp(prefix="shardwise-"), aside)
            write_to(aside)
        except (FileError, OSError) as again:
            with contextlib.suppress(OSError):
                os.rmdir(os.path.dirname(aside))
            raise FileError(f"{error}\nnor could it be kept elsewhere: {again}") from None
        raise FileError(f"{error}\nwhat was to be written is kept in {aside}") from None


def streams(path: AnyPath) -> bool:
    """Whether a path is a pipe or a device, which passes on what it is given, and holds nothing.

    >>> streams("/dev/null"), streams("-"), streams("a.txt")
    (True, True, False)
    """
    with _told(path):
        return _target(path).streams


def read(path: AnyPath) -> str:
    """Read the text of a regular file; a pipe would never end.

    Raises:
        FileError: it is something else.
        OSError, UnicodeDecodeError: as `open` raises them.
    """
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise FileError(f"{_said(path)}: this is {_kind(status)}, and no file to read: name one")
    return Path(path).read_text(encoding="utf-8")


@contextlib.contextmanager
def alone(path: AnyPath) -> Iterator[bool]:
    """Hold off all others that come through here with a file of the same folder, for as long as the block takes.

    The lock is on the folder, and goes with its process, so that a killed one leaves nothing behind.

    Yields:
        False where the file system has no locks: then nobody is held off.

    Raises:
        FileError: another process has held it for a minute.
    """
    with _told(path):
        folder = _target(path).folder
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:  # one that may be written to, and not read; or Windows, which opens none
        yield False
        return
    try:
        with _told(path):
            held = _held(descriptor, path)
        yield held
    finally:
        os.close(descriptor)


# What a path names.


def _target(path: AnyPath) -> _Target:
    name = os.fsdecode(path)
    if not name:
        raise FileError("the name of the file to write is empty: name one")
    try:
        if (descriptor := _descriptor(name)) is not None:
            return _Target(name, os.fstat(descriptor), descriptor)
        status = os.stat(name)
    except (FileNotFoundError, NotADirectoryError):
        status = None
    except ValueError as error:  # a zero byte, or what is no text
        raise FileError(f"{_said(name)} cannot be written: {error}") from None
    real = os.path.realpath(name)
    if status is not None and stat.S_IFMT(status.st_mode) in (stat.S_IFDIR, stat.S_IFSOCK, stat.S_IFBLK):
        raise FileError(f"{_said(name)}: this is {_kind(status)}; name a file{' in it' * stat.S_ISDIR(status.st_mode)}")
    if status is None and name.endswith(os.sep):
        raise FileError(f"{_said(name)}: this names a folder; name a file in it")
    if not os.path.isdir(os.path.dirname(real)):
        raise _no_folder(name, Path(real).parent)
    if status is not None and not os.access(real, os.W_OK):
        raise PermissionError(errno.EACCES, "the file is read-only")
    if status is not None and _is_fixed(status, os.stat(os.path.dirname(real))):
        raise PermissionError(errno.EPERM, "the file is another user's, in a folder where none may replace another's")
    return _Target(real, status)


def _is_fixed(status: os.stat_result, folder: os.stat_result) -> bool:
    """Whether a sticky folder, as /tmp, keeps a file from all but its owner."""
    if not folder.st_mode & stat.S_ISVTX or not stat.S_ISREG(status.st_mode):
        return False
    return os.geteuid() not in (0, status.st_uid, folder.st_uid)


def _descriptor(name: str) -> int | None:
    """The open descriptor that a name says: `-` and `/dev/stdout` are 1."""
    if name == "-":
        return 1
    for _ in range(MOST_LINKS):
        name = os.path.join(os.path.realpath(os.path.dirname(name)), os.path.basename(name))
        found = _DESCRIPTOR.fullmatch(name)
        if found and found["process"] in (None, str(os.getpid())):
            return int(found["number"])
        if not os.path.islink(name):
            return None
        name = os.path.join(os.path.dirname(name), os.readlink(name))
    return None


def _kind(status: os.stat_result) -> str:
    return _KINDS.get(stat.S_IFMT(status.st_mode), "no regular file")


def _no_folder(name: str, folder: Path) -> FileError:
    """Says which part of a path is the first that is missing, and what is like it."""
    while not folder.parent.is_dir() and folder.parent != folder:
        folder = folder.parent
    if folder.exists():
        return FileError(f"{_said(name)}: {one_line(str(folder))} is a file, and no folder: name another")
    near = ""
    with contextlib.suppress(OSError):
        near = did_you_mean(folder.name, sorted(each.name for each in folder.parent.iterdir() if each.is_dir()))
    where = one_line(f"{folder.name} in {folder.parent}")
    return FileError(f"{_said(name)}: there is no folder {where}{near}: make it, or name another")


def _said(path: AnyPath) -> str:
    return one_line(os.fsdecode(path))


@contextlib.contextmanager
def _told(path: AnyPath) -> Iterator[None]:
    """Puts the name that the user wrote before what the system says."""
    try:
        yield
    except OSError as error:
        hint = _HINTS.get(error.errno or 0, "")
        why = f"{error.strerror or error}{': ' * bool(hint)}{hint}"
        raise FileError(f"{_said(path)} cannot be written: {why}") from None


# The temporary beside a target.


def _begun(target: _Target) -> tuple[int, Path]:
    """A new empty file beside the target, locked for as long as its descriptor is open."""
    stem = _stem(target.path)
    while True:
        beside = Path(target.folder, f".{stem}.{secrets.token_hex(8)}{ENDING}")
        # What takes the place of a private file is private from the start.
        descriptor = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666 if target.status is None else 0o600)
        if fcntl is None:
            return descriptor, beside
        with contextlib.suppress(OSError):  # no locks here: then nobody sweeps either
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return descriptor, beside
        os.close(descriptor)  # swept away before it was locked


def _stem(path: str) -> str:
    name = os.path.basename(path)
    return name if len(os.fsencode(name)) <= _LONGEST_STEM else hashlib.sha256(os.fsencode(name)).hexdigest()[:32]


def _sweep(target: _Target) -> None:
    """Remove what killed processes left beside a target; what is being written is locked by its writer."""
    left = re.compile(re.escape(f".{_stem(target.path)}.") + "[0-9a-f]{16}" + re.escape(ENDING))
    if fcntl is None:
        return
    with contextlib.suppress(OSError), os.scandir(target.folder) as entries:
        found = [entry.path for entry in entries if left.fullmatch(entry.name)]
        for path in found:
            with contextlib.suppress(OSError):  # another's, or in use
                descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.unlink(path)
                finally:
                    os.close(descriptor)


def _dropped(beside: Path) -> None:
    with contextlib.suppress(OSError):
        os.unlink(beside)


def _keep_looks(target: _Target, beside: Path) -> None:
    """Owner, attributes and mode of the file that stands there, as far as the system lets them be kept."""
    old = target.status
    if old is None:
        return
    new = os.stat(beside)
    if (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid):
        for owner in (old.st_uid, -1):  # only root gives files away; a group of one's own anybody may give
            with contextlib.suppress(OSError):
                os.chown(beside, owner, old.st_gid)
                break
    with contextlib.suppress(OSError):
        shutil.copystat(target.path, beside)
    os.utime(beside)
    os.chmod(beside, stat.S_IMODE(old.st_mode))


def _settle(folder: str) -> None:
    """Have the folder itself on the disk, so that the new name survives a power failure."""
    with contextlib.suppress(OSError):  # some file systems cannot, and the file is in its place already
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _pour(source: Path, target: _Target) -> None:
    if sys.stdout is not None:
        sys.stdout.flush()  # what was printed before comes before
    known = target.descriptor
    descriptor = os.open(target.path, os.O_WRONLY) if known is None else os.dup(known)
    with open(source, "rb") as whole, open(descriptor, "wb") as sink:
        shutil.copyfileobj(whole, sink)


# Locks.


def _held(descriptor: int, path: AnyPath) -> bool:
    """Lock a descriptor, waiting for others; False where it cannot be locked."""
    if fcntl is None:
        return False
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > until:
                raise FileError(
                    f"{_said(path)}: another process has been writing in its folder for "
                    f"{PATIENCE_SECONDS:.0f} seconds: end it, or try again"
                ) from None
            time.sleep(0.02)
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return False
            raise
