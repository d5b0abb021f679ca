r"""Layout assignment: layouts of a program's intermediates chosen together, so that transforms are shared.

This goes beyond EinNet §6.3.  An eOperator reads and writes any layout, at a cost that depends on it; a library
operator only those in which it matches without further equations (a matrix product its transposes).  Inputs and
outputs keep their layouts.  The choice is a small assignment problem, solved exactly (SciPy's ``milp``: HiGHS).

Every operator runs in one of its modes; a mode reads and makes its tensors in certain layouts at a cost.  A tensor that
is made in layout *a* and read in layout *b* is transformed once, however many read it there:

.. math::
   \min \sum_{o,m} c_{om} z_{om} + \sum_{T,a,b} t_{Tab} w_{Tab},\quad
   \sum_m z_{om} = 1,\quad w_{Tab} \ge p_{Ta} + \sum_{m \text{ reads } T \text{ in } b} z_{om} - 1

Candidate layouts of an intermediate are those of its sources and the orders in which its readers traverse it.  Between
products of bytes, which are fastest with channels last, orders of the dimensions spread to tensors whose dimensions
correspond, so that a chain of operators may have one order.

.. math::  T[\vec x] = f(S[\tau(\vec x)]) \Rightarrow \Phi = \tau, \qquad
           g(\vec y) = h(T[\pi(\vec y)]) \Rightarrow \Phi = \pi^{-1}

If these are no bijections (windows, sums) only the order is taken.  Blocked layouts come from readers that divide.
The cost of an equation in a layout is estimated by its memory accesses, or by what a product of bytes copies and
transposes; the gain of the cheapest assignment is then measured on this device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import TypeAlias

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from einnet_explore.analysis.equations import find_equation, is_generated, map_reads, weight_only
from einnet_explore.analysis.indices import fresh_name
from einnet_explore.analysis.products import multiplies_bytes
from einnet_explore.analysis.regions import Bijection, bijection
from einnet_explore.codegen.preparation import address_step
from einnet_explore.cost import CostModel
from einnet_explore.ir import (
    VIEW,
    Access,
    Equation,
    Index,
    Iterator,
    Program,
    Scope,
    Tensor,
    accesses,
    as_index,
    scopes,
    tensors,
)
from einnet_explore.pipeline.fusion import (
    apply_rule,
    fuse_eoperators,
    generate_equation,
    match_library_again,
)
from einnet_explore.rules import STORAGE_LAYOUT, Derivation, Refused
from einnet_explore.rules.storage_layout import Stored, map_index, with_layout
from einnet_explore.runtime.integer_products import integer_product
from einnet_explore.strategies.moves import merge_scopes

Transform: TypeAlias = "tuple[str, int, int]"
"""A tensor, the layout that it is made in, and one that it is read in."""


@dataclass(frozen=True, slots=True)
class Mode:
    """A mode of an operator: its *seconds*, and the layouts in which it reads and writes tensors, by name."""

    seconds: float
    reads: Mapping[str, int] = field(default_factory=dict)
    makes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LayoutAssignment:
    """The mode number of each operator, the remaining transforms, and the seconds of all together."""

    modes: tuple[int, ...]
    transforms: frozenset[Transform]
    seconds: float


def needed_transforms(modes: Iterable[Mode]) -> frozenset[Transform]:
    """Return the transforms that operators in *modes* need; inputs have layout 0."""
    held = tuple(modes)
    made = {name: layout for mode in held for name, layout in mode.makes.items()}
    return frozenset(
        (name, made.get(name, 0), layout)
        for mode in held
        for name, layout in mode.reads.items()
        if made.get(name, 0) != layout
    )


def total_seconds(modes: Iterable[Mode], seconds: Callable[[Transform], float]) -> float:
    """Return the seconds of operators in *modes*, with the transforms between them."""
    held = tuple(modes)
    return sum(mode.seconds for mode in held) + sum(map(seconds, needed_transforms(held)))


def assign_modes(operators: Sequence[Sequence[Mode]], seconds: Callable[[Transform], float]) -> LayoutAssignment:
    """Choose the cheapest mode for every operator; *seconds* is the cost of a transform.

    Raises ValueError for an operator without modes, and where the solver finds nothing.
    """
    if empty := [n for n, modes in enumerate(operators) if not modes]:
        raise ValueError(f"operator {empty[0]} has no mode, expected at least one")
    if not operators:
        return LayoutAssignment((), frozenset(), 0.0)
    places = [(o, m) for o, modes in enumerate(operators) for m in range(len(modes))]
    column = {place: n for n, place in enumerate(places)}
    possible = sorted(_possible(operators))
    costs = [operators[o][m].seconds for o, m in places] + [seconds(t) for t in possible]
    scale = max(*map(abs, costs), 1e-30)  # microseconds are below the solver's tolerances
    solved = milp(
        np.asarray(costs) / scale,
        constraints=_mode_constraints(operators, column, possible),
        integrality=np.array([1] * len(places) + [0] * len(possible)),
        bounds=Bounds(0, 1),
    )
    if solved.x is None:
        raise ValueError(f"no assignment of {len(places)} modes was found: {solved.message}")
    chosen = tuple(
        max(range(len(modes)), key=lambda m, o=o: solved.x[column[o, m]])  # type: ignore[misc]
        for o, modes in enumerate(operators)
    )
    taken = [operators[o][m] for o, m in enumerate(chosen)]
    return LayoutAssignment(chosen, needed_transforms(taken), total_seconds(taken, seconds))


def _mode_constraints(
    operators: Sequence[Sequence[Mode]], column: Mapping[tuple[int, int], int], possible: Sequence[Transform]
) -> LinearConstraint:
    """Return the constraints: one mode for each operator, and the transforms that the modes need.

    The variables are the modes, by *column*, then the *possible* transforms.
    """
    rows: list[np.ndarray] = []
    least: list[float] = []
    most: list[float] = []

    def row(entries: Iterable[tuple[int, float]], lo: float, hi: float) -> None:
        made = np.zeros(len(column) + len(possible))
        for n, factor in entries:
            made[n] += factor
        rows.append(made)
        least.append(lo)
        most.append(hi)

    for o, modes in enumerate(operators):
        row(((column[o, m], 1) for m in range(len(modes))), 1, 1)
    for n, (name, made_in, read_in) in enumerate(possible, len(column)):
        makers = [at for (o, m), at in column.items() if operators[o][m].makes.get(name) == made_in]
        fixed = not any(name in operators[o][m].makes for o, m in column)
        for o, modes in enumerate(operators):
            reading = [column[o, m] for m, mode in enumerate(modes) if mode.reads.get(name) == read_in]
            if reading:
                entries = [(n, 1.0), *((c, -1.0) for c in makers), *((c, -1.0) for c in reading)]
                row(entries, (1 if fixed else 0) - 1, np.inf)
    return LinearConstraint(np.array(rows), np.array(least), np.array(most))


def _possible(operators: Sequence[Sequence[Mode]]) -> set[Transform]:
    made: dict[str, set[int]] = {}
    read: dict[str, set[int]] = {}
    for modes in operators:
        for mode in modes:
            for held, layouts in ((made, mode.makes), (read, mode.reads)):
                for name, layout in layouts.items():
                    held.setdefault(name, set()).add(layout)
    return {(name, a, b) for name, layouts in read.items() for a in made.get(name, {0}) for b in layouts if a != b}


Phi: TypeAlias = "tuple[tuple[str, Index], ...]"
"""New traversals in order: a name, and an index in the old ones."""

MAX_LAYOUTS = 4
"""Layouts of one tensor that are tried, its own among them."""


def candidate_layouts(program: Program, equation: Equation) -> tuple[Phi, ...]:
    """Return layouts of the result of *equation*, its own first; an output has no other."""
    xs = equation.scope.traversals
    found = {tuple(map(as_index, xs)): _phi(xs, tuple(map(as_index, xs)))}
    if equation.name not in program.outputs:
        for forward in (*_as_sources(equation.scope), *_as_readers(program, equation)):
            whole = (*forward, *(as_index(x) for x in xs if not any(x in i.iterators for i in forward)))
            if whole not in found and _box(xs, whole):
                found[whole] = _phi(xs, whole)
    return tuple(found.values())[:MAX_LAYOUTS]


def _with_spread_orders(program: Program, found: Mapping[str, tuple[Phi, ...]]) -> Mapping[str, tuple[Phi, ...]]:
    """Add orders of dimensions of the result of an equation to what it reads along the same dimensions, and back."""
    out = dict(found)
    pairs = [
        pair
        for e in program.equations
        for source in tensors(e.scope)
        if {e.name, source.name} <= out.keys() and _dimensions_correspond(e.scope, source.name)
        for pair in ((e.name, source.name), (source.name, e.name))
    ]
    changes = True
    while changes:
        changes = False
        for one, other in pairs:
            for order in [_order_of(program, one, phi) for phi in out[one]]:
                xs = find_equation(program, other).scope.traversals
                is_new = order is not None and order not in [_order_of(program, other, phi) for phi in out[other]]
                if is_new and other not in program.outputs and len(out[other]) < MAX_LAYOUTS:
                    out[other] = (*out[other], _phi(xs, tuple(as_index(xs[d]) for d in order or ())))
                    changes = True
    return out


def _dimensions_correspond(scope: Scope, name: str) -> bool:
    """Whether all reads of the tensor *name* move along each of its dimensions by the traversal of that number."""
    reads = [a for _, inner in scopes(scope) for a in accesses(inner.body) if isinstance(a.source, Tensor)]
    own = [a for a in reads if a.source.name == name]  # type: ignore[union-attr]
    return all(
        len(a.index) == len(scope.traversals)
        and all(
            {y for y in i.iterators if y in scope.traversals} <= {x}
            for i, x in zip(a.index, scope.traversals, strict=True)
        )
        for a in own
    )


def _order_of(program: Program, name: str, phi: Phi) -> tuple[int, ...] | None:
    """The dimensions of the tensor *name* in the order of the layout *phi*; None if it divides or joins some."""
    xs = find_equation(program, name).scope.traversals
    found = tuple(xs.index(i.single) if i.single in xs else -1 for _, i in phi)
    return found if sorted(found) == list(range(len(xs))) else None


def _as_sources(scope: Scope) -> Iterable[tuple[Index, ...]]:
    for access in accesses(scope.body):
        if isinstance(access.source, Tensor):
            mine = [i for i in access.index if any(x in scope.traversals for x in i.iterators)]
            if not any(x in scope.summations for i in mine for x in i.iterators):
                yield tuple(i - i.const for i in mine)
            yield _order(scope.traversals, mine)


def _as_readers(program: Program, equation: Equation) -> Iterable[tuple[Index, ...]]:
    xs = equation.scope.traversals
    for reader in program.equations:
        for _, scope in scopes(reader.scope):
            for access in accesses(scope.body):
                if isinstance(access.source, Tensor) and access.source.name == equation.name:
                    walked = (*scope.traversals, *scope.summations)
                    if (inverse := _inverse(xs, walked, access)) is not None:
                        yield inverse
                    yield _walk(xs, walked, access)


def _inverse(xs: tuple[Iterator, ...], walked: tuple[Iterator, ...], access: Access) -> tuple[Index, ...] | None:
    """The reader's iterators, in its order, by the tensor's dimensions; None unless each is read once."""
    moving = [(x, i) for x, i in zip(xs, access.index, strict=True) if i.iterators]
    own = tuple(y for y in walked if any(y in i.iterators for _, i in moving))
    if not own:
        return None
    try:
        phi = bijection(own, tuple(x.name for x, _ in moving), tuple(i for _, i in moving))
    except ValueError:
        return None
    if phi.image or any((z.lo, z.hi) != (x.lo, x.hi) for z, (x, _) in zip(phi.target, moving, strict=True)):
        return None
    return phi.backward


def _walk(xs: tuple[Iterator, ...], walked: tuple[Iterator, ...], access: Access) -> tuple[Index, ...]:
    """The dimensions in the order in which the reader's iterators first move them."""
    place = {y: n for n, y in enumerate(walked)}
    first = [min((place[y] for y in i.iterators), default=len(place)) for i in access.index]
    return tuple(as_index(xs[d]) for d in sorted(range(len(xs)), key=first.__getitem__))


def _order(xs: tuple[Iterator, ...], indices: Iterable[Index]) -> tuple[Index, ...]:
    """The traversals in the order in which *indices* name them."""
    return tuple(as_index(x) for x in dict.fromkeys(x for i in indices for x in i.iterators) if x in xs)


def _box(xs: tuple[Iterator, ...], forward: tuple[Index, ...]) -> bool:
    try:
        phi = bijection(xs, tuple(f"z{n}" for n in range(len(forward))), forward)
    except ValueError:
        return False
    return not phi.image


def _phi(xs: tuple[Iterator, ...], forward: tuple[Index, ...]) -> Phi:
    names: list[str] = []
    for index in forward:
        single = index.single
        used = (*names, *(x.name for x in xs))
        names.append(single.name if single is not None and single.name not in names else fresh_name("z", used))
    return tuple(zip(names, forward, strict=True))


STRIDED_FACTOR = 2.0
"""Estimated slowdown of reads that jump through memory."""

DIVIDED_FACTOR = 1.1
"""Estimated slowdown of an index with a quotient or a remainder."""


def estimate_equation(equation: Equation, model: CostModel | None = None) -> float:
    """Estimate seconds by roofline, more for reads that jump through memory and for operands that are copied first."""
    model = model or CostModel()
    seconds = model.estimate(equation).seconds
    weights = {t.name for t in tensors(equation.scope) if t.weight}
    if (product := integer_product(equation.scope, weights, {})) is not None:
        return seconds + product.rearranged_bytes / model.device.cache_bandwidth
    return seconds * max(
        (_slowdown(scope, a) for _, scope in scopes(equation.scope) for a in accesses(scope.body)), default=1.0
    )


def _slowdown(scope: Scope, access: Access) -> float:
    moving = [x for x in scope.traversals if x.extent > 1]
    jumps = moving and abs(address_step(access, moving[-1])) > 1
    return (STRIDED_FACTOR if jumps else 1.0) * (1.0 if all(i.affine for i in access.index) else DIVIDED_FACTOR)


Price = Callable[[Equation], float]
"""Seconds of one run of an instantiated equation."""

MIN_MEASURED_GAIN = 0.95
"""Layouts change if the operators that change then take less than this part of their measured time."""

MIN_ESTIMATED_GAIN = 0.999
"""The same for the estimated time of all operators, which has no noise."""

MAX_MEASURED_MODES = 48
"""Modes of one program that are measured, two for each operator that changes; with more, estimates choose."""

MAX_MEASURING_SECONDS = 20.0
"""Estimated seconds of measuring them; beyond, estimates choose."""

RUNS_PER_MODE = 50
"""Approximate runs of a mode that is measured, of all engines together."""

PROHIBITIVE_SECONDS = 1.0
"""Seconds that no layout saves in a run of a program."""

MAX_MODES = 12
"""Modes of one equation that are priced; beyond, those that change one tensor, or all to one order."""


def post_optimise(derivation: Derivation, rough: Price = estimate_equation, exact: Price | None = None) -> Derivation:
    """Fuse the eOperators of *derivation* to the end, assign layouts (``assign_layouts``) and fuse again."""
    return fuse_eoperators(assign_layouts(fuse_eoperators(derivation), rough, exact))


def assign_layouts(derivation: Derivation, rough: Price, exact: Price | None = None) -> Derivation:
    """Change *derivation* to the layouts that are cheapest by *rough* prices, if that gains enough.

    The gain is confirmed by *exact* prices of the equations that change, if these are short and few.
    """
    problem = LayoutProblem(derivation.end, rough)
    if not any(len(found) > 1 for found in problem.layouts.values()):
        return derivation
    equations = derivation.end.equations
    operators = [problem.modes(e) for e in equations]
    chosen = assign_modes(operators, problem.transform)
    own, taken = [modes[0] for modes in operators], [modes[m] for modes, m in zip(operators, chosen.modes, strict=True)]
    if chosen.seconds > MIN_ESTIMATED_GAIN * total_seconds(own, problem.transform):
        return derivation
    changed = [each for each in zip(equations, own, taken, strict=True) if each[1] != each[2]]
    estimated = sum(before.seconds + after.seconds for _, before, after in changed)
    few = 2 * len(changed) <= MAX_MEASURED_MODES and RUNS_PER_MODE * estimated <= MAX_MEASURING_SECONDS
    if exact is not None and few:
        measured = LayoutProblem(derivation.end, exact)
        before = total_seconds([measured.priced(e, mode) for e, mode, _ in changed], measured.transform)
        after = total_seconds([measured.priced(e, mode) for e, _, mode in changed], measured.transform)
        if after > MIN_MEASURED_GAIN * before:
            return derivation
    layouts = {name: layout for mode in taken for name, layout in mode.makes.items() if layout}
    try:
        return problem.apply(derivation, layouts, chosen.transforms, taken)
    except Refused:
        return derivation


@dataclass(frozen=True)
class LayoutProblem:
    """The modes of *program*'s equations and what transforms cost, by *price*."""

    program: Program
    price: Price
    transform_seconds: dict[Transform, float] = field(default_factory=dict)

    @cached_property
    def known(self) -> frozenset[str]:
        """The equations of weights only."""
        return weight_only(self.program)

    @cached_property
    def layouts(self) -> Mapping[str, tuple[Phi, ...]]:
        """The candidate layouts of each intermediate, by name, without weights (made beforehand) and views (free)."""
        known = self.known
        own = [e for e in self.program.equations if e.name not in known and not _is_view(e) and e.via is not None]
        found = {e.name: candidate_layouts(self.program, e) for e in own}
        return _with_spread_orders(self.program, found) if any(multiplies_bytes(e.scope) for e in own) else found

    def modes(self, e: Equation) -> list[Mode]:
        """Return the modes of *e* that can be run, its own first."""
        own = [e.name] if e.name in self.layouts else []
        read = [t.name for t in tensors(e.scope) if t.name in self.layouts]
        free = [*own, *dict.fromkeys(read)]
        choices = list(product(*(range(len(self.layouts[name])) for name in free)))
        if len(choices) > MAX_MODES:
            choices = [c for c in choices if sum(map(bool, c)) <= 1 or self._is_one_order(free, c)]
        found = []
        for choice in choices:
            at = dict(zip(free, choice, strict=True))
            if (made := self.instantiate_in(e, at)) is not None:
                seconds = self._seconds(made) if len(choices) > 1 else 0.0  # what has no choice plays no part
                makes = {name: at[name] for name in own}
                found.append(Mode(seconds, {name: at[name] for name in read}, makes))
        return found

    def _is_one_order(self, names: Sequence[str], choice: Sequence[int]) -> bool:
        """Whether all of *names* have their dimensions in one order, which is not their own."""
        orders = {_order_of(self.program, name, self.layouts[name][n]) for name, n in zip(names, choice, strict=True)}
        return all(choice) and len(orders) == 1 and None not in orders

    def priced(self, e: Equation, mode: Mode) -> Mode:
        """Return *mode* of *e* with its seconds by this problem's price."""
        made = self.instantiate_in(e, {**mode.reads, **mode.makes})
        assert made is not None  # it is one of ``modes``
        return replace(mode, seconds=self._seconds(made))

    def _seconds(self, made: Equation) -> float:
        known = all(t.weight or t.name in self.known for t in tensors(made.scope))
        return 0.0 if known or _is_view(made) else self.price(made)

    def instantiate_in(self, e: Equation, at: Mapping[str, int]) -> Equation | None:
        """Instantiate *e* with its tensors in the layouts *at*; None if that takes more than one equation."""
        if not any(at.values()):
            return e
        scope = e.scope
        for name, layout in at.items():
            if layout:
                phi = self.phi(name, layout)
                try:
                    made = Equation(name, with_layout(find_equation(self.program, name).scope, phi)).tensor
                except Refused:
                    return None
                if name == e.name:
                    scope = with_layout(scope, phi)
                else:
                    scope = map_reads(scope, name, lambda a, t=made, f=phi: Access(t, map_index(f, a.index)))  # type: ignore[misc]
        return _instantiate_alone(replace(e, scope=scope, via=None), e)

    def phi(self, name: str, layout: int) -> Bijection:
        """Return the bijection from the tensor's layout to another one."""
        found = self.layouts[name][layout]
        xs = find_equation(self.program, name).scope.traversals
        return bijection(xs, tuple(n for n, _ in found), tuple(i for _, i in found))

    def transform(self, what: Transform) -> float:
        """Return the seconds of a transform: ``PROHIBITIVE_SECONDS`` back to the own layout, which is not derived."""
        if not what[2]:
            return PROHIBITIVE_SECONDS
        if what not in self.transform_seconds:
            self.transform_seconds[what] = self._price_transform(*what)
        return self.transform_seconds[what]

    def _price_transform(self, name: str, before: int, after: int) -> float:
        source = self._tensor(name, before)
        back = self.phi(name, after)
        xs = find_equation(self.program, name).scope.traversals
        old = tuple(back.to_target[x] for x in xs)
        index = map_index(self.phi(name, before), old) if before else old
        copy = Equation(f"{name}__copy", Scope(back.target, (), Access(source, index)))
        try:
            made = generate_equation(Derivation(_program(copy)), copy.name)
        except Refused:
            return 0.0
        return self._seconds(made.end.equations[0])

    def _tensor(self, name: str, layout: int) -> Tensor:
        e = find_equation(self.program, name)
        return Equation(name, with_layout(e.scope, self.phi(name, layout))).tensor if layout else e.tensor

    def apply(
        self, derivation: Derivation, changed: Mapping[str, int], copies: Iterable[Transform], taken: list[Mode]
    ) -> Derivation:
        """Change tensors to the layouts *changed* and make *copies* in others; raises Refused."""
        reads = {e.name: mode.reads for e, mode in zip(self.program.equations, taken, strict=True)}
        for name, _, after in sorted(copies):
            if not after:
                raise Refused(f"{name} would be copied back to its own layout")
            # Copies are made from the old layout: what changes that one changes their reads of it too.
            wanting = tuple(reader for reader, found in reads.items() if found.get(name) == after)
            derivation = apply_rule(derivation, STORAGE_LAYOUT, name, Stored(self.layouts[name][after], wanting))
        for name, layout in changed.items():
            derivation = apply_rule(derivation, STORAGE_LAYOUT, name, Stored(self.layouts[name][layout]))
        old = {e.name: e for e in self.program.equations}
        for e in derivation.end.equations:
            if e.via is None:
                derivation = _instantiate_again(derivation, e.name, old.get(e.name))
        return derivation


def _instantiate_again(derivation: Derivation, name: str, old: Equation | None) -> Derivation:
    """Instantiate the equation called *name* again, as *old* was; raises Refused."""
    if old is not None and old.via is not None and not is_generated(old):
        return match_library_again(derivation, name, old.via.operator)
    return generate_equation(merge_scopes(derivation, name), name)


def _instantiate_alone(e: Equation, old: Equation) -> Equation | None:
    try:
        found = _instantiate_again(Derivation(_program(e)), e.name, old)
    except Refused:
        return None
    return found.end.equations[0] if len(found.end.equations) == 1 else None


def _program(e: Equation) -> Program:
    return Program(tuple({t.name: t for t in tensors(e.scope)}.values()), (e,), (e.name,))


def _is_view(e: Equation) -> bool:
    return e.via is not None and e.via.operator == VIEW
