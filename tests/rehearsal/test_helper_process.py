"""Compiling in a process of its own: the same text, no compiler in this process, and every failure told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import kept
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import shardwise as sw
from shardwise.chips.topology import Topology
from shardwise.compiled.targets import helper_process
from shardwise.compiled.targets.helper_process import compile_in_subprocess, end_helper, start_helper
from shardwise.compiled.targets.lowering import lower_on
from shardwise.compiled.targets.programs import Program, compile_program
from shardwise.errors import CompileError, HardwareError, MeshError, MissingExtraError
from shardwise.mesh import Mesh

pytestmark = pytest.mark.needs("tpu", "gpu")  # their compilers

MESH = jax.sharding.AbstractMesh((4, 2), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)
GRID = Mesh.parse("x=4, y=2")


def shaped(spec, mesh=MESH):
    return jax.ShapeDtypeStruct((64, 64), jnp.float32, sharding=NamedSharding(mesh, spec))


def program(function=lambda a: a * 2, topology="v5e:2x4") -> Program:
    return lower_on(function, (shaped(P("x")),), topology, MESH).program


@pytest.mark.parametrize("topology", ["v5e:2x4", "h100:8"])
def test_what_comes_back_is_what_this_process_would_have_made(topology):
    def gathered(tree, key, scale):
        c = sw.einsum("A[I_x,J] · B[J,K] -> C[I,K]", tree["a"], tree["b"])
        return {"c": c * scale + jax.random.normal(key, (64, 64))}

    tree = {"a": shaped(P("x")), "b": jax.ShapeDtypeStruct((64, 64), jnp.float32)}
    lowering = lower_on(gathered, (tree, jax.random.key(0), 2.0), topology, MESH)
    found = compile_in_subprocess(lowering.program, topology, GRID)
    assert found == compile_program(lowering.program, Topology.parse(topology), GRID)
    assert found.compile_seconds > 0
    assert "is_scheduled=true" in found.text
    assert "all-gather" in found.text
    assert "test_helper_process.py" in found.text
    assert "tree[\\'b\\']" in found.text, "names of arguments are lost"
    assert lowering.replicated == ("tree['b']",)
    assert found.memory.peak > 0


def test_this_process_loads_no_compiler_of_other_devices_and_leaves_no_process():
    code = """
        import os, jax
        import shardwise as sw
        from shardwise.compiled.targets import helper_process
        found = sw.rehearse(lambda a: a * 2, jax.ShapeDtypeStruct((8, 8), "float32"), on="v5e:2x4")
        again = sw.rehearse(lambda a: a * 3, jax.ShapeDtypeStruct((8, 8), "float32"), on="v5e:2x2")
        print("libtpu" in open("/proc/self/maps").read(), helper_process._kept[0].process.pid)
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False, timeout=120
    )
    loaded, helper = done.stdout.split()
    assert (loaded, done.returncode) == ("False", 0), done.stderr
    with pytest.raises(ProcessLookupError):
        os.kill(int(helper), 0)


def test_the_helper_is_kept_and_replaced_where_it_died_or_the_environment_is_another(monkeypatch):
    start_helper()
    first = helper_process._kept[0].process
    text = compile_in_subprocess(program(), "v5e:2x4", GRID).text
    assert helper_process._kept[0].process is first
    first.kill()
    first.wait()
    assert compile_in_subprocess(program(), "v5e:2x4", GRID).text == text
    second = helper_process._kept[0].process
    assert second is not first
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_tpu_enable_latency_hiding_scheduler=false")
    compile_in_subprocess(program(), "v5e:2x4", GRID)
    assert second.poll() is not None
    end_helper()


def test_refusals_of_the_helper_are_told_as_its_own():
    with pytest.raises(MeshError, match="mesh x=4, y=2 has 8 devices, and v5e:2x2 has 4"):
        compile_in_subprocess(program(), "v5e:2x2", GRID)
    large = lower_on(lambda a: a @ a, (jax.ShapeDtypeStruct((200_000, 200_000), "float32"),), "v5e:2x4", MESH).program
    with pytest.raises(CompileError, match=r"the compiler refuses: .*out of memory[\s\S]*shard it further"):
        compile_in_subprocess(large, "v5e:2x4", GRID)
    with pytest.raises(CompileError, match="the compiler refuses: "):
        compile_in_subprocess(Program(b"no module", (), ()), "v5e:2x4", GRID)
    with pytest.raises(HardwareError, match="no devices 'v9z'"):
        compile_in_subprocess(program(), "v9z:2x2", GRID)
    assert compile_in_subprocess(program(), "v5e:2x4", GRID).text, "a refusal ends the helper"


def test_a_compiler_that_is_missing_there_names_its_extra(monkeypatch):
    monkeypatch.setattr(helper_process, "_COMMAND", (sys.executable, "-c", textwrap.dedent("""
        import importlib.util, os, sys
        from multiprocessing.connection import Connection
        from shardwise.compiled.targets import child
        importlib.util.find_spec = lambda name: None
        os.environ.pop("TPU_LIBRARY_PATH", None)
        child.main(Connection(int(sys.argv[1])))
    """)))  # fmt: skip
    end_helper()
    with pytest.raises(MissingExtraError, match=r"shardwise\[tpu\]"):
        compile_in_subprocess(program(), "v5e:2x4", GRID)
    end_helper()


def test_a_helper_that_takes_too_long_is_ended():
    with pytest.raises(CompileError, match=r"took longer than 0.01 seconds and was ended"):
        compile_in_subprocess(program(), "v5e:2x4", GRID, timeout_seconds=0.01)
    assert not helper_process._kept


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("print('F1121 22:50:21.4 7 target.cc:1] Check failed: x <= 16', file=sys.stderr, flush=True); os.abort()",
         r"the compiler broke down \(SIGABRT\): F1121 .* Check failed: x <= 16"),
        ("os.kill(os.getpid(), 9)", r"the compiler broke down \(SIGKILL\): it said nothing"),
        ("print('no room', file=sys.stderr); sys.exit(3)", r"the compiler broke down \(exit status 3\): no room"),
    ],
)  # fmt: skip
def test_a_helper_that_breaks_down_is_told_with_the_compilers_last_words(monkeypatch, code, said):
    monkeypatch.setattr(helper_process, "_COMMAND", (sys.executable, "-c", f"import os, sys; {code}"))
    for waits in (False, True):  # for its end, before it is asked
        end_helper()
        if waits:
            helper_process.start_helper()
            helper_process._kept[0].process.poll = lambda: None  # it is taken for running
            helper_process._kept[0].process.wait()
        with pytest.raises(helper_process.BrokenDownError, match=said):
            compile_in_subprocess(program(), "v5e:2x4", GRID)
        assert not helper_process._kept


def test_an_interrupt_ends_the_helper_and_the_next_answer_is_to_the_next_question(monkeypatch):
    text = compile_in_subprocess(program(), "v5e:2x4", GRID).text

    def interrupted(self, timeout):
        raise KeyboardInterrupt

    other = program(lambda a: a @ a)
    with monkeypatch.context() as patched:
        patched.setattr(helper_process.Connection, "poll", interrupted)
        with pytest.raises(KeyboardInterrupt):
            compile_in_subprocess(other, "v5e:2x4", GRID)
    assert compile_in_subprocess(program(), "v5e:2x4", GRID).text == text


def test_signals_have_names():
    assert helper_process._ended(-signal.SIGSEGV) == "SIGSEGV"
    assert helper_process._ended(-99) == "signal 99"


def test_a_kept_text_is_the_compilers_and_no_other_program_takes_it(tmp_path, monkeypatch):
    monkeypatch.setattr(kept, "KEPT", tmp_path)
    monkeypatch.setenv("KEEP", "1")
    topology = Topology.parse("v5e:2x4")
    made = kept.compile_or_take(program(), topology, GRID)
    assert made == compile_in_subprocess(program(), topology, GRID)
    with monkeypatch.context() as patched:
        patched.setattr(helper_process, "compile_in_subprocess", None)
        assert kept.compile_or_take(program(lambda a: a * 2), topology, GRID) == made  # from another line
    assert kept.named(program(lambda a: a * 3), topology, GRID) != kept.named(program(), topology, GRID)
    assert kept.named(program(), topology, GRID) != kept.named(program(), Topology.parse("v6e:2x4"), GRID)
