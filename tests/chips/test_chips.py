"""Hardware: every figure is positive and cited, and the time of each collective is what one works out by hand."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path

import pytest

import shardwise.chips
from shardwise.chips import Memory, Switch, Torus, hardware, read
from shardwise.chips.links import assumptions, collective_seconds, torus_routes, wire_bytes
from shardwise.chips.storing import written
from shardwise.errors import HardwareError
from shardwise.mesh import Mesh

CATALOGUE = sorted(Path(shardwise.chips.__file__).with_name("catalogue").glob("*.toml"))
GIB = 2**30
MS = 1e-3


MAY_BE_ZERO = ("kept_bytes", "dispatch_seconds", "gathers_ahead")  # there it means: none


def named(path: Path) -> str:
    return path.stem


def figures(table: dict, at: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], dict]]:
    """Every number of a file that is not a count of its own: tables with a value, wherever they stand."""
    found = []
    for key, value in table.items():
        if isinstance(value, dict):
            found += [((*at, key), value)] if "value" in value else figures(value, (*at, key))
    return found


def test_the_catalogue_holds_the_hardware_that_is_promised():
    promised = {"tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e", "tpu-v7x", "h100", "h200", "b200", "cpu"}
    assert promised <= set(hardware.names()) == {path.stem for path in CATALOGUE}


@pytest.mark.parametrize("path", CATALOGUE, ids=named)
def test_every_figure_has_a_source_and_is_positive(path):
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    cited = figures(table)
    assert len(cited) >= 9
    for where, entry in cited:
        assert set(entry) == {"value", "source"}, where
        assert entry["value"] > 0 or (where[-1] in MAY_BE_ZERO and entry["value"] == 0), where
        assert math.isfinite(entry["value"]), where
        assert len(entry["source"].split()) >= 3, f"{where}: {entry['source']!r} says too little"
    loose = [key for section in table.values() if isinstance(section, dict) for key in section if key != "kind"]
    assert len(loose) == len(cited), "a figure stands without a source"


@pytest.mark.parametrize("path", CATALOGUE, ids=named)
def test_what_is_read_is_what_is_written_and_is_printed(path):
    chip = hardware(path.stem)
    written = {entry["value"] for _, entry in figures(tomllib.loads(path.read_text(encoding="utf-8")))}
    assert {figure.value for _, figure in chip.figures()} == written
    assert all(figure.source in str(chip) for _, figure in chip.figures())
    for dtype in ("bfloat16", "float32", "float16", "complex64", "int8", "int32", "float64"):
        assert 0 < chip.flops(dtype, Mesh.parse("x=4")) < 1e16
    assert chip.memory_speed(Mesh.parse("x=4")) > 0


@pytest.mark.parametrize("path", CATALOGUE, ids=named)
def test_a_figure_without_its_source_is_refused(path):
    text = path.read_text(encoding="utf-8")
    line = next(line for line in text.splitlines() if line.startswith("bytes_per_s"))
    with pytest.raises(HardwareError, match="bytes_per_s"):
        read(text.replace(line, "bytes_per_s = { value = 1e9 }", 1))
    with pytest.raises(HardwareError, match="bytes_per_s"):
        read(text.replace(line, "", 1))


@pytest.mark.parametrize("path", CATALOGUE, ids=named)
def test_the_memory_of_shipped_hardware_is_faster_than_its_links(path):
    """A slip of a thousand in a figure shows here."""
    chip = hardware(path.stem)
    match chip.links:
        case Torus() | Switch():
            assert 1e9 < chip.links.bytes_per_s.value < chip.memory_bytes_per_s.value < 1e14
            assert 1e9 < chip.memory_bytes.value < 1e12
            assert 1e-8 < chip.links.hop_seconds.value < 1e-4
        case Memory():
            assert chip.links.fresh_bytes_per_s.value <= chip.links.bytes_per_s.value <= chip.memory_bytes_per_s.value


# V: the gathered bytes; W: a link, one way. All of it worked by hand from the figures of the catalogue.

GATHERS = [
    # A ring of 16, both ways: V * 15/16 / 2W.
    ("tpu-v5e", "x=16", "x", GIB, GIB * 15 / 16 / (2 * 4.5e10), 11.185),
    # Half of it is no ring: a line, V * 7/8 / W.
    ("tpu-v5e", "x=8", "x", GIB, GIB * 7 / 8 / 4.5e10, 20.878),
    # Two rings of 16: four links.
    ("tpu-v5e", "x=16, y=16", "xy", GIB, GIB * 255 / 256 / (4 * 4.5e10), 5.942),
    # Two lines of 4: two links.
    ("tpu-v5e", "x=4, y=4", "xy", GIB, GIB * 15 / 16 / (2 * 4.5e10), 11.185),
    # 256 devices are longer than a dimension of 16: the axis takes two dimensions, both rings.
    ("tpu-v5e", "x=256", "x", GIB, GIB * 255 / 256 / (4 * 4.5e10), 5.942),
    # On a v5p a multiple of 4 wraps around.
    ("tpu-v5p", "x=4", "x", GIB, GIB * 3 / 4 / (2 * 9e10), 4.474),
    ("tpu-v5p", "x=2", "x", GIB, GIB * 1 / 2 / 9e10, 5.965),
    ("tpu-v5p", "x=4, y=4, z=4", "xyz", GIB, GIB * 63 / 64 / (6 * 9e10), 1.957),
    # Eight behind one switch: V * 7/8 / egress.
    ("h100", "x=8", "x", GIB, GIB * 7 / 8 / 4.5e11, 2.088),
    # Two nodes: out of a device V * 15/16 / egress, longer than V * 1/2 / network between the nodes.
    ("h100", "x=16", "x", GIB, GIB * 15 / 16 / 4.5e11, 2.237),
    # Sixty-four nodes: now the network is the longer one, V * 63/64 / network.
    ("h100", "x=512", "x", GIB, GIB * 63 / 64 / 4e11, 2.642),
    # One device of each of two nodes: a node's network is shared by its eight groups, V * 1/2 / (network / 8).
    ("h100", "x=2, y=8", "x", GIB, GIB * 1 / 2 / (4e11 / 8), 10.737),
    # The other axis of the same mesh stays within a node.
    ("h100", "x=2, y=8", "y", GIB, GIB * 7 / 8 / 4.5e11, 2.088),
]


@pytest.mark.parametrize(("name", "mesh", "axes", "whole", "seconds", "milliseconds"), GATHERS)
def test_an_all_gather_worked_by_hand(name, mesh, axes, whole, seconds, milliseconds):
    grid = Mesh.parse(mesh)
    n = grid.extent(axes)
    gather = collective_seconds("all-gather", hardware(name), grid, tuple(axes), whole / n, whole)
    assert gather == pytest.approx(seconds, rel=1e-12)
    assert gather == pytest.approx(milliseconds * MS, rel=1e-3)
    scatter = collective_seconds("reduce-scatter", hardware(name), grid, tuple(axes), whole, whole / n)
    assert scatter == pytest.approx(gather, rel=1e-12)
    assert collective_seconds("all-reduce", hardware(name), grid, tuple(axes), whole, whole) == pytest.approx(2 * gather)


@pytest.mark.parametrize(
    ("name", "mesh", "axes", "microseconds"),
    [
        ("tpu-v5e", "x=16", "x", 8),  # half way round a ring
        ("tpu-v5e", "x=8", "x", 7),  # from end to end of a line
        ("tpu-v5e", "x=16, y=16", "xy", 16),
        ("tpu-v5p", "x=4", "x", 2),
        ("h100", "x=8", "x", 3),  # log2 of the devices
        ("h100", "x=16", "x", 4),
    ],
)
def test_few_bytes_take_the_latency_of_the_hops(name, mesh, axes, microseconds):
    grid = Mesh.parse(mesh)
    assert collective_seconds("all-gather", hardware(name), grid, tuple(axes), 1, grid.size) == pytest.approx(
        microseconds * 1e-6
    )


def test_an_all_to_all_on_a_ring_takes_a_quarter_of_the_bytes_of_a_gather():
    chip, mesh = hardware("tpu-v5e"), Mesh.parse("x=16")
    shard = GIB / 16
    moved = collective_seconds("all-to-all", chip, mesh, ("x",), shard, shard)
    assert moved == pytest.approx(GIB / 4 / (2 * 4.5e10), rel=1e-12)
    gather = collective_seconds("all-gather", chip, mesh, ("x",), shard, GIB)
    assert moved / gather == pytest.approx(1 / 4 * 16 / 15)


def test_an_all_to_all_behind_switches():
    chip = hardware("h100")
    shard = GIB / 16
    within = collective_seconds("all-to-all", chip, Mesh.parse("x=8"), ("x",), shard, shard)
    assert within == pytest.approx(shard * 7 / 8 / 4.5e11, rel=1e-12)
    # Over two nodes each of a node's 8 devices sends half of its shard out, through one network.
    across = collective_seconds("all-to-all", chip, Mesh.parse("x=16"), ("x",), shard, shard)
    assert across == pytest.approx(8 * shard / 2 / 4e11, rel=1e-12)


def test_a_permutation_pays_its_latency_and_its_bytes():
    shard = GIB / 16
    ring = collective_seconds("collective-permute", hardware("tpu-v5e"), Mesh.parse("x=16"), ("x",), shard, shard)
    assert ring == pytest.approx(8e-6 + 4 * shard / 4.5e10, rel=1e-12)  # 4 hops on average share the links
    pair = collective_seconds("collective-permute", hardware("tpu-v5p"), Mesh.parse("x=2"), ("x",), shard, shard)
    assert pair == pytest.approx(1e-6 + shard / 9e10, rel=1e-12)
    switch = collective_seconds("collective-permute", hardware("h100"), Mesh.parse("x=8"), ("x",), shard, shard)
    assert switch == pytest.approx(3e-6 + shard / 4.5e11, rel=1e-12)


def test_simulated_devices_copy_through_one_memory():
    chip, mesh, whole = hardware("cpu"), Mesh.parse("x=8"), 2**27
    launch = 8 * 1.5e-5
    gather = collective_seconds("all-gather", chip, mesh, ("x",), whole / 8, whole)
    assert gather == pytest.approx(launch + 8 * whole / 3.9e9)  # all eight write all of it, to memory mapped anew
    scatter = collective_seconds("reduce-scatter", chip, mesh, ("x",), whole, whole / 8)
    assert scatter == pytest.approx(launch + 8 * (whole + whole / 8) / 4e10)  # shards of 16 MiB go to memory used before


def test_the_devices_of_a_chip_share_its_links():
    chip, mesh = hardware("tpu-v7x"), Mesh.parse("x=4")
    assert chip.devices_per_chip == 2
    gather = collective_seconds("all-gather", chip, mesh, ("x",), GIB / 4, GIB)
    assert gather == pytest.approx(GIB * 3 / 4 / (2 * 9e10 / 2))
    assert chip.flops("bfloat16", mesh) == 2.307e15 / 2


def test_axes_beyond_the_dimensions_of_a_torus_share_the_last_one():
    """On a v5e, y and z share a dimension of 16: y steps over the 4 devices of z, and so has a quarter of its links."""
    routes = torus_routes(hardware("tpu-v5e").links, Mesh.parse("x=16, y=4, z=4"))
    assert (routes["x"].bytes_per_s, routes["x"].hops) == (9e10, 8)
    assert (routes["y"].bytes_per_s, routes["y"].hops) == (9e10 / 4, 8)
    assert (routes["z"].bytes_per_s, routes["z"].hops) == (4.5e10, 3)


@pytest.mark.parametrize("name", hardware.names())
@pytest.mark.parametrize("mesh", ["x=1", "x=3", "x=16", "x=4, y=2", "x=4, y=4, z=4, w=2"])
def test_what_is_assumed_of_the_links_is_said(name, mesh):
    said = assumptions(hardware(name), Mesh.parse(mesh))
    assert said.startswith({"Torus": "torus", "Switch": "switch", "Memory": "simulated"}[type(hardware(name).links).__name__])


def test_bytes_on_the_wire():
    """What one device of eight sends, for shards of 800 bytes or arrays of 800 gathered."""
    mesh = Mesh.parse("x=8")
    assert wire_bytes("all-gather", mesh, ("x",), 100, 800) == 700
    assert wire_bytes("reduce-scatter", mesh, ("x",), 800, 100) == 700
    assert wire_bytes("all-reduce", mesh, ("x",), 800, 800) == 1400
    assert wire_bytes("all-to-all", mesh, ("x",), 800, 800) == 700
    assert wire_bytes("collective-permute", mesh, ("x",), 800, 800) == 800


@pytest.mark.parametrize(("chip", "figure"), [("cpu", "rendezvous_seconds"), ("tpu-v5e", "gathers_ahead")])
def test_a_hardware_written_before_a_figure_was_added_is_read(chip, figure):
    path = next(path for path in CATALOGUE if path.stem == chip)
    older = "\n".join(line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith(figure))
    found = read(older)
    part = found.links if chip == "cpu" else found.compiler
    assert getattr(part, figure).value == 0
    assert read(written(found)) == found
