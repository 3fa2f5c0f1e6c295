"""Sizes that their axes do not divide: the shapes that they would divide, and what to write."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax

from shardwise.compiled.arguments import parameter_names
from shardwise.compiled.facts import Line
from shardwise.compiled.uneven import Uneven
from shardwise.errors import MeshError, counted
from shardwise.functions.diagnosis import Place, Remedy
from shardwise.functions.pasting import padded_first, padding_text
from shardwise.layout import Layout, padded_size
from shardwise.mesh import Mesh
from shardwise.units import bytes_text, seconds_text

MOST_TOLD = 3  # arguments of one error


def padded(uneven: Sequence[Uneven], places: Sequence[Place]) -> Iterator[Remedy]:
    """For each constraint that cannot be had: its array padded, with what is moved since it was not.

    What moves is that of the places where its array leaves: a result is laid out evenly or not at all.
    """
    together: dict[tuple[str, str], list[Uneven]] = {}
    for each in uneven:
        together.setdefault((each.line, each.array), []).append(each)
    for (at, array), them in together.items():
        shape = them[0].shape
        sizes = {each.dim: each.padded for each in them}
        wanted = tuple(sizes.get(dim, size) for dim, size in enumerate(shape))
        line = Line(at) if at else None
        lost = [place for place in places if _is_of(place, line, shape)]
        sent, seconds = sum(place.wire_bytes for place in lost), sum(place.seconds for place in lost)
        saves = f": {bytes_text(sent)} and {seconds_text(seconds)} less a call" if sent else ""
        why = " and ".join(f"{each.parts} devices ({', '.join(each.axes)}) do not divide {each.size}" for each in them)
        cuts = ", ".join(f":{size}" if wanted[dim] != size else ":" for dim, size in enumerate(shape))
        asked = f"the constraint at {line.short}" if line else "the constraint"
        says = f"{why}: pad {array} to {list(wanted)} before {asked}, use it so, and cut to [{cuts}] what needs no zeros{saves}"
        paste = None if line is None else padded_first(line, shape, wanted)
        yield Remedy("padded", says, line, paste, wire_bytes=sent, seconds=seconds)


def _is_of(place: Place, line: Line | None, shape: tuple[int, ...]) -> bool:
    """Whether a place moves since a constraint at a line could not be had."""
    sources = {source.line.place for source in place.cause.sources if source.line is not None}
    return place.cause.uneven and place.shape == shape and line is not None and line.place in sources


def check_arguments(function: Any, args: tuple[Any, ...], mesh: Mesh) -> None:
    """Refuse arguments that the axes of a mesh do not divide as they lay them out, with the shape to pad each to.

    Raises:
        MeshError: there are some.
    """
    names, found = parameter_names(function, len(args)), list[str]()
    for place, arg in enumerate(args):
        for path, leaf in jax.tree_util.tree_leaves_with_path(arg):
            shape, wanted = _shapes(leaf, mesh)
            if wanted != shape:
                name = names[place] + jax.tree_util.keystr(path)
                paste = f"jnp.pad({name}, {padding_text(shape, wanted)})"
                why = f"{name} of {list(shape)} cannot lie as {leaf.sharding.spec}, whose axes do not divide its sizes"
                found.append(f"{why}: pad it to {list(wanted)}, {paste}")
    if found:
        more = [f"and {counted(len(found) - MOST_TOLD, 'more argument')}"] if len(found) > MOST_TOLD else []
        raise MeshError("\n".join([*found[:MOST_TOLD], *more]))


def _shapes(leaf: Any, mesh: Mesh) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shape of an argument, and the smallest one that its axes divide."""
    shape, sharding = tuple(getattr(leaf, "shape", ())), getattr(leaf, "sharding", None)
    if not isinstance(sharding, jax.NamedSharding) or len(sharding.spec) > len(shape):
        return shape, shape
    layout = Layout.from_spec((*sharding.spec, *[None] * (len(shape) - len(sharding.spec))))
    if not set(layout.axes) <= set(mesh.names):
        return shape, shape  # it is told with the axes that the mesh has
    sizes = zip(shape, layout.dims, strict=True)
    return shape, tuple(padded_size(size, mesh.extent(axes)) for size, (_, axes) in sizes)
