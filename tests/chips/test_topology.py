"""Topologies: what is read and refused, in which order a mesh lies on one, and what its axes have of the links."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.chips import hardware
from shardwise.chips.links import assumptions, pricer, torus_routes
from shardwise.chips.placing import hops, mesh_order, physical_routes
from shardwise.chips.topology import Topology, families
from shardwise.errors import HardwareError, MeshError
from shardwise.mesh import Mesh

SHAPES = ["v3:4x4", "v4:2x2x2", "v4:4x4x4", "v5e:2x4", "v5e:4x4", "v5e:16x16", "v6e:2x4", "v6e:4x4", "v5p:2x2x2", "v5p:4x4x4"]
SHAPES += ["v7x:2x2x1", "v7x:4x4x4", "h100:8", "h100:2x8", "h200:8", "b200:8", "v5e:1x1", "v5e:1x2", "h100:1"]


def lines(positions, mesh: Mesh, axis: str):
    """The positions along one axis, for every place on the other axes."""
    sizes = [size for _, size in mesh.axes]
    index = mesh.names.index(axis)
    at = dict(zip(itertools.product(*map(range, sizes)), positions, strict=True))
    for rest in itertools.product(*(range(size) for k, size in enumerate(sizes) if k != index)):
        yield [at[(*rest[:index], step, *rest[index:])] for step in range(sizes[index])]


def jumps(topology, line, *, closed: bool) -> list[int]:
    following = [*line[1:], line[0]] if closed else line[1:]
    return [hops(topology, one, other) for one, other in zip(line, following, strict=False)]


@pytest.mark.parametrize(
    ("text", "name", "chip", "kind", "shape", "cores", "size"),
    [
        ("v5e:2x4", "v5e:2x4", "tpu-v5e", "tpu", (2, 4), 1, 8),
        ("tpu-v5e:2x4", "v5e:2x4", "tpu-v5e", "tpu", (2, 4), 1, 8),
        (" V5E: 2x4 ", "v5e:2x4", "tpu-v5e", "tpu", (2, 4), 1, 8),
        ("v5p:16x20x28", "v5p:16x20x28", "tpu-v5p", "tpu", (16, 20, 28), 1, 8960),
        ("v4:2x2x2", "v4:2x2x2", "tpu-v4", "tpu", (2, 2, 2), 1, 8),
        ("v6e:4x4", "v6e:4x4", "tpu-v6e", "tpu", (4, 4), 1, 16),
        ("tpu7x:2x2x1", "v7x:2x2x1", "tpu-v7x", "tpu", (2, 2, 1), 2, 8),
        ("v7x:2x2x1", "v7x:2x2x1", "tpu-v7x", "tpu", (2, 2, 1), 2, 8),
        ("v3:4x4", "v3:4x4", None, "tpu", (4, 4), 2, 32),
        ("h100:8", "h100:8", "h100", "gpu", (1, 8), 1, 8),
        ("h100:1x8", "h100:8", "h100", "gpu", (1, 8), 1, 8),
        ("H200:2x8", "h200:2x8", "h200", "gpu", (2, 8), 1, 16),
        ("b200:4", "b200:4", "b200", "gpu", (1, 4), 1, 4),
    ],
)
def test_a_topology_is_read(text, name, chip, kind, shape, cores, size):
    topology = Topology.parse(text)
    assert (topology.name, topology.chip, topology.kind) == (name, chip, kind)
    assert (topology.shape, topology.cores_per_chip, topology.size) == (shape, cores, size)
    assert Topology.parse(str(topology)) == topology
    assert Topology.parse(topology) is topology


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("v9z:2x2", ["no devices 'v9z'", *families()]),
        ("v5:2x4", ["no devices 'v5'", "did you mean 'v5"]),
        ("h10:8", ["did you mean 'h100'?"]),
        ("", ["no devices ''"]),
        (":2x4", ["no devices ''"]),
        ("v5e", ["no shape", "v5e:2x4"]),
        ("v5e:", ["no shape", "v5e:2x4"]),
        ("h100", ["no shape", "h100:8 or h100:2x8"]),
        ("v5e:2y4", ["'2y4' is no shape", "v5e:2x4"]),
        ("v5e:2x", ["'2x' is no shape"]),
        ("v5e:-2x4", ["'-2x4' is no shape"]),
        ("v5e:" + "9" * 5000, ["is no shape"]),
        ("v5e:0x4", ["a dimension of no chips"]),
        ("h100:0", ["a dimension of no chips"]),
        ("v5e:98x98", ["a dimension of 98 chips", "at most 16"]),
        ("v5e:99x99", ["a dimension of 99 chips", "1 or even"]),
        ("v5e:3x4", ["a dimension of 3 chips", "1 or even"]),
        ("v5p:32x32x32", ["32768 chips", "a v5p pod has 8960"]),
        ("v5e:2x2x2", ["3 dimensions where v5e has 2", "v5e:2x4"]),
        ("v5p:2x4", ["2 dimensions where v5p has 3", "v5p:2x2x2"]),
        ("h100:16", ["16 GPUs in a host, which holds up to 8", "h100:2x8"]),
        ("h100:2x2x8", ["3 dimensions"]),
        ("h100:999999x8", ["999999 hosts"]),
    ],
)
def test_what_is_no_topology_is_refused_with_a_way_out(text, said):
    with pytest.raises(HardwareError) as refusal:
        Topology.parse(text)
    for part in said:
        assert part in str(refusal.value)
    assert len(str(refusal.value)) < 600


@pytest.mark.parametrize("wrong", [None, 8, ("v5e", 2, 4), b"v5e:2x4"])
def test_what_is_no_text_is_refused(wrong):
    with pytest.raises(HardwareError, match="is no topology: write its name and shape"):
        Topology.parse(wrong)


def test_a_caret_points_at_the_fault():
    with pytest.raises(HardwareError) as refusal:
        Topology.parse("v5e:2y4")
    first, second = str(refusal.value).splitlines()
    assert first.startswith("v5e:2y4: ")
    assert second.index("^") == 4


@pytest.mark.parametrize(
    ("text", "rings"),
    [
        ("v5e:2x4", (False, False)),
        ("v5e:8x16", (False, True)),
        ("v6e:16x16", (True, True)),
        ("v4:2x2x4", (False, False, True)),
        ("v5p:16x20x28", (True, True, True)),
        ("v7x:2x2x1", (False, False, False)),
        ("v3:4x4", (False, False)),
        ("v3:32x32", (True, True)),
        ("h100:8", (False, False)),
    ],
)
def test_long_enough_dimensions_close_to_rings(text, rings):
    assert Topology.parse(text).rings == rings


def factorings(size: int, parts: int):
    if parts == 1:
        yield (size,)
        return
    for first in (d for d in range(1, size + 1) if size % d == 0):
        yield from ((first, *rest) for rest in factorings(size // first, parts - 1))


@pytest.mark.parametrize("text", SHAPES)
@pytest.mark.parametrize("parts", [1, 2, 3])
def test_every_mesh_of_a_topology_has_a_place_for_each_device(text, parts):
    topology = Topology.parse(text)
    expected = set(itertools.product(*map(range, (*topology.shape, topology.cores_per_chip))))
    for sizes in factorings(topology.size, parts):
        mesh = Mesh(tuple(zip("xyz", sizes, strict=False)))
        order = mesh_order(topology, mesh)
        assert len(order) == topology.size
        assert set(order) == expected
        assert order[0] == (0,) * (len(topology.shape) + 1)
        routes = physical_routes(topology, order, mesh)
        if topology.kind == "tpu" and topology.chip:
            assert set(routes) == {name for name, size in mesh.axes if size > 1}
            assert all(math.isfinite(route.bytes_per_s) and route.bytes_per_s > 0 for route in routes.values())


@given(st.sampled_from([text for text in SHAPES if text[0] == "v"]), st.data())
def test_an_axis_on_whole_dimensions_goes_from_neighbour_to_neighbour(text, data):
    """Axes made by multiplying whole dimensions lie on whole dimensions again: no hop is longer than one link."""
    topology = Topology.parse(text)
    sizes = [size for size in (*topology.shape, topology.cores_per_chip) if size > 1]
    owner = [data.draw(st.integers(0, 2)) for _ in sizes]
    mesh = Mesh(
        tuple((axis, math.prod(s for s, o in zip(sizes, owner, strict=True) if o == k)) for k, axis in enumerate("xyz"))
    )
    order = mesh_order(topology, mesh)
    for axis in mesh.names:
        for line in lines(order, mesh, axis):
            assert max(jumps(topology, line, closed=False), default=0) <= 1


@pytest.mark.parametrize("text", [*SHAPES[:12], "v5p:4x8x12", "v4:2x2x4", "v7x:2x2x2", "v5p:16x20x28"])
def test_one_axis_over_the_whole_torus_is_a_closed_ring(text):
    topology = Topology.parse(text)
    order = mesh_order(topology, Mesh((("x", topology.size),)))
    assert max(jumps(topology, list(order), closed=True)) == 1


def test_the_cores_of_a_chip_follow_one_another():
    topology = Topology.parse("v7x:2x2x1")
    order = mesh_order(topology, Mesh.parse("x=8"))
    assert jumps(topology, list(order), closed=True) == [0, 1, 0, 1, 0, 1, 0, 1]
    assert [core for *_, core in order] == [0, 1] * 4


def test_each_axis_lies_on_a_dimension_of_its_size():
    topology, mesh = Topology.parse("v5e:2x4"), Mesh.parse("x=4, y=2")
    order = mesh_order(topology, mesh)
    assert order == ((0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 1, 0), (0, 2, 0), (1, 2, 0), (0, 3, 0), (1, 3, 0))


def test_gpus_stand_in_the_order_of_their_hosts():
    assert mesh_order(Topology.parse("h100:2x8"), Mesh.parse("x=4, y=4"))[7:9] == ((0, 7, 0), (1, 0, 0))


@pytest.mark.parametrize("mesh", ["x=3", "x=7", "x=16", "x=4, y=4"])
def test_a_mesh_of_a_size_that_has_no_place_is_refused(mesh):
    with pytest.raises(MeshError, match=r"multiply to 8, or a topology of \d+"):
        mesh_order(Topology.parse("v5e:2x4" if mesh != "x=3" else "v7x:2x2x1"), Mesh.parse(mesh))


@pytest.mark.parametrize(
    ("text", "mesh", "expected"),
    [
        ("v5e:2x4", "x=4", {(0, 0, 0), (0, 1, 0), (1, 1, 0), (1, 0, 0)}),
        ("v5e:4x4", "x=2", {(0, 0, 0), (0, 1, 0)}),
        ("v5e:2x4", "x=3", {(0, 0, 0), (0, 1, 0), (0, 2, 0)}),
        ("v7x:2x2x1", "x=2", {(0, 0, 0, 0), (0, 0, 0, 1)}),
        ("v7x:2x2x1", "x=1", {(0, 0, 0, 0)}),
        ("h100:2x8", "x=3", {(0, 0, 0), (0, 1, 0), (0, 2, 0)}),
    ],
)
def test_a_smaller_mesh_takes_the_most_compact_block(text, mesh, expected):
    order = mesh_order(Topology.parse(text), Mesh.parse(mesh))
    assert len(order) == len(expected)
    assert set(order) == expected


# One link of a v5e: 4.5e10 bytes/s one way; of a v5p and a v7x 9e10, which the two devices of a v7x chip share.
@pytest.mark.parametrize(
    ("text", "mesh", "axis", "bytes_per_s", "farthest", "wraps", "says"),
    [
        ("v5e:2x4", "x=8", "x", 9e10, 4, False, "x a line of 2 x line of 4"),
        ("v5e:2x4", "x=4, y=2", "x", 4.5e10, 3, False, "x a line of 4"),
        ("v5e:2x4", "x=4, y=2", "y", 4.5e10, 1, False, "y a line of 2"),
        ("v5e:16x16", "x=16, y=16", "x", 9e10, 8, True, "x a ring of 16"),
        ("v5e:16x16", "x=256", "x", 1.8e11, 16, True, "x a ring of 16 x ring of 16"),
        ("v5e:16x16", "x=2, y=128", "y", 9e10 + 4.5e10, 8 + 7, False, "y a ring of 16 x line of 8"),
        ("v5e:16x16", "x=2, y=128", "x", 4.5e10 / 8, 8, False, "x a line of 2 (8 apart)"),
        ("v5e:16x16", "x=8, y=32", "x", 2 * 4.5e10 / 2, 8, True, "x a ring of 8 (2 apart)"),
        ("v5e:8x16", "x=128", "x", 4.5e10 + 9e10, 7 + 8, False, "x a line of 8 x ring of 16"),
        ("v5p:4x4x4", "x=64", "x", 6 * 9e10, 6, True, "x a ring of 4 x ring of 4 x ring of 4"),
        ("v5p:2x2x2", "x=8", "x", 3 * 9e10, 3, False, "x a line of 2 x line of 2 x line of 2"),
        ("v7x:2x2x1", "x=8", "x", 2 * 4.5e10, 2, False, "x a line of 2 x line of 2, 2 cores a chip"),
        ("v7x:2x2x1", "x=4, y=2", "y", 9e10, 0, False, "y the 2 cores of a chip"),
        ("v7x:4x4x4", "x=4, y=32", "x", 9e10, 2, True, "x a ring of 4"),
    ],
)
def test_an_axis_has_the_links_of_the_dimensions_it_spans(text, mesh, axis, bytes_per_s, farthest, wraps, says):
    topology, mesh = Topology.parse(text), Mesh.parse(mesh)
    route = physical_routes(topology, mesh_order(topology, mesh), mesh)[axis]
    assert (route.size, route.hops, route.wraps) == (mesh.axis_size(axis), farthest, wraps)
    assert route.bytes_per_s == pytest.approx(bytes_per_s)
    assert route.says == says


def test_scattered_devices_are_taken_as_one_link():
    topology, mesh = Topology.parse("v5e:4x4"), Mesh.parse("x=4")
    places = [(0, 0, 0), (1, 2, 0), (3, 1, 0), (2, 3, 0)]
    route = physical_routes(topology, places, mesh)["x"]
    assert (route.bytes_per_s, route.hops, route.says) == (4.5e10 / 5, 5, "x 4 devices, scattered")
    with pytest.raises(MeshError, match="4 devices, and 3 positions are given"):
        physical_routes(topology, places[:3], mesh)


def test_behind_a_switch_and_without_figures_there_are_no_routes():
    for text in ("h100:8", "v3:4x4"):
        topology = Topology.parse(text)
        mesh = Mesh((("x", topology.size),))
        assert physical_routes(topology, mesh_order(topology, mesh), mesh) == {}


def test_a_price_follows_the_routes_it_is_given():
    chip, topology, mesh = hardware("tpu-v5e"), Topology.parse("v5e:2x4"), Mesh.parse("x=8")
    routes = physical_routes(topology, mesh_order(topology, mesh), mesh)
    gathered = 2**30
    known = pricer("all-gather", chip, mesh, ("x",), routes)(gathered / 8, gathered)
    assert known == pytest.approx(gathered * 7 / 8 / 9e10)
    guessed = pricer("all-gather", chip, mesh, ("x",))(gathered / 8, gathered)
    assert guessed == pytest.approx(gathered * 7 / 8 / 4.5e10)  # a line of 8 in one dimension
    assert guessed == pricer("all-gather", chip, mesh, ("x",), torus_routes(chip.links, mesh))(gathered / 8, gathered)
    assert "x a line of 2 x line of 4" in assumptions(chip, mesh, routes)


@pytest.mark.parametrize(
    ("mesh", "said"),
    [
        ("x=2, y=8", "; x crosses nodes, 4e+11 bytes/s out of one"),
        ("x=16", "; x crosses nodes, 4e+11 bytes/s out of one"),
        ("x=2, y=4, z=4", "; x, y cross nodes, 4e+11 bytes/s out of one"),
        ("x=8", ""),
    ],
)
def test_what_crosses_nodes_is_said(mesh, said):
    assert assumptions(hardware("h100"), Mesh.parse(mesh)).partition("out of a device")[2] == said
