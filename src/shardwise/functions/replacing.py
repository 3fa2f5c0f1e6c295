"""Where a function may be changed: its matmuls at which something moves, and its lookups; and what takes their place."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from jax.extend.core import Jaxpr, JaxprEqn

from shardwise.functions.lookup_places import LookupPlace, lookup_places
from shardwise.functions.matmul_places import MatmulPlace
from shardwise.functions.matmul_planning import matmul_places
from shardwise.functions.rewriting import Brought, Path, Replace, Replacement, makers_of, numbered
from shardwise.functions.sights import Left, Where, seen
from shardwise.runtime.devices import AnyMesh

Place = MatmulPlace | LookupPlace


def found_places(
    function: Callable[..., Any], args: tuple[Any, ...], on: str | None, mesh: AnyMesh, where: Where, forced: str = ""
) -> tuple[list[Place], list[Left]]:  # fmt: skip
    """Where transfers may be fewer, or run behind matmuls, the most promising first; and what is left alone although it moves.

    Args:
        on: the devices that it is lowered for, as `"v5e:4x4"`; None for those of the mesh.
        where: what is planned for.
        forced: how transfers are to run behind matmuls, as `overlap=` names it, also where another program is faster.

    Raises:
        CompileError: the function cannot be traced; NoPassesError: its layouts cannot be told.
    """
    found = seen(function, args, on, mesh)
    matmuls, left = matmul_places(found.graph, found.sights, found.jaxprs, where, forced)
    lookups, stay = lookup_places(found.graph, found.sights, where, bool(forced))
    return sorted((*matmuls, *lookups), key=lambda place: -place.gain), [*left, *stay]


def replacing(places: Sequence[Place], mesh: Any) -> Replace:
    """What puts the planned programs in their places, on the mesh in force, or else this one."""
    chosen = {path: place for place in places for path in place.paths}

    @functools.lru_cache(maxsize=4)  # all places of a jaxpr ask
    def wanted(prefix: Path, jaxpr: Jaxpr) -> frozenset[Brought]:
        """What places of a jaxpr take as others bring it."""
        makers, found = makers_of(jaxpr), set[Brought]()
        for number, _, equation in numbered(jaxpr):
            place = chosen.get((*prefix, number))
            if isinstance(place, MatmulPlace):
                found.update(place.takes((*prefix, number), equation, makers).values())
        return frozenset(found)

    def planned(path: Path, equation: JaxprEqn, jaxpr: Jaxpr) -> Replacement | None:
        place = chosen.get(path)
        if isinstance(place, MatmulPlace):
            return place.replacement(path, equation, jaxpr, mesh, wanted(path[:-1], jaxpr))
        return None if place is None else place.replacement(path, equation, jaxpr, mesh)

    return planned
