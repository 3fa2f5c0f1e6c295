"""`sw.overlap`: find the matmuls and lookups at which something moves, plan each, and keep what compiles to be faster."""

from __future__ import annotations

import functools
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax

from shardwise.chips.topology import Topology
from shardwise.compiled.compiling import audit, check_function, name_of, rehearse
from shardwise.compiled.targets.compiler_flags import PERMUTES_EARLY, Options, suggested
from shardwise.errors import MOST_SAID, CompileError, ShardwiseError, one_line, shortened
from shardwise.functions.diagnosing import mesh_of
from shardwise.functions.lookup_places import LookupPlace
from shardwise.functions.matmul_places import MatmulPlace
from shardwise.functions.overlapped import Compiled, Overlapped
from shardwise.functions.replacing import Place, found_places, replacing
from shardwise.functions.rewriting import rewritten
from shardwise.functions.sights import Left
from shardwise.intent.shardy import NoPassesError
from shardwise.mesh import Mesh
from shardwise.runtime.devices import AnyMesh, hardware_of
from shardwise.units import seconds_text

SECONDS = 120.0
COMPILE_TIMES = 3.0  # as long as the function as it is compiles may what is changed compile
QUICK = 5.0  # seconds of a processor: what compiles in less is never too long
SWITCH = "SHARDWISE_OVERLAP"
OWN_RINGS = "xla_jf_spmd_threshold_for_windowed_einsum_mib"  # where TPU compilers make rings of their own


def overlap(
    function: Callable[..., Any], *args: Any, on: str | None = None, mesh: Any = None, seconds: float = SECONDS,
    compile_times: float = COMPILE_TIMES,
) -> Overlapped:  # fmt: skip
    """Let the transfers of a function run behind its matmuls, wherever that compiles to be faster; nothing is run.

    The function is traced with its gradients, loops and checkpoints as they are. Each matmul whose operands or result move
    is planned as the equation that it is, with the layouts that it has there; so is each lookup of a table's rows, and the
    gradient of that table, by what moves least. Then the whole function is compiled, before and
    after, and places are dropped for as long as that makes it faster: the result is never slower than what was given. For TPUs
    both are compiled without the rings that compilers make of matmuls by themselves, too, and what is changed with their
    schedulers' newer features, which start permutes early: where that is faster, the result has `compiler_options` to be
    jitted with.

    >>> import jax, jax.numpy as jnp, shardwise as sw
    >>> mesh = jax.sharding.AbstractMesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    >>> laid = lambda *spec: jax.ShapeDtypeStruct((4096, 4096), jnp.bfloat16, sharding=jax.NamedSharding(mesh, jax.P(*spec)))
    >>> def layer(x, w):
    ...     return jax.lax.with_sharding_constraint(jnp.tanh(x @ w), jax.P(None, "x"))
    >>> found = sw.overlap(layer, laid("x"), laid(None, "x"), on="v5e:2x2")
    >>> [str(place.task.equation) for place in found.changes], found.speedup > 1
    (['A[J_x, I] · B[I, K_x] -> C[J, K_x]'], True)

    Args:
        function: jitted or plain; what it donates is donated by whoever jits the result.
        args: its arguments, pytrees of arrays or `jax.ShapeDtypeStruct`.
        on: devices that need not be attached, as `"v5e:4x4"`; by default those of the mesh.
        mesh: `"x=4, y=4"` or a JAX mesh; by default that of the arguments, or the one in force.
        seconds: at most, for variants beyond the function as it is (with the compiler's own rings and without),
            two with every place changed, one with the blocks of rings whole, one with rings where tori are planned, one more
            where rings bring operands in parts, one with its lookups alone, and one with as many places as compile in time.
        compile_times: how many times as long as the function as it is what is changed may compile, in seconds of a processor;
            what compiles in less than 5 is never too long. `math.inf` for whatever runs fastest.

    Raises:
        CompileError: the function cannot be traced or compiled, `seconds` is no time, or `compile_times` less than 1.
        MeshError: there is no mesh, or a layout does not fit it.
    """
    _check_limits(seconds, compile_times)
    check_function(function)
    where = mesh_of(function, args, mesh, on)
    name, target = name_of(function), on or f"mesh {Mesh.parse(where)}"
    chip: Any = on if on is not None else hardware_of(where)
    if on is None and getattr(chip, "shared", False):
        why = "simulated devices share one host: no transfer can run behind a matmul; name devices with on="
        return Overlapped(function, name, target, (), (), notes=(why,))
    try:
        places, left = found_places(function, args, on, where, chip)
    except NoPassesError as error:
        return Overlapped(function, name, target, (), (), notes=(f"its layouts cannot be told: {one_line(str(error))}",))
    without, early = (_suggested(name, on, where) for name in (OWN_RINGS, PERMUTES_EARLY))
    search = _Search(function, args, on, where, seconds, compile_times, without, early)
    search.seconds(())
    kept, options = search.best(places) if places or left else ((), ())
    search.note_slower_to_compile((kept, options))
    dropped = [place for place in places if not any(place.paths == each.paths for each in kept)]
    return Overlapped(
        search.variant(kept), name, target, kept, (*left, *map(_dropped, dropped)), search.compiled[(), ()],
        search.compiled[kept, options], len(search.tried), tuple(search.notes), options,
    )  # fmt: skip


def _check_limits(seconds: float, compile_times: float) -> None:
    if not seconds >= 0:
        raise CompileError(f"seconds={seconds}: give the seconds that variants may take, 0 or more")
    if not compile_times >= 1:
        raise CompileError(f"compile_times={compile_times}: give how many times as long it may compile, 1 or more")


def overlapped(
    mesh: Any = None, *, seconds: float = SECONDS, compile_times: float = COMPILE_TIMES
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator: at the first call for some shapes and layouts a function is overlapped for the devices of its mesh.

    Later calls of that kind take what was found. Inside of `jax.jit`, `jax.grad` and their like, and with
    `SHARDWISE_OVERLAP=0` in the environment, the function runs as it is: decorate the outermost.

    >>> import jax.numpy as jnp, shardwise as sw
    >>> @sw.overlapped("x=4")
    ... def double(x):
    ...     return x + x
    >>> double(jnp.ones(4)).tolist()
    [2.0, 2.0, 2.0, 2.0]

    Args:
        mesh: as `overlap` takes it.
        seconds, compile_times: as `overlap` takes them.
    """

    def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, overlapped for each kind of arguments when it is first called with them."""
        known: dict[Any, Callable[..., Any]] = {}

        @functools.wraps(function)
        def chosen(*args: Any) -> Any:
            """Call what was found for such arguments; inside of a trace, or switched off, the function as it is."""
            leaves, tree = jax.tree.flatten(args)
            if os.environ.get(SWITCH) == "0" or any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
                return function(*args)
            key = (tree, tuple(map(_kind, leaves)))
            if key not in known:
                found = overlap(function, *args, mesh=mesh, seconds=seconds, compile_times=compile_times)
                known[key] = found.jitted() if found.changes or found.options else function
            return known[key](*args)

        return chosen

    return decorated


def _kind(leaf: Any) -> object:
    if not hasattr(leaf, "shape"):
        return type(leaf)
    return leaf.shape, leaf.dtype, getattr(leaf, "sharding", None) if isinstance(leaf, jax.Array) else None


def _suggested(name: str, on: str | None, mesh: AnyMesh) -> Options:
    """An option of TPU compilers with the value that is suggested; none for other devices."""
    attached = mesh.devices.flat[0].platform if isinstance(mesh, jax.sharding.Mesh) else "cpu"
    return suggested(name, attached if on is None else Topology.parse(on).kind)


def _dropped(place: Place) -> Left:
    return Left(place.line, str(place.task.equation), "with it the whole function was no faster", place.times)


Variant = tuple[tuple[Place, ...], Options]


@dataclass
class _Search:
    """Variants of a function, compiled: the places that each changes, with which options, and how long a call of it takes.

    Those after the first are compiled in `most_seconds`: the first are the function as it is, with the compiler's own rings and
    without, two with every place changed (three, where neither is faster), one with the blocks of rings whole, one with rings
    where tori are planned, one with operands in parts where rings bring such, one with its lookups, and one with fewer places
    where all compile too long. None is kept that compiles more than `compile_times` as long as the function as it is.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    on: str | None
    mesh: AnyMesh
    most_seconds: float
    compile_times: float
    without: Options = ()  # what keeps the compiler from rings of its own
    early: Options = ()  # what has it start permutes early
    until: float = math.inf
    compiled: dict[Variant, Compiled] = field(default_factory=dict)
    tried: dict[Variant, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def variant(self, places: Sequence[Place]) -> Callable[..., Any]:
        return rewritten(self.function, replacing(places, self.mesh)) if places else self.function

    def seconds(self, places: tuple[Place, ...], options: Options = ()) -> float:
        """How long a call takes with these places changed, by the compiled schedule; infinitely, where it does not compile."""
        variant = places, options
        if variant not in self.tried:
            self.tried[variant] = self._compiled(*variant)
        return self.tried[variant]

    def _compiled(self, places: tuple[Place, ...], options: Options) -> float:
        function = self.variant(places)
        try:
            if self.on is None:
                given = jax.jit(function, compiler_options=dict(options)) if options else function
                found = audit(given, *self.args, mesh=self.mesh)
            else:
                found = rehearse(function, *self.args, on=self.on, mesh=self.mesh, compiler_options=dict(options))
            line = found.timeline()
            self.compiled[places, options] = Compiled(found, line)
            return float("inf") if (places or options) and found.fits is False else line.step_seconds
        except ShardwiseError as error:
            if not places and not options:
                raise
            note = f"a variant does not compile: {shortened(one_line(str(error)), MOST_SAID)}"
            self.notes += [note] if note not in self.notes else []
            return float("inf")

    def compile_seconds(self, variant: Variant) -> float | None:
        found = self.compiled.get(variant)
        return None if found is None else found.audit.compile_seconds

    def too_long(self, variant: Variant) -> bool:
        """Whether it takes too long to compile; never where that is not known."""
        before, after = self.compile_seconds(((), ())), self.compile_seconds(variant)
        return before is not None and after is not None and after > self.longest(before)

    def longest(self, before: float) -> float:
        """The seconds that what is changed may compile, from those of the function as it is."""
        return max(QUICK, self.compile_times * before)

    def note_slower_to_compile(self, kept: Variant) -> None:
        """Say what would be faster than what is kept, if it might compile longer."""
        fastest = min(filter(self.too_long, self.tried), key=lambda variant: self.tried[variant], default=kept)
        before, after = self.compile_seconds(((), ())), self.compile_seconds(fastest)
        if before and after and self.tried[fastest] < self.tried[kept]:
            said = f"{seconds_text(self.tried[fastest])} would compile in {after / before:.1f} times the time"
            self.notes.append(f"{said}, more than compile_times={self.compile_times:g} allows")

    @property
    def late(self) -> bool:
        return time.monotonic() >= self.until

    def best(self, places: Sequence[Place]) -> Variant:
        """What is kept: all places are changed, gradients with operands as others bring them, whole or in parts, the compiler
        told how arrays lie or not, and blocks of rings cut or whole; or, where none of it is faster, gradients as planned
        alone; lookups alone are; or none is. Then one after another otherwise, if faster.
        """
        none: list[Place | None] = [None] * len(places)
        lookups: list[Place | None] = [place.first if isinstance(place, LookupPlace) else None for place in places]
        together = [*map(_together, places)]
        plain = min(((), self.without), key=lambda options: self.seconds((), options))
        changed = self._known(together, plain) if places else plain
        whole = _Kept(self, together, changed).or_faster(_untold(together), changed)  # the fastest with every place changed
        cut, whole = whole, whole.or_faster(_unchunked(whole.choice), changed)
        whole = whole.or_faster(_around(whole.choice), changed)
        whole = whole.or_faster(_in_parts(whole.choice), changed)
        kept = _Kept(self, none, plain).or_faster(whole.choice, changed)
        if any(lookups):
            kept = kept.or_faster(lookups, changed)
        if None in kept.choice:
            whole = whole.or_faster(whole.alike([place.first for place in places]), changed)
        self.until = time.monotonic() + self.most_seconds
        whole = whole.in_time(places)
        parts = _in_parts(cut.choice) if whole.is_in_parts else cut.choice
        costly = cut.standing[0] and cut.standing[1] < whole.standing[1]  # faster, but too long to compile
        for number in range(len(places)) if costly else ():  # as many blocks cut as compile in time
            tried = [*whole.choice[:number], parts[number], *whole.choice[number + 1 :]]
            whole = whole if self.late or tried == whole.choice else whole.or_faster(tried, changed)
        for tried in (_in_parts(together), _untold(_in_parts(together))):
            whole = whole if self.late else whole.or_faster(tried, changed)
        for tried in _at_once(places):  # those like the fastest, whether that is faster than the function as it is or not
            whole = whole if self.late else whole.or_faster(whole.alike(tried), changed)
        kept = kept.or_faster(whole.choice, changed)
        for options in (plain, (), self.without, self.early) if any(kept.choice) else ():
            kept = kept if self.late else kept.or_faster(kept.choice, options)
        kept = self._improved(places, kept, kept.options if any(kept.choice) else changed)
        return _chosen(kept.choice), kept.options

    def _known(self, choice: Sequence[Place | None], plain: Options) -> Options:
        """The options that changed places are compiled with: permutes start early, where the compiler knows how."""
        early = tuple(sorted({*plain, *self.early}))
        return early if math.isfinite(self.seconds(_chosen(choice), early)) else plain

    def _improved(self, places: Sequence[Place], kept: _Kept, options: Options) -> _Kept:
        """One place after another otherwise, where that is faster than what is kept."""
        sign = 1 if any(kept.choice) else -1
        for number in sorted(
            range(len(places)), key=lambda number: (not places[number].as_brought, sign * places[number].gain)
        ):
            now = kept.choice[number]
            for other in (*_otherwise(places[number], now), None):
                tried = kept.told([*kept.choice[:number], other, *kept.choice[number + 1 :]])
                if tried[number] == kept.choice[number]:
                    continue
                if self.late:
                    self.notes.append("the time was up before every place had been tried alone: seconds= gives more")
                    return kept
                kept = kept.or_faster(tried, options)
        return kept


@dataclass(frozen=True, slots=True)
class _Kept:
    """The fastest variant so far: in each place what is there, or None where it stays, and the options."""

    search: _Search
    choice: list[Place | None]
    options: Options

    @property
    def standing(self) -> tuple[bool, float]:
        """What compares it with others: whether it compiles too long, and then how long a call takes."""
        variant = _chosen(self.choice), self.options
        seconds = self.search.seconds(*variant)
        return self.search.too_long(variant), seconds

    def in_time(self, places: Sequence[Place]) -> _Kept:
        """Itself; or, if it compiles too long, as many of its places as do not, those that gain most: found by halves."""
        search, changed = self.search, [n for n, each in enumerate(self.choice) if each is not None]
        before, after = (search.compile_seconds(each) for each in (((), ()), (_chosen(self.choice), self.options)))
        if not self.standing[0] or before is None or after is None:
            return self
        changed.sort(key=lambda number: -places[number].gain)
        kept, fewest, most = self, 0, len(changed)
        count = int(most * (search.longest(before) - before) / (after - before))  # if each compiled as long as any other
        while fewest + 1 < most:
            count = min(max(count, fewest + 1), most - 1)
            tried = [each if number in changed[:count] else None for number, each in enumerate(self.choice)]
            kept = kept.or_faster(tried, self.options)
            fewest, most = (fewest, count) if _Kept(search, tried, self.options).standing[0] else (count, most)
            count = (fewest + most) // 2
            if search.late:
                break
        return kept

    def told(self, choice: list[Place | None]) -> list[Place | None]:
        """A choice in which the compiler is told how arrays lie as it is in this one."""
        return _untold(choice) if any(isinstance(each, MatmulPlace) and not each.told for each in self.choice) else choice

    @property
    def is_in_parts(self) -> bool:
        return any(isinstance(each, MatmulPlace) and each.parts_of for each in self.choice)

    def alike(self, choice: list[Place | None]) -> list[Place | None]:
        """A choice that is told as this one, and in which operands come in parts, blocks are whole and rings are in place of
        tori, if they are in this."""
        choice = self.told(_in_parts(choice) if self.is_in_parts else choice)
        choice = _around(choice) if self.choice == _around(self.choice) else choice
        return _unchunked(choice) if self.choice == _unchunked(self.choice) else choice

    def or_faster(self, choice: list[Place | None], options: Options) -> _Kept:
        """Another variant, compiled, if it is faster."""
        other = _Kept(self.search, choice, options)
        return other if other.standing < self.standing else self


def _untold(choice: Sequence[Place | None]) -> list[Place | None]:
    """The same places, with arrays in rings laid as the compiler lays others."""
    return [replace(place, told=False) if isinstance(place, MatmulPlace) else place for place in choice]


def _unchunked(choice: Sequence[Place | None]) -> list[Place | None]:
    """The same places, with the blocks of rings whole."""
    return [None if place is None else place.unchunked for place in choice]


def _around(choice: Sequence[Place | None]) -> list[Place | None]:
    """The same places, with rings in place of tori."""
    return [None if place is None else place.around for place in choice]


def _in_parts(choice: Sequence[Place | None]) -> list[Place | None]:
    """The same places, with operands as the parts that a ring brings where there are such."""
    return [
        replace(place.in_parts, told=place.told) if isinstance(place, MatmulPlace) and place.in_parts is not None else place
        for place in choice
    ]


def _together(place: Place) -> Place | None:
    """With operands as others bring them, or as planned alone."""
    return place.as_brought[0] if place.as_brought else place.first


def _otherwise(place: Place, now: Place | None) -> Iterator[Place]:
    """The ways of a place, those like what is there now first, with the blocks of rings cut or whole as there, and then not."""
    ways = place.ways[::-1] if now is not None and now.is_brought else place.ways
    whole = now is not None and now == now.unchunked
    for way in ways:
        yield from dict.fromkeys((way.unchunked, way, way.around) if whole else (way, way.unchunked, way.around))


def _at_once(places: Sequence[Place]) -> Iterator[list[Place | None]]:
    """Every place changed at once: with gathers by permutes, and gradients with operands as others bring them; gradients as
    all others; with what is brought in another way, or alone; and with arrays in the orders that matmuls are written in."""
    brought = [place.as_brought or place.as_moved for place in places]
    yield [place.as_brought[0] if place.as_brought else place.furthest for place in places]
    if any(brought):
        yield [place.first for place in places]
        yield [place.first if not ways else ways[-1] for place, ways in zip(places, brought, strict=True)]
        yield [ways[0] if ways else None for ways in brought]
    if any(place.as_written for place in places):
        yield [place.first if place.as_written is None else place.as_written.first for place in places]
    yield [place.furthest for place in places]


def _chosen(places: Sequence[Place | None]) -> tuple[Place, ...]:
    return tuple(place for place in places if place is not None)
