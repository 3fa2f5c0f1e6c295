"""The cheat sheet on one sheet of paper: Markdown to HTML, and by a headless Chromium to PDF.

python docs/print_cheatsheet.py docs/_build/cheatsheet.pdf
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from markdown_it import MarkdownIt

SHEET = Path(__file__).with_name("cheatsheet.md")
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
JOINER = "\u2060"  # no line breaks at it: neither in -> nor in --sizes
STYLE = """
@page { size: A4 landscape; margin: 7mm }
body { font: 8pt/1.3 system-ui, "Liberation Sans", sans-serif; margin: 0; height: 195mm }
body { columns: 3; column-gap: 5mm; column-fill: auto }
h1 { font-size: 14pt; margin: 0 0 2pt }
h2 { font-size: 9pt; margin: 5pt 0 2pt; color: #0b62a0; break-after: avoid }
h2:nth-of-type(3), h2:nth-of-type(4) { break-before: column }
p { margin: 2pt 0 }
table { border-collapse: collapse; width: 100% }
thead { display: none }
tr { break-inside: avoid }
td { text-align: left; vertical-align: top; padding: 1pt 3pt 1pt 0; border-bottom: 0.3pt solid #bbb }
code { font: 7.2pt "DejaVu Sans Mono", "Liberation Mono", monospace; overflow-wrap: anywhere }
pre { margin: 2pt 0; padding: 3pt; background: #f3f5f7; white-space: pre-wrap }
pre code { font-size: 6.8pt; overflow-wrap: normal }
"""


def page(markdown: str) -> str:
    """The sheet as a page of HTML that is made to be printed."""
    body = MarkdownIt("commonmark").enable("table").render(markdown)
    kept = re.sub(r"(?<!<pre>)<code>.*?</code>", lambda found: found[0].replace("-", f"-{JOINER}"), body)
    head = f'<meta charset="utf-8"><title>Shardwise: cheat sheet</title><style>{STYLE}</style>'
    return f'<!DOCTYPE html><html lang="en"><head>{head}</head><body>{kept}</body></html>'


def write_pdf(path: Path) -> None:
    """Print the sheet.

    Raises:
        SystemExit: no browser is here, or it printed nothing.
    """
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise SystemExit("there is no Chromium to print with: apt-get install chromium; or print the page of the site")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "cheatsheet.html")
        source.write_text(page(SHEET.read_text(encoding="utf-8")), encoding="utf-8")
        flags = ("--headless", "--no-sandbox", "--disable-gpu", "--no-pdf-header-footer", f"--user-data-dir={folder}/profile")
        done = subprocess.run(
            [browser, *flags, f"--print-to-pdf={path.resolve()}", source.as_uri()], capture_output=True, text=True
        )
    if done.returncode or not path.is_file():
        raise SystemExit(f"{browser} printed nothing: {done.stderr[-500:]}")


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/_build/cheatsheet.pdf")
    write_pdf(target)
    print(target)
