"""Tours: the sources' numbers on the printed text, wrong numbers that are computed, laws that hold, screens that fit."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.chips import hardware
from shardwise.errors import NotationError, PlanError
from shardwise.mesh import Mesh
from shardwise.notation import parse
from shardwise.pictures.picture import Movement, Table, Words
from shardwise.pictures.plain_text import BOXES, text
from shardwise.pictures.svg import svg
from shardwise.pictures.tours.all import TOURS, tour
from shardwise.pictures.tours.alone import alone
from shardwise.pictures.tours.own import own
from shardwise.pictures.tours.rendering import document, screens
from shardwise.pictures.tours.stops import Alone, Equal, Forms, Ring
from shardwise.reference import assemble, scatter, shard_slices

A, B = np.arange(16).reshape(4, 4), np.arange(16, 32).reshape(4, 4)
C = A @ B


def printed(name: str, hardware_name: str = "tpu-v5e") -> list[str]:
    """Every screen of a tour, as plain text of 80 columns."""
    return [text(screen, 80) for screen in screens(tour(name), hardware_name)]


def rows_of(said: str) -> list[tuple[str, str]]:
    """Of a step with a row for each device: the numbers before, and those after."""
    found = []
    for line in said.split("\n"):
        if line.startswith("device") and "|" in line:
            boxes = re.findall(r"\|((?:[^|]*\|)+)", line.split("device ")[1].replace("-->", "   "))[0]
            halves = re.split(r"\|\s{3,}\|", boxes)
            found.append(tuple(" ".join(re.findall(r"\d+", half)) for half in halves))
    return found


STEPS = [
    ("all-gather", [("3", "3 9 5 2"), ("9", "3 9 5 2"), ("5", "3 9 5 2"), ("2", "3 9 5 2")]),
    ("all-reduce", [(row, "22 20 12 17") for row in ("3 1 4 1", "5 9 2 6", "5 3 5 8", "9 7 1 2")]),
    ("reduce-scatter", [("3 1 4 1", "22"), ("5 9 2 6", "20"), ("5 3 5 8", "12"), ("9 7 1 2", "17")]),
    ("all-to-all", [("3 1 4 1", "3 5 5 9"), ("5 9 2 6", "1 9 3 7"), ("5 3 5 8", "4 2 5 1"), ("9 7 1 2", "1 6 8 2")]),
    ("permute", [("0", "3"), ("1", "0"), ("2", "1"), ("3", "2")]),
    ("slice", [("3 9 5 2", "3"), ("3 9 5 2", "9"), ("3 9 5 2", "5"), ("3 9 5 2", "2")]),
]


@pytest.mark.parametrize(("name", "wanted"), STEPS, ids=[name for name, _ in STEPS])
def test_a_collective_before_and_after_on_every_device(name, wanted):
    """C1 to C5."""
    assert rows_of(printed(name)[2]) == wanted


def test_all_reduce_is_reduce_scatter_then_all_gather():
    """C10, as a table: the partial sum, the part of the sum, the whole sum, and what an all-reduce makes."""
    said = printed("all-reduce")[3]

    assert [re.split(r"  +", line) for line in said.split("\n")[6:10]] == [
        ["0", "3 1 4 1", "22", "22 20 12 17", "22 20 12 17"],
        ["1", "5 9 2 6", "20", "22 20 12 17", "22 20 12 17"],
        ["2", "5 3 5 8", "12", "22 20 12 17", "22 20 12 17"],
        ["3", "9 7 1 2", "17", "22 20 12 17", "22 20 12 17"],
    ]


def has_block(said: str, block: np.ndarray) -> bool:
    """Whether the rows of a matrix stand in boxes below each other."""
    lines = [[re.findall(r"\d+", part) for part in line.split("|")] for line in said.split("\n")]
    wanted = [[str(value) for value in row] for row in block]
    return any(
        all(row in line for row, line in zip(wanted, lines[at:], strict=False)) for at in range(len(lines) - len(wanted) + 1)
    )


def test_the_blocks_that_are_looked_for_are_found_only_where_they_are():
    said = "| 1 2 | 3 |\n| 4 5 | 6 |"
    assert has_block(said, np.array([[1, 2], [4, 5]]))
    assert not has_block(said, np.array([[1, 2], [4, 6]]))


def test_the_four_cases():
    """D1 to D4: parts, partial sums and results as NumPy makes them."""
    one, two, three, four = (printed(f"case-{n}") for n in (1, 2, 3, 4))
    for blocks, said in (
        ([C[:2, :2], C[:2, 2:]], one[2]), ([C[:2, :2], C[:2, 2:], C[2:, :2], C[2:, 2:]], one[3]),
        ([A[:, :2], A[:, 2:], B], two[0]), ([A[:, :2], A[:, 2:]], two[2]), ([A, B, C], two[3]),
        ([A[:, :2] @ B[:2], A[:, 2:] @ B[2:]], two[4]), ([A[:, :2] @ B[:2], A[:, 2:] @ B[2:], C], two[5]),
        ([A[:, :2] @ B[:2], A[:, 2:] @ B[2:], C], three[3]),
        ([B[:, :2], B[:, 2:]], four[3]), ([C[:2], C[2:]], four[4]), ([C[:, :2], C[:, 2:]], four[6]),
    ):  # fmt: skip
        for block in blocks:
            assert has_block(said, block), (block, said)
    assert one[4].count("0 collectives  equal") == 4
    assert "mesh axis x splits both I and K" in four[1]
    assert C[0].tolist()[:2] == [152, 158]


def test_two_axes():
    """D5: the partial sums are 4 x 4, and the blocks 4 x 2, 4 x 4 and 8 x 2."""
    a, b = np.arange(128).reshape(8, 16), np.arange(64).reshape(16, 4)
    c, said = a @ b, printed("two-axes")
    for x, y in itertools.product(range(2), range(2)):
        rows, columns, summed = slice(4 * x, 4 * x + 4), slice(2 * y, 2 * y + 2), slice(8 * y, 8 * y + 8)
        partial = a[rows, summed] @ b[summed]
        assert has_block(said[2], partial[:, :2])
        assert has_block(said[2], partial[:, 2:])
        assert has_block(said[3], c[rows, columns])
        assert has_block(said[4], c[rows])
        assert has_block(said[5], c[rows, columns])


WRONG = [
    ("all-gather", "S = 3; it is 19"), ("all-reduce", "A[0] = 3; it is 22"), ("reduce-scatter", "A[0] = 3; it is 22"),
    ("all-to-all", "S[0] = 3; it is 22"), ("case-2", "C[0, 0] = 20; it is 152"), ("case-3", "C[0, 0] = 20; it is 152"),
    ("case-4", "nothing of C[0, 2]; it is 164"), ("two-axes", "C[0, 0] = 560; it is 4960"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "verdict"), WRONG)
def test_the_wrong_number_stands_beside_the_right_one(name, verdict):
    said = next(screen for screen in printed(name) if "alone" in screen and "right" in screen)

    assert verdict in said


@pytest.mark.parametrize("name", ["slice", "case-1"])
def test_where_nothing_lacks_alone_is_right(name):
    assert "what each device makes alone is right" in printed(name)[1]


def test_a_neighbours_number_is_not_ones_own():
    found = re.findall(r"(\d) +(\d) +(\d) +wrong", printed("permute")[1])
    assert found == [("0", "0", "3"), ("1", "1", "0"), ("2", "2", "1"), ("3", "3", "2")]


def test_no_claim_about_numbers_is_written_by_hand():
    """The words of tours hold no number that a device would get wrong: those stand in tables, which are computed."""
    for name in TOURS:
        for stop in tour(name).stops:
            for look in stop.looks:
                if isinstance(look, Alone):
                    assert not re.search(r"\d{2}", " ".join(stop.words)), stop


@st.composite
def split_matmuls(draw):
    x, y = draw(st.sampled_from([1, 2, 3])), draw(st.sampled_from([2, 4]))
    mesh = Mesh.parse({"x": x, "y": y})
    i, j, k = (x * y * draw(st.integers(1, 2)) for _ in range(3))
    rows = draw(st.sampled_from(["I", "I_x"]))
    a = np.array(draw(st.lists(st.integers(-9, 9), min_size=i * j, max_size=i * j))).reshape(i, j)
    b = np.array(draw(st.lists(st.integers(-9, 9), min_size=j * k, max_size=j * k))).reshape(j, k)
    return mesh, parse(f"A[{rows}, J_y] · B[J_y, K] -> C[{rows}, K]"), a, b


@given(split_matmuls())
def test_what_devices_make_alone_adds_up_to_what_is_right(case):
    """Where a sum is split, and no term is on two devices of an axis, their wrong numbers are its partial sums."""
    mesh, equation, a, b = case
    found = list(alone(equation.on(mesh), mesh, {"A": a, "B": b}))
    c, y = a @ b, mesh.axis_size("y")
    for device in range(0, mesh.size, y):
        group = found[device : device + y]
        for short in group:
            assert short.right == c[short.element]
            assert (short.terms, short.of) == (a.shape[1] // y, a.shape[1])
            assert (short.wrong == 0) == np.array_equal(
                partial_of(short, mesh, equation, a, b), part_of(short, mesh, equation, c)
            )
        total = sum(partial_of(short, mesh, equation, a, b) for short in group)
        np.testing.assert_array_equal(total, part_of(group[0], mesh, equation, c))
        assert [short.alone for short in group] == [
            whole_partial(short, mesh, a, b)[short.element] for short in group
        ]  # fmt: skip


def whole_partial(short, mesh, a, b):
    """The matmul of the columns of A and the rows of B that a device holds."""
    y = mesh.axis_size("y")
    width = a.shape[1] // y
    held = slice(short.device % y * width, (short.device % y + 1) * width)
    return a[:, held] @ b[held]


def partial_of(short, mesh, equation, a, b):
    return part_of(short, mesh, equation, whole_partial(short, mesh, a, b))


def part_of(short, mesh, equation, whole):
    coordinate = list(mesh.coordinates())[short.device]
    return whole[shard_slices(equation.result.layout.on(mesh), whole.shape, coordinate, mesh)]


@pytest.mark.parametrize("name", TOURS)
def test_every_law_of_a_tour_holds(name):
    pictures = screens(tour(name), "h100")
    for stop, screen in zip(tour(name).stops, pictures, strict=True):
        said = str(screen)
        assert "not equal" not in said
        assert "NOT" not in said
        if any(isinstance(look, Equal) for look in stop.looks):
            assert "the last two columns are equal on every device" in said
        if any(isinstance(look, Ring) for look in stop.looks):
            assert "the rows of every device are those of C" in said
        if any(isinstance(look, Forms) for look in stop.looks):
            assert said.count("equal") == 4


@pytest.mark.parametrize("name", TOURS)
def test_a_stop_fits_a_terminal_of_80_by_24(name):
    for screen in screens(tour(name), "tpu-v5e"):
        lines = text(screen, 80, BOXES).split("\n")
        assert max(map(len, lines)) <= 80, screen.title
        if screen.title != "layouts 6/6: all layouts of a matrix":  # one sheet: 11 layouts, to be scrolled
            assert len(lines) <= 23, screen.title


@pytest.mark.parametrize("name", TOURS)
def test_a_tour_is_one_document(name):
    drawn = document(tour(name), "tpu-v5e")

    assert [part.title for part in drawn.parts if isinstance(part, Words) and part.title] == [
        f"{number}. {stop.title}" for number, stop in enumerate(tour(name).stops, 1)
    ]
    assert all(part.open for part in drawn.parts if isinstance(part, Movement))
    assert len(svg(drawn)) < 150_000
    assert text(drawn)


@pytest.mark.parametrize("name", hardware.names())
def test_costs_on_every_hardware(name):
    said = printed("all-gather", name)[-1]

    assert hardware(name).title in said
    assert re.search(r"all-gather A over x \(I\): [\d.]+ [mu]?s, 201 MB sent by each device", said)


def test_the_formula_of_an_all_gather_with_its_numbers():
    """2**27 numbers of 2 bytes round a slice of 2 x 2: 3/4 of 268 MB over both links of 45 GB/s; and the copy at the end."""
    said = printed("all-gather")[-1]
    assert "on TPU v5e, v5e:2x2 assumed\n" in said
    assert "max(L, V · (n-1)/n / W) = max(2 us, 268 MB · 3/4 / 90 GB/s) = 2.24 ms" in said


def test_an_all_reduce_sends_twice_what_the_others_do():
    """As the laws' words say, on every hardware."""
    for name in hardware.names():
        sent = [re.search(r"(\d+) MB sent", printed(each, name)[-1]) for each in ("all-reduce", "all-gather", "reduce-scatter")]
        assert [found[1] for found in sent if found] == ["403", "201", "201"]


def test_all_layouts_of_a_matrix_are_on_one_sheet():
    said = printed("layouts")[-1]

    assert "11 layouts of A[I, J], 4 x 4, on mesh x=2, y=2" in said
    assert len(re.findall(r"A\[I", said)) == 12


SMALL = {"I": 4, "J": 4, "K": 4}


def test_ones_own_equation():
    given_ = own("A[I, J_x] · B[J_x, K] -> C[I, K]", SMALL, "x=4", "tpu-v5e", "bfloat16")
    said = [text(screen, 80) for screen in screens(given_, "tpu-v5e")]
    a = np.arange(16).reshape(4, 4)

    assert "device 0 alone would say C[0, 0] = 0; it is 56" in said[1]
    assert has_block(said[-2], a @ a)
    assert "The parts make what np.einsum makes of the whole arrays." in said[-2]
    assert "multiply, all-reduce C" in said[2]


OWN = [
    ("A[I_x, J] -> A[I, J_x]", {"I": 4, "J": 4}, "x=4"), ("A[I_x, J] -> S[]", {"I": 4, "J": 4}, "x=2"),
    ("A[I_x, J] · B[J, K_x] -> C[I_?, K]", SMALL, "x=2"), ("A[I]{U_x} -> A[I_x]", {"I": 4}, "x=4"),
    ("A[I, J_x] · B[J_x, K] -> C[I, K]{U_x} -> C[I_x, K]", SMALL, "x=2"), ("A[I, J] · A[J, K_x] -> C[I, K]", SMALL, "x=2"),
    ("A[I_x, J] · B[J, K_y] · D[K, L] -> E[I, L]", {**SMALL, "L": 4}, "x=2, y=2"),
    ("A[I, J] · B[J, K] -> C[I, K]", SMALL, "x=1"),
    ("A[I, J] · B[J, K] -> C[I, K]", SMALL, "x=4"), ("A[] · B[I_x] -> C[I]", {"I": 4}, "x=2"),
]  # fmt: skip


@pytest.mark.parametrize(("equation", "sizes", "mesh"), OWN, ids=[case[0] for case in OWN])
@pytest.mark.parametrize("name", ["tpu-v5e", "cpu"])
def test_equations_of_every_kind(equation, sizes, mesh, name):
    given_ = own(equation, sizes, mesh, name, "bfloat16")
    said = "\n".join(text(screen, 80) for screen in screens(given_, name))

    assert "The parts make what np.einsum makes of the whole arrays." in said
    assert svg(document(given_, name))


REFUSED = [
    ({"I": 1024, "J": 4, "K": 4}, "x=4", "A[I_x, J] has 4,096, more than 1,024: use smaller sizes, as --sizes I=4,J=4,K=4"),
    (SMALL | {"I": 32}, "x=32", "mesh x=32 has 32, more than 16: use a smaller --mesh"),
]


@pytest.mark.parametrize(("sizes", "mesh", "reason"), REFUSED)
def test_what_is_too_large_to_look_at_is_refused(sizes, mesh, reason):
    with pytest.raises(PlanError, match=re.escape(reason)):
        own("A[I_x, J] · B[J, K] -> C[I, K]", sizes, mesh, "tpu-v5e", "bfloat16")


def test_numbers_that_grow_beyond_what_is_exact_are_refused():
    operands = " · ".join(f"{name}[I, J]" for name in "ABCDEFG")
    with pytest.raises(PlanError, match="exact numbers"):
        own(f"{operands} -> Z[I]", {"I": 16, "J": 16}, "x=2", "tpu-v5e", "bfloat16")


@pytest.mark.parametrize("name", ["all_gather", "All-Gather", "case3", "case 3", "3"])
def test_names_are_read_as_people_type_them(name):
    assert tour(name).name in ("all-gather", "case-3")


def test_an_unknown_tour_names_those_there_are():
    with pytest.raises(
        NotationError, match=r"there is no tour 'al-gather' \(did you mean 'all-gather'\?\): there are layouts, "
    ):
        tour("al-gather")


def test_tables_have_a_cell_for_every_column():
    for name in TOURS:
        for part in document(tour(name), "tpu-v5e").parts:
            if isinstance(part, Table):
                assert {len(row) for row in part.rows} == {len(part.head)}


def test_partial_sums_of_a_list_are_their_sum():
    mesh = Mesh.parse("x=2")
    shards = scatter(np.arange(4), parse("A[I]{U_x} -> A[I]").operands[0].layout, mesh)
    (first, _) = alone(parse("A[I]{U_x} -> A[I]"), mesh, {"A": shards})

    whole = assemble(shards, parse("A[I]{U_x} -> A[I]").operands[0].layout, mesh)
    assert (int(first.alone), int(first.right)) == (int(shards[0][0]), int(whole[0]))
