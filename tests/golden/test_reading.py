"""The reader against the corpus: every collective of every text, with its axes, bytes, trips and line."""

from __future__ import annotations

import gzip
import json
import re
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from shardwise.compiled.facts import Collective
from shardwise.compiled.text.hlo import read
from shardwise.compiled.text.reading import Reading, collectives
from shardwise.compiled.text.sources import is_users
from shardwise.compiled.text.walk import KINDS
from shardwise.mesh import Mesh

HERE = Path(__file__).parent
EXPECTED = tomllib.loads((HERE / "expected.toml").read_text(encoding="utf-8"))
CASES = [(folder, program, block) for program, blocks in EXPECTED.items() for block in blocks for folder in block["texts"]]
NAMES = {"bf16": "bfloat16", "f32": "float32", "s32": "int32", "u32": "uint32", "pred": "bool"}


def index(folder: str, program: str) -> dict[str, Any]:
    return json.loads((HERE / "texts" / folder / "index.json").read_text(encoding="utf-8"))["programs"][program]


def text_of(folder: str, program: str) -> str:
    return gzip.decompress((HERE / "texts" / folder / f"{program}.txt.gz").read_bytes()).decode()


def reading(folder: str, program: str) -> Reading:
    return collectives(read(text_of(folder, program)), Mesh.parse(index(folder, program)["axes"]))


def rows(found: tuple[Collective, ...]) -> list[tuple[object, ...]]:
    """Equal collectives on one line, as the corpus writes them."""
    joined: dict[tuple[object, ...], list[Collective]] = defaultdict(list)
    for c in found:
        joined[c.kind, c.axes, c.group_size, c.dtype, c.shape, c.arrays].append(c)
    return sorted(
        (*key, sum(c.trips or 1 for c in them), round(sum(c.wire_bytes for c in them))) for key, them in joined.items()
    )


def wanted(block: dict[str, Any]) -> list[tuple[object, ...]]:
    return sorted(
        (
            row["kind"], tuple(row["axes"]), row["devices"], NAMES[row["dtype"]], tuple(row["shape"]),
            row.get("members", 1), row["count"], round(row["wire_bytes"]),
        )
        for row in block["collectives"]
    )  # fmt: skip


@pytest.mark.parametrize(("folder", "program", "block"), CASES, ids=[f"{folder}-{program}" for folder, program, _ in CASES])
def test_every_collective_is_found_with_its_axes_and_bytes(folder: str, program: str, block: dict[str, Any]):
    found = reading(folder, program)
    assert rows(found.collectives) == wanted(block)
    unknown = any(row.get("unknown_trips") for row in block["collectives"])
    whys = [*block.get("unread", []), *["the trips of this loop are not known, it is counted once"] * unknown]
    assert [unread.why for unread in found.unread] == whys


def line_of(code: str, file: str = "programs.py") -> str:
    """The number of the one line of the programs that begins with this code."""
    lines = (HERE / file).read_text(encoding="utf-8").splitlines()
    (found,) = [number for number, line in enumerate(lines, 1) if line.strip().startswith(code)]
    return str(found)


# Lines whose backward pass communicates, or that use what the line before gathers: right too, and not marked in the program.
ALSO = {
    "fsdp": ["h = jax.nn.relu(x", "y = lax.with_sharding_constraint(h @"],
    "transformer": ["q, k, v = ", "hidden = "],
    # The call goes on over lines; on a GPU it has no line of its own, and that of the room that it fills.
    "ragged_experts": ["return lax.ragged_all_to_all(", "room = "],
}


@pytest.mark.parametrize(("folder", "program", "block"), CASES, ids=[f"{folder}-{program}" for folder, program, _ in CASES])
def test_every_collective_comes_from_the_line_that_asks_for_it(folder: str, program: str, block: dict[str, Any]):
    found = reading(folder, program).collectives
    if program.startswith("planned"):
        assert all(is_users(c.source.rpartition(":")[0]) for c in found)  # the line that called Shardwise
        return
    if program == "case2_gather":  # a gather without a line of its own: that of the matmul beside it
        assert all(
            abs(int(c.source.rpartition(":")[2]) - int(line)) <= 1 for c in found for line in index(folder, program)["lines"]
        )
        return
    entry = index(folder, program)
    if program == "ragged_experts" and folder.startswith("jax-0.10"):
        # Of numbers gathered by a sum of zeros, nothing nearby has a line but that from which the program is called.
        found = tuple(c for c in found if not (c.kind == "all-reduce" and c.inferred))
    file = entry.get("file", "programs.py")
    lines = {*entry["lines"], *(line_of(code, file) for code in ALSO.get(program, []))}
    assert [str(c.source) for c in found if c.source not in {f"tests/golden/{file}:{line}" for line in lines}] == []


@pytest.mark.parametrize("target", ["v5e-2x4", "v6e-2x4"])
@pytest.mark.parametrize("version", ["jax-0.10", "jax-0.12"])
def test_a_textbook_ring_hides_two_of_seven_transfers_and_a_pinned_one_all(version: str, target: str):
    hidden = {
        program: [bool(c.hidden_by) for c in reading(f"{version}/{target}", program).collectives]
        for program in ("ring_plain", "ring_pinned")
    }
    assert {program: (sum(flags), len(flags)) for program, flags in hidden.items()} == {
        "ring_plain": (2, 7),
        "ring_pinned": (7, 7),
    }


@pytest.mark.parametrize(("folder", "program", "block"), CASES, ids=[f"{folder}-{program}" for folder, program, _ in CASES])
def test_no_line_with_a_collective_is_overlooked(folder: str, program: str, block: dict[str, Any]):
    """A crude count, by the text alone: every line whose operation is a collective is in a computation that was walked."""
    text = text_of(folder, program)
    pattern = rf"^ .*?= \S.*? ({'|'.join(KINDS)})(-start)?\("
    channels = {
        match[1] for line in text.splitlines() if re.match(pattern, line) and (match := re.search(r"channel_id=(\d+)", line))
    }
    found = reading(folder, program).collectives
    assert len(found) >= len(channels)
    assert bool(found) == bool(re.search(pattern, text, re.MULTILINE))


@pytest.mark.parametrize("cut", [0.1, 0.3, 0.5, 0.7, 0.9, 0.97, 0.999])
@pytest.mark.parametrize("folder", ["jax-0.12/v5e-2x4", "jax-0.10/h100-8", "jax-0.12/cpu"])
def test_a_truncated_text_is_said_to_be_one(folder: str, cut: float):
    text = text_of(folder, "transformer")
    found = collectives(read(text[: int(len(text) * cut)]), Mesh.parse("x=4, y=2"))
    assert found.unread
    whole = {(c.name, c.kind, c.axes, c.wire_bytes) for c in reading(folder, "transformer").collectives}
    assert {(c.name, c.kind, c.axes, c.wire_bytes) for c in found.collectives} <= whole
