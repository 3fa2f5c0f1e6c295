"""A user's file, which pyright reads in its strict mode against the installed package: no part of a type may be unknown.

It is read, and not run: `check.py` hands it to pyright.
"""

from pathlib import Path

import jax
import numpy as np

import shardwise as sw
from shardwise import Audit, Equation, Layout, Plan, ShardwiseError

EQUATION = "A[I_x, J] · B[J, K] -> C[I, K]"


def arrays() -> tuple[jax.Array, jax.Array]:
    sw.simulate(4)
    mesh = sw.make_mesh("x=4")
    a = sw.put(np.ones((512, 128), np.float32), "A[I_x, J]", mesh)
    b = sw.put(Path("b.safetensors"), "B[J, K]", mesh)
    return a, b


def planned(a: jax.Array, b: jax.Array) -> list[float]:
    equation: Equation = sw.parse(EQUATION)
    plan: Plan = sw.plan(str(equation), a, b)
    other = sw.plan(EQUATION, sizes={"I": 512, "J": 128, "K": 256}, mesh={"x": 4}, hardware="tpu-v5e", memory_limit=16e9)
    print(plan.explain() + plan.code(), other.best.program.steps)
    return [candidate.estimate.seconds for candidate in (*plan.candidates, *other)]


def ran(a: jax.Array, b: jax.Array) -> jax.Array:
    try:
        c: jax.Array = sw.einsum(EQUATION, a, b, overlap="ring")
    except ShardwiseError as error:
        raise SystemExit(str(error)) from error
    return sw.reshard(c, "C[I, K] -> C[I_x, K]")


def proven(plan: Plan, a: jax.Array, b: jax.Array) -> float:
    function = plan.function(sw.make_mesh("x=4"))
    print(sw.check(function, function, a, b, gradients=True))
    audit: Audit = sw.audit(function, a, b)
    audit.assert_matches(plan)
    audit.assert_only({"all-gather": {"x": 1}})
    rehearsed = sw.rehearse(function, a, b, on="v5e:2x2")
    rehearsed.assert_fits("tpu-v5e")
    print(sw.overlap(function, a, b, on="v5e:2x2", seconds=10).code(), sw.overlapped("x=4")(function))
    print(sw.doctor(function, a, b), sw.compare(EQUATION, a, b), sw.trace(function, a, b), sw.calibrate())
    return sum(collective.wire_bytes for collective in audit.collectives)


def shown(plan: Plan) -> str:
    layout: Layout = Layout.parse("I_x, J")
    chip: sw.Hardware = sw.hardware("tpu-v5e")
    print(layout.spec, layout.shard_shape({"I": 512, "J": 128}, sw.Mesh.parse("x=4")), chip.title, sw.hardware.names())
    sw.show(layout)
    return sw.report(plan).html


def inside(a: jax.Array, b: jax.Array) -> jax.Array:
    c = sw.spmd.einsum("A[I_x, J] · B[J, K] -> C[I, K]", a, b)
    return sw.spmd.softmax(c, over="x")
