"""`device_print`: one line for each device from inside `jax.shard_map`, in device order, with nothing communicated."""

from __future__ import annotations

import numbers
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import get_abstract_mesh

from shardwise.errors import MeshError, ShardwiseError, counted, one_line
from shardwise.mesh import Mesh, flat_index
from shardwise.runtime.arrays import as_array
from shardwise.runtime.manual import manual_mesh, unknown

WHO = "sw.spmd.device_print"
# Of an array with more values than that, so many are shown at each end.
SHOWN_VALUES, EDGE = 8, 3
# How long a call waits for devices that may never come: other processes' ones, or ones that branch past it.
PATIENCE_SECONDS = 2.0


def device_print(
    *arrays: Any, label: str = "", values: bool = False, only: Mapping[str, int] | None = None, limit: int = 16
) -> None:
    """Print what every device holds: a line each, in device order, with mesh coordinates and the shape of each shard.

    >>> import jax, numpy as np, shardwise as sw
    >>> mesh, layout = sw.make_mesh("i=2, j=2"), sw.Layout.parse("I_i, J_j")
    >>> def double(x):
    ...     device_print(x, label="x", values=True)
    ...     return 2 * x
    >>> x = sw.put(np.arange(8.0).reshape(2, 4), layout, mesh)
    >>> mapped = jax.jit(jax.shard_map(double, mesh=mesh, in_specs=layout.spec, out_specs=layout.spec))
    >>> y = mapped(x); jax.effects_barrier()
    x on mesh i=2, j=2
    device 0  i=0, j=0  float32[1, 2]  [[0, 1]]
    device 1  i=0, j=1  float32[1, 2]  [[2, 3]]
    device 2  i=1, j=0  float32[1, 2]  [[4, 5]]
    device 3  i=1, j=1  float32[1, 2]  [[6, 7]]

    Devices are numbered in mesh order. They print when the function runs, under `jit`, `grad` and `scan` too, once for
    every time that they come by; values and gradients stay what they are. Devices that do not come within two seconds of
    the others, as those that another process holds or that took another branch, are left out, or follow later.
    `jax.effects_barrier()` waits for what is being printed.

    Args:
        arrays: this device's shards; with none, the mesh coordinates alone are printed.
        label: what stands on the line above.
        values: print values too; of more than 8, the first and the last three.
        only: the devices at these mesh coordinates, as `{"i": 0}`.
        limit: the largest number of devices.

    Raises:
        MeshError: outside `jax.shard_map`; or `only` names an axis or a position that the mesh lacks.
        ArrayError: what is given is no array.
    """
    grid = _grid()
    if isinstance(limit, bool) or not isinstance(limit, numbers.Integral) or limit < 1:
        raise ShardwiseError(f"{WHO}: limit={limit!r}: give the largest number of devices, at least 1")
    if not isinstance(values, bool):
        raise ShardwiseError(f"{WHO}: values={values!r}: only True and False are known")
    chosen = list(_chosen(grid, only or {}))
    shards = [jnp.asarray(as_array(array)) for array in arrays]
    kinds = [f"{shard.dtype}[{', '.join(map(str, shard.shape))}]" for shard in shards]
    samples = [_sample(shard) for shard in shards] if values else []
    title = f"{one_line(str(label))} on {grid.told}" if label else grid.told
    left_out = len(chosen) - limit
    footer = f"... and {counted(left_out, 'more device')}; limit={len(chosen)} prints all" if left_out > 0 else ""
    together = _Together(title, dict(chosen[:limit]), footer, kinds, [shard.size for shard in shards])
    jax.debug.callback(together.arrived, lax.axis_index(grid.names), *samples)


def _grid() -> Mesh:
    grid = manual_mesh()
    if not grid.axes:
        raise MeshError(f"{WHO}: no mesh axis is manual here, outside jax.shard_map: call it in the function that is mapped")
    for axis in get_abstract_mesh().axis_names:
        if axis not in grid.names:
            raise MeshError(f"{WHO}: {unknown(str(axis))}")
    return grid


def _chosen(grid: Mesh, only: Mapping[str, int]) -> Iterator[tuple[int, str]]:
    """The devices to print of, by number, each with its coordinates as text."""
    if not isinstance(only, Mapping):
        raise MeshError(f"{WHO}: only={only!r}: give mesh coordinates, as {{'{grid.names[0]}': 0}}")
    for axis, position in only.items():
        if axis not in grid.names:
            raise MeshError(f"{WHO}: {unknown(str(axis))}")
        if not isinstance(position, numbers.Integral) or not 0 <= position < grid.axis_size(axis):
            raise MeshError(f"{WHO}: only={only!r}: positions along mesh axis {axis} are 0 to {grid.axis_size(axis) - 1}")
    for coordinate in grid.coordinates():
        if all(coordinate[axis] == position for axis, position in only.items()):
            yield flat_index(coordinate, grid.names, grid), ", ".join(f"{axis}={at}" for axis, at in coordinate.items())


def _sample(shard: Any) -> Any:
    """The values that are shown: all of a small array, the ends of a large one, so that little leaves the device."""
    if shard.size > SHOWN_VALUES:
        flat = shard.reshape(-1)
        shard = jnp.concatenate([flat[:EDGE], flat[-EDGE:]])
    return jax.random.key_data(shard) if jnp.issubdtype(shard.dtype, jax.dtypes.prng_key) else shard


class _Together:
    """Holds back the lines of one `device_print` until all of its devices have come, so that they stand in order."""

    def __init__(self, title: str, places: Mapping[int, str], footer: str, kinds: list[str], sizes: list[int]):
        self.title, self.places, self.footer, self.kinds, self.sizes = title, places, footer, kinds, sizes
        self.waiting: dict[int, deque[str]] = {device: deque() for device in places}
        self.lock = threading.Lock()
        self.latest_seconds = 0.0
        self.watched = False

    def arrived(self, device: Any, *samples: Any) -> None:
        """Take a device's values; called by JAX, from any thread."""
        number = int(device)
        if number not in self.places:
            return
        parts = self.kinds
        if samples:
            told = zip(self.kinds, samples, self.sizes, strict=True)
            parts = [f"{kind}  {_text(np.asarray(sample), size)}" for kind, sample, size in told]
        line = "  ".join([f"device {number}", self.places[number], *parts])
        with self.lock:
            self.waiting[number].append(line)
            self.latest_seconds = time.monotonic()
            if all(self.waiting.values()):
                self.flush()
            elif not self.watched:
                self.watch()

    def flush(self) -> None:
        """Print one line of every device that has come."""
        lines = [lines.popleft() for lines in self.waiting.values() if lines]
        print("\n".join([self.title, *lines, *([self.footer] if self.footer else [])]), flush=True)

    def watch(self) -> None:
        """See to it, in a thread, that lines do not wait for devices that never come. Python ends after such threads; when it
        is ending already it starts none, and nothing is waited for."""
        try:
            threading.Thread(target=self.flush_later, name=WHO, daemon=False).start()
            self.watched = True
        except RuntimeError:
            self.flush()

    def flush_later(self) -> None:
        """Print what is there once no device has come for a while."""
        left_seconds = PATIENCE_SECONDS
        while left_seconds > 0:
            time.sleep(left_seconds)
            with self.lock:
                left_seconds = self.latest_seconds + PATIENCE_SECONDS - time.monotonic()
                if left_seconds <= 0 or not any(self.waiting.values()):
                    self.watched, left_seconds = False, 0
                    while any(self.waiting.values()):
                        self.flush()


def _text(sample: np.ndarray, size: int) -> str:
    """Values on one line; `size` is that of the array they are of.

    >>> _text(np.float32([0, 1, 2, 97, 98.5, 99]), 100)
    '[0, 1, 2, ..., 97, 98.5, 99]'
    """
    if sample.dtype.kind not in "biufc":
        sample = sample.astype(np.float32)  # bfloat16 and narrower ones, which NumPy does not print as numbers
    if size <= SHOWN_VALUES:
        return _nested(sample.tolist())
    return f"[{', '.join([*map(_nested, sample[:EDGE].tolist()), '...', *map(_nested, sample[EDGE:].tolist())])}]"


def _nested(values: Any) -> str:
    return f"[{', '.join(map(_nested, values))}]" if isinstance(values, list) else _number(values)


def _number(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float | complex) else str(value)
