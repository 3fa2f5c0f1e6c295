"""A function with transfers behind its matmuls: what was changed, what was left, and what the compilers made of both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax

from shardwise import views
from shardwise.compiled.audit import Audit
from shardwise.compiled.targets.compiler_flags import Options
from shardwise.functions.joining import JOINED
from shardwise.functions.matmul_places import Left, MatmulPlace
from shardwise.schedule.timeline import Timeline
from shardwise.steps import EinsumGather, EinsumScatter, Fused, Step, describe


@dataclass(frozen=True, slots=True)
class Compiled:
    """What a compiler made of a function, and when its schedule has things happen."""

    audit: Audit
    timeline: Timeline


@dataclass(frozen=True, slots=True)
class Overlapped:
    """A function whose transfers run behind its matmuls where that was compiled to be faster; it prints what changed.

    Attributes:
        function: of the same arguments as the one given, equal to it within the dtype's tolerance; that one where nothing
            was gained.
        name, target: of the function, and what it was compiled for.
        changes: the matmuls that were changed; `left` those at which something moves that were not, with the reason.
        before, after: the audits of the function as it was given and as it is now, each with its modelled timeline; None
            where nothing was compiled.
        tried: how many variants were compiled.
        notes: what else is to be said.
        options: of the compiler, by name, with which it is faster still: `compiler_options` of `jax.jit`.
    """

    function: Callable[..., Any] = field(repr=False)
    name: str
    target: str
    changes: tuple[MatmulPlace, ...]
    left: tuple[Left, ...]
    before: Compiled | None = field(default=None, repr=False)
    after: Compiled | None = field(default=None, repr=False)
    tried: int = 0
    notes: tuple[str, ...] = ()
    options: Options = ()

    @property
    def compiler_options(self) -> dict[str, str]:
        """What `after` was compiled with, for `jax.jit`: empty where the function alone is fastest."""
        return dict(self.options)

    def jitted(self) -> Callable[..., Any]:
        """The function under `jax.jit`, with the options of the compiler with which it is fastest."""
        return jax.jit(self.function, compiler_options=self.compiler_options or None)

    @property
    def before_seconds(self) -> float | None:
        """Of one call as it was, modelled from the compiled schedule; None where nothing was compiled."""
        return None if self.before is None else self.before.timeline.step_seconds

    @property
    def after_seconds(self) -> float | None:
        """Of one call as it is now."""
        return None if self.after is None else self.after.timeline.step_seconds

    @property
    def before_exposed(self) -> float | None:
        """The seconds of a call in which, as it was, nothing runs but transfers."""
        return None if self.before is None else self.before.timeline.exposed_seconds

    @property
    def after_exposed(self) -> float | None:
        """The seconds of a call in which nothing runs but transfers now."""
        return None if self.after is None else self.after.timeline.exposed_seconds

    @property
    def speedup(self) -> float:
        """How many times as fast a call is, by the compiled schedules."""
        return self.before_seconds / self.after_seconds if self.before_seconds and self.after_seconds else 1.0

    def code(self) -> str:
        """What to write by hand instead: for each line the call that takes the matmul's place."""
        lines = [f"# jax.jit(..., compiler_options={self.compiler_options})"] if self.options else []
        for place in self.changes:
            lines.append(f"# {place.line or 'a line that is not known'}, {place.times} times a call")
            if place.joint is not None:
                lines.append(
                    f"# {len(place.looks)} matmuls as one, each device's parts of their arrays side by side along {JOINED}"
                )
            if place.sums_only:
                lines.append("# a and b as they lie before the matmul, where the function or its compiler has moved them")
            lines += [f"# {describe(step)}" for step in place.program.steps if _is_background(step)]
            how = f'"{way_of(place)}"' if way_of(place) != "none" else "False"
            exact = f", preferred_element_type={place.task.accumulated!r}" if place.task.accumulated else ""
            lines.append(f'c = sw.einsum("{place.task.equation}", a, b, overlap={how}{exact})')
        return "\n".join(lines)

    __str__ = views.text
    _repr_html_ = views.html


def way_of(place: MatmulPlace) -> str:
    """How a transfer of a place runs behind its matmul, as `overlap=` names it; `"none"` where none does."""
    found = (step for step in place.program.steps if isinstance(step, Fused) and not _is_background(step))
    return next((getattr(step, "way", "rotate") for step in found), "none")


def _is_background(step: Step) -> bool:
    """Whether it is a collective by permutes, which run behind whatever comes next."""
    return isinstance(step, EinsumGather | EinsumScatter) and len(step.einsum.operands) == 1
