"""Local processes started together: output, exit status, one Ctrl-C for all, and nothing left behind. Needs no JAX."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time

import pytest

from shardwise.distributed import launching, reporting
from shardwise.distributed.launching import Launch, launch
from shardwise.errors import DistributedError

BEGINNING = "import json, os, sys, time\nme = int(os.environ['SHARDWISE_PROCESS'])\n"


def launched(body: str, processes: int = 3, **options) -> int:
    return launch(Launch([sys.executable, "-c", BEGINNING + textwrap.dedent(body)], processes, **options))


def is_there(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(pids: list[int]) -> bool:
    until = time.monotonic() + 10
    while any(map(is_there, pids)) and time.monotonic() < until:
        time.sleep(0.05)
    return not any(map(is_there, pids))


def test_process_0_speaks_and_its_output_is_as_it_wrote_it(capsys):
    assert launched("print('from', me); print('told by', me, file=sys.stderr)") == 0
    assert capsys.readouterr() == ("from 0\n", "told by 0\n")


def test_all_speak_on_request_each_line_with_its_number(capsys):
    assert launched("print('from', me)", all_speak=True) == 0
    assert sorted(capsys.readouterr().out.splitlines()) == [f"[{i}] from {i}" for i in range(3)]


def test_each_knows_its_number_and_where_process_0_is(capsys):
    launched("print(me, os.environ['SHARDWISE_PROCESSES'], os.environ['SHARDWISE_COORDINATOR'])", port=None)
    number, count, address = capsys.readouterr().out.split()
    assert (number, count, address.partition(":")[0]) == ("0", "3", "127.0.0.1")


def test_what_libraries_say_as_they_start_is_left_out(capsys):
    launched("print('noise'); print('word')", is_noise=lambda line: line == b"noise\n")
    assert capsys.readouterr().out == "word\n"


def test_the_first_that_fails_gives_the_status_and_is_shown_once(capsys):
    body = """
        if me == 2:
            print("reason", file=sys.stderr)
            sys.exit(5)
        time.sleep(60)
    """
    started = time.monotonic()
    assert launched(body) == 5
    assert time.monotonic() - started < 20
    told = capsys.readouterr().err
    assert told.count("reason") == 1
    assert "process 2 ended with exit status 5; it was starting; processes 0, 1 ended with it" in told


def test_what_all_say_alike_is_shown_once(capsys):
    assert launched("print('a mistake', file=sys.stderr)\ntime.sleep(0 if me else 0.3)\nsys.exit(2)") == 2
    assert capsys.readouterr().err.count("a mistake") == 1


def test_a_killed_process_is_named(capsys):
    assert launched("if me == 1:\n    os.kill(os.getpid(), 9)\ntime.sleep(60)") == 128 + signal.SIGKILL
    assert "process 1 was killed (SIGKILL, which the system also sends where memory runs out)" in capsys.readouterr().err


def test_one_that_ends_because_another_failed_is_not_blamed(capsys):
    body = """
        if me == 0:
            time.sleep(0.3)
            sys.exit(70)
        if me == 1:
            time.sleep(0.6)
            sys.exit(4)
        time.sleep(60)
    """
    assert launched(body) == 4
    assert "process 1 ended with exit status 4" in capsys.readouterr().err


def test_a_request_to_end_that_is_not_heard_is_followed_by_another(capsys):
    body = """
        import signal
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if me == 1:
            time.sleep(0.5)
            sys.exit(1)
        time.sleep(60)
    """
    started = time.monotonic()
    assert launched(body) == 1
    assert time.monotonic() - started < 20


def test_what_a_process_has_started_ends_with_it(tmp_path):
    body = f"""
        import subprocess
        child = subprocess.Popen(["sleep", "60"])
        open(f"{tmp_path}/{{me}}", "w").write(str(child.pid))
        if me == 1:
            time.sleep(0.5)
            sys.exit(1)
        time.sleep(60)
    """
    launched(body)
    assert gone([int(path.read_text()) for path in tmp_path.iterdir()])


def test_those_that_end_with_the_launcher_are_not_taken_for_the_first_to_fail(monkeypatch, capsys):
    def slow_end(members: list) -> None:
        time.sleep(0.3)
        end(members)

    end = launching._end
    monkeypatch.setattr(launching, "_end", slow_end)
    body = """
        if me == 1:
            sys.exit(3)
        os.read(int(os.environ['SHARDWISE_LIFELINE_FD']), 1)
        os.kill(os.getpid(), 9)
    """
    assert launched(body) == 3
    assert "process 1 ended with exit status 3" in capsys.readouterr().err


def test_an_error_that_an_abort_follows_ends_as_an_error_does(capsys):
    body = """
        failure = {"process": me, "kind": "raised", "said": "ValueError: bad batch", "trace": "Traceback", "at": 1.0}
        if me == 1:
            told = {"event": "failed", "failure": json.dumps(failure), "consequence": False}
            os.write(int(os.environ[PIPE]), (json.dumps(told) + "\\n").encode())
            os.abort()
    """
    assert launched(f"PIPE = {reporting.PIPE!r}\n" + textwrap.dedent(body)) == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith("shardwise launch: process 1 failed: ValueError: bad batch")


def own_process(tmp_path) -> tuple[subprocess.Popen, list[int]]:
    """A launcher in a process of its own, whose two processes sleep; and their pids."""
    body = f"open('{tmp_path}/' + os.environ['SHARDWISE_PROCESS'], 'w').write(str(os.getpid())); time.sleep(60)"
    # As `shardwise.member` does: the pipe closes when the launcher ends, however it ends.
    wait = "import os, signal, threading, time\nthreading.Thread(target=lambda: (os.read(int(os.environ['SHARDWISE_LIFELINE_FD']), 1), os.killpg(0, 9)), daemon=True).start()\n"  # noqa: E501
    code = (
        "import signal, sys\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from shardwise.distributed.launching import Launch, launch\n"
        f"sys.exit(launch(Launch([sys.executable, '-c', {wait + body!r}], 2)))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 30
    while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < until:
        time.sleep(0.05)
    time.sleep(0.2)
    return process, [int(path.read_text()) for path in tmp_path.iterdir()]


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_one_signal_stops_all(number, status, tmp_path):
    process, pids = own_process(tmp_path)
    process.send_signal(number)
    told = process.communicate(timeout=30)[1]
    assert process.returncode == status
    assert "stopped processes 0, 1" in told
    assert len(pids) == 2
    assert gone(pids)


def test_a_launcher_that_is_killed_leaves_nothing_behind(tmp_path):
    process, pids = own_process(tmp_path)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=30)
    assert len(pids) == 2
    assert gone(pids)


def test_a_port_that_is_taken_is_told_before_anything_starts():
    with socket.create_server(("", 0)) as taken, pytest.raises(DistributedError, match="choose another port"):
        launched("", port=taken.getsockname()[1])
