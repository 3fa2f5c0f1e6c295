"""Random problems on slices of TPUs: shapes and layouts that nobody chose, each told by its number."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from benchmarks.equations import AXES, parts_of, random_layout
from shardwise.chips.topology import Topology
from shardwise.mesh import Mesh
from shardwise.notation import Equation, Operand, parse

# Slices of 4 to 256 chips.
SMALL = {
    "v4": ("2x2x1", "2x2x2", "2x2x4"),
    "v5e": ("2x2", "2x4", "4x4"),
    "v5p": ("2x2x1", "2x2x2", "2x2x4"),
    "v6e": ("2x2", "2x4", "4x4"),
    "v7x": ("2x2x1", "2x2x2", "2x2x4"),
}
LARGE = {
    "v4": ("4x4x4", "4x4x8", "4x8x8", "4x4x16"),
    "v5e": ("4x8", "8x8", "8x16", "16x16"),
    "v5p": ("4x4x4", "4x4x8", "4x8x8", "4x4x16"),
    "v6e": ("4x8", "8x8", "8x16", "16x16"),
    "v7x": ("2x4x4", "4x4x4", "4x4x8", "4x8x8"),
}
# Dimensions of what is multiplied and of what comes out; of one array its own, in the same order or another.
MATMULS = ("IJ,JK,IK", "IJ,KJ,IK", "JI,JK,IK", "BIJ,JK,BIK", "BIJ,BJK,BIK", "BIJ,BIK,JK")
RESHARDS = ("IJ,IJ", "IJ,IJ", "BIJ,BIJ")
UNITS = (1024, 256, 256, 128, 8)  # what a size is a multiple of, beside its cuts
SIZES = (512, 32768)
BATCHES = (4, 64)
MOST_BYTES = 4e8  # of an array's part on one device
MOST_FLOPS = 5e12  # of one device
ITEM_BYTES = 2
# Held out once, and looked at when their choices were more than 1.5 times as slow as another: fitted since.
LOOKED_AT = ("21e579cdc679", "8dcdf70dd46f", "18b01cc0bcf1")


@dataclass(frozen=True, slots=True)
class Problem:
    """An equation with its sizes, on a mesh over all devices of a slice."""

    target: str
    mesh: Mesh
    equation: Equation
    sizes: Mapping[str, int]

    def __str__(self) -> str:
        sizes = ",".join(f"{dim}={size}" for dim, size in self.sizes.items())
        return f'"{self.equation}" --sizes {sizes} --mesh "{self.mesh}" --hardware {self.target}'

    @property
    def held_out(self) -> bool:
        """Whether it is one of the third that nothing is tuned on: said by what it is, not by when it was drawn."""
        digest = hashlib.sha256(str(self).encode()).hexdigest()
        return int(digest[:2], 16) % 3 == 0 and digest[:12] not in LOOKED_AT


def problems(count: int, seed: int = 0) -> Iterator[Problem]:
    """So many problems, those of each chip in turn, half of them on slices of up to 16 chips.

    >>> first, second = problems(2)
    >>> first.target.split(":")[0], second.target.split(":")[0], next(problems(1)) == first
    ('v4', 'v5e', True)
    """
    chips = list(SMALL)
    for number in range(count):
        slices = (SMALL, LARGE)[number // len(chips) % 2]
        yield drawn(Random(f"{seed} {number}"), chips[number % len(chips)], slices)


def drawn(random: Random, chip: str, slices: Mapping[str, Sequence[str]]) -> Problem:
    """One problem in which something has to move."""
    while True:
        target = f"{chip}:{random.choice(slices[chip])}"
        mesh = drawn_mesh(random, Topology.parse(target))
        dims = random.choice(MATMULS if random.random() < 0.7 else RESHARDS).split(",")
        *operands, result = (
            Operand(name, random_layout(random, term, mesh.names))
            for name, term in zip("ABC" if len(dims) > 2 else "AA", dims, strict=True)
        )
        equation = parse(str(Equation(tuple(operands), result)))
        sizes = _sizes(random, equation, mesh)
        if _moves(equation) and _fits(equation, sizes, mesh):
            return Problem(target, mesh, equation, sizes)


def drawn_mesh(random: Random, topology: Topology) -> Mesh:
    """One to three axes: the sides of the slice, or any powers of two."""
    sides = [size for size in topology.shape if size > 1]
    sides[-1] *= topology.cores_per_chip
    if random.random() < 0.5:
        while len(sides) > 1 and random.random() < 0.4:
            place = random.randrange(len(sides) - 1)
            sides[place : place + 2] = [sides[place] * sides[place + 1]]
        return Mesh(tuple(zip(AXES, sides, strict=False)))
    bits = topology.size.bit_length() - 1
    cuts = sorted(random.sample(range(1, bits), min(random.choice((0, 1, 1, 2)), bits - 1)))
    return Mesh(tuple((AXES[i], 2 ** (b - a)) for i, (a, b) in enumerate(zip([0, *cuts], [*cuts, bits], strict=True))))


def _sizes(random: Random, equation: Equation, mesh: Mesh) -> dict[str, int]:
    sizes = {}
    for dim, parts in parts_of(equation, mesh).items():
        low, high = BATCHES if dim == "B" else SIZES
        wanted = math.exp(random.uniform(math.log(low), math.log(high)))
        unit = parts if dim == "B" else math.lcm(parts, random.choice(UNITS))
        sizes[dim] = unit * max(1, round(wanted / unit))
    return sizes


def _moves(equation: Equation) -> bool:
    """Whether some axis of an operand has to leave its dimension."""
    kept = dict(equation.result.layout.dims)
    return any(set(axes) - set(kept.get(dim, ())) for operand in equation.operands for dim, axes in operand.layout.dims)


def _fits(equation: Equation, sizes: Mapping[str, int], mesh: Mesh) -> bool:
    parts = [math.prod(each.layout.shard_shape(sizes, mesh)) for each in (*equation.operands, equation.result)]
    flops = 2 * math.prod(sizes.values()) / mesh.size if len(equation.operands) > 1 else 0
    return max(parts) * ITEM_BYTES <= MOST_BYTES and sum(parts) * ITEM_BYTES >= 1e6 and flops <= MOST_FLOPS
