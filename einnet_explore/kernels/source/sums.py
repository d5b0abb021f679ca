"""What a loop sums up: variables from outside that each step joins with something, in any order."""

from __future__ import annotations

from collections.abc import Mapping

from einnet_explore.kernels.source.calls import Call
from einnet_explore.kernels.source.statements import Assign, For
from einnet_explore.kernels.source.values import Binary, Var

_JOINS = {"+": "+", "*": "*", "maximum": "max", "minimum": "min"}


def sums(loop: For) -> Mapping[str, tuple[str, ...]]:
    """The variables that *loop* sums up, by what joins them, as OpenMP calls it: ``+``, ``*``, ``max`` or ``min``."""
    out: dict[str, tuple[str, ...]] = {}
    for s in loop.body:
        match s:
            case Assign(Var(name) as var, Binary(op, left, _)) if left == var and op in _JOINS:
                out[_JOINS[op]] = (*out.get(_JOINS[op], ()), name)
            case Assign(Var(name) as var, Call(op, (left, _))) if left == var and op in _JOINS:
                out[_JOINS[op]] = (*out.get(_JOINS[op], ()), name)
            case _:
                pass
    return out
