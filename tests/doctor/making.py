"""What the programs of the corpus are made with: types of arrays laid out on a mesh."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def laid(mesh: Any, shape: tuple[int, ...], *spec: Any, dtype: Any = jnp.bfloat16) -> jax.ShapeDtypeStruct:
    """The type of an array with a layout."""
    return jax.ShapeDtypeStruct(shape, dtype, sharding=jax.NamedSharding(mesh, jax.P(*spec)))
