"""Writers that are killed at random moments: what stands in their place is the old file or the new one, never a damaged one.

    python -m benchmarks.kills [--kills 100] [--seed 0] [--full FOLDER]

For each kind of file a process writes one content over another, again and again, until it is ended with SIGKILL; then the
file is read, and must be one of the two, byte by byte. At the end one more write must leave nothing of the killed ones. With
--full, which names a folder on a small disk of its own (`mount -t tmpfs -o size=2m none FOLDER`), each kind is also written
while that disk is full: the old file must stay. Exit code 1 if a file was damaged, lost or left behind.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.overlap import row_of
from shardwise.chips import hardware
from shardwise.commands import bench_overlap, show
from shardwise.commands.report import Report
from shardwise.compiled import lockfile
from shardwise.compiled.replaying.modelled import timeline
from shardwise.compiled.text.hlo import read as read_text
from shardwise.compiled.text.reading import collectives
from shardwise.errors import FileError
from shardwise.mesh import Mesh
from shardwise.notation import parse_operand
from shardwise.pictures.dispatch import written
from shardwise.pictures.picture import picture_of
from shardwise.runtime import files

WRITES = 3.0  # so many of them a writer may make before it is killed
KEPT = Path(__file__).parent.parent / "docs" / "benchmarks" / "overlap.json"
CELLS = 1 << 18
TEXT = """HloModule jit_f, is_scheduled=true, num_partitions=4

ENTRY %main (p: f32[8]) -> f32[8] {
  ROOT %p = f32[8]{0} parameter(0)
}
"""
ROWS = [row_of(facts) for facts in json.loads(KEPT.read_text(encoding="utf-8"))["rows"]]
Writer = Callable[[Path, int], None]


def page(path: Path, which: int) -> None:
    Report("kills", f"<!DOCTYPE html>{which}" * (20_000 + which)).save(path)


def picture(path: Path, which: int) -> None:
    mesh = Mesh.parse(f"x={4 + 4 * which},y=4")
    show.write(picture_of(written(parse_operand("A[I_x, J_y]"), mesh, {"I": 64, "J": 64})), str(path))


def trace(path: Path, which: int) -> None:
    module, mesh = read_text(TEXT), Mesh.parse("x=4")
    timeline(module, collectives(module, mesh).collectives, hardware("tpu-v5e"), mesh, name=f"{which}" * 50_000).save(path)


def locked(path: Path, which: int) -> None:
    entries = [lockfile.Entry(f"step{index}", f"v5e:{which + 1}x4", "x=8", ()) for index in range(300)]
    lockfile.write(path, entries)


def array(path: Path, which: int) -> None:
    values = np.full(CELLS, which, np.float32)
    files.save(path, (CELLS,), np.float32, [((slice(0, CELLS),), values)])


def rows(path: Path, which: int) -> None:
    bench_overlap._write(str(path), "v5e:2x4", ROWS[which:])


KINDS: dict[str, Writer] = {
    "report.html": page, "show.svg": picture, "trace.json": trace, "comms.lock": locked, "c.npy": array,
    "c.safetensors": array, "bench.json": rows,
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="of each kind of file (default 100)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--full", metavar="FOLDER", help="a folder on a small disk of its own, to be filled")
    options = parser.parse_args()
    draw = random.Random(options.seed)
    bad = 0
    for name, write in KINDS.items():
        with tempfile.TemporaryDirectory() as folder:
            bad += killed(Path(folder, name), write, options.kills, draw)
        if options.full:
            bad += filled(Path(options.full, name), write)
    print("every file was whole" if not bad else f"{bad} damaged, lost or left behind")
    return 1 if bad else 0


def killed(path: Path, write: Writer, kills: int, draw: random.Random) -> int:
    """Kill a writer so many times; how often something was damaged or left behind."""
    whole = []
    for which in (0, 1):
        write(path, which)
        whole.append(path.read_bytes())
    assert whole[0] != whole[1]
    begun = time.perf_counter()
    write(path, 0)
    seconds = time.perf_counter() - begun
    seen, cut_short = {0: 0, 1: 0, None: 0}, 0
    for turn in range(kills):
        child = os.fork()
        if child == 0:
            while True:
                turn += 1
                write(path, turn % 2)
        time.sleep(draw.uniform(0, WRITES * seconds))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        found = path.read_bytes() if path.exists() else b""
        seen[whole.index(found) if found in whole else None] += 1
        cut_short += len(os.listdir(path.parent)) > 1
    write(path, 0)
    left = len(os.listdir(path.parent)) - 1
    print(
        f"{path.name}: {kills} kills, {cut_short} in the middle of a write; {seen[0]} times the one content, {seen[1]} times "
        f"the other, {seen[None]} damaged; {left} files left behind by the next write",
        flush=True,
    )
    return seen[None] + left


def filled(path: Path, write: Writer) -> int:
    """Write where the disk is full; 1 where the old file did not stay."""
    write(path, 0)
    old = path.read_bytes()
    with open(path.parent / "filling", "wb", buffering=0) as filling:
        try:
            while True:
                filling.write(bytes(1 << 12))
        except OSError:
            pass
    with tempfile.TemporaryDirectory() as tempfile.tempdir:  # where what could not be written is kept
        try:
            write(path, 1)
            said = "it was written all the same"
        except FileError as error:
            said = str(error)
    tempfile.tempdir = None
    (path.parent / "filling").unlink()
    stayed = path.read_bytes() == old and os.listdir(path.parent) == [path.name]
    path.unlink()
    print(f"{path.name} on a full disk: {said}; the old file {'stayed' if stayed else 'was LOST'}", flush=True)
    return not stayed or said == "it was written all the same"


if __name__ == "__main__":
    sys.exit(main())
