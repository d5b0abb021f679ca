"""Polynomials whose variables are tensor elements at linear forms, and functions of them as symbols."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from itertools import pairwise, product
from math import inf, isinf, isnan, prod
from typing import TypeAlias

from einnet_explore.equivalence.assumptions import Rounding
from einnet_explore.equivalence.linear_space import Factor, Form, Undecided, form_key
from einnet_explore.interpreter.numbers import INFINITE_SUFFIX, Number
from einnet_explore.ir.scalar_functions import ASSUMED_FINITE, SCALAR_FUNCTIONS, ScalarFunction

Monomial: TypeAlias = "tuple[Number, tuple[Factor, ...]]"
Polynomial: TypeAlias = "tuple[Monomial, ...]"

ONE: Polynomial = ((Fraction(1), ()),)

INFINITE_MINUS_ITSELF = "what may be infinite is multiplied by 0, or less itself"
"""The result would be NaN for infinite values and a number for finite ones; no symbol represents both."""


def may_be_infinite(k: Number, factors: Iterable[Factor]) -> bool:
    """Whether a monomial may be infinite."""
    return isinf(k) or any(name.endswith(INFINITE_SUFFIX) for name, _ in factors)


def apply_to_polynomials(op: str, args: list[Polynomial], rounding: Rounding | None = None) -> Polynomial:
    """Apply *op* to polynomials: expand sums and products, fold constants, make a symbol of any other function.

    *rounding*: symbols are named with constants rounded by it.  Raises Undecided for a possibly infinite value times a
    sum or 0, or minus itself.
    """
    found = _apply_arithmetic(op, args, rounding)
    if found is not None and op in ("+", "-", "*"):
        found = with_joined_conditions(found, rounding)
    found = _fold_constants(op, args) if found is None else found
    if found is not None:
        return found
    match op, args:
        case (("less" | "less_equal"), [a, b]) if (compared := _compared_with_zero(op, a, b, rounding)) is not None:
            return compared
        case "bool", [a] if _is_truth(a):
            return a
        case "select", [_, _, _] if (hidden := _masked(args, rounding)) is not None:
            return hidden
        case "exp", [a] if (chosen := _unmasked(a, rounding)) is not None:
            return chosen
        case _, [a] if (bent := _in_negative_part(op, a, rounding)) is not None:
            return bent
        case "maximum", [(), other] | [other, ()]:
            return apply_to_polynomials("relu", [other], rounding)
        case "minimum", [(), other] | [other, ()]:
            positive = apply_to_polynomials("relu", [apply_to_polynomials("neg", [other])], rounding)
            return apply_to_polynomials("neg", [positive])
        case "abs", [((k, factors),)] if len(factors) > (k == 1):
            parts = [apply_to_polynomials(op, [((Fraction(1), (f,)),)]) for f in factors]
            return apply_to_polynomials("*", [((-k if k < 0 else k, ()),), *parts])
        case "log", [((1, ()), (1, factors))] if (turned := _softplus(factors, rounding)) is not None:
            offset, raised = turned
            return apply_to_polynomials("+", [offset, apply_to_polynomials(op, [_collect((*ONE, *raised))], rounding)])
        case "log", [a] if (exponents := _common_exponents(a)) is not None:
            shift, rest = exponents
            return apply_to_polynomials("+", [*shift, apply_to_polynomials(op, [rest], rounding)])
        case (("rsqrt" | "sigmoid" | "tanh" | "pow"), _):
            if (defined := _by_definition(op, args, rounding)) is not None:
                return defined
        case (("relu" | "abs" | "maximum" | "minimum" | "select"), _):
            if (defined := _in_positive_parts(op, args, rounding)) is not None:
                return defined
    function = SCALAR_FUNCTIONS.get(op)
    if function and (scaled := _scaled(function, args)) is not None:
        power, args = scaled
        return tuple((power * k, f) for k, f in _symbol(op, args, rounding))
    return _symbol(op, args, rounding)


MAX_POWER = 8
"""The largest power that is written as a product."""


def _by_definition(op: str, args: list[Polynomial], rounding: Rounding | None) -> Polynomial | None:
    """Return a function in terms of square roots, exponentials, quotients and products; None for other powers."""

    def apply(name: str, *of: Polynomial) -> Polynomial:
        return apply_to_polynomials(name, list(of), rounding)

    match op, args:
        case "rsqrt", [a]:
            return apply("/", ONE, apply("sqrt", a))
        case "sigmoid", [a]:
            return apply("/", ONE, apply("+", ONE, apply("exp", apply("neg", a))))
        case "tanh", [a]:  # 2 sigmoid(2 a) - 1
            twice = apply("sigmoid", apply("+", a, a))
            return apply("-", apply("+", twice, twice), ONE)
        case "pow", [a, exponent] if isinstance(k := constant_value(exponent), Fraction):
            if k < 0:
                positive = _by_definition(op, [a, ((-k, ()),)], rounding)
                return None if positive is None else apply("/", ONE, positive)
            if k == Fraction(1, 2):
                return apply("sqrt", a)
            if k.denominator == 1 and k <= MAX_POWER:
                return apply("*", ONE, *(a for _ in range(int(k))))
    return None


def _in_positive_parts(op: str, args: list[Polynomial], rounding: Rounding | None) -> Polynomial | None:
    """Return a positive part, an absolute value or the larger or smaller of two values as a sum of positive parts.

    Of relu(a) and relu(-a) = relu(a) - a one occurs, if the names in *a* tell them apart; None if they do not, if
    values may be infinite, and for a positive part that stays.
    """

    def apply(name: str, *of: Polynomial) -> Polynomial:
        return apply_to_polynomials(name, list(of), rounding)

    if any(may_be_infinite(*m) for arg in args for m in arg):
        return None
    match op, args:
        case "relu", [a] if all(k > 0 and all(map(_is_positive, factors)) for k, factors in a):
            return a
        case "relu", [a] if (found := _piecewise_linear(a)) is not None:
            y, slope, start, kinks = found
            parts = [apply("relu", _collect((*y, (-end, ())))) for _, end in kinks]
            scaled = (apply("*", ((k, ()),), part) for (k, _), part in zip(kinks, parts, strict=True))
            return apply("+", _collect([*((slope * Fraction(k), of) for k, of in y), (start, ())]), *scaled)
        case "relu", [a] if _sign(a) < 0:
            return apply("+", a, apply("relu", apply("neg", a)))
        case "select", [condition, a, b] if _is_truth(condition) and len(a) + len(b) <= MAX_SELECTED:
            return apply("+", b, apply("*", condition, apply("-", a, b)))
        case "abs", [a] if _sign(a):
            part = apply("relu", a)
            return apply("-", apply("+", part, part), a)
        case (("maximum" | "minimum"), [a, b]) if _sign(rest := apply("-", b, a)):
            if op == "maximum":
                return apply("+", a, apply("relu", rest))
            return apply("-", a, apply("relu", apply("neg", rest)))
    return None


MAX_KINKS = 16
"""Kinks of a piecewise linear function of one polynomial."""


def _piecewise_linear(
    value: Polynomial,
) -> tuple[Polynomial, Fraction, Fraction, list[tuple[Fraction, Fraction]]] | None:
    """Return y, s, c and pairs (k, t) with relu(*value*) = s·y + c + Σ k·relu(y - t), for a polynomial y.

    The value is a sum of a multiple of y, a number, and positive parts of such sums.  None for others, and for a value
    without positive parts.
    """
    start, rest, kinks = Fraction(0), list[Monomial](), list[tuple[Fraction, Fraction, Fraction]]()
    y: Polynomial = ()
    for k, factors in value:
        inner = _arguments(factors[0], "relu") if len(factors) == 1 else None
        if inner is not None:
            line = tuple(m for m in inner[0] if m[1])
            y = y or tuple((Fraction(c) / Fraction(line[0][0]), of) for c, of in line)
            factor = constant_value(_quotient(line, y) or ())
            if not factor:
                return None
            offset = Fraction(next((c for c, of in inner[0] if not of), 0))
            kinks.append((Fraction(k), Fraction(factor), offset))
        elif factors:
            rest.append((k, factors))
        else:
            start = Fraction(k)
    slope = constant_value(quotient) if y and (quotient := _quotient(tuple(rest), y)) is not None else None
    if slope is None or len(kinks) > MAX_KINKS:
        return None

    def at(place: Fraction) -> Fraction:
        return start + Fraction(slope) * place + sum(k * max(c * place + d, Fraction(0)) for k, c, d in kinks)

    ends = sorted({-d / c for _, c, d in kinks})
    zeros = set[Fraction]()
    places = [ends[0] - 1, *ends, ends[-1] + 1]  # the function is linear beyond the outermost kinks
    for low, high in pairwise(places):
        steep = (at(high) - at(low)) / (high - low)
        zero = low - at(low) / steep if steep else None
        if zero is not None and (low <= zero or low == places[0]) and (zero <= high or high == places[-1]):
            zeros.add(zero)
    ends = sorted({*ends, *zeros})
    places = [ends[0] - 1, *ends, ends[-1] + 1]
    heights = [max(at(place), Fraction(0)) for place in places]
    slopes = [(q - p) / (high - low) for (low, high), (p, q) in zip(pairwise(places), pairwise(heights), strict=True)]
    changes = [(after - before, end) for (before, after), end in zip(pairwise(slopes), ends, strict=True)]
    return y, slopes[0], heights[1] - slopes[0] * ends[0], [(k, end) for k, end in changes if k]


CONDITION = "less(0, "
"""The beginning of the name of a condition 0 < g, a factor that is 1 or 0."""


MAX_CONDITIONS, MAX_SELECTED = 3, 12
"""Conditions and monomials of a polynomial in which conditions are replaced."""

MAX_NAMES = 120
"""Letters of the functions in what a condition multiplies, and in the condition, in which a factor is replaced."""


def _compared_with_zero(op: str, a: Polynomial, b: Polynomial, rounding: Rounding | None) -> Polynomial | None:
    """Return a < b as 0 < b - a, and a <= b as 1 - (b < a); None if values may be infinite."""
    if any(may_be_infinite(*m) for m in (*a, *b)):
        return None
    if op == "less_equal":
        return apply_to_polynomials("-", [ONE, apply_to_polynomials("less", [b, a], rounding)], rounding)
    gap = apply_to_polynomials("-", [b, a], rounding)
    number = constant_value(gap)
    if number is not None:
        return ONE if number > 0 else ()
    largest = max(abs(Fraction(k)) for k, _ in gap)
    return _symbol(op, [(), tuple((Fraction(k) / largest, own) for k, own in gap)], rounding)


def _masked(args: list[Polynomial], rounding: Rounding | None) -> Polynomial | None:
    """Return a selection of a number or an infinite constant as that number, and a selection of 0 or the constant.

    None for others.  A number plus infinity is infinity.
    """
    condition, *sides = args
    ends = [constant_value(side) for side in sides]
    for end, other in zip(ends, sides[::-1], strict=True):
        if end is not None and isinf(end) and other and not any(may_be_infinite(*m) for m in (*condition, *other)):
            mask = _symbol("select", [condition, *(side if side != other else () for side in sides)], rounding)
            return apply_to_polynomials("+", [other, mask], rounding)
    return None


def _unmasked(value: Polynomial, rounding: Rounding | None) -> Polynomial | None:
    """Return the exponential of a number plus a selection of 0 or minus infinity as a selection; None for others."""
    masks = [m for m in value if may_be_infinite(*m)]
    if len(masks) != 1 or len(masks[0][1]) != 1 or masks[0][0] <= 0:
        return None
    found = _arguments(masks[0][1][0], "select")
    if found is None or any(may_be_infinite(*m) for m in found[0]) or ((-inf, ()),) not in found or () not in found:
        return None
    power = apply_to_polynomials("exp", [_collect(m for m in value if m != masks[0])], rounding)
    return apply_to_polynomials("select", [found[0], *(power if side == () else () for side in found[1:])], rounding)


def _is_truth(value: Polynomial) -> bool:
    """Whether *value* is a condition or its negation, or a product of these, each of which is 1 or 0."""
    match value:
        case ((k, factors),) if k == 1:
            return bool(factors) and all(name.startswith(CONDITION) for name, _ in factors)
        case ((1, ()), (-1, (factor,))) | ((-1, (factor,)), (1, ())):
            return factor[0].startswith(CONDITION)
    return False


def with_joined_conditions(value: Polynomial, rounding: Rounding | None = None) -> Polynomial:
    r"""Return *value* with positive parts in place of conditions, where what these multiply is 0 at g = 0.

    .. math::  [0 < g]\, f(g) = f(g^+), \quad f(0) = 0, \qquad [0 < g]\, g q = g^+ q, \qquad [0 < g]^2 = [0 < g]

    Of g = k·x + r, x is a factor that r does not have, and f(g) has (g - r)/k in its place.
    """
    conditions = {f[0] + str(f[1]): f for _, own in value for f in own if f[0].startswith(CONDITION)}
    if len(conditions) > MAX_CONDITIONS or len(value) > MAX_SELECTED:
        return value
    for factor in conditions.values():
        once = [(k, own) for k, own in value if factor in own]
        held = _collect((k, tuple(f for f in own if f != factor)) for k, own in once)
        found = _arguments(factor, "less")
        if found is None or any(may_be_infinite(*m) for m in (*held, *found[1])):
            continue
        rest = [(k, own) for k, own in value if factor not in own]
        changed = _positive_form(held, found[1], rounding)
        if changed is not None:
            return apply_to_polynomials("+", [_collect(rest), changed], rounding)
        value = _collect([*rest, *((k, (*own, factor)) for k, own in held)])
    return value


def _positive_form(value: Polynomial, gap: Polynomial, rounding: Rounding | None) -> Polynomial | None:
    """Return *value* where *gap* is positive, and 0 elsewhere, as a function of the gap's positive part; or None."""
    if not value:
        return ()
    part = apply_to_polynomials("relu", [gap], rounding)
    if (quotient := _quotient(value, gap)) is not None:
        return apply_to_polynomials("*", [quotient, part], rounding)
    if sum(len(name) for _, own in (*value, *gap) for name, _ in own) > MAX_NAMES:
        return None
    for k, own in gap:
        rest = _collect(m for m in gap if m != (k, own))
        if len(own) != 1 or any(_has(f, own[0]) for _, others in rest for f in others):
            continue
        scale = ((1 / Fraction(k), ()),)

        def at(end: Polynomial, by: Polynomial = scale, rest: Polynomial = rest) -> Polynomial:
            return apply_to_polynomials("*", [by, apply_to_polynomials("-", [end, rest], rounding)], rounding)

        if _substituted(value, own[0], at(()), rounding) == ():
            return _substituted(value, own[0], at(part), rounding)
    return None


def _has(factor: Factor, inner: Factor) -> bool:
    """Whether *factor* is *inner*, or may be a function of it."""
    return factor == inner or (isinstance(factor[0], _FunctionName) and inner[0] in factor[0])


TOTAL = frozenset(("exp", "relu", "abs", "erf", "sin", "cos", "less", "maximum", "minimum", "round"))
"""Functions that have a value for all numbers."""


def _substituted(value: Polynomial, factor: Factor, by: Polynomial, rounding: Rounding | None) -> Polynomial | None:
    """Return *value* with *by* in place of *factor*, also inside functions; None if these may have no value there."""
    out = list[Polynomial]()
    for k, own in value:
        parts: list[Polynomial] = [((k, ()),)]
        for each in own:
            if each == factor:
                parts.append(by)
            elif _has(each, factor):
                op = each[0].partition("(")[0]
                arguments = _arguments(each, op) or []
                inner = [_substituted(arg, factor, by, rounding) for arg in arguments]
                if not inner or None in inner:
                    return None
                new = [arg for arg in inner if arg is not None]
                if op not in TOTAL and new != arguments and not (op == "/" and _is_above_zero(new[1])):
                    return None
                parts.append(apply_to_polynomials(op, new, rounding))
            else:
                parts.append(((Fraction(1), (each,)),))
        out.append(apply_to_polynomials("*", parts, rounding))
    return apply_to_polynomials("+", out, rounding) if out else ()


def _is_above_zero(value: Polynomial) -> bool:
    """Whether no value is 0 or less: a sum of positive numbers, or exponentials, and of what is not negative."""
    at_least = all(k > 0 and all(map(_is_positive, own)) for k, own in value)
    above = (all(name.startswith("exp(") and INFINITE_SUFFIX not in name for name, _ in own) for _, own in value)
    return at_least and any(above)


def _in_negative_part(op: str, value: Polynomial, rounding: Rounding | None) -> Polynomial | None:
    r"""Return a function of the smaller of two values by its positive part, if *value* is such; else None.

    .. math::  f(k (g - g^+) + t) = f(k g + t) + f(t) - f(k g^+ + t)
    """
    if op not in TOTAL or op in ("relu", "abs") or len(value) < 2 or any(may_be_infinite(*m) for m in value):
        return None
    for k, own in value:
        gap = _arguments(own[0], "relu") if len(own) == 1 else None
        if gap is None:
            continue
        steep = _collect((-Fraction(k) * Fraction(c), of) for c, of in gap[0])
        rest = _collect([*(m for m in value if m != (k, own)), *((-c, of) for c, of in steep)])
        if constant_value(rest) is not None:
            ends = [_collect([*steep, *rest]), rest, _collect([(-k, own), *rest])]
            low, none, high = (apply_to_polynomials(op, [end], rounding) for end in ends)
            return apply_to_polynomials("-", [apply_to_polynomials("+", [low, none]), high], rounding)
    return None


def _quotient(value: Polynomial, divisor: Polynomial) -> Polynomial | None:
    """Return *value* / *divisor*: a number, or a polynomial if the divisor has one monomial; None without."""
    if not value or not divisor:
        return () if divisor else None
    if len(divisor) > 1:
        ratio = Fraction(value[0][0]) / Fraction(divisor[0][0])
        scaled = _collect((multiply_numbers(ratio, k), factors) for k, factors in divisor)
        return ((ratio, ()),) if scaled == value else None
    ((k, own),) = divisor
    out = list[Monomial]()
    for c, factors in value:
        rest = list(factors)
        for factor in own:
            if factor not in rest:
                return None
            rest.remove(factor)
        out.append((Fraction(c) / Fraction(k), tuple(rest)))
    return _collect(out)


class _FunctionName(str):
    """The name of a function of polynomials, with the *shape* of these.

    The shape lists the coefficient and the factors of each monomial; each factor has a name and a number of indices.
    """

    __slots__ = ("shape",)

    shape: tuple[tuple[tuple[Number, tuple[tuple[str, int], ...]], ...], ...]


def _arguments(factor: Factor, op: str) -> list[Polynomial] | None:
    """Return the arguments of *factor*, the function *op* of polynomials; None for other factors."""
    name, at = factor
    if not isinstance(name, _FunctionName) or not name.startswith(f"{op}("):
        return None
    forms = iter(at)
    return [
        _collect((k, tuple((of, tuple(next(forms) for _ in range(n))) for of, n in factors)) for k, factors in shape)
        for shape in name.shape
    ]


def _sign(value: Polynomial) -> int:
    """Return the sign of the coefficients of the monomials with the first names; 0 if they have both signs.

    The indices of elements do not count: equal programs may name them differently.
    """
    names = [[name for name, _ in factors] for _, factors in value]
    signs = {1 if k > 0 else -1 for (k, _), own in zip(value, names, strict=True) if own == max(names)}
    return signs.pop() if len(signs) == 1 else 0


def _is_positive(factor: Factor) -> bool:
    return factor[0].startswith(("relu(", "exp(", "abs("))


def _apply_arithmetic(op: str, args: list[Polynomial], rounding: Rounding | None) -> Polynomial | None:
    """Expand a sum, a product, or a quotient by a number or of a factor; None for other applications."""
    match op, args:
        case "+", _:
            return _collect(m for arg in args for m in arg)
        case "-", [a, b]:
            return _collect((*a, *((multiply_numbers(k, Fraction(-1)), f) for k, f in b)))
        case "neg", [a]:
            return tuple((multiply_numbers(k, Fraction(-1)), f) for k, f in a)
        case (("*" | "/"), [((a, ()),), ((b, ()),)]) if isinf(a) and not isinf(b):
            return ((a if b > 0 else -a, ()),)
        case "*", [((a, ()),), ((b, ()),)] if isinf(b) and not isinf(a):
            return ((b if a > 0 else -b, ()),)
        case "*", _:
            if infinite := [n for n, arg in enumerate(args) if any(may_be_infinite(*m) for m in arg)]:
                if () in args:
                    raise Undecided(INFINITE_MINUS_ITSELF)
                if any(len(arg) > 1 and infinite != [n] for n, arg in enumerate(args)):
                    raise Undecided("what may be infinite is multiplied by a sum")
            chosen = product(*args)
            return _collect((multiply_numbers(*(k for k, _ in c)), tuple(f for _, fs in c for f in fs)) for c in chosen)
        case "/", [a, ((k, ()),)] if not isinf(k):
            return tuple((multiply_numbers(c, 1 / Fraction(k)), f) for c, f in a)
        case "/", [((1, ()),), b] if not any(may_be_infinite(*m) for m in b) and (found := _common_factors(b))[0]:
            # 1/(f·p) is 1/f · 1/p
            factors, rest = found
            inverses = [_symbol(op, [ONE, ((Fraction(1), (f,)),)]) for f in factors]
            return apply_to_polynomials("*", [apply_to_polynomials("/", [ONE, rest], rounding), *inverses])
        case "/", [a, b] if a != ONE:
            return apply_to_polynomials("*", [a, apply_to_polynomials("/", [ONE, b], rounding)])
    return None


def _fold_constants(op: str, args: list[Polynomial]) -> Polynomial | None:
    """Return the value of a function of constants, or the operand that a maximum or minimum is; None if neither."""
    constants = [constant_value(arg) for arg in args]
    function = SCALAR_FUNCTIONS.get(op)
    known = [c for c in constants if c is not None]
    if function and function.is_integral and function.compute and len(known) == len(constants):
        value = function.of_numbers(*known)
        return ((value, ()),) if value else ()
    if function and function.at_zero is not None and args == [()]:
        return ((Fraction(function.at_zero), ()),) if function.at_zero else ()
    if function and function.at_minus_infinity is not None and constants == [-inf]:
        return ((Fraction(function.at_minus_infinity), ()),) if function.at_minus_infinity else ()
    if op == "round" and len(known) == 1 and isinf(known[0]):
        return args[0]
    if op in ("maximum", "minimum"):
        neutral = -inf if op == "maximum" else inf
        for c, other in zip(constants, reversed(args), strict=True):
            if c == neutral:
                return other
    return None


def _common_factors(value: Polynomial) -> tuple[tuple[Factor, ...], Polynomial]:
    """Return the factors that all monomials of *value* have, and *value* without them."""
    rest = [(k, list(factors)) for k, factors in value]
    common = []
    for factor in value[0][1] if value else ():
        if all(factor in factors for _, factors in rest):
            common.append(factor)
            for _, factors in rest:
                factors.remove(factor)
    return tuple(common), _collect((k, tuple(factors)) for k, factors in rest)


def _softplus(factors: tuple[Factor, ...], rounding: Rounding | None) -> tuple[Polynomial, Polynomial] | None:
    """Return c and e^q with log(1 + e^p) = c + log(1 + e^q), if the product of *factors* is e^p.

    Of p = -|y| it is log(1 + e^y) - relu(y), and of p with a negative sign p + log(1 + e^-p).  None for others.
    """
    found = [_arguments(factor, "exp") for factor in factors]
    exponents = [arguments[0] for arguments in found if arguments is not None]
    if len(exponents) < len(found) or any(may_be_infinite(*m) for exponent in exponents for m in exponent):
        return None
    whole = _collect(m for exponent in exponents for m in exponent)

    def power(of: Polynomial) -> Polynomial:
        return factor_exponentials(of, rounding) if len(found) > 1 else apply_to_polynomials("exp", [of], rounding)

    for k, own in whole:
        inner = _arguments(own[0], "relu") if len(own) == 1 and k < 0 else None
        if inner is not None:
            half = -Fraction(k) / 2
            y = _collect((multiply_numbers(half, c), of) for c, of in inner[0])
            if _collect(m for m in whole if m != (k, own)) == y:
                return ((-half, own),), power(y)
    if _sign(whole) < 0:
        return whole, power(apply_to_polynomials("neg", [whole]))
    return None


def _common_exponents(value: Polynomial) -> tuple[list[Polynomial], Polynomial] | None:
    """Return the exponents c, and p, of *value* = e^c · … · p: its logarithm is c + … + log p; None without."""
    if any(may_be_infinite(*m) for m in value):
        return None
    shift, rest = list[Polynomial](), list[tuple[Number, list[Factor]]]((k, list(fs)) for k, fs in value)
    for factor in _common_factors(value)[0]:
        argument = _arguments(factor, "exp")
        if argument is not None:
            shift += argument
            for _, factors in rest:
                factors.remove(factor)
    return (shift, _collect((k, tuple(factors)) for k, factors in rest)) if shift else None


def _scaled(function: ScalarFunction, args: list[Polynomial]) -> tuple[Fraction, list[Polynomial]] | None:
    """Return c^degree and *args* / c, where c is their largest coefficient: f(c·x) = c^degree · f(x) for c > 0."""
    sizes: list[Number] = [-k if k < 0 else k for arg in args for k, _ in arg]
    if not sizes or isinf(largest := max(sizes)) or (power := function.scaled_by(Fraction(largest))) is None:
        return None
    return power, [tuple((Fraction(k) / Fraction(largest), f) for k, f in arg) for arg in args]


def _symbol(op: str, args: list[Polynomial], rounding: Rounding | None = None) -> Polynomial:
    """Return *op* of *args* as a factor of its own."""
    names, index = zip(*(polynomial_skeleton(arg, rounding) for arg in args), strict=True)
    of = f"{op}({', '.join(names)})"
    passed = not args[1] if op == "/" else op not in ASSUMED_FINITE and INFINITE_SUFFIX in of
    name = _FunctionName(of + INFINITE_SUFFIX * passed)
    name.shape = tuple(tuple((k, tuple((f, len(at)) for f, at in fs)) for k, fs in arg) for arg in args)
    return ((Fraction(1), ((name, tuple(f for forms in index for f in forms)),)),)


def factor_exponentials(value: Polynomial, rounding: Rounding | None = None) -> Polynomial:
    """Rewrite the exponential of a sum as the product of the terms' exponentials; exp(0) is 1."""
    return apply_to_polynomials("*", [apply_to_polynomials("exp", [(m,)], rounding) for m in value]) if value else ONE


def cancel_exponentials(factors: tuple[Factor, ...]) -> tuple[Factor, ...]:
    """Cancel pairs of exponentials with product 1, except those of possibly infinite values; 1/exp(a) is exp(-a)."""
    kept: list[Factor] = []
    for of, at in factors:
        inverse = of.startswith("/(1, 1*exp(") and INFINITE_SUFFIX not in of
        name = _opposite(of.removeprefix("/(1, 1*").removesuffix(")")) if inverse else of
        opposite = (_opposite(name), at)
        if name.startswith("exp(") and INFINITE_SUFFIX not in name and opposite in kept:
            kept.remove(opposite)
        else:
            kept.append((name, at))
    return tuple(kept)


def _opposite(name: str) -> str:
    head, minus, rest = name.partition("exp(-")
    return f"exp({rest}" if minus and not head else f"exp(-{name.removeprefix('exp(')}"


def constant_value(value: Polynomial) -> Number | None:
    """Return the number of a constant polynomial; None for others."""
    match value:
        case ():
            return Fraction(0)
        case ((k, ()),):
            return k
    return None


def _collect(monomials: Iterable[Monomial]) -> Polynomial:
    """Add like monomials; sort them by names first."""
    total: dict[tuple[object, ...], Monomial] = {}
    for k, factors in monomials:
        ordered = tuple(sorted(factors, key=_factor_key))
        which = tuple(map(_factor_key, ordered))
        if which not in total:
            total[which] = k, ordered
        elif (old := total[which][0]) * k < 0 and (may_be_infinite(k, ordered) if ordered else isinf(old) and isinf(k)):
            raise Undecided(INFINITE_MINUS_ITSELF)
        else:
            total[which] = old + k, ordered
    kept = [(k, f) for k, f in total.values() if k]
    return tuple(sorted(kept, key=lambda m: ([n for n, _ in m[1]], m[0], [_factor_key(f) for f in m[1]])))


def _factor_key(factor: Factor) -> tuple[str, tuple[tuple[tuple[str, int], ...], ...]]:
    return factor[0], tuple(map(form_key, factor[1]))


def polynomial_skeleton(value: Polynomial, rounding: Rounding | None = None) -> tuple[str, tuple[Form, ...]]:
    """Return a polynomial as a function name over tensor elements, and the elements' indices.

    *rounding*: constants are rounded by it.
    """
    numbers = (str(rounding.number(k) if rounding else k).replace("inf", INFINITE_SUFFIX) for k, _ in value)
    names = " + ".join("*".join((k, *(name for name, _ in fs))) for k, (_, fs) in zip(numbers, value, strict=True))
    return names or "0", tuple(form for _, factors in value for _, at in factors for form in at)


def exact_number(value: float) -> Number:
    """Return *value* exactly, also infinities; raises Undecided for NaN."""
    if isnan(value):
        raise Undecided("a constant is not a number")
    return value if isinf(value) else Fraction(value)


def multiply_numbers(*numbers: Number) -> Number:
    """Multiply *numbers*; raises Undecided if one of several is infinite."""
    if len(numbers) > 1 and any(map(isinf, numbers)):
        raise Undecided("an infinite constant is multiplied")
    return prod(numbers, start=Fraction(1)) if len(numbers) > 1 else numbers[0]
