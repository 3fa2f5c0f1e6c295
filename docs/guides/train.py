"""A training step small enough to read: a batch split over x, two layers whose hidden dimension is split over y."""

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

BATCH, MODEL, HIDDEN = 8192, 4096, 16384


def loss(weights, batch, target):
    hidden = jax.nn.relu(batch @ weights["up"])
    return jnp.mean((hidden @ weights["down"] - target).astype(jnp.float32) ** 2)


def step(weights, batch, target):
    gradients = jax.grad(loss)(weights, batch, target)
    return jax.tree.map(lambda weight, gradient: weight - 0.01 * gradient, weights, gradients)


def inputs(mesh, batch=BATCH, stored_over=None):
    """Shapes, dtypes and layouts of the arguments; `stored_over` splits the weights over one axis more (FSDP)."""

    def shape(rows, columns, *spec):
        return jax.ShapeDtypeStruct((rows, columns), jnp.bfloat16, sharding=NamedSharding(mesh, P(*spec)))

    weights = {"up": shape(MODEL, HIDDEN, stored_over, "y"), "down": shape(HIDDEN, MODEL, "y", stored_over)}
    return weights, shape(batch, MODEL, "x"), shape(batch, MODEL, "x")
