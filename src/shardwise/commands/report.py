"""`sw.report` and `shardwise report`: a plan and what became of it, what changed, or why data moves: one page for itself."""

from __future__ import annotations

import argparse
import html
import re
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
    from shardwise.compiled.records import Record
    from shardwise.functions.diagnosis import Diagnosis
    from shardwise.schedule.timeline import Timeline

FILES = (".json", ".lock", ".toml")  # what is compared, and no equation
_FUNCTION = re.compile(r"[^\s\[\]]+:[^\s\[\]:/\\]+")


class Report:
    """A page of HTML about one plan, what changed, or why data moves; it shows itself in a notebook, and is saved as a file.

    Attributes:
        title: the equation, what changed, or the function that was diagnosed.
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


def report(
    plan: Ranking | Audit | Diagnosis, audit: Audit | None = None, measured: Timeline | None = None, *, against: Any = None
) -> Report:
    """A plan as one page of HTML that fetches nothing: placements, the program step by step, timeline, ranking, code.

    Slider and keys step through the program, which plays on small arrays with true numbers. Without JavaScript every step
    stands below the other.

    >>> import shardwise as sw
    >>> sizes = {"I": 64, "J": 64, "K": 64}
    >>> made = report(sw.plan("A[I, J_x] · B[J_x, K] -> C[I, K]", sizes=sizes, mesh="x=4", hardware="tpu-v5e"))
    >>> made.title, made.html.startswith("<!DOCTYPE html>"), len(made.html) < 1_000_000
    ('A[I, J_x] · B[J_x, K] -> C[I, K]', True, True)

    >>> old = sw.plan("A[I, J_x] · B[J_x, K] -> C[I, K]", sizes=sizes, mesh="x=4", hardware="h100")
    >>> report(sw.plan("A[I, J_x] · B[J_x, K] -> C[I, K]", sizes=sizes, mesh="x=4", hardware="tpu-v5e"), against=old).title
    'What changed: A[I, J_x] · B[J_x, K] -> C[I, K]'

    Of a diagnosis the page holds every place where data moves, why, and the way out.

    Args:
        plan: of `sw.plan`; with `against` an audit too. Or what `sw.doctor` says of a function, alone.
        audit: of the plan's best program, compiled (`sw.rehearse` or `sw.audit`): its collectives, memory and timeline are
            shown beside the estimate.
        measured: a run of the plan's best program, as `sw.trace` gives it: shown beside the other two.
        against: an older plan or audit, or the file that keeps one: the page says what changed since then.

    Raises:
        PlanError: it is no plan, or two are of different kinds; MeshError: the audit is of a program on another mesh.
        FileError: a file to compare with cannot be read.
        MissingExtraError: Jinja2 is not installed.
    """
    from shardwise.pictures.report_page import report_page
    from shardwise.pictures.reports import sheet
    from shardwise.runtime.code import source

    if _is_diagnosis(plan):
        if (audit, measured, against) != (None, None, None):
            raise PlanError(
                "a page about a diagnosis takes that alone: with devices (sw.doctor(..., on=)) it holds their audit"
            )
        return diagnosed(plan)
    if against is not None:
        if audit is not None or measured is not None:
            raise PlanError("a page about what changed takes two of a kind alone: give one plan or audit, and against=")
        return changes(_record(plan), _record(against))
    if not isinstance(plan, Ranking):
        raise PlanError(
            f"a report is made of a plan or a diagnosis, not of {type(plan).__name__}: give what sw.plan or sw.doctor returns"
        )
    if audit is not None:
        _check_audit(plan, audit)
    title = str(plan.task.equation)
    told = sheet(plan, source(plan.best.program, title, task=plan.task), audit, measured)
    return Report(one_line(title), report_page(told, VERSION))


def _is_diagnosis(given: Any) -> bool:
    return hasattr(given, "places") and hasattr(given, "totals")  # by its type it could not be told without JAX


def diagnosed(found: Any) -> Report:
    """Why data moves in a function, as a page."""
    from shardwise.pictures.diagnoses import diagnosis_picture
    from shardwise.pictures.page import page

    picture = diagnosis_picture(found)
    return Report(one_line(picture.title), page(picture))


def changes(new: Record, old: Record) -> Report:
    """What changed from the one to the other, as a page."""
    from shardwise.pictures.changes import changed
    from shardwise.pictures.page import page

    picture = changed(old, new)
    return Report(one_line(picture.title), page(picture))


def _record(given: Any) -> Record:
    from shardwise.compiled import records

    if isinstance(given, Ranking):
        return records.record_of_plan(given)
    if isinstance(given, str | Path):
        return records.read(given)
    if hasattr(given, "collectives") and hasattr(given, "mesh"):
        return records.record_of_audit(given)
    raise PlanError(
        f"{type(given).__name__} is neither a plan nor an audit: give what sw.plan, sw.audit or sw.rehearse returns"
    )


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
    asked = options.equation
    if _FUNCTION.fullmatch(asked) and Path(asked).suffix not in FILES:
        made = diagnosed(_diagnosis(options))
    else:
        _refuse(options, ("args", "axis_types", "platform"), "belong to a function, as train.py:step, and this is none")
        made = _changes(options) if options.against else report(*_asked(options))
    writing.keeping(options.output, made.save)
    print(f"wrote {path}: {bytes_text(len(made.html.encode()))}, open it in a browser")
    return 0


def _changes(options: argparse.Namespace) -> Report:
    """What changed since a file was written: of another file, or of an equation as it is planned now."""
    from shardwise.compiled import records

    for name in ("on", "measured"):
        if getattr(options, name):
            raise PlanError(f"--{name} belongs to a report of one plan, and --against compares two: leave one of them out")
    old = records.read(options.against)
    if Path(options.equation).suffix in FILES:
        return changes(records.read(options.equation), old)
    return changes(_record(_planned(options)), old)


def _diagnosis(options: argparse.Namespace) -> Any:
    """What the doctor says of a function."""
    from shardwise.commands.doctor import diagnosed_by

    of_plans = ("sizes", "dtype", "memory_limit", "pad", "exact", "against", "measured")
    _refuse(options, of_plans, f"belong to an equation, and {one_line(options.equation)} names a function")
    return diagnosed_by(options.equation, options)


def _refuse(options: argparse.Namespace, names: tuple[str, ...], why: str) -> None:
    given = [f"--{name.replace('_', '-')}" for name in names if getattr(options, name)]
    if given:
        raise PlanError(f"{', '.join(given)} {why}: leave {'it' if len(given) == 1 else 'them'} out")


def _asked(options: argparse.Namespace) -> tuple[Ranking, Audit | None, Timeline | None]:
    """The plan, and what is known of it compiled and measured."""
    plan = _planned(options)
    return plan, _rehearsed(plan, options.on) if options.on else None, _measured(options.measured) if options.measured else None


def _planned(options: argparse.Namespace) -> Any:
    if options.mesh is None:
        raise MeshError("a plan needs a mesh: --mesh x=4,y=2")
    sizes = parse_sizes(options.sizes)
    if options.pad:
        sizes = sizes_padded_on(parse(options.equation), sizes, Mesh.parse(options.mesh))
    return api.plan(
        options.equation, sizes=sizes, mesh=options.mesh, hardware=options.hardware or _hardware_of(options.on),
        dtype=options.dtype or DTYPE, memory_limit=options.memory_limit, overlap=options.overlap,
        exact=options.exact,
    )  # fmt: skip


def _measured(folder: str) -> Timeline:
    from shardwise.measure.profiling import trace

    return trace(folder)


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
