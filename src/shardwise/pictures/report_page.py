"""The renderer of a report: one page of HTML with its styles and its script inside, which fetches nothing."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Sequence
from importlib import resources
from typing import Any

from shardwise.errors import one_line
from shardwise.pictures.page import safe, template
from shardwise.pictures.picture import Board, Lane, Stage, Table, left_out
from shardwise.pictures.reports import Chart, Rank, Sheet
from shardwise.pictures.svg import figure, shared
from shardwise.pictures.svg_board import board, legend
from shardwise.pictures.svg_chart import joined
from shardwise.pictures.svg_pen import stacked
from shardwise.pictures.svg_stage import stages
from shardwise.pictures.svg_style import style
from shardwise.units import SECONDS, bytes_text

PREFIX = "r-"
LEVELS = 6  # of zoom, each twice the one before
MOST_BARS = 800  # of a lane; closer ones are drawn as one
LEAST_STAGE, WIDEST = 600.0, 1000.0  # pixels of a stage: below the first it scrolls


def report_page(told: Sheet, version: str) -> str:
    """A report as a page.

    Args:
        version: of Shardwise, for the foot of the page.

    Raises:
        MissingExtraError: Jinja2 is not installed.
    """
    page = template("report.html.j2")
    script, early = _asset("report.js"), "document.documentElement.classList.add('js')"
    return page.render(
        title=one_line(told.title),
        pieces=list(_pieces(told.title)),
        facts=_lines(told.facts),
        verdict=one_line(told.verdict),
        figures=[_figure(f.name, f.value, f.note, f.share) for f in told.figures],
        stages=_table(told.stages),
        placements=[_placement(drawn, number) for number, drawn in enumerate(told.placements)],
        scenes=list(_scenes(told)),
        note=one_line(told.play.note),
        charts=[_chart(chart) for chart in told.charts],
        levels=LEVELS,
        ranks=[_rank(rank) for rank in told.ranks],
        memory=_memory(told),
        wire=_table(told.wire),
        compiled=_compiled(told),
        code=told.code.encode(errors="backslashreplace").decode(),  # a lone surrogate can be in a name, and in no file
        assumed=list(map(one_line, told.assumed)),
        version=version,
        style=safe(style(toggled=True) + _asset("report.css")),
        script=safe(script),
        early=safe(early),
        allowed=" ".join(map(_hashed, (script, early))),
        defs=safe(shared(PREFIX)),
    )


def _asset(name: str) -> str:
    return resources.files("shardwise.pictures").joinpath("templates", name).read_text(encoding="utf-8")


def _hashed(script: str) -> str:
    """How a page's policy allows one script and no other."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _pieces(equation: str) -> Iterator[tuple[str, bool]]:
    """An equation in pieces, each with whether it names mesh axes."""
    for number, piece in enumerate(re.split(r"(_\{[^{}]*\}|_[^\s,{}\[\]]+|\{U_[^{}]*\})", one_line(equation))):
        if piece:
            yield piece, bool(number % 2)


def _lines(pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(one_line(name), one_line(value)) for name, value in pairs]


def _figure(name: str, value: str, note: str, share: float | None) -> dict[str, Any]:
    said = {"name": one_line(name), "value": one_line(value), "note": one_line(note), "share": None, "percent": ""}
    if share is not None:
        said |= {"share": _percent(min(share, 1.0)), "percent": "under 1 %" if 0 < share < 0.01 else f"{share:.0%}"}
    return said


def _percent(share: float) -> str:
    return f"{100 * share:.4g}"


def _placement(drawn: Board, number: int) -> dict[str, Any]:
    marks = legend([drawn], PREFIX)
    content = stacked([board(drawn, PREFIX, 420.0, named=False), *([marks] if marks.height else [])], 10)
    told = " ".join([drawn.caption, *drawn.notes, left_out(drawn)])
    svg = figure(content, f"place{number}", drawn.name, told)
    return {"name": one_line(drawn.name), "caption": one_line(drawn.caption), "svg": safe(svg)}


def _scenes(told: Sheet) -> Iterator[dict[str, Any]]:
    listed = [scene.stage for scene in told.play.scenes]
    for number, (scene, content) in enumerate(zip(told.play.scenes, stages(listed, PREFIX) if listed else (), strict=True)):
        svg = figure(
            content,
            f"scene{number}",
            scene.title,
            _described(scene.stage),
            LEAST_STAGE,
            min(max(WIDEST / content.width, 1.0), 1.35),
        )
        yield {"title": one_line(scene.title), "words": one_line(scene.words), "moves": scene.moves, "svg": safe(svg)}


def _described(stage: Stage) -> str:
    """What every device holds, for those who do not see it; of many devices the first ones."""
    held = [f"{card.name}: {', '.join(inner.name for inner in card.boards)}" for card in stage.cards[:8]]
    more = f"; and {len(stage.cards) - 8} more devices" if len(stage.cards) > 8 else ""
    sent = f". {len(stage.wires)} transfers are on their way" if stage.wires else ""
    return "; ".join(held) + more + sent


# Charts in time.


def _chart(chart: Chart) -> dict[str, Any]:
    return {
        "name": one_line(chart.name),
        "lanes": [_lane(lane) for lane in chart.lanes.lanes],
        "scales": [list(_scale(chart.seconds, 3 * 2**level)) for level in range(LEVELS + 1)],
        "legend": _lines(chart.lanes.legend),
        "notes": list(map(one_line, chart.lanes.notes)),
    }


def _lane(lane: Lane) -> dict[str, Any]:
    thinnest = 1e-5
    bars = lane.bars
    while len(bars) > MOST_BARS:
        bars, thinnest = tuple(joined(lane.bars, thinnest)), thinnest * 2
    drawn = [
        {
            "kind": bar.kind, "exposed": bar.exposed, "title": one_line(bar.title), "left": _percent(bar.start),
            "width": _percent(bar.end - bar.start),
        }
        for bar in bars
    ]  # fmt: skip
    return {"name": one_line(lane.name), "note": one_line(lane.note), "bars": drawn}


def _scale(seconds: float, most: int) -> Iterator[tuple[str, str]]:
    """Round times in one unit, as percents of the whole."""
    from shardwise.pictures.lanes import ticks

    unit, name = next(((unit, name) for unit, name in SECONDS if seconds >= unit), SECONDS[-1])
    for share, _ in ticks(seconds, most):
        yield _percent(share), f"{round(share * seconds / unit, 6):.6g} {name}" if share else "0"


# Tables and lists.


def _rank(rank: Rank) -> dict[str, Any]:
    number, seconds, exposed, flops, wire, memory, program, reason = map(one_line, rank.row)
    return {
        "number": number.strip(" >"), "seconds": seconds, "exposed": exposed, "flops": flops, "wire": wire, "memory": memory,
        "program": program, "reason": reason, "share": _percent(rank.share), "waits": _percent(rank.exposed),
        "steps": list(map(one_line, rank.steps)),
    }  # fmt: skip


def _memory(told: Sheet) -> list[dict[str, str]]:
    most = max((held for _, held in told.memory), default=0.0) or 1.0
    return [{"name": one_line(name), "bytes": bytes_text(held), "share": _percent(held / most)} for name, held in told.memory]


def _table(table: Table | None) -> dict[str, Any] | None:
    if table is None or not table.rows:
        return None
    return {
        "title": one_line(table.title),
        "head": list(map(one_line, table.head)),
        "rows": [list(map(one_line, row)) for row in table.rows],
        "numbers": table.numbers,
        "notes": list(map(one_line, table.notes)),
    }


def _compiled(told: Sheet) -> dict[str, Any] | None:
    made = told.compiled
    if made is None:
        return None
    return {
        "headline": one_line(made.headline),
        "differs": "\n".join(map(one_line, made.differs.split("\n"))),
        "table": _table(made.collectives),
        "lines": "\n".join(map(one_line, made.lines)),
    }
