"""How what a function takes and returns lies, as its annotations come to it; nothing is compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from shardwise.compiled.lockfile import Laid
from shardwise.compiled.targets.lowering import lower_on
from shardwise.functions.diagnosing import mesh_of, platform_of
from shardwise.intent.flowgraph import Graph
from shardwise.intent.propagation import intended


def boundaries(
    function: Callable[..., Any], *args: Any, mesh: Any = None, on: str | None = None
) -> tuple[tuple[Laid, ...], tuple[Laid, ...]]:
    """The arguments and the results of a function, each with its name and its layout.

    >>> import jax, jax.numpy as jnp
    >>> from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec as P
    >>> mesh = AbstractMesh((4,), ("x",), axis_types=(AxisType.Auto,))
    >>> a = jax.ShapeDtypeStruct((4096, 64), jnp.bfloat16, sharding=NamedSharding(mesh, P("x")))
    >>> arguments, results = boundaries(lambda a: {"transposed": a.T, "sum": a.sum()}, a)
    >>> arguments, [(each.name, each.layout) for each in results]
    ((Laid(name='a', layout='[I_x, J]'),), [("result['sum']", '[]'), ("result['transposed']", '[I, J_x]')])

    Args:
        function: jitted or plain.
        args: its arguments, pytrees of arrays or `jax.ShapeDtypeStruct`.
        mesh: as `sw.doctor` takes it.
        on: devices that need not be attached, as `"v5e:2x4"`.

    Raises:
        CompileError: the function cannot be traced.
        MeshError: there is no mesh, or a layout does not fit it.
        NoPassesError: the jaxlib at hand lacks a pass of Shardy's.
    """
    where = mesh_of(function, args, mesh, on)
    lowering = lower_on(function, args, on, where, platform_of(where))
    graph = intended(lowering.module, [each.name for each in lowering.arguments]).graph()
    return _laid(graph, graph.names, graph.arguments), _laid(graph, graph.returned, graph.results)


def _laid(graph: Graph, names: Sequence[str], numbers: Sequence[int]) -> tuple[Laid, ...]:
    return tuple(Laid(name, str(graph.values[number].layout)) for name, number in zip(names, numbers, strict=True))
