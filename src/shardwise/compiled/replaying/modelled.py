"""The timeline of a compiled program: its schedule replayed on a model of the chip, what runs when and what waits for what."""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from shardwise.chips import Hardware, Switch, Torus
from shardwise.chips.links import Route, assumptions
from shardwise.chips.placing import Site, physical_routes
from shardwise.compiled.facts import Collective
from shardwise.compiled.replaying.instruction_stream import FROM_HOST, PER_SECOND, TO_HOST, record
from shardwise.compiled.replaying.kernels import Cores
from shardwise.compiled.replaying.replay import Event, Player, Run, flattened
from shardwise.compiled.replaying.traffic import NETWORK, NVLINK
from shardwise.compiled.replaying.work import Workbook
from shardwise.compiled.text.hlo import Module
from shardwise.mesh import Mesh
from shardwise.schedule.timeline import COMPUTE, Share, Span, Timeline

MOST_SPANS = 20_000


def timeline(
    module: Module,
    collectives: Sequence[Collective],
    hardware: Hardware,
    mesh: Mesh,
    routes: Mapping[str, Route] | None = None,
    name: str | None = None,
    site: Site | None = None,
) -> Timeline:
    """Replay a compiled program's schedule on a model of one device and its links.

    >>> from shardwise.chips import hardware
    >>> from shardwise.compiled.text.hlo import read
    >>> from shardwise.compiled.text.reading import collectives
    >>> module = read('''HloModule jit_f, is_scheduled=true, num_partitions=4
    ... ENTRY %main (p: bf16[1000000]) -> bf16[4000000] {
    ...   %p = bf16[1000000]{0} parameter(0)
    ...   ROOT %g = bf16[4000000]{0} all-gather(%p), replica_groups={{0,1,2,3}}, dimensions={0}
    ... }''')
    >>> mesh = Mesh.parse("x=4")
    >>> line = timeline(module, collectives(module, mesh).collectives, hardware("tpu-v5e"), mesh)
    >>> round(line.step_seconds * 1e6, 1), line.exposed_seconds == line.step_seconds     # 6 MB at 45 GB/s
    (133.3, True)

    Args:
        collectives: those of the module over the same mesh, as `reading.collectives` finds them.
        routes: the physical routes of the mesh's axes, where they are known.
        site: on which chip each device sits, where that is known: it says the routes too.
    """
    if site is not None:
        routes = physical_routes(site.topology, site.positions, mesh)
    cores = Cores(module, hardware, mesh, Workbook(module))
    player = Player(slowdown=hardware.slowdown, beside=frozenset((NVLINK, NETWORK)))
    run = player.play(record(cores, collectives, routes, site), last=True)
    flat = list(flattened(run, MOST_SPANS))
    notes = _notes(cores, player, flat, routes, site)
    if not module.scheduled:
        notes.append("the text is not that of a scheduled module: the order of its lines is taken")
    sums = run.sums
    return Timeline(
        name=name or module.name,
        hardware=hardware.name,
        spans=tuple(sorted((_span(*found) for found in flat), key=lambda span: (span.start_seconds, span.lane))),
        step_seconds=run.length / PER_SECOND,
        compute_seconds=(sums["compute",] + sums["matmul",]) / PER_SECOND,
        transfer_seconds=sums["all transfer",] / PER_SECOND,
        exposed_seconds=sums["exposed",] / PER_SECOND,
        copy_wait_seconds=(sums["wait",] - sums["exposed",]) / PER_SECOND,
        critical_path=_critical_path(flat, run.length),
        utilisation=sums["peak_seconds",] * PER_SECOND / run.length if run.length else 0.0,
        matmul_flops=float(sums["flops",]),
        lanes=_lanes(run),
        shares=_shares(run, collectives),
        notes=tuple(notes),
    )


def _span(event: Event, offset: int, trip: int | None) -> Span:
    collective = event.transfer.collective if event.transfer else None
    moved = event.transfer.moved_bytes if event.transfer else 0.0
    line = collective.source if collective else event.line
    op_name = collective.op_name if collective else event.op_name
    start, seconds = (offset + event.start) / PER_SECOND, event.length / PER_SECOND
    return Span(event.name, event.lane, event.kind, start, seconds, trip, collective, moved, line, op_name)


def _lanes(run: Run) -> tuple[tuple[str, float], ...]:
    busy = {COMPUTE: run.sums["compute",] + run.sums["matmul",]}
    busy |= {key[1]: value for key, value in sorted(run.sums.items()) if key[0] == "lane" and value}
    return tuple((lane, value / PER_SECOND) for lane, value in busy.items())


def _shares(run: Run, collectives: Sequence[Collective]) -> tuple[Share, ...]:
    first: dict[tuple[str, str], Collective] = {}
    for collective in collectives:
        first.setdefault((collective.computation, collective.name), collective)
    return tuple(
        Share(c, run.sums["transfer", *place] / PER_SECOND, run.sums["exposed", *place] / PER_SECOND)
        for place, c in first.items()
    )


def _notes(
    cores: Cores, player: Player, flat: Sequence[Any], routes: Mapping[str, Route] | None, site: Site | None
) -> list[str]:
    """What is assumed, and what could not be known."""
    hardware, mesh = cores.hardware, cores.mesh
    where = assumptions(hardware, mesh)
    if routes and isinstance(hardware.links, Torus):
        where = assumptions(hardware, mesh, routes)
    clock = f"cycles at {cores.clock_hz / 1e9:g} GHz" if cores.clock_hz else "no clock is known, a roofline for every kernel"
    memory = f"main memory {cores.hardware.memory_speed(mesh):.3g} bytes/s"
    notes = [
        f"{where}; {clock}; {memory}",
        "a transfer has its lanes for itself from start to end, latency included; "
        "permutes that crowd no link more together run at once",
    ]
    if isinstance(hardware.links, Torus) and mesh.size > 1 and site is None:
        notes.append("devices next to each other along an axis are taken as linked: no permute goes round about")
    if isinstance(hardware.links, Switch):
        notes.append(
            "GPU compilers tell no cycles: what kernels take beyond FLOPs over peak and bytes over bandwidth is not known"
        )
    if hardware.overlapped_matmul is not None:
        charged = f"matmuls take {hardware.slowdown:g} times as long while something is on its way"
        notes.append(f"{charged} ({hardware.overlapped_matmul.source})")
    if not cores.launch_seconds:
        notes.append("starting a kernel costs nothing: no figure is known")
    speed = hardware.host_speed(mesh)
    if speed is not None and any(event.lane in (TO_HOST, FROM_HOST) for event, _, _ in flat):
        notes.append(f"the link to the host {speed:.3g} bytes/s each way, for each device")
    notes += [text + (f" ({count} places)" if count > 1 else "") for text, count in cores.notes.items()]
    notes += [f"{unread.text}: {unread.why}" for unread in cores.book.unread]
    notes += dict.fromkeys(player.notes)
    if any(event.kind == "loop" for event, _, _ in flat):
        notes.append(f"of loops so many trips are shown that there are about {MOST_SPANS} spans; the seconds count all")
    return notes


def _critical_path(flat: Sequence[tuple[Event, int, int | None]], length: int) -> tuple[Span, ...]:
    """From the end back: what the cores did, the transfer where they waited, and what that one queued behind."""
    cores = sorted((f for f in flat if f[0].lane == COMPUTE), key=lambda f: f[1] + f[0].start)
    starts = [offset + event.start for event, offset, _ in cores]
    ending: dict[int, list[tuple[Event, int, int | None]]] = defaultdict(list)
    for found in flat:
        if found[0].kind in ("transfer", "copy"):
            ending[found[1] + found[0].end].append(found)
    path: list[Span] = []
    now, wanted = length, frozenset[str]()  # the tracks that a transfer queued for
    while now > 0:
        behind = (
            next((f for f in ending[now] if f[0].transfer and wanted & set(f[0].transfer.tracks)), None) if wanted else None
        )
        if behind is None:
            found = cores[bisect.bisect_left(starts, now) - 1]
            if found[0].kind == "wait":
                arriving = [f for f in ending[now] if f[0].transfer is found[0].transfer or found[0].transfer is None]
                behind = arriving[0] if arriving else None
        event, offset, trip = behind or found
        start = offset + event.start
        path.append(_span(replace(event, length=now - start, issued=0), offset, trip))
        queued = behind is not None and offset + event.issued < start and event.transfer is not None
        wanted = frozenset(event.transfer.tracks) if queued and event.transfer else frozenset()
        now = start
    return tuple(path)
