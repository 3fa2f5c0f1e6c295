"""What `shardwise show` does: a placement, or all of them, printed or written as a picture."""

from __future__ import annotations

import argparse
from pathlib import Path

from shardwise import writing
from shardwise.errors import FileError, one_line
from shardwise.mesh import Mesh
from shardwise.notation import parse_operand, parse_sizes
from shardwise.pictures.dispatch import written
from shardwise.pictures.picture import Picture, picture_of
from shardwise.pictures.placement import Placement
from shardwise.pictures.sheet import sheet
from shardwise.pictures.svg import svg
from shardwise.pictures.terminal import present

FORMS = (".svg", ".html")


def run(options: argparse.Namespace) -> int:
    """Show a layout as the command line says."""
    if options.output is not None:
        check_form(options.output)
    shown = _shown(options)
    if options.output is not None:
        write(picture_of(shown), options.output)
        print(f"wrote {one_line(options.output)}")
    else:
        present(shown)
    return 0


def _shown(options: argparse.Namespace) -> Placement | Picture:
    mesh = Mesh.parse(options.mesh)
    operand = parse_operand(options.layout)
    sizes = parse_sizes(options.sizes) or None
    for dim in sizes or ():
        operand.layout.axes_of(dim)
    if options.all:
        return sheet(operand, mesh, sizes, pad=options.pad)
    return written(operand, mesh, sizes, pad=options.pad)


def check_form(path: str) -> None:
    """Refuse early a file whose name says no form that is written, or that the system refuses.

    Raises:
        FileError: it is none of `.svg` and `.html`, or cannot be written.
    """
    writing.check(path)
    if Path(path).suffix.lower() not in FORMS:
        raise FileError(f"{one_line(path)}: pictures are written as {' or '.join(FORMS)}: end the name with one of them")


def write(picture: Picture, path: str) -> None:
    """Write a picture as the name of its file says; where that fails after all, the error says where it is kept.

    Raises:
        FileError: the name says no form, or the file cannot be written; MissingExtraError: HTML without Jinja2.
    """
    check_form(path)
    if Path(path).suffix.lower() == ".html":
        from shardwise.pictures.page import page

        text = page(picture)
    else:
        text = svg(picture) + "\n"
    writing.keeping(path, lambda place: writing.write(place, text))
