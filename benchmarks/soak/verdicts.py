"""Pairs of programs, equal or with one mutation, whose verdicts are compared with evaluation.

An item draws 50 pairs.  Half are element-wise functions of two tensors, with constants of all magnitudes and signs; the
second program applies one true or false identity at a random place: a dropped ``relu`` or ``abs``, a cancelled root or
quotient, a changed constant, function or summand, an equal form.  They are evaluated to 300 digits.

The other half are sums, products and maxima with windows, strides, domains and padding.  The second program is the
first, or the result of a rule, mostly with one change of an index, range, bound, sum, factor or padding
(``tests/certificate_steps.py``).  They are evaluated on random integers.

The verdicts of the record checker, ``einnet_check`` and ``--modular`` are compared.  A pair that is called
``proved`` or ``exact`` and differs at some input, of any sign and magnitude, is a finding; so is a ``rounded`` pair
that differs by more than its bound.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from decimal import Decimal, DecimalException, Overflow, Underflow, localcontext
from itertools import islice
from typing import TypeAlias

import numpy as np
from hypothesis import strategies as st

import einnet_check
from benchmarks.soak.expressions import drawn
from benchmarks.soak.outcome import Outcome
from einnet_explore.checker.record import check_record
from einnet_explore.equivalence.certificate import Certificate, compare_modulo_prime
from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.interpreter.grid import IllegalRead
from einnet_explore.ir import Program
from einnet_explore.rules import RULES
from einnet_explore.rules.base import places
from einnet_explore.syntax import parse, text
from tests.certificate_steps import mutants, reread
from tests.rules_kit import contractions
from tests.strategies import programs

PAIRS = 50
ATTEMPTS = 8
"""Mutants that are tried until one is legal."""
LOCAL_RULES = tuple(rule for rule in RULES if rule.local)
POINTS = 120
DIGITS = 300
CONSTANTS = ("0.5", "2", "3", "-1", "0.000001", "1000", "123456", "0.99999", "10000000000")

Expression: TypeAlias = "tuple[str, ...] | tuple[object, ...]"
"""A function and its arguments; a leaf is ``("A",)``, ``("B",)`` or ``("const", TEXT)``."""


def item(number: int, n: int) -> Outcome:
    """Item *n* of seed *number*."""
    outcome = Outcome()
    rng = random.Random(f"{number}:{n}")
    for _ in range(PAIRS // 2):
        before = draw(rng, rng.randint(1, 4))
        after = mutate(before, rng)
        if after != before:
            examine(before, after, rng, outcome)
    for program in drawn(st.one_of(contractions(), programs(polynomial=True)), PAIRS // 2, rng.getrandbits(60)):
        examine_programs(program, change(program, rng), rng, outcome)
    return outcome


def change(program: Program, rng: random.Random) -> Program:
    """Return *program* or the result of a rule, mostly with one mutation."""
    steps = [
        match for at, _ in places(program) for rule in LOCAL_RULES for match in islice(rule.matches(program, at), 2)
    ]
    if steps and rng.random() < 0.5:
        program = rng.choice(steps).apply(program).after
    wrong = [changed for _, changed in mutants(program)] if rng.random() < 0.8 else []
    rng.shuffle(wrong)
    legal = (mutant for mutant in map(reread, wrong[:ATTEMPTS]) if is_legal(mutant))
    return next(legal, program)


def is_legal(program: Program) -> bool:
    """Return whether the text of *program* is accepted: a mutant may read beyond its tensors."""
    try:
        parse(text(program))
    except ValueError:
        return False
    return True


def examine_programs(before: Program, after: Program, rng: random.Random, outcome: Outcome) -> None:
    """Compare the verdicts of all checkers on a pair with evaluation on integers."""
    texts = [text(program) for program in (before, after)]
    _, verdicts = verdicts_of(texts, before, after)
    equal = are_equal(before, after, rng.getrandbits(30))
    for name, kind in verdicts.items():
        claims = kind in ("proved", "rounded", "exact")
        said = "equal" if equal else "different"
        outcome.counts[f"programs: {name}: {kind}" + (f", {said}" if claims else "")] += 1
        if claims and not equal and (name, kind) != ("modular", "rounded"):
            outcome.found(f"a pair that differs is called {kind} by {name}", "", *texts)


def are_equal(before: Program, after: Program, seed: int) -> bool:
    """Return whether both have the same outputs on a few random integer inputs."""
    generator = np.random.default_rng(seed)
    for _ in range(4):
        inputs = {t.name: generator.integers(-99, 100, t.shape) for t in before.inputs}
        try:
            left, right = (evaluate(program, inputs, outputs_only=True) for program in (before, after))
        except (IllegalRead, ValueError):
            return False
        if left.keys() != right.keys() or not all(np.array_equal(left[name], right[name]) for name in left):
            return False
    return True


def verdicts_of(texts: list[str], before: Program, after: Program) -> tuple[Certificate, dict[str, str]]:
    """Return the certificate of two programs with these *texts*, and the verdict of each checker."""
    step = {"rule": "expression_fusion", "at": "0", "params": {}, "after": texts[1]}
    record = {"format": "einnet-explore record", "version": 1, "start": texts[0], "steps": [step]}
    report = check_record(record)
    return report.whole, {
        "check": report.kind,
        "einnet_check": einnet_check.certificate(record)["kind"],
        "modular": _modular_verdict(before, after),
    }


def draw(rng: random.Random, depth: int) -> Expression:
    """Draw an expression of at most *depth* nested functions."""
    if depth == 0 or rng.random() < 0.15:
        drawn = f"{rng.choice((-1, 1)) * 10 ** rng.uniform(-12, 12):.{rng.randint(1, 16)}g}"
        return rng.choice([("A",), ("A",), ("B",), ("const", rng.choice((*CONSTANTS, drawn)))])
    op = rng.choice([*ONE_ARGUMENT, "+", "+", "-", "*", "*", "/", "max", "min"])
    return (op, *(draw(rng, depth - 1) for _ in range(1 if op in ONE_ARGUMENT else 2)))


ONE_ARGUMENT = ("relu", "abs", "tanh", "sigmoid", "exp", "sqrt", "neg", "log", "rsqrt")
ONE = ("const", "1")


def identities(e: Expression, rng: random.Random) -> Iterable[Expression]:
    """Yield forms of *e*, some of them equal to it everywhere, some only in places, some nowhere."""
    match e:
        case (("relu" | "abs" | "neg"), x):
            yield from (x, ("neg", x))  # type: ignore[misc]
        case "abs", x:
            yield ("sqrt", ("*", x, x))
        case "sqrt", ("*", x, y) if x == y:
            yield from (x, ("abs", x))
        case "tanh", x:
            yield from (x, ("-", ("*", ("const", "2"), ("sigmoid", ("*", ("const", "2"), x))), ONE))
        case "sigmoid", x:
            yield from (("/", ONE, ("+", ONE, ("exp", ("neg", x)))), ("const", "0.5"))
        case "exp", (("+" | "-") as op, x, y):
            yield (("*" if op == "+" else "/"), ("exp", x), ("exp", y))
        case ("+" | "*" | "max" | "min") as op, x, y:
            yield from ((op, y, x), x)  # type: ignore[misc]
            if op in ("max", "min"):
                yield (("+" if op == "max" else "-"), y, ("relu", ("-", x, y) if op == "max" else ("-", y, x)))
            if op == "*":
                match x:
                    case "+", a, b:
                        yield ("+", ("*", a, y), ("*", b, y))
        case "log", ("*", x, y):
            yield ("+", ("log", x), ("log", y))
        case "rsqrt", x:
            yield ("/", ONE, ("sqrt", x))
        case "-", x, y:
            yield from (("+", x, ("neg", y)), ("-", y, x))
        case "/", x, y:
            yield from (("*", x, ("/", ONE, y)), ONE if x == y else x)
        case "const", value:
            scale = rng.choice(["1.0001", "1.000000001", "1.0000000000001", "1.0000000000000002", "2", "-1"])
            yield ("const", format(Decimal(str(value)) * Decimal(scale), "f"))
    x = ("A",) if rng.random() < 0.5 else ("B",)
    yield ("+", e, ("*", ("relu", x), ("relu", ("-", ("neg", x), ("const", rng.choice(["0", "3", "5000"]))))))
    yield ("+", e, ("relu", ("-", x, ("const", rng.choice(["3", "5000", "1000000"])))))
    yield ("/", ("*", e, x), x)
    yield ("-", ("+", e, x), x)


def mutate(e: Expression, rng: random.Random) -> Expression:
    """Return *e* with one of the ``identities`` at a random place."""
    if len(e) > 1 and e[0] != "const" and rng.random() < 0.7:
        n = rng.randrange(1, len(e))
        return (*e[:n], mutate(e[n], rng), *e[n + 1 :])  # type: ignore[arg-type]
    return rng.choice(list(identities(e, rng)))


def text_of(e: Expression) -> str:
    """Return *e* in the text form."""
    match e:
        case (("A" | "B") as name,):
            return f"{name}[i]"
        case "const", value:
            return f"({value})"
        case ("+" | "-" | "*" | "/") as op, x, y:
            return f"({text_of(x)} {op} {text_of(y)})"  # type: ignore[arg-type]
        case "neg", x:
            return f"(-{text_of(x)})"  # type: ignore[arg-type]
    names = {"max": "maximum", "min": "minimum"}
    return f"{names.get(str(e[0]), e[0])}({', '.join(text_of(x) for x in e[1:])})"  # type: ignore[arg-type]


def value_of(e: Expression, a: Decimal, b: Decimal) -> Decimal | None:
    """Evaluate *e* to 300 digits; None where it is undefined."""
    if len(e) == 1:
        return a if e[0] == "A" else b
    if e[0] == "const":
        return Decimal(float(str(e[1])))
    x, *rest = values = [value_of(arg, a, b) for arg in e[1:]]  # type: ignore[arg-type]
    if x is None or None in values:
        return None
    y = rest[0] if rest else None
    match e[0]:
        case "relu":
            return max(x, Decimal(0))
        case "abs":
            return abs(x)
        case "neg":
            return -x
        case "tanh":
            return _sum(Decimal(1), -2 / _sum((2 * x).exp(), Decimal(1)))
        case "sigmoid":
            return 1 / _sum(Decimal(1), (-x).exp())
        case "exp":
            return x.exp()
        case "sqrt":
            return x.sqrt() if x >= 0 else None
        case "rsqrt":
            return 1 / x.sqrt() if x > 0 else None
        case "log":
            return x.ln() if x > 0 else None
    assert y is not None
    match e[0]:
        case "+":
            return _sum(x, y)
        case "-":
            return _sum(x, -y)
        case "*":
            return x * y
        case "/":
            return x / y if y else None
        case "max":
            return max(x, y)
    return min(x, y)


class Absorbed(DecimalException):
    """An operand of a sum is too small for the digits of the sum."""


def _sum(x: Decimal, y: Decimal) -> Decimal:
    if x and y and abs(x.adjusted() - y.adjusted()) > DIGITS - 40:
        raise Absorbed
    return x + y


Difference: TypeAlias = "tuple[tuple[float, float], tuple[Decimal | None, Decimal | None], bool]"
"""Inputs, the values there, and whether all differences in [-1, 1] are within the bound of a certificate."""


def points(rng: random.Random) -> Iterable[tuple[float, float]]:
    """Draw inputs: all signs and magnitudes, zeros, constants, equal ones."""

    def one() -> float:
        match rng.randrange(5):
            case 4:
                return rng.choice((-1, 1)) * 10 ** rng.uniform(-13, -4)
            case 0:
                return rng.choice((-1, 1)) * 10 ** rng.uniform(-4, 2.5)
            case 1:
                return rng.choice((-1, 1)) * float(rng.choice((0, 1, 2, 3, *CONSTANTS)))
            case 2:
                return rng.choice((-1, 1)) * 10 ** rng.uniform(2, 7)
        return rng.uniform(-4, 4)

    for n in range(POINTS):
        a = one()
        yield a, a if n % 7 == 0 else one()


def difference(before: Expression, after: Expression, rng: random.Random, error: float) -> Difference | None:
    """Return inputs at which both are defined and differ, or only one is defined; None if there are none."""
    first: Difference | None = None
    with localcontext() as context:
        context.prec, context.Emax, context.Emin = DIGITS, 10**12, -(10**12)
        context.traps[Underflow] = True
        for a, b in points(rng):
            try:
                x, y = (value_of(e, Decimal(f"{a:.6g}"), Decimal(f"{b:.6g}")) for e in (before, after))
            except (DecimalException, Overflow):
                continue
            if x is None or y is None:
                if x is not y:
                    first = first or ((a, b), (x, y), True)
            elif error and max(abs(a), abs(b)) <= 1 and abs(x - y) > Decimal(error):
                return (a, b), (x, y), False
            elif abs(x - y) > Decimal("1e-25") * max(abs(x), abs(y), Decimal("1e-30")):
                first = ((a, b), (x, y), True) if first is None or None in first[1] else first
            if first is not None and None not in first[1] and not error:
                break
    return first


def examine(before: Expression, after: Expression, rng: random.Random, outcome: Outcome) -> None:
    """Compare the verdicts of all checkers on a pair with evaluation."""
    texts = [f"tensor A[4]\ntensor B[4]\nY[i:4] = {text_of(e)}\nZ[i:4] = A[i] + B[i]\n" for e in (before, after)]
    pair = parse(texts[0]), parse(texts[1])
    if pair[0] == pair[1]:  # reading folds constants in double precision
        outcome.counts["read as one program"] += 1
        return
    found, verdicts = verdicts_of(texts, *pair)
    claims = {name: kind for name, kind in verdicts.items() if kind in ("proved", "rounded", "exact")}
    differs = difference(before, after, rng, found.error) if claims else None
    for name, kind in verdicts.items():
        outcome.counts[
            f"{name}: {kind}" + (f", {'equal' if differs is None else 'different'}" if name in claims else "")
        ] += 1
    for name, kind in claims.items() if differs is not None else ():
        undefined = None in differs[1]
        if undefined and kind != "exact":  # proofs assume 1/x finite
            continue
        if kind == "rounded" and (name != "check" or differs[2]):  # only check says by how much
            continue
        outcome.found(
            f"a pair that differs is called {kind} by {name}",
            f"at A, B = {differs[0]}", text_of(before), text_of(after),
        )  # fmt: skip


def _modular_verdict(before: Program, after: Program) -> str:
    """Return ``proved`` where the comparison modulo a prime has a bound on its error, and finds no difference."""
    try:
        found = compare_modulo_prime(before, after)
    except ValueError:
        return "refused"
    if found.differs is not None:
        return "different"
    return "without a bound" if found.bound is None else "rounded" if found.rounded else "proved"
