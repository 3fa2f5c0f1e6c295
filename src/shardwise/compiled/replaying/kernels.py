"""How long one instruction keeps the cores busy: the compiler's own cycles, or a roofline of FLOPs and memory bytes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from shardwise.chips import Hardware, Memory, Torus
from shardwise.compiled.replaying.demands import demand
from shardwise.compiled.replaying.work import Workbook, matmuls
from shardwise.compiled.text import shapes
from shardwise.compiled.text.hlo import Computation, Instruction, Module
from shardwise.compiled.text.stated import stated_cost
from shardwise.mesh import Mesh

# What makes no work: names, views, and numbers that are known.
FREE = (
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "partition-id", "replica-id", "after-all",
    "add-dependency", "optimization-barrier", "opt-barrier", "domain", "get-dimension-size",
)  # fmt: skip
FREE_CALLS = (
    "AllocateBuffer", "ConcatBitcast", "Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "GlobalBarrier",
    "PrepareAsyncCallStart", "PrepareAsyncCallDone", "AssumeGatherIndicesInBound",
)  # fmt: skip
HOST_SPACE = 5  # memory space of the host, of arrays that are offloaded
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
_READS_A_PART = ("dynamic-slice", "slice", "gather")


@dataclass(frozen=True, slots=True)
class Kernel:
    """One instruction's time, of which `peak_seconds` its matmuls would take at the chip's peak."""

    seconds: float
    is_matmul: bool = False
    flops: float = 0.0
    peak_seconds: float = 0.0


@dataclass(slots=True)
class Cores:
    """One device's cores and memory, as far as kernels need them, with what was found on the way."""

    module: Module
    hardware: Hardware
    mesh: Mesh
    book: Workbook
    notes: dict[str, int] = field(default_factory=dict)

    @property
    def clock_hz(self) -> float | None:
        return self.hardware.clock_hz.value if self.hardware.clock_hz else None

    @property
    def launch_seconds(self) -> float:
        """What starting a kernel costs; a figure that only simulated devices have."""
        links = self.hardware.links
        return links.local_seconds.value * self.mesh.size if isinstance(links, Memory) else 0.0

    def note(self, text: str) -> None:
        self.notes[text] = self.notes.get(text, 0) + 1


def kernel(cores: Cores, home: Computation, instruction: Instruction) -> Kernel | None:
    """The time of one instruction that is no transfer; None where it costs nothing."""
    target = _TARGET.search(instruction.attributes) if instruction.opcode == "custom-call" else None
    if instruction.opcode in FREE or (target and target[1] in FREE_CALLS):
        return None
    made = matmuls(cores.book, home, instruction)
    flops = sum(matmul.flops for matmul in made)
    peak = sum(matmul.flops / cores.hardware.flops(matmul.dtype, cores.mesh) for matmul in made)
    cycles = instruction.cycles
    from_host = host_seconds(cores, moved_bytes(cores, home, instruction, in_host))
    if cycles and cores.clock_hz:
        return Kernel(max(cycles / cores.clock_hz, from_host), bool(made), flops, peak)
    asked = demand(cores.module, home, instruction)
    cost = stated_cost(instruction)
    moved = (cost.accessed_bytes if cost else 0) or moved_bytes(cores, home, instruction, in_main) * asked.passes
    others = asked.flops / cores.hardware.flops(asked.dtype, cores.mesh)
    memory = moved / cores.hardware.memory_speed(cores.mesh)
    seconds = max(peak + memory if made and cores.hardware.packs else peak, others, memory, from_host)
    if seconds == 0 and isinstance(cores.hardware.links, Torus) and _size(instruction.shape) > 4096:
        cores.note("work on arrays on the chip, without the compiler's cycles: estimated as nothing")
    if not made and _size(instruction.shape) <= 64 and moved <= 1024:
        return Kernel(seconds) if seconds else None  # scalars: counters and indices
    if asked.note:
        cores.note(asked.note)
    elif cost and cost.transcendentals:
        cores.note(f"{target[1] if target else instruction.name}: its transcendentals cost nothing here: no figure is known")
    elif target and not made and cost is None:
        cores.note(
            f"a custom call of {target[1]}: estimated by the bytes that it takes and gives alone, its FLOPs are not known"
        )
    return Kernel(seconds + cores.launch_seconds, bool(made), flops, peak)


Where = Callable[[Cores, shapes.Array], bool]


def moved_bytes(cores: Cores, home: Computation, instruction: Instruction, where: Where) -> float:
    """The bytes that an instruction reads from and writes to one memory: main memory, or the host's."""

    def held(name: str) -> float:
        return _bytes(cores, home.by_name[name].shape, where) if name in home.by_name else 0.0

    given = _bytes(cores, instruction.shape, where)
    match instruction.opcode:
        case "dynamic-update-slice":
            update = sum(_size(home.by_name[name].shape) for name in instruction.operands[1:2] if name in home.by_name)
            return sum(map(held, instruction.operands[1:2])) + min(given, update)
        case opcode if opcode in _READS_A_PART:
            return min(sum(map(held, instruction.operands[:1])), _size(instruction.shape)) + given
        case opcode if opcode.endswith("-start"):
            return given  # it lists what it takes and what it gives
        case "fusion":
            return _fusion_bytes(cores, home, instruction, where)
        case _:
            return float(sum(map(held, set(instruction.operands))) + given)


def on_chip(cores: Cores, array: shapes.Array) -> bool:
    """Whether an array lives on a TPU's chip: in VMEM (space 1), CMEM (3 on v4), or among scalars and semaphores."""
    return isinstance(cores.hardware.links, Torus) and array.space not in (0, HOST_SPACE)


def in_host(cores: Cores, array: shapes.Array) -> bool:
    """Whether an array lies in the memory of the host, and that is none that the device shares."""
    return array.space == HOST_SPACE and not cores.hardware.shared


def in_main(cores: Cores, array: shapes.Array) -> bool:
    """Whether an array lies in the main memory of the device."""
    return not on_chip(cores, array) and not in_host(cores, array)


def host_seconds(cores: Cores, moved: float) -> float:
    """How long so many bytes take between a device and its host, one way."""
    speed = cores.hardware.host_speed(cores.mesh)
    if moved and speed is None:
        cores.note("no figure of the link to the host is known: estimated with the speed of main memory")
    return moved / (speed or cores.hardware.memory_speed(cores.mesh))


def _fusion_bytes(cores: Cores, home: Computation, instruction: Instruction, where: Where) -> float:
    called = cores.module.computations.get(next((name for _, name in instruction.called()), ""))
    if called is None:
        return 0.0
    parameters = called.parameters()
    total = 0.0
    for place, name in enumerate(instruction.operands):
        outer, inner = home.by_name.get(name), parameters.get(place)
        if outer is None:
            continue
        whole = _bytes(cores, outer.shape, where)
        total += min(whole, _part_read(called, inner)) if inner is not None and whole else whole
    return total + min(_bytes(cores, instruction.shape, where), _part_written(called, instruction))


def _part_read(called: Computation, parameter: Instruction) -> float:
    """The bytes that a fusion reads of one parameter: of one that it only cuts, or updates in place, not all."""
    users = [i for i in called.instructions if parameter.name in i.operands]
    if not users:
        return 0.0
    read = 0.0
    for user in users:
        if user.opcode in _READS_A_PART and user.operands[0] == parameter.name:
            read += _size(user.shape)
        elif user.opcode != "dynamic-update-slice" or user.operands[0] != parameter.name:
            return float("inf")
    return read


def _part_written(called: Computation, instruction: Instruction) -> float:
    root = called.root
    for _ in range(4):
        if root is None or root.opcode not in ("bitcast", "copy") or not root.operands:
            break
        root = called.by_name.get(root.operands[0])
    if root is None or root.opcode != "dynamic-update-slice" or len(root.operands) < 2:
        return float("inf")
    update = called.by_name.get(root.operands[1])
    return _size(update.shape) if update else float("inf")


def _arrays(text: str) -> Iterator[shapes.Array]:
    try:
        yield from shapes.leaves(shapes.parse(text))
    except shapes.UnreadShapeError:
        return


def _bytes(cores: Cores, text: str, where: Where) -> float:
    return float(sum(array.bytes for array in _arrays(text) if where(cores, array)))


def _size(text: str) -> float:
    return float(sum(array.bytes for array in _arrays(text)))


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy between memories: the bytes that it moves, how long it takes, and whether it goes to the host or comes from it."""

    moved_bytes: float
    seconds: float
    to_host: bool = False
    from_host: bool = False


def copied(cores: Cores, source: str, result: str, piece: str) -> Copy:
    """The copy of a piece from where `source` lies to where `result` does.

    On the device it costs the bytes of main memory that it touches, those of each end that is not on the chip; what
    passes the link to the host is bound by that.
    """
    ends = [next(_arrays(source), None), next(_arrays(result), None)]
    away = [end is not None and in_host(cores, end) for end in ends]
    if away[0] != away[1]:
        return Copy(_size(piece), host_seconds(cores, _size(piece)), to_host=away[1], from_host=away[0])
    moved = _size(piece) * sum(1 for end in ends if end is not None and not on_chip(cores, end))
    return Copy(moved, moved / cores.hardware.memory_speed(cores.mesh))
