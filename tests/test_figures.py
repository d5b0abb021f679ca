"""Figures: graphs with and without Graphviz, trees, formulas; all are well-formed and complete."""

from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import einnet_explore as ee
from einnet_explore.ir import Program
from einnet_explore.session.comparison import changed_paths
from einnet_explore.strategies.events import State
from einnet_explore.syntax.computation_graph import Graph, GraphNode, NodeGroup, computation_graph, dot_of
from einnet_explore.viz import views
from einnet_explore.viz.figure import Figure, text_width
from einnet_explore.viz.graph_figures import TreeNode, align_graphs, draw_tree, graph_figure, layout_graph, tree_figure
from einnet_explore.viz.graph_layers import fold_layers, layer_groups, program_layers
from einnet_explore.viz.views import formula_figure

SVG = "{http://www.w3.org/2000/svg}"
TWO = ee.parse("""
tensor A[4, 3] pad [1, 0]
tensor "w<&>'1" [3, 5] weight
T[i:4, j:5] = sum[k:3] A[i, k] * "w<&>'1"[k, j]
Y[i:4, j:5] = relu(T[i, j]) + A[i, 0]
""")


def read(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)


def texts(svg: str) -> list[str]:
    return [it.text or "" for it in read(svg).iter(f"{SVG}text")]


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Acyclic graphs with edges over any number of layers."""
    count = draw(st.integers(1, 9))
    kinds = st.sampled_from(["input", "weight", "library", "eOperator", "view", "expression"])
    nodes = tuple(GraphNode(f"n{n}", draw(kinds), f"n{n}\n" + "x" * draw(st.integers(0, 40))) for n in range(count))
    pairs = [(a, b) for b in range(count) for a in range(b)]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=14)) if pairs else []
    return Graph(nodes, tuple((f"n{a}", f"n{b}", "2×3") for a, b in chosen))


def boxes(svg: str) -> dict[str, tuple[float, float, float, float]]:
    """The box of each node: left, top, right, bottom."""
    found = {}
    for group in read(svg).iter(f"{SVG}g"):
        title = group.findtext(f"{SVG}title") or ""
        shape = group[1]
        if shape.tag == f"{SVG}ellipse":
            cx, cy, rx, ry = (float(shape.get(k, "")) for k in ("cx", "cy", "rx", "ry"))
            found[title] = (cx - rx, cy - ry, cx + rx, cy + ry)
        elif shape.tag == f"{SVG}rect":
            x, y, w, h = (float(shape.get(k, "")) for k in ("x", "y", "width", "height"))
            found[title] = (x, y, x + w, y + h)
        else:
            corners = [tuple(map(float, it.strip("ML").split(","))) for it in shape.get("d", "").split(" ")[:-1]]
            (left, right), (top, bottom) = ((min(c), max(c)) for c in zip(*corners, strict=True))
            found[title] = (left, top, right, bottom)
    return found


@settings(max_examples=60)
@given(graphs())
def test_layout_separates_nodes_and_directs_edges_downwards(drawn: Graph) -> None:
    svg = layout_graph(drawn, "title").svg()
    found = boxes(svg)
    assert set(found) == {node.name for node in drawn.nodes}
    wide, high = (float(read(svg).get(k, "")) for k in ("width", "height"))
    for name, (left, top, right, bottom) in found.items():
        assert left >= 0 and top >= 0 and right <= wide and bottom <= high
        for other, (l2, t2, r2, b2) in found.items():
            assert name == other or right < l2 or r2 < left or bottom < t2 or b2 < top, (name, other)
    for a, b, _ in drawn.edges:
        assert found[a][3] < found[b][1]
    assert len(list(read(svg).iter(f"{SVG}path"))) >= len(drawn.edges)


def test_our_layout_shows_kinds_labels_and_odd_names() -> None:
    svg = layout_graph(computation_graph(TWO), "a < b & 'c'").svg()
    shown = texts(svg)
    assert shown[0] == "a < b & 'c'" and "w<&>'1" in shown and "3×5" in shown
    classes = {it.get("class") for it in read(svg).iter(f"{SVG}g")}
    assert classes == {"node input", "node weight", "node expression"}


def test_equal_labels_on_one_side_below_a_node_are_drawn_once() -> None:
    reader = "{}[i:3] = exp(A[i])"
    drawn = computation_graph(ee.parse("tensor A[3] " + " ".join(map(reader.format, "BCDE"))))
    anchors = [it.get("text-anchor") for it in read(layout_graph(drawn).svg()).iter(f"{SVG}text") if it.text == "3"]
    assert len(drawn.edges) == 4 and sorted(anchors) == ["end", "start"]


def test_our_layout_of_an_empty_graph() -> None:
    assert texts(layout_graph(Graph((), ()), "nothing").svg()) == ["nothing"]


RESIDUAL = ee.parse(
    """tensor X[4] tensor W[4] weight tensor V[4] weight
    A[i:4] = exp(X[i])
    B[i:4] = A[i] * W[i]
    C[i:4] = exp(B[i]) * V[i]
    D[i:4] = C[i] + A[i]
    E[i:4] = D[i] * V[i]
    F[i:4] = exp(E[i])
    Y[i:4] = F[i] + D[i]"""
)


def test_layers_end_where_few_results_are_read_later_and_fold_with_their_own_weights() -> None:
    drawn = computation_graph(RESIDUAL)
    whole = program_layers(RESIDUAL)
    assert [part.names for part in whole.parts] == [("A",), ("B", "C", "D"), ("E", "F", "Y")]
    first, second = whole.inner()
    shown, home = fold_layers(drawn, [first], {"W", "V"})
    assert [node.name for node in shown.nodes] == ["X", first.title, "V", "A", "E", "F", "Y"]
    assert home == dict.fromkeys("BCDW", "B … D") and ("A", "B … D", "4") in shown.edges
    (group,) = layer_groups(whole, [first])
    assert group == NodeGroup(second.title, "layer", ("E", "F", "Y"))
    assert 'subgraph "cluster_E … Y"' in dot_of(shown, "", [group]) and "3 equations" in dot_of(shown)
    assert {"B … D", "E … Y"} <= set(texts(graph_figure(RESIDUAL, folded=True).svg))


def test_nodes_of_one_name_stand_in_one_place_in_aligned_graphs() -> None:
    other = ee.parse("tensor X[4] A[i:4] = exp(X[i]) G[i:4] = A[i] + 1 Y[i:4] = G[i] + A[i]")
    graphs = computation_graph(RESIDUAL), computation_graph(other)
    one, two = (boxes(picture.svg()) for picture in align_graphs(graphs, ("one", "two")))
    shared = one.keys() & two.keys()
    assert shared == {"X", "A", "Y"} and [one[name] for name in shared] == [two[name] for name in shared]
    nodes = tuple(GraphNode(name, "expression", name) for name in "AB")
    turned = Graph(nodes, (("A", "B", ""),)), Graph(nodes, (("B", "A", ""),))
    one, two = (boxes(picture.svg()) for picture in align_graphs(turned, ("", "")))
    assert one["A"][3] < one["B"][1] and two["B"][3] < two["A"][1]  # no order suits both


def test_graphs_with_and_without_graphviz_say_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    before = graph_figure(TWO, "two")
    monkeypatch.setenv("PATH", str(tmp_path))
    without = graph_figure(TWO, "two")
    assert "class='node input'" in without.svg
    assert before.says == without.says == repr(without)
    assert "Y: expression, reads T 4×5, A 4×3" in before.says
    for name in ("A", "w<&>'1", "T", "Y", "two"):
        assert name in texts(before.svg) and name in texts(without.svg)


def test_figure_is_saved_completely(tmp_path: object) -> None:
    path = f"{tmp_path}/graph.svg"
    figure = graph_figure(TWO)
    figure.save(path)
    assert Path(path).read_text(encoding="utf-8") == figure.svg
    with pytest.raises(OSError, match=r"missing/graph\.svg"):
        figure.save(f"{tmp_path}/missing/graph.svg")


def chain(length: int, program: Program = TWO) -> list[State]:
    """A root with *length* children, the last of which has one child of its own, a candidate."""
    states = [State(0, 0, (), program, 0, "start")]
    states += [State(n, 0, (), program, 1, "explorative", n) for n in range(1, length + 1)]
    return [*states, State(length + 1, length, (), program, 2, "converging", 0)]


def test_a_tree_shows_every_state_and_the_way() -> None:
    figure = tree_figure(chain(5), 6)
    assert len(list(read(figure.svg).iter(f"{SVG}circle"))) == 6
    squares = [it for it in read(figure.svg).iter(f"{SVG}rect") if it.find(f"{SVG}title") is not None]
    assert len(squares) == 1
    thick = [it for it in read(figure.svg).iter(f"{SVG}path") if it.get("stroke-width") == "2.5"]
    assert len(thick) == 2
    assert texts(figure.svg)[-1] == "7 states; squares are candidates; the way to state 6 is thick"
    tips = [it.text for it in read(figure.svg).iter(f"{SVG}title")]
    assert "state 3, depth 1, distance 3" in tips


def test_a_large_tree_is_cut_but_keeps_the_way() -> None:
    states = chain(3000)
    figure = tree_figure(states, 3001, limit=50)
    assert "52 of 3002 states" in texts(figure.svg)[-1]
    assert len(list(read(figure.svg).iter(f"{SVG}circle"))) == 51


@pytest.mark.parametrize("many", [1, 3, 30, 200])
@pytest.mark.parametrize("chosen", [1, 2, -1])
def test_no_label_hides_a_node(many: int, chosen: int) -> None:
    nodes = [TreeNode(0, -1, "start", ""), *(TreeNode(n, 0, "boundary_relaxing", "") for n in range(1, many + 1))]
    way = nodes[min(chosen, many)].id
    svg = read(draw_tree(nodes, way, "").svg)
    dots = [tuple(float(dot.get(name, "")) for name in ("cx", "cy", "r")) for dot in svg.iter(f"{SVG}circle")]
    (label,) = [words for words in svg.iter(f"{SVG}text") if words.text == "boundary_relaxing"]
    x, y, wide = float(label.get("x", "")), float(label.get("y", "")), text_width("boundary_relaxing", 12)
    left = x - wide if label.get("text-anchor") == "end" else x
    beside = [(across, r) for across, down, r in dots if abs(y - 4 - down) < 6]
    assert not [across for across, r in beside if left < across + r and across - r < left + wide]


def test_a_deep_tree_does_not_recurse() -> None:
    nodes = [TreeNode(n, n - 1, str(n), "") for n in range(3000)]
    assert len(list(read(draw_tree(nodes, None, "deep").svg).iter(f"{SVG}circle"))) == 3000


@given(st.lists(st.integers(0, 30), max_size=30))
def test_parents_stand_above_their_children(above: list[int]) -> None:
    nodes = [TreeNode(0, -1, "", "0"), *(TreeNode(n, p % n, "", str(n)) for n, p in enumerate(above, 1))]
    dots = read(draw_tree(nodes, None, "").svg).iter(f"{SVG}circle")
    at = {int(d.findtext(f"{SVG}title") or ""): (float(d.get("cx", "")), float(d.get("cy", ""))) for d in dots}
    children: dict[int, list[float]] = {}
    for node in nodes[1:]:
        assert at[node.id][1] > at[node.parent][1]
        children.setdefault(node.parent, []).append(at[node.id][0])
    for parent, places in children.items():
        assert min(places) - 0.2 <= at[parent][0] <= max(places) + 0.2


def test_formulas_in_mathtext_or_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = formula_figure([r"\sum_{c} A[c]", "T_{1} = 2"], "plain")
    assert read(drawn.svg).tag == f"{SVG}svg" and "plain" not in drawn.svg
    assert formula_figure([r"\sum_{c} A[c]", "T_{1} = 2"], "plain").svg == drawn.svg  # the same every time
    assert texts(formula_figure([r"\nosuch{"], "a < b\n  c").svg) == ["a < b", "  c"]
    monkeypatch.setattr(views.importlib.util, "find_spec", lambda _: None)
    assert texts(formula_figure(["x"], "without Matplotlib").svg) == ["without Matplotlib"]


def test_changed_paths_omit_unchanged_equations() -> None:
    session = ee.explore(TWO)
    match = next(m for m in session.rules("T") if m.rule.name == "operator_matching")
    session.apply(match)
    names = [session.program.equations[path[0]].name for path in changed_paths(TWO, session.program)]
    assert "Y" not in names and names
    conv = ee.ops.conv2d(N=1, H=4, W=4, C=2, F=2, R=3, S=3, padding=1)
    inner = ee.explore(conv)
    inner.apply("summation_splitting", at="0", outer=["r", "s"])
    before = inner.program
    phi = next(m for m in inner.rules("0.0") if m.rule.name == "variable_substitution")
    assert changed_paths(before, inner.apply(phi)) == ((0, 0),)
    assert changed_paths(before, before) == ()


def test_a_figure_shows_itself() -> None:
    assert Figure("<svg/>")._repr_mimebundle_() == {"image/svg+xml": "<svg/>", "text/plain": "(figure)"}
    assert Figure("<svg/>")._repr_svg_() == "<svg/>"
