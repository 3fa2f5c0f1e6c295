"""What stands out in a compiled program, and what to do about it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from shardwise.compiled.facts import Collective, Work
from shardwise.compiled.text.flow import Flow
from shardwise.compiled.text.hlo import Instruction, Module
from shardwise.compiled.text.sources import metadata
from shardwise.compiled.text.walk import survey
from shardwise.compiled.uneven import Uneven
from shardwise.planning.explain import bytes_text

REPEATED = 1.05  # products done more often than this stand out
SHOWN = 4  # names and lines of one finding


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that stands out: what, how many bytes of the wire (or 0), where, and what to do about it."""

    what: str
    wire_bytes: float
    source: str
    advice: str

    def __str__(self) -> str:
        where = ", ".join(PurePath(line.replace("\\", "/")).name for line in self.source.split(", "))
        return f"{self.what} ({where})\n    {self.advice}" if where else f"{self.what}\n    {self.advice}"


def findings(
    module: Module, collectives: Sequence[Collective], work: Work, uneven: Sequence[Uneven] = ()
) -> tuple[Finding, ...]:
    """Everything that stands out, the most bytes first; repeated work and layouts that cannot be had before all."""
    look = _Look(module)
    found = [*_undone(look, collectives), *_twice(look, collectives), *_sliced(collectives), *_widened(look, collectives)]
    found += [*_laid(collectives), *_each_turn(look, collectives)]
    return (*_repeated(work), *map(_not_had, uneven), *sorted(found, key=lambda finding: -finding.wire_bytes))


def lines_of(collectives: Iterable[Collective]) -> str:
    """The source lines of several collectives, each once."""
    lines = list(dict.fromkeys(collective.source for collective in collectives))
    return ", ".join(lines[:SHOWN]) + (f" and {len(lines) - SHOWN} more" if len(lines) > SHOWN else "")


class _Look:
    """The data flow of the computations that hold collectives, made when first asked for."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.survey = survey(module)
        self.flows: dict[str, Flow] = {}

    def flow(self, collective: Collective) -> Flow | None:
        name = collective.computation
        if name not in self.flows and name in self.module.computations:
            self.flows[name] = Flow(self.module, self.survey, self.module.computations[name])
        return self.flows.get(name)

    def origin(self, collective: Collective) -> Instruction | None:
        """What made the array that a collective takes, before copies and views; None where it takes several."""
        flow = self.flow(collective)
        return flow.origin(collective.operands[0]) if flow and len(collective.operands) == 1 else None

    def is_entry(self, collective: Collective) -> bool:
        return self.module.entry is not None and self.module.entry.name == collective.computation


def _repeated(work: Work) -> Iterator[Finding]:
    if work.repeated is not None and work.repeated > REPEATED:
        yield Finding(
            f"every product is computed {work.repeated:.3g} times over: devices repeat each other's work",
            0.0,
            "",
            "split a dimension of the products over the axes that repeat it: a batch, a row, or the contracted dimension",
        )


def _not_had(uneven: Uneven) -> Finding:
    """A layout that was asked for, and that no version of JAX gives."""
    many = uneven.padded
    became = "JAX drops it without a word, and every device returns the whole" if uneven.leaves else (
        f"the compiler pads it to {many} without a word, and the last devices hold and compute what is no data")  # fmt: skip
    return Finding(
        f"{uneven}: {became}",
        0.0,
        uneven.line,
        f"pad dimension {uneven.dim} to {many}, a multiple of {uneven.parts}, as with jnp.pad, and cut the result; or split "
        "another dimension, or over axes that divide it",
    )


def _undone(look: _Look, collectives: Sequence[Collective]) -> Iterator[Finding]:
    """All-gathers of arguments as they came in."""
    gathered: dict[tuple[str, ...], list[tuple[str, Collective]]] = defaultdict(list)
    for collective in collectives:
        origin = look.origin(collective) if collective.kind == "all-gather" and look.is_entry(collective) else None
        if origin is not None and origin.opcode == "parameter":
            gathered[collective.axes].append((metadata(origin).get("op_name", "") or origin.name, collective))
    for axes, them in gathered.items():
        them.sort(key=lambda pair: -pair[1].wire_bytes)
        names = list(dict.fromkeys(name for name, _ in them))
        shown = ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
        total = sum(collective.wire_bytes for _, collective in them)
        what = "argument comes in split over {} and is" if len(names) == 1 else "arguments come in split over {} and are"
        yield Finding(
            f"{len(names)} {what.format(', '.join(axes))} gathered whole, {bytes_text(total)} received: {shown}",
            total,
            lines_of(collective for _, collective in them),
            "right for weights that are stored in parts (FSDP); otherwise let it come in whole, or split another dimension",
        )


def _twice(look: _Look, collectives: Sequence[Collective]) -> Iterator[Finding]:
    """The same array gathered more than once."""
    gathered: dict[tuple[str, str, tuple[str, ...]], list[Collective]] = defaultdict(list)
    for collective in collectives:
        origin = look.origin(collective) if collective.kind == "all-gather" else None
        if origin is not None:
            gathered[collective.computation, origin.name, collective.axes].append(collective)
    for (_, name, axes), them in gathered.items():
        if len(them) > 1:
            yield Finding(
                f"the same array ({name}) is gathered {len(them)} times over {', '.join(axes)}",
                sum(collective.wire_bytes for collective in them[1:]),
                lines_of(them),
                "gather it once and keep it, where memory allows: save it for the backward pass instead of making it again",
            )


def _sliced(collectives: Sequence[Collective]) -> Iterator[Finding]:
    for collective in collectives:
        if collective.sliced and collective.group_size > 1:
            yield Finding(
                f"an all-reduce over {', '.join(collective.axes)} of which each device keeps its part: twice the bytes of a "
                f"reduce-scatter, {bytes_text(collective.wire_bytes / 2)} too many",
                collective.wire_bytes / 2,
                collective.source,
                "jax.lax.psum_scatter inside jax.shard_map asks for the reduce-scatter, as Shardwise's plans do",
            )


def _laid(collectives: Sequence[Collective]) -> Iterator[Finding]:
    for collective in collectives:
        if any(collective.laid) and collective.group_size > 1:
            yield Finding(
                f"an all-gather over {', '.join(collective.axes)} made of an all-reduce of zeros in which each device lays its "
                f"part: {bytes_text(collective.wire_bytes)} sent",
                collective.wire_bytes / 2,
                collective.source,
                "TPU's compilers gather vectors so: give the array a second dimension, or gather it with others",
            )


def _widened(look: _Look, collectives: Sequence[Collective]) -> Iterator[Finding]:
    """A collective of wide numbers that were narrow just before."""
    for collective in collectives:
        flow = look.flow(collective)
        if flow is None or len(collective.operands) != 1 or collective.dtype not in ("float32", "float64"):
            continue
        origin = flow.origin(collective.operands[0])
        narrow = origin is not None and origin.shape.startswith(("bf16[", "f16[")) and collective.dtype == "float32"
        if narrow and collective.wire_bytes:
            yield Finding(
                f"{'an' if collective.kind[0] == 'a' else 'a'} {collective.kind} over {', '.join(collective.axes)} sends "
                "float32 made of 16-bit numbers",
                collective.wire_bytes / 2,
                collective.source,
                "send the 16-bit numbers and widen them after; compilers for CPU do this by themselves and nothing helps",
            )


def _each_turn(look: _Look, collectives: Sequence[Collective]) -> Iterator[Finding]:
    """A gather inside a loop of what no turn changes."""
    for collective in collectives:
        if collective.kind != "all-gather" or look.is_entry(collective) or collective.trips in (0, 1):
            continue
        flow, origin = look.flow(collective), look.origin(collective)
        if flow is not None and origin is not None and _unchanged(flow, origin):
            yield Finding(
                f"a loop gathers the same array in each of its {collective.trips or 'many'} turns",
                collective.wire_bytes * (1 - 1 / (collective.trips or 2)),
                collective.source,
                "gather it before the loop, where memory allows",
            )


def _unchanged(flow: Flow, element: Instruction) -> bool:
    """Whether an element of a loop's state is handed to the next turn as it came."""
    root = flow.computation.root
    if element.opcode != "get-tuple-element" or root is None or root.opcode != "tuple":
        return False
    index = element.attribute("index")
    if index is None or not index.isdigit() or int(index) >= len(root.operands):
        return False
    back = flow.origin(root.operands[int(index)])
    return back is not None and back.opcode == "get-tuple-element" and back.attribute("index") == index
