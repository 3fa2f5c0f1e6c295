"""The lock file: what is written is read, damage is told with its line, and drift names source and bytes. Needs no JAX."""

from __future__ import annotations

import dataclasses
import math
import re
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.compiled import lockfile
from shardwise.compiled.drift import difference, drift, report
from shardwise.compiled.facts import Collective, MemoryUse, Work
from shardwise.compiled.lockfile import Entry, Laid, Lock, Made, Memory, Row
from shardwise.errors import FileError
from shardwise.mesh import Mesh

MB = 1_000_000
GATHER = Row("all-gather", ("x",), "bfloat16", "layer.py:14", 1, 14.7 * MB)
STEP = Entry(
    "train:step", "v5e:2x4", "x=8", (GATHER,), Memory(1000, 400, 500, 100), versions=(("jax", "0.10.2"),),
    made=Made("train:step", args="bfloat16[8@x]", mesh="x=8", on="v5e:2x4"),
)  # fmt: skip


def collective(source="layer.py:14", **facts) -> Collective:
    given = {
        "kind": "all-gather", "axes": ("x",), "wire_bytes": 14.7 * MB, "dtype": "bfloat16", "shape": (8, 4), "group_size": 8,
        "source": source, "op_name": "jit(step)/dot", "trips": 1, "asynchronous": False, "hidden_by": (),
        "held_bytes": 2.1 * MB, "name": "g", "computation": "main", "end": "g", "groups": ((0, 1),),
    }  # fmt: skip
    return Collective(**given | facts)


def audit(*collectives: Collective, **facts) -> SimpleNamespace:
    """What `lock_entry` needs of an audit."""
    given = {
        "name": "step", "target": "v5e:2x4", "mesh": Mesh.parse("x=8"), "memory": MemoryUse(5, 1, 4, 0, 0, 10), "unread": (),
        "work": Work(1.0, 8, None), "notes": (),
    }  # fmt: skip
    return SimpleNamespace(collectives=collectives, **given | facts)


def with_rows(*rows: Row, **facts) -> Entry:
    return dataclasses.replace(STEP, rows=tuple(sorted(rows, key=lockfile.row_order)), **facts)


# What is written is read.

texts = st.text(max_size=12) | st.sampled_from(
    ['"', "\\", "\\u0041", "a\nb", "\r\n", "[[program]]", "'''", "é·→", "\x00", "\x85"]
)
counts = st.integers(0, 2**62)
sent = st.integers(0, 2**53) | st.floats(0, 1e18)
rows = st.builds(
    Row, texts, st.lists(texts, max_size=3).map(tuple), texts, texts | st.just("layer.py:9"), counts, sent, st.booleans()
)
memories = st.builds(Memory, counts, counts, counts, counts)
laid = st.none() | st.lists(st.builds(Laid, texts, texts), max_size=3).map(tuple)
entries = st.builds(
    Entry, texts, texts, texts, st.lists(rows, max_size=4).map(lambda found: tuple(sorted(found, key=lockfile.row_order))),
    st.none() | memories, counts, st.dictionaries(texts, texts, max_size=3).map(lambda found: tuple(sorted(found.items()))),
    st.none() | st.builds(Made, *[texts] * 6), laid, laid, st.none() | st.floats(0, 1e3),
)  # fmt: skip


@given(st.lists(entries, max_size=3, unique_by=lambda entry: entry.key), st.floats(0, 2))
def test_what_is_written_is_read(found, tolerance):
    read = lockfile.parse(lockfile.text_of(Lock(tuple(found), tolerance)))
    assert sorted(read.entries, key=lambda e: (e.name, e.target)) == sorted(found, key=lambda e: (e.name, e.target))
    assert read.memory_tolerance == tolerance


@given(st.lists(entries, max_size=3, unique_by=lambda entry: entry.key), st.randoms())
def test_the_text_does_not_depend_on_the_order(found, random):
    shuffled = list(found)
    random.shuffle(shuffled)
    assert lockfile.text_of(Lock(tuple(found))) == lockfile.text_of(Lock(tuple(shuffled)))


@given(entries)
def test_nothing_drifts_from_itself(entry):
    assert difference(entry, entry) == difference(entry, entry).__class__((), ())


def test_files(tmp_path):
    path = tmp_path / "comms.lock"
    lockfile.write(path, [STEP], 0.05)
    assert lockfile.read(path) == Lock((STEP,), 0.05)
    assert [each.name for each in tmp_path.iterdir()] == ["comms.lock"]
    with pytest.raises(FileError, match=r"nowhere/comms.lock: there is no folder nowhere in .*: make it, or name another"):
        lockfile.write(tmp_path / "nowhere" / "comms.lock", [STEP])


def test_a_file_is_read_by_people():
    assert lockfile.text_of(Lock((STEP,))).split("\n\n")[1] == (
        "[[program]]\n"
        'name = "train:step"\n'
        'target = "v5e:2x4"\n'
        'mesh = "x=8"\n'
        "wire_bytes = 14700000\n"
        "collectives = [\n"
        '  { source = "layer.py:14", kind = "all-gather", axes = ["x"], dtype = "bfloat16", count = 1, '
        "wire_bytes = 14700000 },\n"
        "]\n"
        "memory = { peak = 1000, temporaries = 400, arguments = 500, outputs = 100 }\n"
        'made = { function = "train:step", args = "bfloat16[8@x]", mesh = "x=8", on = "v5e:2x4" }\n'
        'versions = { jax = "0.10.2" }\n'
    )


# From an audit.


def test_like_collectives_of_one_line_are_one_row():
    made = lockfile.lock_entry(
        audit(
            collective("/work/b.py:9"), collective("/work/b.py:9", trips=4, wire_bytes=4 * 14.7 * MB),
            collective("/work/b.py:10"), collective("/work/b.py:9", wire_bytes=MB),
            collective("/work/b.py:9", dtype="float32"), collective("/work/b.py:9", trips=None), collective("/other/a.py:3"),
        ),
        folder="/work",
    )  # fmt: skip
    assert [(row.source, row.dtype, row.count, row.trips_known) for row in made.rows] == [
        ("/other/a.py:3", "bfloat16", 1, True),
        ("b.py:9", "bfloat16", 1, False),
        ("b.py:9", "bfloat16", 1, True),
        ("b.py:9", "bfloat16", 5, True),
        ("b.py:9", "float32", 1, True),
        ("b.py:10", "bfloat16", 1, True),
    ]
    assert made.key == "step@v5e:2x4"
    assert made.wire_bytes == pytest.approx(9 * 14.7 * MB + MB)
    assert made.memory == Memory(peak=10, temporaries=4, arguments=5, outputs=1)


def test_an_audit_of_nothing():
    made = lockfile.lock_entry(audit(memory=None), name="other")
    assert (made.key, made.rows, made.memory) == ("other@v5e:2x4", (), None)
    assert lockfile.parse(lockfile.text_of(Lock((made,)))).entries == (made,)


# Damage.

GOOD = lockfile.text_of(Lock((STEP,)))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("version = 1", "version = 2", "a lock file of version 2, and this Shardwise reads version 1"),
        ("version = 1", "", "version is missing"),
        ("version = 1", "version = true", "version = True is not a whole number"),
        ("version = 1", "<<<<<<< ours\nversion = 1", r"line 4: a merge conflict"),
        ("memory_tolerance", "memory_tolerence", r"'memory_tolerence' is not known \(did you mean 'memory_tolerance'"),
        ("= 0.01", "= -1", "memory_tolerance is -1: give a part of the whole"),
        ("= 0.01", "= nan", "memory_tolerance is nan"),
        ('name = "train:step"', 'name = "train:step', r"not TOML: .*line 8"),
        ('name = "train:step"', "name = 3", "the program at line 7: name = 3 is not a text"),
        ('name = "train:step"', "", "the program at line 7: name is missing; restore it"),
        ("count = 1,", "count = 1.5,", "count = 1.5 is not a whole number"),
        ("count = 1,", "count = -1,", "a count of -1 with"),
        ('axes = ["x"]', "axes = [1]", "each is a name in quotes"),
        ("wire_bytes = 14700000\n", "wire_bytes = 14700001\n", "its collectives send 14700000 bytes together, and"),
        ("peak = 1000, ", "", "peak is missing"),
        ("[[program]]", "[program]", "program = {.*} is not a list"),
        ("collectives = [\n", "collectives = [ 3,\n", "3 stands where a table belongs"),
    ],
)  # fmt: skip
def test_damage_is_told(old, new, message):
    assert old in GOOD
    with pytest.raises(FileError, match=message):
        lockfile.parse(GOOD.replace(old, new, 1))


def test_a_program_that_stands_twice():
    with pytest.raises(FileError, match=r"comms.lock, the program at line 19: train:step@v5e:2x4 stands twice"):
        lockfile.parse(GOOD + "\n" + GOOD.split("\n\n")[1])


@pytest.mark.parametrize("data", [b"\xff\xfe\x00", b"\x00", b"[" * 100_000, b"a = 1\x01", b"\xef\xbb\xbfversion = 1"])
def test_a_file_of_something_else(tmp_path, data):
    path = tmp_path / "comms.lock"
    path.write_bytes(data)
    with pytest.raises(FileError, match=r"comms.lock: .*restore it"):
        lockfile.read(path)


def test_no_file(tmp_path):
    with pytest.raises(FileError, match=r"there is no lock file .*: write one with `shardwise lock module:function`"):
        lockfile.read(tmp_path / "comms.lock")
    with pytest.raises(FileError, match="this is a folder, and no file to read"):
        lockfile.read(tmp_path)


@given(st.data())
def test_no_cut_or_changed_file_is_taken_or_crashes(data):
    """A lock file that lost its end is either refused, or is still what was written."""
    cut = data.draw(st.integers(0, len(GOOD)))
    extra = data.draw(texts)
    try:
        read = lockfile.parse(GOOD[:cut] + extra)
    except FileError:
        return
    assert all(entry.rows == STEP.rows for entry in read.entries)


# Drift.


def test_one_more_gather_names_both_lines_and_the_bytes():
    now = with_rows(GATHER, dataclasses.replace(GATHER, source="layer.py:31"))
    assert drift(STEP, now) == [
        "- all-gather over x, 1 x 14.7 MB bfloat16, layer.py:14",
        "+ all-gather over x, 2 x 14.7 MB bfloat16, layer.py:31, layer.py:14: 14.7 MB more on the wire",
    ]


def test_another_dtype_kind_or_axis():
    assert drift(STEP, with_rows(dataclasses.replace(GATHER, dtype="float32", wire_bytes=29.4 * MB))) == [
        "- all-gather over x, 1 x 14.7 MB bfloat16, layer.py:14: 14.7 MB less on the wire",
        "+ all-gather over x, 1 x 29.4 MB float32, layer.py:14: 29.4 MB more on the wire",
    ]
    assert len(drift(STEP, with_rows(dataclasses.replace(GATHER, kind="all-reduce")))) == 2
    assert len(drift(STEP, with_rows(dataclasses.replace(GATHER, axes=("x", "y"))))) == 2
    assert "no axis that is known" in drift(STEP, with_rows(dataclasses.replace(GATHER, axes=())))[1]
    assert "loop of unknown trips" in drift(STEP, with_rows(dataclasses.replace(GATHER, trips_known=False)))[1]


def test_as_many_bytes_in_more_pieces_is_drift():
    now = with_rows(dataclasses.replace(GATHER, count=2))
    assert drift(STEP, now)[1] == "+ all-gather over x, 2 x 7.35 MB bfloat16, layer.py:14: as much on the wire"


def test_unlike_ones_and_many_lines_are_summed_up():
    many = [dataclasses.replace(GATHER, source=f"layer.py:{line}", wire_bytes=line * MB) for line in range(1, 9)]
    line = drift(STEP, with_rows(*many))[1]
    assert "8 of bfloat16 with 36 MB, layer.py:1, layer.py:2, layer.py:3 and 5 lines more: 21.3 MB more" in line


@given(entries, entries)
def test_any_two_entries_are_compared_in_whole_lines(old, new):
    found = difference(old, new)
    assert all(len(line.splitlines()) == 1 for line in (*found.drift, *found.moved))
    if not found.drift:
        assert math.isclose(old.wire_bytes, new.wire_bytes, rel_tol=1e-9, abs_tol=0.1)
        assert sum(row.count for row in old.rows) == sum(row.count for row in new.rows)


@given(st.lists(rows, min_size=1, max_size=4), st.lists(texts, min_size=4, max_size=4))
def test_other_lines_alone_are_never_drift(found, places):
    there = with_rows(*(dataclasses.replace(row, source=place) for row, place in zip(found, places, strict=False)))
    assert difference(with_rows(*found), there).drift == ()


def test_bytes_that_change_places_are_told_as_moved():
    other = dataclasses.replace(GATHER, source="layer.py:31", wire_bytes=MB)
    swapped = with_rows(dataclasses.replace(GATHER, wire_bytes=MB), dataclasses.replace(other, wire_bytes=14.7 * MB))
    assert difference(with_rows(GATHER, other), swapped).moved == (
        "all-gather over x moved from layer.py:14, layer.py:31 to layer.py:14, layer.py:31",
    )


def test_a_line_that_merely_moved_is_no_drift():
    found = difference(STEP, with_rows(dataclasses.replace(GATHER, source="layer.py:19")))
    assert found.drift == ()
    assert found.moved == ("all-gather over x moved from layer.py:14 to layer.py:19",)


def test_memory_drifts_beyond_the_tolerance_only():
    assert drift(STEP, dataclasses.replace(STEP, memory=Memory(1010, 404, 505, 101))) == []
    assert drift(STEP, dataclasses.replace(STEP, memory=Memory(1200, 400, 500, 100))) == [
        "! memory, peak: 1.2 kB, locked 1 kB (+20%)"
    ]
    assert drift(STEP, dataclasses.replace(STEP, memory=Memory(900, 400, 500, 100)), 0.1) == []
    assert drift(STEP, dataclasses.replace(STEP, memory=None)) == [
        "! memory is not known now, and 1 kB at the peak when it was locked"
    ]
    assert drift(dataclasses.replace(STEP, memory=None), STEP) == []
    nothing = dataclasses.replace(STEP, memory=Memory(1000, 0, 500, 100))
    assert drift(nothing, STEP) == ["! memory, temporaries: 400 B, locked 0 B"]


def test_what_cannot_be_read_any_more_is_drift():
    assert "1 thing of the compiled text could not be read" in drift(STEP, dataclasses.replace(STEP, unread=1))[0]


LAID = dataclasses.replace(
    STEP, arguments=(Laid("params['w']", "[I_x, J]"), Laid("a", "[I]")), results=(Laid("result", "[I_x]"),), seconds=2e-3
)


def test_layouts_and_the_modelled_time_are_lines_for_people():
    text = lockfile.text_of(Lock((LAID,)))
    assert 'seconds = 0.002\narguments = [\n  { name = "params[\'w\']", layout = "[I_x, J]" },\n' in text
    assert lockfile.parse(text).entries == (LAID,)


def test_a_file_of_before_there_were_layouts_reads_and_does_not_drift():
    (old,) = lockfile.parse(lockfile.text_of(Lock((STEP,)))).entries
    assert (old.arguments, old.results, old.seconds) == (None, None, None)
    assert drift(old, LAID) == []


@pytest.mark.parametrize(
    ("facts", "line"),
    [
        (
            {"arguments": (Laid("params['w']", "[I, J_x]"), Laid("a", "[I]"))},
            "! argument params['w']: [I, J_x], locked [I_x, J]",
        ),
        ({"arguments": LAID.arguments[:1]}, "- argument a, [I]"),
        ({"results": (*LAID.results, Laid("result[1]", "[]"))}, "+ result result[1], []"),
        ({"arguments": None}, "! layouts of arguments are not known now, and were when they were locked"),
        ({"seconds": 3e-3}, "! modelled time: 3 ms, locked 2 ms (+50%)"),
        ({"seconds": None}, "! the modelled time is not known now, and was 2 ms when it was locked"),
    ],
)
def test_each_layout_and_the_time_drift_with_a_line_of_their_own(facts, line):
    assert drift(LAID, dataclasses.replace(LAID, **facts)) == [line]


def test_modelled_time_drifts_beyond_one_part_in_a_hundred_only():
    assert drift(LAID, dataclasses.replace(LAID, seconds=2e-3 * 1.009)) == []


def test_a_layout_of_a_name_that_stands_twice_is_compared_too():
    twice = dataclasses.replace(LAID, arguments=(Laid("w", "[I]"), Laid("w", "[I]")))
    assert drift(twice, dataclasses.replace(twice, arguments=(Laid("w", "[I]"), Laid("w", "[I_x]")))) == [
        "! argument w (number 1): [I_x], locked [I]"
    ]


def test_another_mesh_is_drift():
    assert drift(STEP, dataclasses.replace(STEP, mesh="x=4, y=2")) == ["- mesh x=8", "+ mesh x=4, y=2"]


def test_another_compiler_alone_is_no_drift_and_is_named_with_it():
    newer = dataclasses.replace(STEP, versions=(("jax", "0.12.0.1"), ("libtpu", "0.0.30")))
    assert report(STEP, newer) == ""
    told = report(STEP, dataclasses.replace(newer, rows=()))
    assert told.splitlines() == [
        "train:step@v5e:2x4 is not what was locked: 0 B on the wire, 14.7 MB locked",
        "  - all-gather over x, 1 x 14.7 MB bfloat16, layer.py:14: 14.7 MB less on the wire",
        "  compiled with jax 0.12.0.1, locked with 0.10.2",
        "  compiled with libtpu 0.0.30, locked with none",
    ]


def test_an_entry_takes_the_place_of_its_own_key_alone():
    other = dataclasses.replace(STEP, target="cpu:8")
    merged = Lock((STEP, other), 0.2).with_entries([with_rows()])
    assert [(entry.key, len(entry.rows)) for entry in merged.entries] == [("train:step@cpu:8", 1), ("train:step@v5e:2x4", 0)]
    assert merged.memory_tolerance == 0.2
    assert merged.find("train:step@cpu:8") is other
    assert merged.find("step") is None


def test_no_line_of_a_report_breaks():
    hostile = dataclasses.replace(GATHER, source="a\nb.py:1", kind="x\ry")
    assert re.fullmatch(r"[ -~\n]*", report(STEP, with_rows(hostile)))
    assert len(report(STEP, with_rows(hostile)).splitlines()) == 3
