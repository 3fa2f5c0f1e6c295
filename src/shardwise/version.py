"""The version of Shardwise, from which the build takes it: it stands nowhere else."""

from __future__ import annotations

VERSION = "0.1.0"
