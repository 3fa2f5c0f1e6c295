"""An overlapped function as text: what was gained, line by line what was changed, and what was left."""

from __future__ import annotations

from typing import Any

from shardwise.functions.matmul_places import MatmulPlace
from shardwise.functions.overlapped import Overlapped
from shardwise.functions.replacing import Place
from shardwise.units import seconds_text

SHOWN = 12


def text(found: Overlapped) -> str:
    """The whole as text: what was gained, line by line what was changed, and what was left."""
    lines = [_headline(found)]
    for number, place in enumerate(found.changes, 1):
        where = place.line.short if place.line else "a line that is not known"
        times = f", {place.times} times" if place.times > 1 else ""
        together = f", {place.together} matmuls as one" if place.together > 1 else ""
        lines.append(f"{number}. {where}{together}{times}: {place.task.equation}")
        steps = ", then ".join(said.split(" to [")[0] for said in place.described)
        lines.append(f"   {_brought(place)}{steps}")
        plain, planned = seconds_text(place.plain_seconds), seconds_text(place.seconds)
        lines.append(f"   {planned} each time, and {plain} {place.otherwise} (modelled)")
    if found.options:
        said = ", ".join(f"{name}={value}" for name, value in found.options)
        lines.append(f"compiled with {said}: run `.jitted()`, or give `compiler_options` to jax.jit")
    if found.left:
        lines.append("left as it is")
    for left in found.left[:SHOWN]:
        where = left.line.short if left.line else "a line that is not known"
        times = f", {left.times} times" if left.times > 1 else ""
        lines.append(f"   {where}{times}: {left.equation}: {left.reason}")
    if len(found.left) > SHOWN:
        lines.append(f"   and {len(found.left) - SHOWN} more")
    lines += [f"note: {note}" for note in found.notes]
    return "\n".join(lines)


def _brought(place: Place) -> str:
    if not isinstance(place, MatmulPlace) or not place.is_brought:
        return ""
    parts = f", {place.parts_of} in parts" if place.parts_of else ""
    return f"with operands as others bring them{parts}: "


def _headline(found: Overlapped) -> str:
    if found.before_seconds is None or found.after_seconds is None:
        return f"{found.name} on {found.target}: nothing was compiled"
    tried = f"{found.tried} variants compiled"
    if not found.changes and not found.options:
        return f"{found.name} on {found.target}: {seconds_text(found.before_seconds)}, and nothing was faster ({tried})"
    waits = ""
    if found.before_exposed is not None and found.after_exposed is not None:
        waits = f"; waiting for transfers {seconds_text(found.before_exposed)} -> {seconds_text(found.after_exposed)}"
    said = f"{seconds_text(found.before_seconds)} -> {seconds_text(found.after_seconds)}, {found.speedup:.2f} times as fast"
    longer = f"; compiles in {found.compile_times:.1f} times the time" if found.compile_times else ""
    return f"{found.name} on {found.target}: {said}{waits}{longer} (modelled from the compiled schedules; {tried})"


def facts(found: Overlapped) -> dict[str, Any]:
    """The same as plain values, for JSON.

    Keys: `name`, `target`, `before_seconds`, `after_seconds`, `before_exposed_seconds`, `after_exposed_seconds` (None where
    nothing was compiled), `compile_times` (None where that is not known), `variants`, `changes` and `left` (with `line`,
    `equation`, `times`; changes with `matmuls`, that are one, 1 for a lookup, `steps`, `overlap`, `as_brought`, and `seconds`
    and `plain_seconds` each time, left ones with `reason`), `compiler_options` and `notes`.
    """
    return {
        "name": found.name,
        "target": found.target,
        "before_seconds": found.before_seconds,
        "after_seconds": found.after_seconds,
        "before_exposed_seconds": found.before_exposed,
        "after_exposed_seconds": found.after_exposed,
        "compile_times": found.compile_times,
        "variants": found.tried,
        "changes": [
            {
                "line": str(place.line) if place.line else None,
                "equation": str(place.task.equation),
                "times": place.times,
                "matmuls": place.together,
                "steps": list(place.described),
                "overlap": place.overlap,
                "as_brought": place.is_brought,
                "seconds": place.seconds,
                "plain_seconds": place.plain_seconds,
            }
            for place in found.changes
        ],
        "left": [
            {
                "line": str(left.line) if left.line else None,
                "equation": left.equation,
                "times": left.times,
                "reason": left.reason,
            }
            for left in found.left
        ],
        "compiler_options": found.compiler_options,
        "notes": list(found.notes),
    }
