"""What to paste where explicit types stop a trace, from the text of the line: `out_sharding=`, or a reshard of an operand."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from shardwise.compiled.facts import Line
from shardwise.functions.pasting import Paste, made, spec_text, statement_at
from shardwise.layout import Layout


def taken_at(line: Line, layout: Layout) -> Paste | None:
    """`.at[...].get(out_sharding=)` for what is looked up at a line."""
    stood = statement_at(line)
    if stood is None:
        return None
    file, text, statement = stood
    found = [
        each
        for each in ast.walk(statement)
        if isinstance(each, ast.Subscript) and not isinstance(each.slice, ast.Constant | ast.Slice)
    ]
    if len(found) != 1 or (old := ast.get_source_segment(text, found[0])) is None:
        return None
    table, index = (ast.get_source_segment(text, each) for each in (found[0].value, found[0].slice))
    return made(file, found[0].lineno, old, f"{table}.at[{index}].get(out_sharding=jax.{spec_text(layout)})", text)


def out_sharded(line: Line, layout: Layout, lettered: bool) -> Paste | None:
    """`out_sharding=` for the contraction that is written at a line."""
    stood = statement_at(line)
    if stood is None:
        return None
    file, text, statement = stood
    calls = [each for each in ast.walk(statement) if isinstance(each, ast.expr) and _contracts(each)]
    if len(calls) != 1 or (old := ast.get_source_segment(text, calls[0])) is None:
        return None
    node = calls[0]
    if isinstance(node, ast.BinOp):
        left, right = (ast.get_source_segment(text, each) for each in (node.left, node.right))
        return made(file, node.lineno, old, f"jnp.matmul({left}, {right}, out_sharding=jax.{spec_text(layout)})", text)
    assert isinstance(node, ast.Call)
    ordered = layout
    first = node.args[0] if node.args else None
    if isinstance(first, ast.Constant) and isinstance(first.value, str):
        given = first.value.replace(" ", "").partition("->")[2].upper()
        if not lettered or sorted(given) != sorted(layout.names):
            return None
        ordered = Layout(tuple((letter, layout.axes_of(letter)) for letter in given))
    return made(
        file, node.lineno, old, f"{old.rstrip()[:-1].rstrip().rstrip(',')}, out_sharding=jax.{spec_text(ordered)})", text
    )


def _contracts(node: ast.AST) -> bool:
    match node:
        case ast.BinOp(op=ast.MatMult()):
            return True
        case ast.Call(func=ast.Attribute(attr="einsum" | "dot" | "matmul" | "tensordot"), keywords=given):
            return not any(each.arg == "out_sharding" for each in given)
        case _:
            return False


def resharded(line: Line, operation: str, changed: Sequence[int], wanted: Sequence[Layout]) -> Paste | None:
    """What to write around an operand at a line, so that the operation takes it."""
    stood = statement_at(line)
    if stood is None or len(changed) != 1:
        return None
    file, text, statement = stood
    place = changed[0]
    for node in ast.walk(statement):
        given = _given(node, operation, place) if isinstance(node, ast.expr) else ()
        if not isinstance(node, ast.expr) or place >= len(given):
            continue
        part, old, whole = given[place], ast.get_source_segment(text, given[place]), ast.get_source_segment(text, node)
        if old and whole:
            start = part.col_offset - node.col_offset if part.lineno == node.lineno else whole.index(old)
            laid = f"jax.sharding.reshard({old}, jax.{spec_text(wanted[place])})"
            return made(file, node.lineno, whole, whole[:start] + laid + whole[start + len(old) :], text)
    return None


_FUNCTIONS = ("sort", "cumsum", "concatenate", "where", "argsort", "cumprod", "top_k", "stack")


def _given(node: ast.expr, operation: str, place: int) -> Sequence[ast.expr]:
    """The operands of an operation as an expression writes them; none where it is another."""
    match node:
        case ast.BinOp(left=left, op=op, right=right) if not isinstance(op, ast.MatMult):
            return left, right
        case ast.Call(func=ast.Attribute(value=ast.Name(id="jnp" | "jax" | "lax"), attr=name), args=args):
            if name in ("reshape", "ravel"):
                return args if operation == "reshape" else ()
            first = args[0] if args and name in _FUNCTIONS else None
            return first.elts if isinstance(first, ast.List | ast.Tuple) else args if name in _FUNCTIONS else ()
        case ast.Call(func=ast.Attribute(value=value, attr="reshape" | "ravel")) if operation == "reshape":
            return (value,)
        case ast.Subscript(value=value) if operation == "gather" and place == 0:
            return (value,)
        case _:
            return ()
