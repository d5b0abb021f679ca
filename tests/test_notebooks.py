"""Every notebook runs from top to bottom, and its outputs have the forms that readers without a kernel need."""

import re
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jupytext
import nbclient
import nbconvert
import nbformat
import pytest

from tests.lab_kit import ROOT, kernel_environment

pytestmark = pytest.mark.timeout(300)
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.py"))

EXPRESSION = {"text/latex", "image/svg+xml", "text/plain"}
TABLE = {"text/html", "text/plain"}
FIGURE = {"image/svg+xml", "text/plain"}
TOUR = {
    "session.formula()": EXPRESSION,
    "ee.show(found)": EXPRESSION,
    'session.rules(at="Y")': TABLE,
    'session.refusals(at="Y")': TABLE,
    "session.history(certificates=True)": TABLE,
    "session.check()": TABLE,
    "session.tree()": FIGURE,
    "einnet_widgets.explorer(ee.explore(conv))": {"text/html", "text/latex", "text/plain"},
    "run": TABLE,
    "run.tree(to=found)": FIGURE,
    'ee.graph(conv, "before")': FIGURE,
    'ee.graph(session.program, "after: by hand")': FIGURE,
    "fast": TABLE,
}
"""What the last lines of the tour's cells show."""


LESSONS = re.findall(
    r"^\| \[`notebooks/(\w+)\.py`",
    (ROOT / "docs" / "index.md").read_text(encoding="utf-8").split("## How-to")[0],
    re.MULTILINE,
)
SOLUTION = re.compile(r"^\w+\.grade\(", re.MULTILINE)
SHORT_MEASUREMENTS = "from einnet_explore.runtime import measurement; measurement.SECONDS_FACTOR = 0.1"
"""As in conftest.py, for the kernel's process."""
SAVED_ORIGINAL = "is your original model: no rewrite is faster in plain ONNX Runtime"


@contextmanager
def open_kernel(**environment: str) -> Generator[Any]:
    """The manager of a running kernel."""
    client = nbclient.NotebookClient(nbformat.v4.new_notebook(), kernel_name="python3")
    with client.setup_kernel(env=kernel_environment() | environment):
        yield client.km


@pytest.fixture(scope="module")
def kernel() -> Generator[Any]:
    """A kernel for all notebooks, since its imports take longer than most of their cells."""
    with open_kernel() as manager:
        yield manager


def executed(path: Path, folder: Path, kernel: Any, until: str = "") -> Any:
    """The notebook of the script at *path*, run in *folder* up to the heading *until*, with no names before it."""
    notebook = jupytext.read(path)
    for cell in notebook.cells:
        cell.source = cell.source.replace("budget=15, threads=1", "budget=4, threads=1")  # a test has less patience
        cell.source = re.sub(r"(search\(.*)budget=\d+", r"\1budget=100", cell.source)  # and a busier machine
    if until:
        stop = next(n for n, cell in enumerate(notebook.cells) if cell.source.startswith(until))
        notebook.cells = notebook.cells[:stop]
    notebook.cells.insert(0, nbformat.v4.new_code_cell(f"{SHORT_MEASUREMENTS}\n%reset -f\n%cd -q {folder}"))
    client = nbclient.NotebookClient(
        notebook,
        km=kernel,
        timeout=120,
        store_widget_state=False,  # it would be shown by scripts from elsewhere instead of what is here
    )
    client.execute()
    del notebook.cells[0]
    return notebook


def shown(notebook: Any) -> dict[str, dict[str, Any]]:
    """Return the last output of each code cell that displays something, by format."""
    found: dict[str, dict[str, Any]] = {}
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            assert output.output_type != "error", output
            if (output.output_type, output.get("name")) == ("stream", "stderr"):
                assert SAVED_ORIGINAL in output.text, output.text  # it depends on the machine whether the file gains
            if output.output_type in ("execute_result", "display_data"):
                found[cell.source.split("\n")[-1]] = output.data
    return found


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_made_from_a_script_says_the_same(path: Path) -> None:
    """JupyterLab refuses to open a pair of a script and a newer notebook that differ, if only in the order of tags."""
    script = path.read_text(encoding="utf-8")
    stored = nbformat.reads(nbformat.writes(jupytext.reads(script, fmt="py:percent")), as_version=4)
    cells, written = (text.split("# ---\n", 2)[2] for text in (script, jupytext.writes(stored, fmt="py:percent")))
    assert written == cells


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_and_its_outputs_are_readable(path: Path, tmp_path: Path, kernel: Any) -> None:
    outputs = shown(executed(path, tmp_path, kernel))
    assert outputs
    for data in outputs.values():
        assert data["text/plain"].strip()
        if set(data) == {"text/plain"}:  # a sentence is printed, without quotes; a certificate shows itself
            assert not re.match(r"""['"]|.*Certificate\(""", data["text/plain"]), data["text/plain"]
        if svg := data.get("image/svg+xml"):
            assert ElementTree.fromstring(svg).tag == "{http://www.w3.org/2000/svg}svg"
        if latex := data.get("text/latex"):
            assert latex.count("{") == latex.count("}") and latex.count(r"\left") == latex.count(r"\right")
    graded = [data["text/plain"] for line, data in outputs.items() if SOLUTION.match(line)]
    assert all(grade.startswith("right: ") for grade in graded), graded
    assert graded or path.stem not in LESSONS
    if path.stem == "00_tour":
        assert {line: set(outputs[line]) for line in TOUR} == TOUR
        said = outputs["fast"]["text/html"]
        assert "largest error" in said or "nothing gained" in said  # on a busy machine, in so short a time
        assert {p.name for p in tmp_path.iterdir()} == {"infogan.onnx", "infogan_fast.onnx"}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_lesson_imports_public_names_only(path: Path) -> None:
    imported = re.findall(
        r"^(?:from|import) (einnet_\w+(?:\.\w+)*(?: import .*)?)", path.read_text("utf-8"), re.MULTILINE
    )
    assert set(imported) <= {"einnet_explore", "einnet_widgets", "einnet_evaluation import gpu_emulation"}


def test_tour_without_graphviz_and_without_a_kernel(tmp_path: Path) -> None:
    empty = tmp_path / "bin"
    empty.mkdir()
    with open_kernel(PATH=str(empty)) as kernel:
        notebook = executed(NOTEBOOKS[0], tmp_path, kernel, until="## A whole model")
    graph = shown(notebook)['ee.graph(session.program, "after: by hand")']
    drawn = ElementTree.fromstring(graph["image/svg+xml"])
    titles = [title.text for title in drawn.iter("{http://www.w3.org/2000/svg}title")]
    assert sorted(filter(None, titles)) == ["A", "A1", "K", "K1", "T1", "Y"]
    assert drawn.find("{http://www.w3.org/2000/svg}g[@class='node eOperator']") is not None
    page, _ = nbconvert.HTMLExporter().from_notebook_node(notebook)
    panel = page.split("einnet_widgets</span>")[-1].split("jp-Cell ")[0]
    assert "data:image/svg+xml" in panel and "widget-view" not in panel
