"""The preflight: before their first collective, processes compare what each is about to run, and stop where it differs.

JAX runs what each process asks for: with other equations of equal sizes each computes nonsense, and with other sizes they hang
or abort. A comparison goes through the coordination service's store: each process keeps its facts there, the lowest of them
compares, and all read what it found. What has been agreed on once costs nothing again.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import re
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from shardwise.distributed import jobs, reporting, service
from shardwise.distributed.differences import difference, named
from shardwise.distributed.service import Store
from shardwise.errors import DistributedError, counted, one_line, shortened

LISTED_DEVICES = 256  # of a mesh whose order is told device by device; of a larger one its hash
_COLLECTIVE = re.compile(
    r"= (?P<type>.*?) (?P<kind>(?:all-reduce|all-gather|reduce-scatter|all-to-all|ragged-all-to-all|collective-permute"
    r"|collective-broadcast|send|recv)(?:-start)?)\((?P<operands>[^)]*)\)(?P<rest>.*)"
)
_PRIVATE = re.compile(r",? (?:metadata|backend_config|frontend_attributes)=\{.*")  # of lines and machines, not of what is sent
_ADDRESS = re.compile(r"(?<=[\"'= ])\d{12,}(?=[\"' ,}])")  # where a callback lies in this process's memory

_agreed: set[tuple[Any, ...]] = set()
_meetings: Counter[str] = Counter()
_one_at_a_time = threading.Lock()


@dataclass(frozen=True, slots=True)
class Preflight:
    """What processes have agreed on: their numbers, and the facts that all of them share; prints as such."""

    processes: tuple[int, ...]
    facts: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        head = f"{counted(len(self.processes), 'process')}" if len(self.processes) == 1 else named(self.processes)
        width = max(len(name) for name, _ in self.facts)
        lines = [f"  {name:{width}}  {shortened(one_line(value), 100)}" for name, value in self.facts]
        return "\n".join([f"preflight: {head} would run the same", *lines])


def preflight(function: Callable[..., Any], *args: Any) -> Preflight:
    """Compare a function in all processes before it first runs: its arguments, its program, and its compiled collectives.

    Every process of the run calls it with its own function and arguments; nothing is run. What `sw.einsum`, `sw.reshard`,
    `sw.put` and `sw.check` run outside of `jit` is compared by itself, at the first use of an equation. Compiling is not
    wasted: the first call of a jitted function finds what was compiled here.

    >>> import jax, jax.numpy as jnp
    >>> found = preflight(jax.jit(lambda x: x @ x.T), jnp.ones((4, 2)))
    >>> dict(found.facts)["arguments"]
    'float32[4, 2]'

    Args:
        function: jitted or not.
        args: arrays, or `jax.ShapeDtypeStruct` with their shardings, or trees of them.

    Raises:
        DistributedError: the processes differ, with a line for each side; or one does not come in time (300 seconds, or the
            environment's SHARDWISE_MEETING_SECONDS).
    """
    import jax

    name = getattr(function, "__qualname__", None) or type(function).__name__
    lower: Any = getattr(function, "lower", None) or jax.jit(function).lower
    processes = tuple(range(jax.process_count()))
    told = {"function": name, **settings(), "arguments": ", ".join(map(_leaf, jax.tree.leaves(args)))}
    _agree(f"preflight of {name}", told, processes)
    lowered = lower(*args)
    program = _ADDRESS.sub("0", lowered.as_text())
    told |= {"lowered": f"{_operations(program)} [{digest(program)}]"}
    _agree(f"preflight of {name}", told, processes)
    told |= {"collectives": collectives(lowered.compile())}
    _agree(f"preflight of {name}", told, processes)
    return Preflight(processes, tuple(told.items()))


def agree(what: str, mesh: Any, facts: Mapping[str, str]) -> None:
    """Compare facts among the processes whose devices a mesh has; nothing where they are all this one's.

    Raises:
        DistributedError: they differ, or a process does not come in time.
    """
    processes = processes_of(mesh)
    if len(processes) < 2 or (known := (what, mesh, *facts.items())) in _agreed:
        return
    call = {} if "equation" in facts else {"call": what}
    _agree(what, {**call, **facts, "mesh": mesh_text(mesh), **settings()}, processes)
    _agreed.add(known)


def processes_of(mesh: Any) -> tuple[int, ...]:
    """The processes that have devices of a mesh; none of a mesh that has no devices, or others than those attached."""
    import jax

    # Asked first, since counting processes would start JAX's backend, which rehearsals go without.
    return _processes_of(mesh) if jax.distributed.is_initialized() and isinstance(mesh, jax.sharding.Mesh) else ()


@functools.lru_cache(maxsize=256)
def _processes_of(mesh: Any) -> tuple[int, ...]:
    import jax

    if getattr(mesh.devices.flat[0], "client", None) is not jax.devices()[0].client:
        return ()
    return tuple(sorted({device.process_index for device in mesh.devices.flat}))


def settings() -> dict[str, str]:
    """Versions and settings that decide what JAX makes of a program."""
    import jax

    asked: dict[str, Any] = jax.config.values
    said = {"64 bits": asked["jax_enable_x64"], "matmul precision": asked["jax_default_matmul_precision"] or "default"}
    return {**jobs.common(), **{name: str(value) for name, value in said.items()}}


def mesh_text(mesh: Any) -> str:
    """Axes, their types, and the devices in order: `x=2, y=2 (Explicit) on devices 0 1 2 3`."""
    axes = ", ".join(f"{name}={size}" for name, size in mesh.shape.items())
    types = " ".join(dict.fromkeys(kind.name for kind in mesh.axis_types))
    ids = " ".join(str(device.id) for device in mesh.devices.flat)
    return f"{axes} ({types}) on devices {ids if mesh.size <= LISTED_DEVICES else digest(ids)}"


def collectives(compiled: Any) -> str:
    """The collectives of a compiled program, counted, and a hash of all that they say, in order."""
    lines = []
    kinds: Counter[str] = Counter()
    for line in compiled.as_text().splitlines():
        found = _COLLECTIVE.search(line)
        if found:
            kinds[found["kind"].removesuffix("-start")] += 1
            lines.append(f"{found['type']} {found['kind']} {_PRIVATE.sub('', found['rest'])}")
    told = ", ".join(f"{kind} x{count}" for kind, count in sorted(kinds.items())) or "none"
    return f"{told} [{digest(chr(10).join(lines))}]"


def digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _operations(program: str) -> str:
    return counted(program.count("stablehlo."), "operation")


def _leaf(leaf: Any) -> str:
    import numpy as np

    aval = leaf if hasattr(leaf, "dtype") else np.asarray(leaf)
    spec = getattr(getattr(leaf, "sharding", None), "spec", None)
    return f"{aval.dtype}[{', '.join(map(str, aval.shape))}]{f' {spec}' if spec else ''}"


# Meeting.


def _agree(what: str, facts: Mapping[str, str], processes: tuple[int, ...]) -> None:
    meet(what, json.dumps(facts), processes, compared)


def meet(what: str, text: str, processes: tuple[int, ...], compare: Callable[[dict[int, str]], str]) -> str:
    """Wait for the others, and compare what each says; all get what the comparison finds, empty where all is well.

    Args:
        compare: given what each process says, by its number; the lowest process calls it.

    Raises:
        DistributedError: `compared` is the comparison and finds a difference, or a process does not come in time.
    """
    if len(processes) < 2:
        return compare({processes[0]: text}) if processes else ""
    store = service.store()
    if store is None:
        warnings.warn("this JAX shows no store of its coordination service: processes are not compared", stacklevel=3)
        return ""
    group = digest(repr(processes))
    before = reporting.doing()
    with _one_at_a_time:
        reporting.now_doing(f"waiting for the others before {what}")
        reporting.report("doing", what=reporting.doing())
        number = _meetings[group]
        _meetings[group] += 1
        verdict = _verdict(store, f"meet/{group}/{number}", text, processes, what, compare)
        if verdict["missing"] or (verdict["found"] and compare is compared):
            raise DistributedError(verdict["missing"] or verdict["found"])
        if number > 1 and store.process == processes[0]:
            store.drop(f"meet/{group}/{number - 2}/")  # all have read that one: each came to the next
        reporting.now_doing(before if before.startswith("saving") else f"running what follows {what}")
        reporting.report("doing", what=reporting.doing())
    return verdict["found"]


def _verdict(
    store: Store, key: str, text: str, processes: tuple[int, ...], what: str, compare: Callable[[dict[int, str]], str]
) -> dict[str, str]:
    """What the lowest process finds, and whom it missed."""
    seconds = jobs.seconds("meeting_seconds")
    first, *others = processes
    store.put(f"{key}/{store.process}", text)
    if store.process != first:
        said = store.wait(f"{key}/verdict", seconds + 5.0)
        return json.loads(said) if said is not None else {"missing": _missing(store, [first], what, seconds), "found": ""}
    told, missing = {first: text}, []
    deadline = time.monotonic() + seconds
    for process in others:
        came = store.wait(f"{key}/{process}", max(0.001, deadline - time.monotonic()))
        if came is None:
            missing.append(process)
        else:
            told[process] = came
    verdict = {
        "missing": _missing(store, missing, what, seconds) if missing else "",
        "found": "" if missing else compare(told),
    }
    store.put(f"{key}/verdict", json.dumps(verdict))
    return verdict


def compared(told: Mapping[int, str]) -> str:
    """How what processes say differs, as JSON of facts; empty where it does not."""
    if len(set(told.values())) == 1:
        return ""
    found = difference({process: json.loads(text) for process, text in told.items()})
    return (
        f"the processes are about to run different things, and nothing was run:\n{found}\n"
        "every process must make the same calls in the same order: look for what depends on the process, the host, or time"
    )


def _missing(store: Store, missing: Iterable[int], what: str, seconds: float) -> str:
    beats = {}
    with contextlib.suppress(Exception):  # the store may be what is missing
        beats = {process: json.loads(text)["doing"] for process, text in store.listed("beat").items()}
    doing = "; ".join(f"process {process} was {beats[process]}" for process in missing if process in beats)
    return (
        f"{what}: {named(missing)} did not come within {seconds:g} seconds{f' ({doing})' * bool(doing)}: every process whose "
        "devices the mesh has must make the same call; where one is only late, set SHARDWISE_MEETING_SECONDS"
    )
