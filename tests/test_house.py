"""The house itself: its version, its floors, and the habits that a machine can check. Needs no JAX."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import shardwise
from shardwise import views

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src" / "shardwise").rglob("*.py"))
MODULES = {".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__"): path for path in SOURCES}


def name(path: Path) -> str:
    return path.relative_to(ROOT / "src").as_posix()


def sources_with(text: str) -> list[str]:
    return [name(path) for path in SOURCES if text in path.read_text(encoding="utf-8")]


def test_there_are_sources_to_check():
    assert "shardwise/errors.py" in map(name, SOURCES)


def test_the_version_stands_in_one_place():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    source = ROOT / settings["tool"]["hatch"]["version"]["path"]
    assert "version" not in settings["project"]
    assert settings["project"]["dynamic"] == ["version"]
    assert f'VERSION = "{shardwise.__version__}"' in source.read_text(encoding="utf-8").splitlines()


def test_each_floor_imports_only_floors_below_it_and_the_lower_ones_no_jax():
    linter = Path(sys.executable).with_name("lint-imports")
    run = subprocess.run([linter, "--no-logo", "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_a_file_begins_by_saying_what_lives_there(path: Path):
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), f"{name(path)} has no docstring"


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_a_file_is_a_small_room(path: Path):
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= 450, f"{name(path)} has {lines} lines: split it by what its parts are about"


def test_no_two_modules_share_a_name():
    names = Counter(name.rpartition(".")[2] for name in MODULES)
    assert [name for name, count in names.items() if count > 1] == [], "say what each holds"


@pytest.mark.parametrize("path", [*SOURCES, *sorted((ROOT / "benchmarks").glob("*.py"))], ids=lambda path: path.stem)
def test_no_constant_is_given_twice(path: Path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    given = [node for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign)]
    targets = [target for node in given for target in (node.targets if isinstance(node, ast.Assign) else [node.target])]
    counts = Counter(part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name))
    assert not [constant for constant, count in counts.items() if constant.isupper() and count > 1]


def imported(path: Path) -> Iterator[str]:
    """The modules of the package that a file imports anywhere: at its head, within a function, or for its types alone."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for full in (f"{node.module}.{alias.name}" for alias in node.names):
                yield from (found for found in [full if full in MODULES else node.module] if found in MODULES)


def circle(imports: Mapping[str, Iterable[str]]) -> list[str]:
    """Modules of which each imports the one before it and the first the last; none where there is no circle."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def test_no_imports_go_round_in_a_circle_deferred_ones_included():
    assert circle({name: set(imported(path)) - {name} for name, path in MODULES.items()}) == []


def test_a_circle_is_found_through_an_import_within_a_function(tmp_path: Path):
    low, high = tmp_path / "low.py", tmp_path / "high.py"
    low.write_text("def drawn():\n    from shardwise.pictures import svg\n    return svg\n")
    high.write_text("import shardwise.mesh\nfrom shardwise.errors import one_line\n")
    assert (set(imported(low)), set(imported(high))) == ({"shardwise.pictures.svg"}, {"shardwise.mesh", "shardwise.errors"})
    assert circle({"low": ["high"], "high": ["low"]}) in (["low", "high", "low"], ["high", "low", "high"])


def test_every_view_that_is_offered_is_there():
    classes = {
        node.name for path in SOURCES for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)
    }
    for form, offered in views._OFFERED.items():
        assert set(offered) <= {*classes, "object"}, form
        for place in offered.values():
            module, _, function = place.partition(":")
            tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
            defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
            assert function.rpartition(".")[2] in defined, f"{form}: {place}"


def test_importing_shardwise_loads_next_to_nothing():
    code = "import sys, shardwise; print(*(m for m in sys.modules if m in ('jax', 'numpy') or m.startswith('shardwise.')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == {"shardwise.version", "shardwise.views"}


def test_private_jax_is_used_in_one_file_alone():
    assert sources_with("jax._src") == ["shardwise/distributed/service.py"], "the coordination service has no public door"


def test_experimental_jax_stays_in_few_files():
    files = sources_with("jax.experimental")
    assert len(files) <= 2, f"jax.experimental belongs in one file per use, and is in {files}"
