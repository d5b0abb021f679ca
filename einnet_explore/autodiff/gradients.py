r"""``ee.grad``: gradients as programs, cleaned up for the rules and the library.

Elementwise (injective) equations are inlined into their readers:

.. math::
   \mathop{L}_{\vec y} \textstyle\sum g(T[\pi(\vec y)]) \;\circ\; T = \mathop{L}_{\vec x} f(\vec x)
   \;\mapsto\; \mathop{L}_{\vec y} \textstyle\sum g(f(\pi(\vec y)))

for any index map :math:`\pi` (permuted, negated, strided), if *T* has no summation.  Such intermediates would hide
common subexpressions of the two passes.  Every step is a match of expression inlining, traversal merging or dead
equation, so the result is a derivation with certificates.

Source: the tensor auto-inliner of "Common Subexpression Elimination" (TVM); EinNet §4.1 for traversal merging.
"""

from __future__ import annotations

from collections.abc import Iterable

from einnet_explore.autodiff.differentiation import differentiate
from einnet_explore.ir import Access, Program, Scope, accesses, scopes, tensors
from einnet_explore.rules import DEAD_EQUATION, EXPRESSION_INLINING, TRAVERSAL_MERGING, Derivation, Refused
from einnet_explore.strategies.moves import clean


def inline_injective(program: Program, keep: Iterable[str] = ()) -> Derivation:
    """Inline every equation without summations into its readers, and remove equations without readers.

    Equations in *keep* are not inlined, nor are reads beyond the source's box, which traversal merging refuses.
    """
    derivation = Derivation(program)
    stay = set(keep)
    for n in range(len(program.equations)):
        for name in _injective(derivation.end, n, stay):
            try:
                derivation = _inline_equation(derivation, n, name)
            except Refused:
                continue
    for equation in reversed(program.equations):
        number = next(n for n, e in enumerate(derivation.end.equations) if e.name == equation.name)
        if equation.name not in stay:
            for match in DEAD_EQUATION.matches(derivation.end, (number,)):
                derivation = derivation.then(match)
    return derivation


def _injective(program: Program, n: int, stay: set[str]) -> tuple[str, ...]:
    """Return the equations that can be inlined into equation *n*, the last one first."""
    read = {t.name for t in tensors(program.equations[n].scope)}
    plain = [e.name for e in program.equations if not e.scope.summations and e.name in read and e.name not in stay]
    return tuple(reversed(plain))


def _inline_equation(derivation: Derivation, n: int, name: str) -> Derivation:
    """Inline *name* into equation *n*; raises Refused if a read cannot be merged."""
    source = next(e.scope for e in derivation.end.equations if e.name == name)
    derivation = derivation.then(EXPRESSION_INLINING.match(derivation.end, (n,), tensor=name))
    while (found := _only_access(derivation.end.equations[n].scope, source)) is not None:
        path, number = found
        derivation = derivation.then(TRAVERSAL_MERGING.match(derivation.end, (n, *path), access=number))
    return derivation


def _only_access(scope: Scope, source: Scope) -> tuple[tuple[int, ...], int] | None:
    for path, reader in scopes(scope):
        for number, access in enumerate(accesses(reader.body)):
            if isinstance(access, Access) and access.source == source:
                return path, number
    return None


def grad(program: Program, wrt: str | Iterable[str] | None = None, *, inline: bool = False) -> Program:
    """Return the gradients of the inputs *wrt* of *program* (None: all inputs), one output each, in their order.

    The result's inputs are those of *program* and, for each output ``Y``, its gradient ``d_Y`` of the shape of ``Y``;
    the gradient of ``A`` is the output ``d_A``.  Forward values are recomputed.  *inline* inlines intermediates without
    summations into their readers, to expose common subexpressions.

    >>> matmul = ee.ops.matmul(m=4, n=5, k=6)
    >>> print(ee.text(ee.grad(matmul, wrt="A")))       # d_A[m:4, k:6] = sum[n:5] d_Y[m, n] * B[k, n]

    Raises ValueError for a name that is not an input, and for an operator without a derivative; the subgradients at
    kinks are listed in ``autodiff.scalar_derivatives``.
    """
    names = (wrt,) if isinstance(wrt, str) else wrt
    made = differentiate(program, names)
    if inline:
        made = inline_injective(made).end
    return clean(made, final=True)[1]
