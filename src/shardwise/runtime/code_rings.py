"""The rings as `Plan.code()` writes them: plain JAX, of which each function's text is copied as it stands.

Nothing here may lean on this package but on the strands of its schedules, which are copied too, nor on anything but `jnp`,
`lax` and what this module imports. They do what `shardwise.schedule.makers` says, as the rings of `shardwise.runtime.rings` do,
without what makes those fast in every corner: loops, sums in another dtype, derivatives of their own. JAX differentiates
them as it does anything.
"""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shardwise.mesh import folded  # copied
from shardwise.runtime.blocks import cut_out, lying_in, unseen  # copied
from shardwise.schedule.strands import gathering, is_one_matmul, scattering, side_by_side  # copied


def shift(x, axes, way):
    """What arrives when every device sends `x` to the next one along `axes` (`way` 1) or to the one before (-1)."""
    n = lax.axis_size(axes)
    return lax.ppermute(x, axes, [(k, (k + way) % n) for k in range(n)])


def in_mesh_order(axes):
    """Axes as the mesh has them, which ppermute wants, and what it calls the positions along them in the order given."""
    in_order = tuple(axis for axis in jax.sharding.get_abstract_mesh().axis_names if axis in axes)
    numbers = np.arange(lax.axis_size(axes)).reshape([lax.axis_size(axis) for axis in in_order])
    return in_order, numbers.transpose([in_order.index(axis) for axis in axes]).ravel().tolist()


def shift_in_any_order(x, axes, way):
    """What arrives when every device sends `x` to the next one along `axes` (`way` 1) or to the one before (-1)."""
    in_order, ring = in_mesh_order(axes)
    return lax.ppermute(x, in_order, [(ring[k], ring[(k + way) % len(ring)]) for k in range(len(ring))])


def owner(axes, away):
    """The position of the device so many places above this one along `axes`."""
    return (lax.axis_index(axes) + away) % lax.axis_size(axes)


def folded_shift(x, axes, way):
    """What arrives when every device sends `x` to the next one of a ring over every second device and back over the others."""
    n = lax.axis_size(axes)
    ring = folded(n)
    return lax.ppermute(x, axes, [(ring[k], ring[(k + way) % n]) for k in range(n)])


def folded_owner(axes, away):
    """The position of the device so many places above this one on a ring over every second device and back over the others."""
    ring = folded(lax.axis_size(axes))
    return jnp.asarray(ring)[(jnp.asarray(np.argsort(ring))[lax.axis_index(axes)] + away) % len(ring)]


def taking(terms, others, dim, size, order=None):
    """What takes parts of an array of `size` along `dim`, each with its start: a result grows by their matmuls with others."""
    inputs, out = terms.split("->")
    term, *other_terms = inputs.split(",")
    at = term.index(dim)

    def factors(part, start, arrays):
        """Of one matmul: a part of the whole array, and what the others have there."""
        rows, pairs = part.shape[at], zip(arrays, other_terms, strict=True)
        cut = [lax.dynamic_slice_in_dim(x, start, rows, t.index(dim)) if dim in t else x for x, t in pairs]
        return [part, *cut]

    def laid(result, parts, starts):
        """Blocks of the result, each where it belongs."""
        for part, start in zip(parts, starts, strict=True):
            made, to = jnp.einsum(terms, *factors(part, start, others)), out.index(dim)
            if order is not None:  # else the compiler may make it in another one, and transpose it
                made = lying_in(made, order)
            if result is None:  # room, which is not filled: every block has its place
                result = lax.empty((*made.shape[:to], size, *made.shape[to + 1 :]), made.dtype)
            result = lax.dynamic_update_slice_in_dim(result, made, start, axis=to)
        return result

    def added(result, parts, starts):
        """A running sum, which what arrives together joins in one matmul, or each by itself."""
        rows = sum(part.shape[at] for part in parts)
        cut = sum(x.size * rows // x.shape[t.index(dim)] for x, t in zip(others, other_terms, strict=True) if dim in t)
        if len(parts) > 1 and not is_one_matmul(cut, result.size):
            for part, start in zip(parts, starts, strict=True):
                result = added(result, [part], [start])
            return result
        arrays = others
        if result is not None:  # a matmul that waits for the sum takes the addition in
            result, parts, waiting = lax.optimization_barrier((result, parts, others))
            arrays = waiting if len(parts) > 1 else others  # what waits, a compiler may lay out anew for each matmul
        columns = zip(*(factors(part, start, arrays) for part, start in zip(parts, starts, strict=True)), strict=True)
        pairs = zip(columns, [term, *other_terms], strict=True)
        made = jnp.einsum(terms, *(jnp.concatenate(xs, t.index(dim)) if dim in t else xs[0] for xs, t in pairs))
        made = made if result is None else result + made
        return made if order is None else lying_in(made, order)

    return laid if dim in out else added


def gather_einsum(terms, block, *others, dim, axes, way, chunks=1, order=None, ring=(shift, owner)):
    """`jnp.einsum(terms, ...)` of every device's block, gathered along `dim`, with the others.

    The blocks go round a ring, one way or both, in so many chunks each. What arrives is sent on and multiplied at once:
    one hop is overlapped by the matmul of the last. `order` is that of the result's dimensions in memory.
    """
    at, (move, above) = terms.split("->")[0].split(",")[0].index(dim), ring
    width = block.shape[at]
    taken = taking(terms, others, dim, lax.axis_size(axes) * width, order)
    strands = gathering(lax.axis_size(axes), way, chunks, width)
    flying = {k: move(lax.slice_in_dim(block, *strand.span, axis=at), axes, strand.way) for k, strand in enumerate(strands)}
    result = taken(None, [block], [above(axes, 0) * width])
    for hop in range(1, 1 + max((strand.hops for strand in strands), default=0)):
        for group in side_by_side(strands):
            here = [k for k in group if strands[k].hops >= hop]
            if here:  # Without a barrier the compiler sends everything first, or multiplies everything last.
                arrived, result = lax.optimization_barrier(([flying[k] for k in here], result))
                for k, part in zip(here, arrived, strict=True):
                    flying[k] = move(part, axes, strands[k].way) if strands[k].hops > hop else None
                starts = [above(axes, -strands[k].way * hop) * width + strands[k].span[0] for k in here]
                result = taken(result, arrived, starts)
    return result


def size_of(terms, operands, dim):
    """The size of a dimension of an einsum."""
    return next(x.shape[t.index(dim)] for x, t in zip(operands, terms.split("->")[0].split(","), strict=True) if dim in t)


def part_matmul(terms, dim, width, along):
    """What multiplies, of the block of `dim` that begins at a start and is so wide, what a span has `along` a dimension."""

    def matmul(arrays, start, span):
        rows = span[1] - span[0]
        spans = {dim: (start + span[0], rows)} if along == dim else {dim: (start, width), along: (unseen(span[0], rows), rows)}
        pairs = zip(arrays, terms.split("->")[0].split(","), strict=True)
        return jnp.einsum(terms, *(cut_out(x, term, spans) for x, term in pairs))

    return matmul


def joined(parts, spans, at):
    """Parts along one dimension as one array; one kernel writes all of them, as none knows its place."""
    if len(parts) == 1:
        return parts[0]
    shape = (*parts[0].shape[:at], spans[-1][1], *parts[0].shape[at + 1 :])
    result = lax.optimization_barrier(lax.empty(shape, parts[0].dtype))
    for (first, last), part in zip(spans, parts, strict=True):
        result = lax.dynamic_update_slice_in_dim(result, part, unseen(first, last - first), axis=at)
    return result


def einsum_scatter(terms, *operands, dim, axes, way, chunks=1, along=None, ring=(shift, owner)):
    """`jnp.einsum(terms, *operands)` summed over the devices along `axes`, of which each keeps its part of `dim`.

    A sum begins one place past its home, travels up, or one half up and the other down, and takes up one more matmul at
    every stop: while one part of it travels, another is multiplied. It is cut into parts along `dim`, or `along` another.
    """
    n, along, (move, above) = lax.axis_size(axes), along or dim, ring
    width = size_of(terms, operands, dim) // n
    matmul = part_matmul(terms, dim, width, along)
    strands = scattering(n, way, chunks, width if along == dim else size_of(terms, operands, along))
    sums, last = {}, []
    least = min(range(len(operands)), key=lambda k: operands[k].size)  # it waits; the others are laid out once for all
    for hop in range(1, n + 1):
        for k, strand in enumerate(strands):
            start = above(axes, -strand.way * hop) * width
            if hop == 1:
                sums[k] = matmul(operands, start, strand.span)
                last.append(sums[k])
                continue
            arrived = move(sums[k], axes, strand.way)
            # One matmul after the other, each when its sum is here: else the compiler multiplies everything first.
            small, arrived, _ = lax.optimization_barrier((operands[least], arrived, last))
            sums[k] = matmul([*operands[:least], small, *operands[least + 1 :]], start, strand.span) + arrived
            last = [sums[k]]
    return joined(list(sums.values()), [strand.span for strand in strands], terms.split("->")[1].index(along))


def laying(terms, operands, dim, n, along):
    """What writes a part of the block at some position of n along `dim` into a result."""
    out = terms.split("->")[1]
    sizes = {d: size_of(terms, operands, d) for d in out}

    def laid(result, part, position, span):
        if result is None:  # room, which is not filled: every block has its place
            result = lax.empty(tuple(sizes[d] * (n if d == dim else 1) for d in out), part.dtype)
        starts = {dim: position * sizes[dim]}
        starts[along] = starts.get(along, 0) + span[0]
        return lax.dynamic_update_slice(result, part, [starts.get(d, 0) for d in out])

    return laid


def einsum_gather(terms, *operands, dim, axes, way, chunks=1, along=None, ring=(shift, owner)):
    """`jnp.einsum(terms, *operands)`, one device's block along `dim`, of which every device receives all.

    The block is made in so many chunks, cut along `dim` or `along` another. Each goes round the ring, one way or both, as
    soon as it is there, while the next is multiplied.
    """
    inputs, n, along, (move, above) = terms.split("->")[0].split(","), lax.axis_size(axes), along or dim, ring
    laid = laying(terms, operands, dim, n, along)
    strands = gathering(n, way, chunks, size_of(terms, operands, along))
    groups, hops = side_by_side(strands), max((strand.hops for strand in strands), default=0)
    flying, result = {}, None
    least = min(range(len(operands)), key=lambda k: operands[k].size)  # it waits; the others are laid out once for all
    for tick in range(len(groups) + hops):
        part, span = None, (0, 0)
        if tick < len(groups):  # this device's next chunk, when all before has been written
            small, result = lax.optimization_barrier((operands[least], result))
            span = strands[groups[tick][0]].span
            pairs = zip([*operands[:least], small, *operands[least + 1 :]], inputs, strict=True)
            part = jnp.einsum(terms, *(lax.slice_in_dim(x, *span, axis=t.index(along)) if along in t else x for x, t in pairs))
        for number, group in enumerate(groups[:tick]):
            hop = tick - number
            here = [k for k in group if strands[k].hops >= hop]
            if here:
                arrived, result, part = lax.optimization_barrier(([flying[k] for k in here], result, part))
                for k, block in zip(here, arrived, strict=True):
                    flying[k] = move(block, axes, strands[k].way) if strands[k].hops > hop else None
                for k, block in zip(here, arrived, strict=True):
                    result = laid(result, block, above(axes, -strands[k].way * hop), strands[k].span)
        if part is not None:
            for k in groups[tick]:
                flying[k] = move(part, axes, strands[k].way)
            result = laid(result, part, above(axes, 0), span)
    return result


def rotate_einsum(terms, *operands, dim, axes):
    """`jnp.einsum(terms, *operands)` of two operands; `dim`, which is summed, is split over `axes[k]` in operand k.

    Cannon's algorithm: both are brought to where their shards fit each other, then rotate, each along its own axis.
    Cut `dim` into as many pieces as there are turns: in each turn a device multiplies one, of shards that it holds.
    """
    sizes = tuple(lax.axis_size(axis) for axis in axes)
    turns = math.lcm(*sizes)
    pieces = [turns // size for size in sizes]  # of one shard
    in_order = tuple(axis for axis in jax.sharding.get_abstract_mesh().axis_names if axis in axes)  # as ppermute counts
    places = sorted(itertools.product(*map(range, sizes)), key=lambda at: at if axes == in_order else at[::-1])

    def shard(k, at, turn):
        """Which one of operand k the device at a place needs; before the first turn its own."""
        if turn is None:
            return at[k]
        return (at[0] * pieces[0] + at[1] * pieces[1] + turn) // pieces[k] % sizes[k]

    def moved(x, k, before, after):
        holder = {(shard(k, at, before), at[1 - k]): number for number, at in enumerate(places)}
        pairs = [(holder[shard(k, at, after), at[1 - k]], number) for number, at in enumerate(places)]
        return x if all(source == target for source, target in pairs) else lax.ppermute(x, in_order, pairs)

    def piece(x, k, turn):
        at = terms.split("->")[0].split(",")[k].index(dim)
        rows = x.shape[at] // pieces[k]
        number = (lax.axis_index(axes[1 - k]) * pieces[1 - k] + turn) % pieces[k]
        return lax.dynamic_slice_in_dim(x, number * rows, rows, axis=at)

    held, total = [moved(x, k, None, 0) for k, x in enumerate(operands)], None
    for turn in range(turns):
        coming = [moved(x, k, turn, turn + 1) for k, x in enumerate(held)] if turn + 1 < turns else held
        if total is not None:  # a matmul that waits for the sum takes the addition in; the sum stands first
            total, held = lax.optimization_barrier((total, held))
        made = jnp.einsum(terms, *(piece(x, k, turn) for k, x in enumerate(held)))
        total = made if total is None else total + made
        # The next turn begins when this one is done; its shards are on their way meanwhile.
        held, total = lax.optimization_barrier((coming, total))
    return total
