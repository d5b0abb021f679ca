"""Linear forms over products with parameters: ``{"PW*y3": 1, "": -1}`` is W·y₃ - 1."""

from __future__ import annotations

from collections.abc import Mapping

from einnet_explore.equivalence.linear_space import Form, accumulate_form


def drop_zeros(form: Form) -> Form:
    """Remove names with coefficient 0."""
    return {"": form.get("", 0), **{v: k for v, k in form.items() if v and k}}


def add_forms(a: Form, b: Form, k: int = 1) -> Form:
    """Return a + k·b."""
    out = dict(a)
    accumulate_form(out, b, k)
    return drop_zeros(out)


def divide_form(a: Form, d: Form) -> Form | None:
    """Divide polynomials of parameters; None unless the quotient has integer coefficients and no remainder."""
    times, rest = divide_with_remainder(a, d)
    return times if not any(rest.values()) else None


def divide_with_remainder(a: Form, d: Form) -> tuple[Form, Form]:
    """Return (times, rest) with a = d·times + rest, by polynomial long division."""
    lead, k = leading_monomial(d)
    times, rest, left = Form({"": 0}), Form({"": 0}), drop_zeros(a)
    while any(left.values()):
        name, c = leading_monomial(left)
        over = divide_monomial(name, lead)
        if over is None or c // k == 0 or (name and c % k):
            accumulate_form(rest, {name: c}, 1)
            left = drop_zeros({**left, name: 0})
            continue
        accumulate_form(times, {over: c // k}, 1)
        for part, by in d.items():
            accumulate_form(
                left, {"*".join(sorted(p for p in (*over.split("*"), *part.split("*")) if p)): by}, -(c // k)
            )
        left = drop_zeros(left)
    return drop_zeros(times), drop_zeros(rest)


def leading_monomial(form: Form) -> tuple[str, int]:
    """Return the leading monomial and its coefficient."""
    occurring = [(v, k) for v, k in form.items() if k]
    return max(occurring, key=lambda t: _degree(t[0])) if occurring else ("", 0)


def _degree(name: str) -> tuple[int, tuple[str, ...]]:
    """Sort key of a monomial order, invariant under multiplication."""
    parts = tuple(name.split("*")) if name else ()
    return len(parts), parts


def divide_monomial(name: str, lead: str) -> str | None:
    """Divide the monomial *name* by *lead*; None if it does not divide."""
    parts = name.split("*") if name else []
    for symbol in lead.split("*") if lead else ():
        if symbol not in parts:
            return None
        parts.remove(symbol)
    return "*".join(parts)


def symbols_in(form: Form) -> set[str]:
    """Return the symbols in the monomials of *form*."""
    return {part for name in form for part in name.split("*") if part}


def form_text(form: Form) -> str:
    """Format *form* for messages."""
    words = (f"{k}" if not v else symbol_text(v) if k == 1 else f"{k}*{symbol_text(v)}" for v, k in form.items() if k)
    return " + ".join(words) or "0"


def symbol_text(name: str) -> str:
    """Format a monomial for messages, with the parameters' own names."""
    return "*".join(part.removeprefix("P") for part in name.split("*"))


def has_positive_coefficients(form: Form, first: Mapping[str, int]) -> bool:
    """Whether no coefficient of *form* is negative after shifting each symbol by its *first* value."""
    shifted: dict[tuple[str, ...], int] = {}
    for name, k in form.items():
        parts: dict[tuple[str, ...], int] = {(): k}
        for symbol in name.split("*") if name else ():
            grown: dict[tuple[str, ...], int] = {}
            for monomial, c in parts.items():
                for to, by in ((tuple(sorted((*monomial, symbol))), 1), (monomial, first[symbol])):
                    grown[to] = grown.get(to, 0) + c * by
            parts = grown
        for monomial, c in parts.items():
            shifted[monomial] = shifted.get(monomial, 0) + c
    return all(c >= 0 for c in shifted.values())
