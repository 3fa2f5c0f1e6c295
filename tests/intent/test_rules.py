"""Shardy's annotations read without MLIR: rules, layouts, origins, locations."""

from __future__ import annotations

from shardwise.intent.annotations import frames_in, layouts_in, mesh_in, origins_in, scope_in
from shardwise.intent.flattening import layout_named
from shardwise.intent.rules import read_rule
from shardwise.layout import Layout

MATMUL = "#sdy.op_sharding_rule<([i, j, l], [l, k])->([i, j, k]) {i=16, j=128, k=512, l=256} reduction={l}>"
LOOKUP = (
    "#sdy.op_sharding_rule<([l, k], [i, j, m])->([i, j, k]) {i=16, j=128, k=256, l=1024, m=1} "
    "need_replication={l, m} blocked_propagation={l}>"
)
JOINED = "#sdy.op_sharding_rule<([i, jk])->([ij, k]) {i=2, j=4, k=8}>"


def test_a_matmul_is_an_equation():
    rule = read_rule(MATMUL)
    assert rule is not None
    assert rule.operands == ((("i",), ("j",), ("l",)), (("l",), ("k",)))
    assert rule.summed == {"l"}
    assert rule.sizes == {"i": 16, "j": 128, "k": 512, "l": 256}
    assert str(layout_named(Layout.parse("I_x, J, K_y"), rule.operands[0])) == "[I_x, J, L_y]"


def test_what_has_to_be_whole_and_what_is_joined_is_read():
    lookup, joined = read_rule(LOOKUP), read_rule(JOINED)
    assert lookup is not None
    assert lookup.whole == {"l", "m"}
    assert joined is not None
    assert (joined.operands[0][1], joined.results[0][0]) == (("j", "k"), ("i", "j"))
    assert read_rule("no rule") is None


def test_more_factors_than_letters_are_told_apart():
    rule = read_rule("#sdy.op_sharding_rule<([z, z_1])->([z_1, z]) {z=2, z_1=4}>")
    assert rule is not None
    assert rule.operands == ((("z",), ("z_1",)),)


def test_layouts_are_read_open_ones_parts_of_axes_and_partial_sums_too():
    text = '#sdy.sharding_per_value<[<@mesh, [{"x", ?}, {}]>, <@mesh_0, []>, <@mesh, [{"x":(1)2}p1], unreduced={"y"}>]>'
    assert [str(each) for each in layouts_in(text)] == ["[I_x, J]", "[]", "[I_x:(1)2]{U_y}"]
    assert layouts_in("") == ()


def test_origins_meshes_and_locations_are_read():
    assert origins_in('{x = "self", y = "input: 3"}') == ({"x": "self", "y": "input: 3"},)
    assert str(mesh_in('#sdy.mesh<["x"=4, "y"=2]>')) == "x=4, y=2"
    location = (
        'loc("jit(f)/jvp()/add"(callsite("layer"("/a b/m.py":8:4 to :30) at callsite("f"("m.py":17:1 to :5) at unknown))))'
    )
    assert [str(frame) for frame in frames_in(location)] == ["/a b/m.py:8", "m.py:17"]
    assert scope_in(location) == "jit(f)/jvp()/add"
    assert scope_in("loc(unknown)") == ""
