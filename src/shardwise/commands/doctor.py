"""`shardwise doctor`: why data moves in a user's function, line by line, and the way out."""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shardwise.commands.making import made_by, prepared, users_output_aside, widest
from shardwise.commands.session import enough_bits, progress
from shardwise.errors import ShardwiseError, as_json, one_line, quoted

MOST_TRIED = 20  # pastes of `--try`, one after the other


def run(options: argparse.Namespace) -> int:
    """Diagnose a function, or this installation, as the command line says; 0, or 1 where tracing stops under Explicit axes."""
    if options.itself:
        return _looked_at_itself(options)
    if options.function is None:
        raise ShardwiseError("doctor looks at a function: name it, as train.py:step; or say --self for this installation")
    if options.output is not None:
        from shardwise.commands.show import check_form

        check_form(options.output)
    found = _tried(options) if options.attempt else diagnosed_by(options.function, options)
    if options.json:
        from shardwise.functions.diagnosis_facts import facts

        print(as_json(facts(found)))
    else:
        print(found)
    if options.output is not None:
        from shardwise.commands.show import write
        from shardwise.pictures.diagnoses import diagnosis_picture

        write(diagnosis_picture(found), options.output)
    return 1 if found.stop is not None else 0


def _looked_at_itself(options: argparse.Namespace) -> int:
    if options.function is not None:
        raise ShardwiseError(f"--self looks at this installation, and no function: leave off {quoted(options.function)}")
    from shardwise.commands.installation import block, facts

    found = facts()
    print(as_json(found) if options.json else block(found))
    return 0


def diagnosed_by(reference: str, options: argparse.Namespace) -> Any:
    """What the doctor says of a function, called as the command line says."""
    made = made_by(reference, options)
    if options.on == "here":
        made = dataclasses.replace(made, on="")
    function, args, mesh = prepared(made)
    from shardwise.functions.diagnosing import doctor

    with users_output_aside(), progress(f"looking at {one_line(reference)}"), enough_bits(widest(args)):
        return doctor(function, *args, mesh=mesh, on=options.on, hardware=options.hardware)


def _tried(options: argparse.Namespace) -> Any:
    """Where tracing stops, the first way out is written into a copy of the file, and it is looked at again."""
    from shardwise.functions.pasting import apply

    where, _, name = options.function.rpartition(":")
    if not where.endswith(".py"):
        raise ShardwiseError(f"--try changes a copy of a file: name it, as train.py:step, and not {one_line(options.function)}")
    pastes: list[Any] = []
    found = diagnosed_by(options.function, options)
    text, name_now = Path(where).read_text(encoding="utf-8"), Path(where).name
    for number in range(MOST_TRIED):
        first = found.stop.options[0] if found.stop is not None and found.stop.options else None
        if first is None or first.paste is None or Path(first.paste.file).name != name_now:
            break
        pastes.append(dataclasses.replace(first.paste, file=where))
        text = apply(first.paste, text)
        name_now = f"{Path(where).stem}_{number + 1}.py"
        with _copied(text, name_now) as copy:
            found = diagnosed_by(f"{copy}:{name}", options)
    return dataclasses.replace(found, pastes=tuple(pastes))


@contextmanager
def _copied(text: str, name: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_text(text, encoding="utf-8")
        yield path
