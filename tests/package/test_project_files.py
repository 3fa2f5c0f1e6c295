"""What stands around the package: how it is cited, tested elsewhere and asked about, and what its pages tell to run."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from package.told import PAGES, ROOT, Told, commands_in, filled, told

import shardwise
from shardwise.cli import _parser

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text(encoding="utf-8"))
STEPS = [step["run"] for job in WORKFLOW["jobs"].values() for step in job["steps"] if "run" in step]
COMMANDS = [each for each in told() if not each.python]


def test_a_citation_says_who_and_what_and_no_version_of_its_own():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert citation["license"] == PROJECT["license"]
    assert "version" not in citation


def test_the_workflow_calls_targets_that_are_there_on_linux_and_macos():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    called = [run.split()[1] for run in STEPS]
    assert {"test", "lint", "package", "recipes"} <= set(called) <= targets
    assert all(run.startswith("make ") for run in STEPS)
    systems = {each["os"].partition("-")[0] for each in WORKFLOW["jobs"]["tests"]["strategy"]["matrix"]["include"]}
    assert systems == {"ubuntu", "macos"}


def test_the_workflow_runs_every_python_that_is_supported():
    supported = {said.rpartition(" ")[2] for said in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", said)}
    (run,) = (run for run in STEPS if run.startswith("make package"))
    assert set(re.findall(r"python(3\.\d+)", run)) == supported


def test_an_issue_is_asked_for_the_block_to_paste():
    form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / "bug.yml").read_text(encoding="utf-8"))
    (asked,) = (part for part in form["body"] if part["attributes"]["label"] == "shardwise doctor --self")
    assert asked["validations"]["required"] is True
    assert _parser().parse_args(["doctor", "--self"]).itself


def test_every_page_tells_something_of_each_kind():
    for page in PAGES:
        assert {each.python for each in told() if each.page == page.name} == {True, False}
    assert len(COMMANDS) > 30


@pytest.mark.parametrize("each", COMMANDS, ids=lambda each: each.text[:40])
def test_what_pages_tell_is_filled_in_and_understood(each: Told):
    assert "…" not in each.text
    assert "EQ" not in each.text
    assert _parser().parse_args(each.arguments[2:]).command is not None


def test_commands_are_read_off_a_row():
    assert commands_in(" `shardwise lock a.py:f …`, `lock --check` ") == ["lock a.py:f …", "lock --check"]
    assert commands_in(" `A[I_x, J]` ") == []
    assert filled("show EQ --sizes …") == 'show "A[I_x, J] · B[J, K] -> C[I, K]" --sizes I=256,J=128,K=64'


def test_a_type_checker_accepts_a_users_file():
    """pyrefly here; `make package` has pyright read it in its strict mode, against the installed wheel."""
    typed = Path(__file__).with_name("typed.py")
    command = [Path(sys.executable).with_name("pyrefly"), "check", "--python-interpreter-path", sys.executable, typed]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_users_file_names_what_users_need():
    text = Path(__file__).with_name("typed.py").read_text(encoding="utf-8")
    used = set(re.findall(r"\bsw\.(\w+)", text)) | set(re.findall(r"from shardwise import (.*)", text)[0].split(", "))
    results = {
        "Check",
        "Comparison",
        "Diagnosis",
        "Overlapped",
        "Program",
        "Report",
        "Timeline",
        "Topology",
    }  # seen, and not named
    assert set(shardwise.__all__) - used == results | {"distributed", "random", "true_shape"}
