"""`shardwise compare` and `shardwise trace`: what the clock says, of several ways side by side, or of one call."""

from __future__ import annotations

import argparse
import json
import os
from typing import TYPE_CHECKING, Any

from shardwise.errors import ShardwiseError, as_json, one_line, quoted

if TYPE_CHECKING:
    from shardwise.measure.comparison import Comparison
    from shardwise.schedule.timeline import Timeline
    from shardwise.session import Given

MOST_SHARES = 40

OVERLAPS = {"any": True, "none": False} | {way: way for way in ("ring", "bidirectional", "scatter", "rotate")}


def overlap_option(parser: argparse.ArgumentParser) -> None:
    """Add `--overlap`, which gives what `sw.plan` takes."""
    parser.add_argument(
        "--overlap", type=_overlap, default=True, metavar="|".join(OVERLAPS),
        help="how transfers may run behind matmuls: any (default), none, or in that form alone",
    )  # fmt: skip


def _overlap(text: str) -> bool | str:
    if text not in OVERLAPS:
        raise argparse.ArgumentTypeError(f"{quoted(text)} is none that is known: they are {', '.join(OVERLAPS)}")
    return OVERLAPS[text]


def add_parsers(commands: Any) -> None:
    """Add `compare` to the commands."""
    comparing = commands.add_parser(
        "compare",
        help="measure an equation in every way that JAX has beside the plan, or functions side by side",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="examples:\n"
        '  shardwise compare "A[I, J_x] · B[J_x, K] -> C[I_x, K]" --sizes I=512,J=128,K=256 --mesh x=4 --seconds 2\n'
        '  shardwise compare "A[I_x, J] · B[J, K] -> C[I, K]" --sizes I=512,J=128,K=256 --mesh x=4 --seconds 2 '
        '--ways "planned,candidate 2,ring"\n'
        '  shardwise compare train.py:step jax.numpy:matmul --args "float32[64@x,8] float32[8,16]" --mesh x=4 --seconds 2',
    )
    comparing.add_argument(
        "what", nargs="+", help="an equation, or two or more functions as module:function or file.py:function"
    )
    comparing.add_argument("--mesh", default="", metavar="x=4,y=2", help="mesh axes and their sizes")
    comparing.add_argument("--seconds", type=float, default=20.0, help="for the runs in turn, all ways together (default 20)")
    comparing.add_argument(
        "--platform", choices=["cpu", "gpu", "tpu"], help="the devices to use; cpu simulates as many as needed"
    )
    comparing.add_argument("--seed", type=int, default=0, help="for arrays without a file (default 0)")
    comparing.add_argument("--json", action="store_true", help="print JSON")
    comparing.add_argument("-o", "--output", metavar="FILE", help="write a picture, .svg or .html, too")
    equation = comparing.add_argument_group("of an equation")
    equation.add_argument("--sizes", default="", metavar="I=4096,J=1024", help="the size of every dimension")
    equation.add_argument("--input", action="append", default=[], metavar="NAME=FILE", help="an operand from a file, as in run")
    equation.add_argument("--ways", default="", metavar="planned,constraint,...",
                          help="auto, constraint, explicit, manual, planned (default), candidate 2, ring, ...")  # fmt: skip
    equation.add_argument("--hardware", help="a name that `shardwise hardware` lists (default: that of the devices)")
    equation.add_argument("--dtype", help="the operands' dtype (default: that of the files, else float32)")
    equation.add_argument("--memory-limit", type=float, metavar="BYTES", help="bytes that one device may hold, as 16e9")
    equation.add_argument("--pad", action="store_true", help="pad dimensions that their axes do not divide, and measure that")
    equation.add_argument("--exact", action="store_true", help="only programs that make every sum on one device at once")
    overlap_option(equation)  # type: ignore[arg-type]
    functions = comparing.add_argument_group("of functions")
    functions.add_argument(
        "--args", action="append", default=[], metavar="TYPES",
        help='arguments of all, or given for each its own: "float32[8@x,4] int32[]", or module:function that returns them',
    )  # fmt: skip
    functions.add_argument("--axis-types", choices=["explicit", "auto"], help="of the mesh (default explicit)")
    comparing.set_defaults(command=compare_command)
    _trace_parser(commands)


def _trace_parser(commands: Any) -> None:
    tracing = commands.add_parser(
        "trace",
        help="run under jax.profiler, and show what each device did beside what was modelled; or read a trace",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="examples:\n"
        '  shardwise trace train.py:step --args "float32[64@x,8] float32[8,16]" --mesh x=4\n'
        '  shardwise trace "A[I, J_x] · B[J_x, K] -> C[I_x, K]" --sizes I=512,J=128,K=256 --mesh x=4 -o step.json\n'
        '  shardwise trace "A[I_x, J] -> A[I, J_x]" --sizes I=64,J=64 --mesh x=4 --keep traced\n'
        "  shardwise trace traced           a folder that jax.profiler wrote",
    )
    tracing.add_argument("what", help="module:function, file.py:function, an equation, or a folder with a trace")
    tracing.add_argument("--mesh", default="", metavar="x=4,y=2", help="mesh axes and their sizes")
    tracing.add_argument(
        "--platform", choices=["cpu", "gpu", "tpu"], help="the devices to use; cpu simulates as many as needed"
    )
    tracing.add_argument("--hardware", help="the hardware of the modelled timeline (default: that of the devices)")
    tracing.add_argument("--seed", type=int, default=0, help="for arrays without a file (default 0)")
    tracing.add_argument("--json", action="store_true", help="print JSON")
    tracing.add_argument(
        "-o", "--output", metavar="FILE", help="write .json, which Perfetto opens, or a picture, .svg or .html"
    )
    tracing.add_argument("--keep", metavar="FOLDER", help="write what jax.profiler records to a folder, for XProf")
    function = tracing.add_argument_group("of a function")
    function.add_argument(
        "--args", default="", metavar="TYPES", help='"float32[8@x,4] int32[]", or module:function that returns them'
    )
    function.add_argument("--axis-types", choices=["explicit", "auto"], help="of the mesh (default explicit)")
    equation = tracing.add_argument_group("of an equation, whose plan is run")
    equation.add_argument("--sizes", default="", metavar="I=4096,J=1024", help="the size of every dimension")
    equation.add_argument("--input", action="append", default=[], metavar="NAME=FILE", help="an operand from a file, as in run")
    equation.add_argument("--dtype", help="the operands' dtype (default: that of the files, else float32)")
    equation.add_argument("--pad", action="store_true", help="pad dimensions that their axes do not divide")
    overlap_option(equation)  # type: ignore[arg-type]
    there = tracing.add_argument_group("of a trace that is there")
    there.add_argument("--module", metavar="jit_step", help="the program (default: that which ran for longest)")
    tracing.set_defaults(command=trace_command)


def compare_command(options: argparse.Namespace) -> int:
    """Compare as the command line says; 0, or 1 where ways of an equation do not agree."""
    if options.output is not None:
        from shardwise.showing import check_form

        check_form(options.output)
    from shardwise.evidence import is_equation

    one = len(options.what) == 1 and is_equation(options.what[0])
    found = _of_equation(options) if one else _of_functions(options)
    print(as_json(_facts(found)) if options.json else found)
    if options.output is not None:
        from shardwise.pictures.comparisons import comparison_picture
        from shardwise.showing import write

        write(comparison_picture(found), options.output)
    return 0 if found.agrees or not one else 1


def _padded(what: Given, mesh: Any, options: argparse.Namespace) -> dict[str, int]:
    """The sizes that are run."""
    from shardwise.mesh import Mesh
    from shardwise.notation import sizes_padded_on

    return sizes_padded_on(what.equation, what.sizes, Mesh.parse(mesh)) if options.pad else what.sizes


def _facts(found: Comparison) -> dict[str, Any]:
    from shardwise.measure.comparison import facts

    return facts(found)


def _of_equation(options: argparse.Namespace) -> Comparison:
    from shardwise import session
    from shardwise.notation import parse

    text = options.what[0]
    if options.args:
        raise ShardwiseError("--args belong to functions: an equation has --sizes, --dtype and --input")
    if not options.mesh:
        raise ShardwiseError(f"the mesh of {one_line(text)} is missing: add it, as --mesh x=4")
    what = session.given(parse(text), options)
    mesh = session.started(options)
    from shardwise.measure.comparing import compare
    from shardwise.measure.ways import DEFAULT

    ways = [way.strip() for way in options.ways.split(",") if way.strip()] or DEFAULT
    with session.enough_bits(what.dtype), session.enough_memory():
        with session.progress("placing the operands"):
            arrays = session.placed(what, mesh, options.seed, _padded(what, mesh, options))
        with session.progress(f"measuring {len(ways)} ways"):
            return compare(
                text, *arrays, ways=ways, mesh=mesh, hardware=options.hardware, overlap=options.overlap,
                memory_limit=options.memory_limit, exact=options.exact, pad=options.pad, seconds=options.seconds,
            )  # fmt: skip


def _of_functions(options: argparse.Namespace) -> Comparison:
    from shardwise import session
    from shardwise.evidence import made_by, prepared, users_output_aside, widest
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
    with session.enough_bits(widest(everything)), session.enough_memory(), users_output_aside():
        filled = {label: (function, *_arrays(args, options.seed)) for label, (function, args) in ways.items()}
        with session.progress(f"measuring {count} functions"):
            return compare(filled, mesh=mesh, seconds=options.seconds)


def trace_command(options: argparse.Namespace) -> int:
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
    from shardwise.showing import FORMS

    writing.check(path)
    if not path.lower().endswith((".json", *FORMS)):
        raise ShardwiseError(f"{one_line(path)}: timelines are written as .json, {' or '.join(FORMS)}: end the name with one")


def _write(timelines: list[Timeline], path: str) -> None:
    if not path.lower().endswith(".json"):
        from shardwise.pictures.gantt import beside
        from shardwise.showing import write

        write(beside(timelines), path)
        return
    from shardwise import writing
    from shardwise.schedule.chrome import trace

    writing.keeping(path, lambda place: writing.write(place, json.dumps(trace(*timelines))))


def _traced(options: argparse.Namespace) -> list[Timeline]:
    """The measured timeline last."""
    from shardwise import session
    from shardwise.evidence import is_equation

    what = options.what
    if is_equation(what):
        return _traced_equation(options)
    if os.path.exists(what) and not what.endswith(".py"):
        from shardwise.measure.tracing import trace

        for name in ("args", "mesh", "sizes", "keep"):
            if getattr(options, name):
                raise ShardwiseError(f"--{name} belongs to what is run, and {one_line(what)} is a trace that is there")
        return [trace(what, module=options.module)]
    from shardwise.evidence import made_by, prepared, users_output_aside, widest

    if options.sizes or options.input or options.dtype:
        raise ShardwiseError(
            f"--sizes, --input and --dtype belong to an equation, and {one_line(what)} is a function: give --args"
        )
    function, args, mesh = prepared(made_by(what, options))
    with users_output_aside(), session.enough_bits(widest(args)), session.enough_memory():
        from shardwise.measure.tracing import traced_call

        arrays = _arrays(args, options.seed)
        with session.progress(f"tracing {what}"):
            measured, audit = traced_call(function, *arrays, mesh=mesh, keep=options.keep)
    known = options.hardware is not None or (audit.hardware is not None and not audit.unread)
    return [*([audit.timeline(options.hardware)] if known else []), measured]


def _traced_equation(options: argparse.Namespace) -> list[Timeline]:
    from shardwise import api, session
    from shardwise.notation import parse

    if options.args or not options.mesh:
        raise ShardwiseError("an equation has --sizes, --dtype, --input and --mesh, as --mesh x=4; --args belong to a function")
    what = session.given(parse(options.what), options)
    mesh = session.started(options)
    padded = _padded(what, mesh, options)
    plan = api.plan(options.what, sizes=padded, mesh=mesh, hardware=options.hardware, dtype=what.dtype, overlap=options.overlap)
    with session.enough_bits(what.dtype), session.enough_memory(), session.progress("tracing the plan"):
        from shardwise.measure.tracing import traced_call

        arrays = session.placed(what, mesh, options.seed, padded)
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
    """The collectives in the order in which they began, and how much of each work hid."""
    from shardwise.planning.explain import seconds_text

    lines = [
        f"  {share.collective.kind} over {','.join(share.collective.axes) or '?'}: {seconds_text(share.transfer_seconds)}, "
        f"{share.hidden:.0%} hidden ({share.collective.name})"
        for share in timeline.shares[:MOST_SHARES]
    ]
    more = len(timeline.shares) - MOST_SHARES
    return (
        "\n".join(map(one_line, ["collectives, measured", *lines, *([f"  ... and {more} more"] if more > 0 else [])]))
        if lines
        else ""
    )


def _arrays(args: tuple[Any, ...], seed: int) -> tuple[Any, ...]:
    """Arguments with random arrays where only types are given."""
    import jax
    import numpy as np

    from shardwise.session import drawn

    generator = np.random.default_rng(seed)

    def filled(leaf: Any) -> Any:
        if not isinstance(leaf, jax.ShapeDtypeStruct):
            return leaf
        return jax.device_put(drawn(generator, leaf.shape, leaf.dtype), leaf.sharding)

    return jax.tree.map(filled, args)
