"""Plans that cannot be made, and memory limits that nothing meets: every refusal says where, what, why, and the way out."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from refusals import AXES, refusal, told

import shardwise as sw
from shardwise.errors import HardwareError, LayoutError, NotationError, PlanError, ProgramError, ShardwiseError
from shardwise.steps import AllGather

# The door adds equation, sizes and mesh to the reason.

EQUATION = "A[I_x, J] · B[J, K] -> C[I, K]"
SIZES = {"I": 8, "J": 8, "K": 8}


def plan(equation: Any = EQUATION, sizes: Any = SIZES, mesh: Any = "x=4", **options: Any) -> sw.Plan:
    return sw.plan(equation, sizes=sizes, mesh=mesh, **options)


def test_a_refused_plan_is_told_line_by_line():
    assert refusal(NotationError, lambda: plan("A[I_X, J] · B[J, K] -> C[I, K]")).split("\n") == [
        "A[I_X, J] · B[J, K] -> C[I, K]: the mesh has no axis 'X': it has x (did you mean 'x'?)",
        f"    ^  {AXES}",
        "  sizes: I=8, J=8, K=8",
        "  mesh: x=4",
    ]
    assert refusal(PlanError, lambda: plan(sizes={**SIZES, "I": 8.0})).split("\n") == [
        "dimension I has size 8.0: a size is a whole number of elements",
        "  equation: A[I_x, J] · B[J, K] -> C[I, K]",
        "  sizes: I=8.0, J=8, K=8",
        "  mesh: x=4",
    ]


AXES_OF_PLANS = [
    pytest.param(
        "A[I, d_model] -> B[I]",
        "       ^",
        "the mesh has no axis 'model': it has x, y",
        AXES,
        id="d_model",
    ),
    pytest.param(
        "A[I] -> B[I]{U_Y}",
        "               ^",
        "the mesh has no axis 'Y': it has x, y (did you mean 'y'?)",
        AXES,
        id="partial sums over an unknown axis",
    ),
    pytest.param(
        "W_q[I, q] · B[q, K_q] -> C[I]",
        "                   ^",
        "the mesh has no axis 'q': it has x, y",
        AXES,
        id="an unknown axis named like a dimension and an array",
    ),
    pytest.param(
        "A[I_{x, xx}] -> B[I]",
        "        ^",
        "the mesh has no axis 'xx': it has x, y (did you mean 'x'?)",
        AXES,
        id="an unknown axis that begins like a known one",
    ),
    pytest.param(
        "A[I_xy] -> B[I]",
        "    ^",
        "the mesh has no axis 'xy': it has x, y (did you mean 'y'?)",
        "write several axes in braces: {x,y}",
        id="two axes written as one",
    ),
    pytest.param(
        "A[I_x_y] -> B[I]",
        "    ^",
        "the mesh has no axis 'x_y': it has x, y",
        "write several axes in braces: {x,y}",
        id="two axes behind underscores",
    ),
]


@pytest.mark.parametrize(("text", "caret", "what", "fix"), AXES_OF_PLANS)
def test_an_axis_that_the_mesh_lacks(text: str, caret: str, what: str, fix: str):
    message = refusal(NotationError, lambda: plan(text, mesh="x=4, y=2"))
    assert message.startswith(told(text, caret, what, fix) + "\n")


HAVE = "the catalogue holds b200, cpu, h100, h200, tpu-v4, tpu-v5e, tpu-v5p, tpu-v6e, tpu-v7x"
LIMIT = "give the bytes of one device, as 16e9"
NO_PARTIAL = "partial sums come only from a sum over a dimension that is split; ask for the result without {U...}"

PLANS = [
    pytest.param({"sizes": {"I": 8, "J": 8}}, PlanError, "no size is given for dimension K: add it, as in sizes={'K': 1024}",
                 id="size missing"),
    pytest.param({"sizes": {**SIZES, "Q": 8}}, PlanError,
                 "a size is given for dimension Q, which the equation lacks: it has I, J, K", id="size too many"),
    pytest.param({"sizes": {"i": 8, "J": 8, "K": 8}}, PlanError,
                 "a size is given for dimension i, which the equation lacks: it has I, J, K (did you mean 'I'?)",
                 id="size of a dimension in another case"),
    pytest.param({"sizes": {**SIZES, 1: 8}}, PlanError,
                 "a size is given for dimension 1, which the equation lacks: it has I, J, K", id="size of a number"),
    pytest.param({"sizes": {**SIZES, "I": -8}}, PlanError,
                 "dimension I has size -8: there is nothing to compute; every size is at least 1", id="size negative"),
    pytest.param({"sizes": {**SIZES, "I": 0}}, PlanError,
                 "dimension I has size 0: there is nothing to compute; every size is at least 1", id="size 0"),
    pytest.param({"sizes": {**SIZES, "I": "8"}}, PlanError,
                 "dimension I has size '8': a size is a whole number of elements", id="size as text"),
    pytest.param({"sizes": {**SIZES, "I": True}}, PlanError,
                 "dimension I has size True: a size is a whole number of elements", id="size as bool"),
    pytest.param({"sizes": {**SIZES, "I": np.array([8])}}, PlanError,
                 "dimension I has size array([8]): a size is a whole number of elements", id="size as array"),
    pytest.param({"sizes": None}, PlanError, "neither sizes nor arrays are given: add sizes={'I': 1024, ...}, or one array",
                 id="sizes None"),
    pytest.param({"sizes": [8, 8, 8]}, PlanError,
                 "[8, 8, 8] are no sizes: give every dimension its size, as in sizes={'I': 1024}", id="sizes a list"),
    pytest.param({"sizes": {**SIZES, "I": 6}}, LayoutError,
                 "dimension I has size 6, which mesh axis x=4 does not divide: "
                 "pad=True pads it to 8 (in sw.put, sw.einsum and sw.random), or use another layout", id="size not divisible"),
    pytest.param({"hardware": "H100"}, HardwareError, f"unknown hardware 'H100': {HAVE} (did you mean 'h100'?)",
                 id="hardware in another case"),
    pytest.param({"hardware": "tpu-v6"}, HardwareError, f"unknown hardware 'tpu-v6': {HAVE} (did you mean 'tpu-v6e'?)",
                 id="hardware nearly known"),
    pytest.param({"hardware": ""}, HardwareError, f"unknown hardware '': {HAVE}", id="hardware without a name"),
    pytest.param({"hardware": 3}, HardwareError, f"unknown hardware 3: {HAVE}", id="hardware a number"),
    pytest.param({"dtype": "bf16"}, PlanError, "unknown dtype 'bf16': use one of bfloat16,", id="dtype abbreviated"),
    pytest.param({"dtype": object}, PlanError, "unknown dtype 'object': use one of", id="dtype object"),
    pytest.param({"dtype": 3}, PlanError, "3 is no dtype: give its name, as 'bfloat16'", id="dtype a number"),
    pytest.param({"memory_limit": -1}, PlanError, f"a memory limit of -1 bytes holds nothing: {LIMIT}", id="limit negative"),
    pytest.param({"memory_limit": 0}, PlanError, f"a memory limit of 0 bytes holds nothing: {LIMIT}", id="limit 0"),
    pytest.param({"memory_limit": float("nan")}, PlanError, f"a memory limit of nan bytes holds nothing: {LIMIT}",
                 id="limit NaN"),
    pytest.param({"memory_limit": "16GB"}, PlanError, f"a memory limit of '16GB' is no number: {LIMIT}", id="limit a text"),
    pytest.param({"memory_limit": True}, PlanError, f"a memory limit of True is no number: {LIMIT}", id="limit a bool"),
    pytest.param({"overlap": "yes"}, PlanError,
                 "overlap='yes': known are True, False, 'ring', 'bidirectional', 'folded', 'torus', 'scatter', 'rotate'",
                 id="overlap a text"),
    pytest.param({"equation": "A[I] -> A[I]{U_x}", "sizes": {"I": 8}}, PlanError,
                 f"no program leads to A[I]{{U_x}}: {NO_PARTIAL}", id="partial sums of nothing"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "error", "reason"), PLANS)
def test_a_plan_refuses(given: dict[str, Any], error: type[ShardwiseError], reason: str):
    first, *context = refusal(error, lambda: plan(**given)).split("\n")
    assert first.startswith(reason)
    assert context[0] == f"  equation: {given.get('equation', EQUATION)}"


@pytest.mark.parametrize("name", ["H100", "h1000", None, ["h100"], 3.0], ids=["case", "near", "None", "list", "float"])
def test_hardware_refuses(name: Any):
    assert refusal(HardwareError, lambda: sw.hardware(name)).startswith(f"unknown hardware {name!r}: {HAVE}")


def test_devices_that_no_hardware_answers_to():
    reason = "devices of kind 'Abacus' are not in the catalogue: say which to estimate with, hardware='h100'"
    assert refusal(HardwareError, lambda: sw.hardware.for_device_kind("Abacus")) == reason


# A memory limit that nothing meets: the message says the least that would do, and it is the least.

LIMITED = [
    pytest.param("A[I_x, J] · B[J, K] -> C[I, K]", id="gather the result"),
    pytest.param("A[I, J_x] · B[J_x, K] -> C[I, K]", id="reduce the result"),
    pytest.param("A[I_x, J_y] · B[J_y, K_x] -> C[I_x, K]", id="case 4 on two axes"),
    pytest.param("A[I_{x,y}, J] -> A[I, J_{y,x}]", id="another layout"),
    pytest.param("A[I_x, J] · B[J, K_y] · D[K, L_x] -> C[I, L_?]", id="three operands"),
]


@pytest.mark.parametrize("equation", LIMITED)
def test_the_least_memory_that_is_named_does_and_a_byte_less_does_not(equation: str):
    sizes = {dim: 16 for dim in "IJKL" if re.search(rf"\b{dim}(_|\b)", equation)}

    def limited(limit: int) -> sw.Plan:
        return plan(equation, sizes, "x=2, y=2", memory_limit=limit)

    found = re.fullmatch(
        r"no program fits in 1 bytes of memory a device: the least that would do is ([\d,]+) bytes "
        r"\(the inputs alone are ([\d,]+)\)",
        refusal(PlanError, lambda: limited(1)).split("\n")[0],
    )
    assert found
    least, inputs = (int(group.replace(",", "")) for group in found.groups())
    assert inputs < least
    assert limited(least).best.estimate.peak_memory_bytes <= least
    assert f"the least that would do is {least:,} bytes" in refusal(PlanError, lambda: limited(least - 1))


def test_the_memory_that_is_named_for_a_way_through_layouts_does():
    def limited(limit: int) -> sw.Plan:
        return plan("A[I_x] -> A[I] -> A[I_x]", {"I": 8}, memory_limit=limit)

    as_far = "no program fits in 8 bytes of memory a device as far as A[I]: the least that would do is 20 bytes"
    assert refusal(PlanError, lambda: limited(8)).startswith(as_far)
    onward = "no program that goes on to A[I_x] fits in 20 bytes of memory a device: 24 bytes would do"
    assert refusal(PlanError, lambda: limited(20)).startswith(onward)
    assert limited(24).best.estimate.peak_memory_bytes == 24


# What looks odd and is legal.


def test_integers_of_numpy_are_sizes():
    assert plan(sizes={dim: np.int64(8) for dim in "IJK"}, mesh={"x": np.int32(4)}).candidates == plan().candidates
    assert sw.Layout.parse("I_x").shard_shape({"I": np.int64(8)}, {"x": np.int64(4)}) == (2,)


def test_an_axis_of_size_1_splits_nothing():
    assert plan("A[I_x, J_x1] -> B[I, J]", {"I": 8, "J": 7}, "x=4, x1=1").candidates
    assert str(plan("A[I_x] -> B[I]", {"I": 7}, "x=1").best.program.result) == "[I]"


def test_sizes_beyond_what_any_machine_holds():
    p = plan(sizes=dict.fromkeys("IJK", 10**18), mesh="x=1000000000")
    assert p.best.estimate.peak_memory_bytes > 1e36
    assert "C" in p.explain()


def test_200_operands_are_planned_within_seconds():
    chain = " · ".join(f"M{k}[D{k}_x, D{k + 1}]" for k in range(200)) + " -> R[D0, D200]"
    p = plan(chain, {f"D{k}": 8 for k in range(201)})
    assert str(p.best.program.result) == "[D0, D200]"
    same = " · ".join(["A[I_x]"] * 200) + " -> R[I]"
    assert str(plan(same, {"I": 8}).best.program.result) == "[I]"


def test_a_mesh_of_five_axes():
    p = plan("A[I_{a,b}, J_c] -> B[I_d, J_e]", {"I": 32, "J": 32}, "a=2, b=2, c=2, d=2, e=2")
    assert str(p.best.program.result) == "[I_d, J_e]"


def test_names_of_any_script():
    equation = sw.parse("\u05d0[\u05d1_x, \u5bbd] -> \u0395[\u5bbd, \u05d1]")
    assert sw.parse(str(equation)) == equation


def test_a_program_by_hand_takes_lists_and_says_what_must_be_a_tuple():
    inputs, mesh = [["A", sw.Layout.parse("I_x, J")]], sw.Mesh.parse("x=2")
    program = sw.Program(mesh, inputs, [AllGather("A", "I", ("x",))], "A")  # type: ignore[arg-type]
    assert program == sw.Program(mesh, (("A", sw.Layout.parse("I_x, J")),), (AllGather("A", "I", ("x",)),), "A")
    with pytest.raises(ProgramError, match=r"write axes as tuples, as in AllGather\(\"A\", \"I\", \(\"x\",\)\)"):
        sw.Program(mesh, inputs, [AllGather("A", "I", ["x"])], "A")  # type: ignore[arg-type]
