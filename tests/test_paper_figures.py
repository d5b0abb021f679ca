"""Figures for papers: PDF, PNG and TikZ as well as SVG; TeX compiles the TikZ text."""

import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

import pytest

import einnet_explore as ee
from einnet_explore.session.run import Run
from einnet_explore.strategies.candidate import Candidate
from einnet_explore.support.errors import Refused
from einnet_explore.viz import figure as figure_module
from einnet_explore.viz.figure import Figure, MathLine, Shape, ShapeGroup, TextLine, pixels
from einnet_explore.viz.figures import STYLES, StyleName
from einnet_explore.viz.graph_figures import TreeNode, draw_tree
from einnet_explore.viz.tables import TextTable, step_table
from einnet_explore.viz.typesetting import broken_lines, outline
from einnet_explore.viz.views import show, text_figure

ODD = r"a_b & 50% of {x} <#1> ^~\ $ × Σ"


@pytest.fixture(scope="module")
def found() -> Candidate:
    conv = ee.ops.conv2d(N=1, H=6, W=5, C=4, F=3, R=3, S=3, padding=1)
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
        r"\noindent\begin{minipage}{229.5pt}\hfuzz=0pt\typeout{NARROW}",
        show(found.derivation).latex(width="229.5pt"),
        f"${show(found.program).latex(width='229.5pt')}$\\\\",
        f"${show(found.program.equations[-1].scope).latex('8cm')}$",
        r"\end{minipage}\typeout{WIDE}",
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
    assert "Overfull" not in log[log.index("NARROW") : log.rindex("WIDE")]
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
    with pytest.raises(Refused, match=r"^width 3: expected a text such as '3\.3in'$"):
        picture.scaled(3)  # type: ignore[arg-type]


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


NESTED = """
tensor Q[6, 8]
tensor K[6, 8]
tensor V[6, 8]
S[i:6, j:6] = sum[k:8] Q[i, k] * K[j, k]
E[i:6, j:6] = exp(S[i, j] / 2.5)
Z[i:6] = sum[j:6] E[i, j]
Y[i:6, d:8] = where(i < 3, maximum({[i:6, d:8] sum[j:6] E[i, j] * V[j, d] / Z[i]}[i, d], V[i, d] * Q[i, d]), 0)
"""


@pytest.fixture(scope="module")
def run() -> Run:
    return ee.search(
        ee.ops.conv2d(N=1, H=6, W=5, C=4, F=3, R=3, S=3, padding=1), target="Matmul", max_depth=3, budget=8
    )


def all_figures(run: Run, found: Candidate, style: StyleName, width: str | None = None) -> dict[str, Figure]:
    times = {"ONNX Runtime": 1.2e-3, "OpenVINO": 9e-4, "a name that is longer than half of the column's width": 5e-4}
    return {
        "expression": ee.figures.expression(ee.parse(NESTED), style, width),
        "derivation": ee.figures.derivation(found, style, width),
        "tree": ee.figures.search_tree(run, found, style, width),
        "graph": ee.figures.graph(found, style, width),
        "comparison": ee.figures.comparison(times, style, width),
        "roofline": ee.figures.roofline({"start": found.derivation.start, "end": found}, style, width, {"end": 1e-5}),
    }


def shapes_of(shapes: Iterable[Shape]) -> Iterable[Shape]:
    for shape in shapes:
        yield from shapes_of(shape.shapes) if isinstance(shape, ShapeGroup) else [shape]


@pytest.mark.parametrize(
    ("style", "width"),
    [
        ("acm", None),
        ("ieee", "2.6in"),
        *(pytest.param(style, None, marks=pytest.mark.slow) for style in ("slides", "poster")),
    ],
)
def test_figures_have_their_width_and_letters_that_one_can_read(
    run: Run, found: Candidate, style: StyleName, width: str | None
) -> None:
    for name, drawn in all_figures(run, found, style, width).items():
        wide = pixels(width or STYLES[style].width)
        assert drawn.picture is not None
        assert drawn.picture.wide <= wide + 0.01, name
        for shape in shapes_of(drawn.picture.shapes):
            match shape:
                case TextLine(x, _, text, size, anchor):
                    assert size >= 8, name  # 6 points
                    long = {"start": 1.0, "middle": 0.5, "end": 0.0}[anchor] * 0.5 * size * len(text)
                    assert x + long <= wide + 1, (name, text)
                case MathLine(x, y, mathtext, _, size, fonts):
                    assert 0.7 * size >= 8 or "^{" in mathtext, name  # also indices
                    assert x + outline(mathtext, fonts).wide * size <= wide, (name, mathtext)
                    assert y <= drawn.picture.high, name


def without_spaces(shown: str) -> str:
    return re.sub(r"\\[,;]|\\qquad| ", "", shown)


def test_a_narrow_formula_is_broken_at_scopes_and_operators_and_loses_nothing() -> None:
    for equation in ee.parse(NESTED).equations:
        (whole,) = broken_lines(equation, 10_000, 9, "stix")
        lines = broken_lines(equation, 130, 9, "stix")
        assert len(lines) > (equation.name == "Y") * 3
        for form in ("mathtext", "tex"):
            joined = "".join(getattr(line, form) for line in lines)
            assert without_spaces(joined) == without_spaces(getattr(whole, form))
        groups = [re.sub(r"\\[{}]", "", line.tex) for line in lines]
        assert all(line.count("{") == line.count("}") for line in groups)


def test_a_tree_counts_the_states_that_it_does_not_draw(run: Run, found: Candidate) -> None:
    drawn = ee.figures.search_tree(run, found, width="5in")
    counted = sum(int(n.replace(",", "")) for n in re.findall(r"  \+([\d,]+)", drawn.svg))
    (shown, total) = map(int, re.findall(r"tree: (\d+) of (\d+) states", str(drawn))[0])
    assert total == len(run.search.states) and shown + counted == total


def test_figures_refuse_what_they_cannot_draw(run: Run, found: Candidate) -> None:
    with pytest.raises(Refused, match=r"width 0.7in: the graph needs at least \d\.\din for letters of 6 points"):
        ee.figures.graph(found, width="0.7in")
    with pytest.raises(ValueError, match="style 'amc': expected one of acm, ieee, slides, poster"):
        ee.figures.expression(found, "amc")  # type: ignore[arg-type]
    with pytest.raises(Refused, match="expected a number above 0"):
        ee.figures.expression(found, width="wide")
    for draw, given in ((ee.figures.expression, 5), (ee.figures.derivation, run), (ee.figures.search_tree, found)):
        with pytest.raises(TypeError, match=f"found {type(given).__name__}, expected a"):
            draw(given)  # type: ignore[operator]
    with pytest.raises(ValueError, match="all above 0"):
        ee.figures.comparison({"a": 0.0})
    with pytest.raises(ValueError, match="best 'c': expected one of a, b"):
        ee.figures.comparison({"a": 1.0, "b": 2.0}, best="c")
    with pytest.raises(ValueError, match="without candidates"):
        ee.figures.search_tree(SimpleNamespace(search=run.search, candidates=()))
    with pytest.raises(Refused, match=r"the formula of Y needs 1.\d+ times the width, or smaller letters"):
        ee.figures.expression(ee.ops.conv2d(N=1, H=6, W=5, C=4, F=3, R=3, S=3, padding=1), width="0.8in")


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex")
def test_no_figure_is_wider_than_its_column_in_tex(run: Run, found: Candidate, tmp_path: Path) -> None:
    """As PDF and as TikZ, in one column and in two; TeX reports what is too wide, and what has no character."""
    drawn = all_figures(run, found, "acm")
    for name, figure in drawn.items():
        figure.save(tmp_path / f"{name}.pdf")
        figure.save(tmp_path / f"{name}.tikz")
    parts = [rf"\begin{{figure}}[p]\noindent\includegraphics{{{n}.pdf}}\end{{figure}}" for n in drawn]
    parts += [rf"\begin{{figure}}[p]\noindent\input{{{n}.tikz}}\end{{figure}}" for n in drawn]
    for columns in ("onecolumn", "twocolumn"):
        head = [rf"\documentclass[{columns}]{{article}}", r"\usepackage{amsmath,amssymb,graphicx,tikz}"]
        size = r"\usepackage[textwidth=6.99in,textheight=9in,columnsep=0.33in]{geometry}"
        (tmp_path / "paper.tex").write_text("\n".join([*head, size, r"\begin{document}", *parts, r"\end{document}"]))
        command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "paper.tex"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=100, check=False)
        log = done.stdout.decode(errors="replace")
        assert done.returncode == 0, log[-3000:]
        assert "Overfull" not in log and "Missing character" not in log, log
