"""Compiler options: those that are listed are known to their compilers, others are told; variants on the command line."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import pytest
from commands import in_a_folder as in_a_folder
from commands import module_of, said

import shardwise as sw
from shardwise.cli import main
from shardwise.compiled.targets.compiler_flags import flags

TARGETS = [pytest.param(name, marks=pytest.mark.needs(compiler_of="target")) for name in ("v5e:2x2", "h100:4")]
MODULE = """\
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P

def step(a, b):
    return a @ b

def columns(mesh):
    def laid(shape, *axes):
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, P(*axes)))
    return laid((1024, 256)), laid((256, 512), None, "x")
"""
ARGS = ("--args", "bfloat16[1024@x,256] bfloat16[256,512]", "--mesh", "x=4", "--on", "v5e:2x2")


def step(a):
    return a @ a.T


A = jax.ShapeDtypeStruct((256, 256), jnp.bfloat16)


@pytest.mark.parametrize("target", TARGETS)
def test_every_flag_that_is_listed_is_known_to_its_compiler(target):
    options = {flag.name: flag.value for flag in flags(target)}
    assert len(options) >= 8
    found = sw.rehearse(step, A, on=target, compiler_options=options)
    assert found.work.flops_per_device > 0


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("isolated", [True, False])
def test_an_option_that_the_compiler_does_not_know_is_one_error(target, isolated):
    with pytest.raises(
        sw.ShardwiseError, match=f"{target}: its compiler knows no option 'xla_nonsense'; `shardwise flags --on"
    ):
        sw.rehearse(step, A, on=target, compiler_options={"xla_nonsense": 1}, isolated=isolated)
    name = flags(target)[0].name
    with pytest.raises(sw.ShardwiseError, match=f"{target}: its compiler cannot read 'many' as a value of the option '{name}'"):
        sw.rehearse(step, A, on=target, compiler_options={name: "many"}, isolated=isolated)


@pytest.mark.needs("tpu")
def test_options_change_what_is_compiled():
    """A limit of 4 MiB of vector memory for one operation cuts a matmul into smaller parts."""
    big = jax.ShapeDtypeStruct((8192, 8192), jnp.bfloat16)
    plain = sw.rehearse(step, big, on="v5e:1x1")
    small = sw.rehearse(step, big, on="v5e:1x1", compiler_options={"xla_tpu_scoped_vmem_limit_kib": 4096})
    assert plain.timeline().step_seconds < small.timeline().step_seconds
    assert sw.rehearse(step, big, on="v5e:1x1").timeline().step_seconds == plain.timeline().step_seconds


@pytest.mark.needs("tpu")
def test_variants_are_tried_on_the_command_line(capsys, tmp_path):
    module = module_of(tmp_path, MODULE)
    tries = ("--try", "xla_tpu_scoped_vmem_limit_kib=4096", "--try", f"layouts:{module}:columns", "--try", "xla_nonsense=1")
    assert main(["rehearse", f"{module}:step", *ARGS, *tries]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "step on v5e:2x2, mesh x=4: modelled from the compiled schedule"
    assert [line.split()[0] for line in lines[2:5]] == ["1.", "2.", "3."]
    assert any(f"layouts:{module}:columns" in line for line in lines[2:5])
    assert lines[5].startswith("not compiled: xla_nonsense=1: v5e:2x2: its compiler knows no option 'xla_nonsense'")
    equation = ("A[I_x, J] · B[J, K] -> C[I, K]", "--sizes", "I=1024,J=256,K=512", "--mesh", "x=4", "--on", "v5e:2x2")
    assert main(["rehearse", *equation, "--try", "xla_tpu_scoped_vmem_limit_kib=4096", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {each["variant"] for each in found} == {"as it is", "xla_tpu_scoped_vmem_limit_kib=4096"}
    assert found[0]["step_seconds"] <= found[1]["step_seconds"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--try", "foo"), "--try 'foo': write an option of the compiler as name=value"),
        (("--try", "a=1", "--timeline"), "--timeline and --trace belong to one program"),
        (("--try", "a=1", "--sizes", "I=4"), "--sizes belong to an equation"),
    ],
)
def test_mistakes_of_a_try_are_told(words, message, capsys, tmp_path):
    module = module_of(tmp_path, MODULE)
    assert main(["rehearse", f"{module}:step", *ARGS, *words]) == 2
    assert message in said(capsys)
    equation = ("rehearse", "A[I_x] -> A[I]", "--sizes", "I=8", "--mesh", "x=4", "--on", "v5e:2x2", "--try", "layouts:m.py:f")
    assert main([*equation]) == 2
    assert "an equation says its layouts itself" in said(capsys)


def test_flags_are_listed_by_platform(capsys):
    assert main(["flags"]) == 0
    everything = capsys.readouterr().out
    assert "xla_gpu_enable_latency_hiding_scheduler=true\n  moves collectives" in everything
    assert main(["flags", "--on", "v5e:2x4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {each["platform"] for each in found} == {"tpu"}
    assert all(each["reason"] and each["source"] for each in found)
    assert main(["flags", "abacus"]) == 2
    assert "abacus" in said(capsys)
    assert main(["flags", "tpu", "--on", "gpu"]) == 2
    assert "name the devices once" in said(capsys)
