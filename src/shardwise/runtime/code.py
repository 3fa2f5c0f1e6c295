"""A program as plain JAX source that runs without Shardwise: nobody is locked in."""

from __future__ import annotations

import builtins
import keyword
import string
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from typing import assert_never

from shardwise.chips import Hardware, Torus
from shardwise.dataflow import invarying_axes, makes_result, reader, waiting
from shardwise.errors import one_line
from shardwise.layout import Axes, Layout
from shardwise.mesh import Sides
from shardwise.planning.prices import ITEM_BYTES
from shardwise.planning.problem import Problem
from shardwise.planning.told import exchange_form, operand_orders, result_order, scatter_form, summed_as_one
from shardwise.program import Program, cuts, rule
from shardwise.runtime.code_helpers import HELPERS, imports, needed, text
from shardwise.runtime.lower import leaves_replicated
from shardwise.schedule.fused import scheduled
from shardwise.steps import (
    AllGather,
    AllReduce,
    AllToAll,
    Automatic,
    CollectivePermute,
    Einsum,
    EinsumGather,
    EinsumScatter,
    GatherEinsum,
    ReduceScatter,
    RotateEinsum,
    Slice,
    Step,
    einsum_of,
    touched,
)

_RINGS = {
    GatherEinsum: "gather_einsum",
    EinsumScatter: "einsum_scatter",
    EinsumGather: "einsum_gather",
    RotateEinsum: "rotate_einsum",
}
UNCHECKED = "# unchecked (check_vma): permutes make the result equal on all of their devices, which JAX's types cannot see"


def source(program: Program, title: str, function: str = "program", task: Problem | None = None) -> str:
    """Write a program as a module: a mesh, a local function, and the `shard_map` of it.

    A matmul that is fused with a transfer calls a ring, which is written out before it. Where the problem is given, as in what
    `lower` runs, its blocks are cut along the dimension that is best for the sizes, and TPUs are told of blocks.

    >>> from shardwise.mesh import Mesh
    >>> text = source(Program(Mesh.parse("x=2"), (("A", Layout.parse("I_x")),), (AllGather("A", "I", ("x",)),), "A"), "")
    >>> "lax.all_gather(a, 'x', axis=0, tiled=True, to='invarying')" in text
    True
    """
    if any(isinstance(step, Automatic) for step in program.steps):
        return _automatic(program, title, function)
    variables = _variables(program, function)
    states = program.states()
    typed = not leaves_replicated(program)
    # Where types are not checked, what gathers as "invarying" would have the derivative of one device's copy alone.
    needs = invarying_axes(program) if typed else [set[str]()] * len(program.steps)
    parameters = ", ".join(variables[name] for name, _ in program.inputs)
    body = []
    for number, (before, need) in enumerate(zip(states, needs, strict=False)):
        body.append(_line(number, before, program, variables, bool(need), task))
        body += _waits(number, program, variables, task)
    result = program.result
    returned = variables[program.output]
    if result.unreduced:
        returned = f"lax.pcast({returned}, {_axes(tuple(sorted(result.unreduced)))}, to='unreduced')"
    mesh_shape = tuple(size for _, size in program.mesh.axes)
    given, made = _as_written(program, task)
    in_specs = "".join(f"{_spec(layout)}, " for layout in given)
    helpers = _helpers(program, body)
    mapped = f"local, mesh=mesh, in_specs=({in_specs.rstrip()}), out_specs={_spec(made)}"
    modules = imports(helpers)
    own = [line for line in modules if line.split()[1] in sys.stdlib_module_names]
    others = [line for line in modules if line not in own]
    lines = [
        _documented(title),
        "",
        *own,
        *([""] if own else []),
        "import jax",
        "import jax.numpy as jnp",
        *(line for line in others if line.startswith("import")),
        "from jax import lax",
        *(line for line in others if line.startswith("from")),
        "from jax.sharding import PartitionSpec as P",
        "",
        f"mesh = jax.make_mesh({mesh_shape}, {program.mesh.names})",
        "",
        "",
        *(f"{text(name)}\n" for name in helpers),
        f"def local({parameters}):  # each argument is one device's shard",
        *(f"    {line}" for line in body),
        f"    return {returned}",
        "",
        "",
        *([] if typed else [UNCHECKED]),
        f"{function} = jax.jit(jax.shard_map({mapped}{'' if typed else ', check_vma=False'}))",
    ]
    return "\n".join(lines) + "\n"


def _as_written(program: Program, task: Problem | None) -> tuple[list[Layout], Layout]:
    """The layouts of inputs and result, with axes of size 1 where the problem is written with them: types tell those too."""
    inputs = [layout.on(program.mesh) for _, layout in program.inputs]
    if task is None or task.equation.written is None:
        return inputs, program.result
    written = (operand.layout.dims for operand in task.equation.written.operands)
    given = [Layout(dims, layout.unreduced) for dims, layout in zip(written, inputs, strict=True)]
    return given, task.equation.as_written(program.result, program.mesh)


def _automatic(program: Program, title: str, function: str) -> str:
    """One einsum of whole arrays; the compiler chooses what moves."""
    variables, layouts = _variables(program, function), program.states()[0]
    names = [name for name, _ in program.inputs]
    terms, _ = _terms(layouts, tuple(names), program.result.names)
    arrays = ", ".join(variables[name] for name in names)
    shape = tuple(size for _, size in program.mesh.axes)
    auto = "axis_types=(jax.sharding.AxisType.Auto,) * " + str(len(shape))
    lines = [
        _documented(f"{title}: the compiler chooses what moves."),
        "",
        "import jax",
        "import jax.numpy as jnp",
        "from jax.sharding import NamedSharding",
        "from jax.sharding import PartitionSpec as P",
        "",
        f"mesh = jax.make_mesh({shape}, {program.mesh.names}, {auto})",
        "",
        "",
        f"def local({arrays}):",
        f"    return jnp.einsum({terms!r}, {arrays})",
        "",
        "",
        f"{function} = jax.jit(local, out_shardings=NamedSharding(mesh, {_spec(program.result)}))",
    ]
    return "\n".join(lines) + "\n"


def _line(
    number: int, layouts: dict[str, Layout], program: Program, variables: dict[str, str], invarying: bool,
    task: Problem | None,
) -> str:  # fmt: skip
    step = program.steps[number]

    def at(array: str, dim: str) -> int:
        return layouts[array].names.index(dim)

    match step:
        case AllGather(array, dim, axes):
            name, to = variables[array], "invarying" if invarying else "varying"
            call = f"lax.all_gather({name}, {_axes(axes)}, axis={at(array, dim)}, tiled=True, to={to!r})"
        case ReduceScatter(array, dim, axes):
            name = variables[array]
            call = _scattered(step, layouts, program, task, name, at(array, dim))
        case AllReduce(array, axes):
            name = variables[array]
            call = f"lax.psum({name}, {_axes(axes)})"
        case AllToAll(array, source_dim, target_dim, axes):
            name, places = variables[array], (at(array, target_dim), at(array, source_dim))
            call = _exchanged(number, layouts, program, task, name, places)
        case CollectivePermute(array, axes, pairs, _):
            sent = name = variables[array]
            for dim, (parts, places) in cuts(step, layouts[array], program.mesh).items():
                sent = f"cut_part({sent}, {_axes(axes)}, {at(array, dim)}, {parts}, {list(places)})"
            call = f"lax.ppermute({sent}, {_axes(axes)}, {list(pairs)})"
        case Slice(array, dim, axes):
            name, parts = variables[array], program.mesh.extent(axes)
            width = f"{name}.shape[{at(array, dim)}] // {parts}"
            start = f"lax.axis_index({_axes(axes)}) * ({width})"
            call = f"lax.dynamic_slice_in_dim({name}, {start}, {width}, axis={at(array, dim)})"
        case Einsum(operands, result, dims):
            name = variables[result]
            call = f"jnp.einsum({_terms(layouts, operands, dims)[0]!r}, {', '.join(variables[array] for array in operands)})"
            if task is not None and _chip(task) is not None and makes_result(program, number):
                shape = program.result.shard_shape(task.sizes, program.mesh)
                call = f"lying_in({call}, {result_order(shape)})"
        case GatherEinsum(gather, einsum):
            name = variables[einsum.result]
            operands = (gather.array, *(array for array in einsum.operands if array != gather.array))
            call = _ring_call(step, layouts, operands, variables, program, task)
        case EinsumScatter(einsum):
            name = variables[einsum.result]
            call = _ring_call(step, layouts, einsum.operands, variables, program, task)
        case EinsumGather(einsum):
            name = variables[einsum.result]
            call = _ring_call(step, layouts, einsum.operands, variables, program, task)
        case RotateEinsum(gathers, einsum):
            name = variables[einsum.result]
            terms, letters = _terms(layouts, einsum.operands, einsum.dims)
            axes = tuple(gather.axes[0] for array in einsum.operands for gather in gathers if gather.array == array)
            given = ", ".join(variables[array] for array in einsum.operands)
            call = f"rotate_einsum({terms!r}, {given}, dim={letters[gathers[0].dim]!r}, axes={axes})"
        case Automatic():
            raise AssertionError("the compiler's own is no step of a local function")
        case _:
            assert_never(step)
    return f"{name} = {call}  # {one_line(_comment(step, layouts, program))}"


def _waits(number: int, program: Program, variables: dict[str, str], task: Problem | None) -> list[str]:
    """What rings gather behind what a step has sent, as the runtime tells TPU compilers."""
    if task is None or _chip(task) is None:
        return []
    made = variables[touched(program.steps[number])]
    pairs = (f"{variables[name]}, {made}" for name in waiting(program, number))
    return [f"{pair} = lax.optimization_barrier(({pair}))  # one after the other on the same links" for pair in pairs]


def _ring_call(
    step: GatherEinsum | EinsumScatter | EinsumGather, layouts: dict[str, Layout], operands: tuple[str, ...],
    variables: dict[str, str], program: Program, task: Problem | None,
) -> str:  # fmt: skip
    """A ring; of known sizes one that cuts its operands does it as the runtime does, and takes what is summed as one."""
    moved = step.scatter if isinstance(step, EinsumScatter) else step.gather
    terms, letters = _terms(layouts, operands, step.einsum.dims)
    given, along, order = [variables[array] for array in operands], moved.dim, None
    if task is not None:
        told = _chip(task) is not None
        shapes = [layouts[array].shard_shape(task.sizes, program.mesh) for array in operands]
        if isinstance(step, GatherEinsum):
            made = rule(step, layouts, program.mesh)[step.einsum.result]
            order = result_order(made.shard_shape(task.sizes, program.mesh)) if told else None
            given = [given[0], *_lying(terms, given[1:], shapes[1:], letters[along])] if told else given
        else:
            along = scheduled(step, layouts, task.sizes, program.mesh).along
            given = _lying(terms, given, shapes, letters[along]) if told and isinstance(step, EinsumScatter) else given
            terms, given = _summed_as_one(terms, given, shapes)
    way = step.way
    going = f"sides=({way.sizes}, {way.order})" if isinstance(way, Sides) else f"way={way!r}"
    options = f"dim={letters[moved.dim]!r}, axes={_axes(moved.axes)}, {going}"
    options += f", chunks={step.chunks}" if step.chunks > 1 else ""
    options += f", along={letters[along]!r}" if along != moved.dim else ""
    options += f", order={order}" if order is not None else ""
    options += ", ring=(folded_shift, folded_owner)" if step.way == "folded" else ""
    name = f"{_RINGS[type(step)]}_on_torus" if isinstance(way, Sides) else _RINGS[type(step)]
    return f"{name}({terms!r}, {', '.join(given)}, {options})"


def _lying(terms: str, given: Sequence[str], shapes: Sequence[Sequence[int]], along: str) -> list[str]:
    """Operands of a ring in the order in memory that the runtime tells the compiler, too."""
    orders = operand_orders(terms.split("->")[0].split(",")[-len(given) :], shapes, along)
    return [name if order is None else f"lying_in({name}, {order})" for name, order in zip(given, orders, strict=True)]


def _summed_as_one(terms: str, given: Sequence[str], shapes: Sequence[Sequence[int]]) -> tuple[str, list[str]]:
    """An einsum's subscripts and operands, with the dimensions as one that the runtime takes so."""
    inputs, out = terms.split("->")
    told, split = list(given), inputs.split(",")
    for run in summed_as_one(split, out, shapes):
        for place, term in enumerate(split):
            if run[0] in term:
                told[place] = f"as_one({told[place]}, {term.index(run[0])}, {len(run)})"
                split[place] = term.replace("".join(run), run[0])
    return f"{','.join(split)}->{out}", told


def _chip(task: Problem) -> Hardware | None:
    """The TPU that a problem is planned for, of whose compiler the catalogue knows; None where it is no such."""
    return task.hardware if task.hardware.compiler is not None and isinstance(task.hardware.links, Torus) else None


def _scattered(
    step: ReduceScatter, layouts: dict[str, Layout], program: Program, task: Problem | None, name: str, place: int
) -> str:  # fmt: skip
    """A reduce-scatter, told to the compiler of the problem's chip as the runtime tells it."""
    axes, form = _axes(step.axes), "tiled"
    if task is not None and (chip := _chip(task)) is not None:
        shape, n = layouts[step.array].shard_shape(task.sizes, program.mesh), program.mesh.extent(step.axes)
        form = scatter_form(shape, place, n, _item_bytes(step.array, program, task), chip)
    match form:
        case "sum":
            return f"sum_and_cut({name}, {axes}, {place})"
        case "rows":
            return f"scatter_rows({name}, {axes})"
        case "blocks":
            return f"scatter_blocks({name}, {axes}, {place})"
        case "in order":
            name = f"lying_in({name}, {tuple(range(len(layouts[step.array].names)))})"
    return f"lax.psum_scatter({name}, {axes}, scatter_dimension={place}, tiled=True)"


def _exchanged(
    number: int, layouts: dict[str, Layout], program: Program, task: Problem | None, name: str, places: tuple[int, int]
) -> str:  # fmt: skip
    """An all-to-all, told to the compiler of the problem's chip as the runtime tells it: without dimensions of one element."""
    step = program.steps[number]
    assert isinstance(step, AllToAll)
    axes, (split, concat) = _axes(step.axes), places
    if task is None or (chip := _chip(task)) is None:
        return f"lax.all_to_all({name}, {axes}, split_axis={split}, concat_axis={concat}, tiled=True)"
    whole = layouts[step.array].shard_shape(task.sizes, program.mesh)
    ones = tuple(place for place, size in enumerate(whole) if size == 1 and place not in places)
    shape = [size for place, size in enumerate(whole) if place not in ones]
    split, concat = (place - sum(one < place for one in ones) for place in places)
    taker, given = reader(program, number), f"lax.squeeze({name}, {ones})" if ones else name
    read = taker is not None and einsum_of(taker) is not None
    n, item_bytes = program.mesh.extent(step.axes), _item_bytes(step.array, program, task)
    match exchange_form(shape, split, concat, n, item_bytes, chip, read=read):
        case "blocks":
            call = f"exchange_blocks({given}, {axes}, {split}, {concat})"
        case "one":
            call = f"exchange_one(lax.optimization_barrier({given}), {axes}, {split}, {concat})"
        case _:
            given = f"lax.optimization_barrier({given})"
            call = f"lax.all_to_all({given}, {axes}, split_axis={split}, concat_axis={concat}, tiled=True)"
    return f"lax.expand_dims({call}, {ones})" if ones else call


def _item_bytes(array: str, program: Program, task: Problem) -> int:
    given = array in dict(program.inputs)
    return ITEM_BYTES[task.dtype if given else task.accumulated or task.dtype]


def _helpers(program: Program, body: Sequence[str]) -> list[str]:
    """What a program's steps call, and what that calls, in the order in which it is written."""
    found = {name for name in HELPERS if any(f" {name}(" in line or f"({name}(" in line for line in body)}
    for step in program.steps:
        match step:
            case GatherEinsum(gather=moved) | EinsumScatter(scatter=moved) | EinsumGather(gather=moved):
                in_order = moved.axes == tuple(axis for axis in program.mesh.names if axis in moved.axes)
                found |= set() if in_order or isinstance(step.way, Sides) else {"shift_in_any_order"}
                found |= {"folded_shift", "folded_owner"} if step.way == "folded" else set()
    return needed(found)


def _comment(step: Step, layouts: dict[str, Layout], program: Program) -> str:
    return f"{touched(step)}{rule(step, layouts, program.mesh)[touched(step)]}"


def _terms(layouts: dict[str, Layout], operands: tuple[str, ...], dims: tuple[str, ...]) -> tuple[str, dict[str, str]]:
    """An einsum's subscripts, and the letter of each dimension in them."""
    letters = _letters(layouts, operands)
    terms = ",".join("".join(letters[dim] for dim in layouts[array].names) for array in operands)
    return f"{terms}->{''.join(letters[dim] for dim in dims)}", letters


# More than 52 dimensions stand in an einsum as JAX allows it: by any other letters.
_LETTERS = string.ascii_letters + "".join(filter(str.isalpha, map(chr, range(0x100, 0x2000))))


def _letters(layouts: dict[str, Layout], operands: tuple[str, ...]) -> dict[str, str]:
    letters: dict[str, str] = {}
    taken: set[str] = set()
    free = iter(_LETTERS)
    for array in operands:
        for dim in layouts[array].names:
            if dim not in letters:
                wish = dim[0].lower()
                letters[dim] = wish if wish in string.ascii_lowercase and wish not in taken else _first(free, taken)
                taken.add(letters[dim])
    return letters


def _first(free: Iterator[str], taken: set[str]) -> str:
    return next(letter for letter in free if letter not in taken)


# What the text of a module calls by these names; and what a reader, or a checker, would take for something else.
_RESERVED = frozenset(
    ["jax", "jnp", "lax", "np", "math", "itertools", "mesh", "local", "program", "p", "namedsharding", "namedtuple"]
    + [name.lower() for name in HELPERS]
) | {*keyword.kwlist, *keyword.softkwlist, *dir(builtins), *(name.lower() for name in keyword.kwlist)}


def _variables(program: Program, function: str) -> dict[str, str]:
    names = [name for name, _ in program.inputs] + [einsum.result for step in program.steps if (einsum := einsum_of(step))]
    variables: dict[str, str] = {}
    for name in names:
        wish = _identifier(name)
        while wish in variables.values() or wish in _RESERVED or wish == function:
            wish += "_"
        variables.setdefault(name, wish)
    return variables


def _identifier(name: str) -> str:
    """The nearest identifier, in the one form (NFKC) in which Python compares them.

    >>> _identifier("W'"), _identifier("A²"), _identifier("W₁")
    ('w_', 'a2', 'w1')
    """
    plain = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).lower())
    found = "".join(character if f"a{character}".isidentifier() else "_" for character in plain) or "_"
    return found if found.isidentifier() else f"_{found}"


def _documented(title: str) -> str:
    """A title between the quotes of a docstring, which it cannot leave."""
    return f'"""{one_line(title)}"""' if not set(title) & {'"', "\\"} else repr(one_line(title))


def _axes(axes: Axes) -> str:
    return repr(axes[0]) if len(axes) == 1 else repr(axes)


def _spec(layout: Layout) -> str:
    entries = [repr(None) if not axes else _axes(axes) for _, axes in layout.dims]
    if layout.unreduced:
        entries.append(f"unreduced={{{', '.join(map(repr, sorted(layout.unreduced)))}}}")
    return f"P({', '.join(entries)})"
