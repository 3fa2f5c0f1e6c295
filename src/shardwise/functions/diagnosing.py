"""The doctor: from a function to a diagnosis, by Shardy's passes alone, and by a compiler where devices are named."""

from __future__ import annotations

import contextlib
import linecache
import re
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
from jax.sharding import AxisType

from shardwise.chips import Hardware
from shardwise.chips.topology import HERE, Topology
from shardwise.compiled.compiling import check_function, name_of, traced_here
from shardwise.compiled.findings import layouts_not_had
from shardwise.compiled.needed import inner_jaxprs
from shardwise.compiled.targets.abstract_arguments import written_mesh
from shardwise.compiled.targets.lowering import Lowering, lower_on
from shardwise.compiled.targets.unattached import target_mesh
from shardwise.compiled.text.sources import is_users
from shardwise.compiled.uneven import uneven_constraints
from shardwise.errors import CompileError, MeshError
from shardwise.functions.causes import Cause, cause_of
from shardwise.functions.diagnosis import Diagnosis, Place
from shardwise.functions.explicit import stop_of, whole_tracebacks
from shardwise.functions.holding import held_whole
from shardwise.functions.paddings import check_arguments, padded
from shardwise.functions.pasting import text_of
from shardwise.functions.pricing import Price, Where, hardware_for, price, totals
from shardwise.functions.remedies import remedied
from shardwise.functions.repeating import repeated
from shardwise.functions.truth import beside, confirmed
from shardwise.intent.flowgraph import Graph
from shardwise.intent.movements import Movement, movements
from shardwise.intent.propagation import Intended, intended
from shardwise.intent.shardy import NoPassesError
from shardwise.mesh import Mesh
from shardwise.runtime.devices import AnyMesh, hardware_of


def doctor(
    function: Callable[..., Any], *args: Any, mesh: Any = None, on: str | None = None, hardware: str | Hardware | None = None,
    remedies: bool = True,
) -> Diagnosis:  # fmt: skip
    """Say of every place of a function where data moves why it does, what it costs, and what to write instead; nothing is run.

    >>> import jax, jax.numpy as jnp
    >>> from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec as P
    >>> mesh = AbstractMesh((4,), ("x",), axis_types=(AxisType.Auto,))
    >>> a = jax.ShapeDtypeStruct((4096, 64), jnp.bfloat16, sharding=NamedSharding(mesh, P("x")))
    >>> w = jax.ShapeDtypeStruct((64, 32), jnp.bfloat16, sharding=NamedSharding(mesh, P("x")))
    >>> found = doctor(lambda a, w: a @ w, a, w, hardware="v5e")
    >>> [(place.subjects, str(place.before), str(place.after), place.collectives) for place in found.places]
    [(('w (bfloat16[64,32])',), '[I_x, J]', '[I, J]', (('all-gather', ('x',)),))]

    Without `on` no compiler takes part: the function is traced, and Shardy's passes say what its annotations come to.

    Args:
        function: jitted or plain.
        args: its arguments, pytrees of arrays or `jax.ShapeDtypeStruct`.
        mesh: `"x=4, y=2"` or a JAX mesh; by default that of the arguments, or the one in force.
        on: devices that need not be attached, as `"v5e:2x4"`, or `"here"` for those of this machine: their compiler's program
            is held against what was asked for.
        hardware: what seconds are modelled on; by default that of `on`, or of the mesh's devices, or "cpu".
        remedies: whether ways out are looked for, which takes the passes once for each that is tried.

    Raises:
        CompileError: the function cannot be traced, or the compiler refuses.
        MeshError: there is no mesh, or a layout does not fit it.
    """
    check_function(function)
    where = mesh_of(function, args, mesh, None if on == HERE else on)
    away = None if on in (None, HERE) else on
    chosen = _estimated_with(where, away, hardware)
    check_arguments(function, args, Mesh.parse(where))
    try:
        with whole_tracebacks():
            lowering = lower_on(function, args, away, where, platform_of(where))
    except CompileError as error:
        stop = stop_of(error.__cause__, chosen)
        if stop is None:
            _refuse_pmap(function, args, error)
            raise
        return Diagnosis(name_of(function), Mesh.parse(where), _name(chosen), (), None, stop=stop)
    found, ready = diagnosed(name_of(function), lowering, chosen, remedies=remedies)
    if on is None:
        return found
    found = beside(found, function, args, on, _called(where, found.mesh))
    return found if ready is None or away is None else confirmed(found, ready, lowering, away, where)


def diagnosed(name: str, lowering: Lowering, where: Where, *, remedies: bool = True) -> tuple[Diagnosis, Intended | None]:
    """The diagnosis of a lowered function, as far as its annotations say it, and what to propagate again, if it can."""
    linecache.checkcache()  # files may have changed since they were read last
    not_had = uneven_constraints(lowering.traced.jaxpr.jaxpr)
    uneven = tuple(layouts_not_had(not_had))
    notes = []
    if lowering.replicated:
        more = len(lowering.replicated) - 8
        told = ", ".join(lowering.replicated[:8]) + (f" and {more} more" if more > 0 else "")
        notes.append(f"arguments without a layout are taken as replicated: {told}")
    hardware = _name(where)
    try:
        ready = intended(lowering.module, [each.name for each in lowering.arguments])
        graph = ready.graph()
    except NoPassesError as error:
        notes.append(f"{error}: only the audit of a compiled program tells what moves (on=..., or sw.audit)")
        return Diagnosis(name, Mesh(()), hardware, (), None, uneven, notes=tuple(notes)), None
    moved = movements(graph)
    users = graph.users()
    causes = [cause_of(graph, each, users) for each in moved]
    places, members = _places(graph, moved, causes, where)
    if remedies:
        places = remedied(ready, graph, places, members, where)
    found = Diagnosis(
        name, graph.mesh, hardware, tuple(places), totals(graph, where, moved), (*repeated(graph, where), *uneven),
        tuple(held_whole(graph)),
        tuple(padded(not_had, places)), notes=tuple(notes), unread=graph.unread,
    )  # fmt: skip
    return found, ready


def _name(where: Where) -> str:
    return "cpu" if where is None else where if isinstance(where, str) else where.name


def _places(
    graph: Graph, moved: Sequence[Movement], causes: Sequence[Cause], where: Where
) -> tuple[list[Place], list[list[tuple[Movement, Cause]]]]:
    """Movements that are alike put together, the dearest first; and which they are."""
    groups: dict[object, list[tuple[Movement, Cause, Price]]] = {}
    for each, cause in zip(moved, causes, strict=True):
        key = (each.line, each.before, each.after, each.shape, each.dtype, each.kind, _general(cause.says))
        groups.setdefault(key, []).append((each, cause, price(each, graph.mesh, where)))
    found = [(_place(them), [(each, cause) for each, cause, _ in them]) for them in groups.values()]
    found.sort(key=lambda each: (-each[0].seconds, -each[0].wire_bytes))
    return [place for place, _ in found], [members for _, members in found]


def _general(text: str) -> str:
    return re.sub(r"\[\d+\]", "[*]", text)


def _place(them: Sequence[tuple[Movement, Cause, Price]]) -> Place:
    first, cause, each_price = them[0]
    trips = [each.trips for each, _, _ in them]
    times = None if None in trips else sum(trip or 0 for trip in trips)
    count = sum(trip or 1 for trip in trips)
    subjects = tuple(dict.fromkeys(each.subject for each, _, _ in them))
    scopes = tuple(dict.fromkeys(each.scope for each, _, _ in them))
    notes: tuple[str, ...] = (
        () if each_price.known else ("its layouts use parts of mesh axes: bytes are an upper bound, and no time is known",)
    )
    if "is opaque" in cause.says:
        notes += ("call it within jax.shard_map, with specs as the arrays lie: then each device hands it its own part",)
    return Place(
        first.line, text_of(first.line), subjects, first.before, first.after, first.shape, first.dtype, each_price.collectives,
        each_price.wire_bytes * count, each_price.seconds * count, times, cause, scopes, None, notes, bool(first.kind),
    )  # fmt: skip


def mesh_of(function: Callable[..., Any], args: tuple[Any, ...], mesh: Any, on: str | None) -> AnyMesh:
    """The mesh that is meant: its axes, and their types.

    Raises:
        MeshError: none is given, none is in force, and neither an argument nor the function holds one.
    """
    written = mesh if isinstance(mesh, AnyMesh) else written_mesh(args)
    if mesh is None and written is None:
        in_force = jax.sharding.get_abstract_mesh()
        written = _held_mesh(function, args, needed=on is None) if in_force.empty else in_force
    if mesh is None and written is not None and on is None:
        return written
    axes = written if mesh is None else mesh
    grid = Mesh((("x", Topology.parse(on).size),)) if axes is None and on is not None else Mesh.parse(axes)
    known = {} if written is None else dict(zip(written.axis_names, written.axis_types, strict=True))
    types = [known.get(name, AxisType.Explicit) for name in grid.names]
    if on is not None:
        return target_mesh(on, grid, axis_types=types)
    if isinstance(mesh, AnyMesh):
        return mesh
    return jax.sharding.AbstractMesh(tuple(size for _, size in grid.axes), grid.names, axis_types=tuple(types))


def _held_mesh(function: Callable[..., Any], args: tuple[Any, ...], needed: bool) -> AnyMesh | None:
    """The mesh of the most devices that a function itself holds: of a constraint, a `jax.shard_map`, a `jax.pmap`."""
    why = ""
    try:
        with whole_tracebacks():
            found = list(_meshes(traced_here(function, args).jaxpr.jaxpr)) or list(_jitted_on(function, args))
    except CompileError as error:  # as one whose layouts name axes that are not in force
        _refuse_pmap(function, args, error)
        found, why = [], f"\ntraced without one: {error}"
    if needed and not found:
        raise MeshError(
            "no mesh is given, none is in force, and neither an argument nor the function holds one: give mesh='x=4, y=2', or "
            f"lay arguments out on one{why}"
        )
    return max(found, key=lambda mesh: mesh.size, default=None)


def _refuse_pmap(function: Callable[..., Any], args: tuple[Any, ...], error: CompileError) -> None:
    """Say the way out where `jax.pmap` itself refuses: arguments for another number of devices than it has.

    Raises:
        MeshError: it does.
    """
    if not _in_pmap(error):
        return
    try:
        with whole_tracebacks():
            traced_here(function, args)  # no mesh is in force here, of which pmap knows nothing
    except CompileError as alone:
        if _in_pmap(alone):
            raise MeshError(
                "a jax.pmap takes as many devices as the first dimension of its arguments is long, and this process has "
                f"{jax.device_count()}: call sw.simulate(n) with as many before JAX starts, or write it on a mesh, with "
                f"jax.shard_map or jax.jit (docs.jax.dev/en/latest/migrate_pmap.html)\n{alone}"
            ) from alone.__cause__


def _in_pmap(error: CompileError) -> bool:
    """Whether an error is raised by `jax.pmap`, and not by what it maps; of an error with a whole traceback."""
    cause = error.__cause__
    files = [] if cause is None else [frame.filename for frame in traceback.extract_tb(cause.__traceback__)]
    mapped = next((place for place, file in enumerate(files) if Path(file).parts[-3:] == ("jax", "_src", "pmap.py")), None)
    return mapped is not None and not any(is_users(file) for file in files[mapped:])


def _jitted_on(function: Callable[..., Any], args: tuple[Any, ...]) -> Iterator[AnyMesh]:
    """The meshes of a jitted function's `in_shardings` and `out_shardings`, which only a call of it shows."""
    if hasattr(function, "trace"):
        with contextlib.suppress(CompileError):  # static arguments are no arrays in a call
            yield from _meshes(traced_here(lambda *given: function(*given), args).jaxpr.jaxpr)


def _meshes(jaxpr: Any) -> Iterator[AnyMesh]:
    for equation in jaxpr.eqns:
        values = (each for value in equation.params.values() for each in (value if isinstance(value, tuple) else (value,)))
        held = (getattr(value, "mesh", value) for value in values)
        yield from (mesh for mesh in held if isinstance(mesh, AnyMesh) and not mesh.empty)
        for inner in inner_jaxprs(equation.params):
            yield from _meshes(inner)


def _called(mesh: AnyMesh, grid: Mesh) -> AnyMesh:
    """A mesh with the axes that a function's own program has: one that holds on to another mesh has those of that."""
    if grid == Mesh.parse(mesh) or grid.size != mesh.size:
        return mesh
    sizes, names = tuple(size for _, size in grid.axes), grid.names
    return jax.sharding.AbstractMesh(sizes, names, axis_types=(AxisType.Auto,) * len(names))


def platform_of(mesh: AnyMesh) -> str:
    """What a function is lowered for: what its devices are, or TPUs where there are none."""
    return mesh.devices.flat[0].platform if isinstance(mesh, jax.sharding.Mesh) else "tpu"


def _estimated_with(mesh: AnyMesh, on: str | None, hardware: str | Hardware | None) -> Where:
    chosen = hardware_for(on, hardware)
    if chosen is None and isinstance(mesh, jax.sharding.Mesh):
        known: Any = hardware_of(mesh)
        return known if isinstance(known, Hardware) else known.topology.chip
    return chosen
