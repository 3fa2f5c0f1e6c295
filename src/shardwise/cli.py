"""The command line: `shardwise plan`, `run`, `show`, `tour`, `report`, `audit`, `rehearse`, `lock`, ...

Exit codes: 0 fine, 1 a check failed, 2 the user's mistake, 130 interrupted.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from shardwise.commands.completion import SHELLS, complete
from shardwise.commands.options import (
    command_of,
    doctoring_parser,
    launch_parser,
    measuring_parsers,
    overlap_option,
    overlapping_parser,
    try_option,
)
from shardwise.errors import ShardwiseError, lines_of, one_line, quoted, shortened
from shardwise.version import VERSION

EXAMPLE = 'shardwise run "A[I_x, J] · B[J, K] -> C[I, K]" --sizes I=1024,J=512,K=512 --mesh x=4'
GREETING = """One line of notation becomes a planned, checked and visible distributed computation in JAX.

  look    shardwise show "A[I_x, J_y]" --mesh x=2,y=2
  learn   shardwise tour
  plan    shardwise plan "A[I_x,J] · B[J,K] -> C[I,K]" --sizes I=8192,J=8192,K=8192 --mesh x=8
  run     shardwise run "A[I_x,J] · B[J,K] -> C[I,K]" --sizes I=512,J=128,K=256 --mesh x=4"""
SAID_BY = "shardwise: "
MOST_SAID = 1000  # characters of what is wrong with the options
ARGS = '--args "bfloat16[4096@x,1024] bfloat16[1024,2048]"'


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = _parser()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # where an encoding lacks a character, its number stands
            stream.reconfigure(errors="backslashreplace")
    if "_ARGCOMPLETE" in os.environ:
        complete(parser)
    on_a_line = "--json" in (sys.argv[1:] if arguments is None else arguments)
    try:
        options = parser.parse_args(arguments)
    except _Misuse as error:
        _tell(error, on_a_line, text=error.text)
        return 2
    except SystemExit as stop:  # --help and --version
        return stop.code if isinstance(stop.code, int) else 0
    on_a_line = getattr(options, "json", None) is True
    try:
        if options.command is None:
            print(f"{GREETING}\n\n{_commands(parser)}")
            return 0
        return options.command(options)
    except SystemExit as stop:
        if isinstance(stop.code, int) and 128 < stop.code < 256:  # a signal, which what reads keys passes on
            return stop.code
        # Whatever the code, nothing was shown to be fine.
        print(f"shardwise: code that was called ended the program before it was done: SystemExit: {stop.code}", file=sys.stderr)
        return 2
    except ShardwiseError as error:
        _tell(error, on_a_line)
        return 2
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except OSError as error:  # what the system says of a name or a file that nothing else has told of
        name = getattr(error, "filename", None) or "this"
        _tell(ShardwiseError(f"{quoted(name)}: {getattr(error, 'strerror', None) or error}"), on_a_line)
        return 2
    except MemoryError as error:
        print(f"shardwise: this host has not enough memory: {one_line(str(error))}; use smaller --sizes", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("shardwise: interrupted", file=sys.stderr)
        return 130


class _Misuse(ShardwiseError):
    """What is wrong with the options; `text` says how they are used, too."""

    text: str


class _Parser(argparse.ArgumentParser):
    """Tells what is wrong with the options on one line, whatever they hold."""

    def error(self, message: str) -> NoReturn:
        error = _Misuse(shortened(one_line(message), MOST_SAID))
        error.text = f"{self.format_usage()}{self.prog}: error: {error}"
        raise error


def _tell(error: ShardwiseError, on_a_line: bool, text: str | None = None) -> None:
    """Say on stderr what is wrong; of a command that prints JSON as one line of JSON."""
    message = _in_options(str(error))
    if on_a_line:
        kind = "UsageError" if isinstance(error, _Misuse) else type(error).__name__
        print(json.dumps({"error": kind, "message": message}, ensure_ascii=False), file=sys.stderr)
    else:
        print(text or _said(message), file=sys.stderr)


def _said(message: str) -> str:
    """A message behind the name of the program, further lines as far in: a caret keeps its column, and no line begins with
    what the user wrote, which a CI may take for a command.

    >>> print(_said("::warning::x: not the notation\\n^  write A[I]"))
    shardwise: ::warning::x: not the notation
               ^  write A[I]
    """
    return SAID_BY + lines_of(message).replace("\n", "\n" + " " * len(SAID_BY))


def _commands(parser: argparse.ArgumentParser) -> str:
    """The commands, each with its one line, as the help lists them."""
    _, title, rest = parser.format_help().partition("commands:")
    return title + rest.partition("\n\n")[0].replace("\n  COMMAND", "", 1) + "\n\nEach has --help, with an example."


def _in_options(message: str) -> str:
    """What messages say to do in Python, in the words of the command line."""
    message = re.sub(r"as in sizes=\{'([^']+)': (\d+)\}", r"as in --sizes \1=\2", message)
    return message.replace("pad=True pads", "--pad pads").replace(" (in sw.put, sw.einsum and sw.random)", "")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="shardwise",
        description="One line of notation becomes a planned, checked and visible distributed contraction in JAX.",
        epilog=f"Start here:\n  {EXAMPLE}",
        formatter_class=argparse.RawDescriptionHelpFormatter,  # an example must stay on its line
    )
    parser.add_argument("--version", action="version", version=f"shardwise {VERSION}")
    parser.set_defaults(command=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    planning = commands.add_parser(
        "plan",
        help="rank the programs that solve an equation; needs no devices and no JAX",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog='example:\n  shardwise plan "A[I, J_x] · B[J_x, K] -> C[I_?, K_?]" --sizes I=8192,J=8192,K=8192 '
        "--mesh x=8 --hardware tpu-v5e",
    )
    _problem_options(planning, "bfloat16")
    planning.add_argument(
        "--confirm", metavar="v5e:2x4",
        help="compile the first candidates for a target, and rank what came out; here: run them on this machine's devices",
    )  # fmt: skip
    _platform_option(planning)
    planning.add_argument("--code", action="store_true", help="print the best program as plain JAX instead")
    planning.add_argument("--timeline", action="store_true", help="print when its compute and transfers run, as estimated, too")
    planning.set_defaults(command=command_of("plan"))
    running = commands.add_parser(
        "run",
        help="plan, place, run and check an equation on this machine's devices",
        epilog=f"example:\n  {EXAMPLE}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _problem_options(running, "that of the files, else float32")
    running.add_argument(
        "--input", action="append", default=[], metavar="NAME=FILE",
        help="an operand from a file: A=a.npy, A=a.npz:name, A=a.safetensors:name (random numbers otherwise)",
    )  # fmt: skip
    running.add_argument("--output", metavar="FILE", help="write the result to an .npy or .safetensors file")
    running.add_argument("--seed", type=int, default=0, help="for operands without a file (default 0)")
    _platform_option(running)
    running.add_argument("--check", action=argparse.BooleanOptionalAction, default=True,
                         help="compare with the unsharded result (default: yes)")  # fmt: skip
    running.set_defaults(command=command_of("run"))
    hardware = commands.add_parser(
        "hardware",
        help="list the hardware catalogue, each figure with its source",
        epilog="example:\n  shardwise hardware tpu-v5e",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    hardware.add_argument("name", nargs="?", help="one hardware, or a file.toml (default: all)")
    hardware.add_argument("--json", action="store_true", help="print JSON")
    hardware.set_defaults(command=command_of("hardware"))
    _show_parser(commands)
    _tour_parser(commands)
    _report_parser(commands)
    _evidence_parsers(commands)
    measuring_parsers(commands)
    launch_parser(commands)
    _completion_parser(commands)
    return parser


def _completion_parser(commands: Any) -> None:
    completing = commands.add_parser(
        "completion",
        help="print what makes a shell complete commands, options and hardware: bash, zsh or fish",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog='put a line where your shell starts:\n  ~/.bashrc   eval "$(shardwise completion bash)"\n'
        '  ~/.zshrc    eval "$(shardwise completion zsh)"\n'
        "  ~/.config/fish/config.fish   shardwise completion fish | source\n\n"
        "example:\n  shardwise completion bash",
    )
    completing.add_argument("shell", choices=SHELLS, help="your shell")
    completing.set_defaults(command=command_of("completion"))


def _show_parser(commands: Any) -> None:
    showing = commands.add_parser(
        "show",
        help="draw where an array lives: which device holds which part; needs no devices and no JAX",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="examples:\n"
        '  shardwise show "A[I_x, J_y]" --sizes I=8192,J=8192 --mesh x=2,y=2\n'
        '  shardwise show "A[I_x, J]" --sizes I=8192,J=1024 --mesh x=4,y=2 -o placement.svg\n'
        '  shardwise show --all "A[I, J]" --mesh x=2,y=2        every layout of an array on a mesh',
    )
    showing.add_argument("layout", help='as "A[I_x, J_y]"; partial sums as "A[I_x, J]{U_y}"')
    showing.add_argument("--sizes", default="", metavar="I=4096,J=1024", help="the size of every dimension, in elements")
    showing.add_argument("--mesh", required=True, metavar="x=4,y=2", help="mesh axes and their sizes")
    showing.add_argument("--all", action="store_true", help="draw every layout that the array can have on the mesh")
    showing.add_argument("--pad", action="store_true", help="pad dimensions that their axes do not divide")
    showing.add_argument("-o", "--output", metavar="FILE", help="write a picture, .svg or .html, instead of printing")
    showing.set_defaults(command=command_of("show"))


def _tour_parser(commands: Any) -> None:
    touring = commands.add_parser(
        "tour",
        help="collectives and the cases of sharded multiplication, step by step with real numbers",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="examples:\n"
        "  shardwise tour                  which tours there are\n"
        "  shardwise tour all-gather\n"
        "  shardwise tour case-2 --hardware h100 -o case-2.html\n"
        '  shardwise tour "A[I, J_x] · B[J_x, K] -> C[I, K]" --sizes I=4,J=4,K=4 --mesh x=4',
    )
    touring.add_argument("what", nargs="?", help="a tour by name (default: list them), or an equation of your own")
    touring.add_argument("--hardware", default="tpu-v5e", help="what costs are told for (default tpu-v5e)")
    touring.add_argument(
        "--sizes", default="", metavar="I=4,J=4", help="of an equation, the size of every dimension: small ones"
    )
    touring.add_argument("--mesh", default="", metavar="x=4", help="of an equation, the mesh axes and their sizes")
    touring.add_argument("--plain", action="store_true", help="print all steps, one after the other, as when piped")
    touring.add_argument("-o", "--output", metavar="FILE", help="write all steps as one .svg or .html")
    touring.set_defaults(command=command_of("tour"))


def _report_parser(commands: Any) -> None:
    reporting = commands.add_parser(
        "report",
        help="write a plan, or why data moves in a function, as one page of HTML to send around",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="examples:\n"
        '  shardwise report "A[I, J_x] · B[J_x, K] -> C[I_x, K]" --sizes I=8192,J=8192,K=8192 --mesh x=8 '
        "--hardware tpu-v5e -o report.html\n"
        '  shardwise report "A[I_x, J] · B[J, K] -> C[I, K]" --sizes I=4096,J=1024,K=2048 --mesh x=8 --on v5e:2x4 '
        "-o compiled.html\n"
        '  shardwise report "A[I_x, J] · B[J, K] -> C[I, K]" --sizes I=4096,J=1024,K=2048 --mesh x=8 --against plan.json '
        "-o changes.html\n"
        "  shardwise report comms.lock --against old.lock -o changes.html\n"
        f"  shardwise report train.py:step {ARGS} --mesh x=8 --hardware tpu-v5e -o why.html",
    )
    also = "; with --against also a file of the same kind; or a function, as train.py:step, that the doctor looks at"
    _problem_options(reporting, "bfloat16", json=False, mesh=False, or_file=also)
    _types_options(reporting)
    _platform_option(reporting)
    since = "say what changed since this was written: by plan, audit or rehearse --json, or a lock file"
    reporting.add_argument("--against", metavar="FILE", help=since)
    run = "show a run beside the estimate: the folder that `shardwise trace EQUATION --keep FOLDER` wrote"
    reporting.add_argument("--measured", metavar="FOLDER", help=run)
    reporting.add_argument(
        "--on", metavar="v5e:2x4", help="compile the best program, or the function, for these devices, and show what came out"
    )
    reporting.add_argument("-o", "--output", default="report.html", metavar="FILE", help="the file (default report.html)")
    reporting.set_defaults(command=command_of("report"))


def _evidence_parsers(commands: Any) -> None:
    """What the compiler made of a function: audit, rehearse, lock."""
    auditing = commands.add_parser(
        "audit",
        help="compile a function for this machine's devices, and show every collective that the compiler made",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"example:\n  shardwise audit train.py:step {ARGS} --mesh x=4 --platform cpu",
    )
    _function_options(auditing)
    _platform_option(auditing)
    _form_options(auditing)
    auditing.set_defaults(command=command_of("rehearse", "audit"))
    rehearsing = commands.add_parser(
        "rehearse",
        help="the same for devices that are not attached, by their own compiler",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"examples:\n  shardwise rehearse train.py:step {ARGS} --mesh x=8 --on v5e:2x4\n"
        '  shardwise rehearse "A[I_x, J] · B[J, K] -> C[I, K]" --sizes I=4096,J=1024,K=2048 --mesh x=8 --on v5e:2x4'
        f"\n  shardwise rehearse train.py:step {ARGS} --mesh x=8 --on v5e:2x4 --try xla_tpu_scoped_vmem_limit_kib=98304",
    )
    _function_options(rehearsing, "or an equation, whose plan is compiled")
    rehearsing.add_argument("--on", required=True, metavar="v5e:2x4", help="the devices, as v5e:2x4, v5p:4x4x4 or h100:8")
    rehearsing.add_argument("--sizes", default="", metavar="I=4096,J=1024", help="of an equation, the size of every dimension")
    rehearsing.add_argument("--dtype", help="of an equation, its operands' dtype (default bfloat16)")
    _form_options(rehearsing)
    try_option(rehearsing)
    rehearsing.set_defaults(command=command_of("flags", "rehearse"))
    doctoring_parser(commands, _function_options)
    overlapping_parser(commands, _function_options)
    _locking_parser(commands)
    overlapping = commands.add_parser(
        "bench-overlap",
        help="plans that overlap transfers with matmuls, against the compiler's own, compiled for devices not attached",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  shardwise bench-overlap --on v5e:2x4 --kinds AG,RS --sizes 16384x1024x2048",
    )
    overlapping.add_argument("--on", required=True, metavar="v5e:2x4", help="the devices, as v5e:2x4 or v5p:2x2x2")
    overlapping.add_argument("--kinds", default="", metavar="AG,RS", help="of AG, TP-up, RS, weights (default: all)")
    overlapping.add_argument("--sizes", default="", metavar="IxJxK,...", help="rows x contracted x columns (default: five)")
    overlapping.add_argument("--json", metavar="FILE", help="write the rows as JSON too, after every case")
    overlapping.set_defaults(command=command_of("bench_overlap"))


def _locking_parser(commands: Any) -> None:
    """Add `lock` to the commands."""
    locking = commands.add_parser(
        "lock",
        help="keep what functions compile to in comms.lock, and fail when it changes",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"examples:\n  shardwise lock train.py:step {ARGS} --mesh x=8 --on v5e:2x4\n"
        "  shardwise lock --check         exit code 1 and a diff where something changed\n"
        "  shardwise lock --update        compile everything again and overwrite\n"
        "A lock file is trusted as code: --check and --update import and trace the functions that it names.",
    )
    locking.add_argument("what", nargs="*", metavar="module:function", help="functions; with --check or --update the file too")
    _call_options(locking)
    _platform_option(locking)
    locking.add_argument("--on", metavar="v5e:2x4", help="devices that are not attached (default: those at hand)")
    locking.add_argument("--name", help="the entry's name (default: module:function)")
    locking.add_argument("-o", "--output", metavar="FILE", help="the lock file (default comms.lock)")
    locking.add_argument("--layouts", action="store_true", help="hold the layouts of arguments and results too")
    locking.add_argument("--time", action="store_true", help="hold the modelled time of a call too; it needs a known chip")
    locking.add_argument("--check", action="store_true", help="compile what is locked again and compare; 1 if it drifted")
    locking.add_argument(
        "--allow-outside", action="store_true",
        help="import functions from outside the project too; without it those below the file's folder or the current one",
    )  # fmt: skip
    locking.add_argument("--update", action="store_true", help="compile what is locked again and overwrite")
    locking.set_defaults(command=command_of("lock"))


def _function_options(parser: argparse.ArgumentParser, more: str = "", needed: bool = True) -> None:
    told = "as train.py:step or package.module:Class.method" + (f"; {more}" if more else "")
    parser.add_argument("function", nargs=None if needed else "?", metavar="module:function", help=told)
    _call_options(parser)


def _call_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--mesh", default="", metavar="x=4,y=2", help="mesh axes and their sizes")
    _types_options(parser)


def _types_options(parser: argparse.ArgumentParser) -> None:
    """What a function is called with."""
    parser.add_argument(
        "--args", default="", metavar="TYPES",
        help='the types of the arguments, as "bfloat16[8192@x,1024] int32[]", or module:function that returns them',
    )  # fmt: skip
    parser.add_argument(
        "--axis-types", choices=["explicit", "auto"],
        help="of the mesh: explicit, as jax.make_mesh makes them (default), or auto: the compiler chooses layouts",
    )  # fmt: skip


def _platform_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--platform", choices=["cpu", "gpu", "tpu"], help="the devices to use; cpu simulates as many as needed")


def _form_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--timeline", action="store_true", help="print when compute and transfers run, as modelled")
    parser.add_argument(
        "--trace", metavar="FILE", help="write the modelled timeline in the form of a trace, which Perfetto opens"
    )
    parser.add_argument("--hardware", help="the hardware of the timeline (default: that compiled for)")


def _problem_options(
    parser: argparse.ArgumentParser, dtype: str, json: bool = True, mesh: bool = True, or_file: str = ""
) -> None:
    parser.add_argument("equation", help=f'as "A[I_x, J] · B[J, K] -> C[I, K]"; * and @ may stand for ·{or_file}')
    parser.add_argument("--sizes", default="", metavar="I=4096,J=1024", help="the size of every dimension")
    parser.add_argument("--mesh", required=mesh, metavar="x=4,y=2", help="mesh axes and their sizes")
    parser.add_argument(
        "--hardware",
        help="a name that `shardwise hardware` lists (of a TPU the standard slice is assumed), a topology as "
        "v5e:2x4, or a file.toml (default: this host, or the devices)",
    )
    parser.add_argument("--dtype", help=f"the operands' dtype (default: {dtype})")
    parser.add_argument("--memory-limit", type=float, metavar="BYTES", help="bytes that one device may hold, as 16e9")
    parser.add_argument("--pad", action="store_true", help="pad dimensions that their axes do not divide")
    parser.add_argument("--exact", action="store_true", help="only programs that make every sum on one device at once")
    overlap_option(parser)
    if json:
        parser.add_argument("--json", action="store_true", help="print JSON")


if __name__ == "__main__":
    sys.exit(main())
