"""A problem: an equation with sizes, mesh, hardware and wishes, checked once and in canonical form."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardwise.chips import Hardware, hardware
from shardwise.chips.interconnect import Interconnect, interconnect_of
from shardwise.chips.links import assumptions
from shardwise.chips.network import network_speed
from shardwise.chips.placing import Position, Site, sliced
from shardwise.chips.topology import Topology, standard_slice
from shardwise.errors import HardwareError, MeshError, PlanError, counted, did_you_mean, one_line, quoted
from shardwise.layout import check_mapping, checked_size
from shardwise.mesh import LARGEST, Mesh
from shardwise.notation import Equation
from shardwise.planning.prices import ITEM_BYTES, Costs
from shardwise.steps import TORUS, WAYS

FORMS = (*map(str, WAYS), TORUS, "scatter", "rotate")  # in which transfers run behind matmuls: what `overlap` may name
OVERLAPS = (True, False, *FORMS)
DTYPE = "bfloat16"  # that plans are made for where nothing says otherwise, at every door; what runs has that of its data
MOST_AXES = 5  # with six a plan takes a minute
MOST_OPERANDS = 200  # the search goes down a tree of einsums, and Python's stack is no deeper
MOST_ELEMENTS = LARGEST**2  # of one array: estimates of products of several then stay within what floats hold
MOST_STAGES = 50  # layouts between arrows, each of which is a search of its own


@dataclass(frozen=True, slots=True)
class Problem:
    """An equation with everything that the planner needs to know, checked and in canonical form."""

    equation: Equation
    sizes: Mapping[str, int]
    mesh: Mesh
    hardware: Hardware
    dtype: str
    accumulated: str | None = None
    memory_limit: float | None = None
    overlap: bool | str = True
    topology: Topology | None = None
    exact: bool = False
    positions: tuple[Position, ...] = ()  # of the mesh's devices on the topology; none given: as `mesh_order` has them
    is_assumed: bool = False  # of the topology: it is the standard slice of so many devices

    def __hash__(self) -> int:
        return hash((self.equation, frozenset(self.sizes.items()), self.mesh, self.hardware, self.dtype, self.overlap))

    @property
    def interconnect(self) -> Interconnect:
        """What the mesh's axes have of the links, and how long what passes over them takes."""
        return interconnect_of(self.hardware, self.mesh, self.topology, self.positions)


def problem(
    equation: Equation, sizes: Mapping[str, int], mesh: Any, hardware_name: str | Hardware | Site | None = None,
    dtype: str = DTYPE, accumulated: str | None = None, memory_limit: float | None = None,
    overlap: bool | str = True, exact: bool = False,
) -> Problem:  # fmt: skip
    """Check sizes, axes and dtype against the equation.

    Raises:
        NotationError: an axis that the mesh lacks.
        PlanError: a size missing, not positive or of no dimension, an unknown dtype, an odd memory limit; partial sums in
            an equation that is to be exact; an equation that is too long to search.
        LayoutError: a size that its axes do not divide.
    """
    grid = Mesh.parse(mesh)
    if sum(size > 1 for _, size in grid.axes) > MOST_AXES:
        raise PlanError(f"mesh {grid} has more than {MOST_AXES} axes: layouts are too many to search; join some axes")
    _check_length(equation)
    canonical = equation.on(grid)
    sizes = _checked_sizes(canonical, sizes)
    for operand in (*canonical.operands, *canonical.via, canonical.result):
        operand.layout.shard_shape(sizes, grid)
        if math.prod(sizes[dim] for dim in operand.dims) > MOST_ELEMENTS:
            raise PlanError(
                f"array {operand} has more than {MOST_ELEMENTS:.2g} elements, too many to estimate: use smaller sizes"
            )
    if dtype not in ITEM_BYTES:
        known = ", ".join(sorted(ITEM_BYTES))
        raise PlanError(f"unknown dtype {quoted(dtype)}: use one of {known}{did_you_mean(dtype, ITEM_BYTES)}")
    if memory_limit is not None:
        if isinstance(memory_limit, bool) or not isinstance(memory_limit, numbers.Real):
            raise PlanError(f"a memory limit of {quoted(memory_limit)} is no number: give the bytes of one device, as 16e9")
        if not memory_limit > 0:
            raise PlanError(
                f"a memory limit of {quoted(memory_limit)} bytes holds nothing: give the bytes of one device, as 16e9"
            )
    if overlap not in OVERLAPS:
        raise PlanError(f"overlap={quoted(overlap)}: known are {', '.join(map(repr, OVERLAPS))}")
    if exact:
        _check_exact(canonical)
    positions: tuple[Position, ...] = ()
    if isinstance(hardware_name, Site):
        positions, hardware_name = hardware_name.positions, hardware_name.topology.name
    chip, topology, is_assumed = slice_on(hardware_name, grid)
    known = topology, exact, positions, is_assumed
    return Problem(canonical, sizes, grid, chip, dtype, accumulated, memory_limit, overlap, *known)


def _check_exact(equation: Equation) -> None:
    for operand in (*equation.operands, *equation.via, equation.result):
        if operand.layout.unreduced:
            raise PlanError(
                f"exact=True: {operand} is partial sums, which devices add up in an order of their own: write it without "
                "{U...}, or leave exact off"
            )


def _check_length(equation: Equation) -> None:
    """Refuse what is too long to search before anything is done with it."""
    counts = (
        (len(equation.operands), MOST_OPERANDS, "operands"),
        (len(equation.via) + 1, MOST_STAGES, "layouts of the result"),
    )
    for count, most, what in counts:
        if count > most:
            raise PlanError(f"the equation has {count} {what}, and at most {most} are planned: split it into several equations")


def hardware_on(name: str | Hardware | None, mesh: Mesh) -> tuple[Hardware, Topology | None]:
    """A hardware by name, by default this host; or that of a topology as `v5e:2x4`, whose links are then known.

    Raises:
        HardwareError: it is neither; MeshError: the mesh has more devices than the topology.
    """
    if isinstance(name, Topology) or (isinstance(name, str) and ":" in name and not hardware.is_file(name)):
        topology = Topology.parse(name)
        if topology.chip is None:
            raise HardwareError(f"{topology} is not in the catalogue of hardware: programs can be rehearsed on it, not planned")
        if mesh.size > topology.size:
            raise MeshError(f"mesh {mesh} needs {mesh.size} devices, and {topology} has {topology.size}")
        if topology.slices > 1:
            sliced(topology, mesh)
            network_speed(hardware(topology.chip))
        return hardware(topology.chip), topology
    return hardware.here() if name is None else hardware(name), None


def slice_on(name: str | Hardware | None, mesh: Mesh) -> tuple[Hardware, Topology | None, bool]:
    """A hardware, and the slice that the mesh lies on: where a chip alone is known, the standard one, which is assumed."""
    chip, topology = hardware_on(name, mesh)
    standard = standard_slice(chip.name, mesh.size) if topology is None else None
    return chip, topology or standard, standard is not None


def assumed_of(task: Problem, word: str = " assumed") -> str:
    """Say in one sentence on which links the mesh lies, and of which slice, where that was assumed; with that `word`."""
    said = assumptions(task.hardware, task.mesh, task.interconnect.routes)
    if task.topology is None or not task.is_assumed:
        return said
    return f"{task.topology}{word}, the standard slice of {counted(task.topology.size, 'device')}; {said}"


def _checked_sizes(equation: Equation, sizes: Mapping[str, int]) -> dict[str, int]:
    """The size of every dimension, in the equation's order."""
    check_mapping(sizes, PlanError)
    for dim in sizes:
        if dim not in equation.dims:
            have = f"it has {', '.join(equation.dims) or 'none'}{did_you_mean(str(dim), equation.dims)}"
            raise PlanError(f"a size is given for dimension {one_line(str(dim))}, which the equation lacks: {have}")
    for dim in equation.dims:
        if dim not in sizes:
            raise PlanError(f"no size is given for dimension {dim}: add it, as in sizes={{{dim!r}: 1024}}")
    return {dim: checked_size(dim, sizes[dim], PlanError) for dim in equation.dims}


def costs_of(task: Problem) -> Costs:
    """The prices of steps for a problem."""
    return Costs(task.interconnect, task.dtype, task.accumulated)


def costs_on(hardware: str, mesh: Mesh, dtype: str) -> Costs:
    """The prices on a hardware by name, or on a topology as `v5e:2x4`.

    Raises:
        HardwareError: there is none of that name; MeshError: the topology has fewer devices than the mesh.
    """
    chip, topology, _ = slice_on(hardware, mesh)
    return Costs(interconnect_of(chip, mesh, topology), dtype)
