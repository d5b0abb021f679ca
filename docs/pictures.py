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


EXPLORER = """import einnet_explore as ee, einnet_widgets
session = ee.explore(ee.parse('''
tensor Q[256, 32]
tensor K[256, 32]
tensor V[256, 32]
S[i:256, j:256] = sum[d:32] Q[i, d] * K[j, d]
O[i:256, e:32] = sum[j:256] S[i, j] * V[j, e]
'''))
session.apply("expression_fusion", at="O", tensor="S")
session.apply("traversal_merging", at="O", access=0)
session"""


def explorer(path: Path) -> None:
    """The explorer after two steps and a search, the step to Q (Kᵀ V) pointed at."""
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(EXPLORER)], metadata={"kernelspec": kernel})
    with tempfile.TemporaryDirectory() as folder:
        nbformat.write(notebook, Path(folder) / "explorer.ipynb")
        with jupyterlab(Path(folder)) as address, visit(WIDTH, 1900) as visiting:
            page = visiting.page
            visiting.open(address, "explorer.ipynb")
            visiting.run_all(60)
            page.locator(".ein-badge.proved").wait_for()
            page.get_by_role("button", name="▶ Search").click()
            page.locator(".ein-search .ein-facts", has_text="done").wait_for()
            page.locator(".ein-top tbody button").first.click()
            page.locator(".ein-detail b").first.wait_for()
            page.locator(".ein-further > summary").click()
            page.locator(".ein-match[data-rule=contraction_order]").last.hover()
            page.locator(".ein-preview .katex").first.wait_for()
            page.wait_for_timeout(500)
            page.locator(".ein").screenshot(path=path)


if __name__ == "__main__":
    tour(DOCS / "tour.png", "By hand")
    explorer(DOCS / "explorer.png")
