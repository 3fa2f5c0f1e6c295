"""Hardware in files: what is written is read back the same, takes the place of a name everywhere, and says what is wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import shardwise as sw
from shardwise.chips import Calibration, Figure, Rate, hardware, read
from shardwise.chips.hops import ring_hop
from shardwise.chips.hosts import cache_file, cpu_name
from shardwise.chips.interconnect import Interconnect
from shardwise.chips.links import collective_seconds, wire_bytes
from shardwise.chips.storing import written
from shardwise.cli import main
from shardwise.errors import HardwareError
from shardwise.mesh import Mesh

TOLD = Calibration("A host, 4 cores", "2026-11-22", (("jax", "0.12.0"),), 55, (("matmul", 0.05), ("all", 0.1)))
EQUATION, SIZES = "A[I_x, J] · B[J, K] -> C[I, K]", {"I": 512, "J": 128, "K": 256}


def rate(kind: str, devices: int, apart: int = 1, start: float = 1e-5, speed: float = 1e11) -> Rate:
    return Rate(kind, devices, apart, Figure(start, "measured by hand"), Figure(speed, "measured by hand"))


MINE = replace(hardware("cpu"), name="mine", title="My host", calibration=TOLD)


@pytest.mark.parametrize("name", hardware.names())
def test_what_is_written_is_read_back(name):
    chip = hardware(name)
    assert read(written(chip)) == chip
    measured = replace(chip, calibration=TOLD, rates=(rate("all-gather", 8), rate("all-to-all", 4, 2)))
    assert read(written(measured)) == measured
    assert all(figure.source in str(measured) for _, figure in measured.figures())


def test_a_file_stands_where_a_name_does(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(written(MINE), encoding="utf-8")
    assert sw.hardware("./mine.toml") == sw.hardware("mine.toml") == sw.hardware(str(tmp_path / "mine.toml")) == MINE
    plan = sw.plan(EQUATION, sizes=SIZES, mesh="x=4", hardware="./mine.toml")
    assert (
        "seconds are those of A host, 4 cores, calibrated on 2026-11-22 with jax 0.12.0; what was measured then, to 10%"
        in str(plan.explain())
    )
    line = ["plan", EQUATION, "--sizes", "I=512,J=128,K=256", "--mesh", "x=4", "--hardware", "mine.toml"]
    assert main(line) == 0
    assert "A host, 4 cores" in capsys.readouterr().out
    assert main(["hardware", "mine.toml"]) == 0
    assert capsys.readouterr().out.startswith("mine: My host")


def test_a_file_that_changes_is_read_again(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(written(MINE), encoding="utf-8")
    assert sw.hardware(str(path)).title == "My host"
    path.write_text(written(replace(MINE, title="Another host, longer")), encoding="utf-8")
    assert sw.hardware(str(path)).title == "Another host, longer"


WRONG = {
    "": "links of kind None",
    "name = ": "is no TOML",
    written(MINE).replace("bytes_per_s = { value = 4", "bytes_per_s = { value = -4", 1): "not negative",
    written(MINE).replace("bytes_per_s = { value = 40000000000.0", 'bytes_per_s = { value = "fast"', 1): "not negative",
    written(MINE).replace("measured = 55", "", 1): "has a host, a date",
    written(MINE).replace('kind = "memory"', 'kind = "wires"', 1): "links of kind 'wires'",
    written(replace(MINE, rates=(rate("all-gather", 4),))).replace("devices = 4", "", 1): "has a kind, devices",
    written(replace(MINE, rates=(rate("all-gather", 4),))).replace(
        '"all-gather"', '"gather"'
    ): "of kind 'gather': known are all-",
    "memory = 3\n" + written(MINE).replace("[memory]", "[memories]"): "memory is no table",
}


@pytest.mark.parametrize(("text", "why"), WRONG.items(), ids=WRONG.values())
def test_a_file_that_is_no_hardware_says_why(text, why, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(HardwareError, match=r"mine\.toml") as error:
        sw.hardware(str(path))
    assert why in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_there_says_who_writes_one(tmp_path):
    with pytest.raises(HardwareError, match=r"No such file or directory; shardwise calibrate -o writes one"):
        sw.hardware(str(tmp_path / "mine.toml"))
    (tmp_path / "noise.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(HardwareError, match="it is no text"):
        sw.hardware(str(tmp_path / "noise.toml"))


def test_plans_that_name_no_hardware_are_made_for_this_host(tmp_path, monkeypatch):
    monkeypatch.setenv("SHARDWISE_CACHE", str(tmp_path))
    assert sw.plan(EQUATION, sizes=SIZES, mesh="x=4").task.hardware == hardware("cpu")
    cache_file().write_text(written(MINE), encoding="utf-8")
    assert sw.plan(EQUATION, sizes=SIZES, mesh="x=4").task.hardware == hardware.here() == MINE
    assert sw.plan(EQUATION, sizes=SIZES, mesh="x=4", hardware="cpu").task.hardware == hardware("cpu")
    cache_file().write_text("torn", encoding="utf-8")
    assert hardware.here() == hardware("cpu")


def test_the_calibration_of_another_cpu_or_another_jax_is_another_file(tmp_path, monkeypatch):
    from shardwise.chips import hosts

    monkeypatch.setenv("SHARDWISE_CACHE", str(tmp_path))
    mine = cache_file()
    monkeypatch.setattr(hosts, "jax_version", lambda: "99.0")
    newer = cache_file()
    monkeypatch.setattr(hosts, "cpu_name", lambda: "Another CPU, 64 cores")
    assert len({mine, newer, cache_file()}) == 3
    assert mine.parent == tmp_path
    assert "/" not in cpu_name().replace("/", "-")


def test_a_measured_collective_is_priced_by_its_rate():
    chip, mesh = replace(hardware("h100"), rates=(rate("all-gather", 8, 1, 1e-5, 3e11),)), Mesh.parse("x=8")
    gathered = 2**30
    sent = wire_bytes("all-gather", mesh, ("x",), gathered / 8, gathered)
    assert collective_seconds("all-gather", chip, mesh, ("x",), gathered / 8, gathered) == pytest.approx(1e-5 + sent / 3e11)
    scatter = ("reduce-scatter", mesh, ("x",), gathered, gathered / 8)
    assert collective_seconds(scatter[0], chip, *scatter[1:]) == collective_seconds(scatter[0], hardware("h100"), *scatter[1:])


def test_a_rate_stands_for_groups_that_lie_as_the_measured_one():
    """In a node that of four stands for two; across nodes, and further apart, the catalogue speaks."""
    chip = replace(hardware("h100"), rates=(rate("all-gather", 4, 1, 0.0, 1e11), rate("all-gather", 2, 8, 0.0, 1e10)))
    inside, across = Mesh.parse("x=2"), Mesh.parse("x=2, y=8")
    whole = 2.0**30
    assert collective_seconds("all-gather", chip, inside, ("x",), whole / 2, whole) == pytest.approx(whole / 2 / 1e11)
    assert collective_seconds("all-gather", chip, across, ("x",), whole / 2, whole) == pytest.approx(whole / 2 / 1e10)
    wide = Mesh.parse("x=16")
    priced = collective_seconds("all-gather", chip, wide, ("x",), whole / 16, whole)
    assert priced == collective_seconds("all-gather", hardware("h100"), wide, ("x",), whole / 16, whole)


def test_a_ring_goes_by_the_measured_permute():
    chip = replace(hardware("h100"), rates=(rate("collective-permute", 8, 1, 2e-6, 1e11),))
    hop = ring_hop(chip, Mesh.parse("x=8"), ("x",))
    assert hop.seconds(1e9) == pytest.approx(2e-6 + 1e-2)


def test_the_formula_of_a_measured_collective_is_told():
    from shardwise.chips.quantities import Quantity
    from shardwise.planning.prices import Costs
    from shardwise.planning.terms import told, with_formulas

    chip = replace(hardware("h100"), rates=(rate("all-gather", 8),))
    costs = with_formulas(Costs(Interconnect(chip, Mesh.parse("x=8")), "bfloat16"))
    found = told(costs.collective("all-gather", ("x",), Quantity.named("S", 2.0**20, "B"), Quantity.named("V", 2.0**23, "B")))
    assert found.terms[0].symbols == "L"
    assert any("measured" in letter for letter in found.letters)
