"""How TPU compilers carry out a collective: over which links of a device, and which they turn into an all-reduce.

Read off the texts of about a thousand compiled collectives of random shapes on random meshes over slices of 4 to 512 devices
of five chips (`collective_algorithm_config` and `collective_offload_config`; libtpu 0.0.50). Where the chips of a slice are
not known, the mesh is taken to fill it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from shardwise.chips import Compiler, Hardware
from shardwise.chips.links import RING, Route, Routes, ringed
from shardwise.layout import Axes
from shardwise.mesh import Mesh
from shardwise.steps import CollectiveKind

FOLDED_FROM = 16  # chips along the longest side, from which a sum over a slice folds the other two into one as long
LONGER = 4  # times as long as another a side is, so that a sum over both goes round one ring
ANY_LINKS = 12  # more than a device has
ROUND_FROM = 2.0**25  # bytes of a gather along two sides of other lengths; less where they are short
CUBE = 3  # sides, along all of which a scatter of chips of two cores goes where its blocks are cut into as many parts


@dataclass(frozen=True, slots=True)
class Ground:
    """What a collective runs on: the links of each axis, and the chips along the sides of the slice, where known."""

    hardware: Hardware
    mesh: Mesh
    routes: Routes
    shape: tuple[int, ...] | None = None
    _extents: dict[Axes, int] = field(default_factory=dict, compare=False, repr=False)

    def extent(self, axes: Axes) -> int:
        """How many devices of a slice take part."""
        known = self._extents.get(axes)
        if known is None:
            known = self._extents[axes] = math.prod(self.routes[axis].size for axis in axes if axis in self.routes)
        return known

    def whole(self, axes: Axes) -> bool:
        """Whether all devices of the slice take part."""
        size = self.mesh.size if self.shape is None else math.prod(self.shape) * self.hardware.devices_per_chip
        return self.extent(axes) == size

    @property
    def is_routed(self) -> bool:
        """Whether links are routed by tables: then some permutes are synchronous (`is_asynchronous`)."""
        compiler = self.hardware.compiler
        chips = self.mesh.size // self.hardware.devices_per_chip if self.shape is None else math.prod(self.shape)
        return compiler is not None and chips >= compiler.routed_from.value

    @property
    def is_even(self) -> bool:
        """Whether a sum over the slice goes along all its sides at once: in three dimensions, and in a square."""
        sides = [side for side in self.shape or () if side > 1]
        return len(sides) != 2 or sides[0] == sides[1]


def is_asynchronous(axes: Axes, on: Ground) -> bool:
    """Whether devices work while the blocks of a ring over these axes are on their way."""
    moving = [on.routes[axis] for axis in axes if axis in on.routes]
    if any(route.slices > 1 for route in moving):
        return True
    return not on.is_routed or (len(moving) == 1 and moving[0].is_direct)


def is_foldable(axes: Axes, on: Ground) -> bool:
    """Whether they do where the ring goes over every second device and back over the others, and not otherwise."""
    return not is_asynchronous(axes, on) and len(axes) == 1 and axes[0] in on.routes and on.routes[axes[0]].folds


def used_routes(kind: CollectiveKind, axes: Axes, on: Ground, odd: bool = False, large: bool = False) -> Routes:
    """What the mesh's axes have of the torus's links for a collective, as the compilers carry it out.

    Blocks are `odd` of a gather if they end within the rows of a tile, of a scatter if they are no multiple of `CUBE` tiles.

    - A gather goes round one ring, however many sides of the torus its axes have (`1DAllGather...`); along all at once only
      where each axis has two chips, or, on chips of two cores, where each is a side of the slice. So does a scatter there. A
      `large` gather along two sides of which one is longer goes round one ring there, too (`goes_round`).
    - Where links are routed by tables, a gather of `odd` blocks goes over all links that there are (`NetRouterEmitter`).
    - A scatter of `odd` blocks along three sides, on chips of two cores, goes round one ring: their tiles cannot be shared out.
    - What arrives at one core of a chip is handed to the other, where the last axis of a gather runs over both.
    - A sum over a part of the slice goes round one ring (`StrategyRing`), where chips have one core, or along all sides of
      the slice that it fills (`StrategyND`), unless one is `LONGER`; a scatter goes round a ring, over all of a slice that is
      no square too. A sum over all of it uses all links; in one of 4 x 4 x 16 it goes along two sides of 16, the first two
      folded into one.
    """
    cores = on.hardware.devices_per_chip
    if on.shape is None and cores > 1:
        return on.routes  # which cores share a chip is not known
    moving = [axis for axis in axes if axis in on.routes]
    sides = [on.routes[axis] for axis in moving if on.routes[axis].size > on.routes[axis].cores]
    if cores > 1:
        wide = len(sides) == len([axis for axis in moving if on.routes[axis].hops]) and all(len(r.sides) == 1 for r in sides)
    else:
        wide = all(route.hops <= 1 for route in sides)
    links = RING * max(1, len(sides)) if wide else RING
    match kind:
        case "all-gather" if odd and on.is_routed:
            return on.routes
        case "all-gather":
            both = math.prod(on.routes[axis].cores for axis in moving) > 1
            handed = both and ((wide and not large) or on.routes[moving[-1]].cores > 1)
            return ringed(on.routes, axes, on.hardware, RING if large else links, handed)
        case "reduce-scatter" if cores > 1:
            return ringed(on.routes, axes, on.hardware, RING if odd and wide and len(sides) == CUBE else links)
        case "all-reduce" if cores == 1 and not on.whole(axes) and _fills_sides(sides):
            return on.routes
        case "reduce-scatter" | "all-reduce" if cores == 1 and not on.whole(axes):
            return ringed(on.routes, axes, on.hardware, RING)
        case "reduce-scatter" if not on.is_even:
            return ringed(on.routes, axes, on.hardware, RING)
        case "reduce-scatter" | "all-reduce" if cores > 1:
            return ringed(on.routes, axes, on.hardware, ANY_LINKS)
        case "reduce-scatter" | "all-reduce" if _is_folded(on.shape):
            return ringed(on.routes, axes, on.hardware, 2 * RING)
        case _:
            return on.routes


def goes_round(axes: Axes, out_bytes: float, on: Ground) -> bool:
    """Whether chips of two cores gather so many bytes round one ring, though the axes are two sides of the slice.

    Those of one length are used both at once, as are three. Of others a gather uses both up to 16 MiB on sides of 2 and 4
    chips, 24 on 4 and 8, 30 on 4 and 16: up to that it does, 1 % above it does not (60 compiled gathers on four slices,
    libtpu 0.0.50); in between lies what fits these.
    """
    if on.hardware.devices_per_chip == 1 or on.shape is None:
        return False
    sides = [on.routes[axis].sides for axis in axes if axis in on.routes and on.routes[axis].size > on.routes[axis].cores]
    if len(sides) != 2 or any(len(each) != 1 for each in sides):
        return False
    short, long = sorted(each[0] for each in sides)
    return short < long and out_bytes > ROUND_FROM * (1 - 1 / (long if long >= LONGER * short else short))


def is_summed(kind: CollectiveKind, axes: Axes, out_bytes: float, uncut: bool, compiler: Compiler, on: Ground) -> bool:
    """Whether a chip's compiler makes a gather an all-reduce of blocks among zeros, or a scatter one that it slices.

    It does over all devices of a slice, from some number of them on; and where a scatter's blocks are `uncut`: they lie behind
    other dimensions, or would have to be padded to much more.
    """
    match kind:
        case "reduce-scatter" if uncut and on.shape is not None:
            return True
        case "reduce-scatter":
            return on.whole(axes) and on.is_even and on.extent(axes) >= compiler.scatter_summed_from.value
        case "all-gather" if out_bytes <= compiler.gather_summed_bytes.value:
            return on.whole(axes) and on.extent(axes) >= compiler.gather_summed_from.value
        case _:
            return False


def _fills_sides(routes: Sequence[Route]) -> bool:
    """Whether axes fill several sides of the slice, and none of these is much longer than another."""
    sides = [side for route in routes for side in route.sides]
    return all(route.sides for route in routes) and len(sides) > 1 and max(sides) < LONGER * min(sides)


def _is_folded(shape: tuple[int, ...] | None) -> bool:
    if shape is None:
        return False
    *others, longest = sorted(shape)
    return longest >= FOLDED_FROM and len(others) > 1 and math.prod(others) == longest
