"""Whatever is written, a parser returns a value or one of our own errors, on lines that a terminal may see, and soon."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from malformed import VALID, malformed

import shardwise as sw
from shardwise.chips.topology import Topology
from shardwise.compiled.signature import check_on, parse_types
from shardwise.errors import LayoutError, MeshError, NotationError, PlanError, ShardwiseError, quoted
from shardwise.grammar import MOST_DIMS
from shardwise.layout import Layout
from shardwise.mesh import LARGEST, Mesh
from shardwise.notation import parse_operand, parse_sizes
from shardwise.planning.problem import MOST_OPERANDS, MOST_STAGES

EQUATION, SIZES = VALID["equation"][0], {"I": 8, "J": 4, "K": 4}


def planned(equation: str = EQUATION, mesh: Any = "x=4", sizes: Any = None, **more: Any) -> str:
    return sw.plan(equation, sizes=SIZES if sizes is None else sizes, mesh=mesh, **more).explain()


PARSERS: dict[str, list[Callable[[str], Any]]] = {
    "equation": [sw.parse, planned],
    "layout": [Layout.parse, parse_operand, lambda text: Layout.all(text, "x=2")],
    "mesh": [lambda text: str(Mesh.parse(text)), lambda text: planned(mesh=text)],
    "sizes": [parse_sizes, lambda text: planned(sizes=parse_sizes(text))],
    "types": [lambda text: check_on(parse_types(text), Mesh.parse("x=4, y=2"))],
    "topology": [Topology.parse, lambda text: planned(hardware=text)],
    "hardware": [sw.hardware, lambda text: planned(hardware=text), lambda text: planned(dtype=text)],
}


@pytest.mark.parametrize("kind", PARSERS)
def test_a_parser_returns_or_raises_one_of_our_own_errors(kind: str):
    refused = 0
    for text in malformed(kind, 60, seed=1):
        for parser in PARSERS[kind]:
            try:
                parser(text)
            except ShardwiseError as error:
                refused += 1
                said = str(error)
                assert all(line.isprintable() for line in said.split("\n")), repr(said)
                assert not any(line.strip().startswith("::") for line in said.split("\n")[1:]), repr(said)
                assert len(said) < 3000 + 5 * len(text)
    assert refused > 20


def chain(count: int) -> str:
    return " · ".join(f"M{k}[D{k}, D{k + 1}]" for k in range(count)) + f" -> R[D0, D{count}]"


def dims(count: int) -> str:
    return ", ".join(f"D{k}" for k in range(count))


TOO_MUCH = [
    pytest.param(lambda: parse_sizes("I=" + "9" * 5000), NotationError, "is too large; write I=16384,J=1024; the largest is",
                 id="a size of 5,000 digits"),
    pytest.param(lambda: parse_sizes(f"I={2**63}"), NotationError, "is too large", id="a size of 64 bits"),
    pytest.param(lambda: parse_sizes("=3"), NotationError, "'=3' is no size", id="a size of nothing"),
    pytest.param(lambda: Mesh.parse("x=" + "9" * 5000), MeshError, "is no size for mesh axis x", id="5,000 digits of devices"),
    pytest.param(lambda: Mesh.parse({"x": 10**5000}), MeshError, "a number of about 5,001 digits", id="a mesh of 10**5000"),
    pytest.param(lambda: Mesh.parse({"x": 2**32, "y": 2**32}), MeshError, f"the devices of a mesh are at most {LARGEST:,}",
                 id="2**64 devices"),
    pytest.param(lambda: Mesh.parse(",".join(f"x{k}=2" for k in range(20_000))), MeshError, "the mesh has 20000 axes",
                 id="20,000 axes"),
    pytest.param(lambda: planned(sizes=SIZES | {"I": 10**400}), PlanError, "a size is at most", id="10**400"),
    pytest.param(lambda: planned(sizes=SIZES | {"I": 10**5000}), PlanError, "has size a number of about 5,001 digits",
                 id="10**5000"),
    pytest.param(lambda: Layout.parse("I").shard_shape({"I": 10**5000}, "x=2"), LayoutError, "a size is at most",
                 id="a shard of 10**5000"),
    pytest.param(lambda: planned(memory_limit="1" * 5000), PlanError, "is no number", id="a memory limit that is none"),
    pytest.param(lambda: planned(chain(1000), sizes={f"D{k}": 4 for k in range(1001)}), PlanError,
                 f"the equation has 1000 operands, and at most {MOST_OPERANDS} are planned", id="1,000 operands"),
    pytest.param(lambda: planned("A[I]" + " -> A[I]" * 1000, sizes={"I": 4}), PlanError,
                 f"the equation has 1000 layouts of the result, and at most {MOST_STAGES} are planned", id="1,000 arrows"),
    pytest.param(lambda: sw.parse(f"A[{dims(65)}] -> B[]"), NotationError, f"an array of more than {MOST_DIMS} dimensions",
                 id="65 dimensions"),
    pytest.param(lambda: sw.parse(f"A[{dims(20_000)}] -> B[]"), NotationError, "of more than 64", id="20,000 dimensions"),
    pytest.param(lambda: planned(f"A[{dims(64)}] -> B[]", sizes={f"D{k}": 10**18 for k in range(64)}), PlanError,
                 "elements, too many to estimate", id="10**1152 elements"),
    pytest.param(lambda: Layout.all("I, J, K, L, M, N, O, P", ", ".join(f"{c}=2" for c in "abcdefgh")), LayoutError,
                 "has 4.38e+08 layouts on mesh", id="all of too many layouts"),
    pytest.param(lambda: Topology.parse("v5e:" + "2x" * 100_000 + "2"), ShardwiseError, "100001 dimensions where v5e has 2",
                 id="100,001 dimensions of chips"),
]  # fmt: skip


@pytest.mark.parametrize(("act", "error", "reason"), TOO_MUCH)
def test_too_much_is_refused_at_once(act: Callable[[], Any], error: type[ShardwiseError], reason: str):
    with pytest.raises(error) as caught:
        act()
    assert reason in str(caught.value)
    assert len(str(caught.value)) < 3000


def test_huge_and_legal_sizes_and_meshes_are_planned():
    assert "I=1000000000000" in planned(sizes={"I": 10**12, "J": 10**12, "K": 10**12})
    assert "I=1000000000000000000" in planned(sizes={"I": 10**18, "J": 4, "K": 4}, mesh="x=1000000000")
    scattered = "A[I, J_x] · B[J_x, K] -> C[I_x, K]"
    assert "reduce-scatter" in planned(
        scattered, sizes={"I": 2**40, "J": 2**40, "K": 128}, mesh={"x": 2**30}, hardware="tpu-v5e"
    )
    assert "local einsum" in planned(f"A[{dims(64)}_x] -> B[]", sizes={f"D{k}": 2 for k in range(64)}, mesh="x=2")


def test_a_value_in_a_message_is_short_and_on_one_line():
    assert quoted(10**5000) == "a number of about 5,001 digits"
    assert quoted({"x": 10**5000}) == "a dict"
    assert quoted("a\nb\x1b") == "'a\\nb\\x1b'"
    assert len(quoted("x" * 10**6)) < 70
