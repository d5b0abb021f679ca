r"""Padding exchange: the padding of a scope becomes padding of what it reads.

.. math::
   \big\{ \mathop{L}_{\vec x} c\; g(T[\vec x]) \big\}^{0}[\vec z] &\;\mapsto\; c\; g\big(T^{p}[\vec z]\big),
   \qquad g(p) = 0
   \\
   \Big\{ \mathop{L}_{\vec x}^{X} \sum_{\vec y} \sum_i g_i(\vec y)\, f_i(\vec x, \vec y) \Big\}^{0}[\vec z]
   &\;\mapsto\;
   \Big\{ \mathop{L}_{\vec x}^{X'} \sum_{\vec y} \sum_i g_i(\vec y)\,
   \big\{ \mathop{L}_{\vec x \vec y}^{X} f_i \big\}^{0}[\vec x, \vec y] \Big\}[\vec z]
   \\
   f\big( \big\{ \mathop{L}_{\vec x} g \big\}^{v}[\vec z] \big)
   &\;\mapsto\; \big\{ \mathop{L}_{\vec x} f(g) \big\}^{f(v)}[\vec z]

In the first form the scope sums nothing; it is 0 around its box, and the tensor *p* around its own.  A convolution of
dequantised elements :math:`s (X - z)` then reads *X*, with the zero point *z* around it.  *g* is the tensor, plus or
minus a constant.

In the second form the box grows by its padding (*X'*), and in each term the factors that depend on the padded
dimensions are padded, 1 if there are none.  The sum is then no longer padded, so it joins the sums of its readers.

In the third form *f* depends on the padded scope alone, and its value at the padding is a number, such as that of a
quantisation at :math:`-\infty`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import count
from math import isfinite
from typing import Literal, TypeAlias

from einnet_explore.analysis.equations import widen_padding
from einnet_explore.analysis.indices import iterators_of, substitute
from einnet_explore.analysis.products import has_finite_padding
from einnet_explore.ir import (
    ELEMENT_TYPES,
    Access,
    Apply,
    Const,
    Iterator,
    Path,
    Program,
    Scalar,
    Scope,
    Tensor,
    accesses,
    add,
    as_index,
    factors,
    map_accesses,
    mul,
    terms,
)
from einnet_explore.ir.scalar_functions import SCALAR_FUNCTIONS
from einnet_explore.rules.base import Rule, accepted, access_of, refusals_of, refusing
from einnet_explore.support.errors import Refused


@dataclass(frozen=True, slots=True)
class PaddedRead:
    """The number of the access that reads the padded scope, whose padding becomes that of a tensor."""

    access: int


@dataclass(frozen=True, slots=True)
class PaddedFactors:
    """The number of the access that reads the padded scope, whose padding becomes that of factors."""

    access: int
    direction: Literal["factors"] = "factors"


@dataclass(frozen=True, slots=True)
class PaddedFunction:
    """The number of the access that reads the padded scope, which a function enters."""

    access: int
    direction: Literal["function"] = "function"


Exchange: TypeAlias = PaddedRead | PaddedFactors | PaddedFunction


def propose(program: Program, at: Path) -> Iterable[Exchange]:
    """Propose every access to a padded scope that the law allows; first the padding of tensors."""
    for n, access in enumerate(accesses(program.scope_at(at).body)):
        is_padded = isinstance(access.source, Scope) and any(map(any, access.source.padding))
        for params in (PaddedRead(n), PaddedFactors(n), PaddedFunction(n)) if is_padded else ():
            if accepted(rewrite, program, at, params):
                yield params


def rewrite(program: Program, at: Path, params: Exchange) -> Program:
    """Apply the law; refuses a scope of another form, and a tensor that has another padding."""
    read = access_of(program.scope_at(at), params.access)
    match params:
        case PaddedRead():
            tensor, value = _padded_tensor(read)
            with refusing():
                program, _ = widen_padding(program, tensor.name, read.source.padding, value)
        case PaddedFactors():
            within = _with_padded_factors(read)
        case PaddedFunction():
            scope = program.scope_at(at)
            return program.replace_at(at, replace(scope, body=_with_padded_function(scope.body, read)))
    scope, number = program.scope_at(at), count()

    def change(access: Access) -> Scalar:
        inner = access.source
        if next(number) != params.access or not isinstance(inner, Scope):
            return access
        if isinstance(params, PaddedFactors):
            return Access(within, access.index)
        return substitute(inner.body, dict(zip(inner.traversals, access.index, strict=True)))

    return program.replace_at(at, replace(scope, body=map_accesses(scope.body, change)))


def _padded_scope(access: Access) -> Scope:
    """Return the scope that *access* reads, if it is 0 around its box or just a read, without a domain."""
    inner = access.source
    if not isinstance(inner, Scope) or inner.domain or not any(map(any, inner.padding)):
        raise Refused(f"{access!r} reads no padded scope without conditions")
    if inner.value != 0 and not isinstance(inner.body, Access):
        raise Refused(f"the scope is {inner.value:g} around its box, expected 0")
    return inner


def _with_padded_function(body: Scalar, read: Access) -> Access:
    """Return *body*, a function of the padded scope that *read* reads, as a read of the scope of that function."""
    inner = read.source
    if not isinstance(inner, Scope) or inner.domain or inner.summations or not any(map(any, inner.padding)):
        raise Refused(f"{read!r} reads no padded scope without conditions and summations")
    if body == read or any(access != read for access in accesses(body)):
        raise Refused(f"{body!r} is no function of the padded scope alone")
    value = float(exact := _value(body, read, inner.value))
    if not isfinite(value) or value != exact:
        raise Refused(f"the function is {exact} where the scope is {inner.value:g}, expected a number in float64")
    made = replace(inner, body=_with_read(body, inner.body), value=value)
    return Access(made, read.index)


def _with_read(body: Scalar, value: Scalar) -> Scalar:
    """Return *body* with *value* in place of every read."""
    match body:
        case Access():
            return value
        case Apply(op, args):
            return Apply(op, tuple(_with_read(arg, value) for arg in args))
    return body


def _value(body: Scalar, read: Access, value: float) -> Fraction | float:
    """Return *body* where *read* is *value*; raises Refused for functions that are not exact."""
    match body:
        case Const(number):
            return Fraction(number) if isfinite(number) else number
        case Apply("/", (part, Const(k))) if k:
            return _value(part, read, value) / Fraction(k)
        case Apply("+", args):
            return sum(_value(arg, read, value) for arg in args)
        case Apply("*", (Const(k), *rest)) if k and rest:
            return Fraction(k) * _value(mul(*rest), read, value)
        case Apply(op, args) if (known := SCALAR_FUNCTIONS[op]).compute and (known.is_integral or known.is_rounding):
            return known.of_numbers(*(_value(arg, read, value) for arg in args))
    if body == read:
        return Fraction(value) if isfinite(value) else value
    raise Refused(f"{body!r} has no value that is known")


def _padded_dimensions(scope: Scope) -> frozenset[Iterator]:
    return frozenset(x for x, pads in zip(scope.traversals, scope.padding, strict=True) if any(pads))


def _with_padded_factors(access: Access) -> Scope:
    """Return the scope that *access* reads, whose padding is that of the factors of its terms."""
    scope = _padded_scope(access)
    if scope.value:
        raise Refused(f"the scope is {scope.value:g} around its box, expected 0")
    if scope.reduce != "sum" or not has_finite_padding(scope.body):
        raise Refused(
            f"the scope takes the {scope.reduce}, or reads an infinite padding: expected a sum of finite reads"
        )
    pads = dict(zip(scope.traversals, scope.padding, strict=True))
    parts = [_padded_factors(scope, pads, factors(term)) for term in terms(scope.body)]
    if not scope.summations and len(parts) == 1 and len(factors(parts[0])) == 1:
        raise Refused("all factors of the scope depend on the padded dimensions, and it sums nothing")
    wide = {x: Iterator(x.name, x.lo - before, x.hi + after) for x, (before, after) in pads.items()}
    whole = substitute(add(*parts), {x: as_index(new) for x, new in wide.items()})
    return Scope(tuple(wide.values()), scope.summations, whole)


def _padded_factors(scope: Scope, pads: Mapping[Iterator, tuple[int, int]], term: tuple[Scalar, ...]) -> Scalar:
    """Return the product *term* with the factors that depend on padded dimensions in a padded scope of their own."""
    around = _padded_dimensions(scope)
    moving = [f for f in term if not isinstance(f, Access | Const) or not around.isdisjoint(iterators_of(f))]
    own = around | frozenset[Iterator]().union(*map(iterators_of, moving))
    over = tuple(x for x in (*scope.traversals, *scope.summations) if x in own)
    inner = Scope(over, (), mul(*moving), padding=tuple(pads.get(x, (0, 0)) for x in over))
    return mul(*(f for f in term if f not in moving), inner[over])


def _padded_tensor(access: Access) -> tuple[Tensor, float]:
    """Return the tensor that takes the padding of the scope that *access* reads, and the value there."""
    inner = _padded_scope(access)
    if inner.summations:
        raise Refused(f"{access!r} reads a sum, expected a scope without summations")
    around = _padded_dimensions(inner)
    moving = [part for part in factors(inner.body) if not iterators_of(part).isdisjoint(around)]
    if len(moving) != 1:
        raise Refused(f"{len(moving)} factors depend on the padded dimensions, expected one")
    match moving[0]:
        case Access() as read:
            value = inner.value
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
    found = range(len(tuple(accesses(program.scope_at(at).body))))
    tried = [params for n in found for params in (PaddedRead(n), PaddedFactors(n), PaddedFunction(n))]
    return "; ".join(dict.fromkeys(why for params in tried for why in refusals_of(rewrite, program, at, params)))


PADDING_EXCHANGE = Rule(
    "padding_exchange",
    r"\big\{ \mathop{L}_{\vec x} c\, g(T[\vec x]) \big\}^{0}[\vec z] \;\mapsto\; c\, g\big(T^{p}[\vec z]\big),"
    r" \qquad g(p) = 0",
    propose,
    rewrite,
    explain=explain,
)
