"""The collectives of a program on one device's shards: as JAX has them, as TPUs and hosts do best, among Explicit axes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding, auto_axes, get_abstract_mesh

from shardwise.chips import Hardware, hardware
from shardwise.errors import HardwareError
from shardwise.layout import Axes
from shardwise.mesh import Mesh
from shardwise.planning.tiles import LANES, blocks_of
from shardwise.runtime.arrays import explicit_axes
from shardwise.runtime.multilinear import Multilinear, call


def collectives_for(mesh: Mesh, kind: str) -> Tiled | Among:
    """The collectives for a program's mesh on devices of a kind, where this code stands: inside `jax.shard_map`."""
    plain = Blocked(mesh) if kind == "cpu" else OnTpu(_chip(kind)) if kind.startswith("TPU") else Tiled()
    explicit = explicit_axes(get_abstract_mesh())
    return Among(plain, explicit) if explicit else plain


@functools.cache
def _chip(kind: str) -> Hardware | None:
    try:
        return hardware.for_device_kind(kind)
    except HardwareError:
        return None


class Tiled:
    """Collectives along any dimension, as JAX has them."""

    def all_gather(self, array: Any, at: int, axes: Axes, to: str) -> Any:
        return lax.all_gather(array, axes, axis=at, tiled=True, to=to)

    def reduce_scatter(self, array: Any, at: int, axes: Axes) -> Any:
        return lax.psum_scatter(array, axes, scatter_dimension=at, tiled=True)

    def all_to_all(self, array: Any, split: int, concat: int, axes: Axes, read: bool = False) -> Any:
        """`read`: a matmul reads the result."""
        if array.shape[concat] != 1:
            return lax.all_to_all(array, axes, split_axis=split, concat_axis=concat, tiled=True)
        # What arrives is the dimension: joined to one of size 1, TPU compilers lay out every row as a tile of its own.
        blocks = _cut(lax.squeeze(array, [concat]), split - (concat < split), lax.axis_size(axes))
        return jnp.moveaxis(lax.all_to_all(blocks, axes, split_axis=0, concat_axis=0, tiled=True), 0, concat)


class OnTpu(Tiled):
    """The same on TPUs, told so that their compilers sum, copy and transpose less.

    - A scatter whose blocks the compiler would sum is told of them as a dimension of their own: along the dimension that runs
      fastest in memory a block that is no even number of tiles (of 16-bit elements) is taken out of an all-reduce; so is every
      block of a vector. Of 250 such scatters of random matrices the median is 1.3 times as fast so, the slowest 0.62 (on v5p,
      whose links are fast beside its copies), and vectors are more than twice as fast.
    - So is a scatter of whole rows on a chip of two cores where a block ends within the rows of a tile: 34 of 34 are faster so,
      up to 13 times, as they go along all links, and no pads have to be moved.
    - What is summed all the same is so by name, and then cut: of a scatter the compiler would bring the blocks in front before.
      14 of 14 such scatters take no longer so, half of them less than 0.63 of the time.
    - What an all-to-all takes is made first: else its cut into blocks goes through the matmul that made it, and an operand of
      that is transposed. Of 120 random programs with all-to-alls one is 1.7 times as fast so, and the slowest 0.95; two others
      were 2.3 and 2.5 times as fast.
    - An all-to-all that joins blocks along the first of three dimensions is told of them as a dimension of their own: 45 random
      programs that hold such ones are 1.02 times as fast in the geometric mean, at most 1.33, the slowest 0.88. So is one whose
      blocks would be spread over memory (`are_transposed`).
    """

    def __init__(self, chip: Hardware | None = None) -> None:
        self.chip = chip

    def reduce_scatter(self, array: Any, at: int, axes: Axes) -> Any:
        n, cores = lax.axis_size(axes), 1 if self.chip is None else self.chip.devices_per_chip
        after = (*array.shape[:at], array.shape[at] // n, *array.shape[at + 1 :])
        blocks = blocks_of("reduce-scatter", (at, at), array.shape, after, item_bytes=array.dtype.itemsize)
        if blocks.tiles == "rows" and cores == 1:
            return call(_SummedAndCut(at, axes), array)[0]
        if not blocks.stands_apart(cores):
            return super().reduce_scatter(array, at, axes)
        if array.ndim == 1:  # as rows of whole tiles
            return lax.psum_scatter(array.reshape(n, -1, LANES), axes, scatter_dimension=0).reshape(after)
        return lax.psum_scatter(_cut(array, at, n), axes, scatter_dimension=0)

    def all_to_all(self, array: Any, split: int, concat: int, axes: Axes, read: bool = False) -> Any:
        array, n = lax.optimization_barrier(array), lax.axis_size(axes)
        if array.ndim < 3 or array.shape[concat] == 1 or not (concat == 0 or self.is_spread(array, split, concat, n, read)):
            return super().all_to_all(array, split, concat, axes)
        blocks = _cut(array, split, n)
        return _joined(lax.all_to_all(blocks, axes, split_axis=0, concat_axis=0), concat)

    def is_spread(self, array: Any, split: int, concat: int, n: int, read: bool) -> bool:
        """Whether the blocks of an all-to-all over n devices would be spread over memory, where to transpose them is faster."""
        after = list(array.shape)
        after[split], after[concat] = after[split] // n, after[concat] * n
        blocks = blocks_of("all-to-all", (concat, split), array.shape, after)
        compiler = None if self.chip is None else self.chip.compiler
        return compiler is not None and blocks.are_transposed(array.size * array.dtype.itemsize, compiler, read)


@dataclass(frozen=True, slots=True)
class _SummedAndCut:
    """The sum over axes, of which each device keeps its block; what goes back is gathered, as of any scatter."""

    at: int
    axes: Axes
    back: bool = False

    def run(self, *arrays: Any) -> list[Any]:
        (array,) = arrays
        if self.back:
            return [lax.all_gather(array, self.axes, axis=self.at, tiled=True)]
        width = array.shape[self.at] // lax.axis_size(self.axes)
        return [lax.dynamic_slice_in_dim(lax.psum(array, self.axes), lax.axis_index(self.axes) * width, width, self.at)]

    def tangent(self, arrays: Sequence[Any], tangents: Sequence[Any | None]) -> tuple[Sequence[Any], Sequence[Any | None]]:
        return call(self, *arrays), call(self, *tangents)

    def transposed(self, arrays: Sequence[Any | None], cotangents: Sequence[Any | None]) -> Sequence[Any | None]:
        return [None] if cotangents[0] is None else call(replace(self, back=not self.back), cotangents[0])

    def batched(self, stacked: Sequence[bool]) -> tuple[Multilinear, Sequence[bool], Sequence[bool]]:
        return replace(self, at=self.at + 1), stacked, stacked


class Blocked(Tiled):
    """The same on simulated devices, 2 to 8 times as fast along other dimensions than the first.

    XLA's CPU collectives work on the first dimension in memory, and along another one turn the whole array element
    by element. Here the shards are stacked along a new first dimension, which is then moved: that copies whole rows.
    """

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh

    def all_gather(self, array: Any, at: int, axes: Axes, to: str) -> Any:
        if at == 0:
            return super().all_gather(array, at, axes, to)
        return _joined(lax.all_gather(array, axes, axis=0, to=to), at)

    def reduce_scatter(self, array: Any, at: int, axes: Axes) -> Any:
        if at == 0:
            return super().reduce_scatter(array, at, axes)
        return lax.psum_scatter(_cut(array, at, self.mesh.extent(axes)), axes, scatter_dimension=0)

    def all_to_all(self, array: Any, split: int, concat: int, axes: Axes, read: bool = False) -> Any:
        blocks = _cut(array, split, self.mesh.extent(axes))
        return _joined(lax.all_to_all(blocks, axes, split_axis=0, concat_axis=0), concat)


class Among:
    """The same on shards that Explicit axes may split as well: while one runs they are Auto to it, and split what they split.

    JAX 0.12 has no reduce-scatter, and so no gradient of an all-gather, where they are Explicit.
    """

    def __init__(self, plain: Tiled, explicit: frozenset[str]) -> None:
        self.plain = plain
        self.explicit = tuple(sorted(explicit))

    def all_gather(self, array: Any, at: int, axes: Axes, to: str) -> Any:
        return self.kept(lambda shard: self.plain.all_gather(shard, at, axes, to), array)

    def reduce_scatter(self, array: Any, at: int, axes: Axes) -> Any:
        return self.kept(lambda shard: self.plain.reduce_scatter(shard, at, axes), array)

    def all_to_all(self, array: Any, split: int, concat: int, axes: Axes, read: bool = False) -> Any:
        return self.kept(lambda shard: self.plain.all_to_all(shard, split, concat, axes, read), array)

    def kept(self, collective: Callable[[Any], Any], array: Any) -> Any:
        sharding = NamedSharding(get_abstract_mesh(), jax.typeof(array).sharding.spec)
        return auto_axes(collective, axes=self.explicit, out_sharding=sharding)(array)


def _cut(array: Any, at: int, parts: int) -> Any:
    """Cut a dimension into parts, and stack them along a new first one."""
    shape = (*array.shape[:at], parts, array.shape[at] // parts, *array.shape[at + 1 :])
    return jnp.moveaxis(array.reshape(shape), at, 0)


def _joined(blocks: Any, at: int) -> Any:
    """Lay the blocks of the first dimension side by side along another one: the inverse of `_cut`."""
    moved = jnp.moveaxis(blocks, 0, at)
    return moved.reshape((*moved.shape[:at], -1, *moved.shape[at + 2 :]))
