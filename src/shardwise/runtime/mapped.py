"""`jax.shard_map` of arrays as they are typed, and arrays typed otherwise.

Over Explicit axes JAX maps no array whose type is another than the one it is mapped by. `P("x", "y")` and `P(None, "y")` are
two types also where x has one device, which splits nothing: meshes of training jobs are full of such axes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from shardwise.layout import Layout
from shardwise.runtime.arrays import explicit_axes, part_over


def map_shards(
    local: Callable[..., Any], *, mesh: Any, in_specs: Sequence[Any], out_specs: Any, check_vma: bool = True
) -> Callable[..., Any]:
    """`jax.shard_map` over all axes of a mesh; arguments may be trees of arrays, and so may their `in_specs`."""
    mapped = jax.shard_map(local, mesh=mesh, in_specs=tuple(in_specs), out_specs=out_specs, check_vma=check_vma)

    @functools.wraps(mapped)
    def function(*arrays: Any) -> Any:
        return mapped(*(_typed_as(array, spec) for array, spec in zip(arrays, in_specs, strict=True)))

    return function


def _typed_as(given: Any, specs: Any) -> Any:
    """A tree of arrays as one specification says, or each of a tuple of such as its own."""
    if isinstance(specs, PartitionSpec):
        return jax.tree.map(lambda array: typed_as(array, specs), given)
    return tuple(_typed_as(each, spec) for each, spec in zip(given, specs, strict=True))


def typed_as(array: Any, spec: PartitionSpec) -> Any:
    """An array with its dimensions split over Explicit axes as a type says; itself where they are.

    Where types differ in axes of size 1 alone, nothing moves.

    >>> import shardwise as sw
    >>> a = sw.put([1.0, 2.0], "A[I_x]", sw.make_mesh("x=2, y=1"))
    >>> tuple(jax.typeof(typed_as(a, PartitionSpec(("x", "y")))).sharding.spec)
    (('x', 'y'),)
    """
    sharding = jax.typeof(array).sharding
    explicit = explicit_axes(sharding.mesh)
    if not explicit:
        return array
    names = Layout.from_spec((None,) * array.ndim).names
    has, wanted = (part_over(Layout.from_spec(each, names), explicit) for each in (sharding.spec, spec))
    if has.dims == wanted.dims:
        return array
    kept = {"unreduced": sharding.spec.unreduced, "reduced": sharding.spec.reduced}
    return jax.sharding.reshard(array, NamedSharding(sharding.mesh, PartitionSpec(*Layout(wanted.dims).spec, **kept)))
