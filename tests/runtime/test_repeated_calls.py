"""A repeated call plans and compiles nothing."""

from __future__ import annotations

import jax
import pytest
from contractions import GATHERED, drawn, placed
from jax.sharding import AxisType

import shardwise as sw
from shardwise.runtime import execute


@pytest.fixture
def compilations() -> list[str]:
    """Grows by one whenever the compiler runs."""
    found: list[str] = []

    def listen(event: str, seconds: float, **_) -> None:
        if "backend_compile" in event:
            found.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    return found


def test_a_repeated_call_plans_and_compiles_nothing(compilations):
    a, b = placed(GATHERED, drawn(GATHERED, {"I": 24, "J": 4, "K": 4}), sw.make_mesh("x=4"))
    sw.einsum(GATHERED, a, b).block_until_ready()
    first, planned = len(compilations), execute.prepare.cache_info()
    assert first > 0
    for _ in range(3):
        sw.einsum(GATHERED, a, b).block_until_ready()
        sw.einsum(GATHERED, a, b, mesh=sw.make_mesh("x=4"), hardware=None).block_until_ready()
    assert len(compilations) == first
    after = execute.prepare.cache_info()
    assert (after.misses, after.hits) == (planned.misses, planned.hits + 6)


def test_a_repeated_call_of_a_plans_function_compiles_nothing(compilations):
    plan = sw.plan(GATHERED, sizes={"I": 28, "J": 4, "K": 4}, mesh="x=4", dtype="float32")
    function = plan.function(sw.make_mesh("x=4"))
    arrays = drawn(GATHERED, {"I": 28, "J": 4, "K": 4})
    function(*arrays).block_until_ready()
    first = len(compilations)
    for _ in range(3):
        function(*arrays).block_until_ready()
    assert len(compilations) == first


def test_other_values_hit_the_cache_and_all_else_misses_it():
    a, b = drawn(GATHERED, {"I": 16, "J": 5, "K": 3})
    sw.einsum(GATHERED, a, b, mesh="x=4")
    misses = execute.prepare.cache_info().misses
    sw.einsum(GATHERED, a + 1, b - 1, mesh="x=4")
    assert execute.prepare.cache_info().misses == misses
    for number, call in enumerate(
        [
            lambda: sw.einsum(GATHERED, a, b, mesh="x=2"),
            lambda: sw.einsum(GATHERED, a.astype("bfloat16"), b, mesh="x=4"),
            lambda: sw.einsum(GATHERED, a[:8], b, mesh="x=4"),
            lambda: sw.einsum(GATHERED, a, b, mesh="x=4", hardware="tpu-v5e"),
            lambda: sw.einsum(GATHERED, a, b, mesh="x=4", precision="highest"),
            lambda: sw.einsum(GATHERED, a, b, mesh=sw.make_mesh("x=4", axis_types=AxisType.Auto)),
            lambda: sw.einsum(GATHERED, a, b, mesh=sw.make_mesh("x=4", devices=jax.devices()[4:])),
        ],
        1,
    ):
        call()
        assert execute.prepare.cache_info().misses == misses + number


def test_the_cache_is_bounded():
    limit = execute.prepare.cache_info().maxsize
    assert limit is not None
    assert limit <= 1024
