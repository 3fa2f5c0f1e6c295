"""An audit as a picture: what was compiled, every collective in a table, memory, what stands out, and the timeline."""

from __future__ import annotations

from shardwise.compiled.audit import Audit
from shardwise.compiled.table import HEAD, below, headline, replayed, rows
from shardwise.pictures.lanes import timeline_picture
from shardwise.pictures.picture import Part, Picture, Table, Words


def audit_picture(audit: Audit) -> Picture:
    """Everything that the audit's text says, and when it is modelled what runs when."""
    timeline = replayed(audit)
    listed, left_out = rows(audit, timeline)
    parts: list[Part] = []
    if listed:
        notes = (f"... and {left_out} more rows",) if left_out else ()
        parts.append(Table("", HEAD, tuple(listed), frozenset({2, 3, 5}), notes))
    parts.append(Words(tuple(below(audit, timeline)), code=True))
    if timeline is not None:
        parts += timeline_picture(timeline).parts[:1]
    return Picture(f"{audit.name} on {audit.target}", headline(audit), (Words((headline(audit),)), *parts))
