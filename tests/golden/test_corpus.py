"""The corpus itself: every text expected is there and the other way round, says nothing of machines, and names its lines."""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
TEXTS = sorted(HERE.glob("texts/*/*/*.txt.gz"))
EXPECTED = tomllib.loads((HERE / "expected.toml").read_text(encoding="utf-8"))
BLOCKS = [(program, block) for program, blocks in EXPECTED.items() for block in blocks]
ITEM_BYTES = {"bf16": 2, "f32": 4, "s32": 4}


def key(path: Path) -> str:
    return path.relative_to(HERE / "texts").as_posix().removesuffix(".txt.gz")


def text_of(path: Path) -> str:
    return gzip.decompress(path.read_bytes()).decode()


def least_wire_bytes(row: dict[str, Any]) -> int:
    """What the largest member alone sends, in all executions."""
    n, result = row["devices"], math.prod(row["shape"]) * ITEM_BYTES[row["dtype"]]
    moved = {
        "all-gather": result * (n - 1) // n,
        "all-reduce": 2 * result * (n - 1) // n,
        "reduce-scatter": result * (n - 1),
        "all-to-all": result * (n - 1) // n,
        "collective-permute": result,
        "ragged-all-to-all": math.prod(row.get("sent", ())) * ITEM_BYTES[row["dtype"]] * (n - 1) // n,
    }
    return row["count"] * moved[row["kind"]]


def test_texts_and_expectations_are_of_the_same_programs_and_targets():
    expected = [f"{folder}/{program}" for program, block in BLOCKS for folder in block["texts"]]
    assert sorted(expected) == sorted(map(key, TEXTS))


def test_texts_are_of_the_programs_as_they_stand():
    digests = {file: hashlib.sha256((HERE / file).read_bytes()).hexdigest() for file in ("programs.py", "foreign.py")}
    indices = [json.loads(path.read_text(encoding="utf-8")) for path in HERE.glob("texts/*/*/index.json")]
    entries = [entry for index in indices for entry in index["programs"].values()]
    stale = {file for entry in entries if entry["source_sha256"] != digests[file := entry.get("file", "programs.py")]}
    assert not stale, f"{stale} changed since: make golden, with both versions of JAX"


@pytest.mark.parametrize("path", TEXTS, ids=key)
def test_a_text_is_whole_and_names_files_relative_to_the_project(path: Path):
    text = text_of(path)
    assert "is_scheduled=true" in text.splitlines()[0]
    names = re.findall(r'^\d+ "(.*)"$', text.split("FileNames")[1].split("FunctionNames")[0], re.MULTILINE)
    entry = json.loads(path.with_name("index.json").read_text(encoding="utf-8"))["programs"][path.name.removesuffix(".txt.gz")]
    assert f"tests/golden/{entry.get('file', 'programs.py')}" in names
    assert not [name for name in names if name.startswith("/")]


@pytest.mark.parametrize(("program", "block"), BLOCKS, ids=[f"{p}-{b['texts'][0]}" for p, b in BLOCKS])
def test_expected_bytes_follow_from_the_shapes(program: str, block: dict[str, Any]):
    for row in block["collectives"]:
        if row["kind"] == "all-to-all" or "members" not in row:
            assert row["wire_bytes"] == least_wire_bytes(row) * row.get("members", row.get("pieces", 1))
        else:
            least = least_wire_bytes(row)
            assert least < row["wire_bytes"] <= least * row["members"]
