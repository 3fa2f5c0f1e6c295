"""Devices that are not attached: every promised topology compiles, meshes lie as they should, and refusals say the way out."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import lacking
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from shardwise.chips import hardware
from shardwise.chips.placing import mesh_order
from shardwise.chips.topology import Topology
from shardwise.compiled.targets import unattached as targets
from shardwise.compiled.targets.programs import Made, compile_program, program_of
from shardwise.compiled.targets.unattached import compiler_options, devices_of, memory_use, mesh_of, target_mesh
from shardwise.errors import CompileError, HardwareError, MeshError, MissingExtraError
from shardwise.mesh import Mesh

TPUS = ["v3:4x4", "v4:2x2x2", "v4:4x4x4", "v5e:1x1", "v5e:1x2", "v5e:2x4", "v5e:4x4", "v5e:16x16", "v6e:2x4", "v6e:4x4"]
TPUS += ["v5p:1x1x1", "v5p:2x2x2", "v5p:4x4x4", "v5p:16x20x28", "tpu7x:2x2x1", "tpu7x:4x4x4"]
GPUS = ["h100:1", "h100:8", "h100:2x8", "h200:8", "b200:8"]


def gathered(mesh) -> jax.stages.Lowered:
    """A matmul whose rows are split over x, and gathered."""
    a = jax.ShapeDtypeStruct((8 * mesh.size, 256), jnp.bfloat16, sharding=NamedSharding(mesh, P("x")))
    b = jax.ShapeDtypeStruct((256, 256), jnp.bfloat16, sharding=NamedSharding(mesh, P()))
    return jax.jit(lambda a, b: a @ b, out_shardings=NamedSharding(mesh, P())).lower(a, b)


def compiled(lowered: jax.stages.Lowered, topology: str, mesh) -> Made:
    return compile_program(program_of(lowered), Topology.parse(topology), Mesh.parse(mesh))


def in_a_process(code: str, **environment: str | None) -> subprocess.CompletedProcess:
    kept = {name: value for name, value in {**os.environ, **environment}.items() if value is not None}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], env=kept, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.needs(compiler_of="text")
@pytest.mark.parametrize("text", TPUS + GPUS)
def test_every_promised_topology_compiles(text):
    mesh = mesh_of(text)
    made = compiled(gathered(mesh), text, mesh)
    assert "is_scheduled=true" in made.text
    assert mesh.size == 1 or re.search("all-gather|all-reduce", made.text)
    assert made.memory.peak > 0


@pytest.mark.needs(compiler_of="text")
@pytest.mark.parametrize("text", ["v5e:2x4", "h100:8"])
def test_a_program_compiles_to_what_jax_makes_of_it(text):
    mesh = mesh_of(text, "x=4, y=2", axis_types=AxisType.Auto)
    a = jax.ShapeDtypeStruct((64, 64), jnp.float32, sharding=NamedSharding(mesh, P("x")))

    def step(state, b):
        return {"w": state["w"] @ b, "kept": jax.lax.with_sharding_constraint(b, NamedSharding(mesh, P(None, "y")))}

    with jax.set_mesh(mesh):
        lowered = jax.jit(step, donate_argnums=0).lower({"w": a}, jax.ShapeDtypeStruct((64, 64), jnp.float32))
    theirs = lowered.compile(compiler_options=compiler_options(Topology.parse(text)))
    ours = compiled(lowered, text, mesh)
    assert ours.text == theirs.as_text()
    assert ours.memory == memory_use(theirs.memory_analysis())
    assert re.search("input_output_alias|buffer_donor", ours.text)


@pytest.mark.needs(compiler_of="text")
@pytest.mark.parametrize("text", [text for text in TPUS + GPUS if not text.startswith("v3")])
def test_devices_are_as_many_as_the_topology_says_and_of_its_hardware(text):
    topology = Topology.parse(text)
    devices = devices_of(topology)
    assert len(set(devices)) == topology.size
    assert hardware.for_device_kind(devices[0].device_kind).name == topology.chip
    assert devices_of(topology) is devices


@pytest.mark.needs(compiler_of="text")
@pytest.mark.parametrize("text", TPUS + GPUS)
def test_a_mesh_without_devices_is_that_of_the_devices(text):
    assert target_mesh(text) is mesh_of(text).abstract_mesh


@pytest.mark.needs(compiler_of="text")
@pytest.mark.parametrize(("text", "axes"), [("v5e:2x4", "x=4, y=2"), ("v5e:2x4", "x=8"), ("tpu7x:2x2x1", "x=2, y=4")])
def test_a_mesh_lies_on_the_topology_in_mesh_order(text, axes):
    topology = Topology.parse(text)
    mesh = mesh_of(text, axes)
    assert Mesh.parse(mesh) == Mesh.parse(axes)
    assert set(mesh.axis_types) == {AxisType.Explicit}
    shown = [(*device.coords[: len(topology.shape)], device.core_on_chip) for device in mesh.devices.flat]
    assert tuple(shown) == mesh_order(topology, Mesh.parse(axes))


@pytest.mark.needs("gpu")
def test_gpus_stand_host_by_host():
    mesh = mesh_of("h100:2x8", {"node": 2, "x": 8})
    assert [[device.process_index for device in row] for row in mesh.devices] == [[0] * 8, [1] * 8]


@pytest.mark.needs("tpu")
def test_axis_types_are_those_asked_for():
    assert mesh_of("v5e:2x4", "x=8", axis_types=AxisType.Auto).axis_types == (AxisType.Auto,)
    with pytest.raises(MeshError, match="one for each axis"):
        mesh_of("v5e:2x4", "x=8", axis_types="auto")


@pytest.mark.needs(compiler_of="text")
@pytest.mark.parametrize("text", ["v5e:2x4", "h100:8"])
def test_a_smaller_mesh_takes_part_of_the_topology(text):
    mesh = mesh_of(text, "x=4")
    assert len(set(mesh.devices.flat)) == 4
    assert "all-gather" in compiled(gathered(mesh), text, mesh).text


def test_axes_that_do_not_fit_are_refused():
    with pytest.raises(MeshError, match="mesh x=4, y=4 has 16 devices, and v5e:2x4 has 8"):
        mesh_of("v5e:2x4", "x=4, y=4")
    with pytest.raises(MeshError, match="mesh x=7 has 7 devices"):
        mesh_of("v5e:2x4", "x=7")


@pytest.mark.needs("tpu")
def test_a_program_too_large_for_the_memory_is_refused_with_the_compilers_reason():
    mesh = mesh_of("v5e:2x4")
    a = jax.ShapeDtypeStruct((200_000, 200_000), jnp.float32, sharding=NamedSharding(mesh, P()))
    with pytest.raises(CompileError, match=r"v5e:2x4: the compiler refuses: .*[Rr]an out of memory[\s\S]*shard it further"):
        compiled(jax.jit(lambda a: a @ a).lower(a), "v5e:2x4", mesh)


@pytest.mark.needs("tpu", "gpu")
def test_the_environment_is_left_as_it_was(monkeypatch):
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "mine")
    before = dict(os.environ)
    devices_of.cache_clear()
    devices_of(Topology.parse("v6e:2x2"))
    mesh = mesh_of("h100:2")
    compiled(gathered(mesh), "h100:2", mesh)
    assert dict(os.environ) == before
    assert compiler_options(Topology.parse("v5e:2x4")) == {}
    assert compiler_options(Topology.parse("h100:8"))["xla_gpu_autotune_level"] == 0


@pytest.mark.parametrize(("text", "extra"), [("v5e:2x4", "tpu"), ("h100:8", "gpu")])
def test_a_missing_compiler_names_its_extra(monkeypatch, text, extra):
    devices_of.cache_clear()
    monkeypatch.setattr(targets.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(targets.shutil, "which", lambda name: None)
    monkeypatch.delenv("TPU_LIBRARY_PATH", raising=False)
    monkeypatch.delenv(lacking.WITHOUT, raising=False)
    with pytest.raises(MissingExtraError, match=rf'pip install "shardwise\[{extra}\]"'):
        mesh_of(text)
    assert f'pip install "shardwise[{extra}]"' in str(lacking.lacks(extra))


@pytest.mark.needs("tpu")
def test_what_the_compiler_does_not_know_is_told_in_its_words(monkeypatch):
    def refuse(**options):
        raise ValueError("INVALID_ARGUMENT: no such\nchip")

    devices_of.cache_clear()
    monkeypatch.setattr(targets.topologies, "get_topology_desc", refuse)
    with pytest.raises(HardwareError, match="v5e:2x4: the compiler describes no such devices: INVALID_ARGUMENT: no such chip"):
        devices_of(Topology.parse("v5e:2x4"))


@pytest.mark.needs("tpu")
def test_several_processes_may_compile_at_once():
    mesh_of("v5e:2x4")  # this process holds the TPU compiler
    done = in_a_process("from shardwise.compiled.targets.unattached import mesh_of; print(mesh_of('v5e:2x4').size)")
    assert done.stdout == "8\n", done.stderr


@pytest.mark.needs(compiler_of="text")
@pytest.mark.parametrize("text", ["v5e:2x4", "h100:8"])
@pytest.mark.parametrize("platforms", ["cpu", None])
def test_nothing_else_need_be_set_and_nothing_is_printed_about_missing_devices(text, platforms):
    code = f"""
        from shardwise.compiled.targets.unattached import mesh_of
        print(mesh_of({text!r}).size)
    """
    done = in_a_process(code, JAX_PLATFORMS=platforms, XLA_FLAGS=None)
    assert done.stdout == "8\n", done.stderr
    assert "host bounds" not in done.stderr
    assert "Traceback" not in done.stderr
