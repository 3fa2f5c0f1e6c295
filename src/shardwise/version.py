"""The version of Shardwise, which `pyproject.toml` states too."""

from __future__ import annotations

VERSION = "0.1.0"
