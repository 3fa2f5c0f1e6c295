"""`sw.distributed`: many processes as one run: started, compared before their first collective, watched, and ended together."""

from __future__ import annotations

from shardwise.distributed.jobs import Job, job, start, stop

__all__ = ["Job", "job", "start", "stop"]
