"""Random programs against exact evaluation: text, keys, every rule, certificates, records, matching, kernels.

An item draws 50 programs from ``tests/strategies.py`` and ``tests/rules_kit.py`` by its number.  For each:

- its text is parsed to the same program, and an alpha-equal program has the same key;
- one proposal of every rule, at a random scope, keeps every value on random integers, has no ``false`` certificate, and
  survives its JSON form; another rule is applied to the result, and so on for a few steps;
- the record of these steps is replayed to the same programs.

The checker checks one record in four; one program in 25 is compiled, and its kernels are compared with evaluation.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import islice
from typing import Any, TypeVar

import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from benchmarks.soak.outcome import Outcome
from einnet_explore.analysis.canonical_keys import canonical_key, program_key
from einnet_explore.checker.record import check_record
from einnet_explore.equivalence.certificate import certify
from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.ir import Program
from einnet_explore.operators.library import OPERATORS
from einnet_explore.rules import ALL_RULES, Derivation, Match, Refused, Rule
from einnet_explore.rules.base import places
from einnet_explore.runtime.program import compile_program
from einnet_explore.session.records import from_record
from einnet_explore.strategies.candidate import to_record
from einnet_explore.strategies.instantiation import matching_rule
from einnet_explore.syntax import parse, text
from tests.rules_kit import contractions
from tests.strategies import inputs_for, programs
from tests.test_keys import shuffled

BLOCK = 50
COMPILED = 25
STEPS = 3
CHECKED = 0.25

EVERY: tuple[Rule[object], ...] = (*ALL_RULES, matching_rule(OPERATORS, 2))

T = TypeVar("T")


def item(number: int, n: int) -> Outcome:
    """Item *n* of seed *number*."""
    outcome = Outcome()
    rng = random.Random(f"{number}:{n}")
    for k, program in enumerate(drawn(mixed(), BLOCK, rng.getrandbits(60))):
        outcome.counts["programs"] += 1
        try:
            examine(program, rng, outcome, kernels=k % COMPILED == COMPILED - 1)
        except Exception as error:
            outcome.found("traceback", error, text(program))
    return outcome


def mixed() -> SearchStrategy[Program]:
    """Distribution of random programs: all of the text form, and the patterns of rules."""
    read_again = contractions().map(lambda program: parse(text(program)))  # they write "no padding" in another way
    return st.one_of(programs(), programs(polynomial=True), read_again, programs(equations=4, quotients=False))


def drawn(strategy: SearchStrategy[T], most: int, number: int) -> list[T]:
    """At most *most* values of *strategy*, the same for the same *number*."""
    found: list[T] = []

    @seed(number)
    @settings(
        max_examples=most,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(value: T) -> None:
        found.append(value)

    collect()
    return found


def examine(program: Program, rng: random.Random, outcome: Outcome, kernels: bool) -> None:
    """Everything that is said of one program."""
    written = text(program)
    again = parse(written)
    if again != program:
        outcome.found("text", "reading what was printed gives another program", written)
    for equation in program.equations:
        if canonical_key(shuffled(equation.scope, rng)) != canonical_key(equation.scope):
            outcome.found("key", f"an alpha-equal {equation.name} has another key", written)
    if program_key(again) != program_key(program):
        outcome.found("key", "the program read again has another key", written)
    inputs = inputs_for(program, rng.getrandbits(30))
    want = evaluate(program, inputs, outputs_only=True)
    derivation = Derivation(program)
    for depth in range(STEPS):
        tried = every(derivation.end, rng, EVERY if depth == 0 else rng.sample(EVERY, 3))
        longer = [d for match in tried if (d := step(derivation, match, want, inputs, outcome)) is not None]
        if not longer:
            break
        derivation = rng.choice(longer)
    record(derivation, outcome, check=rng.random() < CHECKED)
    if kernels:
        compiled(program, want, inputs, outcome)
        if derivation.steps:
            compiled(derivation.end, want, inputs, outcome)


def every(program: Program, rng: random.Random, rules: Iterable[Rule[object]]) -> list[Match[object]]:
    """For each of *rules* one of its first proposals, at a random place that has any."""
    found = []
    at = [path for path, _ in places(program)]
    for rule in rules:
        for path in rng.sample(at, len(at)):
            if proposed := list(islice(rule.matches(program, path), 3)):
                found.append(rng.choice(proposed))
                break
    return found


def step(derivation: Derivation, match: Match[object], want: Any, inputs: Any, outcome: Outcome) -> Derivation | None:
    """*derivation* and *match*, if nothing is wrong with it."""
    before, name = derivation.end, match.rule.name
    shown = (match, text(before))
    try:
        longer = derivation.then(match)
    except Refused as error:
        outcome.found(f"{name} refuses its proposal", error, *shown)
        return None
    outcome.counts[f"step {name}"] += 1
    after = longer.end
    got = evaluate(after, inputs, outputs_only=True)
    if got.keys() != want.keys() or not all(equal(got[k], v) for k, v in want.items()):
        outcome.found(f"{name} changes values", "", *shown, text(after))
        return None
    certificate = certify(before, after)
    outcome.counts[f"certificate {certificate.kind}"] += 1
    if certificate.kind == "false":
        outcome.found(f"{name}: a right step is called false", certificate, *shown, text(after))
    if not certificate.ok:
        return None
    written = match.rule.encode(match.params)
    if match.rule.match(before, match.at, **written).apply(before).after != after:
        outcome.found(f"{name}: another step after JSON", written, *shown)
    return longer


def equal(one: Any, other: Any) -> bool:
    """Equal, elements that are not numbers included (a minimum over nothing is infinite)."""
    if one.shape != other.shape:
        return False
    if one.dtype.kind == "f" or other.dtype.kind == "f":
        return bool(np.allclose(one.astype(float), other.astype(float), rtol=1e-9, atol=1e-9, equal_nan=True))
    return bool(np.array_equal(one, other))


def record(derivation: Derivation, outcome: Outcome, check: bool) -> None:
    """The record of *derivation*, whose programs are text, is replayed to the same programs; the checker accepts it."""
    if not derivation.steps:
        return
    made = to_record(derivation)
    again = from_record(made)
    outcome.counts["records"] += 1
    if [step.after for step in again.steps] != [step.after for step in derivation.steps]:
        outcome.found("record", "replaying goes elsewhere", text(derivation.start))
    if not check:
        return
    report = check_record(made)
    outcome.counts["records checked"] += 1
    if not report.ok:
        outcome.found("checker", "a right record is refused", report, text(derivation.start))


def compiled(program: Program, want: Any, inputs: Any, outcome: Outcome) -> None:
    """The generated kernels of *program* agree with evaluation."""
    weights = {t.name: inputs[t.name] for t in program.inputs if t.weight}
    given_ = {t.name: inputs[t.name] for t in program.inputs if not t.weight}
    got = compile_program(program, constants=weights).run(given_)
    outcome.counts["compiled"] += 1
    for name, value in want.items():
        expected = value.astype(np.float64)
        near = np.abs(expected) < 2**20  # beyond, single precision is not exact
        near |= ~np.isfinite(expected)
        found = np.asarray(got[name], np.float64)
        if found.shape != expected.shape or not np.allclose(found[near], expected[near], rtol=1e-4, equal_nan=True):
            outcome.found("kernel", f"{name} differs from evaluation", text(program))
