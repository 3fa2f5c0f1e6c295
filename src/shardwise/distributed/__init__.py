"""`sw.distributed`: many processes as one run: started, compared before their first collective, watched, and ended together."""

from __future__ import annotations

from shardwise.distributed.jobs import Job, job, start, stop
from shardwise.distributed.preflights import Preflight, preflight
from shardwise.distributed.saving import Saved, save
from shardwise.errors import DistributedError

__all__ = ["DistributedError", "Job", "Preflight", "Saved", "job", "preflight", "save", "start", "stop"]
