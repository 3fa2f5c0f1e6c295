"""`sw.spmd.einsum` and `sw.spmd.reshard`: the equation of outside, in the body of a `shard_map`."""

from __future__ import annotations

import string

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import shardwise as sw
from shardwise.chips.placing import physical_routes
from shardwise.compiled.expected import planned_collectives
from shardwise.errors import ArrayError, LayoutError, MeshError, NotationError, PlanError
from shardwise.runtime.devices import hardware_along
from shardwise.runtime.lower import leaves_replicated

pytestmark = pytest.mark.usefixtures("caches_cleared_afterwards")
SIZES = {"B": 8, "I": 16, "J": 32, "K": 8}
WHOLE = "x=4, y=2"
PARTS: dict[str, AxisType] = {"explicit": AxisType.Explicit, "auto": AxisType.Auto}
# Layers as people write them by hand: an equation, and how its transfers are to overlap.
LAYERS = {
    "gather activations": ("A[I_x, J] · B[J, K] -> C[I, K]", False),
    "gather weights (FSDP)": ("X[I_x, J] · W[J_x, K] -> Y[I_x, K]", False),
    "gather along the second dimension": ("A[I, J_x] · B[J, K] -> C[I, K]", False),
    "all-reduce (Megatron, row-parallel)": ("A[I, J_x] · B[J_x, K] -> C[I, K]", False),
    "reduce-scatter (sequence-parallel)": ("A[I, J_x] · B[J_x, K] -> C[I_x, K]", False),
    "reduce-scatter along the second dimension": ("A[I, J_x] · B[J_x, K] -> C[I, K_x]", False),
    "all-to-all (Ulysses)": ("A[I_x, J] -> A[I, J_x]", False),
    "all-to-all and a transpose": ("A[I_x, J] -> A[J_x, I]", False),
    "batched (experts)": ("X[B_x, I, J] · W[B_x, J, K] -> Y[B_x, I, K]", False),
    "nothing to send": ("A[I_x, J] · B[J, K] -> C[I_x, K]", False),
    "slice": ("A[I, J] · B[J, K] -> C[I_x, K]", False),
    "partial sums out": ("A[I, J_x] · B[J_x, K] -> C[I, K]{U_x}", False),
    "partial sums in": ("A[I, J]{U_x} -> A[I_x, J]", False),
    "two axes, one matmul": ("A[I_x, J] · B[J, K_y] -> C[I_x, K_y]", False),
    "two axes, gather both": ("A[I_x, J_y] · B[J_y, K] -> C[I_x, K]", False),
    "two axes on one dimension": ("A[I, J_{x,y}] · B[J_{x,y}, K] -> C[I_{x,y}, K]", False),
    "two axes change places": ("A[I_{x,y}, J] -> A[I_y, J_x]", False),
    "three operands": ("A[I, J_x] · B[J_x, K] · D[K, B] -> E[I, B]", False),
    "a ring that gathers": ("X[I_x, J] · W[J_x, K] -> Y[I_x, K]", "ring"),
    "a ring that scatters": ("A[I, J_x] · B[J_x, K] -> C[I_x, K]", "bidirectional"),
    "a ring for a wide result": ("A[I_x, J] · B[J, K_x] -> C[I, K_x]", "bidirectional"),
    "a rotation": ("A[I_x, J_y] · B[J_x, K_y] -> C[I_x, K_y]", "rotate"),
}


def auto(axes: str) -> jax.sharding.Mesh:
    return sw.make_mesh(axes, axis_types=AxisType.Auto)


def drawn(equation: str, seed: int = 0) -> list[np.ndarray]:
    """Small whole numbers, of which float32 sums the products exactly."""
    random = np.random.default_rng(seed)
    return [
        random.integers(-3, 4, [SIZES[dim] for dim in operand.dims]).astype(np.float32)
        for operand in sw.parse(equation).operands
    ]


def by_numpy(equation: str):
    """The same of whole arrays."""
    read = sw.parse(equation)
    letters = dict(zip(read.dims, string.ascii_letters, strict=False))
    left = ",".join("".join(letters[dim] for dim in operand.dims) for operand in read.operands)
    return lambda *arrays: jnp.einsum(f"{left}->{''.join(letters[dim] for dim in read.result.dims)}", *arrays)


def mapped(equation: str, mesh: jax.sharding.Mesh, overlap=False, **how):
    """The equation as the body of a map of global arrays; partial sums enter and leave with a dimension that counts them."""
    read = sw.parse(equation)

    def spec(operand):
        lead = tuple(sorted(operand.layout.unreduced))
        return P(*([lead] if lead else []), *sw.Layout(operand.layout.dims).spec)

    def body(*shards):
        mine = (s[0] if o.layout.unreduced else s for o, s in zip(read.operands, shards, strict=True))
        out = sw.spmd.einsum(equation, *mine, overlap=overlap)
        return out[None] if read.result.layout.unreduced else out

    mapping = jax.shard_map(body, mesh=mesh, in_specs=tuple(map(spec, read.operands)), out_specs=spec(read.result), **how)

    def function(*arrays):
        parts = {"x": 4, "y": 2}
        given = [
            jnp.stack([a, *[0 * a] * (parts[next(iter(o.layout.unreduced))] - 1)]) if o.layout.unreduced else a
            for o, a in zip(read.operands, arrays, strict=True)
        ]
        out = mapping(*given)
        return out.sum(0) if read.result.layout.unreduced else out

    return jax.jit(function)


def placed(equation: str, arrays, mesh):
    return [
        jnp.asarray(a) if o.layout.unreduced else sw.put(a, o.layout, mesh)
        for o, a in zip(sw.parse(equation).operands, arrays, strict=True)
    ]


def assert_equal_with_gradients(equation: str, function, arrays, given) -> None:
    plain = by_numpy(equation)
    whole = plain(*arrays)
    weights = np.random.default_rng(1).integers(-3, 4, whole.shape).astype(np.float32)
    which = tuple(range(len(arrays)))
    found = jax.jit(jax.value_and_grad(lambda *a: (function(*a) * weights).sum(), argnums=which))(*given)
    wanted = jax.value_and_grad(lambda *a: (plain(*a) * weights).sum(), argnums=which)(*arrays)
    np.testing.assert_array_equal(function(*given), whole)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("layer", LAYERS)
def test_a_manual_layer_equals_numpy_with_its_gradients_and_compiles_to_the_plan(layer):
    equation, overlap = LAYERS[layer]
    mesh, arrays = auto(WHOLE), drawn(equation)
    function, given = mapped(equation, mesh, overlap), placed(equation, arrays, mesh)

    assert_equal_with_gradients(equation, function, arrays, given)

    read = sw.parse(equation)
    named = {axis for each in (*read.operands, read.result) for axis in (*each.layout.axes, *each.layout.unreduced)}
    part = ", ".join(f"{name}={size}" for name, size in (("x", 4), ("y", 2)) if name in named)
    sizes = {dim: SIZES[dim] for dim in read.dims}
    plan = sw.plan(equation, sizes=sizes, mesh=part, dtype="float32", hardware="cpu", overlap=overlap)
    chosen = next(candidate for candidate in plan if not leaves_replicated(candidate.program))
    expected: dict[str, dict[str, int]] = {}
    for step in planned_collectives((plan, chosen)):
        over = expected.setdefault(step.kind, {})
        over[",".join(step.axes)] = over.get(",".join(step.axes), 0) + 1
    if not any(each.layout.unreduced for each in (*read.operands, read.result)):  # partial sums are added outside
        audit = sw.audit(function, *given)
        audit.assert_only(expected)
        if named == {"x", "y"}:
            audit.assert_matches((plan, chosen))


@pytest.mark.parametrize("kind", PARTS)
@pytest.mark.parametrize("check", [True, False], ids=["checked", "unchecked"])
@pytest.mark.parametrize(
    "layer",
    ["gather activations", "reduce-scatter along the second dimension", "all-to-all (Ulysses)", "a ring that gathers",
     "a ring that scatters"],
)  # fmt: skip
def test_other_axes_stay_auto_or_explicit(layer, check, kind):
    equation, overlap = LAYERS[layer]
    mesh, arrays = sw.make_mesh(WHOLE, axis_types=PARTS[kind]), drawn(equation)
    function = mapped(equation, mesh, overlap, axis_names={"x"}, check_vma=check)

    assert_equal_with_gradients(equation, function, arrays, placed(equation, arrays, mesh))


def test_what_an_explicit_axis_splits_stays_split():
    mesh, (a, b) = sw.make_mesh(WHOLE, axis_types=AxisType.Explicit), drawn(LAYERS["reduce-scatter (sequence-parallel)"][0])
    types = []

    def body(a, b):
        c = sw.spmd.einsum("A[I, J_x] · B[J_x, K] -> C[I_x, K]", a, b)
        types.append(jax.typeof(c).sharding.spec)
        return c

    function = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=(P(None, "x"), P("x")), out_specs=P("x"), axis_names={"x"}))
    c = function(sw.put(a, "I, J_x", mesh), sw.put(b, "J_x, K_y", mesh))

    assert types == [P(None, "y")]
    np.testing.assert_array_equal(c, a @ b)


@pytest.mark.parametrize("check", [True, False], ids=["checked", "unchecked"])
def test_unchecked_maps_have_the_same_gradients(check):
    for layer in ("gather activations", "all-reduce (Megatron, row-parallel)", "slice", "a rotation"):
        equation, overlap = LAYERS[layer]
        mesh, arrays = sw.make_mesh(WHOLE), drawn(equation)
        function = mapped(equation, mesh, overlap, check_vma=check)
        assert_equal_with_gradients(equation, function, arrays, placed(equation, arrays, mesh))


# Types.


def types_of(body, *specs, mesh=WHOLE, given=()):
    """The axes over which JAX's types see what a body makes as different."""
    seen = []

    def looked(*shards):
        out = body(*shards)
        seen.append(set(jax.typeof(out).manual_axis_type.varying))
        return lax.psum(out.sum(), tuple(seen[0]))

    jax.jit(jax.shard_map(looked, mesh=auto(mesh), in_specs=specs, out_specs=P(), check_vma=True)).lower(*given)
    return seen[0]


def test_a_result_is_typed_by_its_layout_and_by_the_axes_that_stay_out_of_it():
    a, b = jnp.ones((16, 32)), jnp.ones((32, 8))
    batch = P("y", "x")  # y splits the batch, and stays out of the equation
    reduce = lambda a, b: sw.spmd.einsum("A[I, J_x] · B[J_x, K] -> C[I, K]", a, b)  # noqa: E731
    scatter = lambda a, b: sw.spmd.einsum("A[I, J_x] · B[J_x, K] -> C[I_x, K]", a, b)  # noqa: E731
    partial = lambda a, b: sw.spmd.einsum("A[I, J_x] · B[J_x, K] -> C[I, K]{U_x}", a, b)  # noqa: E731

    assert types_of(reduce, batch, P("x"), given=(a, b)) == {"y"}
    assert types_of(scatter, batch, P("x"), given=(a, b)) == {"x", "y"}
    assert types_of(partial, P(None, "x"), P("x"), given=(a, b)) == {"x"}


def test_along_an_axis_of_one_device_types_are_as_along_any():
    a, b = jnp.ones((16, 32)), jnp.ones((32, 8))
    reduce = lambda a, b: sw.spmd.einsum("A[I, J_x] · B[J_x, K] -> C[I, K]", a, b)  # noqa: E731
    scatter = lambda a, b: sw.spmd.einsum("A[I, J_x] · B[J_x, K] -> C[I_x, K]", a, b)  # noqa: E731
    partial = lambda a, b: sw.spmd.einsum("A[I, J_x] · B[J_x, K] -> C[I, K]{U_x}", a, b)  # noqa: E731

    assert types_of(reduce, P(None, "x"), P("x"), mesh="x=1, y=2", given=(a, b)) == set()
    assert types_of(scatter, P(None, "x"), P("x"), mesh="x=1, y=2", given=(a, b)) == {"x"}
    assert types_of(partial, P(None, "x"), P("x"), mesh="x=1, y=2", given=(a, b)) == {"x"}


def test_a_constant_of_the_body_is_every_devices_shard():
    ones = lambda a: sw.spmd.einsum("A[I, J_x] · B[J_x, K] -> C[I, K]", a, np.ones((8, 3), np.float32))  # noqa: E731
    a = np.arange(64.0, dtype=np.float32).reshape(2, 32)
    function = jax.shard_map(ones, mesh=auto("x=4"), in_specs=P(None, "x"), out_specs=P())
    np.testing.assert_array_equal(function(a), a @ np.ones((32, 3)))


def test_in_a_scan_under_remat_and_vmap():
    """Four layers, row-parallel and back, the batch along y: as one device computes them, gradients too."""
    mesh = auto(WHOLE)
    random = np.random.default_rng(3)
    x = random.standard_normal((3, 8, 16), np.float32)
    ups, downs = (random.standard_normal((4, *shape), np.float32) / 8 for shape in ((16, 32), (32, 16)))

    def network(multiply_up, multiply_down):
        def layer(x, weights):
            hidden = jnp.tanh(jax.vmap(multiply_up, (0, None))(x, weights[0]))
            return x + jax.vmap(multiply_down, (0, None))(hidden, weights[1]), None

        return lambda x, ups, downs: lax.scan(jax.checkpoint(layer), x, (ups, downs))[0]

    body = network(
        lambda x, w: sw.spmd.einsum("X[B, D] · W[D, F_x] -> H[B, F_x]", x, w),
        lambda h, w: sw.spmd.einsum("H[B, F_x] · W[F_x, D] -> Y[B, D]", h, w),
    )
    specs = (P(None, "y"), P(None, None, "x"), P(None, "x"))
    parallel = jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=P(None, "y"))
    alone = network(jnp.matmul, jnp.matmul)

    losses = [jax.jit(jax.value_and_grad(lambda *a, f=f: (f(*a) ** 2).sum(), argnums=(0, 1, 2))) for f in (parallel, alone)]
    found, wanted = (jax.tree.leaves(loss(x, ups, downs)) for loss in losses)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5)


def test_the_planner_may_choose_among_the_axes_that_are_named():
    mesh, (a, b) = auto(WHOLE), drawn("A[I, J] · B[J, K] -> C[I, K]")
    body = lambda a, b: sw.spmd.einsum("A[I, J_x] · B[J_x, K] -> C[I_?, K]", a, b)  # noqa: E731
    function = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=(P(None, "x"), P("x")), out_specs=P("x")))
    np.testing.assert_array_equal(function(a, b), a @ b)


def test_reshard_moves_one_array():
    mesh, (a,) = auto("x=4"), drawn("A[I, J] -> A[I, J]")
    body = lambda a: sw.spmd.reshard(a, "A[I_x, J] -> A[I, J_x]")  # noqa: E731
    function = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P(None, "x")))
    np.testing.assert_array_equal(function(a), a)
    sw.audit(function, sw.put(a, "I_x, J", mesh)).assert_only({"all-to-all": {"x": 1}})


# Errors.


def refused(error, body, *given, specs=None, **how) -> str:
    specs = specs or tuple(P() for _ in given)
    with pytest.raises(error) as caught:
        jax.shard_map(body, mesh=auto(WHOLE), in_specs=specs, out_specs=P(), **how)(*given)
    return str(caught.value)


A, B = np.ones((16, 32), np.float32), np.ones((32, 8), np.float32)


def test_outside_of_shard_map_it_says_who_takes_the_equation():
    with pytest.raises(MeshError, match=r"runs inside jax\.shard_map, and this is outside: sw\.einsum takes the same equation"):
        sw.spmd.einsum("A[I, J_x] · B[J_x, K] -> C[I, K]", A, B)


def test_sw_einsum_inside_says_who_takes_the_equation():
    said = refused(MeshError, lambda a, b: sw.einsum("A[I, J_x] · B[J_x, K] -> C[I, K]", a, b), A, B)
    assert said.startswith("inside jax.shard_map arrays are shards over x, y already: sw.spmd.einsum and sw.spmd.reshard take")


def test_an_axis_that_is_not_manual_is_named():
    body = lambda a, b: sw.spmd.einsum("A[I, J_y] · B[J_y, K] -> C[I, K]", a, b)  # noqa: E731
    said = refused(MeshError, body, A, B, axis_names={"x"})
    assert "mesh axis y is Auto here: map over it too, as in jax.shard_map(..., axis_names={'x', 'y'})" in said
    assert "shards: float32[16, 32], float32[32, 8]" in said
    assert "the mesh has no axis 'z' here" in refused(MeshError, lambda a: sw.spmd.reshard(a, "A[I_z, J] -> A[I, J_z]"), A)


def test_an_array_that_differs_where_it_is_written_as_equal_is_refused():
    body = lambda a, b: sw.spmd.einsum("A[I, J_x] · B[J, K] -> C[I, K]", a, b)  # noqa: E731
    said = refused(ArrayError, body, A, B, specs=(P(None, "x"), P("x")))
    assert (
        "array B[J, K] is written as equal along x, and its type says that it differs there: write what x splits, as J_x, or"
        in said
    )


def test_what_an_explicit_axis_splits_is_not_summed():
    body = lambda a, b: sw.spmd.einsum("A[I_x, J] · B[J, K] -> C[I, K]", a, b)  # noqa: E731
    mesh = sw.make_mesh(WHOLE)
    function = jax.shard_map(body, mesh=mesh, in_specs=(P("x"), P()), out_specs=P(), axis_names={"x"})
    with pytest.raises(LayoutError, match=r"mesh axis y is Explicit here, and splits J, which is summed: map over it too"):
        jax.jit(function)(sw.put(A, "I_x, J_y", mesh), sw.put(B, "J_y, K", mesh))


def test_wrong_numbers_ranks_and_sizes_are_refused():
    body = lambda *arrays: sw.spmd.einsum("A[I, J_x] · B[J_x, K] -> C[I, K]", *arrays)  # noqa: E731
    assert "the equation has 2 operands (A, B), and 1 array given" in refused(ArrayError, body, A)
    assert "has 2 dimensions as written, but 1 as given" in refused(ArrayError, body, A, B[0])
    assert "dimension J has size 128 in A and size 64 in B" in refused(NotationError, body, A, B[:16])
    assert "reshard changes the layout of one array" in refused(
        NotationError, lambda a: sw.spmd.reshard(a, "A[I_x, J] -> A[I]"), A
    )


def test_a_ring_that_types_cannot_follow_is_refused_by_name():
    body = lambda a, b: sw.spmd.einsum("A[I_x] · B[K] -> C[I, K]", a, b, overlap="ring")  # noqa: E731
    said = refused(PlanError, body, A[:, 0], B[0, :3], specs=(P("x"), P()))
    assert "overlap='ring': here the result has to be typed as equal on the devices of a ring" in said


@pytest.mark.parametrize(("part", "said"), [("x=2", "x a line of 2 (2 apart)"), ("y=8", "y a line of 4 x line of 2")])
def test_a_part_of_a_mesh_lies_on_the_standard_slice_of_the_whole(part, said):
    """Not on that of its own devices: of 16 chips x has one side, and y what is left."""
    site = hardware_along(jax.sharding.AbstractMesh((2, 8), ("x", "y")), sw.Mesh.parse(part), "tpu-v6e")
    assert site.topology == sw.Topology.parse("v6e:4x4")
    routes = physical_routes(site.topology, site.positions, sw.Mesh.parse(part))
    assert [route.says for route in routes.values()] == [said]


def test_a_part_of_a_mesh_lies_on_the_topology_that_is_named_for_it():
    mesh = jax.sharding.AbstractMesh((4, 2), ("x", "y"))
    assert hardware_along(mesh, sw.Mesh.parse("x=4"), "v5e:2x2") == "v5e:2x2"
