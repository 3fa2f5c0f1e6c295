"""Random equations with a mesh, sizes, hardware and arrays: what the fuzzer and the tests draw from, in one place.

Everything takes a `random.Random`: one made from a seed, or Hypothesis' own, which shrinks.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

from shardwise.chips import hardware
from shardwise.layout import Layout
from shardwise.mesh import Mesh
from shardwise.notation import Equation, Operand

AXES = "xyz"
DIMS = "IJKLMN"
ARRAYS = "ABCD"
HARDWARE = hardware.names()


@dataclass(frozen=True)
class Case:
    """An equation with all that a plan needs; prints as the call that makes the plan."""

    equation: Equation
    sizes: Mapping[str, int]
    mesh: Mesh
    hardware: str

    def __str__(self) -> str:
        sizes = ", ".join(f"{dim}={size}" for dim, size in self.sizes.items())
        return f'sw.plan("{self.equation}", sizes=dict({sizes}), mesh="{self.mesh}", hardware="{self.hardware}")'

    @property
    def stages(self) -> tuple[Operand, ...]:
        """The layouts that arrays have on the way: those of the operands, between arrows, and of the result."""
        return (*self.equation.operands, *self.equation.via, self.equation.result)

    @property
    def summed(self) -> int:
        """How many products are summed for one element of the result."""
        return math.prod(self.sizes[dim] for dim in self.equation.contracted)


def random_mesh(random: Random, *, axes: int = 3, devices: int = 8, sizes: Sequence[int] = (1, 2, 2, 2, 3, 4)) -> Mesh:
    """A mesh of 1 to `axes` axes with at most so many devices."""
    while True:
        mesh = Mesh(tuple((name, random.choice(sizes)) for name in AXES[: random.randint(1, axes)]))
        if mesh.size <= devices:
            return mesh


def random_layout(random: Random, dims: Sequence[str], axes: Sequence[str], partial: Sequence[str] = ()) -> Layout:
    """A layout that gives each of some axes to a dimension, to none, or (of those in `partial`) to the partial sums."""
    split: dict[str, list[str]] = {dim: [] for dim in dims}
    unreduced = set()
    for axis in random.sample(axes, len(axes)):
        if axis in partial and random.random() < 0.5:
            unreduced.add(axis)
        elif dims and random.random() < 0.6:
            split[random.choice(dims)].append(axis)
    return Layout(tuple((dim, tuple(found)) for dim, found in split.items()), frozenset(unreduced))


def random_case(
    random: Random, *, operands: Sequence[int] = (1, 1, 2, 2, 2, 2, 3, 3, 4), rank: int = 4, axes: int = 3, devices: int = 8,
    elements: int = 5000, partial: float = 0.0, free: float = 0.1, via: float = 0.05, mesh: Mesh | None = None,
    hardware: Sequence[str] = HARDWARE, factors: Sequence[int] = (1, 2, 2, 3, 4),
) -> Case:  # fmt: skip
    """An equation whose sizes its axes divide: batches, sums, transposes, outer products and scalars among them.

    Args:
        operands: how many there may be, each as likely as it is listed.
        elements: at most so many combinations of all indices: what an unsharded einsum multiplies.
        partial: how often operands or the result hold partial sums; such a result can always be reached.
        free: how often the result leaves axes to the planner.
        via: how often the result passes through another layout.
    """
    while True:
        grid = mesh or random_mesh(random, axes=axes, devices=devices)
        equation = _random_equation(random, grid, random.choice(operands), rank, partial, free, via)
        sizes = _random_sizes(random, equation, grid, elements, factors)
        if sizes:
            return Case(equation, sizes, grid, random.choice(hardware))


def _random_equation(random: Random, mesh: Mesh, operands: int, rank: int, partial: float, free: float, via: float) -> Equation:
    pool = DIMS[: random.randint(1, min(len(DIMS), rank + operands - 1))]
    unreduced = mesh.names if random.random() < partial else ()
    left = []
    for number in range(operands):
        dims = random.sample(pool, random.randint(1, min(rank, len(pool))))
        name = ARRAYS[number] if random.random() < 0.95 else "A"
        # Two operands that are unreduced over one axis are reduced before they are multiplied: legal, and tried too.
        left.append(Operand(name, random_layout(random, dims, mesh.names, unreduced if random.random() < 0.5 else ())))
    known = list(dict.fromkeys(dim for operand in left for dim in operand.dims))
    kept = random.sample(known, random.randint(0 if random.random() < 0.2 else 1, min(rank, len(known))))
    # Partial sums over several axes can surely be made where one operand is split, or unreduced, over all of them.
    source = random.choice(left)
    reachable = [axis for axis in mesh.names if _summed_over(source, axis, kept)]
    made = random_layout(random, kept, mesh.names, reachable if random.random() < partial else ())
    loose = frozenset(random.sample(kept, random.randint(1, len(kept)))) if kept and random.random() < free else frozenset()
    made = Layout(tuple((dim, () if dim in loose else split) for dim, split in made.dims), made.unreduced)
    stages = (Operand("R", random_layout(random, kept, mesh.names)),) if random.random() < via and not made.unreduced else ()
    return Equation(tuple(left), Operand("R", made, loose), stages)


def _summed_over(operand: Operand, axis: str, kept: Sequence[str]) -> bool:
    split = [dim for dim, held in operand.layout.dims if axis in held]
    return axis in operand.layout.unreduced or any(dim not in kept for dim in split)


def _random_sizes(
    random: Random, equation: Equation, mesh: Mesh, elements: int, factors: Sequence[int]
) -> dict[str, int] | None:
    sizes = parts_of(equation, mesh)
    if math.prod(sizes.values()) > elements:
        return None
    for dim in random.sample(list(sizes), len(sizes)):
        factor = random.choice(factors)
        if math.prod(sizes.values()) * factor <= elements:
            sizes[dim] *= factor
    return sizes


def parts_of(equation: Equation, mesh: Mesh) -> dict[str, int]:
    """For every dimension the smallest number that all the cuts of its layouts divide."""
    parts = dict.fromkeys(equation.dims, 1)
    for operand in (*equation.operands, *equation.via, equation.result):
        for dim, axes in operand.layout.dims:
            parts[dim] = math.lcm(parts[dim], mesh.extent(axes))
    return parts


def uneven(random: Random, case: Case) -> Case | None:
    """The same equation with a size or more that its axes do not divide; None where nothing is split."""
    parts = parts_of(case.equation, case.mesh)
    cut = [dim for dim, count in parts.items() if count > 1]
    if not cut:
        return None
    chosen = random.sample(cut, random.randint(1, len(cut)))
    lower = {dim: case.sizes[dim] - random.randint(1, parts[dim] - 1) for dim in chosen}
    return dataclasses.replace(case, sizes={**case.sizes, **lower})


def padded(case: Case) -> Case:
    """The same equation in the smallest sizes that its axes divide."""
    parts = parts_of(case.equation, case.mesh)
    return dataclasses.replace(case, sizes={dim: -(-size // parts[dim]) * parts[dim] for dim, size in case.sizes.items()})


def random_arrays(random: Random, case: Case, dtype: Any = np.int64, largest: int = 3) -> list[np.ndarray]:
    """Arrays of small whole numbers, whose products and sums have no rounding."""
    draw = np.random.default_rng(random.getrandbits(32))
    arrays = []
    for operand in case.equation.operands:
        shape = tuple(case.sizes[dim] for dim in operand.dims)
        array = draw.integers(-largest, largest + 1, shape)
        if np.dtype(dtype).kind == "c":
            array = array + 1j * draw.integers(-largest, largest + 1, shape)
        arrays.append(np.asarray(array).astype(dtype))
    return arrays


def whole(equation: Equation, arrays: Sequence[np.ndarray], einsum: Any = np.einsum) -> Any:
    """The equation on whole arrays, by NumPy's einsum or another."""
    number = {dim: i for i, dim in enumerate(equation.dims)}
    terms = [[number[dim] for dim in operand.dims] for operand in equation.operands]
    pairs = [x for pair in zip(arrays, terms, strict=True) for x in pair]
    return einsum(*pairs, [number[dim] for dim in equation.result.dims])


def gradient(equation: Equation, cotangent: np.ndarray, arrays: Sequence[np.ndarray], at: int) -> np.ndarray:
    """Of the einsum, weighted by a cotangent and added up, by one operand: the einsum of the cotangent with the others."""
    operand, others = equation.operands[at], (*equation.operands[:at], *equation.operands[at + 1 :])
    transposed = dataclasses.replace(equation, operands=(equation.result, *others, operand), result=operand)
    ones = np.ones_like(arrays[at])  # for a dimension that it alone sums
    return whole(transposed, [cotangent, *arrays[:at], *arrays[at + 1 :], ones])


def grown(array: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """The array with zeros at the end of its dimensions, up to a shape."""
    larger = np.zeros(shape, array.dtype)
    larger[tuple(map(slice, np.shape(array)))] = array
    return larger
