"""Draw ``packages.svg`` from the import contract in ``pyproject.toml``: ``make pictures``.

One row a package, highest layer first; a package imports only from rows below its own.  The sentences are the first
ones of the packages' docstrings.
"""

from __future__ import annotations

import ast
import tomllib
from html import escape
from pathlib import Path

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
WIDTH, ROW, LEFT = 1000, 34, 190
COLOURS = {"einnet_widgets": "#e8d5f2", "einnet_evaluation": "#e8d5f2", "einnet_explore.cli": "#e8d5f2"}


def layers() -> list[list[str]]:
    """The packages of every layer, highest first."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contract = next(
        c for c in project["tool"]["importlinter"]["contracts"] if "einnet_explore.ir" in c.get("layers", ())
    )
    return [[name.strip() for name in layer.split("|")] for layer in contract["layers"]]


def sentence(package: str) -> str:
    """The first sentence of the docstring of *package*."""
    folder = ROOT / "widgets" if package == "einnet_widgets" else ROOT
    source = (folder / package.replace(".", "/") / "__init__.py").read_text(encoding="utf-8")
    first = " ".join((ast.get_docstring(ast.parse(source)) or "").split("\n\n")[0].split())
    return first.split(". ")[0].rstrip(".").replace("``", "")


def drawing() -> str:
    """The drawing as SVG."""
    rows = [name for layer in layers() for name in layer]
    height = ROW * len(rows) + 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'font-family="sans-serif" font-size="13">',
        "<title>The packages of einnet_explore: each imports only from those below</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
    ]
    for n, name in enumerate(rows):
        top = ROW * n + 4
        label = name.removeprefix("einnet_explore.")
        colour = COLOURS.get(name, "#d5e8f2")
        parts += [
            f'<rect x="4" y="{top}" width="{LEFT - 14}" height="{ROW - 6}" rx="4" fill="{colour}" stroke="#557"/>',
            f'<text x="{LEFT // 2 - 3}" y="{top + 19}" text-anchor="middle" font-weight="bold">{escape(label)}</text>',
            f'<text x="{LEFT}" y="{top + 19}">{escape(sentence(name))}</text>',
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    (DOCS / "packages.svg").write_text(drawing(), encoding="utf-8")
