"""Derivations in files: records as JSON, and Python scripts that repeat the steps.

A record (``.json``) is one derivation with its certificates.  It holds its programs in the text form, so that the
checker reads it without rules; ``from_record`` applies the rules again and checks that they still lead to the same
programs.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from keyword import iskeyword
from os import PathLike

from einnet_explore.checker.record import COMPARISON, RecordedStep, RecordError, load_json, read_record
from einnet_explore.operators.library import OPERATORS
from einnet_explore.operators.operator import Operator
from einnet_explore.rules import INTER_RULES, RULES, Derivation, Match, Rule
from einnet_explore.rules.base import BAD_STEP_ERRORS, match_from_json
from einnet_explore.strategies.instantiation import known_rules
from einnet_explore.support.json_values import JsonObject
from einnet_explore.syntax import text


def from_record(
    record: object,
    rules: tuple[Rule[object], ...] | None = None,
    source: str = "<record>",
    recorded: Collection[str] = (),
) -> Derivation:
    """Return the derivation of *record*, its rules applied again.

    *rules* are those that it may name (all of the library's when None).  Steps of other rules called *recorded* are as
    the record has them.  Raises RecordError if the record has another form, names an unknown rule, or a rule is refused
    or no longer gives the recorded program.
    """
    found = read_record(record, source)
    known = known_rules() if rules is None else {rule.name: rule for rule in rules}
    derivation = Derivation(found.start)
    for n, step in enumerate(found.steps):
        where, what = f"{source}: $.steps[{n}]", f"{step.rule} at {step.at}"
        rules_here = {step.rule: _recorded_rule(step), **known} if step.rule in recorded else known
        if step.rule not in rules_here:
            hint = f"a rule of your own needs show --rule {step.rule}, or ee.Session.load(FILE, rules=[...])"
            if step.rule == COMPARISON:
                hint = "records of equal have no rules, einnet-explore check reads them"
            raise RecordError(f"{where}.rule: found {step.rule!r}, expected one of {len(known)} known rules; {hint}")
        written = {"rule": step.rule, "at": step.at, "params": step.params}
        try:
            derivation = derivation.then(match_from_json(rules_here, derivation.end, written))
        except BAD_STEP_ERRORS as error:
            raise RecordError(f"{where}: {what}: {error}") from None
        if derivation.end != step.after and text(derivation.end) != text(step.after):
            raise RecordError(f"{where}.after: {what} now results in another program:\n{text(derivation.end)}")
    return derivation


def _recorded_rule(step: RecordedStep) -> Rule[object]:
    """Return a rule in place of one that is not here: it rewrites to the program that *step* has."""
    return Rule(
        step.rule,
        law="",
        propose=lambda program, path: (),
        rewrite=lambda program, path, parameters: step.after,
        encode=lambda parameters: dict(step.params),
        decode=lambda program, path, parameters: parameters,
    )


def load_record(path: str | PathLike[str]) -> JsonObject:
    """Return the record in the file at *path*; raises OSError if it cannot be read, RecordError if it is none."""
    data = load_json(path)
    read_record(data, str(path))
    assert isinstance(data, dict)
    return data


MATCHING = "operator_matching"

_RESERVED_PARAMETERS = frozenset(("self", "rule", "at"))
"""The named parameters of ``Session.apply`` itself."""


def derivation_script(derivation: Derivation, rules: Iterable[Rule[object]], operators: tuple[Operator, ...]) -> str:
    """Return Python that repeats *derivation* on a new session with *rules* and *operators*."""
    head = _script_head([derivation], rules, operators)
    return "\n".join([*head, *(_apply_call(step.match) for step in derivation.steps)]) + "\n"


def tree_script(
    nodes: Sequence[Derivation],
    parents: Sequence[int],
    here: int,
    rules: Iterable[Rule[object]],
    operators: tuple[Operator, ...],
) -> str:
    """Return Python that repeats a whole tree of derivations: every node gets the number that it has.

    Old files have twins, equal nodes below one parent, which sessions do not make any more: each gets the number of the
    first.
    """
    lines, at, number, made = _script_head(nodes, rules, operators), 0, {0: 0}, 1
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


def _script_head(
    derivations: Sequence[Derivation], rules: Iterable[Rule[object]], operators: tuple[Operator, ...]
) -> list[str]:
    """Return the lines that import the objects of a script and make its session."""
    program = text(derivations[0].start).replace("\\", "\\\\").replace('"""', r"\"\"\"")
    used = (step.match.rule for d in derivations for step in d.steps)
    known = tuple(rule for rule in dict.fromkeys((*rules, *used)) if rule.name != MATCHING)
    imports: list[str] = []
    arguments = [
        "program",
        *_argument("rules", known, {"RULES": RULES, "INTER_RULES": INTER_RULES}, imports),
        *_argument("operators", operators, {"OPERATORS": OPERATORS}, imports),
    ]
    return [
        "import einnet_explore as ee",
        *sorted(dict.fromkeys(imports)),
        "",
        f'program = ee.parse("""\n{program}""")',
        f"session = ee.Session({', '.join(arguments)})",
    ]


def _argument(
    name: str,
    objects: Sequence[Rule[object] | Operator],
    usual: Mapping[str, Sequence[Rule[object] | Operator]],
    imports: list[str],
) -> list[str]:
    """Return *objects* as an argument called *name*, none if they are the default; *imports* are added to."""
    if objects == tuple(value for values in usual.values() for value in values):
        return []
    items = []
    for group, values in usual.items():
        some = [value.name for value in values if value in objects]
        if some:
            imports.append(f"from {importable_name(values)[0]} import {group}")
            items.append(f"*{group}" if len(some) == len(values) else f"*(x for x in {group} if x.name in {some})")
    for value in objects:
        if not any(value in values for values in usual.values()):
            module, item = importable_name(value)
            imports.append(f"from {module} import {item}")
            items.append(item)
    return [f"{name}=({', '.join(items)},)"]


def importable_name(value: object) -> tuple[str, str]:
    """Return the module that has *value* under a public name, and that name: the shortest; the notebook if no other.

    Raises LookupError if there is none, so that a script cannot name it.
    """
    found = [
        (module in ("__main__", "__mp_main__"), module.count("."), module, name)
        for module, contents in list(sys.modules.items())
        for name, each in list(getattr(contents, "__dict__", {}).items())
        if each is value and name.isidentifier() and not name.startswith("_")
    ]
    if not found:
        raise LookupError(
            f"{value!r} has no name in any module: give it one where it is made, so that a script can import it"
        )
    *_, module, name = min(found)
    return module, name


def _apply_call(match: Match[object]) -> str:
    written = match.to_json()
    params = {k: v for k, v in written["params"].items() if v is not None}
    if all(k.isidentifier() and not iskeyword(k) and k not in _RESERVED_PARAMETERS for k in params):
        arguments = "".join(f", {k}={v!r}" for k, v in params.items())
        return f"session.apply({written['rule']!r}, at={written['at']!r}{arguments})"
    # Users' rules may have parameters with names that Python reserves.
    return f"session.apply(session.match({written['rule']!r}, {match.at!r}, {params!r}))"
