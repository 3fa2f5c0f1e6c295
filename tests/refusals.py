"""How refusals are read: the error of an act, and how a message points at a fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from shardwise.errors import ShardwiseError

AXES = "`_` introduces mesh axes, and dimension names hold none: use an axis of the mesh, or write dModel for d_model"


def refusal(error: type[ShardwiseError], act: Callable[[], Any]) -> str:
    with pytest.raises(ShardwiseError) as caught:
        act()
    assert type(caught.value) is error
    return str(caught.value)


def told(text: str, caret: str, what: str, fix: str) -> str:
    return f"{text}: {what}\n{caret}  {fix}"
