"""Pages of the site that are generated from the code: rules, operators, commands, Python, notebooks, contents."""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from slides import FOLDER, has_slides

import einnet_explore as ee
from einnet_explore.cli import command_parser
from einnet_explore.ir import Program
from einnet_explore.operators.operator import Operator
from einnet_explore.rules import ALL_RULES
from einnet_explore.rules.base import Rule, Step
from einnet_explore.strategies.instantiation import matching_rule
from einnet_explore.viz.views import RulePage

DOCS = Path(__file__).resolve().parent
GENERATED = "generated"
OUTSIDE = {"README.md": "readme.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
"""Pages outside the folder of the documentation, and their names in the site."""

BY_HAND: dict[str, dict[str, Any]] = {
    "storage_layout": {"at": "0", "phi": {"j": "j", "i": "i"}},
}
"""Steps that no rule proposes by itself: parameters for the first example that accepts them."""


REPOSITORY = DOCS.parent

FOLDED = {"hide-input": "Code of the exercise, with its solution", "hide-cell": "Solution"}
"""Titles of folded cells, by tag."""

RESULTS = (
    "einnet_explore.session.run.Run",
    "einnet_explore.pipeline.optimised.Optimised",
    "einnet_explore.parametric.family.Family",
    "einnet_explore.session.exercises.Grade",
    "einnet_explore.checker.record.Report",
    "einnet_explore.runtime.program.CompiledProgram",
    "einnet_explore.runtime.measurement.Timing",
)
"""Classes of results of public functions that are not public names themselves."""


PAGED_RULES: tuple[Rule[Any], ...] = (*ALL_RULES, matching_rule(ee.OPERATORS))
"""The rules that have pages; inline code that is the name of one becomes a link to it."""

MODULES = {
    "Bilinear algorithms (`ee.bilinear`)": "einnet_explore.session.bilinear",
    "Expressions of operators (`ee.ops`)": "einnet_explore.operators.expressions",
    "Figures (`ee.figures`)": "einnet_explore.viz.figures",
    "Expressions as values (`ee.ir`)": "einnet_explore.ir",
    "Kernels (`ee.kernels`)": "einnet_explore.session.kernels",
    "Rules (`ee.rules`)": "einnet_explore.rules",
    "Kernels for GPUs on a CPU": "einnet_evaluation.gpu_emulation",
}
"""Public modules."""


def write() -> None:
    """Write all generated pages."""
    out = DOCS / GENERATED
    shutil.rmtree(out, ignore_errors=True)
    for name, inside in OUTSIDE.items():
        _write(
            inside,
            ("---\norphan: true\n---\n" if name == "README.md" else "")
            + redirected((REPOSITORY / name).read_text(encoding="utf-8"), REPOSITORY),
        )
    for rule in PAGED_RULES:
        _write(f"rules/{rule.name}.md", rule_page(rule))
    for operator in ee.OPERATORS:
        _write(f"operators/{operator.name}.md", operator_page(operator))
    _write("gallery.md", gallery_page())
    _write("rules.md", _contents("Rules", "rules", [rule.name for rule in PAGED_RULES]))
    _write("operators.md", _contents("Operators", "operators", [operator.name for operator in ee.OPERATORS]))
    _write("arguments.md", arguments_page())
    _write("python.md", python_page())
    for script in sorted((REPOSITORY / "notebooks").glob("*.py")):
        _write(f"notebooks/{script.stem}.ipynb", notebook(script))
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    for title, table in re.findall(r"^## (.+)\n((?:\|.+\n)+)", index, re.MULTILINE):
        _write(f"{slug(title)}.md", section_page(title, table))


def _write(name: str, text: str) -> None:
    path = DOCS / GENERATED / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def slug(title: str) -> str:
    """Return the file name of a section's page."""
    return title.lower().replace(" ", "-")


def redirected(page: str, folder: Path) -> str:
    """Return *page*, a text of *folder*, with links to the site's pages; links to other files become text.

    The names of rules become links to their pages.
    """

    def link(found: re.Match[str]) -> str:
        picture, text, target, anchor = found[1], found[2], found[3], found[4] or ""
        inside = site_path((folder / target).resolve())
        if target.endswith(".py") and text.startswith("`"):
            text = ""  # the notebook's title
        return text if inside is None else f"{picture}[{text}]({inside}{anchor})"

    linked = re.sub(r"(!?)\[([^\]]*)\]\((?!https?:)([^)#\s]+)(#[^)]*)?\)", link, page)
    names = "|".join(rule.name for rule in PAGED_RULES)
    return re.sub(rf"(?<![`\[])`({names})`(?![`\]])", rf"[`\1`](/{GENERATED}/rules/\1.md)", linked)


def site_path(file: Path) -> str | None:
    """Return the place of *file* in the site; None if it has none."""
    if file.is_relative_to(DOCS):
        return f"/{file.relative_to(DOCS)}" if file.is_file() else None
    if file.suffix == ".py" and file.parent == REPOSITORY / "notebooks":
        return f"/{GENERATED}/notebooks/{file.stem}.ipynb"
    return f"/{GENERATED}/{OUTSIDE[file.name]}" if file.name in OUTSIDE else None


def notebook(script: Path) -> str:
    """Return a lesson as a Jupyter notebook, not executed."""
    lesson = jupytext.read(script)
    for cell in lesson.cells:
        if cell.cell_type == "markdown":
            cell.source = redirected(cell.source, script.parent)
        for tag in FOLDED.keys() & cell.metadata.get("tags", ()):
            cell.metadata["mystnb"] = {"code_prompt_show": FOLDED[tag], "code_prompt_hide": FOLDED[tag]}
    if has_slides(lesson):
        link = f'<a href="../../{FOLDER}/{script.stem}.html">Slides of this lesson</a> (`S` shows the notes)'
        skipped = {"slideshow": {"slide_type": "skip"}}
        lesson.cells.insert(1, nbformat.v4.new_markdown_cell(link, id="slides", metadata=skipped))
    return nbformat.writes(lesson)


def section_page(title: str, table: str) -> str:
    """Return the page of a section of the index: its *table*, and the pages below it in the site's navigation."""
    table = redirected(table, DOCS)
    if title == "Reference":
        table += "".join(
            f"| [{name.capitalize()}](/{GENERATED}/{name}.md) | {about} |\n" for name, about in ADDED.items()
        )
    pages = re.findall(r"^\| \[[^\]]*\]\((.+)\.\w+\)", table, re.MULTILINE)
    return f"# {title}\n\n{table}\n{toctree(pages)}"


def toctree(pages: Iterable[str]) -> str:
    """Return *pages* as the next level of the site's navigation."""
    return "\n".join(["", "```{toctree}", ":hidden:", "", *pages, "```", ""])


ADDED = {
    "gallery": "figures, with the code that draws each",
    "rules": "a page for each rule: its law, a step with its certificate, a refusal",
    "operators": "a page for each library operator: its expression and iterator mapping table",
    "arguments": "the arguments of every command",
    "python": "every public name of the package `einnet_explore`",
}
"""Pages of the reference that have no source here."""


@cache
def examples() -> tuple[Program, ...]:
    """Return the programs on which the pages of rules show steps."""
    return tuple(map(ee.parse, (DOCS / "rule-examples.txt").read_text(encoding="utf-8").split("---\n")))


@cache
def example_steps() -> dict[str, Step]:
    """Return the first step of each rule in the examples: proposed, or part of a factoring or vertical fusion."""
    steps: dict[str, Step] = {}
    for program in examples():
        for match in ee.explore(program, rules=ALL_RULES).rules():
            steps.setdefault(match.rule.name, match.apply(program))
    for program in examples():
        fused = ee.fuse_vertically(program)
        for derivation in (*ee.factorings(program), *([fused] if fused else ())):
            for step in derivation.steps:
                steps.setdefault(step.match.rule.name, step)
    for name, parameters in BY_HAND.items():
        for program in examples():
            session = ee.explore(program, rules=ALL_RULES)
            try:
                session.apply(name, **parameters)
            except (ValueError, LookupError):
                continue
            steps.setdefault(name, session.derivation.steps[0])
    return steps


def rule_page(rule: Rule[Any]) -> str:
    """Return the page of *rule*: its law and words, a step of an example with its certificate, a refusal."""
    text = str(RulePage(rule)._repr_mimebundle_()["text/markdown"])
    step = example_steps()[rule.name]
    verdict = ee.equal(step.before, step.after)
    parts = [
        f"# {rule.name}",
        text,
        "## A step",
        _source(step.before),
        f"`{step.match}`",
        "Before:",
        _math(step.before),
    ]
    parts += ["After:", _math(step.after), f"Certificate: **{verdict.kind}**: {verdict.why}"]
    if (refusal := _refusal(rule.name)) is not None:
        parts += ["## A refusal", _source(refusal[0]), f"Refused: {refusal[1]}"]
    parts += ["See the [text form](/text-form.md), [glossary](/glossary.md) and [certificates](/certificates.md)."]
    return "\n\n".join(parts) + "\n"


def _source(program: Program) -> str:
    return f"```text\n{ee.text(program).strip()}\n```"


def _refusal(name: str) -> tuple[Program, str] | None:
    """Return an example that the rule refuses, and why: the reason that fewest examples share, if possible a number."""
    found = [
        (program, refusal.why)
        for program in examples()
        for refusal in ee.explore(program, rules=ALL_RULES).refusals("0")
        if refusal.rule == name
    ]
    times = Counter(re.sub(r"\W.*", "", why) for _, why in found)
    return min(
        found, key=lambda pair: (not re.search(r"\d", pair[1]), times[re.sub(r"\W.*", "", pair[1])]), default=None
    )


def _math(program: Program) -> str:
    return f"$$\n{ee.latex(program)}\n$$"


def operator_page(operator: Operator) -> str:
    """Return the page of *operator*: its expression and its iterator mapping table."""
    table, operands = operator.table, [operand.name for operand in operator.pattern.operands]
    rows = [
        f"| {', '.join(f'`{x}`' for x in names)} | " + " | ".join("yes" if flag == "Y" else "" for flag in key) + " |"
        for key, names in table.groups
    ]
    head = f"| iterators | {' | '.join(operands)} | result |\n|---{'|---' * (len(operands) + 1)}|"
    return "\n".join([
        f"# {operator.name}", "", *([f"With a batch: `{operator.batched}`.", ""] if operator.batched else []),
        "Canonical expression:", "", f"```text\n{operator.expression}\n```", "", "## Iterator mapping table",
        "Which iterators index which tensors.", "", head, *rows, "",
    ])  # fmt: skip


def gallery_page() -> str:
    """Return the page of the figures of ``gallery.py``, with the code of each below it; write their pictures."""
    cells = jupytext.read(DOCS / "gallery.py").cells
    parts, space = [], dict[str, Any]()
    for n, cell in enumerate(cells):
        if cell.cell_type == "markdown":
            parts.append(redirected(cell.source, DOCS))
            continue
        *before, last = ast.parse(cell.source).body
        exec(compile(ast.Module(before, []), "gallery.py", "exec"), space)
        if isinstance(last, ast.Expr):
            figure = eval(compile(ast.Expression(last.value), "gallery.py", "eval"), space)
            _write(f"gallery/{n}.svg", figure._repr_mimebundle_()["image/svg+xml"])
            words = re.sub(r"[\[\]\s]+", " ", repr(figure))
            parts.append(f"![{words}](gallery/{n}.svg)")
        else:
            exec(compile(ast.Module([last], []), "gallery.py", "exec"), space)
        parts.append(f"```python\n{cell.source}\n```")
    return "\n\n".join(parts) + "\n"


def _contents(title: str, folder: str, names: list[str]) -> str:
    links = "\n".join(f"- [{name}]({folder}/{name}.md)" for name in names)
    return f"# {title}\n\n{links}\n\n{toctree(f'{folder}/{name}' for name in names)}"


def arguments_page() -> str:
    """Return the page of the arguments of every command."""
    parts = ["# Arguments of the commands"]
    for action in command_parser()._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                parts += [f"## {name}", str(command.description or ""), *_usage(command)]
    return "\n\n".join(parts) + "\n"


def _usage(command: argparse.ArgumentParser) -> list[str]:
    rows = [
        f"| `{_spelling(each)}` | {_cell(each.help or '')} |"
        for each in command._actions
        if each.help != argparse.SUPPRESS and not isinstance(each, argparse._HelpAction)
    ]
    return ["| argument | |\n|---|---|\n" + "\n".join(rows)] if rows else []


def _spelling(action: argparse.Action) -> str:
    parts = (", ".join(action.option_strings), _metavar(action))
    return " ".join(filter(None, parts)).replace("|", "\\|")


def _metavar(action: argparse.Action) -> str:
    if action.choices is not None and action.metavar is None:
        return "{" + ",".join(map(str, action.choices)) + "}"
    if isinstance(action.metavar, tuple):
        return " ".join(action.metavar)
    return "" if action.nargs == 0 else str(action.metavar or action.dest.upper())


def _cell(text: str) -> str:
    return " ".join(text.replace("%%", "%").split()).replace("|", "\\|").replace("<", "&lt;")


def python_page() -> str:
    """Return the reference of the public names, and of the classes of their results."""
    parts = ["# Python", "`import einnet_explore as ee`", "## Functions and values"]
    parts += ["`ee.RULES` are the [rules](rules.md) of a search, `ee.OPERATORS` the [library operators](operators.md)."]
    parts += [_documented(f"einnet_explore.{name}") for name in ee.__all__ if callable(getattr(ee, name))]
    for title, module in MODULES.items():
        above = [name for name in getattr(importlib.import_module(module), "__all__", ()) if name in ee.__all__]
        parts += [f"## {title}", _directive("automodule", module, above)]
    parts += ["## Classes of results", *map(_documented, RESULTS)]
    return "\n\n".join(parts) + "\n"


def _documented(name: str) -> str:
    module, _, own = name.rpartition(".")
    value = getattr(importlib.import_module(module), own)
    return _directive("autoclass" if inspect.isclass(value) else "autofunction", name)


def _directive(kind: str, name: str, excluded: Sequence[str] = ()) -> str:
    options = "" if kind == "autofunction" else "\n   :members:"
    options += f"\n   :exclude-members: {', '.join(excluded)}" if excluded else ""
    return f"```{{eval-rst}}\n.. {kind}:: {name}{options}\n```"
