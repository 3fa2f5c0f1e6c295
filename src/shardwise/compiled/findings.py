"""What stands out in a compiled program, and what to do about it: wastes of a kind put together, the worst first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import assert_never

from shardwise.compiled.contents import Contents
from shardwise.compiled.facts import Line, Work
from shardwise.compiled.uneven import Uneven
from shardwise.compiled.wastes import Kind, Waste, wastes
from shardwise.errors import counted
from shardwise.units import bytes_text

REPEATED = 1.05  # matmuls done more often than this stand out
SHOWN = 4  # names and lines of one finding
MOST_LINES = 3  # of a kind: where it comes from more lines, it is one finding for all of them


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that stands out.

    Attributes:
        kind: as `reduced-then-sliced`; see `wastes.Kind`.
        what: in words, with the number of arrays and their bytes.
        wire_bytes: what one device sends in one call, and need not.
        advice: what to do about it.
        memory_bytes: what one device holds, and need not.
        count: how many arrays it is about.
        lines: where they come from, the most bytes first.
    """

    kind: Kind
    what: str
    wire_bytes: float
    advice: str
    memory_bytes: float = 0.0
    count: int = 1
    lines: tuple[Line, ...] = ()

    @property
    def source(self) -> str:
        """The first lines as text."""
        return _listed([str(line) for line in self.lines])

    def __str__(self) -> str:
        where = _listed(list(dict.fromkeys(line.short for line in self.lines)))
        return f"{self.what} ({where})\n    {self.advice}" if where else f"{self.what}\n    {self.advice}"


def findings(audit: Contents) -> tuple[Finding, ...]:
    """Everything that stands out, the most bytes first; repeated work and layouts that cannot be had before all."""
    found = [_told(them) for them in _grouped(wastes(audit))]
    found.sort(key=lambda finding: -max(finding.wire_bytes, finding.memory_bytes))
    return (*_repeated(audit.work), *layouts_not_had(audit.uneven), *found)


def _grouped(found: Iterable[Waste]) -> Iterator[list[Waste]]:
    """Wastes of one kind from one line together; of one kind where its lines are many. Arguments: over the same axes."""
    kinds: dict[Kind, list[Waste]] = defaultdict(list)
    for waste in found:
        kinds[waste.kind].append(waste)
    for kind, them in kinds.items():
        them.sort(key=lambda waste: -max(waste.wire_bytes, waste.memory_bytes))
        groups: dict[object, list[Waste]] = defaultdict(list)
        for waste in them:
            groups[waste.axes if kind in ("gathered-argument", "replicated-state") else waste.lines].append(waste)
        yield from groups.values() if len(groups) <= MOST_LINES else [them]


# What to do about a kind of waste; about a layout that cannot be had, see `_not_had`.
ADVICE: dict[Kind, str] = {
    "reduced-then-sliced": "jax.lax.psum_scatter inside jax.shard_map asks for the reduce-scatter, as Shardwise's plans do; a "
    "norm is the sum of the parts' own",
    "gathered-then-sliced": "cut first, and gather what is kept; or lay it out as it is used, so that an all-to-all does it",
    "gathered-then-reduced": "reduce each part first, and send the results: sw.spmd.softmax and logsumexp do so inside "
    "jax.shard_map; under jax.jit keep the dimension split",
    "gathered-to-reshape": "split the first of the dimensions that are joined, into sizes that the axis divides; or "
    "another dimension",
    "gathered-argument": "right for weights that are stored in parts (FSDP); otherwise let it come in whole, or split another "
    "dimension",
    "gathered-twice": "gather it once and keep it, where memory allows: save it for the backward pass instead of making "
    "it again",
    "gathered-each-turn": "gather it before the loop, where memory allows",
    "gathered-by-sum": "TPU's compilers gather vectors so: give the array a second dimension, or gather it with others",
    "sent-wide": "send the 16-bit numbers and widen them after; compilers for CPU do this by themselves and nothing helps",
    "reduced-same": "n equal numbers add up to n times one: multiply by n instead; of a mean or a maximum leave it out",
    "replicated-state": "split the state over the axis, reduce-scatter the gradients, gather the new weights (ZeRO): as much "
    "on the wire, and each device keeps and updates its part",
    "repeated-work": "split a dimension of the matmuls over the axes that repeat it: a batch, a row, or the contracted "
    "dimension",
}


def _told(them: Sequence[Waste]) -> Finding:
    """Wastes of one kind as one finding."""
    wire, memory = sum(waste.wire_bytes for waste in them), sum(waste.memory_bytes for waste in them)
    lines = tuple(dict.fromkeys(line for waste in them for line in waste.lines if line.place))
    kind = them[0].kind
    return Finding(kind, _what(them, bytes_text(memory or wire)), wire, ADVICE[kind], memory, len(them), lines)


def _what(them: Sequence[Waste], amount: str) -> str:
    """Wastes of one kind in words."""
    first, count, over = them[0], len(them), _over(them)
    names = list(dict.fromkeys(waste.subject for waste in them))
    arrays, gathered = _listed(names), f"{'an array is' if count == 1 else f'{count} arrays are'} gathered over {over}"
    match first.kind:
        case "reduced-then-sliced":
            said = f"an all-reduce over {over}" if count == 1 else f"all-reduces over {over} of {count} arrays,"
            said += " of which each device keeps its part: twice the bytes of a reduce-scatter"
            return f"{said}, {amount} too many: {arrays}"
        case "gathered-then-sliced":
            return f"{gathered}, and each device keeps a part: {amount} received for nothing: {arrays}"
        case "gathered-then-reduced":
            used = f"only sums, maxima or single elements of {'it' if count == 1 else 'them'} are used"
            return f"{gathered}, and {used}: {amount} received for nothing: {arrays}"
        case "gathered-to-reshape":
            return f"{gathered} because a reshape joins or parts the split dimension: {amount} received: {arrays}"
        case "gathered-argument":
            said = "argument comes in split over {} and is" if len(names) == 1 else "arguments come in split over {} and are"
            return f"{len(names)} {said.format(over)} gathered whole, {amount} received: {arrays}"
        case "gathered-twice":
            one = f"the same array ({arrays}) is gathered {first.times} times over {over}"
            return (
                f"{one if count == 1 else f'{count} arrays are gathered more than once over {over}: {arrays}'}: {amount} again"
            )
        case "gathered-each-turn":
            same = "array" if count == 1 else f"{count} arrays"
            return f"a loop gathers the same {same} in each of its {first.times or 'many'} turns: {amount} too many: {arrays}"
        case "gathered-by-sum":
            said = f"an all-gather over {over} made of an all-reduce of zeros in which each device lays its part"
            return f"{said}: {amount} too many"
        case "sent-wide":
            return f"{arrays} over {over} sends float32 made of 16-bit numbers: {amount} too many"
        case "reduced-same":
            said = "an all-reduce" if count == 1 else f"{count} all-reduces"
            return f"{said} over {over} of what all {first.times} devices hold already: {amount} sent for nothing: {arrays}"
        case "replicated-state":
            said = f"{counted(count, 'argument')}, the state of an optimizer, kept and updated whole on each of {first.times}"
            return f"{said} devices along {over}, while gradients are all-reduced: {amount} of memory: {arrays}"
        case "repeated-work" | "uneven-layout":
            raise AssertionError(first.kind)  # told where they are found
    assert_never(first.kind)


def _over(them: Sequence[Waste]) -> str:
    return " and ".join(dict.fromkeys(", ".join(waste.axes) or "all devices" for waste in them))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def _repeated(work: Work) -> Iterator[Finding]:
    if work.repeated is not None and work.repeated > REPEATED:
        yield Finding(
            "repeated-work",
            f"all matmuls together are computed {work.repeated:.3g} times over: devices repeat each other's work",
            0.0,
            ADVICE["repeated-work"],
        )


def layouts_not_had(uneven: Sequence[Uneven]) -> Iterator[Finding]:
    """Layouts that were asked for, and that no version of JAX gives."""
    for each in uneven[:MOST_LINES]:
        became = "JAX drops it without a word, and every device returns the whole"
        if not each.leaves:
            padded = f"the compiler pads it to {each.padded} without a word"
            became = f"{padded}, and the last devices hold and compute what is no data"
        more = len(uneven) - MOST_LINES if each is uneven[:MOST_LINES][-1] else 0
        yield Finding(
            "uneven-layout",
            f"{each}: {became}" + (f"; and {more} more layouts like it" if more > 0 else ""),
            0.0,
            f"pad dimension {each.dim} to {each.padded}, a multiple of {each.parts}, as with jnp.pad, and cut the result; or "
            "split another dimension, or over axes that divide it",
            count=1 + max(more, 0),
            lines=(Line(each.line),) if each.line else (),
        )
