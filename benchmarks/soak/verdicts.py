"""Pairs of programs, equal or with one mutation, whose verdicts are compared with evaluation to 300 digits.

An item draws 50 pairs: element-wise functions of two tensors, with constants of all magnitudes.  The
second program applies one true or false identity at a random place: a dropped ``relu`` or ``abs``, a cancelled root or
quotient, a changed constant, function or summand, an equal form.  A pair that is called ``proved`` or ``exact`` and
differs at some input, of any sign and magnitude, is a finding.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from decimal import Decimal, DecimalException, Overflow, Underflow, localcontext
from typing import TypeAlias

from benchmarks.soak.outcome import Outcome
from einnet_explore.equivalence.certificate import certify
from einnet_explore.syntax import parse

PAIRS = 50
POINTS = 120
CONSTANTS = ("0.5", "2", "3", "-1", "0.000001", "1000", "123456", "0.99999", "10000000000")

Expression: TypeAlias = "tuple[str, ...] | tuple[object, ...]"
"""A function and its arguments; a leaf is ``("A",)``, ``("B",)`` or ``("const", TEXT)``."""


def item(number: int, n: int) -> Outcome:
    """Item *n* of seed *number*."""
    outcome = Outcome()
    rng = random.Random(f"{number}:{n}")
    for _ in range(PAIRS):
        before = draw(rng, rng.randint(1, 4))
        after = mutate(before, rng)
        if after != before:
            examine(before, after, rng, outcome)
    return outcome


def draw(rng: random.Random, depth: int) -> Expression:
    """Draw an expression of at most *depth* nested functions."""
    if depth == 0 or rng.random() < 0.15:
        return rng.choice([("A",), ("A",), ("B",), ("const", rng.choice(CONSTANTS))])
    op = rng.choice(
        ["relu", "abs", "tanh", "sigmoid", "exp", "sqrt", "neg", "+", "+", "-", "*", "*", "/", "max", "min"]
    )
    return (op, *(draw(rng, depth - 1) for _ in range(1 if op in ONE_ARGUMENT else 2)))


ONE_ARGUMENT = ("relu", "abs", "tanh", "sigmoid", "exp", "sqrt", "neg")
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
        case "-", x, y:
            yield from (("+", x, ("neg", y)), ("-", y, x))
        case "/", x, y:
            yield from (("*", x, ("/", ONE, y)), ONE if x == y else x)
        case "const", value:
            scale = rng.choice(["1.0001", "1.000000001", "2", "-1"])
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
            return Decimal(1).copy_sign(x) if abs(x) > 80 else 1 - 2 / ((2 * x).exp() + 1)
        case "sigmoid":
            return 1 / (1 + (-x).exp())
        case "exp":
            return x.exp()
        case "sqrt":
            return x.sqrt() if x >= 0 else None
    assert y is not None
    match e[0]:
        case "+":
            return x + y
        case "-":
            return x - y
        case "*":
            return x * y
        case "/":
            return x / y if y else None
        case "max":
            return max(x, y)
    return min(x, y)


Difference: TypeAlias = "tuple[tuple[float, float], tuple[Decimal | None, Decimal | None]]"
"""Inputs, and the values there."""


def points(rng: random.Random) -> Iterable[tuple[float, float]]:
    """Draw inputs: all signs and magnitudes, zeros, constants, equal ones."""

    def one() -> float:
        match rng.randrange(4):
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


def difference(before: Expression, after: Expression, rng: random.Random) -> Difference | None:
    """Return inputs at which both are defined and differ, or only one is defined; None if there are none."""
    with localcontext() as context:
        context.prec, context.Emax, context.Emin = 300, 10**12, -(10**12)
        context.traps[Underflow] = True
        for a, b in points(rng):
            try:
                x, y = (value_of(e, Decimal(f"{a:.6g}"), Decimal(f"{b:.6g}")) for e in (before, after))
            except (DecimalException, Overflow):
                continue
            if x is None or y is None:
                if x is not y:
                    return (a, b), (x, y)
            elif abs(x - y) > Decimal("1e-12") * max(abs(x), abs(y), Decimal("1e-20")):
                return (a, b), (x, y)
    return None


def examine(before: Expression, after: Expression, rng: random.Random, outcome: Outcome) -> None:
    """Compare the verdict on a pair with evaluation."""
    one, other = (parse(f"tensor A[4]\ntensor B[4]\nY[i:4] = {text_of(e)} + 0*A[i]*B[i]") for e in (before, after))
    verdict = certify(one, other)
    differs = difference(before, after, rng)
    outcome.counts[f"{verdict.kind}, {'equal' if differs is None else 'different'}"] += 1
    undefined = differs is not None and None in differs[1]
    if differs is not None and verdict.ok and not (undefined and verdict.kind == "proved"):  # proofs assume 1/x finite
        outcome.found(
            f"a pair that differs is called {verdict.kind}", f"at A, B = {differs[0]}", text_of(before), text_of(after)
        )
