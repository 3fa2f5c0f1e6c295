"""Functions of `jax.shard_map` without `mesh=`, left as unbound by a trace as they were before it."""

from __future__ import annotations

import functools
import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import CellType, CodeType, FunctionType
from typing import Any

import jax

_BOUND = ("mesh", "axis_names")  # what such a function keeps of the first mesh that is in force when it is called
_CHECKS = "_shmap_checks"  # what it calls to make these two of what it was given


@contextmanager
def left_unbound() -> Iterator[None]:
    """Trace as often as wanted, under other meshes too: afterwards every function is bound to what it was bound to before.

    What `jax.shard_map` makes without `mesh=` takes the mesh that is in force when it is first called, and refuses all
    others from then on. A trace that runs nothing shall not decide that for the program.

    >>> double = jax.shard_map(lambda a: a * 2, in_specs=jax.P("x"), out_specs=jax.P("x"))
    >>> for size in (2, 4):
    ...     mesh = jax.sharding.AbstractMesh((size,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,))
    ...     a = jax.ShapeDtypeStruct((8,), "float32", sharding=jax.NamedSharding(mesh, jax.P("x")))
    ...     with left_unbound(), jax.sharding.use_abstract_mesh(mesh):
    ...         print(jax.jit(double).trace(a).jaxpr.out_avals)
    [ShapedArray(float32[8@x])]
    [ShapedArray(float32[8@x])]
    """
    made = _made()
    if made is None:
        yield
    elif _CHECKS in made.code.co_names:
        with _WATCH.over(made.names) as taken:
            try:
                yield
            finally:
                if taken:
                    _unbind(made, taken)
    else:
        before = [(cell, cell.cell_contents) for cells in _cells(made) for cell in cells]
        try:
            yield
        finally:
            for cell, contents in before:
                cell.cell_contents = contents


@dataclass(frozen=True, slots=True)
class _Made:
    """What all functions of `jax.shard_map` share: their code, and the names that it reads."""

    code: CodeType
    names: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Taken:
    """A function without a mesh was called: what it has taken as its mesh and axes, and the axes that it was given."""

    mesh: Any
    axes: Any
    given: Any


class _Watch:
    """Lists what functions without a mesh take while anybody watches.

    Looking for them among all objects takes as long as there are many: so that is done where one was called, and not otherwise.
    """

    def __init__(self) -> None:
        self.lock, self.lists = threading.Lock(), list[list[_Taken]]()
        self.checks: Callable[..., Any] | None = None

    @contextmanager
    def over(self, names: dict[str, Any]) -> Iterator[list[_Taken]]:
        """Watch, and list what is taken meanwhile."""
        taken: list[_Taken] = []
        with self.lock:
            if not self.lists:
                self.checks, names[_CHECKS] = names[_CHECKS], self
            self.lists.append(taken)
        try:
            yield taken
        finally:
            with self.lock:
                self.lists[:] = [each for each in self.lists if each is not taken]
                if not self.lists:
                    names[_CHECKS] = self.checks

    def __call__(self, mesh: Any, axes: Any, *rest: Any) -> Any:
        assert self.checks is not None
        mesh_taken, axes_taken = self.checks(mesh, axes, *rest)
        if mesh is None:
            for taken in self.lists:
                taken.append(_Taken(mesh_taken, axes_taken, axes))
        return mesh_taken, axes_taken


_WATCH = _Watch()


def _unbind(made: _Made, taken: list[_Taken]) -> None:
    """Give the functions that were called back what they had."""
    for mesh, axes in _cells(made):
        for each in taken:
            if mesh.cell_contents is each.mesh and axes.cell_contents is each.axes:
                mesh.cell_contents, axes.cell_contents = None, each.given
                break


def _cells(made: _Made) -> Iterator[list[CellType]]:
    """Of every such function the cells that hold what it is bound to."""
    for function in gc.get_referrers(made.code):
        if isinstance(function, FunctionType) and function.__closure__:
            cells = dict(zip(made.code.co_freevars, function.__closure__, strict=True))
            yield [cells[name] for name in _BOUND]


@functools.cache
def _made() -> _Made | None:
    """What the functions of `jax.shard_map` share; None where JAX makes them in another way."""
    within: list[Any] = [jax.shard_map(lambda: None, in_specs=(), out_specs=())]
    seen: set[int] = set()
    while within:
        found = within.pop()
        if not isinstance(found, FunctionType) or id(found) in seen:
            continue
        seen.add(id(found))
        if set(_BOUND) <= set(found.__code__.co_freevars):
            return _Made(found.__code__, found.__globals__)
        within += [cell.cell_contents for cell in found.__closure__ or ()]
    return None
