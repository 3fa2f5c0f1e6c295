"""What Shardwise itself costs: planning, the command line, importing, and a repeated call.

    python -m benchmarks.latency

Medians over processes or calls; written to docs/benchmarks/latency.md.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from shardwise import writing

FOLDER = Path(__file__).parent.parent / "docs" / "benchmarks"
SIZES = {"I": 8192, "J": 1024, "K": 2048}
PLANS = [
    ("2 axes", "A[I_x, J_y] · B[J_x, K_y] -> C[I_x, K_y]", "x=2, y=2", "cpu"),
    ("3 axes", "A[I_x, J_y] · B[J_y, K_z] -> C[I_x, K_?]", "x=2, y=2, z=2", "tpu-v5p"),
    ("3 axes", "A[I_x, J_y] · B[J_z, K] -> C[I_z, K_y]", "x=4, y=2, z=8", "h100"),
    ("4 axes", "A[I_x, J_y] · B[J_y, K_z] -> C[I_z, K_x]", "x=2, y=2, z=2, w=2", "tpu-v5p"),
    ("4 axes", "A[I_x, J_y] · B[J_z, K] -> C[I, K_w]", "x=4, y=4, z=4, w=4", "cpu"),
]
COMMAND = ["plan", "A[I_x, J] · B[J, K] -> C[I, K]", "--sizes", "I=16384,J=1024,K=2048", "--mesh", "x=4"]


def main() -> None:
    rows = [*plan_rows(), *process_rows(), call_row()]
    lines = [
        "# What Shardwise itself costs",
        "",
        f"Made by `make bench`: Python {sys.version.split()[0]}, {os.cpu_count()} cores; medians.",
        "",
    ]
    lines += ["| what | median | least | most |", "|---|---|---|---|"]
    lines += [f"| {name} | {values[0]} | {values[1]} | {values[2]} |" for name, values in rows]
    print("\n".join(lines[4:]))
    FOLDER.mkdir(parents=True, exist_ok=True)
    writing.write(FOLDER / "latency.md", "\n".join(lines) + "\n")


def shown(seconds: list[float], unit: float, name: str) -> tuple[str, str, str]:
    figures = (statistics.median(seconds), min(seconds), max(seconds))
    return tuple(f"{figure / unit:.1f} {name}" for figure in figures)  # type: ignore[return-value]


def timed(function: Callable[[], object]) -> float:
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def plan_rows() -> list[tuple[str, tuple[str, str, str]]]:
    """Each plan in processes of its own for the first call, and repeated in this one."""
    import shardwise as sw
    from shardwise.planning.ranking import ranked

    rows = []
    for name, equation, mesh, hardware in PLANS:
        code = (
            "import time, shardwise as sw; sw.plan; begin = time.perf_counter(); "
            f"sw.plan({equation!r}, sizes={SIZES!r}, mesh={mesh!r}, hardware={hardware!r}); print(time.perf_counter() - begin)"
        )
        first = [float(subprocess.check_output([sys.executable, "-c", code], text=True)) for _ in range(5)]
        again = []
        for _ in range(9):
            ranked.cache_clear()
            again.append(timed(lambda: sw.plan(equation, sizes=SIZES, mesh=mesh, hardware=hardware)))  # noqa: B023
        where = f"{name}, {hardware}: `{equation}`"
        rows.append((f"plan, first of a process, {where}", shown(first, 1e-3, "ms")))
        rows.append((f"plan, later in a process, {where}", shown(again, 1e-3, "ms")))
    return rows


def process_rows() -> list[tuple[str, tuple[str, str, str]]]:
    whole = [timed(lambda: subprocess.check_output([sys.executable, "-m", "shardwise.cli", *COMMAND])) for _ in range(7)]
    modules = "import sys; from shardwise.cli import main; main(sys.argv[1:]); print('jax' in sys.modules)"
    knows_jax = subprocess.check_output([sys.executable, "-c", modules, *COMMAND], text=True).splitlines()[-1]
    importing = "import jax, time; begin = time.perf_counter(); import shardwise; print(time.perf_counter() - begin)"
    imports = [float(subprocess.check_output([sys.executable, "-c", importing], text=True)) for _ in range(7)]
    return [
        (f"`shardwise plan`, whole process (jax in sys.modules: {knows_jax})", shown(whole, 1e-3, "ms")),
        ("`import shardwise` after `import jax`", shown(imports, 1e-3, "ms")),
    ]


def call_row() -> tuple[str, tuple[str, str, str]]:
    """A repeated sw.einsum beyond the jitted function that it runs, in turn, on tiny arrays."""
    code = """
import json, time, numpy as np, shardwise as sw
sw.simulate(4)
from shardwise.runtime.execute import Options, prepare, signature
mesh, text = sw.make_mesh("x=2, y=2"), "A[I_x, J_y] · B[J_y, K] -> C[I_x, K]"
a, b = sw.put(np.ones((8, 16), "f4"), "I_x, J_y", mesh), sw.put(np.ones((16, 4), "f4"), "J_y, K", mesh)
sw.einsum(text, a, b, mesh=mesh)
function = prepare(text, mesh, Options(), (signature(a), signature(b))).function
def call(f):
    begin = time.perf_counter()
    for _ in range(300):
        out = f()
    out.block_until_ready()
    return (time.perf_counter() - begin) / 300
call(lambda: function(a, b))
print(json.dumps([call(lambda: sw.einsum(text, a, b, mesh=mesh)) - call(lambda: function(a, b)) for _ in range(15)]))
"""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    beyond = json.loads(subprocess.check_output([sys.executable, "-c", code], text=True, env=environment))
    return "a repeated `sw.einsum`, beyond the jitted function that it runs", shown(beyond, 1e-6, "us")


if __name__ == "__main__":
    main()
