"""A mixture of experts with an even all-to-all inside of a shard_map. Shaped after GShard (arxiv.org/abs/2006.16668)
and the expert parallelism of github.com/AI-Hypercomputer/maxtext (layers/moe.py). Written after the doctor worked."""

import jax
import jax.numpy as jnp
from jax import P
from making import laid

AXES = "auto"


def build(mesh):
    def experts(tokens, w):
        count = jax.lax.axis_size("x")
        parts = tokens.reshape(count, -1, tokens.shape[-1])
        sent = jax.lax.all_to_all(parts, "x", split_axis=0, concat_axis=0, tiled=True)
        hidden = jax.nn.relu(jnp.einsum("ctd,df->ctf", sent, w["up"][0]))
        out = jnp.einsum("ctf,fd->ctd", hidden, w["down"][0])
        back = jax.lax.all_to_all(out, "x", split_axis=0, concat_axis=0, tiled=True)
        return back.reshape(tokens.shape)

    def layer(h, w):
        gates = jax.nn.softmax(jnp.einsum("td,de->te", h, w["router"]).astype(jnp.float32), axis=-1)
        order = jnp.argsort(jnp.argmax(gates, axis=-1))
        mixed = jax.shard_map(
            experts, mesh=mesh, in_specs=(P("x", None), {"up": P("x"), "down": P("x")}), out_specs=P("x", None)
        )
        moved = mixed(jnp.take(h, order, axis=0), {"up": w["up"], "down": w["down"]})
        return h + jnp.take(moved, jnp.argsort(order), axis=0)

    types = {
        "router": laid(mesh, (256, mesh.shape["x"]), None, None),
        "up": laid(mesh, (mesh.shape["x"], 256, 512), "x", None, None),
        "down": laid(mesh, (mesh.shape["x"], 512, 256), "x", None, None),
    }
    return layer, (laid(mesh, (1024, 256), "x", None), types)
