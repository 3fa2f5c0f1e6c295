"""Draw the README's picture: the headline contraction on four devices, before, between and after.

python docs/picture.py        # writes docs/images/headline.svg
"""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

from shardwise import writing

COLOURS = ("#33628f", "#a8530a", "#37732f", "#8a4f7d")
PATTERNS = ("", "4 3", "1 3", "8 3")  # told apart without colour too
UNIT = 26
CHOSEN = "chosen: every product computed once. Gathering A first computes each of them 4 times."


def box(x: float, y: float, width: float, height: float, label: str, device: int | None) -> str:
    fill, dashes = ("#d8d8d8", "") if device is None else (COLOURS[device], PATTERNS[device])
    text = "#222" if device is None else "#fff"
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="{fill}" stroke="#222" stroke-dasharray="{dashes}"/>'
        f'<text x="{x + width / 2}" y="{y + height / 2 + 4}" fill="{text}" text-anchor="middle">{escape(label)}</text>'
    )


def rows(x: float, y: float, width: float, labels: list[str]) -> str:
    return "".join(box(x, y + UNIT * k, width, UNIT, label, k) for k, label in enumerate(labels))


def words(x: float, y: float, text: str, size: int = 13, anchor: str = "middle", weight: str = "normal") -> str:
    font = f'font-size="{size}" font-weight="{weight}" text-anchor="{anchor}"'
    return f'<text x="{x}" y="{y}" {font} fill="currentColor">{escape(text)}</text>'


def arrow(x: float, y: float, length: float, label: str) -> str:
    return f'<path d="M{x} {y} h{length}" stroke="currentColor" fill="none" marker-end="url(#tip)"/>' + words(
        x + length / 2, y - 8, label, 12
    )


def picture() -> str:
    top, four = 62, 4 * UNIT
    devices = [f"device {k}" for k in range(4)]
    parts = [
        words(20, 26, "A[I_x, J] · B[J, K] -> C[I, K]", 16, "start", "bold"),
        words(694, 26, "mesh x=4: four devices", 13, "end"),
        rows(20, top, 84, devices),
        words(62, top + four + 20, "A[I_x, J]"),
        words(122, top + four / 2 + 5, "·", 22),
        box(140, top + UNIT, 76, 2 * UNIT, "all devices", None),
        words(178, top + four + 20, "B[J, K]"),
        arrow(228, top + four / 2, 92, "multiply"),
        rows(334, top, 110, devices),
        words(389, top + four + 20, "C[I_x, K]"),
        arrow(456, top + four / 2, 112, "all-gather x"),
        *(box(584, top + UNIT * k, 110, UNIT, "all devices", None) for k in range(4)),
        words(639, top + four + 20, "C[I, K]"),
        words(20, top + four + 52, CHOSEN, 13, "start"),
    ]
    body = "\n".join(parts)
    tip = (
        '<marker id="tip" markerWidth="9" markerHeight="9" refX="7" refY="4" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z" fill="currentColor"/></marker>'
    )
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 714 236" font-family="sans-serif" font-size="12" role="img" '
        'aria-label="Four devices multiply their rows of A by B, then gather C" color="#222" style="background:#fff">'
        f'\n<defs>{tip}</defs>\n<rect width="714" height="236" fill="#fff"/>\n{body}\n</svg>\n'
    )


if __name__ == "__main__":
    writing.write(Path(__file__).parent / "images" / "headline.svg", picture())
