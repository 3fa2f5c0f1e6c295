"""Running: equal to `jnp.einsum` of the whole arrays, on every kind of mesh and under every transformation."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

import shardwise as sw
from shardwise.planning.ranking import Candidate
from shardwise.runtime import execute
from shardwise.steps import AllToAll, CollectivePermute, kind

GATHERED = "A[I_x, J] · B[J, K] -> C[I, K]"
CONTRACTED = "A[I, J_x] · B[J_x, K] -> C[I, K]"
SCATTERED = "A[I, J_x] · B[J_x, K] -> C[I_x, K]"
WEIGHTS = "X[B_x, D] · W[D_x, F] -> Y[B_x, F]"
EQUATIONS = [GATHERED, CONTRACTED, SCATTERED]
KINDS = {
    "explicit": AxisType.Explicit,
    "auto": AxisType.Auto,
    "x explicit": (AxisType.Explicit, AxisType.Auto),
    "y explicit": (AxisType.Auto, AxisType.Explicit),
}


def drawn(equation: str, sizes: dict[str, int], dtype: str = "float32", seed: int = 0) -> list[np.ndarray]:
    """Small whole numbers, of which every dtype here sums the products exactly (int8 and uint8 modulo 256)."""
    random = np.random.default_rng(seed)
    shapes = [[sizes[dim] for dim in operand.dims] for operand in sw.parse(equation).operands]
    whole = [random.integers(-8, 8, shape) for shape in shapes]
    if jnp.issubdtype(dtype, jnp.complexfloating):
        whole = [array + 1j * random.integers(-8, 8, array.shape) for array in whole]
    return [array.astype(jnp.dtype(dtype)) for array in whole]


def placed(equation: str, arrays: list[np.ndarray], mesh: jax.sharding.Mesh) -> list[jax.Array]:
    return [sw.put(array, operand.layout, mesh) for operand, array in zip(sw.parse(equation).operands, arrays, strict=True)]


def whole(equation: str, **options) -> Callable[..., jax.Array]:
    """The equation as `jnp.einsum`."""
    read = sw.parse(equation)
    letter = dict(zip(read.dims, "abcdefghij", strict=False))
    terms = ",".join("".join(letter[dim] for dim in operand.dims) for operand in read.operands)
    return functools.partial(jnp.einsum, f"{terms}->{''.join(letter[dim] for dim in read.result.dims)}", **options)


def laid_out(array: jax.Array, layout: sw.Layout) -> bool:
    return sw.Layout.from_spec(array.sharding.spec, layout.names) == layout


# Dtypes and arithmetic.


@pytest.mark.parametrize("equation", EQUATIONS)
@pytest.mark.parametrize(
    "dtype", ["float32", "bfloat16", "float16", "float64", "complex64", "complex128", "int32", "int8", "uint8"]
)
def test_dtypes(dtype, equation):
    with jax.enable_x64(dtype in ("float64", "complex128")):
        arrays = drawn(equation, {"I": 8, "J": 8, "K": 4}, dtype)
        got = sw.einsum(equation, *placed(equation, arrays, sw.make_mesh("x=4")))
        wanted = whole(equation)(*map(jnp.asarray, arrays))

        assert got.dtype == wanted.dtype == jnp.dtype(dtype)
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64", "complex64"])
def test_dtypes_within_rounding(dtype):
    with jax.enable_x64(dtype == "float64"):
        random = np.random.default_rng(0)
        arrays = [random.standard_normal(shape).astype(jnp.dtype(dtype)) for shape in ((16, 64), (64, 8))]
        outcome = sw.check(lambda a, b: sw.einsum(CONTRACTED, a, b, mesh="x=4"), whole(CONTRACTED), *arrays)

        assert outcome, str(outcome)


def test_dtypes_that_differ_are_promoted_as_jax_does():
    for one, other in itertools.combinations(["int8", "int32", "bfloat16", "float16", "float32", "complex64"], 2):
        a, b = (drawn(GATHERED, {"I": 8, "J": 4, "K": 4}, dtype)[i] for i, dtype in enumerate((one, other)))
        got = sw.einsum(GATHERED, a, b, mesh="x=4")
        wanted = whole(GATHERED)(jnp.asarray(a), jnp.asarray(b))
        assert got.dtype == wanted.dtype, (one, other)
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("equation", EQUATIONS)
@pytest.mark.parametrize(
    ("dtype", "preferred"), [("int8", "int32"), ("bfloat16", "float32"), ("float16", "float32"), ("float32", "bfloat16")]
)
def test_preferred_element_type(dtype, preferred, equation):
    arrays = drawn(equation, {"I": 8, "J": 16, "K": 4}, dtype)
    got = sw.einsum(equation, *arrays, mesh="x=4", preferred_element_type=preferred)
    wanted = whole(equation, preferred_element_type=preferred)(*map(jnp.asarray, arrays))

    assert got.dtype == wanted.dtype == jnp.dtype(preferred)
    if preferred != "bfloat16":
        np.testing.assert_array_equal(got, wanted)
    if dtype == "int8":
        np.testing.assert_array_equal(got, arrays[0].astype(int) @ arrays[1].astype(int))


def test_sums_of_int8_beyond_its_range_are_those_of_int32():
    a, b = np.full((4, 64), 127, np.int8), np.full((64, 4), -128, np.int8)
    c = sw.einsum(CONTRACTED, a, b, mesh="x=4", preferred_element_type="int32")

    np.testing.assert_array_equal(c, np.full((4, 4), 64 * 127 * -128))


@pytest.mark.parametrize("precision", [None, "highest", jax.lax.Precision.HIGH, ("default", "highest")])
def test_precision_is_passed_through(precision):
    a, b = drawn(GATHERED, {"I": 8, "J": 4, "K": 4})
    shown = [
        str(jax.make_jaxpr(function)(a, b))
        for function in (
            lambda a, b: sw.einsum(GATHERED, a, b, mesh="x=4", precision=precision),
            lambda a, b: whole(GATHERED, precision=precision)(a, b),
        )
    ]
    said = [sorted(line.strip() for line in text.splitlines() if "precision=" in line) for text in shown]
    assert said[0] == said[1]
    assert bool(said[0]) == (precision is not None)


# Axis types, and what surrounds the call.


@pytest.mark.parametrize("kinds", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize(
    "equation",
    [
        "A[I_x, J_y] · B[J_y, K] -> C[I_x, K_y]",
        "A[I_x, J_y] · B[J_x, K_y] -> C[I_x, K_y]",
        "A[I_{x,y}, J] · B[J, K_x] -> C[K_y, I_x]",
        "A[I_y, J] · B[J, K] -> C[I, K]",
    ],
)
def test_axis_types(kinds, equation):
    mesh = sw.make_mesh("x=2, y=2", axis_types=kinds)
    arrays = drawn(equation, {"I": 8, "J": 8, "K": 8})
    given = placed(equation, arrays, mesh)
    wanted = np.asarray(whole(equation)(*arrays))
    result = sw.parse(equation).result.layout
    if kinds == KINDS["y explicit"] and "I_{x,y}" in equation:
        with pytest.raises(
            sw.ShardwiseError, match=r"I is split over x, which is Auto, before y, which is Explicit.* write y first"
        ):
            sw.einsum(equation, *given, mesh=mesh)
        return

    def product(a, b):
        return sw.einsum(equation, a, b, mesh=mesh)

    for function in (product, jax.jit(product), jax.jit(lambda a, b: 2 * product(a, b + 0) / 2)):
        for inputs in (given, arrays):
            c = function(*inputs)
            assert laid_out(c, result), c.sharding.spec
            np.testing.assert_array_equal(c, wanted)


@pytest.mark.parametrize("kinds", KINDS.values(), ids=KINDS)
def test_a_mesh_in_force(kinds):
    equation = "A[I_x, J_y] · B[J_y, K] -> C[I_x, K_y]"
    arrays = drawn(equation, {"I": 8, "J": 8, "K": 8})
    mesh = sw.make_mesh("x=2, y=2", axis_types=kinds)
    with jax.set_mesh(mesh):
        given = placed(equation, arrays, mesh)
        for function in (lambda a, b: sw.einsum(equation, a, b), jax.jit(lambda a, b: sw.einsum(equation, a, b))):
            np.testing.assert_array_equal(function(*given), arrays[0] @ arrays[1])


def test_an_array_traced_in_another_layout_is_refused_where_types_tell_it():
    a = np.arange(64, dtype=np.float32).reshape(8, 8)
    for kinds in (KINDS["explicit"], KINDS["y explicit"]):
        mesh = sw.make_mesh("x=2, y=2", axis_types=kinds)
        given = sw.put(a, "A[I, J_y]", mesh)

        def move(a, mesh=mesh):
            return sw.einsum("A[I_y, J] -> A[I, J]", a, mesh=mesh)

        for function in (move, jax.jit(move)):
            with pytest.raises(sw.ShardwiseError, match=r'sw\.reshard\(a, "A\[I, J_y\] -> A\[I_y, J\]"\)'):
                function(given)


def test_the_short_form_reads_layouts_off_types_inside_jit():
    a, b = drawn(GATHERED, {"I": 8, "J": 4, "K": 4})
    for kinds, told in ((KINDS["explicit"], True), (KINDS["auto"], False), (KINDS["x explicit"], False)):
        mesh = sw.make_mesh("x=2, y=2", axis_types=kinds)
        given = placed("A[I_x, J] · B[J, K] -> C[I, K]", [a, b], mesh)
        function = jax.jit(lambda a, b, mesh=mesh: sw.einsum("ij,jk->ik", a, b, mesh=mesh, out="i_x, k"))
        if told:
            np.testing.assert_array_equal(function(*given), a @ b)
        else:
            with pytest.raises(sw.ShardwiseError, match="inside jit under Auto axes"):
                function(*given)


def test_partial_sums_need_explicit_axes():
    a, b = drawn(CONTRACTED, {"I": 8, "J": 4, "K": 4})
    for kinds in (KINDS["auto"], KINDS["y explicit"]):
        with pytest.raises(sw.ShardwiseError, match="only where all axes of the mesh are Explicit"):
            sw.einsum("A[I, J_x] · B[J_x, K] -> C[I, K]{U_x}", a, b, mesh=sw.make_mesh("x=2, y=2", axis_types=kinds))


# Meshes.


@pytest.mark.parametrize("mesh", ["x=1", "x=3", "x=5", "x=6", "x=2, y=3", "x=3, y=1, z=2", "x=2, y=2, z=2, w=1"])
def test_meshes(mesh):
    grid = sw.Mesh.parse(mesh)
    sizes = {"I": 2 * grid.size, "J": 3 * grid.size, "K": grid.size}
    names = grid.names
    x, last = names[0], names[-1]
    every = ",".join(names)
    shared = last if last != x else None
    equations = [
        f"A[I_{x}, J] · B[J, K] -> C[I, K]",
        f"A[I, J_{x}] · B[J_{x}, K] -> C[I_{x}, K]",
        f"A[I_{{{every}}}, J] · B[J, K] -> C[I, K_{{{every}}}]",
        f"A[I, J_{{{every}}}] · B[J_{{{every}}}, K] -> C[I_{last}, K]",
        "A[I, J] · B[J, K] -> C[I_?, K_?]",
    ]
    equations += [f"A[I_{x}, J_{shared}] · B[J_{shared}, K_{x}] -> C[I_{shared}, K_{x}]"] if shared else []
    for equation in equations:
        a, b = drawn(equation, sizes)
        c = sw.einsum(equation, a, b, mesh=mesh)
        np.testing.assert_array_equal(c, a @ b, err_msg=equation)
        assert len(c.sharding.device_set) == grid.size


def test_an_axis_of_size_1_changes_nothing():
    a, b = drawn(GATHERED, {"I": 8, "J": 4, "K": 4})
    mesh = sw.make_mesh("x=4, y=1")
    for equation in ("A[I_{x,y}, J] · B[J_y, K] -> C[I_y, K]", "A[I_x, J_y] · B[J, K] -> C[I, K]", GATHERED):
        c = sw.einsum(equation, *placed(GATHERED, [a, b], mesh))
        np.testing.assert_array_equal(c, a @ b)


# Padding.


@pytest.mark.parametrize("mesh", ["x=3", "x=4", "x=2, y=3"])
@pytest.mark.parametrize(
    ("equation", "sizes"),
    [
        ("A[I_x, J] · B[J, K] -> C[I_x, K]", {"I": 7, "J": 5, "K": 4}),
        ("A[I_x, J] · B[J, K] -> C[I, K]", {"I": 7, "J": 5, "K": 4}),
        ("A[I, J_x] · B[J_x, K] -> C[I, K]", {"I": 5, "J": 7, "K": 2}),
        ("A[I, J_x] · B[J_x, K] -> C[I_x, K]", {"I": 5, "J": 7, "K": 2}),
        ("A[I_x, J] · B[J, K] -> C[I, K_x]", {"I": 5, "J": 7, "K": 2}),
        ("A[I_x, J] -> S[J_x]", {"I": 5, "J": 7}),
        ("A[I_x, J] -> A[I, J_x]", {"I": 5, "J": 7}),
        ("A[I_x, J] · B[J_x, K] · D[K, L_x] -> E[I_x, L]", {"I": 5, "J": 7, "K": 2, "L": 1}),
    ],
)
def test_padding(mesh, equation, sizes):
    arrays = drawn(equation, sizes)
    grid, result = sw.Mesh.parse(mesh), sw.parse(equation).result
    wanted = np.asarray(whole(equation)(*arrays))
    c = sw.einsum(equation, *arrays, mesh=mesh, pad=True)

    for have, size, (_, axes) in zip(c.shape, wanted.shape, result.layout.dims, strict=True):
        assert have == size or (axes and have > size and have % grid.extent(axes) == 0)
    np.testing.assert_array_equal(c, np.pad(wanted, [(0, have - n) for have, n in zip(c.shape, wanted.shape, strict=True)]))


def test_padding_inside_jit_under_explicit_axes():
    a, b = drawn(GATHERED, {"I": 7, "J": 5, "K": 4})
    mesh = sw.make_mesh("x=4")
    c = jax.jit(lambda a, b: sw.einsum(GATHERED, a, b, mesh=mesh, pad=True))(a, b)

    np.testing.assert_array_equal(c, a @ b)


def test_padding_inside_jit_under_auto_axes_is_refused_where_an_operand_is_split():
    a, b = drawn(GATHERED, {"I": 7, "J": 5, "K": 4})
    mesh = sw.make_mesh("x=4", axis_types=AxisType.Auto)
    with pytest.raises(sw.ShardwiseError, match="its layout is not known, so pad it before"):
        jax.jit(lambda a, b: sw.einsum(GATHERED, a, b, mesh=mesh, pad=True))(a, b)


def test_gradients_pass_padding():
    a, b = (array / 8 for array in drawn(CONTRACTED, {"I": 6, "J": 7, "K": 3}))

    def product(a, b):
        return sw.einsum(CONTRACTED, a, b, mesh="x=4", pad=True)

    outcome = sw.check(product, jnp.matmul, a, b, gradients=True)
    assert outcome, str(outcome)


# Transformations.


@pytest.fixture(params=["explicit", "auto"])
def mesh(request) -> jax.sharding.Mesh:
    return sw.make_mesh("x=4", axis_types=KINDS[request.param])


@pytest.mark.parametrize("equation", [*EQUATIONS, "A[I_x, J] · B[J, K_x] -> C[I_x, K]"])
@pytest.mark.parametrize("in_axes", [(0, 0), (0, None), (None, 0)], ids=str)
def test_vmap(equation, in_axes, mesh):
    a, b = drawn(equation, {"I": 8, "J": 8, "K": 4})
    many = [
        np.stack([array * n for n in (1, 2, 3)]) if axis == 0 else array for array, axis in zip((a, b), in_axes, strict=True)
    ]
    layouts = [operand.layout for operand in sw.parse(equation).operands]
    given = [
        sw.put(array, sw.Layout((("N", ()), *layout.dims)) if axis == 0 else layout, mesh)
        for array, layout, axis in zip(many, layouts, in_axes, strict=True)
    ]
    over_einsum = jax.vmap(lambda a, b: sw.einsum(equation, a, b, mesh=mesh), in_axes)
    wanted = jax.vmap(jnp.matmul, in_axes)(*many)
    result = sw.Layout((("N", ()), *sw.parse(equation).result.layout.dims))
    for function in (over_einsum, jax.jit(over_einsum)):
        c = function(*given)
        np.testing.assert_array_equal(c, wanted)
        assert laid_out(c, result), c.sharding.spec


def test_vmap_of_the_gradient(mesh):
    x, w = drawn(WEIGHTS, {"B": 8, "D": 8, "F": 4})
    many = np.stack([x, 2 * x])

    def loss(w, x):
        return jnp.sum(sw.einsum(WEIGHTS, x, w, mesh=mesh) ** 2)

    given = sw.put(w, "W[D_x, F]", mesh), sw.put(many, "X[N, B_x, D]", mesh)
    got = jax.jit(jax.vmap(jax.grad(loss), (None, 0)))(*given)
    np.testing.assert_array_equal(got, np.stack([2 * n * n * x.T @ (x @ w) for n in (1, 2)]))


@pytest.mark.parametrize("equation", EQUATIONS)
def test_jvp_and_vjp(equation, mesh):
    arrays, tangents = (drawn(equation, {"I": 8, "J": 8, "K": 4}, seed=seed) for seed in (0, 1))
    (a, b), (da, db) = arrays, tangents
    given, moved = (tuple(placed(equation, each, mesh)) for each in (arrays, tangents))

    def product(a, b):
        return sw.einsum(equation, a, b, mesh=mesh)

    c, dc = jax.jvp(product, given, moved)
    np.testing.assert_array_equal(c, a @ b)
    np.testing.assert_array_equal(dc, da @ b + a @ db)
    assert laid_out(dc, sw.parse(equation).result.layout)

    c, pull = jax.vjp(product, *given)
    cotangents = pull(c)
    np.testing.assert_array_equal(cotangents[0], a @ b @ b.T)
    np.testing.assert_array_equal(cotangents[1], a.T @ (a @ b))
    for cotangent, operand in zip(cotangents, sw.parse(equation).operands, strict=True):
        assert laid_out(cotangent, operand.layout), (cotangent.sharding.spec, operand)


def test_gradient_of_a_gradient(mesh):
    x, w = (array / 8 for array in drawn(WEIGHTS, {"B": 8, "D": 8, "F": 4}))

    def squared(w, x):
        return jnp.sum(jnp.tanh(sw.einsum(WEIGHTS, x, w, mesh=mesh)))

    def reference(w, x):
        return jnp.sum(jnp.tanh(x @ w))

    def twice(function):
        return jax.jit(jax.grad(lambda w, x: jnp.sum(jax.grad(function)(w, x) ** 2), argnums=(0, 1)))

    got = twice(squared)(sw.put(w, "W[D_x, F]", mesh), sw.put(x, "X[B_x, D]", mesh))
    for one, other in zip(got, twice(reference)(w, x), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_forward_over_reverse(mesh):
    x, w = (array / 8 for array in drawn(WEIGHTS, {"B": 8, "D": 8, "F": 4}))

    def product_with_hessian(function, w, x):
        return jax.jit(lambda w, x: jax.jvp(jax.grad(lambda w: jnp.sum(jnp.tanh(function(x, w)))), (w,), (w,))[1])(w, x)

    got = product_with_hessian(
        lambda x, w: sw.einsum(WEIGHTS, x, w, mesh=mesh), sw.put(w, "W[D_x, F]", mesh), sw.put(x, "X[B_x, D]", mesh)
    )
    np.testing.assert_allclose(got, product_with_hessian(jnp.matmul, w, x), rtol=1e-4, atol=1e-5)


def test_scan_and_remat(mesh):
    """Layers in a loop, their activations recomputed, as training code has it."""
    layer = "X[B_x, D] · W[D, F_x] -> Y[B_x, F]"
    x, _ = drawn(layer, {"B": 8, "D": 8, "F": 8})
    weights = np.stack([drawn(layer, {"B": 8, "D": 8, "F": 8}, seed=seed)[1] for seed in range(3)]) / 16

    def through(product, x, weights):
        step = jax.checkpoint(lambda x, w: (jnp.tanh(product(x, w)), None))
        return jnp.sum(jax.lax.scan(step, x / 8, weights)[0] ** 2)

    sharded = functools.partial(through, lambda x, w: sw.einsum(layer, x, w, mesh=mesh))
    got = jax.jit(jax.grad(sharded, (0, 1)))(sw.put(x, "X[B_x, D]", mesh), sw.put(weights, "W[L, D, F_x]", mesh))
    for one, other in zip(got, jax.grad(functools.partial(through, jnp.matmul), (0, 1))(x, weights), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_gradients_of_gathered_weights_are_scattered(mesh):
    """The transpose of gathering the weights is a reduce-scatter of their gradient: no device holds all of it."""
    x, w = drawn(WEIGHTS, {"B": 8, "D": 8, "F": 4})
    given = sw.put(w, "W[D_x, F]", mesh), sw.put(x, "X[B_x, D]", mesh)
    plan = sw.plan(WEIGHTS, sizes={"B": 8, "D": 8, "F": 4}, mesh="x=4", hardware="tpu-v5e", dtype="float32")
    assert [kind(step) for step in plan.best.program.steps] == ["all-gather", "einsum"]

    gradient = jax.grad(lambda w, x: jnp.sum(sw.einsum(WEIGHTS, x, w, mesh=mesh) ** 2))
    shown = str(jax.make_jaxpr(gradient)(*given))
    assert "reduce_scatter[" in shown
    assert "psum" not in shown
    got = jax.jit(gradient)(*given)
    assert laid_out(got, sw.Layout.parse("D_x, F"))
    np.testing.assert_array_equal(got, 2 * x.T @ (x @ w))
    compiled = jax.jit(gradient).lower(*given).compile().as_text()
    assert "reduce-scatter" in compiled or "all-reduce" in compiled


def test_partial_sums_in_and_out_with_gradients():
    mesh = sw.make_mesh("x=2, y=2")
    a, b = drawn(CONTRACTED, {"I": 8, "J": 8, "K": 4})
    partial = "A[I_y, J_x] · B[J_x, K] -> C[I_y, K]{U_x}"

    def summands(a, b):
        return sw.einsum(partial, a, b, mesh=mesh)

    onward = {
        "reduced": lambda c: sw.reshard(c, "C[I_y, K]{U_x} -> C[I_y, K]", mesh=mesh),
        "scattered": lambda c: sw.reshard(c, "C[I_y, K]{U_x} -> C[I_y, K_x]", mesh=mesh),
        "multiplied": lambda c: sw.einsum("C[I_y, K]{U_x} · D[K, L] -> E[I_y, L]", c, jnp.ones((4, 2), "float32"), mesh=mesh),
        "summed": lambda c: sw.einsum("C[I_y, K]{U_x} -> S[]", c, mesh=mesh),
    }
    by_hand = {
        "reduced": lambda c: c,
        "scattered": lambda c: c,
        "multiplied": lambda c: c @ jnp.ones((4, 2), "float32"),
        "summed": jnp.sum,
    }
    given = placed(partial, [a, b], mesh)
    for name, function in onward.items():
        outcome = sw.check(
            jax.jit(lambda a, b, function=function: function(summands(a, b))),
            lambda a, b, name=name: by_hand[name](a @ b),
            *given,
            gradients=True,
        )
        assert outcome, f"{name}: {outcome}"


# Repeated calls.


@pytest.fixture
def compilations() -> list[str]:
    """Grows by one whenever the compiler runs."""
    found: list[str] = []

    def listen(event: str, seconds: float, **_) -> None:
        if "backend_compile" in event:
            found.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    return found


def test_a_repeated_call_plans_and_compiles_nothing(compilations):
    a, b = placed(GATHERED, drawn(GATHERED, {"I": 24, "J": 4, "K": 4}), sw.make_mesh("x=4"))
    sw.einsum(GATHERED, a, b).block_until_ready()
    first, planned = len(compilations), execute.prepare.cache_info()
    assert first > 0
    for _ in range(3):
        sw.einsum(GATHERED, a, b).block_until_ready()
        sw.einsum(GATHERED, a, b, mesh=sw.make_mesh("x=4"), hardware=None).block_until_ready()
    assert len(compilations) == first
    after = execute.prepare.cache_info()
    assert (after.misses, after.hits) == (planned.misses, planned.hits + 6)


def test_a_repeated_call_of_a_plans_function_compiles_nothing(compilations):
    plan = sw.plan(GATHERED, sizes={"I": 28, "J": 4, "K": 4}, mesh="x=4", dtype="float32")
    function = plan.function(sw.make_mesh("x=4"))
    arrays = drawn(GATHERED, {"I": 28, "J": 4, "K": 4})
    function(*arrays).block_until_ready()
    first = len(compilations)
    for _ in range(3):
        function(*arrays).block_until_ready()
    assert len(compilations) == first


def test_other_values_hit_the_cache_and_all_else_misses_it():
    a, b = drawn(GATHERED, {"I": 16, "J": 5, "K": 3})
    sw.einsum(GATHERED, a, b, mesh="x=4")
    misses = execute.prepare.cache_info().misses
    sw.einsum(GATHERED, a + 1, b - 1, mesh="x=4")
    assert execute.prepare.cache_info().misses == misses
    for number, call in enumerate(
        [
            lambda: sw.einsum(GATHERED, a, b, mesh="x=2"),
            lambda: sw.einsum(GATHERED, a.astype("bfloat16"), b, mesh="x=4"),
            lambda: sw.einsum(GATHERED, a[:8], b, mesh="x=4"),
            lambda: sw.einsum(GATHERED, a, b, mesh="x=4", hardware="tpu-v5e"),
            lambda: sw.einsum(GATHERED, a, b, mesh="x=4", precision="highest"),
            lambda: sw.einsum(GATHERED, a, b, mesh=sw.make_mesh("x=4", axis_types=AxisType.Auto)),
            lambda: sw.einsum(GATHERED, a, b, mesh=sw.make_mesh("x=4", devices=jax.devices()[4:])),
        ],
        1,
    ):
        call()
        assert execute.prepare.cache_info().misses == misses + number


def test_the_cache_is_bounded():
    limit = execute.prepare.cache_info().maxsize
    assert limit is not None
    assert limit <= 1024


# A plan's function, and its code as plain JAX.

CODED = [
    ("x=4", GATHERED),
    ("x=4", CONTRACTED),
    ("x=4", SCATTERED),
    ("x=4", "A[I_x, J] -> A[I, J_x]"),
    ("x=4", "A[I_x, J] -> A[J, I_x]"),
    ("x=4", "A[I_x, J] -> S[J_x]"),
    ("x=4", "A[I_x, J] -> S[]"),
    ("x=4", "A[I, J] · B[J, K] -> C[I_x, K]"),
    ("x=4", "A[P_x, I, J] · B[P_x, J, K] -> C[I, P_x, K]"),
    ("x=2, y=2", "A[I_x, J_y] · B[J_y, K] -> C[I_x, K_y]"),
    ("x=2, y=2", "A[I_x, J_y] · B[J_x, K_y] -> C[I_x, K_y]"),
    ("x=2, y=2", "A[I_{x,y}, J] -> A[I_{y,x}, J]"),
    ("x=2, y=2", "A[I_x, J_y] -> A[I_y, J_x]"),
    ("x=2, y=2", "A[I_x, J] · B[J, K_y] · D[K_y, L] -> E[I_x, L]"),
    ("x=2, y=2", "A[I_x, J] · B[J_y, K] · D[K, L_y] · F[L, M] -> E[I_x, M_y]"),
    ("x=2, y=2", "A[I_x, J_y] · B[J_y, K] -> C[I_x, K]{U_y}"),
    ("x=2, y=2", "A[I_x, J_y] · B[J_y, K] -> C[I_x, K]{U_y} -> C[I, K_y]"),
    ("x=2, y=2", "lambda[I_x, program_y] · import[program_y, K] -> jnp[I_x, K_y]"),
]


def by_code(plan: sw.Plan, candidate: Candidate) -> Callable[..., jax.Array]:
    names: dict = {}
    exec(sw.Plan(plan.task, (candidate,)).code(), names)
    return names["program"]


@pytest.mark.parametrize(("mesh_text", "equation"), CODED)
def test_code_and_function_of_every_candidate(mesh_text, equation):
    sizes = dict.fromkeys(sw.parse(equation).dims, 8)
    arrays = drawn(equation, sizes)
    wanted = np.asarray(whole(equation)(*arrays))
    mesh = sw.make_mesh(mesh_text)
    plan = sw.plan(equation, sizes=sizes, mesh=mesh, dtype="float32")
    lying = [sw.put(array, operand.layout, mesh) for array, operand in zip(arrays, sw.parse(equation).operands, strict=True)]

    def run(functions: list[Callable[..., jax.Array]]) -> list[jax.Array]:  # compiled as one
        return jax.jit(lambda *given: [function(*given) for function in functions])(*lying)

    ours, theirs = run([plan.function(mesh, each) for each in plan]), run([by_code(plan, each) for each in plan])
    for candidate, by_function, by_text in zip(plan, ours, theirs, strict=True):
        assert by_text.sharding == by_function.sharding
        for one, other in zip(by_text.addressable_shards, by_function.addressable_shards, strict=True):
            np.testing.assert_array_equal(one.data, other.data, err_msg=str(candidate.program))
        if not candidate.program.result.unreduced:
            np.testing.assert_array_equal(by_function, wanted, err_msg=str(candidate.program))


def test_the_coded_programs_have_permutes_and_all_to_alls():
    steps = {
        type(step)
        for mesh, equation in CODED
        for step in sw.plan(equation, sizes=dict.fromkeys(sw.parse(equation).dims, 8), mesh=mesh).best.program.steps
    }
    assert steps >= {CollectivePermute, AllToAll}


@pytest.mark.parametrize(
    "equation", ["A[B, I_x, L, J] -> A[B, I, L, J_x]", "A[J_x, B, L, I] -> A[J, B, L, I_x]", "A[B, J_x, I] -> A[B, J, I_x]"]
)
def test_an_all_to_all_leaves_out_other_dimensions_of_size_1(equation):
    """With one in front, TPU compilers lay the blocks out up to five times as slowly."""
    sizes = {dim: {"I": 8, "J": 16}.get(dim, 1) for dim in sw.parse(equation).dims}
    mesh, (array,) = sw.make_mesh("x=4"), drawn(equation, sizes)
    plan = sw.plan(equation, sizes=sizes, mesh=mesh, dtype="float32", hardware="tpu-v5e")
    assert [type(step) for step in plan.best.program.steps] == [AllToAll]
    function = jax.jit(plan.function(mesh))
    placed = sw.put(array, sw.parse(equation).operands[0].layout, mesh)
    np.testing.assert_array_equal(function(placed), array)
    with jax.set_mesh(mesh):
        np.testing.assert_array_equal(jax.jit(jax.grad(lambda a: (function(a) ** 2).sum()))(placed), 2 * array)
    (moved,) = re.findall(r"stablehlo.all_to_all.*?-> tensor<([x\d]+)xf32>", function.lower(placed).as_text(), re.DOTALL)
    assert len([size for size in moved.split("x") if size != "1"]) == len(moved.split("x"))


def test_code_of_partial_sums_as_operands():
    mesh = sw.make_mesh("x=2, y=2")
    a, b = drawn(CONTRACTED, {"I": 8, "J": 8, "K": 8})
    partial = sw.einsum("A[I_x, J_y] · B[J_y, K] -> C[I_x, K]{U_y}", a, b, mesh=mesh)
    for result in ("C[I_x, K]", "C[I_x, K_y]", "C[I, K_y]"):
        plan = sw.plan(f"C[I_x, K]{{U_y}} -> {result}", sizes={"I": 8, "K": 8}, mesh=mesh, dtype="float32")
        names: dict = {}
        exec(plan.code(), names)
        np.testing.assert_array_equal(names["program"](partial), a @ b)
        np.testing.assert_array_equal(plan.function(mesh)(partial), a @ b)
