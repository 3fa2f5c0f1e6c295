"""Guides and recipes as notebooks: valid, with each page's cells as they stand, and nothing that only the site can read."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import nbformat
import pytest

DOCS = Path(__file__).parents[2] / "docs"
sys.path.insert(0, str(DOCS))
import notebooks  # noqa: E402  it lives beside the pages, as the site's settings import it

CELL = re.compile(r"^```\{code-cell\}[^\n]*\n(?::[^\n]*\n)*(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", notebooks.pages(), ids=lambda path: path.stem)
def test_a_notebook_has_the_cells_of_its_page_and_no_directives(page):
    made = notebooks.notebook(page)
    nbformat.validate(made)
    code = [cell.source for cell in made.cells if cell.cell_type == "code" and not cell.source.startswith("%%writefile")]
    words = "\n".join(cell.source for cell in made.cells if cell.cell_type == "markdown")
    assert code == [text.strip("\n") for text in CELL.findall(page.read_text(encoding="utf-8"))]
    assert not re.search(r"^(\(\w+\)=|```\{|:::)", words, re.MULTILINE)
    linked = set(re.findall(r"\]\((?!https?:)([^)]*)\)", words))
    assert linked <= {f"{other.stem}.ipynb" for other in notebooks.pages()}


@pytest.mark.parametrize("name", ["audit", "rehearsing"])
def test_a_file_that_a_page_imports_is_written_before_it_is_used(name):
    sources = [cell.source for cell in notebooks.notebook(DOCS / "guides" / f"{name}.md").cells]
    train = (DOCS / "guides" / "train.py").read_text(encoding="utf-8").strip()
    assert sources.count(f"%%writefile train.py\n{train}") == 1
    first = next(n for n, source in enumerate(sources) if re.search(r"^import train\b|train\.step", source, re.MULTILINE))
    assert sources.index(f"%%writefile train.py\n{train}") <= first


def test_a_notebook_is_the_same_at_each_build(tmp_path):
    for folder in ("one", "other"):
        notebooks.write(tmp_path / folder)
    for page in notebooks.pages():
        one, other = ((tmp_path / folder / f"{page.stem}.ipynb").read_bytes() for folder in ("one", "other"))
        assert one == other


def test_a_link_leads_to_another_notebook_and_a_link_out_stays():
    found = notebooks.LINK.search("[a page](meshes.md#where), [there](https://jax.dev)")
    assert found is not None
    assert notebooks._link(found, {"meshes"}) == "[a page](meshes.ipynb)"
    assert notebooks.LINK.sub("", "[there](https://jax.dev)") == "[there](https://jax.dev)"
