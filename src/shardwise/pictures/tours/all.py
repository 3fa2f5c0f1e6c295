"""All tours by name, in the order in which one would take them."""

from __future__ import annotations

from collections.abc import Callable

from shardwise.errors import NotationError, did_you_mean
from shardwise.pictures.tours import cases, collectives
from shardwise.pictures.tours.stops import Tour

COLLECTIVES: dict[str, Callable[[], Tour]] = {
    "all-gather": collectives.all_gather,
    "reduce-scatter": collectives.reduce_scatter,
    "all-reduce": collectives.all_reduce,
    "all-to-all": collectives.all_to_all,
    "permute": collectives.permute,
    "slice": collectives.slice_,
}
CASES: dict[str, Callable[[], Tour]] = {
    "case-1": cases.case_1,
    "case-2": cases.case_2,
    "case-3": cases.case_3,
    "case-4": cases.case_4,
    "two-axes": cases.two_axes,
    "collective-matmul": cases.collective_matmul,
}
TOURS: dict[str, Callable[[], Tour]] = {"layouts": cases.layouts, **COLLECTIVES, **CASES}


def tour(name: str) -> Tour:
    """A tour by its name; `_` or a blank may stand for `-`.

    >>> tour("all_gather").about
    'every device receives all the parts'

    Raises:
        NotationError: there is none of that name.
    """
    plain = name.strip().lower().replace("_", "-").replace(" ", "-")
    for known in (plain, plain.replace("case", "case-"), f"case-{plain}"):
        if known in TOURS:
            return TOURS[known]()
    raise NotationError(
        f"there is no tour {name!r}{did_you_mean(plain, TOURS)}: there are {', '.join(TOURS)}, and any equation of your own, "
        'as "A[I, J_x] · B[J_x, K] -> C[I, K]" --sizes I=4,J=4,K=4 --mesh x=4'
    )
