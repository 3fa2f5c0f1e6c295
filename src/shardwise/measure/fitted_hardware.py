"""A hardware fitted to what trials took: the figures with which the planner's own prices come nearest to them."""

from __future__ import annotations

import datetime
import math
import os
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import jax

from shardwise.chips import Calibration, Figure, Hardware, Memory
from shardwise.chips import hardware as chips
from shardwise.chips.interconnect import Interconnect
from shardwise.chips.links import group_apart, wire_bytes
from shardwise.errors import MeasureError, counted
from shardwise.measure.fitting import Fit, fitted
from shardwise.measure.probes import Trial
from shardwise.measure.rates import Row, rates
from shardwise.mesh import Mesh
from shardwise.planning.cost import estimate
from shardwise.planning.prices import ITEM_BYTES, Costs
from shardwise.steps import moved_axes
from shardwise.version import VERSION

NOISE = 0.35  # the median error of what was fitted above which nothing was measured but noise
START_SECONDS = 1e-5
LOCAL_FIGURES = ("float32", "bytes_per_s", "fresh_bytes_per_s", "local_seconds", "dispatch_seconds")
HOST_FIGURES = (*LOCAL_FIGURES, "copied_bytes_per_s", "transposed_bytes_per_s", "launch_seconds", "rendezvous_seconds")
DEVICE_FIGURES = ("float32", "memory_bytes_per_s")


def day() -> str:
    """Today, as 2026-11-22."""
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def fitted_hardware(base: Hardware, trials: Sequence[Trial], times: Sequence[float | None], host: str) -> Hardware:
    """The hardware whose prices come nearest to what trials took.

    Raises:
        MeasureError: none comes near.
    """
    known = [(trial, seconds) for trial, seconds in zip(trials, times, strict=True) if seconds is not None]
    apart = not isinstance(base.links, Memory) or jax.process_count() > 1  # collectives have rates of their own
    first = [pair for pair in known if pair[0].dtype == "float32" and not (apart and _moves(pair[0]))]
    names = DEVICE_FIGURES if not isinstance(base.links, Memory) else LOCAL_FIGURES if apart else HOST_FIGURES
    today = day()
    start = tuple(_figure(base, name) for name in names)
    fit = fitted(lambda figures: _prices(_with(base, names, figures), first), [seconds for _, seconds in first], start)
    told = {name: value for name, value in zip(names, fit.figures, strict=True) if _matters(base, names, fit, name, first)}
    chip = _with(base, told, told.values(), f"measured on {today}: fitted to {counted(len(first), 'program')}")
    errors: dict[str, list[float]] = defaultdict(list)
    for (trial, _), error in zip(first, fit.errors, strict=True):
        errors[trial.kind].append(error)
    chip = _with_dtypes(chip, [pair for pair in known if pair[0].dtype != "float32"], today)
    if apart:
        moving = _at_several_sizes([pair for pair in known if _moves(pair[0])])
        chip = replace(chip, rates=rates(map(_row, moving), f"measured on {today}"))
        for trial, seconds in moving:
            errors[trial.kind].append(abs(_prices(chip, [(trial, seconds)])[0] / seconds - 1))
    every = [error for found in errors.values() for error in found]
    worst = statistics.median(every)
    if worst > NOISE:
        raise MeasureError(
            f"what was measured is noise: the figures that fit it best miss half of it by more than {worst:.0%}; "
            "measure while nothing else runs, or allow more seconds"
        )
    medians = tuple((kind, statistics.median(found)) for kind, found in errors.items())
    versions = (("jax", jax.__version__), ("jaxlib", jax.lib.__version__), ("shardwise", VERSION))
    calibration = Calibration(host, today, versions, len(known), (*medians, ("all", worst)))
    title = f"{host}, simulated devices, calibrated" if base.shared else f"{base.title}, calibrated"
    memory = Figure(_memory_bytes(), "the host's memory, by the operating system") if base.shared else base.memory_bytes
    return replace(
        chip, name=f"{base.name}-calibrated", title=title, memory_bytes=memory, reached=None, calibration=calibration
    )


def _matters(base: Hardware, names: Sequence[str], fit: Fit, name: str, known: Sequence[tuple[Trial, float]]) -> bool:
    """Whether any price of what was measured depends on a figure; of one on which none does nothing was measured."""
    other = [value * (1.1 if each == name else 1.0) for each, value in zip(names, fit.figures, strict=True)]
    return _prices(_with(base, names, other), known) != _prices(_with(base, names, fit.figures), known)


def _at_several_sizes(known: Sequence[tuple[Trial, float]]) -> list[tuple[Trial, float]]:
    """What was measured at two sizes or more: of one size alone no start and no speed can be told."""
    sizes: dict[tuple[Any, ...], set[float]] = defaultdict(set)
    for pair in known:
        row = _row(pair)
        sizes[row[:3]].add(row.sent_bytes)
    return [pair for pair in known if len(sizes[_row(pair)[:3]]) > 1]


def _row(pair: tuple[Trial, float]) -> Row:
    """What a collective's trial sends, and how long it took."""
    trial, mesh = pair[0], pair[0].program.mesh
    axes = moved_axes(trial.program.steps[0])
    layouts = [state[trial.program.output] for state in trial.program.states()]
    before, after = (ITEM_BYTES[trial.dtype] * math.prod(each.shard_shape(trial.sizes, mesh)) for each in layouts)
    kind: Any = trial.kind
    return Row(kind, mesh.extent(axes), group_apart(mesh, axes), wire_bytes(kind, mesh, axes, before, after), pair[1])


def _moves(trial: Trial) -> bool:
    return trial.kind not in ("matmul", "copy")


def _figure(chip: Hardware, name: str) -> float:
    if name in ("float32", "memory_bytes_per_s"):
        return dict(chip.flops_per_s)["float32"].value if name == "float32" else chip.memory_bytes_per_s.value
    return getattr(chip.links, name).value or START_SECONDS  # a fit begins with figures that are positive


def _with(chip: Hardware, names: Iterable[str], figures: Iterable[float], source: str = "tried") -> Hardware:
    """A hardware with other figures; the memory of a host that devices share is that of its links."""
    new = {name: Figure(value, source) for name, value in zip(names, figures, strict=True)}
    flops = tuple((dtype, new.get(dtype, figure)) for dtype, figure in chip.flops_per_s)
    memory = new.get("memory_bytes_per_s") or new.get("bytes_per_s") or chip.memory_bytes_per_s
    links: Any = replace(chip.links, **{name: figure for name, figure in new.items() if hasattr(chip.links, name)})
    return replace(chip, flops_per_s=flops, memory_bytes_per_s=memory, links=links)


def _prices(chip: Hardware, known: Sequence[tuple[Trial, float]]) -> list[float]:
    return [
        estimate(each.program, Costs(Interconnect(chip, each.program.mesh), each.dtype), each.sizes).seconds
        for each, _ in known
    ]


def _with_dtypes(chip: Hardware, known: Sequence[tuple[Trial, float]], today: str) -> Hardware:
    """The FLOP/s of other dtypes, each from its own matmuls; of a host, one that was not measured goes by those that were."""
    flops = {dtype: figure for dtype, figure in chip.flops_per_s if dtype == "float32" or not chip.shared}
    for dtype in dict.fromkeys(trial.dtype for trial, _ in known):
        mine = [pair for pair in known if pair[0].dtype == dtype]
        begin = chip.flops(dtype, Mesh.parse("x=1"))

        def predict(figures: tuple[float, ...], dtype: str = dtype, mine: list[Any] = mine) -> list[float]:
            return _prices(replace(chip, flops_per_s=((dtype, Figure(figures[0], "tried")),)), mine)

        fit = fitted(predict, [seconds for _, seconds in mine], (begin,))
        flops[dtype] = Figure(fit.figures[0], f"measured on {today}: fitted to {counted(len(mine), 'matmul')}")
    return replace(chip, flops_per_s=tuple(flops.items()))


def _memory_bytes() -> float:
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return chips("cpu").memory_bytes.value
