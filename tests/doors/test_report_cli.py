"""`shardwise report` and `sw.report`: a page is written, mistakes are told, and a notebook shows it within a frame."""

from __future__ import annotations

import html
import re
import shlex

import pytest
from commands import in_a_folder, said  # noqa: F401  the folder is a fixture

import shardwise as sw
from shardwise.cli import main
from shardwise.compiled.audit import audit_text
from shardwise.errors import FileError, MeshError, MissingExtraError, PlanError
from shardwise.mesh import Mesh

EQUATION = "A[I, J_x] · B[J_x, K] -> C[I, K]"
SIZES = {"I": 64, "J": 64, "K": 64}
GIVEN = [EQUATION, "--sizes", "I=64,J=64,K=64", "--mesh", "x=4"]
EMPTY = """HloModule jit_f, is_scheduled=true, num_partitions=4

ENTRY %main (p: f32[8]) -> f32[8] {
  ROOT %p = f32[8]{0} parameter(0)
}
"""


@pytest.fixture
def plan() -> sw.Plan:
    return sw.plan(EQUATION, sizes=SIZES, mesh="x=4", hardware="tpu-v5e")


def test_it_writes_a_page_with_the_plan_and_its_code(capsys, tmp_path):
    assert main(["report", *GIVEN, "--hardware", "tpu-v5e", "-o", "<script>🚀.html"]) == 0
    told = capsys.readouterr().out
    made = (tmp_path / "<script>🚀.html").read_text(encoding="utf-8")

    assert re.fullmatch(r"wrote <script>🚀.html: [\d.]+ kB, open it in a browser\n", told)
    assert made.startswith("<!DOCTYPE html>")
    assert html.escape(EQUATION) in made
    assert "jax.shard_map" in made
    assert "TPU v5e" in made
    assert "bfloat16" in made


def test_padding_and_limits_are_those_of_a_plan(capsys, tmp_path):
    assert main(["report", "A[I_x] -> A[I]", "--sizes", "I=6", "--mesh", "x=4"]) == 2
    assert "pads it to 8" in said(capsys)
    assert main(["report", "A[I_x] -> A[I]", "--sizes", "I=6", "--mesh", "x=4", "--pad"]) == 0
    assert "I=8" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert main(["report", *GIVEN, "--memory-limit", "10"]) == 2
    assert "no program fits in 10 bytes" in said(capsys)


REFUSED = [
    ([*GIVEN, "-o", "a.pdf"], "a.pdf: a report is a page of HTML: end the name with .html"),
    ([*GIVEN, "-o", "nowhere/a.html"], "nowhere/a.html: there is no folder nowhere in "),
    ([*GIVEN, "--on", "v99:2x2"], "v99"),
    (["A[I_q]", "--mesh", "x=4"], "missing arrow"),
    ([*GIVEN, "--args", "f32[8]"], "--args belong to a function, as train.py:step, and this is none: leave it out"),
    (["train.py:step", "--sizes", "I=4", "--pad"], "--sizes, --pad belong to an equation, and train.py:step names a function"),
    (["train.py:step", "--mesh", "x=4"], "train.py"),
]


@pytest.mark.parametrize(("arguments", "reason"), REFUSED, ids=[reason for _, reason in REFUSED])
def test_a_mistake_is_told_with_its_way_out(arguments, reason, capsys, tmp_path):
    assert main(["report", *arguments]) == 2
    assert reason in said(capsys)
    assert not list(tmp_path.iterdir())


def test_the_example_of_the_help_works(capsys, tmp_path):
    assert main(["report", "--help"]) == 0
    examples = re.findall(r"shardwise (report .*)$", capsys.readouterr().out.split("examples:")[1], re.MULTILINE)

    assert len(examples) == 5  # the second one compiles: tests/rehearsal; the others need files: test_help
    assert main(shlex.split(examples[0])) == 0
    assert (tmp_path / "report.html").exists()


def test_a_report_saves_itself_and_shows_itself_in_a_notebook(plan, tmp_path):
    made = sw.report(plan)
    made.save(tmp_path / "r.html")
    shown = made._repr_html_()

    assert isinstance(made, sw.Report)
    assert (tmp_path / "r.html").read_text(encoding="utf-8") == made.html
    assert shown.startswith("<iframe srcdoc=")
    assert shown.endswith("</iframe>")
    assert "<script" not in shown  # it is within the attribute, escaped
    assert html.unescape(re.search(r'srcdoc="([^"]*)"', shown)[1]) == made.html
    assert repr(made).startswith(f"report on {EQUATION}: ")
    with pytest.raises(FileError, match=r"end the name with \.html"):
        made.save("r.txt")


def test_an_audit_of_another_program_shows_how_it_differs(plan):
    audit = audit_text(EMPTY, name="f", target="v5e:2x2", mesh=Mesh.parse("x=4"), hardware=sw.hardware("tpu-v5e"))
    made = sw.report(plan, audit).html

    assert '<span class="tag bad">differs</span>' in made
    assert "compiled as planned" not in made


def test_what_is_no_plan_and_no_audit_of_it_is_refused(plan):
    with pytest.raises(PlanError, match=r"or a diagnosis, not of str: give what sw\.plan or sw\.doctor"):
        sw.report(EQUATION)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="str is no audit"):
        sw.report(plan, "audit")  # type: ignore[arg-type]
    audit = audit_text(EMPTY, name="f", target="v5e:2x2", mesh=Mesh.parse("y=4"), hardware=sw.hardware("tpu-v5e"))
    with pytest.raises(MeshError, match="on mesh y=4, and the plan is for mesh x=4"):
        sw.report(plan, audit)


MOVING = """\
def step(a, w):
    return a.sum(axis=1) @ w  # <b>
"""


def test_a_function_is_told_place_by_place(capsys, tmp_path):
    (tmp_path / "moving.py").write_text(MOVING)
    call = ["--args", "bfloat16[64,512@x] bfloat16[64,8]", "--mesh", "x=8", "--platform", "cpu", "--axis-types", "auto"]
    assert main(["report", "moving.py:step", *call, "--hardware", "tpu-v5e", "-o", "why.html"]) == 0
    assert "wrote why.html" in capsys.readouterr().out
    made = (tmp_path / "why.html").read_text(encoding="utf-8")
    assert made.startswith("<!DOCTYPE html>")
    assert "moving.py:2" in made
    assert "sums over J, which x splits" in made
    assert "&lt;b&gt;" in made
    assert "<b>" not in made


def test_a_diagnosis_is_a_report_with_the_places_in_its_own_order():
    import jax

    mesh = jax.sharding.AbstractMesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    a = jax.ShapeDtypeStruct((64, 64), "float32", sharding=jax.NamedSharding(mesh, jax.P("x")))
    found = sw.doctor(lambda a: (a.sum(0), a @ a), a, hardware="tpu-v5e")
    made = sw.report(found)
    assert len(found.places) == 2
    assert made.title == "why data moves in a lambda"
    costs = [made.html.index(f"<td>{number}</td>") for number in ("1", "2")]
    assert costs == sorted(costs)
    assert [place.seconds for place in found.places] == sorted((place.seconds for place in found.places), reverse=True)
    with pytest.raises(PlanError, match=r"takes that alone: with devices \(sw.doctor"):
        sw.report(found, against=found)


def test_without_jinja2_the_extra_is_named(plan, monkeypatch):
    from shardwise.pictures import page

    page.template.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "jinja2", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'shardwise\[show\]'"):
        sw.report(plan)


def kept(name: str, *command: str, capsys) -> str:
    assert main([*command, "--json"]) == 0
    with open(name, "w", encoding="utf-8") as file:
        file.write(capsys.readouterr().out)
    return name


def test_what_changed_in_a_plan_since_it_was_kept(capsys, tmp_path):
    old = kept("old.json", "plan", *GIVEN, "--hardware", "tpu-v5e", capsys=capsys)
    assert main(["report", *GIVEN, "--hardware", "h100", "--against", old, "-o", "changes.html"]) == 0
    assert capsys.readouterr().out.startswith("wrote changes.html: ")
    made = (tmp_path / "changes.html").read_text(encoding="utf-8")
    assert f"What changed: {html.escape(EQUATION)}" in made
    assert "tpu-v5e" in made
    assert "h100" in made


def test_what_changed_between_two_files_needs_no_mesh(capsys, tmp_path):
    old = kept("old.json", "plan", *GIVEN, "--hardware", "tpu-v5e", capsys=capsys)
    assert main(["report", old, "--against", old]) == 0
    assert "The chosen program is the same." in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_report_of_an_equation_needs_a_mesh(capsys):
    assert main(["report", EQUATION, "--sizes", "I=64,J=64,K=64"]) == 2
    assert "a plan needs a mesh: --mesh x=4,y=2" in said(capsys)
    assert main(["report", *GIVEN, "--against", "missing.json"]) == 2
    assert "missing.json: it cannot be read" in said(capsys)


def test_a_run_stands_beside_the_estimate(capsys, tmp_path):
    assert main(["trace", *GIVEN, "--keep", "kept"]) == 0
    assert main(["report", *GIVEN, "--dtype", "float32", "--measured", "kept"]) == 0
    made = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Estimated, compiled, measured" in made
    measured = re.search(r"<td>time of a call</td>(?:<td class=\"n\">[^<]*</td>)*<td class=\"n\">([^<]*)</td></tr>", made)
    assert measured is not None
    assert re.fullmatch(r"[\d.]+ [mu]?s", measured[1])
    assert main(["report", *GIVEN, "--measured", "kept", "--against", "old.json"]) == 2
    assert "--measured belongs to a report of one plan" in said(capsys)


def test_what_changed_takes_plans_audits_and_files(plan, tmp_path):
    audit = audit_text(EMPTY, name="f", target="cpu:4", mesh=Mesh.parse("x=4"), hardware=sw.hardware("cpu"))
    assert "1 as before" in sw.report(audit, against=audit).html
    with pytest.raises(PlanError, match="two plans, two audits or two lock files"):
        sw.report(plan, against=audit)
    with pytest.raises(PlanError, match="two of a kind alone"):
        sw.report(plan, audit, against=plan)
    with pytest.raises(PlanError, match="int is neither a plan nor an audit"):
        sw.report(plan, against=3)


def test_estimated_compiled_and_measured_stand_in_one_table(plan):
    text = EMPTY.replace("jit_f", "jit_g")
    audit = audit_text(text, name="f", target="v5e:2x2", mesh=Mesh.parse("x=4"), hardware=sw.hardware("tpu-v5e"))
    assert "Estimated, compiled, measured" not in sw.report(plan).html
    page = sw.report(plan, audit, plan.best.timeline()).html
    section = page[page.index("Estimated, compiled, measured") :]
    table = section[: section.index("</table>")]
    assert re.findall(r"<th[^>]*>([^<]*)</th>", table) == [
        "estimated",
        "compiled for v5e:2x2",
        "measured",
    ]
    assert table.count("<tr>") == 6
    assert "Measured on" in section
