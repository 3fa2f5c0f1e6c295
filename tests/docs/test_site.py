"""The site: every guide runs while it is built, warnings are errors, and no link, name or capability leads nowhere."""

from __future__ import annotations

import inspect
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from browser.accessible import needs_axe, violations
from browser.chromium import emulate, start
from lacking import lacks

import shardwise

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
GUIDES = sorted((DOCS / "guides").glob("*.md"))
# What a guide's cells compile with, which a machine may lack: its cells are not run there, and the rest of the site is built.
NEEDS = {"audit": ["tpu"], "collective_matmul": ["tpu"], "four_ways": ["tpu"], "overlap": ["tpu"], "rehearsing": ["tpu", "gpu"]}
# What each kernel runs before a guide's first cell: rehearsals take kept texts, as those of other tests do.
STARTUP = f"""import sys
sys.path.insert(0, {str(ROOT / "tests")!r})
import kept
kept.take_kept_texts()
"""
ROWS = [f"{part}{row}" for part, last in (("A", 7), ("B", 9), ("C", 10), ("D", 10)) for row in range(1, last + 1)]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The site built from a copy of the sources, so that a build leaves nothing behind."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(DOCS, folder / "docs", ignore=shutil.ignore_patterns("_build", "__pycache__"))
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))  # guides start them
    shutil.copy(ROOT / "CHANGELOG.md", folder)
    unrun = [f"guides/{name}.md" for name, parts in NEEDS.items() if any(map(lacks, parts))]
    with (folder / "docs" / "conf.py").open("a", encoding="utf-8") as settings:
        settings.write(f"nb_execution_excludepatterns += {unrun}\n")
        settings.write(f"suppress_warnings += {['myst-nb.lexer'] if unrun else []}\n")  # it is known of cells that have run
    startup = folder / "ipython" / "profile_default" / "startup"
    startup.mkdir(parents=True)
    (startup / "kept.py").write_text(STARTUP, encoding="utf-8")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-b", "html", "docs", "html"]
    settings = {"JAX_PLATFORMS": "cpu", "IPYTHONDIR": str(startup.parents[1])}
    done = subprocess.run(command, cwd=folder, env=os.environ | settings, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
    return folder / "html"


class Page(HTMLParser):
    """The names that a page can be entered at, and everything that it points to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.targets: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.anchors |= {value for key in ("id", "name") if (value := given.get(key))}
        self.targets += [value for key in ("href", "src") if (value := given.get(key))]


def broken(site: Path) -> list[str]:
    """Links within the site to a file or an anchor that is not there."""
    pages = {path: Page(path) for path in site.rglob("*.html")}
    assert len(pages) > len(GUIDES)
    found = []
    for path, page in pages.items():
        for target in page.targets:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            file = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchor = unquote(parts.fragment)
            if not file.is_file() or (anchor and file in pages and anchor not in pages[file].anchors):
                found.append(f"{path.relative_to(site)} -> {target}")
    return found


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_no_link_is_broken(site):
    assert broken(site.resolve()) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "guide", [pytest.param(path, marks=pytest.mark.needs(*NEEDS.get(path.stem, [])), id=path.stem) for path in GUIDES]
)
def test_a_guide_is_a_page_whose_cells_ran(site, guide):
    page = (site / "guides" / f"{guide.stem}.html").read_text(encoding="utf-8")
    assert page.count("cell_output") > 3
    assert 'class="output traceback' not in page


# Blocks that are seen and wider than their place, beginning with their first words; and whether the page itself is too wide.
TOO_WIDE = """
const wide = [...document.querySelectorAll("pre")].filter(e => e.offsetParent && e.scrollWidth > e.clientWidth + 1)
return [...wide.map(e => e.textContent.slice(0, 60)),
        ...(document.documentElement.scrollWidth > innerWidth ? ["the page itself"] : [])]
"""


@pytest.mark.slow
@pytest.mark.needs("browser")
def test_no_block_of_code_scrolls_sideways_at_1200_pixels(site, tmp_path):
    browser = start(tmp_path / "profile")
    try:
        emulate(browser, width=1200)
        found = {}
        for page in sorted(site.rglob("*.html")):
            browser.get(page.as_uri())
            found[page.name] = browser.execute_script(TOO_WIDE)
    finally:
        browser.quit()
    assert len(found) > len(GUIDES)
    assert {name: blocks for name, blocks in found.items() if blocks} == {}


@needs_axe
@pytest.mark.slow
@pytest.mark.needs("browser")
def test_axe_finds_no_fault_in_pages_of_every_kind(site, tmp_path):
    browser = start(tmp_path / "profile")
    found = {}
    try:
        for name in ("index", "cheatsheet", "guides/start", "guides/gallery"):
            for width, scheme in ((360, "light"), (360, "dark"), (1280, "light"), (1280, "dark")):
                emulate(browser, width=width, color_scheme=scheme)
                browser.get((site / f"{name}.html").as_uri())
                found[name, width, scheme] = violations(browser)
    finally:
        browser.quit()
    assert {where: faults for where, faults in found.items() if faults} == {}


@pytest.mark.slow
def test_every_guide_offers_itself_as_a_notebook(site):
    for guide in GUIDES:
        page = (site / "guides" / f"{guide.stem}.html").read_text(encoding="utf-8")
        assert f'href="../notebooks/{guide.stem}.ipynb"' in page
        assert (site / "notebooks" / f"{guide.stem}.ipynb").stat().st_size > 1000


@pytest.mark.slow
def test_every_public_name_is_in_the_reference(site):
    page = (site / "reference.html").read_text(encoding="utf-8")
    missing = [name for name in shardwise.__all__ if not any(f'id="{place}"' in page for place in places(name))]
    assert missing == []


def places(name: str) -> list[str]:
    """Where the reference may have a public name: as it is imported, or where it is written."""
    value = getattr(shardwise, name)
    return [f"module-{value.__name__}"] if inspect.ismodule(value) else [f"shardwise.{name}", f"{value.__module__}.{name}"]


def test_every_guide_and_recipe_is_in_the_table_of_contents():
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    pages = [*GUIDES, *(DOCS / "recipes").glob("*.md")]
    assert [path.stem for path in pages if f"\n{path.parent.name}/{path.stem}\n" not in index] == []


def test_every_capability_is_listed_and_leads_to_one_place_in_a_guide():
    table = (DOCS / "capabilities.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| ([A-D]\d+) \| .* \| \[.*\]\(#([a-d]\d+)\) \|$", table, re.MULTILINE)
    assert [row for row, _ in listed] == ROWS
    assert [anchor for _, anchor in listed] == [row.lower() for row in ROWS]
    places = [anchor for path in GUIDES for anchor in re.findall(r"^\(([a-d]\d+)\)=$", path.read_text(encoding="utf-8"), re.M)]
    assert sorted(places) == sorted(row.lower() for row in ROWS)


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.stem)
def test_a_guide_asserts_its_numbers_below_every_capability(guide):
    parts = re.split(r"^\(([a-d]\d+)\)=$", guide.read_text(encoding="utf-8"), flags=re.MULTILINE)
    for row, text in zip(parts[1::2], parts[2::2], strict=True):
        assert re.search(r"^ *(assert |np\.testing\.assert|.*\.assert_)", text, re.MULTILINE), f"{row} asserts nothing"
