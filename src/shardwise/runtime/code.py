"""A program as plain JAX source that runs without Shardwise: nobody is locked in."""

from __future__ import annotations

import keyword
from typing import assert_never

from shardwise.layout import Axes, Layout
from shardwise.program import Program, invarying_axes, rule
from shardwise.steps import AllGather, AllReduce, AllToAll, CollectivePermute, Einsum, ReduceScatter, Slice, Step, touched


def source(program: Program, title: str, function: str = "program") -> str:
    """Write a program as a module: a mesh, a local function, and the `shard_map` of it.

    >>> from shardwise.mesh import Mesh
    >>> text = source(Program(Mesh.parse("x=2"), (("A", Layout.parse("I_x")),), (AllGather("A", "I", ("x",)),), "A"), "")
    >>> "lax.all_gather(a, 'x', axis=0, tiled=True, to='invarying')" in text
    True
    """
    variables = _variables(program)
    states = program.states()
    needs = invarying_axes(program)
    parameters = ", ".join(variables[name] for name, _ in program.inputs)
    body = []
    for step, before, need in zip(program.steps, states, needs, strict=False):
        body.append(_line(step, before, program, variables, bool(need)))
    result = program.result
    returned = variables[program.output]
    if result.unreduced:
        returned = f"lax.pcast({returned}, {_axes(tuple(sorted(result.unreduced)))}, to='unreduced')"
    mesh_shape = tuple(size for _, size in program.mesh.axes)
    in_specs = "".join(f"{_spec(layout.on(program.mesh))}, " for _, layout in program.inputs)
    lines = [
        f'"""{title}"""',
        "",
        "import jax",
        "import jax.numpy as jnp",
        "from jax import lax",
        "from jax.sharding import PartitionSpec as P",
        "",
        f"mesh = jax.make_mesh({mesh_shape}, {program.mesh.names})",
        "",
        "",
        f"def local({parameters}):  # each argument is one device's shard",
        *(f"    {line}" for line in body),
        f"    return {returned}",
        "",
        "",
        f"{function} = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=({in_specs.rstrip()}), out_specs={_spec(result)}))",
    ]
    return "\n".join(lines) + "\n"


def _line(step: Step, layouts: dict[str, Layout], program: Program, variables: dict[str, str], invarying: bool) -> str:
    def at(array: str, dim: str) -> int:
        return layouts[array].names.index(dim)

    match step:
        case AllGather(array, dim, axes):
            name, to = variables[array], "invarying" if invarying else "varying"
            call = f"lax.all_gather({name}, {_axes(axes)}, axis={at(array, dim)}, tiled=True, to={to!r})"
        case ReduceScatter(array, dim, axes):
            name = variables[array]
            call = f"lax.psum_scatter({name}, {_axes(axes)}, scatter_dimension={at(array, dim)}, tiled=True)"
        case AllReduce(array, axes):
            name = variables[array]
            call = f"lax.psum({name}, {_axes(axes)})"
        case AllToAll(array, source_dim, target_dim, axes):
            name = variables[array]
            places = f"split_axis={at(array, target_dim)}, concat_axis={at(array, source_dim)}"
            call = f"lax.all_to_all({name}, {_axes(axes)}, {places}, tiled=True)"
        case CollectivePermute(array, axes, pairs, _):
            name = variables[array]
            call = f"lax.ppermute({name}, {_axes(axes)}, {list(pairs)})"
        case Slice(array, dim, axes):
            name, parts = variables[array], program.mesh.extent(axes)
            width = f"{name}.shape[{at(array, dim)}] // {parts}"
            start = f"lax.axis_index({_axes(axes)}) * ({width})"
            call = f"lax.dynamic_slice_in_dim({name}, {start}, {width}, axis={at(array, dim)})"
        case Einsum(operands, result, dims):
            name = variables[result]
            letters = _letters(layouts, operands)
            terms = ",".join("".join(letters[d] for d in layouts[array].names) for array in operands)
            wanted = "".join(letters[d] for d in dims)
            call = f"jnp.einsum({terms + '->' + wanted!r}, {', '.join(variables[array] for array in operands)})"
        case _:
            assert_never(step)
    return f"{name} = {call}  # {_comment(step, layouts, program)}"


def _comment(step: Step, layouts: dict[str, Layout], program: Program) -> str:
    return f"{touched(step)}{rule(step, layouts, program.mesh)[touched(step)]}"


def _letters(layouts: dict[str, Layout], operands: tuple[str, ...]) -> dict[str, str]:
    letters: dict[str, str] = {}
    free = iter("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    for array in operands:
        for dim in layouts[array].names:
            if dim not in letters:
                wish = dim[0].lower()
                taken = set(letters.values())
                letters[dim] = wish if wish.isascii() and wish not in taken else next(c for c in free if c not in taken)
    return letters


def _variables(program: Program) -> dict[str, str]:
    names = [name for name, _ in program.inputs] + [step.result for step in program.steps if isinstance(step, Einsum)]
    reserved = {"jax", "jnp", "lax", "mesh", "local", "program", "p"}
    variables: dict[str, str] = {}
    for name in names:
        wish = "".join(c if c.isalnum() or c == "_" else "_" for c in name.lower())
        while wish in variables.values() or wish in reserved or keyword.iskeyword(wish):
            wish += "_"
        variables.setdefault(name, wish)
    return variables


def _axes(axes: Axes) -> str:
    return repr(axes[0]) if len(axes) == 1 else repr(axes)


def _spec(layout: Layout) -> str:
    entries = [repr(None) if not axes else _axes(axes) for _, axes in layout.dims]
    if layout.unreduced:
        entries.append(f"unreduced={{{', '.join(map(repr, sorted(layout.unreduced)))}}}")
    return f"P({', '.join(entries)})"
