"""The tours of the collectives: programs of one step, with the numbers that people know them by."""

from __future__ import annotations

import numpy as np

from shardwise.layout import Layout
from shardwise.mesh import Mesh
from shardwise.pictures.tours.stops import Alone, Cost, Done, Equal, Held, Needed, Said, Scene, Stop, Tour
from shardwise.program import Program, shift
from shardwise.steps import AllGather, AllReduce, AllToAll, ReduceScatter, Slice, Step

FOUR = Mesh.parse("x=4")
ROWS = ([3, 1, 4, 1], [5, 9, 2, 6], [5, 3, 5, 8], [9, 7, 1, 2])
LARGE = {"I": 2**27}
LARGE_SQUARE = {"I": 2**13, "J": 2**13}


def _scene(layout: str, values: np.ndarray | list[np.ndarray], *steps: Step) -> Scene:
    parsed = Layout.parse(layout)
    square = len(parsed.names) == 2
    return Scene(
        Program(FOUR, (("A", parsed),), steps, "A"),
        dict.fromkeys(parsed.names, 4),
        {"A": values},
        LARGE_SQUARE if square else LARGE,
    )


def all_gather() -> Tour:
    values = np.array([3, 9, 5, 2])
    gather, cut = AllGather("A", "I", ("x",)), Slice("A", "I", ("x",))
    scene = _scene("[I_x]", values, gather)
    return Tour("all-gather", "every device receives all the parts", (
        Stop("one part on each device", ("A has four numbers; the mesh axis x splits I, so each device holds one.",),
             (Held(scene),)),
        Stop("what each device lacks", ("Each device is to know the sum of all. It holds one of the four terms, and what it "
             "sums alone is wrong.",), (Alone(scene, "A[I_x] -> S[]"),)),
        Stop("the all-gather", ("Every device sends its part to all others. Then each holds all parts, in their order.",),
             (Done(scene),)),
        Stop("the law: slicing undoes it", ("All-gather, then keep your own part: every device is where it began. "
             "So the gradient of a slice gathers.",), (Equal(_scene("[I_x]", values), _scene("[I_x]", values, gather, cut)),)),
        Stop("in the notation", ("I_x: dimension I is split over x. I alone: every device holds all of it.",), (
            Said(("A[I_x] -> A[I]", "", 'sw.reshard(a, "A[I_x] -> A[I]")',
                  'jax.lax.all_gather(a, "x", tiled=True)      # the same inside jax.shard_map')),)),
        Stop("the cost", (), (Cost(scene),)),
    ))  # fmt: skip


def all_reduce() -> Tour:
    values = [np.array(row) for row in ROWS]
    scene = _scene("[I]{U_x}", values, AllReduce("A", ("x",)))
    halves = _scene("[I]{U_x}", values, ReduceScatter("A", "I", ("x",)), AllGather("A", "I", ("x",)))
    return Tour("all-reduce", "every device receives the sum", (
        Stop("one partial sum on each device", ("A is unreduced over x: every device holds one partial sum of all of A, and "
             "A itself is their sum, which nobody has.",), (Held(scene),)),
        Stop("what each device lacks", ("A device that takes its partial sum for A is wrong: it has one of the four terms of "
             "each number.",), (Alone(scene, "A[I]{U_x} -> A[I]"),)),
        Stop("the all-reduce", ("The partial sums are added, and every device receives the sum.",), (Done(scene),)),
        Stop("the law: reduce-scatter, then all-gather", ("Summing parts first and gathering them after gives the same. "
             "So an all-reduce sends twice what an all-gather does.",), (Equal(scene, halves),)),
        Stop("in the notation", ("{U_x} behind the brackets: unreduced over x, the values are still partial sums.",), (
            Said(("A[I]{U_x} -> A[I]", "", 'jax.lax.psum(a, "x")                        # inside jax.shard_map')),)),
        Stop("the cost", (), (Cost(scene),)),
    ))  # fmt: skip


def reduce_scatter() -> Tour:
    values = [np.array(row) for row in ROWS]
    scene = _scene("[I]{U_x}", values, ReduceScatter("A", "I", ("x",)))
    reduced = _scene("[I]{U_x}", values, AllReduce("A", ("x",)), Slice("A", "I", ("x",)))
    return Tour("reduce-scatter", "every device receives its part of the sum", (
        Stop("one partial sum on each device", ("As before an all-reduce: every device holds one partial sum of all of A.",),
             (Held(scene),)),
        Stop("what each device lacks", ("Device 0 is to hold A[0], device 1 A[1], and so on. Alone each has one of four "
             "terms of its number.",), (Alone(scene, "A[I]{U_x} -> A[I_x]"),)),
        Stop("the reduce-scatter", ("Of each number the partial sums go to the device that is to keep it, and are "
             "added there.",), (Done(scene),)),
        Stop("the law: half of an all-reduce", ("Reduce all, then keep your part: the same, and twice as much is sent. "
             "The other half is an all-gather.",), (Equal(scene, reduced),)),
        Stop("in the notation", ("The partial sums vanish, {U_x}, and I is split, I_x.",), (
            Said(("A[I]{U_x} -> A[I_x]", "",
                  'jax.lax.psum_scatter(a, "x", tiled=True)    # inside jax.shard_map')),)),
        Stop("the cost", (), (Cost(scene),)),
    ))  # fmt: skip


def all_to_all() -> Tour:
    values = np.array(ROWS)
    move = AllToAll("A", "I", "J", ("x",))
    scene = _scene("[I_x, J]", values, move)
    back = _scene("[I_x, J]", values, AllGather("A", "I", ("x",)), Slice("A", "J", ("x",)))
    return Tour("all-to-all", "rows become columns: a split moves to another dimension", (
        Stop("one row on each device", ("A is 4 x 4; x splits I, so each device holds one row.",), (Held(scene),)),
        Stop("what each device lacks", ("Each device is to know the sum of one column. It holds one number of it.",),
             (Alone(scene, "A[I_x, J] -> S[J_x]"),)),
        Stop("the all-to-all", ("Every device keeps one number and sends each other device one. Rows become columns.",),
             (Done(scene),)),
        Stop("the law: gather, then slice", ("Gathering everything and keeping one column gives the same; an all-to-all "
             "sends only what is kept.",), (Equal(scene, back),)),
        Stop("in the notation", ("The subscript x moves from I to J: nothing else changes.",), (
            Said(("A[I_x, J] -> A[I, J_x]", "", 'sw.reshard(a, "A[I_x, J] -> A[I, J_x]")',
                  'jax.lax.all_to_all(a, "x", split_axis=1, concat_axis=0, tiled=True)')),)),
        Stop("the cost", (), (Cost(scene),)),
    ))  # fmt: skip


def permute() -> Tour:
    values, layout = np.arange(4), Layout.parse("[I_x]")
    step = shift("A", layout, "x", FOUR)
    scene = _scene("[I_x]", values, step)
    return Tour("permute", "every part moves one place along the axis", (
        Stop("one part on each device", ("A is 0 1 2 3, one number on each device.",), (Held(scene),)),
        Stop("what each device lacks", ("A pipeline, a halo, a ring: device k needs what its neighbour k-1 holds. "
             "Its own number is the wrong one.",), (Needed(scene),)),
        Stop("the permute", ("Every device sends to one other, and receives from one. The last wraps around to the first.",),
             (Done(scene),)),
        Stop("the law: once around is home", ("Four shifts along four devices leave everything where it was. "
             "On the way every device has seen every part: so rings work.",),
             (Equal(_scene("[I_x]", values), _scene("[I_x]", values, step, step, step, step)),)),
        Stop("in the notation", ("A shift changes which device holds which part, not the layout: there is no sign for it. "
             "A change of order has one.",), (
            Said(("A[I_{x,y}] -> A[I_{y,x}]                    # a permute", "",
                  'jax.lax.ppermute(a, "x", [(0, 1), (1, 2), (2, 3), (3, 0)])')),)),
        Stop("the cost", (), (Cost(scene),)),
    ))  # fmt: skip


def slice_() -> Tour:
    values = np.array([3, 9, 5, 2])
    cut, gather = Slice("A", "I", ("x",)), AllGather("A", "I", ("x",))
    scene = _scene("[I]", values, cut)
    return Tour("slice", "every device keeps its part; nothing is sent", (
        Stop("a copy on each device", ("A is replicated: every device holds all four numbers.",), (Held(scene),)),
        Stop("what each device lacks", ("Nothing: each holds more than it is to keep.",), (Alone(scene, "A[I] -> A[I_x]"),)),
        Stop("the slice", ("Each keeps its part. It is the one step between layouts that costs no transfer.",), (Done(scene),)),
        Stop("the law: an all-gather undoes it", ("Slice, then all-gather: everybody has everything again.",),
             (Equal(_scene("[I]", values), _scene("[I]", values, cut, gather)),)),
        Stop("in the notation", ("From I to I_x.",), (
            Said(("A[I] -> A[I_x]", "", 'sw.reshard(a, "A[I] -> A[I_x]")')),)),
        Stop("the cost", (), (Cost(scene),)),
    ))  # fmt: skip
