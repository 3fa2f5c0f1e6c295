"""`shardwise overlap`: let the transfers of a user's function run behind its matmuls, and say what that gains."""

from __future__ import annotations

import argparse

from shardwise.commands.making import made_by, prepared, users_output_aside, widest
from shardwise.commands.session import enough_bits, progress
from shardwise.errors import as_json, one_line


def run(options: argparse.Namespace) -> int:
    """Overlap a function as the command line says; 0 also where nothing was gained."""
    function, args, mesh = prepared(made_by(options.function, options))
    from shardwise.functions.overlapped_text import facts
    from shardwise.functions.overlapping import overlap

    with users_output_aside(), progress(f"compiling variants of {one_line(options.function)}"), enough_bits(widest(args)):
        found = overlap(function, *args, on=options.on, mesh=mesh, seconds=options.seconds, compile_times=options.compile_times)
    if options.json:
        print(as_json(facts(found)))
    elif options.code:
        print(found.code())
    else:
        print(found)
    return 0
