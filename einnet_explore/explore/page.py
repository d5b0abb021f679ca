"""One self-contained HTML page of a derivation: the programs as text and LaTeX, certificates, graphs before and after."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from einnet_explore.algebra.certificate import certify
from einnet_explore.explore.figures import graph_figure
from einnet_explore.ir import Program, show_path
from einnet_explore.render import latex, text
from einnet_explore.rules import Derivation

STYLE = """
body { font: 15px/1.5 Helvetica, Arial, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
pre { background: #f6f6f3; padding: .7rem; overflow-x: auto; } table { border-collapse: collapse; }
td, th { padding: .25rem .7rem; border-bottom: 1px solid #ddd; text-align: left; vertical-align: top; }
.proved { color: #1b7a3d; } .exact { color: #9a6a00; } .false { color: #b00020; } details { margin: .5rem 0; }
@media (prefers-color-scheme: dark) { body { background: #1c1c1c; color: #ddd; } pre { background: #2a2a2a; }
  svg { background: white; } }
"""


def page(title: str, parts: Sequence[str]) -> str:
    """An HTML page without scripts and without any reference to elsewhere."""
    return (
        f"<!doctype html><html lang='en'><head><meta charset='utf-8'><title>{escape(title)}</title>"
        f"<style>{STYLE}</style></head><body><h1>{escape(title)}</h1>{''.join(parts)}</body></html>\n"
    )


def derivation_page(derivation: Derivation, title: str) -> str:
    """Every program of *derivation* with the rule, its parameters and the certificate of each step."""
    parts = ["<h2>Start</h2>", _program(derivation.start)]
    for n, step in enumerate(derivation.steps, 1):
        said = step.match.to_json()
        proof = certify(step.before, step.after)
        parts.append(
            f"<h2>{n}. {escape(said['rule'])} at {escape(show_path(step.match.at))}</h2>"
            f"<p>{escape(str(said['params']))} <b class='{proof.kind}'>{proof.kind}</b></p>{_program(step.after)}"
        )
    parts += ["<h2>Graph before</h2>", graph_figure(derivation.start).svg]
    parts += ["<h2>Graph after</h2>", graph_figure(derivation.end).svg]
    return page(title, parts)


def _program(program: Program) -> str:
    return f"<pre>{escape(text(program))}</pre><details><summary>LaTeX</summary><pre>{escape(latex(program))}</pre></details>"
