r"""A scope as a contraction with an epilogue, for tiled kernels.

.. math::  Y[\vec x] = g\Big(\vec x, \bigoplus_{\vec y} f(T[\tau(\vec x, \vec y)])\Big)

ReLU, bias and residual are in g: post-operations, fused into the kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from einnet_explore.analysis.flattening import FlattenedScope, flatten_scope
from einnet_explore.codegen.sum_of_products import SUM_RESULT, normalize_ranges, split_epilogue
from einnet_explore.codegen.tiling.cost import TilingProblem
from einnet_explore.ir import Access, Apply, Compare, Const, Scalar, Scope, Tensor, accesses


@dataclass(frozen=True)
class EpilogueContraction:
    """*core* reduces, over iterators that start at 0; *epilogue* reads ``SUM_RESULT`` for its value."""

    core: Scope
    epilogue: Scalar

    @cached_property
    def table(self) -> FlattenedScope:
        """The flattened core."""
        return flatten_scope(self.core)

    def problem(self, element: int = 4) -> TilingProblem:
        """Return the input of the cost model: a product and a sum at every point, and PlaidML's post-operations."""
        return TilingProblem(self.table, 2 + operation_count(self.epilogue), element)


def as_contraction(scope: Scope) -> EpilogueContraction:
    """Return *scope* as a contraction.

    Raises ValueError if it has a domain, or reads anything but tensors at addresses of degree one.
    """
    if scope.domain or not scope.traversals:
        raise ValueError(f"a scope with {len(scope.domain)} bounds and {len(scope.traversals)} traversals is not tiled")
    core, epilogue = normalize_ranges(*(split_epilogue(scope) or (scope, SUM_RESULT[()])))
    if core.domain:
        raise ValueError(f"a reduction with the domain {', '.join(map(repr, core.domain))} is not tiled")
    for access in (*accesses(core.body), *accesses(epilogue)):
        if not isinstance(access.source, Tensor):
            raise ValueError(f"{access!r} reads no tensor; a tiled kernel reads tensors only")
    made = EpilogueContraction(core, epilogue)
    _ = made.table
    return made


def operation_count(body: Scalar) -> int:
    """Return the operations of a scalar: a ReLU counts two, as in Tile, a comparison and a choice."""
    match body:
        case Apply(op, args):
            own = len(args) - 1 if op in ("+", "*") else 2 if op == "relu" else 1
            return own + sum(map(operation_count, args))
        case Access() | Const():
            return 0
        case Compare():
            return 1
