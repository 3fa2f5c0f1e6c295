"""Random functions of matmuls, elementwise operations, reductions, transposes, scans and checkpoints, with random layouts."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

SIZE = 8  # of every dimension: what any mesh axis divides


def spec(chance: random.Random, axes: tuple[str, ...], rank: int) -> PartitionSpec:
    """A layout: each axis of the mesh splits one dimension, or none."""
    dims: list[tuple[str, ...]] = [() for _ in range(rank)]
    for axis in chance.sample(axes, len(axes)):
        place = chance.randrange(rank + 1)
        if place < rank:
            dims[place] = (*dims[place], axis)
    return PartitionSpec(*(dim or None for dim in dims))


def constrained(chance: random.Random, mesh: Any, array: Any) -> Any:
    layout = NamedSharding(mesh, spec(chance, mesh.axis_names, array.ndim))
    return jax.lax.with_sharding_constraint(array, layout)


def drawn(
    seed: int, mesh: Any, operation: Callable[..., Any] | None = None
) -> tuple[Callable[..., Any], list[PartitionSpec]]:  # fmt: skip
    """A function of four matrices to a scalar, and the layouts of these. All that is drawn is drawn again in each trace."""
    chance = random.Random(seed)
    layouts = [spec(chance, mesh.axis_names, 2) for _ in range(4)]
    program = chance.random()

    def function(*matrices: Any) -> Any:
        again = random.Random(f"{seed} {program}")
        held = list(matrices)
        for _ in range(again.randint(3, 6)):
            held.append((operation or _operation)(again, mesh, held))
        return sum(jnp.sin(array).mean() for array in held[-2:])

    return function, layouts


def _operation(chance: random.Random, mesh: Any, held: list[Any]) -> Any:
    one, other = chance.choice(held), chance.choice(held)
    match chance.randrange(9):
        case 0 | 1 | 2:
            made = one @ other / SIZE
        case 3:
            made = jnp.einsum("ij,kj->ki", one, other) / SIZE
        case 4:
            made = jnp.tanh(one) * other.T
        case 5:
            made = one - other.mean(axis=chance.randrange(2), keepdims=True)
        case 6:
            made = jax.checkpoint(lambda a, b: jnp.tanh(a @ b / SIZE) @ b / SIZE)(one, other)
        case 7:
            turns = chance.randint(2, 3)
            weights = jnp.stack([other] * turns)
            made, _ = jax.lax.scan(lambda carried, weight: (jnp.tanh(carried @ weight / SIZE), None), one, weights)
        case _:
            made = jax.jit(lambda a, b: a @ b / SIZE + a)(one, other)
    return constrained(chance, mesh, made) if chance.random() < 0.5 else made


# Under Explicit axes every type says its layout, with the axes of size 1 as they are written.


def typed_operation(chance: random.Random, mesh: Any, held: list[Any]) -> Any:
    """One of a mesh of Explicit axes: what comes next asks for the very type of what was before."""
    one, other = chance.choice(held), chance.choice(held)
    made = _typed_matmul(chance, mesh, one, other)
    match chance.randrange(4):
        case 0:
            return jax.shard_map(jnp.tanh, in_specs=(here := jax.typeof(made).sharding.spec,), out_specs=here)(made)
        case 1:
            return jnp.tanh(made) + made
        case 2:
            rows, columns = jax.typeof(other).sharding.spec
            there = PartitionSpec(_beside(rows, columns), columns)

            def turn(carried: Any, _: None) -> tuple[Any, None]:
                return carried + _matmul(carried, other, there), None

            carried, _ = jax.lax.scan(turn, jax.sharding.reshard(one, there), None, length=2)
            return carried
    return made


def _typed_matmul(chance: random.Random, mesh: Any, one: Any, other: Any) -> Any:
    """A matmul whose operands are split over the same axes along what is summed, and its result as it comes."""
    rows, inner = spec(chance, mesh.axis_names, 2)
    columns = spec(chance, tuple(set(mesh.axis_names) - {*(rows or ()), *(inner or ())}), 1)[0]
    one = jax.sharding.reshard(one, PartitionSpec(rows, inner))
    other = jax.sharding.reshard(other, PartitionSpec(inner, columns))
    return _matmul(one, other, spec(chance, mesh.axis_names, 2))


def _matmul(one: Any, other: Any, there: PartitionSpec) -> Any:
    return jnp.einsum("ij,jk->ik", one, other, out_sharding=there) / SIZE


def _beside(rows: Any, columns: Any) -> Any:
    return rows if not set(rows or ()) & set(columns or ()) else None
