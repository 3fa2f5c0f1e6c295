"""Arguments by the names of the function's own parameters, however it is given: in findings, notes, errors and JSON."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import shardwise as sw
from shardwise.compiled.arguments import parameter_names
from shardwise.compiled.export import facts
from shardwise.compiled.targets.abstract_arguments import at_home
from shardwise.errors import CompileError, MeshError


@functools.cache
def mesh() -> jax.sharding.Mesh:
    return sw.make_mesh("x=8", axis_types=AxisType.Auto)


def array(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh(), P("x")))


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Layer:
    wq: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Model:
    layers: list[Layer]


def whole(w: Any) -> Any:
    return jnp.sin(lax.with_sharding_constraint(w, NamedSharding(mesh(), P())))


def of_dict(params: Any, x: Any) -> Any:
    return x @ whole(params["layers"][1]["wq"])


def of_model(params: Any, x: Any) -> Any:
    return x @ whole(params.layers[1].wq)


def with_more(times: int, params: Any, x: Any, *, scale: float = 1.0) -> Any:
    return times * of_model(params, x) * scale


def of_names(x: Any, **weights: Any) -> Any:
    return x @ whole(weights["w"])


def mapped(params: Any, x: Any) -> Any:
    return x @ lax.all_gather(params["layers"][1]["wq"], "x", tiled=True)


def undisguised(*args: Any) -> Any:
    """A wrapper that names nothing, of a jitted function."""
    return jax.jit(of_dict)(*args)


def twice_undisguised(*args: Any) -> Any:
    def wrapped(*args: Any) -> Any:
        spec = {"layers": [{"wq": P("x")}] * 2}, P("x")
        return jax.shard_map(mapped, mesh=mesh(), in_specs=spec, out_specs=P("x"))(*args)

    return jax.jit(wrapped)(*args)


DICT = {"layers": [{"wq": array(64, 8)}, {"wq": array(64, 8)}]}
MODEL = Model([Layer(array(64, 8)), Layer(array(64, 8))])
X = array(16, 64)
IN_DICT, IN_MODEL = "params['layers'][1]['wq']", "params.layers[1].wq"


@pytest.mark.parametrize(
    ("function", "args", "name"),
    [
        (of_dict, (DICT, X), IN_DICT),
        (jax.jit(of_model), (MODEL, X), IN_MODEL),
        (jax.jit(with_more, static_argnums=0), (2, MODEL, X), IN_MODEL),
        (functools.partial(with_more, 2, scale=3.0), (MODEL, X), IN_MODEL),
        (jax.jit(lambda x, w: of_names(x, w=w)), (X, array(64, 8)), "w"),
        (undisguised, (DICT, X), IN_DICT),
        (twice_undisguised, (DICT, X), IN_DICT),
    ],
)
def test_an_argument_is_called_as_the_function_calls_it(function: Callable[..., Any], args: tuple[Any, ...], name: str):
    of = sw.audit(function, *args)
    assert any(f"gathered whole, 1.79 kB received: {name}" in finding.what for finding in of.findings)
    assert name in [argument["name"] for argument in facts(of)["arguments"]]
    assert not any("args[" in argument.name for argument in of.arguments)


def test_arguments_that_are_used_are_known_with_their_shapes_and_axes():
    of = sw.audit(lambda a, unused, b: a.sum() + b.sum(), array(64, 8), array(8), jax.ShapeDtypeStruct((4,), jnp.float32))
    assert [(each.name, each.shape) for each in of.arguments] == [("a", (64, 8)), ("b", (4,))]
    assert of.arguments[0].axes == ("x",)


def test_a_layout_that_cannot_be_had_names_the_argument_that_it_is_asked_of():
    uneven = jax.jit(lambda params: lax.with_sharding_constraint(params["w"], NamedSharding(mesh(), P("x"))).sum(0))
    weights = {"w": jax.ShapeDtypeStruct((6, 10), jnp.float32)}
    said = [finding.what for finding in sw.audit(uneven, weights).findings if finding.kind == "uneven-layout"]
    assert said[0].startswith("a constraint splits dimension 0 of params['w'] (float32[6,10]) over x")


def test_parameters_are_named_as_far_as_python_knows_them():
    assert parameter_names(with_more, 3) == ("times", "params", "x")
    assert parameter_names(functools.partial(with_more, 2), 2) == ("params", "x")
    assert parameter_names(undisguised, 2) == ("args[0]", "args[1]")
    assert parameter_names(dict.fromkeys, 4)[3] == "[3]"
    with pytest.raises(MeshError, match=r"params\['layers'\]\[0\]\['wq'\] is laid out as"):
        at_home((DICT, X), jax.sharding.AbstractMesh((4,), ("y",)), parameter_names(of_dict, 2))


def test_the_function_of_a_plan_calls_its_arguments_as_the_equation_does():
    mesh, sizes = sw.make_mesh("x=8"), {"I": 64, "J": 8, "K": 8}
    for equation, names in (("A[I_x, J] · W1[J, K] -> C[I, K]", ["A", "W1"]), ("import[I_x, J] -> C[I, J]", ["arrays[0]"])):
        plan = sw.plan(equation, sizes=sizes if "K" in equation else {"I": 64, "J": 8}, mesh=mesh)
        arrays = [
            jax.ShapeDtypeStruct(
                tuple(sizes[dim] for dim in operand.dims), "float32", sharding=jax.NamedSharding(mesh, operand.layout.spec)
            )
            for operand in plan.task.equation.operands
        ]
        assert [argument.name for argument in sw.audit(plan.function(mesh), *arrays).arguments] == names


def test_an_argument_by_keyword_is_refused_with_the_way_out():
    scaled = jax.jit(lambda a, *, n: a * n, static_argnames="n")
    for route in (sw.audit, functools.partial(sw.rehearse, on="v5e:2x4")):
        with pytest.raises(CompileError, match=r"^n= is not among .*given by position; .*functools\.partial\(step, n=\.\.\.\)"):
            route(scaled, X, n=2)
    with pytest.raises(CompileError, match=r"maesh= is not among mesh=.*mesh"):
        sw.audit(scaled, X, maesh="x=8")
    assert [each.name for each in sw.audit(functools.partial(scaled, n=2), X).arguments] == ["a"]
