"""What tests of the command line share: a folder of their own, a module of the user's, and what went to stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch) -> Iterator[None]:
    """Each test in an empty folder; what it imported from there is forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    for name, imported in list(sys.modules.items()):
        if str(getattr(imported, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


def module_of(folder: Path, text: str) -> str:
    """The name of a module of the user's, of its own for each test."""
    name = f"train_{abs(hash(str(folder)))}"
    (folder / f"{name}.py").write_text(text, encoding="utf-8")
    return name


def said(capsys) -> str:
    """What went to stderr, which is never a traceback."""
    told = capsys.readouterr().err
    assert "Traceback" not in told
    return told
