"""Lowering: a program becomes a function on local shards, and that function one `jax.shard_map`.

Every map is checked by JAX's own types (`check_vma`): a value that must leave replicated is gathered with
`to="invarying"`, any other as varying, so that its gradient is a reduce-scatter rather than an all-reduce and a slice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, assert_never

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from shardwise.layout import Axes, Layout
from shardwise.program import (
    AllGather,
    AllReduce,
    AllToAll,
    CollectivePermute,
    Einsum,
    Program,
    ReduceScatter,
    Slice,
    Step,
    consumed,
    touched,
)
from shardwise.runtime.devices import AnyMesh, is_host


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """How products are computed: as `jnp.einsum` takes them."""

    precision: Any = None
    preferred_element_type: Any = None


@dataclass(frozen=True, slots=True)
class Local:
    """A shard during the run; `dims` names its dimensions in the order in which they lie in memory."""

    array: Any
    dims: tuple[str, ...]

    def ordered(self, dims: tuple[str, ...]) -> Local:
        if dims == self.dims:
            return self
        return Local(jnp.transpose(self.array, [self.dims.index(dim) for dim in dims]), dims)


def lower(
    program: Program, mesh: AnyMesh, arithmetic: Arithmetic = Arithmetic(),
    padded: Mapping[str, int] | None = None, sizes: Mapping[str, int] | None = None,
) -> Callable[..., Any]:  # fmt: skip
    """Lower a program to a function of global arrays.

    With `padded`, dimensions that an operand does not split are filled with zeros up to the padded size inside, and
    dimensions that the result does not split are cut back to `sizes`.

    >>> import shardwise as sw
    >>> program = sw.plan("A[I_x] -> A[I]", sizes={"I": 8}, mesh="x=4").best.program
    >>> mesh = sw.make_mesh("x=4")
    >>> lower(program, mesh)(sw.put(jnp.arange(8.0), "I_x", mesh)).sharding.spec
    PartitionSpec(None,)
    """
    local = _Local(program, arithmetic, leading=is_host(mesh), padded=padded or {}, sizes=sizes or {})
    partial = [layout.on(program.mesh).unreduced for _, layout in program.inputs]
    specs = [layout.on(program.mesh) for _, layout in program.inputs]
    result = program.result
    in_specs = tuple(_with_leading(layout) if layout.unreduced else layout.spec for layout in specs)
    mapped = jax.shard_map(local, mesh=mesh, in_specs=in_specs, out_specs=result.spec)
    if not any(partial):
        return mapped
    peels = [_peel(layout, mesh) if layout.unreduced else None for layout in specs]

    def with_partial_sums(*arrays: Any) -> Any:
        return mapped(*(peel(a) if peel else a for peel, a in zip(peels, arrays, strict=True)))

    return with_partial_sums


def _with_leading(layout: Layout) -> PartitionSpec:
    """The layout with a dimension in front that counts the summands."""
    return PartitionSpec(tuple(sorted(layout.unreduced)), *Layout(layout.dims).spec)


def _peel(layout: Layout, mesh: AnyMesh) -> Callable[[Any], Any]:
    """Show an array of partial sums as an array of its summands, with a dimension in front; nothing moves.

    JAX's types know no such view, so this one map is unchecked, and its derivative is written out: the result depends
    on the sum alone, so every summand has the same cotangent, and each device already holds it.
    """
    leading = _with_leading(layout)
    split = Layout(layout.dims).spec
    reduced = PartitionSpec(*split, reduced=set(layout.unreduced))
    view = jax.shard_map(lambda v: v[None], mesh=mesh, in_specs=layout.spec, out_specs=leading, check_vma=False)
    back = jax.shard_map(lambda v: v[0], mesh=mesh, in_specs=leading, out_specs=reduced, check_vma=False)

    @jax.custom_vjp
    def peel(array: Any) -> Any:
        return view(array)

    peel.defvjp(lambda array: (view(array), None), lambda _, cotangent: (back(cotangent),))
    return peel


class _Local:
    """The function that `shard_map` runs on each device's shards: one interpreter of the program's steps.

    `leading`: XLA's CPU collectives work on the first dimension in memory and copy whole arrays otherwise. There a
    shard is turned before it is gathered and after it is scattered, and an einsum writes what is scattered next
    with that dimension first, so that only shards are copied.
    """

    def __init__(
        self, program: Program, arithmetic: Arithmetic, leading: bool, padded: Mapping[str, int], sizes: Mapping[str, int]
    ) -> None:
        self.program = program
        self.arithmetic = arithmetic
        self.leading = leading
        self.padded = padded
        self.sizes = sizes
        self.states = program.states()
        self.invarying = invarying_axes(program)
        self.names = {dim: i for i, dim in enumerate(_all_dims(self.states))}

    def __call__(self, *shards: Any) -> Any:
        values = {}
        for (name, _), shard in zip(self.program.inputs, shards, strict=True):
            layout = self.states[0][name]
            values[name] = self.padded_input(Local(shard[0] if layout.unreduced else shard, layout.names), layout)
        for number, step in enumerate(self.program.steps):
            made = self.step(number, step, [values.pop(name) for name in consumed(step)])
            values[touched(step)] = made
        result = self.program.result
        out = values[self.program.output].ordered(result.names).array
        out = out[tuple(slice(self.sizes.get(dim) if not axes else None) for dim, axes in result.dims)] if self.sizes else out
        if self.arithmetic.preferred_element_type is not None:  # as jnp.einsum does where nothing is multiplied, too
            out = out.astype(self.arithmetic.preferred_element_type)
        if result.unreduced:
            out = lax.pcast(out, tuple(sorted(result.unreduced)), to="unreduced")
        return out

    def padded_input(self, value: Local, layout: Layout) -> Local:
        widths = [
            (0, 0 if axes else self.padded.get(dim, size) - size)
            for (dim, axes), size in zip(layout.dims, value.array.shape, strict=True)
        ]
        return Local(jnp.pad(value.array, widths), value.dims) if any(after for _, after in widths) else value

    def step(self, number: int, step: Step, values: list[Local]) -> Local:
        value = values[0]
        match step:
            case AllGather(_, dim, axes):
                value = self.to_front(value, dim)
                to = "invarying" if self.invarying[number] & set(axes) else "varying"
                gathered = lax.all_gather(value.array, axes, axis=value.dims.index(dim), tiled=True, to=to)
                return Local(gathered, value.dims)
            case ReduceScatter(_, dim, axes):
                value = self.to_front(value, dim)
                at = value.dims.index(dim)
                return Local(lax.psum_scatter(value.array, axes, scatter_dimension=at, tiled=True), value.dims)
            case AllReduce(_, axes):
                return Local(lax.psum(value.array, axes), value.dims)
            case AllToAll(_, source_dim, target_dim, axes):
                split, concat = value.dims.index(target_dim), value.dims.index(source_dim)
                moved = lax.all_to_all(value.array, axes, split_axis=split, concat_axis=concat, tiled=True)
                return Local(moved, value.dims)
            case CollectivePermute(_, axes, pairs, _):
                return Local(lax.ppermute(value.array, axes, pairs), value.dims)
            case Slice(_, dim, axes):
                return Local(self.sliced(value.array, value.dims.index(dim), axes), value.dims)
            case Einsum(_, _, dims):
                return self.einsum(number, values, dims)
            case _:
                assert_never(step)

    def to_front(self, value: Local, dim: str) -> Local:
        if not self.leading or value.dims[0] == dim:
            return value
        return value.ordered((dim, *(other for other in value.dims if other != dim)))

    def sliced(self, array: Any, at: int, axes: Axes) -> Any:
        width = array.shape[at] // self.program.mesh.extent(axes)
        return lax.dynamic_slice_in_dim(array, lax.axis_index(axes) * width, width, axis=at)

    def einsum(self, number: int, values: list[Local], dims: tuple[str, ...]) -> Local:
        order = dims
        following = self.program.steps[number + 1] if number + 1 < len(self.program.steps) else None
        if self.leading and isinstance(following, ReduceScatter | AllGather) and following.dim in dims:
            order = (following.dim, *(dim for dim in dims if dim != following.dim))
        operands = [x for value in values for x in (value.array, [self.names[dim] for dim in value.dims])]
        product = jnp.einsum(
            *operands,
            [self.names[dim] for dim in order],
            precision=self.arithmetic.precision,
            preferred_element_type=self.arithmetic.preferred_element_type,
        )
        return Local(product, order)


def invarying_axes(program: Program) -> list[set[str]]:
    """For every step, the axes over which JAX's types must see its result as equal on all devices.

    The program's output must be so over every axis that does not split it; what makes it inherits the need, unless
    it is a collective over that axis, which settles it.
    """
    result = program.result
    needs: dict[str, set[str]] = {program.output: set(program.mesh.names) - set(result.axes) - set(result.unreduced)}
    found: list[set[str]] = []
    for step in reversed(program.steps):
        need = needs.pop(touched(step), set())
        found.append(need)
        settled = set() if isinstance(step, Einsum | Slice) else set(step.axes)
        for name in consumed(step):
            needs[name] = need - settled
    return found[::-1]


def _all_dims(states: list[dict[str, Layout]]) -> list[str]:
    return list(dict.fromkeys(dim for state in states for layout in state.values() for dim in layout.names))
