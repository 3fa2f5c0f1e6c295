"""`shardwise flags`, and `shardwise rehearse --try`: compiler options listed, and tried side by side."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from shardwise.errors import ShardwiseError, as_json, lines_of


def run(options: argparse.Namespace) -> int:
    """List the options of a platform's compiler."""
    from shardwise.compiled.targets.compiler_flags import flags

    if options.where and options.on:
        raise ShardwiseError("name the devices once, as shardwise flags v5e:2x4 or --on v5e:2x4")
    found = flags(options.on or options.where)
    print(as_json([dataclasses.asdict(flag) for flag in found]) if options.json else lines_of("\n".join(map(str, found))))
    return 0


def rehearse(options: argparse.Namespace) -> int:
    """Rehearse; with variants, compile the function or the plan as it is and in each of them, and print them ranked."""
    from shardwise.commands.making import compiled, made_by
    from shardwise.commands.rehearse import is_equation, planned, rehearsed
    from shardwise.commands.rehearse import rehearse as alone

    if not options.tries:
        return alone(options)
    from shardwise.measure.tries import Variant, facts, table, tried, variant

    variants = [variant(text) for text in dict.fromkeys(options.tries)]
    if options.timeline or options.trace is not None:
        raise ShardwiseError("--timeline and --trace belong to one program: rehearse the variant that you want to see alone")
    if is_equation(options.function):
        if any(each.layouts for each in variants):
            raise ShardwiseError(
                "--try layouts:... gives other arguments, which a function has: an equation says its layouts itself"
            )
        plan = planned(options)

        def made(each: Variant) -> Any:
            return rehearsed(plan, options.on, options.function, dict(each.options))
    else:
        if options.sizes:
            raise ShardwiseError("--sizes belong to an equation, and a function has --args")
        how = made_by(options.function, options)

        def made(each: Variant) -> Any:
            return compiled(dataclasses.replace(how, args=each.layouts or how.args), compiler_options=dict(each.options))

    found = tried(variants, made, options.hardware)
    print(as_json(facts(found)) if options.json else table(found))
    return 0
