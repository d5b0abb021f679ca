"""``ee.grad``: gradients as programs, cleaned up for the rules and the library."""

from __future__ import annotations

from collections.abc import Iterable

from einnet_explore.algebra.differentiate import differentiate
from einnet_explore.ir import Program
from einnet_explore.search.cleanup import clean
from einnet_explore.search.injective import inline_injective


def grad(program: Program, wrt: str | Iterable[str] | None = None, *, inline: bool = False) -> Program:
    """The gradients of the inputs *wrt* of *program* (None: of all), one output each, in their order.

    For each output ``Y`` the result reads its gradient ``d_Y``, of the shape of ``Y``, besides the inputs of *program*;
    the gradient of ``A`` is the output ``d_A``.  Everything the forward pass is needed for is computed again.
    *inline* puts intermediates that sum nothing into their readers, so that expressions of both passes compare.

    >>> matmul = ee.ops.matmul(m=4, n=5, k=6)
    >>> print(ee.text(ee.grad(matmul, wrt="A")))       # d_A[m:4, k:6] = sum[n:5] d_Y[m, n] * B[k, n]

    Raises ValueError for a name that is no input, and for an operator without a derivative; see
    ``algebra.differentiate`` for the subgradients where a function has a kink.
    """
    names = (wrt,) if isinstance(wrt, str) else wrt
    made = differentiate(program, names)
    if inline:
        made = inline_injective(made).end
    return clean(made, final=True)[1]
