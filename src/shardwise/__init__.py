"""Shardwise: one line of notation becomes a planned, checked and visible distributed contraction in JAX.

>>> import shardwise as sw
>>> plan = sw.plan("A[I_x, J] · B[J, K] -> C[I, K]", sizes={"I": 16384, "J": 1024, "K": 2048}, mesh="x=4")
>>> print(plan.best.program.steps[-1])
AllGather(array='C', dim='I', axes=('x',))

Names are loaded when they are first used: planning needs no JAX, and importing Shardwise starts no backend.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from shardwise import views
from shardwise.version import VERSION as __version__

if TYPE_CHECKING:
    from shardwise import distributed
    from shardwise.api import Plan, einsum, plan, put, reshard, show
    from shardwise.chips import Hardware, hardware
    from shardwise.chips.topology import Topology
    from shardwise.commands.report import Report, report
    from shardwise.compiled.audit import Audit
    from shardwise.compiled.compiling import audit, rehearse
    from shardwise.errors import ShardwiseError
    from shardwise.functions.diagnosing import doctor
    from shardwise.functions.diagnosis import Diagnosis
    from shardwise.functions.overlapped import Overlapped
    from shardwise.functions.overlapping import overlap, overlapped
    from shardwise.layout import Layout
    from shardwise.measure.calibrating import calibrate
    from shardwise.measure.comparing import compare
    from shardwise.measure.comparison import Comparison
    from shardwise.measure.profiling import trace
    from shardwise.mesh import Mesh
    from shardwise.notation import Equation, parse
    from shardwise.program import Program
    from shardwise.runtime import random, spmd
    from shardwise.runtime.checking import Check, check
    from shardwise.runtime.devices import make_mesh, simulate
    from shardwise.runtime.padding import true_shape
    from shardwise.schedule.timeline import Timeline

_HOMES = {
    "Audit": "shardwise.compiled.audit",
    "Check": "shardwise.runtime.checking",
    "Comparison": "shardwise.measure.comparison",
    "Diagnosis": "shardwise.functions.diagnosis",
    "Equation": "shardwise.notation",
    "Hardware": "shardwise.chips",
    "Layout": "shardwise.layout",
    "Mesh": "shardwise.mesh",
    "Overlapped": "shardwise.functions.overlapped",
    "Plan": "shardwise.api",
    "Program": "shardwise.program",
    "Report": "shardwise.commands.report",
    "ShardwiseError": "shardwise.errors",
    "Timeline": "shardwise.schedule.timeline",
    "Topology": "shardwise.chips.topology",
    "audit": "shardwise.compiled.compiling",
    "calibrate": "shardwise.measure.calibrating",
    "check": "shardwise.runtime.checking",
    "compare": "shardwise.measure.comparing",
    "doctor": "shardwise.functions.diagnosing",
    "einsum": "shardwise.api",
    "hardware": "shardwise.chips",
    "make_mesh": "shardwise.runtime.devices",
    "overlap": "shardwise.functions.overlapping",
    "overlapped": "shardwise.functions.overlapping",
    "parse": "shardwise.notation",
    "plan": "shardwise.api",
    "put": "shardwise.api",
    "rehearse": "shardwise.compiled.compiling",
    "report": "shardwise.commands.report",
    "reshard": "shardwise.api",
    "show": "shardwise.api",
    "simulate": "shardwise.runtime.devices",
    "trace": "shardwise.measure.profiling",
    "true_shape": "shardwise.runtime.padding",
}

_MODULES = {
    "distributed": "shardwise.distributed",
    "random": "shardwise.runtime.random",
    "spmd": "shardwise.runtime.spmd",
}

__all__ = [*_HOMES, *_MODULES]


# What draws a value, by form and class: values know none of their renderers, which are imported when they are first asked for.
views.offer(
    {
        "text": {
            "Audit": "shardwise.compiled.table:table",
            "Candidate": "shardwise.planning.explain:steps",
            "Diagnosis": "shardwise.functions.diagnosis_text:told",
            "Overlapped": "shardwise.functions.overlapped_text:text",
            "Picture": "shardwise.pictures.plain_text:text",
            "Ranking": "shardwise.planning.explain:explain",
            "Timeline": "shardwise.schedule.timeline_text:drawn",
            "Truth": "shardwise.functions.diagnosis_text:compared",
        },
        "trace": {"Timeline": "shardwise.schedule.chrome:trace"},
        "blocks": {"Placement": "shardwise.pictures.boards:blocks"},
        "picture": {
            "Audit": "shardwise.pictures.audits:audit_picture",
            "Comparison": "shardwise.pictures.comparisons:comparison_picture",
            "Diagnosis": "shardwise.pictures.diagnoses:diagnosis_picture",
            "Parameters": "shardwise.pictures.parameters:Parameters.picture",
            "Placement": "shardwise.pictures.boards:placed",
            "Ranking": "shardwise.pictures.plans:plan_picture",
            "Timeline": "shardwise.pictures.lanes:timeline_picture",
            "object": "shardwise.pictures.picture:words_of",
        },
        "svg": {"object": "shardwise.pictures.svg:shown_as_svg"},
        "html": {"object": "shardwise.pictures.page:notebook"},
    }
)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        value: Any = importlib.import_module(_MODULES[name])
    elif name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    else:
        raise AttributeError(f"module 'shardwise' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
