"""Records: every step proved from its two programs alone, all steps composed to one certificate."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from math import prod
from typing import Any, NamedTuple

from einnet_check.compare import prove
from einnet_check.legal import wrong_equations
from einnet_check.text import Parser, Program, reads, walk

EXPONENTIAL = "with the axiom exp(a + b) = exp(a) exp(b), a and b finite"
"""What a proof says that needs more of the exponential than that it is a function."""


class Verdict(NamedTuple):
    """A step by its name, why it is not proved (None: it is), and the axiom that the proof needs, if any."""

    step: str
    why: str | None
    axiom: str = ""


def check(record: Any, program: str | None = None) -> Iterable[Verdict]:
    """A verdict on the start of *record* (which has to be *program*), then one a step; raises ValueError for no record.

    What a step does is read from the programs before and after it; of what it says of itself only the match is used,
    which has to be the call that the program then holds.
    """
    if not isinstance(record, Mapping) or record.get("format") != "einnet-explore record" or record.get("version") != 1:
        raise ValueError("$: found something else, expected an einnet-explore record of version 1")
    here = _program(record, "start", "$")
    given = here if program is None else Parser(program).program()
    yield _verdict("start", given, here)
    for n, step in enumerate(_field(record, "steps", list, "$")):
        at = f"$.steps[{n}]"
        name = f"{n}. {_field(step, 'rule', str, at)} at {_field(step, 'at', str, at)}"
        before, here = here, _program(step, "after", at)
        found = _verdict(name, before, here)
        yield found if found.why else found._replace(why=_wrong_match(step, before, here, at))


def _verdict(step: str, before: Program, after: Program) -> Verdict:
    """Without the axiom where that is enough."""
    why = wrong_equations(after)
    if why or before == after or (why := prove(before, after)) is None:
        return Verdict(step, why)
    inside = (e for p in (before, after) for q in p.equations for e in walk(q.scope.body, inside=True))
    if any(isinstance(e, tuple) and e[0] == "exp" for e in inside) and prove(before, after, exponential=True) is None:
        return Verdict(step, None, EXPONENTIAL)
    return Verdict(step, why)


def certificate(record: Any, program: str | None = None) -> dict[str, Any]:
    """One certificate of a whole record: that its last program computes what *program* does, step by step."""
    verdicts = list(check(record, program))
    wrong = next((v for v in verdicts if v.why is not None), None)
    texts = [
        record["start"] if program is None else program,
        (record["steps"] or [{"after": record["start"]}])[-1]["after"],
    ]
    start, end = (hashlib.sha256(text.encode()).hexdigest() for text in texts)
    why = None if wrong is None else f"{wrong.step}: {wrong.why}"
    return {
        "kind": "proved" if why is None else "unproved",
        "axioms": sorted({v.axiom for v in verdicts if v.axiom}),
        "steps": len(verdicts) - 1,
        "start": start,
        "end": end,
        "why": why,
    }


def _wrong_match(step: Mapping[str, Any], before: Program, after: Program, at: str) -> str | None:
    """Why the scope and the match that *step* names are not those of the programs."""
    try:
        number, *path = map(int, step["at"].split("."))
        scope = before.equations[number].scope
        for n in path:
            scope = reads(scope.body)[n].source
        if step["rule"] != "operator_matching":
            return None
        match = step["params"]
        named = {k: tuple(v) if isinstance(v, list) else v for k, v in match["attributes"].items()}
        calls = [e for e in after.equations if e not in before.equations and e.attributes == named]
        if not any(e.operator.removeprefix("Batch") == match["operator"].removeprefix("Batch") for e in calls):
            return f"no equation is run by {match['operator']} with {named}"
        extents = {x: hi - lo for x, lo, hi in (*scope.own, *scope.sums)}
        for x, names in match["iterators"].items():
            if all(name in extents for name in names) and prod(extents[name] for name in names) != named[x]:
                return f"{x} is {names}, whose extents are not {named[x]}"
        return None
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        return f"{at}: the place or the match is not one of the program before"


def _field(data: Any, name: str, kind: type, at: str) -> Any:
    if not isinstance(data, Mapping) or not isinstance(data.get(name), kind):
        raise ValueError(f"{at}.{name}: expected {kind.__name__}")
    return data[name]


def _program(data: Any, name: str, at: str) -> Program:
    text = _field(data, name, str, at)
    try:
        return Parser(text).program()
    except ValueError as error:
        raise ValueError(f"{at}.{name}:{error}") from None
