"""The command line as a process: no start-up log of libraries on stderr, and everything else that is said there."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from shardwise.commands.quiet import JAX_SETTINGS, LIBRARY_SETTINGS, is_start_up

NOISE = """WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1795364224.035731   14975 cudart_stub.cc:31] Could not find cuda drivers on your machine, GPU will not be used.
"""
TOLD = "E0000 00:00:1795364224.035731   14975 pjrt.cc:31] device 3 is out of memory\n"


def process(body: str, **settings: str) -> subprocess.CompletedProcess[str]:
    code = f"import os, sys\nfrom shardwise.commands.quiet import quiet\nwith quiet():\n    {body}\n"
    kept = {name: value for name, value in os.environ.items() if name not in (*JAX_SETTINGS, *LIBRARY_SETTINGS)}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=kept | settings, timeout=60)


def test_the_start_up_log_goes_and_the_rest_stays():
    said = f"os.write(2, {(NOISE + TOLD).encode()!r}); print('ours', file=sys.stderr)"
    assert sorted(process(said).stderr.splitlines()) == [TOLD.rstrip(), "ours"]


@pytest.mark.parametrize("name", [*JAX_SETTINGS, *LIBRARY_SETTINGS])
def test_a_setting_of_the_users_own_wins(name):
    assert process(f"os.write(2, {NOISE.encode()!r})", **{name: "0"}).stderr == NOISE


def test_the_last_words_of_a_process_that_ends_arrive():
    done = process(f"os.write(2, {(NOISE + TOLD).encode()!r}); os.abort()")
    assert done.returncode != 0
    assert done.stderr == TOLD


def test_a_line_without_an_end_arrives():
    assert process("os.write(2, b'half a line')").stderr == "half a line"


def test_what_a_command_leaves_running_is_not_waited_for():
    started = time.monotonic()
    code = "import subprocess; subprocess.Popen(['sleep', '20'], stdin=-3, stdout=-3)"
    body = f"{code}; print('done')"
    with subprocess.Popen(
        [sys.executable, "-c", f"from shardwise.commands.quiet import quiet\nwith quiet():\n    {body}"], stdout=subprocess.PIPE
    ) as running:
        assert running.communicate(timeout=15)[0] == b"done\n"
    assert time.monotonic() - started < 15


def test_what_libraries_say_where_there_is_no_accelerator_is_known():
    lines = [
        "WARNING: Logging before InitGoogle() is written to STDERR",
        "Failed to find host bounds for accelerator type: WARNING: could not determine TPU accelerator type",
        "E0000 00:00:1795365569.607858    9729 common_lib.cc:860] Error: unexpected worker hostname 'WARNING: "
        "could not determine TPU worker hostnames or IP addresses' from env var",
        "=== Source Location Trace: === ",
        "learning/45eac/tfrc/runtime/libtpu_init_utils.cc:370",
        "I1122 16:43:50.123456   19926 service.cc:163] XLA service initialized",
    ]
    assert all(is_start_up(f"{line}\n".encode()) for line in lines)
    assert not any(is_start_up(line) for line in (b"\n", b"ImportError: x", b"W0000 00:00:1.0 1 a.cc:1] slow", b"I am here"))


@pytest.mark.parametrize("arguments", [["-m", "shardwise"], ["-m", "shardwise.cli"]], ids=" ".join)
def test_python_runs_it_as_a_module(arguments):
    done = subprocess.run([sys.executable, *arguments, "--version"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("shardwise 0")


def test_a_command_that_starts_jax_says_nothing_of_libraries():
    equation = ["run", "A[I_x, J] · B[J, K] -> C[I, K]", "--sizes", "I=8,J=8,K=8", "--mesh", "x=2"]
    kept = {
        name: value for name, value in os.environ.items() if name not in ("JAX_PLATFORMS", *JAX_SETTINGS, *LIBRARY_SETTINGS)
    }
    done = subprocess.run(
        [sys.executable, "-m", "shardwise", *equation],
        capture_output=True,
        text=True,
        timeout=300,
        env=kept | {"NO_COLOR": "1"},
    )
    ours = ("starting", "compiling", "running", "planning", "checking", "timing", "placing")
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if not line.startswith(ours)] == []
