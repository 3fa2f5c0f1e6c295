"""Where the devices of a mesh sit: a plan without a named hardware uses the links that are really there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, Mesh

import shardwise as sw
from shardwise.chips.placing import Site
from shardwise.compiled.targets.unattached import devices_of, mesh_of
from shardwise.runtime.devices import hardware_of, torus_of

EQUATION = "A[I_x, J] · B[J, K_x] -> C[I, K_x]"
SIZES = {"I": 8192, "J": 8192, "K": 28672}


def planned(mesh: Any, hardware: str | None = None) -> sw.Plan:
    return sw.plan(EQUATION, sizes=SIZES, mesh=mesh, hardware=hardware)


@pytest.mark.needs(compiler_of="topology")
@pytest.mark.parametrize(
    ("topology", "axes"), [("v6e:2x4", "x=8"), ("v5p:2x2x2", "x=4, y=2"), ("v7x:2x2x1", "x=8"), ("v5e:4x4", "y=2, x=8")]
)
def test_a_mesh_of_devices_is_planned_as_its_slice(topology, axes):
    by_devices, by_name = planned(mesh_of(topology, axes)), planned(axes, topology)
    assert by_devices.task.topology == by_name.task.topology
    assert [each.seconds for each in by_devices] == [each.seconds for each in by_name]


@pytest.mark.needs(compiler_of="topology")
@pytest.mark.parametrize("topology", ["v6e:2x4"])
def test_two_rows_of_a_slice_are_faster_than_a_line_and_what_a_chip_alone_is_taken_for(topology):
    chosen = planned(mesh_of(topology)).best
    assert chosen.seconds < 0.8 * planned("x=8", "v6e:1x8").best.seconds
    assert chosen.seconds == planned("x=8", "tpu-v6e").best.seconds


@pytest.mark.needs(compiler_of="topology")
@pytest.mark.parametrize("topology", ["v5e:4x4"])
def test_a_part_of_a_slice_lies_where_its_devices_do(topology):
    """A row of four chips is a line; a square of four has links along both dimensions."""
    devices = sorted(devices_of(sw.Topology.parse(topology)), key=lambda device: tuple(device.coords))
    row, square = devices[:4], [device for device in devices if max(device.coords) < 2]
    wire = {}
    for name, four in (("row", row), ("square", square)):
        site = hardware_of(Mesh(np.array(four), ("x",)))
        assert isinstance(site, Site)
        assert site.topology.name == "v5e:4x4"
        assert len(set(site.positions)) == 4
        wire[name] = sw.plan("A[I_x] -> A[I]", sizes={"I": 2**24}, mesh=Mesh(np.array(four), ("x",))).best.seconds
    assert wire["square"] < wire["row"]


def chip(*coords: int, core: int = 0, slice_index: int = 0, kind: str = "TPU v5 lite") -> SimpleNamespace:
    return SimpleNamespace(platform="tpu", device_kind=kind, coords=coords, core_on_chip=core, slice_index=slice_index)


def test_a_slice_is_read_off_coordinates_wherever_it_begins():
    grid = [chip(4 + x, 8 + y, 0) for y in range(4) for x in range(2)]
    found = torus_of(grid)
    assert found is not None
    assert found.name == "v5e:2x4"
    cores = [chip(x, y, 0, core=core, kind="TPU7x") for x in range(2) for y in range(2) for core in range(2)]
    found = torus_of(cores)
    assert found is not None
    assert found.name == "v7x:2x2x1"


@pytest.mark.parametrize(
    "devices",
    [
        [chip(x, 0, 0, slice_index=number) for number in range(2) for x in range(2 + 2 * number)],
        [chip(x, 0, 0, slice_index=number, kind="TPU v4") for number in range(2) for x in range(2)],
        [chip(0, 0, 0), chip(1, 1, 0)],
        [chip(x, 0, 0) for x in range(3)],
    ],
    ids=["two slices of two shapes", "two slices of a chip without a figure for the network", "holes", "no slice that is sold"],
)
def test_what_is_no_slice_is_planned_by_its_chip_alone(devices):
    assert torus_of(devices) is None


def test_slices_of_one_shape_are_read_off_their_devices():
    grid = [chip(4 * number + x, y, 0, slice_index=number) for number in (1, 0) for y in range(4) for x in range(2)]
    found = torus_of(grid)
    assert found is not None
    assert found.name == "v5e:2x4*2"


@pytest.mark.needs(compiler_of="topology")
@pytest.mark.parametrize("topology", ["v5e:2x4*2"])
def test_a_mesh_over_slices_goes_across_them_with_its_first_axis(topology, monkeypatch):
    devices = devices_of(sw.Topology.parse(topology))
    monkeypatch.setattr(jax, "devices", lambda: list(devices))
    mesh = sw.make_mesh("s=2, x=2, y=4")
    assert [{device.slice_index for device in half.flat} for half in mesh.devices] == [{0}, {1}]
    assert all(one.coords == other.coords for one, other in zip(mesh.devices[0].flat, mesh.devices[1].flat, strict=True))
    site = hardware_of(mesh)
    assert isinstance(site, Site)
    assert site.topology.name == topology
    mixed = Mesh(mesh.devices.reshape(16)[::-1].reshape(4, 4).T, ("x", "y"))
    assert hardware_of(mixed) == sw.hardware("v5e")


def test_simulated_devices_and_meshes_without_devices_are_their_hardware():
    mesh = sw.make_mesh("x=4")
    assert hardware_of(mesh) == sw.hardware("cpu")
    assert hardware_of(AbstractMesh((4,), ("x",))) == sw.hardware("cpu")
    assert torus_of(jax.devices()) is None
