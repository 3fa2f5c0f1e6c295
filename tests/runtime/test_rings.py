"""Rings are their einsum: values, derivatives, the same bits on every run and replica, whatever the schedule."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from shardwise.mesh import Sides
from shardwise.runtime.rings import (
    einsum_gather,
    einsum_scatter,
    einsums_scatter,
    gather_einsum,
    gather_einsums,
    rotate_einsum,
)
from shardwise.schedule.strands import begun, gathering, rotating


@dataclass(frozen=True)
class Case:
    """A collective matmul: equation and layouts as `I_x J, J K -> I K`, what is done along which dimension, and how."""

    layouts: str
    dim: str
    gathered: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    checked: bool = True
    axes: tuple[str, ...] = ("x",)
    pipelined: bool = False  # multiply first, and gather the result

    @property
    def terms(self) -> list[str]:
        return ["".join(dim[0] for dim in term.split()) for term in self.layouts.replace("->", ",").split(",")]

    @property
    def specs(self) -> list[PartitionSpec]:
        found = []
        for term in self.layouts.replace("->", ",").split(","):
            split = [tuple(dim[2:]) or None for dim in term.split()]
            found.append(PartitionSpec(*split))
        return found

    @property
    def equation(self) -> str:
        return ",".join(self.terms[:-1]) + "->" + self.terms[-1]

    def on(self, mesh: Mesh) -> Callable[..., Any]:
        n = int(np.prod([mesh.shape[axis] for axis in self.axes]))
        shared = {"dim": self.dim, "axes": self.axes, "n": n} | dict(self.options)

        def local(*shards: Any) -> Any:
            if self.pipelined:
                options = {name: value for name, value in shared.items() if name not in ("save", "accumulate")}
                return einsum_gather(shards, self.terms[:-1], self.terms[-1], **options)
            if self.gathered is None:
                return einsum_scatter(shards, self.terms[:-1], self.terms[-1], **shared)
            return gather_einsum(shards, self.terms[:-1], self.terms[-1], gathered=self.gathered, **shared)

        *ins, out = self.specs
        return jax.shard_map(local, mesh=mesh, in_specs=tuple(ins), out_specs=out, check_vma=self.checked)

    def sizes(self, n: int, each: int) -> dict[str, int]:
        """Every dimension a multiple of the axis; the one of the ring has `each` on a device."""
        dims = dict.fromkeys("".join(self.terms))
        return {dim: n * each if dim == self.dim else n * (1 + k % 2) for k, dim in enumerate(dims)}


def mesh_of(**sizes: int) -> Mesh:
    count = int(np.prod(list(sizes.values())))
    return Mesh(np.array(jax.devices()[:count]).reshape(tuple(sizes.values())), tuple(sizes))


def whole(rng: np.random.Generator, term: str, sizes: Mapping[str, int], dtype: Any) -> np.ndarray:
    """Few and small integers: every sum of their products is exact in every dtype, in any order."""
    shape = tuple(sizes[dim] for dim in term)
    return (rng.integers(-1, 2, shape) * (rng.random(shape) < 0.5)).astype(dtype)


def derivatives(equation: str, arrays: list[np.ndarray], cotangent: np.ndarray) -> list[np.ndarray]:
    """The einsum, and its derivative by each operand: an einsum of the cotangent with the others."""
    wide = [np.asarray(array, np.float64) for array in (*arrays, cotangent)]
    left, out = equation.split("->")
    terms = left.split(",")
    found = [np.einsum(equation, *wide[:-1])]
    for k, term in enumerate(terms):
        others = [*terms[:k], *terms[k + 1 :], out]
        ones = np.ones(arrays[k].shape)  # for what is summed alone
        found.append(np.einsum(",".join([*others, term]) + "->" + term, *wide[:k], *wide[k + 1 :], ones))
    return found


def value_and_derivatives(function: Callable[..., Any]) -> Callable[..., Any]:
    def both(arrays: Any, cotangent: Any) -> Any:
        value, pull = jax.vjp(function, *arrays)
        return [value, *pull(cotangent)]

    return both


def check(case: Case, mesh: Mesh, sizes: Mapping[str, int], dtype: Any = np.float32, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    *arrays, cotangent = [whole(rng, term, sizes, dtype) for term in case.terms]
    made = jax.jit(value_and_derivatives(case.on(mesh)))(*placed(case, mesh, arrays, cotangent))
    for got, right in zip(made, derivatives(case.equation, arrays, cotangent), strict=True):
        same(case, got, right)


def same(case: Case, got: Any, right: np.ndarray) -> None:
    """Equal; of an unchecked map JAX divides the cotangent by the number of replicas, which is not exact for 3."""
    rounding = 0.0 if case.checked else 8 * float(jnp.finfo(got.dtype).eps)
    np.testing.assert_allclose(np.asarray(got, np.float64), right, rtol=rounding, atol=rounding, err_msg=str(case))


def placed(case: Case, mesh: Mesh, arrays: list[np.ndarray], cotangent: np.ndarray) -> tuple[list[Any], Any]:
    *laid, last = (jax.device_put(v, NamedSharding(mesh, s)) for v, s in zip((*arrays, cotangent), case.specs, strict=True))
    return laid, last


AG = Case("I_x J, J K -> I K", "I", gathered=0, checked=False)
UP = Case("I_x J, J K_x -> I K_x", "I", gathered=0)
WEIGHTS = Case("B_x D, D_x F -> B_x F", "D", gathered=1)
DOWN = Case("I J_x, J_x K -> I_x K", "I")
PIPELINED = Case("I_x J, J K -> I K", "I", checked=False, pipelined=True)
WAYS = [{"way": way, "chunks": chunks} for way in ("ring", "bidirectional") for chunks in (1, 2, 3)]
WAYS += [{"way": "folded", "chunks": 2}]
TORI = {4: Sides((2, 2), (0, 1, 3, 2)), 8: Sides((2, 2, 2), (0, 1, 3, 2, 6, 7, 5, 4)), 9: Sides((3, 3), (*range(9),))}


@functools.cache
def all_kinds(n: int, dtype: Any, on: str) -> tuple[list[tuple[Case, dict[str, int]]], Any]:
    """All kinds with odd and even blocks, each with another schedule, in one compiled function."""
    tori = [{"way": TORI[n], "chunks": chunks} for chunks in (1, 2)] if on == "a torus" else []
    found, ways = [], itertools.cycle(tori or WAYS[n % 6 :] + WAYS[: n % 6])
    for number, (kind, each) in enumerate(itertools.product((AG, UP, WEIGHTS, DOWN, PIPELINED), (3, 4))):
        options = next(ways) | {"save": number % 3 != 0}
        case = replace(kind, options=options)
        found.append((case, case.sizes(n, each)))
    functions = [value_and_derivatives(case.on(mesh_of(x=n))) for case, _ in found]
    return found, jax.jit(lambda given: [f(*args) for f, args in zip(functions, given, strict=True)])


# What is sent and multiplied for every number of devices is held against the schedule in `test_schedules.py`.
DTYPES = {2: jnp.float32, 3: jnp.bfloat16, 4: jnp.float32, 5: jnp.bfloat16, 8: jnp.float32}


@pytest.mark.parametrize(
    ("n", "dtype", "on"),
    [*((n, dtype, "a ring") for n, dtype in (*DTYPES.items(), (4, jnp.bfloat16))), (4, jnp.bfloat16, "a torus"),
     (8, jnp.float32, "a torus")],
)  # fmt: skip
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=8)
def test_values_and_derivatives_are_those_of_the_einsum(n: int, dtype: Any, on: str, seed: int):
    cases, function = all_kinds(n, dtype, on)
    rng = np.random.default_rng(seed)
    drawn = [[whole(rng, term, sizes, dtype) for term in case.terms] for case, sizes in cases]
    laid = [placed(case, mesh_of(x=n), arrays[:-1], arrays[-1]) for (case, _), arrays in zip(cases, drawn, strict=True)]
    results = function(laid)
    for (case, _), arrays, made in zip(cases, drawn, results, strict=True):
        for got, right in zip(made, derivatives(case.equation, arrays[:-1], arrays[-1]), strict=True):
            same(case, got, right)
            assert got.dtype == dtype


@pytest.mark.parametrize(
    "case",
    [
        Case("G I_x J, G J K -> G I K", "I", gathered=0, checked=False),  # a batch dimension
        Case("B_x I J, B J K -> B I K", "B", gathered=0, checked=False),  # which is gathered
        Case("I J, J K_x -> K I", "K", gathered=1, checked=False),  # the other operand, and a transposed result
        Case("I_x J_y, J K -> I_x K", "J", gathered=0, axes=("y",), checked=False),  # contracted, of the first operand
        Case("I_x J, J K, K L_x -> I L_x", "I", gathered=0),  # three operands
        Case("I_x J M, J K_x -> I K_x", "I", gathered=0),  # M is summed alone
        Case("I_x K -> I K", "I", gathered=0, checked=False),  # no matmul at all: an all-gather, block by block
        Case("I J_x, J_x K -> I K_x", "K"),
        Case("B I J_x, B J_x K -> B_x I K", "B"),
        Case("I J_x, J_x K, J_x -> K I_x", "I", options={"way": "ring"}),
    ],
    ids=lambda case: case.layouts,
)
def test_any_einsum(case: Case):
    mesh = mesh_of(x=2, y=4) if case.axes == ("y",) else mesh_of(x=4)
    check(case, mesh, case.sizes(4, 3))


def test_small_blocks_are_cut_along_another_dimension():
    case = Case("I J_x, J_x K -> I_x K", "I", options={"chunks": 2})
    check(case, mesh_of(x=2), {"I": 10, "J": 4, "K": 1024})
    text = jax.jit(case.on(mesh_of(x=2))).lower(*shapes(case, mesh_of(x=2), {"I": 10, "J": 4, "K": 1024})).as_text("hlo")
    assert "f32[5,256]" in text


@pytest.mark.parametrize("axes", [("x", "y"), ("y", "x")], ids=["xy", "yx"])
def test_a_ring_over_two_axes(axes: tuple[str, str]):
    both = "".join(axes)
    check(
        Case(f"I_{both} J, J K_{both} -> I K_{both}", "I", gathered=0, axes=axes), mesh_of(x=2, y=3), {"I": 18, "J": 2, "K": 6}
    )
    check(Case(f"I J_{both}, J_{both} K -> I_{both} K", "I", axes=axes), mesh_of(x=2, y=3), {"I": 18, "J": 12, "K": 2})


@pytest.mark.parametrize("options", WAYS[:2] + WAYS[3:5], ids=str)
def test_a_long_ring_is_a_loop(options: dict[str, Any]):
    for kind in (UP, WEIGHTS, DOWN):
        case = Case(kind.layouts, kind.dim, kind.gathered, options | {"unroll": 2}, kind.checked)
        mesh = mesh_of(x=8)
        assert " while(" in jax.jit(case.on(mesh)).lower(*shapes(case, mesh, case.sizes(8, 2))).as_text("hlo")
        check(case, mesh, case.sizes(8, 2))


def shapes(case: Case, mesh: Mesh, sizes: Mapping[str, int]) -> list[Any]:
    return [
        jax.ShapeDtypeStruct(tuple(sizes[d] for d in term), jnp.float32, sharding=NamedSharding(mesh, spec))
        for term, spec in zip(case.terms[:-1], case.specs[:-1], strict=True)
    ]


@pytest.mark.parametrize("case", [AG, UP, WEIGHTS, DOWN], ids=["AG", "TP-up", "weights", "RS"])
def test_the_same_bits_on_every_run_and_replica(case: Case):
    mesh, rng = mesh_of(x=4), np.random.default_rng(5)
    sizes = case.sizes(4, 5)
    arrays = [rng.standard_normal([sizes[d] for d in term]).astype(np.float32) for term in case.terms]
    laid, cotangent = placed(case, mesh, arrays[:-1], arrays[-1])
    function = jax.jit(value_and_derivatives(case.on(mesh)))
    once, again = function(laid, cotangent), function(laid, cotangent)
    for first, second in zip(once, again, strict=True):
        np.testing.assert_array_equal(np.asarray(first), np.asarray(second))
        for part in first.addressable_shards:
            np.testing.assert_array_equal(np.asarray(part.data), np.asarray(first)[part.index])


ON_A_TORUS = [replace(case, options={"way": TORI[4]}) for case in (UP, WEIGHTS, DOWN, PIPELINED)]


@pytest.mark.parametrize(
    ("case", "n"),
    [*((case, 3) for case in (AG, UP, WEIGHTS, DOWN)), *((case, 4) for case in ON_A_TORUS)],
    ids=["AG", "TP-up", "weights", "RS", *(f"{name} on a torus" for name in ("TP-up", "weights", "RS", "pipelined"))],
)
def test_second_derivatives(case: Case, n: int):
    mesh, rng = mesh_of(x=n), np.random.default_rng(1)
    sizes = case.sizes(n, 2)
    *arrays, cotangent = [rng.standard_normal([sizes[d] for d in term]).astype(np.float32) for term in case.terms]

    def curved(function: Callable[..., Any]) -> Callable[..., Any]:
        inner = jax.grad(lambda a, b, c: (jnp.sin(function(a, b)) * c).sum())
        return jax.jit(jax.grad(lambda a, b, c: (inner(a, b, c) ** 2).sum(), (0, 1)))

    right = curved(functools.partial(jnp.einsum, case.equation))(*arrays, cotangent)
    laid, last = placed(case, mesh, arrays, cotangent)
    for got, expected in zip(curved(case.on(mesh))(*laid, last), right, strict=True):
        np.testing.assert_allclose(np.asarray(got), np.asarray(expected), rtol=2e-5, atol=2e-5)


def test_running_sums_in_float32_are_nearer():
    mesh, rng = mesh_of(x=8), np.random.default_rng(2)
    arrays = [rng.standard_normal(shape).astype(jnp.bfloat16) for shape in ((16, 512), (512, 16))]
    errors = []
    for options in ({}, {"accumulate": jnp.float32}):
        case = Case(WEIGHTS.layouts, "D", 1, options)
        laid, _ = placed(case, mesh, arrays, np.zeros((16, 16), np.float32))
        made = np.asarray(jax.jit(case.on(mesh))(*laid), np.float64)
        errors.append(np.abs(made - np.asarray(arrays[0], np.float64) @ np.asarray(arrays[1], np.float64)).mean())
        assert jax.jit(case.on(mesh))(*laid).dtype == jnp.bfloat16
    assert errors[1] < errors[0]


@given(st.integers(1, 9), st.sampled_from(["ring", "bidirectional", "folded"]), st.integers(1, 4), st.integers(1, 7))
def test_every_block_arrives_once(n: int, way: Any, chunks: int, width: int):
    seen = [(0, row) for row in range(width)]
    for strand in gathering(n, way, chunks, width):
        seen += [(-strand.way * hop % n, row) for hop in range(1, strand.hops + 1) for row in range(*strand.span)]
    assert sorted(seen) == [(away, row) for away in range(n) for row in range(width)]


@given(st.lists(st.integers(2, 5), min_size=1, max_size=3), st.integers(1, 7), st.booleans())
def test_on_a_torus_every_part_comes_once_and_no_link_carries_two_in_a_round(sizes: list[int], parts: int, made: bool):
    rounds, n = rotating(tuple(sizes), parts, made), math.prod(sizes)
    have = {(part, 0) for part in range(parts)}
    for number, moves in enumerate(rounds):
        assert all((move.part, move.sent) in have for move in moves)
        assert not made or all(move.part <= number for move in moves)
        assert len({(move.side, move.way) for move in moves}) == len(moves)
        come = [(move.part, move.come) for move in moves]
        assert have.isdisjoint(come)
        have |= set(come)
    assert sorted(have) == [(part, away) for part in range(parts) for away in range(n)]
    sent = [move for moves in begun(rounds, parts, made) for move in moves]
    assert sorted(sent) == sorted(move for moves in rounds for move in moves)


@pytest.mark.parametrize(("sizes", "rounds"), [((2, 2, 2), 7), ((4, 4), 8), ((3, 3), 4), ((4, 4, 4), 32)])
def test_a_torus_of_equal_sides_keeps_all_its_links_busy(sizes: tuple[int, ...], rounds: int):
    links = len(sizes) * (1 if sizes[0] == 2 else 2)
    made = rotating(sizes, len(sizes))
    assert len(made) == rounds == math.ceil(len(sizes) * (math.prod(sizes) - 1) / links)
    assert len(rotating(sizes, 2 * len(sizes))) <= 2 * rounds


GRIDS = [(2, 2), (1, 3), (2, 4), (4, 2), (2, 3), (1, 1)]


def rotation(mesh: Mesh, **options: Any) -> Callable[..., Any]:
    """A[I_x, J_y] · B[J_x, K_y] -> C[I_x, K_y]."""
    shared = {"dim": "J", "axes": ("y", "x"), "n": (mesh.shape["y"], mesh.shape["x"])} | options
    both = PartitionSpec("x", "y")
    local = lambda a, b: rotate_einsum([a, b], ["IJ", "JK"], "IK", **shared)  # noqa: E731
    return jax.shard_map(local, mesh=mesh, in_specs=both, out_specs=both)


@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("names", ["xy", "yx"])
def test_both_operands_rotate(grid: tuple[int, int], names: str):
    sizes = dict(zip("xy", grid, strict=True))
    mesh = mesh_of(**{name: sizes[name] for name in names})
    case = Case("I_x J_y, J_x K_y -> I_x K_y", "J")
    rng = np.random.default_rng(3)
    extents = {"I": 2 * grid[0], "J": 12, "K": 3 * grid[1]}
    *arrays, cotangent = [whole(rng, term, extents, np.float32) for term in case.terms]
    made = jax.jit(value_and_derivatives(rotation(mesh)))(*placed(case, mesh, arrays, cotangent))
    for got, right in zip(made, derivatives(case.equation, arrays, cotangent), strict=True):
        same(case, got, right)


def test_a_rotation_has_second_derivatives():
    mesh, rng = mesh_of(x=2, y=2), np.random.default_rng(4)
    a, b = (rng.standard_normal((4, 4)).astype(np.float32) for _ in range(2))

    def curved(function: Callable[..., Any]) -> Callable[..., Any]:
        inner = jax.grad(lambda a, b: jnp.sin(function(a, b)).sum())
        return jax.jit(jax.grad(lambda a, b: (inner(a, b) ** 2).sum(), (0, 1)))

    laid = [jax.device_put(array, NamedSharding(mesh, PartitionSpec("x", "y"))) for array in (a, b)]
    for got, right in zip(curved(rotation(mesh))(*laid), curved(jnp.matmul)(a, b), strict=True):
        np.testing.assert_allclose(np.asarray(got), np.asarray(right), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("way", ["ring", "bidirectional"])
@pytest.mark.parametrize("chunks", [1, 2])
def test_several_matmuls_in_one_ring_are_each_of_them(way: str, chunks: int):
    """Of other sizes where only they have a dimension: gathered once, and added up as one sum; so are their derivatives."""
    mesh, rng, spec = mesh_of(x=3), np.random.default_rng(0), PartitionSpec
    widths = (6, 3, 9)
    a = whole(rng, "IJ", {"I": 12, "J": 6}, np.float32)
    weights = [whole(rng, "JK", {"J": 6, "K": width}, np.float32) for width in widths]
    back = [whole(rng, "KJ", {"K": width, "J": 6}, np.float32) for width in widths]
    how = {"axes": "x", "n": 3, "way": way, "chunks": chunks}

    def local(a: Any, weights: Any, back: Any) -> Any:
        *made, kept = gather_einsums(
            [[a, w] for w in weights], ["IJ", "JK"], "IK", gathered=0, dim="I", **how, keep=True
        )  # fmt: skip
        total = einsums_scatter([*zip(made, back, strict=True)], ["IK", "KJ"], "IJ", dim="I", **how)
        return total, kept

    ring = jax.shard_map(
        local, mesh=mesh, in_specs=(spec("x"), spec(None, "x"), spec("x")), out_specs=(spec("x"), spec()), check_vma=False
    )

    def plain(a: Any, weights: Any, back: Any) -> Any:
        return sum(a @ w @ b for w, b in zip(weights, back, strict=True)), a

    def loss(function: Any, *args: Any) -> Any:
        return sum((each * each).sum() for each in function(*args))

    for got, want in zip(jax.jit(ring)(a, weights, back), plain(a, weights, back), strict=True):
        np.testing.assert_array_equal(got, want)
    slopes, wanted = (jax.jit(jax.grad(functools.partial(loss, f), argnums=(1, 2)))(a, weights, back) for f in (ring, plain))
    for got, want in zip(jax.tree.leaves(slopes), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_array_equal(got, want)
