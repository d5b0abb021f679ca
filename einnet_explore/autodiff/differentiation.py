r"""Reverse-mode differentiation of programs: gradients as programs again.

.. math::
   dT = \sum_{Y\ \text{reads}\ T}\ \mathop{L}_{\vec t}\ \sum_{(\vec x, \vec y) :\, \tau(\vec x, \vec y) = \vec t}
        dY[\vec x]\ \frac{\partial f}{\partial T}(\vec x, \vec y)

Gradients are derived from expressions; operators have no gradient rules.  The result recomputes the forward values that
it needs (``cse`` shares them).  Gradients of reductions:

* ``sum``: every term receives the gradient;
* ``max`` and ``min``: all elements that attain the extremum share it equally;
* ``prod``: a factor receives it times the product of the other factors, computed without division, so zeros are safe.

Source: Griewank and Walther, "Evaluating Derivatives"; the gradient definitions of "Common Subexpression Elimination"
(TVM), which this replaces by derivation.

Nested scopes are first lifted to equations, so that every body reads tensors and tables only:

.. math::  Y = \mathop{L}_{\vec x} g(\{S\}[\pi]) \quad\mapsto\quad T = S,\ Y = \mathop{L}_{\vec x} g(T[\pi])

Scopes are closed, so this is always possible; equal scopes become one equation.

``grad`` cleans gradients up for the rules and the library.  It may also inline elementwise (injective) equations:

.. math::
   \mathop{L}_{\vec y} \textstyle\sum g(T[\pi(\vec y)]) \;\circ\; T = \mathop{L}_{\vec x} f(\vec x)
   \;\mapsto\; \mathop{L}_{\vec y} \textstyle\sum g(f(\pi(\vec y)))

for any index map :math:`\pi` (permuted, negated, strided), if *T* has no summation.  Such intermediates would hide
common subexpressions of the two passes.  Every step is a match of expression inlining, traversal merging or dead
equation, so the result is a derivation with certificates.  Source: the tensor auto-inliner of the same document;
EinNet §4.1 for traversal merging.

Linearity is checked by structure: results homogeneous of degree one in some inputs,

.. math::  f(\alpha\, d + \beta\, e) = \alpha f(d) + \beta f(e)

with degrees as of polynomials: degrees of factors add up, terms have equal degrees, a quotient has its numerator's if
the denominator has degree 0, and arguments of other functions must have degree 0.  A sum keeps the degree; a maximum or
product does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from einnet_explore.analysis.equations import exchange_equations
from einnet_explore.analysis.indices import fresh_name, substitute
from einnet_explore.autodiff.adjoints import Contribution, gradient_contribution, target_iterators
from einnet_explore.autodiff.scalar_derivatives import ONE, partials, sum_terms
from einnet_explore.ir import (
    Access,
    Apply,
    Compare,
    Const,
    Equation,
    Iterator,
    Padding,
    Program,
    Scalar,
    Scope,
    Table,
    Tensor,
    accesses,
    as_index,
    is_zero,
    map_accesses,
    map_tensors,
    scopes,
    sub,
    tensors,
)
from einnet_explore.rules import DEAD_EQUATION, EXPRESSION_INLINING, TRAVERSAL_MERGING, Derivation, Refused
from einnet_explore.strategies.moves import clean


def lift_scopes(program: Program) -> Program:
    """Lift every nested scope to an equation before its reader; instances are dropped."""
    names = set(program.names())
    made: dict[Scope, Equation] = {}
    out: list[Equation] = []

    def flat(scope: Scope) -> Scope:
        return replace(scope, body=map_accesses(scope.body, lift_access))

    def lift_access(access: Access) -> Access:
        match access.source:
            case Scope() as inner:
                if inner not in made:
                    name = _lifted_name(names)
                    made[inner] = Equation(name, flat(inner))
                    out.append(made[inner])
                return Access(made[inner].tensor, access.index)
        return access

    for equation in program.equations:
        out.append(Equation(equation.name, flat(equation.scope)))
    return replace(program, equations=tuple(out))


def _lifted_name(names: set[str]) -> str:
    name = next(name for n in range(1, len(names) + 2) if (name := f"T{n}") not in names)
    names.add(name)
    return name


NONLINEAR = None
"""The degree of 0, which is homogeneous of every degree."""


def assert_linear(program: Program, names: Iterable[str]) -> None:
    """Raise ValueError, with the offending expression, unless every output is linear in the inputs *names*."""
    degrees: dict[str, int | None] = dict.fromkeys(names, 1)
    for equation in program.equations:
        degrees[equation.name] = _scope(equation.scope, degrees, equation.name)
    for name in program.outputs:
        if degrees.get(name, 0) not in (1, NONLINEAR):
            raise ValueError(f"{name} does not depend on {', '.join(sorted(set(names)))} linearly: it has degree 0")


def _scope(scope: Scope, degrees: Mapping[str, int | None], label: str) -> int | None:
    degree = _degree(scope.body, degrees, label)
    if degree == 1 and scope.summations and scope.reduce != "sum":
        raise ValueError(f"{label}: {scope.reduce} of what is linear is not linear")
    if degree == 1 and scope.value and (scope.padding or scope.domain):
        raise ValueError(f"{label} is {scope.value:g} outside, expected 0 of what is linear")
    return degree


def _source(source: Tensor | Table | Scope, degrees: Mapping[str, int | None], label: str) -> int | None:
    match source:
        case Tensor(name):
            degree = degrees.get(name, 0)
            if degree == 1 and source.value and source.padding:
                raise ValueError(f"{label}: {name} is {source.value:g} outside, expected 0 of what is linear")
            return degree
        case Table():
            return 0
        case Scope():
            return _scope(source, degrees, label)


def _degree(body: Scalar, degrees: Mapping[str, int | None], label: str) -> int | None:
    match body:
        case Access(source):
            return _source(source, degrees, label)
        case Compare():
            return 0
        case Const(value):
            return 0 if value else NONLINEAR
        case Apply("*", args):
            each = [_degree(a, degrees, label) for a in args]
            total = sum(d for d in each if d is not NONLINEAR)
            if total > 1:
                raise ValueError(f"{label}: {body!r} has degree {total}, expected 1 at most")
            return NONLINEAR if NONLINEAR in each else total
        case Apply("/", (a, b)):
            if _degree(b, degrees, label) == 1:
                raise ValueError(f"{label}: {body!r} divides by what is linear")
            return _degree(a, degrees, label)
        case Apply("where", (_, *branches)) | Apply("+" | "-" | "neg", branches):
            found = {d for a in branches if (d := _degree(a, degrees, label)) is not NONLINEAR}
            if len(found) > 1:
                raise ValueError(f"{label}: the terms of {body!r} have degrees 0 and 1")
            return found.pop() if found else NONLINEAR
        case Apply(op, args):
            if any(_degree(a, degrees, label) == 1 for a in args):
                raise ValueError(f"{label}: {op} of what is linear is not linear")
            return 0


GRADIENT_PREFIX = "d_"
"""The gradient of ``Y`` is called ``d_Y``."""


def differentiate(program: Program, wrt: Iterable[str] | None = None) -> Program:
    """Return the gradients of *program*'s inputs *wrt* (None: all inputs), one output each, in their order.

    Its inputs are those of *program* and, for each output ``Y``, the gradient ``d_Y`` of ``Y``'s shape; a gradient of
    ``A`` is called ``d_A`` (with a number where that is taken).  Every output is linear in the output gradients.

    Raises ValueError for a name that is not an input, for a repeated name, for an operator without a derivative, and
    for an index map whose pre-images have far more points than the forward pass.
    """
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
            p for p in partials(scope.body) if isinstance(p.access.source, Tensor) and p.access.source.name in active
        ]
        if not wanted:
            return
        above, scale = self._reduction_gradient(equation, above)
        for part in wanted:
            source = part.access.source
            assert isinstance(source, Tensor)
            used = (x.name for x in (*scope.traversals, *scope.summations))
            into = self.into.setdefault(source.name, target_iterators(part.access.index, source.box, used))
            if (found := gradient_contribution(scope, above, part, into, scale)) is not None:
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
        return self._add_equation(GRADIENT_PREFIX + name, Scope(into, (), sum_terms(each)))

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


def inline_injective(program: Program, keep: Iterable[str] = ()) -> Derivation:
    """Inline every equation without summations into its readers, and remove equations without readers.

    An equation in *keep* is not inlined, nor is one into a reader that reads it beyond its box, which traversal merging
    refuses.
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
