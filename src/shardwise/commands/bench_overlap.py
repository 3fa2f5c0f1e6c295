"""`shardwise bench-overlap`: plans that overlap transfers, against what the compiler makes by itself, each as compiled."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from shardwise import api, writing
from shardwise.chips.topology import Topology
from shardwise.commands.making import start, versions
from shardwise.commands.session import progress
from shardwise.compiled.lockfile import Made
from shardwise.errors import HardwareError
from shardwise.measure import overlap_rows
from shardwise.measure.overlap_rows import HEAD, MODELLED, Case, Ran, Row
from shardwise.planning.explain import summary
from shardwise.planning.problem import Problem
from shardwise.planning.ranking import Candidate
from shardwise.planning.step_cost import einsum_flops
from shardwise.program import Program, unfused
from shardwise.steps import Automatic, Einsum


def run(options: argparse.Namespace) -> int:
    """Compile the corpus, or a part of it, for a target, and print a row for each case as it comes."""
    target = str(_known(options.on))
    wanted = overlap_rows.cases(target, options.kinds, options.sizes)
    if options.json is not None:
        writing.check(options.json)
    start([Made("bench-overlap", on=target)])
    print(f"{target}, mesh x={Topology.parse(target).size}, bfloat16; times {MODELLED}")
    rows: list[Row] = []
    for case in wanted:
        with progress(f"compiling {case.kind} {case.size}"):
            rows.append(measured(case))
        _print(rows[-1], first=len(rows) == 1)
        # A file holds the rows so far; what passes them on, as a pipe, is given all at once.
        if options.json is not None and (len(rows) == len(wanted) or not writing.streams(options.json)):
            _write(options.json, target, rows)
    print("\n" + "\n".join(overlap_rows.sentences(overlap_rows.summarised(rows))))
    return 0


def _known(on: str) -> Topology:
    topology = Topology.parse(on)
    if topology.chip is None:
        raise HardwareError(f"--on {on}: it is not in the catalogue of hardware, so nothing times its schedule")
    if topology.size < 2:
        raise HardwareError(f"--on {on}: one device has nobody to send to; take more, as v5e:2x4")
    return topology


def _print(row: Row, first: bool) -> None:
    head = [name.removesuffix(" µs") for name in HEAD]
    widths = [max(len(name), 16 if name == "I x J x K" else 6) for name in head]
    if first:
        print("  ".join(name.ljust(width) for name, width in zip(head, widths, strict=True)).rstrip())
    cells = zip(overlap_rows.cells(row), widths, strict=True)
    print("  ".join(cell.ljust(width) for cell, width in cells).rstrip(), flush=True)


def _write(path: str, target: str, rows: list[Row]) -> None:
    facts = {
        "on": target,
        "times": f"microseconds, {MODELLED}",
        "versions": versions(target),
        "rows": [overlap_rows.facts_of(row) for row in rows],
        "summary": dataclasses.asdict(overlap_rows.summarised(rows)),
    }
    text = json.dumps(facts, ensure_ascii=False, indent=2) + "\n"
    writing.keeping(path, lambda place: writing.write(place, text))


# One case.


def measured(case: Case) -> Row:
    """Plan a case and confirm the plan, and compile what it is compared with."""
    from shardwise.compiled.compiling import rehearse
    from shardwise.compiled.confirming import rehearsed, tried
    from shardwise.compiled.targets.unattached import target_mesh
    from shardwise.measure import rivals

    topology = Topology.parse(case.target)
    equation = overlap_rows.KINDS[case.kind]
    plan = planned(equation, case.sizes, topology)
    task, plains = plan.task, planned(equation, case.sizes, topology, overlap=False).candidates
    mesh = rivals.on_auto(target_mesh(topology, task.mesh))
    args = rivals.shapes(task.equation.operands, case.sizes, mesh)
    own = ran(rehearse(rivals.own(task.equation, mesh), *args, on=topology))
    book = ran(rehearse(rivals.textbook(case.kind, task.equation, mesh), *args, on=topology))
    compiled = {candidate.program: (candidate, ran(audit)) for candidate, audit in tried(task, plan.candidates, topology)}
    chosen, ours = next(iter(compiled.values()))
    priced, as_compiled = next((c, run) for c, run in compiled.values() if not _automatic(c.program))
    plain = _plain(chosen, plains)
    whole = compiled[plain][1] if plain in compiled else ran(rehearsed(task, plain, topology))
    matmul = local_seconds(task, plain, topology)
    written, best = overlap_rows.bounds(task, case.kind, plains, matmul, chosen.estimate.flops)
    return Row(
        target=case.target, kind=case.kind, size=case.size, program=summary(chosen.program),
        own=own, textbook=book, ours=ours, plain=whole,
        priced=as_compiled.step, estimate=microseconds(priced.estimate.seconds),
        local=microseconds(matmul), written_bound=microseconds(written), best_bound=microseconds(best),
    )  # fmt: skip


def _automatic(program: Program) -> bool:
    return any(isinstance(step, Automatic) for step in program.steps)


def _plain(chosen: Candidate, plains: Sequence[Candidate]) -> Program:
    """A program with nothing fused; of the compiler's own, the planner's with as many FLOPs."""
    if not _automatic(chosen.program):
        return unfused(chosen.program)
    return min(plains, key=lambda each: abs(each.estimate.flops - chosen.estimate.flops)).program


def planned(equation: str, sizes: dict[str, int], topology: Topology, overlap: bool = True) -> api.Plan:
    """The plan of an equation on one axis over all devices of a topology."""
    return api.plan(equation, sizes=sizes, mesh={"x": topology.size}, hardware=str(topology), overlap=overlap)


def ran(audit: Any) -> Ran:
    """The figures of a compiled program."""
    line = audit.timeline()
    permutes = [each for each in audit.collectives if each.kind == "collective-permute"]
    return Ran(
        step=microseconds(line.step_seconds),
        exposed=microseconds(line.exposed_seconds),
        compute=microseconds(line.compute_seconds),
        temporary_bytes=audit.memory.temporaries if audit.memory else 0,
        permutes=len(permutes),
        hidden=sum(bool(each.hidden_by) for each in permutes),
    )


def microseconds(seconds: float) -> float:
    """Seconds as a row says them."""
    return round(1e6 * seconds, 2)


def local_seconds(task: Problem, program: Program, topology: Topology) -> float:
    """The compute of one matmul on one device, of the shards that a program multiplies once they are gathered."""
    from shardwise.compiled.compiling import rehearse
    from shardwise.measure import rivals

    sizes, einsum, layouts = _local(task, unfused(program))
    function, args = rivals.local([layouts[name].names for name in einsum.operands], einsum.dims, sizes)
    return rehearse(function, *args, on=topology).timeline().compute_seconds


def _local(task: Problem, program: Program) -> tuple[dict[str, int], Einsum, Any]:
    """The largest matmul of a program: the sizes of its dimensions on one device, itself, and its operands' layouts."""
    found: list[tuple[float, dict[str, int], Einsum, Any]] = []
    for step, layouts in zip(program.steps, program.states(), strict=False):
        if isinstance(step, Einsum):
            split = {dim: axes for name in step.operands for dim, axes in layouts[name].dims}
            sizes = {dim: task.sizes[dim] // task.mesh.extent(axes) for dim, axes in split.items()}
            flops = einsum_flops([layouts[name].names for name in step.operands], step.dims, sizes)
            found.append((flops, sizes, step, layouts))
    _, sizes, einsum, layouts = max(found, key=lambda each: each[0])
    return sizes, einsum, layouts
