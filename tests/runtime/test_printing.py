"""`device_print`: a line for each device, in order, whatever runs around it (row B8)."""

from __future__ import annotations

import re
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import shardwise as sw
from shardwise.errors import ArrayError, MeshError, ShardwiseError
from shardwise.runtime import printing as printing_module

X = np.arange(32, dtype=np.float32).reshape(4, 8)
COORDINATES = [f"i={i}, j={j}" for i in range(4) for j in range(2)]


def mapped(local, mesh="i=4, j=2", spec=None, **options):
    spec = P("i", "j") if spec is None else spec
    return jax.shard_map(local, mesh=sw.make_mesh(mesh), in_specs=spec, out_specs=spec, **options)


def placed(mesh="i=4, j=2"):
    return sw.put(X, "X[B_i, D_j]", sw.make_mesh(mesh))


def printed(capsys, function, *args) -> list[str]:
    """The lines that a call prints, and nothing else."""
    jax.block_until_ready(function(*args))
    jax.effects_barrier()
    out, error = capsys.readouterr()
    assert error == ""
    return out.splitlines()


def printing(**options):
    def local(x):
        sw.spmd.device_print(x, **options)
        return 2 * x

    return local


@pytest.mark.parametrize("around", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_B8_coordinates_and_shapes_one_line_a_device_in_order(around, capsys):
    lines = printed(capsys, around(mapped(printing(label="x"))), placed())

    shape = "float32[1, 4]"
    assert lines == ["x on mesh i=4, j=2", *(f"device {n}  {at}  {shape}" for n, at in enumerate(COORDINATES))]


@pytest.mark.parametrize("checked", [True, False], ids=["check_vma", "unchecked"])
def test_values_on_request(checked, capsys):
    lines = printed(capsys, jax.jit(mapped(printing(values=True), check_vma=checked)), placed())

    assert lines[0] == "mesh i=4, j=2"
    assert lines[1] == "device 0  i=0, j=0  float32[1, 4]  [[0, 1, 2, 3]]"
    assert lines[8] == "device 7  i=3, j=1  float32[1, 4]  [[28, 29, 30, 31]]"


def test_values_are_on_one_line_whatever_their_dtype_and_number(capsys):
    def local(x):
        many = jnp.arange(1000).reshape(10, 100) + lax.axis_index("i")
        sw.spmd.device_print(x[:, 0].astype(jnp.bfloat16) / 3, many, x > 5, x[0, 0] * 1j, jax.random.key(1), values=True)
        return x

    lines = printed(capsys, jax.jit(mapped(local)), placed())
    assert len(lines) == 9
    assert lines[7] == (
        "device 6  i=3, j=0  bfloat16[1]  [8]  int32[10, 100]  [3, 4, 5, ..., 1000, 1001, 1002]  "
        "bool[1, 4]  [[True, True, True, True]]  complex64[]  0+24j  key<fry>[]  [0, 1]"
    )


def test_without_arrays_it_says_where_each_device_stands(capsys):
    def local(x):
        sw.spmd.device_print()
        return x

    assert printed(capsys, jax.jit(mapped(local)), placed())[1:3] == ["device 0  i=0, j=0", "device 1  i=0, j=1"]


def test_once_for_every_call_and_every_turn_of_a_loop(capsys):
    def local(x):
        def turn(x, _):
            sw.spmd.device_print(x[:, :1], label="turn", values=True)
            return x + 100, None

        return lax.scan(turn, x, None, length=3)[0]

    function = jax.jit(mapped(local))
    for _ in range(2):
        lines = printed(capsys, function, placed())
        assert lines.count("turn on mesh i=4, j=2") == 3
        for turn in range(3):
            block = lines[9 * turn + 1 : 9 * turn + 9]
            assert block == [f"device {n}  {at}  float32[1, 1]  [[{4 * n + 100 * turn}]]" for n, at in enumerate(COORDINATES)]


def test_values_and_gradients_stay_what_they_are(capsys):
    with_print = mapped(lambda x: printing(values=True)(x**2))
    without = mapped(lambda x: 2 * x**2)
    np.testing.assert_array_equal(jax.jit(with_print)(placed()), jax.jit(without)(placed()))

    capsys.readouterr()
    gradient = jax.jit(jax.grad(lambda x: with_print(x).sum()))
    lines = printed(capsys, gradient, placed())
    assert len(lines) == 9
    np.testing.assert_array_equal(gradient(placed()), jax.jit(jax.grad(lambda x: without(x).sum()))(placed()))
    jax.effects_barrier()


def test_nothing_is_communicated():
    sw.audit(jax.jit(mapped(printing(values=True))), placed()).assert_only({})


def test_only_some_devices(capsys):
    lines = printed(capsys, jax.jit(mapped(printing(only={"j": 1}))), placed())
    assert [line.split("  ")[0] for line in lines[1:]] == ["device 1", "device 3", "device 5", "device 7"]

    lines = printed(capsys, jax.jit(mapped(printing(only={"i": 2, "j": 0}))), placed())
    assert lines[1:] == ["device 4  i=2, j=0  float32[1, 4]"]


def test_of_many_devices_the_first_and_how_many_more(capsys):
    lines = printed(capsys, jax.jit(mapped(printing(limit=3))), placed())
    assert [line.split("  ")[0] for line in lines[1:4]] == ["device 0", "device 1", "device 2"]
    assert lines[4:] == ["... and 5 more devices; limit=8 prints all"]


def test_devices_that_take_another_branch_are_not_waited_for(capsys, monkeypatch):
    monkeypatch.setattr(printing_module, "PATIENCE_SECONDS", 0.3)

    def local(x):
        def told(x):
            sw.spmd.device_print(x, label="odd rows")
            return x

        return lax.cond(lax.axis_index("i") % 2 == 1, told, lambda x: x, x)

    jax.block_until_ready(jax.jit(mapped(local))(placed()))
    jax.effects_barrier()
    for _ in range(100):
        time.sleep(0.1)
        if out := capsys.readouterr().out:
            break
    lines = out.splitlines()
    assert lines[0] == "odd rows on mesh i=4, j=2"
    assert [line.split("  ")[0] for line in lines[1:]] == ["device 2", "device 3", "device 6", "device 7"]


CHILD = """
import jax, numpy as np, shardwise as sw
from jax.sharding import PartitionSpec as P

def local(x):
    jax.lax.cond(jax.lax.axis_index("x") == 1, lambda: sw.spmd.device_print(x, label="late"), lambda: None)
    return x

x = sw.put(np.ones(8), "A[I_x]", sw.make_mesh("x=8"))
jax.block_until_ready(jax.jit(jax.shard_map(local, mesh=sw.make_mesh("x=8"), in_specs=P("x"), out_specs=P("x")))(x))
"""


def test_a_process_that_ends_prints_what_was_waiting():
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["late on mesh x=8", "device 1  x=1  float32[1]"]


def test_a_label_stays_on_its_line(capsys):
    lines = printed(capsys, jax.jit(mapped(printing(label="a\nb\x1b[31m"))), placed())
    assert lines[0] == "a b [31m on mesh i=4, j=2"


def test_the_mesh_is_the_one_that_is_mapped_over(capsys):
    lines = printed(capsys, jax.jit(mapped(printing(), "j=2, i=3", P())), sw.put(X, "X[B, D]", sw.make_mesh("j=2, i=3")))
    assert [line.split("  ")[1] for line in lines[1:]] == [f"j={j}, i={i}" for j in range(2) for i in range(3)]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"only": {"k": 0}}, MeshError, "device_print: the mesh has no axis 'k' here: it has i, j"),
        ({"only": {"i": 4}}, MeshError, "positions along mesh axis i are 0 to 3"),
        ({"only": 3}, MeshError, "only=3: give mesh coordinates, as {'i': 0}"),
        ({"limit": 0}, ShardwiseError, "limit=0: give the largest number of devices, at least 1"),
        ({"values": 3}, ShardwiseError, "values=3: only True and False are known"),
    ],
)
def test_what_cannot_be_printed_is_refused(options, error, message):
    with pytest.raises(error, match=re.escape(message)):
        mapped(printing(**options))(placed())


def test_what_is_no_array_is_refused():
    with pytest.raises(ArrayError, match="dict is no array"):
        mapped(lambda x: sw.spmd.device_print({"x": x}) or x)(placed())


def test_outside_of_shard_map_there_are_no_devices():
    with pytest.raises(MeshError, match=r"device_print: no mesh axis is manual here, outside jax\.shard_map"):
        sw.spmd.device_print(X)


def test_axes_that_are_not_mapped_over_are_refused():
    mesh = sw.make_mesh("i=4, j=2", axis_types=AxisType.Auto)
    some = jax.shard_map(printing(), mesh=mesh, in_specs=P("i"), out_specs=P("i"), axis_names={"i"})
    with pytest.raises(MeshError, match="device_print: mesh axis j is Auto here: map over it too"):
        some(jax.device_put(X, jax.NamedSharding(mesh, P("i"))))
