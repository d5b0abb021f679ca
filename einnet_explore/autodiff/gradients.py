r"""``ee.grad``: gradients as programs, cleaned up for the rules and the library.

Injective computes read through: what computes each element from a few others is put into its readers.

.. math::
   \mathop{L}_{\vec y} \textstyle\sum g(T[\pi(\vec y)]) \;\circ\; T = \mathop{L}_{\vec x} f(\vec x)
   \;\mapsto\; \mathop{L}_{\vec y} \textstyle\sum g(f(\pi(\vec y)))

for any index map :math:`\pi` (permuted, negated, with strides), where *T* sums nothing.  Differentiation leaves such
intermediates between what two passes have in common; without them, expressions compare.  Every step is a match of
expression inlining, traversal merging or dead equation, so a derivation holds all of them and each is certified.

Source: the tensor auto-inliner of "Common Subexpression Elimination" (TVM); EinNet §4.1 for traversal merging.
"""

from __future__ import annotations

from collections.abc import Iterable

from einnet_explore.autodiff.differentiation import differentiate
from einnet_explore.ir import Access, Program, Scope, accesses, scopes, tensors
from einnet_explore.rules import DEAD_EQUATION, EXPRESSION_INLINING, TRAVERSAL_MERGING, Derivation, Refused
from einnet_explore.strategies.moves import clean


def inline_injective(program: Program, keep: Iterable[str] = ()) -> Derivation:
    """*program* with every equation that sums nothing put into its readers, and left out where nothing reads it then.

    Equations named in *keep* stay as they are read, and so does a read beyond the box of what it reads, for which a
    body would need a condition: traversal merging refuses it.
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
    """The names of what equation *n* reads and may compute itself, the last equation first."""
    read = {t.name for t in tensors(program.equations[n].scope)}
    plain = [e.name for e in program.equations if not e.scope.summations and e.name in read and e.name not in stay]
    return tuple(reversed(plain))


def _inline_equation(derivation: Derivation, n: int, name: str) -> Derivation:
    """Equation *n* without reads of *name*; raises Refused where one of them cannot be merged."""
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
    """The gradients of the inputs *wrt* of *program* (None: of all), one output each, in their order.

    For each output ``Y`` the result reads its gradient ``d_Y``, of the shape of ``Y``, besides the inputs of *program*;
    the gradient of ``A`` is the output ``d_A``.  Everything the forward pass is needed for is computed again.
    *inline* puts intermediates that sum nothing into their readers, so that expressions of both passes compare.

    >>> matmul = ee.ops.matmul(m=4, n=5, k=6)
    >>> print(ee.text(ee.grad(matmul, wrt="A")))       # d_A[m:4, k:6] = sum[n:5] d_Y[m, n] * B[k, n]

    Raises ValueError for a name that is no input, and for an operator without a derivative; see
    ``autodiff.differentiation`` for the subgradients where a function has a kink.
    """
    names = (wrt,) if isinstance(wrt, str) else wrt
    made = differentiate(program, names)
    if inline:
        made = inline_injective(made).end
    return clean(made, final=True)[1]
