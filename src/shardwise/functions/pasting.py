"""What to paste into the user's file: a line as it stands, and as it should be, from the file's own text."""

from __future__ import annotations

import ast
import functools
import linecache
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from shardwise.compiled.facts import Line
from shardwise.layout import Layout

_FIRST_IMPORT = re.compile(r"^(?:import|from) (?!__future__)", re.MULTILINE)
_MODULES = {"jax": "import jax", "jnp": "import jax.numpy as jnp"}
_SPECS = ("P", "PartitionSpec")
_CONSTRAINTS = ("with_sharding_constraint", "reshard")


@dataclass(frozen=True, slots=True)
class Paste:
    """A piece of a file in place of another: `new` where `old` stands at `line`; with no `old`, a line of its own after it.

    `imports`: what the file has to import for it, and does not.
    """

    file: str
    line: int
    old: str
    new: str
    imports: tuple[str, ...] = ()

    def __str__(self) -> str:
        needs = f" ({'; '.join(self.imports)})" if self.imports else ""
        if not self.old:
            return f"after line {self.line}: {self.new.strip()}{needs}"
        return f"in line {self.line}, in place of {self.old}: {self.new}{needs}"


def spec_text(layout: Layout) -> str:
    """A layout as one writes it.

    >>> spec_text(Layout.parse("I_x, J, K_{y,z}"))
    "P('x', None, ('y', 'z'))"
    """
    entries = ["None" if not axes else repr(axes[0]) if len(axes) == 1 else repr(tuple(axes)) for _, axes in layout.dims]
    return f"P({', '.join(entries)})"


def made(file: str, line: int, old: str, new: str, text: str) -> Paste:
    """A paste into a file's text, with what it needs to be imported."""
    imports = [node for node in ast.walk(_parsed(text)) if isinstance(node, ast.Import | ast.ImportFrom)]
    bound = {alias.asname or alias.name.partition(".")[0] for node in imports for alias in node.names}
    needs = (line for name, line in _MODULES.items() if re.search(rf"\b{name}\.", new) and name not in bound)
    return Paste(file, line, old, new, tuple(needs))


@functools.lru_cache(maxsize=64)
def _parsed(text: str) -> ast.Module:
    return ast.parse(text)


def text_of(line: Line | None) -> str:
    """What the user's file says at a line; empty where it cannot be read."""
    if line is None:
        return ""
    file, _, number = (line.via or line.place).rpartition(":")
    return linecache.getline(file, int(number)).strip() if number.isdigit() else ""


def relaid(line: Line, layout: Layout) -> Paste | None:
    """The specification of a constraint that is written at a line, or handed to the helper that writes it, replaced."""
    for file, _, text, statement in _statements(line):
        specs = [each for each in ast.walk(statement) if isinstance(each, ast.Call) and _name(each.func) in _SPECS]
        if len(specs) == 1 and (old := ast.get_source_segment(text, specs[0])):
            return made(file, specs[0].lineno, old, spec_text(layout).replace("P(", f"{ast.unparse(specs[0].func)}(", 1), text)
    return None


def dropped(line: Line) -> Paste | None:
    """A constraint that is written at a line, or the call of the helper that writes it, replaced by what it is given."""
    for file, _, text, statement in _statements(line):
        calls = [each for each in ast.walk(statement) if isinstance(each, ast.Call) and _is_constraint(each) and each.args]
        if len(calls) == 1 and (old := ast.get_source_segment(text, calls[0])):
            given = calls[0].args[0]
            return made(file, calls[0].lineno, old, ast.get_source_segment(text, given) or ast.unparse(given), text)
    return None


def converted_first(line: Line, dtype: str) -> Paste | None:
    """A constraint that is written at a line, of its array converted before."""
    return _of_another(line, lambda part, given: f"{_bracketed(part, given)}.astype(jnp.{dtype})")


def padded_first(line: Line, shape: Sequence[int], padded: Sequence[int]) -> Paste | None:
    """A constraint that is written at a line, of its array padded with zeros before."""
    return _of_another(line, lambda _, given: f"jnp.pad({given}, {padding_text(shape, padded)})")


def padding_text(shape: Sequence[int], padded: Sequence[int]) -> str:
    """How many rows are put behind each dimension, as `jnp.pad` takes it.

    >>> padding_text((1000, 64), (1008, 64))
    '((0, 8), (0, 0))'
    """
    return f"{tuple((0, after - size) for size, after in zip(shape, padded, strict=True))}"


def _of_another(line: Line, write: Callable[[ast.expr, str], str]) -> Paste | None:
    """A constraint that is written at a line, of what is written in place of its array."""
    for file, _, text, statement in _statements(line):
        calls = [each for each in ast.walk(statement) if isinstance(each, ast.Call) and _is_constraint(each) and each.args]
        if len(calls) == 1 and (old := ast.get_source_segment(text, calls[0])):
            part = calls[0].args[0]
            given = ast.get_source_segment(text, part) or ""
            start = part.col_offset - calls[0].col_offset if part.lineno == calls[0].lineno else old.index(given)
            return made(file, calls[0].lineno, old, old[:start] + write(part, given) + old[start + len(given) :], text)
    return None


def constrained(line: Line, layout: Layout) -> Paste | None:
    """A constraint of what a statement at a line assigns, or returns."""
    for file, number, text, statement in _statements(Line(line.via or line.place)):
        indent = " " * statement.col_offset
        spec = f"jax.NamedSharding(mesh, jax.{spec_text(layout)})"
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1 and isinstance(statement.targets[0], ast.Name):
            name = statement.targets[0].id
            laid = f"{indent}{name} = jax.lax.with_sharding_constraint({name}, {spec})"
            return made(file, statement.end_lineno or number, "", laid, text)
        value = getattr(statement, "value", None)
        if isinstance(statement, ast.Return) and isinstance(value, ast.expr) and not isinstance(value, ast.Tuple):
            old = ast.get_source_segment(text, value)
            if old:
                return made(file, value.lineno, old, f"jax.lax.with_sharding_constraint({old}, {spec})", text)
    return None


def apply(paste: Paste, text: str) -> str:
    """A file's text with a paste.

    >>> apply(Paste("a.py", 1, "P('x')", "P(None, 'x')"), "h = shard(h, P('x'))")
    "h = shard(h, P(None, 'x'))"
    """
    if paste.imports:  # on the line of the first import: the others keep their numbers
        text = _FIRST_IMPORT.sub(lambda found: f"{'; '.join(paste.imports)}; {found[0]}", text, count=1)
    lines = text.split("\n")
    if not paste.old:
        return "\n".join([*lines[: paste.line], paste.new, *lines[paste.line :]])
    before, rest = "\n".join(lines[: paste.line - 1]), "\n".join(lines[paste.line - 1 :])
    return (before + "\n" if paste.line > 1 else "") + rest.replace(paste.old, paste.new, 1)


def statement_at(line: Line) -> tuple[str, str, ast.stmt] | None:
    """The innermost statement at a line: its file, that file's text, and what it is."""
    return next(((file, text, statement) for file, _, text, statement in _statements(Line(line.place))), None)


def _is_constraint(call: ast.Call) -> bool:
    given = [*call.args[1:], *(keyword.value for keyword in call.keywords)]
    specs = any(isinstance(each, ast.Call) and _name(each.func) in _SPECS for part in given for each in ast.walk(part))
    return _name(call.func) in _CONSTRAINTS or (specs and _name(call.func) not in ("NamedSharding", *_SPECS))


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""


def _bracketed(node: ast.expr, text: str) -> str:
    return text if isinstance(node, ast.Name | ast.Attribute | ast.Subscript | ast.Call) else f"({text})"


def _statements(line: Line) -> Iterator[tuple[str, int, str, ast.stmt]]:
    """The innermost statements that stand at the lines of a place: the caller's first, then the helper's."""
    for place in (line.place, line.via):
        file, _, number = place.rpartition(":")
        if number.isdigit():
            text = "".join(linecache.getlines(file))
            statement = _statement(text, int(number))
            if statement is not None:
                yield file, int(number), text, statement


@functools.lru_cache(maxsize=256)
def _statement(text: str, number: int) -> ast.stmt | None:
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return None
    found = [
        each for each in ast.walk(tree)
        if isinstance(each, ast.stmt) and each.lineno <= number <= (each.end_lineno or each.lineno)
        and not hasattr(each, "body")
    ]  # fmt: skip
    return min(found, key=lambda each: (each.end_lineno or each.lineno) - each.lineno, default=None)
