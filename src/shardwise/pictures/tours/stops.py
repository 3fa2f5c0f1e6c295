"""What a tour is made of: stops with words and something to look at. Data alone: nothing here draws or computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from shardwise.program import Program
from shardwise.reference import Shards, assemble


@dataclass(frozen=True, slots=True)
class Scene:
    """A program with the very numbers that its arrays hold.

    Attributes:
        sizes: of every dimension, in elements.
        values: whole arrays by name, or lists of shards in device order.
        large: sizes as people have them, at which costs are told.
    """

    program: Program
    sizes: Mapping[str, int]
    values: Mapping[str, np.ndarray | Shards]
    large: Mapping[str, int] = field(default_factory=dict)

    def wholes(self) -> list[np.ndarray]:
        """The inputs as whole arrays, in the program's order."""
        states, mesh = self.program.states(), self.program.mesh
        given = ((states[0][name], self.values[name]) for name, _ in self.program.inputs)
        return [assemble(values, layout, mesh) if isinstance(values, list) else values for layout, values in given]


@dataclass(frozen=True, slots=True)
class Held:
    """What every device holds, before the first step or after so many; of some arrays, or of all."""

    scene: Scene
    frame: int = 0
    arrays: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Done:
    """A step: what every device holds before and after, and who sends what to whom."""

    scene: Scene
    step: int = 0


@dataclass(frozen=True, slots=True)
class Multiplied:
    """A local matmul on some devices, with its operands; the others do the same."""

    scene: Scene
    step: int = 0
    devices: tuple[int, ...] = (0, 1)


@dataclass(frozen=True, slots=True)
class Alone:
    """What each device would make of the wanted array from what it holds, beside what is right."""

    scene: Scene
    wanted: str  # an equation, whose operands are the scene's


@dataclass(frozen=True, slots=True)
class Needed:
    """What each device holds beside what it is to hold at the end."""

    scene: Scene


@dataclass(frozen=True, slots=True)
class Equal:
    """A law: two programs leave the same on every device; the second is shown step by step."""

    scene: Scene
    other: Scene


@dataclass(frozen=True, slots=True)
class Forms:
    """Equations of one kind, what the planner makes of each, and whether that gives the unsharded result."""

    equations: tuple[str, ...]
    scene: Scene


@dataclass(frozen=True, slots=True)
class Refused:
    """An equation that cannot be, with the reason."""

    equation: str


@dataclass(frozen=True, slots=True)
class Check:
    """What a program makes of whole arrays, put together, beside what NumPy does."""

    scene: Scene
    equation: str


@dataclass(frozen=True, slots=True)
class Ring:
    """A block of an array goes round, and every device multiplies the one that it holds: tick by tick."""

    scene: Scene


@dataclass(frozen=True, slots=True)
class Choice:
    """The programs of an equation, as the planner ranks them."""

    equation: str
    mesh: str
    large: Mapping[str, int]
    overlap: bool | str = True


@dataclass(frozen=True, slots=True)
class Cost:
    """What each step of a program costs, with the formula and its numbers."""

    scene: Scene


@dataclass(frozen=True, slots=True)
class Sheet:
    """Every layout of an array on a mesh."""

    array: str
    mesh: str


@dataclass(frozen=True, slots=True)
class Placed:
    """Where arrays lie on a mesh, side by side."""

    arrays: tuple[str, ...]
    mesh: str
    sizes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Said:
    """Lines of code or notation, as they are."""

    lines: tuple[str, ...]


Look = (
    Held | Done | Multiplied | Alone | Needed | Equal | Forms | Refused | Check | Ring | Choice | Cost | Sheet | Placed | Said
)


@dataclass(frozen=True, slots=True)
class Stop:
    """One screen: a title, a few short sentences, and what is to be seen."""

    title: str
    words: tuple[str, ...]
    looks: tuple[Look, ...]


@dataclass(frozen=True, slots=True)
class Tour:
    """Stops in order; `about` is the one line that says what the tour is of."""

    name: str
    about: str
    stops: tuple[Stop, ...]
