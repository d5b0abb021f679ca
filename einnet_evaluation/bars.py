"""Bar charts of measured tables, of this machine or a GPU: Fig. 12 (``e1``), Table 3 (``e2``), Fig. 16 (``e3``)."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from einnet_evaluation.plots import COLOURS
from einnet_explore.support.wording import count_noun
from einnet_explore.viz.figure import Figure
from einnet_explore.viz.tables import ResultTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_BAR_COLOURS = (*COLOURS, "#e0a526", "#7f7f7f", "#17a2a2", "#b07aa1")

_MAX_BAR_HEIGHT = 4.0
"""Longer bars of Fig. 12 are cut off and labelled with their length."""


@dataclass(frozen=True, slots=True)
class Panel:
    """Grouped bars: a height or None for each (group, series); *above* are labels of the groups.

    Bars are cut off at *cut* and labelled with their height; *line* is a horizontal line.
    """

    title: str
    groups: tuple[str, ...]
    series: Mapping[str, Sequence[float | None]]
    above: tuple[str, ...]
    label: str
    cut: float | None = None
    line: float | None = None


def draw_chart(sheet: ResultTable) -> Figure:
    """Draw a measured table; raise ValueError without Matplotlib and for an unknown or empty table."""
    drawn = {"e1": _end_to_end, "e2": _table3, "e3": _backends}
    if sheet.name not in drawn:
        raise ValueError(f"table {sheet.name!r}: expected one of {', '.join(drawn)}")
    panels = tuple(drawn[sheet.name]([dict(zip(sheet.head, row, strict=True)) for row in sheet.rows]))
    if not panels:
        raise ValueError(f"table {sheet.name!r} is empty, expected a row to draw")
    return _chart(sheet.title, panels)


def _chart(title: str, panels: Sequence[Panel]) -> Figure:
    """Draw *panels* side by side; raise ValueError without panels or Matplotlib."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure as Page
    except ImportError:
        raise ValueError("matplotlib is not installed; expected it for figures: pip install matplotlib") from None
    if not panels:
        raise ValueError(f"figure {title!r} has no panels, expected one")
    across = min(2, len(panels))
    down = -(-len(panels) // across)
    with mpl.rc_context({"svg.fonttype": "path", "svg.hashsalt": "einnet", "font.size": 9}):
        page = Page(figsize=(7.2 * across, 3.6 * down), layout="constrained")
        page.suptitle(title, fontsize=10)
        places = list(page.subplots(down, across, squeeze=False).flat)
        for axes, panel in zip(places, panels, strict=False):
            _draw(axes, panel)
        for axes in places[len(panels) :]:
            axes.set_axis_off()
        written = io.StringIO()
        page.savefig(written, format="svg", metadata={"Date": None})
    svg = written.getvalue()
    return Figure(svg[svg.index("<svg") :], _says(title, panels))


def _says(title: str, panels: Iterable[Panel]) -> str:
    """Describe the chart as text."""
    lines = [title]
    for panel in panels:
        lines.append(f"  {panel.title} ({panel.label})")
        for n, group in enumerate(panel.groups):
            heights = [f"{name} {values[n]:.3g}" for name, values in panel.series.items() if values[n] is not None]
            lines.append(f"    {group}: {', '.join(heights)}" + (f"; {panel.above[n]}" if panel.above[n] else ""))
    return "\n".join(lines)


def _draw(axes: Axes, panel: Panel) -> None:
    axes.set_title(panel.title, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    wide = 0.8 / max(1, len(panel.series))
    tops = [0.0] * len(panel.groups)
    for k, ((name, values), colour) in enumerate(zip(panel.series.items(), _BAR_COLOURS, strict=False)):
        for n, value in enumerate(values):
            if value is None:
                continue
            x, high = n - 0.4 + wide * (k + 0.5), min(value, panel.cut or value)
            axes.bar(x, high, wide * 0.92, color=colour)
            tops[n] = max(tops[n], high)
            if high < value:
                axes.annotate(f"{value:.1f}", (x, high), ha="center", va="top", rotation=90, color="white", fontsize=6)
        axes.bar(0, 0, color=colour, label=name)
    for n, said in enumerate(panel.above):
        axes.annotate(said, (n, tops[n]), ha="center", va="bottom", fontsize=7)
    if panel.line is not None:
        axes.axhline(panel.line, color="#777777", linewidth=0.8, zorder=0)
    axes.set_xticks(range(len(panel.groups)), panel.groups, fontsize=7)
    axes.set_ylabel(panel.label)
    axes.margins(y=0.12)
    two = any("\n" in group for group in panel.groups)
    axes.legend(fontsize=6, frameon=False, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.18 if two else -0.1))


def _end_to_end(rows: Sequence[Mapping[str, Any]]) -> Iterable[Panel]:
    """A panel for each batch size and number of threads: times relative to ours; above, the speed-up over the best."""
    engines = [key.removesuffix("_times_ours") for key in (rows[0] if rows else ()) if key.endswith("_times_ours")]
    for batch, threads in dict.fromkeys((r["batch"], r["threads"]) for r in rows):
        here = [r for r in rows if (r["batch"], r["threads"]) == (batch, threads)]
        series = {"ours": [1.0] * len(here)} | {e: [r[f"{e}_times_ours"] for r in here] for e in engines}
        above = tuple(f"{r['speedup']:.2f}×" if r["speedup"] else "" for r in here)
        title = f"batch {batch}, {count_noun(threads, 'thread')}"
        groups = tuple(r["model"] for r in here)
        kept = {e: values for e, values in series.items() if any(v is not None for v in values)}
        yield Panel(title, groups, kept, above, "time relative to ours", _MAX_BAR_HEIGHT, 1.0)


def _table3(rows: Sequence[Mapping[str, Any]]) -> Iterable[Panel]:
    """Times relative to the time before; above, the speed-up of the paper's derivation."""
    groups = tuple(f"{r['case']}\n{r['before_by']} → {r['after_by']}" for r in rows)
    after = [1 / r["speedup"] if r["speedup"] else None for r in rows]
    published = [1 / r["published_speedup"] for r in rows]
    above = tuple(f"{r['speedup']:.2f}×" if r["speedup"] else "" for r in rows)
    series: dict[str, Sequence[float | None]] = {
        "before": [1.0] * len(rows),
        "after": after,
        "published after": published,
        "kept here": [r["kept_ms"] and r["kept_ms"] / r["before_ms"] for r in rows],
    }
    if rows:
        yield Panel(
            "the fastest backend before and after",
            groups,
            series,
            above,
            "time relative to before",
            _MAX_BAR_HEIGHT,
            1.0,
        )


def _backends(rows: Sequence[Mapping[str, Any]]) -> Iterable[Panel]:
    """A panel an operator: milliseconds before and after by each backend; above, the speed-up."""
    for case in dict.fromkeys(r["case"] for r in rows):
        here = [r for r in rows if r["case"] == case]
        above = tuple(f"{r['speedup']:.2f}×" if r["speedup"] else "" for r in here)
        series = {when: [r[f"{when}_ms"] for r in here] for when in ("before", "after")}
        yield Panel(case, tuple(r["backend"] for r in here), series, above, "milliseconds")


def draw_gpu_chart(sheet: ResultTable) -> Figure:
    """Draw the first table of an experiment on a GPU; raise ValueError without rows or Matplotlib."""
    drawn = {"e1": _models, "e2": _operators, "e3": _ways}[sheet.name]
    rows = [dict(zip(sheet.head, row, strict=True)) for row in sheet.rows]
    return _chart(sheet.title, tuple(drawn(rows)))


def _models(rows: Sequence[Mapping[str, Any]]) -> Iterable[Panel]:
    """A panel for each batch size and precision: times relative to ours; above, the speed-up over the best."""
    rivals = [key.removesuffix("_times_ours") for key in (rows[0] if rows else ()) if key.endswith("_times_ours")]
    for batch, precision in dict.fromkeys((r["batch"], r["precision"]) for r in rows):
        here = [r for r in rows if (r["batch"], r["precision"]) == (batch, precision)]
        series = {"ours": [1.0] * len(here)} | {e: [r[f"{e}_times_ours"] for r in here] for e in rivals}
        kept = {name: values for name, values in series.items() if any(v is not None for v in values)}
        above = tuple(f"{r['speedup']:.2f}×" for r in here)
        groups = tuple(r["model"] for r in here)
        yield Panel(f"batch {batch}, {precision}", groups, kept, above, "time relative to ours", _MAX_BAR_HEIGHT, 1.0)


def _operators(rows: Sequence[Mapping[str, Any]]) -> Iterable[Panel]:
    """A panel a precision: times relative to the time before; above, the speed-up."""
    for precision in dict.fromkeys(r["precision"] for r in rows):
        here = [r for r in rows if r["precision"] == precision]
        series: dict[str, Sequence[float | None]] = {
            "before": [1.0] * len(here),
            "after": [1 / r["speedup"] if r["speedup"] else None for r in here],
            "published after": [1 / r["published_speedup"] for r in here],
        }
        above = tuple(f"{r['speedup']:.2f}×" if r["speedup"] else "" for r in here)
        groups = tuple(f"{r['case']}\n{r['before_by']} → {r['after_by']}" for r in here)
        yield Panel(precision, groups, series, above, "time relative to before", _MAX_BAR_HEIGHT, 1.0)


def _ways(rows: Sequence[Mapping[str, Any]]) -> Iterable[Panel]:
    """Yield a panel for each operator: milliseconds of each implementation."""
    for case in dict.fromkeys(r["case"] for r in rows):
        here = [r for r in rows if r["case"] == case and r["ms"] is not None]
        precisions = tuple(dict.fromkeys(r["precision"] for r in here))
        ways = tuple(dict.fromkeys(r["way"] for r in here))
        times = {(r["way"], r["precision"]): r["ms"] for r in here}
        yield Panel(
            case, ways, {p: [times.get((w, p)) for w in ways] for p in precisions}, ("",) * len(ways), "milliseconds"
        )
