"""Figures fitted to times: planted ones are found again, a few wild times move nothing, and noise is told."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.errors import MeasureError
from shardwise.measure.fitting import fitted
from shardwise.measure.rates import Row, errors_of, rates, rows_of

SIZES = [4.0**k for k in range(2, 14)]


def line(figures: tuple[float, ...]) -> list[float]:
    return [figures[0] + size / figures[1] for size in SIZES]


@given(st.floats(-7, -3), st.floats(8, 12))
def test_planted_figures_are_found(start, speed):
    planted = (10**start, 10**speed / 1e6)
    found = fitted(line, line(planted), (1e-4, 1e3))
    assert found.is_settled
    assert max(found.errors) < 0.01


def test_a_few_wild_times_move_nothing():
    times = line((2e-3, 5e6))
    times[3] *= 8
    times[9] *= 5
    found = fitted(line, times, (1.0, 1.0))
    assert found.figures == pytest.approx((2e-3, 5e6), rel=0.02)
    assert sorted(found.errors)[:-2] == pytest.approx([0.0] * (len(SIZES) - 2), abs=0.02)


def test_a_figure_that_nothing_depends_on_stays():
    found = fitted(lambda figures: [figures[0], figures[0]], [3.0, 3.0], (1.0, 7.0))
    assert found.figures == pytest.approx((3.0, 7.0), rel=1e-3)


def rows(start: float, speed: float, kind="all-gather", devices=8) -> list[Row]:
    return [Row(kind, devices, 1, size, start + size / speed) for size in SIZES]


def test_each_collective_on_each_group_has_a_rate_of_its_own():
    found = rates([*rows(1e-5, 1e11), *rows(3e-5, 2e10, "all-reduce"), *rows(1e-6, 5e10, devices=4)], "measured")
    assert [(rate.kind, rate.devices) for rate in found] == [("all-gather", 8), ("all-reduce", 8), ("all-gather", 4)]
    assert [rate.start_seconds.value for rate in found] == pytest.approx([1e-5, 3e-5, 1e-6], rel=1e-3)
    every = [*rows(1e-5, 1e11), *rows(3e-5, 2e10, "all-reduce"), *rows(1e-6, 5e10, devices=4)]
    assert dict(errors_of(every, found))["all"] < 1e-3
    assert "12 sizes, 16 to" in found[0].bytes_per_s.source


def test_noise_and_a_single_size_have_no_rate():
    drawn = random.Random(0)
    noise = [row._replace(seconds=10 ** drawn.uniform(-6, 0)) for row in rows(1e-5, 1e11)]
    with pytest.raises(MeasureError, match="all-gather over 8 devices: its times are noise"):
        rates(noise, "measured")
    with pytest.raises(MeasureError, match="one size alone"):
        rates(rows(1e-5, 1e11)[:1], "measured")


NCCL = """\
# nccl-tests version 2.18.2 nccl-headers=23007 nccl-library=23007
# Collective test starting: all_gather_perf
# nThread 1 nGpus 4 minBytes 1048576 maxBytes 134217728 step: 2(factor) warmup iters: 1 iters: 20
#
# Using devices
#  Rank  0 Group  0 Pid  15784 on  node device  0 [0009:01:00] NVIDIA H100
#  Rank  1 Group  0 Pid  15784 on  node device  1 [0019:01:00] NVIDIA H100
#  Rank  2 Group  0 Pid  15784 on  node device  2 [0029:01:00] NVIDIA H100
#  Rank  3 Group  0 Pid  15784 on  node device  3 [0039:01:00] NVIDIA H100
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
     1048576         65536     float    none      -1    20.00   52.43   39.32       0    19.00   55.19   41.39       0
     4194304        262144     float    none      -1    40.00  104.86   78.64       0    39.00  107.55   80.66       0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 58.9822
"""


def test_what_nccl_tests_print_is_read():
    found = rows_of(NCCL)
    assert [(row.kind, row.devices, row.sent_bytes) for row in found] == [
        ("all-gather", 4, 0.75 * 2**20), ("all-gather", 4, 0.75 * 2**22),
    ]  # fmt: skip
    assert [row.sent_bytes / row.seconds / 1e9 for row in found] == pytest.approx([39.32, 78.64], rel=1e-3)  # busbw, as printed


def test_two_tests_in_one_log_behind_the_prefix_of_mpirun():
    log = "".join(f"[1,0]<stdout>:{line}\n" for line in (NCCL + NCCL.replace("all_gather", "all_reduce")).splitlines())
    found = rows_of(log)
    assert [row.kind for row in found] == ["all-gather"] * 2 + ["all-reduce"] * 2
    assert [row.devices for row in found] == [4] * 4
    assert found[2].sent_bytes == 2 * 0.75 * 2**20


def test_csv_of_nccl_tests_goes_by_the_name_of_its_file():
    table = "# nThread 1 nGpus 8\nsize,count,type,redop,root,time,algbw,busbw,#wrong\n1048576,1,float,sum,-1,20.0,52.4,45.9,0\n"
    assert rows_of(table, "logs/reduce_scatter_perf.csv")[0][:2] == ("reduce-scatter", 8)
    with pytest.raises(MeasureError, match="does not say which collective it is of"):
        rows_of(table, "logs/mine.csv")
    with pytest.raises(MeasureError, match="does not say how many GPUs took part"):
        rows_of(table.partition("\n")[2], "reduce_scatter_perf.csv")


def test_tables_of_jax_benchmarks_are_read():
    head = ["op_type", "rank", "transferred_data (GB)", "step_time_ms_p50", "step_time_ms_avg"]
    lines = [head, ["AG", "4", "0.5", "10.0", "11"], ["A2A", "8", "0.25", "5.0", "5"], ["GEMM", "1", "", "", ""]]
    for between in "\t,":
        found = rows_of("\n".join(between.join(each) for each in lines))
        assert found == [Row("all-gather", 4, 1, 0.5e9, 0.01), Row("all-to-all", 8, 1, 0.25e9, 0.005)]


@pytest.mark.parametrize("text", ["", "hello\n", "# size time busbw\n", "op_type,rank\n"])
def test_a_log_without_times_is_refused(text):
    with pytest.raises(MeasureError, match="holds no times"):
        rows_of(text, "all_gather_perf.txt")
