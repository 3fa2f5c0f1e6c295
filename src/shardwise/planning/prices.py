"""The prices of single steps on a hardware: collectives, local products, and what they compute, send and hold."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from shardwise.chips import Hardware, Memory
from shardwise.chips.links import Hop, Pricer, Routes, memory_seconds, pricer, ring_hop
from shardwise.layout import Axes
from shardwise.mesh import Mesh

ITEM_BYTES = {
    "bool": 1, "int8": 1, "uint8": 1, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "int16": 2, "uint16": 2, "float16": 2, "bfloat16": 2,
    "int32": 4, "uint32": 4, "float32": 4,
    "int64": 8, "uint64": 8, "float64": 8, "complex64": 8,
    "complex128": 16,
}  # fmt: skip


COPIED_FROM = 16e6  # bytes: what an all-to-all moves is laid out anew before and after, unless it stays on the chip
LEAVES_FROM = 1e6  # bytes of a result whose copy is worth a thought


@dataclass(frozen=True, slots=True)
class StepCost:
    """One step of a program: its modelled seconds, and what it computes, sends and holds on each device.

    `transfer_seconds` is how long data moves, `exposed_seconds` what of it no product hides.
    """

    seconds: float
    flops: float = 0.0
    wire_bytes: float = 0.0
    live_bytes: float = 0.0
    transfer_seconds: float = 0.0
    exposed_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Costs:
    """The prices of steps for one problem: hardware, mesh and dtype are fixed.

    `accumulated` is the dtype of products, where it is another (`preferred_element_type`); `routes` what the mesh's axes
    have of a torus's links, where the topology is known.
    """

    hardware: Hardware
    mesh: Mesh
    dtype: str
    accumulated: str | None = None
    routes: Routes | None = None
    _prices: dict[tuple[str, Axes], Pricer] = field(default_factory=dict, compare=False, repr=False)

    @property
    def item_bytes(self) -> int:
        return ITEM_BYTES[self.dtype]

    @property
    def product_bytes(self) -> int:
        return ITEM_BYTES[self.accumulated or self.dtype]

    def collective(self, kind: str, axes: Axes, in_bytes: float, out_bytes: float, turned_bytes: float = 0.0) -> float:
        """Seconds of a collective that makes shards of `out_bytes` from shards of `in_bytes`.

        `turned_bytes` are those whose blocks are moved in memory, where that costs (see `turned_bytes`).
        """
        price = self._prices.get((kind, axes))
        if price is None:
            price = self._prices[kind, axes] = pricer(kind, self.hardware, self.mesh, axes, self.routes)
        seconds = price(in_bytes, out_bytes)
        compiler = self.hardware.compiler
        if compiler is not None and kind == "reduce-scatter":
            seconds *= compiler.reduce_scatter_sends.value
        if kind == "all-to-all" and in_bytes >= COPIED_FROM:
            seconds += self.copy(in_bytes) + self.copy(out_bytes)
        if turned_bytes and isinstance(self.hardware.links, Memory):
            links = self.hardware.links
            seconds += self.mesh.size * turned_bytes / links.turned_bytes_per_s.value
            seconds += memory_seconds(links, self.mesh, 0.0, turned_bytes)
        return seconds

    def copy(self, array_bytes: float) -> float:
        """Seconds to copy an array in memory."""
        compiler = self.hardware.compiler
        if compiler is None:
            return self._memory(array_bytes, array_bytes)
        return array_bytes * self.hardware.sharers(self.mesh) / compiler.copied_bytes_per_s.value

    def leaving(self, kind: str, out_bytes: float) -> float:
        """Seconds to copy what a collective gathered to where a program's result must stand; TPU compilers do.

        An all-to-all's is turned as well, which takes twice as long.
        """
        if self.hardware.compiler is None or out_bytes < LEAVES_FROM:
            return 0.0
        return {"all-gather": 1.0, "all-to-all": 2.0}.get(kind, 0.0) * self.copy(out_bytes)

    @property
    def sum_seconds(self) -> float:
        """What a product takes more that adds what has arrived from a neighbour."""
        return 0.0 if self.hardware.compiler is None else self.hardware.compiler.sum_seconds.value

    @property
    def cover(self) -> float:
        """The FLOPs of products that a permute is left to hide behind, for each byte; those there are, by default."""
        return math.inf if self.hardware.compiler is None else self.hardware.compiler.cover_flops_per_byte.value

    def hop(self, axes: Axes) -> Hop:
        """One step of a ring over mesh axes."""
        return ring_hop(self.hardware, self.mesh, axes, self.routes)

    def slice(self, out_bytes: float) -> float:
        """Seconds to copy the kept part."""
        return self._launch() + self._memory(out_bytes, out_bytes)

    def einsum(self, flops: float, in_bytes: float, out_bytes: float) -> float:
        """Seconds of a local einsum: the roofline, max(FLOPs / peak, bytes / memory bandwidth).

        Where the catalogue knows what a chip's compiler makes of products, of the peak only the share that large ones
        reach, and no more results a second than leave the multipliers.
        """
        arithmetic = flops / self.hardware.flops(self.dtype, self.mesh)
        compiler = self.hardware.compiler
        if compiler is not None and flops:
            leaving = compiler.results_per_s.value / self.hardware.sharers(self.mesh)
            arithmetic /= compiler.efficiency.value
            arithmetic = max(arithmetic, out_bytes / self.product_bytes / leaving) + compiler.start_seconds.value
        if isinstance(self.hardware.links, Memory):
            # The product is computed before its pages are first written: both are paid.
            return self._launch() + max(arithmetic, self._memory(in_bytes, 0.0)) + self._memory(0.0, out_bytes)
        return max(arithmetic, self._memory(in_bytes, out_bytes))

    def _launch(self) -> float:
        links = self.hardware.links
        return self.mesh.size * links.local_seconds.value if isinstance(links, Memory) else 0.0

    def _memory(self, read_bytes: float, written_bytes: float) -> float:
        match self.hardware.links:
            case Memory() as memory:
                return memory_seconds(memory, self.mesh, read_bytes, written_bytes)
            case _:
                return (read_bytes + written_bytes) / self.hardware.memory_speed(self.mesh)


def turned_bytes(kind: str, dim: int, target: int, in_bytes: float, out_bytes: float) -> float:
    """The bytes of a shard whose blocks are moved in memory, for a collective along the dimension at a position.

    Simulated devices' collectives work on the first dimension: along another one, what is gathered is put in order
    afterwards, and what is scattered before. An all-to-all gathers along `dim` and scatters along `target`.
    """
    match kind:
        case "all-gather":
            return out_bytes if dim else 0.0
        case "reduce-scatter":
            return in_bytes if dim else 0.0
        case "all-to-all":
            return (out_bytes if dim else 0.0) + (in_bytes if target else 0.0)
        case _:
            return 0.0


def einsum_flops(operands: Sequence[Sequence[str]], dims: Iterable[str], sizes: Mapping[str, int]) -> float:
    """The FLOPs of a local einsum: what one operand alone sums is summed before the product.

    >>> einsum_flops(["IJ", "JK"], "IK", {"I": 2, "J": 3, "K": 5})
    60.0
    """
    kept = set(dims)
    flops, multiplied = 0.0, set[str]()
    for index, names in enumerate(operands):
        others = {dim for other, theirs in enumerate(operands) if other != index for dim in theirs}
        private = [dim for dim in names if dim not in kept and dim not in others]
        if private:
            flops += math.prod(sizes[dim] for dim in names)
        multiplied |= set(names) - set(private)
    if len(operands) > 1:
        flops += (2.0 if multiplied - kept else 1.0) * math.prod(sizes[dim] for dim in multiplied)
    return flops
