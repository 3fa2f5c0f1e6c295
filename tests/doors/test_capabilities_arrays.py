"""What the sources show of arrays, element-wise work and collectives, with their numbers: rows A to C of the capabilities."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh

import shardwise as sw
from shardwise.chips.links import collective_seconds
from shardwise.program import shift
from shardwise.runtime.lower import lower
from shardwise.steps import AllGather, AllReduce, AllToAll, Einsum, ReduceScatter

FOUR_ROWS = np.float32([[3, 1, 4, 1], [5, 9, 2, 6], [5, 3, 5, 8], [9, 7, 1, 2]])
SUMS = [22, 20, 12, 17]


def arange(*shape: int, start: int = 0) -> np.ndarray:
    return np.arange(start, start + np.prod(shape), dtype=np.float32).reshape(shape)


def held(array: jax.Array) -> list:
    """What each device holds, in device order."""
    return [shard.data.tolist() for shard in sorted(array.addressable_shards, key=lambda shard: shard.device.id)]


def laid_out(array: jax.Array, layout: str) -> bool:
    wanted = sw.Layout.parse(layout)
    return sw.Layout.from_spec(array.sharding.spec, wanted.names) == wanted


# A. Devices, meshes, placement.


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("x=8", {"x": 8}),
        ("x=2, y=2", {"x": 2, "y": 2}),
        ("i=4, j=2", {"i": 4, "j": 2}),
        ("x=3", {"x": 3}),
        ("x=2, y=2, z=2", {"x": 2, "y": 2, "z": 2}),
    ],
)
def test_A2_meshes(text, shape):
    mesh = sw.make_mesh(text)

    assert dict(mesh.shape) == shape
    assert mesh.devices.shape == tuple(shape.values())
    assert [device.id for device in mesh.devices.flat] == list(range(mesh.size))


@pytest.mark.parametrize("mesh", ["x=16, y=16", {"x": 16, "y": 16}, AbstractMesh((16, 16), ("x", "y"))], ids=str)
def test_A2_meshes_of_devices_that_are_not_attached(mesh):
    plan = sw.plan("A[I_x, J] · B[J, K_y] -> C[I_x, K_y]", sizes={"I": 4096, "J": 4096, "K": 4096}, mesh=mesh)

    assert plan.best.program.mesh.size == 256


def test_A3_an_array_lives_on_device_0_unless_told_otherwise():
    array = jnp.arange(8.0)

    assert array.devices() == {jax.devices()[0]}
    assert sw.show(array).devices == (0,)


def test_A3_an_array_lives_on_the_device_it_is_given(capsys):
    moved = jax.device_put(jnp.arange(8.0), jax.devices()[1])
    placed = sw.put(arange(8), "A[I]", sw.make_mesh("x=1", devices=[jax.devices()[1]]))

    for array in (moved, placed):
        assert array.devices() == {jax.devices()[1]}
        assert sw.show(array).devices == (1,)
        assert capsys.readouterr().out.splitlines()[-1].split() == ["1", "0:8", "8"]


def test_A4_place_256_MiB_and_list_its_shards():
    array = sw.put(np.zeros((8192, 8192), np.float32), "A[I_x, J_y]", sw.make_mesh("x=2, y=2"))

    assert array.nbytes == 256 * 2**20
    low, high = slice(0, 4096), slice(4096, 8192)
    parts = [(0, (low, low)), (1, (low, high)), (2, (high, low)), (3, (high, high))]
    assert [(shard.device.id, shard.index) for shard in array.addressable_shards] == parts
    assert [shard.data.shape for shard in array.addressable_shards] == [(4096, 4096)] * 4

    shown = sw.show(array)
    assert shown.shards() == parts
    assert "3       4096:8192, 4096:8192  4096 x 4096" in str(shown)


# B. Automatic, constrained, explicit, manual.


def test_B1_element_wise_work_keeps_the_layout():
    x = sw.put(arange(3, 8), "A[I_x, J]", sw.make_mesh("x=3"))
    y = 2 * jnp.sin(x) + 1

    assert laid_out(y, "I_x, J")
    np.testing.assert_allclose(y, 2 * np.sin(arange(3, 8)) + 1, rtol=1e-6, atol=1e-6)

    x = sw.put(arange(8), "A[I_i]", sw.make_mesh("i=8"))
    y = jnp.tanh(x)

    assert laid_out(y, "I_i")
    np.testing.assert_allclose(y, np.tanh(arange(8)), rtol=1e-6)


def test_B2_a_sum_over_the_dimension_that_is_whole_stays_sharded():
    x = sw.put(arange(3, 8), "A[I_x, J]", sw.make_mesh("x=3"))

    for total in (sw.einsum("A[I_x, J] -> S[I_x]", x), jnp.sum(x, axis=1)):
        assert laid_out(total, "I_x")
        assert held(total) == [[28], [92], [156]]


def test_B2_a_sum_over_the_dimension_that_is_sharded_is_replicated():
    x = sw.put(arange(3, 8), "A[I_x, J]", sw.make_mesh("x=3"))

    for total in (sw.einsum("A[I_x, J] -> S[J]", x), jnp.sum(x, axis=0)):
        assert laid_out(total, "J")
        assert held(total) == [[24, 27, 30, 33, 36, 39, 42, 45]] * 3


def test_B3_the_layout_of_a_result_is_constrained():
    x = sw.put(arange(4, 8), "A[I_x, J]", sw.make_mesh("x=4"))
    total = sw.einsum("A[I_x, J] -> S[J_x]", x)

    assert laid_out(total, "J_x")
    assert held(total) == [[48, 52], [56, 60], [64, 68], [72, 76]]


def test_B3_a_layout_that_does_not_divide_is_told_and_padded_on_request():
    x = sw.put(arange(3, 8), "A[I_x, J]", sw.make_mesh("x=3"))

    with pytest.raises(sw.ShardwiseError, match=r"J has size 8, which mesh axis x=3 does not divide: pad=True pads it to 9"):
        sw.einsum("A[I_x, J] -> S[J_x]", x)

    total = sw.einsum("A[I_x, J] -> S[J_x]", x, pad=True)
    assert laid_out(total, "J_x")
    assert held(total) == [[24, 27, 30], [33, 36, 39], [42, 45, 0]]


def test_B4_the_local_function_sees_its_shard_only():
    mesh, layout, seen = sw.make_mesh("x=3"), sw.Layout.parse("I_x"), set()

    def local(x):
        seen.add(x.shape)
        return 2 * jnp.sin(x) + 1

    x = sw.put(arange(24), "A[I_x]", mesh)
    y = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=layout.spec, out_specs=layout.spec))(x)

    assert held(x) == [list(range(8)), list(range(8, 16)), list(range(16, 24))]
    assert seen == {(8,)}
    assert laid_out(y, "I_x")
    whole = np.asarray(y)
    np.testing.assert_allclose(whole[:4], [1, 2.682942, 2.818595, 1.28224], rtol=1e-6)
    np.testing.assert_allclose(whole[-2:], [0.98229736, -0.69244087], rtol=1e-6)


def test_B5_a_sum_across_devices():
    mesh, split, scalar = sw.make_mesh("x=3"), sw.Layout.parse("I_x"), sw.Layout.parse("")
    x = sw.put(arange(24), "A[I_x]", mesh)

    by_hand = jax.shard_map(lambda x: jax.lax.psum(jnp.sum(x), "x"), mesh=mesh, in_specs=split.spec, out_specs=scalar.spec)
    for total in (sw.einsum("A[I_x] -> S[]", x), by_hand(x)):
        assert total.sharding.is_fully_replicated
        assert held(total) == [276] * 3


def test_B6_a_layer():
    mesh = sw.make_mesh("i=4, j=2")
    random = np.random.default_rng(0)
    host = [random.standard_normal(shape, np.float32) for shape in ((192, 64), (64, 128), (128,))]
    layouts = [sw.Layout.parse(layout) for layout in ("B_i, D", "D, F_j", "F_j")]
    x, w, b = (sw.put(array, layout, mesh) for array, layout in zip(host, layouts, strict=True))
    assert [array.addressable_shards[0].data.shape for array in (x, w, b)] == [(48, 64), (64, 64), (64,)]

    def planned(x, w, b):
        return sw.einsum("X[B_i, D] · W[D, F_j] -> Y[B_i, F_j]", x, w) + b

    shapes = []

    def local(x, w, b):
        shapes.append((x.shape, w.shape, b.shape))
        return x @ w + b

    specs = tuple(layout.spec for layout in layouts)
    by_hand = jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=sw.Layout.parse("B_i, F_j").spec)
    for layer in (planned, jax.jit(planned), by_hand):
        y = layer(x, w, b)
        assert laid_out(y, "B_i, F_j")
        assert y.addressable_shards[0].data.shape == (48, 64)
        assert sw.check(layer, lambda x, w, b: x @ w + b, x, w, b, gradients=True)
    assert set(shapes) == {((48, 64), (64, 64), (64,))}


def outer_products_in_a_loop(x):
    return jnp.stack([row @ row.T for row in x])


@pytest.mark.parametrize(
    "vectorised",
    [
        jax.vmap(lambda row: row @ row.T),
        lambda x: sw.einsum("X[P_x, I, L] · Y[P_x, K, L] -> Z[P_x, I, K]", x, x),
        lambda x: sw.einsum("pil,pkl->pik", x, x),
    ],
    ids=["vmap", "notation", "short"],
)
def test_B9_vectorised_equals_looped(vectorised):
    x = sw.put(arange(4, 3, 1), "X[P_x, I, L]", sw.make_mesh("x=4"))
    outcome = sw.check(vectorised, outer_products_in_a_loop, x, gradients=True)

    assert outcome, str(outcome)
    assert [leaf.name for leaf in outcome.leaves] == ["output", "gradient[0]"]
    assert laid_out(vectorised(x), "P_x, I, K")
    assert np.asarray(vectorised(x))[3].tolist() == [[81, 90, 99], [90, 100, 110], [99, 110, 121]]


def test_B9_pytrees_are_compared_leaf_by_leaf():
    given = {"x": sw.put(arange(4, 3, 1), "X[P_x, I, L]", sw.make_mesh("x=4")), "scale": jnp.float32(2)}

    def vectorised(given):
        return {"outer": jax.vmap(lambda row: row @ row.T)(given["x"]), "scaled": given["scale"] * given["x"]}

    def looped(given):
        return {"outer": outer_products_in_a_loop(given["x"]), "scaled": given["x"] * 2}

    outcome = sw.check(vectorised, looped, given)
    assert outcome, str(outcome)
    assert [leaf.name for leaf in outcome.leaves] == ["output['outer']", "output['scaled']"]

    outcome = sw.check(vectorised, lambda given: looped(given) | {"scaled": given["x"]}, given)
    assert [leaf.ok for leaf in outcome.leaves] == [True, False]
    assert "FAIL output['scaled']" in str(outcome)


def test_B9_replicas_that_differ_are_found():
    mesh, whole = sw.make_mesh("x=4"), sw.Layout.parse("I").spec
    differ = jax.shard_map(
        lambda x: x + sw.spmd.axis_position("x"), mesh=mesh, in_specs=whole, out_specs=whole, check_vma=False
    )
    outcome = sw.check(differ, lambda x: x, sw.put(arange(3), "A[I]", mesh))

    assert not outcome
    assert "replicas differ" in str(outcome)


# C. Collectives, each with a before and after per device.

SUMMED = Einsum(("A",), "S", ("I",))


@pytest.mark.parametrize("hardware", ["cpu", "tpu-v5e", "h100"])
@pytest.mark.parametrize(
    ("equation", "steps"),
    [
        ("A[D_x, I] -> A[D, I]", (AllGather("A", "D", ("x",)),)),
        ("S[I]{U_x} -> S[I]", (AllReduce("S", ("x",)),)),
        ("S[I]{U_x} -> S[I_x]", (ReduceScatter("S", "I", ("x",)),)),
        ("A[D_x, I] -> A[D, I_x]", (AllToAll("A", "D", "I", ("x",)),)),
    ],
    ids=["all-gather", "all-reduce", "reduce-scatter", "all-to-all"],
)
def test_C1_to_C4_each_is_one_collective(equation, steps, hardware):
    size = 512 if hardware.startswith("tpu") else 4  # a few kilobytes are gathered and cut sooner, as TPU compilers do it
    sizes = dict.fromkeys(sw.parse(equation).dims, size)
    plan = sw.plan(equation, sizes=sizes, mesh="x=4", hardware=hardware, dtype="float32")

    assert plan.best.program.steps == steps


def test_C1_all_gather():
    before = sw.put(np.float32([3, 9, 5, 2]), "A[I_x]", sw.make_mesh("x=4"))
    assert held(before) == [[3], [9], [5], [2]]

    after = sw.einsum("A[I_x] -> A[I]", before)
    assert held(after) == [[3, 9, 5, 2]] * 4
    assert np.concatenate(held(after)).tolist() == [3, 9, 5, 2, 3, 9, 5, 2, 3, 9, 5, 2, 3, 9, 5, 2]
    assert held(sw.reshard(before, "A[I_x] -> A[I]")) == held(after)


def test_C1_all_gather_as_one_array():
    mesh = sw.make_mesh("x=4")
    layout = sw.Layout.parse("I_x")
    gather = jax.shard_map(
        lambda x: jax.lax.all_gather(x, "x", tiled=True), mesh=mesh, in_specs=layout.spec, out_specs=layout.spec
    )

    after = gather(sw.put(np.float32([3, 9, 5, 2]), layout, mesh))
    assert after.tolist() == [3, 9, 5, 2, 3, 9, 5, 2, 3, 9, 5, 2, 3, 9, 5, 2]


def test_C2_all_reduce():
    before = sw.put(FOUR_ROWS, "A[D_x, I]", sw.make_mesh("x=4"))
    assert held(before) == [[[3, 1, 4, 1]], [[5, 9, 2, 6]], [[5, 3, 5, 8]], [[9, 7, 1, 2]]]

    after = sw.einsum("A[D_x, I] -> S[I]", before)
    assert held(after) == [[22, 20, 12, 17]] * 4
    plan = sw.plan("A[D_x, I] -> S[I]", sizes={"D": 4, "I": 4}, mesh="x=4", dtype="float32")
    assert plan.best.program.steps == (SUMMED, AllReduce("S", ("x",)))


def test_C3_reduce_scatter():
    before = sw.put(FOUR_ROWS, "A[D_x, I]", sw.make_mesh("x=4"))

    after = sw.einsum("A[D_x, I] -> S[I_x]", before)
    assert held(after) == [[22], [20], [12], [17]]


def test_C3_reduce_scatter_of_partial_sums():
    before = sw.einsum("A[D_x, I] -> S[I]{U_x}", FOUR_ROWS, mesh="x=4")
    assert held(before) == [[3, 1, 4, 1], [5, 9, 2, 6], [5, 3, 5, 8], [9, 7, 1, 2]]

    assert held(sw.reshard(before, "S[I]{U_x} -> S[I_x]")) == [[22], [20], [12], [17]]
    assert held(sw.reshard(before, "S[I]{U_x} -> S[I]")) == [[22, 20, 12, 17]] * 4


def test_C4_all_to_all():
    before = sw.put(FOUR_ROWS, "A[D_x, I]", sw.make_mesh("x=4"))

    after = sw.reshard(before, "A[D_x, I] -> A[D, I_x]")
    assert [np.ravel(shard).tolist() for shard in held(after)] == [[3, 5, 5, 9], [1, 9, 3, 7], [4, 2, 5, 1], [1, 6, 8, 2]]


def test_C5_permute():
    mesh, layout = sw.make_mesh("x=4"), sw.Layout.parse("I_x")
    grid = sw.Mesh.parse(mesh)
    program = sw.Program(grid, (("A", layout),), (shift("A", layout, "x", grid),), "A")

    after = lower(program, mesh)(sw.put(arange(4), layout, mesh))
    assert held(after) == [[3], [0], [1], [2]]


@pytest.mark.parametrize(
    ("axes", "positions"),
    [
        ("i", [0, 0, 1, 1, 2, 2, 3, 3]),
        ("j", [0, 1, 0, 1, 0, 1, 0, 1]),
        (("i", "j"), [0, 1, 2, 3, 4, 5, 6, 7]),
        (("j", "i"), [0, 4, 1, 5, 2, 6, 3, 7]),
    ],
    ids=str,
)
def test_C6_axis_position(axes, positions):
    each = sw.Layout.parse("N_{i,j}")
    position = jax.shard_map(
        lambda: sw.spmd.axis_position(axes)[None], mesh=sw.make_mesh("i=4, j=2"), in_specs=(), out_specs=each.spec
    )

    assert position().tolist() == positions


@pytest.mark.parametrize("mesh", ["i=4", "i=4, j=2"])
def test_C8_weight_gather(mesh):
    random = np.random.default_rng(8)
    x, w = random.standard_normal((192, 64), np.float32), random.standard_normal((64, 128), np.float32)
    equation = "X[B_i, D] · W[D_i, F] -> Y[B_i, F]"
    plan = sw.plan(equation, sizes={"B": 192, "D": 64, "F": 128}, mesh=mesh, dtype="float32")
    assert plan.best.program.steps == (AllGather("W", "D", ("i",)), Einsum(("X", "W"), "Y", ("B", "F")))

    y = sw.einsum(equation, x, w, mesh=mesh)
    assert laid_out(y, "B_i, F")
    np.testing.assert_array_equal(y, jnp.asarray(x) @ jnp.asarray(w))


CLUSTERS = [name for name in sw.hardware.names() if name != "cpu"]


@pytest.mark.parametrize("name", CLUSTERS)
@pytest.mark.parametrize(("mesh", "axes"), [("x=4", "x"), ("x=16", "x"), ("x=8, y=4", "x"), ("x=8, y=4", "xy"), ("x=3", "x")])
def test_C10_an_all_reduce_costs_a_reduce_scatter_and_an_all_gather(name, mesh, axes):
    hardware, grid = sw.hardware(name), sw.Mesh.parse(mesh)
    axes = tuple(axes)
    for whole in (96, 96 * 2**10, 96 * 2**20):
        part = whole / grid.extent(axes)
        reduce = collective_seconds("all-reduce", hardware, grid, axes, whole, whole)
        scatter = collective_seconds("reduce-scatter", hardware, grid, axes, whole, part)
        gather = collective_seconds("all-gather", hardware, grid, axes, part, whole)
        assert reduce == pytest.approx(scatter + gather, rel=1e-12)
        assert scatter == pytest.approx(gather, rel=1e-12)


def test_C10_an_all_reduce_is_a_reduce_scatter_and_an_all_gather():
    mesh = sw.make_mesh("x=4")
    a = sw.put(FOUR_ROWS, "A[D_x, I]", mesh)
    one, two = (
        sw.Program(sw.Mesh.parse(mesh), (("A", sw.Layout.parse("D_x, I")),), (SUMMED, *steps), "S")
        for steps in ([AllReduce("S", ("x",))], [ReduceScatter("S", "I", ("x",)), AllGather("S", "I", ("x",))])
    )

    assert one.result == two.result
    assert held(lower(one, mesh)(a)) == held(lower(two, mesh)(a)) == [SUMS] * 4
