"""A function again, as JAX traces it, with other computations in the place of some of its matmuls and lookups.

The function is traced to a jaxpr each time it is called, and that is evaluated. What is not changed keeps its line and its
name. Loops, branches, `jit` and `jax.checkpoint` are entered; what has a derivative of its own, and the bodies of
`jax.shard_map`, are left as they are.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, jaxpr_as_fun

from shardwise.layout import Axes

# The number of an equation among those that may be changed or hold such, of its jaxpr; behind those of what holds it.
Path = tuple[int, ...]

MATMUL, LOOKUP, GRADIENT = "dot_general", "gather", "scatter-add"
CHANGED = frozenset({MATMUL, LOOKUP, GRADIENT})
ENTERED = frozenset({"jit", "pjit", "scan", "while", "cond", "checkpoint", "remat", "remat2", "closed_call", "core_call"})
_SAME = frozenset({"sharding_constraint", "reshard"})  # an array in another layout


class Brought(NamedTuple):
    """An array that something in a jaxpr takes: what it was before constraints and transposes, and the axes of each dimension.

    `in_parts`: as the parts that arrive, where a ring brings it; whoever takes it so takes it whole, too.
    """

    var: Any
    axes: tuple[Axes, ...]
    in_parts: bool = False


@dataclass(frozen=True, slots=True)
class Together:
    """What takes the place of several matmuls of one jaxpr at once, or of one that shares with others what it brings.

    Attributes:
        paths: of all of them; where one is missing, or no place is behind all operands and before all uses, each stays.
        compute: from both operands of each, in order, to the results of all, and to what it gives; `brought` are the numbers of
            the operands of which it is given, behind all operands, what others brought.
        takes: by the number of an operand, what it takes instead if that was brought before.
        gives: what it brings for others, behind the results.
    """

    paths: tuple[Path, ...]
    compute: Callable[..., Sequence[Any]]
    takes: Mapping[int, Brought] = field(default_factory=dict)
    gives: tuple[Brought, ...] = ()


Replacement = Callable[..., Any] | str | Together  # of the operands of an equation; or the scope in which it stays as it is


@dataclass(frozen=True, slots=True)
class _Joined:
    """Matmuls that are computed together, by the numbers of their equations, at the one of them where that can be."""

    at: int
    places: tuple[int, ...]
    made: Together


Change = Callable[..., Any] | str | JaxprEqn | _Joined  # what takes the place of an equation in one evaluation
Replace = Callable[[Path, JaxprEqn, Jaxpr], Replacement | None]  # the jaxpr is that which the equation is part of


def rewritten(function: Callable[..., Any], replace: Replace) -> Callable[..., Any]:
    """The same function with what `replace` gives in the place of a matmul or a lookup; where it gives None, that stays.

    >>> import jax.numpy as jnp
    >>> twice = rewritten(lambda a, b: jnp.tanh(a @ b), lambda path, equation, jaxpr: lambda a, b: 2 * (a @ b))
    >>> float(twice(jnp.ones((1, 1)), jnp.ones((1, 1)))[0, 0]) == float(jnp.tanh(2.0))
    True

    A replacement is given the operands as they are before constraints on their layouts.
    """

    @functools.wraps(function)
    def changed(*args: Any, **kwargs: Any) -> Any:
        """Trace the function with these arguments, and evaluate it again."""
        leaves, tree = jax.tree.flatten((args, kwargs))
        places = [place for place, leaf in enumerate(leaves) if hasattr(leaf, "dtype")]  # others are known as it is traced

        def of_arrays(*arrays: Any) -> Any:
            filled = list(leaves)
            for place, array in zip(places, arrays, strict=True):
                filled[place] = array
            given, named = jax.tree.unflatten(tree, filled)
            return function(*given, **named)

        arrays = [leaves[place] for place in places]
        closed, shapes = jax.make_jaxpr(of_arrays, return_shape=True)(*arrays)
        again = _Again(replace)
        results = again.run(closed, arrays, dict(again.changes(closed.jaxpr, ())))
        return jax.tree.unflatten(jax.tree.structure(shapes), results)

    return changed


class _Again:
    """One evaluation: what takes the place of which equation."""

    def __init__(self, replace: Replace) -> None:
        self.replace = replace

    def run(self, closed: Any, arrays: Sequence[Any], changed: Mapping[int, Change]) -> list[Any]:
        """The results of a jaxpr with these equations changed: stretches without a change at once, by JAX's own evaluation."""
        jaxpr = closed.jaxpr
        env: dict[Any, Any] = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*closed.consts, *arrays), strict=True))
        makers = makers_of(jaxpr)
        needed = _needed_later(jaxpr, changed, makers)
        brought: dict[Brought, Any] = {}
        for is_changed, places in itertools.groupby(_in_order(jaxpr, changed, makers), changed.__contains__):
            if not is_changed:
                _stretch(jaxpr, [jaxpr.eqns[place] for place in places], env, needed)
                continue
            for place in places:
                equation, change = jaxpr.eqns[place], changed[place]
                if isinstance(change, JaxprEqn):
                    _stretch(jaxpr, [change], env, needed)
                elif isinstance(change, str):
                    with jax.named_scope(change):
                        _stretch(jaxpr, [equation], env, needed)
                elif isinstance(change, _Joined):
                    if place == change.at:
                        self._share(change, jaxpr, env, makers, brought)
                else:
                    operands = _sources([equation], env, makers)
                    env[equation.outvars[0]] = _typed_as(equation.outvars[0], _in_place(change, operands, equation))
        return [_read(var, env) for var in jaxpr.outvars]

    def _share(
        self, joined: _Joined, jaxpr: Jaxpr, env: dict[Any, Any], makers: Any, brought: dict[Brought, Any]
    ) -> None:  # fmt: skip
        """Compute the results of several equations in the place of one, from what others brought, and bring for others."""
        equations, made = [jaxpr.eqns[each] for each in joined.places], joined.made
        there = {number: brought[each] for number, each in made.takes.items() if each in brought}
        operands = [*_sources(equations, env, makers), *there.values()]
        compute = functools.partial(made.compute, brought=tuple(there))
        results = _in_place(compute, operands, jaxpr.eqns[joined.at])
        brought.update(zip(made.gives, results[len(equations) :], strict=True))
        for equation, result in zip(equations, results, strict=False):
            env[equation.outvars[0]] = _typed_as(equation.outvars[0], result)

    def changes(self, jaxpr: Jaxpr, path: Path) -> Iterator[tuple[int, Change]]:
        """The equations of a jaxpr that are changed, by number: what takes their place."""
        groups: dict[tuple[Path, ...], list[int]] = {}
        computed: dict[tuple[Path, ...], Together] = {}
        for place, change in self._changes(jaxpr, path):
            if isinstance(change, Together):
                groups.setdefault(change.paths, []).append(place)
                computed[change.paths] = change
            else:
                yield place, change
        makers = makers_of(jaxpr) if groups else {}
        for paths, places in groups.items():
            at = _position(jaxpr, places, makers) if len(places) == len(paths) else None
            if at is not None:
                joined = _Joined(at, tuple(places), computed[paths])
                yield from ((place, joined) for place in places)

    def _changes(self, jaxpr: Jaxpr, path: Path) -> Iterator[tuple[int, Replacement | JaxprEqn]]:
        for number, place, equation in numbered(jaxpr):
            if equation.primitive.name in CHANGED:
                change = self.replace((*path, number), equation, jaxpr)
                if change is not None:
                    yield place, change
            else:
                entered = self._entered(equation, (*path, number))
                if entered is not equation:
                    yield place, entered

    def _entered(self, equation: JaxprEqn, path: Path) -> JaxprEqn:
        """An equation that holds others, with these changed; itself where none is."""
        params, changed = dict(equation.params), False
        for key, value in equation.params.items():
            held = value if isinstance(value, tuple) else (value,)
            if not held or not all(isinstance(each, (ClosedJaxpr, Jaxpr)) for each in held):
                continue
            made = tuple(self._again(each, (*path, number)) for number, each in enumerate(held))
            if any(new is not old for new, old in zip(made, held, strict=True)):
                params[key], changed = made if isinstance(value, tuple) else made[0], True
        return equation.replace(params=params) if changed else equation

    def _again(self, held: Any, path: Path) -> Any:
        """A jaxpr with its equations changed; itself where none is, or where it would need arrays of its own."""
        closed = held if hasattr(held, "consts") else ClosedJaxpr(held, ())
        changed = dict(self.changes(closed.jaxpr, path))
        if not changed:
            return held
        shapes = [_shaped(var.aval) for var in closed.jaxpr.invars]
        made = jax.make_jaxpr(lambda *arrays: self.run(closed, arrays, changed))(*shapes)
        if hasattr(held, "consts"):
            return made
        return held if made.consts else made.jaxpr


def numbered(jaxpr: Jaxpr) -> Iterator[tuple[int, int, JaxprEqn]]:
    """The equations of a jaxpr that may be changed or hold such: the number of each among them, and among all."""
    found = (
        (place, equation) for place, equation in enumerate(jaxpr.eqns) if equation.primitive.name in CHANGED | ENTERED
    )  # fmt: skip
    return ((number, place, equation) for number, (place, equation) in enumerate(found))


def _in_order(jaxpr: Jaxpr, changed: Mapping[int, Change], makers: Mapping[Any, JaxprEqn]) -> list[int]:
    """The numbers of the equations as they are evaluated: in their order, but what brings an array is before what takes it."""
    joined = {number: change for number, change in changed.items() if isinstance(change, _Joined)}
    brings: dict[Brought, int] = {}
    for each in sorted(joined.values(), key=lambda each: each.at):
        for given in each.made.gives:
            brings.setdefault(given, each.at)
    if not brings:
        return list(range(len(jaxpr.eqns)))
    at = {var: joined[n].at if n in joined else n for n, equation in enumerate(jaxpr.eqns) for var in equation.outvars}
    order: dict[int, None] = {}
    waiting: set[int] = set()

    def needed(number: int) -> set[int]:
        """What is not evaluated yet of an equation and all that it needs."""
        found, left = set[int](), [number]
        while left:
            each = left.pop()
            if each in found or each in order:
                continue
            found.add(each)
            members = joined[each].places if each in joined and joined[each].at == each else (each,)
            taken = [var for member in members for var in jaxpr.eqns[member].invars if not isinstance(var, Literal)]
            left += [at[var] for var in (*taken, *(source_of(var, makers) for var in taken)) if var in at]
        return found

    def evaluate(number: int) -> None:
        """Put an equation next, behind what brings what it takes; not where that needs the equation, or has effects."""
        change = joined.get(number)
        waiting.add(number)
        for wanted in change.made.takes.values() if change is not None and change.at == number else ():
            before = needed(brings[wanted]) if wanted in brings else set()
            if not before & waiting and not any(jaxpr.eqns[each].effects for each in before):
                for each in sorted(before):
                    evaluate(each)
        waiting.discard(number)
        order.setdefault(number)

    for number in range(len(jaxpr.eqns)):
        if number not in order:
            evaluate(number)
    return list(order)


def _sources(equations: Sequence[JaxprEqn], env: Mapping[Any, Any], makers: Mapping[Any, JaxprEqn]) -> list[Any]:
    """The operands of some equations as they are before constraints."""
    return [_read(source_of(var, makers), env) for equation in equations for var in equation.invars]


def _needed_later(jaxpr: Jaxpr, changed: Mapping[int, Any], makers: Mapping[Any, JaxprEqn]) -> frozenset[Any]:
    """The variables that something takes: an equation, a change in the place of one, or the results."""
    sources = [source_of(var, makers) for place in changed for var in jaxpr.eqns[place].invars]
    taken = [var for equation in jaxpr.eqns for var in equation.invars]
    return frozenset(var for var in (*taken, *sources, *jaxpr.outvars) if not isinstance(var, Literal))


def _stretch(jaxpr: Jaxpr, equations: Sequence[JaxprEqn], env: dict[Any, Any], needed: frozenset[Any]) -> None:
    """Evaluate some equations in a row, and keep what is taken later."""
    if not equations:
        return
    made = [var for equation in equations for var in equation.outvars]
    inside = set(made)
    taken = dict.fromkeys(
        var for equation in equations for var in equation.invars if not isinstance(var, Literal) and var not in inside
    )
    kept = [var for var in made if var in needed]
    part = jaxpr.replace(
        constvars=[], invars=list(taken), outvars=kept, eqns=list(equations),
        debug_info=jaxpr.debug_info._replace(arg_names=None, result_paths=None),
    )  # fmt: skip
    found = jaxpr_as_fun(ClosedJaxpr(part, ()))(*(env[var] for var in taken))
    env.update(zip(kept, found, strict=True))


def _in_place(change: Callable[..., Any], operands: Sequence[Any], equation: JaxprEqn) -> Any:
    """What takes an equation's place, computed where the user wrote that: all of it bears the equation's line."""
    with equation.ctx.manager:
        made, shapes = jax.make_jaxpr(change, return_shape=True)(*operands)
    results = jaxpr_as_fun(_relined(made, equation.source_info.traceback))(*jax.tree.leaves(operands))
    return jax.tree.unflatten(jax.tree.structure(shapes), results)


def _typed_as(var: Any, result: Any) -> Any:
    """What takes the place of a variable, with its very type: what comes next may ask for that."""
    from shardwise.runtime.mapped import typed_as

    return typed_as(result, var.aval.sharding.spec)


def _position(jaxpr: Jaxpr, places: Sequence[int], makers: Mapping[Any, JaxprEqn]) -> int | None:
    """That of the equations at which all of them can be computed: behind their operands, and before what takes a result."""
    numbers = {var: number for number, equation in enumerate(jaxpr.eqns) for var in equation.outvars}
    operands = [source_of(var, makers) for place in places for var in jaxpr.eqns[place].invars]
    first = max((numbers.get(var, -1) for var in operands if not isinstance(var, Literal)), default=-1)
    results = {jaxpr.eqns[place].outvars[0] for place in places}
    uses = (
        number for number, equation in enumerate(jaxpr.eqns)
        if any(not isinstance(var, Literal) and var in results for var in equation.invars)
    )  # fmt: skip
    last = next(uses, len(jaxpr.eqns))
    return next((place for place in places if first < place < last), None)


def _relined(held: Any, traceback: Any) -> Any:
    jaxpr = held.jaxpr if hasattr(held, "consts") else held
    equations = [
        each.replace(
            source_info=each.source_info.replace(traceback=traceback),
            params={key: _relined_in(value, traceback) for key, value in each.params.items()},
        )
        for each in jaxpr.eqns
    ]
    lined = jaxpr.replace(eqns=equations)
    return ClosedJaxpr(lined, held.consts) if hasattr(held, "consts") else lined


def _relined_in(value: Any, traceback: Any) -> Any:
    if isinstance(value, (ClosedJaxpr, Jaxpr)):
        return _relined(value, traceback)
    if isinstance(value, tuple) and value and all(isinstance(each, (ClosedJaxpr, Jaxpr)) for each in value):
        return tuple(_relined(each, traceback) for each in value)
    return value


def makers_of(jaxpr: Jaxpr) -> dict[Any, JaxprEqn]:
    """The equation that makes each variable."""
    return {var: equation for equation in jaxpr.eqns for var in equation.outvars}


def users_of(jaxpr: Jaxpr) -> dict[Any, list[JaxprEqn | None]]:
    """Each use of a variable: the equation that takes it, None for the results of the jaxpr."""
    users: dict[Any, list[JaxprEqn | None]] = {}
    for equation in jaxpr.eqns:
        for var in equation.invars:
            if not isinstance(var, Literal):
                users.setdefault(var, []).append(equation)
    for var in jaxpr.outvars:
        if not isinstance(var, Literal):
            users.setdefault(var, []).append(None)
    return users


def source_of(var: Any, makers: Mapping[Any, JaxprEqn]) -> Any:
    """The variable that an array is before constraints on its layout, on axes of the same types."""
    while (maker := None if isinstance(var, Literal) else makers.get(var)) is not None and maker.primitive.name in _SAME:
        if _types(maker.invars[0]) != _types(var):
            break
        var = maker.invars[0]
    return var


def inverse(permutation: Sequence[int]) -> list[int]:
    """The permutation that undoes one.

    >>> inverse([2, 0, 1])
    [1, 2, 0]
    """
    return sorted(range(len(permutation)), key=permutation.__getitem__)


def _types(var: Any) -> Any:
    sharding = getattr(var.aval, "sharding", None)
    return None if sharding is None else sharding.mesh.axis_types


def _read(var: Any, env: Mapping[Any, Any]) -> Any:
    return var.val if isinstance(var, Literal) else env[var]


def _shaped(aval: Any) -> jax.ShapeDtypeStruct:
    sharding = getattr(aval, "sharding", None)
    typed = sharding is not None and not sharding.mesh.empty
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type, sharding=sharding if typed else None)
