"""The same contractions by others: `jax.jit` both ways, PyTorch DTensor over gloo, torch-einshard, and NumPy on one device.

    python -m benchmarks.peers [--only NAME] [--runs 7]

Run in an environment of its own, which `make bench-peers` makes: PyTorch is no dependency. All ways of a case run in turn, each
in processes of its own that wait for their turn; figures are medians of one run, and what counts are ratios. A way that is not
installed is told as that. Written to docs/benchmarks/peers.json and .md.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shardwise import writing

FOLDER = Path(__file__).parent.parent / "docs" / "benchmarks"
DEVICES = 4
CASES: dict[str, tuple[str, dict[str, int]]] = {
    "rows sharded": ("A[I_x, J] · B[J, K] -> C[I_x, K]", {"I": 4096, "J": 1024, "K": 1024}),
    "both contracted sides": ("A[I, J_x] · B[J_x, K] -> C[I, K]", {"I": 2048, "J": 2048, "K": 1024}),
    "headline": ("A[I_x, J] · B[J, K] -> C[I, K]", {"I": 8192, "J": 512, "K": 1024}),
    "scattered result": ("A[I, J_x] · B[J_x, K] -> C[I_x, K]", {"I": 4096, "J": 1024, "K": 1024}),
}
TORCH = ("torch 2", "torch 4")  # DTensor over gloo in so many processes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases whose name holds this text; nothing is written then")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--serve", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(*options.serve)
        return
    rows = [measured(name, options.runs) for name in CASES if options.only in name]
    print(report(rows))
    if not options.only:
        writing.write(FOLDER / "peers.json", json.dumps({"versions": versions(), "rows": rows}, indent=1) + "\n")
        writing.write(FOLDER / "peers.md", page(rows))


def measured(name: str, runs: int) -> dict[str, Any]:
    """All ways of a case, in turn: a process for each, which runs once whenever it is asked."""
    ways = {way: started(way, name) for way in ("numpy", "jax", *(TORCH if has("torch") else ()))}
    found: dict[str, list[float]] = {}
    try:
        for _ in range(runs):
            order = list(ways)
            random.shuffle(order)
            for way in order:
                for each, seconds in ask(ways[way]).items():
                    found.setdefault(each, []).append(seconds)
    finally:
        for process in ways.values():
            assert process.stdin is not None
            process.stdin.close()
            process.wait(timeout=60)
    medians = {way: statistics.median(seconds) for way, seconds in found.items()}
    equation, sizes = CASES[name]
    return {"name": name, "equation": equation, "sizes": sizes, "seconds": medians, "runs": runs}


def has(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def started(way: str, name: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.peers", "--serve", way, name]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(DEVICES)},
    )  # fmt: skip
    answer(process)  # it is ready
    return process


def ask(process: subprocess.Popen[str]) -> dict[str, float]:
    assert process.stdin is not None
    process.stdin.write("run\n")
    process.stdin.flush()
    return answer(process)


def answer(process: subprocess.Popen[str]) -> dict[str, float]:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("{"):
            return json.loads(line)
    raise SystemExit(f"a peer ended with code {process.wait()} before it answered")


def serve(way: str, name: str) -> None:
    """Be one way of a case: say that it is ready, and then run once for each line that comes."""
    if way.startswith("torch"):
        serve_torch(int(way.split()[1]), name)
        return
    functions = numpy_way(name) if way == "numpy" else jax_ways(name)
    for function in functions.values():
        function()
    print("{}", flush=True)
    for _ in sys.stdin:
        print(json.dumps({each: clocked(function) for each, function in functions.items()}), flush=True)


def clocked(function: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def arrays_of(name: str) -> list[Any]:
    import numpy as np

    equation, sizes = CASES[name]
    generator = np.random.default_rng(0)
    operands = [part.partition("[")[2].partition("]")[0] for part in equation.partition("->")[0].split("·")]
    dims = [[dim.strip().partition("_")[0] for dim in operand.split(",")] for operand in operands]
    return [generator.standard_normal([sizes[dim] for dim in each], np.float32) for each in dims]


def numpy_way(name: str) -> dict[str, Callable[[], Any]]:
    a, b = arrays_of(name)
    return {"NumPy, one device": lambda: a @ b}


def jax_ways(name: str) -> dict[str, Callable[[], Any]]:
    import jax

    import shardwise as sw
    from shardwise.measure.timing import automatic

    equation, _ = CASES[name]
    mesh = sw.make_mesh({"x": DEVICES})
    parsed = sw.parse(equation)
    arrays = [sw.put(array, each.layout, mesh) for array, each in zip(arrays_of(name), parsed.operands, strict=True)]
    jitted, lay_out = automatic(parsed, mesh)
    laid = lay_out(*arrays)
    ready = jax.block_until_ready
    ways: dict[str, Callable[[], Any]] = {"Shardwise": lambda: ready(sw.einsum(equation, *arrays, mesh=mesh))}
    ways |= {f"jax.jit, {how}": lambda function=function: ready(function(*laid)) for how, function in jitted.items()}
    return ways


def serve_torch(count: int, name: str) -> None:
    """DTensor in so many processes over gloo; this one is the first of them, and tells the others when to run."""
    import torch.multiprocessing as processes

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
    context = processes.get_context("spawn")
    others = [context.Process(target=torch_rank, args=(rank, count, port, name), daemon=True) for rank in range(1, count)]
    for other in others:
        other.start()
    torch_rank(0, count, port, name)


def torch_rank(rank: int, count: int, port: int, name: str) -> None:
    import torch
    import torch.distributed as distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    torch.set_num_threads(max(1, (os.cpu_count() or 1) // count))
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": str(count)}
    distributed.init_process_group("gloo", rank=rank, world_size=count)
    mesh = init_device_mesh("cpu", (count,), mesh_dim_names=("x",))
    equation, sizes = CASES[name]

    def placement(text: str) -> Any:
        dims = text.partition("[")[2].partition("]")[0].split(",")
        split = [place for place, dim in enumerate(dims) if dim.strip().endswith("_x")]
        return [Shard(split[0]) if split else Replicate()]

    left, _, right = equation.partition("->")
    pairs = zip(arrays_of(name), left.split("·"), strict=True)
    placed = [distribute_tensor(torch.from_numpy(array), mesh, placement(text)) for array, text in pairs]
    wanted = placement(right)

    def by_dtensor() -> None:
        (placed[0] @ placed[1]).redistribute(placements=wanted).to_local().flatten()[0].item()

    ways: dict[str, Callable[[], Any]] = {f"DTensor, {count} processes": by_dtensor}
    if has("torch_einshard"):
        ways[f"torch-einshard, {count} processes"] = einshard_way(
            equation, sizes, [each.to_local() for each in placed], mesh, count
        )
    for way, run in list(ways.items()):
        try:
            run()
        except Exception as error:  # on every process alike, before anything is sent
            print(f"{way} is left out of {name}: {type(error).__name__}: {error}", file=sys.stderr)
            del ways[way]
    if rank == 0:
        print("{}", flush=True)
    word = torch.zeros(1)
    while True:
        if rank == 0:
            word[0] = 1.0 if sys.stdin.readline() else 0.0
        distributed.broadcast(word, 0)
        if not word[0]:
            break
        found = {}
        for way, run in ways.items():
            run()
            distributed.barrier()
            found[way] = clocked(lambda run=run: (run(), distributed.barrier()))
        if rank == 0:
            print(json.dumps(found), flush=True)
    distributed.destroy_process_group()


def einshard_way(equation: str, sizes: dict[str, int], shards: list[Any], mesh: Any, count: int) -> Callable[[], Any]:
    """The equation in the notation of torch-einshard: `i/x j, j k -> i k`, on local shards."""
    import torch_einshard

    def said(text: str) -> str:
        dims = text.partition("[")[2].partition("]")[0].split(",")
        return " ".join(dim.strip().lower().replace("_", "/") for dim in dims)

    left, _, right = equation.partition("->")
    line = f"{', '.join(map(said, left.split('·')))} -> {said(right)}"
    split = next(dim.strip().partition("_")[0] for part in equation.replace("[", ",").replace("]", ",").split(",")
                 for dim in [part] if dim.strip().endswith("_x"))  # fmt: skip
    shapes = {"x": [sizes[split] // count] * count}
    return lambda: torch_einshard.einshard(line, *shards, mesh=mesh, shapes=shapes).flatten()[0].item()


def versions() -> dict[str, str]:
    from importlib import metadata

    found = {}
    for package in ("jax", "torch", "torch-einshard", "numpy"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def report(rows: list[dict[str, Any]]) -> str:
    """The ratios as Markdown: how many times as long as Shardwise each way takes, in one run."""
    ways = list(dict.fromkeys(way for row in rows for way in row["seconds"] if way != "Shardwise"))
    lines = [
        "| contraction | Shardwise ms | " + " | ".join(ways) + " |",
        "|---|---|" + "---|" * len(ways),
    ]
    for row in rows:
        ours = row["seconds"]["Shardwise"]
        ratios = [f"{row['seconds'][way] / ours:.2f}" if way in row["seconds"] else "" for way in ways]
        lines.append(f"| {row['name']}: `{row['equation']}` | {ours * 1e3:.1f} | " + " | ".join(ratios) + " |")
    return "\n".join(lines)


def page(rows: list[dict[str, Any]]) -> str:
    found = ", ".join(f"{package} {version}" for package, version in versions().items())
    return (
        "# Peers side by side\n\n"
        f"Made by `make bench-peers`: {found}; {os.cpu_count()} cores, float32, load average {os.getloadavg()[0]:.1f}. How "
        f"many times as long as Shardwise on {DEVICES} simulated devices each way takes, all in one run, in turn; medians. The "
        "processes of DTensor share the same cores; NumPy multiplies the whole arrays once, on all cores, and is the limit. "
        "An empty cell: the library refuses the equation."
        + (
            " Others used the host, too: read no more than the first digit."
            if os.getloadavg()[0] > (os.cpu_count() or 1)
            else ""
        )
        + "\n\n"
        + report(rows)
        + "\n"
    )


if __name__ == "__main__":
    main()
