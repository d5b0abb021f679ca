"""Parser of programs in the text form (``.ein``), independent of the optimiser.

``tensor A[7, 16] pad [1, 0]`` is an input, ``Y[h:7] = sum[r:3] A[h+r-1, r]`` an equation, ``{[x:4] …}[i]`` a nested
scope that is read at ``i``; ``|`` begins a domain, ``via`` names the operator that runs an equation.  After a line
``param h >= 3, h % 2 == 1``, sizes may be polynomials of the parameters.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import inf, prod
from typing import Any, NamedTuple, TypeAlias

from einnet_check.sizes import Size, natural, parameter

Box: TypeAlias = "tuple[tuple[Any, Any], ...]"
"""Ranges ``[lo, hi)`` of integers, or of ``Size`` values."""
Number: TypeAlias = "Fraction | float"
Expr: TypeAlias = "Any"
"""A number, the name of an iterator, a ``Read``, or ``(op, argument, …)``: an index has ``+ * / // %``, a scalar has
``+ * /``, functions, and ``("where", index, yes, no)``: the first scalar where the index is at least 0."""
ARITY = dict.fromkeys(["relu", "tanh", "sigmoid", "exp", "log", "sqrt", "rsqrt", "abs", "erf"], 1)
ARITY |= {"pow": 2, "maximum": 2, "minimum": 2}
"""Known functions; any other name before a parenthesis is an uninterpreted function: proofs hold whatever it means."""
FINITE = {"exp", "tanh", "sigmoid", "erf", "rsqrt"}
"""Functions whose values are taken to be finite, also those of infinite arguments."""


INTEGERS = {f"int{n}": (-(1 << n - 1), (1 << n - 1) - 1) for n in (8, 16, 32, 64)}
INTEGERS |= {f"uint{n}": (0, (1 << n) - 1) for n in (8, 16, 32)} | {"bool": (0, 1)}
"""The smallest and the largest number of each type of integers."""
SIGNIFICANDS = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}
"""The binary digits of each floating-point type."""
CASTS = frozenset({*INTEGERS, *SIGNIFICANDS})
"""Functions that have the name of their type."""
COMPARISONS = frozenset(["less", "less_equal", "equal"])
KEEPS = frozenset(["relu", "maximum", "minimum", "where", "select", "round"])
"""Functions that keep the type which all their operands have."""
WHOLE, REAL = "whole", "real"
"""Constants, which take the type of the other operands."""


class Tensor(NamedTuple):
    """Elements in *box*; a read elsewhere in *reach* gives *value*."""

    name: str
    box: Box
    reach: Box
    value: Number = Fraction(0)
    weight: bool = False
    infinite: bool = False
    dtype: str = "float32"


class Table(NamedTuple):
    """Known numbers, row by row."""

    box: Box
    reach: Box
    entries: tuple[Fraction, ...]


@dataclass(frozen=True)
class Scope:
    """*body* reduced over *sums* at each point of *own* where all of *domain* is at least 0, else *value*."""

    own: tuple[tuple[str, int, int], ...]
    sums: tuple[tuple[str, int, int], ...]
    body: Expr
    reduce: str
    domain: tuple[Expr, ...]
    reach: Box
    value: Number

    @property
    def box(self) -> Box:
        return tuple((lo, hi) for _, lo, hi in self.own)


class Read(NamedTuple):
    """One element of a tensor, a table or a scope."""

    source: Any
    at: tuple[Expr, ...]


class Equation(NamedTuple):
    """``name = scope``, run by *operator* with *attributes* (``""``: not decided)."""

    name: str
    scope: Scope
    operator: str
    attributes: Mapping[str, Any]


class Program(NamedTuple):
    """Inputs, equations in order, the names of the outputs, and what is assumed of parameters, if there are any."""

    inputs: tuple[Tensor, ...]
    equations: tuple[Equation, ...]
    outputs: tuple[str, ...]
    guards: tuple[str, ...] = ()


def walk(e: Expr, inside: bool = False) -> Iterable[Expr]:
    """*e* and all that it is made of, from left to right; not the indices of reads, of scopes only with *inside*."""
    yield e
    match e:
        case Read(Scope(body=body)) if inside:
            yield from walk(body, inside)
        case (str(), *args):
            for arg in args:
                yield from walk(arg, inside)


def mapped(e: Expr, change: Callable[[Read], Expr]) -> Expr:
    """*e* with every read of it changed."""
    if isinstance(e, Read):
        return change(e)
    return tuple(mapped(arg, change) for arg in e) if isinstance(e, tuple) else e


def reads(body: Expr, inside: bool = False) -> list[Read]:
    """The accesses of *body*, with *inside* also those of the scopes that it reads."""
    return [e for e in walk(body, inside) if isinstance(e, Read)]


def tensors(scope: Scope) -> list[str]:
    """The tensors that *scope* reads, also inside."""
    return [r.source.name for r in reads(scope.body, True) if isinstance(r.source, Tensor)]


def infinite(e: Expr) -> bool:
    """Whether a value of *e* may be infinite: an infinite constant may become one, or what a tensor holds."""
    match e:
        case Read(Scope() as scope):
            return isinstance(scope.value, float) or infinite(scope.body)
        case Read(Tensor() as tensor):
            return isinstance(tensor.value, float) or tensor.infinite
        case ("/", a, b):
            return b == 0 or infinite(a)
        case (str(op), *args):
            return op not in FINITE and any(map(infinite, args))
    return isinstance(e, float)


def scope_type(scope: Scope) -> str:
    """The type of the elements of *scope*."""
    found = expression_type(scope.body)
    if scope.sums and scope.reduce in ("sum", "prod"):
        found = arithmetic([found])
    if (scope.domain or scope.reach != scope.box) and found not in (WHOLE, REAL):
        found = chosen([found, constant_type([scope.value])], [scope.value])
    return "float32" if found in (WHOLE, REAL) else found


def expression_type(e: Expr) -> str:
    match e:
        case Fraction() | float():
            return constant_type([e])
        case Read(Tensor() as tensor):
            return tensor.dtype
        case Read(Table(entries=entries)):
            return constant_type(entries)
        case Read(Scope() as scope):
            return scope_type(scope)
        case (str(op), *args):
            if op in COMPARISONS:
                return "bool"
            args = args[1:] if op in ("where", "select") else args
            kinds = [expression_type(a) for a in args]
            if op in CASTS:
                return op
            if op in KEEPS:
                return chosen(kinds, [x for a in args for x in constants(a)])
            if op == "pow" and isinstance(args[1], Fraction) and args[1] >= 0 and args[1].denominator == 1:
                return arithmetic(kinds[:1])
            return arithmetic(kinds) if op in ("+", "*", "abs") else floating(kinds)
    return WHOLE  # an iterator is no number; that is found where it is used


def constants(e: Expr) -> Iterable[Any]:
    match e:
        case Fraction() | float():
            return [e]
        case Read(Table(entries=entries)):
            return entries
    return ()


def constant_type(values: Iterable[Any]) -> str:
    return REAL if any(isinstance(x, Fraction) and x.denominator > 1 for x in values) else WHOLE


def chosen(kinds: Iterable[str], values: Iterable[Any]) -> str:
    """The type of one of several operands, some of which are constants."""
    names, values = {*kinds} - {WHOLE}, [*values]
    if len(names) == 1 and REAL not in names:
        (name,) = names
        low, high = INTEGERS.get(name) or (-(1 << SIGNIFICANDS[name]), 1 << SIGNIFICANDS[name])
        if all((isinstance(x, float) and name in SIGNIFICANDS) or low <= x <= high for x in values):
            return name
        if any(isinstance(x, float) for x in values):
            return floating(names)
    return arithmetic([*names, *(WHOLE for _ in values)])


def arithmetic(kinds: Iterable[str]) -> str:
    names = {*kinds}
    known = names - {WHOLE, REAL}
    if not known:
        return REAL if REAL in names else WHOLE
    if REAL in names or not known <= INTEGERS.keys():
        return floating(names)
    return "int64" if known & {"int64", "uint32"} else "int32"


def floating(kinds: Iterable[str]) -> str:
    return "float64" if "float64" in kinds else "float32"


def less(a: Expr, b: Expr) -> Expr:
    """a - b."""
    return ("+", a, ("*", Fraction(-1), b))


def in_expression(n: int | Size) -> Expr:
    """*n* in an expression."""
    return n if isinstance(n, Size) else Fraction(n)


def whole(e: Expr) -> int | Size | None:
    """The integer or the size that *e* is."""
    match e:
        case Size():
            return e
        case Fraction(denominator=1):
            return int(e)
    return None


def operated(op: str, a: Expr, b: Expr) -> Expr:
    """*a* *op* *b*, which is a size if both are sizes or integers."""
    left, right = whole(a), whole(b)
    if (isinstance(left, Size) and right is not None) or (isinstance(right, Size) and left is not None):
        match op:
            case "+" | "-":
                return in_expression(left + right if op == "+" else left - right)
            case "*":
                return in_expression(left * right)
            case "//" | "%" if isinstance(right, int) and right > 0:
                return in_expression(left // right if op == "//" else left % right)
    return less(a, b) if op == "-" else (op, a, b)


def where(op: str, a: Expr, b: Expr, yes: Expr, no: Expr) -> Expr:
    """*yes* where a *op* b, else *no*."""
    if op in ("==", "!="):
        yes, no = (yes, no) if op == "==" else (no, yes)
        return where("<=", a, b, where(">=", a, b, yes, no), no)
    gap = less(b, a) if op[0] == "<" else less(a, b)
    return ("where", gap if op[1:] else less(gap, Fraction(1)), yes, no)


BLANKS = r"(?>(?:\s|#[^\n]*)*)"
RESERVED = "tensor|output|weight|pad|value|via|where|table|inf|sum|max|min|prod"
WORD, QUOTED = r"[^\W\d]\w*", r"\"(?:\\.|[^\"\\\n])*\""
DIGITS, EXPONENT = "[0-9]+", "[eE][+-]?[0-9]{1,3}"
NUMBER = rf"(?:{DIGITS}\.(?!\.)[0-9]*|\.{DIGITS})(?:{EXPONENT})?|{DIGITS}{EXPONENT}|{DIGITS}"
ROW = 10_000
"""So many operators in a row at most: a deeper tree than that is more than Python's own stack holds."""
BINDS = {"+": 1, "-": 1, "*": 2, "/": 2, "//": 2, "%": 2}
"""How tightly operators bind; all of them from the left."""


def literal(digits: str) -> Fraction:
    """An integer, or the number that double precision has for *digits*, unless that is 0 or infinite."""
    value = 0.0 if digits.isdigit() else float(digits)
    return Fraction(value) if 0 < value < inf else Fraction(digits)


class Parser:
    """Recursive descent over the characters, one method a production, operators by how tightly they bind.

    Raises ValueError: ``LINE:COLUMN: found …, expected …``.
    """

    def __init__(self, text: str, known: Mapping[str, Tensor] | None = None) -> None:
        self.text, self.at, self.known, self.own = text, 0, dict(known or {}), set[str]()
        self.sizes: dict[str, int | Size] = {}
        self.guards: list[str] = []

    def need(self, condition: object, expected: str) -> None:
        """Raise ValueError at what comes next unless *condition* holds."""
        if not condition:
            self.take("")
            line, column = self.text.count("\n", 0, self.at) + 1, self.at - self.text.rfind("\n", 0, self.at)
            raise ValueError(f"{line}:{column}: found {self.text[self.at :][:20] or 'the end'!r}, expected {expected}")

    def sees(self, pattern: str) -> re.Match[str] | None:
        """Whether *pattern* comes next, past blanks and comments."""
        return re.compile(f"{BLANKS}({pattern})").match(self.text, self.at)

    def take(self, pattern: str) -> str:
        """Read the next token if it matches *pattern*."""
        if found := self.sees(pattern):
            self.at = found.end()
        return found[1] if found else ""

    def must(self, text: str) -> str:
        self.need(not text or self.take(re.escape(text)), text)
        return text

    def name(self) -> str:
        found = self.take(f"{WORD}|{QUOTED}")
        self.need(found, "a name")
        return str(json.loads(found, strict=False)) if found[0] == '"' else found

    def integer(self) -> int:
        sign, digits = -1 if self.take("-") else 1, self.take(rf"{DIGITS}\b")
        self.need(digits, "an integer")
        return sign * int(digits)

    def size(self) -> int | Size:
        """Read an integer, or a polynomial of parameters in its place; iterators may have the names of parameters."""
        if not self.sizes:
            return self.integer()
        own, self.own = self.own, set()
        found, self.own = whole(self.expression()), own
        self.need(found is not None, "an integer or a size before")
        return found or 0

    def parameters(self) -> None:
        """Read the assumptions of a ``param`` line: ``h >= 3, h % 2 == 1``."""
        given: dict[str, list[tuple[str, int, int]]] = {}
        while not given or self.take(","):
            name = self.take(WORD)
            self.need(name and name not in self.known and name not in self.sizes, "a new parameter")
            start, guards = self.at, given.setdefault(name, [])
            if op := self.take(">=|<=|%"):
                guards.append((op, self.integer(), 0 if op != "%" or not self.must("==") else self.integer()))
            self.guards.append(name + self.text[start : self.at])
        self.sizes |= {name: parameter(len(self.sizes) + n, guards) for n, (name, guards) in enumerate(given.items())}

    def entry(self) -> Fraction:
        above, below = self.integer(), self.integer() if self.take("/") else 1
        self.need(below, "a denominator other than 0 before")
        return Fraction(above, below)

    def items(self, opening: str, item: Callable[[], Any], closing: str) -> tuple[Any, ...]:
        """Read the items, separated by commas, between *opening* and any character of *closing*."""
        self.must(opening)
        found, end = [], f"[{re.escape(closing)}]"
        while not self.take(end):
            found.append(item())
            self.need(self.take(",") or self.sees(end), closing)
        return tuple(found)

    def program(self) -> Program:
        inputs, equations, outputs = list[Tensor](), list[Equation](), list[str]()
        while self.sees(r"\S"):
            if self.take(r"param\b(?!\s*\[)"):
                self.parameters()
                continue
            if self.take(r"output\b"):
                outputs.append(self.name())
                while self.take(","):
                    outputs.append(self.name())
                continue
            if self.take(r"tensor\b"):
                box = self.shape(name := self.name())
                reach, value, weight, dtype = self.clauses(box)
                low, high = INTEGERS.get(dtype, (value, value))
                self.need(low <= value <= high, f"a padding value that {dtype} has before")
                inputs.append(made := Tensor(name, box, reach, value, weight, False, dtype))
            else:
                equations.append(Equation(name := self.name(), scope := self.scope("="), *self.via()))
                holds = infinite(Read(scope, ())), scope_type(scope)
                made = Tensor(name, scope.box, scope.reach, scope.value, False, *holds)
            self.need(name not in {**self.known, **self.sizes}, f"no second definition of {name} before")
            self.known[name] = made
        read = {name for e in equations for name in tensors(e.scope)}
        names = outputs or [e.name for e in equations if e.name not in read]
        self.need(equations and set(names) <= {*self.known}, "equations and outputs before")
        return Program(tuple(inputs), tuple(equations), tuple(names), tuple(self.guards))

    def shape(self, name: str) -> Box:
        box = tuple((0, n) for n in self.items("[", self.size, "]"))
        self.need(all(natural(n - 1) for _, n in box), f"sizes of {name} above 0 before")
        return box

    def clauses(self, box: Box) -> tuple[Box, Number, bool, str]:
        pads, value, weight, dtype = ((0, 0),) * len(box), Fraction(0), False, "float32"
        while word := self.take(rf"(?:pad|value|weight|{'|'.join(CASTS)})\b"):
            if word == "pad":
                pads = tuple(p if isinstance(p, tuple) else (p, p) for p in self.items("[", self.integers, "]"))
                right = len(pads) == len(box) and all(len(p) == 2 and all(map(natural, p)) for p in pads)
                self.need(right, f"{len(box)} pads before")
            elif word == "value":
                value = self.factor()
                self.need(isinstance(value, Fraction | float), "a number before")
            weight = weight or word == "weight"
            dtype = word if word in CASTS else dtype
        return tuple((lo - a, hi + b) for (lo, hi), (a, b) in zip(box, pads, strict=True)), value, weight, dtype

    def via(self) -> tuple[str, dict[str, Any]]:
        operator = self.name() if self.take(r"via\b") else ""
        given = self.items("(", self.attribute, ")") if operator and self.sees(r"\(") else ()
        self.need(len(dict(given)) == len(given), "no attribute twice before")
        return operator, dict(given)

    def attribute(self) -> tuple[str, Any]:
        name, _ = self.name(), self.must("=")
        return name, self.name() if self.sees(QUOTED) else self.integers()

    def integers(self) -> Any:
        if not self.sees(r"\("):
            return self.size()
        found = self.items("(", self.size, ")")
        return found[0] if self.sizes and len(found) == 1 else found

    def range(self) -> tuple[str, Any, Any]:
        name, _, hi = self.take(WORD), self.must(":"), self.size()
        lo: int | Size = 0
        if self.take(r"\.\."):
            lo, hi = hi, self.size()
        new = name and name not in self.own
        self.need(new and natural(hi - lo - 1), f"a range of {name} that is new and not empty before")
        self.own.add(name)
        return name, lo, hi

    def bound(self) -> tuple[Expr, Expr]:
        lo, _, index, _, hi = self.size(), self.must("<="), self.expression(), self.must("<"), self.size()
        return less(index, in_expression(lo)), less(in_expression(hi - 1), index)

    def scope(self, opening: str) -> Scope:
        """``[traversals | domain] = body`` or ``[…] body }``; iterators outside are not known inside."""
        outer, self.own = self.own, set()
        own = self.items("[", self.range, "]|")
        domain = self.items("", self.bound, "]") if self.text[self.at - 1] == "|" else ()
        self.must(opening)
        reduce = self.take(r"(?:sum|max|min|prod)\b")
        sums = self.items("[", self.range, "]") if reduce else ()
        body, self.own = self.expression(), outer
        self.must("" if opening else "}")
        reach, value, *_ = self.clauses(tuple((lo, hi) for _, lo, hi in own))
        return Scope(own, sums, body, reduce or "sum", tuple(row for rows in domain for row in rows), reach, value)

    def expression(self, least: int = 1) -> Expr:
        """An index or a scalar; what is no index, or no scalar, is found where it is used."""
        out, before = self.factor(), 0
        while (found := self.sees(r"//|[-+*/%]")) and BINDS[op := found[1]] >= least:
            self.at, before = found.end(), before + 1
            self.need(before < ROW, f"fewer than {ROW} operators in a row before")
            more = self.expression(BINDS[op] + 1)
            out = operated(op, out, more)
        return out

    def factor(self) -> Expr:
        if self.take("-"):
            inner = self.factor()
            return -inner if isinstance(inner, Fraction | float | Size) else ("*", Fraction(-1), inner)
        if self.take(r"\("):
            inner, _ = self.expression(), self.must(")")
            return inner
        if number := self.take(rf"inf\b|{NUMBER}"):
            return inf if number == "inf" else literal(number)
        if self.take(r"\{"):
            return self.read(self.scope(""))
        if self.take(r"table\b"):
            box, entries = self.shape("a table"), self.items("(", self.entry, ")")
            self.need(len(entries) == prod(n for _, n in box), "as many entries as the shape says before")
            return self.read(Table(box, box, entries))
        if self.take(r"where\s*\("):
            left, op = self.expression(), self.take(r"[<>=!]=|[<>]")
            self.need(op, "a comparison")
            rest = self.items("", self.expression, ")")
            self.need(len(rest) == 3, "two numbers, with and without the condition, before")
            return where(op, left, *rest)
        if function := self.take(rf"(?!(?:{RESERVED})\b){WORD}(?=\s*\()"):
            args = self.items("(", self.expression, ")")
            count = ARITY.get(function, max(1, len(args)))
            self.need(len(args) == count, f"{count} arguments of {function} before")
            return (function, *args)
        word, name = self.sees(WORD), self.name()
        if word and name in self.own and not self.sees(r"\["):
            return name
        if word and name in self.sizes:
            return in_expression(self.sizes[name])
        self.need(name in self.known, f"one of {', '.join((*self.known, *sorted(self.own)))} instead of {name} before")
        return self.read(self.known[name])

    def read(self, source: Any) -> Read:
        index = self.items("[", self.expression, "]")
        self.need(len(index) == len(source.box), f"{len(source.box)} indices before")
        return Read(source, index)
