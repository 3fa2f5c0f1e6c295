"""The gradient of two matmuls, up and down: the compiler's own, and the best of the plans' pairs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding

from shardwise.chips.topology import Topology
from shardwise.commands.bench_overlap import microseconds, planned, ran
from shardwise.compiled.compiling import rehearse
from shardwise.compiled.targets.unattached import target_mesh
from shardwise.errors import ShardwiseError
from shardwise.measure import rivals
from shardwise.measure.overlap_rows import Ran
from shardwise.measure.timing import unsharded
from shardwise.notation import Equation, parse
from shardwise.planning.explain import summary
from shardwise.runtime.devices import AnyMesh

PAIR = ("A[I_x, J] · B[J, F_x] -> H[I, F_x]", "H[I, F_x] · W[F_x, J] -> Y[I_x, J]")
PAIRED = 2  # of each matmul's candidates, put together


@dataclass(frozen=True, slots=True)
class Pair:
    """The gradient of a loss of two matmuls, up and down: the compiler's own, and the two plans'."""

    target: str
    size: str
    programs: tuple[str, str]
    own: Ran
    ours: Ran
    local: float

    @property
    def gain(self) -> float:
        return self.own.step / self.ours.step


def measured_pair(target: str, sizes: dict[str, int]) -> Pair:
    """The gradient of the squares of an up and a down matmul: the compiler's own, and the best of the plans' pairs.

    Args:
        sizes: of rows I, of the model J, and of the hidden dimension F.
    """
    topology = Topology.parse(target)
    grid = target_mesh(topology)
    auto = rivals.on_auto(grid)
    up, down = (parse(text) for text in PAIR)
    operands = (*up.operands, down.operands[1])
    own = ran(rehearse(own_gradient(up, down, auto), *rivals.shapes(operands, sizes, auto), on=topology))
    args = rivals.shapes(operands, sizes, grid)
    found: list[tuple[Ran, tuple[str, str]]] = []
    for function, names in _pairs(sizes, topology, grid):
        try:
            audit = rehearse(gradient(function), *args, on=topology, mesh=grid)
        except ShardwiseError:  # as for want of memory: another pair serves
            continue
        found.append((ran(audit), names))
    if not found:
        raise ShardwiseError(f"{target}: no pair of plans compiles for I={sizes['I']}, J={sizes['J']}, F={sizes['F']}")
    ours, names = min(found, key=lambda each: each[0].step)
    function, whole = local_gradient({**sizes, "F": sizes["F"] // topology.size})
    matmul = rehearse(function, *whole, on=topology).timeline().compute_seconds
    return Pair(target, "x".join(str(sizes[dim]) for dim in "IJF"), names, own, ours, microseconds(matmul))


def _pairs(sizes: dict[str, int], topology: Topology, mesh: Any) -> Iterator[tuple[Any, tuple[str, str]]]:
    plans = []
    for text in PAIR:
        dims = parse(text).dims
        plans.append(planned(text, {dim: sizes[dim] for dim in dims}, topology))
    for first, second in itertools.product(*(plan.candidates[:PAIRED] for plan in plans)):
        up, down = plans[0].function(mesh, first), plans[1].function(mesh, second)

        def both(a: Any, b: Any, w: Any, up: Any = up, down: Any = down) -> Any:
            return down(up(a, b), w)

        yield both, (summary(first.program), summary(second.program))


def own_gradient(up: Equation, down: Equation, mesh: AnyMesh) -> Callable[..., Any]:
    """The gradients of `squared` of two matmuls in a row, as the compiler partitions them by itself."""
    first, second = unsharded(up), unsharded(down)

    def pair(a: Any, b: Any, w: Any) -> Any:
        h = lax.with_sharding_constraint(first(a, b), NamedSharding(mesh, up.result.layout.spec))
        return lax.with_sharding_constraint(second(h, w), NamedSharding(mesh, down.result.layout.spec))

    kept = tuple(NamedSharding(mesh, operand.layout.spec) for operand in (*up.operands, down.operands[1]))
    return jax.jit(gradient(pair), in_shardings=kept, out_shardings=kept)


def gradient(pair: Callable[..., Any]) -> Callable[..., Any]:
    """The gradients, by all three arrays, of the sum of squares of what a pair of matmuls makes."""
    return jax.grad(lambda a, b, w: jnp.sum(pair(a, b, w).astype(jnp.float32) ** 2), (0, 1, 2))


def local_gradient(sizes: dict[str, int]) -> tuple[Callable[..., Any], list[Any]]:
    """The gradients of a pair of matmuls on one device, which holds its share of the hidden dimension F and all rows."""
    terms = ("IJ", "JF", "FJ")
    args = [jax.ShapeDtypeStruct(tuple(sizes[dim] for dim in term), jnp.bfloat16) for term in terms]
    return gradient(lambda a, b, w: a @ b @ w), args


def pair_of(facts: dict[str, Any]) -> Pair:
    """A pair from what `dataclasses.asdict` made of it."""
    own, ours = Ran(**facts["own"]), Ran(**facts["ours"])
    read: dict[str, Any] = {**facts, "programs": tuple(facts["programs"]), "own": own, "ours": ours}
    return Pair(**read)
