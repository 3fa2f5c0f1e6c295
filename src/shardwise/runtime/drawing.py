"""How a random array is drawn in its layout: split like its result, padded in place, and rounded alike in every shard."""

from __future__ import annotations

import functools
import numbers
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from shardwise.errors import ArrayError, DeviceError, LayoutError, MeshError
from shardwise.layout import Layout, check_mapping, checked_size
from shardwise.mesh import Mesh
from shardwise.notation import Operand, parse_operand
from shardwise.runtime.arrays import (
    check_axes,
    check_told,
    check_types,
    explicit_axes,
    fetch,
    part_over,
    placed_shape,
    sharding_for,
    told_layout,
)
from shardwise.runtime.devices import AnyMesh, find_mesh, inside_jit
from shardwise.runtime.manual import manual_mesh
from shardwise.runtime.padding import remember

GENERATOR = "threefry2x32"
CACHED = 512


@dataclass(frozen=True, slots=True)
class Distribution:
    """What is drawn for the whole array, by JAX, and what each device then does to its shard, value by value."""

    name: str
    dtypes: tuple[str, ...]
    draw: Callable[..., Any]
    finish: Callable[..., Any] | None = None


def made(
    distribution: Distribution, key: Any, layout: Any, sizes: Any, mesh: Any, dtype: Any, pad: bool, **parameters: Any
) -> Any:
    """Make a random array in its layout; what is given is checked, each device makes its shard.

    Args:
        parameters: those of the distribution, in the order in which it takes them.

    Raises: as `sw.random.normal`.
    """
    who = f"sw.random.{distribution.name}"
    _refuse_manual(who)
    key = _threefry(who, checked_key(who, key))
    mesh = _mesh(who, mesh, key)
    operand = parse_operand(layout) if isinstance(layout, str) else Operand("A", Layout.parse(layout))
    check_axes(operand, mesh)
    check_types(operand, mesh)
    if isinstance(mesh, AbstractMesh) or inside_jit():
        check_told(operand, mesh)
    sharding_for(operand, mesh)
    shape = _shape(operand, sizes)
    whole = placed_shape(shape, operand, Mesh.parse(mesh), pad)
    kind = _dtype(who, dtype, distribution.dtypes)
    given = _numbers(who, kind, parameters)
    maker = _maker(distribution, told_layout(operand.layout, mesh), mesh, shape, whole, kind)
    if isinstance(mesh, AbstractMesh) or _is_traced():
        return maker(key, *given)
    with jax.set_mesh(mesh):
        return remember(maker(key, *given), shape)


@functools.lru_cache(maxsize=CACHED)
def _maker(
    distribution: Distribution, layout: Layout, mesh: AnyMesh, shape: tuple[int, ...], whole: tuple[int, ...], dtype: Any
) -> Callable[..., Any]:
    """The jitted function that makes an array of this layout and shape, padded to `whole`."""
    context = mesh if isinstance(mesh, AbstractMesh) else mesh.abstract_mesh
    explicit = explicit_axes(mesh)

    def split(key: Any, *parameters: Any) -> Any:
        """Where all axes are Auto, the draw is split as its result is, in as many shards also where they are uneven."""
        values = distribution.draw(key, shape, dtype, *parameters)
        if whole != shape:
            values = jnp.pad(values, [(0, wide - size) for wide, size in zip(whole, shape, strict=True)])
        values = lax.with_sharding_constraint(values, NamedSharding(jax.sharding.get_abstract_mesh(), layout.spec))
        if distribution.finish is not None:
            values = _on_each(distribution.finish, layout)(values, *parameters)
        return values if whole == shape else jnp.where(_inside(shape, whole), values, jnp.zeros_like(values))

    def make(key: Any, *parameters: Any) -> Any:
        with jax.sharding.use_abstract_mesh(context):
            if not explicit:
                return split(key, *parameters)
            typed = NamedSharding(context, part_over(layout, explicit).spec)
            return jax.sharding.auto_axes(split, axes=tuple(explicit), out_sharding=typed)(key, *parameters)

    return jax.jit(make) if isinstance(mesh, AbstractMesh) else jax.jit(make, out_shardings=NamedSharding(mesh, layout.spec))


def _on_each(finish: Callable[..., Any], layout: Layout) -> Callable[..., Any]:
    """Do something to each value of an array, where it lies, rounding alike for shards of every shape.

    XLA for CPUs rounds some functions by the loops that it makes of a shape. So each shard goes through it as one row,
    with barriers between, which keep the row from being reshaped or fused.
    """

    def local(shard: Any, *parameters: Any) -> Any:
        row = lax.optimization_barrier(shard.reshape(-1))
        return lax.optimization_barrier(finish(row, *parameters)).reshape(shard.shape)

    def on_each(values: Any, *parameters: Any) -> Any:
        specs = (layout.spec, *(PartitionSpec() for _ in parameters))
        return jax.shard_map(local, in_specs=specs, out_specs=layout.spec)(values, *parameters)

    return on_each


def _inside(shape: tuple[int, ...], whole: tuple[int, ...]) -> Any:
    """Where a padded array holds values."""
    return functools.reduce(
        jnp.logical_and,
        [lax.broadcasted_iota(jnp.int32, whole, dim) < size for dim, size in enumerate(shape) if size != whole[dim]],
    )


# What is given, checked.


def checked_key(who: str, key: Any) -> Any:
    """One random key, typed or of raw words.

    Raises:
        ArrayError: it is no key, or several.
    """
    dtype, shape = getattr(key, "dtype", None), np.shape(key)
    typed = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)
    if not typed and not (dtype == np.uint32 and shape):
        raise ArrayError(f"{who}: {_shown(key)} is no random key: make one, as jax.random.key(0)")
    if len(shape) > (0 if typed else 1):
        raise ArrayError(f"{who}: {_shown(key)} are several random keys: give one, as keys[0]")
    return key


def _threefry(who: str, key: Any) -> Any:
    """A key that may be used on any mesh; generators whose values depend on the layout are refused."""
    generator = str(jax.random.key_impl(key))
    if generator != GENERATOR:
        raise ArrayError(
            f"{who}: the key is of the generator {generator}, whose values depend on the layout: use {GENERATOR}, as in "
            f"jax.random.key(0, impl={GENERATOR!r})"
        )
    if not jax.config.jax_threefry_partitionable:  # type: ignore[attr-defined]
        raise ArrayError(
            f"{who}: jax_threefry_partitionable is off, so that a shard cannot be made by itself: "
            "jax.config.update('jax_threefry_partitionable', True)"
        )
    if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        return _off_devices(key)
    if not _is_committed(key):
        return key
    with jax.ensure_compile_time_eval():
        return jax.random.wrap_key_data(jnp.asarray(_off_devices(jax.random.key_data(key))), impl=generator)


def _is_committed(array: Any) -> bool:
    return isinstance(array, jax.Array) and not isinstance(array, jax.core.Tracer) and array.committed


def _off_devices(array: Any) -> Any:
    """The values of an array that lives on devices of its own, which need not be those of the mesh."""
    if not _is_committed(array):
        return array
    with jax.ensure_compile_time_eval():
        return fetch(array)


def _mesh(who: str, mesh: Any, key: Any) -> AnyMesh:
    in_force, traced = jax.sharding.get_abstract_mesh(), _is_traced()
    if mesh is None and traced and not in_force.empty:
        return in_force
    found = find_mesh(mesh, (key,))
    if traced and not in_force.empty and Mesh.parse(found) != Mesh.parse(in_force):
        raise MeshError(f"{who}: inside jit the mesh in force is {Mesh.parse(in_force)}, and mesh={Mesh.parse(found)} is given")
    if not traced and isinstance(found, AbstractMesh):
        raise DeviceError(f"{who}: mesh {Mesh.parse(found)} has no devices to make values on: give sw.make_mesh(...)")
    return found


def _is_traced() -> bool:
    """Whether JAX is tracing, for `jit` or any other transformation: there a mesh cannot be put in force."""
    try:
        jax.sharding.get_mesh()
    except ValueError:
        return True
    return False


def _refuse_manual(who: str) -> None:
    axes = manual_mesh().names
    if axes:
        name = who.removeprefix("sw.")
        raise MeshError(
            f"{who}: inside jax.shard_map this is one device's shard over {', '.join(axes)}: make the array outside and pass "
            f"it in, or draw for this device alone, jax.{name}(sw.spmd.fold_in_axis(key, {axes[0]!r}), ...)"
        )


def _shape(operand: Operand, sizes: Any) -> tuple[int, ...]:
    check_mapping(sizes, LayoutError)
    for dim in operand.dims:
        if dim not in sizes:
            raise LayoutError(f"array {operand}: no size is given for dimension {dim}: sizes={{{dim!r}: ...}}")
    return tuple(checked_size(dim, sizes[dim], LayoutError) for dim in operand.dims)


def _dtype(who: str, given: Any, known: tuple[str, ...]) -> Any:
    try:
        dtype = None if given is None else np.dtype(given)
    except TypeError:
        dtype = None
    if dtype is None or dtype.name not in known:
        raise ArrayError(f"{who}: dtype {_shown(given)} is not one that it has: give one of {', '.join(known)}")
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise ArrayError(f"{who}: {dtype} needs 64 bits: allow them, jax.config.update('jax_enable_x64', True)")
    return dtype


def _numbers(who: str, dtype: Any, parameters: Mapping[str, Any]) -> list[Any]:
    """The parameters of a distribution, each one number in the type that it is computed in; bounds in their order."""
    read = []
    for name, value in parameters.items():
        number = isinstance(value, numbers.Real | np.generic | np.ndarray | jax.Array) and not isinstance(
            value, bool | np.bool_
        )
        if not number or getattr(value, "shape", ()):
            raise ArrayError(f"{who}: {name}={_shown(value)}: give one number")
        known = _off_devices(value)
        read.append(known if isinstance(known, jax.Array) else _number(who, name, np.asarray(known).item(), dtype))
    told = [value for value in read if not isinstance(value, jax.Array)]
    if len(read) == len(told) == 2 and not told[0] < told[1]:
        (low, high), (lower, upper) = parameters, told
        raise ArrayError(f"{who}: {low}={lower} is not below {high}={upper}: there is nothing to draw from")
    if "p" in parameters and told and not 0 <= told[0] <= 1:
        raise ArrayError(f"{who}: p={told[0]}: a probability is from 0 to 1")
    return read


def _number(who: str, name: str, value: Any, dtype: Any) -> Any:
    if name in ("minval", "maxval") and not np.isfinite(value):
        raise ArrayError(f"{who}: {name}={value}: give a finite number")
    if dtype.kind not in "iu":
        wide = dtype.itemsize == 8 or (dtype.kind == "b" and jax.config.jax_enable_x64)  # type: ignore[attr-defined]
        return np.float64(value) if wide else np.float32(value)
    for kind in (dtype, np.dtype(np.int32)):
        if float(value).is_integer() and np.iinfo(kind).min <= value <= np.iinfo(kind).max:
            return kind.type(value)
    raise ArrayError(f"{who}: {name}={value}: give a whole number that {dtype} can hold")


def _shown(value: Any) -> str:
    """What is given, without the values of arrays."""
    return f"{value.dtype}{list(value.shape)}" if hasattr(value, "dtype") and hasattr(value, "shape") else repr(value)
