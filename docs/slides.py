"""Slides of the lessons whose cells are marked as slides: HTML pages that show reveal.js from a package, offline."""

from __future__ import annotations

import importlib.util
import re
import shutil
from pathlib import Path
from typing import Any

import nbconvert
import nbformat
from traitlets.config import Config

DOCS = Path(__file__).resolve().parent
FOLDER = "slides"


def has_slides(lesson: Any) -> bool:
    """Return whether cells of the notebook *lesson* are marked as slides."""
    return any("slideshow" in cell.metadata for cell in lesson.cells)


def write_slides(site: Path, notebooks: Path, cache: Path) -> None:
    """Write the slides of the lessons in *notebooks* into *site*, with the outputs that *cache* has."""
    from jupyter_cache import get_cache  # only in the environment of the documentation

    package = importlib.util.find_spec("sphinx_revealjs")
    assert package is not None and package.origin is not None
    reveal = site / "_static" / "revealjs"
    for part in ("dist", "plugin/notes", "LICENSE"):
        source = Path(package.origin).parent / "_static" / "revealjs" / part
        (reveal / part).parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, reveal / part, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.map"))
        else:
            shutil.copyfile(source, reveal / part)
    (site / FOLDER).mkdir(exist_ok=True)
    known = get_cache(str(cache))
    formulas_first = ["text/html", "text/markdown", "text/latex", "image/svg+xml", "image/png", "text/plain"]
    exporter = nbconvert.SlidesExporter(
        template_file=str(DOCS / "slides.html.j2"),
        reveal_url_prefix="../_static/revealjs",
        reveal_theme="white",
        config=Config(
            NbConvertBase={"display_data_priority": formulas_first},
            TagRemovePreprocessor={"enabled": True, "remove_input_tags": {"hide-input"}},
        ),
    )
    for path in sorted(notebooks.glob("*.ipynb")):
        lesson = nbformat.read(path, as_version=4)
        if not has_slides(lesson):
            continue
        _, executed = known.merge_match_into_notebook(lesson)
        for cell in executed.cells:
            if cell.cell_type == "markdown":
                cell.source = re.sub(r"\]\(/([^)#]+)\.(?:md|ipynb)(#[^)]*)?\)", r"](../\1.html\2)", cell.source)
        page, _ = exporter.from_notebook_node(executed, resources={"metadata": {"name": path.stem}})
        (site / FOLDER / f"{path.stem}.html").write_text(page, encoding="utf-8")
