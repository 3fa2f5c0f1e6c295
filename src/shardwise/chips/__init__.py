"""Hardware: chips and links as cited data, one TOML file for each chip."""

from __future__ import annotations

import functools
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwise.errors import HardwareError, did_you_mean, quoted
from shardwise.mesh import Mesh

# As some call a chip; beside these a TPU's name may go without "tpu-", as that of a topology does: v5e, v5e:2x4.
_OTHER_NAMES = {"tpu7x": "tpu-v7x"}

_FOLDER = Path(__file__).with_name("catalogue")

# How a dtype without a figure of its own is estimated: as another dtype, slower by a factor.
_RECKONED_AS = {
    "float16": ("bfloat16", 1.0),
    "complex64": ("float32", 4.0),  # a complex product is four real ones
    "complex128": ("float64", 4.0),
    "uint8": ("int8", 1.0),
    "float64": ("float32", 2.0),
    "int8": ("bfloat16", 1.0),
}


@dataclass(frozen=True, slots=True)
class Figure:
    """A number and where it comes from."""

    value: float
    source: str


@dataclass(frozen=True, slots=True)
class Torus:
    """Chips in a grid, linked to their neighbours along each dimension; long enough dimensions close to rings."""

    bytes_per_s: Figure  # one link, one way
    hop_seconds: Figure
    dimensions: Figure
    wraps_at_multiple_of: Figure
    longest: Figure


@dataclass(frozen=True, slots=True)
class Switch:
    """Nodes of devices behind a switch, joined by a network."""

    bytes_per_s: Figure  # egress of one device within its node
    hop_seconds: Figure
    node_devices: Figure
    node_bytes_per_s: Figure  # egress of one node to the network


@dataclass(frozen=True, slots=True)
class Memory:
    """Simulated devices: what one sends another it copies through the memory that all share."""

    bytes_per_s: Figure
    fresh_bytes_per_s: Figure  # writing to memory that the system must map first
    fresh_from_bytes: Figure  # buffers of this size on are mapped anew
    turned_bytes_per_s: Figure  # moving an array's blocks: collectives work on the first dimension only
    launch_seconds: Figure  # of a collective, for each device
    local_seconds: Figure  # of a local step, for each device


@dataclass(frozen=True, slots=True)
class Compiler:
    """What a chip's own compiler makes of programs.

    - Of local products: the share of the peak that large ones reach, how fast results leave, and what the start costs.
    - Of arrays that are copied: bytes a second, whole, or cut out in parts for a product, and the least seconds; how large a
      gathered one may be that leaves the chip at the speed of its memory; what the smallest slice takes.
    - Of all-to-alls: bytes a second that are laid out anew before and after, in whole tiles of the memory or not, and how
      often one is copied that ends a program.
    - Of other collectives: the FLOPs of products between start and end of a permute, for each byte, that are taken for
      enough (it starts no earlier than that); and on how many devices, all those of a slice, a scatter and a gather (up to
      so many bytes) are compiled as an all-reduce.
    - From how many chips of a slice on the links are routed by tables (`shardwise.chips.algorithms`).
    """

    efficiency: Figure
    results_per_s: Figure
    start_seconds: Figure
    copied_bytes_per_s: Figure
    least_copy_seconds: Figure
    cut_bytes_per_s: Figure
    kept_bytes: Figure
    laid_bytes_per_s: Figure
    ragged_bytes_per_s: Figure
    turned_copies: Figure
    cover_flops_per_byte: Figure
    scatter_summed_from: Figure
    gather_summed_from: Figure
    gather_summed_bytes: Figure
    routed_from: Figure
    slice_seconds: Figure


@dataclass(frozen=True, slots=True)
class Reached:
    """What published measurements reach of a chip's figures, as shares: of its links, and of its peak where one is known.

    Prices are bounds, without these shares, where no compiler's cycles are known.
    """

    links: Figure
    products: Figure | None = None


Links = Torus | Switch | Memory


@dataclass(frozen=True, slots=True)
class Hardware:
    """A chip and its links, each figure with its source.

    >>> hardware("tpu-v5e").flops("bfloat16", Mesh.parse("x=4"))
    197000000000000.0
    """

    name: str
    title: str
    device_kinds: tuple[str, ...]
    devices_per_chip: int
    flops_per_s: tuple[tuple[str, Figure], ...]
    memory_bytes: Figure
    memory_bytes_per_s: Figure
    links: Links
    clock_hz: Figure | None = None
    compiler: Compiler | None = None
    host_bytes_per_s: Figure | None = None  # the link of a chip to its host's memory, one way
    reached: Reached | None = None

    @property
    def shared(self) -> bool:
        """Whether all devices share one host's cores and memory."""
        return isinstance(self.links, Memory)

    def sharers(self, mesh: Mesh) -> int:
        """How many devices share the figures of one chip."""
        return mesh.size if self.shared else self.devices_per_chip

    def flops(self, dtype: str, mesh: Mesh) -> float:
        """The peak FLOP/s of one device for a dtype."""
        figures = {name: figure.value for name, figure in self.flops_per_s}
        factor = 1.0
        while dtype not in figures:
            dtype, slower = _RECKONED_AS.get(dtype, ("float32", 1.0))
            factor *= slower
        return figures[dtype] / factor / self.sharers(mesh)

    def memory_speed(self, mesh: Mesh) -> float:
        """The memory bandwidth of one device, in bytes/s."""
        return self.memory_bytes_per_s.value / self.sharers(mesh)

    def host_speed(self, mesh: Mesh) -> float | None:
        """What one device takes from its host's memory, or brings there, in bytes/s; None where no figure is known."""
        return None if self.host_bytes_per_s is None else self.host_bytes_per_s.value / self.sharers(mesh)

    def figures(self) -> list[tuple[str, Figure]]:
        """Every figure with its name and unit."""
        rows = [(f"{dtype} FLOP/s", figure) for dtype, figure in self.flops_per_s]
        rows += [("memory bytes", self.memory_bytes), ("memory bytes/s", self.memory_bytes_per_s)]
        if self.host_bytes_per_s:
            rows.append(("host bytes/s", self.host_bytes_per_s))
        for name in self.links.__dataclass_fields__:
            rows.append((f"link {name.replace('_', ' ').replace('bytes per s', 'bytes/s')}", getattr(self.links, name)))
        if self.clock_hz:
            rows.append(("clock Hz", self.clock_hz))
        if self.compiler:
            fields = Compiler.__dataclass_fields__
            rows += [(f"compiler {name.replace('_', ' ')}", getattr(self.compiler, name)) for name in fields]
        rows += [(f"reached share of {what}", figure) for what, figure in self.shares_reached()]
        return rows

    def shares_reached(self) -> list[tuple[str, Figure]]:
        """What published measurements reach: of what, and the share."""
        if self.reached is None:
            return []
        found = [("links", self.reached.links), ("peak", self.reached.products)]
        return [(what, figure) for what, figure in found if figure is not None]

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.title}"]
        lines += [f"  {name:<28} {figure.value:>12.4g}  {figure.source}" for name, figure in self.figures()]
        return "\n".join(lines)


class Catalogue:
    """The hardware that is known: `hardware(name)`, `hardware.names()`, `hardware.for_device_kind(kind)`."""

    def __call__(self, name: str | Hardware) -> Hardware:
        """Look up a hardware by name: `tpu-v5e`, or `v5e`.

        >>> hardware("v5e").title
        'TPU v5e'

        Raises:
            HardwareError: the catalogue does not hold it; the nearest name is offered.
        """
        if isinstance(name, Hardware):
            return name
        canonical = self.canonical(name) if isinstance(name, str) else name
        if canonical not in self.names():
            have = f"the catalogue holds {', '.join(self.names())}"
            raise HardwareError(f"unknown hardware {quoted(name)}: {have}{did_you_mean(str(name), self.names())}")
        return _load(canonical)

    def canonical(self, name: str) -> str:
        """The catalogue's name of a chip by any of its names; of one that it does not hold the name as it is.

        >>> hardware.canonical("v5e"), hardware.canonical("tpu7x"), hardware.canonical("h100")
        ('tpu-v5e', 'tpu-v7x', 'h100')
        """
        name = _OTHER_NAMES.get(name, name)
        return name if name in self.names() or f"tpu-{name}" not in self.names() else f"tpu-{name}"

    def names(self) -> tuple[str, ...]:
        """The names that the catalogue holds."""
        return _names()

    def for_device_kind(self, kind: str) -> Hardware:
        """The hardware of a device by JAX's `device_kind`.

        Raises:
            HardwareError: no hardware of the catalogue answers to it.
        """
        known = [(device_kind, name) for name in self.names() for device_kind in _load(name).device_kinds]
        matching = [(len(device_kind), name) for device_kind, name in known if kind.lower().startswith(device_kind.lower())]
        if matching:
            return _load(max(matching)[1])
        raise HardwareError(f"devices of kind {kind!r} are not in the catalogue: say which to estimate with, hardware='h100'")


hardware = Catalogue()


@functools.cache
def _names() -> tuple[str, ...]:
    return tuple(sorted(file.stem for file in _FOLDER.glob("*.toml")))


@functools.cache
def _load(name: str) -> Hardware:
    return read((_FOLDER / f"{name}.toml").read_text(encoding="utf-8"))


def read(text: str) -> Hardware:
    """Read one hardware from TOML; every figure is `{ value = ..., source = "..." }`.

    Raises:
        HardwareError: a figure or its source is missing.
    """
    table = tomllib.loads(text)
    name = table.get("name", "?")

    def figure(section: str, key: str) -> Figure:
        entry = table.get(section, {}).get(key)
        if not isinstance(entry, dict) or "value" not in entry or not entry.get("source"):
            raise HardwareError(f"hardware {name} lacks {section}.{key} = {{ value = ..., source = ... }}")
        return Figure(float(entry["value"]), entry["source"])

    kinds: dict[str, type[Any]] = {"torus": Torus, "switch": Switch, "memory": Memory}
    kind = table.get("links", {}).get("kind")
    if kind not in kinds:
        raise HardwareError(f"hardware {name} has links of kind {kind!r}: known are {', '.join(kinds)}")
    links = kinds[kind](**{key: figure("links", key) for key in kinds[kind].__dataclass_fields__})
    return Hardware(
        name=name,
        title=table.get("title", name),
        device_kinds=tuple(table.get("device_kinds", ())),
        devices_per_chip=int(table.get("devices_per_chip", 1)),
        flops_per_s=tuple((dtype, figure("flops_per_s", dtype)) for dtype in table.get("flops_per_s", {})),
        memory_bytes=figure("memory", "bytes"),
        memory_bytes_per_s=figure("memory", "bytes_per_s"),
        links=links,
        clock_hz=figure("clock", "hz") if "clock" in table else None,
        compiler=Compiler(*(figure("compiler", name) for name in Compiler.__dataclass_fields__))
        if "compiler" in table
        else None,
        host_bytes_per_s=figure("host", "bytes_per_s") if "host" in table else None,
        reached=Reached(figure("reached", "links"), figure("reached", "products") if "products" in table["reached"] else None)
        if "reached" in table
        else None,
    )
