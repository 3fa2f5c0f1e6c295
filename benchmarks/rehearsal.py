"""What reading and rehearsing cost: seconds and memory, each in a process of its own.

    python -m benchmarks.rehearsal

Written to docs/benchmarks/rehearsal.md. No device is attached: the real compilers for TPU and GPU run on this host.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from shardwise import writing

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "benchmarks" / "rehearsal.md"
GOLDEN = ROOT / "tests" / "golden" / "texts" / "jax-0.12"
REHEARSED = [
    ("matmul", "v5e:16x16", "x=16, y=16"),
    ("matmul", "v5p:16x20x28", "x=320, y=28"),
    ("matmul", "v7x:4x4x4", "x=16, y=8"),
    ("matmul", "h100:32x8", "x=32, y=8"),
    ("transformer layer with gradients", "v5e:16x16", "x=64, y=4"),
    ("transformer layer with gradients", "v5p:4x4x4", "x=16, y=4"),
    ("transformer layer with gradients", "v5p:16x20x28", "x=2240, y=4"),
]
READ = [("v5e-2x4", 5), ("v5e-2x4", 20), ("v5e-2x4", 80), ("cpu", 20), ("h100-8", 20)]


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps(CHILDREN[sys.argv[1]](*sys.argv[2:])))
        return
    lines = ["# What rehearsing and reading cost", "", f"Made by `python -m benchmarks.rehearsal`, {os.cpu_count()} cores.", ""]
    lines += ["## Rehearsed: from a new process to the audit", ""]
    lines += ["| program | on | mesh | collectives | text | seconds in all | of these compiling and reading | peak memory |"]
    lines += ["|---|---|---|---|---|---|---|---|"]
    for program, on, mesh in REHEARSED:
        began = time.perf_counter()
        found = child("rehearse", program, on, mesh)
        whole = time.perf_counter() - began
        text = f"{found['text_bytes'] / 1e6:.2f} MB"
        memory = f"{found['peak_bytes'] / 1e9:.2f} GB"
        lines.append(
            f"| {program} | {on} | {mesh} | {found['collectives']} | {text} | {whole:.1f} | {found['seconds']:.1f} | {memory} |"
        )
        print(lines[-1], flush=True)
    lines += ["", "## Read: a text made of copies of a transformer layer's", ""]
    lines += [
        "| compiled for | text | lines | reader s | collectives s | timeline s | collectives found |",
        "|---|---|---|---|---|---|---|",
    ]
    for target, megabytes in READ:
        found = child("read", target, str(megabytes))
        lines.append(
            f"| {target} | {found['bytes'] / 1e6:.0f} MB | {found['lines']:,} | {found['read']:.2f} | {found['collect']:.2f} | "
            f"{found['replay']:.2f} | {found['collectives']} |"
        )
        print(lines[-1], flush=True)
    writing.write(PAGE, "\n".join(lines) + "\n")


def child(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.rehearsal", *arguments]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def rehearse(program: str, on: str, mesh: str) -> dict[str, Any]:
    """Rehearse a program; the time from its first line to the printed audit."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import AxisType, NamedSharding
    from jax.sharding import PartitionSpec as P

    import shardwise as sw
    from benchmarks import layers
    from shardwise.mesh import Mesh

    began = time.perf_counter()
    grid = Mesh.parse(mesh)
    abstract = jax.sharding.AbstractMesh(
        tuple(size for _, size in grid.axes), grid.names, axis_types=(AxisType.Auto,) * len(grid.axes)
    )

    def placed(shape: tuple[int, ...], spec: P) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(abstract, spec))

    x, y = (grid.axis_size(axis) for axis in grid.names)
    if program == "matmul":
        args = [placed((x * 128, 8192), P("x", None)), placed((8192, y * 128), P(None, "y"))]
        audit = sw.rehearse(matmul, *args, on=on)
    else:
        width, batch = x * 256 if x <= 64 else x * 4, x
        weights = layers.weights(width, 32, 4 * width, placed)
        audit = sw.rehearse(layers.step, weights, placed((batch, 2048, width), P("x", None, None)), on=on)
    shown = str(audit)
    assert audit.collectives
    assert shown
    return {
        "seconds": time.perf_counter() - began,
        "collectives": len(audit.collectives),
        "text_bytes": len(audit.module.text),
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def matmul(a: Any, b: Any) -> Any:
    """A[I_x, J] · B[J, K_y] -> C[I_x, K]: C is gathered."""
    import jax
    from jax.sharding import PartitionSpec as P

    return jax.lax.with_sharding_constraint(a @ b, P("x", None))


def read(target: str, megabytes: str) -> dict[str, Any]:
    """Read and replay a text of so many megabytes."""
    from shardwise.chips import hardware
    from shardwise.compiled.replaying.modelled import timeline
    from shardwise.compiled.text.hlo import read as read_text
    from shardwise.compiled.text.reading import collectives
    from shardwise.mesh import Mesh

    text = copies(gzip.decompress((GOLDEN / target / "transformer.txt.gz").read_bytes()).decode(), int(megabytes) * 10**6)
    chip = hardware({"v5e-2x4": "tpu-v5e", "cpu": "cpu", "h100-8": "h100"}[target])
    mesh = Mesh.parse("x=4, y=2")
    began = time.perf_counter()
    module = read_text(text)
    after_reading = time.perf_counter()
    found = collectives(module, mesh)
    after_collecting = time.perf_counter()
    timeline(module, found.collectives, chip, mesh)
    assert not found.unread
    return {
        "bytes": len(text),
        "lines": text.count("\n"),
        "read": after_reading - began,
        "collect": after_collecting - after_reading,
        "replay": time.perf_counter() - after_collecting,
        "collectives": len(found.collectives),
    }


def copies(text: str, size: int) -> str:
    """A module whose entry calls copies of a module's entry, until it has so many bytes."""
    entry_at = text.index("ENTRY")
    tables_end = text.index("\n%")
    tables, computations, entry = text[:tables_end], text[tables_end:entry_at], text[entry_at:]
    name = re.match(r"ENTRY %([\w.\-]+)", entry)
    assert name is not None
    count = max(1, size // len(computations + entry))
    parts = [tables]
    parts += [re.sub(r"%([\w.\-]+)", rf"%\1_{copy}", computations + entry.replace("ENTRY ", "")) for copy in range(count)]
    lines = entry.split("\n")
    parameters = [line for line in lines if " parameter(" in line]
    calls = [f"  %call.{copy} = f32[] call(), to_apply=%{name[1]}_{copy}" for copy in range(count)]
    head = lines[0].replace(name[1], "calls_all")
    return "".join(parts) + "\n".join([head, *parameters, *calls, "}"]) + "\n"


CHILDREN = {"rehearse": rehearse, "read": read}

if __name__ == "__main__":
    main()
