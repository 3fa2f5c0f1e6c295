"""The subprocess that compiles: `python -m shardwise.compiled.targets.child DESCRIPTOR` answers until nobody asks."""

from __future__ import annotations

import sys
from multiprocessing.connection import Connection

from shardwise.chips.topology import Topology
from shardwise.compiled.targets.helper_process import Failed, Request
from shardwise.compiled.targets.programs import Made, compile_program
from shardwise.compiled.targets.unattached import reason
from shardwise.errors import ShardwiseError
from shardwise.mesh import Mesh


def answer(request: Request) -> Made | Failed:
    """Compile a program, or say what went wrong."""
    try:
        return compile_program(request.program, Topology.parse(request.topology), Mesh(request.axes))
    except ShardwiseError as error:
        return Failed(type(error).__name__, str(error))
    except Exception as error:  # the parent tells it
        return Failed("CompileError", f"{type(error).__name__}: {reason(error)}")


def main(connection: Connection) -> None:
    """Answer requests until the other end is closed."""
    while True:
        try:
            request = connection.recv()
        except EOFError:
            return
        connection.send(answer(request))


if __name__ == "__main__":
    main(Connection(int(sys.argv[1])))
