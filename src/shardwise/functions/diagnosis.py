"""A diagnosis: every place of a function where data moves, why, and the way out; one frozen value that prints."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from shardwise import views
from shardwise.compiled.facts import Line
from shardwise.compiled.findings import Finding
from shardwise.functions.causes import Cause
from shardwise.functions.explicit import Stop
from shardwise.functions.pasting import Paste, spec_text
from shardwise.functions.pricing import Totals
from shardwise.intent.shardy import Change
from shardwise.layout import Axes, Layout
from shardwise.mesh import Mesh

RemedyKind = Literal[
    "constraint-dropped", "constraint-changed", "argument", "result", "inside", "convert-first", "held", "padded"
]


@dataclass(frozen=True, slots=True)
class Remedy:
    """A way out, and what it saves: the function was propagated again with it.

    Attributes:
        says: in words; `line` where, of a constraint or what an operation makes.
        paste: what to write where; None where the file's text does not show the place.
        arguments: those to lay out otherwise, by name; `layout` how.
        wire_bytes, seconds: what the whole function moves less in one call; `memory_bytes` what one device holds less.
        compiled_bytes: where devices are named, what one device sends in one call of its program, before and after.
    """

    kind: RemedyKind
    says: str
    line: Line | None = None
    paste: Paste | None = None
    arguments: tuple[str, ...] = ()
    layout: Layout | None = None
    wire_bytes: float = 0.0
    seconds: float = 0.0
    memory_bytes: float = 0.0
    compiled_bytes: tuple[float, float] | None = None
    changes: tuple[Change, ...] = field(default=(), repr=False)

    @property
    def code(self) -> str:
        """What to paste: the line as it should be, or the calls that lay out the arguments."""
        if self.paste is not None:
            return self.paste.new.strip()
        if self.kind not in ("argument", "held") or self.layout is None:
            return ""
        spec = f"jax.NamedSharding(mesh, jax.{spec_text(self.layout)})"
        return "\n".join(f"{name} = jax.device_put({name}, {spec})" for name in self.arguments)


@dataclass(frozen=True, slots=True)
class Place:
    """A place where data moves: alike movements of one line.

    Attributes:
        line: of the user's file; `text` what it says.
        subjects: what moves; `before` and `after` its layouts, in the notation.
        collectives: what the planner's cheapest program for it is, each with its axes.
        wire_bytes, seconds: of one device in one call, all times together; modelled.
        times: how often it runs in one call; None where a loop's trips are not known (it counts once then).
        cause: why.
        remedy: the way out, if one is known that costs less; `notes` what else is to say.
        by_hand: a `jax.shard_map` asks for it.
    """

    line: Line | None
    text: str
    subjects: tuple[str, ...]
    before: Layout
    after: Layout
    shape: tuple[int, ...]
    dtype: str
    collectives: tuple[tuple[str, Axes], ...]
    wire_bytes: float
    seconds: float
    times: int | None
    cause: Cause
    scopes: tuple[str, ...] = ()
    remedy: Remedy | None = None
    notes: tuple[str, ...] = ()
    by_hand: bool = False

    @property
    def backward(self) -> bool:
        """Whether it stands in a backward pass."""
        return bool(self.scopes) and all("transpose(" in scope for scope in self.scopes)

    @property
    def axes(self) -> Axes:
        """The mesh axes that data moves along."""
        return tuple(dict.fromkeys(axis for _, axes in self.collectives for axis in axes))


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why data moves in a function: every place with its cause and the way out, what saves most first; printable.

    Attributes:
        name: of the function.
        places: where data moves: first those whose way out saves most, then the dearest.
        totals: what the whole function costs one device, as far as layouts say it; None where Shardy's passes do not run.
        findings: what else stands out: layouts that cannot be had; with devices, what their audit finds.
        padded: constraints whose axes do not divide what they split, each with the shape that they would divide.
        held: arguments that every device holds whole and need not, as the state of an optimizer, each with its layout.
        truth: the compiled program beside it, where devices are named.
        notes: what was taken for granted; `unread` what could not be read.
        stop: under Explicit axes, where tracing stops; there are no places then.
        pastes: what was written into the file before this trace, with `attempt`.
    """

    name: str
    mesh: Mesh
    hardware: str
    places: tuple[Place, ...]
    totals: Totals | None
    findings: tuple[Finding, ...] = ()
    held: tuple[Remedy, ...] = ()
    padded: tuple[Remedy, ...] = ()
    truth: object | None = None
    notes: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    stop: Stop | None = None
    pastes: tuple[Paste, ...] = ()

    @property
    def remedies(self) -> tuple[Remedy, ...]:
        """The ways out, those that save most first, each once."""
        found = dict.fromkeys(place.remedy for place in self.places if place.remedy is not None)
        return tuple(sorted(found, key=lambda each: -each.seconds))

    __str__ = views.text
    _repr_html_ = views.html
