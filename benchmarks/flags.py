"""What compiler options change in the compiler's own collective matmul, modelled: writes docs/benchmarks/flags.md.

python -m benchmarks.flags [--on v5e:2x4 ...]
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks" / "flags.md"
TARGETS = ("v5e:2x4", "v6e:2x4", "v5p:2x2x2")
CASES = (("AG", "16384x1024x2048"), ("TP-up", "8192x8192x28672"), ("RS", "8192x28672x8192"))
NAME = "xla_tpu_enable_async_collective_fusion"
FUSION = f"{NAME}=true,{NAME}_fuse_all_gather=true,{NAME}_multiple_steps=true,xla_tpu_overlap_compute_collective_tc=true"
VARIANTS = {
    "asynchronous collective fusion": FUSION,
    "the same, all-gathers asynchronous": f"{FUSION},xla_enable_async_all_gather=true",
    "decomposed einsums": "xla_tpu_decompose_all_gather_einsum=true,xla_tpu_decompose_einsum_reduce_scatter=true",
    "windowed einsum always": "xla_jf_spmd_threshold_for_windowed_einsum_mib=0",
    "windowed einsum never": "xla_jf_spmd_threshold_for_windowed_einsum_mib=1000000",
    "newer features of the scheduler": "xla_tpu_enable_all_experimental_scheduler_features=true",
    "96 MiB of vector memory for an operation": "xla_tpu_scoped_vmem_limit_kib=98304",
}


def main() -> None:
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--on", nargs="+", default=TARGETS)
    rows = [row for target in parser.parse_args().on for row in measured(target)]
    PAGE.write_text(page(rows), encoding="utf-8")
    print(PAGE)


def measured(target: str) -> list[list[str]]:
    import shardwise as sw
    from shardwise.compiled.targets.unattached import target_mesh
    from shardwise.measure import rivals
    from shardwise.measure.overlap_rows import KINDS, Case
    from shardwise.measure.tries import Variant, tried, variant
    from shardwise.mesh import Mesh

    grid = Mesh((("x", 8),))
    mesh = rivals.on_auto(target_mesh(target, grid))
    rows = []
    for kind, size in CASES:
        equation, sizes = sw.parse(KINDS[kind]), Case(target, kind, size).sizes

        def compiled(each: Variant, equation: Any = equation, sizes: Any = sizes) -> Any:
            structs = rivals.shapes(equation.operands, sizes, mesh)
            return sw.rehearse(rivals.own(equation, mesh), *structs, on=target, mesh=mesh, compiler_options=dict(each.options))

        plain, *others = tried([variant(text) for text in VARIANTS.values()], compiled)
        changes = ["refused" if each.failed else f"{each.seconds / plain.seconds - 1:+.1%}" for each in others]
        rows.append([target, f"{kind} {size}", f"{1e6 * plain.seconds:,.0f}", *changes])
        print(" ".join(rows[-1]), file=sys.stderr, flush=True)
    return rows


def page(rows: list[list[str]]) -> str:
    """The table, and how to make it."""
    from shardwise.commands.making import versions

    made = ", ".join(f"{name} {version}" for name, version in versions("v5e:2x4").items())
    head = ["target", "case", "its own, us", *VARIANTS]
    lines = [
        "# Options of the TPU compiler, tried",
        "",
        f"Made by `python -m benchmarks.flags`: {made}. Steps of the compiler's own program (`jax.jit` with",
        "`out_shardings`, Auto axes, bfloat16, 8 devices on one axis) are modelled from the compiled schedule; the other",
        "columns say by how much an option changes it. Refused: only the compiler for v5e takes the last option of the second",
        "column together with the fusion of all-gathers.",
        "",
        f"| {' | '.join(head)} |",
        "|" + "---|" * len(head),
        *(f"| {' | '.join(row)} |" for row in rows),
        "",
        "The options, in the order of the columns:",
        "",
        *(f"- {name}: `{text.replace(',', ' ')}`" for name, text in VARIANTS.items()),
        "",
        "`shardwise flags` lists these and others with their sources; `shardwise rehearse ... --try NAME=VALUE` tries them on",
        "a program of yours. What Shardwise makes of the same cases stands in [the overlap benchmark](overlap.md).",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
