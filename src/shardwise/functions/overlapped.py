"""A function with transfers behind its matmuls: what was changed, what was left, and what the compilers made of both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax

from shardwise import views
from shardwise.compiled.audit import Audit
from shardwise.compiled.targets.compiler_flags import Options
from shardwise.functions.replacing import Place
from shardwise.functions.sights import Left
from shardwise.schedule.timeline import Timeline


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
        changes: the matmuls and lookups that were changed; `left` those at which something moves that were not, and why.
        before, after: the audits of the function as it was given and as it is now, each with its modelled timeline; None
            where nothing was compiled.
        tried: how many variants were compiled.
        notes: what else is to be said.
        options: of the compiler, by name, with which it is faster still: `compiler_options` of `jax.jit`.
    """

    function: Callable[..., Any] = field(repr=False)
    name: str
    target: str
    changes: tuple[Place, ...]
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

    @property
    def compile_times(self) -> float | None:
        """How many times as long as the function as it was it takes to compile; None where that is not known.

        Counted in seconds of a processor, over all threads of the compiler.
        """
        before, after = (None if made is None else made.audit.compile_seconds for made in (self.before, self.after))
        return after / before if before and after else None

    def code(self) -> str:
        """What to write by hand instead: for each line what takes the place of its matmul or lookup."""
        lines = [f"# jax.jit(..., compiler_options={self.compiler_options})"] if self.options else []
        for place in self.changes:
            lines += [f"# {place.line or 'a line that is not known'}, {place.times} times a call", *place.code()]
        return "\n".join(lines)

    __str__ = views.text
    _repr_html_ = views.html
