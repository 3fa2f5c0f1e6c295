"""What a device would make of a matmul, a sum or a change of layout from what it holds alone: the wrong number beside
the right one. What it lacks counts as nothing, so that what it has is a share of the terms."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from shardwise.layout import Layout, shard_slices
from shardwise.mesh import Mesh
from shardwise.notation import Equation
from shardwise.reference import Shards, assemble, scatter


@dataclass(frozen=True, slots=True)
class Short:
    """One device, at one element of what it is to hold.

    Attributes:
        terms, of: how many terms of that element it has, and how many there are.
        alone, right: what it makes of them, and what the element is.
        wrong, held: how many of all elements that it is to hold come out wrong, of how many.
    """

    device: int
    element: tuple[int, ...]
    terms: int
    of: int
    alone: object
    right: object
    wrong: int
    held: int


def alone(equation: Equation, mesh: Mesh, values: Mapping[str, np.ndarray | Shards]) -> Iterator[Short]:
    """What each device makes of the result by itself; the element is the first that comes out wrong, or the first.

    >>> from shardwise.notation import parse
    >>> a, b = np.arange(16).reshape(4, 4), np.arange(16, 32).reshape(4, 4)
    >>> equation = parse("A[I, J_x] · B[J_x, K] -> C[I, K]")
    >>> first = next(alone(equation, Mesh.parse("x=2"), {"A": a, "B": b}))
    >>> first.terms, first.of, int(first.alone), int(first.right), first.wrong
    (2, 4, 20, 152, 16)

    Args:
        values: whole arrays by name, or lists of shards in device order.
    """
    held, wholes = [], []
    for operand in equation.operands:
        layout, given = operand.layout.on(mesh), values[operand.name]
        shards = given if isinstance(given, list) else scatter(np.asarray(given), layout, mesh)
        held.append((layout, shards))
        wholes.append(assemble(shards, layout, mesh))
    multiply = whole_einsum(equation)
    right = multiply(wholes)
    per_sum = int(np.prod([mesh.extent(layout.unreduced) for layout, _ in held], dtype=int))
    of = multiply([np.ones_like(whole) for whole in wholes]) * per_sum
    result = equation.result.layout.on(mesh)
    for device, coordinate in enumerate(mesh.coordinates()):
        parts, masks = zip(*(_embedded(layout, shards[device], whole.shape, coordinate, mesh)
                             for (layout, shards), whole in zip(held, wholes, strict=True)), strict=True)  # fmt: skip
        where = shard_slices(result, right.shape, coordinate, mesh)
        made, terms = multiply(list(parts))[where], multiply(list(masks))[where]
        faults = np.argwhere(np.atleast_1d(made != right[where]))
        at = tuple(int(n) for n in faults[0]) if len(faults) and right.ndim else (0,) * right.ndim
        element = tuple(part.start + n for part, n in zip(where, at, strict=True))
        yield Short(
            device, element, int(terms[at]), int(of[element]), made[at], right[element], len(faults), int(made.size)
        )  # fmt: skip


def whole_einsum(equation: Equation) -> Callable[[list[np.ndarray]], np.ndarray]:
    """What an equation makes of whole arrays."""
    index = {dim: number for number, dim in enumerate(equation.dims)}
    terms = [[index[dim] for dim in operand.dims] for operand in equation.operands]
    result = [index[dim] for dim in equation.result.dims]

    def multiply(arrays: list[np.ndarray]) -> np.ndarray:
        pairs = (x for pair in zip(arrays, terms, strict=True) for x in pair)
        return np.asarray(np.einsum(*pairs, result))

    return multiply


def _embedded(
    layout: Layout, shard: np.ndarray, shape: tuple[int, ...], coordinate: Mapping[str, int], mesh: Mesh
) -> tuple[np.ndarray, np.ndarray]:
    """A shard at its place in the whole, with nothing around it; and ones where it is."""
    whole, mask = np.zeros(shape, shard.dtype), np.zeros(shape, int)
    where = shard_slices(layout, shape, coordinate, mesh)
    whole[where], mask[where] = shard, 1
    return whole, mask
