"""Where a function looks up rows of a table, or adds up the gradient of one: where arrays should lie there, and what moves.

Tokens take few bytes and a table many: rows are looked up where the table lies, by tokens that come to it, and the rows are
exchanged; a gradient goes the same way back. Compilers gather the table instead, or copy one layout into the other by steps
that move whole arrays.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np
from jax.extend.core import Jaxpr, JaxprEqn
from jax.extend.core import Literal as Constant

from shardwise.compiled.facts import Line
from shardwise.errors import LayoutError, ShardwiseError
from shardwise.functions.background import in_background
from shardwise.functions.lookups import ROW, Lookup, LookupProgram, computed
from shardwise.functions.pasting import spec_text
from shardwise.functions.rewriting import LOOKUP, MATMUL, Path, makers_of, source_of
from shardwise.functions.sights import Left, Sight, Where, mesh_in_force, part_of_axis
from shardwise.intent.flowgraph import Graph
from shardwise.layout import Axes, Layout
from shardwise.notation import Equation, Operand
from shardwise.planning.bounds import moving_lower_bound
from shardwise.planning.graph import state_of
from shardwise.planning.prices import ITEM_BYTES, Costs
from shardwise.planning.problem import Problem, costs_of, hardware_on, problem
from shardwise.planning.ranking import ranking
from shardwise.program import Program
from shardwise.steps import describe

_TOKENS, _COLUMNS = "BSPQRUW", "DEFGHKL"
_ANYWHERE = 3  # axes that may go to any dimension; with more, each only to where some array has it


@dataclass(frozen=True, slots=True)
class LookupPlace:
    """Lookups of one line that pose the same problem, and the program planned for them.

    Attributes:
        paths: where they stand in the function; `looks` is what they look like there.
        programs: the likeliest first; `program` is that which takes their place.
        seconds: of the fastest each time; `plain_seconds` with the layouts that propagation gives them. Both estimated.
        times: how often all of them run in one call.
    """

    line: Line | None
    paths: tuple[Path, ...]
    looks: object
    task: Lookup
    program: LookupProgram
    programs: tuple[LookupProgram, ...] = field(repr=False, compare=False)
    seconds: float
    plain_seconds: float
    times: int

    # What it shares with matmuls, of which it is never more than one, and behind none of which it runs.
    together, overlap, otherwise, is_brought = 1, "none", "as propagation lays them", False
    as_brought: ClassVar[tuple[LookupPlace, ...]] = ()
    as_moved: ClassVar[tuple[LookupPlace, ...]] = ()
    as_written: ClassVar[LookupPlace | None] = None

    @property
    def gain(self) -> float:
        return (self.plain_seconds - self.seconds) * self.times

    @property
    def ways(self) -> tuple[LookupPlace, ...]:
        """Each of the programs in their place."""
        return tuple(replace(self, program=program) for program in self.programs)

    @property
    def around(self) -> LookupPlace:
        """Itself: there is no torus."""
        return self

    @property
    def unchunked(self) -> LookupPlace:
        """Itself: it has no rings."""
        return self

    @property
    def first(self) -> LookupPlace:
        return self.ways[0]

    furthest = first

    @property
    def described(self) -> tuple[str, ...]:
        """Its steps in words, the lookup among them."""
        tokens, given, result = ([describe(step) for step in program.steps] for program in self.program.moves)
        there = Operand(self.task.arrays[2].name, self.program.result.inputs[0][1])
        return (*tokens, *given, f"{'look up' if self.task.kind == 'rows' else 'add up'} {there}", *result)

    def code(self) -> list[str]:
        """What to write by hand in its place, in lines."""
        task, there = self.task, self.program.table_layout(self.task)
        at, split = there.names.index(ROW), ", ".join(there.axes_of(ROW))
        if task.kind == "rows":
            name, given, made, here = "look_up", "table", "rows", f"rows = jnp.take(table, tokens, axis={at})"
        else:
            shape = there.shard_shape({dim: task.sizes[dim] for dim in there.names}, task.mesh)
            name, given, made = "add_up", "rows", "table"
            here = f"table = jnp.zeros({shape}, rows.dtype).at[{':, ' * at}tokens].add(rows)"
        before = [
            f"    {array} = {_reshard(array, operand.name, program)}"
            for array, operand, program in zip(("tokens", given), task.arrays, self.program.moves, strict=False)
            if program.steps
        ]
        if split:
            before.append(f"    # tokens less the rows of the devices before along {split}; rows of others are zeros")
        tokens, other, result = (spec_text(operand.layout) for operand in task.arrays)
        last = self.program.result
        return [
            f"def {name}({given}, tokens):",
            *before,
            f"    {here}",
            f"    return {_reshard(made, task.arrays[2].name, last) if last.steps else made}",
            f"c = jax.shard_map({name}, in_specs=({other}, {tokens}), out_specs={result})({given}, tokens)",
        ]

    def replacement(self, path: Path, equation: JaxprEqn, jaxpr: Jaxpr, mesh: Any) -> Callable[..., Any] | None:
        """The planned program for the lookup of a path, unless it looks otherwise than what was planned."""
        if self.looks != _looks_of(equation):
            return None
        empty = self.task.kind == "rows" or _is_zero(equation.invars[0], makers_of(jaxpr))
        return lambda *arrays: computed(self.task, self.program, equation.params, empty, mesh_in_force(mesh), arrays)


def _reshard(array: str, letter: str, program: Program) -> str:
    """The call that does what a program does to an array inside `jax.shard_map`."""
    return f'sw.spmd.reshard({array}, "{Operand(letter, program.inputs[0][1])} -> {Operand(letter, program.result)}")'


def lookup_places(
    graph: Graph, sights: Sequence[Sight], where: Where, forced: bool
) -> tuple[list[LookupPlace], list[Left]]:  # fmt: skip
    """The lookups at which less need move, and those left alone although something moves, of what is seen in a graph.

    Args:
        forced: whether to change those, too, that are laid out no better otherwise.
    """
    places: dict[object, LookupPlace] = {}
    left: dict[object, Left] = {}
    for sight in sights:
        if sight.equation.primitive.name == MATMUL or not (sight.moving or sight.summed):
            continue
        line, looks, times = sight.operation.line, _looks_of(sight.equation), sight.times
        posed = _posed(graph, sight)
        says = _shapes(sight.equation) if isinstance(posed, str) else posed.task.equation
        key = line, looks, posed if isinstance(posed, str) else posed.task
        if (known := places.get(key)) is not None:
            paths = dict.fromkeys((*known.paths, sight.path))
            places[key] = replace(known, paths=tuple(paths), times=known.times + times)
        elif key in left:
            left[key] = replace(left[key], times=left[key].times + times)
        elif isinstance(posed, str):
            left[key] = Left(line, says, posed, times)
        else:
            planned = _planned(posed, where, forced)
            if isinstance(planned, str):
                left[key] = Left(line, says, planned, times)
            else:
                plain, programs = planned
                fastest = programs[0].seconds
                places[key] = LookupPlace(line, (sight.path,), looks, posed.task, programs[0], programs, fastest, plain, times)
    return list(places.values()), list(left.values())


def _looks_of(equation: JaxprEqn) -> object:
    """What is seen of a lookup; where it looks otherwise, it is another."""
    avals: list[Any] = [var.aval for var in equation.invars]
    params = tuple((name, str(value)) for name, value in sorted(equation.params.items()) if name != "update_jaxpr")
    return params, tuple((aval.shape, str(aval.dtype)) for aval in avals)


def _shapes(equation: JaxprEqn) -> str:
    return f"{equation.primitive.name} of {' and '.join(str(list(var.aval.shape)) for var in equation.invars)}"  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class _Dims:
    """Which dimension of a table is looked up, and the letters of the tokens', the table's and the rows' dimensions."""

    tokens: tuple[str, ...]
    table: tuple[str, ...]
    rows: tuple[str, ...]


def _dims(equation: JaxprEqn) -> _Dims | None:
    """The letters of a lookup's dimensions; None where it is no lookup of whole rows."""
    table, indices = (var.aval.shape for var in equation.invars[:2])  # type: ignore[attr-defined]
    how = equation.params["dimension_numbers"]
    if equation.primitive.name == LOOKUP:
        looked_up, by, columns = how.collapsed_slice_dims, how.start_index_map, how.offset_dims
        batches, widths = how.operand_batching_dims, equation.params["slice_sizes"]
        widths = [size for dim, size in enumerate(widths) if dim not in looked_up]
        rank = len(equation.outvars[0].aval.shape)  # type: ignore[attr-defined]
    else:
        looked_up, by, columns = how.inserted_window_dims, how.scatter_dims_to_operand_dims, how.update_window_dims
        batches, updates = how.operand_batching_dims, equation.invars[2].aval.shape  # type: ignore[attr-defined]
        widths, rank = [updates[dim] for dim in columns], len(updates)
    rest = [size for dim, size in enumerate(table) if dim not in looked_up]
    if len(by) != 1 or tuple(looked_up) != tuple(by) or batches or list(widths) != rest or indices[-1] != 1:
        return None
    if not 1 <= len(indices) - 1 <= len(_TOKENS) or len(rest) > len(_COLUMNS):
        return None
    letters = iter(_COLUMNS)
    named = tuple(ROW if dim == by[0] else next(letters) for dim in range(len(table)))
    inner, outer = iter(_COLUMNS), iter(_TOKENS)
    rows = tuple(next(inner) if dim in columns else next(outer) for dim in range(rank))
    return _Dims(tuple(_TOKENS[: len(indices) - 1]), named, rows)


@dataclass(frozen=True, slots=True)
class _Posed:
    """A lookup, and where propagation lays its dimensions."""

    task: Lookup
    there: Mapping[str, Axes]


def _posed(graph: Graph, sight: Sight) -> _Posed | str:
    """The lookup that is seen; or why it cannot be planned."""
    dims = _dims(sight.equation)
    if dims is None:
        return "only lookups of whole rows, each by one index, are planned"
    table, indices, *more = sight.operands
    rows, table = (more[0], sight.result) if more else (sight.result, table)
    arrays = ((dims.tokens, indices), (dims.table, table), (dims.rows, rows))
    there = (graph.values[number] for number in sight.operation.operands)
    layouts = [  # indices have one more dimension, of one element
        Layout(tuple(zip(names, (axes for _, axes in value.layout.dims), strict=False))) for names, value in arrays
    ]
    kept = dict[str, Axes]()
    for names, value in zip((dims.table, dims.tokens, dims.rows), there, strict=False):
        kept |= dict(zip(names, (axes for _, axes in value.layout.dims), strict=False))
    why = part_of_axis(layouts)
    if why is not None:
        return why
    if table.dtype != rows.dtype or table.dtype not in ITEM_BYTES or table.dtype == "bool":
        return f"tables of {table.dtype} are not planned"
    sizes = {name: size for names, value in arrays for name, size in zip(names, value.shape, strict=False)}
    tokens, whole, found = (Operand(name, layout.on(graph.mesh)) for name, layout in zip(("T", "W", "R"), layouts, strict=True))
    kind: Literal["rows", "gradient"] = "gradient" if more else "rows"
    return _Posed(Lookup(kind, tokens, whole, found, sizes, graph.mesh, table.dtype, indices.dtype), kept)


def _planned(posed: _Posed, where: Where, forced: bool) -> tuple[float, tuple[LookupProgram, ...]] | str:
    """How long a lookup takes as propagation lays it, and what may take its place, the fastest first; or why nothing may."""
    task, planner = posed.task, _Planner(posed.task, where)
    plain = planner.program(posed.there)
    if plain is None:
        return "its layouts do not divide its dimensions"
    choices = list(_assignments(task))
    best = planner.fastest(choices, plain.seconds if posed.there in choices or not forced else math.inf)
    if best is None or not (forced or best.seconds < plain.seconds):
        return "nothing less need move"
    costs = planner.prices(_Move(task.arrays[2], task.arrays[2].layout, task.arrays[2].layout, task.dtype))
    behind = replace(best, result=in_background(best.result, task.sizes, costs))
    return plain.seconds, tuple(dict.fromkeys((best, behind)))


def _assignments(task: Lookup) -> Iterator[dict[str, Axes]]:
    """Where the dimensions of a lookup may lie while it is done: each axis on one dimension, or on none."""
    layouts = [operand.layout for operand in task.arrays]
    axes = list(dict.fromkeys(axis for layout in layouts for axis in (*layout.axes, *task.mesh.names) if axis in layout.axes))
    dims = tuple(dict.fromkeys(dim for layout in layouts for dim in layout.names))
    choices = [
        [None, *(dim for dim in dims if len(axes) <= _ANYWHERE or _has(layouts, dim, axis))] for axis in axes
    ]  # fmt: skip
    for chosen in itertools.product(*choices):
        yield {dim: tuple(axis for axis, at in zip(axes, chosen, strict=True) if at == dim) for dim in dims}


def _has(layouts: Sequence[Layout], dim: str, axis: str) -> bool:
    return any(dim in layout.names and axis in layout.axes_of(dim) for layout in layouts)


@dataclass(frozen=True, slots=True)
class _Move:
    """An array of a lookup, and how it lies before it moves and afterwards."""

    operand: Operand
    before: Layout
    after: Layout
    dtype: str


class _Planner:
    """Programs for one lookup: what moves each of its arrays is planned once."""

    def __init__(self, task: Lookup, where: Where) -> None:
        self.task, self.where = task, where
        self.memory_bytes_per_s = hardware_on(where, task.mesh)[0].memory_speed(task.mesh)
        self.known: dict[_Move, tuple[Program, float] | None] = {}
        self.costs: dict[str, Costs] = {}

    def fastest(self, choices: Sequence[Mapping[str, Axes]], most: float) -> LookupProgram | None:
        """The fastest program of all of these, and the first of those; None where none takes `most` seconds or less.

        What cannot be it is not planned.
        """
        floors = [self._floor(there) for there in choices]
        best: tuple[float, int, LookupProgram | None] = (most, len(choices), None)
        for number in sorted(range(len(choices)), key=floors.__getitem__):
            program = self.program(choices[number], best[0])
            if program is not None:
                best = min(best, (program.seconds, number, program), key=lambda each: each[:2])
        return best[2]

    def program(self, there: Mapping[str, Axes], most: float = math.inf) -> LookupProgram | None:
        """What moves where dimensions lie so during the lookup, and how long it takes.

        None where they do not divide, and where it takes more than the `most` seconds that are of interest.
        """
        moves = self._moves(there)
        for move in moves:
            if self._floor(there) > most or self._moved(move) is None:
                return None
        (first, before), (second, between), (last, after) = (found for move in moves if (found := self._moved(move)))
        return LookupProgram(first, second, last, before + between + after + self._local(there))

    def _moves(self, there: Mapping[str, Axes]) -> tuple[_Move, _Move, _Move]:
        """Those of the tokens, of what else is given, and of the result, which may be partial sums before."""
        tokens, given, result = self.task.arrays
        partial = frozenset(axis for dim, axes in there.items() if dim not in result.layout.names for axis in axes)
        made = Layout(tuple((dim, there[dim]) for dim in result.layout.names), partial)
        return (
            _Move(tokens, tokens.layout, _laid(tokens, there), self.task.tokens_dtype),
            _Move(given, given.layout, _laid(given, there), self.task.dtype),
            _Move(result, made, result.layout, self.task.dtype),
        )

    def _local(self, there: Mapping[str, Axes]) -> float:
        """Seconds in which rows are looked up, or added up."""
        _, given, made = self._moves(there)
        rows = made.before if self.task.kind == "rows" else given.after
        passes = 2 * math.prod(rows.shard_shape(self.task.sizes, self.task.mesh))
        if self.task.kind == "gradient":  # zeros are written first, and read again
            passes += 2 * math.prod(made.before.shard_shape(self.task.sizes, self.task.mesh))
        return passes * ITEM_BYTES[self.task.dtype] / self.memory_bytes_per_s

    def _floor(self, there: Mapping[str, Axes]) -> float:
        """Seconds that no program with dimensions there is faster than; infinitely many where they do not divide."""
        try:
            return self._local(there) + math.fsum(map(self._moving_lower_bound, self._moves(there)))
        except LayoutError:
            return math.inf

    def _moving_lower_bound(self, move: _Move) -> float:
        """The seconds of a move, once it is planned; and those that no program for it is faster than."""
        if (known := self.known.get(move)) is not None:
            return known[1]
        for layout in (move.before, move.after):
            layout.shard_shape(self.task.sizes, self.task.mesh)
        state, wanted = state_of(move.before), state_of(move.after)
        return moving_lower_bound(self.prices(move), self.task.sizes, move.before.names, state, wanted)

    def prices(self, move: _Move) -> Costs:
        """The prices of steps that move an array of its dtype."""
        if move.dtype not in self.costs:
            self.costs[move.dtype] = costs_of(self._problem(move))
        return self.costs[move.dtype]

    def _problem(self, move: _Move) -> Problem:
        name, sizes = move.operand.name, {dim: self.task.sizes[dim] for dim in move.before.names}
        equation = Equation((Operand(name, move.before),), Operand(name, move.after))
        return problem(equation, sizes, self.task.mesh, self.where, move.dtype, overlap=False)

    def _moved(self, move: _Move) -> tuple[Program, float] | None:
        """The program that brings an array from one layout to another, and its seconds; None where there is none."""
        if move not in self.known:
            self.known[move] = self._planned(move)
        return self.known[move]

    def _planned(self, move: _Move) -> tuple[Program, float] | None:
        try:
            for layout in (move.before, move.after):
                layout.shard_shape(self.task.sizes, self.task.mesh)
            if move.before == move.after:
                return Program(self.task.mesh, ((move.operand.name, move.before),), (), move.operand.name), 0.0
            best = ranking(self._problem(move)).best
        except ShardwiseError:
            return None
        return best.program, best.seconds


def _laid(operand: Operand, there: Mapping[str, Axes]) -> Layout:
    return Layout(tuple((dim, there[dim]) for dim in operand.layout.names))


def _is_zero(var: Any, makers: Mapping[Any, JaxprEqn]) -> bool:
    """Whether an array holds zeros alone, by what made it."""
    var = source_of(var, makers)
    while not isinstance(var, Constant):
        maker = makers.get(var)
        if maker is None or maker.primitive.name not in ("broadcast_in_dim", "convert_element_type", "sharding_constraint"):
            return False
        var = maker.invars[0]
    return not np.any(np.asarray(var.val))
