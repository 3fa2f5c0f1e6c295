"""`shardwise compare`: an equation in several ways, or functions, side by side by the clock."""

from __future__ import annotations

import argparse
from typing import Any

from shardwise.commands.run import enough_memory, given, padded_sizes, placed, random_arrays, started
from shardwise.commands.session import enough_bits, progress
from shardwise.errors import ShardwiseError, as_json, one_line
from shardwise.measure.comparison import Comparison


def run(options: argparse.Namespace) -> int:
    """Compare as the command line says; 0, or 1 where ways of an equation do not agree."""
    if options.output is not None:
        from shardwise.commands.show import check_form

        check_form(options.output)
    from shardwise.commands.rehearse import is_equation

    one = len(options.what) == 1 and is_equation(options.what[0])
    found = _of_equation(options) if one else _of_functions(options)
    print(as_json(_facts(found)) if options.json else found)
    if options.output is not None:
        from shardwise.commands.show import write
        from shardwise.pictures.comparisons import comparison_picture

        write(comparison_picture(found), options.output)
    return 0 if found.agrees or not one else 1


def _facts(found: Comparison) -> dict[str, Any]:
    from shardwise.measure.comparison import facts

    return facts(found)


def _of_equation(options: argparse.Namespace) -> Comparison:
    from shardwise.notation import parse

    text = options.what[0]
    if options.args:
        raise ShardwiseError("--args belong to functions: an equation has --sizes, --dtype and --input")
    if not options.mesh:
        raise ShardwiseError(f"the mesh of {one_line(text)} is missing: add it, as --mesh x=4")
    what = given(parse(text), options)
    mesh = started(options)
    from shardwise.measure.comparing import compare
    from shardwise.measure.ways import DEFAULT

    ways = [way.strip() for way in options.ways.split(",") if way.strip()] or DEFAULT
    with enough_bits(what.dtype), enough_memory():
        with progress("placing the operands"):
            arrays = placed(what, mesh, options.seed, padded_sizes(what, mesh, options))
        with progress(f"measuring {len(ways)} ways"):
            return compare(
                text, *arrays, ways=ways, mesh=mesh, hardware=options.hardware, overlap=options.overlap,
                memory_limit=options.memory_limit, exact=options.exact, pad=options.pad, seconds=options.seconds,
            )  # fmt: skip


def _of_functions(options: argparse.Namespace) -> Comparison:
    from shardwise.commands.making import made_by, prepared, users_output_aside, widest
    from shardwise.measure.comparing import compare

    if any((options.sizes, options.input, options.ways)):
        raise ShardwiseError("--sizes, --input and --ways belong to an equation: functions have --args")
    names, texts = options.what, options.args or [""]
    count = max(len(names), len(texts))
    if count < 2 or (len(names) not in (1, count)) or (len(texts) not in (1, count)):
        raise ShardwiseError(
            f"{len(names)} functions and {len(texts)} --args: give two or more functions, with --args once for all or once for "
            "each; or one function with several --args"
        )
    by_name = len(set(names)) == count
    ways: dict[str, Any] = {}
    mesh: Any = None
    for index in range(count):
        name, text = names[index % len(names)], texts[index % len(texts)]
        function, args, mesh = prepared(made_by(name, argparse.Namespace(**{**vars(options), "args": text})))
        label = name if by_name else f"{name} {text}"
        if label in ways:
            raise ShardwiseError(f"{one_line(label)} is given twice: there is nothing to compare")
        ways[label] = (function, args)
    everything = tuple(args for _, args in ways.values())
    with enough_bits(widest(everything)), enough_memory(), users_output_aside():
        filled = {label: (function, *random_arrays(args, options.seed)) for label, (function, args) in ways.items()}
        with progress(f"measuring {count} functions"):
            return compare(filled, mesh=mesh, seconds=options.seconds)
