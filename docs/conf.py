"""The site of the documentation: ``make docs``. ``generated.py`` writes its generated pages first."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

DOCS = Path(__file__).resolve().parent
sys.path[:0] = [str(DOCS), str(DOCS.parent)]

import generated  # noqa: E402
import slides  # noqa: E402
from links import broken_links  # noqa: E402
from pygments.lexers.special import TextLexer  # noqa: E402
from sphinx.util import logging  # noqa: E402

project = "einnet_explore"
author = "The einnet_explore developers"
copyright = "2026, the einnet_explore developers"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.mathjax", "sphinx-mathjax-offline"]
exclude_patterns = ["decisions/.*", "requirements.lock"]
html_theme = "pydata_sphinx_theme"
html_theme_options = {"show_prev_next": True, "navigation_with_keys": False, "header_links_before_dropdown": 6}
html_show_sourcelink = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
suppress_warnings = ["myst.header"]  # tables of `reproduce` are parts of pages
myst_enable_extensions = ["dollarmath", "amsmath"]
myst_heading_anchors = 3
nb_execution_mode = "cache"
nb_execution_cache_path = str(DOCS.parent / "build" / "notebooks")
nb_execution_timeout = 600
nb_execution_raise_on_error = True
nb_merge_streams = True
nb_render_markdown_format = "myst"
nb_mime_priority_overrides = [
    ("html", "application/vnd.jupyter.widget-view+json", None)
]  # needs a kernel: show pictures
nb_ipywidgets_js: dict[str, dict[str, str]] = {}  # would load scripts of other hosts
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True


def redirect_links(app: Sphinx, page: str, source: list[str]) -> None:
    """Point links of pages that are read in the repository, too, to pages of the site."""
    if not page.startswith(generated.GENERATED):
        source[0] = generated.redirected(source[0], (DOCS / page).parent)
    if page == "index":
        titles = re.findall(r"^## (.+)$", source[0], re.MULTILINE)
        source[0] += generated.toctree(f"/{generated.GENERATED}/{generated.slug(title)}" for title in titles)
    elif page.endswith("/README"):
        source[0] += generated.toctree(sorted(path.stem for path in (DOCS / page).parent.glob("[!R]*.md")))


def finish(app: Sphinx, error: Exception | None) -> None:
    """Write the slides, then check every link of the finished site."""
    if error is None and app.builder.name == "html":
        slides.write_slides(Path(app.outdir), DOCS / generated.GENERATED / "notebooks", Path(nb_execution_cache_path))
        for line in broken_links(Path(app.outdir).resolve()):
            logging.getLogger(__name__).warning(line)


def setup(app: Sphinx) -> None:
    """Write the generated pages, and redirect links."""
    generated.write()
    app.add_lexer("ein", TextLexer)
    app.connect("source-read", redirect_links)
    app.connect("build-finished", finish, priority=900)  # after the files of extensions are copied
