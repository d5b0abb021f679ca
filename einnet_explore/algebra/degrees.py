"""Bounds of the degrees of what a program computes, as a quotient of polynomials in its inputs."""

from __future__ import annotations

from math import prod

from einnet_explore.ir import Access, Apply, Const, Program, Scalar, Scope, Tensor


def degree(program: Program) -> tuple[int, int, int]:
    """Bounds of the degrees of numerator and denominator of any output element, and 1 where values are compared."""
    known: dict[str, tuple[int, int, int]] = {t.name: (1, 0, 0) for t in program.inputs}

    def of(body: Scalar) -> tuple[int, int, int]:
        match body:
            case Access(Tensor(name)):
                return known[name]
            case Access(Scope() as scope):
                return over(scope)
            case Apply("where", (_, yes, no)):
                return tuple(map(max, of(yes), of(no)))  # type: ignore[return-value]
            case Apply(op, args):
                found = [of(a) for a in args]
                tops, bottoms, ordered = ([f[n] for f in found] for n in range(3))
                if op == "*":
                    return sum(tops), sum(bottoms), max(ordered)
                if op == "/":
                    return tops[0] + bottoms[1], bottoms[0] + tops[1], max(ordered)
                if op in ("+", "-", "neg"):
                    return (
                        max(t - b for t, b in zip(tops, bottoms, strict=True)) + sum(bottoms),
                        sum(bottoms),
                        max(ordered),
                    )
                if op in ("maximum", "minimum"):
                    return max(tops), max(bottoms), 1
                match args:
                    case (_, Const(value)) if op == "pow" and 0 <= value == int(value):
                        return tops[0] * int(value), bottoms[0] * int(value), ordered[0]
                return 1 + 3 * (sum(tops) + sum(bottoms)), 3 * sum(bottoms), max(ordered)
        return 0, 0, 0

    def over(scope: Scope) -> tuple[int, int, int]:
        top, bottom, ordered = of(scope.body)
        count = prod(y.extent for y in scope.summations)
        match scope.reduce:
            case "sum":
                return top + bottom * (count - 1), bottom * count, ordered
            case "prod":
                return top * count, bottom * count, ordered
        return top, bottom, 1

    for equation in program.equations:
        known[equation.name] = over(equation.scope)
    tops, bottoms, ordered = zip(*(known[name] for name in program.outputs), strict=True)
    return max(tops), max(bottoms), max(ordered)
