"""`sw.distributed`: many processes as one run: started, compared before their first collective, watched, and ended together."""

from __future__ import annotations

from shardwise.distributed.jobs import Job, job, start, stop
from shardwise.distributed.preflights import Preflight, preflight
from shardwise.errors import DistributedError

__all__ = ["DistributedError", "Job", "Preflight", "job", "preflight", "start", "stop"]
