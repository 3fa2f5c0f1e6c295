"""A scheduled computation as a stream of steps, in whole femtoseconds: work, transfers issued and awaited, and loops."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from shardwise.chips.links import Route
from shardwise.chips.placing import Site
from shardwise.compiled.facts import Collective
from shardwise.compiled.replaying.kernels import Cores, copied, kernel
from shardwise.compiled.replaying.tracks import Tracks
from shardwise.compiled.replaying.traffic import remote_traffic, traffic
from shardwise.compiled.replaying.work import matmuls
from shardwise.compiled.text.flow import carries_on
from shardwise.compiled.text.hlo import Computation, Instruction, Module
from shardwise.compiled.text.loops import trip_count
from shardwise.compiled.text.sources import Sources, metadata
from shardwise.compiled.text.stated import communicates, stated_cost
from shardwise.compiled.text.walk import SCHEDULES, Survey, survey, visits

PER_SECOND = 10**15  # whole numbers: a loop's trips are equal, and spans meet, exactly
DMA = "memory"
TO_HOST, FROM_HOST = "to host", "from host"
COPIES = ("copy-start", "slice-start", "dynamic-slice-start", "dynamic-update-slice-start")


@dataclass(frozen=True, slots=True)
class Work:
    """The compute lane is busy."""

    name: str
    femtoseconds: int
    is_matmul: bool
    flops: float
    peak_seconds: float
    line: str
    op_name: str


@dataclass(frozen=True, slots=True)
class Transfer:
    """Bytes that keep lanes busy: of a collective, of a kernel that sends by itself, or of a copy between memories.

    It waits for others on its `tracks`; `lanes` are where it is shown.
    """

    name: str
    lanes: tuple[str, ...]
    tracks: tuple[str, ...]
    femtoseconds: int
    moved_bytes: float
    collective: Collective | None = None
    of_kernel: bool = False

    @property
    def remote(self) -> bool:
        """Whether other devices take part."""
        return self.collective is not None or self.of_kernel


@dataclass(frozen=True, slots=True)
class Issue:
    """Transfers are handed to their lanes."""

    name: str
    transfers: tuple[Transfer, ...]


@dataclass(frozen=True, slots=True)
class Await:
    """The compute lane goes on when what `name` issued has arrived."""

    name: str


@dataclass(frozen=True, slots=True)
class Enter:
    """Other streams run: one after the other, so often; or, of branches, the longest."""

    name: str
    streams: tuple[InstructionStream, ...]
    trips: int = 1
    is_loop: bool = False
    is_choice: bool = False


Step = Work | Issue | Await | Enter


@dataclass(slots=True, eq=False)
class InstructionStream:
    """The steps of one computation, in the order of its schedule."""

    name: str
    steps: list[Step] = field(default_factory=list)


def femtoseconds(seconds: float) -> int:
    return round(seconds * PER_SECOND)


@dataclass(slots=True)
class Recorder:
    """Makes the instruction streams of a module, each computation's once; notes what had to be assumed."""

    cores: Cores
    collectives: Mapping[tuple[str, str], Sequence[Collective]]
    routes: Mapping[str, Route] | None
    site: Site | None
    survey: Survey
    sources: Sources
    tracks: Tracks
    streams: dict[str, InstructionStream] = field(default_factory=dict)
    dones: dict[str, dict[str, Instruction]] = field(default_factory=dict)

    @property
    def module(self) -> Module:
        return self.cores.module

    def stream(self, computation: Computation) -> InstructionStream:
        if computation.name not in self.streams:
            stream = self.streams[computation.name] = InstructionStream(computation.name)
            ends: dict[str, list[str]] = {}
            for instruction in computation.instructions:
                stream.steps += self._steps(computation, instruction, ends)
        return self.streams[computation.name]

    def _steps(self, home: Computation, instruction: Instruction, ends: dict[str, list[str]]) -> Iterator[Step]:
        """The steps of one instruction; `ends` are the starts that an instruction further on waits for."""
        opcode = instruction.opcode
        started = self.collectives.get((home.name, instruction.name), ())
        if started:
            yield from self._collective(home, instruction, started, ends)
        elif instruction.name in ends:
            yield from map(Await, ends[instruction.name])
            if instruction.cycles:
                yield from self._work(home, instruction)
        elif opcode in SCHEDULES:
            yield from self._entered(home, instruction)
        elif opcode in COPIES or self._sliced(instruction):
            yield self._copy(home, instruction)
        elif opcode in ("copy-done", "slice-done", "dynamic-slice-done", "dynamic-update-slice-done", "fusion-done"):
            yield from map(Await, instruction.operands[:1])
        elif opcode.endswith(("-done", "-update")):
            return
        elif opcode == "call-start" or (opcode.endswith("-start") and self.survey.talks(instruction)):
            if not self.survey.talks(instruction):
                self.cores.note("a call that runs beside the schedule, and is no collective: estimated as nothing")
        elif communicates(instruction):
            yield from self._sending(home, instruction)
        else:
            yield from self._work(home, instruction)

    def _sending(self, home: Computation, instruction: Instruction) -> Iterator[Step]:
        """A kernel that sends to other devices by itself while it works, as many bytes as it states."""
        cost = stated_cost(instruction)
        if cost is None or not cost.remote_bytes:
            self.cores.note(f"{instruction.name} communicates by itself, and does not state its bytes: they cost nothing here")
            yield from self._work(home, instruction)
            return
        found = remote_traffic(cost.remote_bytes, self.cores.hardware, self.cores.mesh, self.routes)
        self.cores.note(f"{instruction.name}: {found.assumed}")
        tracks = self.tracks.taken_by(found)
        seconds = femtoseconds(found.seconds)
        sent = Transfer(instruction.name, found.lanes, tracks, seconds, cost.remote_bytes, of_kernel=True)
        yield Issue(instruction.name, (sent,))
        yield from self._work(home, instruction)
        yield Await(instruction.name)

    def _work(self, home: Computation, instruction: Instruction) -> Iterator[Step]:
        cores = self.cores
        found = kernel(cores, home, instruction)
        if found is None:
            return
        seconds = found.seconds
        if not instruction.cycles and carries_on(self.module, instruction):
            seconds = found.peak_seconds  # what it takes and gives on are the parts of a transfer
        line = self.sources.line(instruction)
        if (whole := femtoseconds(seconds)) or found.flops:
            place, op_name = line.place if line else "", metadata(instruction).get("op_name", "")
            yield Work(instruction.name, whole, found.is_matmul, found.flops, found.peak_seconds, place, op_name)

    def _collective(
        self, home: Computation, instruction: Instruction, started: Sequence[Collective], ends: dict[str, list[str]]
    ) -> Iterator[Step]:
        if instruction.cycles or matmuls(self.cores.book, home, instruction):
            yield from self._work(home, instruction)
        transfers = []
        for collective in started:
            found = traffic(collective, self.cores.hardware, self.cores.mesh, self.routes, self.site)
            if found.assumed:
                self.cores.note(found.assumed)
            if (named := collective.algorithm) is not None and named.known and named.links:
                self.cores.note(f"the text names {named.name}: over {named.links} links of a device at most")
            sent = collective.wire_bytes / max(collective.trips or 1, 1)
            tracks = self.tracks.taken_by(found)
            transfers.append(Transfer(collective.name, found.lanes, tracks, femtoseconds(found.seconds), sent, collective))
        yield Issue(instruction.name, tuple(transfers))
        end = started[0].end
        if all(collective.asynchronous for collective in started):
            ends.setdefault(end, []).append(instruction.name)
        elif end == instruction.name and instruction.opcode.endswith("-start"):
            self.cores.note("a collective that starts in one trip of a loop and ends in the next: nothing waits for it here")
        else:
            yield Await(instruction.name)

    def _done(self, home: Computation) -> dict[str, Instruction]:
        """What ends each asynchronous start of a computation, by the start's name."""
        if home.name not in self.dones:
            ending = [i for i in home.instructions if i.opcode.endswith("-done")]
            self.dones[home.name] = {name: instruction for instruction in ending for name in instruction.operands}
        return self.dones[home.name]

    def _sliced(self, instruction: Instruction) -> tuple[Computation, Instruction] | None:
        """Of a fusion that starts here and does nothing but cut an array, or update a piece of it: where, and what does."""
        called = self.module.computations.get(next((name for _, name in instruction.called()), ""))
        if instruction.opcode != "fusion-start" or called is None or called.root is None:
            return None
        moving = [i for i in called.instructions if i.opcode not in ("parameter", "constant", "bitcast", "copy")]
        does = moving[0] if len(moving) == 1 else called.root
        plain = len(moving) <= 1 and does.opcode in ("dynamic-slice", "dynamic-update-slice", "slice", "copy")
        return (called, does) if plain else None

    def _copy(self, home: Computation, instruction: Instruction) -> Issue:
        done = self._done(home).get(instruction.name)
        result = done.shape if done is not None else instruction.shape
        within, moves = self._sliced(instruction) or (home, instruction)
        updates = moves.opcode.startswith("dynamic-update-slice")  # of its first operand a piece, the second
        source = within.by_name.get(next(iter(moves.operands[updates:]), ""))
        taken = source.shape if source else result
        found = copied(self.cores, taken, result, taken if updates else result)
        lane = TO_HOST if found.to_host else FROM_HOST if found.from_host else DMA
        moved = Transfer(instruction.name, (lane,), (lane,), femtoseconds(found.seconds), found.moved_bytes)
        return Issue(instruction.name, (moved,))

    def _entered(self, home: Computation, instruction: Instruction) -> Iterator[Step]:
        called = [(role, self.module.computations[n]) for role, n in instruction.called() if n in self.module.computations]
        trips = 1
        if instruction.opcode == "while":
            found = trip_count(self.module, home, instruction)
            if found is None:
                self.cores.note("a loop whose trips are not known: it runs once here")
            trips = 1 if found is None else found
            called.sort(key=lambda pair: pair[0] != "condition")
        if instruction.opcode == "conditional":
            self.cores.note("a conditional: its longest branch runs here")
        streams = tuple(stream for _, computation in called if (stream := self.stream(computation)).steps)
        is_loop = instruction.opcode == "while"
        if is_loop and len(streams) > 1:  # its condition and its body are one trip
            streams = (InstructionStream(instruction.name, [step for stream in streams for step in stream.steps]),)
        if streams and trips:
            yield Enter(instruction.name, streams, trips, is_loop, instruction.opcode == "conditional")


def record(
    cores: Cores, collectives: Sequence[Collective], routes: Mapping[str, Route] | None, site: Site | None = None
) -> InstructionStream:  # fmt: skip
    """The stream of a module's entry."""
    module = cores.module
    seen = survey(module)
    visited: dict[str, int] = {}
    for visit in visits(module, seen, []):
        visited[visit.computation.name] = visited.get(visit.computation.name, 0) + 1
    started: dict[tuple[str, str], list[Collective]] = {}
    for collective in collectives:
        started.setdefault((collective.computation, collective.name), []).append(collective)
    # A computation that runs from several places has its collectives listed once for each.
    once = {key: found[: max(1, len(found) // visited.get(key[0], 1))] for key, found in started.items()}
    permutes = (each for each in collectives if each.kind == "collective-permute")
    tracks = Tracks.of(traffic(each, cores.hardware, cores.mesh, routes, site) for each in permutes)
    recorder = Recorder(cores, once, routes, site, seen, Sources(module), tracks)
    return recorder.stream(module.entry) if module.entry else InstructionStream("")
