"""What a compiled text states of an instruction beside its shape: the algorithm of a collective, the cost of a kernel."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from shardwise.compiled.facts import Algorithm
from shardwise.compiled.text.hlo import Instruction

_ALL_GATHER = re.compile(r"(\d)DAllGather")
_COLORS = re.compile(r"\bcolors:(\d+)")
_COST = re.compile(r'"cost_estimate":\{([^{}]*)\}')
_FIGURE = re.compile(r'"(\w+)":"?(-?\d+)"?')
# Every shard takes the way of its own to its goal, over whichever links lie between.
_ROUTED = ("AllToAllEmitter", "RaggedAllToAllEmitter", "NetRouterEmitter")
_WHOLE = ("SinglePhaseRingSumEmitter", "BinomialSinglePhaseRingSumEmitter")


def algorithm(*instructions: Instruction) -> Algorithm | None:
    """The algorithm that the first of some instructions names; None where none does.

    A TPU device receives over so many of its links at once, by the names of the algorithms:

    - `1DAllGather...`: a ring, which fills both directions of one dimension: 2 links; `2DAllGather...` 4, `3D...` 6.
    - `UniDirection...Strategy{colors:c`: c rings, each one way: c links. `colors` is 2 for each dimension in use.
    - any other `...Strategy...{colors:c`: c pincers, each of which closes in from both sides: 2 c links. `colors` is 1 for
      each dimension in use.
    - those with `ND` in their names go along the sides of the torus, one after the other.
    - `SinglePhaseRingSumEmitter`, or `Binomial...`: whole arrays are passed on, where the others first add up a part on each
      device; both are taken as a ring of 2 links.
    - on sparse cores `color_strategies`: a ring each, `UNIDIR` of one way. With `partner_transfers_outside_the_ring` the
      rings go from chip to chip, and the cores of a chip hand each other what arrives.

    >>> from shardwise.compiled.text.hlo import parse_instruction
    >>> config = '"collective_algorithm_config":{"emitter":"1DAllGatherNonMajorDim","debug":"group_size = 8"}'
    >>> gather = parse_instruction('%g = f32[8]{0} all-gather(%p), dimensions={0}, backend_config={' + config + '}')
    >>> algorithm(gather)
    Algorithm(name='1DAllGatherNonMajorDim', links=2, known=True, whole=False, per_chip=False, around=True)
    """
    for instruction in instructions:
        config = _object(instruction.attributes, '"collective_algorithm_config":')
        if config:
            return _named(str(config.get("emitter", "?")), str(config.get("strategy", "")), str(config.get("debug", "")))
        offloaded = _object(instruction.attributes, '"collective_offload_config":')
        if offloaded:
            return _offloaded(offloaded)
    return None


def _named(emitter: str, strategy: str, debug: str) -> Algorithm:
    name = f"{emitter} {strategy}".strip()
    if match := _ALL_GATHER.match(emitter):
        return Algorithm(name, 2 * int(match[1]))
    if emitter in _ROUTED:
        return Algorithm(name)
    if emitter in _WHOLE:
        return Algorithm(name, 2, whole=True)
    colors = _COLORS.search(debug)
    if colors and "Strategy" in strategy:
        links = int(colors[1]) * (1 if strategy.startswith("UniDirection") else 2)
        return Algorithm(name, links, around="ND" not in strategy)
    return Algorithm(name, known=False)


def _offloaded(config: dict[str, Any]) -> Algorithm:
    kind, how = next(((key, value) for key, value in config.items() if isinstance(value, dict)), ("?", {}))
    if "all_to_all" in kind:
        return Algorithm("sparse cores")
    colors: list[dict[str, Any]] = how.get("ici_strategy_config", {}).get("color_strategies", [])
    rings = [color["phase_rings"][0] for color in colors if color.get("phase_rings")]
    kinds = [str(ring.get("ring_type", "")).removeprefix("ICI_RING_TYPE_") for ring in rings]
    links = sum(1 if kind.startswith("UNIDIR") else 2 for kind in kinds)
    shared = any(ring.get("partner_transfers_outside_the_ring") for color in colors for ring in color.get("phase_rings", ()))
    name = " ".join(["sparse cores", *sorted(set(kinds))])
    known = bool(kinds) and all(kind.startswith(("UNIDIR", "BIDIR")) for kind in kinds)
    return Algorithm(name, links or None, known=known, per_chip=shared)


def _object(text: str, key: str) -> dict[str, Any] | None:
    """The JSON object that stands after a key; one that cannot be read says "?" of each thing."""
    place = text.find(key)
    if place < 0:
        return None
    try:
        found, _ = json.JSONDecoder().raw_decode(text, place + len(key))
    except ValueError:
        return {"emitter": "?"}
    return found if isinstance(found, dict) else None


@dataclass(frozen=True, slots=True)
class Cost:
    """What the author of a kernel states that one call of it takes on one device (`pl.CostEstimate`)."""

    flops: float
    transcendentals: float
    accessed_bytes: float
    remote_bytes: float


def stated_cost(instruction: Instruction) -> Cost | None:
    """The cost that a custom call states; None where it states none.

    >>> from shardwise.compiled.text.hlo import parse_instruction
    >>> config = '{"custom_call_config":{"cost_estimate":{"flops":"1000","transcendentals":"5","bytes_accessed":"64"}}}'
    >>> stated_cost(parse_instruction('%k = f32[8]{0} custom-call(%p), backend_config=' + config))
    Cost(flops=1000.0, transcendentals=5.0, accessed_bytes=64.0, remote_bytes=0.0)
    """
    match = _COST.search(instruction.attributes) if instruction.opcode == "custom-call" else None
    if match is None:
        return None
    figures = {key: max(0.0, float(value)) for key, value in _FIGURE.findall(match[1])}
    names = ("flops", "transcendentals", "bytes_accessed", "remote_bytes_transferred")
    return Cost(*(figures.get(name, 0.0) for name in names))


def communicates(instruction: Instruction) -> bool:
    """Whether a kernel sends to other devices by itself."""
    return instruction.opcode == "custom-call" and '"has_communication":true' in instruction.attributes
