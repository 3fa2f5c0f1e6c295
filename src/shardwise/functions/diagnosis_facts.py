"""A diagnosis as plain dictionaries and lists, for JSON; the keys are stable."""

from __future__ import annotations

import dataclasses
from typing import Any

from shardwise.functions.diagnosis import Diagnosis, Place, Remedy
from shardwise.functions.explicit import Stop
from shardwise.functions.pasting import Paste


def facts(found: Diagnosis) -> dict[str, Any]:
    """The facts of a diagnosis.

    Keys: `name`, `mesh` (axis to size), `hardware`, `wire_bytes` and `seconds` (of one device in one call, modelled;
    None where Shardy's view is not to be had), `places` (`line`, `via`, `text`, `subjects`, `before`, `after`,
    `collectives`, `wire_bytes`, `seconds`, `times`, `because`, `sources`, `equation`, `by_hand`, `backward`, `notes`,
    `remedy`), `held` and `padded` (remedies), `stop` (`line`, `text`, `operation`, `equation`, `because`, `options`, or None),
    `pastes`, `findings`, `truth` (`target`, `explained`, `answers`, `gone`, `once`, `whole`, or None), `notes` and
    `unread`. A remedy has `kind`, `says`, `paste` (`file`, `line`, `old`, `new`, or None), `arguments`, `code`, `layout`,
    `wire_bytes`,
    `seconds`, `memory_bytes`,
    `compiled_bytes` (before and after, or None).
    """
    total: Any = found.totals
    truth: Any = found.truth
    return {
        "name": found.name,
        "mesh": dict(found.mesh.axes),
        "hardware": found.hardware,
        "wire_bytes": None if total is None else total.wire_bytes,
        "seconds": None if total is None else total.moving_seconds,
        "places": [_place(each) for each in found.places],
        "held": [_remedy(each) for each in found.held],
        "padded": [_remedy(each) for each in found.padded],
        "stop": None if found.stop is None else _stop(found.stop),
        "pastes": [_paste(each) for each in found.pastes],
        "findings": [
            {"kind": each.kind, "what": each.what, "advice": each.advice, "lines": [str(line) for line in each.lines]}
            for each in found.findings
        ],
        "truth": None if truth is None else {
            "target": truth.audit.target,
            "wire_bytes": truth.audit.total_wire_bytes,
            "explained": truth.explained,
            "answers": [
                {
                    "kind": each.collective.kind, "axes": list(each.collective.axes), "line": str(each.collective.line),
                    "wire_bytes": each.collective.wire_bytes, "place": each.place, "how": each.how,
                    "otherwise": each.otherwise, "joined": list(each.joined),
                    "exposed_seconds": each.exposed_seconds,
                }
                for each in truth.answers
            ],
            "gone": list(truth.gone),
            "once": [{"gone": gone, "moved": moved} for gone, moved in truth.once],
            "whole": list(truth.whole),
        },
        "notes": list(found.notes),
        "unread": list(found.unread),
    }  # fmt: skip


def _place(each: Place) -> dict[str, Any]:
    return {
        "line": None if each.line is None else each.line.place,
        "via": "" if each.line is None else each.line.via,
        "text": each.text,
        "subjects": list(each.subjects),
        "before": str(each.before),
        "after": str(each.after),
        "collectives": [{"kind": kind, "axes": list(axes)} for kind, axes in each.collectives],
        "wire_bytes": each.wire_bytes,
        "seconds": each.seconds,
        "times": each.times,
        "because": each.cause.says,
        "sources": [str(source) for source in each.cause.sources],
        "equation": each.cause.equation,
        "by_hand": each.by_hand,
        "backward": each.backward,
        "notes": list(each.notes),
        "remedy": None if each.remedy is None else _remedy(each.remedy),
    }


def _remedy(each: Remedy) -> dict[str, Any]:
    return {
        "kind": each.kind,
        "says": each.says,
        "paste": _paste(each.paste),
        "arguments": list(each.arguments),
        "code": each.code,
        "layout": None if each.layout is None else str(each.layout),
        "wire_bytes": each.wire_bytes,
        "seconds": each.seconds,
        "memory_bytes": each.memory_bytes,
        "compiled_bytes": None if each.compiled_bytes is None else list(each.compiled_bytes),
    }


def _paste(each: Paste | None) -> dict[str, Any] | None:
    return None if each is None else dataclasses.asdict(each)


def _stop(each: Stop) -> dict[str, Any]:
    return {
        "line": None if each.line is None else str(each.line),
        "text": each.text,
        "operation": each.operation,
        "equation": each.equation,
        "because": each.why,
        "options": [
            {
                "layouts": [str(layout) for layout in option.layouts], "seconds": option.seconds,
                "wire_bytes": option.wire_bytes, "held_bytes": option.held_bytes, "says": option.says,
                "paste": _paste(option.paste),
            }
            for option in each.options
        ],
    }  # fmt: skip
