"""Check of a record: every step is proved from its two programs alone; the steps compose to one certificate."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping
from fractions import Fraction
from itertools import combinations
from math import prod
from typing import Any, NamedTuple

from einnet_check.compare import prove
from einnet_check.legal import wrong_equations
from einnet_check.ranges import other_types
from einnet_check.rounding import ROUNDING_RULES, rounds_operands
from einnet_check.sizes import Beyond
from einnet_check.terms import EXPONENTIAL, FACTORED, NONE, OPERANDS, ROUNDED, simple
from einnet_check.text import Parser, Program, Read, Scope, reads, walk

RULES = frozenset([
    "batch_merging", "bilinear_product", "bilinear_substitution", "blocked_generation", "boundary_relaxing",
    "boundary_tightening", "cancellation", "common_factor", "common_subexpression", "comparison",
    "contraction_order", "dead_equation", "distributivity", "eoperator_generation", "expression_extraction",
    "expression_fusion", "expression_inlining", "expression_splitting", "homomorphism", "inverse",
    "known_quotient", "like_terms", "monotone_distribution", "monotone_exchange", "one_pass_generation",
    "operator_matching", "padding_exchange", "part_extraction", "polynomial_form", "positive_scaling",
    "prefix_splitting", "recentring", "reduction_generation", "requantisation", "row_generation", "sibling_merging",
    "storage_layout", "summation_exchange",
    "summation_splitting", "traversal_factoring", "traversal_merging", "variable_substitution",
])  # fmt: skip
"""Names of rules, and ``comparison``, the step that ``equal`` writes; others are steps of a rule that the record's
reader has to know of.  A step is proved from its programs, whatever its name."""


class Verdict(NamedTuple):
    """A step by its name, why it is not proved (None: it is), and the axioms that the proof needs."""

    step: str
    why: str | None
    axioms: frozenset[str] = NONE

    @property
    def kind(self) -> str:
        """``rounded`` where a proof equates constants that agree to 12 digits only, or a step rounds operands."""
        rounded = not self.axioms.isdisjoint((ROUNDED, OPERANDS))
        return "unproved" if self.why is not None else "rounded" if rounded else "proved"


def check(
    record: Any, program: str | None = None, rules: Collection[str] = RULES, rounding: bool = False
) -> Iterable[Verdict]:
    """A verdict on the start of *record* (which has to be *program*), then one a step; raises ValueError for no record.

    What a step does is read from the programs before and after it; of what it says of itself only the match is used,
    which has to be the call that the program then holds.  *rules*: the names that steps may have; *rounding*: steps may
    round operands to bfloat16, if their rule says so.
    """
    if not isinstance(record, Mapping) or record.get("format") != "einnet-explore record" or record.get("version") != 1:
        raise ValueError("$: found something else, expected an einnet-explore record of version 1")
    here = _program(record, "start", "$")
    given = here if program is None else _parsed(program, "the program")
    sizes = f" for all sizes with {', '.join(here.guards)}" if here.guards else ""
    yield _verdict(f"start{sizes}", given, here)
    for n, step in enumerate(_field(record, "steps", list, "$")):
        at = f"$.steps[{n}]"
        name = f"{n + 1}. {_field(step, 'rule', str, at)} at {_field(step, 'at', str, at)}"
        if not re.fullmatch(r"[0-9]+\. \w+ at [0-9]+(\.[0-9]+)*", name, re.ASCII):
            raise ValueError(f"{at}: expected a rule's name and a path")
        rounds = step["rule"] in ROUNDING_RULES
        if rounds and not rounding:
            raise ValueError(
                f"{at}.rule: found {step['rule']!r}, which rounds operands to bfloat16, expected an equality "
                "(--numerics bf16, or rounding=True, allows it)"
            )
        if not rounds and step["rule"] not in rules:
            raise ValueError(
                f"{at}.rule: found {step['rule']!r}, expected one of {len(rules)} known rules; another one is allowed "
                f"by rules=, or --rule {step['rule']}"
            )
        before, here = here, _program(step, "after", at)
        found = _verdict(name, before, here, rounds)
        yield found if found.why else found._replace(why=_wrong_match(step, before, here, at))


def _verdict(step: str, before: Program, after: Program, rounds: bool = False) -> Verdict:
    """With as few axioms as are enough; *rounds*: the step may round operands."""
    try:
        why = wrong_equations(after) or other_types(before, after)
        if rounds and why is None and rounds_operands(before, after):
            return Verdict(step, None, frozenset([OPERANDS]))
        if why or before == after or (why := prove(before, after)) is None:
            return Verdict(step, why)
        inside = [e for p in (before, after) for q in p.equations for e in walk(q.scope.body, inside=True)]
        useful = {EXPONENTIAL for e in inside if isinstance(e, tuple) and e[0] == "exp"}
        useful |= {ROUNDED for e in inside if isinstance(e, Fraction) and simple(e) != e}
        functions = any(isinstance(e, tuple) and e[0] not in ("+", "-", "*", "/") for e in inside)
        if functions and any(map(sums, (before, after))):
            useful.add(FACTORED)
        for axioms in (
            taken
            for n in range(len(useful))
            for taken in combinations(sorted(useful, key=(FACTORED, EXPONENTIAL, ROUNDED).index), n + 1)
        ):
            if prove(before, after, frozenset(axioms)) is None:
                return Verdict(step, None, frozenset(axioms) - {FACTORED})
        return Verdict(step, why)
    except Beyond as error:
        return Verdict(step, f"beyond integer sets: {error}")
    except (ArithmeticError, RecursionError) as error:
        return Verdict(step, f"it is nested too deeply, or its numbers are too large: {error}")


def sums(program: Program) -> bool:
    """Whether *program* sums over several points."""
    nested = (e.source for q in program.equations for e in walk(q.scope.body, inside=True) if isinstance(e, Read))
    scopes = (*(q.scope for q in program.equations), *(source for source in nested if isinstance(source, Scope)))
    return any(scope.sums for scope in scopes)


def weakest_kind(verdicts: Iterable[Verdict]) -> str:
    """The kind of a whole record: that of its weakest step."""
    return max((v.kind for v in verdicts), key=("proved", "rounded", "unproved").index)


def certificate(record: Any, program: str | None = None, rounding: bool = False) -> dict[str, Any]:
    """One certificate of a whole record: that its last program computes what *program* does, step by step."""
    verdicts = list(check(record, program, rounding=rounding))
    wrong = next((v for v in verdicts if v.why is not None), None)
    texts = [
        record["start"] if program is None else program,
        (record["steps"] or [{"after": record["start"]}])[-1]["after"],
    ]
    start, end = (hashlib.sha256(text.encode()).hexdigest() for text in texts)
    why = None if wrong is None else f"{wrong.step}: {wrong.why}"
    return {
        "kind": weakest_kind(verdicts),
        "axioms": sorted(frozenset[str]().union(*(v.axioms for v in verdicts))),
        "steps": len(verdicts) - 1,
        "start": start,
        "end": end,
        "why": why,
    }


def _wrong_match(step: Mapping[str, Any], before: Program, after: Program, at: str) -> str | None:
    """Return why the scope and the match of *step* do not fit the programs."""
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
    return _parsed(_field(data, name, str, at), f"{at}.{name}")


def _parsed(text: str, at: str) -> Program:
    try:
        return Parser(text).program()
    except RecursionError:
        raise ValueError(f"{at}: it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"{at}:{error}") from None
