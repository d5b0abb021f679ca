"""What a rule says of itself, as a page of a notebook."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from inspect import cleandoc
from typing import Any

from einnet_explore import rules
from einnet_explore.rules import Rule

_MATH = re.compile(r"^\.\. math::(.*(?:\n(?:[ \t].*)?)*)", re.MULTILINE)
_ROLE = re.compile(r":math:`([^`]*)`")
_CODE = re.compile(r"``([^`]*)``")


@dataclass(frozen=True, slots=True)
class RulePage:
    """The law of *rule* and the words of the module that it stands in, as Markdown."""

    rule: Rule[Any]

    @property
    def words(self) -> str:
        """The docstring of the rule's module; empty for a rule that is no module of the library's."""
        module = f"{rules.__name__}.{self.rule.name}"
        found = import_module(module) if self.rule.name.isidentifier() and find_spec(module) is not None else None
        return cleandoc(found.__doc__ or "") if found is not None else ""

    def markdown(self) -> str:
        """The words as Markdown, with formulae between dollar signs; where they give no law, the rule's."""
        told = _CODE.sub(r"`\1`", _ROLE.sub(r"$\1$", _MATH.sub(_display, self.words)))
        heading, _, rest = told.partition("\n")
        law = "" if _MATH.search(self.words) else f"$$\n{self.rule.law}\n$$\n\n"
        return f"**{heading or self.rule.name}**\n\n{law}{rest.lstrip()}"

    def __repr__(self) -> str:
        return f"{self.rule.name}: {self.rule.law}\n\n{self.words}".rstrip("\n")

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {"text/markdown": self.markdown(), "text/plain": repr(self)}


def _display(found: re.Match[str]) -> str:
    return f"$$\n{cleandoc(found[1]).strip()}\n$$\n\n"


def rule_page(rule: Rule[Any]) -> RulePage:
    """What *rule* says of itself."""
    return RulePage(rule)
