"""The prices of one problem's steps, remembered: the same step stands in many programs, and a fused one in many forms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from shardwise.dataflow import untouched
from shardwise.layout import Layout
from shardwise.planning.fused_cost import Forms, Priced, Standing, forms_at
from shardwise.planning.fused_layouts import shard_bytes
from shardwise.planning.prices import Costs
from shardwise.planning.problem import Problem, costs_of
from shardwise.planning.step_cost import StepCost
from shardwise.program import Program
from shardwise.schedule.play import Played
from shardwise.steps import Fused, RotateEinsum, consumed, moved_axes, parts, unsent

ROUNDING = 1e-9  # of seconds that are added up in another order


@dataclass(slots=True)
class Fusable:
    """What is known of a fused step where it stands: what its forms have in common, and each that was looked at."""

    forms: Forms
    priced: dict[Any, Priced] = field(default_factory=dict)
    played: dict[Any, Played] = field(default_factory=dict)
    fastest: Fused | None = None  # of all forms that are worth a look

    def ring(self, step: Fused) -> Priced:
        key = _form(step)
        found = self.priced.get(key)
        if found is None:
            found = self.priced[key] = self.forms.priced(step)
        return found

    def play(self, step: Fused) -> Played:
        key = _form(step)
        found = self.played.get(key)
        if found is None:
            found = self.played[key] = self.ring(step).played()
        return found

    def fastest_of(self, forms: Iterable[Fused], slowdown: float) -> Fused:
        """The fastest of some forms: none is played that takes longer at least than another takes."""
        found: dict[Fused, float] = {}
        for least, form in sorted([(self.forms.at_least(form, slowdown), form) for form in forms], key=lambda each: each[0]):
            if found and least * (1 - ROUNDING) > min(found.values()):
                break
            found[form] = self.play(form).seconds
        return min(found, key=found.__getitem__)


@dataclass(slots=True)
class StepPrices:
    """What is known of the steps of one problem: of fused ones where they stand, and what plain ones take `alone`."""

    costs: Costs
    sizes: Mapping[str, int]
    alone: dict[Any, Any] = field(default_factory=dict)
    flops: dict[Any, float] = field(default_factory=dict)  # of whole arrays, by the dimensions of an einsum
    _fused: dict[Any, Fusable] = field(default_factory=dict)
    _shapes: dict[Layout, tuple[int, ...]] = field(default_factory=dict)

    def shape_of(self, layout: Layout) -> tuple[int, ...]:
        """The shape of one device's shard."""
        known = self._shapes.get(layout)
        if known is None:
            known = self._shapes[layout] = layout.shard_shape(self.sizes, self.costs.mesh)
        return known

    def standing(self, program: Program, number: int) -> Standing:
        """The layouts before a fused step, and those of its operands that the chip's own memory holds from the start on.

        They are inputs that nothing but slices took before, and of which nothing is sent.
        """
        states, costs = program.states(), self.costs
        if costs.hardware.compiler is None:
            return states[number], frozenset()
        near = unsent(program.steps[number]) & untouched(program, number)
        held = [name for name in near if costs.is_fetched(shard_bytes(name, states[0], self.sizes, costs))]
        return states[number], frozenset(held)

    def of(self, step: Fused, here: Standing) -> Fusable:
        layouts, near = here
        key = type(step), parts(step), tuple([layouts[name] for name in consumed(step)]), near
        known = self._fused.get(key)
        if known is None:
            known = self._fused[key] = Fusable(forms_at(step, self.costs, self.sizes, here))
        return known

    def at(self, program: Program, number: int) -> Priced:
        """A program's step, by its number from 0."""
        step = program.steps[number]
        assert isinstance(step, Fused)
        return self.of(step, self.standing(program, number)).ring(step)

    def seconds(self, step: Fused, program: Program, number: int) -> float:
        """Seconds of a step where that of a program stands that is the same, in another form."""
        return self.of(step, self.standing(program, number)).play(step).seconds

    def fused_cost(self, program: Program, number: int, live: float) -> StepCost:
        """The cost of a fused step, by playing its schedule; `live` are the bytes held beside what it gathers or sums."""
        step, costs = program.steps[number], self.costs
        assert isinstance(step, Fused)
        known = self.of(step, self.standing(program, number))
        ring, found = known.ring(step), known.play(step)
        exposed = min(found.exposed_seconds, ring.moving)
        slow = ring.wire_bytes if costs.interconnect.crosses(moved_axes(step)) else 0.0
        return StepCost(found.seconds, ring.flops, ring.wire_bytes, live + ring.held_bytes, ring.moving, exposed, slow)


def prices_of(task: Problem) -> StepPrices:
    return StepPrices(costs_of(task), task.sizes)


def _form(step: Fused) -> Any:
    return None if isinstance(step, RotateEinsum) else (step.way, step.chunks)
