"""The one file that touches MLIR: Shardy's passes over a lowered function, changed first where that is asked for.

The passes are those of `sdy-propagation-pipeline` as the jaxlib at hand writes it out, with three options changed: origins of
layouts and rules of operations are kept, and every movement stands in the module. Nothing is compiled.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from shardwise.errors import ShardwiseError, one_line, shortened
from shardwise.layout import Layout

_PIPELINE = "builtin.module(sdy-propagation-pipeline)"
_EXPANDED = "builtin.module(func.func(chlo-legalize-to-stablehlo))"  # of these operations Shardy knows no rules; so does XLA
_CHANGED = (
    # Not of sdy-apply-sharding-constraints, which ends the process on some functions with a shard_map when it keeps origins.
    ("debug-sharding-origins=false keep-sharding-rules", "debug-sharding-origins=true keep-sharding-rules"),
    ("enable-full-version=false", "enable-full-version=true"),
    (",func.func(sdy-drop-sharding-rules)", ""),
    (" module-dump-directory= ", " "),
)
_NOT_NEEDED = re.compile(r",sdy-save-module|,canonicalize\{[^{}]*(?:\{[^{}]*\})?[^{}]*\}")
NUMBER = "shardwise.number"


class NoPassesError(ShardwiseError, RuntimeError):
    """The jaxlib at hand lacks a pass, or a pass fails: the reason in its own words."""


@dataclass(frozen=True, slots=True)
class ArgumentLaid:
    """A change: an argument, by its number, comes in as a layout."""

    argument: int
    layout: Layout


@dataclass(frozen=True, slots=True)
class ConstraintLaid:
    """A change: a constraint, by its number, asks for a layout; None drops it."""

    constraint: int
    layout: Layout | None


@dataclass(frozen=True, slots=True)
class ResultLaid:
    """A change: what an operation makes, by its number in the function as it was lowered, is constrained to a layout."""

    number: int
    layout: Layout


@dataclass(frozen=True, slots=True)
class InsideLaid:
    """A change: inside of the function an argument is constrained to a layout before anything uses it."""

    argument: int
    layout: Layout


Change = ArgumentLaid | ConstraintLaid | ResultLaid | InsideLaid


def numbered(module: Any) -> Any:
    """A copy of a lowered module, to be changed: every operation has a number.

    Args:
        module: StableHLO with Shardy's annotations, as `lowered.compiler_ir("stablehlo")` gives it.
    """
    from jaxlib.mlir import ir

    copied = module.operation.clone()
    with copied.context:
        kind = ir.IntegerType.get_signless(64)
        for number, operation in enumerate(walked(copied)):
            operation.attributes[NUMBER] = ir.IntegerAttr.get(kind, number)
    return copied


def changed(operation: Any, changes: Iterable[Change]) -> Any:
    """A copy of a numbered module with changes."""
    from jaxlib.mlir import ir

    copied = operation.clone()
    with copied.context, ir.Location.unknown():
        wanted = tuple(changes)
        numbers = {number_of(each): each for each in walked(copied)} if wanted else {}
        for change in wanted:
            _change(copied, change, numbers)
    return copied


@dataclass(frozen=True, slots=True)
class Propagated:
    """What stands between the passes: the number of each named constraint, and the layouts that each operation's results are
    meant to have, as text by its number."""

    constraints: dict[str, int]
    wanted: dict[int, str]


def bytecode(operation: Any) -> bytes:
    """A module that `changed` made as MLIR bytecode, without our numbers: what a compiler takes."""
    written = io.BytesIO()
    for each in walked(operation):
        if NUMBER in each.attributes:
            del each.attributes[NUMBER]
    operation.write_bytecode(written)
    return written.getvalue()


def propagated(operation: Any) -> Propagated:
    """Run the passes over a copy that `numbered` or `changed` made, in place.

    Raises:
        NoPassesError: a pass is missing or fails.
    """
    try:
        from jaxlib.mlir.dialects import stablehlo
        from jaxlib.mlir.passmanager import PassManager

        stablehlo.register_stablehlo_passes()
        first, second, third = passes(operation.context)
        with operation.context:
            PassManager.parse(_EXPANDED).run(operation)
            PassManager.parse(first).run(operation)
            names = dict(_names(operation))
            PassManager.parse(second).run(operation)
            wanted = dict(_wanted(operation))
            PassManager.parse(third).run(operation)
    except Exception as error:  # MLIR's errors share no public type
        raise NoPassesError(f"Shardy's passes do not run here: {shortened(one_line(str(error)), 300)}") from error
    return Propagated(names, wanted)


def passes(context: Any) -> tuple[str, str, str]:
    """The pipeline of the jaxlib at hand: to where constraints have names, to where values have layouts, and the rest."""
    from jaxlib.mlir.passmanager import PassManager

    text = str(PassManager.parse(_PIPELINE, context))
    for old, new in _CHANGED:
        text = text.replace(old, new)
    text = _NOT_NEEDED.sub("", text)
    head, split, tail = text.partition(",sdy-export-named-computations")
    middle, insertion, end = tail.partition(",func.func(sdy-insert-explicit-reshards{")
    if not split or not insertion or "debug-sharding-origins=true keep" not in head or "enable-full-version=true" not in tail:
        raise NoPassesError("the pipeline of this jaxlib is written otherwise: sdy-propagation-pipeline")
    return f"{head})", f"builtin.module({split[1:]}{middle})", f"builtin.module({insertion[1:]}{end}"


@dataclass(frozen=True, slots=True)
class Node:
    """An operation without MLIR: its attributes that matter as text, and its regions, each with what it takes.

    `operands`, `results` and what regions take are numbers of values; `shapes` says the shape and dtype of each result.
    """

    name: str
    attributes: dict[str, str]
    operands: tuple[int, ...]
    results: tuple[int, ...]
    location: str
    regions: tuple[tuple[tuple[int, ...], tuple[Node, ...]], ...] = ()


Shapes = dict[int, tuple[tuple[int, ...], str]]


@dataclass(frozen=True, slots=True)
class Tree:
    """A module without MLIR: its meshes, its functions, the shape and dtype of every value.

    `attributes` of the arguments and results of each function stand as texts in `taken` and `given`.
    """

    meshes: tuple[str, ...]
    functions: dict[str, Node]
    taken: dict[str, tuple[dict[str, str], ...]]
    given: dict[str, tuple[dict[str, str], ...]]
    shapes: Shapes


_KEPT = (
    "sdy.sharding", "sdy.sharding_rule", "sdy.sharding_origins", "sdy.result_sharding_origins",
    "sdy.sharding_origin_name", "sharding", "out_sharding", "reduction_axes", "callee", "call_target_name", "replica_groups",
    "source_target_pairs", "in_shardings", "out_shardings", "manual_axes", "comparison_direction", "all_gather_dim",
    "scatter_dimension", "split_dimension", "concat_dimension", "backend_config", "jax.result_info", NUMBER,
)  # fmt: skip


def tree(operation: Any) -> Tree:
    """A module as plain values."""
    numbers, shapes = dict[Any, int](), Shapes()

    def number(value: Any) -> int:
        if value not in numbers:
            numbers[value] = len(numbers)
            known = shape_of(value)
            if known is not None:
                shapes[numbers[value]] = known
        return numbers[value]

    def node(op: Any) -> Node:
        name = op.name
        attributes = {key: str(op.attributes[key]) for key in _KEPT if key in op.attributes}
        operands, results = tuple(number(each) for each in op.operands), tuple(number(each) for each in op.results)
        if name in ("sdy.constant", "stablehlo.constant") and results and shapes.get(results[0], ((0,), ""))[0] == ():
            attributes["value"] = str(op.attributes["value"])
        walk = name in _WALKED
        regions = tuple(block(region.blocks[0]) for region in op.regions if len(region.blocks)) if walk else ()
        return Node(name, attributes, operands, results, str(op.location), regions)

    def block(each: Any) -> tuple[tuple[int, ...], tuple[Node, ...]]:
        taken = tuple(number(argument) for argument in each.arguments)
        return taken, tuple(node(inner.operation) for inner in each.operations)

    found = functions(operation)
    meshes = tuple(
        text(each.operation, "mesh") for each in operation.regions[0].blocks[0].operations if each.operation.name == "sdy.mesh"
    )
    taken = {name: _attributes(each, "arg_attrs") for name, each in found.items()}
    given = {name: _attributes(each, "res_attrs") for name, each in found.items()}
    return Tree(meshes, {name: node(each) for name, each in found.items()}, taken, given, shapes)


_WALKED = frozenset({"func.func", "stablehlo.while", "stablehlo.case", "sdy.manual_computation", "sdy.named_computation"})


def _attributes(function: Any, name: str) -> tuple[dict[str, str], ...]:
    if name not in function.attributes:
        return ()
    return tuple({key: str(value) for key, value in _entries(each)} for each in function.attributes[name])


def functions(operation: Any) -> dict[str, Any]:
    """The functions of a module, by name."""
    each = (op.operation for op in operation.regions[0].blocks[0].operations)
    return {text(op, "sym_name").strip('"'): op for op in each if op.name == "func.func"}


def walked(operation: Any) -> Iterator[Any]:
    """Every operation inside of one, in order."""
    for region in operation.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield inner.operation
                yield from walked(inner.operation)


def text(operation: Any, name: str) -> str:
    """An attribute of an operation as text; empty where it has none."""
    return str(operation.attributes[name]) if name in operation.attributes else ""


def number_of(operation: Any) -> int | None:
    """The number that `numbered` gave an operation; None of one that a pass made."""
    found = text(operation, NUMBER).split(" ")[0]
    return int(found) if found.isdigit() else None


def shape_of(value: Any) -> tuple[tuple[int, ...], str] | None:
    """The shape and dtype of a value; None of one that is no array of known sizes."""
    from jaxlib.mlir import ir

    try:
        kind = ir.RankedTensorType(value.type)
    except ValueError:
        return None
    if not kind.has_static_shape:
        return None
    return tuple(kind.shape), str(kind.element_type)


def _names(operation: Any) -> Iterator[tuple[str, int]]:
    for each in walked(operation):
        name = text(each, "sdy.sharding_origin_name").strip('"')
        number = number_of(each)
        if name and number is not None:
            yield name, number


def _wanted(operation: Any) -> Iterator[tuple[int, str]]:
    for each in walked(operation):
        number, laid = number_of(each), text(each, "sdy.sharding")
        if number is not None and laid:
            yield number, laid


def _change(module: Any, change: Change, numbers: dict[int | None, Any]) -> None:
    from jaxlib.mlir import ir

    match change:
        case ArgumentLaid(argument, layout):
            main = functions(module)["main"]
            every = [dict(_entries(each)) for each in main.attributes["arg_attrs"]]
            every[argument]["sdy.sharding"] = ir.Attribute.parse(f"#sdy.sharding{_written(layout, _mesh_name(module))}")
            main.attributes["arg_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get(each) for each in every])
        case ConstraintLaid(constraint, layout):
            found = numbers[constraint]
            if layout is None:
                found.results[0].replace_all_uses_with(found.operands[0])
                found.erase()
            else:
                written = _written(layout, text(found, "sharding").partition("@")[2].partition(",")[0])
                found.attributes["sharding"] = ir.Attribute.parse(f"#sdy.sharding{written}")
        case ResultLaid(number, layout):
            found = numbers[number]
            _constrain(found.results[0], _written(layout, _mesh_name(module)), _following(found))
        case InsideLaid(argument, layout):
            block = functions(module)["main"].regions[0].blocks[0]
            _constrain(block.arguments[argument], _written(layout, _mesh_name(module)), ir.InsertionPoint.at_block_begin(block))


def _constrain(value: Any, layout: str, where: Any) -> None:
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import sdy

    with where:
        laid = sdy.ShardingConstraintOp(value, ir.Attribute.parse(f"#sdy.sharding{layout}"))
    value.replace_all_uses_except(laid.result, laid.operation)


def _following(operation: Any) -> Any:
    """Where to put what follows an operation: before the next one, which there is, since blocks end in a terminator."""
    from jaxlib.mlir import ir

    for region in operation.parent.regions:
        for block in region.blocks:
            every = list(block.operations)
            for place, each in enumerate(every):
                if each.operation == operation:
                    return ir.InsertionPoint(every[place + 1])
    raise AssertionError(operation.name)


def _entries(attributes: Any) -> Iterator[tuple[str, Any]]:
    for each in attributes:
        yield (each, attributes[each]) if isinstance(each, str) else (each.name, each.attr)


def _mesh_name(module: Any) -> str:
    """The mesh of the most devices."""
    meshes = [op.operation for op in module.regions[0].blocks[0].operations if op.operation.name == "sdy.mesh"]
    largest = max(meshes, key=lambda op: mesh_size(text(op, "mesh")))
    return text(largest, "sym_name").strip('"')


def mesh_size(written: str) -> int:
    """How many devices the text of a mesh has.

    >>> mesh_size('#sdy.mesh<["x"=4, "y"=2]>')
    8
    """
    size = 1
    for each in re.findall(r'"[^"]+"=(\d+)', written):
        size *= int(each)
    return size


def _written(layout: Layout, mesh: str) -> str:
    """A layout as Shardy writes it, closed: `<@mesh, [{"x"}, {}]>`."""
    dims = ", ".join("{" + ", ".join(f'"{axis}"' for axis in axes) + "}" for _, axes in layout.dims)
    unreduced = ", ".join(f'"{axis}"' for axis in sorted(layout.unreduced))
    return f"<@{mesh}, [{dims}]{f', unreduced={{{unreduced}}}' if unreduced else ''}>"
