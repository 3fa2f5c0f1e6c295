"""Random plans, compiled and held against the certificate: no false alarm, and no tampered program that passes.

    python -m benchmarks.certificates --count 500 [--seed 0] [--on v5e:2x4] [--only SEED]

Without --on the programs are compiled for simulated devices; with it by the compiler of a target that is not attached. Every
plan has a seed of its own, and a failure prints the line that runs it alone. Exit code 1 if any fails.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import sys
import time
import traceback
from random import Random

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")

import jax

import shardwise as sw
from benchmarks.equations import Case, random_case, random_mesh
from benchmarks.tampering import tampered
from shardwise.chips.topology import Topology
from shardwise.compiled.audit import Audit, audit_text
from shardwise.compiled.confirming import rehearsed
from shardwise.errors import AuditMismatchError, PlanError
from shardwise.mesh import Mesh
from shardwise.planning.problem import OVERLAPS
from shardwise.planning.ranking import Candidate
from shardwise.steps import Fused, kind

CHIPS = ("cpu", "tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e", "tpu-v7x", "h100", "b200")
DTYPES = ("float32", "float32", "bfloat16", "bfloat16", "float16", "complex64", "int32", "int8", "uint8", "int16")
AXIS_SIZES = (1, 2, 2, 2, 3, 3, 4, 5, 6, 7, 8)
LIMITED, RUNNER_UP = 0.1, 0.2  # of the plans: a memory limit below what the best needs; another candidate than the best
PROGRESS_SECONDS = 10.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=500, help="how many plans")
    parser.add_argument("--seed", type=int, default=0, help="the first plan's seed; the others follow it")
    parser.add_argument("--on", help="a target that is not attached, as v5e:2x4")
    parser.add_argument("--only", type=int, help="compile the plan of one seed alone, and say what it is")
    options = parser.parse_args()
    counts: collections.Counter[str] = collections.Counter()
    if options.only is not None:
        print(check(options.only, options.on, counts))
        return 0
    started = said = time.perf_counter()
    for seed in range(options.seed, options.seed + options.count):
        try:
            check(seed, options.on, counts)
            counts["passed"] += 1
        except Exception:
            counts["failed"] += 1
            traceback.print_exc()
            on = f" --on {options.on}" if options.on else ""
            print(f"FAILED: python -m benchmarks.certificates{on} --only {seed}", flush=True)
        if time.perf_counter() - said > PROGRESS_SECONDS:
            said = time.perf_counter()
            print(f"{seed - options.seed + 1} of {options.count} plans, {counts['failed']} failed", flush=True)
    print(", ".join(f"{counts[what]} {what}" for what in sorted(set(counts) - {"passed", "failed"})))
    print(f"{counts['passed']} passed, {counts['failed']} failed, {time.perf_counter() - started:.0f} s")
    return 1 if counts["failed"] else 0


def check(seed: int, on: str | None, counts: collections.Counter[str]) -> str:
    """Draw one plan, compile it, and hold it against the plan; then tamper with what was compiled, in every way."""
    random = Random(f"certificate {seed} {on}")
    dtype, case, plan = drawn(random, on)
    candidate = random.choice(plan.candidates) if random.random() < RUNNER_UP else plan.best
    said = f"seed {seed}: {case} in {dtype}, overlap={plan.task.overlap}\n{candidate.program}"
    try:
        audit = compiled(case, dtype, plan, candidate, on)
        audit.assert_matches((plan, candidate))
        for how, text in tampered(audit.module.text, case.mesh):
            again = audit_text(text, name=audit.name, target=audit.target, mesh=audit.mesh, hardware=audit.hardware)
            try:
                again.assert_matches((plan, candidate))
            except AuditMismatchError:
                counts["tampered programs caught"] += 1
            else:
                raise AssertionError(f"a program that was tampered with ({how}) passes")
    except Exception as error:
        error.add_note(said)
        raise
    counts.update(f"with {name}" for name in {kind(step) for step in candidate.program.steps if isinstance(step, Fused)})
    counts.update(f"with {each.kind}" for each in {each.kind: each for each in audit.collectives}.values())
    return f"{said}\n{audit}"


def drawn(random: Random, on: str | None) -> tuple[str, Case, sw.Plan]:
    """A dtype, an equation of one to four operands, and its plan, with the first overlap of a random order that it has."""
    mesh = several(random) if on is None else target_mesh(random, on)
    chips = CHIPS if on is None else (on,)
    case = random_case(random, mesh=mesh, partial=0.2, elements=60000, hardware=chips, factors=range(1, 9))
    dtype = random.choice(DTYPES)
    for overlap in random.sample(OVERLAPS, len(OVERLAPS)):
        try:
            plan = planned(case, dtype, overlap=overlap)
        except PlanError:
            continue
        break
    if random.random() < LIMITED:
        with contextlib.suppress(PlanError):
            plan = planned(case, dtype, overlap=overlap, memory_limit=0.9 * plan.best.estimate.peak_memory_bytes)
    return dtype, case, plan


def planned(case: Case, dtype: str, **options: object) -> sw.Plan:
    return sw.plan(str(case.equation), sizes=case.sizes, mesh=case.mesh, hardware=case.hardware, dtype=dtype, **options)


def several(random: Random) -> Mesh:
    """A mesh of two devices or more: one alone sends nothing, whatever is compiled."""
    while (mesh := random_mesh(random, sizes=AXIS_SIZES)).size == 1:
        pass
    return mesh


def target_mesh(random: Random, on: str) -> Mesh:
    """A mesh of all devices of a target."""
    devices = Topology.parse(on).size
    while True:
        mesh = random_mesh(random, devices=devices, sizes=(*AXIS_SIZES, devices))
        if mesh.size == devices:
            return mesh


def compiled(case: Case, dtype: str, plan: sw.Plan, candidate: Candidate, on: str | None) -> Audit:
    """The audit of a plan's program, compiled for simulated devices or a target."""
    if on is not None:
        return rehearsed(plan.task, candidate.program, Topology.parse(on))
    mesh = sw.make_mesh(case.mesh)
    arguments = [
        jax.ShapeDtypeStruct(
            tuple(case.sizes[dim] for dim in operand.dims),
            dtype,
            sharding=jax.sharding.NamedSharding(mesh, operand.layout.on(case.mesh).spec),
        )
        for operand in case.equation.operands
    ]
    return sw.audit(plan.function(mesh, candidate), *arguments, mesh=mesh)


if __name__ == "__main__":
    sys.exit(main())
