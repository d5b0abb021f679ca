"""Algebraic rules of tensor compilers, proved or refuted for all sizes: ``python -m benchmarks.algebraic_rules``.

``algebraic_rules.txt`` has the rules: those of XLA's algebraic simplifier that the text form can express, and rules
that look like them and are wrong.  A rule that holds must be proved, a wrong one refuted at some sizes.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from time import perf_counter

import einnet_explore as ee
from einnet_explore.parametric.step_proofs import StepVerdict

FILE = Path(__file__).with_suffix(".txt")
PAGE = Path(__file__).parents[1] / "docs" / "algebraic-rules.md"
HEADS = ("param ", "tensor ")


@dataclass(frozen=True, slots=True)
class AlgebraicRule:
    """Two families with the same parameters and tensors; *holds*: whether they are equal."""

    group: str
    name: str
    before: str
    after: str
    holds: bool

    def judge(self) -> StepVerdict:
        """Compare both programs for all sizes."""
        return ee.family(self.before).equals(ee.family(self.after))


def read_rules(text: str) -> Iterable[AlgebraicRule]:
    """Yield the rules of a text: ``## group: name``, declarations, equations, ``==`` or ``!=``, other equations."""
    for block in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        title, *lines = block.strip().splitlines()
        group, name = title.split(": ", 1)
        at = next(n for n, line in enumerate(lines) if line in ("==", "!="))
        head = [line for line in lines[:at] if line.startswith(HEADS)]
        before, after = "\n".join(lines[:at]), "\n".join([*head, *lines[at + 1 :]])
        yield AlgebraicRule(group, name, before, after, lines[at] == "==")


def page(judged: Iterable[tuple[AlgebraicRule, StepVerdict]]) -> str:
    """Return a section in Markdown for each group, with a row for each rule."""
    lines = list[str]()
    for group, rules in groupby(judged, key=lambda each: each[0].group):
        lines += ["", f"## {group}", "| rule | declarations | before | after | verdict |", "|---|---|---|---|---|"]
        for rule, found in rules:
            before, after = ([line for line in text.splitlines() if line] for text in (rule.before, rule.after))
            head = [line for line in before if line.startswith(HEADS)]
            cells = (head, before[len(head) :], after[len(head) :])
            shown = " | ".join("<br>".join(f"`{line}`" for line in cell) for cell in cells)
            lines.append(f"| {rule.name} | {shown} | {str(found).replace('|', chr(92) + '|')} |")
    return "\n".join(lines).strip() + "\n"


def main() -> None:
    """Print the rules, their verdicts and the counts."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.algebraic_rules", description=__doc__)
    parser.add_argument("--only", default="", metavar="WORD", help="rules with this in their group or name")
    parser.add_argument("--write", action="store_true", help=f"write the verdicts to {PAGE.name}")
    arguments = parser.parse_args()
    start = perf_counter()
    rules = [r for r in read_rules(FILE.read_text()) if arguments.only in f"{r.group}: {r.name}"]
    judged = [(rule, rule.judge()) for rule in rules]
    if arguments.write:
        PAGE.write_text(PAGE.read_text().partition("\n## ")[0] + "\n" + page(judged))
    else:
        print(page(judged))
    counts = Counter(f"{'equal' if rule.holds else 'different'} pairs {found.kind}" for rule, found in judged)
    print("\n".join(f"{n} {kind}" for kind, n in sorted(counts.items())), f"{perf_counter() - start:.1f} s", sep="\n")


if __name__ == "__main__":
    main()
