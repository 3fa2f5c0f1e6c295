"""Bad input where no JAX is needed: every refusal says where, what, why, and the way out."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import shardwise as sw
from shardwise.errors import HardwareError, LayoutError, MeshError, NotationError, PlanError, ShardwiseError, pointed

ONCE = "an axis may appear once in an array: drop one, or use another axis"
ARRAY = "write arrays as A[I, J], a blank, ·, * or @ between them, and the arrow as ->"
DIMENSION = "name a dimension with letters: I, Batch"
COMMAS = "separate dimensions by commas, and close the bracket: A[I, J]"
SPLIT = "name the mesh axes that split I: I_x or I_{x,y}"
AXES = "`_` introduces mesh axes, and dimension names hold none: use an axis of the mesh, or write dModel for d_model"


def refusal(error: type[ShardwiseError], act: Callable[[], Any]) -> str:
    with pytest.raises(ShardwiseError) as caught:
        act()
    assert type(caught.value) is error
    return str(caught.value)


def told(text: str, caret: str, what: str, fix: str) -> str:
    return f"{text}: {what}\n{caret}  {fix}"


# An equation that is not one: text, caret, what, and the way out. The caret stands under the fault.

NOTATION = [
    pytest.param(
        "A[I] · B[I]",
        "           ^",
        "missing arrow",
        "say what is wanted behind an arrow: ... -> C[I, K]; `_?` leaves axes to the planner",
        id="missing arrow",
    ),
    pytest.param(
        "A[I] -> ",
        "        ^",
        "expected an array, found the end",
        ARRAY,
        id="nothing behind the arrow",
    ),
    pytest.param(
        "-> A[I]",
        "^",
        "expected an array, found '-'",
        ARRAY,
        id="nothing before the arrow",
    ),
    pytest.param(
        "A[I_x, J_x] -> B[I]",
        "         ^",
        "mesh axis x splits both I and J",
        ONCE,
        id="axis twice in an operand",
    ),
    pytest.param(
        "A[I_{x,x}] -> B[I]",
        "       ^",
        "mesh axis x splits I twice",
        ONCE,
        id="axis twice in a dimension",
    ),
    pytest.param(
        "A[I_x, J] · B[J, K_x] -> C[I_x, K_x]",
        "                                  ^",
        "mesh axis x splits both I and K",
        "each device would hold a block on the diagonal only, and most of the result nobody: split I or K over x, not both",
        id="case 4 with its axis twice in the result",
    ),
    pytest.param(
        "A[I_x]{U_x} -> B[I]",
        "         ^",
        "mesh axis x splits I and is unreduced as well",
        "along one axis devices hold parts or partial sums, not both",
        id="axis split and unreduced",
    ),
    pytest.param(
        "A[I, I] -> B[I]",
        "     ^",
        "dimension I stands twice in one array",
        "name each dimension once; take a diagonal with jnp.diagonal first",
        id="dimension twice",
    ),
    pytest.param(
        "A[d_model, d_ff] -> B[d_ff]",
        "           ^",
        "dimension d stands twice in one array",
        "name each dimension once; `_` introduces mesh axes: write dModel for a dimension d_model",
        id="d_model and d_ff",
    ),
    pytest.param(
        "A[I] -> B[I, K]",
        "             ^",
        "result dimension K comes from nowhere",
        "name it in an operand; they have I",
        id="result dimension from nowhere",
    ),
    pytest.param(
        "A[Batch, J] -> B[batch]",
        "                 ^",
        "result dimension batch comes from nowhere",
        "name it in an operand; they have Batch, J (did you mean 'Batch'?)",
        id="result dimension in another case",
    ),
    pytest.param(
        "A[JK] -> B[JK_{x,K}, K]",
        "                     ^",
        "result dimension K comes from nowhere",
        "name it in an operand; they have JK (did you mean 'JK'?)",
        id="result dimension whose letter stands elsewhere too",
    ),
    pytest.param(
        "A[I, J] -> B[I, J_x] -> B[J, I]",
        "                        ^",
        "B has dimensions J, I where B has I, J",
        "between arrows only the layout may change",
        id="dimensions change between arrows",
    ),
    pytest.param(
        "A[I_?] -> B[I]",
        "  ^",
        "`_?` stands in an operand",
        "only an equation's result may leave its axes to the planner",
        id="_? in an operand",
    ),
    pytest.param(
        "A[I -> B[I]",
        "    ^",
        "expected ',' or ']' in array A, found '-'",
        COMMAS,
        id="unclosed bracket",
    ),
    pytest.param(
        "A[I J] -> B[I]",
        "    ^",
        "expected ',' or ']' in array A, found 'J'",
        COMMAS,
        id="missing comma",
    ),
    pytest.param(
        "A[I_{x,y] -> B[I]",
        "        ^",
        "the axes of I are not closed",
        "close the brace: }",
        id="unclosed brace",
    ),
    pytest.param(
        "A[I]{U_x -> B[I]",
        "         ^",
        "the partial sums are not closed",
        "close the brace: }",
        id="unclosed partial sums",
    ),
    pytest.param(
        "A[I]{V_x} -> B[I]",
        "     ^",
        "only partial sums stand in braces behind an array",
        "write the axes of partial sums as {U_x} or {U_{x,y}}",
        id="braces that are no partial sums",
    ),
    pytest.param(
        "A[I]] -> B[I]",
        "    ^",
        "expected an array, found ']'",
        ARRAY,
        id="bracket too many",
    ),
    pytest.param(
        "A[I] -> B[I] junk",
        "             ^",
        "unexpected 'j' behind the result",
        "end the equation here",
        id="junk behind the result",
    ),
    pytest.param(
        "A[I, , J] -> B[I]",
        "     ^",
        "expected a dimension, found ','",
        DIMENSION,
        id="comma too many",
    ),
    pytest.param(
        "A[I_] -> B[I]",
        "    ^",
        "no mesh axis behind I_",
        SPLIT,
        id="no axis behind the underscore",
    ),
    pytest.param(
        "A[I_{}] -> B[I]",
        "     ^",
        "no mesh axis behind I_",
        SPLIT,
        id="empty braces",
    ),
    pytest.param(
        "A[I_1] -> B[I]",
        "    ^",
        "no mesh axis behind I_",
        SPLIT,
        id="a number for an axis",
    ),
    pytest.param(
        "A -> B",
        "  ^",
        "array A has no dimensions",
        "give dimensions in brackets: A[I, J]; sw.einsum reads the short form too: ij,jk->ik",
        id="no brackets",
    ),
    pytest.param(
        "ij,jk->ik",
        "  ^",
        "array ij has no dimensions",
        "give dimensions in brackets: A[I, J]; sw.einsum reads the short form too: ij,jk->ik",
        id="short form where no array says its layout",
    ),
    pytest.param(
        "A[I] + B[I] -> C[I]",
        "     ^",
        "expected an array, found '+'",
        ARRAY,
        id="a sum of arrays",
    ),
    pytest.param(
        "A[I] => B[I]",
        "     ^",
        "expected an array, found '='",
        ARRAY,
        id="another arrow",
    ),
    pytest.param(
        "A[\N{ARABIC-INDIC DIGIT THREE}] -> B[]",
        "  ^",
        "expected a dimension, found '\N{ARABIC-INDIC DIGIT THREE}'",
        DIMENSION,
        id="a digit of another script",
    ),
    pytest.param(
        "A[<b>I</b>] -> B[I]",
        "  ^",
        "expected a dimension, found '<'",
        DIMENSION,
        id="HTML",
    ),
    pytest.param(
        "A[I, \N{GRINNING FACE}] -> B[I]",
        "     ^",
        "expected a dimension, found '\N{GRINNING FACE}'",
        DIMENSION,
        id="emoji",
    ),
    pytest.param(
        "A[\u05d0\u05d1_x] -> B[\u05d2]",
        "             ^",
        "result dimension \u05d2 comes from nowhere",
        "name it in an operand; they have \u05d0\u05d1",
        id="letters that run from right to left",
    ),
]


@pytest.mark.parametrize(("text", "caret", "what", "fix"), NOTATION)
def test_what_is_no_equation_is_shown_with_a_caret_under_the_fault(text: str, caret: str, what: str, fix: str):
    assert refusal(NotationError, lambda: sw.parse(text)) == told(text, caret, what, fix)


@pytest.mark.parametrize("text", ["", "   ", "\n\t"], ids=["nothing", "blanks", "newline and tab"])
def test_an_empty_equation(text: str):
    expected = "the equation is empty: write operands, an arrow and a result: A[I_x, J] · B[J, K] -> C[I_x, K]"
    assert refusal(NotationError, lambda: sw.parse(text)) == expected


@pytest.mark.parametrize("wrong", [None, b"A[I] -> B[I]", 3, ["A[I] -> B[I]"]], ids=["None", "bytes", "int", "list"])
def test_an_equation_that_is_no_text(wrong: Any):
    expected = f"an equation is a text such as 'A[I_x, J] · B[J, K] -> C[I_x, K]', not {type(wrong).__name__}"
    assert refusal(NotationError, lambda: sw.parse(wrong)) == expected
    assert refusal(NotationError, lambda: sw.plan(wrong, sizes={"I": 8}, mesh="x=4")).startswith(expected)


@pytest.mark.parametrize("end", ["\n", "\t", "\r\n", "\v", "\x85", "\u2028"], ids=["LF", "tab", "CRLF", "VT", "NEL", "LS"])
def test_a_caret_stands_right_behind_whatever_ends_lines(end: str):
    text = f"A[I_x]{end}->{end}B[K]"
    shown, caret = refusal(NotationError, lambda: sw.parse(text)).split("\n")
    assert shown.split(": ")[0] == text.replace(end, " " * len(end))
    assert shown[caret.index("^")] == "K"


def test_a_caret_stands_right_behind_characters_that_take_two_columns():
    caret = refusal(NotationError, lambda: sw.parse("A[\u5bbd] -> B[K]")).split("\n")[1]
    assert caret.index("^") == len("A[??] -> B[")


def test_of_a_long_equation_the_message_shows_what_surrounds_the_fault():
    chain = " · ".join(f"M{k}[D{k}, D{k + 1}]" for k in range(200)) + " -> R[D0, D999, D200]"
    shown, caret = refusal(NotationError, lambda: sw.parse(chain)).split("\n")
    assert shown.startswith("...")
    assert len(shown) < 250
    assert shown[caret.index("^") :].startswith("D999, D200]: result dimension D999 comes from nowhere")
    assert pointed("x" * 1000, 0, "what", "fix") == "x" * 160 + "...: what\n^  fix"


# A layout that is not one.

LAYOUTS = [
    pytest.param("[I_x", "    ^", "the layout is not closed", "close the bracket: ]", id="unclosed"),
    pytest.param("I_x]", "   ^", "unexpected ']' in a layout", "write a layout as 'I_x, J'", id="closed but not opened"),
    pytest.param("A[I] junk", "     ^", "unexpected 'j' in a layout", "write a layout as 'I_x, J'", id="junk"),
    pytest.param("A[I] -> A[I]", "     ^", "unexpected '-' in a layout", "write a layout as 'I_x, J'", id="an equation"),
    pytest.param("I_x, J_x", "       ^", "mesh axis x splits both I and J", ONCE, id="axis twice"),
    pytest.param("_x", "^", "expected a dimension, found '_'", DIMENSION, id="no dimension"),
    pytest.param(
        "I_?, J",
        "^",
        "`_?` stands in a layout",
        "only an equation's result may leave its axes to the planner",
        id="_?",
    ),
]


@pytest.mark.parametrize(("text", "caret", "what", "fix"), LAYOUTS)
def test_what_is_no_layout_is_shown_with_a_caret_under_the_fault(text: str, caret: str, what: str, fix: str):
    assert refusal(NotationError, lambda: sw.Layout.parse(text)) == told(text, caret, what, fix)


OF_LAYOUTS = [
    pytest.param(
        lambda: sw.Layout.parse(None),
        NotationError,
        "a layout is a text such as 'I_x, J', not NoneType",
        id="None for a text",
    ),
    pytest.param(
        lambda: sw.Layout.from_spec(("x", None, None), "I, J"),
        LayoutError,
        "('x', None, None) splits 3 dimensions, but 2 are named: I, J",
        id="specification too long",
    ),
    pytest.param(
        lambda: sw.Layout.from_spec(3),
        LayoutError,
        "3 is no PartitionSpec that fixes a layout: write it as PartitionSpec('x', None)",
        id="specification that is none",
    ),
    pytest.param(
        lambda: sw.Layout.from_spec((None, 3)),
        LayoutError,
        "(None, 3) is no PartitionSpec that fixes a layout: write it as PartitionSpec('x', None)",
        id="specification with a number",
    ),
    pytest.param(
        lambda: sw.Layout.from_spec(("x", "x")),
        LayoutError,
        "mesh axis x splits both I and J",
        id="specification with an axis twice",
    ),
    pytest.param(
        lambda: sw.Layout.from_spec(("x",), "I, I"),
        LayoutError,
        "dimension I is named twice in one array: name each once; take a diagonal with jnp.diagonal first",
        id="dimension named twice",
    ),
    pytest.param(
        lambda: sw.Layout.parse("I_x").shard_shape({"I": 6}, "x=4"),
        LayoutError,
        "dimension I has size 6, which mesh axis x=4 does not divide: "
        "pad=True pads it to 8 (in sw.put, sw.einsum and sw.random), or use another layout",
        id="not divisible",
    ),
    pytest.param(
        lambda: sw.Layout.parse("I_{x,y}").shard_shape({"I": 12}, "x=4, y=2"),
        LayoutError,
        "dimension I has size 12, which mesh axes x=4 x y=2 do not divide: "
        "pad=True pads it to 16 (in sw.put, sw.einsum and sw.random), or use another layout",
        id="not divisible by two axes",
    ),
    pytest.param(
        lambda: sw.Layout.parse("I_x").shard_shape({}, "x=4"),
        LayoutError,
        "no size is given for dimension I: sizes={'I': ...}",
        id="no size",
    ),
    pytest.param(
        lambda: sw.Layout.parse("I_x").shard_shape(None, "x=4"),
        LayoutError,
        "None are no sizes: give every dimension its size, as in sizes={'I': 1024}",
        id="sizes that are none",
    ),
    pytest.param(
        lambda: sw.Layout.parse("I_x").shard_shape({"I": 8.0}, "x=4"),
        LayoutError,
        "dimension I has size 8.0: a size is a whole number of elements",
        id="float size of a shard",
    ),
    pytest.param(
        lambda: sw.Layout.parse("I_X").shard_shape({"I": 8}, "x=4"),
        MeshError,
        "the mesh has no axis 'X': it has x (did you mean 'x'?)",
        id="axis in another case",
    ),
    pytest.param(
        lambda: sw.Layout.parse("I_x").axes_of("K"),
        LayoutError,
        "the array has no dimension K: it has I",
        id="no such dimension",
    ),
]


@pytest.mark.parametrize(("act", "error", "message"), OF_LAYOUTS)
def test_layouts_refuse(act: Callable[[], Any], error: type[ShardwiseError], message: str):
    assert refusal(error, act) == message


# A mesh that is not one.

COUNT = "give the number of devices: x=4"
AXIS_SIZES = "write each axis as name=size, with commas between: 'x=4, y=2'"
FORMS = "write 'x=4, y=2', {'x': 4, 'y': 2}, or give a jax.sharding.Mesh"

MESHES = [
    pytest.param("x=four", told("x=four", "  ^", "'four' is no size for mesh axis x", COUNT), id="size in words"),
    pytest.param("x=1.5", told("x=1.5", "  ^", "'1.5' is no size for mesh axis x", COUNT), id="size with a fraction"),
    pytest.param("x=-1", told("x=-1", "  ^", "'-1' is no size for mesh axis x", COUNT), id="negative size"),
    pytest.param("x", told("x", "^", "not a mesh", AXIS_SIZES), id="no size"),
    pytest.param("x=", told("x=", "^", "not a mesh", AXIS_SIZES), id="nothing behind ="),
    pytest.param("x=4 y=2", told("x=4 y=2", "^", "not a mesh", AXIS_SIZES), id="no comma"),
    pytest.param("x=4,,y=2", told("x=4,,y=2", "    ^", "not a mesh", AXIS_SIZES), id="comma too many"),
    pytest.param("x=4, 1y=2", told("x=4, 1y=2", "     ^", "'1y' cannot name an axis", "use letters: x=4"), id="bad name"),
    pytest.param("x=0", "mesh axis x has size 0: an axis holds at least one device", id="size 0"),
    pytest.param("x=4, x=2", "mesh axis x is named twice: every axis needs a name of its own", id="axis twice"),
    pytest.param({"x": 0}, "mesh axis x has size 0: an axis holds at least one device", id="size 0 in a dict"),
    pytest.param({"x": 2.0}, "2.0 is no size for mesh axis x: give the number of devices as an int", id="float"),
    pytest.param({"x": True}, "True is no size for mesh axis x: give the number of devices as an int", id="bool"),
    pytest.param({"x": [4]}, "[4] is no size for mesh axis x: give the number of devices as an int", id="list"),
    pytest.param({1: 4}, "1 cannot name a mesh axis: use letters, as in {'x': 4}", id="number for a name"),
    pytest.param(8, f"8 is not a mesh: {FORMS}", id="a number of devices"),
    pytest.param(b"x=4", f"b'x=4' is not a mesh: {FORMS}", id="bytes"),
]


@pytest.mark.parametrize(("mesh", "message"), MESHES)
def test_what_is_no_mesh(mesh: Any, message: str):
    assert refusal(MeshError, lambda: sw.Mesh.parse(mesh)) == message
    first = refusal(MeshError, lambda: sw.plan("A[I] -> A[I]", sizes={"I": 8}, mesh=mesh))
    assert first.startswith(f"{message}\n  equation: A[I] -> A[I]\n  sizes: I=8")


def test_none_is_no_mesh_of_its_own():
    assert refusal(MeshError, lambda: sw.Mesh.parse(None)) == f"None is not a mesh: {FORMS}"


# A plan that cannot be made. The door adds equation, sizes and mesh to the reason.

EQUATION = "A[I_x, J] · B[J, K] -> C[I, K]"
SIZES = {"I": 8, "J": 8, "K": 8}


def plan(equation: Any = EQUATION, sizes: Any = SIZES, mesh: Any = "x=4", **options: Any) -> sw.Plan:
    return sw.plan(equation, sizes=sizes, mesh=mesh, **options)


def test_a_refused_plan_is_told_line_by_line():
    assert refusal(NotationError, lambda: plan("A[I_X, J] · B[J, K] -> C[I, K]")).split("\n") == [
        "A[I_X, J] · B[J, K] -> C[I, K]: the mesh has no axis 'X': it has x (did you mean 'x'?)",
        f"    ^  {AXES}",
        "  sizes: I=8, J=8, K=8",
        "  mesh: x=4",
    ]
    assert refusal(PlanError, lambda: plan(sizes={**SIZES, "I": 8.0})).split("\n") == [
        "dimension I has size 8.0: a size is a whole number of elements",
        "  equation: A[I_x, J] · B[J, K] -> C[I, K]",
        "  sizes: I=8.0, J=8, K=8",
        "  mesh: x=4",
    ]


AXES_OF_PLANS = [
    pytest.param(
        "A[I, d_model] -> B[I]",
        "       ^",
        "the mesh has no axis 'model': it has x, y",
        AXES,
        id="d_model",
    ),
    pytest.param(
        "A[I] -> B[I]{U_Y}",
        "               ^",
        "the mesh has no axis 'Y': it has x, y (did you mean 'y'?)",
        AXES,
        id="partial sums over an unknown axis",
    ),
    pytest.param(
        "W_q[I, q] · B[q, K_q] -> C[I]",
        "                   ^",
        "the mesh has no axis 'q': it has x, y",
        AXES,
        id="an unknown axis named like a dimension and an array",
    ),
    pytest.param(
        "A[I_{x, xx}] -> B[I]",
        "        ^",
        "the mesh has no axis 'xx': it has x, y (did you mean 'x'?)",
        AXES,
        id="an unknown axis that begins like a known one",
    ),
    pytest.param(
        "A[I_xy] -> B[I]",
        "    ^",
        "the mesh has no axis 'xy': it has x, y (did you mean 'y'?)",
        "write several axes in braces: {x,y}",
        id="two axes written as one",
    ),
    pytest.param(
        "A[I_x_y] -> B[I]",
        "    ^",
        "the mesh has no axis 'x_y': it has x, y",
        "write several axes in braces: {x,y}",
        id="two axes behind underscores",
    ),
]


@pytest.mark.parametrize(("text", "caret", "what", "fix"), AXES_OF_PLANS)
def test_an_axis_that_the_mesh_lacks(text: str, caret: str, what: str, fix: str):
    message = refusal(NotationError, lambda: plan(text, mesh="x=4, y=2"))
    assert message.startswith(told(text, caret, what, fix) + "\n")


HAVE = "the catalogue holds b200, cpu, h100, h200, tpu-v4, tpu-v5e, tpu-v5p, tpu-v6e, tpu-v7x"
LIMIT = "give the bytes of one device, as 16e9"
NO_PARTIAL = "partial sums come only from a sum over a dimension that is split; ask for the result without {U...}"

PLANS = [
    pytest.param({"sizes": {"I": 8, "J": 8}}, PlanError, "no size is given for dimension K: add it, as in sizes={'K': 1024}",
                 id="size missing"),
    pytest.param({"sizes": {**SIZES, "Q": 8}}, PlanError,
                 "a size is given for dimension Q, which the equation lacks: it has I, J, K", id="size too many"),
    pytest.param({"sizes": {"i": 8, "J": 8, "K": 8}}, PlanError,
                 "a size is given for dimension i, which the equation lacks: it has I, J, K (did you mean 'I'?)",
                 id="size of a dimension in another case"),
    pytest.param({"sizes": {**SIZES, 1: 8}}, PlanError,
                 "a size is given for dimension 1, which the equation lacks: it has I, J, K", id="size of a number"),
    pytest.param({"sizes": {**SIZES, "I": -8}}, PlanError,
                 "dimension I has size -8: there is nothing to compute; every size is at least 1", id="size negative"),
    pytest.param({"sizes": {**SIZES, "I": 0}}, PlanError,
                 "dimension I has size 0: there is nothing to compute; every size is at least 1", id="size 0"),
    pytest.param({"sizes": {**SIZES, "I": "8"}}, PlanError,
                 "dimension I has size '8': a size is a whole number of elements", id="size as text"),
    pytest.param({"sizes": {**SIZES, "I": True}}, PlanError,
                 "dimension I has size True: a size is a whole number of elements", id="size as bool"),
    pytest.param({"sizes": {**SIZES, "I": np.array([8])}}, PlanError,
                 "dimension I has size array([8]): a size is a whole number of elements", id="size as array"),
    pytest.param({"sizes": None}, PlanError, "neither sizes nor arrays are given: add sizes={'I': 1024, ...}, or one array",
                 id="sizes None"),
    pytest.param({"sizes": [8, 8, 8]}, PlanError,
                 "[8, 8, 8] are no sizes: give every dimension its size, as in sizes={'I': 1024}", id="sizes a list"),
    pytest.param({"sizes": {**SIZES, "I": 6}}, LayoutError,
                 "dimension I has size 6, which mesh axis x=4 does not divide: "
                 "pad=True pads it to 8 (in sw.put, sw.einsum and sw.random), or use another layout", id="size not divisible"),
    pytest.param({"hardware": "H100"}, HardwareError, f"unknown hardware 'H100': {HAVE} (did you mean 'h100'?)",
                 id="hardware in another case"),
    pytest.param({"hardware": "tpu-v6"}, HardwareError, f"unknown hardware 'tpu-v6': {HAVE} (did you mean 'tpu-v6e'?)",
                 id="hardware nearly known"),
    pytest.param({"hardware": ""}, HardwareError, f"unknown hardware '': {HAVE}", id="hardware without a name"),
    pytest.param({"hardware": 3}, HardwareError, f"unknown hardware 3: {HAVE}", id="hardware a number"),
    pytest.param({"dtype": "bf16"}, PlanError, "unknown dtype 'bf16': use one of bfloat16,", id="dtype abbreviated"),
    pytest.param({"dtype": object}, PlanError, "unknown dtype 'object': use one of", id="dtype object"),
    pytest.param({"dtype": 3}, PlanError, "3 is no dtype: give its name, as 'bfloat16'", id="dtype a number"),
    pytest.param({"memory_limit": -1}, PlanError, f"a memory limit of -1 bytes holds nothing: {LIMIT}", id="limit negative"),
    pytest.param({"memory_limit": 0}, PlanError, f"a memory limit of 0 bytes holds nothing: {LIMIT}", id="limit 0"),
    pytest.param({"memory_limit": float("nan")}, PlanError, f"a memory limit of nan bytes holds nothing: {LIMIT}",
                 id="limit NaN"),
    pytest.param({"memory_limit": "16GB"}, PlanError, f"a memory limit of '16GB' is no number: {LIMIT}", id="limit a text"),
    pytest.param({"memory_limit": True}, PlanError, f"a memory limit of True is no number: {LIMIT}", id="limit a bool"),
    pytest.param({"overlap": "yes"}, PlanError,
                 "overlap='yes': known are True, False, 'ring', 'bidirectional', 'folded', 'scatter', 'rotate'",
                 id="overlap a text"),
    pytest.param({"equation": "A[I] -> A[I]{U_x}", "sizes": {"I": 8}}, PlanError,
                 f"no program leads to A[I]{{U_x}}: {NO_PARTIAL}", id="partial sums of nothing"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "error", "reason"), PLANS)
def test_a_plan_refuses(given: dict[str, Any], error: type[ShardwiseError], reason: str):
    first, *context = refusal(error, lambda: plan(**given)).split("\n")
    assert first.startswith(reason)
    assert context[0] == f"  equation: {given.get('equation', EQUATION)}"


@pytest.mark.parametrize("name", ["H100", "h1000", None, ["h100"], 3.0], ids=["case", "near", "None", "list", "float"])
def test_hardware_refuses(name: Any):
    assert refusal(HardwareError, lambda: sw.hardware(name)).startswith(f"unknown hardware {name!r}: {HAVE}")


def test_devices_that_no_hardware_answers_to():
    reason = "devices of kind 'Abacus' are not in the catalogue: say which to estimate with, hardware='h100'"
    assert refusal(HardwareError, lambda: sw.hardware.for_device_kind("Abacus")) == reason


# A memory limit that nothing meets: the message says the least that would do, and it is the least.

LIMITED = [
    pytest.param("A[I_x, J] · B[J, K] -> C[I, K]", id="gather the result"),
    pytest.param("A[I, J_x] · B[J_x, K] -> C[I, K]", id="reduce the result"),
    pytest.param("A[I_x, J_y] · B[J_y, K_x] -> C[I_x, K]", id="case 4 on two axes"),
    pytest.param("A[I_{x,y}, J] -> A[I, J_{y,x}]", id="another layout"),
    pytest.param("A[I_x, J] · B[J, K_y] · D[K, L_x] -> C[I, L_?]", id="three operands"),
]


@pytest.mark.parametrize("equation", LIMITED)
def test_the_least_memory_that_is_named_does_and_a_byte_less_does_not(equation: str):
    sizes = {dim: 16 for dim in "IJKL" if re.search(rf"\b{dim}(_|\b)", equation)}

    def limited(limit: int) -> sw.Plan:
        return plan(equation, sizes, "x=2, y=2", memory_limit=limit)

    found = re.fullmatch(
        r"no program fits in 1 bytes of memory a device: the least that would do is ([\d,]+) bytes "
        r"\(the inputs alone are ([\d,]+)\)",
        refusal(PlanError, lambda: limited(1)).split("\n")[0],
    )
    assert found
    least, inputs = (int(group.replace(",", "")) for group in found.groups())
    assert inputs < least
    assert limited(least).best.estimate.peak_memory_bytes <= least
    assert f"the least that would do is {least:,} bytes" in refusal(PlanError, lambda: limited(least - 1))


def test_the_memory_that_is_named_for_a_way_through_layouts_does():
    def limited(limit: int) -> sw.Plan:
        return plan("A[I_x] -> A[I] -> A[I_x]", {"I": 8}, memory_limit=limit)

    as_far = "no program fits in 8 bytes of memory a device as far as A[I]: the least that would do is 20 bytes"
    assert refusal(PlanError, lambda: limited(8)).startswith(as_far)
    onward = "no program that goes on to A[I_x] fits in 20 bytes of memory a device: 24 bytes would do"
    assert refusal(PlanError, lambda: limited(20)).startswith(onward)
    assert limited(24).best.estimate.peak_memory_bytes == 24


# What looks odd and is legal.


def test_integers_of_numpy_are_sizes():
    assert plan(sizes={dim: np.int64(8) for dim in "IJK"}, mesh={"x": np.int32(4)}).candidates == plan().candidates
    assert sw.Layout.parse("I_x").shard_shape({"I": np.int64(8)}, {"x": np.int64(4)}) == (2,)


def test_an_axis_of_size_1_splits_nothing():
    assert plan("A[I_x, J_x1] -> B[I, J]", {"I": 8, "J": 7}, "x=4, x1=1").candidates
    assert str(plan("A[I_x] -> B[I]", {"I": 7}, "x=1").best.program.result) == "[I]"


def test_sizes_beyond_what_any_machine_holds():
    p = plan(sizes=dict.fromkeys("IJK", 10**18), mesh="x=1000000000")
    assert p.best.estimate.peak_memory_bytes > 1e36
    assert "C" in p.explain()


def test_200_operands_are_planned_within_seconds():
    chain = " · ".join(f"M{k}[D{k}_x, D{k + 1}]" for k in range(200)) + " -> R[D0, D200]"
    p = plan(chain, {f"D{k}": 8 for k in range(201)})
    assert str(p.best.program.result) == "[D0, D200]"
    same = " · ".join(["A[I_x]"] * 200) + " -> R[I]"
    assert str(plan(same, {"I": 8}).best.program.result) == "[I]"


def test_a_mesh_of_five_axes():
    p = plan("A[I_{a,b}, J_c] -> B[I_d, J_e]", {"I": 32, "J": 32}, "a=2, b=2, c=2, d=2, e=2")
    assert str(p.best.program.result) == "[I_d, J_e]"


def test_names_of_any_script():
    equation = sw.parse("\u05d0[\u05d1_x, \u5bbd] -> \u0395[\u5bbd, \u05d1]")
    assert sw.parse(str(equation)) == equation
