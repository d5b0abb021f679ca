"""Linear forms whose names may be products with parameters: ``{"PW*y3": 1, "": -1}`` is W·y₃ - 1."""

from __future__ import annotations

from collections.abc import Mapping

from einnet_explore.equivalence.linear_space import Form, accumulate_form


def drop_zeros(form: Form) -> Form:
    """*form* without names that do not occur."""
    return {"": form.get("", 0), **{v: k for v, k in form.items() if v and k}}


def add_forms(a: Form, b: Form, k: int = 1) -> Form:
    """a + k·b."""
    out = dict(a)
    accumulate_form(out, b, k)
    return drop_zeros(out)


def divide_form(a: Form, d: Form) -> Form | None:
    """a / d over the parameters, where it is a polynomial with whole coefficients."""
    times, rest = divide_with_remainder(a, d)
    return times if not any(rest.values()) else None


def divide_with_remainder(a: Form, d: Form) -> tuple[Form, Form]:
    """a as d·times + rest, the leading monomials of *d* taken out as long as they divide."""
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
    """The monomial of the highest degree that occurs, and its coefficient."""
    occurring = [(v, k) for v, k in form.items() if k]
    return max(occurring, key=lambda t: _degree(t[0])) if occurring else ("", 0)


def _degree(name: str) -> tuple[int, tuple[str, ...]]:
    """Monomials in an order that multiplying both by the same keeps."""
    parts = tuple(name.split("*")) if name else ()
    return len(parts), parts


def divide_monomial(name: str, lead: str) -> str | None:
    """The monomial *name* divided by *lead*."""
    parts = name.split("*") if name else []
    for symbol in lead.split("*") if lead else ():
        if symbol not in parts:
            return None
        parts.remove(symbol)
    return "*".join(parts)


def symbols_in(form: Form) -> set[str]:
    """Every single integer that *form* is made of."""
    return {part for name in form for part in name.split("*") if part}


def form_text(form: Form) -> str:
    """*form* for messages."""
    words = (f"{k}" if not v else symbol_text(v) if k == 1 else f"{k}*{symbol_text(v)}" for v, k in form.items() if k)
    return " + ".join(words) or "0"


def symbol_text(name: str) -> str:
    """The name of an integer, or of a product, in messages: parameters by their own."""
    return "*".join(part.removeprefix("P") for part in name.split("*"))


def has_positive_coefficients(form: Form, first: Mapping[str, int]) -> bool:
    """Whether *form* has no negative coefficient over the distances of its symbols from their *first* values."""
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
