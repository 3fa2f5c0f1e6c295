"""`shardwise doctor --self`: what is installed, what JAX finds, and why it finds nothing, in a block to paste."""

from __future__ import annotations

import json
from importlib import metadata

import jax
import numpy as np
import pytest
from commands import in_a_folder, said  # noqa: F401  the folder is a fixture

import shardwise
from shardwise.cli import main
from shardwise.commands import installation


@pytest.fixture(autouse=True)
def two_devices(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "2")
    monkeypatch.delenv("XLA_FLAGS", raising=False)


def printed(capsys) -> dict[str, str]:
    """The block by its names; further lines belong to the name above them."""
    rows: dict[str, str] = {}
    name = ""
    for line in capsys.readouterr().out.splitlines():
        begins, _, value = line.partition("  ")
        name = begins or name
        rows[name] = f"{rows[name]}\n{value.strip()}" if name in rows else value.strip()
    return rows


def test_the_block_says_what_there_is(capsys):
    assert main(["doctor", "--self"]) == 0
    rows = printed(capsys)
    assert rows["shardwise"] == shardwise.__version__
    assert (rows["jax"], rows["numpy"]) == (jax.__version__, np.__version__)
    assert rows["devices"] == "2 x cpu (cpu)"
    assert "JAX_NUM_CPU_DEVICES=2" in rows["settings"].splitlines()
    assert f"files: safetensors {metadata.version('safetensors')}" in rows["extras"].splitlines()
    assert not any(line.startswith(installation.FOR_DEVELOPERS) for line in rows["extras"].splitlines())


def test_json_holds_the_same(capsys):
    assert main(["doctor", "--self", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["versions"]["jaxlib"] == metadata.version("jaxlib")
    assert facts["devices"] == "2 x cpu (cpu)"
    assert facts["settings"]["JAX_PLATFORMS"] == "cpu"


def test_a_flag_that_ends_a_process_is_what_the_block_says(capsys, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_no_such_flag=1")
    assert main(["doctor", "--self"]) == 0
    rows = printed(capsys)
    assert rows["devices"].startswith("none: ")
    assert rows["devices"].endswith("Unknown flag in XLA_FLAGS: --xla_no_such_flag=1")
    assert "XLA_FLAGS=--xla_no_such_flag=1" in rows["settings"].splitlines()


def test_a_platform_that_is_not_there_is_what_the_block_says(capsys, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "no_such_platform")
    assert main(["doctor", "--self"]) == 0
    assert "no_such_platform" in printed(capsys)["devices"].removeprefix("none: ")


def test_a_driver_that_hangs_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(installation, "_ASK", "import time; time.sleep(60)")
    assert installation.devices(0.2) == ("none: JAX did not start within 0.2 s", [])


def test_what_plugins_log_is_told_once_and_start_up_logs_not_at_all(monkeypatch):
    lines = ["ValueError: no driver", "ValueError: no driver", "I0000 00:00:1.0 1 a.cc:1] here", "  File 'x', line 1"]
    monkeypatch.setattr(installation, "_ASK", f"import sys; sys.stderr.write({chr(10).join(lines)!r}); print('1 x cpu')")
    assert installation.devices() == ("1 x cpu", ["ValueError: no driver"])


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [([], "name it, as train.py:step; or say --self"), (["train.py:step", "--self"], "leave off 'train.py:step'")],
)
def test_it_is_either_a_function_or_the_installation(arguments, reason, capsys):
    assert main(["doctor", *arguments]) == 2
    assert reason in said(capsys)
