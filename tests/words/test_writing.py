"""The one writer: a file is whole, old or new, whatever breaks off the writing; links, modes and devices stay what they are."""

from __future__ import annotations

import json
import os
import re
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from shardwise import writing
from shardwise.errors import FileError

# Writes `new` over `old` again and again, ended each time before one more call to the system; says what stood there after it.
KILLED = """
import errno, json, os, shutil, signal, sys
from shardwise import writing

if sys.argv[1] == "fails":
    def stop(): raise OSError(errno.ENOSPC, "No space left on device")
else:
    def stop(): os.kill(os.getpid(), signal.SIGKILL)

def counted(function, limit, calls):
    def call(*args, **kwargs):
        calls.append(function)
        if len(calls) == limit: stop()
        return function(*args, **kwargs)
    return call

def spoil(limit):
    calls = []
    for module, names in ((os, ["open", "fsync", "replace", "chmod", "utime", "chown", "close", "scandir"]),
                          (writing.fcntl, ["flock"]), (shutil, ["copystat"]), (writing.Path, ["write_bytes"])):
        for name in names: setattr(module, name, counted(getattr(module, name), limit, calls))
    return calls

target = sys.argv[2]
limit, seen = 0, []
while True:
    limit += 1
    with open(target, "w") as file: file.write("old")
    reading, answer = os.pipe()
    child = os.fork()
    if child == 0:
        calls = spoil(limit)
        try:
            writing.write(target, "new")
            said = "written"
        except Exception as error:
            said = str(error)
        os.write(answer, json.dumps([len(calls) < limit, said]).encode())
        os._exit(0)
    os.close(answer)
    with open(reading) as pipe: told = pipe.read()
    os.waitpid(child, 0)
    done, said = json.loads(told) if told else [False, "killed"]
    seen.append([said, open(target).read(), sorted(os.listdir(os.path.dirname(target)))])
    if done: break
writing.write(target, "last")
print(json.dumps([seen, sorted(os.listdir(os.path.dirname(target)))]))
"""


def child(code: str, *arguments: str | Path, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, **options)


@pytest.mark.parametrize("how", ["killed", "fails"])
def test_a_writer_that_stops_anywhere_leaves_the_old_or_the_new(tmp_path, how):
    done = child(KILLED, how, tmp_path / "a.txt", check=True, timeout=60)
    seen, left = json.loads(done.stdout)
    assert len(seen) > 10
    assert {content for _, content, _ in seen} == {"old", "new"}
    assert seen[-1] == ["written", "new", ["a.txt"]]
    assert left == ["a.txt"]  # the next write cleans up
    if how == "killed":
        assert any(len(names) == 2 for _, _, names in seen)
    else:
        assert all(names == ["a.txt"] for _, _, names in seen)
        failed = [content for said, content, _ in seen if said != "written"]
        assert failed
        assert set(failed) == {"old"}
        told = {said.partition(": ")[2] for said, _, _ in seen if said != "written"}
        assert told == {"No space left on device: make room, or name a file on another disk"}


def test_a_limit_of_the_system_leaves_the_old(tmp_path):
    (tmp_path / "a.txt").write_text("old")
    code = (
        "import resource, sys\nfrom shardwise import writing\nfrom shardwise.errors import FileError\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try: writing.write(sys.argv[1], 'new' * 1000)\nexcept FileError as error: print(error)"
    )
    done = child(code, tmp_path / "a.txt", check=True, timeout=60)
    assert done.stdout == (
        f"{tmp_path}/a.txt cannot be written: File too large: the file may not be that large here: name one on another disk\n"
    )
    assert (tmp_path / "a.txt").read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_an_interrupt_leaves_the_old_and_nothing_else(tmp_path):
    def interrupted() -> None:
        with writing.replacing(tmp_path / "a.txt") as beside:
            beside.write_text("half")
            raise KeyboardInterrupt

    (tmp_path / "a.txt").write_text("old")
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert (tmp_path / "a.txt").read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_living_writer_is_left_alone(tmp_path):
    with writing.replacing(tmp_path / "a.txt") as slow:
        slow.write_text("slow")
        writing.write(tmp_path / "a.txt", "quick")
        assert slow.read_text() == "slow"
    assert (tmp_path / "a.txt").read_text() == "slow"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_what_a_killed_one_left_is_cleaned_for_the_same_target_alone(tmp_path):
    stale = tmp_path / f".a.txt.{'0' * 16}{writing.ENDING}"
    others = [tmp_path / f".a.txt.b.{'0' * 16}{writing.ENDING}", tmp_path / ".a.txt.tmp", tmp_path / "b.txt"]
    for each in (stale, *others):
        each.touch()
    writing.check(tmp_path / "a.txt")
    writing.write(tmp_path / "a.txt", "new")
    assert sorted(tmp_path.iterdir()) == sorted([tmp_path / "a.txt", *others])


# What stays.


def test_the_mode_stays_and_a_new_file_has_that_of_the_umask(tmp_path):
    for name, mode in (("private", 0o600), ("shared", 0o664), ("program", 0o755)):
        (tmp_path / name).touch()
        (tmp_path / name).chmod(mode)
        writing.write(tmp_path / name, "new")
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == mode
    old = os.umask(0o027)
    try:
        writing.write(tmp_path / "a.txt", "new")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "a.txt").stat().st_mode) == 0o640


def test_a_private_file_is_private_while_it_is_written(tmp_path):
    (tmp_path / "key").touch(0o600)
    with writing.replacing(tmp_path / "key") as beside:
        assert stat.S_IMODE(beside.stat().st_mode) == 0o600


@pytest.mark.parametrize("allowed", [True, False])
def test_the_owner_stays_or_the_group_alone(tmp_path, monkeypatch, allowed):
    asked = []

    def chown(path: Path, owner: int, group: int) -> None:
        asked.append((owner, group))
        if owner != -1 and not allowed:
            raise PermissionError(1, "Operation not permitted")

    (tmp_path / "a.txt").touch()
    others = os.stat_result([0o100640, 0, 0, 1, 12345, 23456, 0, 0, 0, 0], {"st_atime_ns": 0, "st_mtime_ns": 0})
    real = os.stat
    monkeypatch.setattr(os, "stat", lambda path, **more: others if path == str(tmp_path / "a.txt") else real(path, **more))
    monkeypatch.setattr(os, "chown", chown)
    writing.write(str(tmp_path / "a.txt"), "new")
    assert asked == ([(12345, 23456)] if allowed else [(12345, 23456), (-1, 23456)])
    monkeypatch.undo()
    assert stat.S_IMODE((tmp_path / "a.txt").stat().st_mode) == 0o640


def test_links_stay_and_are_written_through(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "real").write_text("old")
    (tmp_path / "middle").symlink_to("folder/real")
    (tmp_path / "link").symlink_to(tmp_path / "middle")
    (tmp_path / "dangling").symlink_to("folder/later")
    for name in ("link", "dangling"):
        writing.write(tmp_path / name, name)
        assert (tmp_path / name).is_symlink()
    assert (tmp_path / "folder" / "real").read_text() == "link"
    assert (tmp_path / "folder" / "later").read_text() == "dangling"


def test_another_hard_link_keeps_the_old(tmp_path):
    (tmp_path / "a.txt").write_text("old")
    os.link(tmp_path / "a.txt", tmp_path / "b.txt")
    writing.write(tmp_path / "a.txt", "new")
    assert ((tmp_path / "a.txt").read_text(), (tmp_path / "b.txt").read_text()) == ("new", "old")


# Devices and pipes.


def test_a_device_is_written_to_and_stays(tmp_path):
    (tmp_path / "null.txt").symlink_to("/dev/null")
    (tmp_path / "full.txt").symlink_to("/dev/full")
    writing.check(tmp_path / "full.txt")
    writing.write(tmp_path / "null.txt", "new")
    with pytest.raises(FileError, match=r"full\.txt cannot be written: No space left on device"):
        writing.write(tmp_path / "full.txt", "new")
    for device in ("/dev/null", "/dev/full"):
        assert stat.S_ISCHR(os.stat(device).st_mode)


def test_a_pipe_is_written_to_and_stays(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    read = []
    reader = threading.Thread(target=lambda: read.append(path.read_text()))
    writing.check(path)
    reader.start()
    writing.write(path, "new")
    reader.join(10)
    assert read == ["new"]
    assert stat.S_ISFIFO(path.stat().st_mode)


@pytest.mark.parametrize("name", ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
@pytest.mark.parametrize("redirected", [False, True])
def test_the_standard_output_is_written_to_even_where_it_is_a_file(tmp_path, name, redirected):
    code = "import sys\nfrom shardwise import writing\nprint('before')\nwriting.write(sys.argv[1], 'new\\n')\nprint('after')"
    command = [sys.executable, "-c", code, name]
    with (tmp_path / "out").open("w") as file:
        stdout = file if redirected else subprocess.PIPE
        done = subprocess.run(command, stdout=stdout, text=True, check=True, timeout=60, cwd=tmp_path)
    assert ((tmp_path / "out").read_text() if redirected else done.stdout) == "before\nnew\nafter\n"
    assert os.listdir(tmp_path) == ["out"]


# What is refused, before anything is written.


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "the name of the file to write is empty: name one"),
        ("{folder}", "this is a folder; name a file in it"),
        ("later/", "this names a folder; name a file in it"),
        ("nowhere/deep/a.txt", r"there is no folder nowhere in {folder}: make it"),
        ("folde/a.txt", r"there is no folder folde in {folder} \(did you mean 'folder'\?\): make it"),
        ("file/a.txt", "{folder}/file is a file, and no folder: name another"),
        ("x" * 300, "cannot be written: File name too long: give it a shorter name"),
        ("a\0b", "a b cannot be written: .*embedded null"),
        ("loop", "cannot be written: Too many levels of symbolic links"),
        ("socket", "this is a socket; name a file"),
        ("/proc/a.txt", "cannot be written: (No such file or directory|Permission denied)"),
    ],
)
def test_what_cannot_be_written_is_told_early(tmp_path, monkeypatch, name, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("socket")
        before = sorted(os.listdir(tmp_path))
        for door in (writing.check, lambda path: writing.write(path, "new")):
            with pytest.raises(FileError, match=message.format(folder=re.escape(str(tmp_path)))):
                door(name.format(folder=tmp_path))
        assert sorted(os.listdir(tmp_path)) == before


def test_what_the_system_forbids_is_told_early(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("old")
    monkeypatch.setattr(os, "access", lambda path, _: path != str(tmp_path / "a.txt"))
    with pytest.raises(FileError, match=r"a\.txt cannot be written: the file is read-only: name a file that you may write"):
        writing.check(tmp_path / "a.txt")


def test_anothers_file_in_a_sticky_folder_is_told_early(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("old")
    monkeypatch.setattr(os, "geteuid", lambda: 1 + os.stat(tmp_path).st_uid)
    writing.check(tmp_path / "a.txt")
    tmp_path.chmod(0o1777)
    with pytest.raises(FileError, match=r"a\.txt cannot be written: the file is another user's, in a folder where none may"):
        writing.check(tmp_path / "a.txt")
    writing.check(tmp_path / "b.txt")


def test_a_name_of_any_length_that_the_system_takes_will_do(tmp_path):
    longest = tmp_path / ("ä" * 126 + ".md")
    writing.write(longest, "new")
    (tmp_path / f".{writing._stem(str(longest))}.{'0' * 16}{writing.ENDING}").touch()
    writing.write(longest, "newer")
    assert os.listdir(tmp_path) == [longest.name]


def test_a_text_that_is_none_leaves_the_old(tmp_path):
    (tmp_path / "a.txt").write_text("old")
    with pytest.raises(FileError, match=r"a\.txt cannot be written: 'utf-8' codec can't encode"):
        writing.write(tmp_path / "a.txt", "\udc80")
    assert (tmp_path / "a.txt").read_text() == "old"


# What took long is kept.


def test_what_took_long_is_kept_elsewhere(tmp_path):
    (tmp_path / "full.json").symlink_to("/dev/full")
    with pytest.raises(FileError, match=r"full\.json cannot be written: No space") as caught:
        writing.keeping(str(tmp_path / "full.json"), lambda place: writing.write(place, "long"))
    kept = Path(str(caught.value).rpartition("kept in ")[2])
    assert (kept.suffix, kept.read_text()) == (".json", "long")
    kept.unlink()
    kept.parent.rmdir()


def test_where_nothing_can_be_kept_both_reasons_are_told(tmp_path):
    def full(place: str) -> None:
        raise FileError(f"{Path(place).name}: full")

    with pytest.raises(FileError, match=r"^a\.json: full\nnor could it be kept elsewhere: kept\.json: full$"):
        writing.keeping(str(tmp_path / "a.json"), full)


# Holding others off.


def test_one_at_a_time_reads_and_writes_again(tmp_path):
    path = tmp_path / "count"
    path.write_text("0")

    def add() -> None:
        for _ in range(10):
            with writing.alone(path) as sure:
                assert sure
                writing.write(path, str(int(path.read_text()) + 1))

    threads = [threading.Thread(target=add) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert path.read_text() == "40"


def test_a_killed_holder_holds_nobody_off(tmp_path):
    code = "import os, sys\nfrom shardwise import writing\nwith writing.alone(sys.argv[1]): os.kill(os.getpid(), 9)"
    assert child(code, tmp_path / "a", check=False, timeout=60).returncode == -9
    with writing.alone(tmp_path / "a") as sure:
        assert sure


def test_a_holder_that_does_not_let_go_is_told_of(tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "PATIENCE_SECONDS", 0.05)
    refused = pytest.raises(FileError, match="another process has been writing in its folder")
    with writing.alone(tmp_path / "a"), refused, writing.alone(tmp_path / "b"):
        pass


def test_a_file_system_without_locks_says_so(tmp_path, monkeypatch):
    def none(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(writing.fcntl, "flock", none)
    with writing.alone(tmp_path / "a") as sure:
        assert not sure
    stale = tmp_path / f".a.{'0' * 16}{writing.ENDING}"
    stale.touch()
    writing.write(tmp_path / "a", "new")
    assert sorted(os.listdir(tmp_path)) == sorted([stale.name, "a"])  # it might be somebody's who writes just now


def test_a_system_without_locks_writes_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "fcntl", None)
    writing.write(tmp_path / "a", "new")
    with writing.alone(tmp_path / "a") as sure:
        assert not sure
    assert (tmp_path / "a").read_text() == "new"


# Reading.


@pytest.mark.parametrize(("make", "what"), [(os.mkfifo, "a named pipe"), (os.mkdir, "a folder")])
def test_what_is_no_file_is_not_read(tmp_path, make, what):
    make(tmp_path / "a")
    with pytest.raises(FileError, match=f"a: this is {what}, and no file to read"):
        writing.read(tmp_path / "a")
