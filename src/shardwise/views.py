"""The views of a value: text, pictures, a trace. A value asks for its own here, and so imports none of its renderers.

`shardwise` offers the renderers by name; one is imported when it is first asked for.
"""

from __future__ import annotations

import importlib
import operator
from collections.abc import Mapping
from typing import Any

_OFFERED: dict[str, Mapping[str, str]] = {}


def offer(renderers: Mapping[str, Mapping[str, str]]) -> None:
    """Say which function gives what view: by form, then by class, as `module:function`."""
    _OFFERED.update(renderers)


def view(value: Any, form: str, *given: Any) -> Any:
    """The view of a value in a form, by what is offered for its class, or for the nearest that it inherits from."""
    offered = _OFFERED[form]
    place = next(offered[kind.__name__] for kind in type(value).__mro__ if kind.__name__ in offered)
    module, _, function = place.partition(":")
    return operator.attrgetter(function)(importlib.import_module(module))(value, *given)


def text(value: Any) -> str:
    """A value as plain text."""
    return view(value, "text")


def svg(value: Any) -> str:
    """A value's picture as an SVG, which notebooks draw."""
    return view(value, "svg")


def html(value: Any) -> str | None:
    """A value's picture as HTML, which notebooks draw; None where they are to take the SVG or the text."""
    return view(value, "html")
