"""`sw.trace`: real traces of simulated devices, planes as GPUs and TPUs write them, and what is no trace."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shardwise as sw
from benchmarks.cases import CASES, Case
from shardwise.measure import profiling, xplanes
from shardwise.measure.traced import measured_timeline

SCATTERED = "A[I, J_x] · B[J_x, K] -> C[I_x, K]"
SIZES = {"I": 64, "J": 32, "K": 16}


def planned(equation: str, sizes: dict[str, int], mesh: str, overlap: bool | str = True):
    """The plan of an equation as a function, and arrays for it."""
    on = sw.make_mesh(mesh)
    plan = sw.plan(equation, sizes=sizes, mesh=on, dtype="float32", overlap=overlap)
    arrays = [
        sw.put(np.ones([sizes[dim] for dim in each.dims], np.float32), each.layout, on) for each in sw.parse(equation).operands
    ]
    return plan.function(on), arrays


def test_a_rings_overlap_is_read_from_a_real_trace():
    function, arrays = planned(SCATTERED, SIZES, "x=4", "ring")
    line = sw.trace(function, *arrays)
    assert line.origin == "measured"
    assert [share.collective.kind for share in line.shares] == ["collective-permute"] * 3
    assert all(share.transfer_seconds > 0 and 0 <= share.hidden <= 1 for share in line.shares)
    assert [lane for lane, _ in line.lanes] == [f"{n} {lane}" for n in range(4) for lane in ("compute", "transfers")]
    assert sum(span.kind == "matmul" for span in line.spans) == 4 * 4
    assert sum(share.exposed_seconds for share in line.shares) == pytest.approx(line.exposed_seconds)
    assert line.compute_seconds + line.exposed_seconds <= line.step_seconds
    assert {span.line for span in line.spans if span.kind == "transfer"} == {"step 1 einsum-scatter C"}


def small(case: Case) -> dict[str, int]:
    """The sizes of a case, smaller."""
    return {dim: max(size // 64, 16) for dim, size in case.sizes.items()}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_traced_and_modelled_name_the_same_collectives_in_the_same_order(case):
    function, arrays = planned(case.equation, small(case), case.mesh[4])
    measured, audit = profiling.traced_call(function, *arrays)
    modelled = audit.timeline("cpu")
    assert [share.collective for share in measured.shares] == [share.collective for share in modelled.shares]
    assert [share.collective for share in measured.shares] == list(audit.collectives)


def test_a_loop_has_its_trips():
    x = sw.put(jnp.ones((64, 64)), "A[I_x, J]", sw.make_mesh("x=4", axis_types=jax.sharding.AxisType.Auto))

    @jax.jit
    def looped(x):
        return jax.lax.fori_loop(0, 5, lambda _, y: y @ (x.T @ y) / 64, x)

    line = sw.trace(looped, x)
    transfers = [span for span in line.spans if span.kind == "transfer" and span.lane.startswith("0 ")]
    assert max(span.trip or 0 for span in transfers) == 4


def test_steps_run_in_named_scopes():
    function, arrays = planned("A[I, J_x] · B[J, K] -> C[I, K]", SIZES, "x=4")
    text = jax.jit(function).lower(*arrays).compile().as_text()
    for found in sw.audit(function, *arrays).collectives:
        assert "/shardwise/" in found.op_name
    assert "shardwise/1 " in text


def test_a_trace_that_is_kept_is_read_again(tmp_path):
    function, arrays = planned(SCATTERED, SIZES, "x=4")
    folder = tmp_path / "kept"
    line = sw.trace(function, *arrays, keep=folder)
    assert str(folder) in line.notes[-1]
    again = sw.trace(folder, of=sw.audit(function, *arrays))
    assert again.shares == line.shares
    by_name = sw.trace(str(folder))
    assert [(s.collective.kind, s.exposed_seconds) for s in by_name.shares] == [
        (s.collective.kind, s.exposed_seconds) for s in line.shares
    ]
    other, others = planned("A[I, J_x] · B[J, K] -> C[I_x, K]", SIZES, "x=4")
    with pytest.raises(sw.ShardwiseError, match="the trace is of another program: it holds jit_"):
        sw.trace(folder, of=sw.audit(other, *others))
    with pytest.raises(sw.ShardwiseError, match="the trace holds no program jit_nothing: it holds jit_"):
        sw.trace(folder, module="jit_nothing")


def test_a_function_that_raises_midway_is_told_and_the_profiler_ends():
    seen = []

    def torn(x):
        def host(x):
            seen.append(x)
            if len(seen) > 2:
                raise ValueError("the disk is full")
            return x

        return jax.pure_callback(host, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    with pytest.raises(sw.ShardwiseError, match="torn raises while it is run"):
        sw.trace(torn, jnp.ones(4))
    assert sw.trace(jnp.sin, jnp.ones(4)).compute_seconds > 0


def test_what_is_no_trace_is_told(tmp_path, monkeypatch):
    with pytest.raises(sw.ShardwiseError, match="there is no file or folder nowhere"):
        sw.trace("nowhere")
    with pytest.raises(sw.ShardwiseError, match=r"holds no trace: jax\.profiler writes files that end in \.xplane\.pb"):
        sw.trace(tmp_path)
    (tmp_path / "a.xplane.pb").write_bytes(b"\x00torn")
    with pytest.raises(sw.ShardwiseError, match=r"a\.xplane\.pb is no trace that can be read"):
        sw.trace(tmp_path)
    (tmp_path / "a.xplane.pb").write_bytes(b"")
    with pytest.raises(sw.ShardwiseError, match="the trace holds no operation of a compiled program"):
        sw.trace(tmp_path)
    with pytest.raises(sw.ShardwiseError, match="is a trace that is there, which takes no arguments"):
        sw.trace(tmp_path, 1)


def test_a_folder_that_cannot_be_written_to_is_told(monkeypatch, tmp_path):
    with pytest.raises(sw.ShardwiseError, match="no trace can be written to /proc/traced: "):
        sw.trace(jnp.sin, jnp.ones(4), keep="/proc/traced")
    if os.geteuid():
        tmp_path.chmod(0o500)
        with pytest.raises(sw.ShardwiseError, match="Permission denied"):
            sw.trace(jnp.sin, jnp.ones(4), keep=tmp_path)

    def refused(**_):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(profiling.tempfile, "TemporaryDirectory", refused)
    with pytest.raises(sw.ShardwiseError, match="no temporary folder can be made: Read-only file system"):
        sw.trace(jnp.sin, jnp.ones(4))


def test_a_profile_that_is_being_made_is_left_alone(tmp_path):
    jax.profiler.start_trace(str(tmp_path))
    try:
        with pytest.raises(sw.ShardwiseError, match=r"jax\.profiler cannot be started"):
            sw.trace(jnp.sin, jnp.ones(4))
    finally:
        jax.profiler.stop_trace()


# Planes of other platforms, with the names that openxla's xplane_schema.cc and recorded traces have.


def event(name: str, start: float, seconds: float, **stats: object) -> SimpleNamespace:
    return SimpleNamespace(name=name, start_ns=1e9 * start, duration_ns=1e9 * seconds, stats=list(stats.items()))


def plane(name: str, **lines: list[SimpleNamespace]) -> SimpleNamespace:
    return SimpleNamespace(name=name, lines=[SimpleNamespace(name=n.replace("_", " "), events=e) for n, e in lines.items()])


def read(monkeypatch, tmp_path: Path, *planes: SimpleNamespace):
    monkeypatch.setattr(xplanes.ProfileData, "from_file", lambda _: SimpleNamespace(planes=planes), raising=False)
    (tmp_path / "a.xplane.pb").touch()
    return xplanes.operations(tmp_path)


def test_planes_of_a_gpu(monkeypatch, tmp_path):
    """Streams side by side; a collective's kernel runs from its start to its end."""
    monkeypatch.setattr(xplanes, "ProfileData", SimpleNamespace())
    gpu = plane(
        "/device:GPU:1",
        **{
            "Stream #13(Compute)": [event("nvjet_hsh_256x128", 0, 3, hlo_op="gemm_fusion_dot.1", hlo_module="jit_f")],
            "Stream #27(Collective)": [
                event(
                    "ncclDevKernel_AllGather_RING_LL", 1, 3, hlo_op="all-gather-start.2", hlo_module="jit_f", tf_op="jit(f)/g"
                ),
                event("MemcpyD2D", 4, 1),
            ],
        },
    )
    ops = read(monkeypatch, tmp_path, gpu, plane("/host:CPU", python=[event("$f.py:1 f", 0, 9)]))
    assert [(op.name, op.device, op.module) for op in ops] == [
        ("gemm_fusion_dot.1", 1, "jit_f"),
        ("all-gather-start.2", 1, "jit_f"),
    ]
    line = measured_timeline(ops, "f", "h100:2")
    assert (line.compute_seconds, line.exposed_seconds) == (3.0, 1.0)
    assert line.shares[0].hidden == pytest.approx(2 / 3)


def test_planes_of_a_tpu(monkeypatch, tmp_path):
    monkeypatch.setattr(xplanes, "ProfileData", SimpleNamespace())
    scope = "jit(f)/shardwise/1 all-gather A/all_gather"
    core = [
        event("%all-gather-start.1 = (bf16[8]{0}) all-gather-start(%p)", 0, 0.5, tf_op=scope, hlo_category="async-start"),
        event("%fusion.3 = bf16[8,8]{1,0} fusion(%p), kind=kOutput", 0.5, 2, hlo_category="convolution fusion"),
        event("%all-gather-done.1 = bf16[8]{0} all-gather-done(%s)", 2.5, 1, tf_op=scope, hlo_category="async-done"),
    ]
    tpu = plane(
        "/device:TPU:0",
        Steps=[event("7", 0, 9)],
        XLA_Modules=[event("jit_f(123456789)", 0, 4), event("jit_f(123456789)", 10, 4)],
        XLA_Ops=[*core, *(event(e.name, e.start_ns / 1e9 + 10, e.duration_ns / 1e9, **dict(e.stats)) for e in core)],
        Async_XLA_Ops=[event("%all-gather-start.1 = (bf16[8]{0}) all-gather-start(%p)", 0, 3.5)],
    )
    sparse = plane("/device:TPU:0 SparseCore 0", XLA_Ops=[event("%sparse.1 = f32[] add()", 0, 1)])
    ops = read(monkeypatch, tmp_path, tpu, sparse)
    assert {(op.module, op.run) for op in ops} == {("jit_f", 0), ("jit_f", 1)}
    line = measured_timeline(ops, "f", "v5e:1")
    assert (line.step_seconds, line.compute_seconds, line.exposed_seconds) == (3.5, 2.0, 1.5)
    assert [span.line for span in line.spans if span.kind == "transfer"] == ["step 1 all-gather A"]
    assert [span.name for span in line.spans if span.kind == "matmul"] == ["fusion.3"]
