"""Fused programs as plain source: what `Plan.code()` writes is the einsum, has its derivative, and needs no Shardwise."""

from __future__ import annotations

import ast
import builtins
import itertools
import keyword
import subprocess
import sys
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shardwise as sw
from shardwise.errors import PlanError
from shardwise.mesh import Mesh
from shardwise.planning.fuse import names_of
from shardwise.program import Program
from shardwise.runtime.code import source
from shardwise.runtime.lower import leaves_replicated, lower
from shardwise.steps import AllGather, AllToAll, Einsum, EinsumGather, EinsumScatter, GatherEinsum, ReduceScatter

# Every one can be gathered for, one way and both, or be turned to where it is scattered; one can rotate, too.
EQUATIONS = {
    "D6, gathered": ("A[I_x, J] · B[J, K] -> C[I, K]", "x"),
    "D7, a block of each operand": ("A[I_x, J] · Y[P_x, J, K] -> C[P_x, I, K]", "x"),
    "D8, scattered": ("A[I, J_x] · B[J_x, K] -> C[I_x, K]", "x"),
    "D8, summed": ("A[I, J_x] · B[J_x, K] -> C[I, K]", "x"),
    "D10, both operands": ("A[I_x, J_y] · B[J_x, K_y] -> C[I_x, K_y]", "xy"),
    "up": ("X[B_x, D] · W[D, F_x] -> H[B, F_x]", "x"),
    "weights": ("A[B_x, D] · W[D_x, F] -> C[B_x, F]", "x"),
}
MESHES = {"x": ["x=2", "x=3", "x=4"], "xy": ["x=2, y=2", "x=2, y=3", "x=2, y=4"]}
CASES = [
    (name, mesh, way)
    for name, (_, kind) in EQUATIONS.items()
    for mesh, way in itertools.product(MESHES[kind], ["ring", "bidirectional", "scatter", "rotate"][: 3 + (kind == "xy")])
] + [(name, "x=4", "folded") for name, (_, kind) in EQUATIONS.items() if kind == "x"]
SIZE = 24


def drawn(equation: str, size: int = SIZE) -> list[np.ndarray]:
    """Small whole numbers, whose products every order of addition sums exactly."""
    random = np.random.default_rng(0)
    shapes = [[size] * len(operand.dims) for operand in sw.parse(equation).operands]
    return [random.integers(-4, 4, shape).astype("float32") for shape in shapes]


def whole(equation: str):
    terms, numbers = sw.parse(equation), {}
    letters = ["".join(chr(97 + numbers.setdefault(dim, len(numbers))) for dim in term.dims) for term in terms.operands]
    out = "".join(chr(97 + numbers[dim]) for dim in terms.result.dims)
    return lambda *arrays: jnp.einsum(f"{','.join(letters)}->{out}", *arrays, precision="highest")


def executed(text: str, program: Program, arrays: list[np.ndarray]) -> tuple:
    """The program that the source makes, and the arrays placed as it wants them."""
    names: dict = {}
    exec(text, names)
    specs = [layout.on(program.mesh).spec for _, layout in program.inputs]
    placings = [jax.sharding.NamedSharding(names["mesh"], spec) for spec in specs]
    return names["program"], [jax.device_put(a, placing) for a, placing in zip(arrays, placings, strict=True)], names["mesh"]


def assert_is_einsum(equation: str, program: Program, derivative: bool = False, size: int = SIZE) -> None:
    text, arrays = source(program, equation), drawn(equation, size)
    assert "shardwise" not in text
    assert ("check_vma=False" in text) == leaves_replicated(program)
    function, placed, mesh = executed(text, program, arrays)
    wanted = np.asarray(whole(equation)(*arrays))
    made = function(*placed)
    for shard in made.addressable_shards:  # every copy, where there are several
        np.testing.assert_array_equal(shard.data, wanted[shard.index], err_msg=text)
    if derivative:
        weights = np.random.default_rng(1).integers(-4, 4, wanted.shape).astype("float32")
        with jax.set_mesh(mesh):
            cotangent = jax.device_put(weights, made.sharding)
            found = jax.jit(lambda ct, *given: jax.vjp(function, *given)[1](ct))(cotangent, *placed)
        for one, other in zip(found, jax.vjp(whole(equation), *arrays)[1](weights), strict=True):
            # Where types are unchecked, JAX divides the cotangent of a copy by the number of copies, and adds them up.
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-3, err_msg=text)


@pytest.mark.parametrize(("name", "mesh", "way"), CASES)
def test_the_source_of_a_fused_program_is_the_einsum(name, mesh, way):
    equation, _ = EQUATIONS[name]
    plan = sw.plan(equation, sizes=dict.fromkeys(sw.parse(equation).dims, SIZE), mesh=mesh, dtype="float32", overlap=way)
    program = plan.best.program
    assert any(way in names_of(step) for step in program.steps)
    assert_is_einsum(equation, program, derivative=mesh.endswith("=3"))


@pytest.mark.parametrize("name", [name for name, (_, kind) in EQUATIONS.items() if kind == "x"])
def test_what_is_split_over_one_axis_does_not_rotate(name):
    equation, _ = EQUATIONS[name]
    sizes = dict.fromkeys(sw.parse(equation).dims, SIZE)
    with pytest.raises(PlanError, match="'rotate': no program of this equation has it"):
        sw.plan(equation, sizes=sizes, mesh="x=4", dtype="float32", overlap="rotate")


GATHERED = AllGather("A", "I", ("x",)), Einsum(("A", "B"), "C", ("I", "K"))
SUMMED = AllGather("B", "J", ("x",)), Einsum(("A", "B"), "C", ("I", "K"))
SCATTERED = Einsum(("A", "B"), "C", ("I", "K")), ReduceScatter("C", "I", ("x",))
PIPELINED = Einsum(("A", "B"), "C", ("I", "K")), AllGather("C", "I", ("x",))
CHUNKED = [
    ("A[I_x, J] · B[J, K] -> C[I, K]", lambda way, chunks: GatherEinsum(*GATHERED, way, chunks)),
    ("A[I_x, J] · B[J_x, K] -> C[I_x, K]", lambda way, chunks: GatherEinsum(*SUMMED, way, chunks)),
    ("A[I, J_x] · B[J_x, K] -> C[I_x, K]", lambda way, chunks: EinsumScatter(*SCATTERED, way, chunks)),
    ("A[I_x, J] · B[J, K] -> C[I, K]", lambda way, chunks: EinsumGather(*PIPELINED, way, chunks)),
]


@pytest.mark.parametrize(("equation", "step"), CHUNKED)
@pytest.mark.parametrize(("way", "chunks"), [("ring", 2), ("folded", 2), ("bidirectional", 3), ("bidirectional", 100)])
@pytest.mark.parametrize("n", [3, 4])
def test_chunks_that_do_and_do_not_divide_a_block(equation, step, way, chunks, n):
    inputs = tuple((operand.name, operand.layout) for operand in sw.parse(equation).operands)
    program = Program(Mesh.parse(f"x={n}"), inputs, (step(way, chunks),), "C")
    assert_is_einsum(equation, program, size=5 * n)


@pytest.mark.parametrize(("columns", "matmuls"), [(64, 3), (2, 4)])
@pytest.mark.parametrize("chunks", [1, 2])
def test_what_arrives_from_both_sides_is_one_matmul_where_its_cuts_are_smaller_than_the_sum(columns, matmuls, chunks):
    """In what is run and in the source alike; of four blocks two arrive together."""
    mesh = sw.make_mesh("x=4")
    multiply, inputs = Einsum(("A", "W"), "C", ("B", "F")), (("A", sw.Layout.parse("B_x, D")), ("W", sw.Layout.parse("D_x, F")))
    step = GatherEinsum(AllGather("W", "D", ("x",)), multiply, "bidirectional", chunks)
    program = Program(Mesh.parse("x=4"), inputs, (step,), "C")
    arrays = [np.arange(8 * 32, dtype=np.float32).reshape(8, 32) % 7, np.ones((32, columns), np.float32)]
    coded, placed, _ = executed(source(program, ""), program, arrays)
    for function in (coded, jax.jit(lower(program, mesh))):
        np.testing.assert_array_equal(function(*placed), arrays[0] @ arrays[1])
        text = function.lower(*placed).as_text()
        assert text.count("stablehlo.dot_general") == 1 + chunks * (matmuls - 1)


@pytest.mark.parametrize("axes", [("x", "y"), ("y", "x")])
def test_a_ring_over_two_axes_in_either_order(axes):
    split = "{" + ",".join(axes) + "}"
    for equation, step in (
        (f"A[I_{split}, J] · B[J, K] -> C[I, K]", GatherEinsum(AllGather("A", "I", axes), GATHERED[1])),
        (f"A[I_{split}, J] · B[J, K] -> C[I, K]", EinsumGather(SCATTERED[0], AllGather("C", "I", axes))),
        (f"A[I, J_{split}] · B[J_{split}, K] -> C[I_{split}, K]", EinsumScatter(SCATTERED[0], ReduceScatter("C", "I", axes))),
    ):
        inputs = tuple((operand.name, operand.layout) for operand in sw.parse(equation).operands)
        assert_is_einsum(equation, Program(Mesh.parse("x=2, y=3"), inputs, (step,), "C"), derivative=True)


def test_operands_rotate_in_either_order_of_the_axes():
    equation = "A[I_y, J_x] · B[J_y, K_x] -> C[I_y, K_x]"
    plan = sw.plan(equation, sizes={"I": 24, "J": 24, "K": 24}, mesh="x=2, y=4", dtype="float32", overlap="rotate")
    assert_is_einsum(equation, plan.best.program, derivative=True)


def test_arrays_may_have_the_names_of_the_rings():
    equation = "shift[I_x, J] · gather_einsum[J, K] -> np[I, K]"
    plan = sw.plan(equation, sizes={"I": 8, "J": 8, "K": 8}, mesh="x=4", dtype="float32", overlap="ring")
    assert_is_einsum(equation, plan.best.program)


def test_only_the_rings_that_are_called_are_written():
    sizes, heads = (
        {"I": 24, "J": 24, "K": 24},
        ["def shift(", "def gather_einsum(", "def einsum_scatter(", "def rotate_einsum("],
    )
    wanted = {"ring": heads[:2], "scatter": [heads[0], heads[2]], "rotate": heads[3:]}
    for way, found in wanted.items():
        equation = "A[I, J_x] · B[J_x, K] -> C[I_x, K]" if way == "scatter" else EQUATIONS["D10, both operands"][0]
        text = sw.plan(equation, sizes=sizes, mesh="x=2, y=2", overlap=way).code()
        assert [head for head in heads if head in text] == found
        assert ("import math" in text) == (way != "ring")


WITHOUT = """
import sys
sys.modules["shardwise"] = None  # importing it fails
exec(sys.stdin.read())
import numpy as np
a, b = np.arange(96.0).reshape(12, 8), np.arange(64.0).reshape(8, 8)
place = lambda x, *spec: jax.device_put(x.astype("float32"), jax.NamedSharding(mesh, P(*spec)))
np.testing.assert_array_equal(program(place(a, "x", "y"), place(b, "x", "y")), a @ b)
"""


@pytest.mark.parametrize("way", ["ring", "scatter", "rotate"])
def test_the_source_runs_where_there_is_no_shardwise(way):
    plan = sw.plan(EQUATIONS["D10, both operands"][0], sizes={"I": 12, "J": 8, "K": 8}, mesh="x=2, y=4", overlap=way)
    done = subprocess.run([sys.executable, "-c", WITHOUT], input=plan.code(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# Names that Python would take for others: not identifiers, equal under NFKC, keywords, builtins, what the text itself calls.
TWINS = [
    ("W₁", "W1"), ("A²", "A2"), ("A²", "A₂"), ("ﬁ", "fi"), ("Ⅳ", "iv"), ("W", "w"), ("W'", "W_"), ("class", "None"),
    ("match", "type"), ("print", "sum"), ("jax", "jnp"), ("lax", "P"), ("local", "mesh"), ("program", "math"),
    ("shift", "Gather_einsum"), ("İ", "i"), ("ª", "a"),
]  # fmt: skip


@pytest.mark.parametrize(("first", "second"), TWINS)
def test_names_of_arrays_are_names_in_python_and_stay_apart(first, second):
    plan = sw.plan(f"{first}[I_x, J] · {second}[J, K] -> C[I_x, K]", sizes={"I": 4, "J": 2, "K": 2}, mesh="x=2")
    text = plan.code()
    made = next(node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef))
    names = [argument.arg for argument in made.args.args]  # as the parser normalises them
    assert len(set(names)) == 2
    assert not {"jax", "jnp", "lax", "P", "mesh", "local", "program", *dir(builtins)} & set(names)
    assert not any(map(keyword.issoftkeyword, names))


def test_code_with_names_that_are_none_in_python_computes_what_it_says():
    plan = sw.plan("A²[I_x, J] · A2[J, K] -> A₂[I_x, K]", sizes={"I": 4, "J": 2, "K": 2}, mesh="x=2")
    a, b = np.arange(8.0, dtype=np.float32).reshape(4, 2), np.arange(4.0, dtype=np.float32).reshape(2, 2)
    made, placed, _ = executed(plan.code(), plan.best.program, [a, b])
    np.testing.assert_array_equal(made(*placed), a @ b)


def test_more_dimensions_than_letters_have_letters_of_their_own():
    dims = ", ".join(f"D{k}" for k in range(60))
    plan = sw.plan(f"A[{dims}] · B[D0, K] -> C[{dims}, K]", sizes={f"D{k}": 1 for k in range(60)} | {"K": 1}, mesh="x=2")
    names: dict = {}
    exec(plan.code(), names)
    assert names["program"](jnp.ones((1,) * 60), jnp.ones((1, 1))).shape == (1,) * 61


def test_a_title_or_a_name_cannot_leave_its_docstring_or_its_comment():
    hostile = 'x"""\nraise SystemExit\n"""\\'
    program = Program(Mesh(((hostile, 2),)), ((hostile, sw.Layout(((hostile, (hostile,)),))),),
                      (AllGather(hostile, hostile, (hostile,)),), hostile)  # fmt: skip
    tree = ast.parse(source(program, hostile))
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Raise)]


SCATTER, EXCHANGE = ReduceScatter("C", "I", ("x",)), AllToAll("A", "J", "B", ("x",))
ROWS, BATCHES = "A[I, J_x] · B[J_x, K] -> C[I_x, K]", "A[B, I, J_x] · B[J_x, K] -> C[B, I_x, K]"
TOLD = [
    ("A[I, J_x] · B[J_x, K] -> C[I, K_x]", {"I": 8, "J": 8, "K": 640}, "v5e", replace(SCATTER, dim="K"), "scatter_blocks"),
    (ROWS, {"I": 40, "J": 8, "K": 128}, "v7x", SCATTER, "scatter_blocks"),
    (ROWS, {"I": 40, "J": 8, "K": 128}, "v5p", SCATTER, "lax.psum_scatter"),
    ("A[I, J_x] · B[J_x] -> C[I_x]", {"I": 512, "J": 8}, "v6e", SCATTER, "scatter_rows"),
    (BATCHES, {"B": 2, "I": 36, "J": 8, "K": 128}, "v6e", SCATTER, "sum_and_cut"),
    ("A[B, I, J_x] -> A[B_x, I, J]", {"B": 8, "I": 16, "J": 512}, "v6e", EXCHANGE, "exchange_blocks"),
    ("A[B_x, I, J] -> A[B, I_x, J]", {"B": 4, "I": 16, "J": 8}, "v6e", AllToAll("A", "B", "I", ("x",)), "exchange_one"),
    ("A[B, I_x, J] -> A[B, I, J_x]", {"B": 1, "I": 16, "J": 512}, "v5p", AllToAll("A", "I", "J", ("x",)),
     "lax.expand_dims(lax.all_to_all(lax.optimization_barrier(lax.squeeze(a, (0,)))"),
]  # fmt: skip


@pytest.mark.parametrize(("equation", "sizes", "chip", "step", "call"), TOLD)
def test_the_source_tells_tpu_compilers_what_the_runtime_tells_them(equation, sizes, chip, step, call):
    task = sw.plan(equation, sizes=sizes, mesh="x=4", hardware=chip, dtype="float32", overlap=False).task
    operands, result = task.equation.operands, task.equation.result
    matmul = (Einsum(tuple(each.name for each in operands), result.name, result.dims),) if len(operands) > 1 else ()
    inputs = tuple((each.name, each.layout) for each in operands)
    program = Program(task.mesh, inputs, (*matmul, step), result.name)
    random = np.random.default_rng(0)
    arrays = [random.integers(-4, 4, [sizes[dim] for dim in each.dims]).astype("float32") for each in operands]
    text = source(program, equation, task=task)
    assert call in text
    assert "shardwise" not in text
    function, placed, _ = executed(text, program, arrays)
    np.testing.assert_array_equal(function(*placed), whole(equation)(*arrays))
    assert source(program, equation).count(" = lax.") == 1  # of no chip nothing is told


GRADIENT = Einsum(("A", "B"), "C", ("J", "K"))
RINGS_TOLD = [
    ("A[B, I_x, J] · B[B, I_x, K] -> C[J_x, K]", {"B": 2, "I": 32, "J": 8, "K": 128}, "v5e",
     EinsumScatter(GRADIENT, ReduceScatter("C", "J", ("x",)), "ring", 2),
     "'bj,bk->jk', as_one(lying_in(a, (0, 1, 2)), 0, 2), as_one(lying_in(b, (0, 1, 2)), 0, 2)"),
    ("A[B, I, J_x] · B[B, I, K] -> C[J, K]", {"B": 2, "I": 8, "J": 512, "K": 128}, "v5e",
     EinsumGather(GRADIENT, AllGather("C", "J", ("x",)), "ring", 2), "'bj,bk->jk', as_one(a, 0, 2), as_one(b, 0, 2)"),
    ("A[B, I_x, J] · B[B, I_x, K] -> C[J_x, K]", {"B": 2, "I": 36, "J": 8, "K": 128}, "v5e",
     EinsumScatter(GRADIENT, ReduceScatter("C", "J", ("x",)), "ring", 2),
     "'bij,bik->jk', lying_in(a, (0, 2, 1)), lying_in(b, (1, 0, 2))"),
    ("A[I, J] · B[J, K_x] -> C[I, K]", {"I": 8, "J": 8, "K": 512}, "v5e",
     GatherEinsum(AllGather("B", "K", ("x",)), Einsum(("A", "B"), "C", ("I", "K")), "ring", 2), "order=(0, 1)"),
]  # fmt: skip


@pytest.mark.parametrize(("equation", "sizes", "chip", "step", "call"), RINGS_TOLD)
def test_rings_are_written_as_tpu_compilers_are_told_of_them(equation, sizes, chip, step, call):
    task = sw.plan(equation, sizes=sizes, mesh="x=4", hardware=chip, dtype="float32", overlap=False).task
    inputs = tuple((each.name, each.layout) for each in task.equation.operands)
    program = Program(task.mesh, inputs, (step,), "C")
    random = np.random.default_rng(0)
    arrays = [random.integers(-4, 4, [sizes[dim] for dim in each.dims]).astype("float32") for each in task.equation.operands]
    text = source(program, equation, task=task)
    assert call in text
    function, placed, _ = executed(text, program, arrays)
    np.testing.assert_array_equal(function(*placed), whole(equation)(*arrays))
    assert call == "'bij,bik->jk', a, b" or call not in source(program, equation)


def test_a_ring_that_waits_for_its_links_is_written_so():
    equation, sizes = "A[I, J_x] · B[J, K_x] -> C[I_x, K]", {"I": 16, "J": 8, "K": 512}
    task = sw.plan(equation, sizes=sizes, mesh="x=4", hardware="v5e", dtype="float32").task
    ring = GatherEinsum(AllGather("B", "K", ("x",)), Einsum(("A", "B"), "C", ("I", "K")), "bidirectional")
    inputs = tuple((each.name, each.layout) for each in task.equation.operands)
    program = Program(task.mesh, inputs, (AllToAll("A", "J", "I", ("x",)), ring), "C")
    random = np.random.default_rng(0)
    arrays = [random.integers(-4, 4, [sizes[dim] for dim in each.dims]).astype("float32") for each in task.equation.operands]
    text = source(program, equation, task=task)
    assert "b, a = lax.optimization_barrier((b, a))" in text
    function, placed, _ = executed(text, program, arrays)
    np.testing.assert_array_equal(function(*placed), whole(equation)(*arrays))
    assert "b, a = " not in source(program, equation)


@pytest.mark.parametrize(
    ("equation", "mesh", "slice_"),
    [
        ("A[I_x, J] · B[J, K_x] -> C[I, K_x]", "x=8", "v5p:2x2x2"),
        ("A[I, J_x] · B[J_x, K] -> C[I_x, K]", "x=8", "v5p:2x2x2"),
        ("A[I_{y,x}, J] · B[J, K] -> C[I, K]", "x=4, y=2", "v5p:2x2x2"),
        ("A[I_y, J_x] · B[J_x, K] -> C[I_y, K_x]", "x=4, y=2", "v5p:2x2x2"),
    ],
)
def test_what_goes_along_all_sides_of_a_torus_runs_on_any_devices(equation, mesh, slice_):
    plan = sw.plan(equation, sizes=dict.fromkeys("IJK", 24), mesh=mesh, hardware=slice_, overlap="torus", dtype="float32")
    on, arrays = sw.make_mesh(mesh), drawn(equation, 24)
    placed = [sw.put(array, operand.layout, on) for array, operand in zip(arrays, plan.task.equation.operands, strict=True)]
    for candidate in plan.candidates[:3]:
        assert_is_einsum(equation, candidate.program, derivative=True, size=24)
        np.testing.assert_array_equal(plan.function(on, candidate)(*placed), whole(equation)(*arrays))
