"""Kernels of Pallas in programs: the FLOPs that are asked for, and what an audit of the compiled text makes of them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import shardwise as sw
from shardwise.compiled.needed import needed_flops
from shardwise.compiled.targets.unattached import mesh_of

STATED = {"cost_estimate": pl.CostEstimate(flops=777, transcendentals=0, bytes_accessed=10**6)}


def _multiplied(a: Any, b: Any, out: Any) -> None:
    out[...] = jnp.dot(a[...], b[...], preferred_element_type=jnp.float32).astype(out.dtype)


def multiplied(a: jax.Array, b: jax.Array, **more: Any) -> jax.Array:
    rows = 128
    return pl.pallas_call(
        _multiplied,
        grid=(a.shape[0] // rows,),
        in_specs=[pl.BlockSpec((rows, a.shape[1]), lambda i: (i, 0)), pl.BlockSpec(b.shape, lambda i: (0, 0))],
        out_specs=pl.BlockSpec((rows, b.shape[1]), lambda i: (i, 0)),
        out_shape=jax.ShapeDtypeStruct((a.shape[0], b.shape[1]), a.dtype),
        **more,
    )(a, b)


@pytest.mark.parametrize(
    ("more", "flops"),
    [(STATED, 777), ({}, 0), ({"interpret": True}, 2 * 512 * 256 * 128)],
    ids=["stated", "silent", "interpreted"],
)
def test_a_kernel_asks_for_the_flops_that_it_states(more: dict[str, Any], flops: int):
    a, b = jnp.ones((512, 256)), jnp.ones((256, 128))
    assert needed_flops(jax.make_jaxpr(lambda a, b: multiplied(a, b, **more))(a, b).jaxpr) == flops


def _where_it_is_first(a: Any, b: Any, out: Any) -> None:
    @pl.when(pl.program_id(0) < 5)
    def _() -> None:
        out[...] = a[...] @ b[...]


def test_what_an_interpreted_kernel_asks_for_is_not_known_where_branches_differ():
    """Nor is anything said of work that is repeated."""
    a = jnp.ones((16, 16))
    kernel = pl.pallas_call(
        _where_it_is_first, grid=(1,), out_shape=jax.ShapeDtypeStruct(a.shape, a.dtype), interpret=True
    )  # fmt: skip
    audited = sw.audit(lambda a: kernel(a, a) @ a, a)
    assert audited.work.repeated is None
    assert not any(finding.kind == "repeated-work" for finding in audited.findings)


@pytest.mark.needs("tpu")
def test_the_work_of_a_kernel_is_counted_once_for_each_device_and_not_taken_for_repeated():
    mesh = mesh_of("v5e:2x4", "x=8", axis_types=AxisType.Auto)
    local = jax.shard_map(
        lambda a, b: multiplied(a, b, **STATED), mesh=mesh, in_specs=(P("x"), P()), out_specs=P("x"), check_vma=False
    )
    rows, whole = NamedSharding(mesh, P("x")), NamedSharding(mesh, P())
    a = jax.ShapeDtypeStruct((4096, 256), jnp.bfloat16, sharding=rows)
    audited = sw.rehearse(local, a, jax.ShapeDtypeStruct((256, 128), jnp.bfloat16, sharding=whole), on="v5e:2x4")
    assert (audited.work.flops_per_device, audited.work.repeated) == (777, 1)
    line = audited.timeline()
    assert line.matmul_flops == 777
    assert line.step_seconds == pytest.approx(1e6 / 8.1e11)  # the bytes that it states at the speed of memory
    assert not any("FLOPs are not known" in note for note in line.notes)


@pytest.mark.needs("tpu")
def test_kernels_that_do_not_state_their_flops_are_said_to_be_left_out():
    a, b = jax.ShapeDtypeStruct((512, 256), jnp.bfloat16), jax.ShapeDtypeStruct((256, 128), jnp.bfloat16)
    silent = sw.rehearse(lambda a, b: multiplied(a, b) @ b.T, a, b, on="v5e:1x1")
    assert silent.work.silent == 1
    assert "; 1 kernel not counted, whose FLOPs are not stated" in str(silent)
    assert sw.rehearse(lambda a, b: multiplied(a, b, **STATED), a, b, on="v5e:1x1").work.silent == 0
