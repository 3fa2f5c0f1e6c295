"""Equations inside `jax.shard_map`: the planned program, run on this device's shards over the manual axes that it names."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from shardwise.chips import Hardware
from shardwise.errors import ArrayError, LayoutError, MeshError, PlanError, ProgramError, counted
from shardwise.layout import Layout
from shardwise.mesh import Mesh
from shardwise.notation import Equation, Operand, checked_sizes, parse, parse_relayout
from shardwise.planning.problem import Problem, problem
from shardwise.planning.ranking import rank
from shardwise.program import Program, einsum_layout, unfused
from shardwise.runtime.arrays import as_array, check_numeric, check_shape
from shardwise.runtime.devices import AnyMesh, hardware_along, kind_of
from shardwise.runtime.execute import CACHED, Options, check_options, check_precision, dtype_name
from shardwise.runtime.lower import Arithmetic, Local, leaves_replicated
from shardwise.runtime.manual import manual_mesh, unknown
from shardwise.runtime.ring_matmuls import as_varying, varying_axes
from shardwise.threshold import context


def einsum(
    equation: str, *arrays: Any, hardware: str | Hardware | None = None, overlap: bool | str = True,
    memory_limit: float | None = None, exact: bool = False, precision: Any = None, preferred_element_type: Any = None,
) -> Any:  # fmt: skip
    """Run an equation inside `jax.shard_map` by the best program: arrays are this device's shards, layouts what they are of.

    The equation is the one that `sw.einsum` takes outside. Mesh axes that it does not name stay out of it: along manual ones
    every device solves an equation of its own, and Auto and Explicit ones are as they were.

    >>> import jax, numpy as np, shardwise as sw
    >>> mesh, spec = sw.make_mesh("x=4"), jax.sharding.PartitionSpec
    >>> def layer(a, b):
    ...     return einsum("A[I, J_x] · B[J_x, K] -> C[I_x, K]", a, b)
    >>> mapped = jax.shard_map(layer, mesh=mesh, in_specs=(spec(None, "x"), spec("x")), out_specs=spec("x"))
    >>> a, b = np.arange(16.0).reshape(4, 4), np.eye(4)
    >>> bool((mapped(sw.put(a, "I, J_x", mesh), sw.put(b, "J_x, K", mesh)) == a).all())
    True

    Args:
        equation: the notation; its axes are manual here. `_?` in the result leaves axes that operands name to the planner.
        arrays: this device's shard of each operand, one for each; of partial sums (`{U_x}`) this device's own.
        hardware, overlap, memory_limit, exact, precision, preferred_element_type: as in `sw.einsum`.

    Returns:
        This device's shard of the result. JAX's types (`check_vma`) see it as different over the axes that split it or over
        which it is partial, as equal over others that the equation names, and over the rest as they see the operands.

    Raises:
        MeshError: outside `jax.shard_map`, or an axis that is not manual there.
        ArrayError: an array of another rank than written, or that differs along an axis of the equation that does not split it.
        ShardwiseError: another of its kinds, as `sw.einsum`.
    """
    with context(equation=equation, shards=arrays):
        options = Options(hardware, None, memory_limit, False, Arithmetic(precision, preferred_element_type), overlap, exact)
        return _run(parse(equation), arrays, options)


def reshard(array: Any, equation: str, *, hardware: str | Hardware | None = None) -> Any:
    """Change the layout of an array inside `jax.shard_map` by the cheapest steps.

    >>> import jax, numpy as np, shardwise as sw
    >>> mesh, spec = sw.make_mesh("x=4"), jax.sharding.PartitionSpec
    >>> turn = jax.shard_map(
    ...     lambda a: reshard(a, "A[I_x, J] -> A[I, J_x]"), mesh=mesh, in_specs=spec("x"), out_specs=spec(None, "x")
    ... )
    >>> tuple(turn(sw.put(np.arange(16.0).reshape(4, 4), "I_x, J", mesh)).sharding.spec)
    (None, 'x')

    Args:
        array: this device's shard.
        equation: one array before and after, over axes that are manual here.

    Raises:
        NotationError: the equation does more than change the layout of one array.
        ShardwiseError: as `einsum`.
    """
    with context(equation=equation):
        parse_relayout(equation)
    return einsum(equation, array, hardware=hardware)


def _run(equation: Equation, given: tuple[Any, ...], options: Options) -> Any:
    arrays = [array if isinstance(array, jax.Array) else jnp.asarray(array) for array in map(as_array, given)]
    mesh = jax.sharding.get_abstract_mesh()
    part = _named(equation)
    check_options(options)
    if len(arrays) != len(equation.operands):
        have = f"{counted(len(equation.operands), 'operand')} ({', '.join(operand.name for operand in equation.operands)})"
        raise ArrayError(f"the equation has {have}, and {counted(len(arrays), 'array')} given: give one for each")
    checked = bool(part.axes) and bool(varying_axes(lax.axis_index(part.names[0])))
    shards = [
        _typed(array, operand, part) if checked else array for array, operand in zip(arrays, equation.operands, strict=True)
    ]
    kinds = tuple(_Kind(array.shape, array.dtype, jax.typeof(array).sharding.spec) for array in shards)
    planned = _planned(equation, mesh, part, options, checked, kinds)
    out = planned.function(*shards)
    return _left(out, planned.result, part) if checked else out


def _named(equation: Equation) -> Mesh:
    """The part of the mesh that an equation names, all of it manual here.

    Raises:
        MeshError: this is not `jax.shard_map`, or an axis is not manual in it.
    """
    stages = (*equation.operands, *equation.via, equation.result)
    named = {axis for operand in stages for axis in (*operand.layout.axes, *sorted(operand.layout.unreduced))}
    here = manual_mesh()
    if not here.axes:
        raise MeshError("sw.spmd.einsum runs inside jax.shard_map, and this is outside: sw.einsum takes the same equation here")
    for axis in sorted(named - set(here.names)):
        raise MeshError(f"sw.spmd.einsum: {unknown(axis)}")
    return Mesh(tuple((name, size) for name, size in here.axes if name in named))


def _typed(array: Any, operand: Operand, part: Mesh) -> Any:
    """A shard as its layout types it: different over the axes that split it, or over which it is partial.

    Raises:
        ArrayError: it differs along another axis that the equation names, by its type.
    """
    own = {*operand.layout.axes, *operand.layout.unreduced}
    more = [axis for axis in part.names if axis in varying_axes(array) - own and part.axis_size(axis) > 1]
    if more:
        axes, first = ", ".join(more), more[0]
        split = f"write what {axes} splits, as {operand.dims[0]}_{first}, or" if operand.dims else "write"
        raise ArrayError(
            f"array {operand} is written as equal along {axes}, and its type says that it differs there: {split} that it is "
            f"partial, as {operand}{{U_{first}}}; what is gathered to be equal is typed so by sw.spmd.reshard, or "
            'lax.all_gather(..., to="invarying")'
        )
    return as_varying(array, frozenset(own))


def _left(out: Any, result: Layout, part: Mesh) -> Any:
    """A result as its layout types it, also over axes of one device, along which no step is needed."""
    own = {*result.axes, *result.unreduced}
    for axis in part.names:
        if axis not in own and axis in varying_axes(out):
            assert part.axis_size(axis) == 1, f"a program leaves {result} different along {axis}"
            out = lax.squeeze(lax.all_gather(out, axis, to="invarying"), [0])
    return as_varying(out, frozenset(own))


@dataclass(frozen=True, slots=True)
class _Planned:
    """A program's function of shards, and the layout of its result as written, axes of one device included."""

    function: Callable[..., Any]
    result: Layout


@dataclass(frozen=True, slots=True)
class _Kind:
    """What a plan needs to know of a shard; `spec` is how Explicit axes split it."""

    shape: tuple[int, ...]
    dtype: Any
    spec: PartitionSpec


@functools.lru_cache(maxsize=CACHED)
def _planned(
    equation: Equation, mesh: AnyMesh, part: Mesh, options: Options, checked: bool, kinds: tuple[_Kind, ...]
) -> _Planned:
    """Check shards against the equation, plan, and jit; `checked` is whether JAX checks types here (`check_vma`)."""
    task = _problem(equation, mesh, part, options, kinds)
    ranked = [candidate.program for candidate in rank(task)]
    program = next((each for each in ranked if not (checked and leaves_replicated(each))), None)
    if program is None and isinstance(options.overlap, str):
        raise PlanError(
            f"overlap={options.overlap!r}: here the result has to be typed as equal on the devices of a ring, which JAX's "
            "types cannot follow: leave overlap as it is, or write a result that the axis splits"
        )
    local = Local(program or unfused(ranked[0]), options.arithmetic, kind=kind_of(mesh), typed=checked)
    return _Planned(jax.jit(local.run), _as_written(equation.result, local.program, part))


def _check_explicit(equation: Equation, kinds: tuple[_Kind, ...]) -> None:
    """Refuse shards of which Explicit axes, which the equation does not name, split what is summed.

    Raises:
        LayoutError: they do, or one splits a dimension in one operand and another one in another.
    """
    layouts = [Layout.from_spec(kind.spec, operand.dims) for kind, operand in zip(kinds, equation.operands, strict=True)]
    split = {dim: axes for layout in layouts for dim, axes in layout.dims if axes}
    filled = [
        (str(operand), Layout(tuple((dim, axes or split.get(dim, ())) for dim, axes in layout.dims)))
        for operand, layout in zip(equation.operands, layouts, strict=True)
    ]
    try:
        summed = einsum_layout(filled, equation.result.dims).unreduced
    except ProgramError as error:
        raise LayoutError(f"over Explicit axes, which the equation does not name: {error}") from None
    for axis in sorted(summed):
        dim = next(dim for dim, axes in split.items() if axis in axes)
        raise LayoutError(
            f"mesh axis {axis} is Explicit here, and splits {dim}, which is summed: map over it too, as in "
            f"jax.shard_map(..., axis_names={{{axis!r}, ...}}), and name it in the equation, as {dim}_{axis}"
        )


def _as_written(result: Operand, program: Program, part: Mesh) -> Layout:
    """The layout of a result with the axes of one device that the equation writes, which planning leaves out."""
    lone = {axis for axis in part.names if part.axis_size(axis) == 1}
    dims = tuple(
        (dim, (*split, *(axis for axis in result.layout.axes_of(dim) if axis in lone))) for dim, split in program.result.dims
    )
    return Layout(dims, program.result.unreduced | (result.layout.unreduced & lone))


def _problem(equation: Equation, mesh: AnyMesh, part: Mesh, options: Options, kinds: tuple[_Kind, ...]) -> Problem:
    """The problem that shards of these shapes and dtypes pose: each dimension is as long as its shards together."""
    wholes = []
    for operand, kind in zip(equation.operands, kinds, strict=True):
        check_shape(kind.shape, operand)
        check_numeric(kind.dtype, operand.name)
        if kind.dtype == bool and (len(kinds) > 1 or equation.contracted or operand.layout.unreduced):
            raise ArrayError(f"array {operand.name} is of bool, which has no sums: convert it, as with .astype('int32')")
        wholes.append(tuple(size * part.extent(axes) for (_, axes), size in zip(operand.layout.dims, kind.shape, strict=True)))
    sizes = checked_sizes(equation, dict(enumerate(wholes)))
    _check_explicit(equation, kinds)
    check_precision(options.arithmetic.precision)
    chip = hardware_along(mesh, part, options.hardware)
    dtype = jnp.result_type(*(kind.dtype for kind in kinds)).name
    accumulated = dtype_name(options.arithmetic.preferred_element_type)
    return problem(
        equation, sizes, part, chip, dtype, accumulated, options.memory_limit, options.overlap, options.exact
    )  # fmt: skip
