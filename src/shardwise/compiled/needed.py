"""The FLOPs that a function asks for as it is written: every matmul once, whatever devices repeat."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any


def needed_flops(jaxpr: Any) -> float | None:
    """The FLOPs of all matmuls of a traced function, over all devices; None where a loop's length is not known.

    Inside `jax.shard_map` an array is a shard: a matmul counts once for each position along the axes over which one
    of its operands varies, so that matmuls which devices repeat count once. Where JAX does not track that
    (`check_vma=False`), every device's matmul counts. A kernel of Pallas counts by the FLOPs that it states.

    >>> import jax, jax.numpy as jnp
    >>> needed_flops(jax.make_jaxpr(jnp.dot)(jnp.ones((2, 3)), jnp.ones((3, 5))).jaxpr)
    60.0
    """
    return _flops(jaxpr, {}, tracked=True)


def _flops(jaxpr: Any, manual: dict[str, int], tracked: bool) -> float | None:
    total = 0.0
    for equation in jaxpr.eqns:
        flops = _of_equation(equation, manual, tracked)
        if flops is None:
            return None
        total += flops
    return total


def _of_equation(equation: Any, manual: dict[str, int], tracked: bool) -> float | None:
    name, params = equation.primitive.name, equation.params
    if name in ("dot_general", "conv_general_dilated", "ragged_dot_general"):
        return _matmul_flops(name, equation) * _positions(equation, manual, tracked)
    if name == "pallas_call":
        return _kernel(equation, manual, tracked)
    if name == "scan":
        return _times(_flops(params["jaxpr"].jaxpr, manual, tracked), params["length"])
    if name == "while":
        inner = [_flops(params[part].jaxpr, manual, tracked) for part in ("cond_jaxpr", "body_jaxpr")]
        return None if any(inner) or None in inner else 0.0
    if name == "cond":
        branches = [_flops(branch.jaxpr, manual, tracked) for branch in params["branches"]]
        return None if len(set(branches)) > 1 else branches[0]
    if name == "shard_map":
        mesh = params["mesh"]
        axes = {str(axis): int(mesh.shape[axis]) for axis in params.get("newly_manual_axes", mesh.axis_names)}
        return _flops(params["jaxpr"], manual | axes, tracked and bool(params.get("check_vma", True)))
    found = 0.0
    for inner in inner_jaxprs(params):
        flops = _flops(inner, manual, tracked)
        if flops is None:
            return None
        found += flops
    return found


def _kernel(equation: Any, manual: dict[str, int], tracked: bool) -> float | None:
    """A kernel's FLOPs as its author states them, which is all that its compiled text says; what states none counts as none.

    What interprets it runs its body at every step of its grid, as any program.
    """
    params = equation.params
    if params.get("interpret"):
        steps = math.prod(size if isinstance(size, int) else 1 for size in params["grid_mapping"].grid)
        return _times(_flops(params["jaxpr"], manual, tracked), steps)
    cost = params.get("cost_estimate")
    return float(cost.flops) * _positions(equation, manual, tracked) if cost is not None else 0.0


def inner_jaxprs(params: dict[str, Any]) -> Iterator[Any]:
    """What an equation calls: a derivative's rule is none of it, since it has been applied or will not be."""
    for key, value in params.items():
        if key in ("fwd_jaxpr_thunk", "bwd", "jvp_jaxpr_fun", "jvp_jaxpr_thunk"):
            continue
        for each in value if isinstance(value, (tuple, list)) else (value,):
            inner = getattr(each, "jaxpr", each)
            if hasattr(inner, "eqns"):
                yield inner


def _matmul_flops(name: str, equation: Any) -> float:
    out = equation.outvars[0].aval
    left, right = equation.invars[0].aval, equation.invars[1].aval
    if name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        return 2.0 * math.prod(out.shape) * math.prod(left.shape[dim] for dim in contracted)
    if name == "conv_general_dilated":
        kernel = equation.params["dimension_numbers"].rhs_spec
        return 2.0 * math.prod(out.shape) * math.prod(right.shape) / right.shape[kernel[0]]
    return 2.0 * math.prod(left.shape) * right.shape[-1]


def _positions(equation: Any, manual: dict[str, int], tracked: bool) -> int:
    """For how many different positions of the mesh a matmul is computed."""
    if not tracked:
        return math.prod(manual.values())
    varying = {str(axis) for var in equation.invars for axis in _varying(var.aval)}
    return math.prod(size for axis, size in manual.items() if axis in varying)


def _varying(aval: Any) -> Iterable[Any]:
    """The axes over which an array varies inside `jax.shard_map`, where JAX's types say it."""
    known = getattr(aval, "mat", None) or getattr(aval, "manual_axis_type", None)
    return known.varying if known is not None else getattr(aval, "vma", ())


def _times(flops: float | None, count: int) -> float | None:
    return None if flops is None else flops * count
