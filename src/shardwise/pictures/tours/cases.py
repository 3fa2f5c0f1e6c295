"""The tours of sharded multiplication: its four cases, two mesh axes at once, collective matmul, and all layouts."""

from __future__ import annotations

import numpy as np

from shardwise.layout import Layout
from shardwise.mesh import Mesh
from shardwise.pictures.tours.stops import (
    Alone,
    Choice,
    Cost,
    Done,
    Equal,
    Forms,
    Held,
    Multiplied,
    Placed,
    Refused,
    Ring,
    Said,
    Scene,
    Sheet,
    Stop,
    Tour,
)
from shardwise.program import Program, shift
from shardwise.steps import AllGather, AllReduce, Einsum, GatherEinsum, ReduceScatter, Slice, Step

TWO, SQUARE, FOUR = Mesh.parse("x=2"), Mesh.parse("x=2, y=2"), Mesh.parse("x=4")
SMALL = {"I": 4, "J": 4, "K": 4}
LARGE = {"I": 8192, "J": 8192, "K": 8192}
A, B = np.arange(16).reshape(4, 4), np.arange(16, 32).reshape(4, 4)
MULTIPLY = Einsum(("A", "B"), "C", ("I", "K"))


def _scene(mesh: Mesh, a: str, b: str, *steps: Step) -> Scene:
    inputs = (("A", Layout.parse(a)), ("B", Layout.parse(b)))
    return Scene(Program(mesh, inputs, steps, "C"), SMALL, {"A": A, "B": B}, LARGE)


def case_1() -> Tour:
    scene = _scene(SQUARE, "[I_x, J]", "[J, K_y]", MULTIPLY)
    equation = "A[I_x, J] · B[J, K_y] -> C[I_x, K_y]"
    return Tour("case-1", "the summed dimension is whole: multiply, and nothing moves", (
        Stop("what every device holds", (equation, "J is summed, and no axis splits it: each device holds whole rows of A "
             "and whole columns of B."), (Held(scene),)),
        Stop("what each device lacks", ("Nothing: each has all four terms of every number that it is to hold.",),
             (Alone(scene, equation),)),
        Stop("multiply", ("Each device multiplies what it holds. The result is its block of C.",), (Multiplied(scene),)),
        Stop("C, in blocks", ("The rule of case 1: subscripts outside the sum pass on to the result.",), (Held(scene, 1),)),
        Stop("four forms, no collective", ("Wherever I and K are split, over different axes, nothing is sent.",), (
            Forms(("A[I, J] · B[J, K] -> C[I, K]", "A[I_x, J] · B[J, K] -> C[I_x, K]",
                   "A[I, J] · B[J, K_y] -> C[I, K_y]", equation), scene),)),
        Stop("the cost", (), (Cost(scene),)),
    ))  # fmt: skip


def case_2() -> Tour:
    gather, split = AllGather("A", "J", ("x",)), Slice("B", "J", ("x",))
    gathered = _scene(TWO, "[I, J_x]", "[J, K]", gather, MULTIPLY)
    sliced = _scene(TWO, "[I, J_x]", "[J, K]", split, MULTIPLY, AllReduce("C", ("x",)))
    equation = "A[I, J_x] · B[J, K] -> C[I, K]"
    return Tour("case-2", "one operand is split along the sum: gather it, or slice the other", (
        Stop("what every device holds", (equation, "J is summed, and A is split along it: each device has half of every "
             "sum's terms."), (Held(gathered),)),
        Stop("what each device lacks", ("Columns of A, times the rows of B that match: half a sum.",),
             (Alone(gathered, equation),)),
        Stop("one way: gather A", ("After an all-gather every device holds all of A, and case 1 is left.",), (Done(gathered),)),
        Stop("then multiply", ("Every device computes all of C: the same work, done twice.",),
             (Multiplied(gathered, 1, (0,)),)),
        Stop("another way: slice B", ("Keep the rows of B that match your columns of A: nothing is sent. Each matmul "
             "then gives one partial sum of C.",), (Multiplied(sliced, 1),)),
        Stop("then all-reduce C", ("The partial sums are added. Half the work on each device, and C moves instead of A.",),
             (Done(sliced, 2),)),
        Stop("both are equal", ("Which is better? It depends on the sizes and the links.",), (Equal(gathered, sliced),)),
        Stop("what the planner says", (), (Choice(equation, "x=2", LARGE),)),
        Stop("the cost of the first way", (), (Cost(gathered),)),
    ))  # fmt: skip


def case_3() -> Tour:
    reduced = _scene(TWO, "[I, J_x]", "[J_x, K]", MULTIPLY, AllReduce("C", ("x",)))
    halves = _scene(TWO, "[I, J_x]", "[J_x, K]", MULTIPLY, ReduceScatter("C", "I", ("x",)), AllGather("C", "I", ("x",)))
    equation = "A[I, J_x] · B[J_x, K] -> C[I, K]"
    return Tour("case-3", "both operands are split along the sum: multiply, then add the partial sums", (
        Stop("what every device holds", (equation, "Both are split along J: each device has the columns of A that match "
             "its rows of B."), (Held(reduced),)),
        Stop("what each device lacks", ("Each can multiply at once, and gets a number of the right shape that is wrong: "
             "half a sum.",), (Alone(reduced, equation),)),
        Stop("multiply", ("C[I, K]{U_x}: every device holds one partial sum of C, as large as C.",), (Multiplied(reduced),)),
        Stop("all-reduce C", ("The partial sums are added.",), (Done(reduced, 1),)),
        Stop("the law: scatter, then gather", ("An all-reduce is a reduce-scatter and an all-gather. If C may stay split, "
             "C[I_x, K], leave out the second half.",), (Equal(reduced, halves),)),
        Stop("in the notation", ("What stands between two arrows must be passed.",), (
            Said(("A[I, J_x] · B[J_x, K] -> C[I, K]{U_x} -> C[I, K]     # all-reduce",
                  "A[I, J_x] · B[J_x, K] -> C[I_x, K]                   # reduce-scatter")),)),
        Stop("what the planner says", (), (Choice(equation, "x=2", LARGE),)),
        Stop("the cost", (), (Cost(reduced),)),
    ))  # fmt: skip


def case_4() -> Tour:
    by_b = _scene(TWO, "[I_x, J]", "[J, K_x]", AllGather("B", "K", ("x",)), MULTIPLY)
    by_a = _scene(TWO, "[I_x, J]", "[J, K_x]", AllGather("A", "I", ("x",)), MULTIPLY)
    return Tour("case-4", "one axis splits both I and K: gather one of the operands first", (
        Stop("what every device holds", ("A[I_x, J] · B[J, K_x]", "x splits the rows of A and the columns of B."),
             (Held(by_b),)),
        Stop("C[I_x, K_x] cannot be", ("One axis cannot split two dimensions: each device would hold a block on the diagonal, "
             "and nobody the others.",), (Refused("A[I_x, J] · B[J, K_x] -> C[I_x, K_x]"),)),
        Stop("what each device lacks", ("For C[I_x, K] each device needs whole rows of C. Beyond the diagonal it has no term "
             "at all.",), (Alone(by_b, "A[I_x, J] · B[J, K_x] -> C[I_x, K]"),)),
        Stop("one way: gather B", ("Then every device computes its rows of C: C[I_x, K].",), (Done(by_b),)),
        Stop("then multiply", ("Case 1 is left.",), (Multiplied(by_b, 1),)),
        Stop("another way: gather A", ("Then every device computes its columns of C: C[I, K_x].",), (Done(by_a),)),
        Stop("then multiply", ("Case 1 again.",), (Multiplied(by_a, 1),)),
        Stop("what the planner says", ("Where the result may lie as it likes:",),
             (Choice("A[I_x, J] · B[J, K_x] -> C[I_?, K_?]", "x=2", LARGE),)),
        Stop("the cost of the first way", (), (Cost(by_b),)),
    ))  # fmt: skip


def two_axes() -> Tour:
    a, b = np.arange(128).reshape(8, 16), np.arange(64).reshape(16, 4)

    def scene(*steps: Step) -> Scene:
        inputs = (("A", Layout.parse("[I_x, J_y]")), ("B", Layout.parse("[J_y, K]")))
        program = Program(SQUARE, inputs, (MULTIPLY, *steps), "C")
        return Scene(program, {"I": 8, "J": 16, "K": 4}, {"A": a, "B": b}, LARGE)

    scatter_columns = scene(ReduceScatter("C", "K", ("y",)))
    reduced = scene(AllReduce("C", ("y",)))
    scatter_rows = scene(ReduceScatter("C", "K", ("y",)), AllGather("C", "I", ("x",)))
    return Tour("two-axes", "rows over x, the sum over y: three layouts of the result", (
        Stop("where the blocks are", ("A[I_x, J_y] · B[J_y, K]: A = arange(128), 8 x 16; B = arange(64), 16 x 4.",
             "x splits the rows of A, y the sum. The numbers are the devices."),
             (Placed(("A[I_x, J_y]", "B[J_y, K]"), "x=2, y=2", {"I": 8, "J": 16, "K": 4}),)),
        Stop("what each device lacks", ("Half of the terms of each of its sums: those along y.",),
             (Alone(scatter_columns, "A[I_x, J_y] · B[J_y, K] -> C[I_x, K]"),)),
        Stop("multiply", ("Each device has one partial sum, 4 x 4, of its rows of C: C[I_x, K]{U_y}.",),
             (Held(scatter_columns, 1),)),
        Stop("reduce-scatter over y: blocks of 4 x 2", (), (Done(scatter_columns, 1),)),
        Stop("or all-reduce over y: rows, 4 x 4", (), (Done(reduced, 1),)),
        Stop("or gather what was scattered, over x: columns, 8 x 2", (), (Done(scatter_rows, 2),)),
        Stop("the cost of C[I_x, K_y]", (), (Cost(scatter_columns),)),
        Stop("the cost of C[I, K_y]", (), (Cost(scatter_rows),)),
    ))  # fmt: skip


def collective_matmul() -> Tour:
    inputs = (("A", Layout.parse("[I_x, J]")), ("B", Layout.parse("[J, K]")))
    layout = Layout.parse("[I_x, J]")
    turns = tuple(shift("A", layout, "x", FOUR, by=-1) for _ in range(3))
    ring = Scene(Program(FOUR, inputs, turns, "A"), SMALL, {"A": A, "B": B}, LARGE)
    plain = _scene(FOUR, "[I_x, J]", "[J, K]", AllGather("A", "I", ("x",)), MULTIPLY)
    fused = _scene(FOUR, "[I_x, J]", "[J, K]", GatherEinsum(AllGather("A", "I", ("x",)), MULTIPLY))
    equation = "A[I_x, J] · B[J, K] -> C[I, K]"
    return Tour("collective-matmul", "multiply one block while the next is on its way", (
        Stop("gather, then multiply", (equation, "While A is gathered the multipliers wait; while they work the links are "
             "idle."), (Cost(plain),)),
        Stop("what every device holds", ("One row of A each, and all of B. A device can multiply its own row at once.",),
             (Held(ring, 0, ("A",)),)),
        Stop("a ring", ("Each multiplies the row that it holds and passes it on to its neighbour meanwhile. After four ticks "
             "everyone has computed all of C.",), (Ring(ring),)),
        Stop("what is overlapped", ("A step now takes the longer of the two, multiply or transfer. The first block needs no "
             "transfer at all.",), (Cost(fused),)),
        Stop("three more rings", ("Whatever is gathered or scattered beside a matmul can be fused with it.",), (
            Said(("gather an operand    A[I_x, J] · B[J, K] -> C[I, K]         while it arrives",
                  "scatter the result   A[I, J_x] · B[J_x, K] -> C[I_x, K]     while sums leave",
                  "gather the result    A[I_x, J] · B[J, K] -> C[I, K]         part by part",
                  "rotate both          A[I_x, J_y] · B[J_x, K_y] -> C[I_x, K_y]")),)),
        Stop("what the planner says", ("It is not always worth it: rings are some candidates among others.",),
             (Choice(equation, "x=4", LARGE),)),
    ))  # fmt: skip


def layouts() -> Tour:
    sizes = {"I": 8192, "J": 8192}
    return Tour("layouts", "all layouts of an array on a mesh, as one sheet", (
        Stop("how to read a layout", ("Four devices in a mesh x=2, y=2, numbered row by row. A subscript says which mesh axis "
             "splits a dimension; no subscript: not split.",), (Placed(("A[I_x, J_y]", "A[I_y, J_x]"), "x=2, y=2", sizes),)),
        Stop("copies", ("An axis that splits nothing copies: two devices hold the same.",),
             (Placed(("A[I_x, J]", "A[I, J_y]"), "x=2, y=2", sizes),)),
        Stop("two axes on one dimension", ("I_{x,y} is split over x first, then over y. The other order puts other devices "
             "on the same blocks.",), (Placed(("A[I_{x,y}, J]", "A[I_{y,x}, J]"), "x=2, y=2", sizes),)),
        Stop("partial sums", ("Unreduced over y: devices 0 and 1 each hold one partial sum of the first half.",),
             (Placed(("A[I_x, J]{U_y}",), "x=2, y=2", sizes),)),
        Stop("all layouts of a vector", (), (Sheet("A[I]", "x=2, y=2"),)),
        Stop("all layouts of a matrix", (), (Sheet("A[I, J]", "x=2, y=2"),)),
    ))  # fmt: skip
