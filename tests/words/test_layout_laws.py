"""Laws of layouts: they are read as they print, and the shards of a layout tile the array."""

from __future__ import annotations

import math
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.equations import random_layout, random_mesh
from shardwise.errors import LayoutError
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
