"""One route for every function: the same answer whatever ran before, memories kept apart, and no end of the caller."""

from __future__ import annotations

import functools
import importlib
import json
import os
import re
import warnings

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from rehearsal import random_programs

import shardwise as sw
from shardwise.compiled import compiling
from shardwise.compiled.compiling import audit
from shardwise.compiled.export import facts
from shardwise.errors import CompileError, MeshError, ShardwiseError

pytestmark = pytest.mark.needs("tpu", "gpu")  # their compilers

MESH = jax.sharding.AbstractMesh((4, 2), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)
EIGHT = jax.sharding.AbstractMesh((8,), ("x",), axis_types=(AxisType.Explicit,))


def shaped(spec, mesh=MESH, shape=(64, 64), dtype=jnp.float32, memory_kind=None):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec, memory_kind=memory_kind))


def told(case: random_programs.Case, target: str) -> str:
    """All that is said of a case on a target; of one that cannot be compiled there, why."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Some donated buffers were not usable")
            found = (
                audit(case.function, *case.args, mesh=case.mesh)
                if target == "cpu"
                else sw.rehearse(case.function, *case.args, on=target)
            )
    except ShardwiseError as error:
        return f"{type(error).__name__}: {error}"
    instructions = [i.shape for c in found.module.computations.values() for i in c.instructions]
    return json.dumps([facts(found), instructions])


PROGRAMS = int(os.environ.get("PROGRAMS", "20"))  # PROGRAMS=300 make test ARGS=tests/rehearsal/test_route.py: in a minute
TARGETS = ("v5e:2x4", "v6e:2x4", "v5p:2x2x2")
KIND = r"(?:ragged-)?all-to-all|all-gather|all-reduce|reduce-scatter|collective-permute|collective-broadcast"
COLLECTIVE = re.compile(rf"(?m)^ *(?:ROOT )?%?[\w.-]+ = .*?(?<![\w%.-])(?:{KIND})(?:-start)?\((?!\d)")


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_every_collective_of_a_compiled_text_is_read(seed, monkeypatch):
    """Counted line by line, without the reader."""
    read_text, seen = compiling.audit_text, []

    def noted(text, **given):
        seen.append((text, read_text(text, **given)))
        return seen[-1][1]

    monkeypatch.setattr(compiling, "audit_text", noted)
    case = random_programs.case(seed)
    said = [told(case, target) for target in (TARGETS[seed % 3], "cpu")]
    assert len(seen) == sum(each.startswith("[") for each in said)
    for text, found in seen:
        opcodes = [i.opcode for c in found.module.computations.values() for i in c.instructions]
        assert sum(bool(re.fullmatch(rf"(?:{KIND})(?:-start)?", each)) for each in opcodes) == len(COLLECTIVE.findall(text))


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_the_same_call_gives_the_same_answer_whatever_ran_before(seed):
    case = random_programs.case(seed)
    target = TARGETS[seed % 3]
    first, here = told(case, target), told(case, "cpu")
    assert (told(case, target), told(case, "cpu")) == (first, here), case.name
    assert first.startswith("["), (case.name, first)
    assert here.startswith("[") or "ragged-all-to-all" in here, (case.name, here)


def test_a_map_without_a_mesh_serves_on_every_mesh_and_says_everything():
    total = jax.shard_map(lambda state: jax.lax.psum(state["w"] @ state["w"].T, "x"), in_specs=P("x"), out_specs=P())
    host = sw.make_mesh("x=4, y=2")

    def ask():
        found = [sw.rehearse(total, {"w": shaped(P("x"), mesh)}, on="v5e:2x4") for mesh in (MESH, EIGHT)]
        return [*found, audit(total, {"w": shaped(P("x"), host)}, mesh=host)]

    first, again = ask(), ask()
    assert list(map(facts, first)) == list(map(facts, again))
    assert [found.notes for found in first] == [(), (), ()]
    assert [found.work.needed for found in first] == [2.0 * 16 * 16 * 64 * 4, 2.0 * 8 * 8 * 64 * 8, 2.0 * 16 * 16 * 64 * 4]
    for found in first:
        assert "state" in next(i.attributes for i in found.module.entry.instructions if i.opcode == "parameter")


def test_a_rehearsal_binds_no_map_to_a_mesh():
    made = jax.shard_map(lambda a: a * 2, in_specs=P("x"), out_specs=P("x"))
    sw.rehearse(lambda a: made(a), shaped(P("x")), on="v5e:2x4")
    host = sw.make_mesh("x=2")
    with jax.set_mesh(host):
        assert jax.jit(made)(sw.put(jnp.ones((4, 4)), "A[I_x, J]", host)).sum() == 32


def test_what_a_mesh_in_force_says_makes_no_difference():
    def ask():
        return facts(sw.rehearse(lambda a: a @ a, shaped(P("x")), on="v5e:2x4"))

    alone = ask()
    with jax.set_mesh(sw.make_mesh("x=2")):
        assert ask() == alone


@pytest.mark.needs("tpu")
@pytest.mark.parametrize("laid", [True, False])
def test_a_function_that_wants_a_mesh_in_force_and_holds_it_too_is_rehearsed(laid):
    host = sw.make_mesh("x=4, y=2")

    @jax.jit
    def step(a):
        spread = jax.sharding.reshard(a, P("x"))  # by axes alone: of the mesh that is in force
        return jax.shard_map(lambda a: jax.lax.psum(a, "x"), mesh=host, in_specs=P("x"), out_specs=P())(spread)

    a = shaped(P("x"), host) if laid else jax.ShapeDtypeStruct((64, 64), jnp.float32)

    def ask():
        return facts(sw.rehearse(step, a, on="v5e:2x4", mesh=host))

    first = ask()
    with jax.set_mesh(host):
        step(jax.device_put(jnp.ones((64, 64)), NamedSharding(host, P("x"))))
        assert ask() == first
    with jax.set_mesh(sw.make_mesh("x=2")):
        assert ask() == first
    assert [(each["kind"], each["axes"]) for each in first["collectives"]] == [("all-reduce", ["x"])]
    assert any("holds on to another mesh" in note for note in first["notes"])


@pytest.mark.needs("tpu")
def test_a_function_that_holds_an_array_of_this_host_is_rehearsed_under_checkpoint():
    host = sw.make_mesh("x=4, y=2")
    held = jax.device_put(jnp.ones((64, 64)), NamedSharding(host, P("x")))
    step = jax.checkpoint(lambda a: jax.sharding.reshard(a * held, P()))
    found = sw.rehearse(step, shaped(P("x"), host), on="v5e:2x4")
    assert [(each.kind, each.axes) for each in found.collectives] == [("all-gather", ("x",))]


def test_a_function_that_prints_is_rehearsed():
    def step(a):
        jax.debug.print("{}", a.sum())
        return a @ a

    found = sw.rehearse(jax.shard_map(step, in_specs=P(), out_specs=P()), shaped(P()), on="v5e:2x4")
    assert found.work.needed == 2.0 * 64**3
    assert any("is_host_transfer=true" in i.attributes for i in found.module.entry.instructions)


@pytest.mark.parametrize("isolated", [True, False])
def test_a_mesh_smaller_than_the_slice_is_compiled_or_refused(isolated):
    def gathered(a):
        return jax.sharding.reshard(a, P())

    for target, mesh in (("v5e:4x4", EIGHT), ("v6e:4x4", MESH)):
        with pytest.raises(MeshError, match=r"takes 8 of the 16 devices of v.e:4x4[\s\S]*or a topology of 8\n"):
            sw.rehearse(gathered, shaped(P("x"), mesh), on=target, isolated=isolated)
    two = jax.sharding.AbstractMesh((2,), ("x",), axis_types=(AxisType.Explicit,))
    for target in ("v5e:4x4", "h100:8"):
        found = sw.rehearse(gathered, shaped(P("x"), two), on=target, isolated=isolated)
        assert [(c.kind, c.axes) for c in found.collectives] == [("all-gather", ("x",))]


def test_arguments_of_the_host_are_not_counted_on_the_device():
    def step(w, b):
        return jax.device_put(w, jax.memory.Space.Device) @ b

    found = sw.rehearse(step, shaped(P("x"), memory_kind="pinned_host"), shaped(P()), on="v5e:2x4")
    assert found.memory.host == 16 * 64 * 4 * 2  # rows of 64 lie as 128
    assert found.memory.arguments == 64 * 64 * 4 * 2
    assert "host    8.19 kB of the host's memory for each device" in str(found)
    with pytest.raises(CompileError, match="memory_space of all inputs"):
        sw.rehearse(lambda w, b: w + b, shaped(P("x"), memory_kind="pinned_host"), shaped(P("x")), on="v5e:2x4")


@pytest.mark.parametrize(("target", "bytes_per_s"), [("v5e:2x4", 1.5e10), ("v6e:2x4", 3.2e10), ("h100:8", 6.4e10)])
def test_what_goes_to_the_host_passes_its_link(target, bytes_per_s):
    large = shaped(P("x", None), EIGHT, (8 * 8192, 4096))  # 134 MB a device
    line = sw.rehearse(lambda a: jax.device_put(a * 2, jax.memory.Space.Host), large, on=target).timeline()
    assert dict(line.lanes)["to host"] == pytest.approx(8192 * 4096 * 4 / bytes_per_s)
    assert line.copy_wait_seconds >= 0.9 * dict(line.lanes)["to host"]
    assert any(f"the link to the host {bytes_per_s:.3g} bytes/s" in note for note in line.notes)


@pytest.mark.parametrize(("target", "bytes_per_s"), [("v5e:2x4", 1.5e10), ("h100:8", 6.4e10)])
def test_activations_that_are_offloaded_go_there_and_back_once(target, bytes_per_s):
    keep = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[], names_which_can_be_offloaded=["h"], offload_src="device", offload_dst="pinned_host"
    )

    @jax.grad
    def step(ws, a):
        def layer(a, w):
            return checkpoint_name(jnp.tanh(a @ w), "h"), None

        return jax.checkpoint(lambda a: jax.lax.scan(layer, a, ws)[0], policy=keep)(a).sum()

    a = shaped(P("x"), EIGHT, (8 * 256, 512))
    line = sw.rehearse(step, shaped(P(), EIGHT, (4, 512, 512)), a, on=target).timeline()
    once = 4 * 256 * 512 * 4 / bytes_per_s
    assert dict(line.lanes)["to host"] == pytest.approx(once)
    assert 0 < dict(line.lanes)["from host"] <= once * 1.0001


class JittedElsewhere:
    """A function under another library's jit, as `flax.nnx.jit` makes them: what it traces to is no trace of JAX's."""

    def __init__(self, function):
        functools.update_wrapper(self, function)
        self.calls = 0

    def __call__(self, *args):
        self.calls += 1  # as nnx empties a model that is traced
        return self.__wrapped__(*args)

    def trace(self, *args):
        return type("Traced", (), {"lower": lambda self: jax.jit(lambda a: a).lower(*args)})()

    def lower(self, *args):
        return self.trace(*args).lower()


def bound_its_own_way(function, *bound):
    """As `nnx.cached_partial`: a function of the same library, around the jitted one."""

    @functools.wraps(function)
    def wrapper(*args):
        return function(*bound, *args)

    return wrapper


def plain_step(*args):
    return args[-1]


ROUTES = pytest.mark.parametrize(
    "route", [lambda f, *args: sw.audit(f, *args), lambda f, *args: sw.rehearse(f, *args, on="v5e:2x4")], ids=["here", "there"]
)


@ROUTES
@pytest.mark.needs("tpu")
def test_a_function_under_another_jit_is_refused_with_the_way_out(route):
    for function in (plain_step, functools.partial(plain_step)):
        with pytest.raises(CompileError) as refused:
            route(JittedElsewhere(function), jnp.ones(8))
        first, *ways = str(refused.value).splitlines()
        assert first.startswith("plain_step is jitted by ")
        assert "test_route, whose traces are not those of jax.jit: give a function" in first
        assert ways == [
            "    jax.jit(lambda model, *args: (plain_step(model, *args), nnx.state(model)), donate_argnums=0)",
            "    jax.jit(lambda model, optimizer, *args: (plain_step(model, optimizer, *args), nnx.state((model, optimizer))), "
            "donate_argnums=(0, 1))",
        ]


@ROUTES
@pytest.mark.parametrize("bind", [functools.partial, bound_its_own_way])
@pytest.mark.needs("tpu")
def test_one_that_is_bound_to_its_model_is_refused_before_it_is_traced(route, bind):
    step = JittedElsewhere(plain_step)
    with pytest.raises(CompileError, match=r"plain_step is jitted by .*, and bound to arguments that .* would change: give a"):
        route(functools.partial(bind(step, 1.0)), jnp.ones(8))
    assert step.calls == 0
    assert sw.audit(jax.jit(lambda a: step(1.0, a)), jnp.ones(8)).notes == ()


@pytest.mark.needs("tpu")
def test_what_is_advised_fits_the_error(tmp_path):
    def refused(function, *args, **named):
        with pytest.raises(CompileError) as error:
            sw.rehearse(function, *args, on="v5e:2x4", **named)
        return str(error.value).splitlines()

    a, host = shaped(P("x")), sw.make_mesh("x=4, y=2")
    held = jax.device_put(jnp.ones((64, 64)), NamedSharding(host, P("x")))
    _, at, advice, *_ = refused(lambda a: a @ held, a)  # its repr says Explicit
    assert advice == "it closes over an array that lies on a mesh of other devices: give that array as an argument"
    assert at.startswith(f"at {__file__}:")
    _, _, advice = refused(lambda a: a @ a.T @ a.T, shaped(P("x", "y")))
    assert advice.startswith("written for Auto axes? give a mesh of them")
    auto = jax.sharding.AbstractMesh((8,), ("x",), axis_types=(AxisType.Auto,))
    _, _, advice, *_ = refused(lambda a: jax.sharding.reshard(a, P("x")), shaped(P("x"), auto))
    assert advice.startswith("written for Explicit axes? give a mesh of them")
    assert len(refused(lambda a: a @ jnp.ones((3, 3)), a)) == 2  # of shapes alone: no word of meshes
    *_, advice = refused(jax.jit(lambda a, mode: a), a, "train")
    assert advice == "mode is no array, and is not said to be static: jax.jit(step, static_argnames='mode')"
    *_, advice = refused(lambda model, a: a, {"act": "gelu"}, a)
    assert "eqx.filter(step(eqx.combine(arrays, rest), *args)" in advice
    *_, advice = refused(lambda a: jax.sharding.reshard(a, P("rows")), jax.ShapeDtypeStruct((64, 64), jnp.float32))
    assert advice.endswith('x=8 was taken; give the axes that the function uses, as mesh="rows=4, cols=2" (--mesh)')


@pytest.mark.needs("tpu")
def test_an_error_in_a_library_is_told_at_the_line_that_calls_it(tmp_path, monkeypatch):
    library = tmp_path / "site-packages" / "layers_of_others.py"
    library.parent.mkdir()
    library.write_text("def dense(a, b):\n    return a @ b\n")
    monkeypatch.syspath_prepend(str(library.parent))
    dense = importlib.import_module("layers_of_others").dense
    with pytest.raises(CompileError, match=rf"\nat {__file__}:\d+: sw.rehearse\(lambda a: dense"):
        sw.rehearse(lambda a: dense(a, jnp.ones((3, 3))), shaped(P("x")), on="v5e:2x4")
    with pytest.raises(CompileError, match=rf"\nat {library}:2: return a @ b"):  # no line is the user's own
        sw.rehearse(dense, shaped(P("x")), jnp.ones((3, 3)), on="v5e:2x4")


@pytest.mark.needs("tpu")
def test_arguments_that_the_function_lays_out_are_not_called_replicated():
    mesh = sw.make_mesh("x=8")
    function = jax.jit(lambda w, x: x @ w, in_shardings=(None, NamedSharding(mesh, P("x"))))
    found = sw.rehearse(function, jnp.ones((64, 64)), jnp.ones((64, 64)), on="v5e:2x4")
    assert found.notes == ("arguments without a layout are taken as replicated: w",)
    assert {each.name: each.axes for each in found.arguments} == {"w": (), "x": ("x",)}

    mapped = jax.pmap(lambda p, x: jax.lax.psum(x @ p, "batch"), axis_name="batch", in_axes=(None, 0))
    found = sw.rehearse(mapped, jnp.ones((16, 16)), jnp.ones((8, 16, 16)), on="v5e:2x4")
    assert found.notes[0] == "arguments without a layout lie as function and compiler have them: p, x"
    assert [each.kind for each in found.collectives] == ["all-reduce"]


@pytest.mark.needs("tpu")
def test_a_function_that_holds_a_mesh_of_another_size_is_refused_with_the_way_out():
    mapped = jax.pmap(lambda x: jax.lax.psum(x @ x, "batch"), axis_name="batch")
    with pytest.raises(
        MeshError, match=r"v5e:4x4 has 16 devices, and the function holds a mesh of another size: .*sw.simulate\(16\)"
    ):
        sw.rehearse(mapped, jnp.ones((8, 16, 16)), on="v5e:4x4")


@ROUTES
@pytest.mark.needs("tpu")
def test_a_function_that_returns_no_array_is_told_of_before_its_figures(route):
    a = shaped(P("x"), sw.make_mesh("x=8"), (8, 8))

    def step(a):
        changed.append(a @ a)

    changed: list[jax.Array] = []
    _, told, *figures = str(route(step, a)).splitlines()
    assert told.startswith("note    the function returns no array, so that the compiler drops all that it computes, and")
    assert told.endswith("return what it changes (of flax.nnx, nnx.state((model, optimizer)))")
    assert not any("returns no array" in line for line in figures)
    assert "computes but for its prints and calls back, and" in str(route(lambda a: jax.debug.print("{}", a.sum()), a))
    assert not any("returns no array" in note for note in route(lambda a: a * 2, a).notes)


def test_a_function_that_writes_into_an_array_reference_returns_enough():
    held = jax.new_ref(jnp.zeros(8))

    def step(a):
        held[...] = a

    assert sw.audit(step, jnp.ones(8)).notes == ()
