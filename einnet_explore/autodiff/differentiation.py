r"""Reverse-mode differentiation of programs: gradients as programs again.

.. math::
   dT = \sum_{Y\ \text{reads}\ T}\ \mathop{L}_{\vec t}\ \sum_{(\vec x, \vec y) \in \tau^{-1}(\vec t)}
        dY[\vec x]\ \frac{\partial f}{\partial T}(\vec x, \vec y)

Gradients are derived from expressions; operators have no gradient rules.  The result recomputes the forward values that
it needs (``cse`` shares them).  Nested scopes are first lifted to equations, so that every body reads tensors and
tables only.

A body is differentiated with respect to each of its reads by the chain rule.  Subgradients at kinks:

===========================  ==============================================================
``relu`` at 0                0
``abs`` at 0                 0
``maximum``, ``minimum``     both arguments get one half where they are equal
===========================  ==============================================================

The text form compares indices, not values; a power of zero does the latter: :math:`0^u` is 1 where :math:`u = 0` and
0 where :math:`u > 0`, so :math:`[x > 0] = 1 - 0^{relu(x)}`.  Gradients of reductions:

* ``sum``: every term receives the gradient;
* ``max`` and ``min``: all elements that attain the extremum share it equally;
* ``prod``: a factor receives it times the product of the other factors, computed without division, so zeros are safe.

Points of the pre-image :math:`\tau^{-1}(\vec t)` outside the box contribute nothing.  They read dY's padding, which is
0, if they are outside because of *x* alone and all other reads are finite there; otherwise they are excluded by a
``where``.

``grad`` cleans gradients up for the rules and the library.  It may also inline elementwise equations, which would hide
common subexpressions of the two passes.

Sources: Griewank and Walther, "Evaluating Derivatives"; the gradient definitions of "Common Subexpression Elimination"
(TVM), which this replaces by derivation.

Linearity is checked by structure: results homogeneous of degree one in some inputs,

.. math::  f(\alpha\, d + \beta\, e) = \alpha f(d) + \beta f(e)

with degrees as of polynomials: degrees of factors add up, terms have equal degrees, a quotient has its numerator's if
the denominator has degree 0, and arguments of other functions must have degree 0.  A sum keeps the degree; a maximum or
product does not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import isfinite, prod
from typing import TypeAlias

from einnet_explore.analysis.equations import exchange_equations, lift_scopes, require_float32
from einnet_explore.analysis.indices import fresh_name, substitute, substitute_domain
from einnet_explore.analysis.padding import excess, fit_padding
from einnet_explore.analysis.regions import index_reach, preimage
from einnet_explore.autodiff.linearity import assert_linear
from einnet_explore.ir import (
    Access,
    Apply,
    Bound,
    Compare,
    Const,
    Equation,
    Index,
    Iterator,
    Padding,
    Program,
    Scalar,
    Scope,
    Table,
    Tensor,
    accesses,
    add,
    as_index,
    factors,
    is_zero,
    map_accesses,
    map_tensors,
    mul,
    sub,
    tensors,
    terms,
)
from einnet_explore.ir.scalar_functions import FUNCTIONS, SCALAR_FUNCTIONS
from einnet_explore.strategies.moves import clean, inline_injective

GRADIENT_PREFIX = "d_"
"""The gradient of ``Y`` is called ``d_Y``."""

MAX_SLOWDOWN = 16
"""Points per point of the forward pass that a gradient may enumerate for an index map without inverse."""


Condition: TypeAlias = "tuple[Compare, bool]"
"""A comparison, and whether it has to hold (or fail)."""

ONE = Const(1)


def grad(program: Program, wrt: str | Iterable[str] | None = None, *, inline: bool = False) -> Program:
    """Return the gradients of the inputs *wrt* of *program* (None: all inputs), one output each, in their order.

    The result's inputs are those of *program* and, for each output ``Y``, its gradient ``d_Y`` of the shape of ``Y``;
    the gradient of ``A`` is the output ``d_A``.  Forward values are recomputed.  *inline* inlines intermediates without
    summations into their readers, to expose common subexpressions.

    >>> matmul = ee.ops.matmul(m=4, n=5, k=6)
    >>> print(ee.text(ee.grad(matmul, wrt="A")).splitlines()[-1])
    d_A[m:4, k:6] = sum[n:5] d_Y[m, n] * B[k, n]

    Raises Refused for other types than ``float32``, and ValueError for a name that is not an input and for an operator
    without a derivative; the subgradients at kinks are listed in ``autodiff/differentiation.py``.
    """
    names = (wrt,) if isinstance(wrt, str) else wrt
    made = differentiate(program, names)
    if inline:
        made = inline_injective(made).end
    return clean(made, final=True)[1]


def differentiate(program: Program, wrt: Iterable[str] | None = None) -> Program:
    """Return the gradients of *program*'s inputs *wrt* (None: all inputs), one output each, in their order.

    Its inputs are those of *program* and, for each output ``Y``, the gradient ``d_Y`` of ``Y``'s shape; a gradient of
    ``A`` is called ``d_A`` (with a number where that is taken).  Every output is linear in the output gradients.

    Raises ValueError for a name that is not an input, for a repeated name, for an operator without a derivative, and
    for an index map whose pre-images have far more points than the forward pass.
    """
    require_float32(program, "differentiation")
    chosen = _requested_inputs(program, wrt)
    flat = lift_scopes(program)
    run = _GradientBuilder(flat, set(flat.names()))
    for name in program.outputs:
        run.seed(name)
    active = _dependent_tensors(flat, chosen)
    for equation in reversed(flat.equations):
        if equation.name in active:
            run.through(equation, active)
    results = tuple(run.total(name) for name in chosen)
    made = Program((*program.inputs, *run.seeds.values()), (*flat.equations, *run.equations), results)
    out = _widen_gradients(exchange_equations(made, {}, ()), run.gradients)
    assert_linear(out, [t.name for t in run.seeds.values()])
    return out


def _requested_inputs(program: Program, wrt: Iterable[str] | None) -> tuple[str, ...]:
    known = tuple(t.name for t in program.inputs)
    chosen = known if wrt is None else tuple(wrt)
    for name in chosen:
        if name not in known:
            what = "an equation" if name in program.names() else "unknown"
            raise ValueError(f"wrt {name}: found {what}, expected one of the inputs {', '.join(known)}")
        if chosen.count(name) > 1:
            raise ValueError(f"wrt {name}: found it {chosen.count(name)} times, expected it once")
    if not chosen:
        raise ValueError(f"wrt: found no name, expected one of the inputs {', '.join(known)}")
    return chosen


def _dependent_tensors(program: Program, wrt: Iterable[str]) -> frozenset[str]:
    """Return the tensors that depend on *wrt*, including *wrt*."""
    found = set(wrt)
    for equation in program.equations:
        if any(t.name in found for t in tensors(equation.scope)):
            found.add(equation.name)
    return frozenset(found)


@dataclass
class _GradientBuilder:
    """Builder of a gradient program: gradients so far, and pending contributions for each tensor."""

    program: Program
    names: set[str]
    seeds: dict[str, Tensor] = field(default_factory=dict)
    parts: dict[str, list[Contribution]] = field(default_factory=dict)
    into: dict[str, tuple[Iterator, ...]] = field(default_factory=dict)
    equations: list[Equation] = field(default_factory=list)

    @property
    def gradients(self) -> frozenset[str]:
        """The names of all gradients."""
        return frozenset((*(t.name for t in self.seeds.values()), *(e.name for e in self.equations)))

    def seed(self, name: str) -> None:
        """Add the gradient of output *name* as an input."""
        self.seeds[name] = Tensor(self._fresh_name(GRADIENT_PREFIX + name), self._tensor(name).shape)

    def through(self, equation: Equation, active: frozenset[str]) -> None:
        """Propagate the gradient of *equation* to its reads."""
        if (above := self._gradient(equation.name)) is None:
            return
        scope = equation.scope
        wanted = [
            p for p in _partials(scope.body) if isinstance(p.access.source, Tensor) and p.access.source.name in active
        ]
        if not wanted:
            return
        above, scale = self._reduction_gradient(equation, above)
        for part in wanted:
            source = part.access.source
            assert isinstance(source, Tensor)
            used = (x.name for x in (*scope.traversals, *scope.summations))
            into = self.into.setdefault(source.name, _target_iterators(part.access.index, source.box, used))
            if (found := _gradient_contribution(scope, above, part, into, scale)) is not None:
                self.parts.setdefault(source.name, []).append(found)

    def total(self, name: str) -> str:
        """Return the name of the equation of input *name*'s gradient."""
        return self._equation(name).name

    def _gradient(self, name: str) -> Tensor | None:
        """Return the gradient of equation *name*; None if no output depends on it."""
        if name in self.parts or (name in self.seeds and self._tensor(name).origin):
            return self._equation(name).tensor
        return self.seeds.get(name)

    def _equation(self, name: str) -> Equation:
        """Return the equation that sums all contributions to the gradient of *name*."""
        box = self._tensor(name).box
        into = self.into.get(name) or tuple(Iterator(f"t{n}", lo, hi) for n, (lo, hi) in enumerate(box, 1))
        parts = list(self.parts.get(name, ()))
        if name in self.seeds:
            # An input starts at 0, a result where its ranges do.
            parts.insert(0, Contribution((), self.seeds[name][tuple(t - t.lo for t in into)]))
        if len(parts) == 1:
            return self._add_equation(GRADIENT_PREFIX + name, Scope(into, parts[0].free, parts[0].body))
        each = [p.body if not p.free else Scope(into, p.free, p.body)[into] for p in parts]
        return self._add_equation(GRADIENT_PREFIX + name, Scope(into, (), _sum_terms(each)))

    def _reduction_gradient(self, equation: Equation, above: Tensor) -> tuple[Tensor, Scalar]:
        """Return the gradient of each reduced value: (a tensor like *equation*'s, a factor over its iterators)."""
        scope = equation.scope
        if scope.reduce == "sum" or not scope.summations:
            return above, ONE
        x = scope.traversals
        if scope.reduce == "prod":
            return above, self._product_of_others(scope)
        result = equation.tensor[x]
        least, most = (scope.body, result) if scope.reduce == "max" else (result, scope.body)
        if not isinstance(scope.body, Access):
            # A compiler takes a product less something for one operation that rounds once: nothing would attain it.
            least, most = Apply("minimum", (least, most)), Apply("maximum", (least, most))
        gap = sub(most, least)
        attains = is_zero(gap)
        ties = self._add_equation("T", replace(scope, body=attains, reduce="sum", padding=(), value=0))
        shared = replace(scope, summations=(), reduce="sum", padding=(), value=0)
        share = self._add_equation(above.name, replace(shared, body=Apply("/", (above[x], ties.tensor[x]))))
        return share.tensor, attains

    def _product_of_others(self, scope: Scope) -> Scalar:
        """Return, for every factor of a product, the product of the others."""
        taken = {x.name for x in (*scope.traversals, *scope.summations)}
        again: dict[Iterator, Iterator] = {}
        for y in scope.summations:
            again[y] = Iterator(fresh_name(y.name, taken), y.lo, y.hi)
            taken.add(again[y].name)
        body = substitute(scope.body, again)
        others: Scalar = Const(1)
        for y, z in again.items():
            others = Apply("where", (Compare("==", as_index(z), as_index(y)), others, body))
        at = (*scope.traversals, *scope.summations)
        return self._add_equation("T", Scope(at, tuple(again.values()), others, "prod", scope.domain)).tensor[at]

    def _add_equation(self, stem: str, scope: Scope) -> Equation:
        made = Equation(self._fresh_name(stem), scope)
        self.equations.append(made)
        return made

    def _tensor(self, name: str) -> Tensor:
        return next((t for t in self.program.inputs if t.name == name), None) or next(
            e.tensor for e in self.program.equations if e.name == name
        )

    def _fresh_name(self, stem: str) -> str:
        name = stem if stem not in self.names and stem != "T" else fresh_name(stem, self.names)
        self.names.add(name)
        return name


def _widen_gradients(program: Program, names: frozenset[str]) -> Program:
    """Pad the gradients *names* of *program* by 0 as far as they are read."""
    pads: dict[str, Padding] = {}
    for equation in program.equations:
        for tensor in tensors(equation.scope):
            if tensor.name in names and tensor.padding:
                known = pads.get(tensor.name, tensor.padding)
                pads[tensor.name] = tuple(
                    (max(a, c), max(b, d)) for (a, b), (c, d) in zip(known, tensor.padding, strict=True)
                )

    def wide(tensor: Tensor) -> Tensor:
        return replace(tensor, padding=pads[tensor.name]) if tensor.name in pads else tensor

    equations = tuple(
        replace(e, scope=replace(map_tensors(e.scope, wide), padding=pads.get(e.name, e.scope.padding)))
        for e in program.equations
    )
    return replace(program, inputs=tuple(map(wide, program.inputs)), equations=equations)


@dataclass(frozen=True, slots=True)
class Partial:
    """The derivative with respect to one read: *factor* if all *conditions* are met, else 0."""

    access: Access
    factor: Scalar
    conditions: tuple[Condition, ...] = ()


def _partials(body: Scalar) -> tuple[Partial, ...]:
    """Return the derivatives of *body* with respect to its reads; reads of one element are combined.

    Raises ValueError for an operator without a derivative.
    """
    total: dict[tuple[Access, tuple[Condition, ...]], list[Scalar]] = {}
    for part in _chain_rule(body, ONE, ()):
        total.setdefault((part.access, part.conditions), []).append(part.factor)
    return tuple(Partial(access, _sum_terms(factors), where) for (access, where), factors in total.items())


def _sum_terms(parts: Iterable[Scalar]) -> Scalar:
    """Add *parts*; equal ones are counted."""
    counted = Counter(term for part in parts for term in terms(part))
    return add(*(mul(Const(n), part) for part, n in counted.items()))


def _chain_rule(body: Scalar, above: Scalar, where: tuple[Condition, ...]) -> Iterable[Partial]:
    """Yield the derivative with respect to every read of *body*, given the derivative *above* of *body*."""
    match body:
        case Access():
            yield Partial(body, above, where)
        case Const() | Compare():
            pass
        case Apply("+", args):
            for arg in args:
                yield from _chain_rule(arg, above, where)
        case Apply("*", args):
            for n, arg in enumerate(args):
                yield from _chain_rule(arg, mul(above, *args[:n], *args[n + 1 :]), where)
        case Apply("where", (Compare() as condition, yes, no)):
            yield from _chain_rule(yes, above, (*where, (condition, True)))
            yield from _chain_rule(no, above, (*where, (condition, False)))
        case Apply(op, args):
            for arg, factor in zip(args, _derivatives(op, args), strict=True):
                if factor != Const(0):
                    yield from _chain_rule(arg, mul(above, factor), where)


def _derivatives(op: str, args: tuple[Scalar, ...]) -> tuple[Scalar, ...]:
    """Return the derivative of ``op(args)`` with respect to each argument."""
    function = SCALAR_FUNCTIONS.get(op)
    if function is None or function.derivative is None or len(args) != function.arity:
        known = ", ".join(
            ("+ - * / neg", *(name for name in FUNCTIONS if name == "where" or SCALAR_FUNCTIONS[name].derivative))
        )
        raise ValueError(f"operator {op} of {len(args)} arguments has no derivative here, expected one of {known}")
    return function.derivative(Apply(op, args), *args)


@dataclass(frozen=True, slots=True)
class Contribution:
    """A contribution: the sum over *free* of *body*, at the gradient's element of the target iterators."""

    free: tuple[Iterator, ...]
    body: Scalar


def _target_iterators(
    index: tuple[Index, ...], box: tuple[tuple[int, int], ...], used: Iterable[str]
) -> tuple[Iterator, ...]:
    """Return iterators over *box*, named like single-iterator indices of *index*, else ``t1``, ``t2``, …"""
    taken = {*used, *(x.name for i in index for x in i.iterators)}
    out: list[Iterator] = []
    for i, (lo, hi) in zip(index, box, strict=True):
        single = i.single
        name = single.name if single and all(single.name != t.name for t in out) else fresh_name("t", taken)
        taken.add(name)
        out.append(Iterator(name, lo, hi))
    return tuple(out)


def _gradient_contribution(
    scope: Scope, above: Tensor, part: Partial, into: tuple[Iterator, ...], scale: Scalar
) -> Contribution | None:
    """Return the contribution of the read of *part* to the gradient over *into*; None if it is 0.

    *above* is the gradient of *scope*'s result, and *scale*, over the scope's iterators, a factor of all its _partials.
    Raises ValueError if the index map has no usable inverse.
    """
    whole = replace(part, factor=mul(part.factor, scale))
    direct = _pull_back(scope, above, whole, into, scope.traversals)
    if (direct.bounds or direct.stepped) and not whole.conditions and _finite(whole.factor):
        # Strides: where another factor's padding says which points count, this is a transposed convolution.  Rules step
        # through its sum as this did, but no rule makes steps whole again.
        other = _pull_back(scope, above, whole, into, scope.summations)
        if not (other.bounds or other.stepped or other.hard):
            direct = other
    if direct.hard:
        _refuse_long(scope, direct.scope, part.access)
    return _bounds_to_conditions(direct)


@dataclass(frozen=True, slots=True)
class _PulledScope:
    """A scope over the targets, valid where all *bounds* and *conditions* hold, and 0 elsewhere.

    *stepped*: an iterator of the original is strided; *hard*: an equation could not be solved.
    """

    scope: Scope
    bounds: tuple[Bound, ...]
    conditions: tuple[tuple[Scalar, bool], ...]
    stepped: bool
    hard: bool


def _pull_back(
    scope: Scope, above: Tensor, part: Partial, into: tuple[Iterator, ...], prefer: tuple[Iterator, ...]
) -> _PulledScope:
    """Return *part* times *above* at the targets *into*, solved for *prefer* first."""
    own = (*scope.traversals, *scope.summations)
    # The new iterators may have names of the old ones: these get a mark in between.
    marked = {x: Iterator(f"{x.name}'", x.lo, x.hi) for x in own}
    index = tuple(i.substitute(lambda x: marked[x]) for i in part.access.index)
    found = preimage(tuple(marked.values()), index, into, {marked[x] for x in prefer})
    plain = _unmark_iterators(found.free, into)
    stepped = any(y not in found.values for y in found.free)

    def unmark(i: Index) -> Index:
        return i.substitute(lambda y: plain.get(y, y))

    to = {x: unmark(found.values[marked[x]]) for x in own}
    bounds = (*(Bound(unmark(b.index), b.lo, b.hi) for b in found.guards), *substitute_domain(scope.domain, to))
    conditions = tuple((substitute(c, to), holds) for c, holds in part.conditions)
    read = Access(above, tuple(to[x] for x in scope.traversals))
    made = Scope(into, tuple(plain.values()), mul(read, substitute(part.factor, to)))
    if not part.conditions and _finite(part.factor):
        kept = tuple(b for b in bounds if not any(_vanishes(f, b) for f in factors(made.body)))
        if len(kept) < len(bounds) and (fit := _pad_reads(made, above, kept)) is not None:
            return _PulledScope(fit, kept, conditions, stepped, found.hard)
    return _PulledScope(made, bounds, conditions, stepped, found.hard)


def _refuse_long(scope: Scope, backward: Scope, access: Access) -> None:
    """Raise ValueError if *backward* enumerates far more points than *scope* or the gradient have."""
    walked, forward = (prod(x.extent for x in (*s.traversals, *s.summations)) for s in (backward, scope))
    made = prod(backward.shape)
    if walked > MAX_SLOWDOWN * max(forward, made):
        assert isinstance(access.source, Tensor)
        raise ValueError(
            f"the index map ({', '.join(map(repr, access.index))}) of {access.source.name} has no usable inverse: its "
            f"gradient, of {made} elements, would walk through {walked} points, expected at most {MAX_SLOWDOWN} times "
            f"as many as elements or as the {forward} points of the forward pass"
        )


def _unmark_iterators(free: Iterable[Iterator], into: Iterable[Iterator]) -> dict[Iterator, Iterator]:
    taken = {t.name for t in into}
    out: dict[Iterator, Iterator] = {}
    for y in free:
        name = y.name.replace("'", "")
        out[y] = Iterator(name if name not in taken else fresh_name(name, taken), y.lo, y.hi)
        taken.add(out[y].name)
    return out


def _vanishes(factor: Scalar, bound: Bound) -> bool:
    """Whether *factor* is, or can be padded to, 0 wherever *bound* is violated: a read outside its box."""
    match factor:
        case Access(Tensor() | Scope() as source, index):
            boxes = zip(index, source.box, strict=True)
            return not source.value and any(
                i == bound.index and bound.lo <= lo and hi <= bound.hi for i, (lo, hi) in boxes
            )
    return False


def _pad_reads(scope: Scope, above: Tensor, bounds: tuple[Bound, ...]) -> Scope | None:
    """Pad out-of-box reads of *scope* by 0: of *above*, and of copies of others; None if that is not valid.

    Where *bounds* are left, other reads stay as they are.
    """
    pads = [(0, 0)] * len(above.shape)

    def widest(access: Access) -> Access:
        if access.source == above:
            for d, (i, (lo, hi)) in enumerate(zip(access.index, above.box, strict=True)):
                first, last = index_reach(i)
                pads[d] = max(0, lo - first), max(0, last + 1 - hi)
            wide = replace(above, padding=tuple(pads) if any(map(any, pads)) else ())
            return Access(wide, access.index)
        return access

    scope = replace(scope, body=map_accesses(scope.body, widest))
    beyond = {e.access for e in excess(scope)}
    if not beyond:
        return scope
    sources = [a.source for n, a in enumerate(accesses(scope.body)) if n in beyond]
    if bounds or any(isinstance(s, Table) or s.value for s in sources):
        return None
    return fit_padding(scope, 0)


def _finite(factor: Scalar) -> bool:
    """Whether *factor* is finite for finite reads, and no read has infinite padding."""
    match factor:
        case Access(source):
            return not source.padding or isfinite(source.value)
        case Const(value):
            return isfinite(value)
        case Apply(op, args):
            f = SCALAR_FUNCTIONS.get(op)
            return f is not None and f.finite_on_finite and all(map(_finite, args))
        case Compare():
            return False


def _bounds_to_conditions(pulled: _PulledScope) -> Contribution | None:
    """Turn the remaining bounds into conditions; None if they cannot be met."""
    body = pulled.scope.body
    for b in pulled.bounds:
        lo, hi = b.index.bounds
        if hi < b.lo or lo >= b.hi:
            return None
        if b.hi - b.lo == 1:
            body = _where(Compare("==", b.index, as_index(b.lo)), body)
            continue
        if hi >= b.hi:
            body = _where(Compare("<", b.index, as_index(b.hi)), body)
        if lo < b.lo:
            body = _where(Compare(">=", b.index, as_index(b.lo)), body)
    for condition, true in pulled.conditions:
        zero = Const(0)
        body = Apply("where", (condition, body, zero) if true else (condition, zero, body))
    return Contribution(pulled.scope.summations, body)


def _where(condition: Compare, body: Scalar) -> Scalar:
    return Apply("where", (condition, body, Const(0)))
