"""Chips and links as frozen values: each figure with its source."""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.mesh import Mesh
from shardwise.steps import CollectiveKind

# How a dtype without a figure of its own is estimated: as another dtype, slower by a factor.
_ESTIMATED_AS = {
    "float16": ("bfloat16", 1.0),
    "complex64": ("float32", 4.0),  # a complex product is four real ones
    "complex128": ("float64", 4.0),
    "uint8": ("int8", 1.0),
    "float64": ("float32", 2.0),
    "int8": ("bfloat16", 1.0),
}

NEVER = 1e9  # what stands in the catalogue for a number from which on something would hold, of what never does


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
    copied_bytes_per_s: Figure  # written by collectives that copy from other devices, and do not sum
    fresh_bytes_per_s: Figure  # writing to memory that the system must map first
    fresh_from_bytes: Figure  # buffers of this size on are mapped anew
    transposed_bytes_per_s: Figure  # moving an array's blocks: collectives work on the first dimension only
    launch_seconds: Figure  # of a collective, for each device
    local_seconds: Figure  # of a local step, for each device
    dispatch_seconds: Figure  # of a program, for each device, whatever its steps
    rendezvous_seconds: Figure = Figure(0.0, "counted in launch_seconds")  # of a collective, for each device of a group


@dataclass(frozen=True, slots=True)
class Compiler:
    """What a chip's own compiler makes of programs.

    - Of local matmuls: the share of the peak that large ones reach; how fast results leave, to memory and where the chip keeps
      them for a collective; of how many elements of a sum a pass of the multipliers adds the products, of fewer in the same
      time; what the start costs, and what the smallest takes.
    - How large an array may be that is fetched to the chip's own memory before a matmul or a copy works on it; and of the
      speed of main memory, the share at which a matmul reads what is larger.
    - Of arrays that are copied: bytes a second, whole, or cut out in parts for a matmul, and the least seconds; how large a
      gathered one may be that leaves the chip at the speed of its memory; what the smallest slice takes.
    - Of arrays that are transposed, so that another dimension runs fastest: bytes a second of those that are fetched, and of
      larger ones; and of two blocks that are spread, where that pads less.
    - Of collectives: the FLOPs of matmuls between start and end of a permute, for each byte, that are taken for
      enough (it starts no earlier than that); and on how many devices, all those of a slice, a scatter and a gather (up to
      so many bytes) are compiled as an all-reduce; and how many tiles of memory a chunk of a scatter over n devices has at
      most, times n + 4.
    - From how many chips of a slice on the links are routed by tables (`shardwise.chips.algorithms`).
    - Whether all-gathers run beside matmuls that need none of them (1), or nothing else runs meanwhile (0).
    """

    efficiency: Figure
    results_per_s: Figure
    kept_results_per_s: Figure
    pass_elements: Figure
    start_seconds: Figure
    least_seconds: Figure
    near_bytes: Figure
    read_share: Figure
    copied_bytes_per_s: Figure
    least_copy_seconds: Figure
    cut_bytes_per_s: Figure
    kept_bytes: Figure
    transposed_bytes_per_s: Figure
    far_transposed_bytes_per_s: Figure
    spread_bytes_per_s: Figure
    cover_flops_per_byte: Figure
    scatter_summed_from: Figure
    scattered_tiles: Figure
    gather_summed_from: Figure
    gather_summed_bytes: Figure
    routed_from: Figure
    slice_seconds: Figure
    gathers_ahead: Figure = Figure(0.0, "not told: taken as run by themselves")

    @property
    def starts_late(self) -> bool:
        """Whether it starts a permute no earlier than it takes for enough: with fewer matmuls behind it than there are."""
        return self.cover_flops_per_byte.value < NEVER

    def transposes(self, array_bytes: float) -> float:
        """Bytes a second of an array of so many that is copied so that another dimension runs fastest."""
        near = array_bytes <= self.near_bytes.value
        return self.transposed_bytes_per_s.value if near else self.far_transposed_bytes_per_s.value


@dataclass(frozen=True, slots=True)
class Reached:
    """What published measurements reach of a chip's figures, as shares: of its links, and of its peak where one is known.

    Prices are bounds, without these shares, where no compiler's cycles are known.
    """

    links: Figure
    matmuls: Figure | None = None


Links = Torus | Switch | Memory


@dataclass(frozen=True, slots=True)
class Rate:
    """What a collective took where it was measured: it starts, and then each device sends so many bytes a second.

    `devices` are those of a group; `apart` is how far from each other in device order: the devices of a mesh's last axis are
    1 apart, those of the axis before as many as the last axis has.
    """

    kind: CollectiveKind
    devices: int
    apart: int
    start_seconds: Figure
    bytes_per_s: Figure


@dataclass(frozen=True, slots=True)
class Calibration:
    """Where, when and with what figures were measured, and how near the model came to what it was fitted to.

    Attributes:
        host: what was measured, as a plan names it.
        date: the day, as 2026-11-22.
        versions: of the libraries, by name.
        measured: how many programs were timed.
        errors: the median of |predicted / measured - 1| of each kind of program, and of all.
    """

    host: str
    date: str
    versions: tuple[tuple[str, str], ...]
    measured: int
    errors: tuple[tuple[str, float], ...]

    @property
    def error(self) -> float | None:
        """The median error of all that was fitted; None where none is told."""
        return dict(self.errors).get("all")


@dataclass(frozen=True, slots=True)
class Hardware:
    """A chip and its links, each figure with its source.

    >>> from shardwise.chips import hardware
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
    network_bytes_per_s: Figure | None = None  # what a chip sends to chips of other slices, over the data centre's network
    reached: Reached | None = None
    overlapped_matmul: Figure | None = None  # times as long as alone, where collectives take some of the cores that multiply
    rates: tuple[Rate, ...] = ()  # measured, in place of what the links' figures say
    calibration: Calibration | None = None

    def __hash__(self) -> int:
        return hash(self.name)  # of the same name there are few, and figures are many

    @property
    def slowdown(self) -> float:
        """How many times as long a matmul takes beside a transfer as alone."""
        return 1.0 if self.overlapped_matmul is None else self.overlapped_matmul.value

    @property
    def shared(self) -> bool:
        """Whether all devices share one host's cores and memory."""
        return isinstance(self.links, Memory)

    @property
    def packs(self) -> bool:
        """Whether a matmul packs its operands before it multiplies, as a host's does; a chip reads while it multiplies."""
        return self.shared

    def sharers(self, mesh: Mesh) -> int:
        """How many devices share the figures of one chip."""
        return mesh.size if self.shared else self.devices_per_chip

    def flops(self, dtype: str, mesh: Mesh) -> float:
        """The peak FLOP/s of one device for a dtype."""
        figures = {name: figure.value for name, figure in self.flops_per_s}
        factor = 1.0
        while dtype not in figures:
            dtype, slower = _ESTIMATED_AS.get(dtype, ("float32", 1.0))
            factor *= slower
        return figures[dtype] / factor / self.sharers(mesh)

    def memory_speed(self, mesh: Mesh) -> float:
        """The memory bandwidth of one device, in bytes/s."""
        return self.memory_bytes_per_s.value / self.sharers(mesh)

    def host_speed(self, mesh: Mesh) -> float | None:
        """What one device takes from its host's memory, or brings there, in bytes/s; None where no figure is known."""
        return None if self.host_bytes_per_s is None else self.host_bytes_per_s.value / self.sharers(mesh)

    def network_speed(self) -> float | None:
        """What one device sends to other slices, in bytes/s; None where no figure is known."""
        return None if self.network_bytes_per_s is None else self.network_bytes_per_s.value / self.devices_per_chip

    def figures(self) -> list[tuple[str, Figure]]:
        """Every figure with its name and unit."""
        rows = [(f"{dtype} FLOP/s", figure) for dtype, figure in self.flops_per_s]
        rows += [("memory bytes", self.memory_bytes), ("memory bytes/s", self.memory_bytes_per_s)]
        if self.host_bytes_per_s:
            rows.append(("host bytes/s", self.host_bytes_per_s))
        if self.network_bytes_per_s:
            rows.append(("network bytes/s", self.network_bytes_per_s))
        for name in self.links.__dataclass_fields__:
            rows.append((f"link {name.replace('_', ' ').replace('bytes per s', 'bytes/s')}", getattr(self.links, name)))
        if self.clock_hz:
            rows.append(("clock Hz", self.clock_hz))
        if self.compiler:
            fields = Compiler.__dataclass_fields__
            rows += [(f"compiler {name.replace('_', ' ')}", getattr(self.compiler, name)) for name in fields]
        rows += [(f"reached share of {what}", figure) for what, figure in self.shares_reached()]
        if self.overlapped_matmul:
            rows.append(("overlapped matmul, times as long", self.overlapped_matmul))
        for rate in self.rates:
            where = f"{rate.kind} of {rate.devices}, {rate.apart} apart"
            rows += [(f"{where}: start seconds", rate.start_seconds), (f"{where}: bytes/s", rate.bytes_per_s)]
        return rows

    def shares_reached(self) -> list[tuple[str, Figure]]:
        """What published measurements reach: of what, and the share."""
        if self.reached is None:
            return []
        found = [("links", self.reached.links), ("peak", self.reached.matmuls)]
        return [(what, figure) for what, figure in found if figure is not None]

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.title}"]
        lines += [f"  {name:<28} {figure.value:>12.4g}  {figure.source}" for name, figure in self.figures()]
        return "\n".join(lines)
