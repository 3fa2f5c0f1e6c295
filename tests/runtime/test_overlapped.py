"""Overlap asked for by name: the same values, derivatives and bits, from `sw.einsum` and from every candidate of a plan.

Where numbers are small and whole no sum is rounded, whatever its order, and equal means equal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

import shardwise as sw
from benchmarks.equations import Case, gradient, random_arrays, random_case, whole
from shardwise.errors import PlanError
from shardwise.layout import Layout
from shardwise.notation import Equation, parse
from shardwise.planning.fuse import names_of
from shardwise.planning.problem import Problem, problem
from shardwise.planning.ranking import Candidate, rank
from shardwise.runtime.execute import planned_function
from shardwise.steps import EinsumGather, GatherEinsum

pytestmark = pytest.mark.usefixtures("caches_cleared_afterwards")

NAMES = ("ring", "bidirectional", "folded", "scatter", "rotate")
TYPES = [AxisType.Explicit, AxisType.Auto]
BLOCKS, DRAWN = 8, 8  # random equations: so many tests of so many


@dataclass(frozen=True)
class Known:
    """An equation on a mesh, and the names of `overlap=` that it has."""

    name: str
    text: str
    mesh: str
    sizes: tuple[tuple[str, int], ...]
    has: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name} {self.mesh.replace(' ', '')}"

    @property
    def equation(self) -> Equation:
        return parse(self.text)

    def arrays(self, seed: int = 0) -> list[np.ndarray]:
        """Whole numbers of which some are 0."""
        case = Case(self.equation, dict(self.sizes), sw.Mesh.parse(self.mesh), "cpu")
        return random_arrays(Random(seed), case, np.float32, 2)

    def rough(self, seed: int = 0) -> list[np.ndarray]:
        """Numbers whose sums are rounded."""
        rng = np.random.default_rng(seed)
        return [rng.standard_normal(array.shape).astype(np.float32) for array in self.arrays()]

    def placed(self, arrays: list[np.ndarray], axis_types: AxisType = AxisType.Explicit) -> list[jax.Array]:
        mesh = sw.make_mesh(self.mesh, axis_types=axis_types)
        return [sw.put(array, o.layout, mesh) for array, o in zip(arrays, self.equation.operands, strict=True)]

    def einsum(self, overlap: str, mesh: Any = None, **options: Any) -> Callable[..., jax.Array]:
        chosen = mesh or sw.make_mesh(self.mesh)
        return lambda *arrays: sw.einsum(self.text, *arrays, mesh=chosen, overlap=overlap, **options)

    def unsharded(self, *arrays: Any, einsum: Any = jnp.einsum) -> Any:
        return whole(self.equation, arrays, einsum)


def known(name: str, text: str, mesh: str, has: str, **sizes: int) -> Known:
    return Known(name, text, mesh, tuple(sizes.items()), tuple(has.split()))


AG = "A[I_x, J] · B[J, K] -> C[I, K]"
GRID = "A[I_x, J_y] · B[J_x, K_y] -> C[I_x, K_y]"
KNOWN = [
    known("D6", AG, "x=8", "ring bidirectional folded", I=16, J=3, K=5),
    known("D6", AG, "x=3", "ring bidirectional folded", I=9, J=4, K=2),
    known("D7", "A[I_x, J] · Y[P_x, J, K] -> C[P_x, I, K]", "x=4", "ring bidirectional scatter", I=8, P=4, J=4, K=4),
    known("D8", "A[I, J_x] · B[J_x, K] -> C[I_x, K]", "x=8", "ring bidirectional folded scatter", I=16, J=8, K=3),
    known("D8 of sums", "A[I, J_x] · B[J_x, K] -> C[I, K]", "x=4", "ring bidirectional scatter", I=8, J=8, K=4),
    known("D10", GRID, "x=4, y=2", "ring bidirectional scatter rotate", I=8, J=12, K=4),
    known("D10", GRID, "x=2, y=3", "ring bidirectional scatter rotate", I=4, J=12, K=6),
    known("TP-up", "A[I_x, J] · B[J, K_x] -> C[I, K_x]", "x=8", "ring bidirectional folded", I=16, J=4, K=8),
    known("weights", "A[B_x, D] · W[D_x, F] -> C[B_x, F]", "x=5", "ring bidirectional scatter", B=10, D=15, F=4),
    known("three", "A[I_x, J] · B[J, K] · C[K, L_x] -> D[I, L_x]", "x=4", "ring bidirectional scatter", I=8, J=4, K=4, L=8),
]
EACH = [pytest.param(each, name, id=f"{each}-{name}") for each in KNOWN for name in each.has]
FEW = [
    param
    for param in EACH
    if (param.values[0].name, param.values[1])
    in {
        ("D6", "bidirectional"),
        ("D8", "folded"),
        ("D8", "scatter"),
        ("D10", "rotate"),
        ("TP-up", "bidirectional"),
        ("weights", "ring"),
    }
]


def exactly(got: Any, wanted: Any, said: object = "") -> None:
    np.testing.assert_array_equal(np.asarray(got, np.float64), np.asarray(wanted, np.float64), err_msg=str(said))


def replicas_agree(array: jax.Array, said: object = "") -> None:
    """Bit by bit, what devices hold of the same part."""
    for shard in array.addressable_shards:
        held = np.asarray(array)[shard.index]
        assert np.asarray(shard.data).tobytes() == np.ascontiguousarray(held).tobytes(), said


def squared(function: Callable[..., Any]) -> Callable[..., Any]:
    """Not linear, and whole where the arrays are."""
    return lambda *arrays: (function(*arrays).astype(jnp.float32) ** 2).sum()


def gradients(function: Callable[..., Any], count: int) -> Callable[..., Any]:
    return jax.jit(jax.grad(squared(function), tuple(range(count))))


def gradients_of_squares(equation: Equation, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """The same by NumPy."""
    twice = 2 * whole(equation, arrays)
    return [gradient(equation, twice, arrays, at) for at in range(len(arrays))]


# Every name on the equations that it was made for.


@pytest.mark.parametrize(("case", "name"), EACH)
def test_values_gradients_and_replicas(case: Known, name: str):
    arrays = case.arrays()
    laid = case.placed(arrays)
    got = case.einsum(name)(*laid)
    exactly(got, case.unsharded(*arrays, einsum=np.einsum))
    assert Layout.from_spec(got.sharding.spec, case.equation.result.dims).on(sw.Mesh.parse(case.mesh)) == (
        case.equation.result.layout
    )
    replicas_agree(got)
    wanted = gradients_of_squares(case.equation, arrays)
    for operand, one, other in zip(
        case.equation.operands, gradients(case.einsum(name), len(arrays))(*laid), wanted, strict=True
    ):
        exactly(one, other, f"the gradient of {operand}")
        replicas_agree(one, f"the gradient of {operand}")


@pytest.mark.parametrize(("case", "name"), FEW)
def test_check_agrees(case: Known, name: str):
    found = sw.check(case.einsum(name), case.unsharded, *case.placed(case.rough()), gradients=True)
    assert found, str(found)


@pytest.mark.parametrize(("case", "name"), FEW)
def test_the_same_bits_on_two_runs_inside_jit_and_outside_and_on_every_replica(case: Known, name: str):
    laid = case.placed(case.rough())
    function = case.einsum(name)
    once = function(*laid)
    replicas_agree(once)
    for again in (function(*laid), jax.jit(function)(*laid)):
        assert np.asarray(once).tobytes() == np.asarray(again).tobytes()


@pytest.mark.parametrize(("case", "name"), FEW)
def test_under_auto_axes(case: Known, name: str):
    arrays, mesh = case.arrays(1), sw.make_mesh(case.mesh, axis_types=AxisType.Auto)
    function = case.einsum(name, mesh)
    laid, wanted = case.placed(arrays, AxisType.Auto), case.unsharded(*arrays, einsum=np.einsum)
    exactly(function(*laid), wanted)
    exactly(jax.jit(function)(*laid), wanted)


@pytest.mark.parametrize(("case", "name"), FEW)
def test_bfloat16_summed_in_float32(case: Known, name: str):
    arrays = [array.astype(jnp.bfloat16) for array in case.arrays(2)]
    laid = case.placed(arrays)
    got = case.einsum(name, preferred_element_type=jnp.float32)(*laid)
    assert got.dtype == jnp.float32
    exactly(got, case.unsharded(*(array.astype(np.float32) for array in arrays), einsum=np.einsum))
    narrow = case.einsum(name)(*laid)
    assert narrow.dtype == jnp.bfloat16
    exactly(narrow, got)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
@pytest.mark.parametrize("name", [False, "ring", "scatter"])
def test_small_integers_wrap_around_as_they_do_unsharded(name: str | bool, dtype: str):
    a, b = np.full((4, 8, 3), 20, dtype), np.full((8, 2), 100, dtype)  # L is summed in A alone, before anything moves
    text = "A[I, J_x, L] · B[J_x, K] -> C[I_x, K]"
    got = sw.einsum(text, a, b, mesh=sw.make_mesh("x=4"), overlap=name)
    wanted = jnp.einsum("ijl,jk->ik", a, b)
    assert got.dtype == wanted.dtype == dtype
    exactly(got, wanted)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8"])
def test_multiply_and_gather_with_64_bits(dtype: str):
    mesh, rng = sw.make_mesh("x=4"), np.random.default_rng(7)
    a, b = rng.integers(-2, 3, (16, 3)).astype(dtype), rng.integers(-2, 3, (3, 8)).astype(dtype)
    large = problem(parse(AG), {"I": 65536, "J": 4096, "K": 256}, "x=4", "tpu-v5e")
    program = rank(large)[0].program
    assert any(isinstance(step, EinsumGather) for step in program.steps)
    with jax.enable_x64(True):
        task = problem(parse(AG), {"I": 16, "J": 3, "K": 8}, "x=4", "tpu-v5e", dtype)
        laid = [sw.put(array, layout, mesh) for array, layout in ((a, "I_x, J"), (b, "J, K"))]
        got = planned_function(task, program, mesh)(*laid)
        assert got.dtype == dtype
        exactly(got, a.astype(np.int64) @ b.astype(np.int64))


def test_what_one_operand_alone_sums_is_summed_before_it_is_gathered():
    rng = np.random.default_rng(8)
    a, b = rng.integers(-2, 3, (2, 4)).astype(np.float32), rng.integers(-2, 3, (4, 2, 3, 2)).astype(np.float32)
    text, mesh = "A[J, I] · B[I_a, L, K, M] -> C[I]", sw.make_mesh("a=4")
    plan = sw.plan(text, sizes={"J": 2, "I": 4, "L": 2, "K": 3, "M": 2}, mesh="a=4", dtype="float32", overlap="ring")
    laid = [sw.put(a, "J, I", mesh), sw.put(b, "I_a, L, K, M", mesh)]
    for candidate in plan.candidates:
        function = plan.function(mesh, candidate=candidate)
        exactly(function(*laid), np.einsum("ji,ilkm->i", a, b))
        if any(isinstance(step, GatherEinsum) for step in candidate.program.steps):
            sent = sum(collective.wire_bytes for collective in sw.audit(function, *laid).collectives)
            assert sent == sum(cost.wire_bytes for cost in candidate.estimate.steps)


@pytest.mark.parametrize(
    ("text", "mesh", "shapes", "name"),
    [
        (AG, "x=4", [(7, 3), (3, 5)], "ring"),
        ("A[I, J_x] · B[J_x, K] -> C[I_x, K]", "x=4", [(6, 7), (7, 3)], "scatter"),
        ("A[B_x, D] · W[D_x, F] -> C[B_x, F]", "x=4", [(5, 9), (9, 2)], "bidirectional"),
        (GRID, "x=2, y=3", [(3, 7), (7, 4)], "rotate"),
    ],
)
def test_padded(text: str, mesh: str, shapes: list[tuple[int, int]], name: str):
    rng = np.random.default_rng(3)
    a, b = (rng.integers(-2, 3, shape).astype(np.float32) for shape in shapes)
    got = np.asarray(sw.einsum(text, a, b, mesh=mesh, overlap=name, pad=True))
    exactly(got[: a.shape[0], : b.shape[1]], a @ b)
    assert got.sum() == (a @ b).sum()  # what is added is zeros


@pytest.mark.parametrize("result", ["C[I, K]", "C[I, K]{U_y}"], ids=["reduced", "still partial"])
@pytest.mark.parametrize("name", ["ring", "bidirectional", "folded"])
def test_partial_sums_are_multiplied_while_others_are_gathered(name: str, result: str):
    mesh, rng = sw.make_mesh("x=4, y=2"), np.random.default_rng(4)
    partial_sums, b = rng.integers(-2, 3, (2, 8, 3)).astype(np.float32), rng.integers(-2, 3, (3, 5)).astype(np.float32)

    def made(partial_sums: Any, b: Any) -> jax.Array:
        a = sw.einsum("S[N_y, I_x, J] -> A[I_x, J]{U_y}", partial_sums)
        product = sw.einsum(f"A[I_x, J]{{U_y}} · B[J, K] -> {result}", a, b, overlap=name)
        return product if result == "C[I, K]" else sw.reshard(product, f"{result} -> C[I, K]")

    laid = [sw.put(partial_sums, "N_y, I_x, J", mesh), sw.put(b, "J, K", mesh)]
    with jax.set_mesh(mesh):
        got, slopes = made(*laid), gradients(made, 2)(*laid)
    exactly(got, partial_sums.sum(0) @ b)
    replicas_agree(got)
    for one, other in zip(slopes, gradients(lambda s, b: s.sum(0) @ b, 2)(partial_sums, b), strict=True):
        exactly(one, other)


def test_partial_sums_are_scattered_as_they_are_multiplied():
    mesh, rng = sw.make_mesh("x=4"), np.random.default_rng(5)
    partial_sums, b = rng.integers(-2, 3, (4, 8, 3)).astype(np.float32), rng.integers(-2, 3, (3, 5)).astype(np.float32)
    with jax.set_mesh(mesh):
        a = sw.einsum("S[N_x, I, J] -> A[I, J]{U_x}", partial_sums)
        got = sw.einsum("A[I, J]{U_x} · B[J, K] -> C[I_x, K]", a, b, overlap="scatter")
    exactly(got, partial_sums.sum(0) @ b)


@pytest.mark.parametrize(("case", "name"), FEW)
def test_vmap(case: Known, name: str):
    stacks = [case.arrays(seed) for seed in range(3)]
    led = [
        sw.put(np.stack(each), Layout((("Lead", ()), *operand.layout.dims)), sw.make_mesh(case.mesh))
        for operand, *each in zip(case.equation.operands, *stacks, strict=True)
    ]
    got = jax.jit(jax.vmap(case.einsum(name)))(*led)
    for one, arrays in zip(np.asarray(got), stacks, strict=True):
        exactly(one, case.unsharded(*arrays, einsum=np.einsum))


@pytest.mark.parametrize(("case", "name"), FEW[-2:])
def test_second_derivatives(case: Known, name: str):
    arrays = case.rough(6)

    def curved(function: Callable[..., Any]) -> Callable[..., Any]:
        inner = jax.grad(lambda a, b: jnp.sin(function(a, b)).sum())
        return jax.jit(jax.grad(lambda a, b: (inner(a, b) ** 2).sum(), (0, 1)))

    right = curved(case.unsharded)(*arrays)
    for got, expected in zip(curved(case.einsum(name))(*case.placed(arrays)), right, strict=True):
        np.testing.assert_allclose(np.asarray(got), np.asarray(expected), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("case", KNOWN, ids=str)
def test_names_that_an_equation_lacks_are_refused(case: Known):
    folding = {"folded"} if "ring" in case.has else set()  # every ring may fold; `has` names it where that is tried
    for name in set(NAMES) - set(case.has) - folding:
        with pytest.raises(PlanError, match=f"overlap='{name}': no program of this equation has it: it has "):
            case.einsum(name)(*case.arrays())


def test_without_overlap_nothing_is_fused():
    case = KNOWN[0]
    laid = case.placed(case.arrays())
    exactly(case.einsum(False)(*laid), case.unsharded(*case.arrays(), einsum=np.einsum))
    assert "ppermute" in str(jax.make_jaxpr(case.einsum("ring"))(*laid))
    assert "ppermute" not in str(jax.make_jaxpr(case.einsum(False))(*laid))


def test_summed_alone_while_another_is_gathered():
    a, b = np.arange(24.0, dtype=np.float32).reshape(8, 3), np.arange(12.0, dtype=np.float32).reshape(3, 4)
    with pytest.raises(PlanError, match="no program of this equation has it"):
        sw.einsum("A[I_x, J] · B[J, K] -> C[J, K]", a, b, mesh="x=4", overlap="rotate")
    got = sw.einsum("A[I, J_x] · B[J_x, K] -> C[K]", a[:, :2], b[:2], mesh="x=2", overlap="scatter")
    exactly(got, np.einsum("ij,jk->k", a[:, :2], b[:2]))


# Random equations.


def forced(random: Random) -> tuple[Case, Problem, Candidate]:
    """A random equation with the name of an overlap that it has, and one of the programs that have it."""
    while True:
        case = random_case(random, elements=1000, factors=(1, 2, 3), operands=(1, 2, 2, 2, 3), axes=2, free=0.0)
        name = random.choice(NAMES)
        try:
            task = problem(parse(str(case.equation)), case.sizes, case.mesh, case.hardware, "float32", overlap=name)
            return case, task, random.choice(rank(task))
        except PlanError:
            continue


@pytest.mark.parametrize("block", range(BLOCKS))
def test_random_equations_by_random_candidates(block: int):
    for number in range(DRAWN):
        random = Random(f"forced {block} {number}")
        case, task, candidate = forced(random)
        assert any(task.overlap in names_of(step) for step in candidate.program.steps)
        arrays, mesh = random_arrays(random, case, np.float32, 2), sw.make_mesh(case.mesh, axis_types=random.choice(TYPES))
        laid = [sw.put(array, o.layout, mesh) for array, o in zip(arrays, case.equation.operands, strict=True)]
        function = planned_function(task, candidate.program, mesh)
        said = f"{case} overlap={task.overlap}, {mesh.axis_types[0]}:\n{candidate.program}"
        got = function(*laid)
        exactly(got, whole(case.equation, arrays), said)
        replicas_agree(got, said)
        if number % 4 == 0 and np.abs(whole(case.equation, [np.abs(array) for array in arrays])).max() < 500:
            wanted = gradients_of_squares(case.equation, arrays)
            for one, other in zip(gradients(function, len(arrays))(*laid), wanted, strict=True):
                exactly(one, other, f"the gradients of {said}")


def test_enough_equations_are_drawn():
    assert BLOCKS * DRAWN >= 60
