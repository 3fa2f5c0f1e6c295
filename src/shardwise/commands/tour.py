"""What `shardwise tour` does: the list of tours, and one of them, stepped through, printed or written."""

from __future__ import annotations

import argparse

from shardwise.commands.show import check_form, write
from shardwise.errors import NotationError, one_line
from shardwise.notation import parse_sizes
from shardwise.pictures.stepper import step_through
from shardwise.pictures.tours.all import CASES, COLLECTIVES, tour
from shardwise.pictures.tours.own import own
from shardwise.pictures.tours.rendering import document, screens
from shardwise.pictures.tours.stops import Tour
from shardwise.planning.problem import DTYPE

OWN = 'shardwise tour "A[I, J_x] · B[J_x, K] -> C[I, K]" --sizes I=4,J=4,K=4 --mesh x=4'


def run(options: argparse.Namespace) -> int:
    """Give the tour that the command line names."""
    if options.output is not None:
        check_form(options.output)
    if options.what is None:
        if options.output is not None or options.sizes or options.mesh:
            raise NotationError("a tour of what? name one, as in shardwise tour all-gather; shardwise tour lists them")
        print(greeting())
        return 0
    chosen = _chosen(options)
    if options.output is not None:
        write(document(chosen, options.hardware), options.output)
        print(f"wrote {one_line(options.output)}")
    else:
        step_through(screens(chosen, options.hardware), plainly=options.plain)
    return 0


def _chosen(options: argparse.Namespace) -> Tour:
    if "[" in options.what:
        if not options.mesh:
            raise NotationError(f"a tour of an equation needs sizes and a mesh, as in\n  {OWN}")
        return own(options.what, parse_sizes(options.sizes), options.mesh, options.hardware, DTYPE)
    found = tour(options.what)
    if options.sizes or options.mesh:
        raise NotationError(f"{found.name} has its own numbers and mesh: --sizes and --mesh belong to an equation of your own")
    return found


def greeting() -> str:
    """Which tours there are, and what to type."""
    sheets = {"layouts": tour("layouts")}
    groups = (
        ("where an array lies", sheets.values()),
        ("the collectives", (make() for make in COLLECTIVES.values())),
        ("sharded multiplication", (make() for make in CASES.values())),
    )
    lines = ["Tours: step by step, with real numbers on every device."]
    for title, tours in groups:
        lines += ["", title, *(f"  {each.name:<18} {each.about}" for each in tours)]
    return "\n".join(
        (
            *lines, "", "Take one:", "  shardwise tour all-gather",
            "  shardwise tour case-3 --hardware h100 -o case-3.html",
            "Or your own equation:", f"  {OWN}",
        )
    )  # fmt: skip
