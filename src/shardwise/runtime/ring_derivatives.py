"""The rings as multilinear functions: each one's tangent, transpose and batched form is rings and local matmuls again.

The transpose of a gathering ring is a scattering one and the other way round; that of a pipelined gather is a scattering
ring and local matmuls; a rotation with its two transposes is closed in itself.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shardwise.runtime.multilinear import Multilinear, call
from shardwise.runtime.ring_gather import Gather, gather
from shardwise.runtime.ring_matmuls import LocalMatmul, Term, matmul, new_dim
from shardwise.runtime.ring_pipelined import PipelinedGather, pipelined_gather
from shardwise.runtime.ring_rotate import Rotation, rotate, rotate_back
from shardwise.runtime.ring_scatter import Scatter, scatter

Groups = tuple[tuple[Any, ...], ...]


def gather_ring(job: Gather, block: Any, others: Sequence[Sequence[Any]]) -> list[Any]:
    """Run a gathering ring, differentiably; `others` are for each matmul its operands after the block."""
    return call(_Gathered(job), block, *itertools.chain.from_iterable(others))


def scatter_ring(job: Scatter, operands: Sequence[Sequence[Any]]) -> Any:
    """Run a scattering ring, differentiably; `operands` are those of each matmul."""
    return call(_Scattered(job), *itertools.chain.from_iterable(operands))[0]


def pipelined_gather_ring(job: PipelinedGather, operands: Sequence[Sequence[Any]]) -> Any:
    """Run a pipelined gather, differentiably; `operands` are those of each matmul."""
    return call(_PipelinedGather(job), *itertools.chain.from_iterable(operands))[0]


def rotation(job: Rotation, operands: Sequence[Any]) -> Any:
    """Run a rotation, differentiably."""
    return call(_Rotated(job), *operands)[0]


@dataclass(frozen=True, slots=True)
class _Gathered:
    """Results `matmuls[i](whole block, others[i])`."""

    job: Gather

    def run(self, *arrays: Any) -> list[Any]:
        return gather(self.job, arrays[0], _grouped(arrays[1:], self.others))

    @property
    def others(self) -> list[tuple[Term, ...]]:
        return [wanted.terms[1:] for wanted in self.job.matmuls]

    def tangent(self, arrays: Sequence[Any], tangents: Sequence[Any | None]) -> tuple[Sequence[Any], Sequence[Any | None]]:
        """The results, and how they change: by the block in the same ring, by others in matmuls with what it gathered."""
        job, others, along = self.job, _grouped(arrays[1:], self.others), _grouped(tangents[1:], self.others)
        kept, results = None, None
        if job.schedule.save and any(each is not None for each in tangents[1:]):
            *results, kept = gather_ring(keeping(job, job.matmuls), arrays[0], (*others, ()))
        else:
            results = gather_ring(job, arrays[0], others)
        found: list[Any | None] = [None] * len(results)
        if tangents[0] is not None:
            found = list(gather_ring(job, tangents[0], others))
        # By the other operands: each tangent takes its place in the matmul, which is made once more.
        moved = [(i, swapped) for i in range(len(others)) for swapped in _each_swapped(others[i], along[i])]
        if not moved:
            return results, found
        again = replace(job, matmuls=tuple(job.matmuls[i] for i, _ in moved))
        factors = [swapped for _, swapped in moved]
        if kept is None:
            more = gather_ring(again, arrays[0], factors)
        else:
            more = [matmul([kept, *each], wanted, job.numbers) for wanted, each in zip(again.matmuls, factors, strict=True)]
        for (i, _), each in zip(moved, more, strict=True):
            found[i] = each if found[i] is None else found[i] + each
        return results, found

    def transposed(self, arrays: Sequence[Any | None], cotangents: Sequence[Any | None]) -> Sequence[Any | None]:
        """The cotangents of arrays that are not given: of the block by a scattering ring, of others by a gathering one."""
        job, others = self.job, _grouped(arrays[1:], self.others)
        used = [i for i, cotangent in enumerate(cotangents) if cotangent is not None]
        if not used:
            return [None] * len(arrays)
        if arrays[0] is None:  # a scattering ring
            sums = tuple(LocalMatmul((job.matmuls[i].out, *job.matmuls[i].terms[1:]), job.block) for i in used)
            factors = [(cotangents[i], *others[i]) for i in used]
            back = Scatter(job.ring, job.dim, sums, job.schedule, job.numbers.backwards)
            return [scatter_ring(back, factors), *[None] * (len(arrays) - 1)]
        lacking = [(i, j, place) for i, j, place in _lacking(others) if i in used]  # the same ring, with the cotangents
        matmuls = tuple(
            LocalMatmul((job.block, made.out, *_without(made.terms[1:], j)), made.terms[1 + j])
            for made, j in ((job.matmuls[i], j) for i, j, _ in lacking)
        )
        factors = [(cotangents[i], *_without(others[i], j)) for i, j, _ in lacking]
        again = replace(job, matmuls=matmuls, numbers=job.numbers.backwards)
        return _placed(len(arrays), [1 + place for *_, place in lacking], gather_ring(again, arrays[0], factors))

    def batched(self, stacked: Sequence[bool]) -> tuple[Multilinear, Sequence[bool], Sequence[bool]]:
        job, groups = self.job, [(stacked[0], *rest) for rest in _grouped(stacked[1:], self.others)]
        matmuls = _stacked(job.matmuls, groups)
        block = matmuls[0].terms[0] if matmuls else job.block
        return _Gathered(replace(job, block=block, matmuls=matmuls)), stacked, [any(group) for group in groups]


@dataclass(frozen=True, slots=True)
class _Scattered:
    """One result: this device's part of the sum of matmuls over the ring."""

    job: Scatter

    def run(self, *arrays: Any) -> list[Any]:
        return [scatter(self.job, _grouped(arrays, self.terms))]

    @property
    def terms(self) -> list[tuple[Term, ...]]:
        return [made.terms for made in self.job.matmuls]

    def tangent(self, arrays: Sequence[Any], tangents: Sequence[Any | None]) -> tuple[Sequence[Any], Sequence[Any | None]]:
        job, groups, along = self.job, _grouped(arrays, self.terms), _grouped(tangents, self.terms)
        matmuls, factors = _all_swapped(job.matmuls, groups, along)
        return [scatter_ring(job, groups)], [scatter_ring(replace(job, matmuls=matmuls), factors)]

    def transposed(self, arrays: Sequence[Any | None], cotangents: Sequence[Any | None]) -> Sequence[Any | None]:
        """One gathering ring brings the cotangent's blocks to the matmuls of all operands."""
        if cotangents[0] is None:
            return [None] * len(arrays)
        job, groups = self.job, _grouped(arrays, self.terms)
        lacking = list(_lacking(groups))
        factors = [_without(groups[i], j) for i, j, _ in lacking]
        again = Gather(
            job.ring, job.dim, job.matmuls[0].out, tuple(_owed(job.matmuls[i], j) for i, j, _ in lacking), job.schedule,
            job.numbers.backwards,
        )  # fmt: skip
        return _placed(len(arrays), [place for *_, place in lacking], _once(again, cotangents[0], factors))

    def batched(self, stacked: Sequence[bool]) -> tuple[Multilinear, Sequence[bool], Sequence[bool]]:
        groups = _one_each(_grouped(stacked, self.terms))
        function = _Scattered(replace(self.job, matmuls=_stacked(self.job.matmuls, groups)))
        return function, [*itertools.chain.from_iterable(groups)], [True]


@dataclass(frozen=True, slots=True)
class _PipelinedGather:
    """One result: all devices' blocks of a sum of matmuls."""

    job: PipelinedGather

    def run(self, *arrays: Any) -> list[Any]:
        return [pipelined_gather(self.job, _grouped(arrays, self.terms))]

    @property
    def terms(self) -> list[tuple[Term, ...]]:
        return [made.terms for made in self.job.matmuls]

    def tangent(self, arrays: Sequence[Any], tangents: Sequence[Any | None]) -> tuple[Sequence[Any], Sequence[Any | None]]:
        job, groups, along = self.job, _grouped(arrays, self.terms), _grouped(tangents, self.terms)
        matmuls, factors = _all_swapped(job.matmuls, groups, along)
        return [pipelined_gather_ring(job, groups)], [pipelined_gather_ring(replace(job, matmuls=matmuls), factors)]

    def transposed(self, arrays: Sequence[Any | None], cotangents: Sequence[Any | None]) -> Sequence[Any | None]:
        """A ring brings every device the sum of its block's cotangents; the rest are matmuls on the spot."""
        if cotangents[0] is None:
            return [None] * len(arrays)
        job, out = self.job, self.job.matmuls[0].out
        back = Scatter(job.ring, job.dim, (LocalMatmul((out,), out),), replace(job.schedule, chunks=1), job.numbers.backwards)
        block = scatter_ring(back, ((cotangents[0],),))
        groups, numbers = _grouped(arrays, self.terms), job.numbers.backwards
        found = [None] * len(arrays)
        for i, j, place in _lacking(groups):
            found[place] = matmul([block, *_without(groups[i], j)], _owed(job.matmuls[i], j), numbers)
        return found

    def batched(self, stacked: Sequence[bool]) -> tuple[Multilinear, Sequence[bool], Sequence[bool]]:
        groups = _one_each(_grouped(stacked, self.terms))
        function = _PipelinedGather(replace(self.job, matmuls=_stacked(self.job.matmuls, groups)))
        return function, [*itertools.chain.from_iterable(groups)], [True]


@dataclass(frozen=True, slots=True)
class _Rotated:
    """One result: that of a matmul whose two operands rotate."""

    job: Rotation

    def run(self, *arrays: Any) -> list[Any]:
        return [rotate(self.job, arrays)]

    def tangent(self, arrays: Sequence[Any], tangents: Sequence[Any | None]) -> tuple[Sequence[Any], Sequence[Any | None]]:
        return call(self, *arrays), [_sum([call(self, *swapped)[0] for swapped in _each_swapped(arrays, tangents)])]

    def transposed(self, arrays: Sequence[Any | None], cotangents: Sequence[Any | None]) -> Sequence[Any | None]:
        if cotangents[0] is None:
            return [None, None]
        k = 0 if arrays[0] is None else 1
        return _placed(2, [k], call(_RotatedBack(self.job, k), arrays[1 - k], cotangents[0]))

    def batched(self, stacked: Sequence[bool]) -> tuple[Multilinear, Sequence[bool], Sequence[bool]]:
        (made,) = _stacked((self.job.matmul,), [stacked])
        return _Rotated(replace(self.job, matmul=made)), stacked, [True]


@dataclass(frozen=True, slots=True)
class _RotatedBack:
    """The cotangent of operand k of a rotation, from the other operand and the result's cotangent."""

    job: Rotation
    k: int

    def run(self, *arrays: Any) -> list[Any]:
        return [rotate_back(self.job, self.k, *arrays)]

    def tangent(self, arrays: Sequence[Any], tangents: Sequence[Any | None]) -> tuple[Sequence[Any], Sequence[Any | None]]:
        return call(self, *arrays), [_sum([call(self, *swapped)[0] for swapped in _each_swapped(arrays, tangents)])]

    def transposed(self, arrays: Sequence[Any | None], cotangents: Sequence[Any | None]) -> Sequence[Any | None]:
        """What comes back stands where operand k stood: the sum that all this is of is linear in all three."""
        other, cotangent = arrays
        if cotangents[0] is None:
            return [None, None]
        if other is None:
            return [*call(_RotatedBack(self.job, 1 - self.k), cotangents[0], cotangent), None]
        operands = (cotangents[0], other) if self.k == 0 else (other, cotangents[0])
        return [None, rotation(replace(self.job, numbers=self.job.numbers.backwards), operands)]

    def batched(self, stacked: Sequence[bool]) -> tuple[Multilinear, Sequence[bool], Sequence[bool]]:
        made, (other, cotangent) = self.job.matmul, stacked
        extra = new_dim([made])
        terms = [(extra, *term) if k == self.k or other else term for k, term in enumerate(made.terms)]
        wanted = LocalMatmul((terms[0], terms[1]), (extra, *made.out) if cotangent else made.out)
        return _RotatedBack(replace(self.job, matmul=wanted), self.k), stacked, [True]


# Lists of arrays, and of lists of them.


def _grouped(flat: Sequence[Any], like: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """A flat list cut into groups as long as others."""
    each = iter(flat)
    return [tuple(itertools.islice(each, len(group))) for group in like]


def _placed(count: int, places: Sequence[int], values: Sequence[Any]) -> list[Any | None]:
    found = dict(zip(places, values, strict=True))
    return [found.get(place) for place in range(count)]


def _each_swapped(arrays: Sequence[Any], tangents: Sequence[Any | None]) -> list[tuple[Any, ...]]:
    """The arrays with one of them replaced by its tangent, for every one that has some."""
    return [(*arrays[:k], each, *arrays[k + 1 :]) for k, each in enumerate(tangents) if each is not None]


def _all_swapped(
    matmuls: Sequence[LocalMatmul], groups: Sequence[Sequence[Any]], tangents: Sequence[Sequence[Any | None]]
) -> tuple[tuple[LocalMatmul, ...], list[tuple[Any, ...]]]:
    """The matmuls of a sum's tangent, and their operands: each matmul, with each of its operands' tangents."""
    pairs = [
        (made, swapped)
        for made, arrays, along in zip(matmuls, groups, tangents, strict=True)
        for swapped in _each_swapped(arrays, along)
    ]
    return tuple(made for made, _ in pairs), [swapped for _, swapped in pairs]


def _lacking(groups: Sequence[Sequence[Any | None]]) -> Iterator[tuple[int, int, int]]:
    """Which arrays are None: the group, the place in it, and the place in all of them."""
    start = 0
    for i, group in enumerate(groups):
        yield from ((i, j, start + j) for j, each in enumerate(group) if each is None)
        start += len(group)


def _without(items: Sequence[Any], place: int) -> tuple[Any, ...]:
    return (*items[:place], *items[place + 1 :])


def _owed(made: LocalMatmul, j: int) -> LocalMatmul:
    """The cotangent of operand j of a matmul, from that of the result and the other operands."""
    return LocalMatmul((made.out, *_without(made.terms, j)), made.terms[j])


def _sum(arrays: Sequence[Any]) -> Any:
    return functools.reduce(operator.add, arrays)


# Matmuls with one dimension more.


def _stacked(matmuls: Sequence[LocalMatmul], groups: Sequence[Sequence[bool]]) -> tuple[LocalMatmul, ...]:
    """Matmuls of which some operands have one dimension more, in front; and each result that is made of one."""
    extra = new_dim(matmuls)
    return tuple(
        LocalMatmul(
            tuple((extra, *term) if stacked else term for term, stacked in zip(made.terms, group, strict=True)),
            (extra, *made.out) if any(group) else made.out,
        )
        for made, group in zip(matmuls, groups, strict=True)
    )


def _one_each(groups: Sequence[Sequence[bool]]) -> list[tuple[bool, ...]]:
    """In every matmul of a sum at least one operand is stacked: the first, where none is."""
    return [tuple(group) if any(group) else (True, *group[1:]) for group in groups]


# A ring that gathers for several matmuls.


def _once(job: Gather, block: Any, others: Sequence[Sequence[Any]]) -> list[Any]:
    """Gather a block for several matmuls; with `save` those that would be running sums take all of it at the end.

    One matmul with the whole is quicker than n additions; the others overlap the transfers.
    """
    in_blocks = [job.dim in wanted.out for wanted in job.matmuls]
    if not job.schedule.save or all(in_blocks) or not any(in_blocks):
        return gather_ring(job, block, others)
    now = tuple(wanted for wanted, early in zip(job.matmuls, in_blocks, strict=True) if early)
    factors = [tuple(arrays) for arrays, early in zip(others, in_blocks, strict=True) if early]
    *made, kept = gather_ring(keeping(job, now), block, (*factors, ()))
    found = iter(made)
    return [
        next(found) if early else matmul([kept, *arrays], wanted, job.numbers)
        for wanted, arrays, early in zip(job.matmuls, others, in_blocks, strict=True)
    ]


def keeping(job: Gather, matmuls: tuple[LocalMatmul, ...]) -> Gather:
    """With one matmul more, of the block alone: the gathered array."""
    return replace(job, matmuls=(*matmuls, LocalMatmul((job.block,), job.block)))
