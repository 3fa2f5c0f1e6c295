"""A pipeline: stages over x, activations handed on by ppermute in a scan. Shaped after the pipeline example of
docs.jax.dev (notebooks/shard_map) and praxis' LayerwiseShardablePipelined."""

import jax
import jax.numpy as jnp
from jax import P
from making import laid

AXES = "auto"


def build(mesh):
    def run(w, batches):
        count, stage = jax.lax.axis_size("x"), jax.lax.axis_index("x")
        w, onward = w[0], [(n, n + 1) for n in range(count - 1)]

        def tick(carry, number):
            state, done = carry
            state = jnp.where(stage == 0, batches[number % batches.shape[0]], state)
            state = jax.nn.relu(state @ w)
            done = done.at[number % batches.shape[0]].set(jnp.where(stage == count - 1, state, done[number % batches.shape[0]]))
            return (jax.lax.ppermute(state, "x", onward), done), None

        start = jax.lax.pcast((jnp.zeros_like(batches[0]), jnp.zeros_like(batches)), ("x",), to="varying")
        (_, done), _ = jax.lax.scan(tick, start, jnp.arange(batches.shape[0] + count - 1))
        return jax.lax.psum(done, "x")

    def forward(w, batches):
        return jax.shard_map(run, mesh=mesh, in_specs=(P("x"), P(None, "y")), out_specs=P(None, "y"))(w, batches)

    return forward, (laid(mesh, (mesh.shape["x"], 256, 256), "x"), laid(mesh, (8, 64, 256), None, "y"))
