"""What commands write: a name that cannot be written is refused before anything long, and what was made is never lost."""

from __future__ import annotations

import json
import os
import re
import stat
import sys
import threading
from pathlib import Path

import jax
import numpy as np
import pytest
from commands import in_a_folder, module_of, said  # noqa: F401  the folder is a fixture

import shardwise as sw
from shardwise import writing
from shardwise.cli import main
from shardwise.commands import bench_overlap, lock
from shardwise.compiled import lockfile
from shardwise.errors import FileError

MODULE = """\
def total(x):
    return x.sum()
"""
DEVICES = jax.devices()  # JAX starts here with the eight of the tests: the first command would start it with its own
EQUATION = "A[I_x, J] · B[J, K] -> C[I, K]"
GIVEN = (EQUATION, "--sizes", "I=8,J=4,K=4", "--mesh", "x=4")
ARGS = ("--args", "float32[8@x]", "--mesh", "x=4")
# What writes, by its command: the name of the file comes last, here with the ending that it needs.
COMMANDS = {
    "run": ("run", *GIVEN, "--output", ".npy"),
    "compare": ("compare", *GIVEN, "--ways", "planned", "--seconds", "0.01", "-o", ".svg"),
    "show": ("show", "A[I_x, J]", "--mesh", "x=4", "-o", ".svg"),
    "tour": ("tour", "all-gather", "-o", ".html"),
    "report": ("report", *GIVEN, "-o", ".html"),
    "audit": ("audit", "MODULE:total", *ARGS, "--hardware", "tpu-v5e", "--trace", ".json"),
    "rehearse": ("rehearse", "MODULE:total", *ARGS, "--on", "v5e:2x2", "--trace", ".json"),
    "lock": ("lock", "MODULE:total", *ARGS, "-o", ".lock"),
    "bench-overlap": ("bench-overlap", "--on", "v5e:2x4", "--kinds", "AG", "--sizes", "64x64x64", "--json", ".json"),
}


@pytest.fixture
def run(tmp_path):
    """Runs a command that writes to a name; whatever it would take long for is broken where `early`."""
    module = module_of(tmp_path, MODULE)

    def run(command: str, name: str, *, ending: bool = True) -> int:
        *words, suffix = COMMANDS[command]
        return main([*(word.replace("MODULE", module) for word in words), name + suffix * ending])

    return run


@pytest.fixture
def nothing_long(monkeypatch):
    def too_far(*_, **__):
        raise AssertionError("this comes before the name is checked")

    for name in (
        "commands.run.choose_devices", "commands.making.choose_devices", "commands.making.load_function",
        "commands.rehearse.start", "commands.lock.start", "commands.bench_overlap.start", "api.plan",
        "commands.show._shown", "commands.tour._chosen",
    ):  # fmt: skip
        monkeypatch.setattr(f"shardwise.{name}", too_far)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("name", "ending", "message"),
    [
        ("", False, "the name of the file to write is empty: name one"),
        ("nowhere/a", True, "there is no folder nowhere in "),
        ("x" * 300, True, "cannot be written: File name too long: give it a shorter name"),
        ("folder", True, "this is a folder; name a file in it"),
        ("taken/a", True, "/taken is a file, and no folder: name another"),
        ("/proc/a", True, "cannot be written: "),
        ("a\nb\0", True, "embedded null"),
    ],
    ids=["empty", "nowhere", "long", "folder", "taken", "refused", "null"],
)
def test_a_name_is_refused_before_anything_long(command, name, ending, message, run, nothing_long, capsys):
    Path("taken").touch()
    Path(f"folder{COMMANDS[command][-1]}").mkdir()
    before = sorted(os.listdir())
    assert run(command, name, ending=ending) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert "Traceback" not in captured.err
    assert captured.out == ""
    assert sorted(os.listdir()) == before


def lasting(monkeypatch) -> None:
    """From now on the disk is full for what has a name of its own, and not for temporary files."""
    real = os.replace

    def full(source, target):
        if Path(target).name.startswith("a."):
            raise OSError(28, "No space left on device")
        real(source, target)

    monkeypatch.setattr(os, "replace", full)


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(name, marks=pytest.mark.needs("tpu") if name == "rehearse" else ())
        for name in COMMANDS
        if name != "bench-overlap"
    ],
)
def test_what_was_made_is_kept_where_writing_fails(command, run, capsys, monkeypatch):
    assert run(command, "a") == 0
    (path,) = Path().glob("a.*")
    good = path.read_bytes()
    path.write_bytes(b"" if command == "lock" else b"old")
    if command == "lock":
        path.unlink()
    capsys.readouterr()
    lasting(monkeypatch)
    assert run(command, "a") == 2
    told = said(capsys)
    assert f"{path} cannot be written: No space left on device: make room" in told
    kept = Path(re.search(r"what was to be written is kept in (.*)", told)[1])
    assert kept.suffix == path.suffix
    assert kept.read_bytes() == good or command == "compare"  # which measures anew
    kept.unlink()
    kept.parent.rmdir()
    assert (not path.exists()) if command == "lock" else path.read_bytes() == b"old"
    assert not [name for name in os.listdir() if name.endswith(writing.ENDING)]


def test_a_device_is_not_replaced_and_the_result_is_kept(run, capsys):
    Path("a.npy").symlink_to("/dev/full")
    assert run("run", "a") == 2
    kept = Path(re.search(r"kept in (.*)", said(capsys))[1])
    assert np.load(kept).shape == (8, 4)
    kept.unlink()
    kept.parent.rmdir()
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)
    assert Path("a.npy").is_symlink()


def test_an_array_goes_through_a_pipe(run, tmp_path):
    os.mkfifo("a.npy")
    got = []
    reader = threading.Thread(target=lambda: got.append((tmp_path / "a.npy").read_bytes()))
    reader.start()
    assert run("run", "a") == 0
    reader.join(10)
    assert got[0].startswith(b"\x93NUMPY")
    assert len(got[0]) == 128 + 4 * 8 * 4


def test_a_trace_goes_to_the_standard_output(run, capfd):
    assert run("audit", "-", ending=False) == 0
    printed = capfd.readouterr().out
    assert printed.startswith("total on cpu:4")
    assert json.loads(printed[printed.index("{") :])


def test_rows_are_written_after_every_case_and_passed_on_once(monkeypatch, capfd):
    monkeypatch.setattr(bench_overlap, "start", lambda _: None)
    monkeypatch.setattr(bench_overlap, "measured", lambda case: case)
    monkeypatch.setattr(bench_overlap, "_print", lambda *_, **__: None)
    monkeypatch.setattr(bench_overlap, "versions", lambda _: {})
    for name in ("facts_of", "summarised", "sentences"):
        monkeypatch.setattr(bench_overlap.overlap_rows, name, lambda found: [] if isinstance(found, list) else "row")
    monkeypatch.setattr(bench_overlap.dataclasses, "asdict", lambda _: {})
    written = []
    real = writing.write
    monkeypatch.setattr(writing, "write", lambda path, text: (written.append(len(json.loads(text)["rows"])), real(path, text)))
    for name in ("rows.json", "-"):
        assert main(["bench-overlap", "--on", "v5e:2x4", "--kinds", "AG,RS", "--sizes", "64x64x64", "--json", name]) == 0
    assert written == [1, 2, 2]
    assert json.loads(Path("rows.json").read_text())["rows"] == ["row", "row"]


def test_a_report_that_cannot_be_saved_stays_in_hand(tmp_path):
    made = sw.report(sw.plan(EQUATION, sizes={"I": 8, "J": 4, "K": 4}, mesh="x=4"))
    with pytest.raises(FileError, match="there is no folder nowhere"):
        made.save("nowhere/a.html")
    made.save("a.html")
    assert Path("a.html").read_text(encoding="utf-8") == made.html


# The lock file.


@pytest.mark.parametrize(("make", "what"), [(os.mkfifo, "a named pipe"), (os.mkdir, "a folder")])
def test_a_lock_file_that_is_none_is_refused(make, what, run, capsys):
    make("a.lock")
    assert main(["lock", "--check", "a.lock"]) == 2
    assert f"a.lock: this is {what}, and no file to read" in said(capsys)
    for arguments in (("--update", "a.lock"), ("json:loads", "-o", "a.lock")):
        assert main(["lock", *arguments]) == 2
        assert "a.lock: " in said(capsys)


@pytest.mark.parametrize("name", ["-", "/dev/null"])
def test_a_lock_file_holds_what_it_is_given(name, run, capsys):
    assert run("lock", name, ending=False) == 2
    assert f"{name}: a lock file is read and written again, and this holds nothing: name a file" in said(capsys)


def test_a_lock_file_that_may_only_be_read_is_checked(run, monkeypatch, capsys):
    assert run("lock", "a") == 0

    def unwritable(path):
        raise FileError(f"{path} cannot be written")

    monkeypatch.setattr(writing, "check", unwritable)
    assert main(["lock", "--check", "a.lock"]) == 0
    assert main(["lock", "--update", "a.lock"]) == 2


def test_many_at_once_lose_no_entry(tmp_path):
    switching = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [
            threading.Thread(
                target=lockfile.update, args=(tmp_path / "a.lock", [lockfile.Entry(f"f{index}", "cpu:8", "x=8", ())])
            )
            for index in range(10)
        ]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    finally:
        sys.setswitchinterval(switching)
    assert [entry.name for entry in lockfile.read(tmp_path / "a.lock").entries] == [f"f{index}" for index in range(10)]


def test_entries_written_meanwhile_stay(run, monkeypatch):
    """While one function compiles, another process locks its own."""
    real = lock.compiled

    def slow(*args, **kwargs):
        lockfile.update("a.lock", [lockfile.Entry("meanwhile", "cpu:8", "x=8", ())])
        return real(*args, **kwargs)

    monkeypatch.setattr(lock, "compiled", slow)
    assert run("lock", "a") == 0
    assert "meanwhile" in [entry.name for entry in lockfile.read("a.lock").entries]
    assert len(lockfile.read("a.lock").entries) == 2


def test_a_file_system_without_locks_is_told_of(run, monkeypatch, capsys):
    def none(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(writing.fcntl, "flock", none)
    assert run("lock", "a") == 0
    assert "a.lock: its file system has no locks: write one lock file at a time here" in said(capsys)
