"""Several slices as one mesh: which axes cross, where each device stands, and what the network between them costs."""

from __future__ import annotations

import math
import random

import pytest

from shardwise.chips import Torus, hardware, read
from shardwise.chips.links import pricer, wire_bytes
from shardwise.chips.network import network_bytes
from shardwise.chips.placing import in_one_slice, is_sliced, mesh_order, physical_routes, sliced
from shardwise.chips.storing import written
from shardwise.chips.topology import Topology
from shardwise.errors import HardwareError, MeshError
from shardwise.mesh import Mesh
from shardwise.planning.bounds import moving_lower_bound
from shardwise.planning.problem import costs_on

NAMES = ("v5e:2x2*2", "v5e:2x4*4", "v5p:2x2x2*2", "v6e:4x4*3", "v7x:2x2x1*2")


def drawn(seed: int) -> tuple[Topology, Mesh]:
    """Slices, and a mesh that fills them: each axis has a part of their number and a part of a slice's devices."""
    chance = random.Random(seed)
    topology = Topology.parse(chance.choice(NAMES))
    parts = [1, 1, 1]
    for prime in _primes(topology.slices) + _primes(topology.size // topology.slices):
        parts[chance.randrange(3)] *= prime
    return topology, Mesh(tuple(zip("xyz", parts, strict=True)))


def _primes(number: int) -> list[int]:
    for prime in range(2, number + 1):
        if number % prime == 0:
            return [prime, *_primes(number // prime)]
    return []


def test_the_number_of_slices_is_written_behind_the_shape():
    two = Topology.parse("tpu-v5e:2x4*2")
    assert (str(two), two.slices, two.size, two.shape, str(two.slice)) == ("v5e:2x4*2", 2, 16, (2, 4), "v5e:2x4")
    assert Topology.parse("v5e:2x4*1") == Topology.parse("v5e:2x4")


@pytest.mark.parametrize("name", ["v5e:2x4*0", "v5e:2x4*two", "v5e:2x4*", "v5e:2x4*65", "h100:2x8*2"])
def test_what_is_no_number_of_slices_is_refused_where_it_stands(name: str):
    with pytest.raises(HardwareError, match=r"\*|slices") as refused:
        Topology.parse(name)
    shown, pointer = str(refused.value).split("\n")
    assert shown.startswith(name)
    assert pointer.index("^") == name.index("*")


@pytest.mark.parametrize("seed", range(60))
def test_all_slices_are_filled_alike_and_only_axes_that_cross_leave_them(seed: int):
    topology, mesh = drawn(seed)
    across, inside = sliced(topology, mesh)
    positions = mesh_order(topology, mesh)
    assert len(set(positions)) == mesh.size == topology.size
    assert is_sliced(topology, positions, mesh)
    assert in_one_slice(positions) == mesh_order(topology.slice, inside)
    assert across.size == topology.slices
    for (axis, size), stride in zip(mesh.axes, _strides(mesh), strict=True):
        crossed = {positions[start][-1] for start in range(0, stride * size, stride)}
        assert len(crossed) == across.axis_size(axis)
    swapped = (positions[-1], *positions[1:-1], positions[0])
    assert not is_sliced(topology, swapped, mesh)


def _strides(mesh: Mesh) -> list[int]:
    return [math.prod(size for _, size in mesh.axes[place + 1 :]) for place in range(len(mesh.axes))]


def test_a_mesh_that_cannot_go_over_all_slices_is_refused():
    with pytest.raises(MeshError, match=r"mesh x=5, y=3 does not go over the 2 slices of v5e:2x4\*2: give a first axis of 2"):
        sliced(Topology.parse("v5e:2x4*2"), Mesh.parse("x=5, y=3"))


@pytest.mark.parametrize("kind", ["all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute"])
def test_a_collective_over_slices_takes_its_part_in_each_and_its_bytes_over_the_network(kind):
    two, mesh = Topology.parse("v5e:2x4*2"), Mesh.parse("s=2, x=8")
    chip, routes = hardware("v5e"), physical_routes(two, mesh_order(two, mesh), mesh)
    held = 2**24
    made = held * 16 if kind == "all-gather" else held / 16 if kind == "reduce-scatter" else held
    both = pricer(kind, chip, mesh, ("s", "x"), routes)(held, made)
    slow = network_bytes(kind, 8, 2, held, made) / 3.125e9
    inside, before = made, held
    if kind == "all-gather":
        before = 2 * held
    if kind == "reduce-scatter":
        inside = 2 * made
    fast = 0.0 if kind == "all-to-all" else pricer(kind, chip, mesh, ("x",), routes)(before, inside)
    assert both == pytest.approx(slow + fast)
    alone = pricer(kind, chip, mesh, ("x",), routes)(held, made)
    assert alone == pytest.approx(collective_seconds_of_one_slice(kind, held, made))


def collective_seconds_of_one_slice(kind, held: float, made: float) -> float:
    one, mesh = Topology.parse("v5e:2x4"), Mesh.parse("x=8")
    return pricer(kind, hardware("v5e"), mesh, ("x",), physical_routes(one, mesh_order(one, mesh), mesh))(held, made)


@pytest.mark.parametrize("kind", ["all-gather", "reduce-scatter", "all-reduce", "all-to-all"])
def test_what_leaves_a_slice_is_part_of_what_is_sent(kind):
    mesh, held = Mesh.parse("s=4, x=8"), 3200.0
    over_all, alone = ({"all-gather": held * n, "reduce-scatter": held / n}.get(kind, held) for n in (32, 4))
    assert 0 < network_bytes(kind, 8, 4, held, over_all) < wire_bytes(kind, mesh, ("s", "x"), held, over_all)
    assert network_bytes(kind, 1, 4, held, alone) == pytest.approx(wire_bytes(kind, mesh, ("s",), held, alone))


def test_a_chip_without_a_figure_for_the_network_is_not_planned_over_slices():
    with pytest.raises(HardwareError, match="tpu-v4 has no figure for the network between slices: plan for one slice"):
        costs_on("v4:2x2x1*2", Mesh.parse("s=2, x=4"), "bfloat16")


def test_the_figure_is_written_and_read_again():
    for name in ("v5e", "v5p", "v6e", "v7x"):
        chip = hardware(name)
        assert isinstance(chip.links, Torus)
        assert read(written(chip)) == chip
        assert ("network bytes/s", chip.network_bytes_per_s) in chip.figures()


@pytest.mark.parametrize("axes", [("s",), ("x",), ("s", "x"), ("x", "s")])
def test_no_gather_is_faster_than_the_floor_of_what_must_move(axes):
    costs, whole = costs_on("v5e:2x4*2", Mesh.parse("s=2, x=8"), "bfloat16"), 2**28
    gathered = costs.collective("all-gather", axes, whole / costs.mesh.extent(axes), whole)
    assert 0 < moving_lower_bound(costs, {"I": whole // 2}, ("I",), ((axes,), ()), (((),), ())) <= gathered
