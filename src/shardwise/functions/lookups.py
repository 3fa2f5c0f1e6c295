"""Lookups of a table's rows, and the gradients of such tables, by programs that move their arrays before and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import jax.numpy as jnp
from jax import lax
from jax.lax import GatherScatterMode

from shardwise.layout import Axes, Layout
from shardwise.mesh import Mesh
from shardwise.notation import Operand
from shardwise.program import Program
from shardwise.runtime.devices import kind_of
from shardwise.runtime.lower import Arithmetic, Local
from shardwise.runtime.mapped import map_shards

ROW = "V"  # the dimension of a table that is looked up


@dataclass(frozen=True, slots=True)
class Lookup:
    """A lookup of rows, or the gradient of its table, with the layouts that its arrays have there.

    Attributes:
        kind: `"rows"` of a table by tokens, or `"gradient"`: rows added up in a table by tokens.
        tokens, table, rows: each as it is given, the result as it is wanted; the table's looked-up dimension is V.
    """

    kind: Literal["rows", "gradient"]
    tokens: Operand
    table: Operand
    rows: Operand
    sizes: Mapping[str, int] = field(hash=False)
    mesh: Mesh
    dtype: str
    tokens_dtype: str = "int32"

    @property
    def equation(self) -> str:
        """The whole in a line.

        >>> texts = {"T": "B_x, S", "W": "V, D_x", "R": "B_x, S, D"}
        >>> tokens, table, rows = (Operand(name, Layout.parse(text)) for name, text in texts.items())
        >>> Lookup("rows", tokens, table, rows, {}, Mesh.parse("x=2"), "bfloat16").equation
        'W[V, D_x] at T[B_x, S] -> R[B_x, S, D]'
        """
        if self.kind == "rows":
            return f"{self.table} at {self.tokens} -> {self.rows}"
        return f"{self.rows} added up at {self.tokens} -> {self.table}"

    @property
    def arrays(self) -> tuple[Operand, Operand, Operand]:
        """Tokens, the other array that is given, and the result."""
        return (self.tokens, self.table, self.rows) if self.kind == "rows" else (self.tokens, self.rows, self.table)


@dataclass(frozen=True, slots=True)
class LookupProgram:
    """What moves before and after a lookup: a program for the tokens, the other array and the result each; and the estimate."""

    tokens: Program
    given: Program
    result: Program
    seconds: float

    @property
    def moves(self) -> tuple[Program, Program, Program]:
        return self.tokens, self.given, self.result

    def table_layout(self, task: Lookup) -> Layout:
        """How the table, or its gradient, lies while it is looked up."""
        return self.given.result if task.kind == "rows" else self.result.inputs[0][1]


def computed(
    task: Lookup, program: LookupProgram, params: Mapping[str, Any], empty: bool, mesh: Any, arrays: Sequence[Any]
) -> Any:
    """The result of a lookup by its program: arrays as the lookup takes them, the table, indices and rows to be added.

    `empty`: the table that rows are added to holds zeros, and need not be added itself.
    """
    kind = kind_of(mesh)
    tokens_in, given_in, result_in = (Local(each, Arithmetic(), kind, typed=False) for each in program.moves)
    table, indices, *rows = arrays
    there = program.table_layout(task)
    shape = there.shard_shape({dim: task.sizes[dim] for dim in there.names}, task.mesh)
    row_axes = there.axes_of(ROW)

    def local(tokens: Any, given: Any, *into: Any) -> Any:
        """Move this device's shards, look up or add up in them, and move the result."""
        tokens, given = tokens_in.run(tokens), given_in.run(given)
        shard = _Shard(task, dict(params), row_axes, tokens)
        found = shard.rows(given) if task.kind == "rows" else shard.gradient(given, shape)
        moved = result_in.run(found)
        return into[0] + moved if into else moved

    first, second, result = (operand.layout.spec for operand in task.arrays)
    given = (lax.squeeze(indices, [indices.ndim - 1]), *(rows or (table,)), *(() if empty else (table,)))
    specs = (first, second, *(() if empty else (result,)))
    return map_shards(local, mesh=mesh, in_specs=specs, out_specs=result, check_vma=False)(*given)


@dataclass(frozen=True, slots=True)
class _Shard:
    """A lookup in this device's part of a table, of whose rows mesh axes split the numbers, by the tokens that it holds."""

    task: Lookup
    params: Mapping[str, Any]
    axes: Axes
    tokens: Any

    def rows(self, table: Any) -> Any:
        """The rows that this device holds, zeros for others: a partial sum where the rows are split."""
        how = self.params["dimension_numbers"]
        at, sizes = how.start_index_map[0], tuple(1 if dim in how.start_index_map else n for dim, n in enumerate(table.shape))
        given = {
            "dimension_numbers": how,
            "slice_sizes": sizes,
            "mode": self.params["mode"],
            "fill_value": self.params["fill_value"],
        }
        if not self.axes:
            hints = {name: self.params[name] for name in ("unique_indices", "indices_are_sorted")}
            return lax.gather(table, self.tokens[..., None], **given, **hints)
        number, inside, valid = self._numbers(table.shape[at])
        missing = ~valid & (lax.axis_index(self.axes) == 0)  # filled once
        taken = jnp.where(inside, number, jnp.where(missing, table.shape[at], 0))
        found = lax.gather(table, taken[..., None], **given)
        columns = [dim for dim, name in enumerate(self.task.rows.dims) if name in self.task.table.dims]
        return jnp.where(jnp.expand_dims(inside | missing, columns), found, jnp.zeros((), found.dtype))

    def gradient(self, rows: Any, shape: tuple[int, ...]) -> Any:
        """Rows added up in this device's part of a table of zeros: a partial sum of those of its tokens."""
        how, mode = self.params["dimension_numbers"], self.params["mode"]
        number = self.tokens
        hints = {name: self.params[name] for name in ("unique_indices", "indices_are_sorted")}
        if self.axes:
            here = shape[how.scatter_dims_to_operand_dims[0]]
            number, inside, _ = self._numbers(here)
            number, mode, hints = jnp.where(inside, number, here), GatherScatterMode.FILL_OR_DROP, {}
        return lax.scatter_add(jnp.zeros(shape, rows.dtype), number[..., None], rows, how, mode=mode, **hints)

    def _numbers(self, here: int) -> tuple[Any, Any, Any]:
        """The numbers of tokens among the rows of this device, whether each is one of them, and whether it is one at all."""
        tokens, whole = self.tokens, self.task.sizes[ROW]
        if tokens.dtype.itemsize < 4:
            tokens = tokens.astype(jnp.int32)
        if self.params["mode"] == GatherScatterMode.CLIP:
            tokens = jnp.clip(tokens, 0, whole - 1)
        start = lax.axis_index(self.axes).astype(tokens.dtype) * here
        inside = (tokens >= start) & (tokens < start + here)
        return tokens - start, inside, (tokens >= 0) & (tokens < whole)
