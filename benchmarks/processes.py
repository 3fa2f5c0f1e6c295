"""Many processes, many times: random equations, processes killed at random, differences caught, the memory of loading.

    python -m benchmarks.processes [--equations 200] [--kills 50] [--differences 50] [--gibibytes 4] [--seed 0]

- C1 to C9 and D1 to D10 in 1, 2 and 4 processes: equal, and bit for bit where nothing is added across devices;
- so many random equations, in runs of 20 over 2 and 4 processes, against the NumPy oracle; one run of ten has a process killed;
- so many runs in which a process is killed at a random moment: each must end within 30 s, with its number named;
- so many rounds of each difference on 2 of 4 processes, and a fifth as many runs of their own: caught within 10 s;
- a file of so many GiB loaded by 2 processes.

Exit code 1 where anything is otherwise, or a process is left behind.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import numpy as np

ROOT = Path(__file__).parents[1]
MEMBER = str(Path(__file__).with_name("process_member.py"))
# The capabilities in which nothing is added across devices, so that every bit is that of one process.
FIXED = {"C1", "C4", "C5", "C6", "C8", "C9", "D1", "D4", "D6 False", "D6 ring", "D6 bidirectional", "D7", "D9"}
CAUGHT = ("equation", "mesh_order", "version", "shape", "plan")
PER_RUN = 20
MOST_SECONDS, MOST_SECONDS_CAUGHT = 30.0, 10.0


def launched(processes: int, devices: int, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "shardwise", "launch", "-n", str(processes), "--devices-per-process", str(devices)]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.Popen(
        [*command, MEMBER, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": path, "SHARDWISE_MEETING_SECONDS": "60", "JAX_DISABLE_MOST_OPTIMIZATIONS": "true"},
    )  # fmt: skip


def members_of(run: subprocess.Popen[str]) -> list[int]:
    """The pids of the started processes, by their number."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == run.pid:
                    variables = (entry / "environ").read_bytes().split(b"\0")
                    number = next(each for each in variables if each.startswith(b"SHARDWISE_PROCESS="))
                    found[int(number.partition(b"=")[2])] = int(entry.name)
            except (OSError, StopIteration):
                continue
    return [found[number] for number in sorted(found)]


def left_behind() -> list[str]:
    """Processes of this file's runs that are still there."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and MEMBER.encode() in (entry / "cmdline").read_bytes():
                found.append(entry.name)
        except OSError:
            continue
    return found


def ended(run: subprocess.Popen[str], seconds: float = 300) -> tuple[str, str]:
    try:
        return run.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        run.kill()
        return run.communicate()


def capabilities() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        found: dict[int, dict[str, np.ndarray]] = {}
        for processes in (1, 2, 4):
            into = Path(folder, str(processes))
            into.mkdir()
            run = launched(processes, 8 // processes, "capabilities", str(into))
            _, err = ended(run)
            if run.returncode:
                yield f"capabilities in {processes} processes: exit {run.returncode}: {err[-800:]}"
                continue
            found[processes] = {}
            for path in into.iterdir():
                with np.load(path) as held:
                    found[processes] |= {key: held[key] for key in held}
        bits = close = 0
        for processes in (2, 4):
            for key, alone in found.get(1, {}).items():
                many = found.get(processes, {}).get(key)
                same = many is not None and many.tobytes() == alone.tobytes()
                near = many is not None and np.allclose(many, alone, rtol=1e-5, atol=1e-5)
                fixed = key.partition("|")[0] in FIXED
                bits, close = bits + same, close + (near and not same)
                if not (same if fixed else near):
                    yield f"{key} in {processes} processes is not that of one"
        print(f"capabilities: {len(found.get(1, {}))} shards, in 2 and 4 processes {bits} bit for bit, {close} within rounding")


def random_equations(count: int, random: Random) -> Iterator[str]:
    runs, done, killed = count // PER_RUN, 0, 0
    for number in range(runs):
        processes = (2, 4)[number % 2]
        kill = number % 10 == 9
        run = launched(processes, 4 // processes if number % 3 else 8 // processes, "equations", str(number), str(PER_RUN))
        if kill:
            killed += 1
            yield from killed_at_random(run, random, processes)
            continue
        out, err = ended(run)
        done += out.count("equation ")
        if run.returncode or out.count("equation ") != PER_RUN:
            yield f"equations of seed {number} in {processes} processes: exit {run.returncode}: {err[-800:]}"
    print(f"equations: {done} equal to the oracle in {runs - killed} runs; {killed} runs had a process killed")


def killed_at_random(run: subprocess.Popen[str], random: Random, processes: int) -> Iterator[str]:
    """Kill a process once all are there, at a random moment; yields what is wrong with what comes of it."""
    until = time.monotonic() + 120
    while len(members_of(run)) < processes and run.poll() is None and time.monotonic() < until:
        time.sleep(0.05)
    time.sleep(random.uniform(0.0, 6.0))
    pids, victim = members_of(run), random.randrange(processes)
    if run.poll() is not None or len(pids) < processes:
        _, err = ended(run)
        if run.returncode:
            yield f"a run of {processes} processes failed before any was killed: exit {run.returncode}: {err[-800:]}"
        return  # it was done before
    os.kill(pids[victim], signal.SIGKILL)
    began = time.monotonic()
    _, err = ended(run)
    seconds = time.monotonic() - began
    SECONDS.append(seconds)
    if seconds > MOST_SECONDS or run.returncode != 137 or f"process {victim} was killed (SIGKILL" not in err:
        yield f"process {victim} of {processes} killed: exit {run.returncode} after {seconds:.1f} s: {err[-800:]}"


SECONDS: list[float] = []  # from a kill to the end of the run


def kills(count: int, random: Random) -> Iterator[str]:
    SECONDS.clear()
    wrong = number = 0
    while len(SECONDS) < count:
        number += 1
        processes = (2, 4)[number % 2]
        for told in killed_at_random(launched(processes, 1, "equations", str(number), "5000"), random, processes):
            wrong += 1
            yield told
    print(f"kills: {len(SECONDS) - wrong} of {len(SECONDS)} named, slowest {max(SECONDS, default=0):.1f} s")


def differences(count: int) -> Iterator[str]:
    run = launched(4, 1, "rounds", str(count))
    out, err = ended(run, 600)
    if run.returncode:
        yield f"rounds of differences: exit {run.returncode}: {err[-800:]}"
    else:
        said = json.loads(out.splitlines()[-1])
        print(f"differences in one run: {said['caught']} of {count} each, slowest {said['slowest']:.2f} s")
        if set(said["caught"].values()) != {count} or said["slowest"] > MOST_SECONDS_CAUGHT:
            yield f"differences: {said}"
    good, slowest = 0, 0.0
    for number in range(count):
        kind = CAUGHT[number % len(CAUGHT)]
        run = launched(4, 1, "differ", kind)
        _, err = ended(run)
        seconds = max((float(each) for each in re.findall(r"seconds ([\d.]+)", err)), default=0.0)
        slowest = max(slowest, seconds)
        if run.returncode == 1 and "about to run different things" in err and seconds < MOST_SECONDS_CAUGHT:
            good += 1
        else:
            yield f"difference of {kind}: exit {run.returncode} after {seconds:.1f} s: {err[-800:]}"
    print(f"differences, a run each: {good} of {count} caught, slowest {slowest:.2f} s after the call")


def memory(gibibytes: float) -> Iterator[str]:
    with tempfile.TemporaryDirectory(dir=os.environ.get("SHARDWISE_SOAK_FOLDER")) as folder:
        side = int((gibibytes * 2**30 / 4) ** 0.5) // 64 * 64
        big = np.lib.format.open_memmap(f"{folder}/big.npy", mode="w+", dtype=np.float32, shape=(side, side))
        for start in range(0, side, 1024):
            big[start : start + 1024] = start
        big.flush()
        del big
        for layout in ("A[I_x, J]", "A[I, J_x]"):
            run = launched(2, 2, "load", f"{folder}/big.npy", layout)
            out, err = ended(run, 600)
            print(f"loading {gibibytes:g} GiB in 2 processes with 2 devices each, process 0: {out.rstrip()}")
            ratios = [float(each) for each in re.findall(r"([\d.]+) of the bound", out)]
            if run.returncode or not ratios or max(ratios) > 1.3:
                yield f"loading: exit {run.returncode}, {ratios}: {err[-800:]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--equations", type=int, default=200)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--differences", type=int, default=50)
    parser.add_argument("--gibibytes", type=float, default=4.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    random = Random(options.seed)
    wrong = 0
    for part in (
        capabilities(), random_equations(options.equations, random), kills(options.kills, random),
        differences(options.differences), memory(options.gibibytes),
    ):  # fmt: skip
        for told in part:
            wrong += 1
            print(f"WRONG: {told}", flush=True)
        sys.stdout.flush()
    if found := left_behind():
        wrong += 1
        print(f"WRONG: left behind: {', '.join(found)}")
    print("all well" if not wrong else f"{wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
