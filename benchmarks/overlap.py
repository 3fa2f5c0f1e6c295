"""Collective matmul against the compiler's own, modelled from the schedule that a TPU's real compiler makes; nothing runs.

    python -m benchmarks.overlap --on v5e:2x4,v6e:2x4 --kinds AG,RS --sizes 16384x1024x2048 --json overlap.json

For each case a row per variant: the modelled step, what of it waits for transfers, what computes, temporary memory.
The bound is max(compute of the fused local matmul, wire bytes / bandwidth) of the better algorithm.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import shardwise as sw
from shardwise.chips.links import pricer
from shardwise.chips.placing import mesh_order, physical_routes
from shardwise.chips.topology import Topology
from shardwise.runtime.rings import einsum_scatter, gather_einsum

TARGETS = ("v5e:2x4", "v6e:2x4", "v5p:2x2x2", "v7x:2x2x1", "v4:2x2x2", "v5e:4x4", "v6e:4x4")
SIZES = ("16384x1024x2048", "8192x8192x28672", "8192x28672x8192", "8192x8192x8192", "4096x16384x53248")
SPECS = {  # of A[I, J], B[J, K] and C[I, K]
    "AG": (("x", None), (None, None), (None, None)),
    "TP-up": (("x", None), (None, "x"), (None, "x")),
    "RS": ((None, "x"), ("x", None), ("x", None)),
    "weights": (("x", None), ("x", None), ("x", None)),
}
RINGS = ("ring", "ring/2", "bidirectional", "bidirectional/2", "last by ring", "last by ring/2")
LAST = ("gather last", "last by ring", "last by ring/2")  # of AG alone: multiply, then gather the result
PLAIN = ("own", "textbook", "plain", "gather last")


@dataclass(frozen=True)
class Row:
    """One variant of one case, in microseconds and bytes."""

    target: str
    kind: str
    size: str
    variant: str
    step: float
    exposed: float
    compute: float
    transfer: float
    temporaries: int
    permutes: int
    hidden: int


def main() -> None:
    """Compile what the arguments ask for, and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--on", default=",".join(TARGETS))
    parser.add_argument("--kinds", default=",".join(SPECS))
    parser.add_argument("--sizes", default=",".join(SIZES))
    parser.add_argument("--variants", default=",".join(PLAIN + RINGS))
    parser.add_argument("--json", type=Path, help="where rows are kept; those that are there are not compiled again")
    given = parser.parse_args()
    rows = [Row(**row) for row in json.loads(given.json.read_text())] if given.json and given.json.exists() else []
    for target, kind, size in cases(given):
        for variant in ("local", *given.variants.split(",")):
            if variant in LAST and kind != "AG":
                continue
            if not any((r.target, r.kind, r.size, r.variant) == (target, kind, size, variant) for r in rows):
                rows.append(measured(target, kind, size, variant))
        if given.json:
            given.json.write_text(json.dumps([asdict(row) for row in rows], indent=0))
        report([row for row in rows if (row.target, row.kind, row.size) == (target, kind, size)])
    for target in given.on.split(","):
        summary(target, [row for row in rows if row.target == target])


def cases(given: Any) -> Iterator[tuple[str, str, str]]:
    for target in given.on.split(","):
        for size in given.sizes.split(","):
            for kind in given.kinds.split(","):
                yield target, kind, size


def measured(target: str, kind: str, size: str, variant: str) -> Row:
    """Compile one variant for the target, and replay its schedule."""
    n = Topology.parse(target).size
    rows, inner, columns = map(int, size.split("x"))
    mesh = Mesh(np.array(jax.devices()[:n]), ("x",), axis_types=(AxisType.Auto,))
    of_a, of_b, of_c = (PartitionSpec(*spec) for spec in SPECS[kind])
    if variant == "local":
        of_a, of_b, of_c = local_specs(kind)
    shapes = (((rows, inner), of_a), ((inner, columns), of_b))
    args = [jax.ShapeDtypeStruct(s, jnp.bfloat16, sharding=NamedSharding(mesh, spec)) for s, spec in shapes]
    if variant == "own":
        shardings = [NamedSharding(mesh, spec) for spec in (of_a, of_b, of_c)]
        function = jax.jit(lambda a, b: a @ b, in_shardings=tuple(shardings[:2]), out_shardings=shardings[2])
    else:
        body = shard_function(kind, variant, n)
        function = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=(of_a, of_b), out_specs=of_c, check_vma=False))
    audit = sw.rehearse(function, *args, on=target)
    line = audit.timeline()
    permutes = [c for c in audit.collectives if c.kind == "collective-permute"]
    seconds = (line.step_seconds, line.exposed_seconds, line.compute_seconds, line.transfer_seconds)
    return Row(
        target, kind, size, variant, *(round(s * 1e6, 2) for s in seconds), audit.memory.temporaries if audit.memory else 0,
        len(permutes), sum(1 for c in permutes if c.hidden_by),
    )  # fmt: skip


def local_specs(kind: str) -> tuple[PartitionSpec, ...]:
    """Layouts in which nothing has to be sent for the products that one device makes."""
    spec = PartitionSpec
    match kind:
        case "AG":
            return spec(), spec(), spec()
        case "TP-up":
            return spec(), spec(None, "x"), spec(None, "x")
        case "RS":  # the shards of the contracted dimension, as if they were all of it
            return spec(None, "x"), spec("x"), spec()
        case _:
            return spec("x"), spec(), spec("x")


def shard_function(kind: str, variant: str, n: int) -> Callable[..., Any]:
    """What one device does with its shards of A and B."""
    gathered, dim = (1, "J") if kind == "weights" else (0, "I")
    match variant, kind:
        case "local", _:
            return lambda a, b: a @ b
        case "plain", "RS":
            return lambda a, b: lax.psum_scatter(a @ b, "x", tiled=True)
        case "plain", "weights":
            return lambda a, b: a @ lax.all_gather(b, "x", tiled=True)
        case "plain", _:
            return lambda a, b: lax.all_gather(a, "x", tiled=True) @ b
        case "gather last", _:
            return lambda a, b: lax.all_gather(a @ b, "x", tiled=True)
        case (("last by ring" | "last by ring/2"), _):
            last: Any = {"gathered": 0, "dim": "I", "axes": "x", "n": n, "chunks": 2 if variant.endswith("2") else 1}
            return lambda a, b: gather_einsum([a @ b], ["IK"], "IK", **last)
        case "textbook", _:
            return lambda a, b: textbook(kind, a, b, n)
    way, _, chunks = variant.partition("/")
    options: Any = {"dim": dim, "axes": "x", "n": n, "way": way, "chunks": int(chunks or 1)}
    if kind == "RS":
        return lambda a, b: einsum_scatter([a, b], ["IJ", "JK"], "IK", **options)
    return lambda a, b: gather_einsum([a, b], ["IJ", "JK"], "IK", gathered=gathered, **options)


def textbook(kind: str, a: Any, b: Any, n: int) -> Any:
    """A ring as teaching documents have it: unrolled, into zeros, in whatever order the compiler likes."""
    place, up = lax.axis_index("x"), [(k, (k + 1) % n) for k in range(n)]
    if kind == "RS":
        width, total = a.shape[0] // n, jnp.zeros((a.shape[0] // n, b.shape[1]), a.dtype)
        for hop in range(n):
            total = total + lax.dynamic_slice_in_dim(a, (place - hop - 1) % n * width, width) @ b
            total = lax.ppermute(total, "x", up) if hop < n - 1 else total
        return total
    if kind == "weights":
        width, total = b.shape[0], jnp.zeros((a.shape[0], b.shape[1]), a.dtype)
        for hop in range(n):
            total = total + lax.dynamic_slice_in_dim(a, (place - hop) % n * width, width, 1) @ b
            b = lax.ppermute(b, "x", up) if hop < n - 1 else b
        return total
    width, result = a.shape[0], jnp.zeros((a.shape[0] * n, b.shape[1]), a.dtype)
    for hop in range(n):
        result = lax.dynamic_update_slice_in_dim(result, a @ b, (place - hop) % n * width, 0)
        a = lax.ppermute(a, "x", up) if hop < n - 1 else a
    return result


def bound(rows: dict[str, Row]) -> float:
    """max(compute, wire), in microseconds, of the better algorithm: multiply the gathered, or gather the multiplied."""
    case, compute = rows["local"], rows["local"].compute
    size, inner, columns = map(int, case.size.split("x"))
    moved = {"RS": size * columns, "weights": inner * columns}.get(case.kind, size * inner)
    found = [max(compute, wire_microseconds(case.target, case.kind, 2 * moved))]
    if case.kind == "AG":  # each device multiplies its own rows alone
        share = compute / Topology.parse(case.target).size
        found.append(max(share, wire_microseconds(case.target, case.kind, 2 * size * columns)))
    return min(found)


def wire_microseconds(target: str, kind: str, whole_bytes: float) -> float:
    """What gathering, or reducing and scattering, so many bytes takes with every link that the axis may use."""
    topology = Topology.parse(target)
    mesh = sw.Mesh.parse(f"x={topology.size}")
    routes = physical_routes(topology, mesh_order(topology, mesh), mesh)
    collective = "reduce-scatter" if kind == "RS" else "all-gather"
    price = pricer(collective, sw.hardware(topology.chip), mesh, ("x",), routes)  # type: ignore[call-arg]
    ends = (whole_bytes / topology.size, whole_bytes)
    return 1e6 * price(*(ends[::-1] if kind == "RS" else ends))


def report(rows: list[Row]) -> None:
    """One case."""
    table = {row.variant: row for row in rows}
    own = table["own"].step
    first = rows[0]
    print(f"\n{first.target}  {first.kind}  {first.size}  bound {bound(table):.1f} µs (modelled from the compiled schedule)")
    for row in rows:
        seconds = f"step {row.step:10.1f}  {own / row.step:5.2f}x  exposed {row.exposed:9.1f}  compute {row.compute:9.1f}"
        memory = f"temp {row.temporaries / 2**20:8.1f} MiB  hidden {row.hidden}/{row.permutes}"
        print(f"  {row.variant:16} {seconds}  {memory}", flush=True)


def summary(target: str, rows: list[Row]) -> None:
    """A target's geometric means, of the best of plain programs and rings."""
    tables: dict[tuple[str, str], dict[str, Row]] = {}
    for row in rows:
        tables.setdefault((row.kind, row.size), {})[row.variant] = row
    if not tables:
        return
    best = {case: min((r for r in t.values() if r.variant != "local"), key=lambda r: r.step) for case, t in tables.items()}
    gains = [t["own"].step / best[case].step for case, t in tables.items()]
    over = [best[case].step / bound(t) for case, t in tables.items()]
    books = [t["textbook"].step / best[case].step for case, t in tables.items() if "textbook" in t]
    worst = max(tables, key=lambda case: best[case].step / bound(tables[case]))
    print(
        f"\n{target}: {len(tables)} cases; {mean(gains):.2f}x faster than the compiler's own (least {min(gains):.2f}), "
        f"{mean(books):.2f}x than the textbook ring; {mean(over):.2f} of the bound (worst {max(over):.2f}, {' '.join(worst)})"
    )


def mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


if __name__ == "__main__":
    main()
