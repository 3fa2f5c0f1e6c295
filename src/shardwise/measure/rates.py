"""Rates of collectives, a start and a speed for each: fitted to times at several sizes, or to what other tools measured."""

from __future__ import annotations

import csv
import io
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePath
from typing import NamedTuple

from shardwise.chips import Figure, Rate
from shardwise.errors import MeasureError, counted, one_line
from shardwise.measure.fitting import fitted
from shardwise.steps import CollectiveKind

SCATTERED = 0.5  # the median error of a start and a speed above which times are noise


class Row(NamedTuple):
    """One time: of a collective over so many devices, each of which sends so many bytes."""

    kind: CollectiveKind
    devices: int
    apart: int
    sent_bytes: float
    seconds: float


def rates(rows: Iterable[Row], source: str) -> tuple[Rate, ...]:
    """The rate of each collective on each group of devices, from times at two sizes or more.

    >>> rows = [Row("all-gather", 8, 1, sent, 1e-5 + sent / 4e11) for sent in (1e4, 1e6, 1e8)]
    >>> found, = rates(rows, "measured by hand")
    >>> round(found.start_seconds.value * 1e6, 3), round(found.bytes_per_s.value / 1e9, 1)
    (10.0, 400.0)

    Raises:
        MeasureError: of one there is a single size, or no start and no speed come near its times.
    """
    groups: dict[tuple[CollectiveKind, int, int], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.kind, row.devices, row.apart].append(row)
    return tuple(_rate(found, source) for found in groups.values())


def _rate(rows: list[Row], source: str) -> Rate:
    first, least, most = rows[0], min(rows, key=_sent), max(rows, key=_sent)
    what = f"{first.kind} over {first.devices} devices"
    if least.sent_bytes == most.sent_bytes:
        raise MeasureError(f"{what} was measured at one size alone, from which no start and no speed can be told: measure more")
    fit = fitted(
        lambda figures: [figures[0] + row.sent_bytes / figures[1] for row in rows],
        [row.seconds for row in rows],
        (least.seconds, most.sent_bytes / most.seconds),
    )
    error = statistics.median(fit.errors)
    if error > SCATTERED:
        raise MeasureError(f"{what}: its times are noise: a start and a speed miss half of them by more than {error:.0%}")
    said = f"{source}: {counted(len(rows), 'size')}, {least.sent_bytes:.3g} to {most.sent_bytes:.3g} bytes sent, to {error:.0%}"
    return Rate(first.kind, first.devices, first.apart, Figure(fit.figures[0], said), Figure(fit.figures[1], said))


def errors_of(rows: Iterable[Row], found: Iterable[Rate]) -> tuple[tuple[str, float], ...]:
    """The median of |fitted / measured - 1| of each kind of collective, and of all."""
    known = {(rate.kind, rate.devices, rate.apart): rate for rate in found}
    errors: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        rate = known[row.kind, row.devices, row.apart]
        seconds = rate.start_seconds.value + row.sent_bytes / rate.bytes_per_s.value
        for kind in (row.kind, "all"):
            errors[kind].append(abs(seconds / row.seconds - 1))
    medians = {kind: statistics.median(each) for kind, each in errors.items()}
    return (*((kind, error) for kind, error in medians.items() if kind != "all"), ("all", medians["all"]))


def _sent(row: Row) -> float:
    return row.sent_bytes


# What other tools write.

_NCCL: Mapping[str, CollectiveKind] = {
    "all_gather": "all-gather", "reduce_scatter": "reduce-scatter", "all_reduce": "all-reduce", "alltoall": "all-to-all",
    "sendrecv": "collective-permute",
}  # fmt: skip
_JAX: Mapping[str, CollectiveKind] = {
    "AG": "all-gather", "RS": "reduce-scatter", "AR": "all-reduce", "A2A": "all-to-all", "CP": "collective-permute",
}  # fmt: skip
_NCCL_NAME = re.compile(rf"({'|'.join(_NCCL)})_perf")
_RANK = re.compile(r"#\s+Rank\s+\d+\s")
_GPUS = re.compile(r"nThread (\d+) nGpus (\d+)")
_PREFIX = re.compile(r"^\[\d+,\d+\]<std(?:out|err)>:\s?")  # of mpirun --tag-output
_JAX_TIMES = ("step_time_ms_p50", "ici_average_time_ms_p50", "step_time_ms_avg", "ici_average_time_ms_avg")


def rows_of(text: str, name: str = "the log") -> list[Row]:
    """The times in a log of nccl-tests or rccl-tests (text, or CSV with its columns), or a table of JAX collective benchmarks.

    Of nccl-tests the out-of-place times are read. The JAX benchmarks are those of AI-Hypercomputer/accelerator-microbenchmarks,
    with `op_type`, `rank`, `transferred_data (GB)` and the median time in milliseconds, separated by tabs or commas.

    >>> log = '''# Collective test starting: all_reduce_perf
    ... #  Rank  0 Group  0 Pid 7 on host device  0 [0x04] NVIDIA H100
    ... #  Rank  1 Group  0 Pid 8 on host device  1 [0x05] NVIDIA H100
    ... #       size  count   type  redop  root  time  algbw  busbw  #wrong  time  algbw  busbw  #wrong
    ...      1048576 262144  float    sum    -1  32.0  32.77  32.77       0  33.0  31.78  31.78       0'''
    >>> rows_of(log)
    [Row(kind='all-reduce', devices=2, apart=1, sent_bytes=1048576.0, seconds=3.2e-05)]

    Args:
        name: the file's, which tells the collective where the text does not: `all_gather_perf.txt`.

    Raises:
        MeasureError: it is neither, or holds no times.
    """
    lines = [_PREFIX.sub("", line) for line in text.splitlines()]
    head = next((line for line in lines if "op_type" in line and "rank" in line), None)
    rows = list(_jax_rows(lines[lines.index(head) :]) if head is not None else _nccl_rows(lines, name))
    if not rows:
        raise MeasureError(
            f"{one_line(name)} holds no times: give what nccl-tests printed, or a table of JAX collective benchmarks with "
            "op_type, rank, transferred_data (GB) and step_time_ms_p50"
        )
    return rows


def _jax_rows(lines: list[str]) -> Iterator[Row]:
    table = csv.DictReader(io.StringIO("\n".join(lines)), delimiter="\t" if "\t" in lines[0] else ",")
    timed = next((column for column in _JAX_TIMES if column in (table.fieldnames or ())), None)
    for entry in table:
        kind, sent, milliseconds = _JAX.get(entry["op_type"]), entry.get("transferred_data (GB)"), timed and entry.get(timed)
        if kind is not None and sent and milliseconds and int(float(entry["rank"])) > 1:
            yield Row(kind, int(float(entry["rank"])), 1, 1e9 * float(sent), 1e-3 * float(milliseconds))


def _nccl_rows(lines: list[str], name: str) -> Iterator[Row]:
    """Times of all tests of a log, one after another."""
    named = _NCCL_NAME.search(PurePath(name).name)
    kind = _NCCL[named[1]] if named else None
    ranks = gpus = 0
    columns: list[str] = []
    for line in lines:
        if found := _NCCL_NAME.search(line):
            kind, ranks = _NCCL[found[1]], 0
        elif found := _GPUS.search(line):
            gpus = int(found[1]) * int(found[2])
        elif _RANK.match(line):
            ranks += 1
        else:
            cells = re.split(r"[\s,]+", line.strip("# \t,"))
            if {"size", "time", "busbw"} <= set(cells):
                columns = cells
            elif columns and len(cells) >= len(columns) - 1 and cells[0].isdigit() and not line.startswith("#"):
                yield _nccl_row(kind, ranks or gpus, columns, cells, name)


def _nccl_row(kind: CollectiveKind | None, devices: int, columns: list[str], cells: list[str], name: str) -> Row:
    if kind is None or devices < 2:
        what = "which collective it is of" if kind is None else "how many GPUs took part"
        way_out = "keep the lines that begin with #, or name the file after the test, as all_gather_perf.txt"
        raise MeasureError(f"{one_line(name)} does not say {what}: {way_out}")
    size, seconds = float(cells[0]), 1e-6 * float(cells[columns.index("time")])
    return Row(kind, devices, 1, size * _SENT[kind](devices), seconds)


# Of the size that nccl-tests tells, what one GPU sends: its PERFORMANCE.md tells busbw as this over the time.
_SENT = {
    "all-gather": lambda n: (n - 1) / n,
    "reduce-scatter": lambda n: (n - 1) / n,
    "all-reduce": lambda n: 2 * (n - 1) / n,
    "all-to-all": lambda n: (n - 1) / n,
    "collective-permute": lambda n: 1.0,
}
