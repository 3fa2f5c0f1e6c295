"""Compiled texts kept as golden files by what they were compiled from: the same program is not compiled at every run.

What a compiler makes depends on the program, its target and the compiler's version, and nothing else: together they name a
file of tests/golden/kept. Where there is none, the compiler is asked; with KEEP=1 in the environment the answer is kept:

    KEEP=1 make test ARGS="tests/rehearsal tests/docs"

Lines of source stand in a text as they were when it was made: tests that ask for these compile.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lacking
import pytest

from shardwise import writing
from shardwise.chips.topology import Topology
from shardwise.commands.making import versions
from shardwise.compiled import compiling
from shardwise.compiled.facts import MemoryUse
from shardwise.compiled.targets import helper_process
from shardwise.compiled.targets.programs import Made, Program, parsed

KEPT = Path(__file__).parent / "golden" / "kept"


@pytest.fixture
def kept_texts(monkeypatch, request):
    """Rehearsals in a test take kept texts. It must say which compiler it needs, here where there is one too."""
    said = set(lacking.needed(request.node))

    def compile_or_take_as_said(program: Program, topology: Any, grid: Any) -> Made:
        kind = Topology.parse(topology).kind
        if kind != "cpu" and kind not in said:
            pytest.fail(f"this test rehearses on {topology}: mark it with pytest.mark.needs({kind!r})", pytrace=False)
        return compile_or_take(program, topology, grid)

    monkeypatch.setattr(compiling, "compile_once", compile_or_take_as_said)


@contextlib.contextmanager
def taking_kept_texts() -> Iterator[None]:
    """Rehearsals within take kept texts: for fixtures that tests share, each of which says which compiler it needs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiling, "compile_once", compile_or_take)
        yield


def take_kept_texts() -> None:
    """From now on rehearsals of this process take kept texts."""
    compiling.compile_once = compile_or_take


def compile_or_take(program: Program, topology: Any, grid: Any) -> Made:
    path = KEPT / f"{named(program, topology, grid)}.json.gz"
    if path.exists():
        found = json.loads(gzip.decompress(path.read_bytes()))
        return Made(found["text"], found["memory"] and MemoryUse(**found["memory"]))
    made = helper_process.compile_once(program, topology, grid)
    if os.environ.get("KEEP"):
        path.parent.mkdir(exist_ok=True)
        text = json.dumps({"text": made.text, "memory": made.memory and dataclasses.asdict(made.memory)})
        writing.write(path, gzip.compress(text.encode(), mtime=0))
    return dataclasses.replace(made, compile_seconds=None)  # else a text just made would be taken otherwise than one kept


def named(program: Program, topology: Any, grid: Any) -> str:
    """The name of what a program is compiled to, whatever lines of source it came from."""
    flags = {name: os.environ[name] for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS") if name in os.environ}
    others = [flag for flag in flags.pop("XLA_FLAGS", "").split() if not flag.startswith("--xla_cpu_")]
    flags |= {"XLA_FLAGS": " ".join(others)} if others else {}
    module = parsed(program.module).operation.get_asm(enable_debug_info=False)
    said = (module, program.open_inputs, program.open_outputs, program.settings, str(topology), grid.axes)
    said += (program.options,) if program.options else ()
    return hashlib.sha256(repr((said, flags, versions(str(topology)))).encode()).hexdigest()[:32]
