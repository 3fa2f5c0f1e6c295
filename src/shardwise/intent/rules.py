"""The rule of an operation: which dimensions of its operands and results are one and the same (Shardy's factors).

A contraction's rule is an equation: `([i, j, l], [l, k])->([i, j, k])` is `A[I, J, L] · B[L, K] -> C[I, J, K]`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

Factors = tuple[tuple[str, ...], ...]  # of one array: for each dimension the factors that it is made of, major first

_RULE = re.compile(r"op_sharding_rule<\((?P<operands>.*?)\)->\((?P<results>.*?)\)(?: \{(?P<sizes>[^{}]*)\})?(?P<marks>.*)>")
_ARRAY = re.compile(r"\[([^\]]*)\]")
_FACTOR = re.compile(r"[a-z](?:_\d+)?")
_MARK = re.compile(r"(\w+)=\{([^{}]*)\}")


@dataclass(frozen=True, slots=True)
class Rule:
    """Which factors the dimensions of each operand and result are made of.

    Attributes:
        sizes: of each factor, in elements.
        summed: factors that the operation sums (or takes the maximum) over.
        whole: factors that have to be on one device, as the looked-up dimension of a gather.
    """

    operands: tuple[Factors, ...]
    results: tuple[Factors, ...]
    sizes: Mapping[str, int] = field(hash=False)
    summed: frozenset[str] = frozenset()
    whole: frozenset[str] = frozenset()


@functools.lru_cache(maxsize=4096)
def read_rule(text: str) -> Rule | None:
    """Read the text of a rule; None where it is none.

    >>> rule = read_rule("#sdy.op_sharding_rule<([i, l], [l, k])->([i, k]) {i=8, k=4, l=2} reduction={l}>")
    >>> rule.operands, rule.results, sorted(rule.summed)
    (((('i',), ('l',)), (('l',), ('k',))), ((('i',), ('k',)),), ['l'])
    """
    found = _RULE.search(text)
    if found is None:
        return None
    sizes = {
        name: int(size) for name, _, size in (each.strip().partition("=") for each in (found["sizes"] or "").split(",")) if size
    }
    marks = {name: frozenset(_FACTOR.findall(factors)) for name, factors in _MARK.findall(found["marks"])}
    return Rule(
        _arrays(found["operands"]), _arrays(found["results"]), sizes,
        marks.get("reduction", frozenset()), marks.get("need_replication", frozenset()),
    )  # fmt: skip


def _arrays(text: str) -> tuple[Factors, ...]:
    return tuple(
        tuple(tuple(_FACTOR.findall(dim)) for dim in array.split(",")) if array.strip() else ()
        for array in _ARRAY.findall(text)
    )
