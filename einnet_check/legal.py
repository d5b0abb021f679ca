"""Whether an equation reads nothing beyond its tensors, and means what the operator or view that runs it computes."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from einnet_check.compare import difference, occurs
from einnet_check.terms import NEUTRAL, Form, Rows, Space, complement, plus
from einnet_check.text import Equation, Expr, Parser, Read, Scope, Tensor, reads

D, H, W = ("d", "q", "D"), ("h", "r", "H"), ("w", "s", "W")
WINDOWS = {"Conv1d": [H], "Conv2d": [H, W], "Conv3d": [D, H, W], "MaxPool2d": [H, W], "AveragePool2d": [H, W]}
WINDOWS |= {"ConvTranspose1d": [("y", "h", "R")], "ConvTranspose2d": [("y", "h", "R"), ("x", "w", "S")]}
"""The composite dimensions of operators: output iterator, summed iterator, extent."""
BINARY = {"Add": "+", "Sub": "-", "Mul": "*", "Div": "/"}


def canonical(operator: str, a: dict[str, Any]) -> tuple[Any, ...]:
    """The expression of a library operator with the attributes *a*: reduction, what combines the operands, divisor,
    traversals, summations, and for every operand its dimensions: an iterator's, or an index with an extent.
    """
    b, g = ([x] if a.get(x, 1) != 1 else [] for x in "bg")
    windows = WINDOWS.get(operator, [])
    out, taps = [y for y, _, _ in windows], [r for _, r, _ in windows]
    if operator.startswith("ConvTranspose"):
        kernel = [(f"{y} - {a['s' + h]}*{h} + {a['p' + h]}", a[size]) for y, h, size in windows]
        return "sum", "*", 1, ["n", *g, "f", *out], ["c", *taps], [["n", *g, "c", *taps], [*g, "c", "f", *kernel]]
    image = [(f"{a['s' + h]}*{h} + {a['d' + h]}*{r} - {a['p' + h]}", a[size]) for h, r, size in windows]
    match operator:
        case "Matmul" | "BatchMatmul":
            left, right = "km" if a.get("ta") else "mk", "nk" if a.get("tb") else "kn"
            return "sum", "*", 1, [*b, "m", "n"], ["k"], [[*b, *left], [*b, *right]]
        case "Conv1d" | "Conv2d" | "Conv3d":
            return "sum", "*", 1, ["n", *g, "f", *out], ["c", *taps], [["n", *g, "c", *image], [*g, "f", "c", *taps]]
        case "MaxPool2d":
            return "max", "", 1, ["n", "c", *out], taps, [["n", "c", *image]]
        case "AveragePool2d":
            return "sum", "", a["r"] * a["s"], ["n", "c", *out], taps, [["n", "c", *image]]
        case "G2BMM" | "GBMM" if a["w"] == 2 * a["W"] + 1:
            band, (x, y, z) = (f"m + {a['d']}*w - {a['d'] * a['W']}", a["m"]), "kwk" if operator[1] == "2" else "wnn"
            return "sum", "*", 1, [*b, "m", y], [x], [[*b, "m", x], [*b, band, z]]
        case "Add" | "Sub" | "Mul" | "Div":
            return "sum", BINARY[operator], 1, ["i"], [], [["i"], ["i"]]
    raise ValueError(f"{operator} is no known operator, or has other attributes")


class Used(dict[str, Any]):
    """Attributes that note which of them were looked at."""

    def __init__(self, held: Any) -> None:
        super().__init__(held)
        self.seen = set[str]()

    def __getitem__(self, name: str) -> Any:
        self.seen.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.seen.add(name)
        return super().get(name, default)


def wrong_call(equation: Equation, views: dict[str, tuple[int, ...]]) -> str | None:
    """Why *equation* is not what its operator computes of its operands; *views*: strides of those that are views."""
    a = Used(equation.attributes)
    try:
        reduce, op, divisor, out, sums, operands = canonical(equation.operator, a)
        ranges = [", ".join(f"{x}:{a[x]}" for x in names) for names in (out, sums)]
        sources, called, given = [r.source for r in reads(equation.scope.body)], [], {}
        for n, dimensions in enumerate(operands):
            shape = [a[d] if isinstance(d, str) else d[1] for d in dimensions]
            index = ", ".join(d if isinstance(d, str) else d[0] for d in dimensions)
            called.append(f"T{n}[{index}]")
            source = sources[n] if len(sources) == len(operands) else None
            if not isinstance(source, Tensor) or source.box != tuple((0, k) for k in shape):
                return f"operand {n} of {equation.operator} is no tensor of shape {shape}"
            given[f"T{n}"] = Tensor(source.name, source.box, source.box, NEUTRAL[reduce])
            row = views.get(source.name, (0, shape[-1], 1))[-2:][0] if len(shape) > 1 else 0
            name = f"ld{'ab'[n]}" if equation.operator.endswith("Matmul") else ""
            if len(shape) > 1 and row != a.get(name, shape[-1]) and (name in a or shape[-2] > 1):
                return f"rows of operand {n} are {row} apart, not {a.get(name, shape[-1])}"
        reduced = f"{reduce}[{ranges[1]}] " if sums else ""
        text = f"Y[{ranges[0]}] = {reduced}{f' {op} '.join(called)}" + f" / {divisor}" * (divisor != 1)
        scope = Parser(text, given).equation().scope
        if unknown := set(a) - a.seen:
            return f"{equation.operator} has no attribute {', '.join(sorted(unknown))}"
        if scope.box != equation.scope.box:
            return f"{equation.operator} gives a result of box {scope.box}"
        return None if scope == equation.scope else difference(scope, equation.scope, scope.box)
    except (KeyError, TypeError, ValueError) as error:
        return f"{equation.operator}: {error!r}"


def strides(equation: Equation) -> tuple[int, ...]:
    """The strides of a view; raises ValueError where it is not its source's own elements at what it names."""
    scope, named = equation.scope, equation.attributes
    if scope.sums or scope.domain or not isinstance(scope.body, Read) or not isinstance(scope.body.source, Tensor):
        raise ValueError("a view reads one tensor and nothing else")
    space, source = Space(scope.box, lambda a, b: False), scope.body.source
    env, _ = space.enter(scope, space.point)
    where = [space.form(i, env) for i in scope.body.at]
    address, step = {"": 0}, 1
    for form, (lo, hi) in reversed(list(zip(where, source.box, strict=True))):
        address, step = plus(address, plus(form, {"": -lo}), step), step * (hi - lo)
    found = tuple(named.get("strides", (address.get(v, 0) for v in space.x)))
    gap = address
    for k, v, (lo, _) in zip(found, space.x, scope.box, strict=True):
        gap = plus(gap, {v: 1, "": -lo}, -k)
    gap = plus(gap, {"": named.get("offset", gap[""])}, -1)
    for rows in (*complement(space.within(where, source.box)), *complement(space.within([gap], [(0, 1)]))):
        if occurs(space, (), rows):
            raise ValueError(f"a view lies elsewhere than offset {named.get('offset')} and strides {found} say")
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
            for beyond in complement(space.within(at, read.source.reach)):
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
        case ("where", condition, yes, no):
            for pieces, branch in zip(space.decided(condition, env), (yes, no), strict=True):
                for piece in pieces:
                    yield from guarded(space, branch, env, (*rows, *piece))
        case (_, *args):
            for arg in args:
                yield from guarded(space, arg, env, rows)


def wrong_equations(program: Any) -> str | None:
    """What is wrong with the equations of *program* by themselves: a read, a view or a call; None where nothing is."""
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
