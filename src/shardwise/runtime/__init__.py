"""Action: the JAX boundary. Arrays come in, programs are lowered to `jax.shard_map`, arrays go out."""
