"""`sw.report` and `shardwise report`: a plan, and what a compiler made of it, as one page that needs nothing else."""

from __future__ import annotations

import argparse
import html
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwise import api, writing
from shardwise.errors import FileError, MeshError, PlanError, counted, one_line
from shardwise.mesh import Mesh
from shardwise.notation import parse, parse_sizes, sizes_padded_on
from shardwise.planning.problem import DTYPE
from shardwise.planning.ranking import Ranking
from shardwise.units import bytes_text
from shardwise.version import VERSION

if TYPE_CHECKING:
    from shardwise.compiled.audit import Audit


class Report:
    """A page of HTML about one plan; it shows itself in a notebook, and is saved as a file to send to somebody.

    Attributes:
        title: the equation.
        html: the whole page.
    """

    def __init__(self, title: str, html: str) -> None:
        self.title = title
        self.html = html

    def save(self, path: str | Path) -> None:
        """Write the page; its name ends with `.html`.

        Raises:
            FileError: the name says another form, or the file cannot be written; then one that stood there still does.
        """
        check_form(path)
        writing.write(path, self.html)

    def _repr_html_(self) -> str:
        # A frame of its own: the page's styles and keys stay apart from the notebook's.
        inside = html.escape(self.html, quote=True)
        label = html.escape(f"Report on {self.title}", quote=True)
        look = "width:100%;height:720px;border:1px solid #8c959f;border-radius:8px"
        return f'<iframe srcdoc="{inside}" sandbox="allow-scripts" title="{label}" style="{look}"></iframe>'

    def __repr__(self) -> str:
        return f"report on {self.title}: {counted(len(self.html.encode()), 'byte')} of HTML; .save('report.html') writes it"


def report(plan: Ranking, audit: Audit | None = None) -> Report:
    """A plan as one page of HTML that fetches nothing: placements, the program step by step, timeline, ranking, code.

    Slider and keys step through the program, which plays on small arrays with true numbers. Without JavaScript every step
    stands below the other.

    >>> import shardwise as sw
    >>> sizes = {"I": 64, "J": 64, "K": 64}
    >>> made = report(sw.plan("A[I, J_x] · B[J_x, K] -> C[I, K]", sizes=sizes, mesh="x=4", hardware="tpu-v5e"))
    >>> made.title, made.html.startswith("<!DOCTYPE html>"), len(made.html) < 1_000_000
    ('A[I, J_x] · B[J_x, K] -> C[I, K]', True, True)

    Args:
        plan: of `sw.plan`.
        audit: of the plan's best program, compiled (`sw.rehearse` or `sw.audit`): its collectives, memory and timeline are
            shown beside the estimate.

    Raises:
        PlanError: it is no plan; MeshError: the audit is of a program on another mesh.
        MissingExtraError: Jinja2 is not installed.
    """
    from shardwise.pictures.report_page import report_page
    from shardwise.pictures.reports import sheet
    from shardwise.runtime.code import source

    if not isinstance(plan, Ranking):
        raise PlanError(f"a report is made of a plan, not of {type(plan).__name__}: give what sw.plan(...) returns")
    if audit is not None:
        _check_audit(plan, audit)
    title = str(plan.task.equation)
    told = sheet(plan, source(plan.best.program, title, sizes=plan.task.sizes), audit)
    return Report(one_line(title), report_page(told, VERSION))


def _check_audit(plan: Ranking, audit: Any) -> None:
    mesh = getattr(audit, "mesh", None)
    if mesh is None or not hasattr(audit, "collectives"):
        raise PlanError(f"{type(audit).__name__} is no audit: give what sw.rehearse(...) or sw.audit(...) returns")
    if mesh != plan.task.mesh:
        raise MeshError(f"the audit is of a program on mesh {mesh}, and the plan is for mesh {plan.task.mesh}: give its own")


def run(options: argparse.Namespace) -> int:
    """Write a report as the command line says."""
    writing.check(options.output)
    path = check_form(options.output)
    sizes = parse_sizes(options.sizes)
    if options.pad:
        sizes = sizes_padded_on(parse(options.equation), sizes, Mesh.parse(options.mesh))
    plan = api.plan(
        options.equation, sizes=sizes, mesh=options.mesh, hardware=options.hardware or _hardware_of(options.on),
        dtype=options.dtype or DTYPE, memory_limit=options.memory_limit, overlap=options.overlap,
        exact=options.exact,
    )  # fmt: skip
    made = report(plan, _rehearsed(plan, options.on) if options.on else None)
    writing.keeping(options.output, made.save)
    print(f"wrote {path}: {bytes_text(len(made.html.encode()))}, open it in a browser")
    return 0


def _hardware_of(target: str | None) -> str | None:
    """The hardware to plan for: that of the devices to compile for, where the catalogue has it."""
    from shardwise.chips.topology import Topology

    topology = Topology.parse(target) if target else None
    return str(topology) if topology is not None and topology.chip else None


def _rehearsed(plan: Any, target: str) -> Audit:
    from shardwise.commands.rehearse import rehearsed

    return rehearsed(plan, target)


def check_form(path: str | Path) -> str:
    """The name of a file to write a page to, as it is told.

    Raises:
        FileError: it says another form.
    """
    said = one_line(str(path))
    if Path(path).suffix.lower() not in (".html", ".htm"):
        raise FileError(f"{said}: a report is a page of HTML: end the name with .html")
    return said
