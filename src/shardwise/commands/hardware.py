"""`shardwise hardware`: the catalogue, each figure with its source."""

from __future__ import annotations

import argparse

from shardwise.chips import hardware
from shardwise.errors import as_json


def run(options: argparse.Namespace) -> int:
    """Print one hardware, or all."""
    chips = [hardware(name) for name in ([options.name] if options.name else hardware.names())]
    if options.json:
        facts = [
            {"name": chip.name, "title": chip.title, "devices_per_chip": chip.devices_per_chip}
            | {"figures": {name: {"value": f.value, "source": f.source} for name, f in chip.figures()}}
            for chip in chips
        ]
        print(as_json(facts))
    else:
        print("\n\n".join(map(str, chips)))
    return 0
