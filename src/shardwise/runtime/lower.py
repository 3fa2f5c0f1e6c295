"""Lowering: a program becomes a function on local shards, and that function one `jax.shard_map`.

Every map is checked by JAX's own types (`check_vma`): a value that must leave replicated is gathered with
`to="invarying"`, any other as varying, so that its gradient is a reduce-scatter rather than an all-reduce and a slice.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, assert_never

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from shardwise.dataflow import before_gathers, gathers_of, invarying_axes, kept_layout, makes_result, reader, waiting
from shardwise.errors import ProgramError
from shardwise.layout import Axes, Layout
from shardwise.planning.told import result_order
from shardwise.program import Program, cuts, typed
from shardwise.runtime import rings
from shardwise.runtime.arrays import explicit_axes, part_over
from shardwise.runtime.arriving import Arriving, by_parts
from shardwise.runtime.blocks import cut_part, lying_in
from shardwise.runtime.devices import AnyMesh, kind_of
from shardwise.runtime.mapped import map_shards, typed_as
from shardwise.runtime.multilinear import Multilinear, call
from shardwise.runtime.shard_collectives import collectives_for
from shardwise.steps import (
    AllGather,
    AllReduce,
    AllToAll,
    Automatic,
    CollectivePermute,
    Einsum,
    EinsumGather,
    EinsumScatter,
    GatherEinsum,
    ReduceScatter,
    RotateEinsum,
    Slice,
    Way,
    consumed,
    einsum_of,
    moved_axes,
    scope,
    touched,
)


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """How matmuls are computed: as `jnp.einsum` takes them, and whether TPU compilers are told how arrays lie in memory."""

    precision: Any = None
    preferred_element_type: Any = None
    told: bool = True


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
    >>> tuple(lower(program, mesh)(sw.put(jnp.arange(8.0), "I_x", mesh)).sharding.spec)
    (None,)
    """
    if any(isinstance(step, Automatic) for step in program.steps):
        return _automatic(program, mesh, arithmetic)
    local = Local(program, arithmetic, kind=kind_of(mesh), padded=padded or {}, sizes=sizes or {})
    partial = [layout.on(program.mesh).unreduced for _, layout in program.inputs]
    specs = [layout.on(program.mesh) for _, layout in program.inputs]
    result = program.result
    in_specs = tuple(_with_leading(layout) if layout.unreduced else layout.spec for layout in specs)
    checked = not leaves_replicated(program)
    out_specs = _with_leading(result) if result.unreduced else result.spec
    mapped = map_shards(local, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=checked)
    if result.unreduced:
        mapped = _unstacked(mapped, result, mesh)
    function = _peeled(mapped, specs, mesh) if any(partial) else mapped
    return function if checked else _with_derivative_of(lower(typed(program), mesh, arithmetic, padded, sizes), function)


def lower_keeping(
    program: Program, arrays: Sequence[str], mesh: AnyMesh, arithmetic: Arithmetic = Arithmetic(),
    parts: Mapping[str, Arriving] = {},
) -> Callable[..., tuple[Any, ...]]:  # fmt: skip
    """Lower a program to a function that gives inputs, too, as the program gathers them, for whoever needs them so later.

    Args:
        parts: of those that are given as a tuple of what arrives, how they do; others are given whole.

    Raises:
        ProgramError: an input is not gathered as it is given.
    """
    layouts = {array: kept_layout(program, array) for array in arrays}
    if missing := [array for array, layout in layouts.items() if layout is None]:
        raise ProgramError(f"{missing[0]} is not gathered as it is given")
    gathers = {array: gathers_of(program, array) for array in arrays}
    keeps = {max(gathers[each]): each for each in arrays}
    local = Local(program, arithmetic, kind=kind_of(mesh), typed=False, keeps=keeps, parts=frozenset(parts))
    inputs = {name: layout.on(program.mesh).spec for name, layout in program.inputs}
    specs = tuple(inputs.values())
    kept = (
        (inputs[array],) * len(parts[array].parts) if array in parts else layout.spec
        for array, layout in layouts.items() if layout is not None
    )  # fmt: skip
    out_specs = (program.result.spec, *kept)
    mapped = map_shards(local, mesh=mesh, in_specs=specs, out_specs=out_specs, check_vma=False)
    alone, numbers = lower(typed(program), mesh, arithmetic), {name: k for k, (name, _) in enumerate(program.inputs)}
    gathering = []
    for name, steps in gathers.items():
        number = numbers[name]
        if name in parts:
            gathering.append((number, parts[name].sent(mesh)))
            continue
        moved = Program(program.mesh, program.inputs[number : number + 1], tuple(steps.values()), name)
        gathering.append((number, lower(moved, mesh, arithmetic)))

    def plain(*given: Any) -> tuple[Any, ...]:
        return alone(*given), *(gather(given[number]) for number, gather in gathering)

    return _with_derivative_of(plain, mapped)


def lower_by_parts(program: Program, mesh: AnyMesh, arithmetic: Arithmetic = Arithmetic()) -> Callable[..., Any]:
    """Lower a program to a function of global arrays, of which one has `Arrived`: each part is multiplied and summed alone."""
    checked = not leaves_replicated(program)
    each, whole = (Local(part, arithmetic, kind=kind_of(mesh)) for part in before_gathers(program))
    function = functools.partial(by_parts, program, each.run, whole.run, mesh=mesh, checked=checked)
    return function if checked else _with_derivative_of(lower_by_parts(typed(program), mesh, arithmetic), function)


def _unstacked(mapped: Callable[..., Any], result: Layout, mesh: AnyMesh) -> Callable[..., Any]:
    """The function with its result unstacked: partial sums along a dimension in front become an unreduced array; nothing moves.

    JAX could cast each device's part to a partial sum as well, but `jax.vmap` has no rule for that cast; it has one for sums.
    """
    sharding = jax.sharding.NamedSharding(mesh, result.spec)

    def function(*arrays: Any) -> Any:
        return lax.reduce_sum(mapped(*arrays), (0,), out_sharding=sharding)

    return function


def _automatic(program: Program, mesh: AnyMesh, arithmetic: Arithmetic) -> Callable[..., Any]:
    """One einsum of whole arrays; the compiler chooses what moves."""
    layouts = [layout for _, layout in program.inputs]
    index = {dim: i for i, dim in enumerate(dict.fromkeys(dim for layout in layouts for dim in layout.names))}
    terms = [[index[dim] for dim in layout.names] for layout in layouts]
    out = [index[dim] for dim in program.result.names]
    wanted, explicit = program.result, explicit_axes(mesh)
    how: dict[str, Any] = {"precision": arithmetic.precision, "preferred_element_type": arithmetic.preferred_element_type}

    def einsum(*arrays: Any, **options: Any) -> Any:
        given: list[Any] = [x for pair in zip(arrays, terms, strict=True) for x in pair]
        return jnp.einsum(*given, out, **how, **options)

    def constrained(*arrays: Any) -> Any:
        within = jax.sharding.get_abstract_mesh() if explicit else mesh
        return lax.with_sharding_constraint(einsum(*arrays), jax.sharding.NamedSharding(within, wanted.spec))

    def typed(*arrays: Any) -> Any:
        sharding = jax.sharding.NamedSharding(mesh, wanted.spec)
        arrays = tuple(typed_as(array, layout.on(program.mesh).spec) for array, layout in zip(arrays, layouts, strict=True))
        # With nothing to sum, jnp.einsum leaves the layout as it was, whatever it is told.
        return jax.sharding.reshard(einsum(*arrays, out_sharding=sharding), sharding)

    if not explicit:
        return constrained
    if len(explicit) == len(mesh.axis_names):
        return typed
    said = jax.sharding.NamedSharding(mesh, part_over(wanted, explicit).spec)
    return jax.sharding.auto_axes(constrained, axes=tuple(explicit), out_sharding=said)


def _peeled(mapped: Callable[..., Any], specs: Sequence[Layout], mesh: AnyMesh) -> Callable[..., Any]:
    """The function with unreduced arguments; it takes them stacked, with a dimension in front that counts the partial sums."""
    peels = [_Peel(layout, mesh) if layout.unreduced else None for layout in specs]

    def with_partial_sums(*arrays: Any) -> Any:
        return mapped(*(call(peel, a)[0] if peel else a for peel, a in zip(peels, arrays, strict=True)))

    return with_partial_sums


def leaves_replicated(program: Program) -> bool:
    """Whether a ring, or a permute, makes what must leave equal on all of its devices: that JAX's types cannot follow."""
    needs = invarying_axes(program)
    permuting = (GatherEinsum, EinsumGather, RotateEinsum, CollectivePermute)
    return any(
        isinstance(step, permuting) and need & set(moved_axes(step)) for step, need in zip(program.steps, needs, strict=True)
    )


def _with_derivative_of(plain: Callable[..., Any], mapped: Callable[..., Any]) -> Callable[..., Any]:
    """A function with the derivative of another that means the same, and that JAX's types follow."""

    @jax.custom_jvp
    def function(*arrays: Any) -> Any:
        return mapped(*arrays)

    function.defjvp(lambda arrays, tangents: (function(*arrays), jax.jvp(plain, arrays, tangents)[1]))
    return function


def _with_leading(layout: Layout) -> PartitionSpec:
    """The layout with a dimension in front that counts the partial sums."""
    return PartitionSpec(tuple(sorted(layout.unreduced)), *Layout(layout.dims).spec)


@dataclass(frozen=True, slots=True)
class _Peel:
    """Show an unreduced array as its partial sums, stacked along a dimension in front; nothing moves.

    JAX's types know no such view, so this one map is unchecked. The result depends on the sum alone, so every partial
    sum has the same cotangent, which each device already holds: back from their cotangents is another view.
    """

    layout: Layout
    mesh: AnyMesh
    stacks: int = 0  # dimensions that vmap has put in front
    back: bool = False

    def run(self, *arrays: Any) -> list[Any]:
        stacked = Layout((*((f"stack{number}", ()) for number in range(self.stacks)), *self.layout.dims))
        partial = Layout(stacked.dims, self.layout.unreduced)
        leading = PartitionSpec(*[None] * self.stacks, tuple(sorted(partial.unreduced)), *Layout(self.layout.dims).spec)
        if self.back:
            reduced = PartitionSpec(*stacked.spec, reduced=set(partial.unreduced))
            return [self.mapped(lambda view: lax.squeeze(view, [self.stacks]), leading, reduced)(*arrays)]
        return [self.mapped(lambda shard: lax.expand_dims(shard, [self.stacks]), partial.spec, leading)(*arrays)]

    def mapped(self, view: Callable[..., Any], before: PartitionSpec, after: PartitionSpec) -> Callable[..., Any]:
        return map_shards(view, mesh=self.mesh, in_specs=(before,), out_specs=after, check_vma=False)

    def tangent(self, arrays: Sequence[Any], tangents: Sequence[Any | None]) -> tuple[Sequence[Any], Sequence[Any | None]]:
        return call(self, *arrays), call(self, *tangents)

    def transposed(self, arrays: Sequence[Any | None], cotangents: Sequence[Any | None]) -> Sequence[Any | None]:
        return [None] if cotangents[0] is None else call(replace(self, back=not self.back), cotangents[0])

    def batched(self, stacked: Sequence[bool]) -> tuple[Multilinear, Sequence[bool], Sequence[bool]]:
        return replace(self, stacks=self.stacks + 1), stacked, stacked


class Local:
    """The function that `shard_map` runs on each device's shards: one interpreter of the program's steps.

    `typed`: JAX checks types (`check_vma`), so that what must leave replicated has to be gathered as such. `keeps`: the inputs
    that are gathered and given so beside the result, by the numbers of the steps that do it; those of `parts` as they arrive.
    """

    def __init__(
        self, program: Program, arithmetic: Arithmetic, kind: str, padded: Mapping[str, int] = {},
        sizes: Mapping[str, int] = {}, typed: bool = True, keeps: Mapping[int, str] = {}, parts: frozenset[str] = frozenset(),
    ) -> None:  # fmt: skip
        self.program = program
        self.arithmetic = arithmetic
        self.kind = kind
        self.keeps = keeps
        self.parts = parts
        self.padded = padded
        self.sizes = sizes
        self.states = program.states()
        self.invarying: list[set[str]] = invarying_axes(program) if typed else [set() for _ in program.steps]
        self.names = {dim: i for i, dim in enumerate(_all_dims(self.states))}

    def __call__(self, *shards: Any) -> Any:
        """Between arrays of `shard_map`, in which partial sums have a dimension in front that counts them."""
        layouts = [self.states[0][name] for name, _ in self.program.inputs]
        out = self.run(*(shard[0] if layout.unreduced else shard for shard, layout in zip(shards, layouts, strict=True)))
        return out[None] if self.program.result.unreduced else out

    def run(self, *shards: Any) -> Any:
        """Do every step to this device's shards, in the order of the inputs: the shard of the output, cut back to its sizes."""
        values, kept = {}, dict[str, Any]()
        for (name, _), shard in zip(self.program.inputs, shards, strict=True):
            values[name] = self.padded_input(shard, self.states[0][name]) if self.padded else shard
        for number, step in enumerate(self.program.steps):
            taken = [values.pop(name) for name in consumed(step)]
            with jax.named_scope(scope(number + 1, step)):
                do = self.apart if any(isinstance(value, tuple) for value in taken) else self.step
                made = do(number, self.states[number], self.invarying[number], taken)
                if number in self.keeps:
                    made, kept[self.keeps[number]] = made if isinstance(step, GatherEinsum) else (made, made)
                for name in waiting(self.program, number) if self.tells else ():
                    values[name], made = lax.optimization_barrier((values[name], made))
                values[touched(step)] = made
        result, out = self.program.result, values[self.program.output]
        if self.sizes:
            out = out[tuple(slice(self.sizes.get(dim) if not axes else None) for dim, axes in result.dims)]
        if (dtype := self.arithmetic.preferred_element_type) is not None:  # as jnp.einsum does where nothing is multiplied, too
            out = jax.tree.map(lambda array: array.astype(dtype), out)
        return (out, *(kept[each] for each in self.keeps.values())) if self.keeps else out

    def padded_input(self, array: Any, layout: Layout) -> Any:
        widths = [
            (0, 0 if axes else self.padded.get(dim, size) - size)
            for (dim, axes), size in zip(layout.dims, array.shape, strict=True)
        ]
        return jnp.pad(array, widths) if any(after for _, after in widths) else array

    def step(self, number: int, layouts: Mapping[str, Layout], invarying: set[str], values: list[Any]) -> Any:
        """Do one step to this device's shards; `invarying` are the axes over which JAX must see the result as equal."""
        step = self.program.steps[number]

        def at(dim: str) -> int:
            return layouts[consumed(step)[0]].names.index(dim)

        array, collectives = values[0], collectives_for(self.program.mesh, self.kind)
        match step:
            case AllGather(_, dim, axes):
                to = "invarying" if invarying & set(axes) else "varying"
                return collectives.all_gather(array, at(dim), axes, to)
            case ReduceScatter(_, dim, axes):
                return collectives.reduce_scatter(array, at(dim), axes)
            case AllReduce(_, axes):
                return lax.psum(array, axes)
            case AllToAll(_, source_dim, target_dim, axes):
                # With another dimension of size 1 in front, TPU compilers lay the blocks out up to five times as slowly.
                ones = [k for k, size in enumerate(array.shape) if size == 1 and k not in (at(target_dim), at(source_dim))]
                split, concat = (place - sum(one < place for one in ones) for place in (at(target_dim), at(source_dim)))
                taker = reader(self.program, number)
                read = taker is not None and einsum_of(taker) is not None
                return lax.expand_dims(collectives.all_to_all(lax.squeeze(array, ones), split, concat, axes, read), ones)
            case CollectivePermute(_, axes, pairs, _):
                for dim, (parts, places) in cuts(step, layouts[step.array], self.program.mesh).items():
                    array = cut_part(array, axes, at(dim), parts, places)
                return lax.ppermute(array, axes, pairs)
            case Slice(_, dim, axes):
                width = array.shape[at(dim)] // self.program.mesh.extent(axes)
                return lax.dynamic_slice_in_dim(array, lax.axis_index(axes) * width, width, axis=at(dim))
            case Einsum():
                terms, out = self.terms(step, layouts)
                pairs = (x for pair in zip(values, terms, strict=True) for x in pair)
                made = jnp.einsum(*pairs, out, **self.numbers)
                return lying_in(made, result_order(made.shape)) if self.tells and makes_result(self.program, number) else made
            case GatherEinsum(gather, einsum, way, chunks):
                terms, out = self.terms(einsum, layouts)
                over = self.over(gather.axes, way, chunks)
                which, dim = einsum.operands.index(gather.array), self.names[gather.dim]
                keep = self.kept(number)
                return rings.gather_einsum(values, terms, out, gathered=which, dim=dim, keep=keep, **over, **self.numbers)
            case EinsumScatter(einsum, scatter, way, chunks):
                terms, out = self.terms(einsum, layouts)
                over = self.over(scatter.axes, way, chunks)
                return rings.einsum_scatter(values, terms, out, dim=self.names[scatter.dim], **over, **self.numbers)
            case EinsumGather(einsum, gather, way, chunks):
                terms, out = self.terms(einsum, layouts)
                over = self.over(gather.axes, way, chunks)
                return rings.einsum_gather(values, terms, out, dim=self.names[gather.dim], **over, **self.numbers)
            case RotateEinsum(gathers, einsum):
                terms, out = self.terms(einsum, layouts)
                first, second = sorted(gathers, key=lambda gather: einsum.operands.index(gather.array))
                axes = first.axes[0], second.axes[0]
                n = self.program.mesh.axis_size(axes[0]), self.program.mesh.axis_size(axes[1])
                return rings.rotate_einsum(values, terms, out, dim=self.names[gathers[0].dim], axes=axes, n=n, **self.numbers)
            case Automatic():
                raise AssertionError("the compiler's own is no step of a local function")
            case _:
                assert_never(step)

    def apart(self, number: int, layouts: Mapping[str, Layout], invarying: set[str], values: list[Any]) -> Any:
        """Do one step to arrays of which some are several, which would lie side by side along a dimension that nothing moves.

        What is gathered once is multiplied with each; results that are summed along that dimension are added up; else each is
        an array of its own.
        """
        step = self.program.steps[number]
        count = next(len(value) for value in values if isinstance(value, tuple))
        groups = [[value[k] if isinstance(value, tuple) else value for value in values] for k in range(count)]
        several = [isinstance(value, tuple) for value in values]
        summed = len(values) > 1 and all(several)
        match step:
            case GatherEinsum(gather, einsum, way, chunks) if not several[einsum.operands.index(gather.array)]:
                terms, out = self.terms(einsum, layouts)
                which, keep = einsum.operands.index(gather.array), self.kept(number)
                how: dict[str, Any] = {**self.over(gather.axes, way, chunks), **self.numbers, "keep": keep}
                made = rings.gather_einsums(groups, terms, out, gathered=which, dim=self.names[gather.dim], **how)
                return (made[:count], made[count]) if keep else made
            case EinsumScatter(einsum, scatter, way, chunks) if summed:
                terms, out = self.terms(einsum, layouts)
                how = self.over(scatter.axes, way, chunks) | self.numbers
                return rings.einsums_scatter(groups, terms, out, dim=self.names[scatter.dim], **how)
            case _:
                made = tuple(self.step(number, layouts, invarying, group) for group in groups)
                return functools.reduce(operator.add, made) if summed else made

    def kept(self, number: int) -> bool | Literal["parts"]:
        """Whether a ring gives what it gathers, and how."""
        return number in self.keeps and ("parts" if self.keeps[number] in self.parts else True)

    @property
    def tells(self) -> bool:
        """Whether the compiler is told what TPUs' are (`shardwise.planning.told`)."""
        return self.arithmetic.told and self.kind.startswith("TPU")

    def over(self, axes: Axes, way: Way, chunks: int) -> dict[str, Any]:
        """How a ring goes over mesh axes."""
        return {"axes": axes, "n": self.program.mesh.extent(axes), "way": way, "chunks": chunks, "ordered": self.tells}

    def terms(self, einsum: Einsum, layouts: Mapping[str, Layout]) -> tuple[list[list[int]], list[int]]:
        """An einsum's operands and result as lists of numbered dimensions."""
        operands = [[self.names[dim] for dim in layouts[name].names] for name in einsum.operands]
        return operands, [self.names[dim] for dim in einsum.dims]

    @property
    def numbers(self) -> dict[str, Any]:
        """How matmuls are computed."""
        given = self.arithmetic
        return {"precision": given.precision, "preferred_element_type": given.preferred_element_type}


def _all_dims(states: Sequence[dict[str, Layout]]) -> list[str]:
    return list(dict.fromkeys(dim for state in states for layout in state.values() for dim in layout.names))
