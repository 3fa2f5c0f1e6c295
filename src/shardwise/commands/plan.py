"""`shardwise plan`: the ranking of the programs that solve an equation, as text, JSON, code or a timeline."""

from __future__ import annotations

import argparse
from typing import Any

from shardwise import api
from shardwise.chips.topology import HERE
from shardwise.errors import ShardwiseError, as_json
from shardwise.mesh import Mesh
from shardwise.notation import parse, parse_sizes, sizes_padded_on
from shardwise.planning.explain import facts
from shardwise.planning.problem import DTYPE
from shardwise.planning.ranking import Candidate


def run(options: argparse.Namespace) -> int:
    """Print the ranking, its facts as JSON, or the best program as code."""
    if options.code and options.json:
        raise ShardwiseError("--code and --json are two forms of the same plan: ask for one of them")
    if options.timeline and (options.code or options.json):
        raise ShardwiseError("--timeline is printed below the plan: it goes with neither --code nor --json")
    sizes = parse_sizes(options.sizes)
    if options.pad:
        sizes = sizes_padded_on(parse(options.equation), sizes, Mesh.parse(options.mesh))
    ranked = api.plan(
        options.equation, sizes=sizes, mesh=_mesh(options), hardware=options.hardware,
        dtype=options.dtype or DTYPE, memory_limit=options.memory_limit, overlap=options.overlap, exact=options.exact,
        confirm=options.confirm,
    )  # fmt: skip
    if options.code:
        print(ranked.code(), end="")
    elif options.json:
        print(as_json(facts(ranked)))
    else:
        print(ranked.explain())
        if options.timeline:
            print(_timelines(ranked.best))
    return 0


def _mesh(options: argparse.Namespace) -> Any:
    """Devices where programs are to run on them; else the words are enough."""
    if options.confirm != HERE:
        if options.platform is not None:
            raise ShardwiseError("--platform says on which devices candidates run: add --confirm here")
        return options.mesh
    from shardwise.commands.run import started

    return started(options)


def _timelines(best: Candidate) -> str:
    """That of the estimate, and that of what was compiled."""
    found = [] if best.is_compilers_own else [best.timeline()]
    return "".join(f"\n{line}" for line in (*found, *([best.confirmed] if best.confirmed else [])))
