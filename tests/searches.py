"""Planning without what comes after the search."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from unittest import mock

from shardwise.planning import ranking, shortcuts


@contextlib.contextmanager
def permutes_keep_their_axes() -> Iterator[None]:
    """Without the permutes to other axes, or to more parts: they are looked for between layouts of the first programs alone."""
    shortcuts.wide_paths.cache_clear()
    ranking.ranked.cache_clear()
    with mock.patch.object(shortcuts, "leads", return_value=False):
        yield
    shortcuts.wide_paths.cache_clear()
    ranking.ranked.cache_clear()
