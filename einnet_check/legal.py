"""Legality of equations: reads within the tensors' reach, and equality with the operator or view that runs them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from fractions import Fraction
from functools import lru_cache
from math import inf, prod
from typing import Any

from einnet_check.compare import difference, occurs
from einnet_check.sizes import Size
from einnet_check.terms import Form, Rows, Space, complement, plus, within
from einnet_check.text import Equation, Expr, Parser, Read, Scope, Tensor, reads

OPERATORS = {
    **dict.fromkeys(["Matmul", "BatchMatmul"], "b m n | k | b m k | b k n"),
    "Conv1d": "n g f h | c r | n g c H=sh*h+dh*r-ph | g f c r",
    "Conv2d": "n g f h w | c r s | n g c H=sh*h+dh*r-ph W=sw*w+dw*s-pw | g f c r s",
    "Conv3d": "n g f d h w | c q r s | n g c D=sd*d+dd*q-pd H=sh*h+dh*r-ph W=sw*w+dw*s-pw | g f c q r s",
    "ConvTranspose1d": "n g f y | c h | n g c h | g c f R=y-sh*h+ph",
    "ConvTranspose2d": "n g f y x | c h w | n g c h w | g c f R=y-sh*h+ph S=x-sw*w+pw",
    "MaxPool2d": "n c h w | r s | n c H=sh*h+dh*r-ph W=sw*w+dw*s-pw",
    "AveragePool2d": "n c h w | r s | n c H=sh*h+dh*r-ph W=sw*w+dw*s-pw",
    "G2BMM": "b m w | k | b m k | b m=m+d*w-d*W k",
    "GBMM": "b m n | w | b m w | b m=m+d*w-d*W n",
    **dict.fromkeys(["Add", "Sub", "Mul", "Div"], "i | | i | i"),
}
"""Traversals, summations and operands of library operators; a dimension is an iterator, or ``EXTENT=index``."""
BINARY = {"Add": "+", "Sub": "-", "Div": "/"}


def canonical(operator: str, a: Callable[..., int]) -> tuple[str, list[list[int]]]:
    """The equation of a library operator with the attributes *a*, and the shapes of its operands ``T0`` and ``T1``."""
    table = OPERATORS.get(operator, "")
    if not table or ("m=m" in table and a("w") != 2 * a("W") + 1):
        raise ValueError(f"{operator} is no known operator, or has other attributes")
    # A batch or group of one is no dimension.
    parts = [[d for d in part.split() if d not in "bg" or a(d, 1) != 1] for part in table.split("|")]
    for n, turned in enumerate(("ta", "tb") if operator.endswith("Matmul") else ()):
        parts[2 + n][-2:] = parts[2 + n][-2:][:: -1 if a(turned, 0) else 1]
    out, sums, *operands = [[d.partition("=") for d in part] for part in parts]
    known = {x for x, _, _ in (*out, *sums)}

    def index(text: str) -> str:
        return re.sub(r"\w+", lambda x: x[0] if x[0] in known else str(a(x[0])), text)

    reads_ = (f"T{n}[{', '.join(index(i or x) for x, _, i in dims)}]" for n, dims in enumerate(operands))
    ranges = [", ".join(f"{x}:{a(x)}" for x, _, _ in part) for part in (out, sums)]
    reduced = f"{'max' if operator == 'MaxPool2d' else 'sum'}[{ranges[1]}] " if sums else ""
    body = f" {BINARY.get(operator, '*')} ".join(reads_) + (f" / {a('r') * a('s')}" if "Average" in operator else "")
    return f"[{ranges[0]}] = {reduced}{body}", [[a(x) for x, _, _ in dims] for dims in operands]


def wrong_call(equation: Equation, views: dict[str, tuple[int, ...]]) -> str | None:
    """Return why *equation* is not the value of its operator; *views*: strides of the operands that are views."""
    attributes, seen = equation.attributes, set[str]()

    def a(name: str, default: Any = None) -> int:
        seen.add(name)
        if not isinstance(value := attributes.get(name, default), int):
            raise ValueError(f"attribute {name} is {value!r}, expected an integer")
        return value

    try:
        text, shapes = canonical(equation.operator, a)
        sources, given = [r.source for r in reads(equation.scope.body)], {}
        for n, shape in enumerate(shapes):
            source = sources[n] if len(sources) == len(shapes) else None
            if not isinstance(source, Tensor) or source.box != tuple((0, k) for k in shape):
                return f"operand {n} of {equation.operator} is no tensor of shape {shape}"
            outside = -inf if "= max" in text else Fraction(0)
            given[f"T{n}"] = source._replace(reach=source.box, value=outside, weight=False)
            packed = tuple(prod(shape[d + 1 :]) for d in range(len(shape)))
            held = views.get(source.name, packed)
            matrix = equation.operator.endswith("Matmul")
            want = (*held[:-2], a(f"ld{'ab'[n]}", shape[-1]), 1) if matrix else packed
            for d, extent in enumerate(shape):
                if held[d] != want[d] and extent > 1:
                    return f"operand {n} has stride {held[d]} in dimension {d}, not {want[d]}"
        scope = Parser(text, given).scope("=")
        if unknown := set(attributes) - seen:
            return f"{equation.operator} has no attribute {', '.join(sorted(unknown))}"
        if scope.box != equation.scope.box:
            return f"{equation.operator} gives a result of box {scope.box}"
        return None if scope == equation.scope else difference(scope, equation.scope, scope.box)
    except ValueError as error:
        return f"{equation.operator}: {error}"


def strides(equation: Equation) -> tuple[int, ...]:
    """Return the strides of a view in its row-major source.

    Raises ValueError where it is not its source's own elements at what it names.
    """
    scope, named = equation.scope, equation.attributes
    if scope.sums or scope.domain or not isinstance(scope.body, Read) or not isinstance(scope.body.source, Tensor):
        raise ValueError("a view reads one tensor and nothing else")
    space, source = Space(scope.box, lambda a, b: False), scope.body.source
    if any(isinstance(n, Size) for ends in (*scope.box, *source.box) for n in ends):
        raise ValueError("the strides of a view depend on the sizes")
    env, _ = space.enter(scope, space.point)
    where = [space.form(i, env) for i in scope.body.at]
    address: Form = {"": 0}
    for d, (form, (lo, _)) in enumerate(zip(where, source.box, strict=True)):
        address = plus(address, plus(form, {"": -lo}), prod(hi - lo for lo, hi in source.box[d + 1 :]))
    found = tuple(named.get("strides", (address.get(v, 0) for v in space.x)))
    gap = address
    for k, v, (lo, _) in zip(found, space.x, scope.box, strict=True):
        gap = plus(gap, {v: 1, "": -lo}, -k)
    gap = plus(gap, {"": named.get("offset", gap[""])}, -1)
    for rows in complement(space.holds((*within(where, source.box), gap, plus({"": 0}, gap, -1)))):
        if occurs(space, (), rows):
            raise ValueError(f"a view lies elsewhere than offset {named.get('offset')}, strides {found} say")
    return found


@lru_cache(1 << 12)
def illegal(scope: Scope) -> str | None:
    """A read of *scope*, or of a scope inside it, beyond what it may read; None where all are legal."""
    space = Space(scope.box, lambda a, b: False)
    env, rows = space.enter(scope, space.point)
    if rows is not None:
        env.update({y: {space.fresh("y", lo, hi): 1, "": 0} for y, lo, hi in scope.sums})
        summed = tuple(v for v in space.range if v[0] == "y")
        for read, guards in guarded(space, scope.body, env, rows):
            at = [space.form(i, env) for i in read.at]
            for beyond in complement(space.holds(within(at, read.source.reach))):
                if occurs(space, summed, (*guards, *beyond)):
                    name = read.source.name if isinstance(read.source, Tensor) else "a scope"
                    return f"{name} is read beyond its reach {list(read.source.reach)}"
    inner = (illegal(r.source) for r in reads(scope.body) if isinstance(r.source, Scope))
    return next((why for why in inner if why), None)


def guarded(space: Space, e: Expr, env: dict[str, Form], rows: Rows) -> Iterable[tuple[Read, Rows]]:
    """Every access of *e* with the conditions under which it is made, in disjoint pieces."""
    match e:
        case Read():
            yield e, rows
        case ("where", index, yes, no):
            gap = space.form(index, env)
            yield from guarded(space, yes, env, (*rows, gap))
            yield from guarded(space, no, env, (*rows, plus({"": -1}, gap, -1)))
        case (_, *args):
            for arg in args:
                yield from guarded(space, arg, env, rows)


def wrong_equations(program: Any) -> str | None:
    """Return the first illegal read, view or call of *program*, None if there is none."""
    views: dict[str, tuple[int, ...]] = {}
    for equation in program.equations:
        try:
            why = illegal(equation.scope)
            if equation.operator == "View":
                views[equation.name] = strides(equation)
            elif equation.operator not in ("", "eOperator"):
                why = why or wrong_call(equation, views)
        except (TypeError, ValueError) as error:
            why = str(error)
        if why:
            return f"{equation.name}: {why}"
    return None
