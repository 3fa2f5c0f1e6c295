"""Lanes, tables and words, drawn as SVG."""

from __future__ import annotations

from shardwise.pictures.picture import Bar, Lane, Lanes, Table, Words
from shardwise.pictures.svg_pen import WIDE, Drawn, element, label, measure, paragraph, stacked, titled
from shardwise.pictures.svg_style import BARS

LANE, BETWEEN = 26.0, 10.0
THINNEST = 0.75  # of a bar; thinner ones are drawn as one with their neighbours


def lanes(drawn: Lanes, prefix: str) -> Drawn:
    """A chart in time: a row for each lane, a scale below."""
    margin = max((measure(lane.name, 12, most=24) for lane in drawn.lanes), default=0.0) + 14
    room = WIDE - margin
    high = len(drawn.lanes) * (LANE + BETWEEN)
    body = []
    for share, text in drawn.ticks:
        x = margin + share * room
        body.append(element("path", d=f"M{x:.1f} 0V{high:.1f}", class_="rule", stroke_width=0.7, opacity=0.6))
        anchor = "end" if share > 0.97 else "middle" if share else "start"
        body.append(label(x, high + 14, text, size=11, anchor=anchor, look="m f"))
    for number, lane in enumerate(drawn.lanes):
        body.append(_lane(lane, number * (LANE + BETWEEN) + BETWEEN / 2, margin, room, prefix))
    chart = Drawn(WIDE, high + 20, "".join(body))
    title = Drawn(measure(drawn.title, 13.5, most=100), 18, label(0, 13, drawn.title, size=13.5, look="b", most=100))
    notes = [paragraph(note, WIDE, 11.5) for note in drawn.notes]
    return stacked([title, chart, _legend(drawn.legend, prefix), *notes], 6)


def _lane(lane: Lane, y: float, margin: float, room: float, prefix: str) -> str:
    body = [label(0, y + LANE / 2 + 4, lane.name, size=12, most=24)]
    body.append(element("rect", x=margin, y=y, width=room, height=LANE, class_="rule", stroke_width=0.6, opacity=0.5))
    for bar in joined(lane.bars, THINNEST / room):
        x, wide = margin + bar.start * room, max((bar.end - bar.start) * room, 0.4)
        body.append(_bar(bar, x, y, wide, LANE, prefix))
    return element("g", titled(lane.note) + "".join(body), data_lane=lane.name)


def _bar(bar: Bar, x: float, y: float, wide: float, high: float, prefix: str) -> str:
    fill, pattern = BARS.get(bar.kind, ("#8c959f", ""))
    shape = {"x": x, "y": y + 2, "width": wide, "height": high - 4, "rx": 2.0 if wide > 6 else None}
    body = element("rect", fill=fill, **shape)
    if pattern and wide > 1.5:
        body += element("rect", fill=f"url(#{prefix}{pattern})", **shape)
    if bar.exposed:
        body += element("path", d=f"M{x:.1f} {y - 1:.1f}h{wide:.1f}", class_="pen", stroke_width=2.5)
    return element("g", titled(bar.title) + body, data_kind=bar.kind, data_exposed="yes" if bar.exposed else None)


def joined(bars: tuple[Bar, ...], thinnest: float) -> list[Bar]:
    """Bars of one kind that are too thin to be told apart, and stand close, as one."""
    found: list[Bar] = []
    for bar in bars:
        last = found[-1] if found else None
        close = last is not None and bar.kind == last.kind and bar.exposed == last.exposed and bar.start - last.end < thinnest
        if last is not None and close and min(bar.end - bar.start, last.end - last.start) < 4 * thinnest:
            many = last.title if last.title.endswith("and more") else f"{last.title} and more"
            found[-1] = Bar(last.start, max(bar.end, last.end), bar.kind, many, bar.exposed)
        else:
            found.append(bar)
    return found


def _legend(kinds: tuple[tuple[str, str], ...], prefix: str) -> Drawn:
    rows, x, row = [], 0.0, []
    for kind, words in kinds:
        wide = 34 + measure(words, 11.5) + 16
        if row and x + wide > WIDE:
            rows.append(Drawn(x, 22, "".join(row)))
            row, x = [], 0.0
        exposed = kind == "wait"
        row.append(
            _bar(Bar(0, 1, kind, exposed=exposed), x + 1, 3, 24, 16, prefix) + label(x + 31, 15, words, size=11.5, look="f")
        )
        x += wide
    return stacked([*rows, Drawn(x, 22, "".join(row))] if row else rows)


def table(drawn: Table) -> Drawn:
    """Rows of text under a head."""
    size, pitch = 11.5, 19.0
    count = len(drawn.head)
    most = [60 if column == count - 1 else 40 for column in range(count)]
    rows = (drawn.head, *drawn.rows)
    wide = [max(measure(row[c], size, True, most[c]) for row in rows) + 18 for c in range(count)]
    body = []
    for number, row in enumerate(rows):
        x = 0.0
        for column, cell in enumerate(row):
            right = column in drawn.numbers
            at = x + (wide[column] - 18 if right else 0)
            look = "m" if number else "m b f"
            body.append(
                label(
                    at, 13 + number * pitch, cell, size=size, anchor="end" if right else "start", look=look, most=most[column]
                )
            )
            x += wide[column]
    body.append(element("path", d=f"M0 18H{sum(wide) - 18:.1f}", class_="rule", stroke_width=1.0))
    drawn_table = Drawn(sum(wide) - 18, pitch * len(rows) + 2, "".join(body))
    title = [Drawn(measure(drawn.title, 13.5), 18, label(0, 13, drawn.title, size=13.5, look="b"))] if drawn.title else []
    return stacked([*title, drawn_table, *(paragraph(note, max(drawn_table.width, 400), 11.5) for note in drawn.notes)], 6)


def words(drawn: Words) -> Drawn:
    """Lines of text, under their heading."""
    title = (
        [Drawn(measure(drawn.title, 14.5), 22, label(0, 16, drawn.title, size=14.5, look="b", most=90))] if drawn.title else []
    )
    return stacked([*title, _lines(drawn)], 6)


def _lines(drawn: Words) -> Drawn:
    if drawn.code:
        body = "".join(label(0, 13 + 16 * n, line, size=12, look="m", most=120) for n, line in enumerate(drawn.lines))
        wide = max((measure(line, 12, True, 120) for line in drawn.lines), default=0.0)
        return Drawn(wide, 16 * len(drawn.lines) + 2, body)
    return stacked([paragraph(line, WIDE, 12.5, "") for line in drawn.lines], 4)
