"""A residual block of a convolutional network with batch statistics, data parallel. Shaped after the ResNet of
github.com/google/flax (examples/imagenet). Written after the doctor worked."""

import jax
import jax.numpy as jnp
from making import laid

AXES = "auto"


def build(mesh):
    def convolved(images, kernel):
        return jax.lax.conv_general_dilated(images, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def normed(a, w):
        mean = jnp.mean(a.astype(jnp.float32), axis=(0, 1, 2))
        spread = jnp.var(a.astype(jnp.float32), axis=(0, 1, 2))
        return ((a - mean) * jax.lax.rsqrt(spread + 1e-5) * w["scale"] + w["bias"]).astype(a.dtype)

    def loss(w, images, labels):
        a = jax.nn.relu(normed(convolved(images, w["first"]), w["norm"]))
        a = images + convolved(a, w["second"])
        logits = jnp.mean(a, axis=(1, 2)).astype(jnp.float32) @ w["head"]
        return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - jnp.take_along_axis(logits, labels[:, None], axis=-1)[:, 0])

    def step(w, momentum, images, labels):
        value, gradients = jax.value_and_grad(loss)(w, images, labels)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradients)
        return jax.tree.map(lambda p, m: p - 0.1 * m, w, momentum), momentum, value

    types = {
        "first": laid(mesh, (3, 3, 64, 64)),
        "second": laid(mesh, (3, 3, 64, 64)),
        "norm": {"scale": laid(mesh, (64,), dtype=jnp.float32), "bias": laid(mesh, (64,), dtype=jnp.float32)},
        "head": laid(mesh, (64, 128), dtype=jnp.float32),
    }
    images = laid(mesh, (64, 16, 16, 64), ("x", "y"))
    return step, (types, types, images, laid(mesh, (64,), ("x", "y"), dtype=jnp.int32))
