"""The allowed sizes as an integer set over the parameters, with each product of parameters as a further variable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import islpy as isl

from einnet_explore.equivalence.integer_sets import bounded_context
from einnet_explore.equivalence.linear_space import Form, Undecided

Ranges: TypeAlias = "Mapping[str, tuple[int, int | None]]"
"""The smallest and the largest value (or None) of every symbol."""


def isl_expression(form: Form) -> str:
    """Return *form* in isl's notation."""
    return " + ".join(f"{k}{isl_name(v)}" if v else str(k) for v, k in form.items() if k or not v)


def isl_name(name: str) -> str:
    """Return a variable name for isl, unique for each product."""
    return "M" + "".join(f"{len(part)}{part}" for part in name.split("*")) if "*" in name else name


def range_rows(ranges: Ranges) -> list[Form]:
    """Return the ranges as forms that are ≥ 0."""
    rows: list[Form] = []
    for v, (first, last) in ranges.items():
        rows.append({v: 1, "": -first})
        rows += [{v: -1, "": last}] if last is not None else []
    return rows


def product_rows(ranges: Ranges, names: Iterable[str]) -> list[Form]:
    """Bound the variables that stand for products of parameters: (a - a₀)(b - b₀) ≥ 0."""
    rows: list[Form] = []
    for name in names:
        if name.count("*") == 1:
            a, b = name.split("*")
            row: Form = {name: 1, "": ranges[a][0] * ranges[b][0]}
            for v, k in ((a, ranges[b][0]), (b, ranges[a][0])):
                row[v] = row.get(v, 0) - k
            rows.append(row)
        elif "*" in name:
            rows.append({name: 1, "": 0})
    return rows


def least_point(ranges: Ranges, rows: Iterable[Form]) -> tuple[int, ...] | None:
    """Return the lexicographically first values with all *rows* ≥ 0; None if there are none.

    A product of symbols is relaxed to any number that its factors' ranges allow.  Raises Undecided.
    """
    held = [*range_rows(ranges), *rows]
    names = (*ranges, *sorted({v for row in held for v in row if "*" in v}))
    held += product_rows(ranges, names)
    said = " and ".join(f"{isl_expression(row)} >= 0" for row in held) or "true"
    try:
        found = isl.Set(f"{{ [{', '.join(map(isl_name, names))}] : {said} }}", bounded_context())
        return None if found.is_empty() else tuple(smallest_point(found)[: len(ranges)])
    except isl.Error as error:
        raise Undecided(f"integer sets: {error}") from None


def smallest_point(points: Any) -> list[int]:
    """Return the lexicographically first point of a nonempty set."""
    point = points.lexmin().sample_point()
    return [point.get_coordinate_val(isl.dim_type.set, n).to_python() for n in range(points.dim(isl.dim_type.set))]
