"""Types of arguments as text: printing inverts parsing, and mistakes are pointed at. Needs no JAX."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.compiled.signature import NAMES, SHORT, ArrayType, check_on, parse_types
from shardwise.errors import LayoutError, NotationError, ShardwiseError
from shardwise.mesh import Mesh


@st.composite
def array_types(draw) -> ArrayType:
    shape = draw(st.lists(st.integers(0, 2**40), max_size=4))
    left = draw(st.permutations(["x", "y", "data", "λ"]))
    cuts = sorted(draw(st.lists(st.integers(0, 4), min_size=len(shape), max_size=len(shape))))
    axes = [tuple(left[a:b]) for a, b in zip([0, *cuts[:-1]], cuts, strict=True)] if shape else []
    return ArrayType(draw(st.sampled_from(sorted(NAMES))), tuple(shape), tuple(axes))


@given(st.lists(array_types(), max_size=4), st.sampled_from([" ", ", ", "\n", ","]))
def test_printing_inverts_parsing(types, separator):
    assert parse_types(separator.join(map(str, types))) == tuple(types)


@given(st.text(alphabet="f32[]()@x, 8i", max_size=20) | st.text(max_size=20))
def test_a_text_is_read_or_refused(text):
    try:
        found = parse_types(text)
    except ShardwiseError:
        return
    assert parse_types(" ".join(map(str, found))) == found


def test_short_names():
    assert parse_types("f32[] i32[] s32[] bf16[] u8[] pred[] f8e4m3fn[]") == parse_types(
        "float32[] int32[] int32[] bfloat16[] uint8[] bool[] float8_e4m3fn[]"
    )
    assert set(SHORT.values()) == NAMES


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("float31[8]", 0, "unknown dtype 'float31' (did you mean 'float32'?)"),
        ("key<fry>[]", 0, "give module:function that returns them"),
        ("[8]", 0, "expected a dtype, found '['"),
        ("float32", 7, "float32 has no sizes"),
        ("float32[8", 9, "expected ',' or ']', found the end"),
        ("float32[8 4]", 10, "expected ',' or ']', found '4'"),
        ("float32[-8]", 8, "expected a size, found '-'"),
        ("float32[x]", 8, "expected a size, found 'x'"),
        ("float32[" + "9" * 30 + "]", 8, "expected a size, found 999999999999999999..."),
        ("float32[8@]", 10, "expected a mesh axis behind @, found ']'"),
        ("float32[8@(x]", 12, "the axes are not closed"),
        ("float32[8@x,8@x]", 14, "mesh axis x splits this array twice"),
    ],
)
def test_mistakes_are_pointed_at(text, column, message):
    with pytest.raises(NotationError) as told:
        parse_types(text)
    assert message in str(told.value)
    assert str(told.value).splitlines()[1].index("^") == column


def test_a_mesh_must_have_the_axes_and_divide():
    types = parse_types("float32[8@(x,y),3] int32[]")
    check_on(types, Mesh.parse("x=4, y=2"))
    check_on(parse_types("float32[7]"), None)
    with pytest.raises(LayoutError, match=r"give the mesh, as --mesh x=4"):
        check_on(types, None)
    with pytest.raises(LayoutError, match="the mesh has no axis 'y': it has x"):
        check_on(types, Mesh.parse("x=4"))
    with pytest.raises(LayoutError, match="size 8 is not a multiple of 16 devices along x, y"):
        check_on(types, Mesh.parse("x=4, y=4"))
