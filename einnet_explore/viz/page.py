"""Self-contained HTML pages: programs as text and LaTeX, certificates, graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from einnet_explore.equivalence.certificate import certify
from einnet_explore.ir import Program, show_path
from einnet_explore.rules import Derivation
from einnet_explore.syntax import latex, text
from einnet_explore.viz.graph_figures import graph_figure

_STYLESHEET = """
body { font: 15px/1.5 Helvetica, Arial, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem;
  color: #222; background: white; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.15rem; margin: 1.6rem 0 .3rem; } p { margin: .3rem 0; }
pre { background: #f6f6f3; padding: .6rem .8rem; margin: .4rem 0; white-space: pre-wrap; overflow-wrap: anywhere;
  font: 13px/1.45 ui-monospace, Menlo, Consolas, monospace; }
pre > span { display: block; padding-left: 2rem; text-indent: -2rem; }
.new { background: #fdf0b8; } .old { opacity: .6; }
table { border-collapse: collapse; display: block; overflow-x: auto; font-size: 14px; }
td, th { padding: .2rem .7rem; border-bottom: 1px solid #ddd; text-align: left; vertical-align: top; }
td.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
.proved { color: #1b7a3d; } .exact { color: #9a6a00; } .false { color: #b00020; }
details { margin: .3rem 0; font-size: 13px; } summary { cursor: pointer; color: #555; }
.pair { display: flex; flex-wrap: wrap; gap: 2rem; align-items: flex-start; }
figure { margin: .5rem 0; max-width: 100%; } figcaption { font-weight: bold; font-size: 13px; }
svg { max-width: 100%; height: auto; background: white; }
@media (prefers-color-scheme: dark) { body { background: #1c1c1c; color: #ddd; } pre { background: #2a2a2a; }
  .new { background: #4a4320; } td, th { border-color: #444; } summary { color: #aaa; }
  .proved { color: #6fcf8f; } .exact { color: #e0b050; } .false { color: #ff7b86; } }
"""


def html_page(title: str, parts: Sequence[str]) -> str:
    """Return an HTML page without scripts and external references."""
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        f"<meta name='viewport' content='width=device-width'><title>{escape(title)}</title>"
        f"<style>{_STYLESHEET}</style></head><body><h1>{escape(title)}</h1>{''.join(parts)}</body></html>\n"
    )


def derivation_page(derivation: Derivation, title: str) -> str:
    """Return the page of *derivation*: every program, with the rule, parameters and certificate of its step."""
    graphs = [_figure(derivation.start, "before" if derivation.steps else "")]
    if derivation.steps:
        graphs.append(_figure(derivation.end, "after"))
    parts = [f"<div class='pair'>{''.join(graphs)}</div>", "<h2>Start</h2>", _program(derivation.start)]
    for n, step in enumerate(derivation.steps, 1):
        match = step.match.to_json()
        kind = certify(step.before, step.after).kind
        parts += [
            f"<h2>{n}. {escape(match['rule'].replace('_', ' '))} at {escape(show_path(step.match.at))}</h2>",
            f"<p>{_params(match['params'])} <b class='{kind}'>{kind}</b></p>",
            _program(step.after, step.before),
        ]
    return html_page(title, parts)


def _figure(program: Program, caption: str) -> str:
    captioned = f"<figcaption>{caption}</figcaption>" if caption else ""
    return f"<figure>{captioned}{graph_figure(program).svg}</figure>"


def _params(params: Mapping[str, Any]) -> str:
    return "; ".join(f"{escape(name)} = <code>{escape(_value(value))}</code>" for name, value in params.items())


def _value(value: Any) -> str:
    match value:
        case dict():
            return ", ".join(f"{k}: {_value(v)}" for k, v in value.items())
        case list() | tuple():
            return f"[{', '.join(map(_value, value))}]"
        case _:
            return str(value)


def _program(program: Program, before: Program | None = None) -> str:
    """Return *program* as text with lines that are not in *before* highlighted, and as collapsed LaTeX."""
    known = set(text(before).splitlines()) if before else set()
    lines = [
        f"<span class='{'old' if line in known else 'new' if before else ''}'>{escape(line)}</span>"
        for line in text(program).splitlines()
    ]
    folded = f"<details><summary>LaTeX</summary><pre>{escape(latex(program))}</pre></details>"
    return f"<pre>{''.join(lines)}</pre>{folded}"
