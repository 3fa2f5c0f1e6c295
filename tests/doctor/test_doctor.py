"""The doctor on small functions: causes, ways out, explicit stops, what cannot be, and what is left as it was."""

from __future__ import annotations

import itertools
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import P
from jax.sharding import AbstractMesh, AxisType
from making import laid

import shardwise as sw
from shardwise.errors import CompileError, MeshError
from shardwise.functions.diagnosis_facts import facts
from shardwise.functions.explicit import Option, preference
from shardwise.intent import shardy
from shardwise.intent.movements import movements
from shardwise.intent.propagation import intended

AUTO = AbstractMesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
EXPLICIT = AbstractMesh((4, 2), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)
CHIP = "tpu-v5e"


def moves(found: Any) -> list[tuple[str, str, tuple[tuple[str, tuple[str, ...]], ...]]]:
    return [(str(place.before), str(place.after), place.collectives) for place in found.places]


def graph_of(function: Any, *args: Any) -> Any:
    lowered = jax.jit(function).trace(*args).lower(lowering_platforms=("tpu",))
    return intended(lowered.compiler_ir("stablehlo"), [f"a{n}" for n in range(len(args))]).graph()


def test_a_sum_over_a_split_dimension_is_told_with_what_split_it():
    found = sw.doctor(lambda a: a.sum(axis=1), laid(AUTO, (8, 16), None, "x"), hardware=CHIP)
    assert moves(found) == [("[I]{U_x}", "[I]", (("all-reduce", ("x",)),))]
    assert "sums over J, which x splits (the layout of argument a)" in found.places[0].cause.says


def test_a_matmul_is_shown_in_the_notation_with_the_layouts_before_anything_moves():
    def product(a: Any, w: Any) -> Any:
        return jnp.einsum("bd,df->bf", a, w)

    found = sw.doctor(product, laid(AUTO, (4096, 64), "x", None), laid(AUTO, (64, 32), "x", "y"), hardware=CHIP)
    assert moves(found) == [("[I_x, J_y]", "[I, J_y]", (("all-gather", ("x",)),))]
    cause = found.places[0].cause
    assert cause.equation == "A[I_x, K] · B[K_x, J_y] -> C[I_x, J_y]"
    assert {source.name for source in cause.sources} == {"a", "w"}
    assert "an axis can split only one" in cause.says


def test_trips_of_a_scan_are_multiplied():
    def run(a: Any, w: Any) -> Any:
        return jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), a, w)[0]

    found = sw.doctor(run, laid(AUTO, (4096, 64), "x", None), laid(AUTO, (5, 64, 64), None, "x", None), hardware=CHIP)
    gather = next(place for place in found.places if "w (" in place.subjects[0])
    assert gather.times == 5
    assert gather.wire_bytes == pytest.approx(5 * 64 * 64 * 2 * 3 / 4)


def test_a_constraint_that_swaps_axes_is_named_with_its_line_and_is_dropped():
    def forward(a: Any, w: Any) -> Any:
        h = a @ w
        h = jax.lax.with_sharding_constraint(h, jax.NamedSharding(AUTO, P(None, "x")))
        return jax.lax.with_sharding_constraint(h * 2, jax.NamedSharding(AUTO, P("x", None)))

    line = forward.__code__.co_firstlineno + 2
    found = sw.doctor(forward, laid(AUTO, (512, 512), "x", None), laid(AUTO, (512, 512)), hardware=CHIP)
    remedy = found.remedies[0]
    assert remedy.kind == "constraint-dropped"
    assert remedy.line is not None
    assert remedy.line.place == f"{__file__}:{line}"
    assert remedy.paste is not None
    assert remedy.paste.new == "h"
    assert "constraint-dropped" in str(facts(found))


def test_full_rematerialization_is_told_with_its_line_and_a_way_out():
    """Shaped after the reports of `[SPMD] Involuntary full rematerialization` (github.com/jax-ml/jax, openxla/xla)."""

    def forward(mesh: Any) -> Any:
        def run(a: Any) -> Any:
            h = jnp.tanh(a)
            h = jax.lax.with_sharding_constraint(h, jax.NamedSharding(mesh, P(None, "x", None)))
            h = jnp.sin(h)
            return jax.lax.with_sharding_constraint(h, jax.NamedSharding(mesh, P("y", None, "x")))

        return run

    mesh = sw.make_mesh("x=4, y=2", axis_types=AxisType.Auto)
    a = laid(mesh, (32, 64, 128), ("y", "x"), None, None, dtype=jnp.float32)
    function = forward(mesh)
    found = sw.doctor(function, a, mesh=mesh, on="here", hardware=CHIP)
    truth: Any = found.truth
    assert truth.whole
    assert "full rematerialization" in str(found)
    place = found.places[truth.whole[0]]
    assert place.line is not None
    assert place.line.place.startswith(__file__)
    assert found.remedies


def test_collectives_in_a_map_by_hand_are_told_as_asked_for():
    def mapped(a: Any) -> Any:
        return jax.shard_map(lambda a: jax.lax.psum(a, "x"), mesh=AUTO, in_specs=P("x"), out_specs=P())(a)

    found = sw.doctor(mapped, laid(AUTO, (8, 64), "x", None), hardware=CHIP)
    assert [(place.by_hand, place.collectives) for place in found.places] == [(True, (("all-reduce", ("x",)),))]


def test_state_that_every_device_holds_whole_is_told_with_the_layout_of_the_parameters():
    def step(w: Any, mu: Any, a: Any) -> Any:
        gradient = jax.grad(lambda w: jnp.sum((a @ w["k"]) ** 2))(w)
        mu = jax.tree.map(lambda m, g: 0.9 * m + g, mu, gradient)
        return jax.tree.map(lambda p, m: p - m, w, mu), mu

    def types(*spec: Any) -> Any:
        return {"k": laid(AUTO, (1024, 1024), *spec, dtype=jnp.float32)}

    found = sw.doctor(step, types("x"), types(), laid(AUTO, (64, 1024), "x", dtype=jnp.float32), hardware=CHIP)
    (held,) = found.held
    assert held.arguments == ("mu['k']",)
    assert held.memory_bytes == pytest.approx(1024 * 1024 * 4 * 3 / 4)
    assert held.code == "mu['k'] = jax.device_put(mu['k'], jax.NamedSharding(mesh, jax.P('x', None)))"


def test_an_opaque_call_is_told_as_such():
    def called(a: Any) -> Any:
        kind = jax.ShapeDtypeStruct(a.shape, a.dtype)
        return jax.ffi.ffi_call("opaque_kernel", kind)(a * 2)

    found = sw.doctor(called, laid(AUTO, (8, 64), "x", None), hardware=CHIP)
    assert any("opaque" in place.cause.says or "opaque" in note for place in found.places for note in (*place.notes, ""))
    assert "jax.shard_map" in str(found)


def dot(a: Any, b: Any) -> Any:
    return jnp.einsum("ij,jk->ki", a, b)


def looked_up(table: Any, at: Any) -> Any:
    return table[at]


def added(a: Any, b: Any) -> Any:
    return a + b


def joined(a: Any) -> Any:
    return a.reshape(512 * 512)


# Of sizes at which one way out is clearly the cheapest: the result of `dot` is four times as large as what is multiplied.
STOPS = {
    "dot_general": (
        dot,
        (laid(EXPLICIT, (4096, 1024), None, "x"), laid(EXPLICIT, (1024, 512), "x", None)),
        "jnp.einsum(\"ij,jk->ki\", a, b, out_sharding=jax.P(None, 'x'))",
    ),
    "gather": (
        looked_up,
        (laid(EXPLICIT, (64, 64), "x"), laid(EXPLICIT, (16, 8), "x", dtype=jnp.int32)),
        "table.at[at].get(out_sharding=jax.P('x', None, None))",
    ),
    "add": (added, (laid(EXPLICIT, (512, 512), "x"), laid(EXPLICIT, (512, 512), None, "x")), "jax.sharding.reshard("),
    "reshape": (
        joined,
        (laid(EXPLICIT, (512, 512), None, "x"),),
        "jax.sharding.reshard(a, jax.P('x', None)).reshape(512 * 512)",
    ),
}


@pytest.mark.parametrize("operation", STOPS)
def test_where_explicit_axes_stop_a_trace_the_cheapest_layout_is_written(operation: str):
    function, args, paste = STOPS[operation]
    found = sw.doctor(function, *args, hardware=CHIP)
    assert found.stop is not None
    assert found.stop.operation == operation
    assert found.stop.line is not None
    assert found.stop.line.place == f"{__file__}:{function.__code__.co_firstlineno + 1}"
    assert [option.seconds for option in found.stop.options] == sorted(option.seconds for option in found.stop.options)
    first = found.stop.options[0].paste
    assert first is not None
    assert paste in first.new
    scope = {"jnp": jnp, "jax": jax}
    exec(f"def pasted({', '.join(function.__code__.co_varnames)}):\n    return {first.new}", scope)
    assert sw.doctor(scope["pasted"], *args, hardware=CHIP).stop is None


def test_of_equally_cheap_layouts_the_one_that_splits_an_earlier_dimension_comes_first():
    square = laid(EXPLICIT, (4096, 4096), None, "x"), laid(EXPLICIT, (4096, 4096), "x", None)
    stop = sw.doctor(dot, *square, hardware="h100").stop
    assert stop is not None
    first, second, whole = stop.options
    assert first.seconds == pytest.approx(second.seconds, rel=1e-9)
    assert [str(option.layouts[0]) for option in stop.options] == ["[K_x, I]", "[K, I_x]", "[K, I]"]
    assert whole.seconds > second.seconds
    assert "over y" not in str(stop.options), "what is pasted names no y"


def test_ways_out_name_no_axis_of_one_device_but_where_another_operand_has_it():
    mesh = AbstractMesh((8, 1), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)
    both, one = laid(mesh, (64, 64), None, ("x", "y")), laid(mesh, (64, 64), None, "x")
    stop = sw.doctor(lambda a, b: a @ b.T, both, both, hardware=CHIP).stop
    assert stop is not None
    assert sorted(str(option.layouts[0]) for option in stop.options) == ["[I, K]", "[I, K_x]", "[I_x, K]"]
    stop = sw.doctor(added, both, one, hardware=CHIP).stop
    assert stop is not None
    assert [option.says for option in stop.options[:2]] == [
        "operand 0 laid out as [I, J_x]",
        "operand 1 laid out as [I, J_{x,y}]",
    ]
    assert stop.options[1].seconds == 0


def test_a_whole_array_wins_no_tie_and_of_equal_shares_the_one_that_sends_less_comes_first():
    def option(layout: str, seconds: float, held: float, sent: float) -> Option:
        return Option((sw.Layout.parse(layout),), seconds, "", held, sent)

    whole, split, sends_less = option("I, J", 1e-5, 64, 8), option("I, J_x", 1e-5, 16, 8), option("I_x, J", 1e-5, 16, 4)
    rounded = option("I_y, J", 1e-5 * (1 + 1e-12), 8, 9)
    cheaper = option("I, J", 0.9e-5, 64, 8)
    wanted = [cheaper, rounded, sends_less, split, whole]
    assert all(sorted(each, key=preference) == wanted for each in itertools.permutations(wanted))


@pytest.mark.parametrize("formula", ["ij,jk->ik", "ij,jk->ki", "ij,kj->ik", "ij,kj->ki"])
def test_an_out_sharding_is_written_in_the_order_of_the_einsum(formula: str):
    given, _, result = formula.partition("->")
    sizes = {"i": 4, "j": 64, "k": 4096}
    args = [
        laid(EXPLICIT, tuple(sizes[letter] for letter in each), *("x" if letter == "j" else None for letter in each))
        for each in given.split(",")
    ]
    found = sw.doctor(lambda a, b: jnp.einsum(formula, a, b), *args, hardware=CHIP)
    assert found.stop is not None
    by_layout = {tuple(axes for _, axes in option.layouts[0].dims): option.layouts[0] for option in found.stop.options}
    assert by_layout
    assert all(set(layout.names) == {"I", "K"} for layout in by_layout.values())
    assert {tuple(layout.names) for layout in by_layout.values()} == {tuple(result.upper())}


def test_what_cannot_be_is_one_clear_error():
    with pytest.raises(MeshError, match="no mesh is given"):
        sw.doctor(lambda a: a, jnp.ones(4))
    with pytest.raises(CompileError, match="is no function"):
        sw.doctor(3, jnp.ones(4), mesh="x=4")
    with pytest.raises(CompileError, match=r"^a Plan is no function.*confirm=\.\.\.\) compiles"):
        sw.doctor(sw.plan("A[I_x] -> A[I]", sizes={"I": 8}, mesh="x=4"), mesh="x=4")  # type: ignore[arg-type]
    with pytest.raises(CompileError, match=r"cannot be traced.*ValueError: no"):
        sw.doctor(_raises, laid(AUTO, (8,), "x"))
    with pytest.raises(MeshError, match="has no axis 'y'"):
        sw.doctor(lambda a: a, laid(AUTO, (8,), "y"), mesh="x=4")


def _raises(a: Any) -> Any:
    raise ValueError("no")


def test_a_function_with_side_effects_and_its_module_stay_as_they_were():
    def noisy(a: Any) -> Any:
        jax.debug.print("{}", a.sum())
        return a * 2

    lowered = jax.jit(noisy).trace(laid(AUTO, (8,), "x")).lower(lowering_platforms=("cpu",))
    module = lowered.compiler_ir("stablehlo")
    before = str(module)
    intended(module, ["a"]).graph()
    assert str(module) == before
    assert sw.doctor(noisy, laid(AUTO, (8,), "x"), hardware=CHIP).totals is not None


def test_without_the_passes_the_doctor_says_so(monkeypatch: pytest.MonkeyPatch):
    def missing(context: Any) -> Any:
        raise shardy.NoPassesError("there is no sdy-propagation-pipeline")

    monkeypatch.setattr(shardy, "passes", missing)
    found = sw.doctor(lambda a: a.sum(), laid(AUTO, (8,), "x"), hardware=CHIP)
    assert found.totals is None
    assert "only the audit" in found.notes[0]
    assert "sdy-propagation-pipeline" in str(found)


def test_a_changed_layout_is_propagated_again():
    a, w = laid(AUTO, (64, 64), "x", None), laid(AUTO, (64, 64), None, "x")
    lowered = jax.jit(lambda a, w: a @ w).trace(a, w).lower(lowering_platforms=("tpu",))
    ready = intended(lowered.compiler_ir("stablehlo"), ["a", "w"])
    assert len(movements(ready.graph())) == 1
    assert movements(ready.graph([shardy.ArgumentLaid(1, sw.Layout.parse("I, J_y"))])) == ()
    assert len(movements(ready.graph())) == 1


@pytest.mark.slow
def test_time_and_memory_grow_with_unrolled_layers_and_no_faster():
    code = """
import resource, sys, time, jax, jax.numpy as jnp, shardwise as sw
sys.path[:0] = {paths!r}
from jax.sharding import AbstractMesh, AxisType
from programs import tensor_parallel
mesh = AbstractMesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
block, (h, w) = tensor_parallel.build(mesh)
def loss(params, h):
    for p in params:
        h = block(h, p)
    return jnp.mean(jnp.square(h.astype(jnp.float32)))
start = time.process_time()
found = sw.doctor(jax.value_and_grad(loss), [w] * int(sys.argv[1]), h, hardware="tpu-v5e")
assert found.places
print(time.process_time() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
    paths = [path for path in sys.path if path]
    figures = {}
    for layers in (6, 24):
        done = subprocess.run(
            [sys.executable, "-c", code.format(paths=paths), str(layers)], capture_output=True, text=True, check=True
        )
        figures[layers] = [float(figure) for figure in done.stdout.split()]
    assert figures[24][0] < 8 * figures[6][0], "seconds of a processor: four times the layers, not sixteen times the time"
    assert figures[24][1] < 2 * figures[6][1], "memory of the process"


def test_nothing_is_compiled_without_a_target(monkeypatch: pytest.MonkeyPatch):
    compiled: list[Any] = []
    monkeypatch.setattr(jax.stages.Lowered, "compile", lambda *_, **__: compiled.append(1))
    sw.doctor(lambda a: a.sum(), laid(AUTO, (8,), "x"), hardware=CHIP)
    assert compiled == []


def test_the_mesh_is_that_of_the_function_where_no_other_is_known():
    def constrained(a: Any) -> Any:
        return jax.lax.with_sharding_constraint(a, jax.NamedSharding(AUTO, P("x"))).sum()

    found = sw.doctor(constrained, jax.ShapeDtypeStruct((8, 4), jnp.float32), hardware=CHIP)
    assert str(found.mesh) == "x=4, y=2"
    assert moves(found) == [("[]{U_x}", "[]", (("all-reduce", ("x",)),))]
    with pytest.raises(MeshError, match=r"neither an argument nor the function holds one.*\ntraced without one: .*no"):
        sw.doctor(_raises, jnp.ones(4))


@pytest.mark.parametrize("given", [{}, {"mesh": "x=8"}, {"mesh": "x=4, y=2"}])
def test_a_pmap_is_explained_by_its_own_axes(given: dict[str, Any]):
    def update(w: Any, a: Any) -> Any:
        return w - jax.lax.pmean(jax.grad(lambda w: jnp.mean((a @ w) ** 2))(w), "copies")

    args = jax.ShapeDtypeStruct((8, 64, 64), jnp.float32), jax.ShapeDtypeStruct((8, 16, 64), jnp.float32)
    found = sw.doctor(jax.pmap(update, axis_name="copies"), *args, on="here", **given)
    truth: Any = found.truth
    assert str(found.mesh) == "copies=8"
    assert [(place.by_hand, place.collectives) for place in found.places] == [(True, (("all-reduce", ("copies",)),))]
    assert [(each.collective.axes, each.place) for each in truth.answers] == [(("copies",), 0)]
    assert truth.gone == ()


@pytest.mark.parametrize("devices", [16, 12])
@pytest.mark.parametrize("given", [{}, {"mesh": "x=8"}])
def test_a_pmap_over_devices_that_are_not_there_is_one_clear_error(devices: int, given: dict[str, Any]):
    with pytest.raises(
        MeshError, match=r"takes as many devices as .* this process has 8: .*sw\.simulate.*jax\.shard_map or jax\.jit"
    ):
        sw.doctor(jax.pmap(lambda a: a * 2), jax.ShapeDtypeStruct((devices, 4), jnp.float32), **given)


def test_what_goes_wrong_inside_of_a_pmap_is_told_as_it_is():
    with pytest.raises(CompileError, match="ValueError: no"):
        sw.doctor(jax.pmap(_raises), jax.ShapeDtypeStruct((8, 4), jnp.float32), mesh="x=8")
