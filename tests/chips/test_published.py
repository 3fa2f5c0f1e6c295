"""Prices against measurements that others published: never slower than these, nor faster than bandwidth."""

from __future__ import annotations

from dataclasses import replace

import pytest

import shardwise as sw
from shardwise.chips import hardware
from shardwise.chips.links import collective_seconds
from shardwise.mesh import Mesh
from shardwise.planning.cost import Estimate

H100 = hardware("h100")
NODE = Mesh.parse("x=8")


def test_an_all_reduce_of_nccl_on_a_node_of_h100():
    """scaling-book, gpus.md: 8 H100, SHARP disabled, arrays near 10 GB: 2 * bytes * 7/8 / time is close to 370e9 bytes/s."""
    held = 1e10
    modelled = collective_seconds("all-reduce", H100, NODE, ("x",), held, held)
    sent = 2 * held * 7 / 8
    assert sent / modelled <= 4.5e11 * (1 + 1e-9)
    assert sent / (modelled / H100.reached.links.value) == pytest.approx(3.7e11, rel=0.01)


def test_an_all_gather_on_a_node_of_h100():
    """scaling-book, gpus.md, quiz 2: bf16[4096, 65536] over 8 H100 takes 1.04 ms by bandwidth, and about 1.5 ms in practice."""
    whole = 2 * 4096 * 65536
    modelled = collective_seconds("all-gather", H100, NODE, ("x",), whole / 8, whole)
    assert modelled == pytest.approx(1.04e-3, rel=0.01)
    assert 0.8 < modelled / H100.reached.links.value / 1.5e-3 <= 1


# JAX, Pallas Mosaic GPU, collective matrix multiplication: float16, of A 1024 x 4096 on each of so many H100, gathered, times
# 4096 x 4096: microseconds of NCCL's all-gather and cuBLAS's product, and of the kernel that hides the one behind the other.
TABLE = {2: (147, 102), 4: (290, 212), 8: (565, 436)}


def reached_seconds(estimate: Estimate) -> float:
    """The seconds of an estimate at the shares of the chip's figures that published measurements reach."""
    shares = {what: figure.value for what, figure in H100.shares_reached()}
    return estimate.compute_seconds / shares["peak"] + estimate.exposed_seconds / shares["links"]


@pytest.mark.parametrize("devices", TABLE)
def test_a_collective_matmul_on_h100(devices):
    sizes = {"I": 1024 * devices, "J": 4096, "K": 4096 * devices}
    equation = "A[I_x, J] · B[J, K_x] -> C[I, K_x]"
    for overlap, published, least in ((False, TABLE[devices][0], 0.72), ("ring", TABLE[devices][1], 0.78)):
        plan = sw.plan(equation, sizes=sizes, mesh={"x": devices}, hardware=ALONE, dtype="float16", overlap=overlap)
        found = next(each for each in plan if [type(step).__name__ for step in each.program.steps] in FORMS)
        bound, expected = 1e6 * found.estimate.seconds, 1e6 * reached_seconds(found.estimate)
        assert 2 * sizes["I"] * 4096 * 4096 / 9.9e14 <= bound * 1e-6 * (1 + 1e-9)
        assert bound < expected
        assert least < expected / published <= 1


ALONE = replace(H100, overlapped_matmul=None)  # a kernel that sends from within shares its cores with no collective
FORMS = (["AllGather", "Einsum"], ["GatherEinsum"])


def test_an_all_gather_on_v5e():
    """scaling-book, sharding.md, pop quiz 2: over y=4 of 8 x 4 chips: bf16[2048, 8192] in 680 us, [256, 256] in 8 us."""
    chip, mesh = hardware("tpu-v5e"), Mesh.parse("x=8, y=4")
    large, small = 2 * 2048 * 8192, 2 * 256 * 256
    modelled = collective_seconds("all-gather", chip, mesh, ("y",), large / 4, large)
    assert modelled == pytest.approx(560e-6, rel=0.01)
    assert modelled / chip.reached.links.value == pytest.approx(680e-6, rel=0.01)
    least = collective_seconds("all-gather", chip, mesh, ("y",), small / 4, small)
    assert least == pytest.approx(3e-6)  # three hops; what else a small transfer waits for has no published figure
    assert 0.3 < least / 8e-6 <= 1


def test_a_matmul_beside_a_transfer_is_charged_what_was_published():
    """arXiv:2507.03114: 18.9% longer on average, at most 40%."""
    assert 1 < H100.slowdown <= 1.4
    sizes = {"I": 65536, "J": 16384, "K": 65536}
    for overlap in ("ring", "bidirectional"):
        alone, beside = (
            sw.plan("A[I_x, J] · B[J, K_x] -> C[I, K_x]", sizes=sizes, mesh="x=8", hardware=chip, overlap=overlap).best.estimate
            for chip in (ALONE, H100)
        )
        assert alone.exposed_seconds == beside.exposed_seconds == 0  # the matmuls hide all that moves
        charged = beside.communication_seconds * (1 - 1 / H100.slowdown)  # for as long as something moves
        assert beside.seconds - alone.seconds == pytest.approx(charged, rel=0.01)
