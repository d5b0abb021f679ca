r"""Padding exchange: the padding of a scope that sums nothing becomes padding of the tensor that it reads.

.. math::
   \big\{ \mathop{L}_{\vec x} c\; g(T[\vec x]) \big\}^{0}[\vec z] \;\mapsto\; c\; g\big(T^{p}[\vec z]\big),
   \qquad g(p) = 0

The scope is 0 around its box, and the tensor *p* around its own.  A convolution of dequantised elements
:math:`s (X - z)` then reads *X*, with the zero point *z* around it.  *g* is the tensor, plus or minus a constant.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import count

from einnet_explore.analysis.equations import widen_padding
from einnet_explore.analysis.indices import iterators_of, substitute
from einnet_explore.ir import (
    ELEMENT_TYPES,
    Access,
    Apply,
    Const,
    Path,
    Program,
    Scalar,
    Scope,
    Tensor,
    accesses,
    factors,
    map_accesses,
)
from einnet_explore.rules.base import Rule, accepted, access_of, refusals_of, refusing
from einnet_explore.support.errors import Refused


@dataclass(frozen=True, slots=True)
class PaddedRead:
    """The number of the access that reads the padded scope."""

    access: int


def propose(program: Program, at: Path) -> Iterable[PaddedRead]:
    """Propose every access to a padded scope that the law allows."""
    for n, _ in enumerate(accesses(program.scope_at(at).body)):
        if accepted(rewrite, program, at, PaddedRead(n)):
            yield PaddedRead(n)


def rewrite(program: Program, at: Path, params: PaddedRead) -> Program:
    """Apply the law; refuses a scope of another form, and a tensor that has another padding."""
    read = access_of(program.scope_at(at), params.access)
    tensor, value = _padded_tensor(read)
    with refusing():
        program, _ = widen_padding(program, tensor.name, read.source.padding, value)
    scope, number = program.scope_at(at), count()

    def change(access: Access) -> Scalar:
        inner = access.source
        if next(number) != params.access or not isinstance(inner, Scope):
            return access
        return substitute(inner.body, dict(zip(inner.traversals, access.index, strict=True)))

    return program.replace_at(at, replace(scope, body=map_accesses(scope.body, change)))


def _padded_tensor(access: Access) -> tuple[Tensor, float]:
    """Return the tensor that takes the padding of the scope that *access* reads, and the value there."""
    inner = access.source
    if not isinstance(inner, Scope) or inner.summations or inner.domain or not any(map(any, inner.padding)):
        raise Refused(f"{access!r} reads no padded scope without summations and conditions")
    if inner.value != 0:
        raise Refused(f"the scope is {inner.value:g} around its box, expected 0")
    around = {x for x, pads in zip(inner.traversals, inner.padding, strict=True) if any(pads)}
    moving = [part for part in factors(inner.body) if not iterators_of(part).isdisjoint(around)]
    if len(moving) != 1:
        raise Refused(f"{len(moving)} factors depend on the padded dimensions, expected one")
    match moving[0]:
        case Access() as read:
            value: float = 0
        case Apply("-", (Access() as read, Const(value))) | Apply("-", (Const(value), Access() as read)):
            pass
        case Apply("+", (Const(negative), Access() as read)):
            value = -negative
        case _:
            raise Refused(f"{moving[0]!r} is no tensor, plus or minus a constant")
    if not isinstance(read.source, Tensor) or tuple(i.single for i in read.index) != inner.traversals:
        raise Refused(f"{read!r} is no element of a tensor at the point of the scope")
    kind = ELEMENT_TYPES[read.source.dtype]
    if kind.is_integer and not (kind.low <= value <= kind.high and value == int(value)):
        raise Refused(f"{read.source.name} is {read.source.dtype}, which has no {value:g}")
    return read.source, value


def explain(program: Program, at: Path) -> str:
    """Return why no padding moves."""
    reads = enumerate(accesses(program.scope_at(at).body))
    return "; ".join(dict.fromkeys(why for n, _ in reads for why in refusals_of(rewrite, program, at, PaddedRead(n))))


PADDING_EXCHANGE = Rule(
    "padding_exchange",
    r"\big\{ \mathop{L}_{\vec x} c\, g(T[\vec x]) \big\}^{0}[\vec z] \;\mapsto\; c\, g\big(T^{p}[\vec z]\big),"
    r" \qquad g(p) = 0",
    propose,
    rewrite,
    explain=explain,
)
