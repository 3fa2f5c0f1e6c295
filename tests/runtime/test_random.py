"""Random arrays: the same in every layout and on any number of devices, made where they live (row C9, beyond)."""

from __future__ import annotations

import functools
import re
from random import Random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import shardwise as sw
from benchmarks.equations import random_layout, random_mesh
from shardwise.errors import ArrayError, DeviceError, LayoutError, MeshError

# Each with its parameters, and the function of JAX that makes the same values on one device.
KINDS = {
    "bits": (sw.random.bits, {}, lambda key, shape: jax.random.bits(key, shape)),
    "bytes": (sw.random.bits, {"dtype": "uint8"}, lambda key, shape: jax.random.bits(key, shape, jnp.uint8)),
    "uniform": (
        sw.random.uniform,
        {"minval": -3, "maxval": 7.5},
        lambda key, shape: jax.random.uniform(key, shape, minval=-3, maxval=7.5),
    ),
    "normal": (sw.random.normal, {}, lambda key, shape: jax.random.normal(key, shape)),
    "bfloat16": (sw.random.normal, {"dtype": jnp.bfloat16}, lambda key, shape: jax.random.normal(key, shape, jnp.bfloat16)),
    "truncated": (
        sw.random.truncated_normal,
        {"lower": -1.0, "upper": 2.0},
        lambda key, shape: jax.random.truncated_normal(key, -1.0, 2.0, shape),
    ),
    "bernoulli": (sw.random.bernoulli, {"p": 0.3}, lambda key, shape: jax.random.bernoulli(key, 0.3, shape)),
    "randint": (
        sw.random.randint,
        {"minval": -5, "maxval": 1000},
        lambda key, shape: jax.random.randint(key, shape, -5, 1000),
    ),
}
ROUNDED = {"normal", "truncated", "bfloat16"}  # through an inverse error function, which compilers round by shape
KEY = jax.random.key(42)
SIZES = {"I": 24, "J": 48}
LAYOUTS = [
    ("x=8", "A[I_x, J]"),
    ("x=8", "A[I, J_x]"),
    ("x=4, y=2", "A[I_y, J_x]"),
    ("x=4, y=2", "A[I, J_{y,x}]"),
    ("x=3", "A[I, J_x]"),
]


@pytest.fixture(autouse=True, scope="module")
def compiled_functions_go_when_these_tests_are_done():
    jax.clear_caches()
    yield
    jax.clear_caches()


@pytest.fixture(autouse=True)
def compiled_as_for_users(request):
    """Equal bits of what compilers round are promised where LLVM optimizes as it does by default."""
    spec = getattr(request.node, "callspec", None)
    compiled_for(spec.params.get("kind", "normal") if spec else "normal")
    yield
    jax.config.update("jax_disable_most_optimizations", True)


def compiled_for(kind: str) -> None:
    jax.config.update("jax_disable_most_optimizations", kind not in ROUNDED)


def made(kind: str, layout: str, mesh, key=KEY, sizes=SIZES, **options):
    function, parameters, _ = KINDS[kind]
    return function(key, layout, sizes=sizes, mesh=mesh, **parameters, **options)


@functools.cache
def alone(kind: str) -> np.ndarray:
    """The same array on one device, as JAX makes it."""
    return np.asarray(KINDS[kind][2](KEY, tuple(SIZES.values())))


def same_bits(one, other) -> bool:
    one, other = np.asarray(one), np.asarray(other)
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("mesh", "layout"), LAYOUTS, ids=lambda text: text.replace(", ", ","))
def test_values_are_those_of_jax_on_one_device_in_every_layout(mesh, layout, kind):
    mesh = sw.make_mesh(mesh)
    array = made(kind, layout, mesh)

    assert array.sharding == jax.NamedSharding(mesh, sw.Layout.parse(layout).spec)
    assert same_bits(array, alone(kind))
    whole = sw.Layout.parse(layout).shard_shape(SIZES, mesh)
    assert {shard.data.shape for shard in array.addressable_shards} == {whole}


@pytest.mark.parametrize("types", [AxisType.Explicit, AxisType.Auto, (AxisType.Auto, AxisType.Explicit)], ids=str)
def test_every_layout_of_a_matrix_has_the_same_bits(types):
    """Also in shapes whose shards have odd widths, in which XLA rounds JAX's own normal values otherwise."""
    mesh, sizes = sw.make_mesh("x=4, y=2", axis_types=types), {"I": 16, "J": 24}
    one = made("normal", "A[I, J]", "x=1", sizes=sizes)
    listed = sw.Layout.all("I, J", mesh, sizes=sizes)
    assert len(listed) == 11
    for layout in listed:
        if types == (AxisType.Auto, AxisType.Explicit) and any(axes == ("x", "y") for _, axes in layout.dims):
            with pytest.raises(LayoutError, match="is Auto, before y, which is Explicit"):
                made("normal", layout, mesh, sizes=sizes)
        else:
            assert same_bits(made("normal", layout, mesh, sizes=sizes), one), layout


@settings(max_examples=15)
@given(st.randoms(use_true_random=False))
def test_random_layouts_of_random_shapes_have_the_bits_of_one_device(random: Random):
    mesh = random_mesh(random)
    layout = random_layout(random, "IJK"[: random.randint(0, 3)], mesh.names)
    sizes = {dim: random.randint(1, 20) for dim in layout.names}
    kind = random.choice(list(KINDS))
    compiled_for(kind)
    array = np.asarray(made(kind, layout, sw.make_mesh(mesh), sizes=sizes, pad=True))

    inside = tuple(slice(0, size) for size in sizes.values())
    assert same_bits(array[inside], made(kind, "A" + str(sw.Layout.parse(", ".join(sizes))), "x=1", sizes=sizes))
    by_jax = np.asarray(KINDS[kind][2](KEY, tuple(sizes.values())))
    if kind in ROUNDED:
        rounding = 2 * float(jnp.finfo(by_jax.dtype).eps)
        np.testing.assert_allclose(array[inside].astype(np.float64), by_jax.astype(np.float64), rtol=rounding, atol=rounding)
    else:
        assert same_bits(array[inside], by_jax)
    outside = np.ones(array.shape, bool)
    outside[inside] = False
    assert not array[outside].any()


@pytest.mark.parametrize("pad", [False, True], ids=["even", "padded"])
@pytest.mark.parametrize("kind", ["normal", "bernoulli", "truncated"])
@pytest.mark.parametrize("types", [AxisType.Explicit, AxisType.Auto], ids=str)
def test_nothing_is_communicated_and_each_device_makes_its_shard_alone(types, kind, pad):
    mesh = sw.make_mesh("x=4, y=2", axis_types=types)
    sizes = {"I": 1021, "J": 511} if pad else {"I": 1024, "J": 512}

    def audit(layout, mesh):
        return sw.audit(lambda key: made(kind, layout, mesh, key=key, sizes=sizes, pad=pad), KEY, mesh=mesh)

    split, alone = audit("A[I_x, J_y]", mesh), audit("A[I, J]", sw.make_mesh("x=1"))
    split.assert_only({})
    assert split.memory.outputs == 256 * 256 * (1 if kind == "bernoulli" else 4)
    assert split.memory.temporaries < 1.05 * alone.memory.temporaries / 8


@pytest.mark.parametrize("types", [AxisType.Explicit, AxisType.Auto], ids=str)
def test_inside_jit(types):
    mesh = sw.make_mesh("x=4, y=2", axis_types=types)
    wanted = alone("normal")

    def scaled(key, mesh=None):
        array = sw.random.normal(key, "A[I_x, J_y]", sizes=SIZES, mesh=mesh)
        if types == AxisType.Explicit:
            assert jax.typeof(array).sharding.spec == P("x", "y")
        return array, 2 * array

    with jax.set_mesh(mesh):
        for function, arguments in ((jax.jit(scaled), (KEY,)), (jax.jit(lambda: scaled(KEY)), ())):
            array, twice = function(*arguments)
            assert same_bits(array, wanted)
            assert same_bits(twice, 2 * wanted)
            assert twice.sharding.spec == P("x", "y")
        sw.audit(jax.jit(scaled), KEY).assert_only({})
    array, twice = jax.jit(functools.partial(scaled, mesh=mesh))(KEY)
    assert same_bits(array, wanted)
    assert twice.sharding.spec == P("x", "y")


def test_the_mesh_in_force_is_meant_and_another_may_be_given():
    with jax.set_mesh(sw.make_mesh("x=4")):
        assert made("bits", "A[I_x, J]", None).sharding.spec == P("x", None)
        assert same_bits(made("bits", "A[I, J_y]", sw.make_mesh("y=8")), alone("bits"))
        assert same_bits(made("bits", "A[I, J_y]", "y=2"), alone("bits"))


@pytest.mark.parametrize(
    "key",
    [
        jax.random.PRNGKey(42),
        np.asarray(jax.random.PRNGKey(42)),
        jax.device_put(KEY, jax.devices()[5]),
        jax.device_put(KEY, jax.NamedSharding(sw.make_mesh("z=2"), P())),
    ],
    ids=["raw", "numpy", "on one device", "on another mesh"],
)
def test_keys_of_every_kind_and_from_everywhere(key):
    assert same_bits(made("normal", "A[I_x, J]", "x=8", key=key), alone("normal"))
    assert same_bits(jax.jit(lambda: made("normal", "A[I_x, J]", sw.make_mesh("x=8"), key=key))(), alone("normal"))


def test_numbers_may_be_traced_and_change_without_compiling_anew():
    mesh, compiled = sw.make_mesh("x=8"), []

    @jax.jit
    def dropped(key, p):
        compiled.append(p)
        return sw.random.bernoulli(key, "A[I_x, J]", p=p, sizes=SIZES, mesh=mesh)

    for p in (0.25, 0.75):
        assert same_bits(dropped(KEY, p), jax.random.bernoulli(KEY, p, tuple(SIZES.values())))
    assert len(compiled) == 1
    elsewhere = jax.device_put(jnp.float32(0.75), jax.devices()[2])
    one = sw.random.bernoulli(KEY, "A[I_x, J]", p=elsewhere, sizes=SIZES, mesh=mesh)
    assert same_bits(one, jax.random.bernoulli(KEY, 0.75, tuple(SIZES.values())))


@pytest.mark.parametrize(
    ("kind", "options", "by_jax"),
    [
        ("normal", {"dtype": "float64"}, lambda key, shape: jax.random.normal(key, shape, "float64")),
        ("bits", {"dtype": "uint64"}, lambda key, shape: jax.random.bits(key, shape, "uint64")),
        ("bernoulli", {"p": 0.3}, lambda key, shape: jax.random.bernoulli(key, 0.3, shape)),
        (
            "randint",
            {"minval": -5, "maxval": 2**40, "dtype": "int64"},
            lambda key, shape: jax.random.randint(key, shape, -5, 2**40, "int64"),
        ),
    ],
)
def test_64_bits_where_they_are_allowed(kind, options, by_jax):
    with jax.enable_x64(True):
        array = getattr(sw.random, kind)(KEY, "A[I_x, J]", sizes={"I": 64, "J": 16}, mesh="x=8", **options)
        assert same_bits(array, by_jax(KEY, (64, 16)))


def test_integers_up_to_the_last_one_of_a_dtype():
    array = sw.random.randint(KEY, "A[I_x]", minval=-128, maxval=128, sizes={"I": 4096}, mesh="x=8", dtype="int8")
    assert same_bits(array, jax.random.randint(KEY, (4096,), -128, 128, "int8"))
    assert (np.asarray(array).min(), np.asarray(array).max()) == (-128, 127)


def test_statistics_are_those_of_the_distribution():
    sizes, mesh = {"I": 512, "J": 512}, sw.make_mesh("x=8")
    normal = np.asarray(made("normal", "A[I_x, J]", mesh, sizes=sizes))
    assert abs(normal.mean()) < 0.01
    assert abs(normal.std() - 1) < 0.01
    truncated = np.asarray(made("truncated", "A[I_x, J]", mesh, sizes=sizes))
    assert truncated.min() > -1
    assert truncated.max() < 2
    kept = np.asarray(made("bernoulli", "A[I_x, J]", mesh, sizes=sizes))
    assert abs(kept.mean() - 0.3) < 0.01


def test_padding_is_zero_where_the_distribution_has_none():
    array = np.asarray(sw.random.truncated_normal(KEY, "A[I_x]", lower=1.0, upper=2.0, sizes={"I": 10}, mesh="x=4", pad=True))
    assert array.shape == (12,)
    assert (array[:10] > 1).all()
    assert array[10:].tolist() == [0, 0]


def drawn(call, **options):
    given = {"layout": "A[I_x, J]", "sizes": SIZES, "mesh": "x=4", "key": KEY} | options
    key, layout = given.pop("key"), given.pop("layout")
    return call(key, layout, **given)


@pytest.mark.parametrize(
    ("call", "options", "error", "message"),
    [
        ("normal", {"key": 0}, ArrayError, "sw.random.normal: 0 is no random key: make one, as jax.random.key(0)"),
        ("normal", {"key": jax.random.split(KEY, 3)}, ArrayError, "key<fry>[3] are several random keys: give one, as keys[0]"),
        ("bits", {"key": jax.random.key(0, impl="rbg")}, ArrayError, "generator rbg, whose values depend on the layout"),
        ("normal", {"sizes": {"I": 8}}, LayoutError, "A[I_x, J]: no size is given for dimension J: sizes={'J': ...}"),
        ("normal", {"sizes": {"I": 8, "J": 0}}, LayoutError, "dimension J has size 0"),
        ("normal", {"sizes": 8}, LayoutError, "8 are no sizes"),
        ("normal", {"sizes": {"I": 6, "J": 2}}, LayoutError, "dimension I has size 6, which mesh axis x=4 does not divide"),
        ("normal", {"layout": "A[I_y, J]"}, LayoutError, "the mesh has no axis 'y': it has x"),
        ("normal", {"layout": "A[I, J]{U_x}"}, LayoutError, "cannot be placed: partial sums come from a computation"),
        ("normal", {"layout": "A[I_x J]"}, sw.ShardwiseError, "^"),
        ("normal", {"mesh": None}, MeshError, "no mesh is given, none is in force"),
        ("normal", {"mesh": jax.sharding.AbstractMesh((4,), ("x",))}, DeviceError, "mesh x=4 has no devices to make values on"),
        ("normal", {"dtype": "int32"}, ArrayError, "'int32' is not one that it has: give one of float16, bfloat16, float32"),
        ("normal", {"dtype": "complex64"}, ArrayError, "normal: dtype 'complex64' is not one that it has"),
        ("normal", {"dtype": None}, ArrayError, "dtype None is not one that it has"),
        ("normal", {"dtype": "float33"}, ArrayError, "dtype 'float33' is not one that it has"),
        ("normal", {"dtype": "float64"}, ArrayError, "float64 needs 64 bits: allow them, jax.config.update('jax_enable_x64'"),
        ("uniform", {"minval": 1.0, "maxval": 1.0}, ArrayError, "minval=1.0 is not below maxval=1.0"),
        ("uniform", {"minval": -np.inf}, ArrayError, "minval=-inf: give a finite number"),
        ("uniform", {"minval": np.nan}, ArrayError, "minval=nan: give a finite number"),
        ("uniform", {"minval": [1, 2]}, ArrayError, "minval=[1, 2]: give one number"),
        ("uniform", {"minval": np.zeros(2)}, ArrayError, "minval=float64[2]: give one number"),
        ("truncated_normal", {"lower": 2, "upper": -2}, ArrayError, "lower=2.0 is not below upper=-2.0"),
        ("bernoulli", {"p": 1.5}, ArrayError, "p=1.5: a probability is from 0 to 1"),
        ("bernoulli", {"p": True}, ArrayError, "p=True: give one number"),
        ("randint", {"minval": 0, "maxval": 2.5}, ArrayError, "maxval=2.5: give a whole number that int32 can hold"),
        ("randint", {"minval": 0, "maxval": 2**40}, ArrayError, "maxval=1099511627776: give a whole number"),
        ("randint", {"minval": 5, "maxval": 5}, ArrayError, "minval=5 is not below maxval=5"),
    ],
)  # fmt: skip
def test_what_cannot_be_drawn_is_refused_with_the_way_out(call, options, error, message):
    with pytest.raises(error, match=re.escape(message)):
        drawn(getattr(sw.random, call), **options)


def test_inside_shard_map_the_way_out_is_a_key_for_each_device():
    mesh = sw.make_mesh("x=4")
    local = lambda key: drawn(sw.random.normal, key=key, mesh=None)  # noqa: E731
    why = "sw.random.normal: inside jax.shard_map this is one device's shard over x: make the array outside and pass it in, or"
    with pytest.raises(MeshError, match=re.escape(why)) as caught:
        jax.shard_map(local, mesh=mesh, in_specs=P(), out_specs=P())(KEY)
    assert "jax.random.normal(sw.spmd.fold_in_axis(key, 'x'), ...)" in str(caught.value)


def test_inside_jit_another_mesh_than_the_one_in_force_is_refused():
    with (
        jax.set_mesh(sw.make_mesh("x=8")),
        pytest.raises(MeshError, match="inside jit the mesh in force is x=8, and mesh=x=4 is given"),
    ):
        jax.jit(lambda key: drawn(sw.random.normal, key=key))(KEY)


def test_a_generator_that_is_set_to_depend_on_the_layout_is_refused():
    with jax.threefry_partitionable(False), pytest.raises(ArrayError, match="jax_threefry_partitionable is off"):
        drawn(sw.random.normal)
