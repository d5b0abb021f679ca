"""Draw the pictures of these pages anew: ``make pictures``.  Needs Chromium and Graphviz."""

from __future__ import annotations

import tempfile
from pathlib import Path

import jupytext
import nbformat

from tests.lab_kit import jupyterlab, visit

DOCS = Path(__file__).resolve().parent
WIDTH, HEIGHT = 1240, 1180
SCROLL = """heading => {
    const outer = document.querySelector('.jp-WindowedPanel-outer');
    const found = [...outer.querySelectorAll('h2')].find(it => it.innerText.startsWith(heading));
    outer.scrollTop += found.getBoundingClientRect().top - outer.getBoundingClientRect().top - 12;
}"""


def tour(path: Path, heading: str) -> None:
    """The tour in JupyterLab from *heading* on, as far as one screen goes."""
    notebook = jupytext.read(DOCS.parent / "notebooks" / "00_tour.py")
    stop = next(n for n, cell in enumerate(notebook.cells) if cell.source.startswith("## By search"))
    notebook.cells = notebook.cells[:stop]
    with tempfile.TemporaryDirectory() as folder:
        nbformat.write(notebook, Path(folder) / "tour.ipynb")
        with jupyterlab(Path(folder)) as address, visit(WIDTH, 5000) as visiting:
            visiting.open(address, "tour.ipynb")
            visiting.run_all(60)
            visiting.page.wait_for_selector(".jp-RenderedLatex mjx-container")
            visiting.page.wait_for_timeout(1500)
            visiting.page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
            visiting.page.wait_for_timeout(500)
            for _ in range(3):  # cells that come into view may move the rest
                visiting.page.evaluate(SCROLL, heading)
                visiting.page.wait_for_timeout(300)
            visiting.page.screenshot(path=path)


if __name__ == "__main__":
    tour(DOCS / "tour.png", "By hand")
