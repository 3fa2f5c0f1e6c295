"""How the site is built: guides that run while it is built, the reference out of the docstrings, every warning an error."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import shardwise

sys.path.insert(0, str(Path(__file__).parent))
import notebooks

os.environ["JAX_PLATFORMS"] = "cpu"  # libtpu, which the rehearsals need, otherwise looks for a TPU

project = "Shardwise"
author = "the authors of Shardwise"
project_copyright = "the authors of Shardwise, Apache-2.0"
release = version = shardwise.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["_build", "**/.ipynb_checkpoints"]
nitpicky = True
default_role = "code"  # in docstrings a name stands between single backticks
# Types of other projects, whose pages are not fetched while this site is built, and parts that have no page of their own.
nitpick_ignore_regex = [
    ("py:class", r"(jax|jaxlib|numpy|collections|pathlib)\..*"),
    ("py:class", r"PartitionSpec|Candidate|Placement|Ranking|Module|Unread|Route|Uneven|Reshape|Site"),
    ("py:class", r"shardwise\.(chips|functions|planning\.problem|planning\.prices|planning\.step_cost).*"),
    ("py:class", r"shardwise\.compiled\.(text|uneven|reshapes).*"),
    ("py:class", r"shardwise\.mesh\.Sides"),
]

# Guides: MyST text notebooks. Every cell runs at every build; one that raises, an assertion too, fails the build.
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_execution_timeout = 300
nb_execution_excludepatterns = ["benchmarks/*", "index.md", "capabilities.md", "changelog.md", "cheatsheet.md"]
nb_output_stderr = "remove"  # compilers talk there
nb_merge_streams = True
myst_heading_anchors = 3
myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist"]
suppress_warnings = ["config.cache"]
# Recipes use other projects' libraries. `make recipes` runs them always; here they run where all of these are installed.
if not all(map(find_spec, ("equinox", "flax", "optax", "orbax"))):
    nb_execution_excludepatterns += ["recipes/*"]
    suppress_warnings += ["myst-nb.lexer"]  # a lexer is known of cells that have run
copybutton_exclude = ".linenos, .gp, .go"

# Reference.
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_custom_sections = ["Returns"]  # prose: what stands before its first colon is no type
python_use_unqualified_type_names = True

html_theme = "furo"
html_title = "Shardwise"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = [("accessible.js", {"defer": "defer"})]


# Each guide and recipe is a notebook to download, too.
def offer_notebook(app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    folder, _, name = pagename.partition("/")
    if folder in notebooks.FOLDERS and name:
        link = f'<a href="../notebooks/{name}.ipynb" download>This page as a notebook</a>'
        context["body"] = f'<p class="as-notebook">{link}</p>\n{context["body"]}'


def write_notebooks(app: Any, exception: Exception | None) -> None:
    if exception is None:
        notebooks.write(Path(app.outdir) / "notebooks")


def setup(app: Any) -> None:
    app.connect("html-page-context", offer_notebook)
    app.connect("build-finished", write_notebooks)
