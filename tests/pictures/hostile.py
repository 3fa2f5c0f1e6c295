"""Names that mean harm, or only look like it, and a picture in which a name stands wherever one can."""

from __future__ import annotations

from shardwise.pictures.picture import (
    Arrow,
    Bar,
    Board,
    Box,
    Card,
    Lane,
    Lanes,
    Movement,
    Picture,
    Sign,
    Stage,
    Strip,
    Table,
    Tone,
    Track,
    Wire,
    Words,
)

HOSTILE = [
    "<script>alert(1)</script>", "\"><img src=x onerror=alert(1)>", "&amp;&lt;", "🚀🔥👩‍👩‍👧", "n" * 200, "שלום_עולם", "مرحبا",
    "a\u202eb\u0000c\nd", "軸" * 40, "x' onload='y", "]]>", "--><!--", "\ud800",
]  # fmt: skip


def everything(name: str) -> Picture:
    """A picture in which a name stands wherever a name can."""
    box = Box(0, 0, name, (name,), name, Tone(0, 2), 2, 2, (0.5, 0.5), name, (("devices", name),))
    board = Board(name, name, (Track(name, name),), (Track(name, name),), (box,), name, name, (name,))
    card = Card(name, (board,), name)
    return Picture(name, name, (
        board, Strip(name, (board, Sign("·"), Arrow(name, name))),
        Movement(name, (card,), (card,), (Wire(0, 0, Tone(0, 2), True, name),), (name,)),
        Stage(name, 1, (card,), (Wire(0, 0, Tone(0, 2), True, name),), (name,)),
        Lanes(name, (Lane(name, (Bar(0, 1, "wait", name, True),), name),), ((0.0, name),), (("wait", name),), (name,)),
        Table(name, (name, name), ((name, name),), frozenset({1}), (name,)), Words((name,)), Words((name,), code=True),
    ))  # fmt: skip
