"""Bad input where no JAX is needed: every refusal says where, what, why, and the way out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from refusals import refusal, told

import shardwise as sw
from shardwise.errors import LayoutError, MeshError, NotationError, ShardwiseError, pointed

ONCE = "an axis may appear once in an array: drop one, or use another axis"
ARRAY = "write arrays as A[I, J], a blank, ·, * or @ between them, and the arrow as ->"
DIMENSION = "name a dimension with letters: I, Batch"
COMMAS = "separate dimensions by commas, and close the bracket: A[I, J]"
SPLIT = "name the mesh axes that split I: I_x or I_{x,y}"


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
