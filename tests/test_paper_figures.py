"""Figures for papers: PDF, PNG and TikZ as well as SVG; TeX compiles the TikZ text."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

import einnet_explore as ee
from einnet_explore.strategies.candidate import Candidate
from einnet_explore.support.errors import Refused
from einnet_explore.viz import figure as figure_module
from einnet_explore.viz.figure import Figure
from einnet_explore.viz.graph_figures import TreeNode, draw_tree
from einnet_explore.viz.tables import TextTable, step_table
from einnet_explore.viz.views import show, text_figure

ODD = r"a_b & 50% of {x} <#1> ^~\ $ × Σ"


@pytest.fixture(scope="module")
def found() -> Candidate:
    conv = ee.ops.conv2d(N=1, H=6, W=5, C=4, F=3, R=3, S=3)
    run = ee.search(conv, target="Matmul", max_depth=3, budget=8)
    return max(run.candidates, key=lambda c: len(c.derivation.steps))


@pytest.fixture
def picture(found: Candidate) -> Figure:
    return ee.graph(found.program, ODD)


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex")
def test_tex_compiles_what_it_gets(found: Candidate, picture: Figure, tmp_path: Path) -> None:
    tree = draw_tree([TreeNode(0, -1, "start", ""), TreeNode(1, 0, ODD, "", True)], 1, ODD)
    table = TextTable(("n", ODD), (("1", ODD), ("2", "text")))
    document = [
        r"\documentclass{article}",
        r"\usepackage{amsmath,amssymb,booktabs,tikz,xcolor}",
        r"\begin{document}",
        show(found.derivation).latex(),
        f"${show(found.program).latex()}$",
        table.to_latex(),
        step_table(found.derivation).to_latex(),
        picture.tikz(),
        tree.tikz(),
        r"\end{document}",
    ]
    (tmp_path / "paper.tex").write_text("\n\n".join(document))
    command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "paper.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=100, check=False)
    log = done.stdout.decode(errors="replace")
    assert done.returncode == 0, log[-3000:]
    assert "Missing character" not in log
    assert (tmp_path / "paper.pdf").read_bytes().startswith(b"%PDF")


def test_tikz_draws_what_the_svg_draws(picture: Figure, found: Candidate) -> None:
    drawn = picture.tikz()
    nodes = len(found.program.inputs) + len(found.program.equations)
    shapes = [line for line in drawn.split("\n") if "rectangle" in line or "ellipse" in line or "-- cycle" in line]
    assert len(shapes) == nodes
    assert drawn.count("->, ") == sum(1 for _ in re.finditer(r"class='edge'|class=\"edge\"", picture.svg))
    assert r"a\_b \& 50\% of \{x\} \textless{}\#1\textgreater{} \textasciicircum{}\textasciitilde{}" in drawn


@pytest.mark.parametrize(
    ("ending", "begins"), [("svg", b"<svg"), ("pdf", b"%PDF"), ("png", b"\x89PNG"), ("tikz", b"\\begin{tikz")]
)
def test_suffix_of_the_file_determines_the_format(picture: Figure, ending: str, begins: bytes, tmp_path: Path) -> None:
    path = tmp_path / f"graph.{ending}"
    picture.save(path)
    assert path.read_bytes().startswith(begins)


def test_pdf_contains_the_text_of_a_figure(tmp_path: Path) -> None:
    # A font that is not at hand would leave it out in silence.
    with_text, without = text_figure("Matmul of width 12"), text_figure("")
    assert len(with_text.pdf()) > len(without.pdf()) + 1000


def test_width_of_a_figure_is_kept(picture: Figure) -> None:
    scaled = picture.scaled("2in")
    assert "width='192.00'" in scaled.svg.split(">")[0]
    assert scaled.tikz() == picture.tikz()
    (box,) = re.findall(rb"/MediaBox\s*\[\s*0 0 ([0-9.]+)", scaled.pdf()) or [b"0"]
    assert abs(float(box) - 144) < 2


@pytest.mark.parametrize("width", ["", "3.3", "in", "0in", "-1in", "3 feet", "1.2.3cm"])
def test_a_width_that_is_none_is_refused(picture: Figure, width: str) -> None:
    with pytest.raises(Refused, match="expected a number above 0 and one of px, pt"):
        picture.scaled(width)


def test_unsupported_figure_format_is_refused(picture: Figure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Refused, match=r"g.bmp: found the ending .bmp, expected one of .svg, .pdf"):
        picture.save(tmp_path / "g.bmp")
    with pytest.raises(Refused, match="no TikZ form"):
        text_figure("x").save(tmp_path / "x.tikz")
    figure_module._converter.cache_clear()
    monkeypatch.setattr(figure_module.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(Refused, match="need vl-convert-python and matplotlib: pip install"):
        picture.save(tmp_path / "g.pdf")
    assert not list(tmp_path.iterdir())
    figure_module._converter.cache_clear()


def test_steps_have_a_picture(found: Candidate) -> None:
    bundle = show(found.derivation)._repr_mimebundle_()
    assert set(bundle) == {"text/latex", "image/svg+xml", "text/plain"}
