"""What a TPU's own compiler makes of programs: every figure of [compiler] in the catalogue, from what it says of small ones.

    python -m benchmarks.chips [--chip v5e] [--write]

Nothing runs: probes are compiled for slices that are not attached (`benchmarks.chip_probes`), and the figures come from the
compiler's own cycles (`benchmarks.chip_figures`). Printed beside what the catalogue holds; with --write the catalogue holds
them then, each with how it was derived. What cannot be derived is kept, and printed with the reason.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from functools import partial
from itertools import islice
from math import prod
from pathlib import Path
from statistics import median

from benchmarks import chip_figures as figures
from benchmarks.chip_figures import ALWAYS, Derived, TimedMatmul, chunk_tiles, largest, speed
from benchmarks.chip_probes import (
    ITEM_BYTES,
    ROUTED,
    SUMMING,
    Found,
    Prober,
    scatters,
    small_exchanges,
    spread_shards,
    transposing_shards,
)
from shardwise import chips, writing
from shardwise.chips import Compiler, Figure, hardware, read
from shardwise.chips.figures import NEVER
from shardwise.commands.making import start, versions
from shardwise.compiled.lockfile import Made
from shardwise.errors import ShardwiseError
from shardwise.mesh import Mesh
from shardwise.planning.gathers import MANY, SMALL, faster
from shardwise.planning.prices import NEXT

CATALOGUE = Path(chips.__file__).with_name("catalogue")
MEGABYTE = 1e6
MOST = 512 * MEGABYTE  # the largest array of which a limit is searched for
# Local matmuls: rows, what is summed, columns. The first is the smallest; `SHORT` are those with short sums.
MATMULS = (
    (8, 128, 128), (256, 256, 256), (512, 512, 512), (1024, 512, 1024), (1024, 1024, 1024), (2048, 1024, 1024),
    (1024, 2176, 1536), (4736, 2304, 512), (1536, 2048, 1280), (1920, 5632, 1024), (2048, 2048, 2048), (1152, 4224, 2816),
    (2048, 3072, 2048), (2560, 6400, 2048), (4864, 6272, 1152), (1024, 6400, 7808), (4096, 4096, 4096), (3840, 6144, 3456),
    (4096, 16384, 4096),
)  # fmt: skip
SHORT = ((4096, 128, 4096), (8192, 128, 4096), (8192, 256, 4096))
KEPT = ((2048, 128, 4096), (4096, 128, 4096), (6144, 128, 4096))  # the same, with results of up to 50 MB
READ = ((8, 8448, 13696), (32, 5760, 13952), (128, 7808, 8704), (192, 7936, 14848))  # whose weights no chip fetches before
GATHERED = (256, 512, 1024, 2048, 4096)  # rows of 8192 on a device of what is gathered or kept
RINGS = ((4096, 512, 4096), (4096, 512, 2048), (8192, 256, 4096))  # rows, a block of what is summed, columns
COLUMNS = 8192
SCATTERS = 64  # of random sizes
LEAST_COUNTED = 2e-7  # of small copies: what takes less is moved by no core
# Rings that send parts of 2 to 10 MB: what is summed, columns on a device.
PASSING = ((1024, 1792), (2048, 1024), (2560, 1408), (1536, 4096), (4096, 1536), (3072, 2560), (5120, 2048))
MOST_ROWS = 6144

Figures = dict[str, Derived]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chip", action="append", help="as v5e; by default every TPU of the catalogue")
    parser.add_argument("--write", action="store_true", help="write what is derived to the catalogue")
    given = parser.parse_args()
    names = [name for name in hardware.names() if name.startswith("tpu-")]
    names = [hardware.canonical(name) for name in given.chip] if given.chip else names
    targets = [str(Prober(hardware(name)).four) for name in names]
    start([Made("benchmarks.chips", on=target) for target in targets])
    for name, target in zip(names, targets, strict=True):
        began, prober = time.perf_counter(), Prober(hardware(name))
        derived = derived_of(prober)
        print("\n".join(table(prober.chip, derived)))
        print(f"{time.perf_counter() - began:.0f} seconds\n", flush=True)
        if given.write:
            path = CATALOGUE / f"{name}.toml"
            told = sources(derived, ", ".join(f"{library} {version}" for library, version in versions(target).items()))
            writing.write(path, rewritten(path.read_text(encoding="utf-8"), told))


def derived_of(prober: Prober) -> Figures:
    """Every figure of a chip's compiler; those of which a probe cannot be compiled are kept."""
    found: Figures = {}
    for names, derive in GROUPS:
        try:
            found |= derive(prober, found)
        except ShardwiseError as error:
            found |= {name: Derived(None, str(error).splitlines()[0], 0) for name in names}
    return {each.name: found[each.name] for each in fields(Compiler)}


def of_matmuls(prober: Prober, _: Figures) -> Figures:
    """Local matmuls."""
    peak = prober.chip.flops("bfloat16", Mesh((("x", prober.four.size),)))

    def timed(i: int, j: int, k: int) -> TimedMatmul:
        return TimedMatmul(2 * i * j * k / peak, i * k, prober.matmul(i, j, k).matmul_seconds)

    kept = [TimedMatmul(2 * i * j * k / peak, i * k, prober.kept_matmul(i, j, k).matmul_seconds) for i, j, k in KEPT]
    others, short = [timed(*shape) for shape in MATMULS], [timed(*shape) for shape in SHORT]
    fit, count = figures.fitted(others, short), len(others) + len(short)
    by = f"by the compiler's cycles: the price of {count} bfloat16 matmuls is nearest with it (median error {fit.error:.0%})"
    return {
        "efficiency": Derived(fit.efficiency, f"share of the peak that large ones reach, {by}", count),
        "results_per_s": Derived(
            fit.results_per_s * prober.chip.devices_per_chip,
            "elements of results a second, of matmuls with sums of 128 and 256, by the compiler's cycles",
            len(short),
        ),
        "kept_results_per_s": Derived(
            figures.leaving(kept, NEXT * fit.start_seconds) * prober.chip.devices_per_chip,
            "the same of matmuls whose result the chip keeps for a collective",
            len(kept),
        ),
        "pass_elements": Derived(None, "published with the chip: how wide its multipliers are", 0),
        "start_seconds": Derived(fit.start_seconds, f"what small ones take beyond these, {by}", count),
        "least_seconds": Derived(fit.least_seconds, "the smallest matmul, 8 x 128 x 128, by the compiler's cycles", 1),
    }


def of_near(prober: Prober, _: Figures) -> Figures:
    """What is fetched before a matmul works on it."""

    def is_fetched(bytes_: float) -> bool:
        size = rows_of(bytes_, 2048)
        is_first = f"bf16[{size},2048]" in prober.matmul(size, 2048, 256).fetched
        return is_first or f"bf16[2048,{size}]" in prober.matmul(256, 2048, size).fetched

    near, tried = largest(is_fetched, 8 * MEGABYTE, MOST)
    memory = prober.chip.memory_bytes_per_s.value / prober.chip.devices_per_chip
    shares = [ITEM_BYTES * j * (i + k) / memory / prober.matmul(i, j, k).matmul_seconds for i, j, k in READ]
    return {
        "near_bytes": Derived(near, "the largest input of a matmul that a copy-start fetches before, searched for", tried),
        "read_share": Derived(
            median(shares), "of the speed of main memory, what matmuls of 8 to 192 rows reach by the compiler's cycles, the "
            "median: the other operand, of 136 to 236 MB, is not fetched before", len(READ),
        ),
    }  # fmt: skip


def of_gathers(prober: Prober, _: Figures) -> Figures:
    """Copies of what a gather made to where a program's result stands, where their order stays; and of slices."""
    n, cores = prober.four.size, prober.chip.devices_per_chip
    memory = prober.chip.memory_bytes_per_s.value / cores

    def copied(rows: int) -> tuple[float, float]:
        return float(rows * n * COLUMNS * ITEM_BYTES), prober.gather(rows, COLUMNS).work_seconds("after")

    def is_kept(bytes_: float) -> bool:
        whole, seconds = copied(8 * max(1, round(bytes_ / ITEM_BYTES / COLUMNS / n / 8)))
        return 0 < seconds * memory <= 1.25 * whole

    kept, tried = largest(is_kept, 8 * MEGABYTE, MOST)
    gathers = [copied(rows) for rows in GATHERED]
    slices = [(float(rows * COLUMNS * ITEM_BYTES), prober.kept(rows, COLUMNS).work_seconds()) for rows in GATHERED[1::2]]
    found = speed([each for each in gathers if each[0] > kept] + slices)
    least = [prober.kept(rows, 128).work_seconds() for rows in (8, 16, 64)]
    return {
        "kept_bytes": Derived(
            kept, "the largest gathered array that is copied out at the speed of main memory, searched for", tried
        ),
        "copied_bytes_per_s": times(
            found, cores, "bytes a second of the copies after gathers that end a program and of slices, the median",
            len(gathers) + len(slices),
        ),
        "slice_seconds": Derived(min(least), "the smallest slice, 8 x 128, by the compiler's cycles", len(least)),
    }  # fmt: skip


def of_transposing(prober: Prober, found: Figures) -> Figures:
    """Copies after gathers whose result lies in another order."""
    n, cores = prober.four.size, prober.chip.devices_per_chip
    near = max(8 * MEGABYTE, found["near_bytes"].value or 0.0)

    def transposed(seed: str, least: float, most: float, count: int) -> float | None:
        shards = islice(transposing_shards(n, least, most, seed), count)
        return speed(
            (rows * n * columns * ITEM_BYTES, prober.gather(rows, columns).work_seconds("after")) for rows, columns in shards
        )

    says = "bytes a second of an array that is copied so that another dimension runs fastest, after gathers: the median"
    far = transposed("far", 1.1 * near, 3 * near, 4)
    return {
        "transposed_bytes_per_s": times(transposed("near", 2 * MEGABYTE, 0.8 * near, 9), cores, says, 9),
        "far_transposed_bytes_per_s": Derived(ALWAYS, "the same of larger arrays: none is copied", 4)
        if far is None
        else times(far, cores, "the same of arrays that are not fetched", 4),
    }


def of_spreading(prober: Prober, _: Figures) -> Figures:
    """Copies after gathers of blocks that end within the lanes of a tile, which are spread."""
    n = prober.four.size
    if prober.chip.devices_per_chip > 1:
        return {"spread_bytes_per_s": Derived(ALWAYS, "the sparse cores transpose what others spread: none is", 0)}
    shards = list(islice(spread_shards(n, MEGABYTE, SMALL * min(n, MANY)), 9))
    found = speed((prod(each) * n * ITEM_BYTES, prober.gather(*each).work_seconds("after")) for each in shards)
    says = f"bytes a second of two blocks that end within lanes and are spread, by the median of gathers of {n}"
    return {"spread_bytes_per_s": times(None if found is None else found / faster(n), 1, says, len(shards))}


def of_exchanges(prober: Prober, _: Figures) -> Figures:
    """What copies take at least: small ones beside all-to-alls."""
    sizes = list(small_exchanges(prober.four.size, 16))
    small = [piece.seconds for i, j in sizes for piece in prober.exchange(i, j).work() if piece.seconds > LEAST_COUNTED]
    says = "the median copy beside all-to-alls of less than 100 kB"
    return {"least_copy_seconds": Derived(median(small) if small else None, says, len(sizes))}


def of_rings(prober: Prober, _: Figures) -> Figures:
    """What a gathering ring cuts out for the matmuls of both sides at once."""
    n, cores = prober.four.size, prober.chip.devices_per_chip
    joined = (n - 1) // 2  # steps in which a block arrives from each side
    cut = []
    for i, block, k in RINGS:
        work = [piece for piece in prober.ring(i, block, k).work() if not piece.name.startswith("copy")]
        cut.append((2.0 * joined * block * k * ITEM_BYTES, sum(piece.seconds for piece in work)))
    says = "bytes a second of what a gathering ring cuts out of the other operand for the matmuls of both sides at once"
    return {"cut_bytes_per_s": times(speed(cut), cores, says, len(cut))}


def of_permutes(prober: Prober, _: Figures) -> Figures:
    """When permutes start beside matmuls; and whether they are asynchronous on larger slices."""
    covers, tried = [], 0
    for summed, columns in PASSING:
        rows, probes = largest(partial(is_started_early, prober, summed, columns), 256, MOST_ROWS)
        covers.append(NEVER if rows >= MOST_ROWS else rows)
        tried += probes
    cover = median(covers)
    says = "FLOPs of a matmul for each byte of a transfer from which on a ring leaves one matmul beside it, searched for"
    waits = {}
    for shape in ROUTED[prober.dimensions]:
        on = prober.slice(shape)
        last = on.shape[-1] * on.cores_per_chip
        waits[float(on.chips)] = is_synchronous(prober.permute(8192, 4, on, f"x={last},y={on.size // last}"))
    routed, most = figures.first(waits), int(max(waits))
    return {
        "cover_flops_per_byte": Derived(cover, f"{says}: it never does" if cover >= NEVER else says, tried),
        "routed_from": Derived(
            routed, f"permutes round a side are asynchronous on slices of up to {most} chips" if routed == NEVER
            else f"from slices of so many chips on, up to {most}, permutes round a side are synchronous", len(waits),
        ),
    }  # fmt: skip


def is_started_early(prober: Prober, summed: int, columns: int, rows: float) -> bool:
    """Whether a compiler leaves more than one matmul beside the last transfer of a ring."""
    ring = prober.passing(128 * round(rows / 128), summed, columns)
    matmuls = {piece.name for piece in ring.pieces if piece.kind == "matmul"}
    moves = [place for place, (_, opcode) in enumerate(ring.opcodes) if opcode.startswith("collective-permute")]
    start = max(place for place in moves if ring.opcodes[place][1].endswith("start"))
    return sum(name in matmuls for name, _ in ring.opcodes[start : moves[-1]]) > 1


def is_synchronous(found: Found) -> bool:
    return any(opcode == "collective-permute" for _, opcode in found.opcodes)


def of_sums(prober: Prober, _: Figures) -> Figures:
    """From how many devices on, all those of a slice, scatters and gathers are compiled as an all-reduce."""
    slices = [prober.slice(shape) for shape in SUMMING[prober.dimensions]]
    even = [on for on in slices if len(sides := [side for side in on.shape if side > 1]) != 2 or sides[0] == sides[1]]
    scatters = {float(on.size): is_sum(prober.scatter(64, 1024, on)) for on in even}
    gathers = {float(on.size): is_sum(prober.gather(64, 1024, on)) for on in slices}
    scattered, gathered = figures.first(scatters), figures.first(gathers)
    bytes_, tried = ALWAYS, 0
    if gathered < NEVER:
        on = next(on for on in slices if on.size == gathered)
        bytes_, tried = largest(lambda size: is_sum(prober.gather(rows_of(size / on.size, 1024), 1024, on)), 4 * MEGABYTE, MOST)
    ends = {True: ": none is", False: ""}
    return {
        "scatter_summed_from": Derived(
            scattered, "a reduce-scatter over all of so many devices of a slice, or more, is compiled as an all-reduce and a "
            f"slice{ends[scattered == NEVER]} (up to {max(on.size for on in even)})", len(scatters),
        ),
        "gather_summed_from": Derived(
            gathered, "an all-gather over all of so many devices of a slice, or more, is compiled as an all-reduce of blocks "
            f"among zeros{ends[gathered == NEVER]} (up to {max(on.size for on in slices)})", len(gathers),
        ),
        "gather_summed_bytes": Derived(
            ALWAYS if bytes_ >= MOST else bytes_,
            "up to so many gathered bytes" + (": of any size" if bytes_ >= MOST else ", searched for"), tried,
        ),
    }  # fmt: skip


def of_scatters(prober: Prober, _: Figures) -> Figures:
    """In how many tiles the blocks of a scatter go round a ring, by the rows to which they are padded."""
    if prober.chip.devices_per_chip > 1:
        return {"scattered_tiles": Derived(NEVER, "as for other chips; none is padded so: the sparse cores scatter", 0)}
    padded: list[tuple[int, int, int]] = []
    for rows, columns in scatters(SCATTERS):
        made = prober.scatter(rows, columns, prober.four)
        shapes = [shape for kind, shape in zip(made.collectives, made.shapes, strict=True) if kind == "reduce-scatter"]
        padded += [(rows, columns // 128, shape[0]) for shape in shapes]
    tiles, met = chunk_tiles(padded, prober.four.size)
    says = "tiles of 8 x 128 elements that a chunk of a reduce-scatter over n devices has at most, times n + 4: so many of the "
    return {"scattered_tiles": Derived(tiles, f"{says}probes are padded to the rows that it says: {met}", len(padded))}


def is_sum(found: Found) -> bool:
    return "all-reduce" in found.collectives


def of_gathers_ahead(prober: Prober, _: Figures) -> Figures:
    """Whether an all-gather runs beside a matmul that does not need it."""
    beside = prober.gather_beside(8192, 4096).is_overlapped
    how = "runs beside the first of two matmuls, which" if beside else "runs by itself, with two matmuls of which the first"
    return {"gathers_ahead": Derived(float(beside), f"an all-gather of 67 MB {how} does not need it", 1)}


GROUPS: tuple[tuple[tuple[str, ...], Callable[[Prober, Figures], Figures]], ...] = (
    (("efficiency", "results_per_s", "kept_results_per_s", "pass_elements", "start_seconds", "least_seconds"), of_matmuls),
    (("near_bytes", "read_share"), of_near),
    (("kept_bytes", "copied_bytes_per_s", "slice_seconds"), of_gathers),
    (("transposed_bytes_per_s", "far_transposed_bytes_per_s"), of_transposing),
    (("spread_bytes_per_s",), of_spreading),
    (("least_copy_seconds",), of_exchanges),
    (("cut_bytes_per_s",), of_rings),
    (("cover_flops_per_byte", "routed_from"), of_permutes),
    (("scatter_summed_from", "gather_summed_from", "gather_summed_bytes"), of_sums),
    (("scattered_tiles",), of_scatters),
    (("gathers_ahead",), of_gathers_ahead),
)


def rows_of(bytes_: float, columns: int) -> int:
    return 8 * max(1, round(bytes_ / ITEM_BYTES / columns / 8))


def times(value: float | None, cores: int, says: str, probes: int) -> Derived:
    """A speed of a device as one of a chip of so many."""
    if value is None:
        return Derived(None, "no probe was copied", probes)
    return Derived(value * cores, says + (f"; of all {cores} cores of a chip" if cores > 1 else ""), probes)


def table(chip: chips.Hardware, derived: Mapping[str, Derived]) -> Iterator[str]:
    """Each figure as the catalogue holds it, as derived, and their ratio."""
    yield f"{chip.title:<24} {'catalogue':>10} {'derived':>10} {'ratio':>7} {'probes':>7}"
    for name, each in derived.items():
        known = None if chip.compiler is None else getattr(chip.compiler, name).value
        has = "" if known is None else f"{known:.3g}"
        if each.value is None:
            yield f"{name:<24} {has:>10} {'kept':>10} {'':>7} {each.probes:>7}  {each.says}"
            continue
        ratio = 1.0 if each.value == known else each.value / known if known else None
        yield f"{name:<24} {has:>10} {each.value:>10.3g} {'' if ratio is None else f'{ratio:.2f}':>7} {each.probes:>7}"


def sources(derived: Mapping[str, Derived], compilers: str) -> dict[str, Figure]:
    """The figures that were derived, each with how."""
    return {
        name: Figure(
            float(f"{each.value:.3g}"), f"derived by benchmarks.chips: {each.says} ({each.probes} probes; {compilers})"
        )
        for name, each in derived.items()
        if each.value is not None
    }


def rewritten(text: str, told: Mapping[str, Figure]) -> str:
    """A chip's file with these figures of [compiler]: in their place where they stand already, at the section's end otherwise.

    Raises:
        HardwareError: what comes out lacks a figure: it could not be derived, and has to be written by hand.
    """
    lines, left = text.rstrip("\n").split("\n"), dict(told)
    section, end = "", None
    for place, line in enumerate(lines):
        if header := re.match(r"\s*\[+([^\]]+)\]+", line):
            section = header[1].strip()
        key = line.partition("=")[0].strip()
        if section == "compiler":
            end = place + 1 if line.strip() else end
            if key in left:
                lines[place] = entry(key, left.pop(key))
    added = [entry(key, figure) for key, figure in left.items()]
    if end is None:
        lines, end = [*lines, "", "[compiler]"], len(lines) + 2
    made = "\n".join([*lines[:end], *added, *lines[end:]]) + "\n"
    read(made)
    return made


def entry(name: str, figure: Figure) -> str:
    return f"{name} = {{ value = {figure.value:.3g}, source = {json.dumps(figure.source, ensure_ascii=False)} }}"


if __name__ == "__main__":
    main()
