"""How far estimates are to be trusted: how near they came to what compilers made of cases that nothing was tuned on.

The figures are in `agreement.json`, which `python -m benchmarks.estimates` writes.
"""

from __future__ import annotations

import functools
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shardwise.chips import Calibration, Memory, Switch
from shardwise.errors import counted
from shardwise.planning.problem import Problem
from shardwise.planning.ranking import Candidate, Ranking

CLOSE = 0.2  # an estimate is near that is no further from the timeline than this share of it
FEW = 5  # cases of a kind: where it has fewer, those of all TPUs are told instead
ALL = "all TPUs"
SMALL = 16  # chips: cases on slices of up to so many are one kind, those on larger ones another
FILE = Path(__file__).with_name("agreement.json")


@functools.cache
def _kinds() -> dict[str, list[int]]:
    found: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return found["kinds"]


def kind_of(chip: str, chips: int, fused: bool) -> str:
    """The kind of cases that an estimate is judged by.

    >>> kind_of("tpu-v5e", 8, fused=False)
    'tpu-v5e, no ring, up to 16 chips'
    """
    return f"{chip}, {'a ring' if fused else 'no ring'}, {f'up to {SMALL}' if chips <= SMALL else f'more than {SMALL}'} chips"


def chips_of(task: Problem) -> int:
    """How many chips a problem's slice has; without a topology, those that its mesh needs."""
    return task.topology.chips if task.topology is not None else -(-task.mesh.size // task.hardware.devices_per_chip)


def held_out(task: Problem, candidate: Candidate) -> tuple[int, int] | None:
    """Of the held-out cases of a candidate's kind, how many estimates were near, and how many there are; None: none are.

    Where its chip has but a few, they are those of all TPUs. A plan that is confirmed is no estimate any more.
    """
    if not candidate.is_estimated or not candidate.program.steps:
        return None
    fused = candidate.program.overlaps
    if task.hardware.compiler is None or (task.topology is not None and task.topology.slices > 1):
        return None  # no case over several slices was compiled to be held out
    kinds, chips = _kinds(), chips_of(task)
    known = (kinds.get(kind_of(chip, chips, fused), [0, 0]) for chip in (task.hardware.name, ALL))
    return next(((near, count) for near, count in known if count >= FEW), None)


def short(task: Problem, candidate: Candidate) -> str:
    """The same for a table: ` (17/20)`; nothing where no case is known."""
    found = held_out(task, candidate)
    return "" if found is None else f" ({found[0]}/{found[1]})"


def long(task: Problem, candidate: Candidate) -> str:
    """The same in words, behind seconds: `, within 20% in 17 of 20 held-out cases of this kind`."""
    found = held_out(task, candidate)
    return "" if found is None else f", within {CLOSE:.0%} in {found[0]} of {found[1]} held-out cases of this kind"


def notes(ranked: Ranking) -> Iterator[str]:
    """What is to be said of a plan's seconds, each once, below its table."""
    task, links = ranked.task, ranked.task.hardware.links
    if ranked.best.measured_seconds is not None:
        count = sum(candidate.measured_seconds is not None for candidate in ranked)
        yield f"times are measured, medians of runs in turn on the mesh's own devices: {counted(count, 'program')}"
        return
    if ranked.best.confirmed is not None:
        yield "times are modelled from the schedules that the compiler made"
        if ranked.best.options:
            said = ", ".join(f"{name}={value}" for name, value in ranked.best.options)
            yield f"the best was compiled with {said}: a jax.jit around it takes it as compiler_options=plan.compiler_options"
    if any(held_out(task, candidate) for candidate in ranked):
        yield (
            f"(a/b): of b held-out cases of the kind (chip, or all TPUs where it has few; ring or none; up to {SMALL} chips or "
            f"more), in a the estimate was within {CLOSE:.0%} of the schedule that the compiler made"
        )
    if task.hardware.calibration is not None:
        yield calibrated(task.hardware.calibration)
    elif isinstance(links, Memory):
        yield (
            "seconds are those of the one host that the catalogue's figures were measured on: 2 cores with AVX-512; "
            "shardwise calibrate measures yours"
        )
    elif isinstance(links, Switch) and ranked.best.is_estimated:
        shares = " and ".join(f"{figure.value:.0%} of its {what}" for what, figure in task.hardware.shares_reached())
        known = f"; published measurements reach {shares}" if shares else ""
        yield f"times are those of an upper bound of speed, no prediction, until calibrated{known}"
    if task.hardware.compiler is not None and ranked.best.is_estimated and chips_of(task) > SMALL:
        yield f"not confirmed: above {SMALL} chips the best may be another; {_way(task)}"


def calibrated(found: Calibration) -> str:
    """Whose figures a plan's seconds are, from when, and how near what they were fitted to came.

    >>> calibrated(Calibration("AMD EPYC, 2 cores", "2026-11-22", (("jax", "0.12.0"),), 80, (("all", 0.11),)))
    'seconds are those of AMD EPYC, 2 cores, calibrated on 2026-11-22 with jax 0.12.0; what was measured then, to 11%'
    """
    versions = ", ".join(f"{library} {version}" for library, version in found.versions)
    with_ = f" with {versions}" if versions else ""
    near = "" if found.error is None else f"; what was measured then, to {found.error:.0%}"
    return f"seconds are those of {found.host}, calibrated on {found.date}{with_}{near}"


def _way(task: Problem) -> str:
    on = task.topology or f"{task.hardware.name.removeprefix('tpu-')}:..."
    needs = "" if importlib.util.find_spec("libtpu") else ' (needs pip install "shardwise[tpu]")'
    return f'confirm="{on}" (--confirm {on}) compiles the first candidates and ranks what came out{needs}'
