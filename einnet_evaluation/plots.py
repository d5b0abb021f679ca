"""Figures of the search tables, drawn by Matplotlib without the global state of ``pyplot``."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from einnet_explore.viz.figure import Figure
from einnet_explore.viz.tables import Cell, ResultTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#2e6da4", "#c0392b", "#3a7d44", "#8e5ea2")
BELOW = (0.5, -0.14)
FAINT = 0.45
"""Opacity of published results."""


def plot(sheets: tuple[ResultTable, ...]) -> Figure:
    """Draw an experiment's tables; raise ValueError without Matplotlib and for an unknown experiment."""
    drawn: dict[str, Callable[[Axes, ResultTable], None]] = {
        "e4": _speedups,
        "e5": _growth,
        "e5_steps": _steps,
        "e6": _ablation,
    }
    for sheet in sheets:
        if sheet.name not in drawn:
            raise ValueError(f"table {sheet.name!r}: expected one of {', '.join(drawn)}")
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure as Page
    except ImportError:
        raise ValueError("matplotlib is not installed; expected it for figures: pip install matplotlib") from None
    with mpl.rc_context({"svg.fonttype": "path", "svg.hashsalt": "einnet", "font.size": 9}):
        page = Page(figsize=(7.2 * len(sheets), 4.8), layout="constrained")
        for axes, sheet in zip(page.subplots(1, len(sheets), squeeze=False)[0], sheets, strict=True):
            axes.set_title(sheet.title, fontsize=10)
            axes.spines[["top", "right"]].set_visible(False)
            drawn[sheet.name](axes, sheet)
        written = io.StringIO()
        page.savefig(written, format="svg", metadata={"Date": None})
    text = written.getvalue()
    return Figure(text[text.index("<svg") :], "; ".join(sheet.title for sheet in sheets))


def _records(sheet: ResultTable) -> list[dict[str, Any]]:
    return [dict(zip(sheet.head, row, strict=True)) for row in sheet.rows]


def _cases(sheet: ResultTable) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for row in _records(sheet):
        found.setdefault(row["case"], []).append(row)
    return found


def _line(axes: Axes, points: Iterable[tuple[Cell, Cell]], label: str, **look: Any) -> None:
    there = [(x, y) for x, y in points if y is not None]
    if there:
        axes.plot(*zip(*there, strict=True), label=label, **look)


def _speedups(axes: Axes, sheet: ResultTable) -> None:
    kinds = (("measured", "-", "o"), ("estimated", "--", "s"), ("published", ":", "x"))
    for (name, rows), colour in zip(_cases(sheet).items(), COLOURS, strict=False):
        for kind, style, marker in kinds:
            points = ((r["max_depth"], r[f"speedup_{kind}"]) for r in rows if r["complete"] or kind == "published")
            look = {"linestyle": style, "marker": marker, "color": colour}
            _line(axes, points, f"{name}, {kind}", **look, alpha=FAINT if kind == "published" else 1.0)
    axes.set_yscale("log")
    axes.axhline(1, color="#bbbbbb", linewidth=0.8, zorder=0)
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, 0.5), max(high, 2))
    _labels(axes, "MaxDepth", "times as fast as the original")


def _growth(axes: Axes, sheet: ResultTable) -> None:
    for (name, rows), colour in zip(_cases(sheet).items(), COLOURS, strict=False):
        for converging, style, marker in ((True, "-", "o"), (False, "--", "s")):
            mine = [r for r in rows if r["converging"] == converging]
            said = name if converging else f"{name}, no converging"
            points = ((r["max_depth"], r["seconds"]) for r in mine if r["complete"])
            _line(axes, points, said, linestyle=style, marker=marker, color=colour)
            counts = ((r["max_depth"], r["count_seconds"]) for r in mine if converging)
            _line(axes, counts, f"{name}, count", linestyle="-.", marker=".", color=colour)
            published = ((r["max_depth"], r["published_seconds"]) for r in mine)
            look = {"linestyle": ":", "marker": "x", "color": colour, "alpha": FAINT}
            _line(axes, published, f"{name}, artifact", **look)
    axes.set_yscale("log")
    _labels(axes, "MaxDepth", "seconds")


def _steps(axes: Axes, sheet: ResultTable) -> None:
    """Bars up to the depth that was searched where the target was not found: those are hatched."""
    for k, (converging, colour) in enumerate(((True, COLOURS[0]), (False, COLOURS[1]))):
        for n, rows in enumerate(_cases(sheet).values()):
            for r in rows:
                if r["converging"] != converging:
                    continue
                found = r["found"]
                high = r["explorative_steps"] if found else r["searched_to_depth"] or 0
                x = n + 0.2 * (2 * k - 1)
                axes.bar(
                    x, high, 0.36, color=colour if found else "none", edgecolor=colour, hatch=None if found else "//"
                )
                axes.annotate(str(r["explorative_steps"]), (x, high), ha="center", va="bottom")
                if r["paper_steps"] is not None:
                    axes.plot(x, r["paper_steps"], "kx", label="paper")
        axes.bar(0, 0, color=colour, label=f"{'with' if converging else 'without'} converging derivation")
    axes.set_xticks(range(len(_cases(sheet))), list(_cases(sheet)))
    _labels(axes, "", "explorative steps to the target (hatched: more)")


def _ablation(axes: Axes, sheet: ResultTable) -> None:
    """For each case the deepest MaxDepth done both ways, and the artifact's."""
    shown = {name: done[-1] for name, rows in _cases(sheet).items() if (done := [r for r in rows if r["complete"]])}
    order = sorted(shown, key=lambda name: (name.split(",")[0], name))
    for n, name in enumerate(order):
        faint = FAINT if "," in name else 1.0
        for k, (column, colour) in enumerate((("states_with", COLOURS[0]), ("states_without", COLOURS[1]))):
            axes.bar(n + 0.2 * (2 * k - 1), shown[name][column], 0.38, color=colour, alpha=faint)
        high = max(shown[name]["states_with"], shown[name]["states_without"])
        axes.annotate(f"−{shown[name]['pruned_percent']:.0f} %", (n, high), ha="center", va="bottom")
    for label, colour in (("with the fingerprint", COLOURS[0]), ("without", COLOURS[1])):
        axes.bar(0, 0, color=colour, label=label)
    ticks = [f"{name}\nMaxDepth {shown[name]['max_depth']}".replace(", ", "\n") for name in order]
    axes.set_xticks(range(len(order)), ticks, fontsize=7)
    axes.set_yscale("log")
    _labels(axes, "", "states")


def _labels(axes: Axes, across: str, up: str) -> None:
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    if across:
        from matplotlib.ticker import MaxNLocator

        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    handles, labels = axes.get_legend_handles_labels()
    once = dict(zip(labels, handles, strict=True))
    if once:
        axes.legend(
            once.values(), once.keys(), fontsize=7, frameon=False, ncols=3, loc="upper center", bbox_to_anchor=BELOW
        )
