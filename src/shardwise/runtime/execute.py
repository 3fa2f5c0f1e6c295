"""Running: an equation and arrays become a cached, jitted function, and its result."""

from __future__ import annotations

import functools
import inspect
import keyword
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from shardwise.chips import Hardware
from shardwise.distributed.preflights import agree, collectives, processes_of
from shardwise.errors import ArrayError, LayoutError, MeshError, NotationError, PlanError, counted, pointed
from shardwise.layout import Layout, not_divisible
from shardwise.mesh import Mesh
from shardwise.notation import Equation, Operand, checked_sizes, padded_sizes, parse
from shardwise.planning.prices import ITEM_BYTES
from shardwise.planning.problem import Problem, problem
from shardwise.planning.ranking import rank
from shardwise.program import Program
from shardwise.runtime.arrays import (
    as_array,
    check_layout,
    check_numeric,
    check_shape,
    check_told,
    check_types,
    explicit_axes,
    is_whole,
    place,
    sharding_of,
    told_layout,
    untold_dims,
)
from shardwise.runtime.devices import (
    AnyMesh,
    check_mesh,
    find_mesh,
    hardware_of,
    inside_jit,
    kind_of,
    refuse_manual,
    settled,
)
from shardwise.runtime.lower import Arithmetic, lower
from shardwise.runtime.mapped import typed_as
from shardwise.runtime.padding import any_padded, remember, true_shape

CACHED = 512


@dataclass(frozen=True, slots=True)
class Options:
    """What besides equation, mesh and arrays decides a plan and its function; hashable."""

    hardware: Hardware | str | None = None
    out: Any = None
    memory_limit: float | None = None
    pad: bool = False
    arithmetic: Arithmetic = field(default_factory=Arithmetic)
    overlap: bool | str = True
    exact: bool = False


@dataclass(frozen=True, slots=True)
class Signature:
    """What is known of an array before its values: shape, dtype, and the sharding that fixes its place.

    `placeless`: nothing does, since it is of the host, or traced on no mesh as one of the host is. `loose`: inside `jit` its
    type says that every device holds all of it, as JAX types what is made there; each keeps its part, and nothing is sent.
    """

    shape: tuple[int, ...]
    dtype: Any
    sharding: Any
    placeless: bool
    traced: bool
    loose: bool


@dataclass(frozen=True, slots=True)
class Prepared:
    """A planned and jitted function, and the arguments that must be placed before it is called, with their shapes.

    `told`: whether types tell the layout of the result, so that it may be made inside `jit`. `sizes`: the true ones, where
    some dimension is padded.
    """

    function: Callable[..., Any]
    operands: tuple[Operand, ...]
    result: Operand
    mesh: AnyMesh
    to_place: tuple[tuple[int, tuple[int, ...]], ...]
    told: bool
    sizes: Mapping[str, int] | None

    def __call__(self, *arrays: Any) -> Any:
        if not self.told and inside_jit():
            check_told(self.result, self.mesh)
        given = arrays
        if self.to_place:
            placed = list(arrays)
            for index, shape in self.to_place:
                placed[index] = place(arrays[index], self.operands[index], self.mesh, shape)
            arrays = tuple(placed)
        result = self.function(*arrays)
        return self.remembered(result, given) if self.sizes is not None or any_padded(given) else result

    def remembered(self, result: Any, arrays: tuple[Any, ...]) -> Any:
        """The result, with its true shape kept: what an operand fills up with zeros is zero in a sum of products."""
        sizes = dict(zip(self.result.dims, result.shape, strict=True)) | dict(self.sizes or {})
        for operand, array in zip(self.operands, arrays, strict=True):
            for dim, size in zip(operand.dims, true_shape(array), strict=True):
                sizes[dim] = min(size, sizes.get(dim, size))
        return remember(result, (sizes[dim] for dim in self.result.dims))


def run(text: str, arrays: tuple[Any, ...], mesh: Any, options: Options) -> Any:
    """Plan, compile and run an equation; plan and executable are cached by everything but the values."""
    if not isinstance(text, str):
        parse(text)  # says what an equation is
    arrays = tuple(map(as_array, arrays))
    check_options(options)
    refuse_manual()
    mesh = settled(mesh if isinstance(mesh, AnyMesh) else find_mesh(mesh, arrays))
    return prepare(text, mesh, options, tuple(map(signature, arrays)))(*arrays)


def signature(array: Any) -> Signature:
    sharding = sharding_of(array)
    traced = isinstance(array, jax.core.Tracer)
    placeless = sharding is None and (not traced or jax.typeof(array).sharding.mesh.empty)
    loose = traced and sharding is not None and is_whole(sharding) and inside_jit()
    return Signature(array.shape, array.dtype, sharding, placeless, traced, loose)


@functools.lru_cache(maxsize=CACHED)
def prepare(text: str, mesh: AnyMesh, options: Options, given: tuple[Signature, ...]) -> Prepared:
    """Check arrays against the equation, plan, lower and jit."""
    check_mesh(mesh)
    check_precision(options.arithmetic.precision)
    equation = read_equation(text, mesh, options, given)
    bound = bind(equation, mesh, options, given)
    return prepared(_chosen(bound.task, mesh), mesh, options, given, bound)


def _chosen(task: Problem, mesh: AnyMesh) -> Program:
    """The cheapest program; where the planner may choose the result's layout, one that the mesh's types can tell, if any."""
    programs = [candidate.program for candidate in rank(task)]
    return next((each for each in programs if not any(untold_dims(each.result, mesh))), programs[0])


def planned_function(
    task: Problem, program: Program, mesh: Any, arithmetic: Arithmetic | None = None,
    compiler_options: tuple[tuple[str, str], ...] = (),
) -> Callable[..., Any]:  # fmt: skip
    """A program as a function that holds its arguments against the plan, and places those of the host.

    Args:
        compiler_options: of TPU compilers, by name, for what is compiled by itself: not inside of another `jax.jit`.

    Raises:
        MeshError: the mesh has other axes than the plan.
    """
    mesh = find_mesh(mesh)
    grid = Mesh.parse(mesh)
    if grid != task.mesh:
        raise MeshError(f"the plan is for mesh {task.mesh}, and the mesh given is {grid}")

    @functools.lru_cache(maxsize=CACHED)
    def prepare_for(mesh: AnyMesh, given: tuple[Signature, ...], alone: bool) -> Prepared:
        options = Options(task.hardware, arithmetic=arithmetic or Arithmetic())
        bound = bind(task.equation, mesh, options, given)
        if bound.sizes != task.sizes:
            wrong = ", ".join(f"{d}={bound.sizes[d]} for {d}={n}" for d, n in task.sizes.items() if bound.sizes[d] != n)
            raise ArrayError(f"the arrays have other sizes than the plan: {wrong}")
        return prepared(program, mesh, options, given, bound, dict(compiler_options) if alone else {})

    def function(*arrays: Any) -> Any:
        arrays = tuple(map(as_array, arrays))
        refuse_manual()
        where, given = settled(mesh), tuple(map(signature, arrays))
        alone = kind_of(where).startswith("TPU") and not inside_jit() and not any(array.traced for array in given)
        return prepare_for(where, given, alone)(*arrays)

    names = [name for name, _ in program.inputs]
    if all(name.isidentifier() and not keyword.iskeyword(name) for name in names):  # audits call the arguments so
        parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in names]
        function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return function


def check_options(options: Options) -> None:
    """Refuse options that cannot be part of the key of a cache."""
    given = {"out": options.out, "memory_limit": options.memory_limit, "precision": options.arithmetic.precision}
    given["overlap"] = options.overlap
    given["preferred_element_type"] = options.arithmetic.preferred_element_type
    for name, value in given.items():
        try:
            hash(value)
        except TypeError:
            raise PlanError(f"{name}={value!r}: a {type(value).__name__} is not known here, give a plain value") from None


@dataclass(frozen=True, slots=True)
class Bound:
    """An equation held against arrays: the problem to plan, in padded sizes, and the true sizes."""

    task: Problem
    sizes: Mapping[str, int]


def prepared(
    program: Program, mesh: AnyMesh, options: Options, given: tuple[Signature, ...], bound: Bound,
    compiler_options: Mapping[str, str] = {},
) -> Prepared:  # fmt: skip
    """The jitted function of a program for arguments of these signatures."""
    operands, padded = bound.task.equation.operands, bound.task.sizes
    same = dict(padded) == dict(bound.sizes)
    lowered = lower(program, mesh, options.arithmetic, *(() if same else (padded, bound.sizes)))
    written = told_layout(bound.task.equation.as_written(program.result, bound.task.mesh), mesh)
    lowered = _typed(lowered, program.result, written)
    to_place = tuple(
        (index, tuple(padded[d] if axes else bound.sizes[d] for d, axes in operand.layout.dims))
        for index, (operand, array) in enumerate(zip(operands, given, strict=True))
        if array.placeless or (array.loose and operand.layout.axes)
    )
    result = Operand(bound.task.equation.result.name, program.result)
    told = not any(untold_dims(program.result, mesh))
    # Where a type does not tell the whole layout, jit is told it: else it lays the result out by its type.
    sharding = None if told or not isinstance(mesh, jax.sharding.Mesh) else NamedSharding(mesh, program.result.spec)
    true_sizes = None if same else bound.sizes
    jitted = jax.jit(lowered, out_shardings=sharding, compiler_options=dict(compiler_options) or None)
    ready = Prepared(jitted, operands, result, mesh, to_place, told, true_sizes)
    _compare_processes(ready, program, options, given, bound)
    return ready


def _typed(function: Callable[..., Any], result: Layout, written: Layout) -> Callable[..., Any]:
    """The function with its result typed as it is written."""

    @functools.wraps(function)
    def typed(*arrays: Any) -> Any:
        return typed_as(function(*arrays), written.spec)

    return function if result == written else typed


def _compare_processes(ready: Prepared, program: Program, options: Options, given: tuple[Signature, ...], bound: Bound) -> None:
    """Have the processes of the mesh agree on what they run, the first time; what is traced in `jit` runs later, if at all.

    Raises:
        DistributedError: they do not agree, or one does not come.
    """
    if len(processes_of(ready.mesh)) < 2 or inside_jit():
        return
    equation = str(bound.task.equation)
    told = {
        "equation": equation,
        "arrays": ", ".join(f"{array.dtype}[{', '.join(map(str, array.shape))}]" for array in given),
        "plan": "; ".join(" ".join(line.split()) for line in str(program).splitlines()),
        "arithmetic": str(options.arithmetic),
    }
    agree(f"einsum {equation}", ready.mesh, told)
    if not any(array.traced for array in given):
        jitted: Any = ready.function
        compiled = jitted.lower(*_types(ready, given)).compile()  # the first call finds it again
        agree(f"einsum {equation}", ready.mesh, {**told, "collectives": collectives(compiled)})


def _types(ready: Prepared, given: tuple[Signature, ...]) -> list[jax.ShapeDtypeStruct]:
    """The arguments of a prepared function as types, once they are placed."""
    placed = dict(ready.to_place)
    assert isinstance(ready.mesh, jax.sharding.Mesh)
    return [
        jax.ShapeDtypeStruct(
            placed.get(index, array.shape),
            jax.dtypes.canonicalize_dtype(array.dtype),
            sharding=NamedSharding(ready.mesh, operand.layout.spec) if index in placed else array.sharding,
        )
        for index, (operand, array) in enumerate(zip(ready.operands, given, strict=True))
    ]


def bind(equation: Equation, mesh: AnyMesh, options: Options, given: tuple[Signature, ...]) -> Bound:
    """Hold arrays against the equation.

    Raises:
        ArrayError: their number, rank, dtype or layout is not the one written, or one is empty.
        NotationError: a dimension with two sizes.
        LayoutError: a size that its axes do not divide.
    """
    if len(given) != len(equation.operands):
        written = ", ".join(operand.name for operand in equation.operands)
        have = f"{counted(len(equation.operands), 'operand')} ({written})"
        raise ArrayError(f"the equation has {have}, and {counted(len(given), 'array')} {_are(given)} given: give one for each")
    grid = Mesh.parse(mesh)
    canonical = equation.on(grid)
    for operand, array in zip(canonical.operands, given, strict=True):
        check_shape(array.shape, operand)
        check_numeric(array.dtype, operand.name)
        if array.dtype == bool and (len(given) > 1 or canonical.contracted or operand.layout.unreduced):
            raise ArrayError(f"array {operand.name} is of bool, which has no sums: convert it, as with .astype('int32')")
    sizes = checked_sizes(canonical, {index: array.shape for index, array in enumerate(given)})
    stages = (*canonical.operands, *canonical.via, canonical.result)
    padded = padded_sizes(stages, sizes, grid) if options.pad else sizes
    for operand in stages:
        check_types(operand, mesh)
        for dim, axes in operand.layout.dims:
            if padded[dim] % grid.extent(axes):
                raise LayoutError(f"{operand}: {not_divisible(dim, padded[dim], axes, grid)}")
    for operand, array in zip(canonical.operands, given, strict=True):
        if not array.placeless:
            _check_placed(array, operand, mesh, padded)
    preferred = dtype_name(options.arithmetic.preferred_element_type)
    task = problem(
        canonical,
        padded,
        grid,
        options.hardware or hardware_of(mesh),
        jnp.result_type(*(jax.dtypes.canonicalize_dtype(array.dtype) for array in given)).name,
        preferred,
        options.memory_limit,
        options.overlap,
        options.exact,
    )
    return Bound(task, sizes)


def check_precision(precision: Any) -> None:
    one = jax.ShapeDtypeStruct((1,), jnp.float32)
    try:
        jax.eval_shape(functools.partial(jnp.dot, precision=precision), one, one)
    except (TypeError, ValueError):
        raise PlanError(f"precision={precision!r} is none: give a jax.lax.Precision, as 'highest'") from None


def dtype_name(dtype: Any) -> str | None:
    try:
        name = None if dtype is None else jnp.dtype(dtype).name
    except TypeError:
        name = "?"
    if name is not None and name not in ITEM_BYTES:
        raise PlanError(f"preferred_element_type={dtype!r} is no dtype that is known: give one as jnp.float32")
    return name


def _are(given: tuple[Any, ...]) -> str:
    return "is" if len(given) == 1 else "are"


def _check_placed(array: Signature, operand: Operand, mesh: AnyMesh, padded: Mapping[str, int]) -> None:
    if array.sharding is not None:
        check_layout(
            array.sharding, Operand(operand.name, Layout.from_spec((), operand.dims)) if array.loose else operand, mesh
        )
    for (dim, axes), size in zip(operand.layout.dims, array.shape, strict=True):
        if axes and padded[dim] != size and not array.loose:
            raise ArrayError(
                f"array {operand.name} is split over {', '.join(axes)} already, with {size} of {dim}, which the equation "
                f"needs padded to {padded[dim]}: give it as a host array, or place it with that size"
            )


# Two ways to write an equation.


def read_equation(text: str, mesh: AnyMesh, options: Options, given: tuple[Signature, ...]) -> Equation:
    """Read the notation, or the short form `ij,jk->ik`, whose layouts are those of the arrays.

    Raises:
        NotationError: it is neither; or `out` is given beside a result that says its layout already.
    """
    if not isinstance(text, str) or "[" in text or not re.fullmatch(r"[\s\w,]*(->|→)?[\s\w]*", text) or not text.strip():
        if options.out is not None:
            raise NotationError(f"out={options.out!r} is given, but {text!r} says the result's layout already: drop out")
        return parse(text)
    return _from_short_form(text, mesh, options.out, given)


def _from_short_form(text: str, mesh: AnyMesh, out: Any, given: tuple[Signature, ...]) -> Equation:
    grid = Mesh.parse(mesh)
    compact = "".join(text.split()).replace("→", "->")
    if "->" not in compact:
        raise NotationError(pointed(text, len(text.rstrip()), "missing arrow", "say what is wanted: ij,jk->ik"))
    left, right = compact.split("->")
    terms = left.split(",")
    if len(terms) != len(given):
        have = f"{text!r} has {counted(len(terms), 'operand')}, and {counted(len(given), 'array')} {_are(given)} given"
        raise ArrayError(f"{have}: give one array for each operand, operands separated by commas")
    operands = []
    for index, (term, array) in enumerate(zip(terms, given, strict=True)):
        name = _name(index)
        if len(term) != len(array.shape):
            have = f"operand {term!r} has {counted(len(term), 'dimension')}, and its array has shape {array.shape}"
            raise ArrayError(f"{have}: every letter names one dimension")
        if array.traced and len(explicit_axes(mesh)) < len(grid.names):
            raise NotationError(
                f"{text!r} reads layouts off the arrays, but inside jit under Auto axes operand {term!r} shows none: "
                "write the layouts, as A[I_x, J], or use Explicit axes"
            )
        spec = array.sharding.spec if isinstance(array.sharding, NamedSharding) else ()
        operands.append(Operand(name, Layout.from_spec(spec, list(term))))
    layout = Layout.from_spec((), list(right)) if out is None else _out_layout(out, right)
    result = Operand(_name(len(terms)), layout, frozenset(right) if out is None else frozenset())
    shown = " · ".join(map(str, operands)) + f" -> {result}"
    return parse(shown)


def _out_layout(out: Any, dims: str) -> Layout:
    if isinstance(out, PartitionSpec):
        return Layout.from_spec(out, list(dims))
    layout = Layout.parse(out)
    if layout.names != tuple(dims):
        raise NotationError(f"out={str(out)!r} has dimensions {', '.join(layout.names)}, and the result has {', '.join(dims)}")
    return layout


def _name(index: int) -> str:
    return "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[index % 26] + "'" * (index // 26)
