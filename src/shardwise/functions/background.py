"""A program's collectives by permutes, which a compiler lets run behind whatever needs none of what they bring.

TPU compilers start a permute, go on, and await it where it is needed; an all-reduce or a reduce-scatter they run by itself,
and on some chips an all-gather too. A single equation has nothing else to do meanwhile; in a whole step the gradient of one
weight is summed behind the next matmul, and a weight is gathered behind the matmul before.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from shardwise.layout import Layout
from shardwise.planning.fuse import checked, widest
from shardwise.planning.prices import Costs
from shardwise.program import Program
from shardwise.steps import AllGather, AllReduce, Einsum, EinsumGather, EinsumScatter, ReduceScatter, Step

LEAST_BYTES = 2**20  # of a shard: what is smaller is sent before anything else could run


def in_background(program: Program, sizes: Mapping[str, int], costs: Costs, *, gathers: bool = False) -> Program:
    """The program with each large sum over one mesh axis by permutes, or each all-gather too; itself where there is none.

    >>> import shardwise as sw
    >>> sizes = {"I": 2048, "J": 4096, "K": 2048}
    >>> found = sw.plan("A[I, J_x] · B[J_x, K] -> C[I, K]", sizes=sizes, mesh="x=4", hardware="v5e:2x2", overlap=False)
    >>> from shardwise.planning.problem import costs_on
    >>> costs = costs_on("v5e:2x2", found.best.program.mesh, "bfloat16")
    >>> [type(step).__name__ for step in in_background(found.best.program, sizes, costs).steps]
    ['Einsum', 'EinsumScatter', 'EinsumGather']
    """
    steps: list[Step] = []
    for step, layouts in zip(program.steps, program.states()[1:], strict=True):
        if isinstance(step, AllReduce | ReduceScatter) or (gathers and isinstance(step, AllGather)):
            steps += _by_permutes(step, program, layouts, sizes, costs)
        else:
            steps.append(step)
    return checked(program, tuple(steps)) or program


def _by_permutes(
    step: AllReduce | ReduceScatter | AllGather, program: Program, layouts: Mapping[str, Layout], sizes: Mapping[str, int],
    costs: Costs,
) -> tuple[Step, ...]:  # fmt: skip
    if len(step.axes) != 1:
        return (step,)
    layout = layouts[step.array]
    shard = layout.shard_shape(sizes, program.mesh)
    if math.prod(shard) * costs.made_item_bytes < LEAST_BYTES:
        return (step,)
    same = Einsum((step.array,), step.array, layout.names)
    if isinstance(step, ReduceScatter):
        return (EinsumScatter(same, step),)
    # Where each way has links of its own, half of what the furthest of an even count of devices has comes on either side.
    chunks = 2 if costs.interconnect.hop(step.axes).both_ways and program.mesh.extent(step.axes) % 2 == 0 else 1
    if isinstance(step, AllGather):
        return (EinsumGather(same, step, chunks=chunks),)
    dim = widest(layout, step, sizes, program)
    if dim is None:
        return (step,)
    scatter, gather = ReduceScatter(step.array, dim, step.axes), AllGather(step.array, dim, step.axes)
    return EinsumScatter(same, scatter), EinsumGather(same, gather, chunks=chunks)
