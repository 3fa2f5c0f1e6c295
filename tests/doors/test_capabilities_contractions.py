"""What the sources show of sharded contractions, with their numbers: rows D of the capabilities, without overlap."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding

import shardwise as sw
from shardwise.errors import NotationError, PlanError, ProgramError
from shardwise.runtime.lower import lower
from shardwise.steps import AllGather, AllReduce, Einsum, ReduceScatter, Slice, kind

A = np.arange(16, dtype=np.float32).reshape(4, 4)
B = np.arange(16, 32, dtype=np.float32).reshape(4, 4)
FOURS = {"I": 4, "J": 4, "K": 4}
HEADLINE = {"I": 16384, "J": 1024, "K": 2048}
SMALL = {"I": 1024, "J": 64, "K": 128}  # the headline sizes, divided by 16
COLLECTIVES = re.compile(r"all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute")
MATMUL = Einsum(("A", "B"), "C", ("I", "K"))


def held(array: jax.Array) -> list[np.ndarray]:
    """What each device holds, in device order."""
    return [np.asarray(shard.data) for shard in sorted(array.addressable_shards, key=lambda shard: shard.device.id)]


def laid_out(array: jax.Array, layout: str) -> bool:
    wanted = sw.Layout.parse(layout)
    return sw.Layout.from_spec(array.sharding.spec, wanted.names) == wanted


def kinds(program: sw.Program) -> list[str]:
    return [kind(step) for step in program.steps]


def programs(plan: sw.Plan) -> list[tuple]:
    return [candidate.program.steps for candidate in plan]


def placed(equation: str, mesh: jax.sharding.Mesh, *arrays: np.ndarray) -> list[jax.Array]:
    operands = sw.parse(equation).operands
    return [sw.put(array, operand.layout, mesh) for operand, array in zip(operands, arrays, strict=True)]


def collectives_compiled(plan: sw.Plan, mesh: jax.sharding.Mesh, *arrays: np.ndarray) -> set[str]:
    given = placed(str(plan.task.equation), mesh, *arrays)
    return set(COLLECTIVES.findall(jax.jit(plan.function(mesh)).lower(*given).compile().as_text()))


def normal(sizes: dict[str, int], *operands: str) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.standard_normal([sizes[dim] for dim in dims], np.float32) for dims in operands]


def by_every_candidate(plan, mesh, arrays):
    """What the program of each candidate makes of arrays, all compiled as one."""
    functions = [lower(candidate.program, mesh) for candidate in plan]
    return jax.jit(lambda *given: [function(*given) for function in functions])(*arrays)


# D1 to D4: the four cases of sharded multiplication.


@pytest.mark.parametrize(
    "equation",
    [
        "A[I, J] · B[J, K] -> C[I, K]",
        "A[I_x, J] · B[J, K] -> C[I_x, K]",
        "A[I, J] · B[J, K_y] -> C[I, K_y]",
        "A[I_x, J] · B[J, K_y] -> C[I_x, K_y]",
    ],
)
def test_D1_nothing_sharded_in_the_contraction_needs_no_collective(equation):
    mesh = sw.make_mesh("x=2, y=2")
    plan = sw.plan(equation, sizes=FOURS, mesh=mesh, dtype="float32")

    assert plan.best.program.steps == (MATMUL,)
    assert plan.best.estimate.total_wire_bytes == 0
    assert collectives_compiled(plan, mesh, A, B) == set()
    assert "all-" not in plan.code()

    c = plan.function(mesh)(*placed(equation, mesh, A, B))
    assert laid_out(c, equation.split("-> C")[1])
    np.testing.assert_array_equal(c, A @ B)


def test_D2_one_operand_sharded_in_the_contraction_each_device_lacks_parts_of_the_other():
    mesh = sw.make_mesh("x=4")
    a, b = placed("A[I, J_x] · B[J, K] -> C[I, K]", mesh, A, B)

    # Device k holds column k of A, for which of B it needs row k alone; it lacks the other columns.
    for device, column in enumerate(held(a)):
        np.testing.assert_array_equal(column, A[:, [device]])
    assert [where for _, where in sw.show(a).shards()] == [(slice(0, 4), slice(k, k + 1)) for k in range(4)]
    assert all(np.array_equal(whole, B) for whole in held(b))

    inputs = tuple((name, sw.Layout.parse(layout)) for name, layout in (("A", "I, J_x"), ("B", "J, K")))
    with pytest.raises(ProgramError, match=r"B holds J where A holds J_x: devices lack parts of J"):
        sw.Program(sw.Mesh.parse(mesh), inputs, (MATMUL,), "C")


@pytest.mark.parametrize("hardware", ["cpu", "tpu-v5e", "h100"])
def test_D2_one_operand_sharded_in_the_contraction_is_gathered_or_the_other_sliced(hardware):
    mesh = sw.make_mesh("x=4")
    equation = "A[I, J_x] · B[J, K] -> C[I, K]"
    plan = sw.plan(equation, sizes=FOURS, mesh=mesh, hardware=hardware, dtype="float32")

    gather = (AllGather("A", "J", ("x",)), MATMUL)
    slice_and_reduce = (Slice("B", "J", ("x",)), MATMUL, AllReduce("C", ("x",)))
    assert {gather, slice_and_reduce} <= set(programs(plan))

    given = placed(equation, mesh, A, B)
    for c in by_every_candidate(plan, mesh, given):
        assert laid_out(c, "I, K")
        np.testing.assert_array_equal(c, A @ B)
    assert np.asarray(plan.function(mesh)(*given))[:2, :2].tolist() == [[152, 158], [504, 526]]


def test_D3_both_operands_sharded_in_the_contraction_are_multiplied_and_reduced():
    mesh = sw.make_mesh("x=4")
    equation = "A[I, J_x] · B[J_x, K] -> C[I, K]{U_x} -> C[I, K]"
    plan = sw.plan(equation, sizes=FOURS, mesh=mesh, dtype="float32")

    assert plan.best.program.steps == (MATMUL, AllReduce("C", ("x",)))
    assert collectives_compiled(plan, mesh, A, B) == {"all-reduce"}

    c = sw.einsum(equation, A, B, mesh=mesh)
    for whole in held(c):
        assert whole[:2, :2].tolist() == [[152, 158], [504, 526]]
        np.testing.assert_array_equal(whole, A @ B)


def test_D3_between_multiplying_and_reducing_every_device_holds_a_partial_sum():
    partial = sw.einsum("A[I, J_x] · B[J_x, K] -> C[I, K]{U_x}", A, B, mesh="x=4")

    assert laid_out(partial, "[I, K]{U_x}")
    for k, partial_sum in enumerate(held(partial)):
        np.testing.assert_array_equal(partial_sum, np.outer(A[:, k], B[k]))

    c = sw.reshard(partial, "C[I, K]{U_x} -> C[I, K]")
    assert np.asarray(c)[:2, :2].tolist() == [[152, 158], [504, 526]]


def test_D4_a_result_with_one_axis_on_both_dimensions_is_refused():
    reason = r"mesh axis x splits both I and K\n.*diagonal.*: split I or K over x, not both"
    with pytest.raises(NotationError, match=reason):
        sw.plan("A[I_x, J] · B[J, K_x] -> C[I_x, K_x]", sizes=FOURS, mesh="x=4")
    with pytest.raises(NotationError, match=reason):
        sw.einsum("A[I_x, J] · B[J, K_x] -> C[I_x, K_x]", A, B, mesh="x=4")


@pytest.mark.parametrize("hardware", ["cpu", "tpu-v5e", "h100"])
@pytest.mark.parametrize(
    ("result", "best", "other"),
    [
        ("I_x, K", AllGather("B", "K", ("x",)), AllGather("A", "I", ("x",))),
        ("I, K_x", AllGather("A", "I", ("x",)), AllGather("B", "K", ("x",))),
    ],
)
def test_D4_one_axis_on_both_operands_gathers_the_one_that_the_result_has_whole(result, best, other, hardware):
    mesh = sw.make_mesh("x=4")
    equation = f"A[I_x, J] · B[J, K_x] -> C[{result}]"
    plan = sw.plan(equation, sizes=FOURS, mesh=mesh, hardware=hardware, dtype="float32")

    assert plan.best.program.steps == (best, MATMUL)
    seconds = [candidate.estimate.seconds for candidate in plan]
    assert len(plan) > 2
    assert seconds == sorted(seconds)
    assert any(steps[:2] == (other, MATMUL) for steps in programs(plan))  # the other one gathered, and C laid out anew

    given = placed(equation, mesh, A, B)
    for c in by_every_candidate(plan, mesh, given):
        assert laid_out(c, result)
        np.testing.assert_array_equal(c, A @ B)


# D5: two mesh axes.


@pytest.mark.parametrize(
    ("result", "block", "best"),
    [
        ("I_x, K_y", (4, 2), (MATMUL, ReduceScatter("C", "K", ("y",)))),
        ("I_x, K", (4, 4), (MATMUL, AllReduce("C", ("y",)))),
        ("I, K_y", (8, 2), (MATMUL, ReduceScatter("C", "K", ("y",)), AllGather("C", "I", ("x",)))),
    ],
)
@pytest.mark.parametrize("hardware", ["cpu", "tpu-v5e", "h100"])
def test_D5_two_axes(result, block, best, hardware):
    a, b = np.arange(128, dtype=np.float32).reshape(8, 16), np.arange(64, dtype=np.float32).reshape(16, 4)
    mesh = sw.make_mesh("x=2, y=2")
    equation = f"A[I_x, J_y] · B[J_y, K] -> C[{result}]"
    plan = sw.plan(equation, sizes={"I": 8, "J": 16, "K": 4}, mesh=mesh, hardware=hardware, dtype="float32")
    assert plan.best.program.steps == best

    c = plan.function(mesh)(*placed(equation, mesh, a, b))
    assert laid_out(c, result)
    assert {shard.shape for shard in held(c)} == {block}
    np.testing.assert_array_equal(c, a @ b)


def test_D5_the_local_matmul_is_a_partial_sum():
    a, b = np.arange(128, dtype=np.float32).reshape(8, 16), np.arange(64, dtype=np.float32).reshape(16, 4)
    partial = sw.einsum("A[I_x, J_y] · B[J_y, K] -> C[I_x, K]{U_y}", a, b, mesh="x=2, y=2")

    assert {shard.shape for shard in held(partial)} == {(4, 4)}
    np.testing.assert_array_equal(held(partial)[0], a[:4, :8] @ b[:8])
    np.testing.assert_array_equal(held(partial)[1], a[:4, 8:] @ b[8:])

    c = sw.reshard(partial, "C[I_x, K]{U_y} -> C[I_x, K_y]")
    assert {shard.shape for shard in held(c)} == {(4, 2)}
    np.testing.assert_array_equal(c, a @ b)


# D6 to D8: large matmuls, planned at the sizes of the sources.

GATHER_THEN_MULTIPLY = (AllGather("A", "I", ("x",)), MATMUL)
MULTIPLY_THEN_GATHER = (MATMUL, AllGather("C", "I", ("x",)))


@pytest.mark.parametrize("devices", [4, 8])
@pytest.mark.parametrize("hardware", ["cpu", "tpu-v5e", "h100"])
def test_D6_headline_planned(devices, hardware):
    equation = "A[I_x, J] · B[J, K] -> C[I, K]"
    plan = sw.plan(equation, sizes=HEADLINE, mesh={"x": devices}, hardware=hardware, overlap=False)

    cost = {candidate.program.steps: candidate.estimate for candidate in plan}
    gather, multiply = cost[GATHER_THEN_MULTIPLY], cost[MULTIPLY_THEN_GATHER]
    assert gather.total_wire_bytes == 2 * 16384 * 1024 * (devices - 1) / devices
    assert multiply.total_wire_bytes == 2 * 16384 * 2048 * (devices - 1) / devices
    assert gather.flops == devices * multiply.flops == 2 * 16384 * 1024 * 2048
    # Where devices share one host's cores, repeating the matmul on each of them costs more than moving the result.
    assert (multiply.seconds < gather.seconds) == (hardware == "cpu")


def test_D6_headline_at_its_true_sizes():
    a, b = normal(HEADLINE, "IJ", "JK")
    c = sw.einsum("A[I_x, J] · B[J, K] -> C[I, K]", a, b, mesh="x=4")

    assert laid_out(c, "I, K")
    assert all(shard.shape == (16384, 2048) for shard in held(c))
    np.testing.assert_allclose(held(c)[3], a @ b, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("devices", [4, 8])
def test_D6_headline_in_every_way_without_overlap(devices):
    equation = "A[I_x, J] · B[J, K] -> C[I, K]"
    arrays = normal(SMALL, "IJ", "JK")

    auto = sw.make_mesh({"x": devices}, axis_types=AxisType.Auto)
    whole = NamedSharding(auto, sw.Layout.parse("I, K").spec)
    by_jit = jax.jit(jnp.matmul, out_shardings=whole)
    outcome = sw.check(by_jit, np.matmul, *placed(equation, auto, *arrays))
    assert outcome, str(outcome)

    mesh = sw.make_mesh({"x": devices})
    given = placed(equation, mesh, *arrays)
    plan = sw.plan(equation, sizes=SMALL, mesh=mesh, dtype="float32", overlap=False)
    ways = {candidate.program.steps: candidate.program for candidate in plan}
    for steps in (GATHER_THEN_MULTIPLY, MULTIPLY_THEN_GATHER):
        outcome = sw.check(jax.jit(lower(ways[steps], mesh)), np.matmul, *given)
        assert outcome, str(outcome)
    for on in (auto, mesh):
        outcome = sw.check(lambda a, b: sw.einsum(equation, a, b), np.matmul, *placed(equation, on, *arrays))
        assert outcome, str(outcome)


def test_D7_batched_planned():
    sizes = HEADLINE | {"P": 4}
    equation = "A[I_x, J] · Y[P_x, J, K] -> C[P_x, I, K]"
    plan = sw.plan(equation, sizes=sizes, mesh="x=4", hardware="tpu-v5e", overlap=False)

    assert plan.best.program.steps == (AllGather("A", "I", ("x",)), Einsum(("A", "Y"), "C", ("P", "I", "K")))
    assert plan.best.estimate.redundancy == 1


def test_D7_batched_against_the_reference():
    a, y = normal(SMALL | {"P": 4}, "IJ", "PJK")
    equation = "A[I_x, J] · Y[P_x, J, K] -> C[P_x, I, K]"
    given = placed(equation, sw.make_mesh("x=4"), a, y)

    def planned(a, y):
        return sw.einsum(equation, a, y)

    outcome = sw.check(planned, lambda a, y: np.einsum("ij,pjk->pik", a, y), *given)
    assert outcome, str(outcome)
    outcome = sw.check(planned, lambda a, y: jnp.einsum("ij,pjk->pik", a, y), *given, gradients=True)
    assert outcome, str(outcome)
    assert laid_out(planned(*given), "P_x, I, K")


@pytest.mark.parametrize("devices", [4, 8])
def test_D8_multiply_then_reduce_scatter(devices):
    equation = "A[I, J_x] · B[J_x, K] -> C[I_x, K]"
    steps = (MATMUL, ReduceScatter("C", "I", ("x",)))
    planned = {
        candidate.program.steps: candidate.estimate
        for candidate in sw.plan(equation, sizes=HEADLINE, mesh={"x": devices}, hardware="tpu-v5e", overlap=False)
    }
    assert planned[steps].total_wire_bytes == 2 * 16384 * 2048 * (devices - 1) / devices
    assert planned[steps].redundancy == 1

    mesh = sw.make_mesh({"x": devices})
    given = placed(equation, mesh, *normal(SMALL, "IJ", "JK"))
    plan = sw.plan(equation, sizes=SMALL, mesh=mesh, dtype="float32", overlap=False)
    program = next(candidate.program for candidate in plan if candidate.program.steps == steps)
    for function in (jax.jit(lower(program, mesh)), lambda a, b: sw.einsum(equation, a, b)):
        outcome = sw.check(function, lambda a, b: a @ b, *given, gradients=True)
        assert outcome, str(outcome)
        assert laid_out(function(*given), "I_x, K")


# D10: blocks of both operands.

BOTH_SPLIT = "A[I_x, J_y] · B[J_x, K_y] -> C[I_x, K_y]"


def test_D10_a_matmul_of_blocks():
    mesh = sw.make_mesh("x=2, y=2")
    (a00, a01, a10, a11), (b00, b01, b10, b11) = (held(array) for array in placed(BOTH_SPLIT, mesh, A, B))
    c = sw.einsum(BOTH_SPLIT, A, B, mesh=mesh)

    blocks = [a00 @ b00 + a01 @ b10, a00 @ b01 + a01 @ b11, a10 @ b00 + a11 @ b10, a10 @ b01 + a11 @ b11]
    for block, shard in zip(blocks, held(c), strict=True):
        np.testing.assert_array_equal(shard, block)
    np.testing.assert_array_equal(c, A @ B)


@pytest.mark.parametrize("mesh", ["x=2, y=2", "x=4, y=2"])
@pytest.mark.parametrize("hardware", ["cpu", "tpu-v5e", "h100"])
def test_D10_both_operands_are_gathered(mesh, hardware):
    a, b = normal(SMALL, "IJ", "JK")
    mesh = sw.make_mesh(mesh)
    plan = sw.plan(BOTH_SPLIT, sizes=SMALL, mesh=mesh, hardware=hardware, dtype="float32", overlap=False)
    assert plan.best.program.steps == (AllGather("A", "J", ("y",)), AllGather("B", "J", ("x",)), MATMUL)

    given = placed(BOTH_SPLIT, mesh, a, b)
    outcome = sw.check(plan.function(mesh), lambda a, b: a @ b, *given, gradients=True)
    assert outcome, str(outcome)
    assert laid_out(plan.function(mesh)(*given), "I_x, K_y")


def test_D10_under_a_memory_limit_the_least_that_does_is_said_and_does():
    sizes = {"I": 1024, "J": 1024, "K": 1024}
    shard_bytes = 2 * 256 * 256
    limit = 7 * shard_bytes  # two operands, two that turn, two that arrive, and the block of C: for a rotation
    with pytest.raises(PlanError, match="the least that would do is") as refused:
        sw.plan(BOTH_SPLIT, sizes=sizes, mesh="x=4, y=4", hardware="tpu-v5p", memory_limit=limit, overlap=False)

    least = int(re.search(r"the least that would do is ([\d,]+) bytes", str(refused.value))[1].replace(",", ""))
    assert limit < least < 11 * shard_bytes  # gathering both takes 11
    plain = {"sizes": sizes, "mesh": "x=4, y=4", "hardware": "tpu-v5p", "overlap": False}
    assert sw.plan(BOTH_SPLIT, memory_limit=least, **plain).best
    with pytest.raises(PlanError):
        sw.plan(BOTH_SPLIT, memory_limit=least - 1, **plain)
    rotated = sw.plan(BOTH_SPLIT, sizes=sizes, mesh="x=4, y=4", hardware="tpu-v5p", memory_limit=limit)
    assert [type(step).__name__ for step in rotated.best.program.steps] == ["RotateEinsum"]
    assert rotated.best.estimate.peak_memory_bytes <= limit
