"""The search for a tile size as a picture: scores over the tile's products, what was rejected by its reason."""

from __future__ import annotations

import io
from math import prod

from einnet_explore.explore.figure import Figure
from einnet_explore.kernels.tiling import TileCost, TileSearch

REASONS = {"over memory": ("v", "#c0392b"), "over regs": ("x", "#8e5ea2")}
"""The marker and the colour of each."""

BELOW = -0.06
"""Where rejected sizes are drawn: they have no score."""


def tile_figure(search: TileSearch, title: str = "") -> Figure:
    """Every visited size: its products across (how much a group computes from one load), its score up.

    Raises ValueError where Matplotlib is missing.
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure as Page
    except ImportError:
        raise ValueError("matplotlib is not installed; expected it for figures: pip install matplotlib") from None
    good = [c for c in search.visited if not c.rejected]
    with mpl.rc_context({"svg.fonttype": "path", "svg.hashsalt": "einnet", "font.size": 9}):
        page = Page(figsize=(7.2, 4.2), layout="constrained")
        axes = page.subplots()
        drawn = axes.scatter(
            [_products(c) for c in good],
            [c.score for c in good],
            c=range(len(good)),
            cmap="viridis",
            s=12,
            label="possible, early (dark) to late",
        )
        page.colorbar(drawn, ax=axes, label="order of visit")
        for n, (reason, (marker, colour)) in enumerate(REASONS.items()):
            bad = [c for c in search.visited if c.rejected == reason]
            height = BELOW * (n + 1)
            across, label = [_products(c) for c in bad], f"{reason}: {len(bad)}"
            axes.scatter(across, [height] * len(bad), label=label, marker=marker, color=colour, s=12, linewidths=0.8)
        best = search.chosen
        axes.scatter([_products(best)], [best.score], s=90, facecolors="none", edgecolors="#c0392b", linewidths=1.6)
        said = ", ".join(map(str, best.tile))
        axes.annotate(f"[{said}]", (_products(best), best.score), xytext=(0, 9), textcoords="offset points", ha="right")
        axes.set_xscale("log", base=2)
        axes.set_ylim(BELOW * (len(REASONS) + 1), 1.14)
        axes.set_xlabel("products in a tile")
        axes.set_ylabel("score")
        axes.set_title(title or f"{len(search.visited)} tile sizes, {search.ties} of them the best", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(fontsize=7, frameon=False, loc="upper left")
        written = io.StringIO()
        page.savefig(written, format="svg", metadata={"Date": None})
    text = written.getvalue()
    counts = ", ".join(f"{sum(c.rejected == r for c in search.visited)} {r}" for r in REASONS)
    return Figure(text[text.index("<svg") :], f"{len(search.visited)} tile sizes ({counts}); chosen: [{said}]")


def _products(cost: TileCost) -> int:
    return prod(cost.tile)
