"""Text that means harm, or is only too much of it: what every parser is given, and every option of the command line."""

from __future__ import annotations

import random
from collections.abc import Iterator

DIGITS = "9" * 5000
# Controls, what turns or hides text, separators of lines, a lone surrogate, and a line that a CI takes for a command.
UNSEEN = [
    "\x1b[31m", "\n::warning::x", "\r", "\x00", "\x85", "\x9b2J", "\u202e", "\u2066", "\u200b", "\u2028", "\u2029", "\udcff",
    "\ufeff",
]  # fmt: skip
PIECES = [
    *UNSEEN, DIGITS, "9" * 40, str(10**18), str(2**63), "1e400", "nan", "inf", "-1", "0", "1.5", "\u0663", "\u00b2", "\u2081",
    "A" * 3000, "[" * 2000, "{" * 2000, "(" * 2000, "I, " * 200, "A[I] " * 300, "-> A[I] " * 80, "x=2," * 100, "@", ":", "%s",
    "{0}", "\\", "\"", "'", "../", "/dev/null", "~", "$HOME", "W\u2081", "A\u00b2", "\ufb01", "None", "True", "\U0001f525", "",
    " ", "_", "_?", "{U_x}", "I_{x,y}", "=", ",", ";", "*", "\u00b7", "\u2192",
]  # fmt: skip
VALID = {
    "equation": ["A[I_x, J] \u00b7 B[J, K] -> C[I, K]", "A[I, J_x] -> A[I_x, J]", "A[I_?] -> B[I]"],
    "layout": ["A[I_x, J_y]", "I_x, J", "[I_x]{U_y}"],
    "mesh": ["x=4, y=2", "x=1", "x=1000000000"],
    "sizes": ["I=8,J=4,K=4", "I=1000000000000,J=4,K=4"],
    "types": ["bfloat16[8192@x,1024] int32[]", "f32[8@(x,y)]"],
    "topology": ["v5e:2x4", "h100:2x8"],
    "hardware": ["tpu-v5e", "cpu"],
}  # fmt: skip


def malformed(kind: str, count: int, seed: int) -> Iterator[str]:
    """Texts of a kind with pieces put in, cut out, doubled or in place of it; the same for the same seed."""
    draw = random.Random(f"{kind} {seed}")
    for _ in range(count):
        text = draw.choice(VALID[kind])
        for _ in range(draw.randint(1, 3)):
            at, end = sorted((draw.randint(0, len(text)), draw.randint(0, len(text))))
            piece = draw.choice(PIECES)
            change = draw.randrange(5)
            text = [text[:at] + piece + text[at:], text[:at] + text[end:], text[:at] + piece + text[end:],
                    text[:end] + text[at:], piece][change][:20_000]  # fmt: skip
        yield text
