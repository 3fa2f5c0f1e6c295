"""What the steps of a program call where `Plan.code()` writes it: each helper's text, and what that needs, in order."""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Iterable, Iterator
from types import ModuleType

from shardwise import mesh
from shardwise.runtime import blocks, code_rings, code_torus
from shardwise.schedule import strands

# Where helpers are, and their names, in the order in which they are written.
HELPERS: dict[str, ModuleType] = {
    name: module
    for module, names in (
        (code_rings, ("in_mesh_order", "shift", "shift_in_any_order", "owner")),
        (mesh, ("folded", "reached")),
        (strands, ("Strand", "Move", "cuts", "gathering", "scattering", "side_by_side", "is_one_matmul", "rotating", "begun")),
        (code_rings, ("folded_shift", "folded_owner")),
        (code_torus, ("along_side", "owner_on_torus")),
        (code_rings, ("taking", "size_of", "part_matmul", "joined", "laying")),
        (code_rings, ("gather_einsum", "einsum_scatter", "einsum_gather", "rotate_einsum")),
        (code_torus, ("gather_einsum_on_torus", "einsum_scatter_on_torus", "einsum_gather_on_torus")),
        (blocks, ("cut_blocks", "join_blocks", "as_one", "lying_in", "scatter_blocks", "scatter_rows", "sum_and_cut")),
        (blocks, ("exchange_one", "exchange_blocks", "cut_part", "cut_out", "unseen")),
    )
    for name in names
}
_GIVEN = ("jax", "jnp", "lax")  # what every program imports


def text(name: str) -> str:
    """The source of one helper, as it is copied; `shift_in_any_order` goes by the name of the one that it stands for."""
    return inspect.getsource(getattr(HELPERS[name], name)).replace("shift_in_any_order", "shift")


def needed(names: Iterable[str]) -> list[str]:
    """The helpers of these names, and all that they call, in the order in which they are written."""
    found, left = set[str](), list(names)
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left += _used(name) & HELPERS.keys()
    if "shift_in_any_order" in found:  # it takes axes in the mesh's order, too
        found.discard("shift")
    return [name for name in HELPERS if name in found]


def imports(names: Iterable[str]) -> tuple[str, ...]:
    """The lines that import what some helpers need besides JAX, in order: modules before what is taken of one."""
    lines = {line for name in names for used, line in _imported(HELPERS[name]) if used in _used(name)}
    return tuple(sorted(lines, key=lambda line: (line.startswith("from"), line)))


@functools.cache
def _used(name: str) -> set[str]:
    """What the source of a helper names."""
    return {node.id for node in ast.walk(ast.parse(text(name))) if isinstance(node, ast.Name)}


def _imported(module: ModuleType) -> Iterator[tuple[str, str]]:
    """What a module imports from elsewhere, each name with the line."""
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.Import | ast.ImportFrom) and "shardwise" not in ast.unparse(node):
            for alias in node.names:
                if (name := alias.asname or alias.name) not in _GIVEN:
                    yield name, ast.unparse(node)
