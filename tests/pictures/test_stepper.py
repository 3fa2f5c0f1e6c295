"""Stepping with keys: where each leads, screens that fit any window, and a terminal that is left as it was. No JAX."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pictures.terminals import terminal

from shardwise.pictures.keys import decoded
from shardwise.pictures.picture import Picture, Words, columns_of
from shardwise.pictures.plain_text import Segment, plain
from shardwise.pictures.stepper import Place, all_of, cropped, moved, screen

TOUR = "from shardwise.cli import main\nsys.exit(main({}))"
ALL_GATHER = TOUR.format(["tour", "all-gather"])
PICTURES = tuple(Picture(f"stop {n}", "d", (Words(tuple(f"line {k} 軸" for k in range(30)), code=True),)) for n in range(12))


@pytest.mark.parametrize(
    ("typed", "keys"),
    [
        (b" \r\n", ["space", "enter", "enter"]), (b"\x1b[C\x1b[D\x1bOC\x1bOD", ["right", "left", "right", "left"]),
        (b"\x1b[A\x1b[B\x7f", ["up", "down", "back"]), (b"12q", ["1", "2", "q"]), (b"\x1b[99;5~b", ["b"]), (b"\x1b", []),
        (b"\x1b[", []), (b"\x04\x03", ["q", "interrupt"]), ("ä;".encode(), []),
    ],
)  # fmt: skip
def test_what_a_terminal_sends_is_read_as_keys(typed, keys):
    assert decoded(typed) == keys


@given(st.binary(max_size=40))
def test_any_bytes_are_read(typed):
    assert all(isinstance(key, str) and key for key in decoded(typed))


def test_where_keys_lead():
    assert [moved(Place(3), key, 12).at for key in ("space", "enter", "right", "n")] == [4] * 4
    assert [moved(Place(3), key, 12).at for key in ("left", "b", "back", "p")] == [2] * 4
    assert (moved(Place(3), "home", 12).at, moved(Place(3), "end", 12).at) == (0, 11)
    assert (moved(Place(11), "space", 12).at, moved(Place(0), "b", 12).at) == (11, 0)
    assert moved(Place(3), "q", 12) is None


def test_a_number_jumps_at_once_where_no_digit_may_follow():
    assert moved(Place(0), "5", 12) == Place(4)
    one = moved(Place(0), "1", 12)
    assert (one.at, one.typed) == (0, "1")
    assert moved(one, "2", 12) == Place(11)
    assert moved(one, "enter", 12) == Place(0)
    assert moved(one, "9", 12) == Place(11)
    assert moved(Place(0), "0", 12) == Place(0)
    assert moved(one, "x", 12) == Place(0)


def test_long_screens_are_scrolled_no_further_than_they_go():
    assert moved(Place(2, top=0), "down", 12, hidden=3) == Place(2, top=1)
    assert moved(Place(2, top=3), "down", 12, hidden=3) == Place(2, top=3)
    assert moved(Place(2, top=9), "up", 12, hidden=3) == Place(2, top=2)
    assert moved(Place(2, top=0), "up", 12, hidden=3) == Place(2, top=0)


@given(st.lists(st.sampled_from(["space", "b", "up", "down", "home", "end", "enter", *"0123456789x"])), st.integers(1, 30))
def test_whatever_is_typed_one_stays_inside(keys, count):
    place = Place()
    for key in keys:
        place = moved(place, key, count, hidden=5)
        assert 0 <= place.at < count
        assert 0 <= place.top <= 5


@given(st.integers(1, 200), st.integers(1, 60), st.integers(0, 11), st.integers(0, 40))
def test_a_screen_is_as_large_as_its_window(columns, rows, at, top):
    lines, hidden = screen(PICTURES, Place(at, top), columns, rows)

    assert len(lines) == max(rows - 1, 1) + 1
    assert hidden == max(32 - max(rows - 1, 1), 0)
    assert all(columns_of(plain([line])) <= max(columns, 20) for line in lines)
    assert f"{at + 1}/12" in plain(lines[-1:])


def test_what_does_not_fit_is_counted():
    lines, hidden = screen(PICTURES, Place(), 80, 24)

    assert hidden == 9
    assert plain(lines[-1:]).endswith("down: 9 more lines")


def test_a_line_is_cut_where_the_window_ends():
    assert plain([cropped([Segment("device "), Segment("軸軸軸"), Segment("more")], 12)]) == "device 軸軸…"


def test_everything_is_printed_one_after_the_other():
    said = all_of(PICTURES)
    assert [line for line in said.split("\n") if line.startswith("stop")] == [f"stop {n}" for n in range(12)]


def test_keys_step_through_a_tour_and_the_terminal_is_restored():
    with terminal(ALL_GATHER) as seen:
        first = seen.sees("1/6   ")
        assert "one part on each device" in first
        assert "\x1b[?1049h\x1b[?25l" in seen.text
        seen.type(" ")
        assert "S = 3; it is 19" in seen.sees("2/6   ")
        seen.type("\x1b[C")
        assert "device 0 sends [0:1] to 1, 2, 3" in seen.sees("3/6   ")
        seen.type("\r")
        seen.sees("4/6   ")
        seen.type("b")
        seen.sees("3/6   ")
        seen.type("\x1b[D")
        seen.sees("2/6   ")
        seen.type("6")
        assert "90 GB/s" in seen.sees("6/6   ")
        seen.type("q")
        assert seen.ends() == 0
        assert seen.restored


def test_a_new_size_of_the_window_is_drawn_at_once():
    with terminal(ALL_GATHER, 100, 30) as seen:
        seen.sees("1/6   ")
        seen.type("3")
        assert "sends [0:1]" in seen.sees("3/6   ")
        seen.resize(60, 12)
        smaller = seen.sees("down: ")
        assert smaller.count("\r\n") == 11
        seen.type("\x1b[B")
        seen.sees("down: ")
        seen.type("q")
        assert seen.ends() == 0


def test_ctrl_c_leaves_the_terminal_as_it_was():
    with terminal(ALL_GATHER) as seen:
        seen.sees("1/6   ")
        seen.type("\x03")
        assert seen.ends() == 130
        assert seen.restored
        assert "shardwise: interrupted" in seen.text
        assert "Traceback" not in seen.text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_so_does_being_ended(number):
    with terminal(ALL_GATHER) as seen:
        seen.sees("1/6   ")
        os.kill(seen.process.pid, number)
        assert seen.ends() == 128 + number
        assert seen.restored


def test_and_a_crash():
    crash = (
        "import shardwise.pictures.stepper as s\ndef moved(*_): raise ZeroDivisionError('a fault of ours')\ns.moved = moved\n"
    )
    with terminal(crash + ALL_GATHER) as seen:
        seen.sees("1/6   ")
        seen.type(" ")
        assert seen.ends() == 1
        assert seen.restored
        assert "ZeroDivisionError" in seen.text[seen.text.rfind("\x1b[?1049l") :]


def test_ctrl_z_gives_the_terminal_back_until_it_goes_on():
    with terminal(ALL_GATHER) as seen:
        seen.sees("1/6   ")
        os.kill(seen.process.pid, signal.SIGTSTP)
        seen.sees("\x1b[?1049l")
        os.kill(seen.process.pid, signal.SIGCONT)
        seen.sees("1/6   ")
        seen.type("q")
        assert seen.ends() == 0
        assert seen.restored


def test_colours_are_there_and_no_color_is_respected():
    with terminal(ALL_GATHER) as seen:
        assert re.search(r"\x1b\[[\d;]*48;5;", seen.sees("1/6   "))
        seen.type("q")
        seen.ends()
    with terminal(ALL_GATHER, NO_COLOR="1") as seen:
        seen.sees("1/6   ")
        seen.type("q")
        seen.ends()
        assert not re.search(r"\x1b\[[\d;]*m", seen.text)


def test_a_terminal_that_cannot_write_boxes_gets_plain_ones():
    with terminal(ALL_GATHER, PYTHONIOENCODING="ascii", NO_COLOR="1") as seen:
        assert "+-----+" in seen.sees("1/6   ")
        seen.type("q")
        assert seen.ends() == 0


@pytest.mark.parametrize("environment", [{"TERM": "dumb"}, {}], ids=["dumb", "without termios"])
def test_without_single_keys_enter_steps(environment):
    hidden = "" if environment else "sys.modules['termios'] = None\n"
    with terminal(hidden + ALL_GATHER, **environment) as seen:
        assert "one part" in seen.sees("1/6   enter: next")
        seen.type("\n")
        assert "it is 19" in seen.sees("2/6   enter")
        seen.type("b\n")
        seen.sees("1/6   enter")
        seen.type("6\n")
        assert "90 GB/s" in seen.sees("6/6   enter")
        seen.type("\n")
        assert seen.ends() == 0
        assert "\x1b[?1049h" not in seen.text


def test_plain_prints_all_of_it_in_a_terminal_too():
    with terminal(TOUR.format(["tour", "all-gather", "--plain"])) as seen:
        assert seen.ends() == 0
        assert "all-gather 6/6" in seen.text
        assert "\x1b" not in seen.text


def test_piped_it_is_plain_and_needs_no_jax():
    code = (
        "import sys\nfrom shardwise.cli import main\n"
        "assert main(['tour']) == main(['tour', 'case-4']) == 0\n"
        "assert main(['tour', 'A[I_x] -> A[I]', '--sizes', 'I=4', '--mesh', 'x=2']) == 0\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('jax', 'jaxlib')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines()[-1] == "[]"
    assert "case-4 9/9: the cost of the first way" in done.stdout
    assert "\x1b" not in done.stdout
