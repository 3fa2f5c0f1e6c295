"""Users' functions traced, and told of where that fails."""

from __future__ import annotations

import functools
import re
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any

import jax

from shardwise.compiled.targets.unattached import reason
from shardwise.compiled.text.sources import is_users
from shardwise.errors import CompileError
from shardwise.planning.ranking import Ranking

_NOT_THE_USERS = (str(Path(jax.__file__).parent), str(Path(__file__).parents[2]), "<")
_ITS_MAKERS = ("jax", "jaxlib", "shardwise", "builtins")  # of functions whose traces show what is traced
_NO_ARRAY = re.compile(r"value is of type <class '([^']*)'>(?:[^.]*? at path (\S+?)\.(?:\s|$))?")
_ON_AXIS_TYPES = re.compile(r"of type:? ?(?:AxisType\.|`)?(Explicit|Auto)\b")
_OF_A_MESH = re.compile(r"mesh|device|shard|axis", re.IGNORECASE)
_NONE_IN_FORCE = "when you are not under a mesh context"


def traced_by_jax(function: Callable[..., Any], args: Sequence[Any]) -> Any:
    """Trace a function, jitted if it is not yet.

    Raises:
        CompileError: it is jitted by another than `jax.jit`, whose traces do not show what is traced; or it binds arguments of
            such a one, which it would change: that is told before it is traced.
    """
    bound = _bound(function)
    if bound is not None:
        raise CompileError(_jitted_elsewhere(bound, ", and bound to arguments that a trace of this would change"))
    jitted: Any = function if _is_jitted(function) else jax.jit(function)
    traced = jitted.trace(*args)
    if not hasattr(traced, "jaxpr"):
        raise CompileError(_jitted_elsewhere(function, ""))
    return traced


def check_function(function: Any) -> None:
    """That a function was given.

    Raises:
        CompileError: it was something else; of a plan the message says how its programs are compiled.
    """
    if callable(function):
        return
    told = repr(function)
    said = f"a {type(function).__name__}" if "\n" in told else told
    plans = "; sw.plan(..., confirm=...) compiles a plan's programs" if isinstance(function, Ranking) else ""
    raise CompileError(f"{said} is no function: give one, and its arguments after it{plans}")


def name_of(function: Any) -> str:
    """What a function is called: of a partial or wrapped one, what is inside."""
    while (inner := _inside(function)) is not None:
        function = inner
    name = getattr(function, "__name__", type(function).__name__)
    return "a lambda" if name == "<lambda>" else name


def untraced(function: Callable[..., Any], errors: Sequence[BaseException]) -> str:
    """Say that a function cannot be traced, why in its own error's words, and at which of the user's lines."""
    first, *others = errors
    said = f"{name_of(function)} cannot be traced for these devices: {type(first).__name__}: {reason(first)}{_at(first)}"
    told = [said, *_ways_out(first, called(function)), *_at_home(first, others)]
    return "\n".join(told)


def _at(error: BaseException) -> str:
    """The innermost line of the user's own files; of a library's where there is none."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(_NOT_THE_USERS)]
    frame = next((f for f in reversed(frames) if is_users(f.filename)), frames[-1] if frames else None)
    return f"\nat {frame.filename}:{frame.lineno}: {frame.line}" if frame else ""


def _ways_out(error: BaseException, name: str) -> Iterator[str]:
    text = " ".join(str(error).split())
    of_types = _ON_AXIS_TYPES.search(text)
    if "should match the mesh passed to shard_map" in text:
        yield (
            "it holds a mesh of other devices than those compiled for: make that mesh over as many (sw.simulate(how many) "
            "before JAX starts), and give mesh= that mesh, or arguments that lie on it"
        )
    elif "should match the aval mesh" in text:
        yield "it closes over an array that lies on a mesh of other devices: give that array as an argument"
    elif "as an abstract array" in text:
        yield from _no_array(text, name)
    elif _NONE_IN_FORCE in text:
        yield "give mesh=, whose axes are then in force"
    elif type(error).__name__ == "ShardingTypeError" or (of_types is not None and of_types[1] == "Explicit"):
        yield "written for Auto axes? give a mesh of them (axis_types=jax.sharding.AxisType.Auto, --axis-types auto)"
    elif of_types is not None and "PartitionSpec" in text:
        yield "written for Explicit axes? give a mesh of them (axis_types=jax.sharding.AxisType.Explicit, or no --axis-types)"


def _no_array(text: str, name: str) -> Iterator[str]:
    """What to do with an argument that is no array, as JAX's error says which."""
    found = _NO_ARRAY.search(text)
    path = found[2] if found else None
    if path is not None and path.isidentifier():
        yield f"{path} is no array, and is not said to be static: jax.jit({name}, static_argnames={path!r})"
    else:
        yield "an argument holds what is no array, as a model of Equinox does: give its arrays alone, and return arrays alone"
        yield "    arrays, rest = eqx.partition(model, eqx.is_array)"
        yield f"    jax.jit(lambda arrays, *args: eqx.filter({name}(eqx.combine(arrays, rest), *args), eqx.is_array))"


def _at_home(first: BaseException, others: Sequence[BaseException]) -> Iterator[str]:
    """Why a function cannot be traced on a mesh of its own either, if meshes are what the first error is about."""
    if _OF_A_MESH.search(str(first)):
        own = (error for error in others if reason(error) != reason(first) and _NONE_IN_FORCE not in str(error))
        if (other := next(own, None)) is not None:
            yield f"nor where it is at home: {type(other).__name__}: {reason(other)}"


def _jitted_elsewhere(function: Any, more: str) -> str:
    maker, name = type(function).__module__, called(function)
    return (
        f"{name_of(function)} is jitted by {maker}, whose traces are not those of jax.jit{more}: give a function under jax.jit "
        "that takes all that it changes as arguments, calls it, and returns them, as of flax.nnx a model, or a model and its "
        "optimizer\n"
        f"    jax.jit(lambda model, *args: ({name}(model, *args), nnx.state(model)), donate_argnums=0)\n"
        f"    jax.jit(lambda model, optimizer, *args: ({name}(model, optimizer, *args), nnx.state((model, optimizer))), "
        "donate_argnums=(0, 1))"
    )


def called(function: Any) -> str:
    """A name that stands in code."""
    name = name_of(function)
    return name if name.isidentifier() else "step"


def _inside(function: Any) -> Any:
    return getattr(function, "func", None) or getattr(function, "__wrapped__", None)


def _is_jitted(function: Any) -> bool:
    return hasattr(function, "trace") and hasattr(function, "lower")


def _bound(function: Any) -> Any:
    """The function jitted by another library that a partial binds, or that library's own way to bind (`nnx.cached_partial`)."""
    binds = False
    while function is not None:
        if _is_jitted(function) and _package(type(function)) not in _ITS_MAKERS:
            return function if binds else None
        inner = _inside(function)
        if isinstance(function, functools.partial):
            binds = True
        elif isinstance(function, FunctionType) and _is_jitted(inner):
            binds = binds or function.__globals__.get("__name__", "").partition(".")[0] == _package(type(inner))
        function = inner
    return None


def _package(kind: type) -> str:
    return kind.__module__.partition(".")[0]
