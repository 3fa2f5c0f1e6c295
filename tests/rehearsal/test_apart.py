"""Compiling in a process of its own: the same text, no compiler in this process, and every failure told."""

from __future__ import annotations

import functools
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import shardwise as sw
from shardwise.compiled.targets import apart
from shardwise.compiled.targets.apart import compile_apart
from shardwise.errors import CompileError, HardwareError, MeshError, MissingExtraError

MESH = jax.sharding.AbstractMesh((4, 2), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)


def shaped(spec, mesh=MESH):
    return jax.ShapeDtypeStruct((64, 64), jnp.float32, sharding=NamedSharding(mesh, spec))


@pytest.mark.needs(compiler_of="topology")
@pytest.mark.parametrize("topology", ["v5e:2x4", "h100:8"])
def test_a_function_comes_back_compiled(topology):
    def gathered(tree, key, scale):
        c = sw.einsum("A[I_x,J] · B[J,K] -> C[I,K]", tree["a"], tree["b"])
        return {"c": c * scale + jax.random.normal(key, (64, 64))}

    tree = {"a": shaped(P("x")), "b": jax.ShapeDtypeStruct((64, 64), jnp.float32)}
    found = compile_apart(gathered, (tree, jax.random.key(0), 2.0), topology)
    assert "is_scheduled=true" in found.text
    assert "all-gather" in found.text
    assert "test_apart.py" in found.text
    assert found.replicated == ("[0]['b']",)
    assert found.memory.peak > 0


@pytest.mark.needs("tpu")
def test_axes_and_their_types_are_those_of_the_arguments_or_those_given():
    auto = jax.sharding.AbstractMesh((8,), ("x",), axis_types=(AxisType.Auto,))
    found = compile_apart(lambda a: jax.lax.with_sharding_constraint(a * 2, P(None, "x")), (shaped(P("x"), auto),), "v5e:2x4")
    assert "all-to-all" in found.text or "collective-permute" in found.text
    found = compile_apart(
        lambda a: jax.sharding.reshard(a, P("z")), (jax.ShapeDtypeStruct((64, 64), "float32"),), "v5e:2x4", "z=8"
    )
    assert "f32[8,64]" in found.text


@pytest.mark.needs("tpu")
def test_what_is_donated_static_or_at_home_elsewhere_comes_along():
    host = sw.make_mesh("x=4, y=2")

    @functools.partial(jax.jit, static_argnames=("way",), donate_argnums=0)
    def scaled(state, k, way):
        scale = jax.shard_map(lambda a: a * k, mesh=host, in_specs=P("x"), out_specs=P("x"))
        return {name: scale(leaf) for name, leaf in state.items()} if way == "up" else state

    found = compile_apart(scaled, ({"w": shaped(P("x"))}, 2.0, "up"), "v5e:2x4")
    assert found.memory.aliased > 0
    assert found.replicated == ()


@pytest.mark.needs("tpu")
def test_this_process_loads_no_compiler_of_other_devices():
    code = """
        import jax
        from shardwise.compiled.targets.apart import compile_apart
        found = compile_apart(lambda a: a * 2, (jax.ShapeDtypeStruct((8, 8), "float32"),), "v5e:2x4")
        assert "is_scheduled=true" in found.text
        print("libtpu" in open("/proc/self/maps").read())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.stdout == "False\n", done.stderr


def test_a_function_that_cannot_be_traced_is_refused_here():
    def wrong(a):
        return a @ jnp.ones((3, 3))

    with pytest.raises(CompileError, match=r"wrong cannot be traced.*TypeError[\s\S]*test_apart.py"):
        compile_apart(wrong, (shaped(P("x")),), "v5e:2x4")


@pytest.mark.needs("tpu")
def test_refusals_of_the_child_are_told_as_its_own():
    with pytest.raises(MeshError, match="mesh x=4, y=2 has 8 devices, and v5e:2x2 has 4"):
        compile_apart(lambda a: a * 2, (shaped(P("x")),), "v5e:2x2")
    with pytest.raises(CompileError, match=r"the compiler refuses: .*out of memory"):
        compile_apart(lambda a: a @ a, (jax.ShapeDtypeStruct((200_000, 200_000), "float32"),), "v5e:2x4")
    with pytest.raises(HardwareError, match="no devices 'v9z'"):
        compile_apart(lambda a: a, (1.0,), "v9z:2x2")


def test_a_child_that_takes_too_long_is_ended():
    with pytest.raises(CompileError, match=r"took longer than 0.2 seconds and was ended"):
        compile_apart(lambda a: a * 2, (shaped(P("x")),), "v5e:2x4", timeout_seconds=0.2)


def test_a_child_that_breaks_down_is_told_with_the_compilers_last_words(monkeypatch):
    code = "import os, sys; print('F1 target.cc:1 Check failed: x <= 16', file=sys.stderr, flush=True); os.abort()"
    real = subprocess.run
    monkeypatch.setattr(apart.subprocess, "run", lambda command, **how: real([sys.executable, "-c", code], **how))
    with pytest.raises(CompileError, match=r"the compiler broke down \(SIGABRT\): F1 target.cc:1 Check failed: x <= 16"):
        compile_apart(lambda a: a * 2, (shaped(P("x")),), "v5e:2x4")


def test_what_writes_programs_down_may_be_missing(monkeypatch):
    monkeypatch.setattr(apart.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"shardwise\[tpu\]"):
        compile_apart(lambda a: a * 2, (shaped(P("x")),), "v5e:2x4")
