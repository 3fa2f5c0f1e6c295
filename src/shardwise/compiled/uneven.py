"""Layouts that a function asks for and cannot have: constraints whose mesh axes do not divide the dimension they split.

Under Auto axes `jax.lax.with_sharding_constraint` takes them without a word. Where such an array stays inside, the compiler
pads it; where it leaves the function, JAX 0.10 drops the layout, and later versions refuse while they compile.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardwise.compiled.arguments import names_of
from shardwise.compiled.needed import inner_jaxprs
from shardwise.compiled.text.sources import Frame, is_users
from shardwise.layout import Axes

if TYPE_CHECKING:
    from jax.sharding import NamedSharding


@dataclass(frozen=True, slots=True)
class Uneven:
    """A constraint that splits a dimension of an array over axes that do not divide it, the line that asks for it, if known.

    `leaves`: the array is a result of the function; `shape` that of the array.
    """

    array: str
    dim: int
    size: int
    axes: Axes
    parts: int
    line: str = ""
    leaves: bool = False
    shape: tuple[int, ...] = ()

    @property
    def padded(self) -> int:
        """The smallest size that the axes divide."""
        return -(-self.size // self.parts) * self.parts

    def __str__(self) -> str:
        said = f"a constraint splits dimension {self.dim} of {self.array} over {', '.join(self.axes)}, "
        return said + f"which is {self.parts} devices and does not divide {self.size}"


def uneven_constraints(jaxpr: Any) -> tuple[Uneven, ...]:
    """Every such constraint of a traced function, in loops and branches too, each once.

    >>> import jax, jax.numpy as jnp, shardwise as sw
    >>> mesh = sw.make_mesh("x=4", axis_types=jax.sharding.AxisType.Auto)
    >>> rows = jax.NamedSharding(mesh, jax.P("x"))
    >>> traced = jax.make_jaxpr(lambda a: jax.lax.with_sharding_constraint(a, rows).sum())(jnp.ones((6, 8)))
    >>> print(uneven_constraints(traced.jaxpr)[0])
    a constraint splits dimension 0 of a (float32[6,8]) over x, which is 4 devices and does not divide 6
    """
    return tuple(dict.fromkeys(_found(jaxpr, frozenset(map(id, jaxpr.outvars)), names_of(jaxpr))))


def _found(jaxpr: Any, leaving: frozenset[int], names: dict[Any, str]) -> Iterator[Uneven]:
    from jax.sharding import NamedSharding  # here, since pictures of audits need no JAX

    for equation in jaxpr.eqns:
        sharding = equation.params.get("sharding")
        if equation.primitive.name == "sharding_constraint" and isinstance(sharding, NamedSharding):
            given = equation.invars[0]
            name = names.get(given, "") if isinstance(given, Hashable) else ""  # constants are not
            yield from _of_constraint(equation, sharding, name, leaves=id(equation.outvars[0]) in leaving)
        for inner in inner_jaxprs(equation.params):
            handed = zip(inner.invars, equation.invars, strict=True) if len(inner.invars) == len(equation.invars) else ()
            known = {own: names[given] for own, given in handed if isinstance(given, Hashable) and given in names}
            yield from _found(inner, frozenset(), known)


def _of_constraint(equation: Any, sharding: NamedSharding, name: str, leaves: bool) -> Iterator[Uneven]:
    aval = equation.outvars[0].aval
    array = f"{name} ({aval.str_short()})" if name else aval.str_short()
    for dim, (size, entry) in enumerate(zip(aval.shape, sharding.spec, strict=False)):
        names = (entry,) if isinstance(entry, str) else entry
        axes = tuple(str(name) for name in names) if isinstance(names, tuple) else ()
        parts = math.prod(sharding.mesh.shape[axis] for axis in axes)
        if size % parts:
            yield Uneven(array, dim, size, axes, parts, line_of(equation), leaves, tuple(aval.shape))


def line_of(equation: Any) -> str:
    """The innermost line of the user's own files; empty where JAX keeps none."""
    traceback = getattr(equation.source_info, "traceback", None)
    frames = [] if traceback is None else traceback.frames
    return next((str(Frame(frame.file_name, frame.line_num)) for frame in frames if is_users(frame.file_name)), "")
