"""A small network of modules with Adam, weights over x and y, as people write it with flax.nnx or equinox and optax:
the state of the optimizer is a tree like that of the parameters. Shaped after "Scale up on multiple devices" of
flax.readthedocs.io and docs.kidger.site/equinox (examples/parallelism); plain JAX here, with the same shapes. Written
after the doctor worked."""

import dataclasses

import jax
import jax.numpy as jnp
from making import laid

AXES = "auto"


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Linear:
    kernel: jax.Array
    bias: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Network:
    first: Linear
    second: Linear


def build(mesh):
    def forward(model, inputs):
        hidden = jax.nn.relu(inputs @ model.first.kernel + model.first.bias)
        return hidden @ model.second.kernel + model.second.bias

    def step(model, mu, nu, inputs, targets):
        def loss(model):
            return jnp.mean(jnp.square(forward(model, inputs) - targets))

        value, gradients = jax.value_and_grad(loss)(model)
        mu = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mu, gradients)
        nu = jax.tree.map(lambda n, g: 0.999 * n + 0.001 * g * g, nu, gradients)
        model = jax.tree.map(lambda p, m, n: p - 1e-3 * m / (jnp.sqrt(n) + 1e-8), model, mu, nu)
        return model, mu, nu, value

    def linear(rows, columns, *spec):
        return Linear(laid(mesh, (rows, columns), *spec, dtype=jnp.float32), laid(mesh, (columns,), spec[1], dtype=jnp.float32))

    model = Network(linear(256, 1024, None, "y"), linear(1024, 256, "y", None))
    batch = laid(mesh, (512, 256), "x", None, dtype=jnp.float32)
    return step, (model, model, model, batch, batch)
