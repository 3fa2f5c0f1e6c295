"""From a lowered function to its graph: the door of this floor's part that knows what was meant."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from shardwise.intent.flattening import flatten
from shardwise.intent.flowgraph import Graph
from shardwise.intent.shardy import Change, Tree, bytecode, changed, numbered, propagated, tree


@dataclass(frozen=True, slots=True)
class Intended:
    """A lowered function, ready to be propagated as it is, and with changes."""

    module: Any = field(repr=False)
    original: Tree = field(repr=False)
    names: tuple[str, ...]

    def graph(self, changes: Iterable[Change] = ()) -> Graph:
        """What Shardy makes of it.

        Raises:
            NoPassesError: a pass is missing or fails.
        """
        copied = changed(self.module, changes)
        between = propagated(copied)
        return flatten(tree(copied), self.original, between, self.names)


def with_changes(ready: Intended, changes: Iterable[Change]) -> bytes:
    """The function with changes as MLIR bytecode, for a compiler."""
    return bytecode(changed(ready.module, changes))


def intended(module: Any, names: Sequence[str]) -> Intended:
    """A lowered function, to be propagated; the module given stays as it is.

    >>> import jax, jax.numpy as jnp
    >>> mesh = jax.sharding.AbstractMesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    >>> a = jax.ShapeDtypeStruct((8, 16), "float32", sharding=jax.NamedSharding(mesh, jax.P(None, "x")))
    >>> lowered = jax.jit(lambda a: a.sum(1)).trace(a).lower(lowering_platforms=("tpu",))
    >>> graph = intended(lowered.compiler_ir("stablehlo"), ["a"]).graph()
    >>> [(each.name, each.axes) for each in graph.operations if each.name == "sum"]
    [('sum', ('x',))]

    Args:
        module: StableHLO with Shardy's annotations.
        names: what users call its arguments, in its order.
    """
    copied = numbered(module)
    return Intended(copied, tree(copied), tuple(names))
