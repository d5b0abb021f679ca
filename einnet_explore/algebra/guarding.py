"""Reads that may leave a box, as conditions."""

from __future__ import annotations

from einnet_explore.ir import Apply, Box, Compare, Const, Index, Scalar, as_index


def guard(index: tuple[Index, ...], box: Box, inside: Scalar, outside: float) -> Scalar:
    """*inside* where *index* lies in *box*, else the constant; conditions that always hold are dropped."""
    for i, (lo, hi) in reversed(tuple(zip(index, box, strict=True))):
        least, most = i.bounds
        if most < lo or least >= hi:
            return Const(outside)
        if most >= hi:
            inside = Apply("where", (Compare("<", i, as_index(hi)), inside, Const(outside)))
        if least < lo:
            inside = Apply("where", (Compare(">=", i, as_index(lo)), inside, Const(outside)))
    return inside
