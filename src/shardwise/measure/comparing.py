"""`compare`: several ways to compute the same, run in turn and compiled, side by side."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

from shardwise.chips import Hardware
from shardwise.compiled.compiling import audit, name_of
from shardwise.compiled.needed import needed_flops
from shardwise.errors import MeasureError, ShardwiseError, quoted
from shardwise.measure.comparison import Comparison, Measured, unread
from shardwise.measure.timing import done, unsharded, until_narrow
from shardwise.measure.ways import DEFAULT, Way, asked_of_compilers, settled, ways_of
from shardwise.notation import parse
from shardwise.planning.problem import Problem
from shardwise.planning.ranking import ranked
from shardwise.runtime.arrays import as_array, fetch, place
from shardwise.runtime.checking import check
from shardwise.runtime.devices import attached_mesh
from shardwise.runtime.execute import Options, bind, signature

SECONDS = 20.0


def compare(
    what: str | Mapping[str, Any] | Sequence[Callable[..., Any]], *arrays: Any, ways: str | Sequence[str] = DEFAULT,
    mesh: Any = None, hardware: str | Hardware | None = None, overlap: bool | str = True,
    memory_limit: float | None = None, exact: bool = False, pad: bool = False, seconds: float = SECONDS,
) -> Comparison:  # fmt: skip
    """Measure several ways to compute the same: an equation in each way that JAX has and as planned, or functions of yours.

    All are compiled and read first (`sw.audit`), their results held against the first one's, and then run in turn, in
    another order each time, until every median is known to 2 % or the time is up. The interval of a median is a
    distribution-free one; a way is called the fastest only where its interval lies below all others.

    >>> import numpy as np
    >>> a, b = np.ones((64, 32), np.float32), np.ones((32, 16), np.float32)
    >>> found = compare("A[I, J_x] · B[J_x, K] -> C[I_x, K]", a, b, mesh="x=4", ways=("constraint", "planned"), seconds=0.1)
    >>> [way.name for way in found], found.agrees, found["planned"].audit.collectives[0].kind
    (['constraint', 'planned'], True, 'reduce-scatter')
    >>> one = compare({"sum": lambda a: a.sum(0), "mean": lambda a: a.mean(0)}, a, seconds=0.1)
    >>> one["mean"].differs
    'output by up to 63'

    Args:
        what: an equation in the notation, with an array for each operand; or functions, by name or in a list, which are
            jitted if they are not yet. With names, a function may stand with arguments of its own:
            `{"one device": (jnp.sin, one), "four": (jnp.sin, four)}`.
        arrays: as `sw.einsum` takes them; of functions, the arguments of those that have none of their own.
        ways: of an equation, any of `auto` (`jax.jit` with `out_shardings`, Auto axes), `constraint` (the same with
            `jax.lax.with_sharding_constraint`), `explicit` (`jnp.einsum` with `out_sharding`), `manual` (`jax.shard_map`, the
            program of the fewest steps as `Plan.code()` writes it), `planned`, `candidate 2` and further ones of the plan, and
            `ring`, `bidirectional`, `scatter`, `rotate`: the plan with transfers behind matmuls in that form.
        mesh, hardware, overlap, memory_limit, exact: as in `sw.plan` and `sw.einsum`.
        pad: fill dimensions that axes do not divide with zeros, and measure the padded sizes.
        seconds: for the runs in turn, all ways together; what is compiled and checked before comes on top.

    Returns:
        A `Comparison`: printable, with seconds, bytes on the wire, FLOPs and bytes of memory a device for each way.

    Raises:
        MeasureError: a function raises while it is run, or there is nothing to compare.
        PlanError: a way that is not known, or that the equation does not have.
        ShardwiseError: as `sw.einsum` and `sw.audit`.
    """
    _check_seconds(seconds)
    if not isinstance(what, str):
        functions = _functions(what, arrays)
        with jax.set_mesh(attached_mesh(mesh)) if mesh is not None else contextlib.nullcontext():
            return compared(functions, ", ".join(way.name for way in functions), seconds)
    equation = parse(what)
    grid = attached_mesh(mesh, arrays)
    options = Options(hardware, None, memory_limit, pad, overlap=overlap, exact=exact)
    given = tuple(map(as_array, arrays))
    bound = bind(equation, grid, options, tuple(map(signature, given)))
    plan = ranked(bound.task)
    placed = [
        place(array, operand, grid, tuple(bound.task.sizes[dim] for dim in operand.dims))
        for array, operand in zip(given, bound.task.equation.operands, strict=True)
    ]
    named = dict.fromkeys((ways,) if isinstance(ways, str) else ways)
    left_out = asked_of_compilers(tuple(named), settled(plan))
    notes = [f"{', '.join(left_out)} left out: jax.jit neither takes nor gives partial sums"] if left_out else []
    chosen = list(ways_of([name for name in named if name not in left_out], plan, placed, grid))
    return compared(chosen, what, seconds, notes, _needed(bound.task))


def _check_seconds(seconds: Any) -> None:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < float("inf"):
        raise MeasureError(f"seconds={quoted(seconds)}: give the seconds that runs may take, as 20")


def _needed(task: Problem) -> float | None:
    """The FLOPs of an equation, over all devices, each matmul once."""
    arrays = [jax.ShapeDtypeStruct(tuple(task.sizes[d] for d in each.dims), task.dtype) for each in task.equation.operands]
    return needed_flops(jax.make_jaxpr(unsharded(task.equation))(*arrays).jaxpr)


def compared(
    ways: Sequence[Way], what: str, seconds: float, notes: Sequence[str] = (), needed: float | None = None
) -> Comparison:
    """Compile, check and time ways; see `compare`."""
    if not ways:
        raise MeasureError("there is nothing to compare: name ways of the equation, or give functions")
    audits = [audit(way.function, *way.args, mesh=way.mesh) for way in ways]
    differences = list(_differences(ways))
    times = until_narrow({way.name: way for way in ways}, seconds)
    found = tuple(
        Measured(way.name, times[way.name], audited, way.says, way.estimate_seconds, differs)
        for way, audited, differs in zip(ways, audits, differences, strict=True)
    )
    return Comparison(what, _where(audits), found, (*notes, *unread(found)), needed)


def _where(audits: Sequence[Any]) -> str:
    """The devices that take part, and their meshes.

    `on cpu:4, mesh x=4`
    """
    grids = dict.fromkeys(str(each.mesh) for each in audits if each.mesh.axes)
    targets = dict.fromkeys(each.target for each in audits)
    return f"on {' and '.join(targets)}" + (f", mesh {' and '.join(grids)}" if grids else "")


def _functions(what: Any, arrays: tuple[Any, ...]) -> list[Way]:
    """The functions of the user's own, each with its arguments."""
    if isinstance(what, Mapping):
        named = list(what.items())
    elif isinstance(what, Sequence):
        named = [(name_of(function), function) for function in what]
    else:
        raise MeasureError(f"{quoted(what)} is neither an equation nor functions: give {{'one': f, 'other': g}} or [f, g]")
    ways = []
    for name, given in named:
        function, *own = given if isinstance(given, tuple) else (given, *arrays)
        if not callable(function):
            raise MeasureError(
                f"{quoted(function)} is no function: give {quoted(name)} one, or one with its arguments: (f, a, b)"
            )
        ways.append(Way(str(name), function if hasattr(function, "lower") else jax.jit(function), tuple(own)))
    if len({way.name for way in ways}) < len(ways):
        raise MeasureError("two functions have the same name: give each one of its own, as {'one': f, 'other': g}")
    return ways


def _differences(ways: Sequence[Way]) -> Iterator[str]:
    """How the result of each way differs from the first one's; empty where it does not."""
    first: Any = None
    for number, way in enumerate(ways):
        result = done(way.name, way)
        if not number:
            first = jax.tree.map(fetch, result)
            yield ""
            continue
        yield _difference(result, first, way.args)


def _difference(result: Any, wanted: Any, args: tuple[Any, ...]) -> str:
    try:
        found = check(lambda *_: result, lambda *_: wanted, *args)
    except ShardwiseError as error:
        return str(error)
    return "; ".join(str(leaf.note or f"{leaf.name} by up to {leaf.error:.3g}") for leaf in found.leaves if not leaf.ok)
