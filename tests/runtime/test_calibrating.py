"""Calibration: planted figures are found again from modelled times, noise is refused, and nothing is half-written."""

from __future__ import annotations

import random
import tomllib
from dataclasses import replace
from pathlib import Path

import jax
import pytest
from commands import said

import shardwise as sw
from shardwise.chips import Figure, Rate, hardware
from shardwise.chips.interconnect import Interconnect
from shardwise.cli import main
from shardwise.errors import FileError, HardwareError, MeasureError
from shardwise.measure import calibrating, rounds
from shardwise.measure.fitted_hardware import fitted_hardware
from shardwise.measure.probes import KIB, MIB, axis_trials, copy_trial, device_trials, host_trials, matmul_trial
from shardwise.measure.rounds import timed
from shardwise.mesh import Mesh
from shardwise.planning.cost import estimate
from shardwise.planning.prices import Costs

EIGHT = Mesh.parse("x=8")
DEVICES = jax.devices()  # JAX starts here with the eight of the tests


def planted(**figures: float):
    """The catalogue's host with other figures."""
    cpu = hardware("cpu")
    links = {name: Figure(value, "planted") for name, value in figures.items() if hasattr(cpu.links, name)}
    flops = tuple((dtype, Figure(figures.get(dtype, figure.value), "planted")) for dtype, figure in cpu.flops_per_s)
    return replace(
        cpu, flops_per_s=flops, memory_bytes_per_s=Figure(figures["bytes_per_s"], "planted"), links=replace(cpu.links, **links)
    )


HOST = planted(
    float32=1.3e11, bfloat16=2e11, bytes_per_s=1.5e10, copied_bytes_per_s=8e9, fresh_bytes_per_s=1e9,
    transposed_bytes_per_s=6e9, launch_seconds=5e-5, local_seconds=2e-5, dispatch_seconds=3e-5, rendezvous_seconds=2e-5,
)  # fmt: skip


def modelled(chip, trials) -> list[float]:
    return [
        estimate(each.program, Costs(Interconnect(chip, each.program.mesh), each.dtype), each.sizes).seconds for each in trials
    ]


def figures_of(chip) -> dict[str, float]:
    told = {name: figure.value for name, figure in chip.figures()}
    return {name: value for name, value in told.items() if name != "memory bytes"}


def test_planted_figures_of_a_host_are_found():
    trials = host_trials(EIGHT)
    found = fitted_hardware(hardware("cpu"), trials, modelled(HOST, trials), "here")
    assert figures_of(found) == pytest.approx(figures_of(HOST), rel=0.02)
    assert found.calibration.error < 0.01
    assert found.calibration.measured == len(trials)
    assert all("measured on" in figure.source for name, figure in found.figures() if "FLOP/s" in name)


def test_disturbed_runs_and_lost_ones_move_figures_little():
    trials, drawn = host_trials(EIGHT), random.Random(1)
    times = [seconds * drawn.uniform(0.93, 1.07) for seconds in modelled(HOST, trials)]
    for place in drawn.sample(range(len(times)), 8):
        times[place] *= drawn.uniform(2, 6)
    for place in drawn.sample(range(len(times)), 5):
        times[place] = None
    found = fitted_hardware(hardware("cpu"), trials, times, "here")
    wanted = figures_of(HOST)
    for name in ("float32 FLOP/s", "link bytes/s", "link copied bytes/s", "link launch seconds"):
        assert figures_of(found)[name] == pytest.approx(wanted[name], rel=0.2), name


def test_a_figure_of_which_nothing_was_measured_stays_the_catalogues():
    trials = [trial for trial in host_trials(EIGHT) if "41943040" not in trial.says]
    found = fitted_hardware(hardware("cpu"), trials, modelled(HOST, trials), "here")
    assert found.links.fresh_bytes_per_s == hardware("cpu").links.fresh_bytes_per_s
    assert "measured on 20" in found.links.bytes_per_s.source


def test_of_a_collective_at_one_size_there_is_no_rate():
    trials = device_trials(EIGHT)
    times = [None if trial.kind == "all-to-all" and trial.sizes["I"] > 128 else seconds
             for trial, seconds in zip(trials, modelled(hardware("h100"), trials), strict=True)]  # fmt: skip
    found = fitted_hardware(hardware("h100"), trials, times, "8 H100")
    assert {rate.kind for rate in found.rates} == {"all-gather", "reduce-scatter", "all-reduce", "collective-permute"}


def test_noise_is_refused():
    trials, drawn = host_trials(EIGHT), random.Random(2)
    with pytest.raises(MeasureError, match="what was measured is noise: the figures that fit it best miss half of it by more"):
        fitted_hardware(hardware("cpu"), trials, [10 ** drawn.uniform(-5, 0) for _ in trials], "here")


def test_planted_rates_of_devices_with_links_are_found_on_each_axis():
    mesh = Mesh.parse("x=4, y=2")
    base = hardware("h100")
    rates = tuple(
        Rate(kind, devices, apart, Figure(2e-5 * devices, "planted"), Figure(1e11 * apart, "planted"))
        for kind in ("all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute")
        for devices, apart in ((4, 2), (2, 1), (8, 1))
    )
    real = replace(base, rates=rates, memory_bytes_per_s=Figure(2.9e12, "planted"),
                   flops_per_s=(("float32", Figure(3.9e14, "planted")), ("bfloat16", Figure(7e14, "planted"))))  # fmt: skip
    trials = device_trials(mesh)
    found = fitted_hardware(base, trials, modelled(real, trials), "8 H100")
    flops = {dtype: figure.value for dtype, figure in found.flops_per_s}
    assert (flops["float32"], flops["bfloat16"]) == pytest.approx((3.9e14, 7e14), rel=0.02)
    assert found.memory_bytes_per_s.value == pytest.approx(2.9e12, rel=0.02)
    told = {(rate.kind, rate.devices, rate.apart): (rate.start_seconds.value, rate.bytes_per_s.value) for rate in found.rates}
    for rate in rates:
        key = rate.kind, rate.devices, rate.apart
        assert told[key] == pytest.approx((rate.start_seconds.value, rate.bytes_per_s.value), rel=0.05), key
    assert found.links == base.links
    assert flops["int8"] == dict(base.flops_per_s)["int8"].value  # not measured: as the catalogue says


class Clock:
    """A machine whose programs take what they are told to, and twice that while it is busy."""

    def __init__(self, busy) -> None:
        self.now, self.busy = 0.0, busy

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds

    def program(self, seconds: float):
        def run() -> float:
            self.now += seconds * (2 if self.busy(self.now) else 1)
            return 0.0

        return run


def test_runs_count_while_the_machine_is_as_fast_as_at_its_quickest():
    clock = Clock(lambda now: now % 5 > 2)
    found = timed([clock.program(0.02), clock.program(0.001)], clock.program(0.01), 30.0, clock=clock, pause=clock.pause)
    assert found.seconds == pytest.approx((0.02, 0.001))
    assert found.probe_seconds == pytest.approx(0.01)
    assert found.runs[0] == pytest.approx((0.02,) * len(found.runs[0]))
    assert 30 <= clock.now < 31


def test_enough_runs_are_enough():
    clock = Clock(lambda now: False)
    found = timed([clock.program(0.02)], clock.program(0.01), 100.0, enough=5, clock=clock, pause=clock.pause)
    assert 3 <= len(found.runs[0]) <= 4  # the quicker half
    assert clock.now < 2


def test_a_machine_that_is_slower_than_it_was_is_waited_for_in_vain():
    clock = Clock(lambda now: True)
    found = timed([clock.program(0.02)], clock.program(0.01), 2.0, within=0.01, clock=clock, pause=clock.pause)
    assert found.seconds == (None,)
    assert clock.now < 2.2


FEW = [matmul_trial(EIGHT, (64, 64, 64)), copy_trial(EIGHT, 64 * KIB), *axis_trials(EIGHT, (64 * KIB,))]


@pytest.fixture
def brief(monkeypatch, tmp_path):
    """Few programs, of which every run counts, and no noise."""
    monkeypatch.setenv("SHARDWISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(calibrating, "host_trials", lambda grid: FEW)
    monkeypatch.setattr(calibrating, "LEAST_SECONDS", 10.0)
    monkeypatch.setattr(calibrating, "ENOUGH", 1)
    monkeypatch.setattr(rounds, "SLOWER", 1e9)
    monkeypatch.setattr(rounds, "FEWEST", 1)
    monkeypatch.setattr("shardwise.measure.fitted_hardware.NOISE", 1e9)
    monkeypatch.chdir(tmp_path)


def test_this_host_is_measured_written_and_kept(brief, capsys):
    assert main(["calibrate", "--seconds", "1", "-o", "mine.toml"]) == 0
    out = capsys.readouterr().out
    assert "7 programs measured on" in out
    assert "kept for plans that name no hardware: " in out
    found = sw.hardware("./mine.toml")
    assert found == hardware.here()
    assert found.calibration.host == calibrating.cpu_name()
    plan = sw.plan("A[I_x] -> A[I]", sizes={"I": 64}, mesh=sw.make_mesh("x=8"), dtype="float32")
    assert plan.task.hardware == found
    assert sw.audit(plan.function(sw.make_mesh("x=8")), sw.put([1.0] * 64, "I_x", "x=8")).hardware == found
    assert f"seconds are those of {found.calibration.host}, calibrated on" in plan.explain()
    table = tomllib.loads(Path("mine.toml").read_text())
    assert table["calibration"]["versions"]["jax"] == jax.__version__
    assert table["calibration"]["errors"]["all"] == found.calibration.error


def test_in_python_nothing_is_kept_that_was_not_asked_for(brief):
    found = sw.calibrate("x=8", seconds=1)
    assert found.calibration is not None
    assert hardware.here() == hardware("cpu")
    assert list(Path().glob("*.toml")) == []


def test_interrupted_nothing_is_written(brief, monkeypatch, capsys):
    Path("mine.toml").write_text("as it was")

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(calibrating, "timed", interrupted)
    assert main(["calibrate", "-o", "mine.toml"]) == 130
    assert said(capsys).endswith("shardwise: interrupted\n")
    assert Path("mine.toml").read_text() == "as it was"
    assert hardware.here() == hardware("cpu")
    assert [path.name for path in Path().iterdir() if path.is_file()] == ["mine.toml"]


def test_a_busy_machine_is_refused(brief, monkeypatch, capsys):
    monkeypatch.setattr(rounds, "FEWEST", 10**9)
    monkeypatch.setattr(calibrating, "LEAST_SECONDS", 0.1)
    assert main(["calibrate", "--seconds", "1", "-o", "mine.toml"]) == 2
    assert "this machine is too busy to be measured" in said(capsys)
    assert not Path("mine.toml").exists()


def test_what_cannot_be_written_is_said_before_anything_is_measured(monkeypatch, tmp_path):
    monkeypatch.setattr(calibrating, "measured", None)
    with pytest.raises(FileError, match="missing"):
        sw.calibrate("x=8", output=str(tmp_path / "missing" / "mine.toml"))
    monkeypatch.setenv("SHARDWISE_CACHE", "/proc/nowhere")
    with pytest.raises(FileError):
        sw.calibrate("x=8", keep=True)


def test_wrong_wishes(capsys, monkeypatch):
    monkeypatch.setattr(calibrating, "measured", None)
    for seconds in (0, -1, True, float("inf"), "20"):
        with pytest.raises(MeasureError, match="give the seconds that runs may take"):
            sw.calibrate("x=8", seconds=seconds)
    with pytest.raises(HardwareError, match="name the chip"):
        sw.calibrate(logs="all_gather_perf.txt")
    assert main(["calibrate", "--from", "a.txt"]) == 2
    assert "name its --hardware" in said(capsys)
    assert main(["calibrate", "-o", "mine.json"]) == 2
    assert "end the name with .toml" in said(capsys)


LOG = (
    "# Collective test starting: all_gather_perf\n# nThread 1 nGpus 8\n#  size count type redop root time algbw busbw #wrong\n"
)


def test_a_node_from_its_logs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    sizes = [2**k for k in range(20, 30, 3)]
    times = [f"{size} 1 float none -1 {20 + size * 7 / 8 / 3.6e5:.2f} 0 0 0\n" for size in sizes]
    Path("gather.txt").write_text(LOG + "".join(times))
    assert main(["calibrate", "--from", "gather.txt", "--hardware", "h100", "-o", "node.toml"]) == 0
    assert "4 programs measured on NVIDIA H100 SXM, by gather.txt" in capsys.readouterr().out
    (rate,) = sw.hardware("node.toml").rates
    assert (rate.kind, rate.devices) == ("all-gather", 8)
    assert (rate.start_seconds.value, rate.bytes_per_s.value) == pytest.approx((2e-5, 3.6e11), rel=0.01)
    plan = sw.plan("A[I_x] -> A[I]", sizes={"I": 2**28}, mesh="x=8", hardware="node.toml", overlap=False)
    assert plan.best.estimate.seconds == pytest.approx(2e-5 + 2**29 * 7 / 8 / 3.6e11, rel=0.01)
    assert "upper bound of speed" not in plan.explain()


def test_trials_cover_every_collective_on_every_axis():
    found = axis_trials(Mesh.parse("x=4, y=2"), (MIB,))
    assert len({trial.says for trial in found}) == len(found) == 15
