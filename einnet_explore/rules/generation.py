"""Generation: a scope becomes a kernel, an eOperator with a kind (EinNet §5.2).

The scope is unchanged; the kind names the way in which its kernel computes.  A whole equation is instantiated in place,
and a nested scope first becomes a new equation.  The rules differ in the kind, and in the scopes that they accept.  The
paper's rule, ``eoperator_generation``, refuses scopes that sum inside or are compute-bound; the others accept some.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from math import prod

from einnet_explore.analysis.counts import COMPUTE_BOUND, intensity, is_compute_bound, reads_once
from einnet_explore.analysis.equations import instantiate_at, readers
from einnet_explore.analysis.flattening import row_major_strides, view_strides
from einnet_explore.analysis.fused_chain import find_chain
from einnet_explore.analysis.online_softmax import check_softmax_laws, match_online_softmax
from einnet_explore.analysis.products import match_integer_product
from einnet_explore.analysis.row_nest import match_row_nest
from einnet_explore.ir import VIEW, Access, EOperatorKind, Instance, Path, Program, Scope, accesses, scopes, show_path
from einnet_explore.rules.base import Rule, place_rule, refusals_of
from einnet_explore.support.errors import Refused

BLOCKED = EOperatorKind.BLOCKED.instance


def _generation_rule(
    name: str,
    law: str,
    instance_of: Callable[[Program, Path], Instance],
    applies: str | Callable[[Path], str],
    is_proposed: Callable[[Program, Path], bool] = lambda *_: True,
) -> Rule[None]:
    """Return a rule that instantiates the scope at a path with ``instance_of(program, path)``, which may refuse."""

    @lru_cache(256)  # every proposal is applied once before
    def rewrite(program: Program, at: Path) -> Program:
        equation = program.equations[at[0]]
        if equation.via is not None:
            raise Refused(f"{equation.name} is instantiated already, by {equation.via.operator}")
        return instantiate_at(program, at, instance_of(program, at))

    rewrite.__doc__ = instance_of.__doc__
    return place_rule(name, law, rewrite, applies, is_proposed)


def _eoperator(program: Program, at: Path) -> Instance:
    r"""eOperator generation (EinNet §5.2).

    .. math::
       \frac{\mathrm{FLOPs}}{\text{tensor elements}} < 4 \;\Rightarrow\; \text{the scope becomes a generated kernel.}

    A formula without a sum, a reduction of single elements, and a reduction that is no sum, such as
    :math:`\max_k (A + B)`, are generated at any intensity: they have no product that a library would compute faster.
    So are products of bytes, whose kernels are generated in any case.
    Scopes inside it must be plain re-indexings, which the kernel computes in place, or each element must be read at
    most once: other summations inside would be repeated for every read.  A scope that only reorders its tensor's
    elements, as strides can express, needs no kernel: it is a ``View``.  An output and an operand of a library
    operator are views only if their strides are row-major: the caller sees an array, the library reads packed rows.
    """
    scope = program.scope_at(at)
    if (repeated := next(iter(_repeated(scope, at)), None)) is not None:
        path, inner = repeated
        sums = ", ".join(y.name for y in inner.summations)
        raise Refused(f"the scope at {show_path(path)} sums over {sums} for every read of it: instantiate it first")
    must_be_packed = len(at) == 1 and _is_read_as_array(program, program.equations[at[0]].name)
    match view_strides(scope):
        case (offset, strides) if not must_be_packed or strides == row_major_strides(scope.shape):
            return Instance(VIEW, (("offset", offset), ("strides", strides)))
    if is_compute_bound(scope) and _has_sum_of_formula(scope) and match_integer_product(scope) is None:
        measured = f"intensity {intensity(scope):.1f} FLOP/element"
        raise Refused(f"{measured} is not below {COMPUTE_BOUND}: this is compute-bound")
    return _kind(scope).instance


def _is_read_as_array(program: Program, name: str) -> bool:
    vias = [program.equations[n].via for n in readers(program, name)]
    packed = (via for via in vias if via is not None and (via.is_library_call or via == BLOCKED))
    return name in program.outputs or any(True for _ in packed)


def _has_sum_of_formula(scope: Scope) -> bool:
    found = [inner for _, inner in scopes(scope)]
    sums = any(inner.summations and inner.reduce == "sum" for inner in found)
    return sums and any(not isinstance(inner.body, Access) for inner in found)


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


EOPERATOR_GENERATION = _generation_rule(
    "eoperator_generation",
    r"\frac{\mathrm{FLOPs}}{\text{tensor elements}} < 4 \;\Rightarrow\; \text{eOperator}",
    _eoperator,
    lambda at: f"the scope at {show_path(at)} is nested: it is computed in place, or taken out by hand",
    is_proposed=lambda _, at: len(at) == 1,
)
"""A nested scope is taken out only by hand."""


def _reductions(program: Program, at: Path) -> Instance:
    r"""Reduction generation: element-wise operations and nested reductions become one kernel.

    .. math::
       \mathop{L}_{\vec x}\; g\Big(X[\vec x],\;
       \Big\{\mathop{L}_{\vec u} \bigoplus_{\vec y} h(X[\vec u, \vec y])\Big\}[\vec u], \dots\Big)
       \;\Rightarrow\; \text{eOperator (reductions)}

    A normalisation or a softmax reduces its input and then reads it again.  The kernel of eOperator generation would
    repeat the reduction for every element.  A kernel with stages reduces once, while the input is still in a cache.  It
    is memory-bound only if no reduction reads an element of its largest operand more than once, so matrix products and
    convolutions are refused.

    Source: D. Nishino and Z. Xu, "CuPy kernel fusion, extended" (2019).
    """
    scope = program.scope_at(at)
    found = [inner for _, inner in scopes(scope)]
    if not any(inner.summations for inner in found[1:]):
        raise Refused(f"the scope at {show_path(at)} reads no reduction: eoperator_generation is for that")
    for inner in found:
        points, most = _points(inner), _largest(inner)
        if points > most:
            raise Refused(f"{inner!r} has {points} points for at most {most} elements: elements are read repeatedly")
    return EOperatorKind.REDUCTIONS.instance


def _points(scope: Scope) -> int:
    return prod(x.extent for x in (*scope.traversals, *scope.summations))


def _largest(scope: Scope) -> int:
    """Return the number of elements of the largest tensor among the result and the direct operands of *scope*."""
    return max(prod(scope.shape), *(prod(a.source.shape) for a in accesses(scope.body)), 0)


REDUCTION_GENERATION = _generation_rule(
    "reduction_generation",
    r"\mathop{L}_{\vec x} g\Big(X[\vec x], \Big\{\mathop{L}_{\vec u} \bigoplus_{\vec y} h(X[\vec u, \vec y])"
    r"\Big\}[\vec u], \dots\Big) \;\Rightarrow\; \text{eOperator (reductions)}",
    _reductions,
    "it can be generated with its reductions",
)


def _rows(program: Program, at: Path) -> Instance:
    r"""Row generation: band products, operations on their rows, and a product with the rows become one kernel.

    .. math::
       \mathop{L}_{b\,m\,n} \sum_w \Big\{ g\big(S, \textstyle\bigoplus_{w'} h(S)\big) \Big\}[b,m,w]\; V[b, m+w, n],
       \qquad S = \mathop{L}_{b\,m\,w} \sum_k A[b,m,k]\, B[b,m+w,k]

    A block of rows of a band is a dense product, and all its readers run while it is in the cache; each element of `S`
    is computed once.
    """
    scope = program.scope_at(at)
    if match_row_nest(scope) is None:
        raise Refused(
            f"{scope!r} is no row computation: no factor depends on a row and a column through their sum alone"
        )
    return EOperatorKind.ROWS.instance


def _is_banded(program: Program, at: Path) -> bool:
    found = match_row_nest(program.scope_at(at))
    return found is None or found.banded or bool(refusals_of(_reductions, program, at))


ROW_GENERATION = _generation_rule(
    "row_generation",
    r"\mathop{L}_{b m n} \sum_w \{ g(S, \textstyle\bigoplus_{w'} h(S)) \}[b,m,w]\, V[b,m+w,n] \;\Rightarrow\;"
    r" \text{eOperator (rows)}, \qquad S = \mathop{L}_{b m w} \sum_k A[b,m,k]\, B[b,m+w,k]",
    _rows,
    "it can be generated by rows",
    is_proposed=_is_banded,
)
"""Rows that see every column are proposed only where ``reduction_generation`` refuses them: the kernel is the same."""


def _one_pass(program: Program, at: Path) -> Instance:
    r"""One-pass generation: a softmax-weighted sum becomes a kernel that processes its columns block by block.

    .. math::
       \mathop{L}_{b\,m\,n} \frac{\sum_w e^{z_w - M} V[u, n]}{\sum_w e^{z_w - M}}
       \;\Rightarrow\; \text{eOperator (one pass)}, \qquad M = \max_w z_w, \quad
       h(a ⧺ b) = h(a) \oplus h(b)

    Computation by blocks is correct because (m, s, v) is a homomorphism into a monoid (``analysis/online_softmax.py``).
    This law is checked when the rule is applied.

    Source: T. Dao et al., FlashAttention, 2022.
    """
    match_online_softmax(program.scope_at(at))
    check_softmax_laws()
    return EOperatorKind.ONE_PASS.instance


ONE_PASS_GENERATION = _generation_rule(
    "one_pass_generation",
    r"\mathop{L}_{b m n} \frac{\sum_w e^{z_w - M} V[u, n]}{\sum_w e^{z_w - M}} \;\Rightarrow\;"
    r" \text{eOperator (one pass)}, \qquad M = \max_w z_w",
    _one_pass,
    "it can be generated in one pass",
)


def _blocked(program: Program, at: Path) -> Instance:
    r"""Blocked generation: a chain of scopes becomes one kernel that computes it block by block.

    .. math::
       \mathop{L}_{y\,\vec x} f_1(f_2(\dots f_n(T)))\ \Rightarrow\ \text{eOperator (blocked)}, \qquad
       y = p\,s + y' : \text{each } f_i \text{ is needed in a box that moves with } s

    The result needs a traversal that can be cut into blocks without computing a product twice
    (``analysis/fused_chain.py``); then intermediate results stay in the cache.

    Source: post-optimisation's fusion (EinNet §6.3, Fig. 11), extended across a contraction.
    """
    found = find_chain(program.scope_at(at))
    if len(found.stages) == 1:
        raise Refused("it reads no scope: there is only one stage")
    if not any(stage.product for stage in found.stages):
        raise Refused(f"none of the {len(found.stages)} stages sums products of two tensors")
    if not found.result.scope.traversals:
        raise Refused("the result is one number: there is no traversal to share")
    if not found.cuts():
        x = max(found.result.scope.traversals, key=lambda x: x.extent)
        cut = found.make_cut(x, 1, 1)
        again, whole = found.multiplications((cut,)), found.multiplications()
        raise Refused(f"cut along {x.name} it computes {again} products instead of {whole}: no traversal is shared")
    return BLOCKED


BLOCKED_GENERATION = _generation_rule(
    "blocked_generation",
    r"\mathop{L}_{y\,\vec x} f_1(f_2(\dots f_n(T))) \;\Rightarrow\; \text{eOperator (blocked)}, \qquad"
    r" y = p\,s + y'",
    _blocked,
    "it can be generated block by block",
)
