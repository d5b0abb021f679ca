"""Reads the text of canonical expressions (``pattern`` says what it means)."""

from __future__ import annotations

import re
from functools import cache

from einnet_explore.ir import REDUCTIONS
from einnet_explore.operators.pattern import ONE, Dimension, Operand, Pattern, Polynomial, polynomial

_TOKEN = re.compile(r"\s*(\d+|\|\w+\||[A-Za-z_]\w*|==|[\[\],=+*/():?-])")


@cache
def parse_pattern(text: str) -> Pattern:
    """The canonical expression written in *text*; raises ValueError that says where and what was expected."""
    return _Reader(text).pattern()


class _Reader:
    """Recursive descent over the tokens of one pattern."""

    def __init__(self, text: str) -> None:
        self.text, self.tokens, at = text, list[str](), 0
        while at < len(text.rstrip()):
            found = _TOKEN.match(text, at)
            if not found:
                raise ValueError(f"pattern {text!r}: unexpected {text[at:].strip()[0]!r}")
            self.tokens.append(found.group(1))
            at = found.end()
        self.tokens.append("")
        self.at = 0
        self.optional: set[str] = set()

    def pattern(self) -> Pattern:
        output, traversals = self.name(), self.names()
        self.expect("=")
        reduce, summations = "sum", tuple[str, ...]()
        if self.tokens[self.at] in REDUCTIONS and self.tokens[self.at + 1] == "[":
            reduce, summations = self.name(), self.names()
        iterators = {*traversals, *summations}
        op, operands, divisor = "", [self.operand(iterators)], ONE
        while self.tokens[self.at] in ("+", "-", "*", "/"):
            sign = self.take()
            if sign == "/" and self.tokens[self.at] == "(":
                divisor = self.sum()
                break
            if op not in ("", sign) or (op == sign and op in "-/"):
                raise ValueError(f"pattern {self.text!r}: found {sign!r} after {op!r}, expected one operation")
            op = sign
            operands.append(self.operand(iterators))
        conditions = []
        if self.tokens[self.at] == "where":
            self.take()
            conditions.append(self.condition())
            while self.tokens[self.at] == ",":
                self.take()
                conditions.append(self.condition())
        self.expect("")
        unread = iterators - {name for operand in operands for name in operand.iterators}
        if unread:
            raise ValueError(f"pattern {self.text!r}: no operand reads {', '.join(sorted(unread))}")
        optional = frozenset(self.optional)
        return Pattern(
            output, traversals, reduce, summations, op, tuple(operands), divisor, optional, tuple(conditions)
        )

    def operand(self, iterators: set[str]) -> Operand:
        name, dimensions = self.name(), self.dimensions(iterators)
        variants = []
        while self.tokens[self.at] == "or":
            self.take()
            flag, other = self.name(), self.dimensions(iterators)
            if sorted(map(repr, other)) != sorted(map(repr, dimensions)):
                raise ValueError(f"pattern {self.text!r}: {flag}{list(other)} is no other order of {list(dimensions)}")
            variants.append((flag, other))
        return Operand(name, dimensions, tuple(variants))

    def names(self) -> tuple[str, ...]:
        self.expect("[")
        out = []
        while self.tokens[self.at] != "]":
            out.append(self.name())
            self.question(out[-1])
            if self.tokens[self.at] == ",":
                self.take()
        self.expect("]")
        if len(set(out)) != len(out):
            raise ValueError(f"pattern {self.text!r}: an iterator stands twice in [{', '.join(out)}]")
        return tuple(out)

    def dimensions(self, iterators: set[str]) -> tuple[Dimension, ...]:
        self.expect("[")
        out = [self.dimension(iterators)]
        while self.tokens[self.at] == ",":
            self.take()
            out.append(self.dimension(iterators))
        self.expect("]")
        return tuple(out)

    def dimension(self, iterators: set[str]) -> Dimension:
        index, extent = self.sum(), None
        for name in index.names:
            self.question(name)
        if self.tokens[self.at] == ":":
            self.take()
            extent = self.sum()
        terms: dict[str, Polynomial] = {}
        const = Polynomial()
        for product, k in index.terms:
            own = [name for name in product if name in iterators]
            rest = polynomial([(tuple(name for name in product if name not in iterators), k)])
            match own:
                case []:
                    const = const + rest
                case [name]:
                    terms[name] = terms.get(name, Polynomial()) + rest
                case _:
                    raise ValueError(f"pattern {self.text!r}: {index!r} multiplies iterators {' and '.join(own)}")
        made = Dimension(tuple(terms.items()), const, extent)
        if made.single is None and extent is None:
            raise ValueError(f"pattern {self.text!r}: composite index {index!r} needs an extent, such as {index!r} : H")
        return made

    def condition(self) -> tuple[Polynomial, Polynomial]:
        left = self.sum()
        self.expect("==")
        return left, self.sum()

    def sum(self) -> Polynomial:
        total = self.product()
        while self.tokens[self.at] in ("+", "-"):
            sign = self.take()
            term = self.product()
            total = total + (term if sign == "+" else Polynomial((((), -1),)) * term)
        return total

    def product(self) -> Polynomial:
        total = self.atom()
        while self.tokens[self.at] == "*":
            self.take()
            total = total * self.atom()
        return total

    def atom(self) -> Polynomial:
        token = self.take()
        if token == "(":
            inner = self.sum()
            self.expect(")")
            return inner
        if token == "-":
            return Polynomial((((), -1),)) * self.product()
        if token.isdigit():
            return polynomial([((), int(token))])
        if re.fullmatch(r"\|?\w+\|?", token):
            return polynomial([((token,), 1)])
        raise ValueError(f"pattern {self.text!r}: found {token or 'the end'!r}, expected a name or a number")

    def question(self, name: str) -> None:
        if self.tokens[self.at] == "?":
            self.take()
            self.optional.add(name)

    def name(self) -> str:
        token = self.take()
        if not token.isidentifier():
            raise ValueError(f"pattern {self.text!r}: found {token or 'the end'!r}, expected a name")
        return token

    def take(self) -> str:
        self.at += 1
        return self.tokens[self.at - 1]

    def expect(self, token: str) -> None:
        found = self.take()
        if found != token:
            raise ValueError(f"pattern {self.text!r}: found {found or 'the end'!r}, expected {token or 'the end'!r}")
