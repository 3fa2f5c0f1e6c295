"""Equations inside `shard_map`, compiled for a TPU slice: what was compiled is the plan of outside, its rings included."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import shardwise as sw

EQUATION = "X[B_batch, D_feats] · W[D_{feats,batch}, F] -> Y[B_batch, F_feats]"


@pytest.mark.needs("tpu")
def test_a_layer_of_a_manual_map_has_the_certificate_of_its_plan():
    """The map takes the mesh in force, so that the plan is made for the devices that it is rehearsed on."""
    mesh = sw.make_mesh("batch=4, feats=2")
    x, w = (
        jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=jax.NamedSharding(mesh, sw.Layout.parse(layout).spec))
        for layout, shape in (("B_batch, D_feats", (4096, 4096)), ("D_{feats,batch}, F", (4096, 8192)))
    )

    def layer(x, w):
        mapped = jax.shard_map(
            lambda x, w: sw.spmd.einsum(EQUATION, x, w), in_specs=(x_spec, w_spec), out_specs=P("batch", "feats")
        )
        return mapped(x, w)

    x_spec, w_spec = x.sharding.spec, w.sharding.spec
    audit = sw.rehearse(layer, x, w, on="v5e:2x4")
    plan = sw.plan(EQUATION, x, w, hardware="v5e:2x4")

    audit.assert_matches(plan)
    assert any(collective.kind == "collective-permute" and collective.hidden_by for collective in audit.collectives)
