"""The collectives of a program on one device's shards: as JAX has them, as TPUs and hosts do best, among Explicit axes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax import lax
from jax.sharding import NamedSharding, auto_axes, get_abstract_mesh

from shardwise.chips import Hardware, hardware
from shardwise.errors import HardwareError
from shardwise.layout import Axes
from shardwise.mesh import Mesh
from shardwise.planning.told import exchange_form, scatter_form
from shardwise.runtime.arrays import explicit_axes
from shardwise.runtime.blocks import (
    cut_blocks,
    exchange_blocks,
    exchange_one,
    join_blocks,
    lying_in,
    scatter_blocks,
    scatter_rows,
    sum_and_cut,
)
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
        return exchange_one(array, axes, split, concat)


class OnTpu(Tiled):
    """The same on TPUs, told so that their compilers sum, copy and transpose less.

    - A scatter whose blocks the compiler would sum is told of them as a dimension of their own: along the dimension that runs
      fastest in memory a block that is no even number of tiles (of 16-bit elements) is taken out of an all-reduce; so is every
      block of a vector. Of 250 such scatters of random matrices the median is 1.3 times as fast so, the slowest 0.62 (on v5p,
      whose links are fast beside its copies), and vectors are more than twice as fast. What is left of it is made first: else a
      gather that follows takes one block for a row of its tiles, and pads and transposes it twice. Of 74 random programs 25 are
      up to 3.2 times as fast so, and none is slower.
    - So is a scatter of whole rows on a chip of two cores where a block ends within the rows of a tile: 34 of 34 are faster so,
      up to 13 times, as they go along all links, and no pads have to be moved.
    - What is summed all the same is so by name, and then cut: of a scatter the compiler would bring the blocks in front before.
      14 of 14 such scatters take no longer so, half of them less than 0.63 of the time.
    - What an all-to-all takes is made first: else its cut into blocks goes through the matmul that made it, and an operand of
      that is transposed. Of 120 random programs with all-to-alls one is 1.7 times as fast so, and the slowest 0.95; two others
      were 2.3 and 2.5 times as fast.
    - An all-to-all that joins blocks along the first of three dimensions is told of them as a dimension of their own: 45 random
      programs that hold such ones are 1.02 times as fast in the geometric mean, at most 1.33, the slowest 0.88. So is one whose
      blocks would be spread over memory (`shardwise.planning.exchanges`).
    """

    def __init__(self, chip: Hardware | None = None) -> None:
        self.chip = chip

    def reduce_scatter(self, array: Any, at: int, axes: Axes) -> Any:
        """As the compiler of this chip is best told of it (`shardwise.planning.told`)."""
        match scatter_form(array.shape, at, lax.axis_size(axes), array.dtype.itemsize, self.chip):
            case "sum":
                return call(_SummedAndCut(at, axes), array)[0]
            case "rows":
                return scatter_rows(array, axes)
            case "blocks":
                return scatter_blocks(array, axes, at)
            case "in order":
                return super().reduce_scatter(lying_in(array, tuple(range(array.ndim))), at, axes)
            case _:
                return super().reduce_scatter(array, at, axes)

    def all_to_all(self, array: Any, split: int, concat: int, axes: Axes, read: bool = False) -> Any:
        n, item_bytes = lax.axis_size(axes), array.dtype.itemsize
        if exchange_form(array.shape, split, concat, n, item_bytes, self.chip, read=read) == "blocks":
            return exchange_blocks(array, axes, split, concat)
        return super().all_to_all(lax.optimization_barrier(array), split, concat, axes)


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
        return [sum_and_cut(array, self.axes, self.at)]

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
        return join_blocks(lax.all_gather(array, axes, axis=0, to=to), at)

    def reduce_scatter(self, array: Any, at: int, axes: Axes) -> Any:
        if at == 0:
            return super().reduce_scatter(array, at, axes)
        return lax.psum_scatter(cut_blocks(array, at, self.mesh.extent(axes)), axes, scatter_dimension=0)

    def all_to_all(self, array: Any, split: int, concat: int, axes: Axes, read: bool = False) -> Any:
        blocks = cut_blocks(array, split, self.mesh.extent(axes))
        return join_blocks(lax.all_to_all(blocks, axes, split_axis=0, concat_axis=0), concat)


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
