"""The child of `compile_apart`: `python -m shardwise.compiled.targets.child FOLDER` does what the folder asks."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import jax
from jax import export
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from shardwise.chips.topology import Topology
from shardwise.compiled.targets.apart import ANSWER, PROGRAM, REQUEST
from shardwise.compiled.targets.devices import compile_for, memory_of, mesh_of, reason
from shardwise.errors import ShardwiseError


def answer(folder: Path) -> dict[str, Any]:
    """Compile the program of a folder for the topology that its request names."""
    request = json.loads((folder / REQUEST).read_text(encoding="utf-8"))
    topology = Topology.parse(request["topology"])
    program = export.deserialize(bytearray((folder / PROGRAM).read_bytes()))
    types = tuple(AxisType[name] for name in request["axis_types"])
    mesh = mesh_of(topology, dict(request["axes"]), axis_types=types)
    args = [
        jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=NamedSharding(mesh, _spec(spec)), weak_type=aval.weak_type)
        for aval, spec in zip(program.in_avals, request["specs"], strict=True)
    ]
    with jax.set_mesh(mesh):
        compiled = compile_for(jax.jit(program.call, donate_argnums=tuple(request["donated"])).lower(*args), topology)
    memory = memory_of(compiled)
    return {"text": compiled.as_text(), "memory": dataclasses.asdict(memory) if memory else None}


def _spec(written: dict[str, Any]) -> PartitionSpec:
    partitions = [tuple(entry) if isinstance(entry, list) else entry for entry in written["partitions"]]
    return PartitionSpec(*partitions, unreduced=frozenset(written["unreduced"]), reduced=frozenset(written["reduced"]))


def main(folder: Path) -> None:
    """Answer, or say what went wrong, in the folder."""
    try:
        said = answer(folder)
    except ShardwiseError as error:
        said = {"error": type(error).__name__, "message": str(error)}
    except Exception as error:  # the parent tells it
        said = {"error": "CompileError", "message": f"{type(error).__name__}: {reason(error)}"}
    (folder / ANSWER).write_text(json.dumps(said), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
