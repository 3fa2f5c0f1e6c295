"""Fused steps along all sides of a torus as `Plan.code()` writes them: as those of `shardwise.runtime.code_rings`.

They do what `shardwise.schedule.along_sides` says. `sides` are the sizes of the torus's sides, and for each position along the
axes its place there, row by row.
"""

import jax.numpy as jnp
import numpy as np
from jax import lax

from shardwise.mesh import reached  # copied
from shardwise.runtime.blocks import unseen  # copied
from shardwise.runtime.code_rings import in_mesh_order, joined, laying, part_matmul, size_of, taking  # copied
from shardwise.schedule.strands import begun, cuts, rotating  # copied


def along_side(x, axes, sides, side, way):
    """What arrives when every device sends `x` to the next one up a side of the torus (`way` 1) or down (-1)."""
    sizes, places = sides
    in_order, ring = in_mesh_order((axes,) if isinstance(axes, str) else axes)
    goals = reached(sizes, places, [way * (place == side) for place in range(len(sizes))])
    return lax.ppermute(x, in_order, [(ring[k], ring[goal]) for k, goal in enumerate(goals)])


def owner_on_torus(axes, sides, away):
    """The position of the device that is so far from this one, row by row, each side round."""
    sizes, places = sides
    return jnp.asarray(reached(sizes, places, np.unravel_index(away, sizes)))[lax.axis_index(axes)]


def gather_einsum_on_torus(terms, block, *others, dim, axes, sides, chunks=1, order=None):
    """`jnp.einsum(terms, ...)` of every device's block, gathered along `dim`, with the others.

    Each block is cut into a part for each side of a torus. Part k goes round side k first, and what has come goes round the
    next side: all links are busy in every round, and two rounds are on their way, while what came is multiplied. `order` is
    that of the result's dimensions in memory.
    """
    at, n = terms.split("->")[0].split(",")[0].index(dim), lax.axis_size(axes)
    width = block.shape[at]
    taken = taking(terms, others, dim, n * width, order)
    spans = cuts(width, chunks * len(sides[0]), 16)
    rounds, parts, flying = rotating(sides[0], len(spans)), {}, {}

    def own(first, last):  # where compilers see the starts of cuts of unlike sizes, they make slow copies
        return lax.dynamic_slice_in_dim(block, unseen(first, last - first), last - first, at)

    def begin(moves):
        for move in moves:
            part = parts[move.part, move.sent] if move.sent else own(*spans[move.part])
            flying[move] = along_side(part, axes, sides, move.side, move.way)

    first, *later = begun(rounds, len(spans))
    begin(first)
    result = taken(None, [block], [owner_on_torus(axes, sides, 0) * width])
    for moves, following in zip(rounds, later, strict=False):
        # Without a barrier the compiler sends everything first, or multiplies everything last.
        arrived, result = lax.optimization_barrier(([flying[move] for move in moves], result))
        parts |= {(move.part, move.come): part for move, part in zip(moves, arrived, strict=True)}
        begin(following)
        starts = [owner_on_torus(axes, sides, move.come) * width + spans[move.part][0] for move in moves]
        result = taken(result, arrived, starts)
    return result


def einsum_scatter_on_torus(terms, *operands, dim, axes, sides, chunks=1, along=None):
    """`jnp.einsum(terms, *operands)` summed over the devices along `axes`, of which each keeps its part of `dim`.

    Sums go back the way on which blocks are gathered along all sides of a torus, and take up one more matmul at every stop.
    It is cut into parts along `dim`, or `along` another.
    """
    n, along = lax.axis_size(axes), along or dim
    width = size_of(terms, operands, dim) // n
    matmul = part_matmul(terms, dim, width, along)
    spans = cuts(width if along == dim else size_of(terms, operands, along), chunks * len(sides[0]), 16)
    rounds, flying, arriving, last = [*rotating(sides[0], len(spans)), [], []], {}, {}, []
    least = min(range(len(operands)), key=lambda k: operands[k].size)  # it waits; the others are laid out once for all

    def summed(part, away, before):
        """A matmul, when the round before the last is over and what it adds to is here, one after the other."""
        adds, waits = arriving.pop((part, away), []), [*last, *(flying[move] for move in before)]
        arrays = list(operands)
        if adds or waits:
            arrays[least], adds, _ = lax.optimization_barrier((arrays[least], adds, waits))
        last[:] = [matmul(arrays, owner_on_torus(axes, sides, away) * width, spans[part])]
        for each in adds:
            last[0] = last[0] + each
        return last[0]

    for number in reversed(range(len(rounds) - 2)):
        for move in rounds[number]:
            part = summed(move.part, move.come, rounds[number + 2])
            flying[move] = along_side(part, axes, sides, move.side, -move.way)
            arriving.setdefault((move.part, move.sent), []).append(flying[move])
    parts = [summed(part, 0, rounds[1]) for part in range(len(spans))]
    return joined(parts, spans, terms.split("->")[1].index(along))


def einsum_gather_on_torus(terms, *operands, dim, axes, sides, chunks=1, along=None):
    """`jnp.einsum(terms, *operands)`, one device's block along `dim`, of which every device receives all.

    The block is made in so many chunks for each side of a torus, cut along `dim` or `along` another. Each goes along all sides
    as soon as it is there, while the next is multiplied.
    """
    inputs, n, along = terms.split("->")[0].split(","), lax.axis_size(axes), along or dim
    laid = laying(terms, operands, dim, n, along)
    spans = cuts(size_of(terms, operands, along), chunks * len(sides[0]), 16)
    rounds, parts, flying, result = rotating(sides[0], len(spans), True), {}, {}, None
    least = min(range(len(operands)), key=lambda k: operands[k].size)  # it waits; the others are laid out once for all
    for number, starting in enumerate(begun(rounds, len(spans), True)):
        made, come = None, rounds[number - 1] if 0 < number <= len(rounds) else []
        if number < len(spans):  # this device's next part, when all before has been written
            small, result = lax.optimization_barrier((operands[least], result))
            pairs = zip([*operands[:least], small, *operands[least + 1 :]], inputs, strict=True)
            cut = (lax.slice_in_dim(x, *spans[number], axis=t.index(along)) if along in t else x for x, t in pairs)
            made = jnp.einsum(terms, *cut)
        if come:
            arrived, result, made = lax.optimization_barrier(([flying[move] for move in come], result, made))
            parts |= {(move.part, move.come): part for move, part in zip(come, arrived, strict=True)}
        if made is not None:
            parts[number, 0] = made
        for move in starting:
            flying[move] = along_side(parts[move.part, move.sent], axes, sides, move.side, move.way)
        for move in come:
            position = owner_on_torus(axes, sides, move.come)
            result = laid(result, parts[move.part, move.come], position, spans[move.part])
        if made is not None:
            result = laid(result, made, owner_on_torus(axes, sides, 0), spans[number])
    return result
