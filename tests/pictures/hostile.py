"""Names that mean harm, or only look like it, and a picture in which a name stands wherever one can."""

from __future__ import annotations

from shardwise.layout import Layout
from shardwise.mesh import Mesh
from shardwise.notation import Equation, Operand
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
from shardwise.planning.problem import problem
from shardwise.planning.ranking import Ranking, rank

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
        Table(name, (name, name), ((name, name),), frozenset({1}), (name,)), Words((name,), title=name),
        Words((name,), code=True),
    ))  # fmt: skip


def plan_with(name: str) -> Ranking:
    """A plan in which a name is that of an array, of a dimension and of a mesh axis."""
    dim = f"{name}I"
    a = Operand(name, Layout(((dim, (name,)), ("J", ()))))
    b = Operand("B", Layout((("J", ()), ("K", ()))))
    equation = Equation((a, b), Operand(f"C{name}", Layout(((dim, ()), ("K", ())))))
    task = problem(equation, {dim: 8, "J": 8, "K": 8}, Mesh(((name, 2), ("y", 2))), "tpu-v5e")
    return Ranking(task, rank(task))
