"""From a propagated module to a graph: loops, branches and calls laid out flat, every value with its layout and sources."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from shardwise.compiled.facts import Line
from shardwise.compiled.text.groups import axes_of_groups, axes_of_pairs, parse_groups, parse_pairs
from shardwise.compiled.text.sources import Frame, Ways
from shardwise.intent.annotations import axes_in, frames_in, layouts_in, mesh_in, origins_in, scope_in, whole
from shardwise.intent.flowgraph import SAME, Constraint, Graph, Operation, Source, Value
from shardwise.intent.rules import read_rule
from shardwise.intent.shardy import NUMBER, Node, Propagated, Tree
from shardwise.layout import Axes, Layout
from shardwise.mesh import Mesh

DTYPES = {
    "bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64", "i1": "bool", "i4": "int4",
    "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64", "ui8": "uint8", "ui16": "uint16", "ui32": "uint32",
    "ui64": "uint64", "complex<f32>": "complex64", "complex<f64>": "complex128", "f8E4M3FN": "float8_e4m3fn",
    "f8E5M2": "float8_e5m2",
}  # fmt: skip
COLLECTIVES = {
    "stablehlo.all_gather": "all-gather", "stablehlo.reduce_scatter": "reduce-scatter", "stablehlo.all_reduce": "all-reduce",
    "stablehlo.all_to_all": "all-to-all", "stablehlo.collective_permute": "collective-permute",
}  # fmt: skip
_INTEGER = re.compile(r"dense<(-?\d+)>")
_NAMED = re.compile(r"(input|output|constraint_\d+|mc_\d+_input|mc_\d+_output)(?:: (\d+))?$")
_GROUP_AXES = re.compile(r'axis_ref<name = "([^"]+)"')
_MANUAL = re.compile(r"mc_\d+")
_LAID_OUT = ("sdy.sharding_constraint", "sdy.reshard")  # an array in another layout


@dataclass(frozen=True, slots=True)
class Named:
    """What the annotations of a module are called: arguments, results, constraints by number; and their lines."""

    arguments: tuple[str, ...]
    results: tuple[str, ...]
    constraints: Mapping[str, int]
    lines: Mapping[str, Line | None]


@dataclass(frozen=True, slots=True)
class _Where:
    """Where a block runs: how often, inside of a map or not, and what called it."""

    trips: int | None = 1
    manual: bool = False
    frames: tuple[Frame, ...] = ()
    scope: str = ""

    def at(self, location: str) -> tuple[tuple[Frame, ...], str]:
        """The frames and the scope of what stands here: within a function they may begin at the function."""
        frames, scope = frames_in(location), scope_in(location)
        if self.scope and scope and not scope.startswith("jit("):
            scope = f"{self.scope}/{scope}"
        own = frames if self.frames[-1:] == frames[-1:] else (*frames, *self.frames)
        return own, scope or self.scope


@dataclass(slots=True)
class _Flat:
    """The state of one flattening."""

    tree: Tree
    mesh: Mesh
    named: Named
    ways: Ways
    wanted: Mapping[int, str]
    values: list[Value] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    constants: dict[int, int] = field(default_factory=dict)
    frames: list[tuple[Frame, ...]] = field(default_factory=list)  # of each operation


def flatten(tree: Tree, original: Tree, between: Propagated, arguments: Sequence[str]) -> Graph:
    """The graph of a propagated module.

    Args:
        original: the module before the passes, which says what each constraint asks for.
        between: what was known between the passes.
        arguments: what users call what the function takes.
    """
    mesh = max((mesh_in(each) for each in tree.meshes), key=lambda grid: grid.size, default=Mesh(()))
    ways = Ways()
    nodes = [node for function in original.functions.values() for node in every_node(function)]
    for location in dict.fromkeys(node.location for node in nodes):
        ways.add(frames_in(location))
    results = tuple(each.get("jax.result_info", "").strip('"') or "the result" for each in tree.given["main"])
    asked = _constraints(nodes, original, ways)
    by_number = {each.number: each.line for each in asked}
    lines: dict[str, Line | None] = {name: by_number.get(number) for name, number in between.constraints.items()}
    for node in (node for function in tree.functions.values() for node in every_node(function)):
        name = node.attributes.get("sdy.sharding_origin_name", "").strip('"')
        if name and name not in lines:
            lines[name] = ways.line(frames_in(node.location))
    flat = _Flat(tree, mesh, Named(tuple(arguments), results, between.constraints, lines), ways, between.wanted)
    main = tree.functions["main"]
    taken, body = main.regions[0]
    env: dict[int, int] = {}
    for place, number in enumerate(taken):
        said = tree.taken["main"][place] if place < len(tree.taken["main"]) else {}
        env[number] = _value(flat, number, said.get("sdy.sharding", ""), said.get("sdy.sharding_origins", ""), argument=place)
    given = _block(flat, body, env, _Where())
    lines_of_all = _lines(flat)
    names = tuple(arguments[place] if place < len(arguments) else f"argument {place}" for place in range(len(taken)))
    return Graph(
        mesh, tuple(flat.values), lines_of_all, tuple(env[number] for number in taken), tuple(given), names, asked,
        tuple(dict.fromkeys(flat.unread)), results,
    )  # fmt: skip


def every_node(node: Node) -> Iterator[Node]:
    """A node and all inside of it."""
    yield node
    for _, nodes in node.regions:
        for each in nodes:
            yield from every_node(each)


def _lines(flat: _Flat) -> tuple[Operation, ...]:
    """Every operation with its line, once all ways to the lines are known."""
    known = {frames: flat.ways.line(frames) for frames in dict.fromkeys(flat.frames)}
    return tuple(
        replace(each, line=known[frames]) if known[frames] else each
        for each, frames in zip(flat.operations, flat.frames, strict=True)
    )


def _constraints(nodes: Sequence[Node], original: Tree, ways: Ways) -> tuple[Constraint, ...]:
    found = []
    for node in nodes:
        if node.name == "sdy.sharding_constraint":
            shape = original.shapes.get(node.results[0], ((), ""))[0]
            layout = (*layouts_in(node.attributes.get("sharding", "")), whole(len(shape)))[0]
            number = int(node.attributes[NUMBER].split(" ")[0])
            found.append(Constraint(number, shape, layout, ways.line(frames_in(node.location)), scope_in(node.location)))
    return tuple(found)


def _value(
    flat: _Flat, number: int, sharding: str, origins: str = "", *, maker: int | None = None, argument: int | None = None,
    same: int | None = None, place: int = 0, own: str = "",
) -> int:  # fmt: skip
    """Make a value of one that the module has; of several layouts in a text the one at `place`."""
    shape, dtype = flat.tree.shapes.get(number, ((), "token"))
    layouts, sources = layouts_in(sharding), origins_in(origins)
    layout = layouts[place] if place < len(layouts) else whole(len(shape))
    said = sources[place] if place < len(sources) else {}
    known = tuple((axis, _source(flat, own if name == "self" and own else name, argument)) for axis, name in said.items())
    if not known and same is not None:
        known = flat.values[same].sources
    flat.values.append(
        Value(len(flat.values), shape, DTYPES.get(dtype, dtype), layout, known, maker, argument, same)
    )  # fmt: skip
    return len(flat.values) - 1


def _source(flat: _Flat, name: str, argument: int | None) -> Source:
    if name == "self" and argument is not None:
        name = f"input: {argument}"
    found = _NAMED.match(name)
    if found is None:
        return Source("unknown")
    kind, number = found[1], int(found[2] or 0)
    named = flat.named
    if kind == "input":
        return Source("argument", number, named.arguments[number] if number < len(named.arguments) else f"argument {number}")
    if kind == "output":
        return Source("result", number, named.results[number] if number < len(named.results) else "the result")
    if kind.startswith("constraint"):
        return Source("constraint", named.constraints.get(kind, -1), "", named.lines.get(kind))
    manual = _MANUAL.match(kind)
    return Source("map", number, "", named.lines.get(manual[0] if manual else ""))


def _block(flat: _Flat, nodes: Sequence[Node], env: dict[int, int], where: _Where) -> list[int]:
    """Lay out the operations of a block; returns the values that it hands on."""
    for node in nodes:
        if node.name.endswith("return"):
            return [_known(flat, env, number) for number in node.operands]
        match node.name:
            case "stablehlo.while":
                _while(flat, node, env, where)
            case "stablehlo.case":
                _case(flat, node, env, where)
            case "func.call":
                _call(flat, node, env, where)
            case "sdy.manual_computation" | "sdy.named_computation":
                _map(flat, node, env, where)
            case _:
                _operation(flat, node, env, where)
    return []


def _known(flat: _Flat, env: dict[int, int], number: int) -> int:
    if number not in env:
        env[number] = _value(flat, number, "")
    return env[number]


def _operation(flat: _Flat, node: Node, env: dict[int, int], where: _Where) -> None:
    attributes = node.attributes
    if "value" in attributes and (constant := _INTEGER.match(attributes["value"])):
        flat.constants[node.results[0]] = int(constant[1])
    operands = tuple(_known(flat, env, number) for number in node.operands)
    number = len(flat.operations)
    name, axes = node.name.partition(".")[2], Axes()
    sharding, origins = attributes.get("sdy.sharding", ""), attributes.get("sdy.sharding_origins", "")
    if node.name == "sdy.reshard":
        sharding = attributes.get("sharding", "")
    elif node.name == "sdy.all_reduce":
        name, sharding, axes = "sum", attributes.get("out_sharding", ""), axes_in(attributes.get("reduction_axes", ""))
    elif node.name in COLLECTIVES:
        name, axes = COLLECTIVES[node.name], _collective_axes(flat, attributes)
    named = attributes.get("sdy.sharding_origin_name", "").strip('"')
    results = []
    for place, each in enumerate(node.results):
        env[each] = _value(flat, each, sharding, origins, maker=number, place=place, own=named)
        results.append(env[each])
    if name in SAME and operands and len(results) in (1, len(operands)):  # a decomposition makes several arrays of one
        for place, result in enumerate(results):
            value, before = flat.values[result], flat.values[operands[place if len(results) > 1 else 0]]
            if not value.sources:
                flat.values[result] = replace(value, sources=before.sources)
    rule = read_rule(attributes["sdy.sharding_rule"]) if "sdy.sharding_rule" in attributes else None
    frames, scope = where.at(node.location)
    flat.frames.append(frames)
    flat.ways.add(frames)
    constraint = flat.named.constraints.get(named) if named else None
    target = attributes.get("call_target_name", "").strip('"')
    if target and "backend_config" in attributes:
        target = f"{target} {attributes['backend_config']}" if target == "tpu_custom_call" else target
    told = attributes.get(NUMBER, "").split(" ")[0]
    lowered = int(told) if told.isdigit() else None
    flat.operations.append(
        Operation(
            number, name, operands, tuple(results), rule, None, scope, where.trips, constraint, axes, target, where.manual,
            lowered, () if lowered is None else layouts_in(flat.wanted.get(lowered, "")),
        )
    )  # fmt: skip


def _collective_axes(flat: _Flat, attributes: Mapping[str, str]) -> Axes:
    groups, pairs = attributes.get("replica_groups", ""), attributes.get("source_target_pairs", "")
    if named := _GROUP_AXES.findall(groups):
        return tuple(named)
    text = _braces(groups or pairs)
    if pairs:
        listed = parse_pairs(text)
        return (axes_of_pairs(listed, flat.mesh) if listed is not None else None) or ()
    parsed = parse_groups(text, flat.mesh.size)
    return (axes_of_groups(parsed, flat.mesh) if parsed is not None else None) or ()


def _braces(text: str) -> str:
    """The rows of `dense<[[0, 2], [1, 3]]>` as a compiled text writes them."""
    found = re.search(r"dense<(\[.*\])>", text, re.DOTALL)
    return "" if found is None else re.sub(r"\s", "", found[1]).replace("[", "{").replace("]", "}")


def _while(flat: _Flat, node: Node, env: dict[int, int], where: _Where) -> None:
    sharding = node.attributes.get("sdy.sharding", "")
    origins = node.attributes.get("sdy.result_sharding_origins", "")
    given = [_known(flat, env, number) for number in node.operands]
    (asked, condition), (taken, body) = node.regions[0], node.regions[1]
    turns = _turns(flat, node, asked, condition, taken, body)
    inside = dict(env)
    for place, (number, value) in enumerate(zip(taken, given, strict=True)):
        inside[number] = _value(flat, number, sharding, origins, same=value, place=place)
    handed = _block(
        flat, body, inside, replace(where, trips=None if turns is None or where.trips is None else where.trips * turns)
    )
    for number, value in zip(taken, handed, strict=True):
        own = flat.values[inside[number]]
        flat.values[own.number] = replace(own, carried=value != own.number)
    for place, (number, value) in enumerate(zip(node.results, handed, strict=True)):
        env[number] = _value(flat, number, sharding, origins, same=value, place=place)


def _turns(
    flat: _Flat, node: Node, asked: Sequence[int], condition: Sequence[Node], taken: Sequence[int], body: Sequence[Node]
) -> int | None:
    """How often a loop that counts up to a constant runs; None of any other."""
    laid = {  # where axes are Explicit, counters and constants are said to be laid out, too
        each.results[0]: each.operands[0] for each in (*condition, *body) if each.name in _LAID_OUT
    }

    def source(number: int) -> int:
        while number in laid:
            number = laid[number]
        return number

    for each in (*condition, *body):
        if "value" in each.attributes and (constant := _INTEGER.match(each.attributes["value"])):
            flat.constants[each.results[0]] = int(constant[1])
    compare = next((each for each in condition if each.name == "stablehlo.compare"), None)
    handed = next((each for each in body if each.name.endswith("return")), None)
    if compare is None or handed is None or "LT" not in compare.attributes.get("comparison_direction", ""):
        return None
    counter, most = map(source, compare.operands)
    if counter not in asked:
        return None
    place = list(asked).index(counter)
    step = next((each for each in body if source(handed.operands[place]) in each.results), None)
    first = flat.constants.get(node.operands[place])
    last = flat.constants.get(most)
    if last is None and most in asked:
        last = flat.constants.get(node.operands[list(asked).index(most)])
    terms = [] if step is None or step.name != "stablehlo.add" else list(map(source, step.operands))
    if taken[place] not in terms or first is None or last is None:
        return None
    by = next((flat.constants.get(number) for number in terms if number != taken[place]), None)
    return max(math.ceil((last - first) / by), 0) if by else None


def _case(flat: _Flat, node: Node, env: dict[int, int], where: _Where) -> None:
    handed: list[list[int]] = [_block(flat, body, dict(env), where) for _, body in node.regions]
    sharding = node.attributes.get("sdy.sharding", "")
    for place, number in enumerate(node.results):
        first = next((each[place] for each in handed if place < len(each)), None)
        env[number] = _value(flat, number, sharding, same=first, place=place)


def _call(flat: _Flat, node: Node, env: dict[int, int], where: _Where) -> None:
    name = node.attributes.get("callee", "").strip("@").strip('"')
    function = flat.tree.functions.get(name)
    sharding = node.attributes.get("sdy.sharding", "")
    if function is None:
        flat.unread.append(f"a call of {name}, which the module does not hold")
        _operation(flat, node, env, where)
        return
    given = [_known(flat, env, number) for number in node.operands]
    taken, body = function.regions[0]
    inside: dict[int, int] = {}
    for place, (number, value) in enumerate(zip(taken, given, strict=True)):
        said = flat.tree.taken[name][place] if place < len(flat.tree.taken[name]) else {}
        laid = said.get("sdy.sharding", "")
        inside[number] = (
            value if layouts_in(laid)[:1] == (flat.values[value].layout,) else _value(flat, number, laid, same=value)
        )
    frames, scope = where.at(node.location)
    handed = _block(flat, body, inside, replace(where, frames=frames, scope=scope))
    for place, (number, value) in enumerate(zip(node.results, handed, strict=True)):
        env[number] = _value(flat, number, sharding, same=value, place=place)


def _map(flat: _Flat, node: Node, env: dict[int, int], where: _Where) -> None:
    """A `jax.shard_map`: inside, arrays are what one device holds."""
    given = [_known(flat, env, number) for number in node.operands]
    taken, body = node.regions[0]
    inside = dict(env)
    for number, value in zip(taken, given, strict=True):
        inside[number] = _value(flat, number, "", same=value)
    handed = _block(flat, body, inside, replace(where, manual=where.manual or node.name == "sdy.manual_computation"))
    sharding = node.attributes.get("out_shardings", "")
    origins = node.attributes.get("sdy.result_sharding_origins", "")
    name = node.attributes.get("sdy.sharding_origin_name", "").strip('"')
    for place, (number, value) in enumerate(zip(node.results, handed, strict=True)):
        own = _value(flat, number, sharding, origins, same=value, place=place)
        made = flat.values[own]
        from_map = Source("map", place, "", flat.named.lines.get(name))
        known = dict(made.sources)
        flat.values[own] = replace(made, sources=tuple((axis, known.get(axis, from_map)) for axis in made.layout.axes))
        env[number] = own


def layout_named(layout: Layout, rule: Sequence[Sequence[str]]) -> Layout:
    """A layout with dimensions named by the factors of a rule, in capitals."""
    return Layout(
        tuple(("".join(f.upper().replace("_", "") for f in factors) or dim, axes)
              for (dim, axes), factors in zip(layout.dims, rule, strict=True)),
        layout.unreduced,
    )  # fmt: skip
