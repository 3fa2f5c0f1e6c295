"""Laws of programs: `rule` accepts a step exactly where the oracle keeps the value.

Refusals are held to account too: a refused step either cannot be done to the shards, or leaves shards that are the
value in no layout at all. Two kinds of refused steps would keep the value, and say nothing: a step over no axes, or
over axes of size 1 (layouts are canonical and do not hold them); and an all-to-all from a dimension to itself.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.equations import random_case, random_layout, random_mesh, whole
from shardwise.errors import LayoutError, ProgramError
from shardwise.layout import Axes, Layout
from shardwise.mesh import Mesh
from shardwise.notation import Equation, Operand
from shardwise.program import Program, relayout, rule, shift
from shardwise.reference import Shards, apply, assemble, run, scatter
from shardwise.steps import AllGather, AllReduce, AllToAll, CollectivePermute, Einsum, ReduceScatter, Slice, Step

randoms = st.randoms(use_true_random=False)
MESHES = [Mesh.parse(text) for text in ("x=2", "x=3", "x=2, y=2", "x=3, y=2", "x=4, y=2", "x=2, y=2, z=2")]


def distinct(random: Random, shape: tuple[int, ...]) -> np.ndarray:
    """Large numbers of no pattern, so that only the right value looks right."""
    return np.random.default_rng(random.getrandbits(32)).integers(1000, 10**6, shape)


def every_layout(dims: tuple[str, ...], mesh: Mesh) -> Iterator[Layout]:
    places = [None, "partial sums", *dims]
    for order in itertools.permutations(mesh.names):
        for chosen in itertools.product(places, repeat=len(order)):
            split = {dim: tuple(axis for axis, place in zip(order, chosen, strict=True) if place == dim) for dim in dims}
            partial = frozenset(axis for axis, place in zip(order, chosen, strict=True) if place == "partial sums")
            yield Layout(tuple(split.items()), partial)


def is_the_value(shards: Shards, layout: Layout, mesh: Mesh, value: np.ndarray) -> bool:
    try:
        return np.array_equal(assemble(shards, layout, mesh), value)
    except (AssertionError, ValueError):  # replicas differ, or shapes do not fit
        return False


def is_the_value_somehow(shards: Shards, dims: tuple[str, ...], mesh: Mesh, value: np.ndarray) -> bool:
    return any(is_the_value(shards, layout, mesh, value) for layout in every_layout(dims, mesh))


def random_step(random: Random, dims: tuple[str, ...], mesh: Mesh) -> Step:
    axes = tuple(random.sample(mesh.names, random.randint(1, len(mesh.names))))
    dim = random.choice(dims)
    others = [other for other in dims if other != dim]
    kinds = [AllGather("A", dim, axes), Slice("A", dim, axes), ReduceScatter("A", dim, axes), AllReduce("A", axes)]
    return random.choice([*kinds, AllToAll("A", dim, random.choice(others), axes)] if others else kinds)


@given(randoms)
def test_rule_accepts_a_collective_exactly_where_the_oracle_keeps_the_value(random: Random):
    mesh = random.choice(MESHES)
    dims = ("I", "J")[: random.randint(1, 2)]
    layout = random_layout(random, dims, mesh.names, mesh.names)
    value = distinct(random, (mesh.size**2,) * len(dims))
    shards = scatter(value, layout, mesh)
    for step in {random_step(random, dims, mesh) for _ in range(6)}:
        try:
            after = rule(step, {"A": layout}, mesh)["A"]
        except (ProgramError, LayoutError):
            done = apply(step, {"A": shards}, {"A": layout}, mesh)["A"]
            assert not is_the_value_somehow(done, dims, mesh, value), f"{step} on {layout} is refused, and keeps the value"
        else:
            done = apply(step, {"A": shards}, {"A": layout}, mesh)["A"]
            assert is_the_value(done, after, mesh, value), f"{step} on {layout} is said to give {after}, and does not"


@given(randoms)
def test_rule_accepts_an_einsum_exactly_where_the_oracle_multiplies(random: Random):
    mesh = random.choice(MESHES[:5])
    pool = "IJK"[: random.randint(1, 3)]
    sides = []
    for name in "AB"[: random.randint(1, 2)]:
        dims = random.sample(pool, random.randint(1, min(2, len(pool))))
        sides.append(Operand(name, random_layout(random, dims, mesh.names, mesh.names)))
    known = tuple(dict.fromkeys(dim for side in sides for dim in side.dims))
    kept = tuple(random.sample(known, random.randint(0, min(2, len(known)))))
    arrays = {side.name: distinct(random, (2 * mesh.size,) * len(side.dims)) for side in sides}
    shards = {side.name: scatter(arrays[side.name], side.layout, mesh) for side in sides}
    layouts = {side.name: side.layout for side in sides}
    result = Operand("C", Layout(tuple((dim, ()) for dim in kept)))
    wanted = whole(Equation(tuple(sides), result), list(arrays.values()))
    step = Einsum(tuple(layouts), "C", kept)
    try:
        after = rule(step, layouts, mesh)["C"]
    except ProgramError:
        try:
            done = apply(step, shards, layouts, mesh)["C"]
        except ValueError:  # the shards do not fit each other
            return
        assert not is_the_value_somehow(done, kept, mesh, wanted), f"{step} on {layouts} is refused, and multiplies"
    else:
        assert is_the_value(apply(step, shards, layouts, mesh)["C"], after, mesh, wanted), f"{step} on {layouts}: {after}"


@given(randoms)
def test_a_permutation_by_relayout_keeps_the_value(random: Random):
    mesh = random.choice([Mesh.parse("x=2, y=2"), Mesh.parse("x=2, y=2, z=2"), Mesh.parse("x=2, y=4, z=2")])
    before = random_layout(random, "IJ", mesh.names, mesh.names[-1:])
    value = distinct(random, (mesh.size, mesh.size))
    for after in every_layout(("I", "J"), mesh):
        if _can_become(before, after, mesh):
            step = relayout("A", before, after, mesh, keeps=random.random() < 0.5)
            assert rule(step, {"A": before}, mesh)["A"] == after
            done = apply(step, {"A": scatter(value, before, mesh)}, {"A": before}, mesh)["A"]
            assert is_the_value(done, after, mesh, value)


@given(randoms)
def test_rule_accepts_a_permutation_to_another_layout_exactly_where_it_keeps_the_value(random: Random):
    mesh = random.choice(
        [Mesh.parse("x=2, y=2"), Mesh.parse("x=3, y=3"), Mesh.parse("x=2, y=2, z=2"), Mesh.parse("x=4, y=2, z=2")]
    )
    before = random_layout(random, "IJ", mesh.names)
    others = [layout for layout in every_layout(("I", "J"), mesh) if _can_become(before, layout, mesh)]
    if not others:
        return
    after = random.choice(others)
    right = relayout("A", before, after, mesh)
    axes, same = right.axes, all(mesh.extent(old) == mesh.extent(new) for old, new in _splits(before, after))
    if same and random.random() < 0.5:  # who cuts a dimension names all its axes
        axes = tuple(random.sample(mesh.names, random.randint(1, len(mesh.names))))
    extent = mesh.extent(axes)
    pairs = list(right.pairs) if axes == right.axes else [(k, k) for k in range(extent)]
    if random.random() < 0.7:  # two senders change places, or a pair is missing
        one, other = random.randrange(extent), random.randrange(extent)
        pairs[one], pairs[other] = (pairs[other][0], pairs[one][1]), (pairs[one][0], pairs[other][1])
        pairs = pairs[: random.choice([extent, extent, extent - 1])] if one != other else pairs
    step = CollectivePermute("A", axes, tuple(pairs), after)
    value = distinct(random, (mesh.size, mesh.size))
    done = apply(step, {"A": scatter(value, before, mesh)}, {"A": before}, mesh)["A"]
    try:
        rule(step, {"A": before}, mesh)
    except ProgramError:
        assert not is_the_value(done, after, mesh, value), f"{step} on {before} is refused, and keeps the value"
    else:
        assert is_the_value(done, after, mesh, value), f"{step} on {before} is accepted, and does not keep the value"


def _can_become(before: Layout, after: Layout, mesh: Mesh) -> bool:
    """Whether no part that a device is to have is cut over two shards, of other axes too."""
    parts = all(mesh.extent(new) % mesh.extent(old) == 0 for old, new in _splits(before, after))
    return parts and before.unreduced == after.unreduced and before != after


def _splits(before: Layout, after: Layout) -> list[tuple[Axes, Axes]]:
    return [(old, new) for (_, old), (_, new) in zip(before.dims, after.dims, strict=True)]


def test_a_shift_rolls_the_value():
    """The one step that changes the value by design: collective matmuls are made of it."""
    mesh, layout = Mesh.parse("x=4"), Layout.parse("I_x")
    program = Program(mesh, (("A", layout),), (shift("A", layout, "x", mesh),), "A")
    assert run(program, np.arange(8)).tolist() == [6, 7, 0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    "step", [AllToAll("A", "I", "I", ("x",)), AllGather("A", "I", ()), Slice("A", "J", ()), AllReduce("A", ())]
)
def test_steps_that_say_nothing_are_refused(step):
    with pytest.raises(ProgramError):
        rule(step, {"A": Layout.parse("I_x, J")}, Mesh.parse("x=2"))


def random_program(random: Random) -> tuple[Program, Equation, dict[str, int]]:
    """A walk of legal steps: moves of any live array, and einsums, until one array is left."""
    case = random_case(random, operands=(1, 2, 3), rank=3, partial=0.6, free=0.0, via=0.0, elements=20000)
    mesh = case.mesh
    names = "ABC"[: len(case.equation.operands)]
    equation = Equation(
        tuple(Operand(name, operand.layout) for name, operand in zip(names, case.equation.operands, strict=True)),
        case.equation.result,
    )
    live = {operand.name: operand.layout.on(mesh) for operand in equation.operands}
    inputs, steps = tuple(live.items()), []
    wide = [name for name, size in mesh.axes if size > 1]
    for _ in range(200):
        name = random.choice(list(live))
        if random.random() < 0.3 and len(live) > 1:
            pair = tuple(random.sample(list(live), 2))
            outside = {dim for other in live if other not in pair for dim in live[other].names} | set(equation.result.dims)
            met = dict.fromkeys(dim for side in pair for dim in live[side].names)
            step = Einsum(pair, "".join(pair), tuple(dim for dim in met if dim in outside))
        elif wide and live[name].names:
            step = _renamed(random_step(random, live[name].names, Mesh(tuple((a, mesh.axis_size(a)) for a in wide))), name)
        else:
            continue
        try:
            after = rule(step, live, mesh)
            [layout.shard_shape(case.sizes, mesh) for layout in after.values()]
        except (ProgramError, LayoutError):
            continue
        steps.append(step)
        live = after
        if len(live) == 1 and random.random() < 0.3:
            break
    (name,) = live if len(live) == 1 else (None,)
    if name is not None and live[name].names != equation.result.dims:
        steps.append(Einsum((name,), "R", equation.result.dims))
        name = "R"
    return Program(mesh, inputs, tuple(steps), name or next(iter(live))), equation, dict(case.sizes)


def _renamed(step: Step, name: str) -> Step:
    match step:
        case AllGather(_, dim, axes):
            return AllGather(name, dim, axes)
        case ReduceScatter(_, dim, axes):
            return ReduceScatter(name, dim, axes)
        case AllReduce(_, axes):
            return AllReduce(name, axes)
        case AllToAll(_, source, target, axes):
            return AllToAll(name, source, target, axes)
        case Slice(_, dim, axes):
            return Slice(name, dim, axes)
        case _:
            raise AssertionError(step)


@given(randoms)
def test_a_random_program_of_legal_steps_equals_einsum(random: Random):
    program, equation, sizes = random_program(random)
    if len(program.states()[-1]) > 1:
        return  # the walk never met a legal product
    arrays = [distinct(random, tuple(sizes[dim] for dim in operand.dims)) % 17 for operand in equation.operands]
    assert np.array_equal(run(program, *arrays), whole(equation, arrays)), str(program)


def test_random_programs_are_many_and_varied():
    kinds = {}
    finished = 0
    for seed in range(200):
        program, _, _ = random_program(Random(f"program {seed}"))
        finished += len(program.states()[-1]) == 1
        for step in program.steps:
            kinds[type(step)] = kinds.get(type(step), 0) + 1
    assert finished > 150
    assert all(kinds.get(each, 0) > 20 for each in (AllGather, ReduceScatter, AllReduce, AllToAll, Slice, Einsum)), kinds


@given(randoms)
def test_scatter_and_assemble_are_inverse(random: Random):
    mesh = random_mesh(random, devices=12)
    layout = random_layout(random, "IJ", mesh.names, mesh.names)
    value = distinct(random, tuple(mesh.extent(axes) * random.randint(1, 3) for _, axes in layout.dims))
    shards = scatter(value, layout, mesh)
    assert len(shards) == mesh.size
    assert math.prod(shards[0].shape) * mesh.extent(layout.axes) == value.size
    assert np.array_equal(assemble(shards, layout, mesh), value)
