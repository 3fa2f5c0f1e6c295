"""Pictures of what lives in JAX: they agree with JAX's own account of every shard, touch no data, and know a traced array."""

from __future__ import annotations

import random
import re
import xml.etree.ElementTree as ET

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

import shardwise as sw
from shardwise.errors import ArrayError, LayoutError, ShardwiseError
from shardwise.pictures.live import Local
from shardwise.pictures.parameters import Parameters

SPACE = "{http://www.w3.org/2000/svg}"
AXES = ("x", "y", "z", "w")
SHAPES = [(8,), (2, 4), (4, 2), (2, 2, 2), (1, 4, 2), (3, 2), (2, 1, 2, 2), (5,), (7,), (2, 3)]


def drawn_layout(seed: int) -> tuple[NamedSharding, tuple[int, ...]]:
    """A sharding and a shape of rank 0 to 6 on a mesh of one to four axes, whose devices stand in any order."""
    rng = random.Random(seed)
    sizes = rng.choice(SHAPES)
    count = int(np.prod(sizes))
    devices = rng.sample(jax.devices(), count)
    mesh = jax.sharding.Mesh(np.array(devices).reshape(sizes), AXES[: len(sizes)])
    rank = seed % 7
    dims: list[list[str]] = [[] for _ in range(rank)]
    for axis in rng.sample(mesh.axis_names, len(sizes)):
        if rank and rng.random() < 0.75:
            rng.choice(dims).append(axis)
    parts = [int(np.prod([mesh.shape[axis] for axis in axes])) for axes in dims]
    shape = tuple(part * rng.randint(1, 3) for part in parts)
    return NamedSharding(mesh, PartitionSpec(*(tuple(axes) or None for axes in dims))), shape


def drawn_shards(svg: str) -> dict[int, tuple[slice, ...]]:
    """Every device with its slices, out of a picture."""
    found = {}
    for block in ET.fromstring(svg).iter(f"{SPACE}g"):
        if "data-devices" not in block.attrib:
            continue
        told = block.attrib["data-slices"]
        where = tuple(slice(*map(int, part.split(":"))) for part in told.split(",")) if told != "-" else ()
        for device in re.findall(r"\d+", block.attrib["data-devices"]):
            assert int(device) not in found, "a device holds one block"
            found[int(device)] = where
        seen = "".join(text.text or "" for text in block.findall(f"{SPACE}text")[:1])
        ids = re.findall(r"\d+", block.attrib["data-devices"])
        assert re.findall(r"\d+", seen) == (ids if len(ids) <= 4 else [ids[0], ids[1], ids[-1]]), "what is seen is what is told"
    return found


@pytest.mark.parametrize("seed", range(300))
def test_pictures_agree_with_jax_about_every_shard(seed):
    sharding, shape = drawn_layout(seed)
    placement = sw.show(sharding, sizes=shape)

    truth = {
        device.id: tuple(slice(*part.indices(size)[:2]) for part, size in zip(index, shape, strict=True))
        for device, index in sharding.devices_indices_map(shape).items()
    }
    assert drawn_shards(placement._repr_svg_()) == truth
    assert dict(placement.shards()) == truth
    check_edges(placement._repr_svg_(), truth)


def check_edges(svg: str, truth: dict[int, tuple[slice, ...]]) -> None:
    """The slices that stand at the edges beside a block are among its own."""
    tree = ET.fromstring(svg)
    board = next(group for group in tree.iter(f"{SPACE}g") if "data-array" in group.attrib)
    edges = [
        (float(t.attrib["x"]), float(t.attrib["y"]), t.attrib.get("text-anchor"), t.text) for t in board.findall(f"{SPACE}text")
    ]
    slices = [(x, y, anchor, text) for x, y, anchor, text in edges if re.fullmatch(r"\d+:\d+", text or "")]
    for block in board.findall(f"{SPACE}g"):
        rect = block.findall(f"{SPACE}rect")[-1]
        x, y, wide, high = (float(rect.attrib[key]) for key in ("x", "y", "width", "height"))
        own = block.attrib["data-slices"].split(",")
        beside = [text for at, up, anchor, text in slices if anchor == "end" and at < x and y <= up <= y + high]
        above = [text for at, up, anchor, text in slices if anchor == "middle" and x <= at <= x + wide and up < y]
        assert set(beside) | set(above) <= set(own)
        if own != ["-"]:
            assert above


def test_five_placements_from_live_arrays(capsys):
    mesh = sw.make_mesh("x=2, y=2")
    wanted = {
        "I_x, J_y": [[[0], [1]], [[2], [3]]], "I_y, J_x": [[[0], [2]], [[1], [3]]], "I_x, J": [[[0, 1]], [[2, 3]]],
        "I, J_y": [[[0, 2], [1, 3]]], "I, J": [[[0, 1, 2, 3]]],
    }  # fmt: skip
    for layout, grid in wanted.items():
        assert sw.show(sw.put(np.zeros((4, 4)), f"A[{layout}]", mesh)).grid() == grid


def test_no_data_is_touched():
    array = sw.put(np.zeros((8, 4)), "A[I_x, J]", sw.make_mesh("x=4"))
    array.delete()

    assert sw.show(array).devices == (0, 1, 2, 3)
    assert sw.show({"w": array}).most_device_bytes == 2 * 4 * 4


def test_4096_devices_that_are_not_attached():
    mesh = AbstractMesh((64, 64), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)
    shown = sw.show(jax.ShapeDtypeStruct((8192, 8192), jnp.bfloat16, sharding=NamedSharding(mesh, PartitionSpec("x", "y"))))

    assert len(drawn_shards_many(shown._repr_svg_())) == 4096


def drawn_shards_many(svg: str) -> set[str]:
    return set(re.findall(r'data-devices="(\d+)"', svg))


def test_partial_sums_on_devices_are_shown_as_such():
    mesh = sw.make_mesh("x=2, y=2")
    a, b = np.ones((4, 4), np.float32), np.ones((4, 4), np.float32)
    shown = sw.show(sw.einsum("A[I_x, J_y] · B[J_y, K] -> C[I_x, K]{U_y}", a, b, mesh=mesh))

    assert "partial sums over y" in str(shown)
    assert "|  0+1  |" in str(shown) or "| 0+1 |" in str(shown)
    assert 'data-devices="0+1"' in shown._repr_svg_()


@pytest.mark.parametrize(
    ("sizes", "pad"), [({"I": 6, "J": 4}, False), ((6, 4), False), ({"I": 5, "J": 4}, True), (None, False)], ids=str
)
def test_a_layout_with_sizes(sizes, pad, capsys):
    shown = sw.show("A[I_x, J_y]", "x=2, y=2", sizes=sizes, pad=pad)

    assert shown.padded_shape == ((6, 4) if sizes else (2, 2))
    assert ("no sizes are given" in capsys.readouterr().out) == (sizes is None)


def test_a_layout_on_a_mesh_of_devices_and_on_the_one_in_force():
    mesh = sw.make_mesh("x=2", devices=jax.devices()[4:6])

    assert sw.show("A[I_x]", mesh).devices == (4, 5)
    with jax.set_mesh(mesh):
        assert sw.show(sw.Layout.parse("I_x"), sizes=(4,)).devices == (4, 5)


REFUSED = [
    (lambda: sw.show("A[I_x, J]", "x=2", sizes=(4,)), LayoutError, "sizes=(4,): A[I_x, J] has 2 dimensions"),
    (lambda: sw.show("A[I_x]", "x=2", sizes="4"), LayoutError, "'4' are no sizes"),
    (lambda: sw.show("A[I_x]", "x=2", sizes=(5,)), LayoutError, "pad=True pads it to 6"),
    (lambda: sw.show("A[I_x]", "x=2", pad="yes"), ShardwiseError, "pad='yes'"),
    (lambda: sw.show(NamedSharding(sw.make_mesh("x=2"), PartitionSpec("x"))), LayoutError, "lays out arrays of any shape"),
    (lambda: sw.show(jax.ShapeDtypeStruct((4,), "float32")), ArrayError, "has no sharding"),
    (lambda: sw.show({"a": 1, "b": "text"}), ArrayError, "lives on no device"),
    (lambda: sw.show([]), ArrayError, "lives on no device"),
    (lambda: sw.show(jnp.zeros(4), sizes=(4,)), LayoutError, "sizes and pad belong to a layout or a sharding"),
]


@pytest.mark.parametrize(("act", "error", "reason"), REFUSED, ids=[reason for _, _, reason in REFUSED])
def test_what_cannot_be_shown_is_refused_with_a_way_out(act, error, reason):
    with pytest.raises(error) as caught:
        act()
    assert reason in str(caught.value)


def test_a_tree_of_parameters_is_a_table_with_bytes(capsys):
    mesh = sw.make_mesh("x=4, y=2")
    tree = {
        "embed": sw.put(np.zeros((16, 8), np.float32), "E[V_x, D]", mesh),
        "layers": [{"w": sw.put(np.zeros((8, 8), np.float16), "W[D, F_y]", mesh), "b": jnp.zeros(8, jnp.float32)}],
        "host": np.zeros(4), "step": 3, "<script>": jax.ShapeDtypeStruct((2, 2), jnp.int8),
    }  # fmt: skip
    table = sw.show(tree)
    printed = capsys.readouterr().out

    assert isinstance(table, Parameters)
    by_path = {leaf.path: leaf for leaf in table.leaves}
    assert (by_path["embed"].layout, by_path["embed"].shard_shape) == ("[I_x, J]", (4, 8))
    assert by_path["embed"].device_bytes == 4 * 8 * 4
    assert by_path["embed"].held_bytes == 8 * 4 * 8 * 4
    assert by_path["layers.0.w"].device_bytes == 8 * 4 * 2
    assert by_path["layers.0.b"].on == "device 0"
    assert by_path["host"].on == ""
    assert table.others == 1
    assert table.most_device_bytes == 128 + 64 + 32
    assert table.array_bytes == 512 + 128 + 32 + 32 + 4
    assert "left out: 1 leaf that is no array" in printed
    assert "<script>" in printed
    ET.fromstring(table._repr_svg_())


def test_a_tree_of_thousands_of_leaves_is_cut_short_and_says_so(capsys):
    table = sw.show({f"p{n:04}": jax.ShapeDtypeStruct((4,), "float32") for n in range(3000)})

    assert len(table.leaves) == 3000
    assert "not shown: 2800 more arrays of 44.8 kB" in capsys.readouterr().out


def test_inside_shard_map_the_local_shape_and_position_are_told_once(capsys):
    mesh = sw.make_mesh("x=2, y=4")
    found = []

    def local(a):
        found.append(sw.show(a))
        return a * 2

    mapped = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=PartitionSpec("x", None), out_specs=PartitionSpec("x", None)))
    array = sw.put(np.zeros((8, 8), np.float32), "A[I_x, J]", mesh)
    for _ in range(3):
        mapped(array).block_until_ready()

    said = capsys.readouterr().out
    assert len(found) == 1
    assert isinstance(found[0], Local)
    assert said.splitlines() == [
        "inside shard_map over x=2, y=4: each device holds float32[4,8], which differs along x, and is the same along y",
        "  position (x, y), jax.lax.axis_index(('x', 'y')), in mesh order: (0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1), "
        "(1, 2), (1, 3)",
    ]


def test_inside_jit_the_layout_is_what_the_type_tells():
    explicit = sw.put(np.zeros((8, 8)), "A[I_x, J]", sw.make_mesh("x=4"))
    auto = jax.device_put(explicit, NamedSharding(sw.make_mesh("x=4", axis_types=AxisType.Auto), PartitionSpec("x")))
    shown = []
    for array in (explicit, auto, jnp.zeros(3)):
        jax.jit(lambda a: shown.append(sw.show(a)))(array)

    assert str(shown[0].layout) == "[I_x, J]"
    assert "over Auto axes (x) the compiler chooses where it lives" in str(shown[1])
    assert "float32[3]" in str(shown[2])


def test_of_axes_of_both_kinds_the_explicit_ones_are_drawn():
    mesh = sw.make_mesh("x=2, y=2", axis_types=(AxisType.Explicit, AxisType.Auto))
    shown = []
    jax.jit(lambda a: shown.append(sw.show(a)))(jax.device_put(np.zeros((4, 4)), NamedSharding(mesh, PartitionSpec("x"))))

    assert str(shown[0].layout) == "[I_x, J]"
    assert "over y, which is Auto, the compiler chooses" in str(shown[0])


def test_axes_with_hostile_names_are_text(capsys):
    name = "<script>alert(1)</script>"
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), (name,))
    shown = sw.show(NamedSharding(mesh, PartitionSpec(name)), sizes=(4,))

    assert name in capsys.readouterr().out
    assert "<script" not in shown._repr_svg_()
    assert name in "".join(ET.fromstring(shown._repr_svg_()).itertext())
