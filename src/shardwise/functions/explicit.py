"""Explicit axes: where tracing stops since a layout is ambiguous or illegal, which ones are possible, and what to paste."""

from __future__ import annotations

import contextlib
import math
import re
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from shardwise.compiled.facts import Line
from shardwise.compiled.text.sources import is_users
from shardwise.errors import ShardwiseError
from shardwise.functions.explicit_pastes import out_sharded, resharded, taken_at
from shardwise.functions.pasting import Paste, padded_first, text_of
from shardwise.functions.pricing import Where, relayout_price
from shardwise.layout import Layout, padded_size, splits
from shardwise.mesh import Mesh
from shardwise.notation import Equation, Operand
from shardwise.planning.prices import ITEM_BYTES
from shardwise.planning.problem import problem
from shardwise.planning.ranking import ranking
from shardwise.steps import describe

MOST_OPTIONS = 6
_UNEVEN = re.compile(  # JAX's own words
    r"array axis (?P<place>\d+) is partitioned (?P<parts>\d+) times, but does not evenly divide the dimension size "
    r"(?P<size>\d+).*?shape: \((?P<shape>[\d, ]+)\)",
    re.DOTALL,
)
_NAMES: str = "IJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True, slots=True)
class Option:
    """A layout that is possible where tracing stopped.

    Attributes:
        layouts: of the result of a contraction; of any other operation those of its operands.
        seconds: what it takes, modelled; `says` by which steps.
        held_bytes: what one device then holds of what is laid out; `wire_bytes` what it sends on the way.
        paste: what to write.
    """

    layouts: tuple[Layout, ...]
    seconds: float
    says: str
    held_bytes: float
    wire_bytes: float
    paste: Paste | None = None


def preference(option: Option) -> tuple[object, ...]:
    """By what options are put in order: the cheaper first; of equally cheap ones the one of which a device holds less, so that
    one that is split comes before a whole one; then the one that sends less; then the one that splits an earlier dimension,
    whose parts lie in one piece. Seconds that agree to six digits are the same: they are sums of the same terms."""
    splits_late = tuple(tuple(not axes for _, axes in layout.dims) for layout in option.layouts)
    names = tuple(map(str, option.layouts))
    return float(f"{option.seconds:.6g}"), option.held_bytes, option.wire_bytes, splits_late, names


@dataclass(frozen=True, slots=True)
class Stop:
    """Where a trace under Explicit axes stops.

    Attributes:
        operation: JAX's name of it; `equation` what it multiplies, in the notation; `why` in JAX's own words.
        options: what is possible there, the cheapest first.
    """

    line: Line | None
    text: str
    operation: str
    operands: tuple[Layout, ...]
    why: str
    options: tuple[Option, ...]
    equation: str = ""


@dataclass(frozen=True, slots=True)
class _Failing:
    """An operation that JAX's rules refuse; of an einsum the letters of what it multiplies."""

    primitive: Any
    avals: tuple[Any, ...]
    params: dict[str, Any]
    letters: tuple[str, str] | None


@contextlib.contextmanager
def whole_tracebacks() -> Iterator[None]:
    """JAX's own frames stay in tracebacks: they say which operation stops."""
    before = jax.config.values["jax_traceback_filtering"]
    jax.config.update("jax_traceback_filtering", "off")
    try:
        yield
    finally:
        jax.config.update("jax_traceback_filtering", before)


def stop_of(error: BaseException | None, where: Where) -> Stop | None:
    """Where and why a trace stopped, and what is possible there; None where it is no matter of layouts.

    Args:
        error: with a whole traceback (see `whole_tracebacks`).
    """
    if error is not None and (uneven := _UNEVEN.search(str(error))) is not None:
        return _uneven_stop(error, uneven)
    if error is None or type(error).__name__ != "ShardingTypeError":
        return None
    found, line = _failing(error), _line(error)
    if found is None:
        return Stop(line, text_of(line), "", (), str(error), ())
    avals = found.avals
    layouts = tuple(Layout.from_spec(aval.sharding.spec, list(_NAMES[: aval.ndim])) for aval in avals)
    grid = _used(next((Mesh.parse(aval.sharding.mesh) for aval in avals if not aval.sharding.mesh.empty), Mesh(())), layouts)
    first = Stop(line, text_of(line), found.primitive.name, layouts, str(error).split("\n")[0], ())
    match found.primitive.name:
        case "dot_general":
            equation, dims = _contraction(found)
            return replace(first, options=tuple(_results(equation, dims, found, grid, where, line)), equation=str(equation))
        case "gather":
            return replace(first, options=tuple(_looked_up(found, layouts, grid, where, line)))
        case _:
            return replace(first, options=tuple(_operands(found, layouts, grid, where, line)))


def _uneven_stop(error: BaseException, told: re.Match[str]) -> Stop | None:
    """Where a size stops a trace that the axes of a layout do not divide: padded it goes on."""
    place, parts, size = (int(told[name]) for name in ("place", "parts", "size"))
    shape, line = [int(each) for each in told["shape"].split(",") if each.strip()], _line(error)
    if line is None or not place < len(shape) or shape[place] != size:
        return None
    padded = [*shape[:place], padded_size(size, parts), *shape[place + 1 :]]
    paste = padded_first(line, shape, padded)
    option = Option((), 0.0, f"pad {shape} to {padded} before, and cut to :{size} what needs no zeros", 0.0, 0.0, paste)
    why = f"{parts} devices do not divide dimension {place} of {size}, and an explicit type is split evenly"
    return Stop(line, text_of(line), "reshard", (), why, (option,))


def _used(grid: Mesh, layouts: Sequence[Layout]) -> Mesh:
    """The axes of a mesh that layouts use: what is pasted names no others, so that the compiler moves nothing along them."""
    used = {axis for layout in layouts for axis in (*layout.axes, *layout.unreduced)}
    return Mesh(tuple((name, size) for name, size in grid.axes if name in used))


def _failing(error: BaseException) -> _Failing | None:
    """The operation whose rule refused, with the types that it was given: JAX's own frames hold them."""
    found, letters = None, None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        names = frame.f_locals
        if is_users(frame.f_code.co_filename):
            letters = None
        if "lhs_names" in names and "rhs_names" in names:
            letters = _in_order(str(names["lhs_names"]), str(names["rhs_names"]), str(names.get("names", "")))
        avals = tuple(names.get("avals", names.get("aval_qdds", ())) or ())
        typed = bool(avals) and all(hasattr(aval, "sharding") and hasattr(aval, "ndim") for aval in avals)
        if typed and "primitive" in names and isinstance(names.get("params"), dict):
            found = _Failing(names["primitive"], avals, names["params"], letters)
    return found


def _in_order(one: str, other: str, result: str) -> tuple[str, str]:
    """The letters of both operands of an einsum in the order in which they are multiplied: the first gives the first rows.

    >>> _in_order("jk", "ij", "ik")
    ('ij', 'jk')
    """
    first = next((letter for letter in result if (letter in one) != (letter in other)), "")
    return (other, one) if first and first in other else (one, other)


def _line(error: BaseException) -> Line | None:
    frames = [each for each in traceback.extract_tb(error.__traceback__) if is_users(each.filename)]
    return Line(f"{frames[-1].filename}:{frames[-1].lineno}") if frames else None


def _contraction(found: _Failing) -> tuple[Equation, tuple[str, ...]]:
    """What a contraction is in the notation, its result left to the planner; and the dimensions of the result."""
    (left_summed, right_summed), (left_batch, right_batch) = found.params["dimension_numbers"]
    one, other = found.avals
    left, right = _labels(found, (*zip(left_batch, right_batch, strict=True), *zip(left_summed, right_summed, strict=True)))
    batch = [left[each] for each in left_batch]
    rows = [name for place, name in enumerate(left) if place not in left_batch and place not in left_summed]
    columns = [name for place, name in enumerate(right) if place not in right_batch and place not in right_summed]
    dims = (*batch, *rows, *columns)
    operands = tuple(
        Operand(name, Layout.from_spec(aval.sharding.spec, names))
        for name, aval, names in (("A", one, left), ("B", other, right))
    )
    return Equation(operands, Operand("C", Layout(tuple((dim, ()) for dim in dims)), frozenset(dims))), dims


def _labels(found: _Failing, joined: Sequence[tuple[int, int]]) -> tuple[list[str], list[str]]:
    """The names of the dimensions of both operands: the letters of the einsum, or fresh ones."""
    one, other = found.avals
    if found.letters is not None:
        left, right = ([str(letter).upper() for letter in letters] for letters in found.letters)
        if (
            len(left) == one.ndim
            and len(right) == other.ndim
            and len({*found.letters[0], *found.letters[1]}) == len({*left, *right})
        ):
            return left, right
    fresh = iter([str(name) for name in _NAMES])
    left, right = [next(fresh) for _ in range(one.ndim)], [""] * other.ndim
    for mine, its in joined:
        right[its] = left[mine]
    return left, [name or next(fresh) for name in right]


def _results(
    equation: Equation, dims: tuple[str, ...], failing: _Failing, grid: Mesh, where: Where, line: Line | None
) -> Iterator[Option]:
    """Every layout that the result can have, by the cheapest program that leads to it."""
    avals, letters = failing.avals, failing.letters
    sizes = {
        dim: size
        for operand, aval in zip(equation.operands, avals, strict=True)
        for dim, size in zip(operand.dims, aval.shape, strict=True)
    }
    used = _splitting(grid, [operand.layout for operand in equation.operands])
    shape, dtype = tuple(sizes[dim] for dim in dims), str(avals[0].dtype)
    found = []
    for split in splits(len(dims), used):
        layout = Layout(tuple(zip(dims, split, strict=True)))
        if not _divides(grid, shape, layout):
            continue
        task = replace(equation, result=Operand("C", layout))
        try:
            best = ranking(problem(task, sizes, grid, where, dtype, overlap=False)).best
        except ShardwiseError:
            continue
        steps, cost = ", ".join(describe(step) for step in best.program.steps), best.estimate
        held = _held_bytes(grid, shape, dtype, layout)
        found.append(Option((layout,), cost.seconds, steps, held, cost.total_wire_bytes))
    for option in sorted(found, key=preference)[:MOST_OPTIONS]:
        yield replace(option, paste=None if line is None else out_sharded(line, option.layouts[0], letters is not None))


def _splitting(grid: Mesh, layouts: Iterable[Layout]) -> tuple[str, ...]:
    """The axes that split something: of layouts that differ in axes of size 1 alone, the one without them is told."""
    return tuple(dict.fromkeys(axis for layout in layouts for axis in layout.axes if grid.axis_size(axis) > 1))


def _held_bytes(grid: Mesh, shape: Sequence[int], dtype: str, layout: Layout) -> float:
    """What one device holds of an array."""
    return math.prod(shape) * ITEM_BYTES.get(dtype, 1) / grid.extent(layout.axes)


def _operands(failing: _Failing, layouts: tuple[Layout, ...], grid: Mesh, where: Where, line: Line | None) -> Iterator[Option]:
    """Every layout of the operands that the operation takes, one of them changed or all alike, by what the change costs."""
    primitive, avals, params = failing.primitive, failing.avals, failing.params
    used = _splitting(grid, layouts)
    tries: list[tuple[Layout, ...]] = []
    for place, aval in enumerate(avals):
        theirs = (tuple(axes for _, axes in other.dims) for other in layouts if len(other.dims) == aval.ndim)
        for split in dict.fromkeys((*splits(aval.ndim, used[:2]), *theirs)):
            layout = Layout(tuple(zip(layouts[place].names, split, strict=True)))
            tries.append((*layouts[:place], layout, *layouts[place + 1 :]))
            tries.append(tuple(layout if other.ndim == aval.ndim else layouts[n] for n, other in enumerate(avals)))
    found = []
    for wanted in dict.fromkeys(tries):
        if not all(_divides(grid, aval.shape, layout) for aval, layout in zip(avals, wanted, strict=True)):
            continue
        if _typed(primitive, avals, wanted, params):
            costs = [
                relayout_price(before, after, aval.shape, str(aval.dtype), grid, where)
                for before, after, aval in zip(layouts, wanted, avals, strict=True)
            ]
            says = ", ".join(f"operand {n} laid out as {wanted[n]}" for n in _changed(layouts, wanted))
            held = math.fsum(_held_bytes(grid, a.shape, str(a.dtype), each) for a, each in zip(avals, wanted, strict=True))
            seconds, sent = math.fsum(each.seconds for each in costs), math.fsum(each.wire_bytes for each in costs)
            found.append(Option(wanted, seconds, says, held, sent))
    for option in sorted(found, key=preference)[:MOST_OPTIONS]:
        changed = _changed(layouts, option.layouts)
        yield replace(option, paste=None if line is None else resharded(line, primitive.name, changed, option.layouts))


def _changed(before: Sequence[Layout], after: Sequence[Layout]) -> list[int]:
    return [number for number, (one, other) in enumerate(zip(before, after, strict=True)) if one != other]


def _looked_up(failing: _Failing, layouts: tuple[Layout, ...], grid: Mesh, where: Where, line: Line | None) -> Iterator[Option]:
    """The layouts of what is looked up in a table: its indices', and the table's own where its axes are free; priced as if the
    table's rows were gathered."""
    numbers, (table, indices) = failing.params["dimension_numbers"], failing.avals
    offset, dropped = tuple(numbers.offset_dims), (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    kept = [axes for place, (_, axes) in enumerate(layouts[0].dims) if place not in dropped]
    rank = len(offset) + indices.ndim - 1
    looked = [axes for _, axes in layouts[1].dims[:-1]]
    rows = Layout(tuple((dim, () if place in dropped else axes) for place, (dim, axes) in enumerate(layouts[0].dims)))
    cost = relayout_price(layouts[0], rows, table.shape, str(table.dtype), grid, where)
    width = iter(size for place, size in enumerate(failing.params["slice_sizes"]) if place not in dropped)
    height = iter(indices.shape[:-1])
    shape = [next(width) if place in offset else next(height) for place in range(rank)]
    found = []
    for widths in dict.fromkeys((tuple(kept), ((),) * len(kept))):
        mine, its = iter(looked), iter(widths)
        dims = [next(its) if place in offset else next(mine) for place in range(rank)]
        flat = [axis for axes in dims for axis in axes]
        layout = Layout(tuple(zip(_NAMES, dims, strict=False))) if len(set(flat)) == len(flat) else None
        if layout is not None and _divides(grid, shape, layout):
            held = _held_bytes(grid, shape, str(table.dtype), layout)
            found.append(Option((layout,), cost.seconds, f"out as {layout}", held, cost.wire_bytes))
    for option in sorted(found, key=preference):
        yield replace(option, paste=None if line is None else taken_at(line, option.layouts[0]))


def _divides(grid: Mesh, shape: Sequence[int], layout: Layout) -> bool:
    return not any(size % grid.extent(axes) for size, (_, axes) in zip(shape, layout.dims, strict=True))


def _typed(primitive: Any, avals: Sequence[Any], wanted: Sequence[Layout], params: Mapping[str, Any]) -> bool:
    """Whether JAX's own rule takes operands so laid out."""
    structs = [
        jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=jax.NamedSharding(aval.sharding.mesh, layout.spec))
        for aval, layout in zip(avals, wanted, strict=True)
    ]
    mesh = avals[0].sharding.mesh
    try:
        with jax.sharding.use_abstract_mesh(mesh):
            jax.eval_shape(lambda *given: primitive.bind(*given, **params), *structs)
    except Exception:  # whatever the rule raises, it does not take them
        return False
    return True
