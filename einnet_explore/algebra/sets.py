"""Terms as integer sets: the output elements and indices at which a term occurs, once each."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from math import isinf
from typing import Any

import islpy as isl

from einnet_explore.algebra.relation import Term
from einnet_explore.algebra.space import Beyond, Form, Number, Space, pinned

_OPERATIONS = 20_000_000


def context() -> Any:
    """An isl context that gives up (isl.Error) on comparisons that would take very long."""
    ctx = isl.Context()
    ctx.set_max_operations(_OPERATIONS)
    return ctx


class Sets:
    """The sets of terms in one space.  *counted*: a term must say how often it occurs, else only where."""

    def __init__(self, space: Space, ctx: Any, *, counted: bool) -> None:
        self.space, self.ctx, self.counted = space, ctx, counted

    def of(self, term: Term) -> tuple[Number, Any]:
        """The coefficient of *term* and the set of (output element, indices) where it occurs.

        Summed iterators that occur nowhere multiply the coefficient by their extent.  Raises Beyond where another
        number of summation points stands for one element of the set.
        """
        if self.counted and isinf(term.coefficient):
            raise Beyond("an infinite constant is added")
        forms = [form for _, at in term.factors for form in at]
        used = self._used((*forms, *term.where))
        summed = [y for y in term.summed if y in used]
        count = Fraction(1)
        for y in term.summed:
            if y not in used:
                lo, hi = self.space.ranges[y]
                count *= max(0, hi - lo + 1)
        rows = self._rows(used, summed, term.where)
        fixed = pinned(term.where, self.space.ranges)
        open_ = [y for y in summed if y not in fixed]
        if self.counted and self._undetermined(forms, used, open_) and not self._injective(forms, used, summed, rows):
            raise Beyond("one term stands for several summation points, whose number integer sets do not hold")
        # A coordinate that is just a summed iterator lends it its name: one existential less for isl to eliminate.
        named: list[str] = []
        for n, form in enumerate(forms):
            v = next((v for v in form if v), "")
            bare = len(form) == 2 and form[v] == 1 and not form[""] and v in summed and v not in named
            named.append(v if bare else f"i{n}")
            if not bare:
                rows.append(f"i{n} = {show(form)}")
        hidden = [v for v in used if v not in named and v not in self.space.coordinates]
        text = (
            f"{{ [{', '.join((*self.space.coordinates, *named))}] : {_exists(hidden)}{' and '.join(rows) or 'true'} }}"
        )
        return (term.coefficient * count if self.counted else term.coefficient), isl.Set(text, self.ctx)

    def _injective(self, forms: list[Form], used: list[str], summed: list[str], rows: list[str]) -> bool:
        hidden = [v for v in used if v not in summed and v not in self.space.coordinates]
        image = [f"i{n}" for n in range(len(forms))]
        rows = [*rows, *(f"{i} = {show(form)}" for i, form in zip(image, forms, strict=True))]
        x = self.space.coordinates
        text = f"[{', '.join((*x, *summed))}] -> [{', '.join((*(f'p{v}' for v in x), *image))}]"
        rows += (f"p{v} = {v}" for v in x)
        return bool(isl.Map(f"{{ {text} : {_exists(hidden)}{' and '.join(rows) or 'true'} }}", self.ctx).is_injective())

    def _rows(self, used: list[str], summed: list[str], where: Iterable[Form]) -> list[str]:
        """All conditions on the integers *used*: ranges, what quotients and aliases mean, and *where*."""
        ranged = (*self.space.coordinates, *summed, *(v for v in used if v in self.space.aliases))
        rows = [f"{lo} <= {v} <= {hi}" for v in ranged for lo, hi in (self.space.ranges[v],)]
        for v in used:
            if v in self.space.quotients:
                e, d = self.space.quotients[v]
                rows.append(f"0 <= {show({**e, v: -d})} < {d}")
            elif v in self.space.aliases:
                rows.append(f"{v} = {show(self.space.aliases[v])}")
        return rows + [f"{show(row)} >= 0" for row in where]

    def _used(self, forms: Iterable[Form]) -> list[str]:
        """The integers that *forms* depend on, also through quotients."""
        found: dict[str, None] = {}
        stack = [v for form in forms for v in form if v]
        while stack:
            v = stack.pop()
            if v not in found:
                found[v] = None
                stack += (u for u in self._meaning(v) if u)
        return list(found)

    def _meaning(self, v: str) -> Form:
        """What *v* is a function of: nothing for output coordinates and summed iterators."""
        if v in self.space.quotients:
            return self.space.quotients[v][0]
        return self.space.aliases.get(v, {})

    def _undetermined(self, forms: list[Form], used: list[str], summed: list[str]) -> list[str]:
        """The summed iterators that an output element and indices may leave open (none: they are determined)."""
        known = {"", *self.space.coordinates}
        forms = [*forms, *({**form, t: -1} for t, form in self.space.aliases.items() if t in used)]
        again = True
        while again and not known.issuperset(summed):
            again = False
            for q, (e, _) in self.space.quotients.items():
                if q not in known and known.issuperset(e):
                    known.add(q)
                    again = True
            for form in forms:
                open_ = [v for v in form if v not in known]
                if open_ and self._digits(form, open_):
                    known.update(open_)
                    again = True
        return [y for y in summed if y not in known]

    def _digits(self, form: Form, free: list[str]) -> bool:
        """Whether the value of *form* determines each of *free*: every coefficient exceeds what is below it."""
        below = 0
        for v in sorted(free, key=lambda v: abs(form[v])):
            if abs(form[v]) <= below:
                return False
            lo, hi = self.space.ranges[v]
            below += abs(form[v]) * (hi - lo)
        return True


def sample(space: Space, term: Term) -> tuple[int, ...] | None:
    """The output coordinates and indices of one point where *term* occurs; None when it occurs nowhere."""
    _, points = Sets(space, context(), counted=False).of(term)
    return None if points.is_empty() else tuple(coordinates(points))


def coordinates(points: Any) -> list[int]:
    """The smallest point of a set that is not empty, in lexical order."""
    point = points.lexmin().sample_point()
    return [point.get_coordinate_val(isl.dim_type.set, n).to_python() for n in range(points.dim(isl.dim_type.set))]


def show(form: Form) -> str:
    """*form* in isl's notation."""
    return " + ".join(f"{k}{v}" if v else str(k) for v, k in form.items() if k or not v)


def _exists(names: list[str]) -> str:
    return f"exists {', '.join(names)} : " if names else ""
