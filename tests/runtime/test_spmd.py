"""Inside `shard_map`: positions, keys and statistics across shards (rows C6, C7 and C9), against NumPy in float64."""

from __future__ import annotations

import functools
from random import Random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import shardwise as sw
from benchmarks.equations import random_layout, random_mesh
from shardwise.errors import ArrayError, MeshError
from shardwise.runtime import statistics

pytestmark = pytest.mark.usefixtures("caches_cleared_afterwards")
REDUCED = {"mean": sw.spmd.mean, "var": sw.spmd.var, "logsumexp": sw.spmd.logsumexp}
MAPPED = {"normalize": sw.spmd.normalize, "softmax": sw.spmd.softmax}
ALL = REDUCED | MAPPED
UNSHARDED = {
    "mean": jnp.mean,
    "var": jnp.var,
    "logsumexp": jax.nn.logsumexp,
    "normalize": lambda x, axis: (x - x.mean(axis, keepdims=True)) / jnp.sqrt(x.var(axis, keepdims=True) + 1e-5),
    "softmax": jax.nn.softmax,
}


def by_numpy(x: np.ndarray, axis: int | tuple[int, ...] | None) -> dict[str, np.ndarray]:
    """What the functions mean, in float64; reduced dimensions are kept."""
    x = np.asarray(x, np.float64)
    mean, var, most = (f(x, axis=axis, keepdims=True) for f in (np.mean, np.var, np.max))
    powers = np.exp(x - most)
    total = powers.sum(axis=axis, keepdims=True)
    return {
        "mean": mean,
        "var": var,
        "normalize": (x - mean) / np.sqrt(var + 1e-5),
        "softmax": powers / total,
        "logsumexp": np.log(total) + most,
    }


def shard_map(local, **options):
    """As users mostly have it: jitted. Without, JAX compiles every operation by itself."""
    return jax.jit(jax.shard_map(local, **options))


def rows(name: str, **options):
    """A function over the last dimension of `[B_i, D_j]` on i=4, j=2, and the mesh."""
    mesh = sw.make_mesh("i=4, j=2")
    outs = P("i") if name in REDUCED else P("i", "j")
    local = functools.partial(ALL[name], axis=-1, over="j")
    return jax.jit(jax.shard_map(local, mesh=mesh, in_specs=P("i", "j"), out_specs=outs, **options)), mesh


def batch(shape=(192, 64), seed=7, offset=3.0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32) * 2 + np.float32(offset)


# C6. The position of a device.


@pytest.mark.parametrize(
    ("axes", "positions"),
    [
        ("i", [0, 0, 1, 1, 2, 2, 3, 3]),
        ("j", [0, 1, 0, 1, 0, 1, 0, 1]),
        (("i", "j"), [0, 1, 2, 3, 4, 5, 6, 7]),
        (["j", "i"], [0, 4, 1, 5, 2, 6, 3, 7]),
    ],
    ids=str,
)
def test_C6_axis_position(axes, positions):
    local = lambda: (sw.spmd.axis_position(axes) + 0 * sw.spmd.axis_position(("i", "j")))[None]  # noqa: E731
    position = jax.shard_map(local, mesh=sw.make_mesh("i=4, j=2"), in_specs=(), out_specs=P(("i", "j")))

    assert position().tolist() == positions


def test_a_position_along_an_axis_of_vmap():
    assert jax.vmap(lambda x: x + sw.spmd.axis_position("b"), axis_name="b")(jnp.zeros(3)).tolist() == [0, 1, 2]


# C7. Statistics over a sharded dimension.


def test_C7_every_row_is_normalised():
    function, mesh = rows("normalize")
    y = function(sw.put(batch(), "X[B_i, D_j]", mesh))

    assert y.sharding.spec == P("i", "j")
    assert {shard.data.shape for shard in y.addressable_shards} == {(48, 32)}
    whole = np.asarray(y, np.float64)
    np.testing.assert_allclose(whole.mean(axis=1), 0, atol=1e-6)
    np.testing.assert_allclose(whole.std(axis=1), 1, atol=1e-5)


def test_C7_a_mean_of_shards_element_by_element_is_not_the_mean_of_the_rows():
    x = batch()
    (function, mesh), placed = rows("mean"), sw.put(x, "X[B_i, D_j]", rows("mean")[1])
    by_element = jax.shard_map(lambda x: lax.pmean(x, "j"), mesh=mesh, in_specs=P("i", "j"), out_specs=P("i"))(placed)
    true = np.mean(x, axis=1, dtype=np.float64)

    assert by_element.shape == (192, 32)
    assert np.abs(np.asarray(by_element) - true[:, None]).max() > 1
    assert function(placed).shape == (192,)
    np.testing.assert_allclose(function(placed), true, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(rows("var")[0](placed), np.var(x, axis=1, dtype=np.float64), rtol=1e-5)


def drawn(random: Random):
    """A mesh of at most 8 devices, a layout, an array, and dimensions to reduce with the mesh axes that split them."""
    mesh = random_mesh(random)
    layout = random_layout(random, "IJK"[: random.randint(1, 3)], mesh.names)
    shape = tuple(mesh.extent(axes) * random.choice([1, 2, 3, 5]) for _, axes in layout.dims)
    dtype = random.choice([np.float32, np.float32, jnp.bfloat16])
    values = np.random.default_rng(random.randrange(2**32)).standard_normal(shape)
    x = (values * random.choice([0.1, 1, 10]) + random.choice([0, 0, -5, 300])).astype(dtype)
    dims = tuple(sorted(random.sample(range(len(shape)), random.randint(1, len(shape)))))
    return mesh, layout, x, dims, tuple(axis for dim in dims for axis in layout.dims[dim][1])


@settings(max_examples=20)
@given(st.randoms(use_true_random=False))
def test_statistics_equal_those_of_the_whole_array(random: Random):
    grid, layout, x, dims, over = drawn(random)
    mesh = sw.make_mesh(grid)
    layout = layout.on(grid)
    reduced = sw.Layout(tuple((dim, () if at in dims else axes) for at, (dim, axes) in enumerate(layout.dims)))

    def local(x):
        done = {name: function(x, axis=dims, over=over, keepdims=True) for name, function in REDUCED.items()}
        return done | {name: function(x, axis=dims, over=over) for name, function in MAPPED.items()}

    outs = {name: (reduced if name in REDUCED else layout).spec for name in ALL}
    found = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=layout.spec, out_specs=outs))(sw.put(x, layout, mesh))

    eps, largest = float(jnp.finfo(x.dtype).eps), np.abs(x.astype(np.float64)).max()
    for name, wanted in by_numpy(x, dims).items():
        assert found[name].dtype == x.dtype
        error = np.abs(np.asarray(found[name], np.float64) - wanted)
        # Rounded to the dtype of the result, after sums in float32 of values as large as these.
        allowed = (eps + 2e-6) * np.abs(wanted) + (1e-6 * max(1, largest) if name in ("mean", "logsumexp") else 2e-6)
        assert (error <= allowed).all(), (name, error.max())


@pytest.mark.parametrize("devices", ["few", "many"])
@pytest.mark.parametrize("offset", [0.0, 1e4, 1e6, 1e7])
def test_a_large_offset_does_not_cancel(offset, devices, monkeypatch):
    if devices == "many":
        monkeypatch.setattr(statistics, "GATHERED_BYTES", 0)
    mesh = sw.make_mesh("x=8")
    x = batch((4, 8 * 512), offset=offset)
    function = shard_map(
        lambda x: (sw.spmd.var(x, axis=1, over="x"), sw.spmd.normalize(x, over="x")),
        mesh=mesh, in_specs=P(None, "x"), out_specs=(P(None), P(None, "x")),
    )  # fmt: skip
    variance, normalised = jax.jit(function)(sw.put(x, "A[I, J_x]", mesh))
    wanted = np.var(x, axis=1, dtype=np.float64)

    np.testing.assert_allclose(variance, wanted, rtol=1e-5)
    np.testing.assert_allclose(normalised, by_numpy(x, 1)["normalize"], atol=1e-5)
    if offset >= 1e4:  # what the formula of the textbooks makes of it
        naive = np.mean(x**2, axis=1) - np.mean(x, axis=1) ** 2
        assert not np.allclose(naive, wanted, rtol=1e-2)


def test_bfloat16_is_summed_in_float32():
    """In bfloat16 256 + 1 is 256: a sum of 4096 ones would stop there."""
    mesh = sw.make_mesh("x=8")
    x = sw.put(np.ones(4096, jnp.bfloat16), "A[I_x]", mesh)
    function = shard_map(
        lambda x: (sw.spmd.mean(x, over="x"), sw.spmd.logsumexp(x, over="x"), sw.spmd.softmax(x, over="x")),
        mesh=mesh, in_specs=P("x"), out_specs=(P(), P(), P("x")),
    )  # fmt: skip
    mean, total, parts = function(x)

    assert {mean.dtype, total.dtype, parts.dtype} == {jnp.dtype(jnp.bfloat16)}
    assert float(mean) == 1
    assert float(total) == float(jnp.bfloat16(1 + np.log(4096)))
    assert set(np.asarray(parts, np.float64)) == {1 / 4096}


def test_float64_stays_float64_where_it_is_allowed():
    with jax.enable_x64(True):
        mesh = sw.make_mesh("x=8")
        x = np.random.default_rng(0).standard_normal(64) + 1e9
        function = shard_map(lambda x: sw.spmd.var(x, over="x"), mesh=mesh, in_specs=P("x"), out_specs=P())
        np.testing.assert_allclose(function(sw.put(x, "A[I_x]", mesh)), x.var(), rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.bool_])
def test_integers_are_taken_as_float32(dtype):
    mesh = sw.make_mesh("x=4")
    x = (np.arange(8) % 2 if dtype == np.bool_ else np.arange(8) * 31).astype(dtype)
    function = shard_map(
        lambda x: [REDUCED[name](x, over="x") for name in ("mean", "var")], mesh=mesh, in_specs=P("x"), out_specs=P()
    )
    for found, wanted in zip(function(sw.put(x, "A[I_x]", mesh)), (np.mean, np.var), strict=True):
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, wanted(x.astype(np.float64)), rtol=1e-6)


def test_rows_with_infinities_are_those_of_jax():
    inf = np.inf
    x = np.float32([
        [-inf, -inf, -inf, -inf, 1, 2, 3, 4],  # a whole shard of -inf, as a causal mask makes them
        [0, -inf, -inf, 5, -inf, 2, -inf, -inf],
        [-inf] * 8,
        [1, inf, 2, 3, 4, 5, 6, 7],
        [1e30, -1e30, 0, 0, 0, 0, 0, 0],
        [3.4e38, 3.4e38, 0, 0, 0, 0, 0, 1],
    ])  # fmt: skip
    mesh = sw.make_mesh("x=2")
    function = shard_map(
        lambda x: (sw.spmd.softmax(x, over="x"), sw.spmd.logsumexp(x, axis=1, over="x")),
        mesh=mesh, in_specs=P(None, "x"), out_specs=(P(None, "x"), P(None)),
    )  # fmt: skip
    parts, total = function(sw.put(x, "A[I, J_x]", mesh))

    np.testing.assert_allclose(parts, jax.nn.softmax(x), rtol=1e-6)
    np.testing.assert_allclose(total, jax.nn.logsumexp(x, axis=1), rtol=1e-6)
    assert not np.isnan(np.asarray(parts)[[0, 1, 4, 5]]).any()
    assert np.asarray(total)[2:4].tolist() == [-inf, inf]

    masked = sw.put(x[:2], "A[I, J_x]", mesh)
    gradient = jax.jit(jax.grad(lambda x: (function(x)[0] ** 2).sum() + function(x)[1].sum()))(masked)
    wanted = jax.grad(lambda x: (jax.nn.softmax(x) ** 2).sum() + jax.nn.logsumexp(x, axis=1).sum())(x[:2])
    np.testing.assert_allclose(gradient, wanted, atol=1e-6)


def test_without_a_mesh_axis_they_are_plain_inside_and_outside_of_shard_map():
    x = batch((6, 8))
    mesh = sw.make_mesh("x=2")
    for name, function in ALL.items():
        plain = function(x, axis=-1, over=())
        np.testing.assert_allclose(plain, UNSHARDED[name](x, axis=-1), rtol=2e-5, atol=1e-5)
        outs = P("x")
        inside = shard_map(lambda x, f=function: f(x, axis=-1, over=()), mesh=mesh, in_specs=P("x"), out_specs=outs)
        np.testing.assert_allclose(inside(sw.put(x, "A[I_x, J]", mesh)), plain, rtol=1e-6, atol=1e-6)


def test_a_scalar_of_every_device_is_averaged():
    mesh = sw.make_mesh("i=4, j=2")
    mean = jax.shard_map(lambda x: sw.spmd.mean(x.sum(), over=("i", "j")), mesh=mesh, in_specs=P("i", "j"), out_specs=P())

    assert float(mean(sw.put(np.ones((8, 8), np.float32), "A[I_i, J_j]", mesh))) == 8


def test_mesh_axes_of_size_1_change_nothing():
    mesh = sw.make_mesh("x=4, y=1")
    x = batch((8, 8))
    for spec, layout in ((P("x", "y"), "A[I_x, J_y]"), (P("x"), "A[I_x, J]")):
        function = shard_map(
            lambda x: [REDUCED[name](x, over=("x", "y")) for name in REDUCED], mesh=mesh, in_specs=spec, out_specs=P()
        )
        placed = jax.device_put(x, jax.NamedSharding(mesh, spec))
        for found, wanted in zip(function(placed), [by_numpy(x, None)[name] for name in REDUCED], strict=True):
            np.testing.assert_allclose(found, wanted.item(), rtol=1e-5, err_msg=layout)


# Gradients and what they cost.


@pytest.mark.parametrize("checked", [True, False], ids=["check_vma", "unchecked"])
@pytest.mark.parametrize("gathered", [True, False], ids=["gathered", "summed"])
def test_gradients_are_those_of_the_whole_array(checked, gathered, monkeypatch):
    if not gathered:
        monkeypatch.setattr(statistics, "GATHERED_BYTES", 0)
    mesh = sw.make_mesh("i=4, j=2")
    x = batch((4, 8), offset=1.0)
    outs = {name: P("i") if name in REDUCED else P("i", "j") for name in ALL}
    local = lambda x: {name: function(x, axis=-1, over="j") for name, function in ALL.items()}  # noqa: E731
    sharded = shard_map(local, mesh=mesh, in_specs=P("i", "j"), out_specs=outs, check_vma=checked)
    weights = {name: batch((4,) if name in REDUCED else (4, 8), seed=seed) for seed, name in enumerate(ALL)}

    def loss(found):
        return sum((weights[name] * found[name] ** 3).sum() for name in ALL)

    def whole(x):
        return loss({name: function(x, axis=-1) for name, function in UNSHARDED.items()})

    def derivatives(function):
        direction = batch((4, 8), seed=99, offset=0.0)
        return jax.jit(lambda x: (jax.grad(function)(x), jax.grad(lambda x: (jax.grad(function)(x) * direction).sum())(x)))

    once, twice = derivatives(lambda x: loss(sharded(x)))(sw.put(x, "X[B_i, D_j]", mesh))
    wanted, wanted_twice = derivatives(whole)(x)
    np.testing.assert_allclose(once, wanted, rtol=2e-4, atol=2e-4)
    np.testing.assert_allclose(twice, wanted_twice, rtol=1e-3, atol=1e-3 * np.abs(wanted_twice).max())


def test_gradients_taken_inside_the_map_are_right_too():
    """As in data parallelism by hand: each device takes the gradient of the mean over all of them."""
    mesh = sw.make_mesh("i=4, j=2")
    x = batch((4, 8))

    def local(x):
        return jax.grad(lambda x: sw.spmd.var(x, over=("i", "j")) + sw.spmd.logsumexp(x, over=("i", "j")))(x)

    found = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=P("i", "j"), out_specs=P("i", "j")))
    wanted = jax.grad(lambda x: jnp.var(x) + jax.nn.logsumexp(x))(x)
    np.testing.assert_allclose(found(sw.put(x, "X[B_i, D_j]", mesh)), wanted, rtol=1e-5, atol=1e-6)


def test_rows_of_equal_values_stay_finite():
    function, mesh = rows("normalize")
    x = sw.put(np.full((4, 8), 1e4, np.float32), "X[B_i, D_j]", mesh)

    assert (np.asarray(function(x)) == 0).all()
    assert np.isfinite(np.asarray(jax.jit(jax.grad(lambda x: (function(x) ** 2 + function(x)).sum()))(x))).all()


COLLECTIVES = {
    "mean": ({"all-reduce": {"j": 1}}, {}),
    "var": ({"all-gather": {"j": 1}}, {"all-gather": {"j": 1}}),
    "normalize": ({"all-gather": {"j": 1}}, {"all-gather": {"j": 1}, "all-reduce": {"j": 1}}),
    "softmax": ({"all-reduce": {"j": 2}}, {"all-reduce": {"j": 3}}),
    "logsumexp": ({"all-reduce": {"j": 2}}, {"all-reduce": {"j": 2}}),
}


@pytest.mark.parametrize("name", ALL)
def test_collectives_are_as_few_as_they_say(name):
    """Of the function, and of its gradient (which need not compute a value that it does not depend on)."""
    function, mesh = rows(name)
    x = sw.put(batch((8, 8)), "X[B_i, D_j]", mesh)
    weight = batch((8,) if name in REDUCED else (8, 8), seed=1)
    forward, backward = COLLECTIVES[name]

    sw.audit(function, x).assert_only(forward)
    sw.audit(jax.jit(jax.grad(lambda x: (weight * function(x)).sum())), x).assert_only(backward)


def test_many_moments_are_summed_rather_than_gathered():
    mesh = sw.make_mesh("x=8")
    function = shard_map(lambda x: sw.spmd.var(x, axis=1, over="x"), mesh=mesh, in_specs=P(None, "x"), out_specs=P(None))
    few = 2**20 // (3 * 8 * 4)  # three float32 of each of 8 devices
    for count, collectives in ((few, {"all-gather": {"x": 1}}), (few + 1, {"all-reduce": {"x": 2}})):
        x = batch((count, 8))
        placed = sw.put(x, "A[I, J_x]", mesh)
        sw.audit(jax.jit(function), placed).assert_only(collectives)
        np.testing.assert_allclose(function(placed), np.var(x, axis=1, dtype=np.float64), rtol=2e-5)


# C9. Random keys.


@pytest.mark.parametrize("make", [jax.random.key, jax.random.PRNGKey], ids=["typed", "raw"])
@pytest.mark.parametrize("checked", [True, False], ids=["check_vma", "unchecked"])
def test_C9_keys_differ_along_an_axis_and_agree_along_the_other(make, checked):
    mesh = sw.make_mesh("i=4, j=2")
    local = lambda key: jax.random.bits(sw.spmd.fold_in_axis(key, "i"), (1, 3)) + jnp.uint32(0 * lax.axis_index("j"))  # noqa: E731
    draw = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=P(), out_specs=P(("i", "j")), check_vma=checked))
    drawn = np.asarray(draw(make(9))).reshape(4, 2, 3)

    assert (drawn[:, 0] == drawn[:, 1]).all()
    assert len({tuple(row) for row in drawn[:, 0].tolist()}) == 4
    for place in range(4):
        assert drawn[place, 0].tolist() == jax.random.bits(jax.random.fold_in(make(9), place), (3,)).tolist()


@pytest.mark.parametrize("checked", [True, False], ids=["check_vma", "unchecked"])
def test_C9_keys_over_two_axes_differ_on_every_device_and_over_none_on_no_device(checked):
    mesh = sw.make_mesh("i=4, j=2")

    def drawn(axes):
        def local(key):
            return jax.random.bits(sw.spmd.fold_in_axis(key, axes), (1,)) + jnp.uint32(0 * lax.axis_index(("i", "j")))

        draw = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=P(), out_specs=P(("i", "j")), check_vma=checked))
        return draw(jax.random.key(9)).tolist()

    both = drawn(("i", "j"))
    assert len(set(both)) == 8
    assert drawn(()) == [both[0]] * 8
    assert sorted(drawn(("j", "i"))) == sorted(both)
    assert drawn(("j", "i")) != both


# Errors.


def mapped(local, *, spec=None, **options):
    spec = P("i", "j") if spec is None else spec
    mesh = sw.make_mesh("i=4, j=2", axis_types=options.pop("axis_types", None))
    return jax.shard_map(local, mesh=mesh, in_specs=spec, out_specs=spec, **options)(
        jax.device_put(np.ones((8, 8), np.float32), jax.NamedSharding(mesh, spec))
    )


@pytest.mark.parametrize("name", ALL)
def test_outside_of_shard_map_a_mesh_axis_is_refused(name):
    why = rf"sw.spmd.{name}: there is no mesh axis 'x' here, outside jax.shard_map: call it in the function that"
    with pytest.raises(MeshError, match=why):
        ALL[name](np.ones(4), over="x")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: sw.spmd.mean(x, over="k"), MeshError, r"mean: the mesh has no axis 'k' here: it has i, j\b"),
        (lambda x: sw.spmd.mean(x, over="I"), MeshError, r"no axis 'I' here: it has i, j \(did you mean 'i'\?\)"),
        (lambda x: sw.spmd.mean(x, over=("i", "i")), MeshError, "mesh axis i is named twice"),
        (lambda x: sw.spmd.mean(x, over=3), MeshError, "3 names no mesh axis: give one as 'x'"),
        (lambda x: sw.spmd.mean(x, over=None), MeshError, "None names no mesh axis"),
        (lambda x: sw.spmd.var(x, axis=2, over="j"), ArrayError, "var: axis 2 is out of range: the shard has dimensions 0"),
        (lambda x: sw.spmd.softmax(x[0, 0], over="j"), ArrayError, "axis -1 is out of range: the shard has no dimensions"),
        (lambda x: sw.spmd.var(x, axis=(0, -2), over="j"), ArrayError, r"axis=\(0, -2\) names a dimension twice"),
        (lambda x: sw.spmd.var(x, axis="j", over="j"), ArrayError, "axis='j': give dimensions of the shard by number"),
        (lambda x: sw.spmd.var(x, axis=1.0, over="j"), ArrayError, "axis=1.0: give dimensions of the shard by number"),
        (lambda x: sw.spmd.mean(x * 1j, over="j"), ArrayError, "complex64: give real numbers, as array.real"),
        (lambda x: sw.spmd.mean(x[:0], over="j"), ArrayError, r"shape \(0, 4\): there is nothing to reduce in dimension 0"),
        (lambda x: sw.spmd.mean("x", over="j"), ArrayError, "str is no array"),
        (lambda x: sw.spmd.normalize(x, over="j", eps=-1), ArrayError, "eps=-1: give a number that is not negative"),
        (lambda x: sw.spmd.mean(np.ones(4), over="j"), ArrayError, "over='j', but the array is equal on all devices along j"),
        (lambda x: sw.spmd.softmax(lax.psum(x, "j"), over="j"), ArrayError, r"jax.lax.pcast\(x, 'j', to='varying'\)"),
        (lambda x: sw.spmd.fold_in_axis(jax.random.key(0), "k"), MeshError, "fold_in_axis: the mesh has no axis 'k' here"),
        (lambda x: sw.spmd.fold_in_axis(0, "i"), ArrayError, r"0 is no random key: make one, as jax.random.key\(0\)"),
        (lambda x: sw.spmd.fold_in_axis(jax.random.split(jax.random.key(0), 4), "i"), ArrayError, "several random keys"),
        (lambda x: sw.spmd.axis_position("k"), MeshError, "axis_position: the mesh has no axis 'k' here: it has i, j"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_the_way_out(call, error, message):
    with pytest.raises(error, match=message):
        mapped(call)


def test_positions_and_keys_have_no_axis_outside_of_shard_map():
    for call in (lambda: sw.spmd.axis_position("x"), lambda: sw.spmd.fold_in_axis(jax.random.key(0), "x")):
        with pytest.raises(MeshError, match=r"there is no mesh axis 'x' here, outside jax.shard_map"):
            call()


def test_an_axis_that_is_not_mapped_over_is_refused():
    with pytest.raises(MeshError, match=r"mesh axis j is Auto here: map over it too, as in .*axis_names=\{'i', 'j'\}"):
        mapped(lambda x: sw.spmd.mean(x, over="j"), spec=P("i"), axis_names={"i"}, axis_types=AxisType.Auto)


def test_where_some_axes_are_not_mapped_over_the_others_work():
    found = mapped(lambda x: sw.spmd.softmax(x, axis=0, over="i"), spec=P("i"), axis_names={"i"}, axis_types=AxisType.Auto)
    assert (np.asarray(found) == 1 / 8).all()
