"""When compute and transfers run and what waits: of a compiled program, modelled from its schedule, of one as estimated, or of
a call that was traced."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from shardwise import writing
from shardwise.views import html, text, view

COMPUTE = "compute"
COMPILED, ESTIMATED, MEASURED = "modelled from the compiled schedule", "as estimated, nothing compiled", "measured"


class Moved(Protocol):
    """A collective that a timeline holds: of a compiled program (`sw.audit`), or of a step that is planned."""

    @property
    def kind(self) -> str:
        """`all-gather`, `reduce-scatter`, ..."""
        ...

    @property
    def axes(self) -> tuple[str, ...]:
        """The mesh axes that it runs over."""
        ...

    @property
    def name(self) -> str:
        """What the compiled text calls it, or the number of the step."""
        ...

    @property
    def computation(self) -> str:
        """Where in the compiled text it stands; empty of a step."""
        ...

    @property
    def source(self) -> str:
        """The user's line, or the step."""
        ...

    @property
    def op_name(self) -> str:
        """JAX's name of the operation; empty of a step."""
        ...


@dataclass(frozen=True, slots=True)
class Span:
    """Something on a lane: `compute`, `matmul`, `wait`, `transfer`, `copy`; `loop` stands for trips that are not kept.

    `trip` is that of the innermost loop, from 0; `moved_bytes` what one device sends or copies; `op_name` JAX's name of the
    operation (of an estimate the step's, see `steps.scope`).
    """

    name: str
    lane: str
    kind: str
    start_seconds: float
    seconds: float
    trip: int | None = None
    collective: Moved | None = None
    moved_bytes: float = 0.0
    line: str = ""
    op_name: str = ""

    @property
    def end_seconds(self) -> float:
        return self.start_seconds + self.seconds


@dataclass(frozen=True, slots=True)
class Share:
    """All trips of one collective: how long it travels, and how long the compute lane waits for it."""

    collective: Moved
    transfer_seconds: float
    exposed_seconds: float

    @property
    def hidden(self) -> float:
        """The share of its time that is overlapped by work; 1 where it takes none."""
        return 1 - self.exposed_seconds / self.transfer_seconds if self.transfer_seconds else 1.0


@dataclass(frozen=True, slots=True)
class Timeline:
    """One call of a program: on one device as modelled from the compiler's schedule, or estimated before anything is compiled;
    on every device as measured (`sw.trace`).

    Attributes:
        spans: what is on the lanes, by start; of very many the trips of loops are left out, and `notes` say so.
        step_seconds: the whole call. It is `compute_seconds`, `exposed_seconds` and `copy_wait_seconds` together; measured, the
            rest is idle, and these are means over the devices.
        compute_seconds: when the cores work.
        transfer_seconds: of all collectives together, each as if alone.
        exposed_seconds: when the cores wait for collectives.
        copy_wait_seconds: when they wait for copies between memories.
        critical_path: the spans that make the step as long as it is, from its end back to its start.
        utilisation: the time that the matmuls would take at the chip's peak, as a share of the step; 0 where it was measured.
        lanes: every lane with the seconds for which it is busy.
        shares: each collective with the share of it that is overlapped.
        origin: how the times came about.
    """

    name: str
    hardware: str
    spans: tuple[Span, ...]
    step_seconds: float
    compute_seconds: float
    transfer_seconds: float
    exposed_seconds: float
    copy_wait_seconds: float
    critical_path: tuple[Span, ...]
    utilisation: float
    matmul_flops: float
    lanes: tuple[tuple[str, float], ...]
    shares: tuple[Share, ...]
    notes: tuple[str, ...]
    origin: str = COMPILED

    def share(self, collective: Moved) -> Share | None:
        """How much of a collective is overlapped; None of one that the replay does not hold."""
        place = (collective.computation, collective.name)
        return next((s for s in self.shares if (s.collective.computation, s.collective.name) == place), None)

    def chrome_trace(self) -> dict[str, Any]:
        """The timeline as Chrome's trace events, which ui.perfetto.dev opens."""
        return view(self, "trace")

    def save(self, path: str | Path) -> None:
        """Write the trace as JSON.

        Raises:
            FileError: the file cannot be written; then one that stood there still does.
        """
        writing.write(path, json.dumps(self.chrome_trace()))

    __str__ = text
    _repr_html_ = html
