"""By the compilers of TPUs and GPUs: random arrays are made shard by shard; statistics take the collectives they say."""

from __future__ import annotations

import jax
import pytest
from jax.sharding import PartitionSpec as P

import shardwise as sw

SIZES = {"D": 8192, "F": 8192}
SHARD_BYTES = 8192 * 8192 * 4 // 8
pytestmark = [pytest.mark.needs(compiler_of="on"), pytest.mark.usefixtures("kept_texts")]


@pytest.mark.parametrize("on", ["v5e:2x4", "h100:8"])
@pytest.mark.parametrize("layout", ["W[D_x, F]", "W[D, F_x]"])
def test_each_device_makes_its_shard_and_needs_little_more(on, layout):
    key = jax.ShapeDtypeStruct((2,), "uint32")
    audit = sw.rehearse(lambda key: sw.random.normal(key, layout, sizes=SIZES), key, on=on)

    audit.assert_only({})
    assert audit.memory.outputs == SHARD_BYTES
    assert audit.memory.temporaries < SHARD_BYTES // 100


@pytest.mark.parametrize("on", ["v5e:2x4", "h100:8"])
def test_a_normalisation_is_one_gather_of_moments(on):
    mesh = jax.sharding.AbstractMesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,))
    x = jax.ShapeDtypeStruct((1024, 8192), "bfloat16", sharding=jax.NamedSharding(mesh, P(None, "x")))

    def normalised(x):
        return jax.shard_map(lambda x: sw.spmd.normalize(x, over="x"), in_specs=P(None, "x"), out_specs=P(None, "x"))(x)

    sw.rehearse(normalised, x, on=on).assert_only({"all-gather": {"x": 1}})
