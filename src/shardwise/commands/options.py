"""What the commands that measure and compare may be told: options alone; what each does is a file named after its verb."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from typing import Any

from shardwise.errors import quoted

BOTH = {"any": True, "none": False}  # beside the forms that `sw.plan` knows


def command_of(module: str, function: str = "run") -> Callable[[argparse.Namespace], int]:
    """A command, which is imported when it is called: most need no JAX."""
    return lambda options: getattr(importlib.import_module(f"shardwise.commands.{module}"), function)(options)


def overlap_option(parser: argparse.ArgumentParser) -> None:
    """Add `--overlap`, which gives what `sw.plan` takes."""
    parser.add_argument(
        "--overlap", type=_overlap, default=True, metavar="any|none|ring|...",
        help="how transfers may run behind matmuls: any (default), none, or in that form alone",
    )  # fmt: skip


def _overlap(text: str) -> bool | str:
    from shardwise.planning.problem import FORMS

    if text not in (*BOTH, *FORMS):
        raise argparse.ArgumentTypeError(f"{quoted(text)} is none that is known: they are {', '.join((*BOTH, *FORMS))}")
    return BOTH.get(text, text)


def try_option(parser: argparse.ArgumentParser) -> None:
    """Add `--try` to what rehearses."""
    parser.add_argument(
        "--try", action="append", default=[], dest="tries", metavar="NAME=VALUE,...",
        help="compile with compiler options, or with other arguments (layouts:other.py:args), too, and rank what came out",
    )  # fmt: skip


def doctoring_parser(commands: Any, function_options: Callable[..., None]) -> None:
    """Add `doctor` to the commands."""
    doctoring = commands.add_parser(
        "doctor",
        help="why data moves in a function, line by line, and what to write instead; no compiler takes part without --on",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="examples:\n"
        '  shardwise doctor train.py:step --args "bfloat16[4096@x,1024] bfloat16[1024,2048]" --mesh x=4 --axis-types auto\n'
        '  shardwise doctor train.py:step --args "bfloat16[4096@x,1024] bfloat16[1024,2048]" --mesh x=8 --on v5e:2x4\n'
        '  shardwise doctor train.py:step --args "bfloat16[4096@x,1024] bfloat16[1024,2048]" --mesh x=4 --try\n'
        "  shardwise doctor --self        versions, devices and settings, in a block to paste into a question",
    )
    function_options(doctoring, needed=False)
    doctoring.add_argument(
        "--self", action="store_true", dest="itself", help="what is installed here, in a block to paste, and no function"
    )
    doctoring.add_argument(
        "--on",
        metavar="v5e:2x4",
        help="hold what is asked for against what these devices' compiler makes (here: this machine's)",
    )
    doctoring.add_argument(
        "--platform", choices=["cpu", "gpu", "tpu"], help="the devices to use; cpu simulates as many as needed"
    )
    doctoring.add_argument(
        "--hardware", help="a name that `shardwise hardware` lists (default: that of --on, or of the devices)"
    )
    doctoring.add_argument("--try", action="store_true", dest="attempt",
                           help="under explicit axes, paste the first way out into a copy, and go on")  # fmt: skip
    doctoring.add_argument("--json", action="store_true", help="print JSON")
    doctoring.add_argument("-o", "--output", metavar="FILE", help="write a picture, .svg or .html, too")
    doctoring.set_defaults(command=command_of("doctor"))


def overlapping_parser(commands: Any, function_options: Callable[[argparse.ArgumentParser], None]) -> None:
    """Add `overlap` to the commands."""
    overlapping = commands.add_parser(
        "overlap",
        help="let the transfers of a function run behind its matmuls, where that compiles to be faster",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="examples:\n"
        '  shardwise overlap train.py:step --args "bfloat16[4096@x,1024] bfloat16[1024,2048]" --mesh x=8 --on v5e:2x4\n'
        '  shardwise overlap train.py:step --args "bfloat16[4096@x,1024] bfloat16[1024,2048]" --mesh x=8 --on v5e:2x4 --code',
    )
    function_options(overlapping)
    overlapping.add_argument("--on", metavar="v5e:2x4", required=True, help="the devices, which need not be attached")
    overlapping.add_argument(
        "--seconds", type=float, default=120.0, metavar="S",
        help="how long variants are compiled, beyond the function as it is and one with every place changed (default 120)",
    )  # fmt: skip
    overlapping.add_argument(
        "--compile-times", type=float, default=3.0, metavar="N",
        help="how many times as long as the function as it is what is changed may compile (default 3; inf: any)",
    )  # fmt: skip
    overlapping.add_argument("--code", action="store_true", help="print what to write by hand instead")
    overlapping.add_argument("--json", action="store_true", help="print JSON")
    overlapping.set_defaults(command=command_of("overlap"))


def measuring_parsers(commands: Any) -> None:
    """Add `compare`, `trace`, `calibrate` and `flags` to the commands."""
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
    equation.add_argument(
        "--hardware", help="a name that `shardwise hardware` lists, or a file.toml (default: that of the devices)"
    )
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
    comparing.set_defaults(command=command_of("compare"))
    _trace_parser(commands)
    _calibrate_parser(commands)
    _flags_parser(commands)


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
    tracing.set_defaults(command=command_of("trace"))


def _calibrate_parser(commands: Any) -> None:
    calibrating = commands.add_parser(
        "calibrate",
        help="measure this machine's matmuls, memory and collectives, for plans to be made with its own figures",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="examples:\n"
        "  shardwise calibrate              this host; plans that name no hardware use it from then on\n"
        "  shardwise calibrate --mesh x=4,y=2 --no-keep -o mine.toml      for plans with --hardware ./mine.toml\n"
        "  shardwise calibrate --from all_gather_perf.txt --hardware h100 -o node.toml",
    )
    calibrating.add_argument("--mesh", default="", metavar="x=4,y=2",
                             help="mesh axes and their sizes, each measured (default: all devices)")  # fmt: skip
    calibrating.add_argument(
        "--platform", choices=["cpu", "gpu", "tpu"], help="the devices to measure; cpu simulates as many as needed"
    )
    calibrating.add_argument("--hardware", help="what the devices are, where the catalogue does not know them")
    calibrating.add_argument("--seconds", type=float, help="for all, compiling included (default 25)")
    calibrating.add_argument(
        "--from", action="append", default=[], dest="logs", metavar="FILE",
        help="read what nccl-tests printed, or a table of JAX collective benchmarks, in place of a measurement",
    )  # fmt: skip
    calibrating.add_argument(
        "--keep", action=argparse.BooleanOptionalAction, default=True,
        help="of a host: keep it for plans that name no hardware (default: yes)",
    )  # fmt: skip
    calibrating.add_argument("--json", action="store_true", help="print JSON")
    calibrating.add_argument("-o", "--output", metavar="FILE.toml", help="write it as TOML, which --hardware takes everywhere")
    calibrating.set_defaults(command=command_of("calibrate"))


def _flags_parser(commands: Any) -> None:
    flags = commands.add_parser(
        "flags",
        help="list compiler options for asynchronous and overlapped collectives, each with a reason and a source",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="examples:\n  shardwise flags\n  shardwise flags v5e:2x4",
    )
    flags.add_argument("where", nargs="?", help="devices as v5e:2x4, or tpu, gpu or cpu (default: all)")
    flags.add_argument("--on", metavar="v5e:2x4", help="the same, as other commands say it")
    flags.add_argument("--json", action="store_true", help="print JSON")
    flags.set_defaults(command=command_of("flags"))


def launch_parser(commands: Any) -> None:
    """Add `launch` to the commands."""
    launching = commands.add_parser(
        "launch",
        help="start several processes on this machine as one run: a script, a function, or run, compare, audit, trace",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="examples:\n"
        "  shardwise launch -n 2 train.py --steps 10\n"
        "  shardwise launch -n 2 --devices-per-process 4 --all train.py\n"
        '  shardwise launch -n 2 run "A[I_x, J] · B[J, K] -> C[I, K]" --sizes I=1024,J=512,K=512 --mesh x=8\n\n'
        "Process 0 speaks; what another says is shown where it fails. A script is connected before its first line, and\n"
        "may call sw.distributed.start() too, as it would on a cluster. The first failure ends all, and gives the exit status.",
    )
    launching.add_argument("-n", "--processes", type=int, default=2, metavar="N", help="how many processes (default 2)")
    launching.add_argument(
        "--devices-per-process", type=int, metavar="D", help="simulated devices of each (default 1; run: what its mesh needs)"
    )
    launching.add_argument("--platform", choices=["cpu", "gpu"], default="cpu", help="of the devices (default cpu)")
    launching.add_argument("--port", type=int, help="of process 0 (default: a free one)")
    launching.add_argument("--all", action="store_true", help="pass on what every process prints, its number before each line")
    launching.add_argument(
        "--start-seconds", type=float, metavar="SECONDS", help="how long processes wait for the last to start (default 300)"
    )
    launching.add_argument(
        "--silence-seconds", type=float, metavar="SECONDS", help="after how long a silent process is given up (default 20)"
    )
    launching.add_argument("what", help="script.py, module:function, run, compare, audit or trace")
    launching.add_argument("rest", nargs=argparse.REMAINDER, metavar="...", help="what that is given")
    launching.set_defaults(command=command_of("launch"))
