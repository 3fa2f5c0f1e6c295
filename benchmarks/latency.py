"""What Shardwise itself costs: planning, the command line, importing, and a repeated call.

    python -m benchmarks.latency

Medians over processes or calls; written to docs/benchmarks/latency.md. A plan later in a process is that of a problem that is
new: its sizes were not planned before, its mesh axes were. Beside it stands what opt_einsum takes for the order alone. Both
are the processor's time, which other processes on the machine disturb less; the rest is that of the clock.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import opt_einsum

from shardwise import writing
from shardwise.notation import Equation

FOLDER = Path(__file__).parent.parent / "docs" / "benchmarks"
SIZES = {"I": 8192, "J": 1024, "K": 2048, "L": 4096, "M": 512}
PLANS = [
    ("2 axes", "A[I_x, J_y] · B[J_x, K_y] -> C[I_x, K_y]", "x=2, y=2", "cpu"),
    ("3 axes", "A[I_x, J_y] · B[J_y, K_z] -> C[I_x, K_?]", "x=2, y=2, z=2", "tpu-v5p"),
    ("3 axes", "A[I_x, J_y] · B[J_z, K] -> C[I_z, K_y]", "x=4, y=2, z=8", "h100"),
    ("4 axes", "A[I_x, J_y] · B[J_y, K_z] -> C[I_z, K_x]", "x=2, y=2, z=2, w=2", "tpu-v5p"),
    ("4 axes", "A[I_x, J_y] · B[J_z, K] -> C[I, K_w]", "x=4, y=4, z=4, w=4", "cpu"),
    ("a chain", "A[I_x, J_y] · B[J_y, K] · D[K, L_x] · E[L_x, M_y] -> C[I_x, M_y]", "x=4, y=4", "tpu-v5e"),
    ("a chain", "A[I_x, J] · B[J_x, K_y] · D[K, L_y] · E[L, M] -> C[I_y, M_x]", "x=8, y=4", "h100"),
]
FRESH = 25  # problems of each row, alike but for their sizes
COMMAND = ["plan", "A[I_x, J] · B[J, K] -> C[I, K]", "--sizes", "I=16384,J=1024,K=2048", "--mesh", "x=4"]


def main() -> None:
    rows = [*plan_rows(), *process_rows(), call_row(), drawing_row()]
    lines = [
        "# What Shardwise itself costs",
        "",
        f"Made by `make bench`: Python {sys.version.split()[0]}, {os.cpu_count()} cores; medians. "
        "Plans and paths: the processor's time.",
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


def timed(function: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    begin = clock()
    function()
    return clock() - begin


def plan_rows() -> list[tuple[str, tuple[str, str, str]]]:
    """Each plan in processes of its own for the first call, and of new problems in this one; and the search for orders."""
    import shardwise as sw

    rows = []
    for name, equation, mesh, hardware in PLANS:
        given = {dim: size for dim, size in SIZES.items() if dim in sw.parse(equation).dims}
        code = (
            "import time, shardwise as sw; sw.plan; begin = time.process_time(); "
            f"sw.plan({equation!r}, sizes={given!r}, mesh={mesh!r}, hardware={hardware!r}); print(time.process_time() - begin)"
        )
        first = [float(subprocess.check_output([sys.executable, "-c", code], text=True)) for _ in range(5)]
        later, ordered = [], []
        sw.plan(equation, sizes=given, mesh=mesh, hardware=hardware)
        for sizes in fresh_sizes(given):
            later.append(timed(lambda: sw.plan(equation, sizes=sizes, mesh=mesh, hardware=hardware), time.process_time))  # noqa: B023
            ordered.append(timed(lambda: order(sw.parse(equation), sizes), time.process_time))  # noqa: B023
        where = f"{name}, {hardware}: `{equation}`"
        rows.append((f"plan, first of a process, {where}", shown(first, 1e-3, "ms")))
        rows.append((f"plan, later in a process, {where}", shown(later, 1e-3, "ms")))
        rows.append((f"opt_einsum's path of `{equation}`", shown(ordered, 1e-3, "ms")))
    return rows


def fresh_sizes(sizes: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Sizes that no problem had before."""
    for number in range(1, FRESH + 1):
        yield {dim: size * (1 + (7 * number + place) % (FRESH + 1)) for place, (dim, size) in enumerate(sizes.items())}


def order(equation: Equation, sizes: Mapping[str, int]) -> None:
    """The order of multiplication that opt_einsum finds: nothing is split, moved or priced."""
    symbol = {dim: opt_einsum.get_symbol(number) for number, dim in enumerate(sizes)}
    terms = ["".join(symbol[dim] for dim in operand.dims) for operand in (*equation.operands, equation.result)]
    shapes = [tuple(sizes[dim] for dim in operand.dims) for operand in equation.operands]
    opt_einsum.contract_path(f"{','.join(terms[:-1])}->{terms[-1]}", *shapes, shapes=True)


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


def drawing_row() -> tuple[str, tuple[str, str, str]]:
    """The picture of an array on 4096 devices."""
    from shardwise.layout import Layout
    from shardwise.mesh import Mesh
    from shardwise.pictures.boards import placed
    from shardwise.pictures.placement import Placement
    from shardwise.pictures.svg import svg

    placement = Placement.of("A", Layout.parse("I_x, J_y"), {"I": 8192, "J": 8192}, Mesh.parse("x=64, y=64"))
    drawn = [timed(lambda: svg(placed(placement)), time.process_time) for _ in range(7)]
    return "an array on 4096 devices, drawn as SVG", shown(drawn, 1e-3, "ms")


if __name__ == "__main__":
    main()
