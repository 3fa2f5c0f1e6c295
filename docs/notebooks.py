"""Guides and recipes as notebooks to download: each page's cells as they stand, and its text without what only the site knows.

python docs/notebooks.py docs/_build/notebooks      # the site writes them by itself
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
from myst_nb.core.read import read_myst_markdown_notebook

DOCS = Path(__file__).parent
FOLDERS = ("guides", "recipes")
ANCHOR = re.compile(r"^\([\w-]+\)=\n", re.MULTILINE)  # (a1)= above a heading
INCLUDE = re.compile(r"^```\{literalinclude\} (\S+)\n.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:)([^)#]*)(#[^)]*)?\)")


def pages() -> list[Path]:
    """The pages that are notebooks."""
    return [path for folder in FOLDERS for path in sorted((DOCS / folder).glob("*.md"))]


def notebook(page: Path) -> Any:
    """A page as a notebook. Files that it includes or imports are written by a cell of its own."""
    read = read_myst_markdown_notebook(page.read_text(encoding="utf-8"))
    names = {path.stem for path in pages()}
    written: set[str] = set()
    cells = []
    for cell in read.cells:
        cells += _files(cell, page.parent, written)
        if cell.cell_type == "markdown":
            cell.source = LINK.sub(lambda found: _link(found, names), INCLUDE.sub("", ANCHOR.sub("", cell.source))).strip()
        if cell.source:
            cells.append(cell)
    made = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}})
    for number, cell in enumerate(made.cells):
        cell.id = f"{page.stem}-{number}"  # the same at each build
    nbformat.validate(made)
    return made


def _files(cell: Any, folder: Path, written: set[str]) -> Iterator[Any]:
    """Cells that write the files beside a page that a cell of it shows or imports, once each."""
    named = INCLUDE.findall(cell.source) + [f"{name}.py" for name in re.findall(r"^import (\w+)", cell.source, re.MULTILINE)]
    for name in named:
        if (folder / name).is_file() and name not in written:
            written.add(name)
            yield nbformat.v4.new_code_cell(f"%%writefile {name}\n{(folder / name).read_text(encoding='utf-8').rstrip()}")


def _link(found: re.Match[str], names: set[str]) -> str:
    """A link to another notebook where there is one, and otherwise its words."""
    stem = Path(found[2]).stem
    return f"[{found[1]}]({stem}.ipynb)" if found[2].endswith(".md") and stem in names else found[1]


def write(folder: Path) -> None:
    """Write all notebooks."""
    folder.mkdir(parents=True, exist_ok=True)
    for page in pages():
        nbformat.write(notebook(page), folder / f"{page.stem}.ipynb")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
