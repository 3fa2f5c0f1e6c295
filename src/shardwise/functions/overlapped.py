"""A function with transfers behind its matmuls: what was changed, what was left, and what the compilers made of both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from shardwise import views
from shardwise.functions.matmul_places import Left, MatmulPlace
from shardwise.steps import Fused


@dataclass(frozen=True, slots=True)
class Overlapped:
    """A function whose transfers run behind its matmuls where that was compiled to be faster; it prints what changed.

    Attributes:
        function: of the same arguments as the one given, equal to it within the dtype's tolerance; that one where nothing
            was gained.
        name, target: of the function, and what it was compiled for.
        changes: the matmuls that were changed; `left` those at which something moves that were not, with the reason.
        before_seconds, after_seconds: of one call, modelled from the compiled schedules; None where none was compiled.
        before_exposed, after_exposed: of these the seconds in which nothing runs but transfers.
        tried: how many variants were compiled.
        notes: what else is to be said.
    """

    function: Callable[..., Any] = field(repr=False)
    name: str
    target: str
    changes: tuple[MatmulPlace, ...]
    left: tuple[Left, ...]
    before_seconds: float | None = None
    after_seconds: float | None = None
    before_exposed: float | None = None
    after_exposed: float | None = None
    tried: int = 0
    notes: tuple[str, ...] = ()

    @property
    def speedup(self) -> float:
        """How many times as fast a call is, by the compiled schedules."""
        return self.before_seconds / self.after_seconds if self.before_seconds and self.after_seconds else 1.0

    def code(self) -> str:
        """What to write by hand instead: for each line the call that takes the matmul's place."""
        lines = []
        for place in self.changes:
            lines.append(f"# {place.line or 'a line that is not known'}, {place.times} times a call")
            how = way_of(place)
            exact = f", preferred_element_type={place.task.accumulated!r}" if place.task.accumulated else ""
            lines.append(f'c = sw.einsum("{place.task.equation}", a, b, overlap="{how}"{exact})')
        return "\n".join(lines)

    __str__ = views.text
    _repr_html_ = views.html


def way_of(place: MatmulPlace) -> str:
    """How the transfer of a place runs behind its matmul, as `overlap=` names it."""
    step = next(step for step in place.candidate.program.steps if isinstance(step, Fused))
    return getattr(step, "way", "rotate")
