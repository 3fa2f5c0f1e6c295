"""The headline contraction on arrays from disk: planned, placed, run and checked, and measured beside `jax.jit`.

Makes a.npy (64 MiB) and b.safetensors (8 MiB) in the folder demo, then calls the command line as a user would.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from shardwise.cli import main
from shardwise.commands.quiet import quiet

FOLDER = Path("demo")
I, J, K = 16384, 1024, 2048


def make_inputs() -> None:
    FOLDER.mkdir(exist_ok=True)
    generator = np.random.default_rng(0)
    if not (FOLDER / "a.npy").exists():
        np.save(FOLDER / "a.npy", generator.standard_normal((I, J), np.float32))
    if not (FOLDER / "b.safetensors").exists():
        save_file({"weights": generator.standard_normal((J, K), np.float32)}, FOLDER / "b.safetensors")


def demo() -> int:
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    make_inputs()
    given = [
        "A[I_x, J] · B[J, K] -> C[I, K]", "--mesh", "x=4",
        "--input", f"A={FOLDER}/a.npy", "--input", f"B={FOLDER}/b.safetensors:weights",
    ]  # fmt: skip
    code = shown("run", *given, "--output", f"{FOLDER}/c.npy")
    if code:
        return code
    c = np.load(FOLDER / "c.npy", mmap_mode="r")
    print(f"\n{FOLDER}/c.npy holds C: {c.dtype}, {c.shape[0]} x {c.shape[1]}\n")
    return shown("compare", *given, "--ways", "auto,constraint,planned", "--seconds", "10")


def shown(*arguments: str) -> int:
    """Call a command, and print it first."""
    print(f"$ shardwise {shlex.join(arguments)}\n", flush=True)
    return main(arguments)


if __name__ == "__main__":
    with quiet():
        code = demo()
    sys.exit(code)
