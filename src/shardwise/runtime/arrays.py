"""Arrays in and out: placing host arrays and files shard by shard, and reading the layout that an array has."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from shardwise.distributed.preflights import agree, processes_of
from shardwise.errors import ArrayError, DeviceError, LayoutError, counted
from shardwise.layout import Axes, Layout, not_divisible, padded_size
from shardwise.mesh import Mesh
from shardwise.notation import Operand, parse_operand
from shardwise.runtime.devices import AnyMesh
from shardwise.runtime.files import Source, open_source
from shardwise.runtime.padding import remember, true_shape


def put(array: Any, layout: str | Layout, mesh: AnyMesh, *, pad: bool = False) -> jax.Array:
    """Place an array on a mesh; each device is given only its shard.

    >>> import shardwise as sw
    >>> a = sw.put(np.arange(8.0), "A[I_x]", sw.make_mesh("x=4"))
    >>> [shard.data.tolist() for shard in a.addressable_shards]
    [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0], [6.0, 7.0]]

    Args:
        array: a NumPy or JAX array, nested lists, or a file: `"a.npy"`, `"a.npz:name"`, `"a.safetensors:name"`.
        layout: `"A[I_x, J]"` or `"I_x, J"`.
        pad: fill dimensions that their axes do not divide with zeros at the end.

    Raises:
        ArrayError: wrong rank, not numeric, empty.
        LayoutError: a size that its axes do not divide, without `pad`.
        FileError: the file cannot be read.
    """
    source: Any = open_source(array) if isinstance(array, str | os.PathLike) else as_array(array)
    if isinstance(layout, PartitionSpec):
        layout = Layout.from_spec(layout, Layout.from_spec((None,) * len(source.shape)).names)
    operand = parse_operand(layout) if isinstance(layout, str) else Operand("A", Layout.parse(layout))
    check_axes(operand, mesh)
    if isinstance(array, jax.core.Tracer):
        raise ArrayError(f"array {operand.name} is traced, and only a computation moves it: use sw.reshard, not sw.put")
    check_shape(source.shape, operand)
    if len(processes_of(mesh)) > 1:
        shape = ", ".join(map(str, source.shape))
        agree(f"put {operand}", mesh, {"layout": str(operand), "array": f"{source.dtype}[{shape}]", "pad": str(pad)})
    return place(source, operand, mesh, placed_shape(source.shape, operand, Mesh.parse(mesh), pad))


def place(array: Any, operand: Operand, mesh: AnyMesh, shape: tuple[int, ...]) -> jax.Array:
    """Place an array of the host, of a file, or one that JAX holds; where `shape` is larger, zeros fill the end."""
    if isinstance(array, jax.core.Tracer):
        return _place_traced(array, operand, mesh, shape)
    if isinstance(mesh, jax.sharding.AbstractMesh):
        raise DeviceError(f"mesh {Mesh.parse(mesh)} has no devices to place {operand.name} on: give sw.make_mesh(...)")
    if isinstance(array, jax.Array):
        if not array.is_fully_addressable:
            raise ArrayError(f"array {operand.name} is placed already: move it with sw.reshard, not sw.put")
        sharding = sharding_for(operand, mesh)
        if shape == array.shape and sharding.is_fully_addressable:
            moved = jax.device_put(array, sharding)  # across processes this would send the array, to compare it
            return remember(moved, true_shape(array))
        true, array = true_shape(array), np.asarray(array)
    else:
        true = array.shape
    check_numeric(array.dtype, operand.name)
    read = array.read if isinstance(array, Source) else array.__getitem__
    dtype = jax.dtypes.canonicalize_dtype(np.dtype(array.dtype).newbyteorder("="))
    have = array.shape

    def shard(index: tuple[slice, ...] | None) -> np.ndarray:
        assert index is not None
        bounds = [part.indices(size)[:2] for part, size in zip(index, shape, strict=True)]
        inside = tuple(slice(min(a, n), min(b, n)) for (a, b), n in zip(bounds, have, strict=True))
        part = _narrowed(np.asarray(read(inside)), dtype, operand.name)
        missing = [b - a - size for (a, b), size in zip(bounds, part.shape, strict=True)]
        return np.pad(part, [(0, width) for width in missing]) if any(missing) else part

    return remember(jax.make_array_from_callback(shape, sharding_for(operand, mesh), shard, dtype=dtype), true)


def as_array(array: Any) -> Any:
    """A JAX or NumPy array as it is, in the byte order of this host; what else holds numbers as a NumPy array.

    Raises:
        ArrayError: it holds none.
    """
    if isinstance(array, jax.Array):
        return array
    if isinstance(array, np.ma.MaskedArray):
        raise ArrayError("a masked array would lose its mask: fill it first, as array.filled(0)")
    if array is None or isinstance(array, str | bytes | dict | set | jax.ShapeDtypeStruct) or callable(array):
        raise ArrayError(f"{type(array).__name__} is no array: give a NumPy or JAX array, or lists of numbers; files to sw.put")
    try:
        held = array if isinstance(array, np.ndarray) else np.asarray(array)
    except ValueError:
        raise ArrayError(
            f"a {type(array).__name__} of rows of different lengths is no array: give rows of one length"
        ) from None
    return held if held.dtype.isnative else held.astype(held.dtype.newbyteorder("="))


def _narrowed(part: np.ndarray, dtype: Any, name: str) -> np.ndarray:
    """JAX without x64 holds 64-bit numbers in 32 bits; those that do not fit are refused."""
    if part.dtype == dtype:
        return part
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = part.astype(dtype)
        lost = narrow != part if part.dtype.kind in "iu" else np.isinf(narrow) & ~np.isinf(part)
    if lost.any():
        value, kind = part[lost].flat[0], np.dtype(dtype).name
        raise ArrayError(
            f"array {name} holds {value}, which {kind} cannot: allow 64 bits, jax.config.update('jax_enable_x64', True)"
        )
    return narrow


def _place_traced(array: Any, operand: Operand, mesh: AnyMesh, shape: tuple[int, ...]) -> Any:
    """Give a traced array that lives on no mesh, as one of the host does, or that is whole on every device, its layout over
    Explicit axes; Auto axes show none, so that over them it stays as it is."""
    explicit = explicit_axes(mesh)
    if not explicit:
        if shape != array.shape:
            raise ArrayError(
                f"array {operand.name} has shape {array.shape}, which the equation needs padded to {shape}: inside jit under "
                "Auto axes its layout is not known, so pad it before"
            )
        return array
    if shape != array.shape:
        array = jax.numpy.pad(array, [(0, more - size) for more, size in zip(shape, array.shape, strict=True)])
    layout = part_over(operand.layout.on(Mesh.parse(mesh)), explicit)
    try:
        return jax.sharding.reshard(array, NamedSharding(mesh, layout.spec))
    except ValueError as error:
        if "incompatible devices" not in str(error):
            raise
        raise ArrayError(
            f"array {operand.name} lives on other devices than mesh {Mesh.parse(mesh)}: place it before it is traced, "
            f'sw.put({operand.name.lower()}, "{operand}", mesh)'
        ) from None


def is_whole(sharding: Any) -> bool:
    """Whether a type says that every device holds the whole array: so JAX types what is made inside `jit`, too."""
    layout = Layout.from_spec(sharding.spec)
    return not layout.axes and not layout.unreduced and not getattr(sharding.spec, "reduced", None)


def explicit_axes(mesh: AnyMesh) -> frozenset[str]:
    """The axes over which layouts are part of JAX's types."""
    pairs = zip(mesh.axis_names, mesh.axis_types, strict=True)
    return frozenset(str(name) for name, kind in pairs if kind == AxisType.Explicit)


def check_types(operand: Operand, mesh: AnyMesh) -> None:
    """Refuse a layout that the mesh's axis types cannot express; JAX would move the array in silence, or fail.

    Raises:
        LayoutError: partial sums while some axis is Auto, or a dimension split over an Auto axis before an Explicit one.
    """
    explicit = explicit_axes(mesh)
    if len(explicit) == len(mesh.axis_names):
        return
    if operand.layout.unreduced:
        raise LayoutError(
            f"{operand}: partial sums are part of JAX's types only where all axes of the mesh are Explicit: make it by "
            "sw.make_mesh(...) as it comes, or write a result without them"
        )
    for dim, axes in operand.layout.dims:
        for major, minor in itertools.pairwise(axes):
            if major not in explicit and minor in explicit:
                raise LayoutError(
                    f"{operand}: {dim} is split over {major}, which is Auto, before {minor}, which is Explicit, and JAX's "
                    f"types would drop {major}: write {minor} first, or make the mesh with axes of one type"
                )


def untold_dims(layout: Layout, mesh: AnyMesh) -> Iterator[tuple[str, Axes, Axes]]:
    """The dimensions that are split over Explicit and Auto axes both, with these and those.

    A type tells the Explicit axes alone, and where it tells some, JAX has the compiler split the dimension over no other.
    """
    explicit = explicit_axes(mesh)
    for dim, axes in layout.on(Mesh.parse(mesh)).dims:
        told, untold = tuple(a for a in axes if a in explicit), tuple(a for a in axes if a not in explicit)
        if told and untold:
            yield dim, told, untold


def check_told(operand: Operand, mesh: AnyMesh) -> None:
    """Refuse to make, inside `jit`, an array whose type cannot tell its layout: JAX would gather it in silence.

    Raises:
        LayoutError: a dimension is split over Explicit and Auto axes both.
    """
    for dim, told, untold in untold_dims(operand.layout, mesh):
        has, lost = ", ".join(told), ", ".join(untold)
        raise LayoutError(
            f"{operand}: {dim} is split over {has}, which is Explicit, and {lost}, which is Auto: inside jit JAX's types tell "
            f"{has} alone, and the split over {lost} would be lost; make it outside of jit, split {dim} over axes of one "
            "type, or make the mesh with axes of one type"
        )


def part_over(layout: Layout, axes: frozenset[str]) -> Layout:
    """The part of a layout that these axes tell."""
    return Layout(tuple((dim, tuple(a for a in split if a in axes)) for dim, split in layout.dims), layout.unreduced & axes)


def check_numeric(dtype: Any, name: str) -> None:
    """Refuse what is no number, and numbers that JAX does not have."""
    if not jax.dtypes.issubdtype(dtype, np.number) and not jax.dtypes.issubdtype(dtype, np.bool_):
        raise ArrayError(f"array {name} has dtype {dtype}: numbers are needed, as float32 or int8")
    if np.dtype(dtype).itemsize > (16 if np.dtype(dtype).kind == "c" else 8):
        raise ArrayError(
            f"array {name} has dtype {dtype}, which JAX does not have: convert it first, as array.astype('float64')"
        )


def sharding_for(operand: Operand, mesh: AnyMesh) -> NamedSharding:
    """A layout on a mesh as JAX's sharding; partial sums are refused, but for those over one device."""
    if operand.layout.on(Mesh.parse(mesh)).unreduced:
        raise LayoutError(
            f"{operand} cannot be placed: partial sums come from a computation; place them along a dimension "
            "of their own, as A[N_x, I], and sum over N"
        )
    return NamedSharding(mesh, told_layout(operand.layout, mesh).spec)


def told_layout(layout: Layout, mesh: AnyMesh) -> Layout:
    """A layout as types shall tell it: as it is written, with its axes of size 1; without those on a mesh of mixed types.

    Where a type tells an Explicit axis of a dimension, JAX has the compiler split that over no Auto one, whatever its size is.
    """
    grid = Mesh.parse(mesh)
    mixed = 0 < len(explicit_axes(mesh)) < len(grid.names)
    return layout.on(grid) if mixed else Layout(layout.dims, layout.on(grid).unreduced)


def placed_shape(shape: tuple[int, ...], operand: Operand, grid: Mesh, pad: bool) -> tuple[int, ...]:
    """The shape that an array has once it is placed: padded where its axes do not divide it, or refused."""
    padded = []
    for (dim, axes), size in zip(operand.layout.dims, shape, strict=True):
        parts = grid.extent(axes)
        if size % parts and not pad:
            raise LayoutError(f"array {operand}: {not_divisible(dim, size, axes, grid)}")
        padded.append(padded_size(size, parts))
    return tuple(padded)


def check_shape(shape: tuple[int, ...], operand: Operand) -> None:
    """Refuse an array whose rank is not the one written, or that is empty."""
    if len(shape) != len(operand.dims):
        raise ArrayError(
            f"array {operand} has {counted(len(operand.dims), 'dimension')} as written, but {len(shape)} as given, "
            f"of shape {shape}"
        )
    for dim, size in zip(operand.dims, shape, strict=True):
        if size == 0:
            raise ArrayError(f"array {operand.name} is empty: dimension {dim} has size 0, so there is nothing to compute")


def check_axes(operand: Operand, mesh: AnyMesh) -> None:
    """Refuse a layout over axes that the mesh lacks."""
    grid = Mesh.parse(mesh)
    for axis in (*operand.layout.axes, *sorted(operand.layout.unreduced)):
        if axis not in grid.names:
            raise LayoutError(f"array {operand}: {grid.unknown(axis)}")


# The layout that an array has.


def sharding_of(array: Any) -> Any:
    """The sharding that fixes where an array lives; None where nothing does: on the host, uncommitted, or traced under
    Auto axes. Of one traced under both kinds of axes it tells the Explicit ones alone."""
    if isinstance(array, jax.core.Tracer):
        sharding = jax.typeof(array).sharding
        return sharding if explicit_axes(sharding.mesh) else None
    if isinstance(array, jax.Array):
        return array.sharding if array.committed else None
    return None


def check_layout(sharding: Any, operand: Operand, mesh: AnyMesh) -> None:
    """Refuse an array that lies otherwise than written; nothing is moved in silence.

    Raises:
        ArrayError: with the layout it has and the call that moves it.
    """
    grid = Mesh.parse(mesh)
    wanted = operand.layout.on(grid)
    if isinstance(sharding, NamedSharding) and Mesh.parse(sharding.mesh) == grid and _same_devices(sharding.mesh, mesh):
        has = Layout.from_spec(sharding.spec, operand.dims).on(grid)
        told = explicit_axes(sharding.mesh) if isinstance(sharding.mesh, jax.sharding.AbstractMesh) else frozenset(grid.names)
        if has != part_over(wanted, told):
            raise ArrayError(
                f"array {operand.name} is laid out as {operand.name}{has}, and the equation says {operand.name}{wanted}: "
                f'move it first, sw.reshard({operand.name.lower()}, "{operand.name}{has} -> {operand.name}{wanted}")'
            )
        return
    abstract = isinstance(getattr(sharding, "mesh", None), jax.sharding.AbstractMesh)
    comparable = isinstance(mesh, jax.sharding.Mesh) and not wanted.unreduced and not abstract
    if comparable and sharding.is_equivalent_to(NamedSharding(mesh, wanted.spec), len(operand.dims)):
        return
    if isinstance(sharding, NamedSharding):
        other = Mesh.parse(sharding.mesh)
        where = f"on other devices, of another mesh {other}" if other == grid else f"on another mesh, {other}"
    else:
        where = f"on {', '.join(map(str, sorted(sharding.device_set, key=lambda device: device.id)))}"
    raise ArrayError(
        f"array {operand.name} lives {where}, and the equation says {operand.name}{wanted} on mesh {grid}: "
        f'place it first, sw.put({operand.name.lower()}, "{operand.name}{wanted}", mesh)'
    )


def _same_devices(one: Any, other: Any) -> bool:
    if isinstance(one, jax.sharding.Mesh) and isinstance(other, jax.sharding.Mesh):
        return one.devices.tolist() == other.devices.tolist()
    return True


def fetch(array: Any) -> np.ndarray:
    """The whole array on this host, also where other processes hold parts of it (then all must call this); partial sums
    are summed."""
    spec = array.sharding.spec if isinstance(array, jax.Array) and isinstance(array.sharding, NamedSharding) else None
    if getattr(spec, "unreduced", None):
        array = jax.sharding.reshard(array, NamedSharding(array.sharding.mesh, PartitionSpec()))
    if isinstance(array, jax.Array) and not array.is_fully_addressable:
        assert isinstance(array.sharding, NamedSharding)
        replicated = NamedSharding(array.sharding.mesh, PartitionSpec())
        return np.asarray(jax.jit(lambda x: x, out_shardings=replicated)(array).addressable_data(0))
    return np.asarray(array)
