"""The catalogue's figures of one chip beside what this device reaches: matmuls, memory, and the kernels of a traced step.

    python -m benchmarks.gpu [--hardware h100]

It is meant for one GPU, and runs on any device that JAX has: `--hardware` says which chip of the catalogue it is held
against, by default that of the device. Nothing is written.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from shardwise.chips import Hardware
from shardwise.errors import HardwareError, ShardwiseError
from shardwise.mesh import Mesh
from shardwise.units import seconds_text

ONE = Mesh.parse("x=1")
SIDES = (1024, 2048, 4096, 8192)
DTYPES = ("bfloat16", "float32", "float16")
COPIES = (2**24, 2**27, 2**30)  # bytes, read and written together twice as many
STEP = {"I": 8192, "J": 4096, "K": 8192}


@dataclass(frozen=True)
class Row:
    """One figure: what the catalogue says, and what was reached, in the same unit."""

    what: str
    unit: str
    catalogue: float
    measured: float

    @property
    def share(self) -> float:
        return self.measured / self.catalogue


Time = Callable[[str, Callable[[], Any]], float]  # of a program by name: its median seconds


def matmul_rows(chip: Hardware, time: Time, sides: Sequence[int] = SIDES, dtypes: Sequence[str] = DTYPES) -> Iterator[Row]:
    """FLOP/s of square matmuls on one device."""
    import jax
    import jax.numpy as jnp

    multiply = jax.jit(jnp.matmul)
    for dtype in dtypes:
        for side in sides:
            a = jax.random.normal(jax.random.key(0), (side, side), dtype)
            seconds = time(f"{dtype} {side}", lambda a=a: multiply(a, a))
            yield Row(f"{dtype} matmul, {side} a side", "FLOP/s", chip.flops(dtype, ONE), 2 * side**3 / seconds)


def memory_rows(chip: Hardware, time: Time, sizes: Sequence[int] = COPIES) -> Iterator[Row]:
    """Bytes/s of x + 1, read and written."""
    import jax
    import jax.numpy as jnp

    add = jax.jit(lambda x: x + 1)
    for size in sizes:
        x = jnp.zeros(size // 4, jnp.float32)
        seconds = time(f"copy {size}", lambda x=x: add(x))
        yield Row(f"x + 1 of {size / 2**20:.0f} MiB", "bytes/s", chip.memory_speed(ONE), 2 * size / seconds)


def step_rows(chip: Hardware, sizes: dict[str, int] = STEP, dtype: str = "bfloat16") -> Iterator[Row]:
    """The kernels of a traced step against the estimate: seconds a device computes in one call."""
    import jax

    import shardwise as sw

    a, b = (jax.random.normal(jax.random.key(k), (sizes[i], sizes[j]), dtype) for k, (i, j) in enumerate(("IJ", "JK")))
    plan = sw.plan("A[I, J] · B[J, K] -> C[I, K]", sizes=sizes, mesh="x=1", hardware=chip, dtype=dtype)
    line = sw.trace(plan.function(sw.make_mesh("x=1", devices=jax.devices()[:1])), *(sw.put(x, "I, J", "x=1") for x in (a, b)))
    shape = "x".join(map(str, sizes.values()))
    yield Row(f"kernels of a traced step, {dtype} {shape}", "1/s", 1 / plan.best.estimate.seconds, 1 / line.compute_seconds)


def table(chip: Hardware, rows: Sequence[Row]) -> str:
    """The figures side by side."""
    lines = [f"{chip.title}, by the catalogue and as measured", f"{'':44}{'catalogue':>12}{'measured':>12}{'share':>8}"]
    for row in rows:
        if row.unit == "1/s":
            figures = f"{seconds_text(1 / row.catalogue):>12}{seconds_text(1 / row.measured):>12}"
        else:
            figures = f"{row.catalogue:>12.3g}{row.measured:>12.3g}"
        lines.append(f"{row.what:44}{figures}{row.share:>8.0%}  {row.unit if row.unit != '1/s' else ''}".rstrip())
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hardware", help="the chip of the catalogue (default: that of the device)")
    options = parser.parse_args()
    import jax

    from shardwise.chips import hardware
    from shardwise.measure.timing import until_narrow

    def time(name: str, call: Callable[[], Any]) -> float:
        return until_narrow({name: call}, 3.0)[name].median_seconds

    device = jax.devices()[0]
    try:
        chip = hardware(options.hardware) if options.hardware else hardware.for_device_kind(device.device_kind)
    except HardwareError as error:
        print(f"bench-gpu: {error}", file=sys.stderr)
        return 2
    if device.platform == "cpu" and options.hardware is None:
        print(
            "bench-gpu: JAX finds no GPU here: run it where one is, or name --hardware cpu to try it on this host",
            file=sys.stderr,
        )
        return 2
    small = device.platform == "cpu"
    rows = [*matmul_rows(chip, time, SIDES[:1] if small else SIDES), *memory_rows(chip, time, COPIES[:1] if small else COPIES)]
    try:
        rows += step_rows(chip, {"I": 512, "J": 512, "K": 512} if small else STEP)
    except ShardwiseError as error:
        print(f"no kernels of a traced step: {error}", file=sys.stderr)
    print(table(chip, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
