"""The rings as `Plan.code()` writes them: plain JAX, of which each function's text is copied as it stands.

Nothing here may lean on this package, nor on anything but `jnp`, `lax` and the modules that `IMPORTS` names. They are
the rings of `shardwise.runtime.rings` without what makes those fast in every corner: loops, sums in another dtype,
derivatives of their own. JAX differentiates them as it does anything.
"""

import inspect
import itertools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


def shift(x, axes, way):
    """What arrives when every device sends `x` to the next one along `axes` (`way` 1) or to the one before (-1)."""
    n = lax.axis_size(axes)
    return lax.ppermute(x, axes, [(k, (k + way) % n) for k in range(n)])


def shift_in_any_order(x, axes, way):
    """What arrives when every device sends `x` to the next one along `axes` (`way` 1) or to the one before (-1)."""
    n = lax.axis_size(axes)
    in_order = tuple(axis for axis in jax.sharding.get_abstract_mesh().axis_names if axis in axes)  # as ppermute counts
    numbers = np.arange(n).reshape([lax.axis_size(axis) for axis in in_order])
    ring = numbers.transpose([in_order.index(axis) for axis in axes]).ravel().tolist()
    return lax.ppermute(x, in_order, [(ring[k], ring[(k + way) % n]) for k in range(n)])


def gather_einsum(terms, block, *others, dim, axes, ways, chunks=1):
    """`jnp.einsum(terms, ...)` of every device's block, gathered along `dim`, with the others.

    The blocks go round a ring, up (`ways` is (1,)) or both up and down (1, -1), in so many chunks each. What arrives
    is sent on and multiplied at once: one hop hides behind the product of the last.
    """
    inputs, out = terms.split("->")
    term, *other_terms = inputs.split(",")
    n, place, at = lax.axis_size(axes), lax.axis_index(axes), term.index(dim)

    def factors(part, start, arrays):  # of one product: a part of the whole array, and what the others have there
        rows, pairs = part.shape[at], zip(arrays, other_terms, strict=True)
        cut = [lax.dynamic_slice_in_dim(x, start, rows, t.index(dim)) if dim in t else x for x, t in pairs]
        return [part, *cut]

    def laid(result, parts, starts):
        for part, start in zip(parts, starts, strict=True):
            product, to = jnp.einsum(terms, *factors(part, start, others)), out.index(dim)
            if result is None:  # room, which is not filled: every block has its place
                result = lax.empty((*product.shape[:to], n * width, *product.shape[to + 1 :]), product.dtype)
            result = lax.dynamic_update_slice_in_dim(result, product, start, axis=to)
        return result

    def added(result, parts, starts):
        cut = sum(
            x.size * len(parts) * size // x.shape[t.index(dim)] for x, t in zip(others, other_terms, strict=True) if dim in t
        )
        if len(parts) > 1 and cut >= result.size:  # two cuts are copied into one product: rather one after the other
            for part, start in zip(parts, starts, strict=True):
                result = added(result, [part], [start])
            return result
        arrays = others
        if result is not None:  # a product that waits for the sum takes the addition in
            result, parts, waiting = lax.optimization_barrier((result, parts, others))
            arrays = waiting if len(parts) > 1 else others  # what waits, a compiler may lay out anew for each product
        columns = zip(*(factors(part, start, arrays) for part, start in zip(parts, starts, strict=True)), strict=True)
        pairs = zip(columns, [term, *other_terms], strict=True)
        product = jnp.einsum(terms, *(jnp.concatenate(xs, t.index(dim)) if dim in t else xs[0] for xs, t in pairs))
        return product if result is None else result + product

    width = block.shape[at]
    size = -(-width // chunks)
    hops = {1: n // 2, -1: (n - 1) // 2} if len(ways) == 2 else {ways[0]: n - 1}
    flying = {}
    for begin in range(0, width, size):
        part = lax.slice_in_dim(block, begin, min(begin + size, width), axis=at)
        flying[begin] = {way: shift(part, axes, way) for way in ways if hops[way]}
    taken = laid if dim in out else added
    result = taken(None, [block], [place * width])
    for hop in range(1, max(hops.values()) + 1):
        for begin in flying:
            # Else the compiler sends everything first, or multiplies everything last.
            arrived, result = lax.optimization_barrier((flying[begin], result))
            flying[begin] = {way: shift(part, axes, way) for way, part in arrived.items() if hop < hops[way]}
            starts = [(place - way * hop) % n * width + begin for way in arrived]
            result = taken(result, list(arrived.values()), starts)
    return result


def einsum_scatter(terms, *operands, dim, axes, ways, chunks=1):
    """`jnp.einsum(terms, *operands)` summed over the devices along `axes`, of which each keeps its part of `dim`.

    A sum begins one place past its home, travels up (`ways` is (1,)), or one half up and the other down (1, -1), and
    takes up one more product at every stop: while one part travels, another is multiplied.
    """
    inputs, out = terms.split("->")
    n, place = lax.axis_size(axes), lax.axis_index(axes)
    input_terms = inputs.split(",")

    def product(arrays, start, rows):
        pairs = zip(arrays, input_terms, strict=True)
        cut = [lax.dynamic_slice_in_dim(x, start, rows, t.index(dim)) if dim in t else x for x, t in pairs]
        return jnp.einsum(terms, *cut)

    whole = next(x.shape[t.index(dim)] for x, t in zip(operands, input_terms, strict=True) if dim in t)
    width = whole // n
    size = -(-width // (chunks * len(ways)))
    parts = [(begin, min(size, width - begin), ways[k % len(ways)]) for k, begin in enumerate(range(0, width, size))]
    sums, last = {}, None
    least = min(range(len(operands)), key=lambda k: operands[k].size)  # it waits; the others are laid out once for all
    for hop in range(1, n + 1):
        for begin, rows, way in parts:
            start = (place - way * hop) % n * width + begin
            if hop == 1:
                last = sums[begin] = product(operands, start, rows)
                continue
            arrived = shift(sums[begin], axes, way)
            # One product after the other, each when its sum is here: else the compiler multiplies everything first.
            arrived, small, last = lax.optimization_barrier((arrived, operands[least], last))
            last = sums[begin] = product([*operands[:least], small, *operands[least + 1 :]], start, rows) + arrived
    if len(parts) == 1:
        return sums[0]
    at = out.index(dim)
    result = lax.empty((*sums[0].shape[:at], width, *sums[0].shape[at + 1 :]), sums[0].dtype)
    for begin, part in sums.items():
        result = lax.dynamic_update_slice_in_dim(result, part, begin, axis=at)
    return result


def einsum_gather(terms, *operands, dim, axes, ways, chunks=1):
    """`jnp.einsum(terms, *operands)`, one device's block along `dim`, of which every device receives all.

    The block is made in so many chunks. Each goes round the ring, up (`ways` is (1,)) or both up and down (1, -1), as
    soon as it is there, while the next is multiplied.
    """
    inputs, out = terms.split("->")
    n, place, at = lax.axis_size(axes), lax.axis_index(axes), out.index(dim)
    width = next(x.shape[t.index(dim)] for x, t in zip(operands, inputs.split(","), strict=True) if dim in t)
    size = -(-width // chunks)

    def laid(result, part, start):
        if result is None:  # room, which is not filled: every block has its place
            result = lax.empty((*part.shape[:at], n * width, *part.shape[at + 1 :]), part.dtype)
        return lax.dynamic_update_slice_in_dim(result, part, start, axis=at)

    begins = list(range(0, width, size))
    hops = {1: n // 2, -1: (n - 1) // 2} if len(ways) == 2 else {ways[0]: n - 1}
    flying, result = {}, None
    least = min(range(len(operands)), key=lambda k: operands[k].size)  # it waits; the others are laid out once for all
    for tick in range(len(begins) + max(hops.values())):
        part = None
        if tick < len(begins):  # this device's next chunk, when all before has been written
            small, result = lax.optimization_barrier((operands[least], result))
            begin, rows = begins[tick], min(size, width - begins[tick])
            pairs = zip([*operands[:least], small, *operands[least + 1 :]], inputs.split(","), strict=True)
            cut = [lax.slice_in_dim(x, begin, begin + rows, axis=t.index(dim)) if dim in t else x for x, t in pairs]
            part = jnp.einsum(terms, *cut)
        for number, begin in enumerate(begins[:tick]):
            hop = tick - number
            arrived = {way: block for way, block in flying[begin].items() if hops[way] >= hop}
            arrived, result, part = lax.optimization_barrier((arrived, result, part))
            flying[begin] = {way: shift(block, axes, way) for way, block in arrived.items() if hops[way] > hop}
            for way, block in arrived.items():
                result = laid(result, block, (place - way * hop) % n * width + begin)
        if part is not None:
            flying[begins[tick]] = {way: shift(part, axes, way) for way in ways if hops[way]}
            result = laid(result, part, place * width + begins[tick])
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

    def shard(k, at, turn):  # which one of operand k the device at a place needs; before the first turn its own
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
        if total is not None:  # a product that waits for the sum takes the addition in; the sum stands first
            total, held = lax.optimization_barrier((total, held))
        product = jnp.einsum(terms, *(piece(x, k, turn) for k, x in enumerate(held)))
        total = product if total is None else total + product
        # The next turn begins when this one is done; its shards are on their way meanwhile.
        held, total = lax.optimization_barrier((coming, total))
    return total


HELPERS = ("shift", "shift_in_any_order", "gather_einsum", "einsum_scatter", "einsum_gather", "rotate_einsum")
IMPORTS = {"shift_in_any_order": ("numpy as np",), "rotate_einsum": ("itertools", "math")}


def text(name: str) -> str:
    """The source of one helper, as it is copied; `shift_in_any_order` goes by the name of the one that it stands for."""
    return inspect.getsource(globals()[name]).replace("shift_in_any_order", "shift")


def imports(names: Sequence[str]) -> tuple[str, ...]:
    """The modules that some helpers need besides JAX, in the order in which they are imported."""
    return tuple(sorted({module for name in names for module in IMPORTS.get(name, ())}))
