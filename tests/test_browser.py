"""The tour in a real JupyterLab and a real browser: no errors, no request elsewhere, an explorer that answers."""

from pathlib import Path

import jupytext
import nbformat
import pytest

from tests.lab_kit import ROOT, browser, jupyterlab, visit

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]
pytest.importorskip("playwright", reason="the Python package playwright is not installed")
pytest.importorskip("jupyterlab", reason="JupyterLab is not installed")
if browser() is None:
    pytest.skip("no chromium on the path (Debian's package chromium)", allow_module_level=True)

ERRORS = "[data-mime-type='application/vnd.jupyter.error'], [data-mime-type='application/vnd.jupyter.stderr']"


def by_hand(folder: Path) -> int:
    """Write the tour up to its searches into *folder*; returns how many cells of code it has."""
    notebook = jupytext.read(ROOT / "notebooks" / "00_tour.py")
    stop = next(n for n, cell in enumerate(notebook.cells) if cell.source.startswith("## By search"))
    notebook.cells = notebook.cells[:stop]
    nbformat.write(notebook, folder / "tour.ipynb")
    return sum(cell.cell_type == "code" for cell in notebook.cells)


def test_the_tour_by_hand_runs_in_jupyterlab(tmp_path: Path) -> None:
    count = by_hand(tmp_path)
    with jupyterlab(tmp_path) as address, visit() as visiting:
        page = visiting.page
        visiting.open(address, "tour.ipynb")
        visiting.run_all(60)
        page.wait_for_selector(".jp-RenderedLatex mjx-container, .jp-RenderedLatex .MathJax")
        assert page.locator(ERRORS).count() == 0
        page.locator(".jp-CodeCell .jp-InputPrompt").get_by_text(f"[{count}]:").wait_for()
        prompts = page.locator(".jp-CodeCell .jp-InputPrompt").all_inner_texts()
        assert [p.strip() for p in prompts] == [f"[{n}]:" for n in range(1, count + 1)]
        assert page.locator(".jp-RenderedLatex mjx-merror").count() == 0
        drawn = page.locator(".jp-RenderedSVG img").evaluate_all("all => all.map(it => it.complete && it.naturalWidth)")
        assert drawn == [900]

        explorer = page.locator(".ein").first
        explorer.locator(".ein-main .katex").wait_for()
        explorer.locator(".ein-match", has_text="outer = r, s").first.click()
        explorer.locator(".ein-node.here b", has_text="E1").wait_for()
        explorer.get_by_role("button", name="Prove").click()
        explorer.get_by_text("equal for every input").wait_for()
        explorer.get_by_role("button", name="Undo").click()
        explorer.locator(".ein-node.here b", has_text="E0").wait_for()
        assert explorer.locator(".ein-node").count() == 2  # what was undone is a branch

        assert visiting.strangers == []
        assert visiting.errors == []
