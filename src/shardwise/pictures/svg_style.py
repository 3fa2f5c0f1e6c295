"""The looks of an SVG: colours that colour-blind people tell apart, for light and for dark, and patterns beside them.

Colour never stands alone: copies are stacks, partial sums have a dashed rim, padding is hatched, and all is written as well.
"""

from __future__ import annotations

from shardwise.pictures.picture import Tone

# Fill and rim of eight things, after Okabe and Ito, neighbours far apart; and twelve shades for what is ordered.
LIGHT = (
    ("#cfe3f3", "#0b62a0"), ("#fbdfb4", "#a86400"), ("#c6ebdb", "#00795a"), ("#f4d5e6", "#a8467f"),
    ("#f7f1ae", "#857800"), ("#fbcdb8", "#b34700"), ("#d9d3f2", "#5b49a8"), ("#e2e2e2", "#5f5f5f"),
)  # fmt: skip
DARK = (
    ("#10395a", "#6cb8f2"), ("#553a08", "#f0b13c"), ("#0d4737", "#3fd3a5"), ("#512a41", "#ee9dcb"),
    ("#474206", "#efe04a"), ("#5a2710", "#ff9a66"), ("#352c62", "#b3a4f5"), ("#3c3f44", "#c2c2c2"),
)  # fmt: skip
RAMP = (
    "#e3f0f8", "#d3e7f3", "#bfdcec", "#a9cee4", "#90c0db", "#76afd0", "#5b9cc5", "#4388b7", "#2f73a6", "#205f93",
    "#154b7d", "#0d3864",
)  # fmt: skip
SHADES = len(RAMP)
DARK_SHADE = 8  # from here on what is written on a shade is white
PAGE = {"light": ("#ffffff", "#1b1f24", "#59636e", "#8c959f"), "dark": ("#14181d", "#e8ecf1", "#a3adb8", "#6b7681")}
# Fill, rim and pattern of what runs on a lane.
BARS = {
    "matmul": ("#0b62a0", ""), "compute": ("#6aa9d8", ""), "transfer": ("#00795a", "slant"), "wait": ("#d55e00", "cross"),
    "stall": ("#d9a58b", "dots"), "copy": ("#a8467f", "dots"), "loop": ("#8c959f", "dots"),
    "measured": ("#0b62a0", ""), "interval": ("#6aa9d8", "slant"),
}  # fmt: skip


def tone_class(tone: Tone | None) -> str:
    """The class of a box by what it stands for: a colour of its own, or a shade where there are many.

    >>> tone_class(Tone(1, 4)), tone_class(Tone(4095, 4096)), tone_class(None)
    ('t1', 's11', 'tn')
    """
    if tone is None:
        return "tn"
    return f"t{tone.index}" if tone.of <= len(LIGHT) else f"s{tone.index * SHADES // tone.of}"


def style(toggled: bool = False) -> str:
    """The style sheet; every rule holds below `.shardwise` alone, so that a page around it keeps its looks.

    Args:
        toggled: whether the page around it says `data-theme="light"` or `"dark"`; what is printed is light then.
    """
    common = (
        ".shardwise text{font-family:sans-serif}.shardwise .m{font-family:monospace}"
        ".shardwise text{unicode-bidi:isolate}.shardwise .b{font-weight:700}"
        ".shardwise .box{stroke-width:1.25}.shardwise .sum{stroke-dasharray:4 2.5}.shardwise .tiny{stroke-width:.8}"
        ".shardwise .tiny:not(.sum):not(.many){stroke:none}.shardwise .tiny.sum{stroke-dasharray:2 1.5}"
        ".shardwise .hatch{stroke:none}"
    )
    light = _scheme(PAGE["light"], LIGHT)
    if not toggled:
        return light + "@media (prefers-color-scheme:dark){" + _scheme(PAGE["dark"], DARK) + "}" + common
    asked = _scheme(PAGE["dark"], DARK, ":root:not([data-theme=light]) .shardwise")
    chosen = _scheme(PAGE["dark"], DARK, ":root[data-theme=dark] .shardwise")
    return f"{light}@media screen{{{chosen}}}@media screen and (prefers-color-scheme:dark){{{asked}}}{common}"


def _scheme(page: tuple[str, str, str, str], tones: tuple[tuple[str, str], ...], below: str = ".shardwise") -> str:
    back, ink, faint, rule = page
    rules = [
        f".page{{fill:{back}}}", f"text{{fill:{ink}}}", f".f{{fill:{faint}}}", f".rule{{stroke:{rule};fill:none}}",
        f".tip{{fill:{faint}}}", f".wire{{stroke:{faint};fill:none}}", f".tn{{fill:{back};stroke:{faint}}}",
        f".pen{{stroke:{ink}}}", f".card{{fill:none;stroke:{rule}}}", f".device{{fill:{back};stroke:{rule}}}",
    ]  # fmt: skip
    rules += [f".t{n}{{fill:{fill};stroke:{rim}}}" for n, (fill, rim) in enumerate(tones)]
    rules += [f".w{n}{{stroke:{rim};fill:none}}" for n, (_, rim) in enumerate(tones)]
    rules += [f".s{n}{{fill:{fill};stroke:{RAMP[min(n + 4, SHADES - 1)]}}}" for n, fill in enumerate(RAMP)]
    rules += [f".si{n}{{fill:{'#111111' if n < DARK_SHADE else '#ffffff'}}}" for n in range(SHADES)]
    return "".join(f"{below} {rule}" for rule in rules)


def patterns(prefix: str) -> str:
    """Hatching for padding, and what tells bars apart, under names that begin with a prefix of this picture's own."""
    lines = {
        "pad": (6, '<path d="M-1 7L7 -1M-1 1L1 -1M5 7L7 5" class="pen" stroke-width="1" opacity=".4"/>'),
        "slant": (6, '<path d="M-1 7L7 -1M-1 1L1 -1M5 7L7 5" stroke="#fff" stroke-width="1.4" opacity=".6"/>'),
        "cross": (6, '<path d="M0 0L6 6M6 0L0 6" stroke="#fff" stroke-width="1.2" opacity=".75"/>'),
        "dots": (5, '<circle cx="2.5" cy="2.5" r="1.1" fill="#fff" opacity=".8"/>'),
    }
    return "".join(
        f'<pattern id="{prefix}{name}" width="{size}" height="{size}" patternUnits="userSpaceOnUse">{body}</pattern>'
        for name, (size, body) in lines.items()
    )
