"""Figures of a chip's compiler: derived from measurements that are given here, and written to a chip's file."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from random import Random

import pytest

from benchmarks.chip_figures import (
    NEVER,
    Derived,
    Fit,
    TimedMatmul,
    chunk_tiles,
    first,
    fitted,
    largest,
    priced,
    speed,
)
from benchmarks.chips import GROUPS, rewritten, sources, table
from shardwise import chips
from shardwise.chips import Compiler, hardware, read
from shardwise.errors import HardwareError
from shardwise.planning.tiles import scattered_rows

TPUS = [name for name in hardware.names() if name.startswith("tpu-")]
TRUE = Fit(0.9, 1e11, 5e-6, 2e-6, 0.0)


def text_of(name: str) -> str:
    return Path(chips.__file__).with_name("catalogue").joinpath(f"{name}.toml").read_text(encoding="utf-8")


def test_every_figure_of_a_compiler_has_its_probe():
    assert sorted(name for names, _ in GROUPS for name in names) == sorted(each.name for each in fields(Compiler))


def measured(peak_seconds: float, results: float) -> TimedMatmul:
    return TimedMatmul(peak_seconds, results, priced(TimedMatmul(peak_seconds, results, 0.0), TRUE))


def test_matmuls_made_by_figures_give_these_figures():
    nothing_but_the_least = measured(1e-15, 1e-3)
    matmuls = [nothing_but_the_least, *(measured(microseconds * 1e-6, 1e5) for microseconds in (2, 5, 20, 50, 200, 1000))]
    short = [measured(1e-6, results) for results in (8e6, 1.6e7, 3.2e7)]
    fit = fitted(matmuls, short)
    assert fit == pytest.approx(TRUE)


def test_limits_are_found_as_near_as_they_are_searched_for():
    found, tried = largest(lambda size: size <= 1e8, 1e6, 5e8)
    assert 0.97e8 <= found <= 1e8
    assert tried < 12


def test_what_holds_only_of_a_number_between_is_from_none_on():
    assert first({16: True, 32: False, 64: True}) == 64
    assert first({16: False, 64: False}) == NEVER
    assert speed([(1.0, 0.0)]) is None


def test_chunks_are_as_large_as_the_pads_of_scatters_say():
    random = Random(0)
    blocks = [(8 * random.randint(20, 300), random.randint(1, 120)) for _ in range(40)]
    padded = [(rows, columns, scattered_rows(rows, columns, 228)) for rows, columns in blocks]
    tiles, met = chunk_tiles(padded, devices=4)
    assert int(tiles / 8) == 228
    assert met == len(padded)


@pytest.mark.parametrize("name", TPUS)
def test_a_file_is_written_line_by_line(name):
    text, known = text_of(name), hardware(name)
    told = sources(
        {"near_bytes": Derived(12345678.0, 'searched "for"', 7), "cut_bytes_per_s": Derived(None, "not", 1)}, "libtpu 1"
    )
    made = rewritten(text, told)
    assert known.compiler is not None
    assert {key: figure.value for key, figure in told.items()} == {"near_bytes": 1.23e7}
    assert read(made) == replace(known, compiler=replace(known.compiler, near_bytes=told["near_bytes"]))
    changed = [pair for pair in zip(text.splitlines(), made.splitlines(), strict=True) if pair[0] != pair[1]]
    assert [old.split(" = ")[0] for old, _ in changed] == ["near_bytes"]
    assert told["near_bytes"].source == 'derived by benchmarks.chips: searched "for" (7 probes; libtpu 1)'


def test_a_new_chip_gets_a_section_of_its_own():
    known = hardware("tpu-v5e")
    text = text_of("tpu-v5e")
    begin, end = text.index("[compiler]"), text.index("[reached]")
    bare = text[:begin] + text[end:]
    assert read(bare).compiler is None
    told = {each.name: getattr(known.compiler, each.name) for each in fields(Compiler)}
    assert read(rewritten(bare, told)) == known
    with pytest.raises(HardwareError, match=r"lacks compiler\.efficiency"):
        rewritten(bare, {name: figure for name, figure in told.items() if name != "efficiency"})


def test_the_table_says_what_is_kept_and_why():
    rows = list(table(hardware("tpu-v5e"), {"near_bytes": Derived(2e8, "", 3), "kept_bytes": Derived(None, "refused", 0)}))
    assert rows[1].split() == ["near_bytes", "1.17e+08", "2e+08", "1.71", "3"]
    assert rows[2].split() == ["kept_bytes", "1.17e+08", "kept", "0", "refused"]
    bare = replace(hardware("tpu-v5e"), compiler=None)
    assert list(table(bare, {"near_bytes": Derived(2e8, "", 3)}))[1].split() == ["near_bytes", "2e+08", "3"]
