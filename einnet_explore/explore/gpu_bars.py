"""Bar charts of the tables of a GPU's results: Fig. 12 (``e1``), Table 3 (``e2``) and Fig. 16 (``e3``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from einnet_explore.explore.bars import CUT, Panel, chart
from einnet_explore.explore.figure import Figure
from einnet_explore.explore.sheet import Sheet


def figure(sheet: Sheet) -> Figure:
    """The figure of the first table of an experiment; raises ValueError where it is empty or Matplotlib is missing."""
    drawn = {"e1": _models, "e2": _operators, "e3": _ways}[sheet.name]
    rows = [dict(zip(sheet.head, row, strict=True)) for row in sheet.rows]
    return chart(sheet.title, tuple(drawn(rows)))


def _models(rows: Sequence[Mapping[str, Any]]) -> Iterable[Panel]:
    """A panel for each batch size and precision: times relative to ours; above, the speed-up over the best."""
    rivals = [key.removesuffix("_times_ours") for key in (rows[0] if rows else ()) if key.endswith("_times_ours")]
    for batch, precision in dict.fromkeys((r["batch"], r["precision"]) for r in rows):
        here = [r for r in rows if (r["batch"], r["precision"]) == (batch, precision)]
        series = {"ours": [1.0] * len(here)} | {e: [r[f"{e}_times_ours"] for r in here] for e in rivals}
        kept = {name: values for name, values in series.items() if any(v is not None for v in values)}
        above = tuple(f"{r['speedup']:.2f}×" for r in here)
        groups = tuple(r["model"] for r in here)
        yield Panel(f"batch {batch}, {precision}", groups, kept, above, "time relative to ours", CUT, 1.0)


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
        yield Panel(precision, groups, series, above, "time relative to before", CUT, 1.0)


def _ways(rows: Sequence[Mapping[str, Any]]) -> Iterable[Panel]:
    """A panel an operator: milliseconds by each way."""
    for case in dict.fromkeys(r["case"] for r in rows):
        here = [r for r in rows if r["case"] == case and r["ms"] is not None]
        precisions = tuple(dict.fromkeys(r["precision"] for r in here))
        ways = tuple(dict.fromkeys(r["way"] for r in here))
        held = {(r["way"], r["precision"]): r["ms"] for r in here}
        yield Panel(
            case, ways, {p: [held.get((w, p)) for w in ways] for p in precisions}, ("",) * len(ways), "milliseconds"
        )
