"""The arguments of a function by the names of its own parameters: `params['layers'][3]['wq']`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from shardwise.compiled.facts import Argument
from shardwise.compiled.needed import inner_jaxprs
from shardwise.compiled.text.sources import is_users

_NAME = re.compile(r'loc\("((?:\\.|[^"\\])*)"')
_SHAPE = re.compile(r"tensor<((?:\d+x)*)")
_AXIS = re.compile(r'"([^"]+)"')
_COLLECTED = re.compile(r"\**(args|kwargs)\b")  # of a wrapper that hands on what it gets: def wrapped(*args, **kwargs)


def arguments_of(traced: Any, module: Any) -> tuple[Argument, ...]:
    """What a lowered function takes, in the order of the compiled program; what it does not use is left out.

    A function that hands its arguments on (`def wrapped(*args): return inner(*args)`) has them named as the jitted or mapped
    one of the user's own that it calls does.

    >>> import jax, jax.numpy as jnp
    >>> traced = jax.jit(lambda params, unused: params["w"] * 2).trace({"w": jnp.ones((4, 8))}, 1.0)
    >>> arguments_of(traced, traced.lower().compiler_ir("stablehlo"))
    (Argument(name="params['w']", shape=(4, 8), axes=None),)

    Args:
        module: its StableHLO.
    """
    names = own_names(traced.jaxpr.jaxpr)
    main = next(each for each in module.body.operations if str(each.operation.attributes["sym_name"]) == '"main"')
    attributes = main.operation.attributes
    said = list(attributes["arg_attrs"]) if "arg_attrs" in attributes else [{}] * len(main.arguments)
    return tuple(_argument(value, each, names) for value, each in zip(main.arguments, said, strict=True))


def _argument(value: Any, attributes: Any, names: dict[str, str]) -> Argument:
    named = _NAME.match(str(value.location))
    name = re.sub(r"\\(.)", r"\1", named[1]) if named else ""
    sizes = _SHAPE.match(str(value.type))
    shape = tuple(int(size) for size in sizes[1].split("x") if size) if sizes else ()
    laid = str(attributes["sdy.sharding"]) if "sdy.sharding" in attributes else None
    axes = None if laid is None or "?" in laid else tuple(dict.fromkeys(_AXIS.findall(laid)))
    return Argument(names.get(name, name), shape, axes)


def own_names(jaxpr: Any) -> dict[str, str]:
    """For each argument that a wrapper collects, its name in the function of the user's own that takes it."""
    names = {}
    for variable, name in _named(jaxpr):
        inner: Any = (jaxpr, variable)
        found = name
        while inner is not None and _COLLECTED.match(found):
            inner = next(_handed_on(*inner), None)
            found = "" if inner is None else dict(_named(inner[0])).get(inner[1], "")
        if found and found != name:
            names[name] = found
    return names


def names_of(jaxpr: Any) -> dict[Any, str]:
    """The variables that a traced function takes, each with its name."""
    renamed = own_names(jaxpr)
    return {variable: renamed.get(name, name) for variable, name in _named(jaxpr)}


def _named(jaxpr: Any) -> Iterator[tuple[Any, str]]:
    names = getattr(getattr(jaxpr, "debug_info", None), "arg_names", None) or ()
    if len(names) == len(jaxpr.invars):
        yield from ((variable, name) for variable, name in zip(jaxpr.invars, names, strict=True) if name)


def _handed_on(jaxpr: Any, variable: Any) -> Iterator[tuple[Any, Any]]:
    """The functions of the user's own that take a variable, each with what it is there."""
    for equation in jaxpr.eqns:
        for inner in inner_jaxprs(equation.params):
            where = str(getattr(getattr(inner, "debug_info", None), "func_src_info", "")).rpartition(" at ")[2]
            if len(inner.invars) == len(equation.invars) and is_users(where.rpartition(":")[0]):
                yield from ((inner, own) for own, given in zip(inner.invars, equation.invars, strict=True) if given is variable)


def parameter_names(function: Callable[..., Any], count: int) -> tuple[str, ...]:
    """What a function calls its first positional arguments; `[0]`, `[1]`, ... where Python does not know its signature.

    >>> parameter_names(lambda first, *others: 0, 3)
    ('first', 'others[0]', 'others[1]')
    """
    try:
        parameters = [
            p for p in inspect.signature(function).parameters.values() if p.kind not in (p.KEYWORD_ONLY, p.VAR_KEYWORD)
        ]
    except (TypeError, ValueError):
        parameters = []
    return tuple(_parameter_name(parameters, number) for number in range(count))


def _parameter_name(parameters: Sequence[inspect.Parameter], number: int) -> str:
    last = parameters[-1] if parameters else None
    if last is not None and last.kind is last.VAR_POSITIONAL and number >= len(parameters) - 1:
        return f"{last.name}[{number - len(parameters) + 1}]"
    return parameters[number].name if number < len(parameters) else f"[{number}]"
