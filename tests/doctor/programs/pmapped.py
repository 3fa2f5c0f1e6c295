"""Data parallelism by `jax.pmap` itself: a step with pmean over eight copies of the state; arguments have a leading dimension
of devices, and no layouts. Shaped after flax's ImageNet example of before jit (github.com/google/flax, examples/imagenet at
v0.6) and the migration guide of JAX (docs.jax.dev/en/latest/migrate_pmap.html)."""

from functools import partial

import jax
import jax.numpy as jnp

AXES = "auto"
DEVICES = 8  # pmap takes those of this process, whatever mesh is meant


def build(mesh):
    @partial(jax.pmap, axis_name="batch")
    def step(state, images, labels):
        def loss(params):
            logits = jnp.tanh(images @ params["in"]) @ params["out"]
            return -jnp.mean(jnp.sum(labels * jax.nn.log_softmax(logits.astype(jnp.float32)), axis=-1))

        value, gradients = jax.value_and_grad(loss)(state["params"])
        gradients = jax.lax.pmean(gradients, axis_name="batch")
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, state["momentum"], gradients)
        params = jax.tree.map(lambda p, m: p - 0.1 * m, state["params"], momentum)
        return {"params": params, "momentum": momentum}, jax.lax.pmean(value, "batch")

    def types(shape):
        return jax.ShapeDtypeStruct((DEVICES, *shape), jnp.bfloat16)

    params = {"in": types((256, 512)), "out": types((512, 64))}
    return step, ({"params": params, "momentum": params}, types((32, 256)), types((32, 64)))
