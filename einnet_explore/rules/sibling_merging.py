r"""Sibling merging (Table 1, expression merging; §4.2, Fig. 3, Fig. 15): expressions of a shared operand become one.

.. math::
   Y_i = \mathop{L}_{\vec x, f_i} \sum_{\vec y \in Y_i} A[\tau(\vec x, \vec y)]\, K_i[\vec y, f_i]
   \;\mapsto\;
   M = \mathop{L}_{\vec x, n} \sum_{\vec y \in Y} A[\tau(\vec x, \vec y)]\, K[\vec y, n], \qquad
   Y_i = \mathop{L}_{\vec x, f_i} M[\vec x, o_i + f_i]

where :math:`K[\vec y, o_i + f_i] = K_i[\vec y, f_i]`, and 0 where :math:`\vec y` is outside the window
:math:`Y_i \subseteq Y` of :math:`Y_i`: a smaller one (Conv1x1) is a larger one (Conv3x3) with zero weights.  With equal
windows, any reduction, or none, of any function of the two operands merges alike: :math:`\max_y (A + K_i)`,
:math:`\sum_y (A - K_i)^2`.  The traversals :math:`f_i` that the shared operand does not read become one, of all their
values in turn; a traversal that it reads spans what any of the expressions needs.

A new equation concatenates the operands :math:`K_i`; for weights, it is evaluated at compile time.  Each result is a
part of the merged one.  An equation that a library operator runs may be merged as well; the result is matched again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import isfinite

from einnet_explore.analysis.concatenation import (
    OWN,
    SHARED,
    Member,
    Reading,
    Sibling,
    Slots,
    Span,
    Spans,
    align_readings,
    digit_strides,
    inline_unit_iterators,
    outline_around,
)
from einnet_explore.analysis.equations import (
    constant_tensors,
    equations_to_merge,
    exchange_equations,
    fresh_names,
    is_generated,
    require_free_operands,
    resolve_access,
    whole_equation,
)
from einnet_explore.analysis.indices import fresh_name, iterators_of
from einnet_explore.analysis.padding import excess
from einnet_explore.ir import (
    Access,
    Equation,
    Index,
    Iterator,
    Path,
    Program,
    Scope,
    Tensor,
    accesses,
    as_index,
    map_accesses,
    mul,
    tensors,
)
from einnet_explore.rules.base import Rule, accepted, explain_equation, refusals_of, refusing
from einnet_explore.support.errors import Refused


@dataclass(frozen=True, slots=True)
class Siblings:
    """The *others* to merge with the equation at the path, and the *tensor* that all of them read in the same way."""

    others: tuple[str, ...]
    tensor: str


def propose(program: Program, at: Path) -> Iterable[Siblings]:
    """Propose the later equations that merge over a tensor: all, then each alone; those on weights first."""
    if len(at) != 1 or is_generated(base := program.equations[at[0]]):
        return
    constant = constant_tensors(program)
    later = {e.name: _operands(program, e) for e in program.equations[at[0] + 1 :] if not is_generated(e)}
    for tensor in sorted(dict.fromkeys(_operands(program, base)), key=lambda name: name in constant):
        readers = (name for name, read in later.items() if tensor in read)
        alone = [s for name in readers if accepted(_merge, program, at, s := Siblings((name,), tensor))]
        together = Siblings(tuple(s.others[0] for s in alone), tensor)
        if len(alone) > 1 and accepted(_merge, program, at, together):
            yield together
        yield from alone


def _operands(program: Program, equation: Equation) -> tuple[str, ...]:
    """Return the tensors that *equation* reads, through views."""
    return tuple(_source_name(resolve_access(program, a)) for a in accesses(equation.scope.body))


def _merge(program: Program, at: Path, params: Siblings) -> Program:
    """Apply the law; refuses also element-wise expressions whose operands would be copied."""
    return require_free_operands(program, rewrite(program, at, params), at)


def rewrite(program: Program, at: Path, params: Siblings) -> Program:
    """Apply the law; refuses with the index maps, ranges or reductions that differ, or with a dependence."""
    with refusing():
        base = whole_equation(program, at)
        equations = equations_to_merge(program, (base.name, *params.others))
        operand, whole = fresh_names(program, "K", "M")
        merging = _Merging(_sibling(program, base, params.tensor))
        for other in equations[1:]:
            merging.take_in(_sibling(program, other, params.tensor))
        found = merging.build(operand, whole)
    parts = {e.name: replace(e, scope=found.parts[e.name], via=None) for e in equations}
    with refusing():
        return exchange_equations(program, parts, (found.operand, found.whole))


def _sibling(program: Program, equation: Equation, tensor: str) -> Sibling:
    if is_generated(equation) and equation.via is not None:
        raise Refused(f"{equation.name} is run as {equation.via.operator}: there is nothing to merge")
    why = Refused(f"{equation.name} has no operand that reads {tensor}: it reads {_read(equation)}")
    for access in dict.fromkeys(accesses(equation.scope.body)):
        if _source_name(read := resolve_access(program, access)) == tensor:
            try:
                return _make_sibling(equation.name, equation.scope, access, read)
            except ValueError as error:
                why = Refused(str(error))
    raise why


def _read(equation: Equation) -> str:
    return ", ".join(t.name for t in tensors(equation.scope)) or "nothing"


def _make_sibling(name: str, scope: Scope, shared: Access, read: Access) -> Sibling:
    """Return *scope* with *shared*, which resolves to *read*, as the shared operand; raises ValueError."""
    if scope.domain:
        raise ValueError(f"{name} is computed only where {', '.join(map(repr, scope.domain))}")
    outline, own = outline_around(shared, scope.body)
    bound = {x for i in read.index for x in i.iterators}
    found = Sibling(name, scope, shared, read, own, outline)
    if loose := [y.name for y in scope.summations if y.extent > 1 and y not in bound]:
        raise ValueError(f"{name} sums over {', '.join(loose)}, by which {_source_name(read)} is not read")
    held = iterators_of(found.own)
    if loose := [x.name for x in found.free if x not in held]:
        raise ValueError(f"{name} repeats its elements along {', '.join(loose)}")
    return found


def _source_name(access: Access) -> str:
    """Return the name of the tensor that *access* reads."""
    return access.source.name if isinstance(access.source, Tensor) else "what has no name"


@dataclass(frozen=True, slots=True)
class _MergedSiblings:
    """The result of a merger: the concatenated own factors, the merged expression, and each result as its part."""

    operand: Equation
    whole: Equation
    parts: Mapping[str, Scope]


@dataclass(slots=True)
class _Merging:
    base: Sibling
    iterators: dict[str, Iterator] = field(init=False)
    reading: Reading = field(init=False)
    members: list[Member] = field(init=False)
    more: list[Iterator] = field(default_factory=list)
    lacking: Spans = field(default_factory=dict)
    """Spans of the members that lack one of *more*."""

    def __post_init__(self) -> None:
        base = self.base
        own = [x for x in (*base.scope.traversals, *base.scope.summations) if x not in base.free]
        self.iterators = {x.name: x for x in own}
        self.reading = base.reading
        to = {x: inline_unit_iterators(as_index(x)) for x in own}
        self.members = [Member(base, to, {x.name: (x.lo, x.hi) for x in own})]

    def take_in(self, other: Sibling) -> None:
        """Align *other* with the members; iterators that only it sums join the merged ones."""
        base = self.base
        if other.scope.reduce != base.scope.reduce:
            raise ValueError(f"{base.name} reduces by {base.scope.reduce}, {other.name} by {other.scope.reduce}")
        if base.outline != other.outline:
            raise ValueError(f"{base.name} computes {base.outline!r}, {other.name} {other.outline!r}")
        if (one := base.read.source) != (two := other.read.source):
            raise ValueError(f"{base.name} and {other.name} share no operand: they read {one!r} and {two!r}")
        try:
            found = align_readings(self.reading, other.reading)
        except ValueError as why:
            raise ValueError(
                f"{base.name} and {other.name} do not read {_source_name(base.read)} alike: {why}"
            ) from None
        member = Member(other, {}, {x.name: (v, v + 1) for x, v in found.held.items()})
        moved = {y: x for y, (x, _) in found.shift.items()}
        for y in (*other.scope.traversals, *other.scope.summations):
            if y in found.extra:
                moved[y] = self._add_iterator(y)
                self.lacking[moved[y].name] = (found.extra[y], found.extra[y] + 1)
                member.to[y], member.span[moved[y].name] = as_index(moved[y]), (y.lo, y.hi)
            elif y in found.shift:
                x, by = found.shift[y]
                member.to[y], member.span[x.name] = x + by, (y.lo - by, y.hi - by)
            elif y not in other.free:
                member.to[y] = as_index(y.lo)
        if found.extra:
            self.reading = self._widen(other.reading, found.extra, moved)
        self.members.append(member)

    def _widen(self, other: Reading, extra: Mapping[Iterator, int], moved: Mapping[Iterator, Iterator]) -> Reading:
        """Add the windows of *other* to the reading; earlier members are fixed to these values."""
        index = []
        for i, j in zip(self.reading.index, other.index, strict=True):
            window = Index()
            for y, value in extra.items():
                window = window + (moved[y] - value) * j.coefficient(y)
            index.append(i + window)
        return Reading(tuple(index), self.reading.summed | set(self.more))

    def _add_iterator(self, y: Iterator) -> Iterator:
        name = y.name
        if name in (taken := {*self.iterators, *(x.name for x in self.base.free)}):
            name = fresh_name(name, taken)
        made = Iterator(name, y.lo, y.hi)
        self.iterators[name] = made
        self.more.append(made)
        return made

    def build(self, operand: str, whole: str) -> _MergedSiblings:
        """Return the equations, once every sibling has its place."""
        count = 0
        for member in self.members:
            member.first, count = count, count + member.count
            for x in self.iterators.values():  # a sum that a member lacks has one term
                member.span.setdefault(x.name, self.lacking.get(x.name, (x.lo, x.lo + 1)))
        hull = {name: _hull(m.span[name] for m in self.members) for name in self.iterators}
        now = {x: Iterator(name, *hull[name]) for name, x in self.iterators.items()}
        base, free = self.base, self.base.free
        stem = free[0].name if len(free) == 1 else "n" if "n" not in self.iterators else fresh_name("n", self.iterators)
        n = Iterator(stem, 0, count)
        restricted = [x for x in now.values() if any(m.span[x.name] != hull[x.name] for m in self.members)]
        shared = self._shared(now)
        summed = {*base.scope.summations, *self.more}
        windows = [x for x in restricted if self.iterators[x.name] in summed]
        if windows and (why := _effect_of_zero(base, shared)):
            raise ValueError(f"the windows differ along {windows[0].name}, and 0 leaves out nothing: {why}")
        slots = Slots(self.members, now, n, tuple(windows))
        made, index = slots.operand(operand)
        summations = tuple(now[x] for x in self.iterators.values() if x in summed)
        used = {x for i in (*shared.index, *index) for x in i.iterators}
        scope = Scope(
            _traversals(base, now, n),
            tuple(x for x in summations if x in used),
            map_accesses(base.outline, lambda place: shared if place == SHARED else made.tensor[index]),
            base.scope.reduce if any(x in used for x in summations) else "sum",
        )
        if beyond := excess(scope):
            raise ValueError(f"together, {beyond[0]}")
        one = Equation(whole, scope)
        return _MergedSiblings(made, one, {m.sibling.name: _part(m, one, base, n) for m in self.members})

    def _shared(self, now: Mapping[Iterator, Iterator]) -> Access:
        base = self.base
        repeated = any(x in base.free for i in base.shared.index for x in i.iterators)  # a view that repeats it
        as_written = not (self.more or repeated)
        read = base.shared if as_written else Access(base.read.source, self.reading.index[: len(base.read.index)])
        return Access(read.source, tuple(i.substitute(lambda x: now.get(x, x)) for i in read.index))


def _effect_of_zero(base: Sibling, shared: Access) -> str:
    """Return why an own operand that is 0 contributes to the result; nothing if it does not."""
    if base.scope.reduce != "sum":
        return f"it reduces by {base.scope.reduce}"
    if base.outline != mul(SHARED, OWN):
        return f"{base.outline!r} is no product"
    return "" if isfinite(shared.source.value) else "its padding is infinite"


def _hull(spans: Iterable[Span]) -> Span:
    lows, highs = zip(*spans, strict=True)
    return min(lows), max(highs)


def _traversals(base: Sibling, now: Mapping[Iterator, Iterator], n: Iterator) -> tuple[Iterator, ...]:
    """Return the base's traversals, with its free ones replaced by *n*."""
    kept = [n if x in base.free else now[x] for x in base.scope.traversals]
    return tuple(dict.fromkeys(kept if base.free else [*kept, n]))


def _part(member: Member, whole: Equation, base: Sibling, n: Iterator) -> Scope:
    """Return the member's own result, read from the merged expression."""
    back: dict[str, Index] = {}
    for y in member.sibling.scope.traversals:
        if y in member.to and (x := next(iter(member.to[y].iterators), None)) is not None:
            back[x.name] = y - member.to[y].const
    place = as_index(member.first)
    for x, stride in digit_strides(member.sibling.free):
        place = place + (x - x.lo) * stride
    index = tuple(
        place if x == n else back.get(x.name, as_index(member.span[x.name][0])) for x in whole.scope.traversals
    )
    return replace(member.sibling.scope, summations=(), reduce="sum", body=whole.tensor[index])


def explain(program: Program, base: Equation, at: Path) -> str:
    """Return why no other equation merges with *base*: the difference, for each one that reads a tensor of it."""
    reasons: list[str] = []
    mine = _operands(program, base)
    for other in program.equations[at[0] + 1 :]:
        for tensor in _operands(program, other):
            if tensor in mine:
                reasons += refusals_of(_merge, program, at, Siblings((other.name,), tensor))
    return (
        "; ".join(dict.fromkeys(reasons))
        or f"no later equation shares an operand with {base.name}, which reads {_read(base)}"
    )


SIBLING_MERGING = Rule(
    name="sibling_merging",
    law=r"\mathop{L}_{\vec x, f_1} \sum_{\vec y} A\, K_1[\vec y, f_1] \sim \mathop{L}_{\vec x, f_2} \sum_{\vec y} A\,"
    r" K_2[\vec y, f_2] \Longrightarrow \mathop{L}_{\vec x, n} \sum_{\vec y} A\, (K_1 \| K_2)[\vec y, n]",
    propose=propose,
    rewrite=rewrite,
    explain=explain_equation(explain),
)
