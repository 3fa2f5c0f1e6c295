"""Bad input at the doors that run: arrays, meshes, devices and options that do not fit are refused, none in silence."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import shardwise as sw
from shardwise.errors import (
    ArrayError,
    DeviceError,
    HardwareError,
    LayoutError,
    MeshError,
    NotationError,
    PlanError,
    ShardwiseError,
)

SOURCE = Path(__file__).parents[2] / "src"
EQUATION = "A[I_x, J] · B[J, K] -> C[I_x, K]"
AXES = "`_` introduces mesh axes, and dimension names hold none: use an axis of the mesh, or write dModel for d_model"
NO_MESH = (
    "no mesh is given, none is in force, and no array lives on one: give mesh=sw.make_mesh('x=4'), "
    "or put one in force with jax.set_mesh(mesh)"
)
A = np.arange(32, dtype=np.float32).reshape(8, 4)
B = np.arange(32, dtype=np.float32).reshape(4, 8)
CONTEXT = ["  arrays: float32[8, 4], float32[4, 8]", "  mesh: x=4, y=2"]


def refusal(error: type[ShardwiseError], act: Callable[[], Any]) -> str:
    with pytest.raises(ShardwiseError) as caught:
        act()
    assert type(caught.value) is error
    return str(caught.value)


@pytest.fixture(scope="module")
def mesh() -> jax.sharding.Mesh:
    return sw.make_mesh("x=4, y=2")


@pytest.fixture(scope="module")
def auto() -> jax.sharding.Mesh:
    return sw.make_mesh("x=4, y=2", axis_types=AxisType.Auto)


# Arrays that do not fit the equation. The first line is the reason; the door adds equation, arrays and mesh.


def test_a_refused_einsum_is_told_line_by_line(mesh: jax.sharding.Mesh):
    assert refusal(NotationError, lambda: sw.einsum("A[I_X, J] · B[J, K] -> C[I, K]", A, B, mesh=mesh)).split("\n") == [
        "A[I_X, J] · B[J, K] -> C[I, K]: the mesh has no axis 'X': it has x, y (did you mean 'x'?)",
        f"    ^  {AXES}",
        *CONTEXT,
    ]
    assert refusal(LayoutError, lambda: sw.einsum(EQUATION, A[:7], B, mesh=mesh)).split("\n") == [
        "A[I_x, J]: dimension I has size 7, which mesh axis x=4 does not divide: "
        "pad=True pads it to 8 (in sw.put, sw.einsum and sw.random), or use another layout",
        f"  equation: {EQUATION}",
        "  arrays: float32[7, 4], float32[4, 8]",
        "  mesh: x=4, y=2",
    ]


NUMBERS = "numbers are needed, as float32 or int8"
NO_ARRAY = "is no array: give a NumPy or JAX array, or lists of numbers; files to sw.put"

ARRAYS = [
    pytest.param((A,), ArrayError, "the equation has 2 operands (A, B), and 1 array is given: give one for each", id="too few"),
    pytest.param(
        (A, B, B), ArrayError, "the equation has 2 operands (A, B), and 3 arrays are given: give one for each", id="too many"
    ),
    pytest.param((), ArrayError, "the equation has 2 operands (A, B), and 0 arrays are given: give one for each", id="none"),
    pytest.param(
        (A[0], B),
        ArrayError,
        "array A[I_x, J] has 2 dimensions as written, but 1 as given, of shape (4,)",
        id="wrong rank",
    ),
    pytest.param((1.5, B), ArrayError, "array A[I_x, J] has 2 dimensions as written, but 0 as given, of shape ()", id="scalar"),
    pytest.param(
        (A, B[:2]),
        NotationError,
        "dimension J has size 4 in A and size 2 in B: a dimension has one size everywhere",
        id="size mismatch",
    ),
    pytest.param(
        (A[:0], B),
        ArrayError,
        "array A is empty: dimension I has size 0, so there is nothing to compute",
        id="empty",
    ),
    pytest.param((A.astype(str), B), ArrayError, f"array A has dtype <U32: {NUMBERS}", id="strings"),
    pytest.param((A, B.astype(object)), ArrayError, f"array B has dtype object: {NUMBERS}", id="objects"),
    pytest.param((A.astype("M8[s]"), B), ArrayError, f"array A has dtype datetime64[s]: {NUMBERS}", id="dates"),
    pytest.param((A > 3, B), ArrayError, "array A is of bool, which has no sums", id="booleans in a matmul"),
    pytest.param((None, B), ArrayError, f"NoneType {NO_ARRAY}", id="None"),
    pytest.param(("a.npy", B), ArrayError, f"str {NO_ARRAY}", id="a file's name"),
    pytest.param(({"A": A}, B), ArrayError, f"dict {NO_ARRAY}", id="a dict"),
    pytest.param((jax.ShapeDtypeStruct((8, 4), "float32"), B), ArrayError, f"ShapeDtypeStruct {NO_ARRAY}", id="no values"),
    pytest.param(
        ([[1, 2], [3]], B),
        ArrayError,
        "a list of rows of different lengths is no array: give rows of one length",
        id="ragged lists",
    ),
    pytest.param(
        (np.ma.masked_less(A, 3), B),
        ArrayError,
        "a masked array would lose its mask: fill it first, as array.filled(0)",
        id="masked",
    ),
    pytest.param(
        (A.astype(np.longdouble), B),
        ArrayError,
        f"array A has dtype {np.dtype(np.longdouble)}, which JAX does not have: convert it first",
        id="long double",
        marks=pytest.mark.skipif(np.dtype(np.longdouble).itemsize == 8, reason="long double is float64 here"),
    ),
]


@pytest.mark.parametrize(("arrays", "error", "reason"), ARRAYS)
def test_arrays_that_do_not_fit(arrays: tuple[Any, ...], error: type[ShardwiseError], reason: str, mesh: jax.sharding.Mesh):
    first, second, *_ = refusal(error, lambda: sw.einsum(EQUATION, *arrays, mesh=mesh)).split("\n")
    assert first.startswith(reason)
    assert second == f"  equation: {EQUATION}"


def test_keys_of_random_numbers_are_no_numbers(mesh: jax.sharding.Mesh):
    keys = jax.random.split(jax.random.key(0), 4)
    assert refusal(ArrayError, lambda: sw.einsum("A[I_x] -> A[I]", keys, mesh=mesh)).startswith("array A has dtype key<fry>")


# Arrays that live elsewhere: nothing is moved in silence, and the call that moves it is offered.


def test_an_array_laid_out_otherwise_than_written(mesh: jax.sharding.Mesh):
    a = sw.put(A, "A[I_x, J]", mesh)
    assert refusal(ArrayError, lambda: sw.einsum("A[I, J_x] · B[J, K] -> C[I, K]", a, B)).split("\n")[0] == (
        "array A is laid out as A[I_x, J], and the equation says A[I, J_x]: "
        'move it first, sw.reshard(a, "A[I_x, J] -> A[I, J_x]")'
    )
    moved = sw.reshard(a, "A[I_x, J] -> A[I, J_x]")
    assert sw.einsum("A[I, J_x] · B[J, K] -> C[I, K]", moved, B).shape == (8, 8)


def test_an_array_split_over_the_axes_in_another_order(mesh: jax.sharding.Mesh):
    a = sw.put(A, "A[I_{x,y}, J]", mesh)
    assert 'sw.reshard(a, "A[I_{x,y}, J] -> A[I_{y,x}, J]")' in refusal(
        ArrayError, lambda: sw.reshard(a, "A[I_{y,x}, J] -> A[I, J]")
    )


def test_an_array_on_another_mesh(mesh: jax.sharding.Mesh):
    b = sw.put(B, "B[J, K]", sw.make_mesh("y=2"))
    assert refusal(ArrayError, lambda: sw.einsum(EQUATION, A, b, mesh=mesh)).split("\n")[0] == (
        "array B lives on another mesh, y=2, and the equation says B[J, K] on mesh x=4, y=2: "
        'place it first, sw.put(b, "B[J, K]", mesh)'
    )


def test_an_array_on_other_devices_of_an_equal_mesh():
    a = sw.put(A, "A[I_x, J]", sw.make_mesh("x=4", devices=jax.devices()[:4]))
    other = sw.make_mesh("x=4", devices=jax.devices()[4:])
    assert refusal(ArrayError, lambda: sw.einsum("A[I_x, J] -> A[I, J]", a, mesh=other)).split("\n")[0] == (
        "array A lives on other devices, of another mesh x=4, and the equation says A[I_x, J] on mesh x=4: "
        'place it first, sw.put(a, "A[I_x, J]", mesh)'
    )


def test_an_array_on_one_device(mesh: jax.sharding.Mesh):
    a = jax.device_put(A, jax.devices()[3])
    first = refusal(ArrayError, lambda: sw.einsum(EQUATION, a, B, mesh=mesh)).split("\n")[0]
    assert first.startswith("array A lives on ")
    assert first.endswith(' on mesh x=4, y=2: place it first, sw.put(a, "A[I_x, J]", mesh)')
    assert "equation says A[I_x, J]" in first


def test_an_array_of_another_layout_inside_jit_under_explicit_axes(mesh: jax.sharding.Mesh):
    a = sw.put(A, "A[I_x, J]", mesh)
    with jax.set_mesh(mesh):
        message = refusal(ArrayError, lambda: jax.jit(lambda a: sw.einsum("A[I, J_x] -> S[I]", a))(a))
    assert 'sw.reshard(a, "A[I_x, J] -> A[I, J_x]")' in message


# Equations and options of einsum and reshard.

SHORT = "give one array for each operand, operands separated by commas"

EINSUMS = [
    pytest.param(
        lambda m: sw.einsum("A[I_x, J] · B[J, K_x] -> C[I_x, K_x]", A, B, mesh=m),
        NotationError,
        [
            "A[I_x, J] · B[J, K_x] -> C[I_x, K_x]: mesh axis x splits both I and K",
            "                                  ^  each device would hold a block on the diagonal only, and most of the "
            "result nobody: split I or K over x, not both",
        ],
        id="case 4",
    ),
    pytest.param(
        lambda m: sw.einsum("A[I] -> A[I]{U_x}", A[0], mesh=m),
        PlanError,
        [
            "no program leads to A[I]{U_x}: partial sums come only from a sum over a dimension that is split; "
            "ask for the result without {U...}"
        ],
        id="partial sums of nothing",
    ),
    pytest.param(
        lambda m: sw.einsum("A[I]{U_x} -> A[I]", A[0], mesh=m),
        LayoutError,
        [
            "A[I]{U_x} cannot be placed: partial sums come from a computation; "
            "place them along a dimension of their own, as A[N_x, I], and sum over N"
        ],
        id="partial sums given as a host array",
    ),
    pytest.param(
        lambda m: sw.einsum("A[I, J] -> A[I, J_{x,y}]", A, mesh=m),
        LayoutError,
        ["A[I, J_{x,y}]: dimension J has size 4, which mesh axes x=4 x y=2 do not divide: pad=True pads it to 8"],
        id="result not divisible",
    ),
    pytest.param(
        lambda m: sw.einsum(EQUATION, A, B, mesh=m, out="I, K"),
        NotationError,
        [f"out='I, K' is given, but {EQUATION!r} says the result's layout already: drop out"],
        id="out beside a full equation",
    ),
    pytest.param(
        lambda m: sw.einsum("ij,jk->ik", A, B, mesh=m, out="k, i"),
        NotationError,
        ["out='k, i' has dimensions k, i, and the result has i, k"],
        id="out with other dimensions",
    ),
    pytest.param(
        lambda m: sw.einsum("ij,jk->ik", A, B, mesh=m, out="i_X, k"),
        NotationError,
        [
            "A[i, j] · B[j, k] -> C[i_X, k]: the mesh has no axis 'X': it has x, y (did you mean 'x'?)",
            "                         ^",
        ],
        id="out with an unknown axis",
    ),
    pytest.param(
        lambda m: sw.einsum("ij,jk->ik", A, B, mesh=m, out="i_?, k"),
        NotationError,
        ["i_?, k: `_?` stands in a layout", "^  only an equation's result may leave its axes to the planner"],
        id="out with _?",
    ),
    pytest.param(
        lambda m: sw.einsum("ij,jk->ik", A, B, mesh=m, out=3),
        NotationError,
        ["a layout is a text such as 'I_x, J', not int"],
        id="out a number",
    ),
    pytest.param(
        lambda m: sw.einsum("ij,jk->ik", A, B, mesh=m, out=["x"]),
        PlanError,
        ["out=['x']: a list is not known here, give a plain value"],
        id="out a list",
    ),
    pytest.param(
        lambda m: sw.einsum("ij,jk->ik", A, B, mesh=m, out=PartitionSpec("x", None, None)),
        LayoutError,
        ["splits 3 dimensions, but 2 are named: i, k"],
        id="out with a dimension too many",
    ),
    pytest.param(
        lambda m: sw.einsum("ij,jk->ik", A, B, mesh=m, out=PartitionSpec(PartitionSpec.UNCONSTRAINED)),
        LayoutError,
        ["is no PartitionSpec that fixes a layout: write it as PartitionSpec('x', None)"],
        id="out unconstrained",
    ),
    pytest.param(
        lambda m: sw.einsum("ij,jk", A, B, mesh=m),
        NotationError,
        ["ij,jk: missing arrow", "     ^  say what is wanted: ij,jk->ik"],
        id="short form without an arrow",
    ),
    pytest.param(
        lambda m: sw.einsum("i,jk->ik", A, B, mesh=m),
        ArrayError,
        ["operand 'i' has 1 dimension, and its array has shape (8, 4): every letter names one dimension"],
        id="short form with a wrong rank",
    ),
    pytest.param(
        lambda m: sw.einsum("ij jk->ik", A, B, mesh=m),
        ArrayError,
        [f"'ij jk->ik' has 1 operand, and 2 arrays are given: {SHORT}"],
        id="short form without a comma",
    ),
    pytest.param(
        lambda m: sw.einsum("ij,jk->il", A, B, mesh=m),
        NotationError,
        ["A[i, j] · B[j, k] -> C[i_?, l_?]: result dimension l comes from nowhere", "                            ^"],
        id="short form with a dimension from nowhere",
    ),
    pytest.param(
        lambda m: sw.einsum("ii->i", A[:4], mesh=m),
        LayoutError,
        ["dimension i is named twice in one array: name each once; take a diagonal with jnp.diagonal first"],
        id="short form of a diagonal",
    ),
    pytest.param(
        lambda m: sw.einsum("...ij,jk->ik", A, B, mesh=m),
        NotationError,
        ["...ij,jk->ik: expected an array, found '.'"],
        id="ellipsis",
    ),
    pytest.param(
        lambda m: sw.einsum(None, A, mesh=m),
        NotationError,
        ["an equation is a text such as 'A[I_x, J] · B[J, K] -> C[I_x, K]', not NoneType"],
        id="equation None",
    ),
    pytest.param(
        lambda m: sw.einsum(b"ij->ji", A, mesh=m),
        NotationError,
        ["an equation is a text such as 'A[I_x, J] · B[J, K] -> C[I_x, K]', not bytes"],
        id="equation bytes",
    ),
    pytest.param(
        lambda m: sw.einsum(A, B, mesh=m),
        NotationError,
        ["an equation is a text such as 'A[I_x, J] · B[J, K] -> C[I_x, K]', not ndarray", "  equation: float32[8, 4]"],
        id="an array for the equation",
    ),
    pytest.param(
        lambda m: sw.reshard("A[I_x] -> A[I]", A, m),
        NotationError,
        ["an equation is a text such as 'A[I_x, J] · B[J, K] -> C[I_x, K]', not ndarray"],
        id="reshard with its arguments swapped",
    ),
    pytest.param(
        lambda m: sw.reshard(A, "A[I, J_x]", m),
        NotationError,
        ["A[I, J_x]: missing arrow", "         ^  say what is wanted behind an arrow"],
        id="reshard to a layout alone",
    ),
    pytest.param(
        lambda m: sw.einsum(EQUATION, A, B, mesh=m, hardware="h1000"),
        HardwareError,
        ["unknown hardware 'h1000': the catalogue holds"],
        id="unknown hardware",
    ),
    pytest.param(
        lambda m: sw.einsum(EQUATION, A, B, mesh=m, memory_limit=-1),
        PlanError,
        ["a memory limit of -1 bytes holds nothing: give the bytes of one device, as 16e9"],
        id="negative memory limit",
    ),
    pytest.param(
        lambda m: sw.einsum(EQUATION, A, B, mesh=m, memory_limit="1GB"),
        PlanError,
        ["a memory limit of '1GB' is no number: give the bytes of one device, as 16e9"],
        id="memory limit a text",
    ),
    pytest.param(
        lambda m: sw.einsum(EQUATION, A, B, mesh=m, memory_limit=10),
        PlanError,
        ["no program fits in 10 bytes of memory a device: the least that would do is 224 bytes (the inputs alone are 160)"],
        id="memory limit that nothing meets",
    ),
    pytest.param(
        lambda m: sw.einsum(EQUATION, A, B, mesh=m, pad="no"),
        ShardwiseError,
        ["pad='no': only True and False are known"],
        id="pad a text",
    ),
    pytest.param(
        lambda m: sw.einsum(EQUATION, A, B, mesh=m, overlap=None),
        PlanError,
        ["overlap=None: known are True, False"],
        id="overlap None",
    ),
    pytest.param(
        lambda m: sw.einsum(EQUATION, A, B, mesh=m, precision="exact"),
        PlanError,
        ["precision='exact' is none: give a jax.lax.Precision, as 'highest'"],
        id="unknown precision",
    ),
    pytest.param(
        lambda m: sw.einsum(EQUATION, A, B, mesh=m, preferred_element_type="float33"),
        PlanError,
        ["preferred_element_type='float33' is no dtype that is known: give one as jnp.float32"],
        id="unknown element type",
    ),
    pytest.param(
        lambda m: sw.einsum(EQUATION, A, B, mesh=m, preferred_element_type=str),
        PlanError,
        ["preferred_element_type=<class 'str'> is no dtype that is known: give one as jnp.float32"],
        id="element type without numbers",
    ),
    pytest.param(lambda m: sw.einsum(EQUATION, A, B), MeshError, [NO_MESH, f"  equation: {EQUATION}"], id="no mesh"),
    pytest.param(lambda m: sw.reshard(A, "A[I_x, J] -> A[I, J]"), MeshError, [NO_MESH], id="no mesh to reshard on"),
    pytest.param(
        lambda m: sw.einsum(EQUATION, A, B, mesh=8),
        MeshError,
        ["8 is not a mesh: write 'x=4, y=2', {'x': 4, 'y': 2}, or give a jax.sharding.Mesh"],
        id="a number for a mesh",
    ),
    pytest.param(
        lambda m: sw.einsum(EQUATION, A, B, mesh="x=16"),
        DeviceError,
        ["mesh x=16 needs 16 devices, and there are 8: simulate them with sw.simulate(16) before the first use of JAX"],
        id="a mesh of too many devices",
    ),
]


@pytest.mark.parametrize(("act", "error", "lines"), EINSUMS)
def test_einsum_and_reshard_refuse(
    act: Callable[[Any], Any], error: type[ShardwiseError], lines: list[str], mesh: jax.sharding.Mesh
):
    message = refusal(error, lambda: act(mesh)).split("\n")
    for line, wanted in zip(message, lines, strict=False):
        assert wanted in line
        if "^" in wanted:
            assert line.index("^") == wanted.index("^")


def test_the_short_form_inside_jit_under_auto_axes(auto: jax.sharding.Mesh):
    a, b = sw.put(A, "A[I_x, J]", auto), sw.put(B, "B[J, K]", auto)
    run = jax.jit(lambda a, b: sw.einsum("ij,jk->ik", a, b, mesh=auto))
    assert refusal(NotationError, lambda: run(a, b)).split("\n")[0] == (
        "'ij,jk->ik' reads layouts off the arrays, but inside jit under Auto axes operand 'ij' shows none: "
        "write the layouts, as A[I_x, J], or use Explicit axes"
    )


@pytest.mark.parametrize("given", [True, False], ids=["mesh given", "mesh in force"])
def test_inside_shard_map_arrays_are_shards_already(given: bool, auto: jax.sharding.Mesh):
    def summed(shard: jax.Array) -> jax.Array:
        return sw.einsum("A[I, J_y] -> S[I]", shard, mesh=auto if given else None)

    spec = PartitionSpec("x")
    run = jax.shard_map(summed, mesh=auto, in_specs=spec, out_specs=spec, axis_names={"x"})
    with jax.set_mesh(auto):
        message = refusal(MeshError, lambda: jax.jit(run)(A))
    assert message.startswith("inside jax.shard_map arrays are shards over x already: sw.spmd.einsum and sw.spmd.reshard take")


# put.

PUTS = [
    pytest.param(
        (A, "A[I_X, J]"), LayoutError, "array A[I_X, J]: the mesh has no axis 'X': it has x, y (did you mean 'x'?)", id="axis"
    ),
    pytest.param(
        (A, "A[I_x]"), ArrayError, "array A[I_x] has 1 dimension as written, but 2 as given, of shape (8, 4)", id="rank"
    ),
    pytest.param(
        (A[:7], "A[I_x, J]"),
        LayoutError,
        "array A[I_x, J]: dimension I has size 7, which mesh axis x=4 does not divide: pad=True pads it to 8",
        id="not divisible",
    ),
    pytest.param(
        (A, "A[I, J]{U_x}"),
        LayoutError,
        "A[I, J]{U_x} cannot be placed: partial sums come from a computation; "
        "place them along a dimension of their own, as A[N_x, I], and sum over N",
        id="unreduced",
    ),
    pytest.param((A[:0], "A[I_x, J]"), ArrayError, "array A is empty: dimension I has size 0", id="empty"),
    pytest.param(([], "A[I_x]"), ArrayError, "array A is empty: dimension I has size 0", id="empty list"),
    pytest.param((np.array(["a", "b"]), "A[I]"), ArrayError, f"array A has dtype <U1: {NUMBERS}", id="strings"),
    pytest.param((np.array([object()]), "A[I]"), ArrayError, f"array A has dtype object: {NUMBERS}", id="objects"),
    pytest.param(([2**70, 1], "A[I]"), ArrayError, f"array A has dtype object: {NUMBERS}", id="integers beyond 64 bits"),
    pytest.param((np.zeros(4, "i4, f4"), "A[I]"), ArrayError, "array A has dtype [('f0', '<i4'),", id="records"),
    pytest.param(([[1], [1, 2]], "A[I, J]"), ArrayError, "a list of rows of different lengths is no array", id="ragged"),
    pytest.param((None, "A[]"), ArrayError, f"NoneType {NO_ARRAY}", id="None"),
    pytest.param((np.ma.array([1, 2]), "A[I]"), ArrayError, "a masked array would lose its mask", id="masked"),
    pytest.param((A, None), NotationError, "a layout is a text such as 'I_x, J', not NoneType", id="layout None"),
    pytest.param((A, b"A[I_x, J]"), NotationError, "a layout is a text such as 'I_x, J', not bytes", id="layout bytes"),
    pytest.param((A, 3), NotationError, "a layout is a text such as 'I_x, J', not int", id="layout a number"),
    pytest.param((A, "A[I_x, J"), NotationError, "A[I_x, J: the layout is not closed\n        ^", id="layout not closed"),
    pytest.param((A, "A[I_?, J]"), NotationError, "A[I_?, J]: `_?` stands in a layout\n  ^", id="layout with _?"),
    pytest.param((A, "A[I] -> A[I_x]"), NotationError, "A[I] -> A[I_x]: unexpected '-' in a layout\n     ^", id="an equation"),
    pytest.param((A, PartitionSpec("x", None, "y")), LayoutError, "splits 3 dimensions, but 2 are named: I, J", id="long spec"),
]


@pytest.mark.parametrize(("given", "error", "reason"), PUTS)
def test_put_refuses(given: tuple[Any, Any], error: type[ShardwiseError], reason: str, mesh: jax.sharding.Mesh):
    message = refusal(error, lambda: sw.put(*given, mesh))
    assert reason in message
    assert message.endswith("\n  mesh: x=4, y=2")


def test_put_needs_a_mesh_with_devices():
    assert refusal(MeshError, lambda: sw.put(A, "A[I_x, J]")).split("\n") == [
        NO_MESH,
        "  array: float32[8, 4]",
        "  layout: A[I_x, J]",
    ]
    assert refusal(MeshError, lambda: sw.put(A, "A[I_x, J]", "x=four")).split("\n")[:2] == [
        "x=four: 'four' is no size for mesh axis x",
        "  ^  give the number of devices: x=4",
    ]
    abstract = jax.sharding.AbstractMesh((4,), ("x",))
    without = "mesh x=4 has no devices to place A on: give sw.make_mesh(...)"
    assert refusal(DeviceError, lambda: sw.put(A, "A[I_x, J]", abstract)).startswith(without)


def test_put_places_no_traced_array(mesh: jax.sharding.Mesh):
    reason = "array A is traced, and only a computation moves it: use sw.reshard, not sw.put"
    assert refusal(ArrayError, lambda: jax.jit(lambda a: sw.put(a, "A[I_x, J]", mesh))(A)).startswith(reason)


def test_put_pads_on_a_clear_word_only(mesh: jax.sharding.Mesh):
    reason = "pad='no': only True and False are known"
    assert refusal(ShardwiseError, lambda: sw.put(A[:7], "A[I_x, J]", mesh, pad="no")).startswith(reason)


def test_devices_that_are_none_confirm_nothing():
    said = refusal(HardwareError, lambda: sw.plan("A[I_x] -> A[I]", sizes={"I": 8}, mesh="x=2", confirm="nowhere"))
    assert said.startswith("nowhere: no devices 'nowhere'\n^  known are ")  # the caret stands under the fault
    assert 'or confirm="here", which runs the first candidates on the devices of the mesh' in said


# Meshes and devices.

DEVICES = jax.devices()

MESHES = [
    pytest.param(
        lambda: sw.make_mesh("x=16"),
        DeviceError,
        "mesh x=16 needs 16 devices, and there are 8: simulate them with sw.simulate(16) before the first use of JAX",
        id="too few devices",
    ),
    pytest.param(
        lambda: sw.make_mesh("x=4096"),
        DeviceError,
        "mesh x=4096 needs 4096 devices, and there are 8: a host is at most 2,048 devices: use a smaller mesh; "
        "sw.plan and sw.rehearse need no devices",
        id="more devices than a host has",
    ),
    pytest.param(
        lambda: sw.make_mesh("x=4", devices=DEVICES[:2]),
        DeviceError,
        "mesh x=4 needs 4 devices, and there are 2: use a smaller mesh",
        id="too few devices given",
    ),
    pytest.param(
        lambda: sw.make_mesh("x=4", devices=DEVICES),
        DeviceError,
        "mesh x=4 needs 4 devices, and 8 are given: give exactly as many",
        id="too many devices given",
    ),
    pytest.param(
        lambda: sw.make_mesh("x=2", devices=[DEVICES[0], DEVICES[0]]),
        DeviceError,
        "a device is given twice: a mesh holds every device once",
        id="a device twice",
    ),
    pytest.param(
        lambda: sw.make_mesh("x=2", devices=[0, 1]),
        DeviceError,
        "0 is no device: give devices of jax.devices(), in mesh order",
        id="numbers for devices",
    ),
    pytest.param(
        lambda: sw.make_mesh("x=2", devices=2),
        DeviceError,
        "2 is no device: give devices of jax.devices(), in mesh order",
        id="a number of devices",
    ),
    pytest.param(
        lambda: sw.make_mesh("x=2, y=2", axis_types="auto"),
        MeshError,
        "axis_types='auto': give one jax.sharding.AxisType, or one for each axis of mesh x=2, y=2",
        id="axis types as text",
    ),
    pytest.param(
        lambda: sw.make_mesh("x=2, y=2", axis_types=[AxisType.Auto]),
        MeshError,
        f"axis_types={[AxisType.Auto]!r}: give one jax.sharding.AxisType, or one for each axis of mesh x=2, y=2",
        id="an axis type too few",
    ),
    pytest.param(
        lambda: sw.make_mesh("x=four"),
        MeshError,
        "x=four: 'four' is no size for mesh axis x\n  ^  give the number of devices: x=4",
        id="mesh text malformed",
    ),
    pytest.param(
        lambda: sw.simulate(0), DeviceError, "simulate(0): give the number of devices, at least 1", id="simulate none"
    ),
    pytest.param(
        lambda: sw.simulate(-4), DeviceError, "simulate(-4): give the number of devices, at least 1", id="simulate fewer"
    ),
    pytest.param(
        lambda: sw.simulate("8"), DeviceError, "simulate('8'): give the number of devices, at least 1", id="simulate a text"
    ),
    pytest.param(
        lambda: sw.simulate(True), DeviceError, "simulate(True): give the number of devices, at least 1", id="simulate a bool"
    ),
    pytest.param(
        lambda: sw.simulate(4),
        DeviceError,
        "simulate(4): JAX has started already with 8 cpu devices: "
        "call sw.simulate(4) before the first use of JAX, in a new process",
        id="simulate too late",
    ),
]


@pytest.mark.parametrize(("act", "error", "message"), MESHES)
def test_meshes_and_devices_refuse(act: Callable[[], Any], error: type[ShardwiseError], message: str):
    assert refusal(error, act) == message


def test_simulating_what_is_there_is_no_error():
    sw.simulate(8)
    sw.simulate(np.int64(8))
    assert len(jax.devices()) == 8


def test_simulate_in_a_process_of_its_own():
    program = """
import jax, shardwise as sw
from shardwise.errors import DeviceError
sw.simulate(3)
assert len(jax.devices()) == 3
sw.simulate(3)
try:
    sw.simulate(5)
except DeviceError as error:
    print(error)
"""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("JAX", "XLA"))}
    command = [sys.executable, "-c", program]
    ran = subprocess.run(
        command, env=environment | {"PYTHONPATH": str(SOURCE)}, capture_output=True, text=True, check=True, timeout=120
    )
    assert ran.stdout.strip() == (
        "simulate(5): JAX has started already with 3 cpu devices: "
        "call sw.simulate(5) before the first use of JAX, in a new process"
    )


# Plans as functions.


@pytest.fixture(scope="module")
def plan() -> sw.Plan:
    return sw.plan(EQUATION, sizes={"I": 8, "J": 4, "K": 8}, mesh="x=4, y=2", dtype="float32")


@pytest.mark.parametrize("other", ["x=4", "x=2, y=4", "y=2, x=4", "p=4, q=2"])
def test_a_plan_for_another_mesh(other: str, plan: sw.Plan):
    assert refusal(MeshError, lambda: plan.function(sw.make_mesh(other))).split("\n") == [
        f"the plan is for mesh x=4, y=2, and the mesh given is {other}",
        f"  equation: {EQUATION}",
    ]


def test_a_plan_for_no_mesh(plan: sw.Plan):
    assert refusal(MeshError, lambda: plan.function(None)).startswith(NO_MESH)
    assert refusal(MeshError, lambda: plan.function(8)).startswith("8 is not a mesh")


OF_PLANS = [
    pytest.param(
        (A, np.ones((4, 16), "float32")), ArrayError, "the arrays have other sizes than the plan: K=16 for K=8", id="size"
    ),
    pytest.param((A,), ArrayError, "the equation has 2 operands (A, B), and 1 array is given: give one for each", id="number"),
    pytest.param((A, B[:2]), NotationError, "dimension J has size 4 in A and size 2 in B", id="two sizes"),
    pytest.param((A[0], B), ArrayError, "array A[I_x, J] has 2 dimensions as written, but 1 as given", id="rank"),
    pytest.param((A.astype(str), B), ArrayError, f"array A has dtype <U32: {NUMBERS}", id="strings"),
    pytest.param((A[:6], B), LayoutError, "A[I_x, J]: dimension I has size 6, which mesh axis x=4", id="not divisible"),
    pytest.param(([[1], [1, 2]], B), ArrayError, "a list of rows of different lengths is no array", id="ragged"),
]


@pytest.mark.parametrize(("arrays", "error", "reason"), OF_PLANS)
def test_arrays_other_than_planned(
    arrays: tuple[Any, ...], error: type[ShardwiseError], reason: str, plan: sw.Plan, mesh: jax.sharding.Mesh
):
    message = refusal(error, lambda: plan.function(mesh)(*arrays))
    assert message.startswith(reason)
    assert f"\n  equation: {EQUATION}\n  mesh: x=4, y=2" in message


def test_an_array_laid_out_otherwise_than_planned(plan: sw.Plan, mesh: jax.sharding.Mesh):
    a = sw.put(A, "A[I_y, J]", mesh)
    assert 'sw.reshard(a, "A[I_y, J] -> A[I_x, J]")' in refusal(ArrayError, lambda: plan.function(mesh)(a, B))


# show and check.

SHOWS = [
    pytest.param(lambda: sw.show(None), ArrayError, "NoneType lives on no device: place it with sw.put", id="None"),
    pytest.param(lambda: sw.show(A), ArrayError, "ndarray lives on no device: place it with sw.put", id="host array"),
    pytest.param(
        lambda: sw.show(jnp.zeros((0, 3))),
        ArrayError,
        "the array is empty, of shape (0, 3): no device holds any of it",
        id="empty",
    ),
    pytest.param(
        lambda: sw.show("A[I_x]"),
        MeshError,
        "a layout is shown on a mesh: give one, as in sw.show('A[I_x]', 'x=4')",
        id="no mesh",
    ),
    pytest.param(
        lambda: sw.show("A[I_X]", "x=4"),
        MeshError,
        "the mesh has no axis 'X': it has x (did you mean 'x'?)\n  layout: A[I_X]\n  mesh: x=4",
        id="unknown axis",
    ),
    pytest.param(
        lambda: sw.show("A[I_x", "x=4"),
        NotationError,
        "A[I_x: the layout is not closed\n     ^  close the bracket: ]",
        id="unclosed",
    ),
    pytest.param(
        lambda: sw.show("A[I_x]", "x=four"), MeshError, "x=four: 'four' is no size for mesh axis x\n  ^", id="mesh malformed"
    ),
]


@pytest.mark.parametrize(("act", "error", "reason"), SHOWS)
def test_show_refuses(act: Callable[[], Any], error: type[ShardwiseError], reason: str):
    assert refusal(error, act).startswith(reason)


ODD = np.array([1.0, np.nan, np.inf, -np.inf], np.float32)

CHECKS = [
    pytest.param(lambda a: a[:2], "FAIL output: shape (2,) where the reference has (4,)", id="shape"),
    pytest.param(lambda a: (a, a), "FAIL output: structure PyTreeDef((*, *)) where the reference has PyTreeDef(*)", id="tree"),
    pytest.param(lambda a: "a", "FAIL output: dtype <U1, which holds no numbers to compare", id="text"),
    pytest.param(lambda a: a + 1 * (a == 1), "FAIL output: largest error 1, allowed", id="value"),
    pytest.param(lambda a: -a, "FAIL output: largest error inf, allowed", id="infinity of another sign"),
    pytest.param(lambda a: np.nan * a, "FAIL output: NaN stands in other places than in the reference", id="NaN"),
    pytest.param(lambda a: np.where(a == 1, np.inf, a), "FAIL output: largest error inf, allowed", id="infinity for a number"),
]


@pytest.mark.parametrize(("function", "line"), CHECKS)
def test_a_check_says_what_differs(function: Callable[[Any], Any], line: str):
    check = sw.check(function, lambda a: a, ODD)
    assert not check
    assert str(check).startswith(line)


def test_a_check_takes_equal_nans_and_equal_infinities_as_equal():
    check = sw.check(lambda a: a + 0, lambda a: a, ODD)
    assert check, check


def test_a_check_of_gradients_needs_something_to_differentiate():
    reason = "no argument has a floating or complex dtype: there is no gradient to check"
    assert refusal(ArrayError, lambda: sw.check(lambda n: n, lambda n: n, np.arange(3), gradients=True)) == reason


# What looks odd and is legal.


def test_nan_and_infinity_pass_through_unharmed(mesh: jax.sharding.Mesh):
    np.testing.assert_array_equal(sw.put(ODD, "A[I_x]", mesh), ODD)
    np.testing.assert_array_equal(sw.einsum("A[I_x] -> A[I]", ODD, mesh=mesh), ODD)
    square = np.stack([ODD, np.ones_like(ODD)])
    np.testing.assert_array_equal(sw.reshard(sw.put(square, "A[I_y, J]", mesh), "A[I_y, J] -> A[I, J_x]"), square)
    np.testing.assert_array_equal(sw.einsum("A[I_y, J_x] -> S[I]", square, mesh=mesh), square.sum(axis=1))
    padded = sw.einsum("A[I_x] · B[I_x] -> S[]", np.array([np.inf, 1, 2]), np.ones(3), mesh=mesh, pad=True)
    assert float(padded) == np.inf


def test_booleans_are_moved_and_lists_and_foreign_byte_orders_are_taken(mesh: jax.sharding.Mesh):
    np.testing.assert_array_equal(sw.reshard(sw.put(A > 3, "A[I_x, J]", mesh), "A[I_x, J] -> A[I, J_x]"), A > 3)
    np.testing.assert_array_equal(sw.einsum(EQUATION, A.tolist(), B.tolist(), mesh=mesh), A @ B)
    np.testing.assert_array_equal(sw.einsum(EQUATION, A.astype(">f4"), B, mesh=mesh), A @ B)
    np.testing.assert_array_equal(sw.put(A.astype(">i2"), "A[I_x, J]", mesh), A)


def test_an_uncommitted_array_is_placed_as_written(mesh: jax.sharding.Mesh):
    c = sw.einsum(EQUATION, jnp.asarray(A), B, mesh=mesh)
    assert isinstance(c.sharding, NamedSharding)
    np.testing.assert_array_equal(c, A @ B)


def test_200_operands_run_within_seconds():
    chain = " · ".join(f"M{k}[D{k}, D{k + 1}]" for k in range(200)) + " -> R[D0, D200]"
    np.testing.assert_array_equal(sw.einsum(chain, *[np.eye(4)] * 200, mesh="x=4"), np.eye(4))


def test_tabs_and_newlines_in_an_equation(mesh: jax.sharding.Mesh):
    np.testing.assert_array_equal(sw.einsum("A[I_x, J]\n\t· B[J, K]\r\n\t-> C[I_x, K]", A, B, mesh=mesh), A @ B)
