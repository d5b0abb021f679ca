"""Laws of piecewise linear functions and of selections, in both checkers: the values stay."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import reduce
from random import Random
from typing import Any

import pytest

from einnet_check.terms import Space
from einnet_explore.equivalence.polynomial import ONE, Polynomial, _arguments, apply_to_polynomials

NAMES = ('"A"', '"Z"', '"s"')
MAX_MONOMIALS = 60

VALUES: Mapping[str, Callable[..., Fraction]] = {
    "relu": lambda a: max(a, Fraction(0)),
    "abs": abs,
    "maximum": max,
    "minimum": min,
    "less": lambda a, b: Fraction(a < b),
    "less_equal": lambda a, b: Fraction(a <= b),
    "select": lambda c, a, b: a if c else b,
    "exp": lambda a: Fraction(math.exp(a)),
    "log": lambda a: Fraction(math.log(a)),
    "/": lambda a, b: a / b,
    "+": lambda a, b: a + b,
    "*": lambda a, b: a * b,
}

Apply = Callable[[str, list[Any]], Polynomial]
Arguments = Callable[[str, Any], "list[Polynomial] | None"]
Value = Callable[[Mapping[str, Fraction]], Fraction]


def checkers() -> Mapping[str, Callable[[], tuple[Apply, Arguments]]]:
    """How each checker applies functions, and which arguments a function in its result has."""

    def independent() -> tuple[Apply, Arguments]:
        space = Space((), lambda a, b: a == b)
        return space.applied, lambda op, factor: space.operands(op, (factor,))

    return {
        "einnet_explore": lambda: (apply_to_polynomials, lambda op, factor: _arguments(factor, op)),
        "einnet_check": independent,
    }


def random_expression(random: Random, apply: Apply, depth: int) -> tuple[Polynomial, Value]:
    """A polynomial, and its value by definition."""
    if depth == 0 or random.random() < 0.15:
        if random.random() < 0.5:
            name = random.choice(NAMES)
            return ((Fraction(1), ((name, ()),)),), lambda at: at[name]
        number = Fraction(random.randint(-4, 4), random.choice([1, 2]))
        return (((number, ()),) if number else ()), lambda at: number
    op = random.choice(["relu", "abs", "maximum", "minimum", "+", "*", "select", "not", "held"])
    count = {"relu": 1, "abs": 1, "select": 4, "not": 4, "held": 3}.get(op, 2)
    polynomials, values = zip(*(random_expression(random, apply, depth - 1) for _ in range(count)), strict=True)
    if count < 3:
        return apply(op, list(polynomials)), lambda at: VALUES[op](*(value(at) for value in values))
    test = random.choice(["less", "less_equal"])
    condition = apply(test, list(polynomials[:2]))
    if op == "held":
        truth = VALUES[test]
        return apply("*", [condition, polynomials[2]]), lambda at: truth(*(v(at) for v in values[:2])) * values[2](at)
    if op == "not":
        condition = apply("+", [ONE, apply("*", [((Fraction(-1), ()),), condition])])

    def selected(at: Mapping[str, Fraction]) -> Fraction:
        holds = bool(VALUES[test](values[0](at), values[1](at))) != (op == "not")
        return values[2 if holds else 3](at)

    return apply("select", [condition, *polynomials[2:]]), selected


def evaluate(value: Polynomial, at: Mapping[str, Fraction], arguments: Arguments) -> Fraction:
    """The value of a polynomial, with functions in it by their definitions."""
    total = Fraction(0)
    for k, factors in value:
        product = Fraction(k)
        for factor in factors:
            product *= at[factor[0]] if factor[0] in at else _function(factor, at, arguments)
        total += product
    return total


def _function(factor: Any, at: Mapping[str, Fraction], arguments: Arguments) -> Fraction:
    op = factor[0].partition("(")[0]
    found = arguments(op, factor)
    assert found is not None
    values = [evaluate(each, at, arguments) for each in found]
    return VALUES[op](*values)


@pytest.mark.parametrize("name", checkers())
def test_laws_keep_the_values_of_random_expressions(name: str) -> None:
    random, compared = Random(0), 0
    for _ in range(500):
        apply, arguments = checkers()[name]()
        polynomial, value = random_expression(random, apply, random.choice([2, 3, 4]))
        if len(polynomial) <= MAX_MONOMIALS:
            compared += 1
            for _ in range(4):
                at = {n: Fraction(random.randint(-8, 8), random.choice([1, 2, 3])) for n in NAMES}
                assert evaluate(polynomial, at, arguments) == value(at), (polynomial, at)
    assert compared > 330


@pytest.mark.parametrize("name", checkers())
@pytest.mark.parametrize(("low", "high"), [(0, 6), (-1, 2), (1, 3), (-4, -2)])
def test_a_clip_has_one_form(name: str, low: int, high: int) -> None:
    apply, _ = checkers()[name]()
    x: Polynomial = ((Fraction(1), (('"x"', ()),)),)
    ends: list[Polynomial] = [((Fraction(n), ()),) if n else () for n in (low, high)]
    first = apply("minimum", [apply("maximum", [x, ends[0]]), ends[1]])
    assert first == apply("maximum", [apply("minimum", [x, ends[1]]), ends[0]])
    beyond: Polynomial = ((Fraction(high + 1), ()),) if high + 1 else ()
    assert first != apply("maximum", [apply("minimum", [x, beyond]), ends[0]])


@pytest.mark.parametrize("is_axiom_used", [False, True])
@pytest.mark.parametrize("name", checkers())
def test_logarithms_of_exponentials_keep_their_values(name: str, is_axiom_used: bool) -> None:
    """log(1 + e^p) and log(e^p q), with and without one exponential for each term of p."""
    random = Random(1)
    for _ in range(150):
        apply, arguments = checkers()[name]()
        exponent, value = random_expression(random, apply, random.choice([1, 2, 3]))
        if len(exponent) > MAX_MONOMIALS:
            continue
        terms = [(m,) for m in exponent] if is_axiom_used else [exponent]
        power = reduce(lambda a, b: apply("*", [a, b]), (apply("exp", [term]) for term in terms), ONE)
        plain: Polynomial = ((Fraction(1), (('"A"', ()),)),)
        soft = apply("log", [apply("+", [ONE, power])])
        shifted = apply("log", [apply("*", [power, apply("exp", [plain])])])
        at = {n: Fraction(random.randint(-6, 6), 2) for n in NAMES}
        if abs(value(at)) < 30:
            wanted = math.log1p(math.exp(value(at)))
            assert math.isclose(evaluate(soft, at, arguments), wanted, rel_tol=1e-9, abs_tol=1e-9)
            assert math.isclose(evaluate(shifted, at, arguments), value(at) + at['"A"'], rel_tol=1e-9, abs_tol=1e-9)


@pytest.mark.parametrize("name", checkers())
def test_exponentials_of_selections_keep_their_values(name: str) -> None:
    """Exponentials of what conditions select, selected and multiplied by conditions, and sigmoids of them."""
    random, replaced = Random(2), 0
    for _ in range(500):
        apply, arguments = checkers()[name]()
        (p, value), (q, other), (a, low), (b, high) = (random_expression(random, apply, n) for n in (1, 1, 0, 0))
        power, condition = apply("exp", [p]), apply("less", [a, b])
        over = apply("+", [ONE, power])
        kind = random.choice(["held", "less 1", "select", "sigmoid"])
        other_power = apply("+", [power, ((Fraction(-1), ()),)])
        operands = {
            "held": [condition, power],
            "less 1": [condition, other_power],
            "select": [condition, q, other_power],
            "sigmoid": [condition, apply("*", [q, apply("/", [ONE, over])])],
        }
        made = apply("select" if kind == "select" else "*", operands[kind])
        replaced += "less(" not in str(made) and "less(" in str(condition)
        for _ in range(6):
            at = {n: Fraction(random.randint(-4, 4), 2) for n in NAMES}
            if abs(value(at)) < 30 and abs(other(at)) < 30:
                holds, e = low(at) < high(at), math.exp(value(at))
                wanted = {
                    "held": holds * e,
                    "less 1": holds * (e - 1),
                    "select": other(at) if holds else e - 1,
                    "sigmoid": holds * other(at) / (1 + Fraction(e)),
                }[kind]
                assert math.isclose(evaluate(made, at, arguments), wanted, rel_tol=1e-9, abs_tol=1e-9), (made, at)
    assert replaced > 7
