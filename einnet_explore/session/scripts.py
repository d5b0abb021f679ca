"""The steps of a session as a Python script, and as JSON for later releases (``.eins``)."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from keyword import iskeyword
from typing import Any

from einnet_explore.checker.record import RecordError
from einnet_explore.ir import Program, read_path
from einnet_explore.operators import OPERATORS, Operator
from einnet_explore.rules import INTER_RULES, RULES, Derivation, Match, Rule
from einnet_explore.rules.base import BAD_STEP_ERRORS
from einnet_explore.syntax import parse, text

MATCHING = "operator_matching"

RESERVED_NAMES = frozenset(("self", "rule", "at"))
"""What ``Session.apply`` itself is given by name."""


@dataclass(frozen=True, slots=True)
class KnownObjects:
    """The *rules* (without operator matching) and *operators* of a session."""

    rules: tuple[Rule[object], ...]
    operators: tuple[Operator, ...]


FORMAT, VERSION = "einnet-explore session", 1
SUFFIX = ".eins"


def script(derivation: Derivation, known: KnownObjects) -> str:
    """The steps of *derivation* as Python that repeats them on a new session that knows what is *known*."""
    used = _rules_used([derivation])
    return (
        "\n".join([*_script_head(derivation.start, known, used), *(_apply_call(s.match) for s in derivation.steps)])
        + "\n"
    )


def tree_script(nodes: Sequence[Derivation], parents: Sequence[int], here: int, known: KnownObjects) -> str:
    """A whole tree of derivations as Python: every node gets the number that it has.

    Files of old hold twins, which applying a rule makes no more: of such a tree each node gets its first twin's number.
    """
    lines, at, number, made = _script_head(nodes[0].end, known, _rules_used(nodes)), 0, {0: 0}, 1
    for n in range(1, len(nodes)):
        parent = number[parents[n]]
        twin = next((k for k in range(1, n) if number[parents[k]] == parent and nodes[k] == nodes[n]), None)
        if twin is not None:
            number[n] = number[twin]
            continue
        if parent != at:
            lines.append(f"session.goto({parent})")
        lines.append(_apply_call(nodes[n].steps[-1].match))
        number[n] = at = made
        made += 1
    if number[here] != at:
        lines.append(f"session.goto({number[here]})")
    return "\n".join(lines) + "\n"


def _rules_used(derivations: Sequence[Derivation]) -> tuple[Rule[object], ...]:
    """The rules of all steps, but operator matching, which every session has."""
    rules = dict.fromkeys(step.match.rule for d in derivations for step in d.steps)
    return tuple(rule for rule in rules if rule.name != MATCHING)


def _script_head(program: Program, known: KnownObjects, used: tuple[Rule[object], ...]) -> list[str]:
    held = text(program).replace("\\", "\\\\").replace('"""', r"\"\"\"")
    imports = list[str]()
    given = [
        *_argument(
            "rules", tuple(dict.fromkeys((*known.rules, *used))), {"RULES": RULES, "INTER_RULES": INTER_RULES}, imports
        ),
        *_argument("operators", known.operators, {"OPERATORS": OPERATORS}, imports),
    ]
    return [
        "import einnet_explore as ee",
        *sorted(dict.fromkeys(imports)),
        "",
        f'program = ee.parse("""\n{held}""")',
        f"session = ee.Session({', '.join(['program', *given])})",
    ]


def _argument(what: str, held: tuple[Any, ...], usual: Mapping[str, tuple[Any, ...]], imports: list[str]) -> list[str]:
    """*held* as an argument, where it is not what a session has anyway; *imports* are added to."""
    if held == tuple(value for values in usual.values() for value in values):
        return []
    given = []
    for name, values in usual.items():
        some = [value.name for value in values if value in held]
        if some:
            imports.append(f"from {place(values)[0]} import {name}")
            given.append(f"*{name}" if len(some) == len(values) else f"*(x for x in {name} if x.name in {some})")
    for value in held:
        if not any(value in values for values in usual.values()):
            module, name = place(value)
            imports.append(f"from {module} import {name}")
            given.append(name)
    return [f"{what}=({', '.join(given)},)"]


def place(value: object) -> tuple[str, str]:
    """The module that holds *value* under a public name, and that name: the notebook first, then the shortest.

    Raises LookupError where none does: a script could not name it.
    """
    found = [
        (module != "__main__", module.count("."), module, name)
        for module, held in list(sys.modules.items())
        for name, each in list(getattr(held, "__dict__", {}).items())
        if each is value and name.isidentifier() and not name.startswith("_")
    ]
    if not found:
        raise LookupError(
            f"{value!r} has no name in any module: give it one where it is made, so that a script can import it"
        )
    *_, module, name = min(found)
    return module, name


def _apply_call(match: Match[object]) -> str:
    done = match.to_json()
    given = {k: v for k, v in done["params"].items() if v is not None}
    if all(k.isidentifier() and not iskeyword(k) and k not in RESERVED_NAMES for k in given):
        params = "".join(f", {k}={v!r}" for k, v in given.items())
        return f"session.apply({done['rule']!r}, at={done['at']!r}{params})"
    # Rules of one's own call their parameters as they like, also what Python has other uses for.
    return f"session.apply(session.match({done['rule']!r}, {match.at!r}, {given!r}))"


def tree_to_json(nodes: Sequence[Derivation], parents: Sequence[int], here: int) -> dict[str, Any]:
    """A whole tree of derivations as plain JSON values."""
    steps = [{"parent": parents[n], **nodes[n].steps[-1].match.to_json()} for n in range(1, len(nodes))]
    return {"format": FORMAT, "version": VERSION, "start": text(nodes[0].end), "steps": steps, "here": here}


def tree_from_json(
    data: object, known: Mapping[str, Rule[object]], source: str = "<session>"
) -> tuple[list[Derivation], list[int], int]:
    """Nodes, their parents, and where the reader stood; raises RecordError where *data* is no such tree."""
    if not isinstance(data, dict) or (data.get("format"), data.get("version")) != (FORMAT, VERSION):
        raise RecordError(f"{source}: expected {FORMAT!r} version {VERSION}")
    where = "$"
    try:
        nodes, parents = [Derivation(parse(data["start"]))], [-1]
        for n, step in enumerate(data["steps"]):
            where = f"$.steps[{n}]"
            parent = step["parent"]
            if not 0 <= parent < len(nodes):
                raise RecordError(f"{source}: {where}.parent: found {parent}, expected 0 to {len(nodes) - 1}")
            nodes.append(nodes[parent].then(_match_from_json(step, known, nodes[parent].end)))
            parents.append(parent)
        where = "$.here"
        if type(here := data["here"]) is not int or not 0 <= here < len(nodes):
            raise RecordError(f"{source}: $.here: found {here!r}, expected 0 to {len(nodes) - 1}")
    except RecordError:
        raise
    except KeyError as error:
        raise RecordError(f"{source}: {where}: {error} is missing") from None
    except BAD_STEP_ERRORS as error:
        raise RecordError(f"{source}: {where}: {error}") from None
    return nodes, parents, here


def _match_from_json(step: Mapping[str, Any], known: Mapping[str, Rule[object]], program: Program) -> Match[object]:
    rule, at = known.get(step["rule"]), read_path(step["at"])
    if rule is None:
        raise LookupError(f"found the rule {step['rule']!r}, expected one of {', '.join(known)}")
    program.scope_at(at)
    return Match(rule, at, rule.decode(program, at, step["params"]))
