r"""eOperator generation (EinNet §5.2).

.. math::
   \frac{\mathrm{FLOPs}}{\text{tensor elements}} < 4 \;\Rightarrow\; \text{the scope becomes a generated kernel.}

A reduction of single elements is generated at any intensity, since it has no product that a library would compute
faster.  A whole equation is instantiated in place; a nested scope first becomes a new equation.  Scopes inside it must
be plain re-indexings, which the kernel computes in place, or each element must be read at most once: other summations
inside would be repeated for every read.  A scope that only reorders its tensor's elements, as strides can express,
needs no kernel: it is a ``View``.  An output is a view only if its strides are row-major, because the caller sees an
array.
"""

from __future__ import annotations

from collections.abc import Iterable

from einnet_explore.analysis.counts import intensity, reads_once
from einnet_explore.analysis.flattening import row_major_strides, view_strides
from einnet_explore.ir import VIEW, Access, EOperatorKind, Instance, Path, Program, Scope, accesses, scopes, show_path
from einnet_explore.rules.base import generation_rule
from einnet_explore.support.errors import Refused

COMPUTE_BOUND = 4
"""FLOPs an element from which the paper calls an expression compute-bound (§5.2)."""


def _instance(program: Program, at: Path) -> Instance:
    """A view or an eOperator; refuses a scope that is compute-bound or has a repeated summation inside."""
    scope = program.scope_at(at)
    if (repeated := next(iter(_repeated(scope, at)), None)) is not None:
        path, inner = repeated
        sums = ", ".join(y.name for y in inner.summations)
        raise Refused(f"the scope at {show_path(path)} sums over {sums} for every read of it: instantiate it first")
    is_output = len(at) == 1 and program.equations[at[0]].name in program.outputs
    match view_strides(scope):
        case (offset, strides) if not is_output or strides == row_major_strides(scope.shape):
            return Instance(VIEW, (("offset", offset), ("strides", strides)))
    measured = intensity(scope)
    if measured >= COMPUTE_BOUND and any(not isinstance(inner.body, Access) for _, inner in scopes(scope)):
        raise Refused(f"intensity {measured:.1f} FLOP/element is not below {COMPUTE_BOUND}: this is compute-bound")
    return _kind(scope).instance


def _repeated(scope: Scope, at: Path) -> Iterable[tuple[Path, Scope]]:
    """Yield the nested scopes with a summation that are read more than once an element."""
    for n, access in enumerate(accesses(scope.body)):
        match access.source:
            case Scope() as inner if reads_once(scope, access):
                yield from _repeated(inner, (*at, n))
            case Scope() as inner:
                yield from (((*at, n, *path), s) for path, s in scopes(inner) if s.summations)


def _kind(scope: Scope) -> EOperatorKind:
    match scope:
        case Scope(summations=(_, *_)):
            return EOperatorKind.REDUCTION
        case Scope(body=Access()):
            return EOperatorKind.LAYOUT
    return EOperatorKind.ELEMENTWISE


EOPERATOR_GENERATION = generation_rule(
    "eoperator_generation",
    r"\frac{\mathrm{FLOPs}}{\text{tensor elements}} < 4 \;\Rightarrow\; \text{eOperator}",
    _instance,
    lambda at: f"the scope at {show_path(at)} is nested: it is computed in place, or taken out by hand",
    is_proposed=lambda at: len(at) == 1,
)
"""A nested scope is taken out only by hand."""
