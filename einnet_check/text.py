"""Programs in the text form (``.ein``), read without the optimiser.

``tensor A[7, 16] pad [1, 0]`` is an input, ``Y[h:7] = sum[r:3] A[h+r-1, r]`` an equation, ``{[x:4] …}[i]`` a scope that
stands inside an expression and is read at ``i``; ``|`` begins a domain, ``via`` says how an equation is run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import inf, prod
from typing import Any, NamedTuple, TypeAlias

Box: TypeAlias = "tuple[tuple[int, int], ...]"
Number: TypeAlias = "Fraction | float"
Expr: TypeAlias = "Any"
"""A number, the name of an iterator, a ``Read``, or ``(op, argument, …)``: an index has ``+ * / // %``, a scalar has
``+ * /``, functions, and ``("where", index, yes, no)``: the first scalar where the index is at least 0."""
ARITY = dict.fromkeys(["relu", "tanh", "sigmoid", "exp", "log", "sqrt", "rsqrt", "abs", "erf"], 1)
ARITY |= {"pow": 2, "maximum": 2, "minimum": 2}


class Tensor(NamedTuple):
    """Elements in *box*; a read elsewhere in *reach* gives *value*."""

    name: str
    box: Box
    reach: Box
    value: Number = Fraction(0)
    weight: bool = False


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
    """Inputs, equations in order, and the names of the outputs."""

    inputs: tuple[Tensor, ...]
    equations: tuple[Equation, ...]
    outputs: tuple[str, ...]


def walk(e: Expr, inside: bool = False) -> Iterable[Expr]:
    """*e* and all that it is made of, from left to right; not the indices of reads, of scopes only with *inside*."""
    yield e
    match e:
        case Read(Scope(body=body)) if inside:
            yield from walk(body, inside)
        case (str(), *args):
            for arg in args:
                yield from walk(arg, inside)


def reads(body: Expr, inside: bool = False) -> list[Read]:
    """The accesses of *body*, with *inside* also those of the scopes that it reads."""
    return [e for e in walk(body, inside) if isinstance(e, Read)]


def tensors(scope: Scope) -> set[str]:
    """The tensors that *scope* reads, also inside."""
    return {r.source.name for r in reads(scope.body, True) if isinstance(r.source, Tensor)}


def infinite(scope: Scope) -> bool:
    """Whether an infinite constant occurs in *scope* or around what it reads, also inside."""
    return any(isinstance(getattr(getattr(e, "source", None), "value", e), float) for e in walk(Read(scope, ()), True))


def less(a: Expr, b: Expr) -> Expr:
    """a - b."""
    return ("+", a, ("*", Fraction(-1), b))


def where(op: str, a: Expr, b: Expr, yes: Expr, no: Expr) -> Expr:
    """*yes* where a *op* b, else *no*."""
    match op:
        case "==":
            return where("<=", a, b, where(">=", a, b, yes, no), no)
        case "<=" | ">=":
            return ("where", less(b, a) if op == "<=" else less(a, b), yes, no)
    return where({"<": ">=", ">": "<=", "!=": "=="}[op], a, b, no, yes)


_TOKEN = re.compile(
    r"(?:\s|#[^\n]*)*(?:(?P<str>\"(?:\\.|[^\"\\\n])*\")|(?P<word>[^\W\d]\w*)"
    r"|(?P<num>(?:\d+\.(?!\.)\d*|\.\d+)(?:[eE][+-]?\d{1,3})?|\d+[eE][+-]?\d{1,3}|\d+)"
    r"|(?P<op>//|<=|>=|==|!=|\.\.|[][(){}<>=+*/%,:|-])|(?P<end>\Z)|(?P<bad>\S))"
)


class Parser:
    """Recursive descent, one method a production; raises ValueError: ``LINE:COLUMN: found …, expected …``."""

    def __init__(self, text: str, known: Mapping[str, Tensor] | None = None) -> None:
        self.text, self.at, self.known, self.own = text, 0, dict(known or {}), set[str]()
        found = ((str(m.lastgroup), m) for m in _TOKEN.finditer(text))
        self.tokens = [(kind, m[kind], m.start(kind)) for kind, m in found]

    def need(self, condition: object, expected: str) -> None:
        """Raise ValueError at the next token unless *condition* holds."""
        if not condition:
            place = self.tokens[self.at][2]
            line, column = self.text.count("\n", 0, place) + 1, place - self.text.rfind("\n", 0, place)
            raise ValueError(f"{line}:{column}: found {self.text[place:][:20] or 'the end'!r}, expected {expected}")

    def take(self, *texts: str) -> str:
        """The next token if it is one of *texts*, else nothing."""
        kind, text, _ = self.tokens[self.at]
        found = text if kind != "str" and text in texts else ""
        self.at += bool(found)
        return found

    def must(self, text: str) -> str:
        self.need(self.take(text), text)
        return text

    def token(self, *kinds: str) -> str:
        kind, text, _ = self.tokens[self.at]
        self.need(kind in kinds, "a name" if "word" in kinds else "a number")
        self.at += 1
        return str(json.loads(text, strict=False)) if kind == "str" else text

    def name(self) -> str:
        return self.token("word", "str")

    def integer(self) -> int:
        sign = -1 if self.take("-") else 1
        self.need(self.tokens[self.at][1].isdecimal(), "an integer")
        return sign * int(self.token("num"))

    def entry(self) -> Fraction:
        above, below = self.integer(), self.integer() if self.take("/") else 1
        self.need(below, "a denominator other than 0 before")
        return Fraction(above, below)

    def items(self, opening: str, item: Callable[[], Any], closing: str) -> tuple[Any, ...]:
        found = []
        self.must(opening)
        while not self.take(closing):
            found.append(item())
            if not self.take(","):
                self.must(closing)
                break
        return tuple(found)

    def program(self) -> Program:
        inputs, equations, outputs = list[Tensor](), list[Equation](), list[str]()
        while self.tokens[self.at][0] != "end":
            if self.take("output"):
                outputs.append(self.name())
                while self.take(","):
                    outputs.append(self.name())
                continue
            if self.take("tensor"):
                name, box = self.name(), tuple((0, n) for n in self.items("[", self.integer, "]"))
                self.need(all(n > 0 for _, n in box), f"sizes of {name} above 0 before")
                inputs.append(made := Tensor(name, box, *self.clauses(box)))
            else:
                equations.append(self.equation())
                scope = equations[-1].scope
                made = Tensor(equations[-1].name, scope.box, scope.reach, scope.value)
            self.need(made.name not in self.known, f"no second definition of {made.name} before")
            self.known[made.name] = made
        read = set[str]().union(*(tensors(e.scope) for e in equations))
        names = outputs or [e.name for e in equations if e.name not in read]
        self.need(equations and set(names) <= {*self.known}, "equations and outputs before")
        return Program(tuple(inputs), tuple(equations), tuple(names))

    def clauses(self, box: Box) -> tuple[Box, Number, bool]:
        pads, value, weight = ((0, 0),) * len(box), Fraction(0), False
        while word := self.take("pad", "value", "weight"):
            if word == "pad":
                pads = self.items("[", self.pad, "]")
                self.need(len(pads) == len(box) and all(min(p) >= 0 for p in pads), f"{len(box)} pads before")
            elif word == "value":
                value = self.factor()
                self.need(isinstance(value, Fraction | float), "a number before")
            weight = weight or word == "weight"
        return tuple((lo - a, hi + b) for (lo, hi), (a, b) in zip(box, pads, strict=True)), value, weight

    def pad(self) -> tuple[int, int]:
        if self.tokens[self.at][1] != "(":
            return (both := self.integer()), both
        before, after = self.items("(", self.integer, ")")
        return before, after

    def equation(self) -> Equation:
        name, scope = self.name(), self.scope("=")
        if not self.take("via"):
            return Equation(name, scope, "", {})
        operator, called = self.name(), self.tokens[self.at][1] == "("
        return Equation(name, scope, operator, dict(self.items("(", self.attribute, ")") if called else ()))

    def attribute(self) -> tuple[str, Any]:
        name, _, (kind, text, _) = self.name(), self.must("="), self.tokens[self.at]
        if kind == "str":
            return name, self.name()
        return name, self.items("(", self.integer, ")") if text == "(" else self.integer()

    def range(self) -> tuple[str, int, int]:
        name, _, lo, hi = self.token("word"), self.must(":"), 0, self.integer()
        if self.take(".."):
            lo, hi = hi, self.integer()
        self.need(lo < hi and name not in self.own, f"a range of {name} that is new and not empty before")
        self.own.add(name)
        return name, lo, hi

    def scope(self, opening: str) -> Scope:
        """``[traversals | domain] = body`` or ``[…] body }``; iterators outside are not known inside."""
        outer, self.own = self.own, set()
        own, domain, sums = list[Any](), list[Any](), ()
        self.must("[")
        while not self.take("]"):
            if self.take("|") or domain:
                lo, _, index, _ = self.integer(), self.must("<="), self.sum(), self.must("<")
                domain += [less(index, Fraction(lo)), less(Fraction(self.integer() - 1), index)]
            else:
                own.append(self.range())
            self.need(self.take(",") or self.tokens[self.at][1] in "|]", ", or ]")
        if opening:
            self.must(opening)
        if reduce := self.take("sum", "max", "min", "prod"):
            sums = self.items("[", self.range, "]")
        body, self.own = self.sum(), outer
        if not opening:
            self.must("}")
        reach, value, _ = self.clauses(tuple((lo, hi) for _, lo, hi in own))
        return Scope(tuple(own), sums, body, reduce or "sum", tuple(domain), reach, value)

    def sum(self) -> Expr:
        """An index or a scalar; what is no index, or no scalar, is found where it is used."""
        out = self.product()
        while op := self.take("+", "-"):
            more = self.product()
            out = ("+", out, more if op == "+" else ("*", Fraction(-1), more))
        return out

    def product(self) -> Expr:
        out = self.factor()
        while op := self.take("*", "/", "//", "%"):
            out = (op, out, self.factor())
        return out

    def factor(self) -> Expr:
        kind = self.tokens[self.at][0]
        if self.take("-"):
            inner = self.factor()
            return -inner if isinstance(inner, Fraction | float) else ("*", Fraction(-1), inner)
        if self.take("("):
            inner, _ = self.sum(), self.must(")")
            return inner
        if kind == "num" or self.take("inf"):
            return Fraction(self.token("num")) if kind == "num" else inf
        if self.take("{"):
            return self.read(self.scope(""))
        if self.take("table"):
            box = tuple((0, n) for n in self.items("[", self.integer, "]"))
            entries = self.items("(", self.entry, ")")
            self.need(len(entries) == prod(n for _, n in box), "as many entries as the shape says before")
            return self.read(Table(box, box, entries))
        name, following = self.name(), self.tokens[self.at][1]
        if kind == "word" and name in self.own and following != "[":
            return name
        if (kind, name, following) == ("word", "where", "(") and self.must("("):
            condition, _, yes, _, no, _ = (
                self.condition(), self.must(","), self.sum(), self.must(","), self.sum(), self.must(")"),
            )  # fmt: skip
            return where(*condition, yes, no)
        if kind == "word" and name in ARITY and following == "(":
            args = self.items("(", self.sum, ")")
            self.need(len(args) == ARITY[name], f"{ARITY[name]} arguments of {name} before")
            return (name, *args)
        self.need(name in self.known, f"one of {', '.join((*self.known, *sorted(self.own)))} instead of {name} before")
        return self.read(self.known[name])

    def condition(self) -> tuple[str, Expr, Expr]:
        left, op = self.sum(), self.take("<", "<=", ">", ">=", "==", "!=")
        self.need(op, "a comparison")
        return op, left, self.sum()

    def read(self, source: Any) -> Read:
        index = self.items("[", self.sum, "]")
        self.need(len(index) == len(source.box), f"{len(source.box)} indices before")
        return Read(source, index)
