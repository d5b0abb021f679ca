"""What every candidate derived from a program costs at least."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from einnet_explore.algebra.equations import weight_only
from einnet_explore.ir import Program

KEEP_PRODUCTS: frozenset[str] = frozenset(
    (
        "summation_splitting", "variable_substitution", "traversal_merging", "boundary_relaxing", "boundary_tightening",
        "eoperator_generation", "expression_fusion",
    )
)  # fmt: skip
"""The rules for which ``cost.products`` is argued; one that forms fewer products (a fast algorithm) is none of them."""

Least: TypeAlias = "Callable[[Program], float]"


def lower_bound(program: Program, cost: Callable[[Program], tuple[float, str]], least: Least | None = None) -> float:
    """Seconds that no candidate derived from *program* stays below: what is chosen already, and *least* besides.

    A *cost* is a sum over equations, and equations that are instantiated stay as they are until the end.  *least* says
    what those that are not cost at least; None: nothing is known of them.
    """
    constant = weight_only(program)
    chosen = tuple(e for e in program.equations if e.via is not None or e.name in constant)
    spent = cost(replace(program, equations=chosen))[0] if any(e.via for e in chosen) else 0.0
    return spent + (least(program) if least is not None and len(chosen) < len(program.equations) else 0.0)
