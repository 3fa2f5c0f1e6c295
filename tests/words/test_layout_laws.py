"""Laws of layouts: they are read as they print, and the shards of a layout tile the array."""

from __future__ import annotations

import itertools
import math
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.equations import random_layout, random_mesh
from shardwise.errors import LayoutError, ShardwiseError
from shardwise.layout import Layout, padded_size, shard_slices
from shardwise.mesh import Mesh

randoms = st.randoms(use_true_random=False)


def drawn(random: Random, partial: bool = True) -> tuple[Layout, Mesh]:
    mesh = random_mesh(random, axes=4, devices=48)
    return random_layout(random, "IJKL"[: random.randint(0, 4)], mesh.names, mesh.names if partial else ()), mesh


def sizes_of(random: Random, layout: Layout, mesh: Mesh) -> dict[str, int]:
    return {dim: mesh.extent(axes) * random.randint(1, 3) for dim, axes in layout.dims}


@given(randoms)
def test_a_layout_is_read_as_it_prints(random: Random):
    layout, mesh = drawn(random)
    assert Layout.parse(str(layout)) == layout
    assert Layout.parse(f"A{layout}") == layout
    if not layout.unreduced:
        assert Layout.parse(str(layout)[1:-1]) == layout
    assert layout.on(mesh).on(mesh) == layout.on(mesh)


@given(randoms)
def test_shards_tile_the_array(random: Random):
    """Every element is held once by each group of devices that differ only along axes that do not split the array."""
    layout, mesh = drawn(random)
    sizes = sizes_of(random, layout, mesh)
    shape = tuple(sizes[dim] for dim in layout.names)
    held = np.zeros(shape, int)
    for coordinate in mesh.coordinates():
        where = shard_slices(layout, shape, coordinate, mesh)
        assert held[where].shape == layout.shard_shape(sizes, mesh)
        held[where] += 1
    assert (held == mesh.size // mesh.extent(layout.axes)).all()
    assert math.prod(layout.shard_shape(sizes, mesh)) * mesh.extent(layout.axes) == held.size


@given(randoms)
def test_the_major_axis_has_the_widest_stride(random: Random):
    """Going one step along an axis moves the shard by the widths of all minor axes together."""
    layout, mesh = drawn(random)
    sizes = sizes_of(random, layout, mesh)
    shape = tuple(sizes[dim] for dim in layout.names)
    origin = dict.fromkeys(mesh.names, 0)
    for at, (dim, axes) in enumerate(layout.dims):
        for place, axis in enumerate(axes):
            if mesh.axis_size(axis) > 1:
                start = shard_slices(layout, shape, {**origin, axis: 1}, mesh)[at].start
                assert start == layout.shard_shape(sizes, mesh)[at] * mesh.extent(axes[place + 1 :]), dim


@given(randoms)
def test_axes_that_do_not_divide_are_refused_and_the_padded_size_fits(random: Random):
    layout, mesh = drawn(random)
    for dim, axes in layout.dims:
        parts = mesh.extent(axes)
        sizes = {**sizes_of(random, layout, mesh), dim: random.randint(1, 20)}
        padded = padded_size(sizes[dim], parts)
        assert sizes[dim] <= padded < sizes[dim] + parts
        assert padded % parts == 0
        if padded == sizes[dim]:
            layout.shard_shape(sizes, mesh)
        else:
            with pytest.raises(LayoutError, match=f"dimension {dim} has size {sizes[dim]}.*pads it to {padded}"):
                layout.shard_shape(sizes, mesh)


@given(randoms)
def test_an_axis_of_size_1_changes_nothing(random: Random):
    layout, mesh = drawn(random)
    canonical, sizes = layout.on(mesh), sizes_of(random, layout, mesh)
    shape = tuple(sizes[dim] for dim in layout.names)
    assert all(mesh.axis_size(axis) > 1 for axis in (*canonical.axes, *canonical.unreduced))
    assert canonical.shard_shape(sizes, mesh) == layout.shard_shape(sizes, mesh)
    for coordinate in mesh.coordinates():
        assert shard_slices(canonical, shape, coordinate, mesh) == shard_slices(layout, shape, coordinate, mesh)


def every_layout(dims: list[str], mesh: Mesh) -> set[Layout]:
    """All ways in which each axis splits one dimension or none, and in which the axes of a dimension may be ordered: by brute
    force, over every order of every axis and every place for each."""
    axes = [axis for axis, size in mesh.axes if size > 1]
    found = set()
    for order in itertools.permutations(axes):
        for places in itertools.product([None, *dims], repeat=len(axes)):
            given = list(zip(order, places, strict=True))
            found.add(Layout(tuple((dim, tuple(axis for axis, place in given if place == dim)) for dim in dims)))
    return found


@pytest.mark.parametrize(
    ("dims", "mesh", "count"),
    [
        ("", "x=4, y=2", 1),
        ("I", "x=4, y=2", 5),
        ("I, J", "x=4", 3),
        ("I, J", "x=4, y=1", 3),
        ("I, J", "x=4, y=2", 11),
        ("I, J", "x=2, y=2, z=2", 49),
        ("I, J, K", "x=4, y=2", 19),
        ("I, J, K, L", "x=2, y=2, z=2", 193),
        ("I, J", "", 1),
    ],
)
def test_all_layouts_are_listed_once(dims, mesh, count):
    listed = Layout.all(dims, mesh)
    names = [dim.strip() for dim in dims.split(",") if dim]

    assert len(listed) == len(set(listed)) == count
    assert set(listed) == every_layout(names, Mesh.parse(mesh))
    assert Layout.all(names, mesh) == listed


def test_all_layouts_of_a_matrix_in_the_order_that_a_reader_expects():
    assert [str(layout) for layout in Layout.all("I, J", "x=4, y=2")] == [
        "[I, J]", "[I_x, J]", "[I_y, J]", "[I, J_x]", "[I, J_y]",
        "[I_{x,y}, J]", "[I_{y,x}, J]", "[I_x, J_y]", "[I_y, J_x]", "[I, J_{x,y}]", "[I, J_{y,x}]",
    ]  # fmt: skip


@given(randoms)
def test_all_layouts_of_given_sizes_are_those_that_divide_them(random: Random):
    mesh = random_mesh(random, axes=3, devices=24)
    sizes = {dim: random.randint(1, 12) for dim in "IJK"[: random.randint(1, 3)]}
    listed = Layout.all(list(sizes), mesh, sizes=sizes)

    for layout in Layout.all(list(sizes), mesh):
        if layout in listed:
            layout.shard_shape(sizes, mesh)
        else:
            with pytest.raises(LayoutError, match="not divide"):
                layout.shard_shape(sizes, mesh)


@pytest.mark.parametrize(
    ("dims", "sizes", "message"),
    [
        ("I_x, J", None, r"\[I_x, J\] is one layout: to list all of them give the dimensions alone, 'I, J'"),
        ("I, I", None, "dimension I stands twice in one array"),
        ("I, J", {"I": 4}, "no size is given for dimension J"),
        ("I, J", {"I": 4, "J": 0}, "dimension J has size 0"),
        ("I, J", 4, "4 are no sizes"),
    ],
)
def test_what_is_not_the_dimensions_of_an_array_has_no_layouts(dims, sizes, message):
    with pytest.raises(ShardwiseError, match=message):
        Layout.all(dims, "x=4, y=2", sizes=sizes)
