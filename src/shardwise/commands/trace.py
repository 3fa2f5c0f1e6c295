"""`shardwise trace`: what every device did in one call, by the clock, beside what was modelled."""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

from shardwise.commands.run import enough_memory, given, padded_sizes, placed, random_arrays, started
from shardwise.commands.session import enough_bits, progress
from shardwise.errors import ShardwiseError, as_json, one_line
from shardwise.schedule.timeline import Timeline

MOST_SHARES = 40


def run(options: argparse.Namespace) -> int:
    """Trace as the command line says: the timeline measured, and beside it the modelled one where there is one."""
    if options.output is not None:
        _check_form(options.output)
    timelines = _traced(options)
    if options.json:
        print(as_json([_timeline_facts(timeline) for timeline in timelines]))
    else:
        print("\n\n".join(map(str, timelines)))
        print(_shares(timelines[-1]))
    if options.output is not None:
        _write(timelines, options.output)
    return 0


def _check_form(path: str) -> None:
    from shardwise import writing
    from shardwise.commands.show import FORMS

    writing.check(path)
    if not path.lower().endswith((".json", *FORMS)):
        raise ShardwiseError(f"{one_line(path)}: timelines are written as .json, {' or '.join(FORMS)}: end the name with one")


def _write(timelines: list[Timeline], path: str) -> None:
    if not path.lower().endswith(".json"):
        from shardwise.commands.show import write
        from shardwise.pictures.lanes import beside

        write(beside(timelines), path)
        return
    from shardwise import writing
    from shardwise.schedule.chrome import trace

    writing.keeping(path, lambda place: writing.write(place, json.dumps(trace(*timelines))))


def _traced(options: argparse.Namespace) -> list[Timeline]:
    """The measured timeline last."""
    from shardwise.commands.rehearse import is_equation

    what = options.what
    if is_equation(what):
        return _traced_equation(options)
    if os.path.exists(what) and not what.endswith(".py"):
        from shardwise.measure.profiling import trace

        for name in ("args", "mesh", "sizes", "keep"):
            if getattr(options, name):
                raise ShardwiseError(f"--{name} belongs to what is run, and {one_line(what)} is a trace that is there")
        return [trace(what, module=options.module)]
    from shardwise.commands.making import made_by, prepared, users_output_aside, widest

    if options.sizes or options.input or options.dtype:
        raise ShardwiseError(
            f"--sizes, --input and --dtype belong to an equation, and {one_line(what)} is a function: give --args"
        )
    function, args, mesh = prepared(made_by(what, options))
    with users_output_aside(), enough_bits(widest(args)), enough_memory():
        from shardwise.measure.profiling import traced_call

        arrays = random_arrays(args, options.seed)
        with progress(f"tracing {what}"):
            measured, audit = traced_call(function, *arrays, mesh=mesh, keep=options.keep)
    known = options.hardware is not None or (audit.hardware is not None and not audit.unread)
    return [*([audit.timeline(options.hardware)] if known else []), measured]


def _traced_equation(options: argparse.Namespace) -> list[Timeline]:
    from shardwise import api
    from shardwise.notation import parse

    if options.args or not options.mesh:
        raise ShardwiseError("an equation has --sizes, --dtype, --input and --mesh, as --mesh x=4; --args belong to a function")
    what = given(parse(options.what), options)
    mesh = started(options)
    padded = padded_sizes(what, mesh, options)
    plan = api.plan(options.what, sizes=padded, mesh=mesh, hardware=options.hardware, dtype=what.dtype, overlap=options.overlap)
    with enough_bits(what.dtype), enough_memory(), progress("tracing the plan"):
        from shardwise.measure.profiling import traced_call

        arrays = placed(what, mesh, options.seed, padded)
        measured, _ = traced_call(plan.function(mesh), *arrays, keep=options.keep, name=options.what)
    return [*([] if plan.best.is_compilers_own else [plan.best.timeline()]), measured]


def _timeline_facts(timeline: Timeline) -> dict[str, Any]:
    names = ("name", "hardware", "origin", "step_seconds", "compute_seconds", "transfer_seconds", "exposed_seconds")
    shares = [
        {
            "kind": share.collective.kind, "axes": list(share.collective.axes), "name": share.collective.name,
            "source": share.collective.source, "transfer_seconds": share.transfer_seconds,
            "exposed_seconds": share.exposed_seconds, "hidden": share.hidden,
        }
        for share in timeline.shares
    ]  # fmt: skip
    return {name: getattr(timeline, name) for name in names} | {"collectives": shares, "notes": list(timeline.notes)}


def _shares(timeline: Timeline) -> str:
    """The collectives in the order in which they began, and how much of each is overlapped."""
    from shardwise.units import seconds_text

    lines = [
        f"  {share.collective.kind} over {','.join(share.collective.axes) or '?'}: {seconds_text(share.transfer_seconds)}, "
        f"{share.hidden:.0%} overlapped ({share.collective.name})"
        for share in timeline.shares[:MOST_SHARES]
    ]
    more = len(timeline.shares) - MOST_SHARES
    return (
        "\n".join(map(one_line, ["collectives, measured", *lines, *([f"  ... and {more} more"] if more > 0 else [])]))
        if lines
        else ""
    )
